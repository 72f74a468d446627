# -*- test-case-name: tests.unit.kafka.broker.log.test_retention -*-
"""
Removing old data from the log, a little in each turn of the reactor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import lmdb
from attrs import frozen
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .batchlookup import BATCH_KEY, SEEK_KEY, lastOffset, maxTimestampMs
from .groupcommit import GroupCommit
from .interface import InvalidTopicConfig, LogFailed, Partition
from .producers import ProducerStates
from .storage import NUMBER, PRODUCER_KEY, Storage
from .topics import Topics, encodeExtent

RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS: Final = "retention.ms"

_SLICE_BATCHES: Final = 64
_SLICE_BYTES: Final = 16 << 20
_SLICE_PARTITIONS: Final = 64
_SLICE_PRODUCERS: Final = 1000

_SPARE_BYTES: Final = 1 << 20
"""By how much a full map grows for a sweep; more than its turns need before they free pages."""


@frozen
class RetentionLimits:
    """
    How much of a partition is kept.

    @ivar maxBytes: the oldest batch is removed if at least this much remains without
        it; L{None} for no limit.
    @ivar maxAgeMs: batches are removed, oldest first, while their largest timestamp
        is older; L{None} for any age.  A batch without timestamps has no age.
    """

    maxBytes: int | None
    maxAgeMs: int | None

    def overriddenBy(self, configs: Mapping[str, str]) -> "RetentionLimits":
        """
        The limits of a topic with settings of its own; -1 in a setting means no limit.

        @raise InvalidTopicConfig: if a setting is not such a number.
        """
        return RetentionLimits(
            _limit(configs, RETENTION_BYTES, self.maxBytes),
            _limit(configs, RETENTION_MS, self.maxAgeMs),
        )


def _limit(configs: Mapping[str, str], key: str, default: int | None) -> int | None:
    text = configs.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -2
    if value < -1:
        raise InvalidTopicConfig(f"{key} must be a number, or -1 for no limit, not {text!r}")
    return None if value == -1 else value


@frozen
class DeletableBatches:
    """
    Batches to remove from the start of a partition.

    @ivar keys: their keys.
    @ivar offset: the offset after the last one.
    @ivar position: the position after the last one.
    """

    keys: list[bytes]
    offset: int
    position: int


class Sweep:
    """
    Removes records beyond the retention limits, the data of deleted topics, and
    idle producers.
    """

    _log = Logger()

    def __init__(
        self,
        storage: Storage,
        commits: GroupCommit,
        topics: Topics,
        producers: ProducerStates,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        limits: RetentionLimits,
        producerExpirySeconds: float,
        checkIntervalSeconds: float,
    ) -> None:
        """
        @param limits: the limits of topics without settings of their own.
        @param wallSeconds: the time in seconds since 1970, to compare
            timestamps with.
        @param producerExpirySeconds: how long an idle producer is remembered.
        @param checkIntervalSeconds: the pause between two sweeps.
        """
        self._storage = storage
        self._commits = commits
        self._topics = topics
        self._producers = producers
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._limits = limits
        self._producerExpirySeconds = producerExpirySeconds
        self._checkIntervalSeconds = checkIntervalSeconds
        self._slices: Iterator[None] | None = None
        self._next: IDelayedCall | None = None
        self._again = False
        self._grown = False

    def start(self) -> None:
        """
        Begin a sweep in the next turn; if one is running, repeat it when it ends.
        """
        if self._slices is not None:
            self._again = True
            return
        if self._next is not None:
            self._next.cancel()
        self._next = self._clock.callLater(0, self._turn)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _turn(self) -> None:
        if self._slices is None:
            self._slices = self._sweep()
        restSeconds = 0.0
        try:
            next(self._slices)
        except StopIteration:
            self._slices = None
            self._grown = False
            restSeconds = 0.0 if self._again else self._checkIntervalSeconds
            self._again = False
        except LogFailed as failed:
            self._slices = None
            if isinstance(failed.__cause__, lmdb.MapFullError) and not self._grown:
                # Removing takes pages, too; in a completely full map it would fail for good.
                self._grown = True
                self._commits.flush()
                self._storage.grow(_SPARE_BYTES)
            else:
                # Logged already; repeating it does not empty the disk.
                restSeconds = self._checkIntervalSeconds
        except Exception:
            self._log.failure("the log could not be swept")
            self._slices = None
            restSeconds = self._checkIntervalSeconds
        self._next = self._clock.callLater(restSeconds, self._turn)

    def _sweep(self) -> Iterator[None]:
        with self._storage.cursor(self._storage.tombstones) as cursor:
            numbers = [NUMBER.unpack(key)[0] for key in cursor.iternext(values=False)]
        removed = bool(numbers)
        for number in numbers:
            while self._bury(number):
                yield
        for examined, (topic, partition) in enumerate(self._topics.partitions()):
            if examined % _SLICE_PARTITIONS == 0:
                yield
            limits = self._limits.overriddenBy(topic.configs)
            while self._trim(partition, limits):
                removed = True
                yield
        while self._expireProducers():
            removed = True
            yield
        if removed:
            # Pages that a transaction frees are reused by the next one but one. In a full map the next one would be an
            # append that fails, which does not count; so this transaction has to be the next one.
            with self._commits.exclusive() as transaction:
                self._storage.advance(transaction, b"sweeps", 1)

    def _bury(self, number: int) -> bool:
        """
        Remove some of the data of a deleted partition.

        @return: whether there may be more.
        """
        batches = self._oldest(number, lambda timestampMs, position: True).keys
        producers: list[bytes] = []
        with self._storage.cursor(self._storage.producers) as cursor:
            found = cursor.set_range(NUMBER.pack(number))
            while found and len(producers) < _SLICE_PRODUCERS and PRODUCER_KEY.unpack(cursor.key())[0] == number:
                producers.append(bytes(cursor.key()))
                found = cursor.next()
        with self._commits.exclusive() as transaction:
            for key in batches:
                transaction.delete(key, db=self._storage.batches)
            for key in producers:
                transaction.delete(key, db=self._storage.producers)
            if not (batches or producers):
                transaction.delete(NUMBER.pack(number), db=self._storage.partitions)
                transaction.delete(NUMBER.pack(number), db=self._storage.tombstones)
        return bool(batches or producers)

    def _trim(self, partition: Partition, limits: RetentionLimits) -> bool:
        """
        Remove some of the batches that a partition need not keep.

        @return: whether there may be more.
        """
        maxBytes, maxAgeMs = limits.maxBytes, limits.maxAgeMs
        if partition.deleted or not partition.sizeBytes or (maxBytes is None and maxAgeMs is None):
            return False
        nowMs = int(self._wallSeconds() * 1000)

        def isDeletable(timestampMs: int, position: int) -> bool:
            if maxBytes is not None and partition.committedPosition - position >= maxBytes:
                return True
            return maxAgeMs is not None and 0 <= timestampMs < nowMs - maxAgeMs

        deletable = self._oldest(partition.number, isDeletable)
        if not deletable.keys:
            return False
        with self._commits.exclusive() as transaction:
            for key in deletable.keys:
                transaction.delete(key, db=self._storage.batches)
            extent = encodeExtent(partition, deletable.offset, deletable.position)
            transaction.put(NUMBER.pack(partition.number), extent, db=self._storage.partitions)
        partition.logStartOffset = deletable.offset
        partition.startPosition = deletable.position
        if deletable.offset == partition.nextOffset:
            partition.maxTimestampMs = partition.committedMaxTimestampMs = -1
        return True

    def _oldest(self, number: int, isDeletable: Callable[[int, int], bool]) -> DeletableBatches:
        """
        The oldest batches of a partition that are deletable, as many as one turn
        may remove.

        @param isDeletable: called with a batch's largest timestamp and the
            position of its end.
        """
        keys: list[bytes] = []
        offset = position = sizeBytes = 0
        with self._storage.cursor(self._storage.batches) as cursor:
            found = cursor.set_range(SEEK_KEY.pack(number, 0))
            while found and len(keys) < _SLICE_BATCHES and sizeBytes < _SLICE_BYTES:
                key, value = cursor.item()
                owner, _, _, endPosition = BATCH_KEY.unpack(key)
                if owner != number or not isDeletable(maxTimestampMs(value), endPosition):
                    break
                keys.append(bytes(key))
                offset, position = lastOffset(value) + 1, endPosition
                sizeBytes += len(value)
                found = cursor.next()
        return DeletableBatches(keys, offset, position)

    def _expireProducers(self) -> bool:
        """
        Forget some of the producers that have been idle for too long.

        @return: whether there may be more.
        """
        cutoffSeconds = self._wallSeconds() - self._producerExpirySeconds
        if not self._producers.unusedSince(cutoffSeconds, 1):
            return False
        with self._commits.exclusive() as transaction:
            unused = self._producers.unusedSince(cutoffSeconds, _SLICE_PRODUCERS)
            for key in unused:
                transaction.delete(PRODUCER_KEY.pack(*key), db=self._storage.producers)
        self._producers.forget(unused)
        return True
