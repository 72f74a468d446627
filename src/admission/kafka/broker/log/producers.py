# -*- test-case-name: tests.unit.kafka.broker.log.test_producers -*-
"""
The state of idempotent producers: their last batches by partition, and so
what they may append next.

A plain state machine.  Changes are kept apart until they are settled or
reverted, so that they are committed or lost with the batches.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from admission.kafka.storage.holdings import Holdings

from .interface import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED_BATCHES: Final = 5
"""Clients keep at most this many requests in flight, and so may repeat that many."""

_SEQUENCES: Final = 1 << 31

# A state is kept encoded, because nothing is smaller: number of batches, epoch and time of the last use; the batches,
# newest first.
_HEAD: Final = struct.Struct(">Bhd")
_BATCH: Final = struct.Struct(">iiq")
_NEWEST: Final = struct.Struct(_HEAD.format + _BATCH.format[1:])

_MAX_MISSING: Final = 10_000
"""Of how many new producers it is remembered that their first batch was not kept."""

_STATE_BYTES: Final = 320
"""The memory of a state beyond its own bytes: its key, its holder, and its places in the table, in the order of use and
among those of its partition."""


ProducerKey = tuple[int, int]
"""The log's number for a partition, and the id of a producer that appends to it."""

AppendedBatch = tuple[int, int, int]
"""The sequence numbers of a batch's first and last record, and the offset of its first."""


Beginning = tuple[int, int]
"""The epoch and the first sequence number of a producer's first batch."""


class ProducerState(NamedTuple):
    """
    @ivar epoch: the newest epoch seen.
    @ivar batches: the last batches of that epoch, oldest first; never empty.
    @ivar lastUsedSeconds: when the last batch was appended, in seconds since 1970.
    """

    epoch: int
    batches: tuple[AppendedBatch, ...]
    lastUsedSeconds: float

    def encode(self) -> bytes:
        """
        The state as bytes for L{decodeState}.
        """
        head = _HEAD.pack(len(self.batches), self.epoch, self.lastUsedSeconds)
        return head + b"".join([_BATCH.pack(*batch) for batch in self.batches[::-1]])


def decodeState(encoded: bytes) -> ProducerState:
    """
    The inverse of L{ProducerState.encode}.
    """
    _, epoch, lastUsedSeconds = _HEAD.unpack_from(encoded)
    return ProducerState(epoch, tuple(_BATCH.iter_unpack(encoded[_HEAD.size :]))[::-1], lastUsedSeconds)


def lastSequenceOf(firstSequence: int, lastOffsetDelta: int) -> int:
    """
    The sequence number of a batch's last record.  After 2^31 - 1 comes 0.
    """
    return (firstSequence + lastOffsetDelta) % _SEQUENCES


def encodedAfter(before: bytes | None, epoch: int, batch: AppendedBatch, nowSeconds: float) -> bytes:
    """
    The encoded state of a producer after a batch.

    @param before: its state so far, if it has one.
    @param nowSeconds: the time in seconds since 1970.
    """
    count, older = 1, b""
    if before is not None:
        count, newestEpoch, _ = _HEAD.unpack_from(before)
        count = min(count + 1, REMEMBERED_BATCHES) if epoch == newestEpoch else 1
        older = before[_HEAD.size : _HEAD.size + (count - 1) * _BATCH.size]
    return _NEWEST.pack(count, epoch, nowSeconds, *batch) + older


class ProducerStates:
    """
    The state of all producers in all partitions, least recently used first.

    @ivar maxEntries: how many are remembered; beyond that, the oldest of holders that have more than the mean are
        dropped when changes are settled.
    @ivar encodedBytes: the size of all states together when encoded.
    """

    def __init__(self, maxEntries: int) -> None:
        self.maxEntries = maxEntries
        self.encodedBytes = 0
        self._states: OrderedDict[ProducerKey, bytes] = OrderedDict()
        # The values of the changed keys before the last L{settle}; None for a new key.
        self._before: dict[ProducerKey, bytes | None] = {}
        # For whom they are remembered.
        self._holders: dict[ProducerKey, str] = {}
        self._holdings = Holdings()
        # The ids of the producers of each partition.
        self._ids: dict[int, set[int]] = {}
        # Where new producers have begun: those that are not settled, and those that were not kept.
        self._begun: dict[ProducerKey, Beginning] = {}
        self._missing: OrderedDict[ProducerKey, Beginning] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def sizeBytes(self) -> int:
        """
        Roughly how much memory the states take.
        """
        return self.encodedBytes + (len(self._states) + len(self._missing)) * _STATE_BYTES

    def restore(self, states: Mapping[ProducerKey, bytes], holderOf: Callable[[int], str] = lambda _: "") -> None:
        """
        Know the producers of before a restart.

        @param states: encoded.
        @param holderOf: for whom a producer is remembered, as far as that is known.
        """
        # The head of a state ends with the time of its last use.
        for key, encoded in sorted(states.items(), key=lambda item: _HEAD.unpack_from(item[1])[2]):
            self._add(key, encoded, holderOf(key[1]))
        self._evict()

    def get(self, key: ProducerKey) -> ProducerState | None:
        encoded = self._states.get(key)
        return None if encoded is None else decodeState(encoded)

    def keys(self) -> list[ProducerKey]:
        """
        The keys of all producers, least recently used first.
        """
        return list(self._states)

    def ids(self) -> Iterator[int]:
        """
        The ids of all producers, each once, least recently used first.
        """
        return iter(dict.fromkeys([producerId for _, producerId in self._states]))

    def statesOf(self, partitionNumber: int) -> dict[int, bytes]:
        """
        The encoded states of the producers of a partition by their ids.
        """
        return {each: self._states[partitionNumber, each] for each in self._ids.get(partitionNumber, ())}

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
            if self._missing:
                self._checkBeginning(key, epoch, firstSequence)
            return None
        _, newestEpoch, _, _, newestSequence, _ = _NEWEST.unpack_from(stored)
        if epoch < newestEpoch:
            raise InvalidProducerEpoch(f"producer {key[1]} of epoch {epoch} was replaced by one of {newestEpoch}")
        expected = (newestSequence + 1) % _SEQUENCES if epoch == newestEpoch else 0
        if firstSequence == expected:
            return None
        if epoch == newestEpoch:
            baseOffset: int
            for first, last, baseOffset in _BATCH.iter_unpack(stored[_HEAD.size :]):
                if first == firstSequence and last == lastSequence:
                    return baseOffset
        raise OutOfOrderSequence(
            f"producer {key[1]} of epoch {epoch} goes on with sequence {firstSequence}, not with {expected}"
        )

    def record(self, key: ProducerKey, epoch: int, batch: AppendedBatch, nowSeconds: float, holder: str = "") -> None:
        """
        Remember a batch that L{check} has accepted.

        @param nowSeconds: the time in seconds since 1970.
        @param holder: for whom.
        """
        before = self._states.get(key)
        self._before.setdefault(key, before)
        encoded = encodedAfter(before, epoch, batch, nowSeconds)
        if before is None:
            self._begun[key] = (epoch, batch[0])
            self._missing.pop(key, None)
            self._add(key, encoded, holder)
        else:
            self._states[key] = encoded
            self._states.move_to_end(key)
            self.encodedBytes += len(encoded) - len(before)

    def refused(self, key: ProducerKey, epoch: int, firstSequence: int) -> None:
        """
        A batch that L{check} has accepted is not kept.  If it would have been the producer's first, none that follows
        may be taken for that.
        """
        if key not in self._states:
            self._miss(key, (epoch, firstSequence))

    def settle(self) -> None:
        """
        Accept the changes, which are committed.
        """
        self._before.clear()
        self._begun.clear()
        self._evict()

    def revert(self) -> None:
        """
        Discard the changes, which are lost: restore the state of the last L{settle}.
        """
        for key, before in self._before.items():
            if before is None:
                self._drop(key)
            else:
                self.encodedBytes += len(before) - len(self._states[key])
                self._states[key] = before
        self._before.clear()
        for key, beginning in self._begun.items():
            self._miss(key, beginning)
        self._begun.clear()

    def unusedSince(self, timeSeconds: float, maxCount: int) -> list[ProducerKey]:
        """
        Producers that have appended nothing since a time, least recently used first.

        @param maxCount: how many to return at most.
        """
        unused: list[ProducerKey] = []
        for key, stored in islice(self._states.items(), maxCount):
            if _HEAD.unpack_from(stored)[2] > timeSeconds:
                break
            unused.append(key)
        return unused

    def forget(self, keys: Iterable[ProducerKey]) -> None:
        """
        Drop the states of some producers.  Do not call it while there are changes
        that are neither settled nor reverted.
        """
        for key in keys:
            self._drop(key)

    def forgetPartitions(self, partitionNumbers: Iterable[int]) -> None:
        """
        Drop all states in some partitions.
        The same condition holds as for L{forget}.
        """
        numbers = frozenset(partitionNumbers)
        self.forget([(number, each) for number in numbers for each in self._ids.get(number, ())])
        for key in [key for key in self._missing if key[0] in numbers]:
            del self._missing[key]

    def _checkBeginning(self, key: ProducerKey, epoch: int, firstSequence: int) -> None:
        beginning = self._missing.get(key)
        if beginning is not None and beginning[0] == epoch and firstSequence != beginning[1]:
            raise OutOfOrderSequence(
                f"producer {key[1]} of epoch {epoch} goes on with sequence {firstSequence}, and {beginning[1]} was not"
                " kept"
            )

    def _miss(self, key: ProducerKey, beginning: Beginning) -> None:
        known = self._missing.get(key)
        if known is None or known[0] != beginning[0]:
            self._missing[key] = beginning
            if len(self._missing) > _MAX_MISSING:
                self._missing.popitem(last=False)

    def _add(self, key: ProducerKey, encoded: bytes, holder: str) -> None:
        self._states[key] = encoded
        self._holders[key] = holder
        self._holdings.add(holder, 1)
        self.encodedBytes += len(encoded)
        self._ids.setdefault(key[0], set()).add(key[1])

    def _drop(self, key: ProducerKey) -> None:
        self.encodedBytes -= len(self._states.pop(key))
        self._holdings.add(self._holders.pop(key), -1)
        number, producerId = key
        ids = self._ids[number]
        ids.discard(producerId)
        if not ids:
            del self._ids[number]

    def _evict(self) -> None:
        while len(self._states) > self.maxEntries:
            oldest = next(iter(self._states))
            if self._holdings.isAboveMean(self._holders[oldest], self.maxEntries):
                self._drop(oldest)
            else:
                self._states.move_to_end(oldest)
