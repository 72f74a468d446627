"""
Tests for L{admission.kafka.broker.log.syncing}.
"""

import errno
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.syncing import BackgroundSync, DeferToThread
from tests.kit.logfixture import Threads, storageError


class BackgroundSyncTests(SynchronousTestCase):
    """
    L{BackgroundSync} takes what was written to the disk.
    """

    def setUp(self) -> None:
        """
        Synchronise every second, counting.
        """
        self.clock = Clock()
        self.threads = Threads()
        self.count = 0
        self.error: Exception | None = None
        self.reports: list[str] = []
        self.sync = self.build(self.threads.deferToThread)

    def build(self, deferToThread: DeferToThread) -> BackgroundSync:
        """
        One that reports what it does.
        """
        begins, succeeded = partial(self.reports.append, "begins"), partial(self.reports.append, "succeeded")
        return BackgroundSync(self.clock, deferToThread, self.synchronise, 1.0, begins, succeeded)

    def synchronise(self) -> None:
        """
        Count, or fail.
        """
        if self.error is not None:
            raise self.error
        self.count += 1

    def finish(self) -> None:
        """
        Let the only thread finish.
        """
        self.assertEqual(len(self.threads.waiting), 1)
        self.threads.run()

    def test_idle(self) -> None:
        """
        Nothing is done while nothing is written.
        """
        self.clock.advance(10.0)
        self.assertEqual((self.threads.waiting, self.clock.getDelayedCalls()), ([], []))

    def test_interval(self) -> None:
        """
        All that is written within an interval is synchronised once, at its end.
        """
        self.sync.written()
        self.clock.advance(0.5)
        self.sync.written()
        self.assertEqual(self.threads.waiting, [])
        self.clock.advance(0.5)
        self.finish()
        self.clock.advance(10.0)
        self.assertEqual((self.count, self.threads.waiting), (1, []))

    def test_oneAtATime(self) -> None:
        """
        What is written during a synchronisation waits for its end and another
        interval.
        """
        self.sync.written()
        self.clock.advance(1.0)
        self.sync.written()
        self.clock.advance(10.0)
        self.finish()
        self.assertEqual(self.threads.waiting, [])
        self.clock.advance(1.0)
        self.finish()
        self.assertEqual(self.count, 2)

    def test_failure(self) -> None:
        """
        A failure is logged once, in words, and tried again after the interval
        until it succeeds, which is logged, too.
        """
        self.error = storageError(errno.ENOSPC)
        self.sync.written()
        with capturedLogs() as events:
            for _ in range(3):
                self.clock.advance(1.0)
                self.finish()
            self.error = None
            self.clock.advance(1.0)
            self.finish()
        self.assertEqual([event["log_level"] for event in events], [LogLevel.critical, LogLevel.info])
        self.assertIn("disk is full", events[0]["reason"])
        self.assertEqual(self.count, 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_noThread(self) -> None:
        """
        To be refused a thread is a failure like any other.
        """

        def refuse(function: object) -> Deferred[None]:
            raise RuntimeError("no more threads")

        sync = self.build(refuse)
        sync.written()
        with capturedLogs() as events:
            self.clock.advance(1.0)
        self.assertEqual([event["reason"] for event in events], ["no more threads"])
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)

    def test_close(self) -> None:
        """
        Closing synchronises at once and waits for that.
        """
        self.sync.written()
        closed = self.sync.close()
        self.assertNoResult(closed)
        self.finish()
        self.successResultOf(closed)
        self.sync.written()
        self.assertEqual((self.count, self.clock.getDelayedCalls()), (1, []))

    def test_closeWhileRunning(self) -> None:
        """
        Closing during a synchronisation waits for it and for a last one.
        """
        self.sync.written()
        self.clock.advance(1.0)
        closed = self.sync.close()
        self.finish()
        self.assertNoResult(closed)
        self.finish()
        self.successResultOf(closed)
        self.assertEqual(self.count, 2)

    def test_closeFails(self) -> None:
        """
        A last synchronisation that fails is logged and not repeated.
        """
        self.error = OSError("gone")
        closed = self.sync.close()
        with capturedLogs() as events:
            self.finish()
        self.successResultOf(closed)
        self.assertEqual([event["reason"] for event in events], ["gone"])
        self.assertEqual(self.threads.waiting, [])

    def test_soon(self) -> None:
        """
        What somebody waits for is synchronised in the next turn, and told of when it has been.
        """
        self.sync.written()
        self.sync.soon()
        self.sync.soon()
        self.assertEqual(self.reports, [])
        self.clock.advance(0)
        self.assertEqual(self.reports, ["begins"])
        self.finish()
        self.assertEqual(self.reports, ["begins", "succeeded"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_soonWhileRunning(self) -> None:
        """
        What is written and waited for during a synchronisation gets one of its own right after it.
        """
        self.sync.written()
        self.clock.advance(1.0)
        self.sync.written()
        self.sync.soon()
        self.finish()
        self.assertEqual(self.reports, ["begins", "succeeded", "begins"])
        self.finish()
        self.assertEqual((self.count, self.clock.getDelayedCalls()), (2, []))

    def test_soonForNothing(self) -> None:
        """
        Where nothing was written there is nothing to wait for.
        """
        self.sync.soon()
        self.assertEqual((self.threads.waiting, self.clock.getDelayedCalls()), ([], []))

    def test_failureIsNoSuccess(self) -> None:
        """
        Nobody is told that a synchronisation succeeded that did not.
        """
        self.error = OSError("gone")
        self.sync.written()
        self.sync.soon()
        self.clock.advance(0)
        with capturedLogs():
            self.finish()
        self.assertEqual(self.reports, ["begins"])
