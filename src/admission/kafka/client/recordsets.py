# -*- test-case-name: tests.unit.kafka.client.test_recordsets -*-
"""
The records of a Fetch response: decompressed and decoded as they are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ..wire.batches import BatchRefused, Record, RecordBatch, recordsOf
from ..wire.compression import MAX_BLOCK_BYTES, decompressed
from ..wire.primitives import Buffer
from ..wire.stored import batchesIn
from .errors import RecordsRefused
from .subscriptionstate import TopicPartition

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
        and a client that asks for that begins anew.
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
    @param maxBytes: the largest result; little more memory is ever taken.
    @raise BatchRefused: if the payload is damaged or the result too large, or C{unsupported_compression_type}.
    """
    if not compression:
        return payload
    result = bytearray()
    for chunk in decompressed(compression, payload, maxBytes, max(maxBytes, MAX_BLOCK_BYTES)):
        if len(result) + len(chunk) > maxBytes:
            raise BatchRefused(ErrorCode.corrupt_message, f"the batch would decompress to more than {maxBytes} bytes")
        result += chunk
    return bytes(result)
