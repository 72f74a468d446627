"""What may happen to a log on a disk that loses power, and what must be there afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from admission.kafka.broker.log import batchlookup, partitionlog, segmentlog
from admission.kafka.broker.log.interface import InvalidProducerEpoch, NoProducerId, OutOfOrderSequence, Partition
from admission.kafka.broker.log.partitionlog import SegmentFiles
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.storage import documents
from admission.kafka.storage.itable import LogFailed, LogRefusal
from admission.kafka.wire.batches import Record, encodeBatch, readBatch
from tests.kit.logfixture import TurnClock, batchesIn, storageError
from tests.kit.simulateddisk import FreeLock, PowerLost, SimulatedDisk, SteppedThreads

_TOPICS: Final = ("a", "b", "c")
_KEYS: Final = (b"k", b"l")
_TABLES: Final = {"limits": True, "offsets": False}
"""The tables, and whether they are flushed for those who wait."""


_FILLED_IN_BYTES: Final = 12
"""How much of a batch the log fills in: the base offset and the leader epoch."""


class Violation(AssertionError):
    """The log has broken a promise."""


@define(eq=False)
class Entry:
    """
    A batch that was appended.

    @ivar identity: its bytes, without what the log fills in.
    @ivar producer: id and epoch of its producer, the first and last sequence number; L{None} without one.
    @ivar isCommitted: whether it could be read.
    @ivar isConfirmed: whether it was confirmed that the disk has it.
    @ivar isLost: whether its append was reported as failed.
    """

    offset: int
    count: int
    identity: bytes
    leaderEpoch: int
    producer: tuple[int, int, int, int] | None
    isCommitted: bool = False
    isConfirmed: bool = False
    isLost: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.count


@define(eq=False)
class PartitionModel:
    """
    @ivar entries: all batches that were not lost, oldest first, also those that retention has removed.
    @ivar failed: batches whose appends have failed in this life, those of a commit together.
    @ivar starts: where the partition has ever started.
    """

    entries: list[Entry] = field(factory=list)
    nextOffset: int = 0
    failed: list[list[Entry]] = field(factory=list)
    starts: set[int] = field(factory=lambda: {0})


@define
class TopicState:
    """@ivar topicId: L{None} if the topic was to be made, which has failed."""

    topicId: str | None
    partitionCount: int
    configs: dict[str, str]

    def couldBe(self, actual: TopicState) -> bool:
        return (self.partitionCount, self.configs) == (actual.partitionCount, actual.configs) and self.topicId in (
            None,
            actual.topicId,
        )


@define
class Facts:
    """What the documents say."""

    topics: dict[str, TopicState] = field(factory=dict)
    tables: dict[str, dict[bytes, bytes]] = field(factory=lambda: {name: {} for name in _TABLES})

    def copy(self) -> Facts:
        return Facts(dict(self.topics), {name: dict(values) for name, values in self.tables.items()})

    def couldBe(self, actual: Facts) -> bool:
        return (
            self.tables == actual.tables
            and self.topics.keys() == actual.topics.keys()
            and all(topic.couldBe(actual.topics[name]) for name, topic in self.topics.items())
        )


class PowerHistory:
    """
    Several lives of a log on one disk, decided by a seed.

    @ivar trace: what was done, for people.
    """

    def __init__(self, seed: int, root: str, ignores: Callable[[str, str], bool] | None = None) -> None:
        """
        @param root: a directory that is there; nothing is written to it.
        @param ignores: which flushes the disk leaves out; see L{SimulatedDisk}.
        """
        self.seed = seed
        self.trace: list[str] = []
        self._random = Random(seed)
        self._root = root
        self._disk = SimulatedDisk(root, Random(seed + 1))
        self._disk.ignores = ignores
        self._faults = Random(seed + 2)
        self._wallSeconds = 1_000_000.0
        self._tokens = 0
        self._leaderEpoch = 0
        self._producerIds: set[int] = set()
        self._producerEpochs: dict[int, int] = {}
        self._partitions: dict[tuple[str, int], PartitionModel] = {}
        # The facts after each commit of documents in this life, and whether somebody could wait for it.
        self._versions: list[tuple[Facts, bool]] = [(Facts(), True)]
        self._confirmed = 0
        self._pending = Facts()
        # The number of the next commit, and the versions that former ones have made.
        self._commitNumber = 0
        self._settled: dict[int, int] = {}
        self._isPendingUrgent = False
        # What commits that failed would have made of some version.
        self._failed: list[tuple[int, Facts]] = []
        # How many commits changed documents, and how many of those the model has seen.
        self._commitCount = self._seenCommits = 0
        # What has happened since the log was opened the last time.
        self._hasLostPower = self._hasFlushFailed = self._isClean = False
        self._segmentBytes = self._random.choice([300, 700, 2000])
        self._maxOpenFiles = self._random.choice([4, 10, 100])
        self._maxPendingBytes = self._random.choice([500, 1 << 20])
        self._checkpointBytes = self._random.choice([1, 200, 1000])
        self._journalBytes = self._random.choice([300, 1500, 1 << 20])
        self._maxIndexBytes = self._random.choice([1, 32 << 20])
        self._isFaulty = self._random.random() < 0.5
        self._isStepped = self._random.random() < 0.6

    def run(self) -> None:
        """
        Live, and compare.

        @raise Violation: if the log has broken a promise.
        """
        with self._patched(), capturedLogs() as events:
            try:
                for _ in range(self._random.randint(2, 5)):
                    self._open()
                    self._live()
                    self._end()
                self._open(mayFail=False)
                for event in events:
                    failure = event.get("log_failure")
                    if failure is not None and not failure.check(PowerLost, OSError, LogRefusal):
                        raise Violation(f"{event['log_format']}: {failure.getTraceback()}")
            except Exception as error:
                self._threads.abandon()
                text = "\n".join(self.trace[-60:])
                raise Violation(f"seed {self.seed}: {type(error).__name__}: {error}\n{text}") from error

    @contextmanager
    def _patched(self) -> Iterator[None]:
        settle = documents.Documents.settle

        def counted(changed: documents.Documents, *arguments: Any, **named: Any) -> None:
            self._commitCount += changed.hasChanges
            settle(changed, *arguments, **named)

        with (
            patch.object(documents.Documents, "settle", counted),
            patch.object(segmentlog, "DirectoryLock", FreeLock),
            patch.object(segmentlog, "_PRODUCER_IDS", 4),
            patch.object(segmentlog, "_KEPT_BYTES", 500),
            patch.object(segmentlog, "SegmentFiles", partial(SegmentFiles, maxIndexBytes=self._maxIndexBytes)),
            patch.object(partitionlog, "CHECKPOINT_BYTES", self._checkpointBytes),
            patch.object(documents, "MIN_JOURNAL_BYTES", self._journalBytes),
            patch.object(documents, "_SNAPSHOT_FRAME_BYTES", 200),
            patch.object(batchlookup, "INDEX_INTERVAL_BYTES", 250),
        ):
            yield

    def _note(self, text: str) -> None:
        self.trace.append(text)

    # Opening and comparing

    def _open(self, mayFail: bool = True) -> None:
        random = self._random
        while True:
            disk = self._disk
            self._threads = SteppedThreads()
            disk.pause = self._threads.pause
            self._clock = TurnClock()
            isFaulted = False
            if mayFail and random.random() < 0.3:
                disk.countdown = random.randint(1, 60)
            elif mayFail and self._isFaulty and random.random() < 0.1:
                isFaulted = True
                disk.fault = self._fault(0.05, "open", "write", "flush", "flushDirectory", "read", "truncate")
            self._note(f"open, countdown {disk.countdown}, faults {isFaulted}")
            try:
                self._log = SegmentLog(
                    self._root,
                    self._clock,
                    self._wall,
                    self._threads.deferToThread,
                    disk=disk,
                    maxPendingBytes=self._maxPendingBytes,
                    maxOpenFiles=self._maxOpenFiles,
                    segmentBytes=self._segmentBytes,
                    retentionSeconds=None,
                )
            except PowerLost:
                pass
            except LogFailed as error:
                if not isFaulted and not disk.isDead:
                    raise Violation(f"it does not open: {error}") from error
                self._note(f"opening failed: {error}")
            else:
                disk.fault = disk.countdown = None
                if not disk.isDead:
                    self._compare()
                    break
            self._isClean = False
            self._crash()

    def _wall(self) -> float:
        return self._wallSeconds + self._clock.seconds()

    def _fault(self, probability: float, *operations: str) -> Callable[[str, str], OSError | None]:
        def fault(operation: str, path: str) -> OSError | None:
            if operation not in operations or self._faults.random() >= probability:
                return None
            self._note(f"    {operation} fails: {os.path.relpath(path, self._root)}")
            if operation in ("flush", "flushDirectory"):
                self._hasFlushFailed = True
                return storageError(errno.EIO)
            return storageError(errno.ENOSPC if operation == "write" else errno.EIO)

        return fault

    def _facts(self) -> Facts:
        log = self._log
        topics = {
            name: TopicState(topic.topicId.hex, len(topic.partitions), dict(topic.configs))
            for name, topic in log.topics.items()
        }
        tables = {name: dict(log.table(name, isFlushed).items()) for name, isFlushed in _TABLES.items()}
        return Facts(topics, tables)

    def _compare(self) -> None:
        """The log has been opened: it must have what was promised."""
        log = self._log
        actual = self._facts()
        last = len(self._versions) - 1
        wasKilled = not self._hasLostPower and not self._hasFlushFailed
        first = last if wasKilled else self._confirmed
        candidates = [facts for facts, _ in self._versions[first:]]
        candidates += [facts for base, facts in self._failed if base >= first]
        if self._hasPending:
            candidates.append(self._pending)
        if not any(facts.couldBe(actual) for facts in candidates):
            raise Violation(f"the documents say {actual}, and could say {candidates}")
        kept: dict[tuple[str, int], PartitionModel] = {}
        isMissing = False
        for name, topic in log.topics.items():
            for partition in topic.partitions:
                key = (topic.topicId.hex, partition.index)
                model = kept[key] = self._partitions.get(key) or PartitionModel()
                try:
                    isMissing |= self._comparePartition(partition, model, wasKilled)
                except (Violation, LogRefusal) as violation:
                    raise Violation(f"{name}-{partition.index}: {violation}") from violation
        self._partitions = kept
        if log.leaderEpoch < self._leaderEpoch + (1 if isMissing else 0):
            raise Violation(f"the leader epoch is {log.leaderEpoch} after {self._leaderEpoch}, missing: {isMissing}")
        if self._isClean and log.leaderEpoch != self._leaderEpoch:
            raise Violation("the leader epoch has grown without need")
        self._leaderEpoch = log.leaderEpoch
        self._versions = [(actual, True)]
        self._confirmed = 0
        self._settled.clear()
        self._pending = actual.copy()
        self._isPendingUrgent = False
        self._failed.clear()
        self._seenCommits = self._commitCount
        self._hasLostPower = self._hasFlushFailed = self._isClean = False

    def _present(self, partition: Partition) -> list[tuple[int, int, int, bytes]]:
        """What can be read: first offset, number of offsets, leader epoch and identity of each batch."""
        found = []
        offset = partition.logStartOffset
        while offset < partition.highWatermark:
            batches = batchesIn(self._log.read(partition, offset, self._random.choice([1, 300, 1 << 20])))
            if not batches:
                raise Violation(f"nothing can be read at {offset}, and the end is {partition.highWatermark}")
            for stored in batches:
                header = readBatch(stored)
                found.append((header.baseOffset, header.lastOffsetDelta + 1, header.leaderEpoch, _identity(stored)))
                offset = header.lastOffset + 1
        return found

    def _comparePartition(self, partition: Partition, model: PartitionModel, wasKilled: bool) -> bool:
        """@return: whether records are missing that could be read before."""
        start, end = partition.logStartOffset, partition.highWatermark
        self._note(f"  {partition.topicName}-{partition.index}: {start} to {end}, expected to {model.nextOffset}")
        isMissing = False
        if partition.nextOffset != end:
            raise Violation(f"the next offset is {partition.nextOffset}, the high watermark {end}")
        entries = {entry.offset: entry for entry in model.entries}
        if start not in model.starts:
            # The name of an older segment may be missing while a later one is there.
            known = max(each for each in model.starts if each < start)
            hidden = [each for each in model.entries if known <= each.offset < start]
            begins = {model.nextOffset, *entries, *(group[0].offset for group in model.failed)}
            if start not in begins or wasKilled or any(each.isConfirmed for each in hidden):
                raise Violation(f"it starts at {start}, and did so at {sorted(model.starts)}")
            self._note("  a hole at the start")
            model.starts.add(start)
            isMissing = True
            model.entries = [each for each in model.entries if not known <= each.offset < start]
        matched: list[Entry] = []
        group: list[Entry] = []
        offset = start
        for baseOffset, count, leaderEpoch, identity in self._present(partition):
            if baseOffset != offset:
                raise Violation(f"offset {baseOffset} follows {offset}")
            offset += count
            entry = entries.get(baseOffset)
            if group:
                entry = group.pop(0)
                if entry.identity != identity:
                    raise Violation(f"offset {baseOffset} does not follow what failed before it")
            elif entry is None or entry.identity != identity:
                group = next((list(some) for some in model.failed if some[0].identity == identity), [])
                if not group or group[0].offset != baseOffset:
                    raise Violation(f"nothing like what is at offset {baseOffset} was appended there")
                entry = group.pop(0)
                # Nothing may follow but what has failed with it.
                group.append(Entry(-1, 0, b"", 0, None))
            if entry.leaderEpoch != leaderEpoch:
                raise Violation(f"offset {baseOffset} has leader epoch {leaderEpoch}, not {entry.leaderEpoch}")
            matched.append(entry)
        if offset != end:
            raise Violation(f"the last batch ends at {offset}, and the high watermark is {end}")
        found = set(matched)
        for entry in model.entries:
            isPromised = entry.isConfirmed or (wasKilled and entry.isCommitted)
            if isPromised and entry.end > end:
                raise Violation(f"offset {entry.offset} was confirmed, and the end is {end}")
            if entry.offset >= start and entry not in found:
                if isPromised:
                    raise Violation(f"offset {entry.offset} was confirmed, and is not there")
                isMissing |= entry.isCommitted
        for entry in matched:
            entry.isCommitted = True
            entry.isLost = False
        model.entries = [entry for entry in model.entries if entry.end <= start] + matched
        model.nextOffset = end
        model.failed.clear()
        self._compareEpochs(partition, matched)
        if self._random.random() < 0.7:
            self._compareProducers(partition, matched)
        return isMissing

    def _compareEpochs(self, partition: Partition, matched: list[Entry]) -> None:
        for leaderEpoch in range(self._log.leaderEpoch + 1):
            if any(entry.leaderEpoch <= leaderEpoch for entry in matched):
                newest = max(entry.leaderEpoch for entry in matched if entry.leaderEpoch <= leaderEpoch)
                later = [entry.offset for entry in matched if entry.leaderEpoch > leaderEpoch]
                expected = (newest, min(later, default=partition.highWatermark))
                found = self._log.endOfEpoch(partition, leaderEpoch)
                if found != expected:
                    raise Violation(f"epoch {leaderEpoch} ends at {found}, not {expected}")

    def _compareProducers(self, partition: Partition, matched: list[Entry]) -> None:
        """What is there is a duplicate."""
        lasts = {entry.producer[0]: entry for entry in matched if entry.producer}
        for entry in lasts.values():
            self._retry(partition, entry)

    def _retry(self, partition: Partition, entry: Entry, isUrgent: bool = False) -> None:
        buffer = bytearray(_whole(entry.identity))
        try:
            result = self._log.append(partition, buffer, readBatch(buffer), isUrgent=isUrgent)
        except (OutOfOrderSequence, InvalidProducerEpoch) as error:
            raise Violation(f"offset {entry.offset} is not known when it is sent again: {error}") from error
        if result != (entry.offset, True):
            raise Violation(f"offset {entry.offset} was sent again and appended at {result}")

    # Living

    def _live(self) -> None:
        random = self._random
        if random.random() < 0.4:
            self._disk.countdown = random.randint(1, 150)
        actions: list[tuple[Callable[[], None], int]] = [
            (self._append, 30),
            (self._turn, 12),
            (self._work, 16),
            (self._workAll, 4),
            (self._advance, 6),
            (self._createTopic, 4),
            (self._deleteTopic, 2),
            (self._configure, 3),
            (self._addPartitions, 1),
            (self._put, 8),
            (self._allocate, 3),
            (self._retain, 3),
            (self._sendAgain, 3),
            (self._read, 2),
            (self._calm, 1),
        ]
        if self._isFaulty:
            actions.append((self._breakOrMend, 4))
        chosen = random.choices(
            [action for action, _ in actions], [weight for _, weight in actions], k=random.randint(5, 60)
        )
        for action in chosen:
            self._note(action.__name__.removeprefix("_"))
            try:
                action()
                if not self._disk.isDead:
                    self._sync()
            except PowerLost:
                pass
            if self._disk.isDead or (self._hasFlushFailed and random.random() < 0.15):
                break

    def _sync(self) -> None:
        """Have the model follow what the log has committed or lost."""
        log = self._log
        if self._commitCount > self._seenCommits:
            self._seenCommits = self._commitCount
            if self._hasPending:
                self._settle()
            else:
                self._commitNumber += 1
        actual = self._facts()
        if self._hasPending and not self._pending.couldBe(actual):
            self._lose()
        if not self._pending.couldBe(actual):
            raise Violation(f"the documents say {actual}, not {self._pending}")
        for topic in log.topics.values():
            for partition in topic.partitions:
                model = self._model(partition)
                model.starts.add(partition.logStartOffset)
                if partition.nextOffset < model.nextOffset:
                    lost = [entry for entry in model.entries if entry.offset >= partition.nextOffset]
                    if any(entry.isCommitted for entry in lost):
                        raise Violation(f"{partition} has lost committed records while it was open")
                    del model.entries[-len(lost) :]
                    model.nextOffset = partition.nextOffset
                    self._fail(model, lost)
                if partition.nextOffset != model.nextOffset:
                    raise Violation(f"the next offset of {partition} is not {model.nextOffset}")
                for entry in reversed(model.entries):
                    if entry.isCommitted:
                        break
                    entry.isCommitted = entry.end <= partition.highWatermark

    @property
    def _hasPending(self) -> bool:
        return self._pending != self._versions[-1][0]

    def _settle(self) -> None:
        self._settled[self._commitNumber] = len(self._versions)
        self._commitNumber += 1
        self._versions.append((self._pending.copy(), self._isPendingUrgent))
        self._isPendingUrgent = False

    def _lose(self) -> None:
        self._commitNumber += 1
        self._failed.append((len(self._versions) - 1, self._pending))
        self._pending = self._versions[-1][0].copy()
        self._isPendingUrgent = False

    def _fail(self, model: PartitionModel, lost: list[Entry]) -> None:
        for entry in lost:
            entry.isLost = True
        model.failed.append(lost)

    def _model(self, partition: Partition) -> PartitionModel:
        topicId = self._log.topic(partition.topicName).topicId.hex
        return self._partitions.setdefault((topicId, partition.index), PartitionModel())

    def _partition(self) -> Partition | None:
        partitions = [each for topic in self._log.topics.values() for each in topic.partitions]
        return self._random.choice(partitions) if partitions else None

    def _append(self) -> None:
        random = self._random
        partition = self._partition()
        if partition is None:
            self._createTopic()
            partition = self._partition()
            if partition is None:
                return
        self._appendTo(partition, random.random() < 0.5, random.random() < 0.5)
        while random.random() < 0.3:
            partition = self._partition()
            assert partition is not None
            self._appendTo(partition, random.random() < 0.5, random.random() < 0.5)

    def _appendTo(self, partition: Partition, isUrgent: bool, isIdempotent: bool) -> None:
        random = self._random
        model = self._model(partition)
        count = random.choice([1, 1, 2, 5])
        producerId = producerEpoch = sequence = -1
        producer = None
        if isIdempotent and self._producerEpochs:
            producerId = random.choice(sorted(self._producerEpochs))
            if random.random() < 0.05:
                self._producerEpochs[producerId] += 1
            producerEpoch = self._producerEpochs[producerId]
            sequence = 0
            for entry in reversed(model.entries):
                if entry.producer is not None and entry.producer[0] == producerId:
                    sequence = entry.producer[3] + 1 if entry.producer[1] == producerEpoch else 0
                    break
            producer = (producerId, producerEpoch, sequence, sequence + count - 1)
        self._tokens += 1
        value = b"%d." % self._tokens + bytes(random.choice([0, 0, 60, 300, 700]))
        timestampMs = int(self._wall() * 1000)
        buffer = bytearray(
            encodeBatch(
                [Record(value=value, timestampMs=timestampMs) for _ in range(count)],
                producerId=producerId,
                producerEpoch=producerEpoch,
                baseSequence=sequence,
            )
        )
        log = self._log
        entry = Entry(model.nextOffset, count, _identity(buffer), log.leaderEpoch, producer)
        name = f"{partition.topicName}-{partition.index}"
        self._note(f"  {name} at {entry.offset}, {len(buffer)} bytes, urgent {isUrgent}, producer {producer}")
        model.entries.append(entry)
        model.nextOffset = entry.end
        try:
            result = log.append(partition, buffer, readBatch(buffer), isUrgent=isUrgent)
        except LogFailed as error:
            self._note(f"  {error}")
            if partition.nextOffset >= entry.end:
                raise Violation(f"{name} has taken what it has refused") from error
            if partition.nextOffset == entry.offset:
                # It may have been the only one to be written.
                model.entries.pop()
                model.nextOffset = entry.offset
                self._fail(model, [entry])
            self._sync()
            return
        except (OutOfOrderSequence, InvalidProducerEpoch) as error:
            raise Violation(f"{name} does not take what follows: {error}") from error
        if result != (entry.offset, False):
            raise Violation(f"{name} appended at {result}, not at {entry.offset}")
        self._sync()
        if isUrgent:
            log.whenFlushed(partial(self._flushed, self._disk, self._target, [entry]))
        else:
            log.whenCommitted(partial(self._committed, self._disk, entry))

    @property
    def _target(self) -> tuple[int, int]:
        """
        What is on the disk when what was done so far is: the last version of the documents, and the one that the commit
        with this number makes, unless that fails.
        """
        return len(self._versions) - 1, self._commitNumber if self._hasPending else -1

    def _committed(self, disk: SimulatedDisk, entry: Entry, error: Exception | None) -> None:
        if error is None and entry.isLost and not disk.isDead:
            raise Violation(f"offset {entry.offset} is lost and confirmed")
        if error is None and not disk.isDead:
            entry.isCommitted = True

    def _flushed(
        self, disk: SimulatedDisk, target: tuple[int, int], entries: list[Entry], error: Exception | None
    ) -> None:
        if disk.isDead or error is not None:
            return
        for entry in entries:
            self._committed(disk, entry, error)
            entry.isConfirmed = True
            self._note(f"    offset {entry.offset} is confirmed")
        if self._commitCount > self._seenCommits:
            self._sync()
        last = self._settled.get(target[1], target[0])
        urgent = [number for number, (_, isUrgent) in enumerate(self._versions[: last + 1]) if isUrgent]
        self._confirmed = max(self._confirmed, *urgent)
        self._note(f"    version {self._confirmed} of {len(self._versions) - 1} of the documents is confirmed")

    def _turn(self) -> None:
        self._clock.turn()

    def _work(self) -> None:
        """Let a thread go on."""
        jobs = self._threads.jobs
        if jobs:
            number = self._random.randrange(len(jobs))
            if self._isStepped and self._random.random() < 0.7:
                self._threads.step(number)
            else:
                self._threads.run(number)

    def _workAll(self) -> None:
        while self._threads.jobs and not self._disk.isDead:
            self._threads.run(self._random.randrange(len(self._threads.jobs)))

    def _advance(self) -> None:
        self._clock.advance(self._random.choice([0.3, 1.0, 1.0, 30.0]))

    def _calm(self) -> None:
        """After some intervals of quiet everything is on the disk."""
        if self._disk.fault is not None:
            return
        for _ in range(3):
            self._workAll()
            self._sync()
            self._clock.turn()
            self._sync()
            self._clock.advance(1.0)
            self._sync()
        self._workAll()
        self._sync()
        if not self._log.problems and not self._disk.isDead and not self._threads.jobs:
            self._confirmAll()

    def _confirmAll(self) -> None:
        self._confirmed = len(self._versions) - 1
        for model in self._partitions.values():
            for entry in model.entries:
                entry.isConfirmed |= entry.isCommitted

    def _changeTopics(self, name: str, change: TopicState | None, call: Callable[[], Any]) -> None:
        """Create, change or delete a topic."""
        log = self._log
        self._sync()
        changed = self._pending.copy()
        if change is None:
            del changed.topics[name]
        else:
            changed.topics[name] = change
        before = self._commitCount
        needed = 2 if self._hasPending else 1
        try:
            call()
        except LogFailed as error:
            self._note(f"  {error}")
            self._sync()
            self._failed.append((len(self._versions) - 1, changed))
            return
        except PowerLost:
            # The commit may be there.
            self._failed.append((len(self._versions) - 1, changed))
            raise
        if self._commitCount - before < needed:
            raise Violation(f"{name} was changed in {self._commitCount - before} commits, not {needed}")
        if self._hasPending:
            self._settle()
        if change is not None:
            changed.topics[name] = self._facts().topics[name]
            if not change.couldBe(changed.topics[name]):
                raise Violation(f"{name} is {changed.topics[name]}, not {change}")
        self._pending = changed
        self._isPendingUrgent = True
        self._settle()
        self._seenCommits = self._commitCount
        self._sync()
        if self._random.random() < 0.7:
            log.whenFlushed(partial(self._flushed, self._disk, self._target, []))

    def _topic(self) -> str | None:
        return self._random.choice(sorted(self._log.topics)) if self._log.topics else None

    def _createTopic(self) -> None:
        absent = [name for name in _TOPICS if name not in self._log.topics]
        if absent:
            name, count = self._random.choice(absent), self._random.choice([1, 1, 2])
            self._note(f"  {name} with {count} partitions")
            self._changeTopics(name, TopicState(None, count, {}), lambda: self._log.createTopic(name, count, {}))

    def _deleteTopic(self) -> None:
        name = self._topic()
        if name is not None:
            self._note(f"  {name}")
            self._changeTopics(name, None, lambda: self._log.deleteTopic(name))

    def _configure(self) -> None:
        name = self._topic()
        if name is not None:
            configs = self._random.choice(
                [
                    {},
                    {"segment.bytes": "400"},
                    {"segment.bytes": "1"},
                    {"retention.bytes": "600"},
                    {"retention.ms": "20000"},
                    {"segment.ms": "2000"},
                ]
            )
            self._setConfigs(name, configs)

    def _setConfigs(self, name: str, configs: dict[str, str]) -> None:
        self._note(f"  {name} {configs}")
        topic = self._log.topic(name)
        state = TopicState(topic.topicId.hex, len(topic.partitions), configs)
        self._changeTopics(name, state, lambda: self._log.setTopicConfigs(name, configs))

    def _addPartitions(self) -> None:
        name = self._topic()
        if name is not None and len(self._log.topic(name).partitions) < 4:
            topic = self._log.topic(name)
            count = len(topic.partitions) + 1
            self._note(f"  {name} to {count}")
            state = TopicState(topic.topicId.hex, count, dict(topic.configs))
            self._changeTopics(name, state, lambda: self._log.addPartitions(name, count))

    def _put(self) -> None:
        random = self._random
        self._sync()
        name, key = random.choice(sorted(_TABLES)), random.choice(_KEYS)
        table = self._log.table(name, _TABLES[name])
        pending = self._pending.copy()
        isDeleting = random.random() < 0.2
        self._tokens += 1
        value = b"%d" % self._tokens + bytes(random.choice([0, 40, 600]))
        if isDeleting:
            pending.tables[name].pop(key, None)
        else:
            pending.tables[name][key] = value
        self._note(f"  {name} {key!r} {'deleted' if isDeleting else self._tokens}")
        before, wasUrgent = self._pending, self._isPendingUrgent
        self._pending = pending
        self._isPendingUrgent = self._hasPending and (self._isPendingUrgent or (_TABLES[name] and pending != before))
        try:
            if isDeleting:
                table.delete(key)
            else:
                table.put(key, value)
        except LogFailed as error:
            self._note(f"  {error}")
            if self._facts() != pending:
                self._failed.append((len(self._versions) - 1, pending))
                self._pending = before
                self._isPendingUrgent = wasUrgent
            self._sync()
            return
        self._sync()
        if random.random() < 0.5:
            self._log.whenFlushed(partial(self._flushed, self._disk, self._target, []))

    def _allocate(self) -> None:
        for _ in range(self._random.choice([1, 1, 3])):
            try:
                producerId = self._log.allocateProducerId()
            except (NoProducerId, LogFailed):
                return
            if producerId in self._producerIds:
                raise Violation(f"the producer id {producerId} was given twice")
            self._producerIds.add(producerId)
            if len(self._producerEpochs) < 3:
                self._producerEpochs[producerId] = 0

    def _retain(self) -> None:
        """Have the sweep remove something, or all."""
        name = self._topic()
        if name is None:
            return
        self._setConfigs(name, self._random.choice([{"retention.bytes": "1"}, {"retention.ms": "1"}]))
        self._wallSeconds += 60.0
        self._clock.advance(30.0)
        if self._random.random() < 0.5:
            self._sync()
            self._clock.turn()

    def _sendAgain(self) -> None:
        """A client sends again what it has not heard of."""
        partition = self._partition()
        if partition is None:
            return
        model = self._model(partition)
        lasts = {entry.producer[0]: entry for entry in model.entries if entry.producer}
        candidates = [entry for entry in lasts.values() if entry.offset >= partition.logStartOffset]
        if candidates:
            entry = self._random.choice(candidates)
            try:
                self._retry(partition, entry, isUrgent=True)
            except LogFailed:
                return
            self._note(f"  {partition.topicName}-{partition.index} at {entry.offset}")
            self._log.whenFlushed(partial(self._flushed, self._disk, self._target, [entry]))

    def _read(self) -> None:
        partition = self._partition()
        if partition is None:
            return
        model = self._model(partition)
        entries = [
            entry
            for entry in model.entries
            if entry.offset >= partition.logStartOffset and entry.end <= partition.highWatermark
        ]
        expected = [(entry.offset, entry.count, entry.leaderEpoch, entry.identity) for entry in entries]
        sizeBytes = sum(len(entry.identity) + _FILLED_IN_BYTES for entry in entries)
        try:
            found = self._present(partition)
            available = self._log.bytesAvailable(partition, partition.logStartOffset)
            self._compareEpochs(partition, entries)
        except LogFailed:
            if self._disk.fault is None:
                raise
            return
        if found != expected:
            raise Violation(f"{partition} has {found}, not {expected}")
        if (partition.sizeBytes, available) != (sizeBytes, sizeBytes):
            raise Violation(f"{partition} has {partition.sizeBytes} bytes and {available} to be read, not {sizeBytes}")

    def _breakOrMend(self) -> None:
        disk, random = self._disk, self._random
        if disk.fault is not None:
            disk.fault = None
            return
        operations = random.choice(
            [
                ["write"],
                ["write"],
                ["write", "truncate"],
                ["flush"],
                ["flush", "flushDirectory"],
                ["flushDirectory"],
                ["open", "read", "makeDirectory"],
                ["rename", "remove", "removeDirectory", "list"],
            ]
        )
        self._note(f"  {operations}")
        disk.fault = self._fault(random.choice([0.2, 1.0]), *operations)

    # Dying

    def _end(self) -> None:
        if not self._disk.isDead and self._random.random() < 0.35:
            self._close()
        self._crash()

    def _close(self) -> None:
        random = self._random
        disk = self._disk
        if disk.fault is not None and random.random() < 0.5:
            disk.fault = None
        if random.random() < 0.3:
            disk.countdown = random.randint(1, 30)
        self._note(f"close, countdown {disk.countdown}")
        outcomes: list[Exception | None] = []
        lost = self._log.problems
        self._log.whenCommitted(outcomes.append)
        over: list[object] = []
        try:
            closing: Deferred[None] = self._log.close()
            closing.addCallback(over.append)
            if disk.isDead:
                return
            self._sync()
            if outcomes == []:
                raise Violation("a callback was not called")
            while not over and self._threads.jobs and not disk.isDead:
                self._work()
        except PowerLost:
            return
        if disk.isDead:
            return
        if not over:
            raise Violation("the log is never closed")
        if self._threads.jobs:
            raise Violation("the log is closed, and threads still work for it")
        if disk.fault is None and not lost and not self._log.problems:
            self._confirmAll()
            self._isClean = True

    def _crash(self) -> None:
        disk = self._disk
        if hasattr(self, "_log"):
            # A sweep may have been going on.
            for topic in self._log.topics.values():
                for partition in topic.partitions:
                    self._model(partition).starts.add(partition.logStartOffset)
        isKill = self._random.random() < 0.4
        self._note("kill" if isKill else "loss of power")
        self._disk = disk.kill() if isKill else disk.crash(self._random)
        self._threads.abandon()
        if not isKill:
            self._hasLostPower = True


def _identity(stored: bytes | bytearray) -> bytes:
    """A batch without its base offset and leader epoch."""
    return bytes(stored[8:12]) + bytes(stored[16:])


def _whole(identity: bytes) -> bytes:
    """The batch of an identity, as a client sends it."""
    return bytes(8) + identity[:4] + b"\xff\xff\xff\xff" + identity[4:]
