"""Tests for L{admission.kafka.wire.batches}."""

import struct

from crc32c import crc32c
from hypothesis import given, strategies as st
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import (
    HEADER_BYTES,
    BatchRefused,
    Record,
    RecordBatch,
    assignOffset,
    decodeRecords,
    encodeBatch,
    readBatch,
)
from tests.kit.kioentities import manyExamples

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=300),
        timestampMs=st.integers(0, 2**41),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


def _changed(format: str, offset: int, value: int, batch: bytes, *, crc: bool = True) -> bytes:
    """A batch of which one field of the header is another, with the checksum to match."""
    changed = bytearray(batch)
    struct.pack_into(format, changed, offset, value)
    if crc:
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


class EncodeBatchTests(SynchronousTestCase):
    """L{encodeBatch} and L{decodeRecords} are each other's inverse."""

    @manyExamples
    @given(RECORDS, st.integers(0, 2**62))
    def test_roundTrip(self, records: list[Record], baseOffset: int) -> None:
        """Records come back with their offsets."""
        decoded = decodeRecords(encodeBatch(records, baseOffset=baseOffset))
        expected = [
            Record(record.key, record.value, record.timestampMs, record.headers, baseOffset + delta)
            for delta, record in enumerate(records)
        ]
        self.assertEqual(decoded, expected)

    def test_bytes(self) -> None:
        """A batch has the bytes that Kafka's own clients make of the same records."""
        records = [Record(b"k", b"v", 1000, (("h", b"1"),)), Record(None, b"", 999)]
        self.assertEqual(
            encodeBatch(records, leaderEpoch=0, attributes=0x10, producerId=77, producerEpoch=3, baseSequence=9).hex(),
            "0000000000000000000000450000000002dabfe14c00100000000100000000000003e800000000000003e8"
            "000000000000004d0003000000090000000218000000026b027602026802310c000102010000",
        )

    def test_noRecords(self) -> None:
        """There is no batch without records."""
        self.assertRaises(ValueError, encodeBatch, [])


class ReadBatchTests(SynchronousTestCase):
    """L{readBatch} takes one whole batch and refuses everything else."""

    def setUp(self) -> None:
        self.batch = encodeBatch(
            [Record(b"k", b"v" * 40, 1000), Record(None, b"w", 1007), Record(b"l", None, 1003)],
            baseOffset=5,
            leaderEpoch=4,
            attributes=0x11,
            producerId=77,
            producerEpoch=3,
            baseSequence=9,
        )

    def _assertRefused(self, batch: bytes, errorCode: ErrorCode, reason: str) -> None:
        refused = self.assertRaises(BatchRefused, readBatch, memoryview(batch))
        self.assertEqual(refused.errorCode, errorCode)
        self.assertIn(reason, refused.reason)
        self.assertEqual(str(refused), f"{errorCode.name}: {refused.reason}")

    def test_header(self) -> None:
        """Every field of the header is read."""
        batch = readBatch(memoryview(self.batch))
        self.assertEqual(
            batch,
            RecordBatch(
                baseOffset=5,
                lengthBytes=len(self.batch) - 12,
                leaderEpoch=4,
                magic=2,
                crc=crc32c(self.batch[21:]),
                attributes=0x11,
                lastOffsetDelta=2,
                baseTimestampMs=1000,
                maxTimestampMs=1007,
                producerId=77,
                producerEpoch=3,
                baseSequence=9,
                count=3,
            ),
        )
        self.assertEqual(batch.sizeBytes, len(self.batch))
        self.assertEqual(batch.lastOffset, 7)

    def test_attributes(self) -> None:
        """Compression and flags are told from the attributes."""
        for attributes, expected in (
            (0x00, (0, False, False)),
            (0x04, (4, False, False)),
            (0x08, (0, False, False)),
            (0x11, (1, True, False)),
            (0x20, (0, False, True)),
        ):
            batch = readBatch(encodeBatch([Record(value=b"v")], attributes=attributes))
            self.assertEqual((batch.compression, batch.isTransactional, batch.isControl), expected)

    def test_tooShort(self) -> None:
        """Fewer bytes than a header has are corrupt."""
        for sizeBytes in 0, 11, 16, 17, HEADER_BYTES - 1:
            self._assertRefused(self.batch[:sizeBytes], ErrorCode.corrupt_message, f"{sizeBytes} bytes are too few")

    def test_cutOff(self) -> None:
        """A batch that says that it is longer than it is is corrupt."""
        for sizeBytes in HEADER_BYTES, len(self.batch) - 1:
            self._assertRefused(self.batch[:sizeBytes], ErrorCode.corrupt_message, "gives its size as")

    def test_impossibleLength(self) -> None:
        """A batch that says that it is shorter than its header is corrupt."""
        for lengthBytes in -(2**31), -13, 0, HEADER_BYTES - 13:
            self._assertRefused(
                _changed(">i", 8, lengthBytes, self.batch), ErrorCode.corrupt_message, "gives its size as"
            )

    def test_twoBatches(self) -> None:
        """A request brings one batch for a partition: what follows is invalid."""
        self._assertRefused(self.batch + self.batch, ErrorCode.invalid_record, f"{len(self.batch)} bytes follow")
        self._assertRefused(self.batch + b"\x00", ErrorCode.invalid_record, "1 bytes follow")

    def test_oldFormats(self) -> None:
        """
        Message sets of formats 0 and 1 are told from damage, also where they
        are shorter than the header of a batch.
        """
        for magic in 0, 1:
            message = bytes(8) + b"\x00\x00\x00\x16" + bytes(4) + bytes((magic,)) + bytes(17)
            self._assertRefused(message, ErrorCode.unsupported_for_message_format, f"format {magic}")
            self._assertRefused(
                _changed(">b", 16, magic, self.batch), ErrorCode.unsupported_for_message_format, f"format {magic}"
            )

    def test_formatsToCome(self) -> None:
        """A format that does not exist is corrupt."""
        for magic in 3, 127, -1:
            self._assertRefused(_changed(">b", 16, magic, self.batch), ErrorCode.corrupt_message, f"format {magic}")

    def test_checksum(self) -> None:
        """
        A change to any byte that the checksum covers, or to the checksum, is
        corrupt, before anything else is said of the batch.
        """
        for offset in range(17, len(self.batch)):
            changed = bytearray(self.batch)
            changed[offset] ^= 0x40
            self._assertRefused(bytes(changed), ErrorCode.corrupt_message, "the checksum does not match")

    def test_counts(self) -> None:
        """The number of records is positive and what the last offset says."""
        for count in 2, 4, -1, 2**31 - 1:
            self._assertRefused(
                _changed(">i", 57, count, self.batch), ErrorCode.invalid_record, f"counts {count} records"
            )
        empty = _changed(">i", 23, -1, _changed(">i", 57, 0, self.batch))
        self._assertRefused(empty, ErrorCode.invalid_record, "counts 0 records")

    def test_moreRecordsThanBytes(self) -> None:
        """A batch with more records than its bytes can hold is refused: a few of them would use up all offsets."""
        smallest = encodeBatch([Record()] * 10)
        self.assertEqual(readBatch(smallest).count, 10)
        claimed = _changed(">i", 23, 10, _changed(">i", 57, 11, smallest))
        self._assertRefused(claimed, ErrorCode.invalid_record, "11 records, and its 70 bytes hold 10")
        for count, isRefused in ((70_000, False), (70_001, True)):
            compressed = _changed(">h", 21, 4, _changed(">i", 23, count - 1, _changed(">i", 57, count, smallest)))
            if isRefused:
                self._assertRefused(compressed, ErrorCode.invalid_record, "its 70 bytes hold 70000 at most")
            else:
                self.assertEqual(readBatch(compressed).count, count)

    def test_compression(self) -> None:
        """Compression types that have no meaning are refused as such."""
        for compression in 5, 6, 7:
            self._assertRefused(
                _changed(">h", 21, compression, self.batch),
                ErrorCode.unsupported_compression_type,
                f"compression type {compression}",
            )


class DecodeRecordsTests(SynchronousTestCase):
    """L{decodeRecords} reads uncompressed batches that are what they say."""

    def _assertRefused(self, batch: bytes, errorCode: ErrorCode, reason: str) -> None:
        refused = self.assertRaises(BatchRefused, decodeRecords, batch)
        self.assertEqual((refused.errorCode, refused.reason), (errorCode, reason))

    def test_compressed(self) -> None:
        """Compressed records are refused."""
        batch = encodeBatch([Record(value=b"v")], attributes=1)
        self._assertRefused(batch, ErrorCode.unsupported_compression_type, "the records of this batch are compressed")

    def test_fewerRecordsThanCounted(self) -> None:
        """Records that end before or behind their number are corrupt."""
        batch = encodeBatch([Record(value=b"some value"), Record(value=b"another")])
        fewer = _changed(">i", 23, 0, _changed(">i", 57, 1, batch))
        self._assertRefused(fewer, ErrorCode.corrupt_message, "the batch does not end where its records do")
        more = _changed(">i", 23, 2, _changed(">i", 57, 3, batch))
        self._assertRefused(more, ErrorCode.corrupt_message, "the batch ends before its records do")

    def test_recordOfAnotherLength(self) -> None:
        """A record must end where its length says."""
        batch = encodeBatch([Record(value=b"v")])
        self._assertRefused(
            _changed(">b", HEADER_BYTES, 2, batch), ErrorCode.corrupt_message, "a record does not end where it says"
        )


class AssignOffsetTests(SynchronousTestCase):
    """L{assignOffset} changes a batch in place."""

    def test_inPlace(self) -> None:
        """Base offset and leader epoch are written, nothing else, and the batch stays valid."""
        records = [Record(value=b"v"), Record(value=b"w")]
        frame = bytearray(b"before" + encodeBatch(records) + b"behind")
        assignOffset(memoryview(frame)[6:-6], 2**40, 8)
        self.assertEqual(frame, b"before" + encodeBatch(records, baseOffset=2**40, leaderEpoch=8) + b"behind")
        self.assertEqual(readBatch(memoryview(frame)[6:-6]).baseOffset, 2**40)

    def test_readOnly(self) -> None:
        """A buffer that cannot be written to is an error."""
        self.assertRaises(TypeError, assignOffset, memoryview(encodeBatch([Record(value=b"v")])), 1, 0)
