"""Tests for L{admission.kafka.storage.flushing}."""

import errno
from collections.abc import Callable
from functools import partial

from hypothesis import given, strategies as st
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.flushing import MAX_THREADS, RETRY_SECONDS, DeferToThread, Flusher, Round
from tests.kit.logfixture import Threads, storageError


class FlusherTests(SynchronousTestCase):
    """L{Flusher} flushes in rounds."""

    def setUp(self) -> None:
        """Flush one thing every second, and note what happens."""
        self.clock = Clock()
        self.threads = Threads()
        self.reports: list[str] = []
        self.error: Exception | None = None
        self.flushes: list[Callable[[], object]] = [partial(self.flush, "flushed")]
        self.flusher = self.build(self.threads.deferToThread)

    def build(self, deferToThread: DeferToThread) -> Flusher:
        """One that reports what it does."""
        return Flusher(self.clock, deferToThread, 1.0, self.begin, partial(self.reports.append, "failed"))

    def flush(self, name: str) -> None:
        """Flush, or fail."""
        if self.error is not None:
            raise self.error
        self.reports.append(name)

    def begin(self, isEverything: bool) -> Round:
        """A round with all that is to be flushed."""
        self.reports.append("everything" if isEverything else "urgent")
        return Round(list(self.flushes), partial(self.reports.append, "succeeded"))

    def happened(self) -> list[str]:
        """What has happened since this was last asked."""
        reports, self.reports[:] = list(self.reports), []
        return reports

    def test_idle(self) -> None:
        """Nothing is done while nothing is written."""
        self.clock.advance(10.0)
        self.assertEqual((self.reports, self.clock.getDelayedCalls()), ([], []))

    def test_interval(self) -> None:
        """All that is written within an interval is flushed once, at its end."""
        self.flusher.written()
        self.clock.advance(0.5)
        self.flusher.written()
        self.assertEqual(self.happened(), [])
        self.clock.advance(0.5)
        self.assertEqual(self.happened(), ["everything"])
        self.threads.run()
        self.clock.advance(10.0)
        self.assertEqual((self.happened(), self.threads.waiting), (["flushed", "succeeded"], []))

    def test_soon(self) -> None:
        """What somebody waits for is flushed at once, and nothing else is."""
        self.flusher.soon()
        self.assertEqual(self.happened(), ["urgent"])
        self.threads.run()
        self.assertEqual(self.happened(), ["flushed", "succeeded"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_slow(self) -> None:
        """A disk that takes long is a problem as long as it does, and the log says afterwards how long that was."""
        for lastedSeconds, delay in ((8.0, None), (12.0, "a flush to the disk has not ended for 12 s")):
            self.flusher.soon()
            self.clock.advance(lastedSeconds)
            if delay is None:
                self.assertIsNone(self.flusher.delay)
            else:
                self.assertIn(delay, str(self.flusher.delay))
            with capturedLogs() as logged:
                self.threads.run()
            self.assertIsNone(self.flusher.delay)
            self.assertEqual(
                [(event["log_level"], event["seconds"]) for event in logged],
                [] if delay is None else [(LogLevel.warn, lastedSeconds)],
            )
        self.assertIsNone(self.flusher.problem)

    def test_noDescriptor(self) -> None:
        """
        A round that had no descriptor left is tried again until it has one, and loses nothing: those that wait go on
        waiting, and it is told why.
        """
        for code in (errno.EMFILE, errno.ENFILE):
            self.error = storageError(code)
            self.flusher.soon()
            with capturedLogs() as logged:
                for _ in range(3):
                    self.threads.run()
                    self.assertEqual((self.threads.waiting, self.flusher.problem), ([], None))
                    self.assertIn("too many files are open", str(self.flusher.delay))
                    self.clock.advance(RETRY_SECONDS)
            self.assertEqual([event["log_level"] for event in logged], [LogLevel.error])
            self.error = None
            self.threads.run()
            self.assertEqual(self.happened(), ["urgent", "flushed", "succeeded"])
            self.assertIsNone(self.flusher.delay)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_noDescriptorAndWorse(self) -> None:
        """If another part of the round has come to the disk and failed, that is final."""
        errors = [storageError(errno.EMFILE), storageError(errno.EIO)]

        def fail() -> None:
            raise errors.pop()

        self.flushes[:] = [fail, fail]
        self.flusher.soon()
        with capturedLogs():
            for _ in range(2):
                self.threads.run()
        self.assertIn("the disk failed", str(self.flusher.problem))
        self.assertEqual(self.happened(), ["urgent", "failed"])

    def test_oneAtATime(self) -> None:
        """A caller that comes during a round shares the next one, which begins when that has ended."""
        self.flusher.soon()
        for _ in range(3):
            self.flusher.soon()
        self.assertEqual((self.happened(), len(self.threads.waiting)), (["urgent"], 1))
        self.threads.run()
        self.assertEqual(self.happened(), ["flushed", "succeeded", "urgent"])
        self.threads.run()
        self.assertEqual((self.happened(), self.threads.waiting), (["flushed", "succeeded"], []))

    def test_toldTogether(self) -> None:
        """Callers that wait again as soon as they are told wait for the same next round as the others that are told."""

        def succeeded() -> None:
            self.reports.append("told")
            self.flusher.soon()
            self.reports.append("told, too")
            self.flusher.soon()

        def begin(isEverything: bool) -> Round:
            self.reports.append("begun")
            return Round([self.flushes[0]], succeeded)

        self.patch(self, "begin", begin)
        self.flusher = self.build(self.threads.deferToThread)
        self.flusher.soon()
        self.threads.run()
        self.assertEqual(self.happened(), ["begun", "flushed", "told", "told, too", "begun"])

    def test_dueDuringRound(self) -> None:
        """If the interval ends during a round, the next one flushes everything, and serves those that wait as well."""
        self.flusher.written()
        self.flusher.soon()
        self.flusher.soon()
        self.clock.advance(1.0)
        self.threads.run()
        self.assertEqual(self.happened(), ["urgent", "flushed", "succeeded", "everything"])
        self.threads.run()
        self.assertEqual((self.happened(), self.threads.waiting), (["flushed", "succeeded"], []))

    def test_writtenDuringRound(self) -> None:
        """What is written during a round is flushed after another interval."""
        self.flusher.written()
        self.clock.advance(1.0)
        self.flusher.written()
        self.threads.run()
        self.happened()
        self.clock.advance(0.9)
        self.assertEqual(self.happened(), [])
        self.clock.advance(0.1)
        self.assertEqual(self.happened(), ["everything"])
        self.threads.run()

    def test_nothingToFlush(self) -> None:
        """A round of nothing succeeds without a thread."""
        self.flushes = []
        self.flusher.soon()
        self.assertEqual((self.happened(), self.threads.waiting), (["urgent", "succeeded"], []))

    @given(st.integers(0, 30))
    def test_threads(self, count: int) -> None:
        """A few threads share a round; each thing is flushed once, and the round succeeds after the last."""
        self.threads.waiting.clear()
        self.happened()
        self.flusher = self.build(self.threads.deferToThread)
        self.flushes = [partial(self.flush, str(number)) for number in range(count)]
        self.flusher.soon()
        self.assertEqual(len(self.threads.waiting), min(count, MAX_THREADS))
        while self.threads.waiting:
            self.assertNotIn("succeeded", self.reports)
            self.threads.run()
        reports = self.happened()
        self.assertEqual((reports[0], reports[-1]), ("urgent", "succeeded"))
        self.assertEqual(sorted(map(int, reports[1:-1])), list(range(count)))

    def test_failure(self) -> None:
        """A flush that fails is the last one, however often somebody asks, and says what to do."""
        self.error = storageError(errno.EIO)
        self.flusher.written()
        self.flusher.soon()
        self.flusher.soon()
        with capturedLogs() as events:
            self.threads.run()
        self.assertEqual(self.happened(), ["urgent", "failed"])
        self.assertEqual([event["log_level"] for event in events], [LogLevel.critical])
        problem = self.flusher.problem
        assert problem is not None
        self.assertIn("replace it", problem)
        self.assertIn("then restart", problem)
        self.error = None
        self.flusher.soon()
        self.flusher.written()
        self.clock.advance(10.0)
        self.assertEqual((self.happened(), self.threads.waiting), ([], []))
        self.successResultOf(self.flusher.close())
        self.assertEqual((self.happened(), self.threads.waiting), ([], []))

    def test_failureAmongOthers(self) -> None:
        """If one of several flushes fails, the round fails when all threads are done: they use descriptors."""

        def fail() -> None:
            raise storageError(errno.EIO)

        self.flushes = [partial(self.flush, "a"), fail, partial(self.flush, "b")]
        self.flusher.soon()
        for _ in range(2):
            self.threads.run()
            self.assertIsNone(self.flusher.problem)
        with capturedLogs():
            self.threads.run()
        self.assertEqual(self.happened(), ["urgent", "a", "b", "failed"])

    def test_noThread(self) -> None:
        """To be refused a thread is a failure like any other."""

        def refuse(*_: object) -> Deferred[None]:
            raise RuntimeError("no more threads")

        flusher = self.build(refuse)
        with capturedLogs():
            flusher.soon()
        self.assertEqual(self.happened(), ["urgent", "failed"])
        self.assertIn("no more threads", str(flusher.problem))

    def test_close(self) -> None:
        """Closing flushes everything at once and waits for that."""
        self.flusher.written()
        closed = self.flusher.close()
        self.assertNoResult(closed)
        self.threads.run()
        self.successResultOf(closed)
        self.assertEqual(self.happened(), ["everything", "flushed", "succeeded"])
        self.flusher.written()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeDuringRound(self) -> None:
        """Closing during a round waits for it and for a last one."""
        self.flusher.soon()
        closed = self.flusher.close()
        self.threads.run()
        self.assertNoResult(closed)
        self.threads.run()
        self.successResultOf(closed)
        self.assertEqual(self.happened(), ["urgent", "flushed", "succeeded", "everything", "flushed", "succeeded"])

    def test_closeFails(self) -> None:
        """A last flush that fails is told like any other, and closing ends."""
        self.error = storageError(errno.EIO)
        closed = self.flusher.close()
        with capturedLogs():
            self.threads.run()
        self.successResultOf(closed)
        self.assertEqual(self.happened(), ["everything", "failed"])

    def test_failedDuringClose(self) -> None:
        """If the round that is going on fails, closing does not flush again."""
        self.flusher.soon()
        closed = self.flusher.close()
        self.error = storageError(errno.EIO)
        with capturedLogs():
            self.threads.run()
        self.successResultOf(closed)
        self.assertEqual(self.happened(), ["urgent", "failed"])

    def test_reentrant(self) -> None:
        """A caller that is told of a success may ask for the next round, and close."""
        rounds: list[int] = []
        closed: list[Deferred[None]] = []

        def succeeded() -> None:
            rounds.append(len(rounds))
            if len(rounds) < 3:
                flusher.soon()
            elif len(rounds) == 3:
                closed.append(flusher.close())

        flusher = Flusher(self.clock, maybeDeferred, 1.0, lambda _: Round([lambda: None], succeeded), lambda: None)
        flusher.soon()
        self.successResultOf(closed[0])
        self.assertEqual(rounds, [0, 1, 2, 3])
