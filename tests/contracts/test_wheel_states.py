"""L{admission_plugins.wheel} against a model made of a dictionary."""

from __future__ import annotations

from itertools import accumulate

from attrs import define
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from twisted.trial.unittest import SynchronousTestCase

from admission_plugins.wheel import TimingWheel
from tests.contracts.test_wheel import SkewedClock

LEVELS = 6
SHARE = st.floats(0.0, 1.0, allow_nan=False)
FINE = st.integers(-2, 40).map(lambda quarters: quarters / 4)
"""Ticks and parts of them."""


@define(eq=False)
class Planned:
    """
    A call, as simply as it can be told.

    @ivar dueSeconds: when it is to be made.
    @ivar movedSeconds: when it was moved last by its own delay, which may be into the past: then it is due from there.
    @ivar then: what it does when it is made: the delay of another call, in
        ticks, and which of the others it cancels, as a share of all; or
        L{None}.
    """

    call: IDelayedCall
    dueSeconds: float
    then: tuple[float, float] | None = None
    movedSeconds: float = float("-inf")


class WheelMachine(RuleBasedStateMachine):
    """Sets, moves and cancels calls and the clock, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SkewedClock()
        self.planned: list[Planned] = []
        self.over: list[tuple[IDelayedCall, type[Exception]]] = []
        self.made: list[float] = []

    @initialize(
        tickSeconds=st.sampled_from([0.001, 0.1, 1.0]),
        size=st.sampled_from([2, 3, 20]),
        startSeconds=st.sampled_from([0.0, 12345.678]),
    )
    def start(self, tickSeconds: float, size: int, startSeconds: float) -> None:
        """Make a wheel."""
        self.clock.timers.advance(startSeconds)
        self.wheel = TimingWheel(self.clock, tickSeconds, size)

    def seconds(self, level: int, share: float, fineTicks: float) -> float:
        """A duration of the order of magnitude that C{level} wheels cover."""
        return (self.wheel.size**level * share + fineTicks) * self.wheel.tickSeconds

    def plan(self, delaySeconds: float, then: tuple[float, float] | None = None) -> None:
        """Set a call."""
        planned = Planned(self.wheel.callLater(delaySeconds, lambda: self.make(planned)), 0.0, then)
        planned.dueSeconds = self.clock.seconds() + delaySeconds
        self.planned.append(planned)

    def make(self, planned: Planned) -> None:
        """It is called."""
        now = self.clock.seconds()
        assert planned.dueSeconds <= now, f"early by {planned.dueSeconds - now} s"
        self.planned.remove(planned)
        self.over.append((planned.call, AlreadyCalled))
        self.made.append(planned.dueSeconds)
        if planned.then is not None:
            delayTicks, victim = planned.then
            self.plan(delayTicks * self.wheel.tickSeconds)
            self.drop(victim)

    def chosen(self, share: float) -> Planned:
        """One of the calls that are to come."""
        return self.planned[min(int(share * len(self.planned)), len(self.planned) - 1)]

    def drop(self, share: float) -> None:
        """Cancel one."""
        planned = self.chosen(share)
        planned.call.cancel()
        self.planned.remove(planned)
        self.over.append((planned.call, AlreadyCancelled))

    @rule(level=st.integers(0, LEVELS), share=SHARE, fineTicks=FINE, then=st.none() | st.tuples(FINE, SHARE))
    def callLater(self, level: int, share: float, fineTicks: float, then: tuple[float, float] | None) -> None:
        """Set a call."""
        self.plan(self.seconds(level, share, fineTicks), then)

    @rule(level=st.integers(0, LEVELS), share=SHARE, count=st.integers(2, 40))
    def callManyLater(self, level: int, share: float, count: int) -> None:
        """Set many that are due at nearly the same time."""
        for number in range(count):
            self.plan(self.seconds(level, share, number / 3))

    @precondition(lambda self: self.planned)
    @rule(share=SHARE)
    def cancel(self, share: float) -> None:
        """Cancel one."""
        self.drop(share)

    @precondition(lambda self: self.planned)
    @rule(which=SHARE, level=st.integers(0, LEVELS), share=SHARE, fineTicks=FINE)
    def reset(self, which: float, level: int, share: float, fineTicks: float) -> None:
        """Move one to a time from now."""
        planned = self.chosen(which)
        delaySeconds = self.seconds(level, share, fineTicks)
        planned.call.reset(delaySeconds)
        planned.dueSeconds = self.clock.seconds() + delaySeconds

    @precondition(lambda self: self.planned)
    @rule(which=SHARE, level=st.integers(0, LEVELS), share=SHARE, fineTicks=FINE, sign=st.sampled_from([1, -1]))
    def delay(self, which: float, level: int, share: float, fineTicks: float, sign: int) -> None:
        """Move one by so much."""
        planned = self.chosen(which)
        delaySeconds = self.seconds(level, share, fineTicks) * sign
        planned.call.delay(delaySeconds)
        planned.dueSeconds += delaySeconds
        planned.movedSeconds = self.clock.seconds()

    @rule(level=st.integers(0, LEVELS), share=SHARE, fineTicks=FINE)
    def advance(self, level: int, share: float, fineTicks: float) -> None:
        """
        Let time pass: what is due is called, and none before another that is
        due two ticks earlier; what calls themselves have set comes when it
        comes.
        """
        # At a whole tick, rounding decides.
        tickSeconds = self.wheel.tickSeconds * 1.000001
        isPlain = all(each.then is None for each in self.planned)
        self.made.clear()
        self.clock.timers.advance(max(self.seconds(level, share, fineTicks), 0.0))
        dueBefore = self.clock.seconds() - tickSeconds
        late = [each for each in self.planned if max(each.dueSeconds, each.movedSeconds) <= dueBefore]
        assert not late, late
        if isPlain:
            latest = accumulate(self.made, max)
            assert all(before - each < 2 * tickSeconds for before, each in zip(latest, self.made, strict=True)), (
                self.made
            )

    @rule(level=st.integers(0, LEVELS), share=SHARE)
    def setBack(self, level: int, share: float) -> None:
        """Set the wheel's clock back; the timer runs on."""
        self.clock.skewSeconds -= min(self.seconds(level, share, 0.0), self.clock.seconds())

    @rule()
    def shutdown(self) -> None:
        """Cancel everything."""
        self.wheel.shutdown()
        self.over += [(each.call, AlreadyCancelled) for each in self.planned]
        self.planned.clear()

    @invariant()
    def agrees(self) -> None:
        """The wheel holds what the model holds, in a single timer or none."""
        if not hasattr(self, "wheel"):
            return
        assert self.wheel.count == len(self.planned)
        assert set(self.wheel.getDelayedCalls()) == {each.call for each in self.planned}
        assert all(each.call.active() and each.call.getTime() == each.dueSeconds for each in self.planned)
        assert len(self.clock.getDelayedCalls()) == (1 if self.planned else 0)
        assert len(self.wheel._begins) == len(self.wheel._slots) < (64 * LEVELS if self.planned else 1)

    def teardown(self) -> None:
        """What is over stays over, and what is left is called in the end."""
        if not hasattr(self, "wheel"):
            return
        for call, error in self.over:
            try:
                call.cancel()
            except error:
                continue
            raise AssertionError(f"{call} can be cancelled")
        for each in self.planned:
            each.then = None
        now = self.clock.seconds()
        self.clock.timers.advance(2.0 + max([0.0, *(each.dueSeconds - now for each in self.planned)]))
        assert not self.planned, self.planned
        assert not self.clock.getDelayedCalls()


class WheelStatesTests(SynchronousTestCase):
    """Whatever is done to a wheel and its clock, calls are made when they are due."""

    def test_states(self) -> None:
        """Hypothesis finds no sequence of steps after which the wheel and the model differ."""
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            WheelMachine, settings=settings(max_examples=150, stateful_step_count=40)
        )
