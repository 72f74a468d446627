"""Tests for L{admission.profiling.profiler}."""

from __future__ import annotations

from twisted.internet.defer import CancelledError

from admission.profiling.profiler import MIN_SECONDS, REST_SECONDS, TURN_SECONDS, ProfilerStopped
from tests.unit.profiling.profiledthings import ProfilerTestCase, Thing


class ProfilerTests(ProfilerTestCase):
    """Snapshots."""

    def test_turns(self) -> None:
        """It works for a few milliseconds at a time and rests in between."""
        self.things = [[number, [number]] for number in range(40_000)]
        taken = self.profiler.take()
        self.assertNoResult(taken)
        self.assertEqual(len(self.clock.calls), 1)
        self.clock.advance(REST_SECONDS)
        self.assertNoResult(taken)
        self.clock.advance(30)
        cost = self.successResultOf(taken)["cost"]
        self.assertLess(cost["longestTurnSeconds"], TURN_SECONDS + 0.002)
        self.assertGreater(cost["workSeconds"], 3 * TURN_SECONDS)
        self.assertGreater(cost["seconds"], cost["workSeconds"] + 3 * REST_SECONDS)

    def test_oneAtATime(self) -> None:
        """A caller that asks while a snapshot is being taken gets that one."""
        first, second, third = self.profiler.take(), self.profiler.take(), self.profiler.ask()
        self.clock.advance(30)
        document = self.successResultOf(first)
        self.assertIs(self.successResultOf(second), document)
        self.assertIs(self.successResultOf(third), document)
        self.assertEqual(document["number"], 1)

    def test_notTooOften(self) -> None:
        """A caller that asks soon after gets the snapshot that there is; later, another one."""
        asked = self.profiler.ask()
        self.clock.advance(1)
        document = self.successResultOf(asked)
        self.assertIs(self.successResultOf(self.profiler.ask()), document)
        self.clock.advance(MIN_SECONDS)
        again = self.profiler.ask()
        self.clock.advance(30)
        self.assertEqual(self.successResultOf(again)["number"], 2)

    def test_fails(self) -> None:
        """A failure reaches everybody who waits, and the next one may succeed."""
        books = self.profiler._claims
        self.profiler._claims = lambda: {}["no such book"]
        waiting = [self.profiler.take(), self.profiler.take()]
        self.clock.advance(30)
        for each in waiting:
            self.failureResultOf(each, KeyError)
        self.profiler._claims = books
        self.assertEqual(self.take()["number"], 1)

    def test_cancel(self) -> None:
        """A caller that does not want to wait any more does not keep others from the snapshot."""
        impatient, patient = self.profiler.take(), self.profiler.take()
        impatient.cancel()
        self.failureResultOf(impatient, CancelledError)
        self.clock.advance(30)
        self.successResultOf(patient)

    def test_stop(self) -> None:
        """Stopping cancels all timers, and tells those that wait."""
        self.things = [[number] for number in range(40_000)]
        taken = self.profiler.take()
        self.profiler.stop()
        self.failureResultOf(taken, ProfilerStopped)
        self.assertEqual(self.clock.calls, [])

    def test_nothingStays(self) -> None:
        """What was looked at is not kept alive."""
        gone: list[int] = []

        class Mortal(Thing):
            def __del__(self) -> None:
                gone.append(1)

        self.things = [Mortal() for _ in range(5)]
        self.take()
        self.things.clear()
        self.assertEqual(len(gone), 5)
