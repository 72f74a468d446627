# -*- test-case-name: tests.unit.kafka.broker.log.test_partitionlog -*-
"""
A partition on the disk: its segments, and what is about to be appended to them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final

from attrs import define, field, frozen
from twisted.logger import Logger

from admission.kafka.storage.disk import Disk, File, explain
from admission.kafka.storage.itable import LogFailed
from admission.kafka.storage.openfiles import OpenFiles
from admission.kafka.wire.batches import RecordBatch
from admission.timeslices import Steps

from .batchlookup import Damaged, findOffset, findTimestamp, readBatches
from .checkpoint import Checkpoint
from .interface import EpochEnd, Partition
from .recovery import Recovered, readIndex
from .retentionlimits import NO_LIMITS, RetentionLimits
from .segment import Segment

_log = Logger()

CHECKPOINT_BYTES: Final = 64 << 20
"""After how many more bytes a segment gets a new checkpoint: about what a start reads of a partition at most."""


@frozen
class DirtyFiles:
    """
    What a flush of a partition comprises.

    @ivar segments: the files to flush.
    @ivar directories: directories with new names.
    @ivar checkpoints: what to write when the flush has succeeded.
    """

    segments: list[Segment]
    directories: list[str]
    checkpoints: list[tuple[Segment, Checkpoint]]


class SegmentFiles:
    """
    What all partitions share: the disk, the open files, and the indexes in memory.

    @ivar indexBytes: how much memory the indexes take that can be read again.
    """

    def __init__(self, disk: Disk, files: OpenFiles, maxIndexBytes: int = 32 << 20) -> None:
        """
        @param maxIndexBytes: beyond this, the indexes that were read first are dropped.
        """
        self.disk = disk
        self.files = files
        self.indexBytes = 0
        self._maxIndexBytes = maxIndexBytes
        self._indexed: dict[Segment, int] = {}

    def get(self, segment: Segment, name: str) -> File:
        """
        The file of a segment, and its index in memory.

        @param name: of the partition, for messages.
        @raise OSError: if the disk fails.
        """
        file = self.files.get(segment)
        if segment.index is None:
            readIndex(self.disk, file, segment, name)
            self.indexed(segment)
        return file

    def indexed(self, segment: Segment) -> None:
        """
        A segment has its index in memory and a checkpoint at its end.
        """
        if segment.index is None or segment in self._indexed:
            return
        self._indexed[segment] = segment.index.sizeBytes
        self.indexBytes += segment.index.sizeBytes
        while self.indexBytes > self._maxIndexBytes and len(self._indexed) > 1:
            oldest = next(iter(self._indexed))
            self._forget(oldest)
            if oldest.checkpointBytes == oldest.sizeBytes and not oldest.isAppendedTo:
                oldest.forgetIndex()

    def close(self, segments: Sequence[Segment]) -> None:
        """
        Close the files of segments that are about to be removed.
        """
        for segment in segments:
            self.files.close(segment)
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        self.indexBytes -= self._indexed.pop(segment, 0)


@define(eq=False)
class PartitionLog(Partition):
    """
    A partition with its segments.

    @ivar directory: where its segments are; not there before something is appended.
    @ivar limits: how much is kept.
    @ivar segments: oldest first; the last one is appended to.
    """

    directory: str = field(default="", repr=False)
    limits: RetentionLimits = field(default=NO_LIMITS, repr=False)
    segments: list[Segment] = field(factory=list, repr=lambda segments: f"<{len(segments)}>")
    _buffers: list[bytes | bytearray | memoryview] = field(factory=list, repr=False)
    _batches: list[tuple[int, RecordBatch]] = field(factory=list, repr=False)
    _isRolling: bool = field(default=False, repr=False)
    _hasWritten: bool = field(default=False, repr=False)
    _dirty: dict[Segment, None] = field(factory=dict, repr=False)
    # Segments that get their last checkpoint with the next flush.
    _sealed: list[Segment] = field(factory=list, repr=False)
    _newDirectories: dict[str, None] = field(factory=dict, repr=False)
    # What was committed since the last checkpoint with the producers.
    _uncheckedBytes: int = field(default=0, repr=False)

    @property
    def name(self) -> str:
        """
        The topic and the index, as Kafka writes them.
        """
        return f"{self.topicName}-{self.index}"

    def recovered(self, found: Recovered) -> None:
        """
        Be what was found on the disk.
        """
        self.segments = found.segments
        self._sealed = [segment for segment in self.segments if segment.sealed is not None]
        if self.segments:
            self.logStartOffset = max(self.logStartOffset, self.segments[0].baseOffset)
            self.nextOffset = self.highWatermark = max(self.logStartOffset, self.segments[-1].nextOffset)
            self.sizeBytes = sum(segment.sizeBytes for segment in self.segments)
        else:
            self.nextOffset = self.highWatermark = self.logStartOffset

    @property
    def hasPending(self) -> bool:
        """
        Whether something was appended and is not settled.
        """
        return bool(self._batches)

    def prepare(
        self, files: SegmentFiles, sizeBytes: int, nowSeconds: float, producers: Callable[[], Mapping[int, bytes]]
    ) -> Segment | None:
        """
        Make room in the last segment before the first batch of a commit is appended: if it is full, the commit
        goes to a new one.

        @param sizeBytes: of that batch.
        @param nowSeconds: seconds since 1970.
        @param producers: the states of the partition's producers, without that batch.
        @return: the segment that will be written to; L{None} for a new one.
        @raise OSError: if the disk fails.
        """
        if not self.segments:
            self._isRolling = True
            return None
        segment = self.segments[-1]
        # Its index is about to grow.
        files.get(segment, self.name)
        segment.isAppendedTo = True
        maxMs = self.limits.segmentMs
        isOld = maxMs is not None and (nowSeconds - segment.createdSeconds) * 1000 >= maxMs
        if segment.sizeBytes and (isOld or segment.sizeBytes + sizeBytes > self.limits.segmentBytes):
            self._isRolling = True
            # There may be many producers and many small segments.
            isDue = self._uncheckedBytes >= CHECKPOINT_BYTES
            segment.sealed = segment.checkpoint(producers() if isDue else None)
            return None
        return segment

    def append(self, buffer: bytes | bytearray | memoryview, batch: RecordBatch) -> None:
        """
        Append a batch to what the next L{write} writes.

        @param buffer: the batch; must not change before that.
        """
        self._buffers.append(buffer)
        self._batches.append((self.nextOffset, batch))
        self.nextOffset += batch.lastOffsetDelta + 1

    def write(self, files: SegmentFiles, nowSeconds: float) -> None:
        """
        Write what was appended.  Call L{settle} or L{revert} afterwards.

        @param nowSeconds: seconds since 1970.
        @raise OSError: if the disk fails.
        """
        if self._isRolling:
            if not self.segments:
                files.disk.makeDirectory(self.directory)
                self._newDirectories[os.path.dirname(self.directory)] = None
            segment = Segment(self.directory, self.highWatermark, nowSeconds)
            # One that was cut off or reverted may be there.
            files.files.willWrite(segment, create=True).truncate(0)
            self._sealed += self.segments[-1:]
            self.segments.append(segment)
            self._isRolling = False
            self._newDirectories[self.directory] = None
        segment = self.segments[-1]
        file = files.files.willWrite(segment)
        # Only now: revert() must not need a file that was refused.
        self._dirty[segment] = None
        self._hasWritten = True
        file.write(self._buffers, segment.sizeBytes)

    def settle(self, leaderEpoch: int) -> None:
        """
        What was written is part of the partition.
        """
        segment = self.segments[-1]
        before = segment.sizeBytes
        for baseOffset, batch in self._batches:
            segment.add(baseOffset, batch, leaderEpoch)
        self.sizeBytes += segment.sizeBytes - before
        self._uncheckedBytes += segment.sizeBytes - before
        self.highWatermark = segment.nextOffset
        self._forgetPending()

    def revert(self, files: SegmentFiles) -> None:
        """
        Discard what was appended since the last L{settle}.

        @raise OSError: if the disk fails.
        """
        hasWritten = self._hasWritten
        self._forgetPending()
        self.nextOffset = self.highWatermark
        if hasWritten:
            segment = self.segments[-1]
            files.files.willWrite(segment).truncate(segment.sizeBytes)

    def _forgetPending(self) -> None:
        for segment in self.segments[-2:]:
            segment.isAppendedTo = False
        self._buffers.clear()
        self._batches.clear()
        self._hasWritten = self._isRolling = False

    @property
    def isDirty(self) -> bool:
        """
        Whether it has files for which no flush has begun.
        """
        return bool(self._dirty)

    def takeDirty(self, producers: Callable[[], Mapping[int, bytes]]) -> DirtyFiles:
        """
        What to flush for everything that was settled; the caller sees to it.

        @param producers: the states of the partition's producers.
        """
        checkpoints = self.sealedCheckpoints()
        last = self.segments[-1] if self.segments else None
        # The producers must not be further than the segment.
        if last is not None and self._uncheckedBytes >= CHECKPOINT_BYTES and not self._batches:
            checkpoints += self.lastCheckpoint(producers)
        dirty = DirtyFiles(list(self._dirty), list(self._newDirectories), checkpoints)
        self._dirty.clear()
        self._newDirectories.clear()
        return dirty

    def sealedCheckpoints(self) -> list[tuple[Segment, Checkpoint]]:
        """
        The segments that are appended to no more and have no checkpoint at their ends yet; to be written when they are
        on the disk.
        """
        checkpoints: list[tuple[Segment, Checkpoint]] = []
        for segment in self._sealed:
            if segment.sealed is not None and segment.checkpointBytes < segment.sizeBytes:
                checkpoints.append((segment, segment.sealed))
                segment.checkpointBytes = segment.sizeBytes
                if segment.sealed.producers is not None:
                    self._uncheckedBytes = 0
            segment.sealed = None
        self._sealed.clear()
        return checkpoints

    def lastCheckpoint(self, producers: Callable[[], Mapping[int, bytes]]) -> list[tuple[Segment, Checkpoint]]:
        """
        The last segment with a checkpoint at its end, unless it has that; to be written when the segment is on the
        disk.  Nothing may be pending.

        @param producers: the states of the partition's producers.
        """
        segment = self.segments[-1] if self.segments else None
        if segment is None:
            return []
        # A roll that failed leaves an empty one behind segments whose checkpoints may be without producers; one that a
        # start has found with a checkpoint has no index in memory before it is used.
        isEmptyAnew = not segment.sizeBytes and segment.index is not None
        if segment.checkpointBytes == segment.sizeBytes and not isEmptyAnew:
            return []
        segment.checkpointBytes = segment.sizeBytes
        self._uncheckedBytes = 0
        return [(segment, segment.checkpoint(producers()))]

    def read(self, files: SegmentFiles, offset: int, maxBytes: int, firstWhole: bool) -> bytes:
        """
        Batches of one segment; as L{admission.kafka.broker.log.interface.ILog.read}.
        """
        for segment in self._segmentsFrom(offset):
            found = self._readSegment(files, segment, offset, maxBytes, firstWhole)
            if found is not None:
                return found
        return b""

    def _readSegment(
        self, files: SegmentFiles, segment: Segment, offset: int, maxBytes: int, firstWhole: bool
    ) -> bytes | None:
        """
        @return: L{None} if the segment ends before C{offset}, or has nothing whole behind it.
        """
        behind: int | None = offset
        while behind is not None:
            with self._reading(segment):
                file = files.get(segment, self.name)
                assert segment.index is not None
                try:
                    return readBatches(file, segment.index, segment.sizeBytes, behind, maxBytes, firstWhole)
                except Damaged as damaged:
                    behind = segment.index.offsetBehind(damaged.position)
            end = segment.nextOffset if behind is None else behind
            _log.error(
                "{partition}: {path} is damaged; the offsets from {first} to {last} are lost",
                partition=self.name,
                path=segment.path,
                first=offset,
                last=end - 1,
            )
        return None

    def bytesFrom(self, files: SegmentFiles, offset: int) -> int:
        """
        The size of all batches from the one with C{offset} on.
        """
        sizeBytes = 0
        for segment in self._segmentsFrom(offset):
            if sizeBytes == 0:
                with self._reading(segment):
                    file = files.get(segment, self.name)
                    assert segment.index is not None
                    place = findOffset(file, segment.index, segment.sizeBytes, offset)
                sizeBytes = 0 if place is None else segment.sizeBytes - place.position
            else:
                sizeBytes += segment.sizeBytes
        return sizeBytes

    def findBatch(self, files: SegmentFiles, timestampMs: int, offset: int) -> Steps[bytes | None]:
        """
        As L{admission.kafka.broker.log.interface.ILog.batchForTimestamp}.
        """
        for segment in self._segmentsFrom(offset):
            if self._maxTimestampMs(segment, files) < timestampMs:
                continue
            position = 0
            # It may be removed between two steps.
            while position < segment.sizeBytes and segment in self.segments:
                with self._reading(segment):
                    file = files.get(segment, self.name)
                    assert segment.index is not None
                    place, position = findTimestamp(
                        file, segment.index, segment.sizeBytes, timestampMs, offset, position
                    )
                    if place is not None:
                        return file.read(place.position, place.batch.sizeBytes)
                yield None
        return None

    def largestTimestampMs(self, files: SegmentFiles) -> int:
        """
        As L{admission.kafka.broker.log.interface.ILog.largestTimestampMs}.
        """
        largest = [self._maxTimestampMs(segment, files) for segment in self._segmentsFrom(self.logStartOffset)]
        return max(largest, default=-1)

    def endOfEpoch(self, files: SegmentFiles, leaderEpoch: int) -> EpochEnd:
        """
        As L{admission.kafka.broker.log.interface.ILog.endOfEpoch}.
        """
        endOffset = self.highWatermark
        for segment in reversed(self.segments):
            with self._reading(segment):
                files.get(segment, self.name)
            for epoch, firstOffset in reversed(segment.epochs):
                if epoch <= leaderEpoch:
                    return EpochEnd(epoch, endOffset)
                endOffset = firstOffset
        return EpochEnd(leaderEpoch, endOffset)

    def trim(self, files: SegmentFiles, nowMs: int) -> list[Segment]:
        """
        Take out the segments that need not be kept.

        @param nowMs: milliseconds since 1970.
        @return: those segments, whose files are still there.
        @raise LogFailed: if the first segment cannot be read.
        """
        removed: list[Segment] = []
        maxBytes, maxAgeMs = self.limits.maxBytes, self.limits.maxAgeMs
        while self.segments and not self._batches:
            segment = self.segments[0]
            isLast = len(self.segments) == 1
            isTooMuch = maxBytes is not None and not isLast and self.sizeBytes - segment.sizeBytes >= maxBytes
            try:
                isTooOld = maxAgeMs is not None and self._newestMs(segment, files) < nowMs - maxAgeMs
            except LogFailed:
                if removed:
                    break
                raise
            isDeleted = segment.nextOffset <= self.logStartOffset
            if (isLast and not segment.sizeBytes) or not (isTooMuch or isTooOld or isDeleted):
                break
            removed.append(self.segments.pop(0))
            segment.sealed = None
            self.sizeBytes -= segment.sizeBytes
            self.logStartOffset = max(self.logStartOffset, segment.nextOffset)
        return removed

    def closeTrimmed(self, files: SegmentFiles, segments: Sequence[Segment]) -> None:
        """
        The disk knows that segments which L{trim} has taken out are not needed; before, a flush of those behind them
        comprises them, too, because a start would cut off what does not follow.
        """
        for segment in segments:
            self._dirty.pop(segment, None)
        files.close(segments)

    def _segmentsFrom(self, offset: int) -> list[Segment]:
        at = bisect_right(self.segments, offset, key=_baseOffset)
        return self.segments[max(at - 1, 0) :]

    def _newestMs(self, segment: Segment, files: SegmentFiles) -> float:
        """
        How new a segment is: as new as its records, or as its file if they have no timestamps.
        """
        timestampMs = self._maxTimestampMs(segment, files)
        if timestampMs >= 0:
            return timestampMs
        if not segment.sizeBytes:
            return inf
        with self._reading(segment):
            return files.disk.modifiedSeconds(segment.path) * 1000

    def _maxTimestampMs(self, segment: Segment, files: SegmentFiles) -> int:
        if segment.maxTimestampMs is None:
            with self._reading(segment):
                files.get(segment, self.name)
        assert segment.maxTimestampMs is not None
        return segment.maxTimestampMs

    @contextmanager
    def _reading(self, segment: Segment) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogFailed(f"{segment.path} cannot be read: {explain(error)}") from error
        except Damaged as damaged:
            raise LogFailed(
                f"{segment.path} is damaged at byte {damaged.position}: see admission data check"
            ) from damaged


def _baseOffset(segment: Segment) -> int:
    return segment.baseOffset
