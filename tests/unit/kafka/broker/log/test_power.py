"""
Whether L{admission.kafka.broker.log.segmentlog} survives a loss of power, on a disk that keeps no
more than it must.
"""

import errno
import fnmatch
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log import checkpoint, recovery, segmentlog
from admission.kafka.broker.log.batchlookup import BatchPlace, Damaged, headers
from admission.kafka.broker.log.interface import AppendResult, Partition
from admission.kafka.broker.log.partitionlog import PartitionLog
from admission.kafka.broker.log.retention import Sweep
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.log.topics import partitionsOf
from admission.kafka.storage import flushing
from admission.kafka.storage.disk import File
from admission.kafka.storage.flushing import Round
from admission.kafka.storage.itable import CommitCallback
from tests.kit.logfixture import TurnClock, batchesIn, makeBatch, storageError
from tests.kit.longform import longForm
from tests.kit.simulateddisk import FLUSHED, NEWEST, FreeLock, SimulatedDisk, SimulatedFile
from tests.unit.kafka.broker.log.powerhistory import PowerHistory, Violation

PRODUCED: dict[str, Any] = {"producerId": 7, "producerEpoch": 0, "baseSequence": 0}
"""The header of the first batch of a producer."""

HISTORIES = 150
LONG_HISTORIES = 10_000

MAX_SEEDS = 300
LONG_MAX_SEEDS = 5000
"""In how many histories a fault that was seeded must be found."""

Ignores = Callable[[str, str], bool]
Sabotage = AbstractContextManager[Any]


class HistoriesTestCase(SynchronousTestCase):
    """Lives through histories."""

    def setUp(self) -> None:
        """Have a directory, to which nothing is written."""
        self.root = self.mktemp()
        os.makedirs(self.root)

    def tearDown(self) -> None:
        """Forget what the logs have reported: they die in the middle of everything."""
        gc.collect()
        self.flushLoggedErrors()


class HistoryTests(HistoriesTestCase):
    """The log keeps its promises."""

    def test_histories(self) -> None:
        """
        Whatever happens until power is lost or the process is killed, and whatever a disk makes of it: the log opens,
        has what it has confirmed, in order and once, and has invented nothing.
        """
        for seed in range(HISTORIES):
            PowerHistory(seed, self.root).run()

    @longForm
    def test_manyHistories(self) -> None:
        """The same holds for very many histories."""
        for seed in range(HISTORIES, LONG_HISTORIES):
            PowerHistory(seed, self.root).run()


class SabotageTests(HistoriesTestCase):
    """The histories find faults that are seeded on purpose."""

    def assertFound(
        self, sabotage: Callable[[], Sabotage] = nullcontext, ignores: Ignores | None = None, maxSeeds: int = MAX_SEEDS
    ) -> None:
        """
        Some history fails.

        @param sabotage: makes the fault while it is entered.
        @param ignores: which flushes the disk leaves out.
        """
        for seed in range(maxSeeds):
            with sabotage():
                try:
                    PowerHistory(seed, self.root, ignores).run()
                except Violation:
                    return
        self.fail(f"{maxSeeds} histories did not find it")

    def test_notFlushed(self) -> None:
        """
        A round leaves out the segments, the documents, the directories with new segments or the one with new
        partitions; nobody flushes the directory of the documents; a snapshot gets its name before its contents are on
        the disk.
        """
        for operation, pattern in (
            ("flush", "*.log"),
            ("flush", "*.journal"),
            ("flushDirectory", "*/partitions/*"),
            ("flushDirectory", "*/partitions"),
            ("flushDirectory", "*/documents"),
            ("flush", "*.snapshot.tmp"),
        ):
            self.assertFound(ignores=ignoring(operation, pattern))

    def test_checkpointNotVerified(self) -> None:
        """A checkpoint is believed without its checksum."""
        self.assertFound(partial(patch.object, checkpoint, "crc32c", lambda *_: 1))

    def test_checkpointBeforeFlush(self) -> None:
        """A checkpoint is written before the flush of what it is about."""
        begin = SegmentLog._beginFlush

        def checkpointFirst(log: SegmentLog, isEverything: bool) -> Round:
            round = begin(log, isEverything)
            _, checkpoints = round.succeeded.args  # type: ignore[attr-defined]
            try:
                log._writeAll(checkpoints)
            except OSError:
                pass
            return round

        self.assertFound(partial(patch.object, SegmentLog, "_beginFlush", checkpointFirst))

    def test_tornBatchesBelieved(self) -> None:
        """A start does not look at the checksums of batches."""

        def believed(file: File, begin: int, end: int, nextOffset: int) -> Iterator[BatchPlace]:
            try:
                yield from headers(file, begin, end)
            except Damaged:
                pass

        self.assertFound(partial(patch.object, recovery, "wholeBatches", believed))

    def test_confirmedBeforeFlush(self) -> None:
        """What is written is confirmed."""

        def confirm(log: SegmentLog, callback: CommitCallback, error: Exception | None) -> None:
            callback(error)

        self.assertFound(partial(patch.object, SegmentLog, "_awaitFlush", confirm))

    def test_segmentsRemovedBeforeStart(self) -> None:
        """Segments are removed before it is on the disk where their partition starts."""

        def trim(sweep: Sweep, partition: PartitionLog) -> None:
            removed = partition.trim(sweep._files, int(sweep._wallSeconds() * 1000))
            if removed:
                sweep._removeSegments(partition, removed, None)
                sweep._swept.commitStart(partition)

        self.assertFound(partial(patch.object, Sweep, "_trim", trim))

    def test_flushRepeated(self) -> None:
        """A flush that has failed is tried again, and believed."""

        def insist(flushes: Sequence[Callable[[], object]]) -> None:
            for flush in flushes:
                try:
                    flush()
                except OSError:
                    flush()

        self.assertFound(partial(patch.object, flushing, "callAll", insist))

    @longForm
    def test_topicRemovedBeforeDocument(self) -> None:
        """The records of a deleted topic are removed before it is on the disk that it is deleted."""
        deleteTopic = SegmentLog.deleteTopic

        def deleteNow(log: SegmentLog, name: str) -> None:
            partitions = partitionsOf(log._topics.get(name))
            deleteTopic(log, name)
            log._removePartitions(partitions, None)

        self.assertFound(partial(patch.object, SegmentLog, "deleteTopic", deleteNow), maxSeeds=LONG_MAX_SEEDS)

    @longForm
    def test_producerIdsBeforeFlush(self) -> None:
        """Producer ids are given before it is on the disk that they are reserved."""
        reserve = SegmentLog._reserveProducerIds

        def reserveNow(log: SegmentLog) -> None:
            reserve(log)
            log._endProducerId += segmentlog._PRODUCER_IDS

        self.assertFound(partial(patch.object, SegmentLog, "_reserveProducerIds", reserveNow), maxSeeds=LONG_MAX_SEEDS)

    @longForm
    def test_pageCacheBelieved(self) -> None:
        """A start after a failed flush believes the page cache."""

        def believe(file: SimulatedFile) -> None:
            file._check("distrust")
            file._inode.flush()

        self.assertFound(partial(patch.object, SimulatedFile, "distrust", believe), maxSeeds=LONG_MAX_SEEDS)

    @longForm
    def test_removedSegmentsNotFlushed(self) -> None:
        """A round leaves out segments that retention has taken out, before it is on the disk that it has."""
        trim = PartitionLog.trim

        def forget(partition: PartitionLog, *arguments: Any) -> Any:
            removed = trim(partition, *arguments)
            for segment in removed:
                partition._dirty.pop(segment, None)
            return removed

        self.assertFound(partial(patch.object, PartitionLog, "trim", forget), maxSeeds=LONG_MAX_SEEDS)


def ignoring(operation: str, pattern: str) -> Ignores:
    """Leave out an operation on paths of a pattern."""
    return lambda each, path: each == operation and fnmatch.fnmatch(path, pattern)


class LossTests(SynchronousTestCase):
    """L{SegmentLog} after single misfortunes."""

    def setUp(self) -> None:
        self.patch(segmentlog, "DirectoryLock", FreeLock)
        self.root = self.mktemp()
        os.makedirs(self.root)
        self.disk = SimulatedDisk(self.root, Random(0))
        self.openLog()

    def openLog(self, **limits: Any) -> None:
        """Open the log as it is on the disk."""
        self.clock = TurnClock()
        arguments = {"flushIntervalSeconds": 1000.0, "retentionSeconds": None, **limits}
        self.log = SegmentLog(
            self.root, self.clock, lambda: 1e6 + self.clock.seconds(), maybeDeferred, disk=self.disk, **arguments
        )

    def losePower(self, chosen: Callable[[str, bool], int] = lambda path, isName: FLUSHED, **limits: Any) -> None:
        """Lose power, and open what is left."""
        self.disk = self.disk.losePower(chosen)
        self.openLog(**limits)

    def kill(self, **limits: Any) -> None:
        """Kill the process, and open the log again."""
        self.disk = self.disk.kill()
        self.openLog(**limits)

    def reopen(self, **limits: Any) -> None:
        """Close the log and open it again."""
        self.successResultOf(self.log.close())
        self.kill(**limits)

    def partition(self, topicName: str = "events", configs: Mapping[str, str] = MappingProxyType({})) -> Partition:
        """The only partition of a topic, which is made if need be."""
        if topicName not in self.log.topics:
            self.log.createTopic(topicName, 1, configs)
        return self.log.topic(topicName).partitions[0]

    def append(self, topicName: str = "events", isUrgent: bool = False, **header: int) -> AppendResult:
        """Append a batch of one record."""
        buffer, batch = makeBatch(0, **header)
        return self.log.append(self.partition(topicName), buffer, batch, isUrgent=isUrgent)

    def confirm(self, topicName: str = "events", **header: int) -> AppendResult:
        """Append a batch, and have it confirmed."""
        result = self.append(topicName, isUrgent=True, **header)
        verdicts: list[Exception | None] = []
        self.log.whenFlushed(verdicts.append)
        self.clock.turn()
        self.assertEqual(verdicts, [None])
        return result

    def offsets(self, topicName: str = "events") -> list[int]:
        """The first offsets of all batches."""
        partition = self.partition(topicName)
        found: list[int] = []
        offset = partition.logStartOffset
        while offset < partition.highWatermark:
            batches = batchesIn(self.log.read(partition, offset, 1 << 20))
            found += [int.from_bytes(batch[:8], "big") for batch in batches]
            offset = found[-1] + 1
        return found

    def failDisk(self, operation: str, pattern: str, code: int) -> None:
        """Have the disk fail from now on."""
        self.disk.fault = lambda each, path: (
            storageError(code) if each == operation and fnmatch.fnmatch(path, pattern) else None
        )

    def test_sentAgainAfterKill(self) -> None:
        """
        A batch that was written, but not flushed when the process was killed, is on the disk with its name when it is
        confirmed as a duplicate.
        """
        self.append(**PRODUCED)
        self.clock.turn()
        self.kill()
        self.assertTrue(self.confirm(**PRODUCED).duplicate)
        self.losePower()
        self.assertEqual(self.offsets(), [0])

    def test_removedInAnotherOrder(self) -> None:
        """
        Where all records were removed, and only the removal of the last segment has reached the disk, what is
        appended next is there at the next start, too.
        """
        self.partition(configs={"segment.bytes": "1"})
        for _ in range(3):
            self.confirm(producerId=7, producerEpoch=0, baseSequence=self.partition().nextOffset)
        self.log.setTopicConfigs("events", {"retention.ms": "1"})
        self.clock.advance(30.0)
        self.clock.turn()
        self.clock.turn()
        self.assertEqual(self.partition().logStartOffset, 3)
        self.losePower(lambda path, isName: NEWEST if path.endswith("2.log") else FLUSHED)
        self.log.setTopicConfigs("events", {})
        self.confirm(producerId=7, producerEpoch=0, baseSequence=3)
        self.losePower()
        self.assertEqual(self.offsets(), [3])

    def test_removedBeforeFlush(self) -> None:
        """Where the new start could not be stored, what retention has taken out is flushed with what is behind it."""
        self.partition(configs={"segment.bytes": "1"})
        self.append()
        self.clock.turn()
        self.append()
        self.clock.turn()
        self.log.setTopicConfigs("events", {"segment.bytes": "1", "retention.bytes": "1"})
        self.failDisk("write", "*.journal", errno.ENOSPC)
        self.clock.advance(30.0)
        self.clock.turn()
        self.clock.turn()
        self.assertEqual(self.partition().logStartOffset, 1)
        self.disk.fault = None
        self.confirm()
        self.losePower()
        self.assertEqual(self.offsets(), [0, 1, 2])

    def test_failedRoll(self) -> None:
        """A segment that could not be begun does not stand between others later."""
        self.confirm()
        self.log.setTopicConfigs("events", {"segment.bytes": "1"})
        self.failDisk("truncate", "*1.log", errno.EIO)
        self.append()
        self.clock.turn()
        self.disk.fault = None
        for configs in ({}, {"segment.bytes": "1"}):
            self.log.setTopicConfigs("events", configs)
            self.confirm()
        self.losePower()
        self.assertEqual(self.offsets(), [0, 1, 2])
        self.reopen()
        self.assertEqual(self.offsets(), [0, 1, 2])

    def test_failedAppendComesBack(self) -> None:
        """
        What was cut off before the process was killed, or the log closed, does not come back when there are segments
        behind it.
        """
        for isClosed in (False, True):
            self.setUp()
            self.append()
            self.reopen()
            self.failDisk("write", "*.log", errno.ENOSPC)
            self.disk._random.seed(1)
            self.append(valueBytes=400)
            self.clock.turn()
            self.disk.fault = None
            self.reopen() if isClosed else self.kill()
            self.log.setTopicConfigs("events", {"segment.bytes": "1"})
            self.confirm()
            self.losePower(lambda path, isName: 1)
            self.assertEqual(self.offsets(), [0, 1])

    def test_journalCut(self) -> None:
        """What is cut off a journal is gone from the disk before something is written in its place."""
        path = f"{self.root}/documents/{0:020d}.journal"
        file = self.disk.open(path)
        file.write([b"no frame"], file.size())
        self.disk = self.disk.kill()
        operations: list[str] = []

        def listen(operation: str, path: str) -> None:
            if "documents" in path and not path.endswith(".cut"):
                operations.append(operation)

        self.disk.fault = listen
        self.openLog()
        at = operations.index("truncate")
        self.assertEqual(operations[at : at + 4], ["truncate", "flush", "flushDirectory", "write"])
