# -*- test-case-name: tests.unit.kafka.broker.log.test_lmdb_log -*-
"""
The record log on LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

import lmdb
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from admission.kafka.wire.batches import RecordBatch, assignOffset

from .batchlookup import BATCH_KEY, copyBatches, findMaxTimestamp, findTimestamp, positionOf
from .groupcommit import MAX_PENDING_BYTES, GroupCommit
from .interface import (
    LEADER_EPOCH,
    AppendResult,
    CommitCallback,
    ILog,
    LogClosed,
    OffsetOutOfRange,
    Partition,
    PartitionsListener,
    TimestampedOffset,
    Topic,
    UnknownTopic,
)
from .logtables import Table, Tables
from .producers import ProducerKey, ProducerStates, lastSequenceOf
from .retention import RetentionLimits, Sweep
from .storage import PRODUCER_KEY, DirectoryLock, openStorage
from .syncing import BackgroundSync, DeferToThread
from .topics import Topics

_PRODUCER_IDS: Final = 1000
"""How many producer ids are reserved at a time; a restart skips those not used."""


@implementer(ILog)
class LmdbLog:
    """
    L{ILog} in one LMDB environment.

    Make it in the process that uses it: an environment does not survive a
    fork, so a daemon makes it after it has detached.
    """

    _log = Logger()

    def __init__(
        self,
        path: str,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        deferToThread: DeferToThread,
        *,
        mapSizeBytes: int = 1 << 40,
        maxPendingBytes: int = MAX_PENDING_BYTES,
        maxPartitions: int = 10_000,
        maxProducers: int = 100_000,
        producerExpirySeconds: float = 86_400.0,
        retentionBytes: int | None = None,
        retentionSeconds: float | None = 7 * 86_400.0,
        checkIntervalSeconds: float = 30.0,
        flushIntervalSeconds: float = 1.0,
    ) -> None:
        """
        Open the log in a directory, or make one.

        @param path: the directory; made if it does not exist.
        @param clock: the reactor, or a test's clock.
        @param wallSeconds: the time in seconds since 1970, for the age of
            records and producers.
        @param deferToThread: runs calls that block on the disk.
        @param mapSizeBytes: the maximum size of the file.  It costs
            address space only; the file does not shrink again.
        @param maxPendingBytes: how much may be appended before a commit in
            mid-turn.
        @param maxPartitions: how many partitions all topics may have together.
        @param maxProducers: how many pairs of partition and idempotent
            producer are remembered.
        @param producerExpirySeconds: how long they are remembered after their last batch.
        @param retentionBytes: how much of a partition is kept at least, unless its
            topic overrides it; L{None} for all.
        @param retentionSeconds: how old records may become, unless their topic
            overrides it; L{None} for any age.
        @param checkIntervalSeconds: the pause between two sweeps.
        @param flushIntervalSeconds: how long committed data may wait before it
            is synchronised with the disk.
        @raise LogInUse: if another broker uses the directory.
        @raise LogFailed: if the storage cannot be opened.
        """
        self._wallSeconds = wallSeconds
        self._listeners: list[PartitionsListener] = []
        # Used as ordered sets: partitions that await a commit, and partitions to tell listeners of.
        self._appended: dict[Partition, None] = {}
        self._changed: dict[Partition, None] = {}
        self._nextProducerId = self._endProducerId = 0
        self._closed = False
        self._released = False
        self._closers: list[Deferred[None]] = []

        limits = RetentionLimits(retentionBytes, None if retentionSeconds is None else int(retentionSeconds * 1000))
        os.makedirs(path, exist_ok=True)
        self._lock = DirectoryLock(path)
        try:
            self._storage = storage = openStorage(path, mapSizeBytes)
        except BaseException:
            self._lock.release()
            raise
        self.commitCount = self.syncedCount = self._syncingCount = 0
        self._syncListeners: list[Callable[[], object]] = []
        self._sync = BackgroundSync(
            clock, deferToThread, self._synchronise, flushIntervalSeconds, self._syncBegins, self._syncSucceeded
        )
        self._commits = GroupCommit(
            storage.environment,
            storage.batches,
            clock,
            prepare=self._prepare,
            settle=self._settle,
            revert=self._revert,
            announce=self._announce,
            maxPendingBytes=maxPendingBytes,
        )
        self._tables = Tables(storage, self._commits)
        self._producers = ProducerStates(maxProducers)
        self._topics = Topics(storage, self._commits, maxPartitions, limits.overriddenBy)
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics.byName)
        try:
            self._load()
        except BaseException:
            storage.environment.close()
            self._lock.release()
            raise
        self._sweep = Sweep(
            storage,
            self._commits,
            self._topics,
            self._producers,
            clock,
            wallSeconds,
            limits,
            producerExpirySeconds,
            checkIntervalSeconds,
        )
        self._sweep.start()

    def topic(self, name: str) -> Topic:
        return self._topics.get(name)

    def topicById(self, topicId: UUID) -> Topic:
        return self._topics.getById(topicId)

    def createTopic(self, name: str, partitionCount: int, configs: Mapping[str, str]) -> Topic:
        return self._topics.create(name, partitionCount, configs)

    def checkTopic(self, name: str, partitionCount: int, configs: Mapping[str, str]) -> None:
        self._topics.checkNew(name, partitionCount, configs)

    def deleteTopic(self, name: str) -> None:
        topic = self._topics.delete(name)
        self._producers.forgetPartitions({partition.number for partition in topic.partitions})
        self._changed.update(dict.fromkeys(topic.partitions))
        self._commits.wake()
        self._sweep.start()

    def addPartitions(self, name: str, partitionCount: int) -> Topic:
        return self._topics.addPartitions(name, partitionCount)

    def checkPartitions(self, name: str, partitionCount: int) -> None:
        self._topics.checkMore(name, partitionCount)

    def setTopicConfigs(self, name: str, configs: Mapping[str, str]) -> Topic:
        return self._topics.setConfigs(name, configs)

    def append(
        self, partition: Partition, buffer: bytearray | memoryview, batch: RecordBatch, owner: str = ""
    ) -> AppendResult:
        self._checkPartition(partition)
        producerId = batch.producerId
        if producerId >= 0:
            firstSequence = batch.baseSequence
            lastSequence = lastSequenceOf(firstSequence, batch.lastOffsetDelta)
            producer = (partition.number, producerId)
            known = self._producers.check(producer, batch.producerEpoch, firstSequence, lastSequence)
            if known is not None:
                return AppendResult(known, True)
        transaction = self._commits.transaction or self._commits.open()
        baseOffset = partition.nextOffset
        assignOffset(buffer, baseOffset, LEADER_EPOCH)
        sizeBytes = len(buffer)
        maxTimestampMs = max(partition.maxTimestampMs, batch.maxTimestampMs)
        endPosition = partition.endPosition + sizeBytes
        try:
            transaction.put(BATCH_KEY.pack(partition.number, baseOffset, maxTimestampMs, endPosition), buffer)
        except lmdb.Error as error:
            raise self._commits.lose(error) from error
        partition.nextOffset = baseOffset + batch.lastOffsetDelta + 1
        partition.endPosition = endPosition
        partition.maxTimestampMs = maxTimestampMs
        self._appended[partition] = None
        if producerId >= 0:
            appended = (firstSequence, lastSequence, baseOffset)
            self._producers.record(producer, batch.producerEpoch, appended, self._wallSeconds(), owner)
        self._commits.appended(sizeBytes)
        return AppendResult(baseOffset, False)

    def whenCommitted(self, callback: CommitCallback) -> None:
        self._commits.whenCommitted(callback)

    def sync(self) -> None:
        self._sync.soon()

    def subscribeSynced(self, listener: Callable[[], object]) -> None:
        self._syncListeners.append(listener)

    def subscribe(self, listener: PartitionsListener) -> None:
        self._listeners.append(listener)

    def read(self, partition: Partition, offset: int, maxBytes: int, firstWhole: bool = True) -> list[bytes]:
        self._checkOffset(partition, offset)
        if offset == partition.highWatermark:
            return []
        with self._storage.cursor(self._storage.batches) as cursor:
            return copyBatches(cursor, partition, offset, maxBytes, firstWhole)

    def bytesAvailable(self, partition: Partition, offset: int) -> int:
        self._checkOffset(partition, offset)
        if offset == partition.highWatermark:
            return 0
        with self._storage.cursor(self._storage.batches) as cursor:
            return partition.committedPosition - positionOf(cursor, partition, offset)

    def offsetForTimestamp(self, partition: Partition, timestampMs: int) -> TimestampedOffset | None:
        self._checkPartition(partition)
        with self._storage.cursor(self._storage.batches) as cursor:
            return findTimestamp(cursor, partition, timestampMs)

    def maxTimestampOffset(self, partition: Partition) -> TimestampedOffset | None:
        self._checkPartition(partition)
        with self._storage.cursor(self._storage.batches) as cursor:
            return findMaxTimestamp(cursor, partition)

    def table(self, name: str) -> Table:
        return self._tables.get(name)

    @property
    def producerStateBytes(self) -> int:
        return self._producers.sizeBytes

    @property
    def problems(self) -> list[str]:
        return [problem for problem in (self._commits.problem, self._sync.problem) if problem is not None]

    def producers(self) -> Iterator[tuple[str, int]]:
        return self._producers.owners()

    def allocateProducerId(self) -> int:
        if self._nextProducerId == self._endProducerId:
            with self._commits.exclusive() as transaction:
                first = self._storage.advance(transaction, b"next producer id", _PRODUCER_IDS)
            self._nextProducerId, self._endProducerId = first, first + _PRODUCER_IDS
        self._nextProducerId += 1
        return self._nextProducerId - 1

    def close(self) -> Deferred[None]:
        if self._released:
            return succeed(None)
        closer: Deferred[None] = Deferred()
        self._closers.append(closer)
        if not self._closed:
            self._closed = True
            self._sweep.stop()
            self._commits.close()
            self._sync.close().addCallback(self._release)
        return closer

    def _load(self) -> None:
        states: dict[ProducerKey, bytes] = {}
        with self._storage.environment.begin(buffers=True) as transaction:
            self._topics.load(transaction)
            present = {partition.number for _, partition in self._topics.partitions()}
            for key, value in transaction.cursor(self._storage.producers):
                partitionNumber, producerId = PRODUCER_KEY.unpack(key)
                if partitionNumber in present:
                    states[partitionNumber, producerId] = bytes(value)
        self._producers.load(states)

    def _checkPartition(self, partition: Partition) -> None:
        if self._closed:
            raise LogClosed("the log is closed")
        if partition.deleted:
            raise UnknownTopic(f"topic {partition.topicName!r} has been deleted")

    def _checkOffset(self, partition: Partition, offset: int) -> None:
        self._checkPartition(partition)
        if not partition.logStartOffset <= offset <= partition.highWatermark:
            raise OffsetOutOfRange(
                f"offset {offset} of {partition.topicName}-{partition.index} is not"
                f" from {partition.logStartOffset} to {partition.highWatermark}"
            )

    def _prepare(self, transaction: lmdb.Transaction[bytes]) -> None:
        table = self._storage.producers
        for key, state in self._producers.changes():
            if state is None:
                transaction.delete(PRODUCER_KEY.pack(*key), db=table)
            else:
                transaction.put(PRODUCER_KEY.pack(*key), state, db=table)

    def _settle(self) -> None:
        for partition in self._appended:
            partition.highWatermark = partition.nextOffset
            partition.committedPosition = partition.endPosition
            partition.committedMaxTimestampMs = partition.maxTimestampMs
        self._changed.update(self._appended)
        self._appended.clear()
        self._producers.settle()
        self.commitCount += 1
        self._sync.written()

    def _revert(self) -> None:
        for partition in self._appended:
            partition.nextOffset = partition.highWatermark
            partition.endPosition = partition.committedPosition
            partition.maxTimestampMs = partition.committedMaxTimestampMs
        self._appended.clear()
        self._producers.revert()

    def _announce(self) -> None:
        if not self._changed:
            return
        changed = list(self._changed)
        self._changed.clear()
        for listener in list(self._listeners):
            try:
                listener(changed)
            except Exception:
                self._log.failure("{listener} raised when it was told of new records", listener=listener)

    def _syncBegins(self) -> None:
        self._syncingCount = self.commitCount

    def _syncSucceeded(self) -> None:
        self.syncedCount = self._syncingCount
        for listener in list(self._syncListeners):
            try:
                listener()
            except Exception:
                self._log.failure("{listener} raised when it was told of a synchronisation", listener=listener)

    def _synchronise(self) -> None:
        self._storage.environment.sync(True)

    def _release(self, _: object) -> None:
        self._storage.environment.close()
        self._lock.release()
        self._released = True
        for closer in self._closers:
            closer.callback(None)
