"""Tests for L{admission.kafka.wire.requests}."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings, strategies as st
from kio.index import load_request_schema, load_response_schema
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.fetch import FetchResponse
from admission.kafka.wire.guard import countElementsOf
from admission.kafka.wire.primitives import MalformedResponse, sizeOf
from admission.kafka.wire.requests import ClientApi, clientApi, decodeResponse, encodeRequest, readCorrelationId
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import entities, fewExamples
from tests.unit.kafka.client.clientfixture import API_NAMES
from tests.unit.kafka.wire.test_codec import _asHandlersSay

_examples = settings(fewExamples, max_examples=2)


def versions() -> Iterator[tuple[ClientApi, int]]:
    """Whatever the consumer asks, in every version."""
    for name in sorted(API_NAMES.values()):
        api = clientApi(name)
        for apiVersion in range(api.minVersion, api.maxVersion + 1):
            yield api, apiVersion


def responseFrame(api: ClientApi, apiVersion: int, entity: Any) -> bytes:
    """What a broker sends, without its length."""
    isTagged = entity.__flexible__ and api.name != "ApiVersions"
    return struct.pack(">i", 7) + (b"\0" if isTagged else b"") + encode(entity)


class ClientApiTests(SynchronousTestCase):
    """What a client can ask."""

    def test_names(self) -> None:
        """APIs go by the names of Kafka's documentation; all that kio knows are there."""
        for name, apiKey in [("Metadata", 3), ("JoinGroup", 11), ("DescribeClientQuotas", 48), ("SaslHandshake", 17)]:
            self.assertEqual((clientApi(name).apiKey, clientApi(name).name), (apiKey, name))
        self.assertRaises(ValueError, clientApi, "metadata")

    def test_topicNames(self) -> None:
        """Versions in which topics have ids only are not spoken."""
        self.assertEqual([clientApi(name).maxVersion for name in ("Produce", "Fetch", "OffsetCommit")], [12, 12, 9])

    def test_newestVersion(self) -> None:
        """The newest version that both speak is taken."""
        api = ClientApi(1, "Fetch", 4, 12)
        for offered, version in [((0, 20), 12), ((4, 9), 9), ((0, 4), 4), ((12, 17), 12), ((13, 17), None)]:
            self.assertEqual(api.newestVersion(*offered), version)
        self.assertIsNone(api.newestVersion(0, 3))


class EncodeRequestTests(SynchronousTestCase):
    """Requests are kio's bytes in a frame."""

    def test_everyVersion(self) -> None:
        """The same fields make kio's request in every version, behind kio's header."""
        for api, apiVersion in versions():
            self._check(api, apiVersion)

    def _check(self, api: ClientApi, apiVersion: int) -> None:
        requestType: Any = load_request_schema(api.apiKey, apiVersion)

        @_examples
        @given(entities(requestType), st.none() | st.text(max_size=5))
        def check(entity: Any, clientId: str | None) -> None:
            header = requestType.__header_schema__(
                request_api_key=api.apiKey, request_api_version=apiVersion, correlation_id=9, client_id=clientId
            )
            content = encode(header) + encode(entity)
            parts = encodeRequest(api, apiVersion, 9, clientId, _asHandlersSay(entity))
            self.assertEqual(b"".join(parts), struct.pack(">i", len(content)) + content)

        check()

    def test_large(self) -> None:
        """Large records are neither copied nor joined."""
        records = bytes(100_000)
        topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
        parts = encodeRequest(clientApi("Produce"), 9, 1, "me", {"topic_data": [topic]})
        self.assertTrue(any(part is records for part in parts))
        self.assertEqual(struct.unpack_from(">i", parts[0]), (sizeOf(parts) - 4,))

    def test_tooLarge(self) -> None:
        """A number that does not fit its field is refused."""
        self.assertRaises(struct.error, encodeRequest, clientApi("Heartbeat"), 4, 1, None, {"generation_id": 2**31})


class DecodeResponseTests(SynchronousTestCase):
    """Responses are decoded behind the guard."""

    def test_everyVersion(self) -> None:
        """Every response comes back as it was encoded.  That of Fetch has tests of its own."""
        for api, apiVersion in versions():
            if api.name != "Fetch":
                self._check(api, apiVersion)

    def _check(self, api: ClientApi, apiVersion: int) -> None:
        @_examples
        @given(entities(load_response_schema(api.apiKey, apiVersion)))
        def check(entity: Any) -> None:
            frame = responseFrame(api, apiVersion, entity)
            self.assertEqual(readCorrelationId(frame), 7)
            self.assertEqual(decodeResponse(api, apiVersion, frame), entity)

        check()

    def test_counts(self) -> None:
        """An array that announces more than there can be, or than is allowed, does not get to kio."""
        metadata = clientApi("Metadata")
        for body in (bytes(4) + b"\xff\xff\xff\xff\x7f", bytes(4) + b"\x7f"):
            error = self.assertRaises(MalformedResponse, decodeResponse, metadata, 12, bytes(5) + body)
            self.assertIn("brokers announces", str(error))
        entityType = load_response_schema(18, 0)
        body = struct.pack(">hi", 0, 50) + bytes(6 * 50)
        self.assertEqual(countElementsOf(entityType, "an answer", body, 50), 50)
        self.assertEqual(len(decodeResponse(clientApi("ApiVersions"), 0, bytes(4) + body, 50).api_keys), 50)
        self.assertRaises(MalformedResponse, decodeResponse, clientApi("ApiVersions"), 0, bytes(4) + body, 49)

    def test_leftOver(self) -> None:
        """Bytes behind the last field are no response of ours."""
        frame = bytes(5) + bytes(4) + bytes(2) + bytes(1)
        self.assertEqual(decodeResponse(clientApi("Heartbeat"), 4, frame).error_code.value, 0)
        error = self.assertRaises(MalformedResponse, decodeResponse, clientApi("Heartbeat"), 4, frame + b"x")
        self.assertIn("1 bytes are left over", str(error))

    def test_short(self) -> None:
        """What has no room for a correlation id is refused."""
        for sizeBytes in range(4):
            self.assertRaises(MalformedResponse, readCorrelationId, bytes(sizeBytes))

    def test_unknownError(self) -> None:
        """An error that nobody knows yet is refused like other nonsense."""
        frame = bytes(5) + bytes(4) + struct.pack(">h", 9999) + bytes(1)
        self.assertRaises(MalformedResponse, decodeResponse, clientApi("Heartbeat"), 4, frame)

    def test_fetch(self) -> None:
        """Fetch gives views of the frame."""
        body = bytes(4) + bytes(2) + bytes(4) + b"\x02" + b"\x02t" + b"\x02" + bytes(4) + bytes(2) + bytes(24)
        frame = bytes(5) + body + b"\x00" + bytes(4) + b"\x04abc" + bytes(3)
        response = decodeResponse(clientApi("Fetch"), 12, frame)
        self.assertIsInstance(response, FetchResponse)
        (partition,) = response.partitions
        self.assertEqual((partition.topicName, bytes(partition.records)), ("t", b"abc"))
        self.assertIs(partition.records.obj, frame)
