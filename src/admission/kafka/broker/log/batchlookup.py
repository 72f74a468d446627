# -*- test-case-name: tests.unit.kafka.broker.log.test_batchlookup -*-
"""
Finding batches by offset and by time.

Every function takes a cursor of a transaction that the caller ends at once.
LMDB reuses no page that an open reader might need, and memory read from the
map is valid only during the transaction.
"""

from __future__ import annotations

import struct
from typing import Final

import lmdb

from admission.kafka.wire.primitives import PAST_THE_END, MalformedRequest, readSignedVarint, readSignedVarlong

from .interface import Partition, TimestampedOffset

BATCH_KEY: Final = struct.Struct(">Iqqq")
"""
Partition number, base offset, largest timestamp so far, position of the end.

The last two are carried from batch to batch, so that keys alone suffice to
search by time and to compute sizes.
"""

SEEK_KEY: Final = struct.Struct(">Iq")
"""Partition number and base offset: sorts before the key of that batch."""

_HEADER_PART: Final = struct.Struct(">hiqq")
"""Attributes, last offset delta, base and largest timestamp of a batch."""
_HEADER_PART_AT: Final = 21
_RECORDS_AT: Final = 61
_COMPRESSION_BITS: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08

_MAX_RECORDS: Final = 1000
"""How many records are read for an exact answer: about two milliseconds."""

_MAX_BATCHES: Final = 4096
"""How many batches are read where keys do not help: a few milliseconds."""


def lastOffset(value: memoryview | bytes) -> int:
    """
    The offset of the last record of a stored batch.
    """
    baseOffset: int = struct.unpack_from(">q", value)[0]
    lastOffsetDelta: int = _HEADER_PART.unpack_from(value, _HEADER_PART_AT)[1]
    return baseOffset + lastOffsetDelta


def maxTimestampMs(value: memoryview | bytes) -> int:
    """
    The largest timestamp in a stored batch, in milliseconds; -1 for none.
    """
    timestampMs: int = _HEADER_PART.unpack_from(value, _HEADER_PART_AT)[3]
    return timestampMs


def seek(cursor: lmdb.Cursor[memoryview], partition: Partition, offset: int) -> bool:
    """
    Move to the batch that contains an offset.

    @param offset: at least C{logStartOffset}, below C{highWatermark}.
    @return: whether there is such a batch.
    """
    if cursor.set_range(SEEK_KEY.pack(partition.number, offset)):
        number, baseOffset, _, _ = BATCH_KEY.unpack(cursor.key())
        if number == partition.number and baseOffset == offset:
            return True
        moved = cursor.prev()
    else:
        moved = cursor.last()
    return moved and isIn(cursor, partition)


def isIn(cursor: lmdb.Cursor[memoryview], partition: Partition) -> bool:
    number: int = BATCH_KEY.unpack(cursor.key())[0]
    return number == partition.number


def copyBatches(
    cursor: lmdb.Cursor[memoryview], partition: Partition, offset: int, maxBytes: int, firstWhole: bool
) -> list[bytes]:
    batches: list[bytes] = []
    left = maxBytes
    found = seek(cursor, partition, offset)
    while found and isIn(cursor, partition):
        value = cursor.value()
        left -= len(value)
        if left < 0 and (batches or not firstWhole):
            break
        batches.append(bytes(value))
        found = cursor.next()
    return batches


def positionOf(cursor: lmdb.Cursor[memoryview], partition: Partition, offset: int) -> int:
    """
    The position of the first byte of the batch that contains an offset; see
    L{Partition} for positions.
    """
    if seek(cursor, partition, offset) and cursor.prev() and isIn(cursor, partition):
        position: int = BATCH_KEY.unpack(cursor.key())[3]
        return position
    return partition.startPosition


def findTimestamp(cursor: lmdb.Cursor[memoryview], partition: Partition, timestampMs: int) -> TimestampedOffset | None:
    if not _seekTimestamp(cursor, partition, timestampMs):
        return None
    # The largest timestamp so far may be that of a batch which has been deleted. Then the batches behind it must be
    # read themselves. Stopping before the right one is safe: clients read too much, not too little.
    for _ in range(_MAX_BATCHES):
        if maxTimestampMs(cursor.value()) >= timestampMs:
            return _exactly(cursor.value(), timestampMs)
        if not (cursor.next() and isIn(cursor, partition)):
            return None
    return _roughly(cursor.value())


def findMaxTimestamp(cursor: lmdb.Cursor[memoryview], partition: Partition) -> TimestampedOffset | None:
    if not _seekTimestamp(cursor, partition, partition.committedMaxTimestampMs):
        return None
    best = cursor.value()
    if maxTimestampMs(best) < partition.committedMaxTimestampMs:
        # Again that of a deleted batch. The newest batches are the likeliest to have the largest timestamp left.
        seek(cursor, partition, partition.highWatermark - 1)
        for _ in range(_MAX_BATCHES):
            if maxTimestampMs(cursor.value()) >= maxTimestampMs(best):
                best = cursor.value()
            if not (cursor.prev() and isIn(cursor, partition)):
                break
    return _exactly(best, maxTimestampMs(best))


def _seekTimestamp(cursor: lmdb.Cursor[memoryview], partition: Partition, timestampMs: int) -> bool:
    """
    Bisect the range of offsets, and move to the first batch whose key has a
    largest timestamp so far of C{timestampMs} or more.
    """
    if partition.committedMaxTimestampMs < timestampMs:
        return False
    low, high = partition.logStartOffset, partition.highWatermark
    while low < high:
        if not seek(cursor, partition, (low + high) // 2):
            return False
        _, baseOffset, largestMs, _ = BATCH_KEY.unpack(cursor.key())
        if largestMs >= timestampMs:
            high = baseOffset
        else:
            following = cursor.next() and isIn(cursor, partition)
            low = BATCH_KEY.unpack(cursor.key())[1] if following else partition.highWatermark
    return low < partition.highWatermark and seek(cursor, partition, low)


def _exactly(value: memoryview, timestampMs: int) -> TimestampedOffset:
    """
    The first record of a batch with at least the given timestamp, if it is cheap
    to find.
    """
    attributes, lastOffsetDelta, baseTimestampMs, largestMs = _HEADER_PART.unpack_from(value, _HEADER_PART_AT)
    if attributes & (_COMPRESSION_BITS | _LOG_APPEND_TIME_BIT) or lastOffsetDelta >= _MAX_RECORDS:
        return _roughly(value)
    baseOffset = lastOffset(value) - lastOffsetDelta
    at = _RECORDS_AT
    try:
        for _ in range(lastOffsetDelta + 1):
            sizeBytes, body = readSignedVarint(value, at)
            timestampDelta, delta = readSignedVarlong(value, body + 1)
            if baseTimestampMs + timestampDelta >= timestampMs:
                offsetDelta, _ = readSignedVarint(value, delta)
                if baseTimestampMs + timestampDelta > largestMs or not 0 <= offsetDelta <= lastOffsetDelta:
                    break
                return TimestampedOffset(baseOffset + offsetDelta, baseTimestampMs + timestampDelta)
            at = body + sizeBytes
    except (MalformedRequest, *PAST_THE_END):
        pass
    # Clients are responsible for the records; if they are nonsense, only the header is left to go by.
    return _roughly(value)


def _roughly(value: memoryview) -> TimestampedOffset:
    """
    The first offset and the largest timestamp of a batch; exact if the broker
    stamped the batch on arrival.
    """
    _, lastOffsetDelta, _, timestampMs = _HEADER_PART.unpack_from(value, _HEADER_PART_AT)
    return TimestampedOffset(lastOffset(value) - lastOffsetDelta, timestampMs)
