# -*- test-case-name: tests.unit.kafka.client.test_recordsets -*-
"""
The records of a Fetch response: decompressed and decoded as they are taken.

gzip needs nothing; snappy, lz4 and zstd need cramjam, which the extra
C{consumer} brings.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from ..wire.batches import BatchRefused, Record, RecordBatch, recordsOf
from ..wire.primitives import Buffer
from ..wire.stored import batchesIn
from .errors import RecordsRefused
from .subscriptionstate import TopicPartition

GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

_ANY_GZIP_HEADER = 16 + zlib.MAX_WBITS
# snappy-java's own framing: magic, two version numbers, and then blocks behind their lengths.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")
_STORED_TIME_BIT = 0x08


class ConsumerRecord(NamedTuple):
    """
    One record as a consumer gets it.

    @ivar timestampMs: milliseconds since the epoch, of when the record was
        made, or stored if the topic is configured so.
    @ivar key: what it is filed under, if anything.
    @ivar value: L{None} deletes the key from a compacted topic.
    @ivar headers: names and values, in order; a name may occur twice.
    """

    topic: str
    partition: int
    offset: int
    timestampMs: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class PartitionRecords:
    """
    The records of one partition in one response, a batch at a time.

    @ivar nextOffset: the position behind the records taken.
    @ivar sizeBytes: the size as it arrived, compressed.
    @ivar isExhausted: whether all records were taken.
    """

    def __init__(self, place: TopicPartition, records: memoryview, fetchOffset: int, maxBatchBytes: int) -> None:
        """
        @param records: what the broker returned; begins with the batch that
            contains C{fetchOffset}, so perhaps before it.
        @param fetchOffset: the first offset to return.
        @param maxBatchBytes: the largest batch after decompression.
        """
        self._place = place
        self.nextOffset = fetchOffset
        self.sizeBytes = len(records)
        self.isExhausted = False
        self._batches = batchesIn(records)
        self._maxBatchBytes = maxBatchBytes
        self._decoded: Sequence[Record] = ()
        self._index = 0
        self._batchEnd = fetchOffset
        # In words: the exception would keep what was decompressed so far.
        self._refusal: str | None = None
        self._refusedEnd: int | None = None

    def take(self, count: int) -> list[ConsumerRecord]:
        """
        The next records, at most C{count}; fewer only at the end, or before a
        batch that cannot be read.

        @raise RecordsRefused: if the next batch cannot be read; nothing was
            taken then.
        """
        taken: list[ConsumerRecord] = []
        topic, partition = self._place
        while len(taken) < count and not self.isExhausted:
            end = min(self._index + count - len(taken), len(self._decoded))
            for record in self._decoded[self._index : end]:
                taken.append(
                    ConsumerRecord(
                        topic, partition, record.offset, record.timestampMs, record.key, record.value, record.headers
                    )
                )
                self.nextOffset = record.offset + 1
            self._index = end
            if end == len(self._decoded):
                self.nextOffset = max(self.nextOffset, self._batchEnd)
                if not self._decodeNext():
                    if self._refusal is not None and not taken:
                        raise RecordsRefused(topic, partition, self.nextOffset, self._refusal, self._refusedEnd)
                    break
        return taken

    def _decodeNext(self) -> bool:
        """
        Decode the next batch.

        @return: whether there was one.
        """
        self._decoded, self._index = (), 0
        if self._refusal is not None:
            return False
        try:
            found = next(self._batches, None)
            if found is None:
                self.isExhausted = True
                return False
            batch, payload = found
            self._refusedEnd = batch.lastOffset + 1
            if not batch.isControl:
                records = recordsOf(batch, decompress(batch.compression, payload, self._maxBatchBytes))
                _checkOffsets(batch, records)
                if batch.attributes & _STORED_TIME_BIT:
                    records = [
                        Record(each.key, each.value, batch.maxTimestampMs, each.headers, each.offset)
                        for each in records
                    ]
                if batch.baseOffset < self.nextOffset:
                    records = [each for each in records if each.offset >= self.nextOffset]
                self._decoded = records
        except BatchRefused as refusal:
            self._refusal = str(refusal)
            return False
        self._batchEnd, self._refusedEnd = batch.lastOffset + 1, None
        return True


def _checkOffsets(batch: RecordBatch, records: Sequence[Record]) -> None:
    """
    @raise BatchRefused: if a record has an offset outside of its batch: the partition may not have the one behind it,
        and who asks for that begins anew.
    """
    for record in records:
        if not batch.baseOffset <= record.offset <= batch.lastOffset:
            raise BatchRefused(
                ErrorCode.corrupt_message,
                f"a record has offset {record.offset}, and its batch those from {batch.baseOffset} to"
                f" {batch.lastOffset}",
            )


def decompress(compression: int, payload: Buffer, maxBytes: int) -> Buffer:
    """
    Decompress the payload of a batch.

    @param compression: 0 to 4, as in L{admission.kafka.wire.batches.RecordBatch}.
    @param maxBytes: the largest result; memory for more is never taken.
    @raise BatchRefused: if the payload is damaged or the result too large, or
        C{unsupported_compression_type} without a library for it.
    """
    if not compression:
        return payload
    try:
        if compression == GZIP:
            return _gunzip(payload, maxBytes)
        return _withCramjam(compression, payload, maxBytes)
    except BatchRefused:
        raise
    except Exception as error:
        # cramjam raises whatever its Rust libraries raise.
        raise BatchRefused(ErrorCode.corrupt_message, f"the batch cannot be decompressed: {error}") from error


def _gunzip(payload: Buffer, maxBytes: int) -> Buffer:
    decompressor = zlib.decompressobj(_ANY_GZIP_HEADER)
    result = decompressor.decompress(payload, maxBytes)
    if not decompressor.eof:
        # Either the result is too large, or the payload ends too early.
        raise (
            _tooLarge(maxBytes)
            if len(result) >= maxBytes
            else BatchRefused(ErrorCode.corrupt_message, "the compressed records are cut off")
        )
    return result


def _withCramjam(compression: int, payload: Buffer, maxBytes: int) -> Buffer:
    try:
        import cramjam
    except ImportError:
        raise BatchRefused(
            ErrorCode.unsupported_compression_type,
            "the records are compressed in a way that needs cramjam: pip install admission[consumer]",
        ) from None
    if compression == SNAPPY:
        return _snappy(cramjam, payload, maxBytes)
    if compression == LZ4:
        return _into(cramjam.lz4.decompress_into, payload, maxBytes)
    if compression == ZSTD:
        return _into(cramjam.zstd.decompress_into, payload, maxBytes)
    raise BatchRefused(ErrorCode.unsupported_compression_type, f"nothing is known of compression type {compression}")


def _into(decompressInto: Callable[[Any, Any], int], payload: Buffer, maxBytes: int) -> Buffer:
    """
    Decompress into a mapping, whose pages take no memory before they are
    written: the size is known only at the end.
    """
    with mmap.mmap(-1, maxBytes) as room:
        try:
            sizeBytes = decompressInto(bytes(payload), room)
        except Exception as error:
            if "whole buffer" in str(error):
                raise _tooLarge(maxBytes) from None
            raise
        return room[:sizeBytes]


def _snappy(cramjam: Any, payload: Buffer, maxBytes: int) -> Buffer:
    result = bytearray()
    for block in _snappyBlocks(bytes(payload)):
        # A snappy block states its size, and the library allocates that much.
        if len(result) + cramjam.snappy.decompress_raw_len(block) > maxBytes:
            raise _tooLarge(maxBytes)
        result += bytes(cramjam.snappy.decompress_raw(block))
    return bytes(result)


def _snappyBlocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    offset = _XERIAL_HEADER_BYTES
    while offset < len(data):
        (sizeBytes,) = _BLOCK_LENGTH.unpack_from(data, offset)
        offset += _BLOCK_LENGTH.size
        if not 0 <= sizeBytes <= len(data) - offset:
            raise BatchRefused(ErrorCode.corrupt_message, "a block of snappy-compressed records is cut off")
        yield data[offset : offset + sizeBytes]
        offset += sizeBytes


def _tooLarge(maxBytes: int) -> BatchRefused:
    return BatchRefused(ErrorCode.corrupt_message, f"the batch would decompress to more than {maxBytes} bytes")
