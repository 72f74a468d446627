# -*- test-case-name: tests.unit.kafka.broker.log.test_checkpoint -*-
"""
What is known of a segment up to a position that is on the disk, so that a start
need not read it again: its index, its leader epochs, and the producers of its
partition at that position.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen
from crc32c import crc32c

from admission.kafka.storage.disk import Disk, File

from .batchlookup import SparseIndex

_MAGIC: Final = b"ADMINDX1"
_HEAD: Final = struct.Struct(">8sI")
"""Magic, and the checksum of everything behind it."""

_FACTS: Final = struct.Struct(">qqqqIIII")
"""Position, next offset, largest timestamp, position and checksum of the last batch; the numbers of entries, epochs and
producers."""

_EPOCH: Final = struct.Struct(">iq")
_PRODUCER: Final = struct.Struct(">qI")

MAX_CHECKPOINT_BYTES: Final = 128 << 20
"""
A larger file is not read, in bytes.  The index of a segment of 2 GiB has a tenth of that, as many producers as a broker
remembers a quarter.
"""

_UNKNOWN: Final = (1 << 32) - 1
"""The number of producers in a checkpoint that does not know them."""


def checkpointName(baseOffset: int) -> str:
    """
    The name of the file beside a segment.
    """
    return f"{baseOffset:020d}.index"


@frozen
class Checkpoint:
    """
    A segment up to a position.

    It is believed only if the segment still has the same last batch there; a
    missing or damaged one costs time at the next start, and nothing else.  So it is
    never flushed.

    @ivar position: everything before it is on the disk.
    @ivar nextOffset: the offset after the last record before it.
    @ivar maxTimestampMs: the largest timestamp before it; -1 for none.
    @ivar lastPosition: where the last batch before it begins.
    @ivar lastCrc: that batch's own checksum.
    @ivar index: of the batches before it.
    @ivar epochs: each leader epoch and the first offset that was written in it,
        in the segment.
    @ivar producers: the encoded states of the producers of the whole partition by
        their ids, as they were when the last batch had been appended; L{None} if they are not known.
    """

    position: int
    nextOffset: int
    maxTimestampMs: int
    lastPosition: int
    lastCrc: int
    index: SparseIndex
    epochs: Sequence[tuple[int, int]]
    producers: Mapping[int, bytes] | None

    def encode(self) -> bytes:
        """
        The contents of the file.
        """
        columns = (self.index.offsets, self.index.positions, self.index.timestampsMs)
        facts = _FACTS.pack(
            self.position,
            self.nextOffset,
            self.maxTimestampMs,
            self.lastPosition,
            self.lastCrc,
            len(self.index.offsets),
            len(self.epochs),
            _UNKNOWN if self.producers is None else len(self.producers),
        )
        body = b"".join(
            [
                facts,
                *[column.tobytes() for column in columns],
                *[_EPOCH.pack(*epoch) for epoch in self.epochs],
                *[_PRODUCER.pack(each, len(state)) + state for each, state in (self.producers or {}).items()],
            ]
        )
        return _HEAD.pack(_MAGIC, crc32c(body)) + body

    def write(self, disk: Disk, path: str) -> None:
        """
        Put the file in place; in any thread.

        @raise OSError: if the disk fails.
        """
        unfinished = path + ".tmp"
        disk.remove(unfinished)
        file = disk.open(unfinished, create=True)
        try:
            file.write([self.encode()], 0)
        finally:
            file.close()
        disk.rename(unfinished, path)


def readCheckpoint(disk: Disk, path: str) -> Checkpoint | None:
    """
    The checkpoint in a file; L{None} if there is none, or not a whole one.

    @raise OSError: if the disk fails.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        sizeBytes = file.size()
        if sizeBytes > MAX_CHECKPOINT_BYTES:
            return None
        contents = file.read(0, sizeBytes)
    finally:
        file.close()
    if len(contents) < _HEAD.size + _FACTS.size:
        return None
    magic, checksum = _HEAD.unpack_from(contents)
    if magic != _MAGIC or crc32c(memoryview(contents)[_HEAD.size :]) != checksum:
        return None
    position, nextOffset, maxTimestampMs, lastPosition, lastCrc, entryCount, epochCount, producerCount = (
        _FACTS.unpack_from(contents, _HEAD.size)
    )
    at = _HEAD.size + _FACTS.size
    columns = []
    for _ in range(3):
        column = array("q")
        column.frombytes(contents[at : at + 8 * entryCount])
        columns.append(column)
        at += 8 * entryCount
    epochs = []
    for _ in range(epochCount):
        epochs.append(_EPOCH.unpack_from(contents, at))
        at += _EPOCH.size
    producers: dict[int, bytes] = {}
    for _ in range(0 if producerCount == _UNKNOWN else producerCount):
        producerId, sizeBytes = _PRODUCER.unpack_from(contents, at)
        at += _PRODUCER.size
        producers[producerId] = contents[at : at + sizeBytes]
        at += sizeBytes
    return Checkpoint(
        position,
        nextOffset,
        maxTimestampMs,
        lastPosition,
        lastCrc,
        SparseIndex(*columns),
        epochs,
        None if producerCount == _UNKNOWN else producers,
    )


def holds(checkpoint: Checkpoint, file: File, sizeBytes: int) -> bool:
    """
    Whether a segment is the one that a checkpoint was made of.

    @param sizeBytes: the length of the segment's file.
    @raise OSError: if the disk fails.
    """
    if checkpoint.position > sizeBytes:
        return False
    if checkpoint.position == 0:
        return True
    # The checksum stands behind the magic; the length and the base offset come before.
    header = file.read(checkpoint.lastPosition, 21)
    return (
        len(header) == 21
        and checkpoint.lastPosition + 12 + int.from_bytes(header[8:12], "big") == checkpoint.position
        and int.from_bytes(header[17:21], "big") == checkpoint.lastCrc
    )
