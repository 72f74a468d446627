# -*- test-case-name: tests.unit.kafka.broker.log.test_segment -*-
"""
One segment of a partition, as the log has it in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from admission.kafka.storage.openfiles import LogFile
from admission.kafka.wire.batches import RecordBatch

from .batchlookup import SparseIndex
from .checkpoint import Checkpoint, checkpointName


def segmentName(baseOffset: int) -> str:
    """
    The name of a segment's file, as Kafka gives it.
    """
    return f"{baseOffset:020d}.log"


class Segment(LogFile):
    """
    One segment of a partition.

    @ivar baseOffset: the offset that it is named by.
    @ivar sizeBytes: the size of its committed batches.
    @ivar nextOffset: the offset after its last committed record.
    @ivar maxTimestampMs: the largest timestamp in it, in milliseconds; -1 if there is none, L{None} if it is yet to be
        looked up.
    @ivar createdSeconds: when it was made or found, in seconds since 1970.
    @ivar index: L{None} if it is yet to be read.
    @ivar epochs: the leader epochs in it, each with its first offset; like C{index}.
    @ivar lastPosition: where its last batch begins.
    @ivar lastCrc: the checksum of its last batch.
    @ivar checkpointBytes: the position of its last checkpoint.
    @ivar isAppendedTo: whether batches for it await their commit; its index is needed then.
    @ivar hasCheckpoint: whether its checkpoint was written, or read.
    @ivar sealed: what to write beside it once it is on the disk: its checkpoint, with the producers of when it was
        closed.
    """

    __slots__ = (
        "baseOffset",
        "checkpointBytes",
        "createdSeconds",
        "epochs",
        "hasCheckpoint",
        "index",
        "isAppendedTo",
        "lastCrc",
        "lastPosition",
        "maxTimestampMs",
        "nextOffset",
        "sealed",
        "sizeBytes",
    )

    def __init__(self, directory: str, baseOffset: int, createdSeconds: float) -> None:
        super().__init__(os.path.join(directory, segmentName(baseOffset)))
        self.baseOffset = self.nextOffset = baseOffset
        self.createdSeconds = createdSeconds
        self.sizeBytes = self.checkpointBytes = 0
        self.maxTimestampMs: int | None = -1
        self.index: SparseIndex | None = SparseIndex()
        self.epochs: list[tuple[int, int]] = []
        self.lastPosition = self.lastCrc = 0
        self.isAppendedTo = self.hasCheckpoint = False
        self.sealed: Checkpoint | None = None

    def add(self, baseOffset: int, batch: RecordBatch, leaderEpoch: int) -> None:
        """
        Note a batch that follows the last one.  The index has been read.
        """
        assert self.index is not None and self.maxTimestampMs is not None
        if batch.maxTimestampMs > self.maxTimestampMs:
            self.maxTimestampMs = batch.maxTimestampMs
        self.index.add(baseOffset, self.sizeBytes, self.maxTimestampMs)
        if not self.epochs or self.epochs[-1][0] != leaderEpoch:
            self.epochs.append((leaderEpoch, baseOffset))
        self.lastPosition = self.sizeBytes
        self.lastCrc = batch.crc
        self.sizeBytes += batch.sizeBytes
        self.nextOffset = baseOffset + batch.lastOffsetDelta + 1

    def checkpoint(self, producers: Mapping[int, bytes] | None) -> Checkpoint:
        """
        What is known of it now.

        @param producers: the states of its partition's producers, if they are known.
        """
        assert self.index is not None and self.maxTimestampMs is not None
        return Checkpoint(
            self.sizeBytes,
            self.nextOffset,
            self.maxTimestampMs,
            self.lastPosition,
            self.lastCrc,
            self.index.copy(),
            list(self.epochs),
            producers,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """
        Be what a checkpoint says.
        """
        self.sizeBytes = self.checkpointBytes = checkpoint.position
        self.hasCheckpoint = True
        self.nextOffset = checkpoint.nextOffset
        self.maxTimestampMs = checkpoint.maxTimestampMs
        self.lastPosition, self.lastCrc = checkpoint.lastPosition, checkpoint.lastCrc
        self.index, self.epochs = checkpoint.index, list(checkpoint.epochs)

    def forgetIndex(self) -> None:
        """
        Drop what can be read again from its checkpoint, which is at its end.
        """
        self.index = None
        self.epochs = []

    @property
    def checkpointPath(self) -> str:
        return os.path.join(os.path.dirname(self.path), checkpointName(self.baseOffset))
