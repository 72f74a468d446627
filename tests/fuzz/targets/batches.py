"""
Record batches: a broker refuses a batch in a documented way or stores it, and what it stores, a consumer reads or
refuses in a documented way; decompressing takes no more memory than is allowed, whatever the codec; records are the
same after they were encoded and decoded again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Final

import cramjam
from crc32c import crc32c

from admission.kafka.client.errors import RecordsRefused
from admission.kafka.client.recordsets import PartitionRecords, decompress
from admission.kafka.client.subscriptionstate import TopicPartition
from admission.kafka.wire.batches import (
    HEADER_BYTES,
    BatchRefused,
    Record,
    assignOffset,
    decodeRecords,
    encodeBatch,
    producerIdOf,
    readBatch,
    readHeader,
    stampBatch,
)
from admission.kafka.wire.compression import GZIP, LZ4, SNAPPY, ZSTD, decompressed
from admission.kafka.wire.recordwalk import ANY_TIME, RecordWalk
from tests.kit.logfixture import finish

from ..bounds import bounded

MAX_BYTES = 2048

_MAX_BATCH_BYTES: Final = 64 << 10
_PLACE: Final = TopicPartition("events", 0)

_RECORDS: Final = [
    Record(b"key", b"value", 1000, (("name", b"1"), ("name", None))),
    Record(None, None, 999),
    Record(b"", b"", 2000, (("", b""),)),
]
_REPAIRED, _AS_IT_IS = b"\x01", b"\x00"

#: The memory of decoded records, by their bytes: of the least records and headers.
_BYTES_PER_BYTE: Final = 128
_FIXED_BYTES: Final = 64 << 10


def _compressed(batch: bytes, codec: int) -> bytes:
    payload = batch[HEADER_BYTES:]
    if codec == GZIP:
        packed = gzip.compress(payload, mtime=0)
    elif codec == SNAPPY:
        packed = bytes(cramjam.snappy.compress_raw(payload))
    elif codec == LZ4:
        packed = bytes(cramjam.lz4.compress(payload))
    else:
        packed = bytes(cramjam.zstd.compress(payload))
    changed = bytearray(batch[:HEADER_BYTES] + packed)
    changed[22] |= codec
    return _repaired(changed)


def _repaired(batch: bytearray) -> bytes:
    """A batch with the length and the checksum that it must have."""
    if len(batch) >= HEADER_BYTES:
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


def seeds() -> Iterator[bytes]:
    plain = encodeBatch(_RECORDS)
    large = encodeBatch([Record(None, bytes(40_000))])
    yield _REPAIRED + plain
    yield _AS_IT_IS + plain
    yield _AS_IT_IS + plain + encodeBatch([Record(value=b"next")], baseOffset=3)
    yield _REPAIRED + encodeBatch(_RECORDS[:1], producerId=7, producerEpoch=1, baseSequence=5, attributes=0x18)
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        yield _REPAIRED + _compressed(plain, codec)
        yield _REPAIRED + _compressed(large, codec)
    blocks = plain[HEADER_BYTES:]
    framed = b"\x82SNAPPY\x00" + bytes(8)
    for block in (blocks[:10], blocks[10:]):
        packed = bytes(cramjam.snappy.compress_raw(block))
        framed += len(packed).to_bytes(4, "big") + packed
    xerial = bytearray(plain[:HEADER_BYTES] + framed)
    xerial[22] |= SNAPPY
    yield _REPAIRED + _repaired(xerial)


def check(data: bytes) -> None:
    value = bytearray(data[1:])
    if data[:1] == _REPAIRED:
        value = bytearray(_repaired(value))
    producerIdOf(value)
    try:
        batch = readBatch(value)
    except BatchRefused:
        pass
    else:
        assert batch.sizeBytes == len(value)
        assert batch.count >= 1
        _checkStored(value)
    _checkTaken(bytes(value))


def _checkStored(value: bytearray) -> None:
    """What the broker does with a batch that it accepts."""
    before = readHeader(value)
    assignOffset(value, 10, 3)
    batch = readBatch(value)
    assert (batch.baseOffset, batch.leaderEpoch, batch.crc) == (10, 3, before.crc)
    try:
        records = decodeRecords(value)
    except BatchRefused:
        pass
    else:
        assert len(records) == batch.count
        if not batch.attributes and all(abs(each.timestampMs) < 1 << 62 for each in records):
            again = encodeBatch(records, baseOffset=10)
            encoded = decodeRecords(again)
            assert [(each.key, each.value, each.timestampMs, each.headers) for each in encoded] == [
                (each.key, each.value, each.timestampMs, each.headers) for each in records
            ]
        if not batch.compression:
            walk = RecordWalk(batch, decompressed(0, memoryview(value)[HEADER_BYTES:]))
            assert finish(walk.findOutside(*ANY_TIME)) is None
            assert walk.count == batch.count
    stamped = stampBatch(bytearray(value), 12345)
    assert stamped.hasAppendTime and stamped.maxTimestampMs == 12345


def _checkTaken(value: bytes) -> None:
    """What a consumer does with bytes that may be batches."""
    if len(value) > HEADER_BYTES:
        codec, payload = value[22] & 7, memoryview(value)[HEADER_BYTES:]
        try:
            assert len(decompress(codec, payload, _MAX_BATCH_BYTES)) <= max(_MAX_BATCH_BYTES, len(payload))
        except BatchRefused as refusal:
            assert not isinstance(refusal.__cause__, MemoryError | RecursionError | SystemError), refusal

    def take() -> int:
        partition = PartitionRecords(_PLACE, memoryview(value), 0, _MAX_BATCH_BYTES)
        count = 0
        try:
            while not partition.isExhausted:
                taken = partition.take(100)
                count += len(taken)
                position = 0
                for record in taken:
                    position = record.offset
                assert not taken or partition.nextOffset > position
        except RecordsRefused:
            pass
        return count

    decodedBytes = max(len(value), _MAX_BATCH_BYTES if value[22:23] and value[22] & 7 else 0)
    count = bounded(take, _BYTES_PER_BYTE * decodedBytes + _FIXED_BYTES)
    # A record takes seven bytes or more.
    assert count <= (_MAX_BATCH_BYTES + len(value)) // 7 * max(len(value) // HEADER_BYTES, 1)
