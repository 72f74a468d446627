# -*- test-case-name: tests.unit.kafka.broker.log.test_segmentlog -*-
"""
The record log: segment files with the records, and a journal with everything else.
"""

from __future__ import annotations

import base64
import os
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from attrs import evolve
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from admission.kafka.storage.datadirectory import DOCUMENTS, PARTITIONS
from admission.kafka.storage.disk import DirectoryLock, Disk, LocalDisk, explain
from admission.kafka.storage.documents import Documents
from admission.kafka.storage.flushing import DeferToThread, Flusher, Round, callAll
from admission.kafka.storage.flushwaiters import FlushWaiters
from admission.kafka.storage.groupcommit import MAX_PENDING_BYTES, GroupCommit
from admission.kafka.storage.itable import CommitCallback, LogClosed, LogFailed, LogRefusal
from admission.kafka.storage.openfiles import LogFile, OpenFiles
from admission.kafka.storage.storedtable import Table
from admission.kafka.wire.batches import RecordBatch, assignOffset
from admission.timeslices import Steps

from .checkpoint import Checkpoint
from .interface import (
    MAX_OFFSET,
    AppendResult,
    EpochEnd,
    ILog,
    NoProducerId,
    OffsetOutOfRange,
    Partition,
    PartitionsListener,
    Topic,
    UnknownTopic,
)
from .partitionlog import PartitionLog, SegmentFiles
from .producers import ProducerKey, ProducerStates, lastSequenceOf
from .recovery import PartitionRecovery
from .retention import Sweep
from .retentionlimits import RetentionLimits
from .segment import Segment
from .topics import OWN_TABLES, Topics, numberIn, partitionsOf

_PRODUCER_IDS: Final = 1000
"""How many producer ids are reserved at a time; a restart skips those not used."""

_KEPT_BYTES: Final = 64 << 10
"""Batches below this size are copied and written at the end of the turn; larger ones are written at once."""

_UNAWAITED_AT_ONCE: Final = 200
"""How many partitions that nobody waits for are flushed in one round: those who come meanwhile wait for its end."""

_OWNERS: Final = "owners"
_OWNER_KEY: Final = struct.Struct(">q")
_OWNER_BYTES: Final = 200
"""The memory that it takes to know the owner of a producer id, about."""

_OWNERS_IN_STEP: Final = 1000
"""How many producer ids are looked at between two steps, in less than a millisecond."""

_FACTS: Final = "facts"
_COUNTER: Final = struct.Struct(">q")
_CLUSTER_ID: Final = b"cluster id"
_LEADER_EPOCH: Final = b"leader epoch"
_NEXT_PRODUCER_ID: Final = b"next producer id"
_CLEAN: Final = b"clean"

_MAX_EPOCH: Final = 2**31 - 1

_OWN_TABLES: Final = {_OWNERS, _FACTS, *OWN_TABLES}

_PROGRESS_SECONDS: Final = 1.0


@implementer(ILog)
class SegmentLog:
    """
    L{ILog} in a directory: C{partitions} with a directory for each partition, and
    C{documents}.
    """

    _log = Logger()

    def __init__(
        self,
        path: str,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        deferToThread: DeferToThread,
        *,
        disk: Disk | None = None,
        maxPendingBytes: int = MAX_PENDING_BYTES,
        maxPartitions: int = 10_000,
        maxProducers: int = 100_000,
        maxOpenFiles: int = 1000,
        producerExpirySeconds: float = 86_400.0,
        retentionBytes: int | None = None,
        retentionSeconds: float | None = 7 * 86_400.0,
        segmentBytes: int = 1 << 30,
        segmentSeconds: float | None = 7 * 86_400.0,
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
        @param disk: where the directory is; by default on this machine's disk.
        @param maxPendingBytes: how much may be appended before a commit in
            mid-turn.
        @param maxPartitions: how many partitions all topics may have together.
        @param maxProducers: how many pairs of partition and idempotent
            producer are remembered.
        @param maxOpenFiles: how many files may be open, and how many may have unflushed bytes.
        @param producerExpirySeconds: how long they are remembered after their last batch.
        @param retentionBytes: how much of a partition is kept at least, unless its
            topic overrides it; L{None} for all.
        @param retentionSeconds: how old records may become, unless their topic
            overrides it; L{None} for any age.
        @param segmentBytes: how large a segment may become, unless its topic
            overrides it.
        @param segmentSeconds: for how long a segment is appended to, unless its topic
            overrides it.
        @param checkIntervalSeconds: the pause between two sweeps.
        @param flushIntervalSeconds: how long committed data may wait before it
            is flushed to the disk.
        @raise LogInUse: if another broker uses the directory.
        @raise LogFailed: if it cannot be opened.
        """
        # Of those that were written when a flush of everything began and that nobody waits for, how many are left.
        self._unawaitedCount = 0
        self.path = path
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._deferToThread = deferToThread
        self._disk = disk = LocalDisk() if disk is None else disk
        self._listeners: list[PartitionsListener] = []
        self._flushWaiters = FlushWaiters()
        self._roomWaiters: deque[Deferred[None]] = deque()
        # All of these are used as ordered sets. Partitions that await a commit, and those of them that somebody will
        # wait for; those with unflushed bytes, and those of them that somebody waits for; those to tell listeners of.
        # The first have for whom they were appended to.
        self._appended: dict[PartitionLog, str] = {}
        self._appendedUrgently: dict[PartitionLog, None] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._urgent: dict[PartitionLog, None] = {}
        self._changed: dict[Partition, None] = {}
        self._tables: dict[str, Table] = {}
        self._checkpoints: list[tuple[Segment, Checkpoint]] = []
        self._isCheckpointing = False
        self._checkpointed: Deferred[None] | None = None
        self._isClosed = self._isReleased = False
        self._closers: list[Deferred[None]] = []

        self._limits = RetentionLimits(
            retentionBytes, _milliseconds(retentionSeconds), segmentBytes, _milliseconds(segmentSeconds)
        )
        os.makedirs(path, exist_ok=True)
        self._lock = DirectoryLock(path)
        self._openFiles = OpenFiles(disk, maxOpenFiles)
        try:
            partitionsPath = os.path.join(path, PARTITIONS)
            self._documents = Documents(disk, self._openFiles, os.path.join(path, DOCUMENTS), deferToThread)
            self._files = SegmentFiles(disk, self._openFiles)
            self._producers = ProducerStates(maxProducers)
            self._maxOwners = 2 * maxProducers + 1000
            # While owners are forgotten: those that were remembered when that began, and those that have come since.
            self._rememberedIds: set[int] | None = None
            limitsOf = self._limits.overriddenBy
            self._topics = Topics(self._documents, self._commitNow, partitionsPath, maxPartitions, limitsOf)
            self.topics: Mapping[str, Topic] = MappingProxyType(self._topics.byName)
            self.topicHoldings = self._topics.topicHoldings
            self.partitionHoldings = self._topics.partitionHoldings
            deleted = self._load(partitionsPath)
        except OSError as error:
            self._openFiles.closeAll()
            self._lock.release()
            raise LogFailed(f"{error.filename or path} cannot be read: {explain(error)}") from error
        except BaseException:
            self._openFiles.closeAll()
            self._lock.release()
            raise
        self._flusher = Flusher(clock, deferToThread, flushIntervalSeconds, self._beginFlush, self._flushFailed)
        self._commits = GroupCommit(
            clock,
            write=self._write,
            settle=self._settle,
            revert=self._revert,
            announce=self._announce,
            maxPendingBytes=maxPendingBytes,
        )
        self._sweep = Sweep(
            self,
            disk,
            self._files,
            self._topics,
            self._producers,
            clock,
            wallSeconds,
            deferToThread,
            producerExpirySeconds,
            checkIntervalSeconds,
        )
        self._sweep.removeDirectories(list(deleted.values()), partial(self._buried, list(deleted)))
        self._sweep.start()

    def topic(self, name: str) -> Topic:
        return self._topics.get(name)

    def topicById(self, topicId: UUID) -> Topic:
        return self._topics.getById(topicId)

    def createTopic(
        self, name: str, partitionCount: int, configs: Mapping[str, str], validateOnly: bool = False, holder: str = ""
    ) -> Topic:
        return self._topics.create(name, partitionCount, configs, validateOnly, holder)

    def deleteTopic(self, name: str) -> None:
        partitions = partitionsOf(self._topics.delete(name))
        self._producers.forgetPartitions([partition.number for partition in partitions])
        for partition in partitions:
            self._dirty.pop(partition, None)
            self._urgent.pop(partition, None)
        self._changed.update(dict.fromkeys(partitions))
        self._commits.wake()
        self.whenFlushed(partial(self._removePartitions, partitions))

    def addPartitions(self, name: str, partitionCount: int, validateOnly: bool = False) -> Topic:
        return self._topics.addPartitions(name, partitionCount, validateOnly)

    def setTopicConfigs(self, name: str, configs: Mapping[str, str]) -> Topic:
        return self._topics.setConfigs(name, configs)

    def setRetention(self, retentionBytes: int | None, retentionSeconds: float | None) -> None:
        limits = evolve(self._limits, maxBytes=retentionBytes, maxAgeMs=_milliseconds(retentionSeconds))
        if limits != self._limits:
            self._limits = limits
            self._topics.setLimits(limits.overriddenBy)

    def deleteRecords(self, partition: Partition, offset: int) -> None:
        stored = self._stored(partition)
        if not 0 <= offset <= partition.highWatermark:
            raise OffsetOutOfRange(
                f"records of {partition.topicName}-{partition.index} can be deleted up to offset"
                f" {partition.highWatermark}, and not {offset}"
            )
        if offset > partition.logStartOffset:
            before, partition.logStartOffset = partition.logStartOffset, offset
            try:
                self.commitStart(stored)
            except LogFailed:
                partition.logStartOffset = before
                raise

    def append(
        self,
        partition: Partition,
        buffer: bytearray | memoryview,
        batch: RecordBatch,
        owner: str = "",
        isUrgent: bool = False,
        holder: str = "",
    ) -> AppendResult:
        stored = self._stored(partition)
        producerId = batch.producerId
        if producerId >= 0:
            firstSequence = batch.baseSequence
            lastSequence = lastSequenceOf(firstSequence, batch.lastOffsetDelta)
            producer = (partition.number, producerId)
            known = self._producers.check(producer, batch.producerEpoch, firstSequence, lastSequence)
            if known is not None:
                if self._commits.broken is not None:
                    raise LogFailed(self._commits.broken)
                if isUrgent:
                    self._urge(stored)
                return AppendResult(known, True)
        try:
            self._commits.check()
            if stored not in self._appended:
                self._prepare(stored, len(buffer), holder)
        except LogFailed:
            if producerId >= 0:
                self._producers.refused(producer, batch.producerEpoch, firstSequence)
            raise
        baseOffset = partition.nextOffset
        assignOffset(buffer, baseOffset, self.leaderEpoch)
        isKept = len(buffer) < _KEPT_BYTES
        stored.append(bytes(buffer) if isKept else buffer, batch)
        self._appended.setdefault(stored, holder)
        if isUrgent:
            self._appendedUrgently[stored] = None
        if producerId >= 0:
            appended = (firstSequence, lastSequence, baseOffset)
            self._producers.record(producer, batch.producerEpoch, appended, self._wallSeconds(), holder)
            self._noteOwner(producerId, owner)
        self._commits.appended(len(buffer), isKept)
        return AppendResult(baseOffset, False)

    def commit(self) -> None:
        self._commits.commit()

    def whenCommitted(self, callback: CommitCallback) -> None:
        self._commits.whenCommitted(callback)

    def whenRoom(self, holder: str, partitionCount: int, timeoutSeconds: float) -> Deferred[None] | None:
        if (
            self._isClosed
            or self._failure is not None
            or self._openFiles.hasRoom(None, holder, partitionCount - 1 + len(self._appended))
        ):
            return None
        self._flusher.everything()
        waiting: Deferred[None] = Deferred()
        self._roomWaiters.append(waiting)
        return waiting.addTimeout(timeoutSeconds, self._clock, onTimeoutCancel=lambda *_: None)

    def whenFlushed(self, callback: CommitCallback) -> None:
        self._commits.whenCommitted(partial(self._awaitFlush, callback))

    def subscribe(self, listener: PartitionsListener) -> None:
        self._listeners.append(listener)

    def read(
        self,
        partition: Partition,
        offset: int,
        maxBytes: int,
        firstWhole: bool = True,
    ) -> bytes:
        stored = self._storedWith(partition, offset)
        if offset == partition.highWatermark:
            return b""
        return stored.read(self._files, offset, maxBytes, firstWhole)

    def bytesAvailable(self, partition: Partition, offset: int) -> int:
        stored = self._storedWith(partition, offset)
        if offset == partition.highWatermark:
            return 0
        return stored.bytesFrom(self._files, offset)

    def batchForTimestamp(self, partition: Partition, timestampMs: int, offset: int) -> Steps[bytes | None]:
        return self._stored(partition).findBatch(self._files, timestampMs, offset)

    def largestTimestampMs(self, partition: Partition) -> int:
        return self._stored(partition).largestTimestampMs(self._files)

    def endOfEpoch(self, partition: Partition, leaderEpoch: int) -> EpochEnd:
        stored = self._stored(partition)
        if not 0 <= leaderEpoch <= self.leaderEpoch:
            return EpochEnd(-1, -1)
        return stored.endOfEpoch(self._files, leaderEpoch)

    def table(self, name: str, isFlushed: bool = False) -> Table:
        if name in _OWN_TABLES:
            raise ValueError(f"the log keeps a table {name!r} for itself")
        if name not in self._tables:
            self._tables[name] = Table(self._documents, self._commits, name, isFlushed)
        return self._tables[name]

    @property
    def producerStateBytes(self) -> int:
        return self._producers.sizeBytes + len(self._owners) * _OWNER_BYTES

    @property
    def problems(self) -> list[str]:
        problems = (self._commits.problem, self._flusher.problem, self._flusher.delay)
        return list(dict.fromkeys(problem for problem in problems if problem is not None))

    def producers(self) -> Iterator[tuple[str, int]]:
        for producerId in self._producers.ids():
            yield self._ownerOf(producerId), producerId

    def allocateProducerId(self) -> int:
        if self._isClosed:
            raise LogClosed("the log is closed")
        if self._endProducerId - self._nextProducerId <= _PRODUCER_IDS // 2 and not self._isReserving:
            self._reserveProducerIds()
        if self._nextProducerId == self._endProducerId:
            raise self._reservationError or NoProducerId(
                "the disk has not confirmed the next producer ids yet; try again"
            )
        self._nextProducerId += 1
        return self._nextProducerId - 1

    def close(self) -> Deferred[None]:
        if self._isReleased:
            return succeed(None)
        closer: Deferred[None] = Deferred()
        self._closers.append(closer)
        if not self._isClosed:
            self._isClosed = True
            self._commits.close()
            closing = self._flusher.close()
            closing.addCallback(lambda _: self._checkpointsOver())
            closing.addCallback(lambda _: self._documents.close())
            closing.addCallback(lambda _: self._sweep.stop())
            closing.addCallback(lambda _: maybeDeferred(self._deferToThread, self._markClean))
            closing.addErrback(lambda failure: self._log.failure("the log could not be closed well", failure))
            closing.addCallback(self._release)
        return closer

    def forgetOwners(self) -> Iterator[None]:
        """
        Drop the owners of producer ids that are not remembered any more, some in each step.

        @raise LogFailed: if writing failed in this turn.
        """
        remembered = self._rememberedIds = set()
        try:
            for number, (_, producerId) in enumerate(self._producers.keys()):
                if number % _OWNERS_IN_STEP == 0:
                    yield
                remembered.add(producerId)
            keys = list(self._owners)
            for begin in range(0, len(keys), _OWNERS_IN_STEP):
                yield
                some = keys[begin : begin + _OWNERS_IN_STEP]
                forgotten = [key for key in some if _OWNER_KEY.unpack(key)[0] not in remembered]
                if forgotten:
                    self._commits.check()
                    for key in forgotten:
                        self._documents.delete(_OWNERS, key)
                    self._commits.appended(len(forgotten) * _OWNER_KEY.size)
        finally:
            self._rememberedIds = None

    def keepSpare(self) -> None:
        """
        Keep room on the disk for commits that make more, also where it is full.
        """
        self._documents.keepSpare()

    def commitStart(self, partition: PartitionLog) -> None:
        """
        Commit where a partition starts, urgently.

        @raise LogFailed: if it cannot be written.
        """
        self._commits.check()
        self._topics.setStart(partition)
        self._commits.appended(_COUNTER.size)

    def _ownerOf(self, producerId: int) -> str:
        return self._owners.get(_OWNER_KEY.pack(producerId), b"").decode("utf-8", "surrogatepass")

    @property
    def _owners(self) -> Mapping[bytes, bytes]:
        return self._documents.tables.get(_OWNERS, {})

    def _load(self, partitionsPath: str) -> dict[int, str]:
        """
        Know what was there before a restart.

        @return: the directories of deleted partitions, by their numbers.
        @raise LogFailed: if something is missing or damaged.
        @raise OSError: if the disk fails.
        """
        documents = self._documents
        facts = documents.tables.get(_FACTS, {})
        self._disk.makeDirectory(partitionsPath)
        directories = {name: numberIn(name) for name in self._disk.list(partitionsPath)}
        if not facts and any(number is not None for number in directories.values()):
            raise LogFailed(
                f"{partitionsPath} has records, and the documents that say of which topics are gone; restore a backup"
            )
        self._topics.load()
        self._topics.skipNumbers([number for number in directories.values() if number is not None])
        # Of what was killed before its first flush the names are yet to be flushed.
        self._disk.flushDirectory(partitionsPath)
        present = set(directories.values())
        states: dict[ProducerKey, bytes] = {}
        now = self._wallSeconds()
        startedSeconds = shownSeconds = self._clock.seconds()
        readBytes = 0
        partitions = list(self._topics.partitions())
        for count, partition in enumerate(partitions):
            if partition.number not in present:
                partition.nextOffset = partition.highWatermark = partition.logStartOffset
                continue
            recovery = PartitionRecovery(
                self._disk, partition.directory, partition.name, partition.logStartOffset, now, _CLEAN in facts
            )
            found = recovery.run()
            partition.recovered(found)
            readBytes += found.readBytes
            states.update({(partition.number, each): state for each, state in found.producers.items()})
            if self._clock.seconds() - shownSeconds >= _PROGRESS_SECONDS:
                shownSeconds = self._clock.seconds()
                self._log.info(
                    "reading the log: {count} of {total} partitions, {megabytes} MiB of records",
                    count=count + 1,
                    total=len(partitions),
                    megabytes=readBytes >> 20,
                )
        if shownSeconds > startedSeconds:
            self._log.info("the log has been read in {seconds:.1f} s", seconds=self._clock.seconds() - startedSeconds)
        self._producers.restore(states, self._ownerOf)

        isNew = _CLUSTER_ID not in facts
        clusterId = facts.get(_CLUSTER_ID) or base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")
        if not clusterId.isascii():
            raise LogFailed(f"what is stored of the cluster id is damaged: {clusterId!r}")
        self.clusterId = clusterId.decode("ascii")
        # A directory of Kafka's own may have any epochs.
        epochs = [epoch for each in partitions for segment in each.segments for epoch, _ in segment.epochs]
        self.leaderEpoch = max([self._fact(_LEADER_EPOCH, _MAX_EPOCH), *epochs])
        self.endedUncleanly = not isNew and _CLEAN not in facts
        if self.endedUncleanly:
            # Epochs in batches are behind no checksum.
            self.leaderEpoch = min(self.leaderEpoch + 1, _MAX_EPOCH)
        for owner in self._owners.values():
            try:
                owner.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise LogFailed(f"what is stored of the owner of a producer id is damaged ({error!r})") from error
        self._nextProducerId = self._fact(_NEXT_PRODUCER_ID, MAX_OFFSET)
        self._endProducerId = self._nextProducerId + _PRODUCER_IDS
        self._isReserving = False
        self._reservationError: Exception | None = None
        documents.put(_FACTS, _CLUSTER_ID, self.clusterId.encode("ascii"))
        documents.put(_FACTS, _LEADER_EPOCH, _COUNTER.pack(self.leaderEpoch))
        documents.put(_FACTS, _NEXT_PRODUCER_ID, _COUNTER.pack(self._endProducerId))
        documents.delete(_FACTS, _CLEAN)
        # On the disk before anything is appended: a second crash must find that this was no clean end.
        self._flushDocuments()
        # What has no number was not made by the log.
        known = {partition.number for partition in partitions}
        others = {number: name for name, number in directories.items() if number is not None and number not in known}
        deleted = self._topics.deletedNumbers
        strangers = [name for number, name in others.items() if number not in deleted]
        if strangers:
            self._log.warn(
                "{count} directories in {path} belong to no topic and are left alone ({name}, ...): a loss of power has"
                " taken back their topics, or the documents are damaged; see admission data check",
                count=len(strangers),
                path=partitionsPath,
                name=strangers[0],
            )
        return {number: os.path.join(partitionsPath, others.get(number, str(number))) for number in deleted}

    def _fact(self, key: bytes, maximum: int) -> int:
        """
        @raise LogFailed: if it is damaged.
        """
        stored = self._documents.tables.get(_FACTS, {}).get(key)
        try:
            value: int = _COUNTER.unpack(stored)[0] if stored else 0
        except struct.error:
            value = -1
        if not 0 <= value <= maximum:
            raise LogFailed(f"what is stored of the {key.decode('ascii')} is damaged: {stored!r}")
        return value

    def _flushDocuments(self) -> None:
        """
        Write and flush changes of documents, while nothing else does.
        """
        self._documents.write()
        # No snapshot: nobody would wait for its thread.
        self._documents.settle(isLast=True)
        files, directories = self._documents.takeDirty()
        for logFile in files:
            self._openFiles.beginFlush(logFile).flush()
        for directory in (*directories, self.path):
            self._disk.flushDirectory(directory)
        self._openFiles.endFlush(files)

    def _markClean(self) -> None:
        if self._commits.broken is None and self._flusher.problem is None:
            self._documents.put(_FACTS, _CLEAN, b"1")
            try:
                self._flushDocuments()
            except (LogFailed, OSError) as error:
                reason = explain(error) if isinstance(error, OSError) else error
                self._log.warn("this was no clean end: {reason}; the next start reads more", reason=reason)

    def _stored(self, partition: Partition) -> PartitionLog:
        if self._isClosed:
            raise LogClosed("the log is closed")
        if partition.deleted:
            raise UnknownTopic(f"topic {partition.topicName!r} has been deleted")
        assert isinstance(partition, PartitionLog), partition
        return partition

    def _storedWith(self, partition: Partition, offset: int) -> PartitionLog:
        stored = self._stored(partition)
        if not partition.logStartOffset <= offset <= partition.highWatermark:
            raise OffsetOutOfRange(
                f"offset {offset} of {partition.topicName}-{partition.index} is not"
                f" from {partition.logStartOffset} to {partition.highWatermark}"
            )
        return stored

    def _prepare(self, partition: PartitionLog, sizeBytes: int, holder: str) -> None:
        """
        @raise LogFailed: if the partition cannot be written to.
        """
        producers = partial(self._producers.statesOf, partition.number)
        try:
            segment = partition.prepare(self._files, sizeBytes, self._wallSeconds(), producers)
        except OSError as error:
            raise LogFailed(explain(error)) from error
        files = self._openFiles
        if not files.hasRoom(segment, holder, len(self._appended)):
            # Only then it is known for whom the others of this turn are.
            self._commits.commit()
        if not files.hasRoom(segment, holder):
            # Refused here, or it would take along everything else of this turn.
            self._flusher.everything()
            raise LogFailed(
                f"{files.unflushed.of(holder)} files that were written for the same client wait to be flushed, and no"
                " more may (log.max.open.files); try again"
            )

    def _urge(self, partition: PartitionLog) -> None:
        """
        Somebody waits for a batch that was appended before.
        """
        if partition in self._appended:
            self._appendedUrgently[partition] = None
            return
        if partition in self._dirty:
            self._urgent[partition] = None
        # Former commits may count as flushed, though this partition is not: nobody waited for it.  It may be in the
        # round that is going on; then the next one is waited for.
        self._flushWaiters.committed()

    def _noteOwner(self, producerId: int, owner: str) -> None:
        key, encoded = _OWNER_KEY.pack(producerId), owner.encode("utf-8", "surrogatepass")
        if self._rememberedIds is not None:
            self._rememberedIds.add(producerId)
        # Where there are too many, that of a later batch is noted when a sweep has made room.
        if self._owners.get(key, b"") != encoded and len(self._owners) < self._maxOwners:
            self._documents.put(_OWNERS, key, encoded)

    def _reserveProducerIds(self) -> None:
        self._commits.check()
        endProducerId = self._endProducerId + _PRODUCER_IDS
        self._documents.put(_FACTS, _NEXT_PRODUCER_ID, _COUNTER.pack(endProducerId))
        self._documents.urge()
        self._commits.appended(_COUNTER.size)
        self._isReserving = True

        def reserved(error: Exception | None) -> None:
            self._isReserving = False
            self._reservationError = error
            if error is None:
                self._endProducerId = endProducerId

        self.whenFlushed(reserved)

    def _commitNow(self) -> None:
        """
        Commit what is pending, and what was put into the documents.

        @raise LogFailed: if it failed; the documents are what they were.
        """
        self._commits.check()
        if self._appended or self._documents.hasChanges:
            self._commits.appended(0, isKept=False)

    def _write(self) -> None:
        now = self._wallSeconds()
        files = self._openFiles
        try:
            for partition, holder in self._appended.items():
                files.holder = holder
                partition.write(self._files, now)
        finally:
            files.holder = ""
        if self._documents.hasChanges:
            self._documents.write()

    def _settle(self) -> None:
        leaderEpoch = self.leaderEpoch
        for partition in self._appended:
            partition.settle(leaderEpoch)
        self._changed.update(dict.fromkeys(self._appended))
        self._dirty.update(dict.fromkeys(self._appended))
        self._urgent.update(self._appendedUrgently)
        self._appended.clear()
        self._appendedUrgently.clear()
        self._documents.settle()
        self._producers.settle()
        self._flushWaiters.committed()
        self._flusher.written()
        if self._openFiles.isFilling:
            # Before others have to be refused.
            self._flusher.everything()

    def _revert(self) -> None:
        errors: list[LogFailed | OSError] = []
        for partition in self._appended:
            try:
                partition.revert(self._files)
            except (LogFailed, OSError) as error:
                errors.append(error)
            if partition.isDirty:
                # Its file stays open until it is flushed.
                self._dirty[partition] = None
                self._flusher.written()
        self._appended.clear()
        self._appendedUrgently.clear()
        self._producers.revert()
        try:
            self._documents.revert()
        except (LogFailed, OSError) as error:
            errors.append(error)
        if errors:
            raise errors[0]

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

    def _beginFlush(self, isEverything: bool) -> Round:
        self._flushWaiters.begun()
        partitions = list(self._urgent)
        if isEverything:
            others = [each for each in self._dirty if each not in self._urgent]
            self._unawaitedCount = min(self._unawaitedCount, len(others)) or len(others)
            atOnce = len(others) if self._isClosed else min(_UNAWAITED_AT_ONCE, self._unawaitedCount)
            partitions += others[:atOnce]
            self._unawaitedCount -= atOnce
            if self._unawaitedCount > 0:
                self._flusher.everything()
            elif len(others) > atOnce:
                # They were written meanwhile, and have their whole interval.
                self._flusher.written()
        self._urgent.clear()
        files: list[LogFile] = []
        checkpoints: list[tuple[Segment, Checkpoint]] = []
        # The files of one partition are flushed one after another, with their directories; a directory that has several
        # of them only once.
        flushes: list[Callable[[], object]] = []
        flushed: set[str] = set()

        def add(some: list[LogFile], directories: list[str]) -> None:
            files.extend(some)
            new = [each for each in dict.fromkeys(directories) if each not in flushed]
            flushed.update(new)
            calls: list[Callable[[], object]] = [self._openFiles.beginFlush(each).flush for each in some]
            calls += [partial(self._disk.flushDirectory, each) for each in new]
            if calls:
                flushes.append(partial(callAll, calls))

        for partition in partitions:
            self._dirty.pop(partition, None)
            dirty = partition.takeDirty(partial(self._producers.statesOf, partition.number))
            add([*dirty.segments], dirty.directories)
            checkpoints += dirty.checkpoints
        if self._documents.isDirty and (isEverything or self._documents.isUrgent):
            add(*self._documents.takeDirty())
        return Round(flushes, partial(self._flushed, files, checkpoints))

    def _flushed(self, files: list[LogFile], checkpoints: list[tuple[Segment, Checkpoint]]) -> None:
        self._openFiles.endFlush(files)
        self._checkpoints += checkpoints
        self._writeCheckpoints()
        self._flushWaiters.flushed()
        self._tellRoom()

    def _flushFailed(self) -> None:
        assert self._flusher.problem is not None
        self._commits.fail(self._flusher.problem)
        self._flushWaiters.failed(LogFailed(self._flusher.problem))
        self._tellRoom()

    @property
    def _failure(self) -> LogFailed | None:
        """
        Why no flush will succeed any more.
        """
        return None if self._flusher.problem is None else LogFailed(self._flusher.problem)

    def _tellRoom(self) -> None:
        """
        Have those who wait for room go on, one in each turn, since each begins to work at once.
        """
        waiters, self._roomWaiters = self._roomWaiters, deque()

        def tellNext() -> None:
            if waiters:
                waiters.popleft().callback(None)
                self._clock.callLater(0, tellNext)

        tellNext()

    def _awaitFlush(self, callback: CommitCallback, error: Exception | None) -> None:
        if error is None:
            error = self._failure
        if error is not None:
            callback(error)
        elif self._flushWaiters.add(callback):
            self._flusher.soon()

    def _writeCheckpoints(self) -> None:
        if self._isCheckpointing:
            return
        if not self._checkpoints:
            checkpointed, self._checkpointed = self._checkpointed, None
            if checkpointed is not None:
                checkpointed.callback(None)
            return
        checkpoints, self._checkpoints = self._checkpoints, []
        self._isCheckpointing = True
        written: Deferred[Any] = maybeDeferred(self._deferToThread, self._writeAll, checkpoints)
        written.addErrback(self._checkpointsFailed)
        written.addCallback(self._checkpointsWritten, checkpoints)

    def _checkpointsOver(self) -> Deferred[None]:
        """
        Write a last checkpoint of every partition; everything is on the disk.  Fires when all have been written.
        """
        over = self._checkpointed = Deferred()
        if self._failure is None:
            for partition in self._topics.partitions():
                producers = partial(self._producers.statesOf, partition.number)
                self._checkpoints += partition.sealedCheckpoints() + partition.lastCheckpoint(producers)
        self._writeCheckpoints()
        return over

    def _writeAll(self, checkpoints: list[tuple[Segment, Checkpoint]]) -> None:
        for segment, checkpoint in checkpoints:
            try:
                if not segment.isRemoved:
                    checkpoint.write(self._disk, segment.checkpointPath)
                    segment.hasCheckpoint = True
            except OSError as error:
                # The next start reads more of the segment, and nothing else follows.
                self._log.warn("{path} could not be written: {error}", path=segment.checkpointPath, error=error)

    def _checkpointsFailed(self, failure: Failure) -> None:
        # The next start reads more of the segments, and nothing else follows.
        self._log.warn("checkpoints of the log could not be written: {error}", error=failure.value)

    def _checkpointsWritten(self, _: object, checkpoints: list[tuple[Segment, Checkpoint]]) -> None:
        self._isCheckpointing = False
        for segment, _checkpoint in checkpoints:
            if segment.hasCheckpoint and segment.checkpointBytes == segment.sizeBytes and not segment.isRemoved:
                self._files.indexed(segment)
        self._writeCheckpoints()

    def _removePartitions(self, partitions: tuple[PartitionLog, ...], error: Exception | None) -> None:
        """
        The documents without some partitions are on the disk, so their records can go.
        """
        if error is None:
            for partition in partitions:
                self._files.close(partition.segments)
            numbers = [partition.number for partition in partitions]
            paths = [partition.directory for partition in partitions]
            self._sweep.removeDirectories(paths, partial(self._buried, numbers))

    def _buried(self, numbers: list[int]) -> None:
        """
        The directories of some deleted partitions are gone.
        """
        try:
            self._commits.check()
        except LogRefusal:
            # The next start finds that there is nothing to remove.
            return
        self._topics.buried(numbers)
        self._commits.appended(len(numbers))

    def _release(self, _: object) -> None:
        self._openFiles.closeAll()
        self._lock.release()
        self._isReleased = True
        for closer in self._closers:
            closer.callback(None)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
