"""Tests for L{admission.kafka.client.recordsets}."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
from crc32c import crc32c
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.errors import RecordsRefused
from admission.kafka.client.recordsets import PartitionRecords, decompress
from admission.kafka.client.subscriptionstate import TopicPartition
from admission.kafka.wire.batches import HEADER_BYTES, BatchRefused, Record, encodeBatch
from admission.kafka.wire.compression import GZIP, LZ4, SNAPPY, ZSTD
from admission.kafka.wire.primitives import signedVarint

PLACE = TopicPartition("events", 3)
LARGEST_BYTES = 1 << 16


def xerial(data: bytes) -> bytes:
    """Snappy as the Java client frames it, in blocks of 100 bytes."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 100])) for at in range(0, len(data), 100)]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


COMPRESSORS: list[tuple[int, Callable[[bytes], Any]]] = [
    (GZIP, gzip.compress),
    (SNAPPY, cramjam.snappy.compress_raw),
    (SNAPPY, xerial),
    (LZ4, cramjam.lz4.compress),
    (ZSTD, cramjam.zstd.compress),
]


def batch(*values: bytes, baseOffset: int = 0, **header: int) -> bytearray:
    """A batch with a record for each value."""
    records = [Record(value=value, timestampMs=1000 + index) for index, value in enumerate(values)]
    return bytearray(encodeBatch(records, baseOffset=baseOffset, **header))


def sealed(changed: bytearray) -> bytes:
    """A batch whose length and checksum are right."""
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def compressed(compression: int, compress: Callable[[bytes], Any], *values: bytes) -> bytes:
    """A batch whose records are compressed."""
    plain = batch(*values, attributes=compression)
    return sealed(plain[:HEADER_BYTES] + bytearray(bytes(compress(bytes(plain[HEADER_BYTES:])))))


class RecordsTests(SynchronousTestCase):
    """Records are taken a few at a time."""

    def records(self, *batches: bytes, offset: int = 0) -> PartitionRecords:
        """What was fetched."""
        return PartitionRecords(PLACE, memoryview(b"".join(batches)), offset, LARGEST_BYTES)

    def values(self, records: PartitionRecords, count: int = 100) -> list[bytes | None]:
        """The values of the next records."""
        return [record.value for record in records.take(count)]

    def test_take(self) -> None:
        """Across batches, with everything that a record has; the offset to go on with follows."""
        first = encodeBatch([Record(b"k", b"v", 5, (("h", b"x"), ("n", None)))], baseOffset=7)
        records = self.records(first, batch(b"1", b"2", b"3", baseOffset=8), offset=7)
        (record,) = records.take(1)
        self.assertEqual(record, ("events", 3, 7, 5, b"k", b"v", (("h", b"x"), ("n", None))))
        self.assertEqual(records.nextOffset, 8)
        self.assertEqual(self.values(records, 2), [b"1", b"2"])
        self.assertEqual((records.nextOffset, records.isExhausted), (10, False))
        self.assertEqual(self.values(records, 2), [b"3"])
        self.assertEqual((records.nextOffset, records.isExhausted), (11, True))

    def test_middle(self) -> None:
        """A batch begins before what was asked for; that part of it is passed over."""
        records = self.records(batch(b"0", b"1", b"2", baseOffset=10), offset=12)
        self.assertEqual(self.values(records), [b"2"])

    def test_gaps(self) -> None:
        """
        What compaction has removed leaves gaps, which the position goes over; so it does over what
        only brokers read.
        """
        compacted = batch(b"0", b"1", baseOffset=5)
        struct.pack_into(">i", compacted, 23, 9)
        emptied = batch(b"0", baseOffset=15)[:HEADER_BYTES]
        struct.pack_into(">i", emptied, 57, 0)
        marker = batch(b"commit", baseOffset=16, attributes=0x20)
        records = self.records(sealed(compacted), sealed(emptied), bytes(marker), offset=5)
        self.assertEqual(self.values(records, 2), [b"0", b"1"])
        self.assertEqual(self.values(records), [])
        self.assertEqual((records.nextOffset, records.isExhausted), (17, True))

    def test_cutOff(self) -> None:
        """A batch that is cut off is not there."""
        whole, cut = bytes(batch(b"0")), bytes(batch(b"1", baseOffset=1))
        for keptBytes in (5, 30, HEADER_BYTES, len(cut) - 1):
            records = self.records(whole, cut[:keptBytes])
            self.assertEqual(self.values(records), [b"0"])
            self.assertEqual((records.nextOffset, records.isExhausted), (1, True))

    def test_storedTime(self) -> None:
        """Where the topic says so, the time of a record is when it was stored."""
        stored = batch(b"0", b"1", attributes=0x08)
        struct.pack_into(">q", stored, 35, 99_000)
        records = self.records(sealed(stored))
        self.assertEqual([record.timestampMs for record in records.take(9)], [99_000, 99_000])

    def test_damage(self) -> None:
        """Damage is told after all that is in front of it, again and again, and where it is."""
        damaged = batch(b"1", baseOffset=1)
        damaged[-1] ^= 1
        old = bytearray(damaged)
        old[16] = 1
        hollow = batch(b"1", baseOffset=1)
        struct.pack_into(">i", hollow, 57, 2)
        for bad, words in [
            (bytes(damaged), "checksum"),
            (bytes(old), "format 1"),
            (sealed(hollow), "ends before its records do"),
        ]:
            records = self.records(bytes(batch(b"0")), bad, bytes(batch(b"2", baseOffset=2)))
            self.assertEqual(self.values(records), [b"0"])
            for _ in range(2):
                error = self.assertRaises(RecordsRefused, records.take, 1)
                self.assertEqual((error.topic, error.partition, error.offset), ("events", 3, 1))
                self.assertIn(words, str(error))
            self.assertFalse(records.isExhausted)

    def test_lies(self) -> None:
        """A header that makes no sense is damage as well."""
        for at, value in [(8, 10), (57, -1), (23, -1)]:
            lie = batch(b"0")
            struct.pack_into(">i", lie, at, value)
            self.assertRaises(RecordsRefused, self.records(bytes(lie)).take, 1)

    def test_offsetOutside(self) -> None:
        """
        A record whose offset is not one of its batch is damage, and where the next batch begins is told: behind that
        record there may be nothing.
        """
        for delta in (1000, 2, -1):
            # Without attributes, a time, a key and headers.
            record = bytes(2) + signedVarint(delta) + signedVarint(-1) + signedVarint(1) + b"2" + bytes(1)
            strange = batch(b"1", baseOffset=1)[:HEADER_BYTES] + signedVarint(len(record)) + record
            struct.pack_into(">i", strange, 23, 1)
            records = self.records(bytes(batch(b"0")), sealed(strange), bytes(batch(b"3", baseOffset=3)))
            self.assertEqual(self.values(records), [b"0"])
            error = self.assertRaises(RecordsRefused, records.take, 1)
            self.assertEqual((error.offset, error.nextOffset, records.nextOffset), (1, 3, 1))
            self.assertIn(f"has offset {1 + delta}, and its batch those from 1 to 2", str(error))

    def test_bombIsForgotten(self) -> None:
        """Once a batch that becomes too large is refused, nothing of it is kept."""
        records = PartitionRecords(PLACE, memoryview(compressed(GZIP, gzip.compress, bytes(9 << 20))), 0, 8 << 20)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        error = self.assertRaises(RecordsRefused, records.take, 1)
        keptBytes, peakBytes = tracemalloc.get_traced_memory()
        self.assertLess(keptBytes, 1 << 20)
        self.assertIn("more than 8388608 bytes", str(error))
        self.assertEqual(error.nextOffset, 1)
        self.assertGreater(peakBytes, 8 << 20)

    def test_compressed(self) -> None:
        """Whatever producers compress with is read."""
        values = [b"%d" % index * 50 for index in range(20)]
        for compression, compress in COMPRESSORS:
            records = self.records(compressed(compression, compress, *values))
            self.assertEqual(self.values(records), values)


class DecompressTests(SynchronousTestCase):
    """Compressed bytes are not trusted."""

    def test_bombs(self) -> None:
        """What would become too large is refused, and memory for it not taken; what just fits is not."""
        fits, bomb = b"x" * LARGEST_BYTES, b"x" * (LARGEST_BYTES + 1)
        for compression, compress in COMPRESSORS:
            self.assertEqual(bytes(decompress(compression, bytes(compress(fits)), LARGEST_BYTES)), fits)
            error = self.assertRaises(BatchRefused, decompress, compression, bytes(compress(bomb)), LARGEST_BYTES)
            self.assertIn("more than 65536 bytes", str(error), compression)

    def test_damage(self) -> None:
        """What is no such thing is refused by the same exception."""
        for compression, compress in COMPRESSORS:
            data = bytes(compress(bytes(range(256)) * 4))
            for damaged in (b"", data[: len(data) // 2], b"\xff" * 40):
                error = self.assertRaises(BatchRefused, decompress, compression, damaged, LARGEST_BYTES)
                self.assertEqual(error.errorCode, ErrorCode.corrupt_message)

    def test_unknown(self) -> None:
        """A compression that nobody knows is not supported."""
        error = self.assertRaises(BatchRefused, decompress, 5, b"", LARGEST_BYTES)
        self.assertEqual(error.errorCode, ErrorCode.unsupported_compression_type)
