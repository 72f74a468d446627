"""Tests for L{admission.timeslices}."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.timeslices import Places, Steps, TimeSlices

SLICE_SECONDS = 0.01
STEP_SECONDS = 0.0005


class TimeSlicesTests(SynchronousTestCase):
    """L{TimeSlices} does work in slices."""

    def setUp(self) -> None:
        """Share the time of a clock that only work moves."""
        self.clock = Clock()
        self.slices = TimeSlices(self.clock, SLICE_SECONDS)
        self.done: list[str] = []
        self.closed: list[str] = []

    def work(self, name: str, stepCount: int, then: Callable[[], Any] = lambda: None) -> Steps[Any]:
        """Work of steps that take half a millisecond each."""
        try:
            for _ in range(stepCount):
                # Not by advance(), which would run the next slice in the middle of this one.
                self.clock.rightNow += STEP_SECONDS
                self.done.append(name)
                yield None
            return then()
        finally:
            self.closed.append(name)

    def run_(self, name: str, stepCount: int, holder: str = "", then: Callable[[], Any] = lambda: None) -> Any:
        """Do work that returns its name."""
        return self.slices.run(holder or name, self.work(name, stepCount, then))

    def turn(self) -> list[str]:
        """
        Let a turn pass.

        @return: the names of the work that was done, a name for each step.
        """
        self.done.clear()
        # Not by advance(), which would run what is called later in a turn in the same turn.
        calls = list(self.clock.calls)
        self.clock.calls.clear()
        for call in calls:
            call.called = 1
            call.func(*call.args)
        return list(self.done)

    def spend(self) -> None:
        """Use up what may be done at once."""
        self.run_("spent", int(SLICE_SECONDS / STEP_SECONDS))
        while self.clock.calls:
            self.turn()
        self.closed.clear()

    def test_short(self) -> None:
        """Short work is done at once."""
        self.assertEqual(self.run_("a", 3, then=lambda: "result"), "result")
        self.assertEqual((self.done, self.closed, self.clock.calls), (["a"] * 3, ["a"], []))

    def test_raises(self) -> None:
        """What it raises then reaches the caller that asked."""
        self.assertRaises(ZeroDivisionError, self.run_, "a", 3, then=lambda: 1 // 0)

    def test_long(self) -> None:
        """Long work is done a slice in each turn."""
        result = self.run_("a", 50, then=lambda: "result")
        self.assertEqual(len(self.done), 20)
        self.assertEqual(len(self.turn()), 20)
        self.assertNoResult(result)
        self.assertEqual(len(self.turn()), 10)
        self.assertEqual((self.successResultOf(result), self.clock.calls), ("result", []))

    def test_credit(self) -> None:
        """What was done at once is earned again in twice the time."""
        self.spend()
        self.clock.advance(2 * STEP_SECONDS * 4)
        result = self.run_("a", 6)
        self.assertEqual(self.done[-4:], ["a"] * 4)
        self.turn()
        self.successResultOf(result)

    def test_fails(self) -> None:
        """Work that raises later fails, and other work goes on."""
        self.spend()
        failing, other = self.run_("a", 3, then=lambda: 1 // 0), self.run_("b", 30)
        self.turn()
        self.failureResultOf(failing, ZeroDivisionError)
        self.turn()
        self.successResultOf(other)

    def test_holders(self) -> None:
        """Holders have equal shares, whatever they ask for; each has a millisecond at a time."""
        self.spend()
        for _ in range(5):
            self.run_("many", 100, "greedy")
        self.run_("one", 100, "modest")
        self.assertEqual(self.turn(), (["many"] * 2 + ["one"] * 2) * 5)

    def test_leastTime(self) -> None:
        """Of the work of one holder that which has had the least time is done first."""
        self.spend()
        for name in ("long", "longer", "short"):
            self.run_(name, 3 if name == "short" else 100, "holder")
        self.assertEqual(self.turn()[:9], ["long"] * 2 + ["longer"] * 2 + ["short"] * 2 + ["long"] * 2 + ["longer"])

    def test_cancel(self) -> None:
        """Work that is cancelled is closed, and not done any more."""
        self.spend()
        result = self.run_("a", 30)
        self.turn()
        result.cancel()
        self.failureResultOf(result, CancelledError)
        self.assertEqual((self.closed, self.turn(), self.clock.calls), (["a"], [], []))

    def test_cancelsItself(self) -> None:
        """Work may be cancelled by what it does."""
        self.spend()
        results: list[Deferred[Any]] = []

        def cancelling() -> Steps[None]:
            try:
                yield None
                results[0].cancel()
                yield None
                self.fail("it goes on")
            finally:
                self.closed.append("a")

        results.append(self.slices.run("a", cancelling()))  # type: ignore[arg-type]
        self.turn()
        self.failureResultOf(results[0], CancelledError)
        self.assertEqual(self.closed, ["a"])

    def test_waits(self) -> None:
        """Work that yields a Deferred goes on as soon as that fires, within that, and takes no time meanwhile."""
        for isSpent in (False, True):
            if isSpent:
                self.spend()
            awaited: Deferred[str] = Deferred()

            def waiting(awaited: Deferred[str] = awaited) -> Steps[str]:
                yield None
                yield awaited
                self.done.append("after")
                return "result"

            result = self.slices.run("a", waiting())
            assert isinstance(result, Deferred)
            while self.clock.calls:
                self.turn()
            self.done.clear()
            awaited.callback("anything")
            self.assertEqual(self.done, ["after"])
            self.assertEqual(self.successResultOf(result), "result")

    def test_waitsInVain(self) -> None:
        """If what it waits for fails, it fails; if it is cancelled, so is what it waits for."""
        for end, error in (
            (lambda awaited, result: awaited.errback(OSError()), OSError),
            (_cancelSecond, CancelledError),
        ):
            awaited: Deferred[None] = Deferred()

            def waiting(awaited: Deferred[None] = awaited) -> Steps[None]:
                try:
                    yield awaited
                finally:
                    self.closed.append("a")

            result = self.slices.run("a", waiting())
            assert isinstance(result, Deferred)
            end(awaited, result)
            self.failureResultOf(result, error)
            self.assertEqual((self.closed.pop(), awaited.called), ("a", True))

    def test_resultIsAwaited(self) -> None:
        """If work returns a Deferred, its result is waited for, and cancelled in its place."""
        self.spend()
        for isCancelled in (False, True):
            inner: Deferred[str] = Deferred()
            result = self.run_("a", 1, then=partial(_same, inner))
            self.turn()
            self.assertNoResult(result)
            if isCancelled:
                result.cancel()
                self.failureResultOf(result, CancelledError)
            else:
                inner.callback("result")
                self.assertEqual(self.successResultOf(result), "result")

    def test_usedSeconds(self) -> None:
        """How much time work has had is told before its result."""
        told: list[float] = []
        result = self.slices.run("a", self.work("a", 30), told.append)
        self.run_("b", 30)
        for _ in range(4):
            self.turn()
        self.successResultOf(result)
        self.assertAlmostEqual(told.pop(), 30 * STEP_SECONDS)

    def test_close(self) -> None:
        """Closing cancels the work that is not done."""
        self.spend()
        results = [self.run_(name, 30) for name in "ab"]
        self.turn()
        self.slices.close()
        for result in results:
            self.failureResultOf(result, CancelledError)
        self.assertEqual((sorted(self.closed), self.clock.calls), (["a", "b"], []))

    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.sampled_from(["", "raise", "cancel", "more"])),
            max_size=12,
        )
    )
    def test_any(self, asked: list[tuple[str, int, str]]) -> None:
        """
        Whatever work does, all of it ends once, nothing takes longer than a slice and a step in a turn, and no timer
        is left.
        """
        self.setUp()
        ends: list[int] = []
        started: list[Deferred[Any]] = []

        def begin(number: int, holder: str, stepCount: int, act: str) -> None:
            def then() -> None:
                if act == "raise":
                    raise ZeroDivisionError
                if act == "cancel":
                    started[len(started) // 2].cancel()
                if act == "more":
                    begin(number + 100, holder, stepCount, "")

            try:
                result = self.run_(str(number), stepCount, holder, then)
            except (ZeroDivisionError, IndexError):
                ends.append(number)
                return
            if isinstance(result, Deferred):
                started.append(result)
                result.addBoth(lambda _: ends.append(number))
            else:
                ends.append(number)

        for number, (holder, stepCount, act) in enumerate(asked):
            begin(number, holder, stepCount, act)
        while self.clock.calls:
            before = self.clock.seconds()
            self.turn()
            # What is begun by what is done may be done at once, too.
            self.assertLessEqual(self.clock.seconds() - before, 2 * SLICE_SECONDS + 2 * STEP_SECONDS)
        self.assertEqual(len(set(ends)), len(ends))
        self.assertGreaterEqual(len(ends), len(asked))


def _cancelSecond(awaited: Deferred[None], result: Deferred[None]) -> None:
    result.cancel()


def _same(inner: Deferred[str]) -> Deferred[str]:
    return inner


class PlacesTests(SynchronousTestCase):
    """L{Places} are had by few at a time."""

    def setUp(self) -> None:
        self.places = Places(2)
        self.had: list[str] = []

    def take(self, holder: str) -> Deferred[None] | None:
        """Have a place, now or later."""
        place = self.places.take(holder)
        if place is None:
            self.had.append(holder)
        else:
            place.addCallbacks(lambda _: self.had.append(holder), lambda failure: failure.trap(CancelledError))
        return place

    def test_round(self) -> None:
        """Waiters have them by turns with their holders, and a waiter that is gone has none."""
        waiting = [self.take(holder) for holder in ("many", "many", "many", "gone", "many", "many", "one")]
        self.assertEqual(self.had, ["many", "many"])
        gone = waiting[3]
        assert gone is not None
        gone.cancel()
        for _ in range(6):
            self.places.give()
        self.assertEqual(self.had[2:], ["many", "one", "many", "many"])
        self.assertEqual(self.places.free, 2)

    @given(st.lists(st.sampled_from(["a", "b", "c", "give", "cancel"])))
    def test_adds(self, steps: list[str]) -> None:
        """Whatever happens, nobody waits while a place is free, and none gets lost."""
        self.setUp()
        waiting: list[Deferred[None]] = []
        givenBack = 0
        for step in steps:
            if step == "give":
                if len(self.had) > givenBack:
                    givenBack += 1
                    self.places.give()
            elif step == "cancel":
                if waiting:
                    waiting[0].cancel()
            else:
                place = self.take(step)
                waiting += [place] if place is not None else []
            waiting = [each for each in waiting if not each.called]
            self.assertEqual(self.places.free, 2 - (len(self.had) - givenBack))
            self.assertTrue(self.places.free == 0 or not waiting)
