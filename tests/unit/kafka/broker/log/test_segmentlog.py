"""Tests for L{admission.kafka.broker.log.segmentlog}."""

import errno
import gc
import json
import os
import shutil
import struct
from collections.abc import Sequence

from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs, formatEvent
from zope.interface.verify import verifyObject

from admission.kafka.broker.log import segmentlog
from admission.kafka.broker.log.interface import ILog, NoProducerId, OutOfOrderSequence, Partition
from admission.kafka.broker.log.recovery import PartitionRecovery, Recovered
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.log.topics import partitionsOf
from admission.kafka.storage.disk import LocalFile
from admission.kafka.storage.itable import LogClosed, LogFailed, LogInUse
from tests.kit.logfixture import LogTestCase, Threads, makeBatch, storageError


class AppendTests(LogTestCase):
    """L{SegmentLog.append} and what follows from it."""

    def test_interface(self) -> None:
        """The log fulfils its contract."""
        verifyObject(ILog, self.log)

    def test_bytes(self) -> None:
        """Apart from these two fields a batch is stored as it came, and its buffer is free again at once."""
        events = self.partition()
        buffer, batch = makeBatch(1, 2, valueBytes=5000)
        sent = bytes(buffer)
        self.log.append(events, memoryview(buffer), batch)
        buffer[:] = bytes(len(buffer))
        self.clock.turn()
        (stored,) = self.read(events, 0, 1)
        self.assertEqual((stored[8:12], stored[16:]), (sent[8:12], sent[16:]))

    def test_highWatermark(self) -> None:
        """The high watermark advances with the commit, not with the append."""
        events = self.partition()
        self.append(events, 1, 2)
        self.assertEqual((events.highWatermark, events.nextOffset, events.sizeBytes), (0, 2, 0))
        self.clock.turn()
        self.assertEqual((events.highWatermark, events.nextOffset), (2, 2))

    def test_listeners(self) -> None:
        """Listeners hear after each commit of the partitions that grew, each once, whatever other listeners raise."""
        first, second, _ = self.log.createTopic("events", 3, {}).partitions
        told: list[tuple[Sequence[Partition], int]] = []

        def explode(partitions: Sequence[Partition]) -> None:
            raise ZeroDivisionError

        self.log.subscribe(explode)
        self.log.subscribe(lambda partitions: told.append((partitions, first.highWatermark)))
        for partition in (first, second, first):
            self.append(partition)
        self.assertEqual(told, [])
        self.clock.turn()
        self.assertEqual(told, [([first, second], 2)])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.clock.turn()
        self.log.createTopic("other", 1, {})
        self.clock.turn()
        self.assertEqual(len(told), 1)

    def test_listenerAppends(self) -> None:
        """A listener may append; it is told again in the next turn."""
        events = self.partition()
        told: list[int] = []

        def listen(partitions: Sequence[Partition]) -> None:
            told.append(events.highWatermark)
            if events.highWatermark < 3:
                self.append(events)

        self.log.subscribe(listen)
        self.append(events)
        self.clock.turn()
        self.assertEqual(told, [1])
        self.clock.turn()
        self.clock.turn()
        self.assertEqual(told, [1, 2, 3])


class FailureTests(LogTestCase):
    """When the storage fails, it is as if nothing had been appended."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.partition()
        self.told: list[Exception | None] = []
        self.append(self.events, 5, producerId=1, producerEpoch=0, baseSequence=0)
        self.append(self.events, 3)
        self.clock.turn()
        self.before = self.state()

    def state(self) -> tuple[list[object], object, list[bytes]]:
        """Everything in memory that appends change."""
        events = self.events
        names = ("logStartOffset", "highWatermark", "nextOffset", "sizeBytes", "deleted")
        return [getattr(events, name) for name in names], dict(self.log._producers._states), self.read(events, 0)

    def appendSome(self) -> None:
        """Append for the producer that is known, for a new one, and for none."""
        self.append(self.events, 100, producerId=1, producerEpoch=0, baseSequence=1)
        self.append(self.events, 200, 300, producerId=2, producerEpoch=0, baseSequence=0)
        self.append(self.events, 400)
        self.log.whenCommitted(self.told.append)

    def checkRecovery(self) -> None:
        """Everything is as before, and the same appends succeed now."""
        self.assertEqual(self.state(), self.before)
        self.assertIsInstance(self.told.pop(), LogFailed)
        self.appendSome()
        self.clock.turn()
        self.assertEqual((self.told, self.events.highWatermark), ([None], 6))
        self.reopenLog()
        events = self.partition()
        self.assertEqual(events.highWatermark, 6)
        repeated = self.append(events, 200, 300, producerId=2, producerEpoch=0, baseSequence=0)
        self.assertEqual(repeated, (3, True))

    def test_append(self) -> None:
        """
        A batch that is too large to be kept is written at once; if it does not fit, it takes those before it along, and
        nothing is taken for the rest of the turn.
        """
        self.appendSome()
        self.failCommits(storageError(errno.ENOSPC))
        failed = self.assertRaises(LogFailed, self.append, self.events, 1, valueBytes=100_000)
        self.assertIn("make room", str(failed))
        self.failCommits(None)
        self.assertRaises(LogFailed, self.append, self.events)
        self.clock.turn()
        self.checkRecovery()

    def test_revertFails(self) -> None:
        """
        If the disk does not even cut off what it has taken, nothing is taken any more until a restart, which takes what
        is whole of it.
        """
        self.appendSome()
        self.failCommits(storageError(errno.ENOSPC))

        def fail(*_: object) -> None:
            raise storageError(errno.EIO)

        patch = self.patch(LocalFile, "truncate", fail)
        self.clock.turn()
        patch.restore()
        self.failCommits(None)
        self.assertIsInstance(self.told.pop(), LogFailed)
        for _ in range(2):
            self.assertIn("then restart", str(self.assertRaises(LogFailed, self.append, self.events)))
            self.assertRaises(LogFailed, self.log.createTopic, "other", 1, {})
            self.clock.turn()
        self.assertEqual(self.state(), self.before)
        with capturedLogs():
            self.reopenLog()
        self.events = self.partition()
        self.assertEqual(self.events.highWatermark, 5)
        self.assertEqual(self.read(self.events, 0)[:2], self.before[2])
        repeated = self.append(self.events, 200, 300, producerId=2, producerEpoch=0, baseSequence=0)
        self.assertEqual(repeated, (3, True))

    def test_nobodyHears(self) -> None:
        """Listeners do not hear of what was lost."""
        heard: list[Sequence[Partition]] = []
        self.log.subscribe(heard.append)
        self.appendSome()
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.assertEqual(heard, [])


class OpenFilesTests(LogTestCase):
    """C{maxOpenFiles} bounds the files that are open."""

    limits = {**LogTestCase.limits, "maxOpenFiles": 4}

    def test_tooManyUnflushed(self) -> None:
        """
        While too many files wait to be flushed, batches for others are refused, and take along nothing else of their
        turn; a flush of everything begins, after which there is room.
        """
        partitions = self.log.createTopic("events", 8, {}).partitions
        self.clock.advance(1.0)
        accepted = 0
        for partition in partitions:
            try:
                self.append(partition, holder=f"writer {partition.index}")
                accepted += 1
            except LogFailed as refused:
                self.assertIn("log.max.open.files", str(refused))
        self.assertEqual(accepted, 4)
        self.clock.turn()
        self.assertEqual([partition.highWatermark for partition in partitions], [1] * 4 + [0] * 4)
        self.clock.turn()
        for partition in partitions[4:]:
            self.append(partition, holder=f"writer {partition.index}")
        self.clock.turn()
        self.assertEqual([partition.highWatermark for partition in partitions], [1] * 8)

    def test_whenRoom(self) -> None:
        """
        Holders that would write to more files than they may are told after a flush, which begins at once, one in each
        turn; those that do not want it any more are not.
        """
        partitions = self.log.createTopic("events", 8, {}).partitions
        self.clock.advance(1.0)
        for partition in partitions[:2]:
            self.append(partition, holder="greedy")
        self.clock.turn()
        told: list[int] = []
        waiting = [self.log.whenRoom("greedy", 1, 60.0) for _ in range(3)]
        for number, each in enumerate(waiting):
            assert each is not None
            each.addCallbacks(lambda _, number: told.append(number), lambda _: None, callbackArgs=(number,))
        assert waiting[1] is not None
        waiting[1].cancel()
        seen = []
        for _ in range(8):
            self.clock.turn()
            seen.append(len(told))
        self.assertEqual(told, [0, 2])
        self.assertIn(1, seen)
        self.assertIsNone(self.log.whenRoom("greedy", 1, 60.0))

    def test_whenRoomOnClosing(self) -> None:
        """When the log is closed nobody waits for room any more."""
        partitions = self.log.createTopic("events", 8, {}).partitions
        self.clock.advance(1.0)
        for partition in partitions[:2]:
            self.append(partition, holder="greedy")
        self.clock.turn()
        waiting = self.log.whenRoom("greedy", 1, 60.0)
        assert waiting is not None
        self.log.close()
        self.clock.turn()
        self.successResultOf(waiting)
        self.assertIsNone(self.log.whenRoom("greedy", 1, 60.0))

    def test_rounds(self) -> None:
        """Of very many partitions that nobody waits for some are flushed in a round, so that others wait for less."""
        self.patch(segmentlog, "_UNAWAITED_AT_ONCE", 1)
        partitions = partitionsOf(self.log.createTopic("events", 2, {}))
        self.clock.advance(1.0)
        for partition in partitions:
            self.append(partition)
        left = []
        while not left or left[-1]:
            self.clock.turn()
            left.append(sum(each.isDirty for each in partitions))
        self.assertIn(1, left)

    def test_writtenDuringRounds(self) -> None:
        """What is written between the rounds of a flush of everything has its own interval, and is flushed after it."""
        self.reopenLog(maxOpenFiles=1000)
        self.patch(segmentlog, "_UNAWAITED_AT_ONCE", 1)
        partitions = partitionsOf(self.log.createTopic("events", 3, {}))
        self.clock.advance(1.0)
        for partition in partitions[:2]:
            self.append(partition)
        self.clock.turn()
        self.clock.advance(1.0)
        self.assertEqual([each.isDirty for each in partitions[:2]], [False, True])
        self.append(partitions[0])
        for _ in range(5):
            self.clock.turn()
        self.assertEqual([each.isDirty for each in partitions[:2]], [True, False])
        self.clock.advance(1.0)
        self.assertEqual([each.isDirty for each in partitions[:2]], [False, False])

    def test_filling(self) -> None:
        """When a fourth of them has unflushed bytes, a flush of everything begins, before the interval is over."""
        partitions = self.log.createTopic("events", 3, {}).partitions
        self.clock.advance(1.0)
        self.append(partitions[0])
        self.clock.turn()
        self.clock.turn()
        self.assertTrue(partitionsOf(self.log.topic("events"))[0].isDirty)
        self.append(partitions[1])
        self.clock.turn()
        self.clock.turn()
        self.assertFalse(any(each.isDirty for each in partitionsOf(self.log.topic("events"))))


class IdempotenceTests(LogTestCase):
    """Batches of idempotent producers are appended once."""

    def send(self, baseSequence: int, *, epoch: int = 0, count: int = 1) -> tuple[int, bool]:
        """Append a batch of producer 7."""
        return self.append(self.partition(), *[0] * count, producerId=7, producerEpoch=epoch, baseSequence=baseSequence)

    def test_firstNotKept(self) -> None:
        """
        As long as the first batch of a producer is missing, those behind it, which were sent before it was known, are
        refused, or it would be one of them that the log begins with.
        """
        self.append(self.partition())
        self.clock.turn()
        self.failCommits(storageError(errno.ENOSPC))
        self.send(0, count=2)
        self.send(2)
        self.assertRaises(LogFailed, self.append, self.partition(), valueBytes=1 << 20)
        self.failCommits(None)
        self.clock.turn()
        for sequence in (2, 3):
            self.assertRaises(OutOfOrderSequence, self.send, sequence)
        self.assertEqual([self.send(0, count=2), self.send(2), self.send(3)], [(1, False), (3, False), (4, False)])
        self.clock.turn()
        self.assertEqual(self.send(3), (4, True))

    def test_firstRefused(self) -> None:
        """
        So it is if the log did not take it at all, because of what somebody else had appended; a
        new epoch begins anew.
        """
        self.append(self.partition())
        self.clock.turn()
        self.failCommits(storageError(errno.ENOSPC))
        self.assertRaises(LogFailed, self.append, self.partition(), valueBytes=1 << 20)
        self.assertRaises(LogFailed, self.send, 0)
        self.failCommits(None)
        self.clock.turn()
        self.assertRaises(OutOfOrderSequence, self.send, 1)
        self.assertEqual(self.send(5, epoch=1), (1, False))
        self.log.deleteTopic("events")
        self.clock.turn()
        self.assertEqual(self.log.producerStateBytes, 0)

    def test_failedRoll(self) -> None:
        """A clean end remembers all of a producer, also behind a roll that failed, and what retention has removed."""
        self.log.createTopic("events", 1, {"segment.bytes": "200"})
        self.send(0)
        self.clock.advance(1.0)
        for sequence in (0, 1):
            self.assertEqual(self.send(sequence)[1], not sequence)
            self.clock.advance(1.0)
            self.failCommits(storageError(errno.ENOSPC))
            self.assertRaises(LogFailed, self.log.append, self.partition(), *makeBatch(0, valueBytes=100_000))
            self.failCommits(None)
            self.clock.advance(1.0)
            if not sequence:
                self.log.setTopicConfigs("events", {"segment.bytes": "200", "retention.bytes": "0"})
                self.sweep()
                self.assertEqual(self.partition().logStartOffset, 1)
                self.log.setTopicConfigs("events", {"segment.bytes": "200"})
        self.reopenLog()
        self.assertEqual((self.send(0), self.send(1)), ((0, True), (1, True)))

    def test_duplicateOfPending(self) -> None:
        """A duplicate of a batch that is not committed yet waits for that commit, and is told if it fails."""
        told: list[Exception | None] = []
        self.send(0)
        self.assertEqual(self.send(0), (0, True))
        self.log.whenCommitted(told.append)
        self.assertEqual(told, [])
        self.clock.turn()
        self.assertEqual(told, [None])
        self.assertEqual(self.send(0), (0, True))
        self.log.whenCommitted(told.append)
        self.assertEqual(told, [None, None])
        self.send(1)
        self.assertEqual(self.send(1), (1, True))
        self.log.whenCommitted(told.append)
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.assertIsInstance(told[2], LogFailed)
        self.failCommits(None)
        self.assertEqual(self.send(1), (1, False))


class OwnerTests(LogTestCase):
    """The log remembers who owns a producer."""

    def send(self, producerId: int, owner: str, index: int = 0, sequence: int = 0) -> None:
        """Append a batch of a producer to a partition, by default its first."""
        buffer, batch = makeBatch(1, producerId=producerId, producerEpoch=0, baseSequence=sequence)
        self.log.append(self.partitions[index], buffer, batch, owner)

    def setUp(self) -> None:
        super().setUp()
        self.partitions = self.log.createTopic("events", 2, {}).partitions

    def test_restart(self) -> None:
        """
        Owners are the same after a restart, and so is the size of what is remembered; a producer that appends without a
        name has none.
        """
        self.assertEqual((list(self.log.producers()), self.log.producerStateBytes), ([], 0))
        self.send(7, "alice")
        self.send(7, "alice", 1)
        self.send(8, "bob")
        self.append(self.partitions[0], 1, producerId=9, producerEpoch=0, baseSequence=0)
        self.append(self.partitions[0], 1)
        self.clock.turn()
        owners = {("alice", 7), ("bob", 8), ("", 9)}
        sizeBytes = self.log.producerStateBytes
        self.assertEqual((set(self.log.producers()), len(list(self.log.producers()))), (owners, 3))
        self.reopenLog()
        self.assertEqual((set(self.log.producers()), self.log.producerStateBytes), (owners, sizeBytes))

    def test_lost(self) -> None:
        """The owner of a producer is lost with the batch that named it."""
        self.send(7, "alice")
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.assertEqual(list(self.log.producers()), [])

    def test_changed(self) -> None:
        """A producer belongs to the owner that appended last."""
        self.send(7, "alice")
        self.send(7, "bob", 1)
        self.clock.turn()
        self.assertEqual(list(self.log.producers()), [("bob", 7)])

    def test_anyName(self) -> None:
        """Owners may have any name."""
        owners = ["Ålice=\N{SNOWMAN}", "\udc80\ud800", "x" * 1000]
        for producerId, owner in enumerate(owners):
            self.send(producerId, owner)
        self.reopenLog()
        self.assertEqual(sorted(self.log.producers()), sorted((owner, number) for number, owner in enumerate(owners)))

    def test_bounded(self) -> None:
        """
        Owners of producers that are not remembered any more are dropped by a sweep, a thousand in a turn; while there
        are too many, that of a new producer is noted with a later batch.
        """
        self.reopenLog(maxProducers=10)
        self.partitions = self.log.topic("events").partitions
        for producerId in range(3000):
            self.send(producerId, "somebody")
            if producerId % 50 == 0:
                self.clock.turn()
        self.clock.turn()
        self.assertLess(len(self.log._owners), 1100)
        before = len(self.log._owners)
        steps = self.log.forgetOwners()
        next(steps)
        self.send(2999, "somebody", sequence=1)
        counts = [len(self.log._owners) for _ in steps]
        self.assertGreater(counts[0], before - 1001)
        self.clock.turn()
        self.sweep()
        self.send(2999, "somebody", sequence=2)
        self.clock.turn()
        self.assertEqual((len(self.log._owners), len(list(self.log.producers()))), (1, 10))

    def test_comesMeanwhile(self) -> None:
        """The owner of a producer that comes back while owners are forgotten is kept."""
        self.send(7, "alice")
        self.clock.turn()
        self.log._producers.forget([(self.partitions[0].number, 7)])
        steps = self.log.forgetOwners()
        next(steps)
        self.send(7, "alice", sequence=1)
        for _ in steps:
            pass
        self.clock.turn()
        self.assertEqual(list(self.log.producers()), [("alice", 7)])


class ProducerIdTests(LogTestCase):
    """Producer ids are never given twice."""

    def setUp(self) -> None:
        super().setUp()
        self.threads = Threads()

    def openWithThreads(self) -> SegmentLog:
        """Open the log again, with those threads."""
        self.successResultOf(self.log.close())
        log = SegmentLog(self.path, self.clock, lambda: 0.0, self.threads.deferToThread, disk=self.disk)
        self.clock.turn()
        return log

    def finish(self, log: SegmentLog) -> None:
        """Close such a log."""
        closed = log.close()
        self.threads.runAll()
        self.successResultOf(closed)

    def take(self, log: SegmentLog, count: int) -> list[int]:
        """Allocate some ids, some in each turn."""
        ids: list[int] = []
        for number in range(count):
            ids.append(log.allocateProducerId())
            if number % 100 == 99:
                self.clock.turn()
        return ids

    def test_reserved(self) -> None:
        """
        The next ids are reserved before the present ones are used up; none is given before the disk
        has confirmed that.
        """
        log = self.openWithThreads()
        first = log.allocateProducerId()
        self.assertEqual(self.take(log, 999), list(range(first + 1, first + 1000)))
        for _ in range(2):
            self.assertRaises(NoProducerId, log.allocateProducerId)
            self.clock.turn()
        self.assertEqual(NoProducerId.errorCode, 14)
        self.threads.runAll()
        self.assertEqual(self.take(log, 400), list(range(first + 1000, first + 1400)))
        self.finish(log)

    def test_notStored(self) -> None:
        """If the reservation is lost, the present ids are given all the same, and then none until one succeeds."""
        self.failCommits(storageError(errno.ENOSPC))
        ids = self.take(self.log, 700)
        self.clock.turn()
        while True:
            try:
                ids.append(self.log.allocateProducerId())
            except (LogFailed, NoProducerId):
                break
            self.clock.turn()
        self.assertEqual(ids, list(range(1000)))
        self.failCommits(None)
        self.clock.turn()
        try:
            self.log.allocateProducerId()
        except NoProducerId:
            self.clock.turn()
        self.assertIn(self.log.allocateProducerId(), (1000, 1001))

    def test_notStoredAtOnce(self) -> None:
        """This also holds if the reservation is written at once."""
        self.reopenLog(maxPendingBytes=1)
        first = self.log.allocateProducerId()
        self.take(self.log, 499)
        self.failCommits(storageError(errno.ENOSPC))
        self.assertRaises(LogFailed, self.log.allocateProducerId)
        self.failCommits(None)
        self.clock.turn()
        self.assertEqual(self.take(self.log, 1500), list(range(first + 500, first + 2000)))


class LeaderEpochTests(LogTestCase):
    """The leader epoch grows with each start after which records may be missing."""

    def crash(self) -> None:
        """Open what is on the disk in this moment as if the process had died."""
        path = self.mktemp()
        shutil.copytree(self.path, path)
        self.successResultOf(self.log.close())
        self.path = path
        self.log = self.openLog()

    def test_unclean(self) -> None:
        """After any other it is larger, also if two follow one another."""
        self.crash()
        self.assertEqual(self.log.leaderEpoch, 1)
        self.crash()
        self.crash()
        self.assertEqual(self.log.leaderEpoch, 3)
        self.reopenLog()
        self.assertEqual(self.log.leaderEpoch, 3)

    def test_failedFlush(self) -> None:
        """An end after a failed flush is not clean."""
        self.disk.flushError = storageError(errno.EIO)
        self.append(self.partition())
        with capturedLogs():
            self.clock.advance(1.0)
        self.disk.flushError = None
        self.reopenLog()
        self.assertEqual(self.log.leaderEpoch, 1)


class FlushTests(LogTestCase):
    """What is told when the disk has it."""

    def setUp(self) -> None:
        super().setUp()
        self.successResultOf(self.log.close())
        self.threads = Threads()
        self.flushed: list[str] = []
        self.log = SegmentLog(self.path, self.clock, lambda: 0.0, self.threads.deferToThread, disk=self.disk)
        self.addCleanup(self.finish)
        self.clock.turn()
        self.first, self.second = self.log.createTopic("events", 2, {}).partitions
        for partition in (self.first, self.second):
            self.append(partition)
        self.clock.turn()
        self.clock.advance(1.0)
        self.threads.runAll()
        self.told: list[Exception | None] = []
        flush = LocalFile.flush

        def note(file: LocalFile) -> None:
            self.flushed.append(
                os.path.relpath(os.readlink(f"/proc/self/fd/{file._descriptor}"), os.path.abspath(self.path))
            )
            flush(file)

        self.patch(LocalFile, "flush", note)

    def finish(self) -> None:
        """Close the log."""
        closed = self.log.close()
        self.threads.runAll()
        self.successResultOf(closed)

    def urgent(self, partition: Partition, **header: int) -> None:
        """Append a batch whose flush somebody will wait for."""
        buffer, batch = makeBatch(1, **header)
        self.log.append(partition, buffer, batch, isUrgent=True)

    def awaited(self, partition: Partition, **header: int) -> None:
        """Append such a batch, and wait for its flush."""
        self.urgent(partition, **header)
        self.log.whenFlushed(self.told.append)

    def parts(self) -> set[str]:
        """Which parts of the log have been flushed since this was last asked."""
        parts = {name.partition("/")[0] if name.startswith("doc") else name.split("/")[1] for name in self.flushed}
        self.flushed.clear()
        return {part.partition(".")[0] for part in parts}

    def test_urgent(self) -> None:
        """
        A flush that somebody waits for comprises what was appended urgently, and nothing else; it is told when the
        threads are done.
        """
        self.append(self.second)
        self.urgent(self.first)
        self.log.table("offsets").put(b"a", b"1")
        self.log.whenFlushed(self.told.append)
        self.clock.turn()
        self.assertEqual(self.told, [])
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None], {"events-0"}))
        self.clock.advance(1.0)
        self.threads.runAll()
        self.assertEqual(self.parts(), {"events-1", "documents"})
        self.clock.advance(10.0)
        self.assertEqual(self.threads.waiting, [])

    def test_documents(self) -> None:
        """Changes of topics and of tables that flush are urgent."""
        self.append(self.first)
        self.log.createTopic("other", 1, {})
        self.log.whenFlushed(self.told.append)
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None], {"documents"}))
        self.log.table("quotas", isFlushed=True).put(b"a", b"1")
        self.log.whenFlushed(self.told.append)
        self.clock.turn()
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None, None], {"documents"}))

    def test_duplicate(self) -> None:
        """
        A duplicate whose flush somebody waits for is flushed, though nobody waited for the batch itself, and though
        the log has told others since that all they waited for is flushed.
        """
        header = {"producerId": 5, "producerEpoch": 0, "baseSequence": 0}
        self.append(self.first, **header)
        self.awaited(self.second)
        self.clock.turn()
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None], {"events-1"}))
        self.awaited(self.first, **header)
        self.assertEqual(self.told, [None])
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None, None], {"events-0"}))

    def test_duplicateOfPending(self) -> None:
        """This also holds for a duplicate of a batch that awaits its commit, or is being flushed."""
        header = {"producerId": 5, "producerEpoch": 0, "baseSequence": 0}
        self.append(self.first, **header)
        self.awaited(self.first, **header)
        self.clock.turn()
        self.awaited(self.first, **header)
        self.assertEqual(self.told, [])
        self.threads.runAll()
        self.assertEqual((self.told, self.parts()), ([None, None], {"events-0"}))

    def test_callbacks(self) -> None:
        """A callback may append, wait again, and raise; the others are called all the same."""

        def again(verdict: Exception | None) -> None:
            self.told.append(verdict)
            if len(self.told) < 3:
                self.urgent(self.first)
                self.log.whenFlushed(again)
            raise ZeroDivisionError

        for _ in range(2):
            self.urgent(self.first)
            self.log.whenFlushed(again)
        for _ in range(5):
            self.clock.turn()
            self.threads.runAll()
        self.assertEqual((self.told, self.first.highWatermark), ([None] * 4, 5))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 4)

    def test_sameRound(self) -> None:
        """A callback that waits for what a round already comprises begins no other round."""
        rounds: list[bool] = []
        begin = self.log._flusher._begin
        self.patch(self.log._flusher, "_begin", lambda isEverything: rounds.append(isEverything) or begin(isEverything))
        self.urgent(self.first)
        for _ in range(3):
            self.log.whenFlushed(self.told.append)
        self.clock.turn()
        self.log.whenFlushed(self.told.append)
        self.threads.runAll()
        self.assertEqual((self.told, rounds), ([None] * 4, [False]))

    def test_failure(self) -> None:
        """
        A flush that fails is final: all who wait and all who come are told, nothing is appended any more, records can
        still be read, and a restart has what was flushed before.
        """
        header = {"producerId": 5, "producerEpoch": 0, "baseSequence": 0}
        self.awaited(self.first, **header)
        self.clock.turn()
        self.awaited(self.second)
        self.disk.flushError = storageError(errno.EIO)
        with capturedLogs():
            self.threads.runAll()
        self.disk.flushError = None
        self.clock.turn()
        self.assertEqual([type(each) for each in self.told], [LogFailed] * 2)
        for use in (
            lambda: self.append(self.second),
            lambda: self.append(self.first, **header),
            lambda: self.log.createTopic("other", 1, {}),
            lambda: self.log.deleteTopic("events"),
            lambda: self.log.table("offsets").put(b"a", b"1"),
        ):
            self.assertIn("then restart", str(self.assertRaises(LogFailed, use)))
            self.clock.turn()
        self.log.whenFlushed(self.told.append)
        self.assertIsInstance(self.told[-1], LogFailed)
        (problem,) = self.log.problems[-1:]
        self.assertIn("replace it", problem)
        self.assertEqual(len(self.read(self.first, 0)), 2)
        self.finish()
        self.log = self.openLog()
        self.assertGreaterEqual(self.partition().highWatermark, 1)
        self.append(self.partition())
        self.clock.turn()

    def test_oneRemovalAtATime(self) -> None:
        """
        However many topics are deleted at once, their files are removed in one thread, so that
        flushes find others.
        """
        for number in range(5):
            self.append(self.log.createTopic(f"other{number}", 1, {}).partitions[0])
        self.clock.turn()
        for number in range(5):
            self.log.deleteTopic(f"other{number}")
        partitions = os.path.join(self.path, "partitions")
        for _ in range(40):
            self.clock.turn()
            # A flush, and a removal.
            self.assertLessEqual(len(self.threads.waiting), 2)
            if self.threads.waiting:
                self.threads.run()
        self.assertEqual([name for name in os.listdir(partitions) if name.startswith("other")], [])

    def test_afterClose(self) -> None:
        """To ask for a flush after closing does no harm."""
        closing = self.log.close()
        self.log.whenFlushed(self.told.append)
        self.threads.runAll()
        self.successResultOf(closing)
        self.told.clear()
        self.log.whenFlushed(self.told.append)
        self.assertEqual(self.told, [None])
        # A Deferred that was fired twice would be noticed only now.
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_deletedMeanwhile(self) -> None:
        """A topic may be deleted while its records are flushed; those that wait are told, and its files go."""
        self.awaited(self.first)
        self.clock.turn()
        self.log.deleteTopic("events")
        self.clock.turn()
        self.threads.runAll()
        self.assertEqual(self.told, [None])
        self.assertEqual(os.listdir(os.path.join(self.path, "partitions")), [])


class DirectoryTests(LogTestCase):
    """Opening and closing."""

    def other(self) -> SegmentLog:
        """Another log in the same directory."""
        return SegmentLog(self.path, self.clock, lambda: 0.0, maybeDeferred)

    def test_missingDocuments(self) -> None:
        """Records without the documents that say what they are of are refused, not removed."""
        self.append(self.partition())
        self.successResultOf(self.log.close())
        documents = os.path.join(self.path, "documents")
        shutil.move(documents, documents + "-elsewhere")
        for _ in range(2):
            self.assertIn("restore a backup", str(self.assertRaises(LogFailed, self.other)))
        self.assertEqual(os.listdir(os.path.join(self.path, "partitions")), ["events-0.0"])
        shutil.rmtree(documents)
        shutil.move(documents + "-elsewhere", documents)
        self.log = self.openLog()
        self.assertEqual(self.partition().highWatermark, 1)

    def test_damagedDocuments(self) -> None:
        """A document that makes no sense is refused, saying what is damaged."""
        valid = {"id": "0" * 32, "partitions": [0], "configs": {}}
        topics: list[dict[str, object]] = [
            {"id": 7},
            {"configs": []},
            {"configs": {"retention.ms": "x"}},
            {"configs": {"a": 1}},
            {"partitions": [2**32]},
        ]
        for table, key, value in (
            ("topics", b"events", b"[" * 100_000),
            *(("topics", b"events", json.dumps({**valid, **changed}).encode()) for changed in topics),
            ("topics", b"../events", json.dumps(valid).encode()),
            ("starts", struct.pack(">I", 0), b"short"),
            ("starts", struct.pack(">I", 0), struct.pack(">q", -1)),
            ("starts", struct.pack(">I", 0), struct.pack(">q", 2**63 - 1)),
            ("tombstones", b"short", b""),
            ("counters", b"next partition number", b"short"),
            ("counters", b"next partition number", struct.pack(">q", 2**32)),
            ("owners", struct.pack(">q", 7), b"\xff"),
            ("facts", b"cluster id", b"\xff"),
            ("facts", b"leader epoch", b"short"),
            ("facts", b"leader epoch", struct.pack(">q", 2**31)),
            ("facts", b"next producer id", struct.pack(">q", -1)),
        ):
            self._damaged(table, key, value)

    def _damaged(self, table: str, key: bytes, value: bytes) -> None:
        self.path = self.mktemp()
        self.log = self.openLog()
        self.partition()
        self.log._documents.put(table, key, value)
        self.log._commits.appended(1, isKept=False)
        self.successResultOf(self.log.close())
        refusal = str(self.assertRaises(LogFailed, self.other))
        self.assertIn("damaged", refusal, (table, key, value))
        if table == "topics":
            self.assertIn("events", refusal)

    def test_copiedDirectory(self) -> None:
        """
        A directory whose name ends in a date is no partition's, and the next partitions do not get the numbers behind
        it, which would not fit.
        """
        self.append(self.partition())
        self.successResultOf(self.log.close())
        partitions = os.path.join(self.path, "partitions")
        shutil.copytree(os.path.join(partitions, "events-0.0"), os.path.join(partitions, "events-0.20261122235118"))
        os.mkdir(os.path.join(partitions, f"events-0.{10**30}"))
        self.log = self.openLog()
        self.assertEqual(self.log.createTopic("others", 1, {}).partitions[0].number, 1)
        self.log.deleteTopic("others")

    def test_largestNumber(self) -> None:
        """
        A directory of the largest number that is skipped leaves numbers for partitions, which a
        start finds again.
        """
        self.append(self.partition())
        self.successResultOf(self.log.close())
        for number in (2**31 - 1, 2**32 - 1):
            os.mkdir(os.path.join(self.path, "partitions", f"copy.{number}"))
        self.log = self.openLog()
        [others] = self.log.createTopic("others", 1, {}).partitions
        self.assertEqual(others.number, 2**31)
        self.append(others)
        self.successResultOf(self.log.close())
        self.log = self.openLog()
        self.assertEqual(self.log.topics["others"].partitions[0].highWatermark, 1)

    def test_largestEpoch(self) -> None:
        """An epoch in a batch is behind no checksum; the largest one does not keep the log from being appended to."""
        self.append(self.partition())
        self.clock.turn()
        segment = os.path.join(self.path, "partitions", "events-0.0", "00000000000000000000.log")
        path = self.mktemp()
        shutil.copytree(self.path, path)
        segment = os.path.join(path, os.path.relpath(segment, self.path))
        with open(segment, "r+b") as file:
            file.seek(12)
            file.write(b"\x7f\xff\xff\xff")
        log = SegmentLog(path, self.clock, lambda: 0.0, maybeDeferred)
        self.addCleanup(log.close)
        self.assertEqual(log.leaderEpoch, 2**31 - 1)
        log.append(log.topics["events"].partitions[0], *makeBatch(1))
        self.clock.turn()
        self.assertEqual(log.topics["events"].partitions[0].highWatermark, 2)

    def test_unreadable(self) -> None:
        """A disk that cannot be read is a refusal in words, which leaves the directory free."""
        self.append(self.partition())
        self.clock.turn()
        path = self.mktemp()
        shutil.copytree(self.path, path)

        def fail(*_: object) -> None:
            raise storageError(errno.EIO)

        patch = self.patch(LocalFile, "read", fail)
        for _ in range(2):
            refused = self.assertRaises(LogFailed, SegmentLog, path, self.clock, lambda: 0.0, maybeDeferred)
            self.assertIn("replace it", str(refused))
        patch.restore()
        self.path = path
        self.successResultOf(self.other().close())

    def test_orphans(self) -> None:
        """
        A start leaves directories alone that belong to no topic, and says so: the documents may be damaged.  No
        partition ever gets their number.
        """
        self.append(self.partition())
        self.successResultOf(self.log.close())
        partitions = os.path.join(self.path, "partitions")
        for name in ("gone-0.17", "lost+found"):
            os.mkdir(os.path.join(partitions, name))
            with open(os.path.join(partitions, name, "file"), "w") as file:
                file.write("something")
        with capturedLogs() as events:
            self.log = self.openLog()
        self.assertEqual(sorted(os.listdir(partitions)), ["events-0.0", "gone-0.17", "lost+found"])
        (text,) = map(formatEvent, events)
        self.assertIn("1 directories in", text)
        self.assertIn("gone-0.17", text)
        self.assertEqual(self.log.createTopic("other", 1, {}).partitions[0].number, 18)

    def test_damagedPast(self) -> None:
        """
        After a clean end nothing but the end of the last segment is cut off: what is damaged in the middle is lost, and
        the records behind it are not, even if all checkpoints are missing.
        """
        self.reopenLog(segmentBytes=200)
        events = self.partition()
        for _ in range(8):
            self.append(events)
            self.clock.turn()
        self.successResultOf(self.log.close())
        directory = partitionsOf(self.log.topic("events"))[0].directory
        for name in os.listdir(directory):
            if name.endswith(".index"):
                os.unlink(os.path.join(directory, name))
        segments = sorted(os.listdir(directory))
        with open(os.path.join(directory, segments[1]), "r+b") as file:
            file.seek(62)
            file.write(b"damage")
        with capturedLogs() as logged:
            self.log = self.openLog(segmentBytes=200)
        self.assertIn("are lost", " ".join(map(formatEvent, logged)))
        events = self.partition()
        self.assertEqual([each for each in sorted(os.listdir(directory)) if each.endswith(".log")], segments)
        self.assertEqual((events.logStartOffset, events.highWatermark), (0, 8))
        lost = int(segments[1][:20])
        self.assertEqual(int.from_bytes(self.log.read(events, lost, 1)[:8], "big"), int(segments[2][:20]))

    def test_failedCheckpoint(self) -> None:
        """
        A checkpoint that cannot be written costs the next start time; others are written all the same, and nothing is
        lost.
        """
        first, second = self.log.createTopic("events", 2, {}).partitions
        for partition in (first, second):
            self.append(partition)
        self.clock.turn()
        stored = partitionsOf(self.log.topic("events"))
        os.mkdir(stored[0].segments[-1].checkpointPath)
        with capturedLogs() as logged:
            self.successResultOf(self.log.close())
        self.assertIn("could not be written", " ".join(map(formatEvent, logged)))
        self.assertTrue(os.path.exists(stored[1].segments[-1].checkpointPath))
        os.rmdir(stored[0].segments[-1].checkpointPath)
        self.log = self.openLog()
        self.assertEqual([each.highWatermark for each in self.log.topic("events").partitions], [1, 1])

    def test_clusterId(self) -> None:
        """The id of the cluster stays, and no other log has it."""
        clusterId = self.log.clusterId
        self.assertEqual(len(clusterId), 22)
        self.reopenLog()
        self.assertEqual(self.log.clusterId, clusterId)
        self.path = self.mktemp()
        other = self.other()
        self.assertNotEqual(other.clusterId, clusterId)
        self.successResultOf(other.close())

    def test_cleanStart(self) -> None:
        """After a clean end a start reads no records, whenever they were flushed."""
        self.reopenLog(segmentBytes=200)
        events, other = self.partition(), self.partition("other")
        self.append(other)
        self.clock.turn()
        self.clock.advance(1.0)
        for _ in range(7):
            self.append(events)
            self.clock.turn()
            self.clock.advance(0.4)
        read: list[int] = []
        run = PartitionRecovery.run

        def note(recovery: PartitionRecovery) -> Recovered:
            found = run(recovery)
            read.append(found.readBytes)
            return found

        self.patch(PartitionRecovery, "run", note)
        self.reopenLog()
        self.assertEqual(read, [0, 0])
        self.assertEqual((self.partition().highWatermark, self.partition("other").highWatermark), (7, 1))

    def test_progress(self) -> None:
        """A start that takes more than a second says how far it is."""
        for number in range(3):
            self.append(self.partition(f"events{number}"))
        self.successResultOf(self.log.close())
        run = PartitionRecovery.run

        def slowly(recovery: PartitionRecovery) -> Recovered:
            self.clock.advance(0.6)
            return run(recovery)

        patch = self.patch(PartitionRecovery, "run", slowly)
        with capturedLogs() as events:
            self.log = self.openLog()
        patch.restore()
        texts = [formatEvent(event) for event in events]
        self.assertEqual(
            texts, ["reading the log: 2 of 3 partitions, 0 MiB of records", "the log has been read in 1.8 s"]
        )

    def test_closed(self) -> None:
        """A closed log refuses whatever needs the storage; it can be closed again."""
        events = self.partition()
        self.successResultOf(self.log.close())
        self.successResultOf(self.log.close())
        for use in (
            lambda: self.append(events),
            lambda: self.read(events, 0, 1000),
            lambda: self.log.bytesAvailable(events, 0),
            lambda: self.offsetForTimestamp(events, 0),
            lambda: self.log.createTopic("other", 1, {}),
            lambda: self.log.deleteTopic("events"),
            self.log.allocateProducerId,
        ):
            self.assertRaises(LogClosed, use)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeWaits(self) -> None:
        """
        The directory is free when a flush that is going on, a last one, checkpoints and a snapshot are done, for
        everybody who closed.
        """
        self.successResultOf(self.log.close())
        threads = Threads()
        log = SegmentLog(self.path, self.clock, lambda: 0.0, threads.deferToThread)
        (events,) = log.createTopic("events", 1, {}).partitions
        log.append(events, *makeBatch(1))
        log.table("offsets").put(b"a", bytes(2 << 20))
        self.clock.turn()
        self.clock.advance(1.0)
        log.append(events, *makeBatch(1))
        closing = [log.close(), log.close()]
        rounds = 0
        while threads.waiting:
            self.assertRaises(LogInUse, self.other)
            for closed in closing:
                self.assertNoResult(closed)
            rounds += 1
            threads.run()
        self.assertGreater(rounds, 4)
        for closed in closing:
            self.successResultOf(closed)
        other = self.other()
        self.assertEqual((other.leaderEpoch, other.topic("events").partitions[0].highWatermark), (0, 2))
        self.successResultOf(other.close())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_sweepWhileClosing(self) -> None:
        """A sweep that is due while the log is being closed does no harm."""
        self.successResultOf(self.log.close())
        threads = Threads()
        log = SegmentLog(self.path, self.clock, lambda: 1e6, threads.deferToThread, retentionSeconds=1.0)
        self.clock.turn()
        (events,) = log.createTopic("events", 1, {}).partitions
        log.append(events, *makeBatch(1))
        self.clock.turn()
        threads.runAll()
        closed = log.close()
        self.clock.advance(60.0)
        for _ in range(5):
            self.clock.turn()
        threads.runAll()
        self.successResultOf(closed)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_removalWhileClosing(self) -> None:
        """Closing waits for files that are being removed."""
        self.successResultOf(self.log.close())
        threads = Threads()
        log = SegmentLog(self.path, self.clock, lambda: 0.0, threads.deferToThread)
        self.clock.turn()
        (events,) = log.createTopic("events", 1, {}).partitions
        log.append(events, *makeBatch(1))
        log.deleteTopic("events")
        closed = log.close()
        while threads.waiting:
            self.assertNoResult(closed)
            threads.run()
        self.successResultOf(closed)
        self.assertEqual(os.listdir(os.path.join(self.path, "partitions")), [])

    def test_closeOnFullDisk(self) -> None:
        """A log on a full disk can be closed; it is not a clean end then."""
        self.append(self.partition())
        self.clock.turn()
        self.failCommits(storageError(errno.ENOSPC))
        with capturedLogs() as events:
            self.successResultOf(self.log.close())
        self.assertIn("make room", formatEvent(events[-1]))
        self.failCommits(None)
        self.log = self.openLog()
        self.assertEqual((self.log.leaderEpoch, self.partition().highWatermark), (1, 1))
