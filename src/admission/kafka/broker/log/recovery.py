# -*- test-case-name: tests.unit.kafka.broker.log.test_recovery -*-
"""
What a start does with the files of a partition: it believes checkpoints, reads
what is behind the last one, and cuts off what is not whole.
"""

from __future__ import annotations

import os
import re
from typing import Final

from attrs import define, field
from twisted.logger import Logger

from admission.kafka.storage.disk import Disk, File

from .batchlookup import wholeBatches
from .checkpoint import Checkpoint, checkpointName, holds, readCheckpoint
from .interface import MAX_OFFSET
from .producers import encodedAfter, lastSequenceOf
from .segment import Segment, segmentName

_SEGMENT: Final = re.compile(r"([0-9]{20})\.log")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.index(\.tmp)?")

_log = Logger()


@define
class Recovered:
    """
    A partition as its files have it.

    @ivar segments: oldest first.
    @ivar producers: the encoded states of its producers by their ids.
    @ivar readBytes: how much was read of the segments.
    @ivar cutBytes: how much was cut off.
    """

    segments: list[Segment] = field(factory=list)
    producers: dict[int, bytes] = field(factory=dict)
    readBytes: int = 0
    cutBytes: int = 0


class PartitionRecovery:
    """
    Reads the directory of a partition.

    The last segments, as far back as there is no checkpoint at their ends, are the
    tail: they may have bytes that were never flushed.  They are read from their
    last checkpoint on, asking the disk rather than the page cache, and cut off at
    the first place where no whole batch follows.  Segments before the tail were
    flushed; they are not read.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        logStartOffset: int,
        nowSeconds: float,
        isClean: bool = False,
    ) -> None:
        """
        @param name: of the partition, for messages.
        @param logStartOffset: segments that end before it have been removed, even if
            they are still there.
        @param nowSeconds: seconds since 1970.
        @param isClean: whether the log was closed well, so that the disk has all that the files say.
        """
        self._isClean = isClean
        self._disk = disk
        self._directory = directory
        self._name = name
        self._logStartOffset = logStartOffset
        self._nowSeconds = nowSeconds
        self._recovered = Recovered()

    def run(self) -> Recovered:
        """
        @raise OSError: if the disk fails.
        """
        names = set(self._disk.list(self._directory))
        found = (int(matched[1]) for matched in map(_SEGMENT.fullmatch, names) if matched)
        # What else is there was not made by the log.
        bases = sorted(base for base in found if base <= MAX_OFFSET)
        while len(bases) > 1 and bases[1] <= self._logStartOffset:
            self._remove(bases.pop(0))
        self._removeLeftovers(names, bases)
        tail, checkpoint = self._findTail(bases)
        recovered = self._recovered
        sizes = {base: self._sizeOf(base) for base in bases[:tail]}
        # A roll that failed may have left one without contents; what should be in it stands in the one before it.
        sealed = [base for base in bases[:tail] if sizes[base] or base == bases[tail - 1]]
        for base in bases[:tail]:
            if base not in sealed:
                self._remove(base)
        for base, nextBase in zip(sealed, [*sealed[1:], None], strict=False):
            recovered.segments.append(self._sealed(base, sizes[base], nextBase, checkpoint, names))
        if checkpoint is not None:
            recovered.producers = dict(checkpoint.producers or {})
        isWhole = True
        nextOffset = None if checkpoint is None else checkpoint.nextOffset
        for base in bases[tail:]:
            # Where the tail does not go on, the flush that would have confirmed the rest has not succeeded; but after a
            # clean end everything was flushed, and what is missing has been damaged since.
            isDamaged = self._isClean and nextOffset is not None and base > nextOffset
            if (isWhole and nextOffset in (base, None)) or isDamaged:
                if base != bases[tail]:
                    former = recovered.segments[-1]
                    former.sealed = former.checkpoint(dict(recovered.producers))
                    former.nextOffset = base
                isWhole = self._readTail(base, self._isClean and base != bases[-1])
                nextOffset = recovered.segments[-1].nextOffset
            else:
                recovered.cutBytes += self._sizeOf(base)
                self._remove(base)
        if bases[tail:]:
            # Of what was killed before its first flush the names are yet to be flushed.
            self._disk.flushDirectory(self._directory)
        if recovered.cutBytes:
            _log.warn(
                "{partition}: {cutBytes} bytes at its end were not whole and are cut off; it ends at offset {offset}",
                partition=self._name,
                cutBytes=recovered.cutBytes,
                offset=recovered.segments[-1].nextOffset,
            )
        last = recovered.segments[-1] if recovered.segments else None
        if last is not None and last.baseOffset < self._logStartOffset and last.nextOffset <= self._logStartOffset:
            # They would have been removed; and if they are cut off, the next batch does not follow their last one.
            for segment in recovered.segments:
                self._remove(segment.baseOffset)
            recovered.segments.clear()
            if last.nextOffset < self._logStartOffset:
                # The next batch of a producer does not follow its last one either.
                recovered.producers.clear()
        return recovered

    def _removeLeftovers(self, names: set[str], bases: list[int]) -> None:
        """
        Remove checkpoints without a segment, and unfinished ones.
        """
        present = set(bases)
        for name in names:
            matched = _CHECKPOINT.fullmatch(name)
            if matched and (matched[2] or int(matched[1]) not in present):
                self._disk.remove(self._path(name))

    def _findTail(self, bases: list[int]) -> tuple[int, Checkpoint | None]:
        """
        The number of segments before the tail, and the last one's checkpoint.
        """
        for number in range(len(bases), 0, -1):
            base = bases[number - 1]
            file = self._open(base)
            try:
                sizeBytes = file.size()
                checkpoint = readCheckpoint(self._disk, self._path(checkpointName(base)))
                if (
                    checkpoint
                    and checkpoint.producers is not None
                    and checkpoint.position == sizeBytes
                    and holds(checkpoint, file, sizeBytes)
                ):
                    if number == len(bases) and not self._isClean:
                        # What has failed may have been cut off in the page cache only, and must not return when there
                        # are segments behind it.
                        file.flush()
                    return number, checkpoint
            finally:
                file.close()
        return 0, None

    def _sealed(
        self, base: int, sizeBytes: int, nextBase: int | None, checkpoint: Checkpoint | None, names: set[str]
    ) -> Segment:
        """
        A segment before the tail.

        @param nextBase: the base offset of the next segment.
        @param checkpoint: the checkpoint of the last segment before the tail.
        """
        segment = Segment(self._directory, base, self._nowSeconds)
        segment.sizeBytes = segment.checkpointBytes = sizeBytes
        segment.maxTimestampMs = None
        segment.forgetIndex()
        if nextBase is not None:
            segment.nextOffset = nextBase
        elif checkpoint is not None:
            segment.nextOffset = checkpoint.nextOffset
        if checkpointName(base) not in names:
            file = self._open(base)
            try:
                readIndex(self._disk, file, segment, self._name)
            finally:
                file.close()
            segment.forgetIndex()
        return segment

    def _readTail(self, base: int, isPast: bool) -> bool:
        """
        @param isPast: whether nothing may be cut off, because it was flushed, and segments follow.
        @return: whether all of it is whole.
        """
        recovered = self._recovered
        segment = Segment(self._directory, base, self._nowSeconds)
        recovered.segments.append(segment)
        file = self._disk.open(segment.path)
        try:
            file.distrust()
            sizeBytes = file.size()
            checkpoint = readCheckpoint(self._disk, segment.checkpointPath)
            if checkpoint is not None and checkpoint.producers is not None and holds(checkpoint, file, sizeBytes):
                segment.restore(checkpoint)
                recovered.producers = dict(checkpoint.producers)
            elif checkpoint is not None and not holds(checkpoint, file, sizeBytes):
                self._disk.remove(segment.checkpointPath)
            recovered.readBytes += sizeBytes - segment.sizeBytes
            producers = recovered.producers
            for _, batch in wholeBatches(file, segment.sizeBytes, sizeBytes, segment.nextOffset):
                segment.add(batch.baseOffset, batch, batch.leaderEpoch)
                if batch.producerId >= 0:
                    lastSequence = lastSequenceOf(batch.baseSequence, batch.lastOffsetDelta)
                    producers[batch.producerId] = encodedAfter(
                        producers.get(batch.producerId),
                        batch.producerEpoch,
                        (batch.baseSequence, lastSequence, batch.baseOffset),
                        self._nowSeconds,
                    )
            cutBytes = sizeBytes - segment.sizeBytes
            if cutBytes and isPast:
                _log.error(
                    "{partition}: {path} is damaged at byte {position}; the offsets from {first} to its end are lost",
                    partition=self._name,
                    path=segment.path,
                    position=segment.sizeBytes,
                    first=segment.nextOffset,
                )
            elif cutBytes:
                file.truncate(segment.sizeBytes)
                file.flush()
                recovered.cutBytes += cutBytes
        finally:
            file.close()
        return not cutBytes

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _open(self, base: int) -> File:
        return self._disk.open(self._path(segmentName(base)))

    def _sizeOf(self, base: int) -> int:
        file = self._open(base)
        try:
            return file.size()
        finally:
            file.close()

    def _remove(self, base: int) -> None:
        self._disk.remove(self._path(checkpointName(base)))
        self._disk.remove(self._path(segmentName(base)))


def readIndex(disk: Disk, file: File, segment: Segment, name: str) -> None:
    """
    Read the index of a segment from its checkpoint, or make it anew from the whole
    segment if that is missing or damaged.  Batches behind the first damaged one
    are lost; the partition goes on with the next segment.

    @param name: of the partition, for messages.
    @raise OSError: if the disk fails.
    """
    checkpoint = readCheckpoint(disk, segment.checkpointPath)
    if checkpoint and checkpoint.position == segment.sizeBytes and holds(checkpoint, file, segment.sizeBytes):
        nextOffset = segment.nextOffset
        segment.restore(checkpoint)
        segment.nextOffset = nextOffset
        return
    found = Segment(os.path.dirname(segment.path), segment.baseOffset, segment.createdSeconds)
    for _, batch in wholeBatches(file, 0, segment.sizeBytes, segment.baseOffset):
        found.add(batch.baseOffset, batch, batch.leaderEpoch)
    if found.sizeBytes < segment.sizeBytes:
        _log.error(
            "{partition}: {path} is damaged; the offsets from {first} to {last} are lost",
            partition=name,
            path=segment.path,
            first=found.nextOffset,
            last=segment.nextOffset - 1,
        )
    # Without producers, so that a start that wants them does not take it for the end of what it need not read.
    remade = found.checkpoint(None)
    if found.sizeBytes == segment.sizeBytes:
        try:
            remade.write(disk, segment.checkpointPath)
        except OSError as error:
            _log.warn("{path} could not be written: {error}", path=segment.checkpointPath, error=error)
    nextOffset = segment.nextOffset
    segment.restore(remade)
    segment.nextOffset = nextOffset
