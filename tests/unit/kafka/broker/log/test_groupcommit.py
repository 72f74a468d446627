"""
Tests for L{admission.kafka.broker.log.groupcommit}.
"""

import errno
import os

import lmdb
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.groupcommit import GroupCommit
from admission.kafka.broker.log.interface import LogClosed, LogFailed
from admission.kafka.broker.log.storage import openStorage
from tests.kit.logfixture import FailingEnvironment, TurnClock, storageError

DISK_FULL = storageError(errno.ENOSPC)


class GroupCommitTests(SynchronousTestCase):
    """
    L{GroupCommit} commits once for all appends of a turn.
    """

    def setUp(self) -> None:
        """
        Open an environment, and note down which hooks are called.
        """
        path = self.mktemp()
        os.mkdir(path)
        self.clock = TurnClock()
        self.storage = openStorage(path, 1 << 20)
        self.addCleanup(self.storage.environment.close)
        self.environment = FailingEnvironment(self.storage.environment)
        self.calls: list[str] = []
        self.commits = GroupCommit(
            self.environment,  # type: ignore[arg-type]
            self.storage.batches,
            self.clock,
            prepare=lambda transaction: self.calls.append("prepare"),
            settle=lambda: self.calls.append("settle"),
            revert=lambda: self.calls.append("revert"),
            announce=lambda: self.calls.append("announce"),
            maxPendingBytes=1000,
        )
        self.addCleanup(self.commits.close)
        self.told: list[tuple[str, Exception | None]] = []

    def put(self, key: str, sizeBytes: int = 1) -> None:
        """
        Append something.
        """
        self.commits.open().put(key.encode(), bytes(sizeBytes))
        self.commits.appended(sizeBytes)

    def tell(self, name: str) -> None:
        """
        Have it noted down what is told about the appends so far.
        """
        self.commits.whenCommitted(lambda verdict: self.told.append((name, verdict)))

    def stored(self) -> list[str]:
        """
        The keys that survive.
        """
        with self.storage.cursor(self.storage.batches) as cursor:
            return [str(key, "ascii") for key in cursor.iternext(values=False)]

    def toldNames(self, *, lost: bool) -> list[str]:
        """
        Who was told that their appends are lost, or that they are not.
        """
        return [name for name, verdict in self.told if isinstance(verdict, LogFailed) == lost]

    def test_nextTurn(self) -> None:
        """
        Appends are committed together in the next turn, then callbacks are
        called in order, then changes announced.
        """
        self.put("a")
        self.tell("first")
        self.put("b")
        self.tell("second")
        self.assertEqual((self.stored(), self.told, len(self.clock.getDelayedCalls())), ([], [], 1))
        self.clock.turn()
        self.assertEqual(self.stored(), ["a", "b"])
        self.assertEqual(self.told, [("first", None), ("second", None)])
        self.assertEqual(self.calls, ["prepare", "settle", "announce"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingPending(self) -> None:
        """
        Who waits for nothing is told at once.
        """
        self.tell("now")
        self.assertEqual(self.told, [("now", None)])

    def test_nothingPendingRaises(self) -> None:
        """
        A callback that is called at once and raises does not hurt its caller.
        """
        self.commits.whenCommitted(lambda verdict: 1 // 0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_bound(self) -> None:
        """
        Enough bytes are committed at once, but callbacks wait for their turn.
        """
        self.put("a", 500)
        self.tell("waiting")
        self.put("b", 500)
        self.assertEqual((self.stored(), self.told), (["a", "b"], []))
        self.put("c", 999)
        self.assertEqual(self.stored(), ["a", "b"])
        self.clock.turn()
        self.assertEqual((self.stored(), self.told), (["a", "b", "c"], [("waiting", None)]))

    def test_callbackRaises(self) -> None:
        """
        A callback that raises is logged, and the others are still called.
        """
        self.put("a")
        self.tell("before")
        self.commits.whenCommitted(lambda verdict: 1 // 0)
        self.tell("after")
        self.clock.turn()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.toldNames(lost=False), ["before", "after"])

    def test_callbackAppends(self) -> None:
        """
        What a callback appends belongs to the next turn, even if it is enough
        to be committed at once.
        """

        def again(verdict: Exception | None) -> None:
            self.put("b", 1000)
            self.tell("again")
            self.put("c")
            self.tell("and again")

        self.put("a")
        self.commits.whenCommitted(again)
        self.tell("first")
        self.clock.turn()
        self.assertEqual(self.told, [("again", None), ("first", None)])
        self.assertEqual(self.stored(), ["a", "b"])
        self.clock.turn()
        self.assertEqual(self.told, [("again", None), ("first", None), ("and again", None)])

    def test_endlessAppender(self) -> None:
        """
        A callback that always appends more does not keep the turn from ending.
        """
        rounds: list[int] = []

        def again(verdict: Exception | None) -> None:
            rounds.append(len(rounds))
            self.put("k", 999)
            self.commits.whenCommitted(again)
            self.put("l", 1)

        again(None)
        for turn in range(1, 4):
            self.clock.turn()
            self.assertEqual(len(rounds), turn + 1)
        self.commits.close()
        self.flushLoggedErrors(LogClosed)

    def test_callbackCloses(self) -> None:
        """
        If a callback closes, the others are told all the same, and appends
        are refused from then on.
        """
        self.put("a")
        self.commits.whenCommitted(lambda verdict: self.commits.close())
        self.commits.whenCommitted(lambda verdict: self.put("b"))
        self.tell("last")
        self.clock.turn()
        self.assertEqual(len(self.flushLoggedErrors(LogClosed)), 1)
        self.assertEqual(self.toldNames(lost=False), ["last"])
        self.assertEqual((self.stored(), self.clock.getDelayedCalls()), (["a"], []))

    def test_close(self) -> None:
        """
        Closing commits and tells before it returns.
        """
        self.put("a")
        self.tell("waiting")
        self.commits.close()
        self.assertEqual((self.stored(), self.told), (["a"], [("waiting", None)]))
        self.assertRaises(LogClosed, self.put, "b")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeFails(self) -> None:
        """
        If the last commit fails, those who ask after closing are told as well.
        """
        self.put("a")
        self.tell("before")
        self.environment.error = DISK_FULL
        self.commits.close()
        self.tell("after")
        self.assertEqual(self.toldNames(lost=True), ["before", "after"])

    def test_commitFails(self) -> None:
        """
        A commit that fails loses all appends of the turn, everybody who waits
        is told in words, and the next turn's appends are taken again.
        """
        self.put("a")
        self.tell("first")
        self.environment.error = DISK_FULL
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["first"])
        self.assertIn("disk is full", str(self.told[0][1]))
        self.assertEqual(self.calls, ["prepare", "revert", "announce"])
        self.environment.error = None
        self.put("b")
        self.tell("second")
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=False), ["second"])
        self.assertEqual(self.stored(), ["b"])

    def test_boundFails(self) -> None:
        """
        If the append that brings about a commit loses it, that is said at once;
        callbacks hear of it in their turn.
        """
        self.put("a")
        self.tell("waiting")
        self.environment.error = DISK_FULL
        self.assertRaises(LogFailed, self.put, "b", 1000)
        self.assertEqual(self.told, [])
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["waiting"])

    def test_lostWithinTurn(self) -> None:
        """
        After a loss nothing is taken for the rest of the turn, and who asks
        then is told of the loss.
        """
        self.put("a")
        failure = self.commits.lose(lmdb.MapFullError("mdb_put"))
        self.assertIn("map size", str(failure))
        self.assertRaises(LogFailed, self.put, "b")
        self.tell("of a")
        self.assertEqual(self.told, [])
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["of a"])
        self.put("c")
        self.clock.turn()
        self.assertEqual(self.stored(), ["c"])

    def test_callbackOfLoss(self) -> None:
        """
        Who is told of a loss may append at once.
        """
        self.put("a")
        self.commits.whenCommitted(lambda verdict: self.put("b"))
        self.environment.error = DISK_FULL
        self.clock.turn()
        self.environment.error = None
        self.clock.turn()
        self.assertEqual(self.stored(), ["b"])

    def test_mapFull(self) -> None:
        """
        A transaction that outgrows the map is given up without a trace.
        """
        self.put("a")
        error = self.assertRaises(lmdb.MapFullError, self.commits.open().put, b"b", bytes(2 << 20))
        self.commits.lose(error)
        self.clock.turn()
        self.assertEqual(self.stored(), [])
        self.put("c")
        self.clock.turn()
        self.assertEqual(self.stored(), ["c"])

    def test_exclusive(self) -> None:
        """
        An exclusive transaction commits what is pending first, and itself
        before the block ends; nobody is called meanwhile.
        """
        self.put("a")
        self.tell("of a")
        with self.commits.exclusive() as transaction:
            self.assertEqual(self.stored(), ["a"])
            transaction.put(b"b", b"", db=self.storage.batches)
        self.assertEqual((self.stored(), self.told), (["a", "b"], []))
        self.assertEqual(self.calls, ["prepare", "settle", "settle"])
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=False), ["of a"])

    def test_exclusiveRaises(self) -> None:
        """
        What is raised inside an exclusive transaction undoes it and comes out.
        """

        def use() -> None:
            with self.commits.exclusive() as transaction:
                transaction.put(b"a", b"", db=self.storage.batches)
                raise KeyError("enough")

        self.assertRaises(KeyError, use)
        self.assertEqual(self.stored(), [])
        self.put("b")
        self.clock.turn()
        self.assertEqual(self.stored(), ["b"])

    def test_exclusiveFails(self) -> None:
        """
        An exclusive transaction that cannot be committed is refused in words.
        """

        def use() -> None:
            with self.commits.exclusive() as transaction:
                transaction.put(b"a", b"", db=self.storage.batches)

        self.environment.error = DISK_FULL
        self.assertIn("disk is full", str(self.assertRaises(LogFailed, use)))
        self.assertEqual(self.stored(), [])

    def test_exclusiveAfterClose(self) -> None:
        """
        After closing there are no exclusive transactions either.
        """
        self.commits.close()
        self.assertRaises(LogClosed, self.commits.exclusive().__enter__)

    def test_beginFails(self) -> None:
        """
        If there is no transaction to be had, the append is refused.
        """
        self.storage.environment.close()
        self.assertRaises(LogFailed, self.put, "a")
        self.assertRaises(LogFailed, self.commits.exclusive().__enter__)

    def test_wake(self) -> None:
        """
        A turn can be had without an append, once.
        """
        self.commits.wake()
        self.commits.wake()
        self.clock.turn()
        self.assertEqual(self.calls, ["announce"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_logging(self) -> None:
        """
        Many failures are one line, and so are the first success after a while
        without any.
        """
        with capturedLogs() as events:
            for _ in range(5):
                self.environment.error = DISK_FULL
                self.put("a")
                self.clock.turn()
                self.environment.error = None
                self.put("b")
                self.clock.advance(1.0)
            self.put("c")
            self.clock.advance(20.0)
            self.put("d")
            self.clock.turn()
        lines = [event["log_level"] for event in events if event["log_namespace"].startswith("admission")]
        self.assertEqual(lines, [LogLevel.critical, LogLevel.info])
        self.assertIn("make room", events[0]["reason"])
