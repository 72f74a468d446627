"""Tests for L{admission.kafka.wire.passing}."""

import dataclasses
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.passing import AddressEraser
from admission.kafka.wire.primitives import MalformedResponse, unsignedVarint
from admission.kafka.wire.relayedapis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from admission.kafka.wire.versions import FETCH, PRODUCE
from tests.kit.kioentities import damaged
from tests.unit.kafka.wire.test_addresses import REAL, encodeWithTags, fewResponses, responses

_TAGGED = [*((PRODUCE, each) for each in (10, 11, 12)), *((FETCH, each) for each in (16, 17, 18))]
_UNTAGGED = [(api, each) for api in (SHARE_FETCH, SHARE_ACKNOWLEDGE) for each in (1, 2)]

_manyResponses = settings(fewResponses, max_examples=8)


def _inChunks(apiKey: int, apiVersion: int, body: bytes, random: Random) -> bytes:
    """What comes out if a body is fed in chunks of random sizes, many of them tiny."""
    eraser = AddressEraser(apiKey, apiVersion)
    passed = b""
    while len(passed) < len(body):
        chunk = body[len(passed) : len(passed) + random.choice((0, 1, 2, 3, random.randrange(1, 200)))]
        erased = eraser.feed(chunk)
        assert len(erased) == len(chunk)
        passed += erased
    return passed


def _erased(endpoint: Any) -> Any:
    """What should become of an address that is in no tagged field."""
    nodeId = int.from_bytes(b"\x80" + (endpoint.node_id % 2**24).to_bytes(3, "big"), "big", signed=True)
    return dataclasses.replace(endpoint, node_id=nodeId, host="-" * len(endpoint.host.encode()), port=0)


class AddressEraserTests(SynchronousTestCase):
    """L{AddressEraser} changes addresses and nothing else, and no length."""

    def test_taggedField(self) -> None:
        """
        However a response is chunked, the tagged field with addresses gets another
        number and zeros as its value, and no other byte changes.
        """
        for apiKey, apiVersion in _TAGGED:
            self._checkTagged(apiKey, apiVersion)

    def _checkTagged(self, apiKey: int, apiVersion: int) -> None:
        @_manyResponses
        @given(responses(apiKey, apiVersion), st.randoms(use_true_random=False))
        def check(entity: Any, random: Random) -> None:
            for unknownTags in [], [(100, b""), (300, bytes(range(200)))]:
                endpoints = dataclasses.replace(entity, node_endpoints=())
                without = encodeWithTags(endpoints, unknownTags)
                body = encodeWithTags(entity, unknownTags)
                # What follows the fields: the number of tags, the tag, and those unknown.
                unknown = b"".join(
                    unsignedVarint(tag) + unsignedVarint(len(value)) + value for tag, value in unknownTags
                )
                fieldsEnd = len(without) - len(unknown) - 1
                taggedEnd = len(body) - len(unknown)
                self.assertEqual(body[fieldsEnd : fieldsEnd + 2], bytes((1 + len(unknownTags), 0)))
                sizeBytes = 1 if body[fieldsEnd + 2] < 0x80 else 2
                valueAt = fieldsEnd + 2 + sizeBytes
                expected = bytearray(body)
                expected[fieldsEnd + 1] = 127
                expected[valueAt:taggedEnd] = bytes(taggedEnd - valueAt)
                self.assertEqual(_inChunks(apiKey, apiVersion, body, random), expected)
                self.assertEqual(AddressEraser(apiKey, apiVersion).feed(body), expected)
                self.assertNotIn(REAL.encode(), expected)

        check()

    def test_untaggedField(self) -> None:
        """
        Where the addresses are in no tagged field, each one has another node id, a
        host of hyphens and no port, and no other byte changes.
        """
        for apiKey, apiVersion in _UNTAGGED:
            self._checkUntagged(apiKey, apiVersion)

    def _checkUntagged(self, apiKey: int, apiVersion: int) -> None:
        @_manyResponses
        @given(responses(apiKey, apiVersion), st.randoms(use_true_random=False))
        def check(entity: Any, random: Random) -> None:
            expected = encodeWithTags(
                dataclasses.replace(entity, node_endpoints=tuple(map(_erased, entity.node_endpoints)))
            )
            body = encodeWithTags(entity)
            self.assertEqual(_inChunks(apiKey, apiVersion, body, random), expected)
            self.assertEqual(AddressEraser(apiKey, apiVersion).feed(body), expected)
            self.assertNotIn(REAL.encode(), expected)

        check()

    def test_nodeIdsStayDifferent(self) -> None:
        """A Java client does not take two nodes with the same id."""
        nodes = [{"node_id": each, "host": "h", "port": 1} for each in (0, 1, 2, 1000)]
        entityType = load_response_schema(SHARE_FETCH, 1)
        body = b"".join(encodeEntity(entityType, {"node_endpoints": nodes}))
        erased, _ = entity_reader(entityType)(AddressEraser(SHARE_FETCH, 1).feed(body), 0)
        ids = [endpoint.node_id for endpoint in erased.node_endpoints]
        self.assertEqual(ids, [each - 2**31 for each in (0, 1, 2, 1000)])

    def test_nothingToErase(self) -> None:
        """What has no addresses is passed without being copied."""
        partition = {"records": bytes(100_000), "aborted_transactions": [{"producer_id": 1, "first_offset": 2}]}
        topics = [{"partitions": [partition, partition]}]
        for apiKey, apiVersion in [*_TAGGED, *_UNTAGGED]:
            entityType = load_response_schema(apiKey, apiVersion)
            fields = {"responses": topics} if apiKey in (FETCH, SHARE_FETCH) else {}
            body = b"".join(encodeEntity(entityType, fields))
            eraser = AddressEraser(apiKey, apiVersion)
            for begin in range(0, len(body), 1000):
                chunk = body[begin : begin + 1000]
                self.assertIs(eraser.feed(chunk), chunk)

    def test_behindTheEnd(self) -> None:
        """Bytes behind the response are passed as they are."""
        body = b"".join(encodeEntity(load_response_schema(FETCH, 17), {}))
        eraser = AddressEraser(FETCH, 17)
        self.assertEqual([eraser.feed(body), eraser.feed(b"more"), eraser.feed(b"")], [body, b"more", b""])

    def test_keepsNothing(self) -> None:
        """A value that announces any length takes no memory before it is there."""
        eraser = AddressEraser(FETCH, 17)
        head = bytes(10) + b"\x01" + b"\x01\x00\xff\xff\xff\xff\x0f"
        self.assertEqual(eraser.feed(head), head[:12] + b"\x7f" + head[13:])
        for _ in range(3):
            self.assertEqual(eraser.feed(b"x" * 1000), bytes(1000))

    def test_damaged(self) -> None:
        """Of a damaged response as many bytes come out as went in, or it is malformed."""
        for apiKey, apiVersion in [*_TAGGED, *_UNTAGGED]:
            self._checkDamaged(apiKey, apiVersion)

    def _checkDamaged(self, apiKey: int, apiVersion: int) -> None:
        @fewResponses
        @given(responses(apiKey, apiVersion), st.randoms(use_true_random=False))
        def check(entity: Any, random: Random) -> None:
            whole = encodeWithTags(entity)
            for _ in range(8):
                body = damaged(whole, random)
                try:
                    self.assertEqual(len(_inChunks(apiKey, apiVersion, body, random)), len(body))
                except MalformedResponse as malformed:
                    self.assertIn(f" v{apiVersion} has a", str(malformed))

        check()
