"""Tests for L{admission.kafka.storage.groupcommit}."""

import errno

from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.groupcommit import GroupCommit
from admission.kafka.storage.itable import LogClosed, LogFailed
from tests.kit.logfixture import TurnClock, storageError

DISK_FULL = storageError(errno.ENOSPC)


class GroupCommitTests(SynchronousTestCase):
    """L{GroupCommit} writes once for all appends of a turn."""

    def setUp(self) -> None:
        """Have a list for a log, and note down which hooks are called."""
        self.clock = TurnClock()
        self.pending: list[str] = []
        self.stored: list[str] = []
        self.calls: list[str] = []
        self.writeError: Exception | None = None
        self.revertError: Exception | None = None
        self.commits = GroupCommit(
            self.clock,
            write=self.write,
            settle=self.settle,
            revert=self.revert,
            announce=lambda: self.calls.append("announce"),
            maxPendingBytes=1000,
        )
        self.addCleanup(self.commits.close)
        self.told: list[tuple[str, Exception | None]] = []

    def write(self) -> None:
        """Write, or fail."""
        self.calls.append("write")
        if self.writeError is not None:
            raise self.writeError

    def settle(self) -> None:
        """Keep what was written."""
        self.calls.append("settle")
        self.stored += self.pending
        self.pending.clear()

    def revert(self) -> None:
        """Discard what was not, or fail."""
        self.calls.append("revert")
        self.pending.clear()
        if self.revertError is not None:
            raise self.revertError

    def put(self, key: str, sizeBytes: int = 1, isKept: bool = True, tells: str = "") -> None:
        """Append something, and have it noted down what is told about that."""
        self.commits.check()
        self.pending.append(key)
        self.commits.appended(sizeBytes, isKept)
        if tells:
            self.tell(tells)

    def tell(self, name: str) -> None:
        """Have it noted down what is told about the appends so far."""
        self.commits.whenCommitted(lambda verdict: self.told.append((name, verdict)))

    def toldNames(self, *, lost: bool) -> list[str]:
        """The names of those that were told that their appends are lost, or that they are not."""
        return [name for name, verdict in self.told if isinstance(verdict, LogFailed) == lost]

    def test_nextTurn(self) -> None:
        """Appends are written together in the next turn, then callbacks are called in order, then changes announced."""
        self.put("a", tells="first")
        self.put("b", tells="second")
        self.assertEqual((self.stored, self.told, len(self.clock.getDelayedCalls())), ([], [], 1))
        self.clock.turn()
        self.assertEqual(self.stored, ["a", "b"])
        self.assertEqual(self.told, [("first", None), ("second", None)])
        self.assertEqual(self.calls, ["write", "settle", "announce"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingPending(self) -> None:
        """A caller that waits for nothing is told at once; to commit nothing writes nothing."""
        self.tell("now")
        self.commits.commit()
        self.assertEqual((self.told, self.calls), ([("now", None)], []))

    def test_nothingPendingRaises(self) -> None:
        """A callback that is called at once and raises does not hurt its caller."""
        self.commits.whenCommitted(lambda verdict: 1 // 0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_bound(self) -> None:
        """Enough bytes are written at once, but callbacks wait for their turn."""
        self.put("a", 500, tells="waiting")
        self.put("b", 500)
        self.assertEqual((self.stored, self.told), (["a", "b"], []))
        self.put("c", 999)
        self.assertEqual(self.stored, ["a", "b"])
        self.clock.turn()
        self.assertEqual((self.stored, self.told), (["a", "b", "c"], [("waiting", None)]))

    def test_notKept(self) -> None:
        """What cannot be kept until the next turn is written at once, with all before it."""
        self.put("a")
        self.put("b", isKept=False, tells="waiting")
        self.put("c")
        self.assertEqual((self.stored, self.told), (["a", "b"], [("waiting", None)]))
        self.clock.turn()
        self.assertEqual(self.stored, ["a", "b", "c"])

    def test_commit(self) -> None:
        """A commit in mid-turn writes what is pending; nobody is called meanwhile."""
        self.put("a", tells="of a")
        self.commits.commit()
        self.assertEqual((self.stored, self.told, self.calls), (["a"], [], ["write", "settle"]))
        self.clock.turn()
        self.assertEqual((self.told, self.calls), ([("of a", None)], ["write", "settle", "announce"]))

    def test_callbackRaises(self) -> None:
        """A callback that raises is logged, and the others are still called."""
        self.put("a", tells="before")
        self.commits.whenCommitted(lambda verdict: 1 // 0)
        self.tell("after")
        self.clock.turn()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.toldNames(lost=False), ["before", "after"])

    def test_callbackAppends(self) -> None:
        """What a callback appends belongs to the next turn, even if it is enough to be written at once."""

        def again(verdict: Exception | None) -> None:
            self.put("b", 1000, tells="again")
            self.put("c", tells="and again")

        self.put("a")
        self.commits.whenCommitted(again)
        self.tell("first")
        self.clock.turn()
        self.assertEqual(self.told, [("again", None), ("first", None)])
        self.assertEqual(self.stored, ["a", "b"])
        self.clock.turn()
        self.assertEqual(self.told, [("again", None), ("first", None), ("and again", None)])

    def test_endlessAppender(self) -> None:
        """A callback that always appends more does not keep the turn from ending."""
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
        """If a callback closes, the others are told all the same, and appends are refused from then on."""
        self.put("a")
        self.commits.whenCommitted(lambda verdict: self.commits.close())
        self.commits.whenCommitted(lambda verdict: self.put("b"))
        self.tell("last")
        self.clock.turn()
        self.assertEqual(len(self.flushLoggedErrors(LogClosed)), 1)
        self.assertEqual(self.toldNames(lost=False), ["last"])
        self.assertEqual((self.stored, self.clock.getDelayedCalls()), (["a"], []))

    def test_callbackAppendsAndCloses(self) -> None:
        """
        What a callback appends before it closes is written, and a callback that waits for it is called before the turn
        ends.
        """

        def last(verdict: Exception | None) -> None:
            self.put("b", tells="of b")
            self.commits.close()

        self.put("a")
        self.commits.whenCommitted(last)
        self.clock.turn()
        self.assertEqual((self.stored, self.told), (["a", "b"], [("of b", None)]))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_close(self) -> None:
        """Closing writes and tells before it returns."""
        self.put("a", tells="waiting")
        self.commits.close()
        self.assertEqual((self.stored, self.told), (["a"], [("waiting", None)]))
        self.assertRaises(LogClosed, self.put, "b")
        self.commits.wake()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeFails(self) -> None:
        """If the last write fails, those who ask after closing are told as well."""
        self.put("a", tells="before")
        self.writeError = DISK_FULL
        self.commits.close()
        self.tell("after")
        self.assertEqual(self.toldNames(lost=True), ["before", "after"])

    def test_writeFails(self) -> None:
        """
        A write that fails loses all appends of the turn, everybody who waits
        is told in words, and the next turn's appends are taken again.
        """
        self.put("a", tells="first")
        self.writeError = DISK_FULL
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["first"])
        self.assertIn("disk is full", str(self.told[0][1]))
        self.assertEqual(self.calls, ["write", "revert", "announce"])
        self.writeError = None
        self.put("b", tells="second")
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=False), ["second"])
        self.assertEqual(self.stored, ["b"])

    def test_refusedWrite(self) -> None:
        """A refusal of the log while it writes is told as it is."""
        self.put("a", tells="first")
        self.writeError = LogFailed("too many files")
        self.clock.turn()
        self.assertEqual((self.calls[-2:], str(self.told[0][1])), (["revert", "announce"], "too many files"))

    def test_boundFails(self) -> None:
        """
        If the append that brings about a write loses it, that is said at once;
        callbacks hear of it in their turn.
        """
        self.put("a", tells="waiting")
        self.writeError = DISK_FULL
        self.assertRaises(LogFailed, self.put, "b", 1000)
        self.assertEqual(self.told, [])
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["waiting"])

    def test_lostWithinTurn(self) -> None:
        """
        After a loss nothing is taken for the rest of the turn, and a caller that asks then is told of the loss, also if
        all was well before.
        """
        self.put("a", isKept=False, tells="of a")
        self.writeError = DISK_FULL
        self.assertRaises(LogFailed, self.put, "b", isKept=False)
        self.writeError = None
        self.assertRaises(LogFailed, self.put, "c")
        self.tell("of b")
        self.assertEqual(self.told, [("of a", None)])
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["of b"])
        self.put("d")
        self.clock.turn()
        self.assertEqual(self.stored, ["a", "d"])

    def test_callbackOfLoss(self) -> None:
        """A callback that is told of a loss may append at once."""
        self.put("a")
        self.commits.whenCommitted(lambda verdict: self.put("b"))
        self.writeError = DISK_FULL
        self.clock.turn()
        self.writeError = None
        self.clock.turn()
        self.assertEqual(self.stored, ["b"])

    def test_revertFails(self) -> None:
        """
        If what was lost cannot be reverted either, nothing is taken any more, and why is said for as long as that is
        so; those that wait are told all the same.
        """
        self.put("a", tells="of a")
        self.writeError, self.revertError = DISK_FULL, storageError(errno.EIO)
        self.clock.turn()
        self.assertEqual(self.toldNames(lost=True), ["of a"])
        self.writeError = self.revertError = None
        for _ in range(2):
            self.assertIn("then restart", str(self.assertRaises(LogFailed, self.put, "b")))
            self.clock.advance(100.0)
            self.assertIn("then restart", str(self.commits.problem))
        self.assertEqual(self.stored, [])

    def test_fail(self) -> None:
        """When the log has failed for good, nothing is taken any more, and what is pending is lost."""
        self.put("a", tells="of a")
        self.commits.fail("a flush failed")
        self.clock.turn()
        self.assertEqual(([str(verdict) for _, verdict in self.told], self.stored), (["a flush failed"], []))
        self.assertIn("a flush failed", str(self.assertRaises(LogFailed, self.put, "b")))
        self.commits.close()
        self.assertRaises(LogClosed, self.put, "b")

    def test_wake(self) -> None:
        """A turn can be had without an append, once."""
        self.commits.wake()
        self.commits.wake()
        self.clock.turn()
        self.assertEqual(self.calls, ["announce"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_problem(self) -> None:
        """A failure is a problem for a minute, longer if there are more."""
        self.assertIsNone(self.commits.problem)
        self.writeError = DISK_FULL
        for _ in range(2):
            self.put("a")
            self.clock.turn()
            self.assertIn("make room", str(self.commits.problem))
            self.clock.advance(50.0)
            self.assertIn("make room", str(self.commits.problem))
        self.clock.advance(10.0)
        self.assertIsNone(self.commits.problem)

    def test_logging(self) -> None:
        """Many failures are one line, and so is the first success after a while without any."""
        with capturedLogs() as events:
            for _ in range(5):
                self.writeError = DISK_FULL
                self.put("a")
                self.clock.turn()
                self.writeError = None
                self.put("b")
                self.clock.advance(1.0)
            self.put("c")
            self.clock.advance(20.0)
            self.put("d")
            self.clock.turn()
        lines = [event["log_level"] for event in events if event["log_namespace"].startswith("admission")]
        self.assertEqual(lines, [LogLevel.critical, LogLevel.info])
        self.assertIn("make room", events[0]["reason"])
