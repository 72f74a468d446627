# -*- test-case-name: tests.unit.kafka.broker.log.test_batchlookup -*-
"""
Finding batches by offset and by time in a file of one batch after another, with
a sparse index of what is where.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from attrs import define, field
from crc32c import crc32c

from admission.kafka.storage.disk import File
from admission.kafka.wire.batches import HEADER_BYTES, RecordBatch, readHeader

INDEX_INTERVAL_BYTES: Final = 16 << 10
"""About how much of a segment lies between two entries of its index."""

_START: Final = struct.Struct(">qi")
"""The base offset of a batch, and its length without these twelve bytes."""

_UNCOUNTED_BYTES: Final = 12

_WINDOW_BYTES: Final = INDEX_INTERVAL_BYTES + HEADER_BYTES
"""What has to be read at most to find the next batch from an entry of the index on."""

_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23

_SCAN_BYTES: Final = 4 << 20
"""How much is read at once where a segment is read from end to end."""

_MAGIC: Final = 2
_CHECKED_FROM: Final = 21

BATCHES_AT_ONCE: Final = 500
"""How many headers are read before others have their turn: about a millisecond."""


class BatchPlace(NamedTuple):
    """
    Where a batch is in its segment.

    @ivar position: of its first byte.
    """

    position: int
    batch: RecordBatch

    @property
    def end(self) -> int:
        """
        The position after its last byte.
        """
        return self.position + self.batch.sizeBytes


@define(eq=False)
class SparseIndex:
    """
    For a batch every L{INDEX_INTERVAL_BYTES} or so: its offset, its position,
    and the largest timestamp up to it and with it, in milliseconds.

    The largest timestamps never decrease, so each column is sorted.
    """

    offsets: array[int] = field(factory=lambda: array("q"))
    positions: array[int] = field(factory=lambda: array("q"))
    timestampsMs: array[int] = field(factory=lambda: array("q"))

    def add(self, offset: int, position: int, maxTimestampMs: int) -> None:
        """
        Note a batch that is about to be appended, if it is far enough from the last
        one noted.

        @param maxTimestampMs: of all batches of the segment, with this one.
        """
        if not self.positions or position - self.positions[-1] >= INDEX_INTERVAL_BYTES:
            self.offsets.append(offset)
            self.positions.append(position)
            self.timestampsMs.append(maxTimestampMs)

    def positionBefore(self, offset: int) -> int:
        """
        The position of a batch from which on C{offset} is found within
        L{INDEX_INTERVAL_BYTES} or in one batch.
        """
        return self.positions[bisect_right(self.offsets, offset) - 1] if self.offsets else 0

    def batchBefore(self, position: int) -> int:
        """
        The last known position of a batch that is not behind C{position}.
        """
        return self.positions[bisect_right(self.positions, position) - 1] if self.positions else 0

    def offsetBehind(self, position: int) -> int | None:
        """
        The first known offset behind a position; L{None} if there is none.
        """
        at = bisect_right(self.positions, position)
        return self.offsets[at] if at < len(self.offsets) else None

    def positionBeforeTime(self, timestampMs: int) -> int:
        """
        A position before which all batches are older than C{timestampMs}.
        """
        at = bisect_right(self.timestampsMs, timestampMs - 1)
        return self.positions[at - 1] if at else 0

    @property
    def sizeBytes(self) -> int:
        """
        The memory that it takes, about.
        """
        return 24 * len(self.offsets) + 400

    def copy(self) -> SparseIndex:
        """
        The index as it is now.
        """
        return SparseIndex(self.offsets[:], self.positions[:], self.timestampsMs[:])


def _lastBatchEnd(buffer: bytes, start: int, limit: int) -> int:
    """
    Where the last batch ends that does not go beyond a limit, as far as the buffer shows.

    @param start: where a batch begins.
    @return: C{start} if there is none.
    """
    unpack = _START.unpack_from
    length = len(buffer)
    while start + _UNCOUNTED_BYTES <= length:
        following = start + _UNCOUNTED_BYTES + unpack(buffer, start)[1]
        if following > limit or following <= start:
            break
        start = following
    return start


class Damaged(Exception):
    """
    What stands in a file is no batch.

    @ivar position: where.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"no whole batch at position {position}")
        self.position = position


def readBatches(
    file: File, index: SparseIndex, sizeBytes: int, offset: int, maxBytes: int, firstWhole: bool
) -> bytes | None:
    """
    Read whole batches in one piece.

    Where the first one begins and the last one ends is looked up before, in short
    reads: copying a large piece out of a larger one would cost more.

    @param sizeBytes: how much of the file may be read.
    @param offset: the batch with it comes first, or the first one behind it.
    @param maxBytes: no batch is read beyond this, except maybe for the first.
    @param firstWhole: whether the first batch is read even if it is larger.
    @return: nothing if the first batch is too large; L{None} if the file ends
        before C{offset}.
    @raise Damaged: if there are no batches there.
    """
    begin = index.positionBefore(offset)
    window = file.read(begin, min(_WINDOW_BYTES, sizeBytes - begin))
    start = _find(window, begin, offset)
    if start is None:
        # Behind one batch that is larger than the window.
        place = findOffset(file, index, sizeBytes, offset)
        if place is None:
            return None
        begin, start = place.position, 0
        window = file.read(begin, min(_WINDOW_BYTES, sizeBytes - begin))
    limit = min(begin + start + maxBytes, sizeBytes)
    if limit <= begin + len(window):
        end = _lastBatchEnd(window, start, limit - begin)
        if end > start:
            return window[start:end]
    elif limit < sizeBytes:
        known = max(index.batchBefore(limit), begin + start)
        end = known + _lastBatchEnd(file.read(known, _WINDOW_BYTES), 0, limit - known)
        if end > begin + start:
            return file.read(begin + start, end - begin - start)
    else:
        return file.read(begin + start, sizeBytes - begin - start)
    firstBytes = _UNCOUNTED_BYTES + _START.unpack_from(window, start)[1]
    if not HEADER_BYTES <= firstBytes <= sizeBytes - begin - start:
        raise Damaged(begin + start)
    return file.read(begin + start, firstBytes) if firstWhole else b""


def _find(buffer: bytes, begin: int, offset: int) -> int | None:
    """
    The place in a buffer of the batch that contains C{offset}, or of the first
    one behind it.

    @param begin: the position of the buffer in the segment.
    @return: L{None} if it is behind the end of the buffer.
    @raise Damaged: if there are no batches.
    """
    unpack = _START.unpack_from
    start = 0
    length = len(buffer)
    while start + HEADER_BYTES <= length:
        baseOffset, sizeBytes = unpack(buffer, start)
        if sizeBytes < HEADER_BYTES - _UNCOUNTED_BYTES:
            raise Damaged(begin + start)
        if baseOffset >= offset or baseOffset + _LAST_DELTA.unpack_from(buffer, start + _LAST_DELTA_AT)[0] >= offset:
            return start
        start += _UNCOUNTED_BYTES + sizeBytes
    return None


def headers(file: File, begin: int, end: int) -> Iterator[BatchPlace]:
    """
    The headers of a part of a segment.  Checksums are not looked at.

    @param begin: where a batch begins.
    @raise Damaged: where something else than a batch stands.
    """
    buffer = b""
    first = begin
    while begin < end:
        if begin + HEADER_BYTES > first + len(buffer):
            first = begin
            buffer = file.read(begin, min(_WINDOW_BYTES, end - begin))
            if len(buffer) < HEADER_BYTES:
                raise Damaged(begin)
        batch = readHeader(memoryview(buffer)[begin - first :])
        place = BatchPlace(begin, batch)
        if batch.magic != _MAGIC or batch.lastOffsetDelta < 0 or batch.sizeBytes < HEADER_BYTES or place.end > end:
            raise Damaged(begin)
        yield place
        begin = place.end


def findOffset(file: File, index: SparseIndex, sizeBytes: int, offset: int) -> BatchPlace | None:
    """
    The batch that contains an offset, or the first one behind it; L{None} if the
    segment ends before.

    @raise Damaged: if there are no batches on the way.
    """
    for place in headers(file, index.positionBefore(offset), sizeBytes):
        if place.batch.lastOffset >= offset:
            return place
    return None


def findTimestamp(
    file: File, index: SparseIndex, sizeBytes: int, timestampMs: int, offset: int, position: int
) -> tuple[BatchPlace | None, int]:
    """
    The first batch that says it has records of at least a timestamp, among the next L{BATCHES_AT_ONCE}.

    @param offset: batches that end before it are passed over.
    @param position: where to begin, at the earliest.
    @return: L{None} if none of them does, and where to go on; C{sizeBytes} if all have been looked at.
    @raise Damaged: if there are no batches on the way.
    """
    begin = max(position, index.positionBeforeTime(timestampMs), index.positionBefore(offset))
    for place in islice(headers(file, begin, sizeBytes), BATCHES_AT_ONCE):
        if place.batch.maxTimestampMs >= timestampMs and place.batch.lastOffset >= offset:
            return place, place.position
        begin = place.end
    return None, begin


def wholeBatches(file: File, begin: int, end: int, nextOffset: int) -> Iterator[BatchPlace]:
    """
    The batches of a part of a segment whose checksums are right and whose offsets follow one another, up to
    the first place where no such batch stands.

    @param begin: where the first one begins.
    @param nextOffset: its base offset.
    """
    buffer = memoryview(b"")
    first = begin
    while begin < end:
        at = begin - first
        wanted = HEADER_BYTES
        if at + _UNCOUNTED_BYTES <= len(buffer):
            wanted = max(_UNCOUNTED_BYTES + _START.unpack_from(buffer, at)[1], HEADER_BYTES)
        if at + wanted > len(buffer):
            if begin + wanted > end:
                return
            first, at = begin, 0
            buffer = memoryview(file.read(begin, min(max(_SCAN_BYTES, wanted), end - begin)))
            if len(buffer) < wanted:
                return
            wanted = _UNCOUNTED_BYTES + _START.unpack_from(buffer, at)[1]
            if wanted > len(buffer) and begin + wanted <= end:
                buffer = memoryview(file.read(begin, wanted))
        batch = readHeader(buffer[at:])
        sizeBytes = batch.sizeBytes
        if batch.magic != _MAGIC or sizeBytes < HEADER_BYTES or at + sizeBytes > len(buffer):
            return
        if batch.baseOffset != nextOffset or batch.lastOffsetDelta < 0:
            return
        if crc32c(buffer[at + _CHECKED_FROM : at + sizeBytes]) != batch.crc:
            return
        yield BatchPlace(begin, batch)
        nextOffset = batch.lastOffset + 1
        begin += sizeBytes
