"""Tests for L{admission.kafka.wire.produce}."""

import datetime
from typing import Any

from hypothesis import given, strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64
from kio.static.constants import EntityType
from kio.static.primitive import i64
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.produce import PartitionResult, ProducedPartition, encodeProduceResponse, parseProduce
from admission.kafka.wire.versions import BY_KEY, PRODUCE
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import arrayElements, entities, fewExamples

_VERSIONS = range(BY_KEY[PRODUCE].minVersion, BY_KEY[PRODUCE].maxVersion + 1)
_MILLISECOND = datetime.timedelta(milliseconds=1)

# One topic "a" with partition 7 and records "xyz", in both dialects, in pieces.
_CLASSIC = [b"\xff\xff", b"\xff\xff\x00\x00\x00\x05", b"\x00\x00\x00\x01", b"\x00\x01a", b"\x00\x00\x00\x01",
            b"\x00\x00\x00\x07", b"\x00\x00\x00\x03xyz"]  # fmt: skip
_FLEXIBLE = [b"\x00", b"\xff\xff\x00\x00\x00\x05", b"\x02", b"\x02a", b"\x02",
             b"\x00\x00\x00\x07", b"\x04xyz", b"\x00", b"\x00", b"\x00"]  # fmt: skip


def _parse(version: int, pieces: list[bytes], **replaced: bytes) -> Any:
    """Parse a request of which some pieces are replaced, C{p3=b"..."} the fourth."""
    pieces = list(pieces)
    for place, piece in replaced.items():
        pieces[int(place[1:])] = piece
    return parseProduce(memoryview(b"".join(pieces)), 0, version)


class ParseProduceTests(SynchronousTestCase):
    """L{parseProduce} reads what kio reads, but does not copy records."""

    def test_readsWhatKioWrites(self) -> None:
        """What kio encodes comes back in every version, and the elements are counted."""
        for version in _VERSIONS:
            self._checkReads(version)

    def _checkReads(self, version: int) -> None:
        @fewExamples
        @given(entities(load_request_schema(PRODUCE, version)), st.binary(max_size=3))
        def check(entity: Any, before: bytes) -> None:
            body = encode(entity)
            request = parseProduce(memoryview(before + body), len(before), version)
            self.assertEqual(request.transactionalId, entity.transactional_id)
            self.assertEqual(request.acks, entity.acks)
            self.assertEqual(request.timeoutMs, entity.timeout // _MILLISECOND)
            self.assertEqual(
                request.partitions,
                [
                    (topic.name, partition.index, partition.records)
                    for topic in entity.topic_data
                    for partition in topic.partition_data
                ],
            )
            self.assertEqual(request.elementCount, arrayElements(entity))
            self.assertRaises(MalformedRequest, parseProduce, memoryview(body + b"\x00"), 0, version)

        check()

    def test_everyCutIsMalformed(self) -> None:
        """A request that ends early is malformed, wherever it ends."""
        for version, pieces in (8, _CLASSIC), (9, _FLEXIBLE):
            whole = b"".join(pieces)
            parseProduce(memoryview(whole), 0, version)
            for sizeBytes in range(len(whole)):
                self.assertRaises(MalformedRequest, parseProduce, memoryview(whole[:sizeBytes]), 0, version)

    def test_recordsAreNotCopied(self) -> None:
        """Records are a slice of the frame's own buffer, and can be written to if it can."""
        for version, pieces in (8, _CLASSIC), (9, _FLEXIBLE):
            buffer = bytearray(b"".join(pieces))
            (partition,) = parseProduce(memoryview(buffer), 0, version).partitions
            self.assertEqual(partition, ProducedPartition("a", 7, memoryview(b"xyz")))
            partition.records[0:1] = b"X"  # type: ignore[index]
            self.assertIn(b"Xyz", buffer)

    def test_noRecords(self) -> None:
        """Records may be null, which is not the same as empty."""
        for version, pieces, null, empty in (
            (8, _CLASSIC, b"\xff\xff\xff\xff", bytes(4)),
            (9, _FLEXIBLE, b"\x00", b"\x01"),
        ):
            self.assertIsNone(_parse(version, pieces, p6=null).partitions[0].records)
            self.assertEqual(_parse(version, pieces, p6=empty).partitions[0].records, b"")

    def test_unknownTags(self) -> None:
        """Tagged fields that nobody knows are refused, in the partition, the topic and the request."""
        for place in "p7", "p8", "p9":
            malformed = self.assertRaises(MalformedRequest, _parse, 9, _FLEXIBLE, **{place: b"\x01\x05\x03abc"})
            self.assertEqual(str(malformed), "a Produce request has tagged fields, and none is known")

    def test_nulls(self) -> None:
        """Null arrays and topics without a name are malformed, other negative lengths too."""
        for place in "p2", "p4":
            self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, **{place: b"\xff\xff\xff\xff"})
            self.assertRaises(MalformedRequest, _parse, 9, _FLEXIBLE, **{place: b"\x00"})
        self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, p3=b"\xff\xff")
        self.assertRaises(MalformedRequest, _parse, 9, _FLEXIBLE, p3=b"\x00")
        self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, p0=b"\xff\xfe")
        malformed = self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, p6=b"\xff\xff\xff\xfe")
        self.assertEqual(str(malformed), "a Produce request says that its records have -2 bytes")

    def test_notText(self) -> None:
        """A name that is not UTF-8 is malformed."""
        self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, p3=b"\x00\x01\xff")
        self.assertRaises(MalformedRequest, _parse, 9, _FLEXIBLE, p0=b"\x02\xff")

    def test_hugeCounts(self) -> None:
        """The counts that make kio abort are refused."""
        for place in "p2", "p4":
            self.assertRaises(MalformedRequest, _parse, 8, _CLASSIC, **{place: b"\x7f\xff\xff\xff"})
            self.assertRaises(MalformedRequest, _parse, 9, _FLEXIBLE, **{place: b"\xff\xff\xff\xff\x7f"})

    def test_elementLimit(self) -> None:
        """One topic with one partition are two elements; fewer allowed, it is refused."""
        view = memoryview(b"".join(_CLASSIC))
        self.assertEqual(parseProduce(view, 0, 8, 2).elementCount, 2)
        malformed = self.assertRaises(MalformedRequest, parseProduce, view, 0, 8, 1)
        self.assertIn("1 topics or partitions where 0 more are allowed", str(malformed))


_RESULTS = st.builds(
    PartitionResult,
    topicName=st.sampled_from(["a", "b", "c" * 200, ""]),
    partitionIndex=st.integers(0, 2**31 - 1),
    errorCode=st.sampled_from(ErrorCode).map(int),
    baseOffset=st.integers(-1, 2**63 - 1),
    logAppendTimeMs=st.just(-1) | st.integers(0, 2**41),
    logStartOffset=st.integers(-1, 2**63 - 1),
    errorMessage=st.none() | st.text(max_size=200),
)


class EncodeProduceResponseTests(SynchronousTestCase):
    """L{encodeProduceResponse} writes what kio would."""

    def test_writesWhatKioWrites(self) -> None:
        """The bytes are kio's in every version; topics are grouped, in the order in which they occur first."""
        for version in _VERSIONS:
            self._checkWrites(version)

    def _checkWrites(self, version: int) -> None:
        @fewExamples
        @given(st.lists(_RESULTS, max_size=6), st.integers(0, 2**31 - 1))
        def check(results: list[PartitionResult], throttleTimeMs: int) -> None:
            self.assertEqual(
                encodeProduceResponse(version, results, throttleTimeMs),
                encode(_responseOfKio(version, results, throttleTimeMs)),
            )

        check()

    def test_usual(self) -> None:
        """So they are for one partition to which records were appended."""

        @fewExamples
        @given(st.sampled_from(_VERSIONS), _RESULTS)
        def check(version: int, result: PartitionResult) -> None:
            results = [result._replace(errorCode=0, errorMessage=None)]
            self.assertEqual(encodeProduceResponse(version, results), encode(_responseOfKio(version, results, 0)))

        check()


def _responseOfKio(version: int, results: list[PartitionResult], throttleTimeMs: int) -> Any:
    kio: Any = load_payload_module(PRODUCE, version, EntityType.response)
    topics: dict[str, list[Any]] = {}
    for result in results:
        fields: dict[str, Any] = {
            "index": result.partitionIndex,
            "error_code": ErrorCode(result.errorCode),
            "base_offset": result.baseOffset,
            "log_append_time": (None if result.logAppendTimeMs < 0 else tz_aware_from_i64(i64(result.logAppendTimeMs))),
        }
        if version >= 5:
            fields["log_start_offset"] = result.logStartOffset
        if version >= 8:
            fields |= {"record_errors": (), "error_message": result.errorMessage}
        topics.setdefault(result.topicName, []).append(kio.PartitionProduceResponse(**fields))
    return kio.ProduceResponse(
        responses=tuple(
            kio.TopicProduceResponse(name=name, partition_responses=tuple(partitions))
            for name, partitions in topics.items()
        ),
        throttle_time=throttleTimeMs * _MILLISECOND,
    )
