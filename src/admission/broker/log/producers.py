# -*- test-case-name: tests.test_log_producers -*-
"""
What an idempotent producer may append next: its last batches by partition.

A plain state machine.  Changes are collected until they are either settled or
reverted, so that they can share the fate of a transaction.
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
_HEAD: Final = struct.Struct(">hd")
_BATCH: Final = struct.Struct(">iiq")


ProducerKey = tuple[int, int]
"""The log's number for a partition, and the id of a producer that appends to it."""

AppendedBatch = tuple[int, int, int]
"""The sequence numbers of a batch's first and last record, and the offset of its first."""


class ProducerState(NamedTuple):
    """
    @ivar epoch: the newest epoch seen.
    @ivar batches: the last batches of that epoch, oldest first; never empty.
    @ivar lastUsedSeconds: when the last one was appended, in seconds since 1970.
    """

    epoch: int
    batches: tuple[AppendedBatch, ...]
    lastUsedSeconds: float

    def encode(self) -> bytes:
        """
        The state as bytes for L{decodeState}.
        """
        batches = b"".join([_BATCH.pack(*batch) for batch in self.batches])
        return _HEAD.pack(self.epoch, self.lastUsedSeconds) + batches


def decodeState(stored: bytes) -> ProducerState:
    """
    The reverse of L{ProducerState.encode}.

    @raise struct.error: if these are no such bytes.
    """
    epoch, lastUsedSeconds = _HEAD.unpack_from(stored)
    return ProducerState(epoch, tuple(_BATCH.iter_unpack(stored[_HEAD.size :])), lastUsedSeconds)


def lastSequenceOf(firstSequence: int, lastOffsetDelta: int) -> int:
    """
    The sequence number of a batch's last record.  After 2^31 - 1 comes 0.
    """
    return (firstSequence + lastOffsetDelta) % _SEQUENCES


class ProducerStates:
    """
    The state of all producers in all partitions, least recently used first.

    @ivar maxEntries: how many are remembered; the others go with the next
        commit.
    """

    def __init__(self, maxEntries: int) -> None:
        """
        @param maxEntries: how many pairs of partition and producer to remember;
            positive.
        """
        self.maxEntries = maxEntries
        self._states: OrderedDict[ProducerKey, ProducerState] = OrderedDict()
        # What the keys changed since the last settling had before: None for nothing.
        self._before: dict[ProducerKey, ProducerState | None] = {}
        self._evicted: tuple[ProducerKey, ...] = ()

    def __len__(self) -> int:
        return len(self._states)

    def load(self, stored: Mapping[ProducerKey, ProducerState]) -> None:
        """
        Take over what was remembered before a restart.
        """
        self._states.update(sorted(stored.items(), key=lambda item: item[1].lastUsedSeconds))

    def get(self, key: ProducerKey) -> ProducerState | None:
        """
        What is known of a producer, if anything is.
        """
        return self._states.get(key)

    def check(self, key: ProducerKey, epoch: int, firstSequence: int, lastSequence: int) -> int | None:
        """
        Whether a batch may be appended.  Changes nothing.

        @return: L{None} if it may, or the offset it was appended at before.
        @raise InvalidProducerEpoch: if a newer epoch has been seen.
        @raise OutOfOrderSequence: if it is neither one of the last batches nor
            the next one, or has no sequence number at all.
        """
        if firstSequence < 0:
            raise OutOfOrderSequence(f"producer {key[1]} sent a batch without a sequence number")
        state = self._states.get(key)
        if state is None:
            return None
        if epoch < state.epoch:
            raise InvalidProducerEpoch(f"producer {key[1]} of epoch {epoch} was replaced by one of {state.epoch}")
        expected = (state.batches[-1][1] + 1) % _SEQUENCES if epoch == state.epoch else 0
        if firstSequence == expected:
            return None
        if epoch == state.epoch:
            for first, last, baseOffset in state.batches:
                if first == firstSequence and last == lastSequence:
                    return baseOffset
        raise OutOfOrderSequence(
            f"producer {key[1]} of epoch {epoch} goes on with sequence {firstSequence}, not with {expected}"
        )

    def record(self, key: ProducerKey, epoch: int, batch: AppendedBatch, nowSeconds: float) -> None:
        """
        Remember a batch that L{check} let pass.

        @param nowSeconds: the time in seconds since 1970.
        """
        state = self._states.get(key)
        self._before.setdefault(key, state)
        if state is None or epoch > state.epoch:
            batches: tuple[AppendedBatch, ...] = (batch,)
        else:
            batches = (*state.batches[1 - REMEMBERED_BATCHES :], batch)
        self._states[key] = ProducerState(epoch, batches, nowSeconds)
        if state is not None:
            self._states.move_to_end(key)

    def changes(self) -> Iterator[tuple[ProducerKey, ProducerState | None]]:
        """
        What to write, in this order, so that the stored states become those
        in memory: each key once with its state, then each one that is too
        much with L{None}.  To be followed by L{settle} or L{revert}.
        """
        for key in self._before:
            yield key, self._states[key]
        self._evicted = tuple(islice(self._states, max(0, len(self._states) - self.maxEntries)))
        for key in self._evicted:
            yield key, None

    def settle(self) -> None:
        """
        The changes are committed.
        """
        self._before.clear()
        self.forget(self._evicted)
        self._evicted = ()

    def revert(self) -> None:
        """
        The changes are lost: everything is as it was when last settled.
        """
        for key, state in self._before.items():
            if state is None:
                del self._states[key]
            else:
                self._states[key] = state
        self._before.clear()
        self._evicted = ()

    def unusedSince(self, timeSeconds: float, maxCount: int) -> list[ProducerKey]:
        """
        Producers that appended nothing after a time, longest unused first.

        @param maxCount: how many to return at most.
        """
        unused: list[ProducerKey] = []
        for key, state in islice(self._states.items(), maxCount):
            if state.lastUsedSeconds > timeSeconds:
                break
            unused.append(key)
        return unused

    def forget(self, keys: Iterable[ProducerKey]) -> None:
        """
        Drop the states of some producers.  Not while there are changes that
        are neither settled nor reverted.
        """
        for key in keys:
            del self._states[key]

    def forgetPartitions(self, partitionNumbers: Collection[int]) -> None:
        """
        Drop all states in some partitions; takes a look at every producer.
        The same condition holds as for L{forget}.
        """
        self.forget([key for key in self._states if key[0] in partitionNumbers])
