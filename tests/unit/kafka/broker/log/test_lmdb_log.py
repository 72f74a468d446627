"""
Tests for L{admission.kafka.broker.log.lmdb_log}.
"""

import errno
import os
import struct
from collections.abc import Sequence

from twisted.internet.defer import maybeDeferred
from zope.interface.verify import verifyObject

from admission.kafka.broker.log.interface import (
    ILog,
    InvalidProducerEpoch,
    LogClosed,
    LogFailed,
    LogInUse,
    OutOfOrderSequence,
    Partition,
)
from admission.kafka.broker.log.lmdb_log import LmdbLog
from admission.kafka.wire.batches import readBatch
from tests.kit.logfixture import LogTestCase, Threads, makeBatch, storageError


class AppendTests(LogTestCase):
    """
    L{LmdbLog.append} and what follows from it.
    """

    def test_interface(self) -> None:
        """
        The log fulfils its contract.
        """
        verifyObject(ILog, self.log)

    def test_offsets(self) -> None:
        """
        Each batch begins where the one before ended, in its own partition, and
        carries its offset and the leader epoch.
        """
        first, second = self.log.createTopic("events", 2, {}).partitions
        self.assertEqual(self.append(first, 1, 2, 3), (0, False))
        self.assertEqual(self.append(second, 1), (0, False))
        self.assertEqual(self.append(first, 4), (3, False))
        self.assertEqual(self.append(first, 5), (4, False))
        self.clock.turn()
        headers = [readBatch(batch) for batch in self.log.read(first, 0, 10_000)]
        self.assertEqual([(header.baseOffset, header.leaderEpoch) for header in headers], [(0, 0), (3, 0), (4, 0)])

    def test_bytes(self) -> None:
        """
        Apart from these two fields a batch is stored as it came, and its buffer
        is free again at once.
        """
        events = self.partition()
        buffer, batch = makeBatch(1, 2, valueBytes=5000)
        sent = bytes(buffer)
        self.log.append(events, memoryview(buffer), batch)
        buffer[:] = bytes(len(buffer))
        self.clock.turn()
        (stored,) = self.log.read(events, 0, 1)
        self.assertEqual((stored[8:12], stored[16:]), (sent[8:12], sent[16:]))

    def test_highWatermark(self) -> None:
        """
        The high watermark advances with the commit, not with the append.
        """
        events = self.partition()
        self.append(events, 1, 2)
        self.assertEqual((events.highWatermark, events.nextOffset, events.sizeBytes), (0, 2, 0))
        self.clock.turn()
        self.assertEqual((events.highWatermark, events.nextOffset), (2, 2))

    def test_listeners(self) -> None:
        """
        Listeners hear after each commit of the partitions that grew, each once,
        whatever other listeners raise.
        """
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
        """
        A listener may append; it is told again in the next turn.
        """
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

    def test_restart(self) -> None:
        """
        After a restart everything is where it was.
        """
        events = self.partition()
        for timestampMs in (7, 9, 8):
            self.append(events, timestampMs, timestampMs)
        self.clock.turn()
        batches = self.log.read(events, 0, 10_000)
        self.reopenLog()
        again = self.partition()
        for name in ("nextOffset", "highWatermark", "logStartOffset", "sizeBytes", "committedMaxTimestampMs"):
            self.assertEqual(getattr(again, name), getattr(events, name), name)
        self.assertEqual(self.log.read(again, 0, 10_000), batches)
        self.assertEqual(self.append(again).baseOffset, 6)

    def test_closeCommits(self) -> None:
        """
        What is appended when the log is closed is committed.
        """
        self.append(self.partition())
        self.reopenLog()
        self.assertEqual(self.partition().highWatermark, 1)


class FailureTests(LogTestCase):
    """
    When the storage fails, it is as if nothing had been appended.
    """

    limits = {**LogTestCase.limits, "mapSizeBytes": 1 << 20}

    def setUp(self) -> None:
        """
        Have some committed batches, one of them with a producer.
        """
        super().setUp()
        self.events = self.partition()
        self.told: list[Exception | None] = []
        self.append(self.events, 5, producerId=1, producerEpoch=0, baseSequence=0)
        self.append(self.events, 3)
        self.clock.turn()
        self.before = self.state()

    def state(self) -> object:
        """
        Everything in memory that appends change.
        """
        events = self.events
        fields = [getattr(events, name) for name in Partition.__slots__ if not name.startswith("__")]
        return fields, list(self.log._producers._states.items())

    def appendSome(self) -> None:
        """
        Append for the producer that is known, for a new one, and for none.
        """
        self.append(self.events, 100, producerId=1, producerEpoch=0, baseSequence=1)
        self.append(self.events, 200, 300, producerId=2, producerEpoch=0, baseSequence=0)
        self.append(self.events, 400)
        self.log.whenCommitted(self.told.append)

    def checkRecovery(self) -> None:
        """
        Everything is as before, and the same appends succeed now.
        """
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

    def test_mapFull(self) -> None:
        """
        An append that does not fit takes those before it along.
        """
        self.appendSome()
        failed = self.assertRaises(LogFailed, self.append, self.events, 1, valueBytes=2 << 20)
        self.assertIn("map size", str(failed))
        self.assertRaises(LogFailed, self.append, self.events)
        self.clock.turn()
        self.checkRecovery()

    def test_commit(self) -> None:
        """
        A commit that fails takes all its appends along.
        """
        self.appendSome()
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.failCommits(None)
        self.checkRecovery()

    def test_nobodyHears(self) -> None:
        """
        Listeners do not hear of what was lost.
        """
        heard: list[Sequence[Partition]] = []
        self.log.subscribe(heard.append)
        self.appendSome()
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.assertEqual(heard, [])

    def test_filledUp(self) -> None:
        """
        A log that is full to the brim says so to every append, keeps what it
        has, and works again once retention has made room.
        """
        for _ in range(100):
            buffer, batch = makeBatch(1, valueBytes=30_000)
            try:
                self.log.append(self.events, buffer, batch)
            except LogFailed:
                break
            self.clock.turn()
        else:
            self.fail("a map of a mebibyte holds three")
        full = self.events.highWatermark
        self.clock.turn()
        self.assertRaises(LogFailed, self.append, self.events, 1, valueBytes=30_000)
        self.clock.turn()
        self.assertEqual(self.events.highWatermark, full)
        self.reopenLog(retentionBytes=100_000)
        self.events = self.partition()
        self.assertEqual(self.events.highWatermark, full)
        self.sweep()
        for _ in range(5):
            self.append(self.events, 1, valueBytes=30_000)
            self.clock.turn()
        self.assertEqual(self.events.highWatermark, full + 5)

    def test_producerId(self) -> None:
        """
        Without storage there are no new producer ids.
        """
        self.failCommits(storageError(errno.ENOSPC))
        self.assertRaises(LogFailed, self.log.allocateProducerId)
        self.failCommits(None)
        self.assertEqual(self.log.allocateProducerId(), 0)


class IdempotenceTests(LogTestCase):
    """
    Batches of idempotent producers are appended once.
    """

    def send(self, baseSequence: int, *, epoch: int = 0, count: int = 1) -> tuple[int, bool]:
        """
        Append a batch of producer 7.
        """
        return self.append(self.partition(), *[0] * count, producerId=7, producerEpoch=epoch, baseSequence=baseSequence)

    def test_duplicate(self) -> None:
        """
        A duplicate is answered with the old offset and not appended, before and
        after a restart.
        """
        self.append(self.partition())
        self.assertEqual(self.send(0, count=3), (1, False))
        self.assertEqual(self.send(3), (4, False))
        self.clock.turn()
        for _ in range(2):
            self.assertEqual(self.send(0, count=3), (1, True))
            self.assertEqual(self.send(3), (4, True))
            self.assertEqual(self.partition().nextOffset, 5)
            self.reopenLog()
        self.assertEqual(self.send(4), (5, False))

    def test_duplicateOfPending(self) -> None:
        """
        A duplicate of a batch that is not committed yet waits for that commit,
        and is told if it fails.
        """
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

    def test_refusals(self) -> None:
        """
        Batches out of order and old epochs are refused with Kafka's errors,
        and nothing is appended.
        """
        self.send(0, epoch=1)
        self.assertRaises(OutOfOrderSequence, self.send, 2, epoch=1)
        self.assertRaises(OutOfOrderSequence, self.send, 1, epoch=2)
        self.assertRaises(InvalidProducerEpoch, self.send, 1, epoch=0)
        self.assertEqual((OutOfOrderSequence.errorCode, InvalidProducerEpoch.errorCode), (45, 47))
        self.assertEqual(self.partition().nextOffset, 1)
        self.assertEqual(self.send(0, epoch=2), (1, False))

    def test_coalesced(self) -> None:
        """
        However many batches a producer appends in a turn, its state is written
        once.
        """
        partition = self.partition()
        for sequence in range(8):
            self.send(sequence)
        with self.log._storage.environment.begin() as transaction:
            self.assertEqual(transaction.stat(self.log._storage.producers)["entries"], 0)
        changes = list(self.log._producers.changes())
        self.assertEqual([key for key, _ in changes], [(partition.number, 7)])
        self.clock.turn()
        with self.log._storage.environment.begin() as transaction:
            self.assertEqual(transaction.stat(self.log._storage.producers)["entries"], 1)

    def test_ids(self) -> None:
        """
        Producer ids are never given twice, whether a block is used up or the
        log is opened again.
        """
        ids = [self.log.allocateProducerId() for _ in range(1001)]
        self.reopenLog()
        ids.append(self.log.allocateProducerId())
        self.assertEqual(ids, [*range(1001), 2000])

    def test_deletedTopic(self) -> None:
        """
        With a topic its producers' states go.
        """
        self.send(0)
        self.send(1)
        self.log.deleteTopic("events")
        self.assertEqual(self.send(5), (0, False))


class OwnerTests(LogTestCase):
    """
    The log remembers who owns a producer.
    """

    def send(self, producerId: int, owner: str, index: int = 0) -> None:
        """
        Append the first batch of a producer to a partition.
        """
        buffer, batch = makeBatch(1, producerId=producerId, producerEpoch=0, baseSequence=0)
        self.log.append(self.partitions[index], buffer, batch, owner)

    def setUp(self) -> None:
        """
        Have a topic with two partitions.
        """
        super().setUp()
        self.partitions = self.log.createTopic("events", 2, {}).partitions

    def test_restart(self) -> None:
        """
        Owners are the same after a restart, and so is the size of what is
        remembered; who appends without saying so has no name.
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
        """
        Who owns a producer is lost with the batch that said so.
        """
        self.send(7, "alice")
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.assertEqual((list(self.log.producers()), self.log.producerStateBytes), ([], 0))

    def test_olderForm(self) -> None:
        """
        A log from before states had owners opens, its producers go on where
        they were, and have an owner from then on.
        """
        number = self.partitions[0].number
        with self.log._commits.exclusive() as transaction:
            stored = struct.pack(">hdiiq", 0, self.wallSeconds, 0, 4, 0)
            transaction.put(struct.pack(">Iq", number, 7), stored, db=self.log._storage.producers)
        self.reopenLog()
        events = self.log.topic("events").partitions[0]
        self.assertEqual(list(self.log.producers()), [("", 7)])
        self.assertRaises(OutOfOrderSequence, self.append, events, producerId=7, producerEpoch=0, baseSequence=6)
        self.log.append(events, *makeBatch(1, producerId=7, producerEpoch=0, baseSequence=5), "alice")
        self.reopenLog()
        self.assertEqual(list(self.log.producers()), [("alice", 7)])


class DirectoryTests(LogTestCase):
    """
    Opening and closing.
    """

    def other(self) -> LmdbLog:
        """
        Another log in the same directory.
        """
        return LmdbLog(self.path, self.clock, lambda: 0.0, maybeDeferred)

    def test_inUse(self) -> None:
        """
        A directory in use is refused, naming it and the process.
        """
        refused = self.assertRaises(LogInUse, self.other)
        self.assertIn(self.path, str(refused))
        self.assertEqual(refused.pid, os.getpid())
        self.append(self.partition())
        self.clock.turn()
        self.assertEqual(self.partition().highWatermark, 1)

    def test_failedOpening(self) -> None:
        """
        A log that could not be opened leaves the directory free.
        """
        self.successResultOf(self.log.close())
        for error in (LogFailed, LogFailed):
            self.assertRaises(error, LmdbLog, self.path, self.clock, lambda: 0.0, maybeDeferred, mapSizeBytes=1 << 62)
        self.log = self.openLog()

    def test_unreadable(self) -> None:
        """
        A log whose records make no sense leaves the directory free, too.
        """
        with self.log._commits.exclusive() as transaction:
            transaction.put(b"events", b"{", db=self.log._storage.topics)
        self.successResultOf(self.log.close())
        for _ in range(2):
            self.assertRaises(ValueError, self.other)

    def test_closed(self) -> None:
        """
        A closed log refuses whatever needs the storage; it can be closed again.
        """
        events = self.partition()
        self.successResultOf(self.log.close())
        self.successResultOf(self.log.close())
        for use in (
            lambda: self.append(events),
            lambda: self.log.read(events, 0, 1000),
            lambda: self.log.bytesAvailable(events, 0),
            lambda: self.log.offsetForTimestamp(events, 0),
            lambda: self.log.createTopic("other", 1, {}),
            lambda: self.log.deleteTopic("events"),
            self.log.allocateProducerId,
        ):
            self.assertRaises(LogClosed, use)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeWaits(self) -> None:
        """
        The directory is free when a synchronisation that is going on and a
        last one are done, for everybody who closed.
        """
        self.successResultOf(self.log.close())
        threads = Threads()
        log = LmdbLog(self.path, self.clock, lambda: 0.0, threads.deferToThread)
        log.createTopic("events", 1, {})
        self.clock.advance(1.0)
        closing = [log.close(), log.close()]
        for _ in range(2):
            self.assertRaises(LogInUse, self.other)
            for closed in closing:
                self.assertNoResult(closed)
            threads.run()
        for closed in closing:
            self.successResultOf(closed)
        self.successResultOf(self.other().close())

    def test_callbackCloses(self) -> None:
        """
        A callback may close the log; who waits behind it is told of success.
        """
        told: list[Exception | None] = []
        self.append(self.partition())
        self.log.whenCommitted(lambda verdict: self.log.close())
        self.log.whenCommitted(told.append)
        self.clock.turn()
        self.assertEqual(told, [None])
        self.log = self.openLog()
        self.assertEqual(self.partition().highWatermark, 1)

    def test_synchronised(self) -> None:
        """
        After a commit the disk is synchronised within the interval, and not
        again before the next commit.
        """
        self.successResultOf(self.log.close())
        threads = Threads()
        self.log = LmdbLog(self.path, self.clock, lambda: 0.0, threads.deferToThread, flushIntervalSeconds=2.0)
        self.clock.advance(5.0)
        self.assertEqual(threads.waiting, [])
        self.append(self.partition())
        self.clock.turn()
        self.clock.advance(2.0)
        threads.run()
        self.clock.advance(5.0)
        self.assertEqual(threads.waiting, [])
        closed = self.log.close()
        threads.run()
        self.successResultOf(closed)
