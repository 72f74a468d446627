"""Tests for L{admission.kafka.wire.fetch}."""

import datetime
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from hypothesis import given, strategies as st
from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.fetch import FetchedPartition, FetchedTopic, decodeFetchResponse, encodeFetchResponse
from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.versions import BY_KEY, FETCH
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import entities, fewExamples

_VERSIONS = range(BY_KEY[FETCH].minVersion, BY_KEY[FETCH].maxVersion + 1)

_OFFSETS = st.integers(-1, 2**63 - 1)
_PARTITIONS = st.builds(
    FetchedPartition,
    partitionIndex=st.integers(0, 2**31 - 1),
    errorCode=st.sampled_from(ErrorCode).map(int),
    highWatermark=_OFFSETS,
    lastStableOffset=_OFFSETS,
    logStartOffset=_OFFSETS,
    records=st.lists(st.binary(max_size=100), max_size=3),
)
_TOPICS = st.builds(
    FetchedTopic, topicName=st.text(max_size=8), topicId=st.uuids(), partitions=st.lists(_PARTITIONS, max_size=3)
)


class EncodeFetchResponseTests(SynchronousTestCase):
    """L{encodeFetchResponse} writes what kio would, in parts."""

    def test_writesWhatKioWrites(self) -> None:
        """Joined, the parts are kio's bytes in every version."""
        for version in _VERSIONS:
            self._checkWrites(version)

    def _checkWrites(self, version: int) -> None:
        @fewExamples
        @given(
            st.integers(0, 2**31 - 1),
            st.sampled_from(ErrorCode).map(int),
            st.integers(0, 2**31 - 1),
            st.lists(_TOPICS, max_size=3),
        )
        def check(throttleTimeMs: int, errorCode: int, sessionId: int, topics: list[FetchedTopic]) -> None:
            self.assertEqual(
                b"".join(encodeFetchResponse(version, throttleTimeMs, errorCode, sessionId, topics)),
                encode(_responseOfKio(version, throttleTimeMs, errorCode, sessionId, topics)),
            )

        check()

    def test_batchesAreNotCopied(self) -> None:
        """Every stored batch is a part of its own, the very object that was given."""
        batches = [bytes(5000), bytes(10), bytes(7000)]
        partitions = [
            FetchedPartition(0, records=batches[:2]),
            FetchedPartition(1),
            FetchedPartition(2, records=batches[2:]),
        ]
        for version in _VERSIONS:
            parts = encodeFetchResponse(version, 0, 0, 0, [FetchedTopic("a", UUID(int=1), partitions)])
            for part, batch in ((parts[1], batches[0]), (parts[2], batches[1]), (parts[4], batches[2])):
                self.assertIs(part, batch)

    def test_nothing(self) -> None:
        """A response without topics is one part."""
        self.assertEqual(encodeFetchResponse(4, 5, 0, 0, []), [b"\x00\x00\x00\x05\x00\x00\x00\x00"])


def _responseOfKio(
    version: int, throttleTimeMs: int, errorCode: int, sessionId: int, topics: Sequence[FetchedTopic]
) -> Any:
    kio: Any = load_payload_module(FETCH, version, EntityType.response)
    fields: dict[str, Any] = {"throttle_time": datetime.timedelta(milliseconds=throttleTimeMs)}
    if version >= 7:
        fields |= {"error_code": ErrorCode(errorCode), "session_id": sessionId}
    return kio.FetchResponse(
        responses=tuple(
            kio.FetchableTopicResponse(
                **({"topic_id": topic.topicId} if version >= 13 else {"topic": topic.topicName}),
                partitions=tuple(_partitionOfKio(kio, version, partition) for partition in topic.partitions),
            )
            for topic in topics
        ),
        **fields,
    )


def _partitionOfKio(kio: Any, version: int, partition: FetchedPartition) -> Any:
    fields: dict[str, Any] = {}
    if version >= 5:
        fields["log_start_offset"] = partition.logStartOffset
    if version >= 11:
        fields["preferred_read_replica"] = -1
    return kio.PartitionData(
        partition_index=partition.partitionIndex,
        error_code=ErrorCode(partition.errorCode),
        high_watermark=partition.highWatermark,
        last_stable_offset=partition.lastStableOffset,
        aborted_transactions=None,
        records=b"".join(partition.records),
        **fields,
    )


class DecodeFetchResponseTests(SynchronousTestCase):
    """L{decodeFetchResponse} reads what L{encodeFetchResponse} and kio write."""

    def test_everyVersion(self) -> None:
        """What was encoded comes back, as far as a version carries it, and the records are views."""
        for version in _VERSIONS:
            self._checkReads(version)

    def _checkReads(self, version: int) -> None:
        @fewExamples
        @given(st.integers(0, 2**31 - 1), st.integers(0, 100), st.lists(_TOPICS, max_size=3))
        def check(throttleTimeMs: int, sessionId: int, topics: list[FetchedTopic]) -> None:
            body = b"".join(encodeFetchResponse(version, throttleTimeMs, 7, sessionId, topics))
            response = decodeFetchResponse(version, body, 1000)
            self.assertEqual(response.throttleTimeMs, throttleTimeMs)
            if version >= 7:
                self.assertEqual((response.errorCode, response.sessionId), (7, sessionId))
            expected = [
                (
                    topic.topicName if version < 13 else "",
                    topic.topicId if version >= 13 else UUID(int=0),
                    partition.partitionIndex,
                    partition.errorCode,
                    partition.highWatermark,
                    partition.logStartOffset if version >= 5 else -1,
                    b"".join(partition.records),
                )
                for topic in topics
                for partition in topic.partitions
            ]
            self.assertEqual([(*each[:6], bytes(each.records)) for each in response.partitions], expected)
            self.assertTrue(all(each.records.obj is body for each in response.partitions))

        check()

    def test_everythingOfKafkas(self) -> None:
        """Aborted transactions, replicas to read from and tagged fields are stepped over; null is nothing."""
        for version in _VERSIONS:
            self._checkStepsOver(version)

    def _checkStepsOver(self, version: int) -> None:
        entityType: Any = load_response_schema(FETCH, version)

        @fewExamples
        @given(entities(entityType))
        def check(entity: Any) -> None:
            response = decodeFetchResponse(version, encode(entity), 1000)
            expected = [
                (each.partition_index, each.error_code.value, each.records or b"")
                for topic in entity.responses
                for each in topic.partitions
            ]
            self.assertEqual(
                [(each.partitionIndex, each.errorCode, bytes(each.records)) for each in response.partitions], expected
            )

        check()

    def test_lies(self) -> None:
        """Counts and lengths that cannot be are refused, and so is what is cut off or goes on."""
        partition = FetchedPartition(0, records=[b"records"])
        body = b"".join(encodeFetchResponse(12, 0, 0, 0, [FetchedTopic("topic", UUID(int=1), [partition])]))
        self.assertEqual(len(decodeFetchResponse(12, body, 2).partitions), 1)
        self.assertRaises(MalformedRequest, decodeFetchResponse, 12, body, 1)
        self.assertRaises(MalformedRequest, decodeFetchResponse, 12, body + b"x", 1000)
        for end in range(len(body)):
            self.assertRaises(MalformedRequest, decodeFetchResponse, 12, body[:end], 1000)
        for at in range(10, len(body)):
            for value in (0x00, 0x7F, 0xFF):
                lie = body[:at] + bytes([value]) + body[at + 1 :]
                try:
                    decodeFetchResponse(12, lie, 1000)
                except MalformedRequest:
                    pass
