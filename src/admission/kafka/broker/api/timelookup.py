# -*- test-case-name: tests.unit.kafka.broker.api.test_timelookup -*-
"""
Finding records by time: the log knows of batches, and which record it is stands in the batch.
"""

from __future__ import annotations

from typing import NamedTuple

from admission.kafka.wire.batches import HEADER_BYTES, BatchRefused, RecordBatch, readHeader
from admission.kafka.wire.compression import decompressed, decompressionBytes
from admission.kafka.wire.recordwalk import ANY_TIME, RecordWalk
from admission.timeslices import Steps

from ..broker import GoOver
from ..log.interface import ILog, Partition


class TimestampedOffset(NamedTuple):
    """
    A record found by its timestamp.

    @ivar offset: the record's offset.
    @ivar timestampMs: the record's timestamp.
    """

    offset: int
    timestampMs: int


def offsetForTimestamp(
    log: ILog, partition: Partition, timestampMs: int, goOver: GoOver
) -> Steps[TimestampedOffset | None]:
    """
    The first record that is not older than a time and has not been deleted.

    If the records of a batch contradict its header, as they may in the directory of another broker, the header counts:
    its first offset and its largest timestamp are returned.

    @param timestampMs: in milliseconds since 1970; not negative.
    @return: L{None} if all records are older.
    @raise UnknownTopic: if the topic has been deleted.
    @raise LogFailed: if the storage fails.
    """
    offset = partition.logStartOffset
    while True:
        content = yield from log.batchForTimestamp(partition, timestampMs, offset)
        if content is None:
            return None
        batch = readHeader(content)
        found = yield from _inBatch(batch, content, timestampMs, offset, goOver)
        if found is not None:
            return found
        offset = batch.lastOffset + 1
        yield None


def maxTimestampOffset(log: ILog, partition: Partition, goOver: GoOver) -> Steps[TimestampedOffset | None]:
    """
    The first record with the largest timestamp, or the first of all if none has one; L{None} if there are no records.
    Raises the exceptions of L{offsetForTimestamp}.
    """
    if partition.logStartOffset == partition.highWatermark:
        return None
    largestMs = log.largestTimestampMs(partition)
    found = None if largestMs < 0 else (yield from offsetForTimestamp(log, partition, largestMs, goOver))
    # The record may have been deleted while others of its segment are still there.
    return TimestampedOffset(partition.logStartOffset, largestMs) if found is None else found


def _inBatch(
    batch: RecordBatch, content: bytes, timestampMs: int, offset: int, goOver: GoOver
) -> Steps[TimestampedOffset | None]:
    roughly = TimestampedOffset(max(batch.baseOffset, offset), batch.maxTimestampMs)
    if batch.hasAppendTime:
        return roughly
    payload = memoryview(content)[HEADER_BYTES:]
    walk = RecordWalk(batch, decompressed(batch.compression, payload))
    try:
        memoryBytes = len(content) + decompressionBytes(batch.compression, payload)
        while True:
            found = yield from goOver(walk, (ANY_TIME[0], timestampMs), memoryBytes)
            if found is None:
                return None
            if not 0 <= found.offsetDelta <= batch.lastOffsetDelta or found.timestampMs > batch.maxTimestampMs:
                return roughly
            if batch.baseOffset + found.offsetDelta >= offset:
                return TimestampedOffset(batch.baseOffset + found.offsetDelta, found.timestampMs)
    except BatchRefused:
        return roughly
