# -*- test-case-name: tests.unit.kafka.broker.log.test_producers -*-
"""
The state of idempotent producers: their last batches by partition, and so
what they may append next.

A plain state machine.  Changes are collected until they are settled or
reverted, so that they are committed or lost with a transaction.
"""

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from .interface import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED_BATCHES: Final = 5
"""Clients keep at most this many requests in flight, and so may repeat that many."""

_SEQUENCES: Final = 1 << 31

# A state is kept in its stored form, because nothing is smaller or quicker to write: version, number of batches, epoch
# and time of the last use; the batches, newest first; the owner.
_VERSION: Final = 0x80
_HEAD: Final = struct.Struct(">BBhd")
_BATCH: Final = struct.Struct(">iiq")
_NEWEST: Final = struct.Struct(_HEAD.format + _BATCH.format[1:])

# The first format had no version and no owner, and the batches oldest first. It began with the epoch, which is never
# negative enough to be taken for a version.
_OLD_HEAD: Final = struct.Struct(">hd")

_STATE_BYTES: Final = 248
"""The memory of a state beyond its own bytes: its key, and its places in the table and in the order of use."""


ProducerKey = tuple[int, int]
"""The log's number for a partition, and the id of a producer that appends to it."""

AppendedBatch = tuple[int, int, int]
"""The sequence numbers of a batch's first and last record, and the offset of its first."""


class ProducerState(NamedTuple):
    """
    @ivar epoch: the newest epoch seen.
    @ivar batches: the last batches of that epoch, oldest first; never empty.
    @ivar lastUsedSeconds: when the last batch was appended, in seconds since 1970.
    @ivar owner: who appended it; empty if not known.
    """

    epoch: int
    batches: tuple[AppendedBatch, ...]
    lastUsedSeconds: float
    owner: str = ""

    def encode(self) -> bytes:
        """
        The state as bytes for L{decodeState}.
        """
        head = _HEAD.pack(_VERSION, len(self.batches), self.epoch, self.lastUsedSeconds)
        return head + b"".join([_BATCH.pack(*batch) for batch in self.batches[::-1]]) + _encodeOwner(self.owner)


def decodeState(stored: bytes) -> ProducerState:
    """
    The inverse of L{ProducerState.encode}; also reads the older format.

    @raise struct.error: if C{stored} has neither format.
    """
    if stored[:1] != bytes([_VERSION]):
        epoch, lastUsedSeconds = _OLD_HEAD.unpack_from(stored)
        return ProducerState(epoch, tuple(_BATCH.iter_unpack(stored[_OLD_HEAD.size :])), lastUsedSeconds)
    _, count, epoch, lastUsedSeconds = _HEAD.unpack_from(stored)
    return ProducerState(epoch, tuple(_batchesOf(stored, count))[::-1], lastUsedSeconds, _ownerOf(stored))


def _batchesOf(stored: bytes, count: int) -> Iterator[AppendedBatch]:
    return _BATCH.iter_unpack(stored[_HEAD.size : _HEAD.size + count * _BATCH.size])


def _encodeOwner(owner: str) -> bytes:
    # A strange name must not keep a batch from being appended.
    return owner.encode("utf-8", "surrogatepass")


def _ownerOf(stored: bytes) -> str:
    return stored[_HEAD.size + stored[1] * _BATCH.size :].decode("utf-8", "surrogatepass")


def lastSequenceOf(firstSequence: int, lastOffsetDelta: int) -> int:
    """
    The sequence number of a batch's last record.  After 2^31 - 1 comes 0.
    """
    return (firstSequence + lastOffsetDelta) % _SEQUENCES


class ProducerStates:
    """
    The state of all producers in all partitions, least recently used first.

    @ivar maxEntries: how many are remembered; the oldest beyond that are dropped
        with the next commit.
    @ivar encodedBytes: the size of all states together when encoded.
    """

    def __init__(self, maxEntries: int) -> None:
        self.maxEntries = maxEntries
        self.encodedBytes = 0
        self._states: OrderedDict[ProducerKey, bytes] = OrderedDict()
        # The values of the changed keys before the last L{settle}; None for a new key.
        self._before: dict[ProducerKey, bytes | None] = {}
        self._evicted: tuple[ProducerKey, ...] = ()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def sizeBytes(self) -> int:
        """
        Roughly how much memory the states take.
        """
        return self.encodedBytes + len(self._states) * _STATE_BYTES

    def load(self, stored: Mapping[ProducerKey, bytes]) -> None:
        """
        Restore the states after a restart.

        @param stored: states as they were written.
        @raise struct.error: if a state cannot be read.
        """
        states = {key: decodeState(state) for key, state in stored.items()}
        for key, state in sorted(states.items(), key=lambda item: item[1].lastUsedSeconds):
            encoded = self._states[key] = state.encode()
            self.encodedBytes += len(encoded)

    def get(self, key: ProducerKey) -> ProducerState | None:
        stored = self._states.get(key)
        return None if stored is None else decodeState(stored)

    def owners(self) -> Iterator[tuple[str, int]]:
        return iter(dict.fromkeys([(_ownerOf(stored), producerId) for (_, producerId), stored in self._states.items()]))

    def check(self, key: ProducerKey, epoch: int, firstSequence: int, lastSequence: int) -> int | None:
        """
        Whether a batch may be appended.  Changes nothing.

        @return: L{None} if it may, or the offset at which it was appended before.
        @raise InvalidProducerEpoch: if a newer epoch has been seen.
        @raise OutOfOrderSequence: if it is neither one of the last batches nor
            the next one, or has no sequence number at all.
        """
        if firstSequence < 0:
            raise OutOfOrderSequence(f"producer {key[1]} sent a batch without a sequence number")
        stored = self._states.get(key)
        if stored is None:
            return None
        _, count, newestEpoch, _, _, newestSequence, _ = _NEWEST.unpack_from(stored)
        if epoch < newestEpoch:
            raise InvalidProducerEpoch(f"producer {key[1]} of epoch {epoch} was replaced by one of {newestEpoch}")
        expected = (newestSequence + 1) % _SEQUENCES if epoch == newestEpoch else 0
        if firstSequence == expected:
            return None
        if epoch == newestEpoch:
            for first, last, baseOffset in _batchesOf(stored, count):
                if first == firstSequence and last == lastSequence:
                    return baseOffset
        raise OutOfOrderSequence(
            f"producer {key[1]} of epoch {epoch} goes on with sequence {firstSequence}, not with {expected}"
        )

    def record(self, key: ProducerKey, epoch: int, batch: AppendedBatch, nowSeconds: float, owner: str = "") -> None:
        """
        Remember a batch that L{check} has accepted.

        @param nowSeconds: the time in seconds since 1970.
        @param owner: who appended it.
        """
        states = self._states
        stored = states.get(key)
        self._before.setdefault(key, stored)
        count = 1
        older = b""
        if stored is not None:
            _, count, newestEpoch, _ = _HEAD.unpack_from(stored)
            count = min(count + 1, REMEMBERED_BATCHES) if epoch == newestEpoch else 1
            older = stored[_HEAD.size : _HEAD.size + (count - 1) * _BATCH.size]
            self.encodedBytes -= len(stored)
            states.move_to_end(key)
        first, last, baseOffset = batch
        head = _NEWEST.pack(_VERSION, count, epoch, nowSeconds, first, last, baseOffset)
        states[key] = encoded = head + older + _encodeOwner(owner)
        self.encodedBytes += len(encoded)

    def changes(self) -> Iterator[tuple[ProducerKey, bytes | None]]:
        """
        The writes, in order, that bring the stored states up to date: each changed
        key once with its encoded state, then each dropped key with L{None}.  Call
        L{settle} or L{revert} afterwards.
        """
        for key in self._before:
            yield key, self._states[key]
        self._evicted = tuple(islice(self._states, max(0, len(self._states) - self.maxEntries)))
        for key in self._evicted:
            yield key, None

    def settle(self) -> None:
        """
        Accept the changes, which are committed.
        """
        self._before.clear()
        self.forget(self._evicted)
        self._evicted = ()

    def revert(self) -> None:
        """
        Discard the changes, which are lost: restore the state of the last L{settle}.
        """
        for key, stored in self._before.items():
            self.encodedBytes -= len(self._states[key])
            if stored is None:
                del self._states[key]
            else:
                self._states[key] = stored
                self.encodedBytes += len(stored)
        self._before.clear()
        self._evicted = ()

    def unusedSince(self, timeSeconds: float, maxCount: int) -> list[ProducerKey]:
        """
        Producers that have appended nothing since a time, least recently used first.

        @param maxCount: how many to return at most.
        """
        unused: list[ProducerKey] = []
        for key, stored in islice(self._states.items(), maxCount):
            if _HEAD.unpack_from(stored)[3] > timeSeconds:
                break
            unused.append(key)
        return unused

    def forget(self, keys: Iterable[ProducerKey]) -> None:
        """
        Drop the states of some producers.  Do not call it while there are changes
        that are neither settled nor reverted.
        """
        for key in keys:
            self.encodedBytes -= len(self._states.pop(key))

    def forgetPartitions(self, partitionNumbers: Collection[int]) -> None:
        """
        Drop all states in some partitions; scans every producer.
        The same condition holds as for L{forget}.
        """
        self.forget([key for key in self._states if key[0] in partitionNumbers])
