"""The purgatories against a model made of a dictionary."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from attrs import define
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IPurgatory
from admission.testing.scriptedoperation import ScriptedOperation
from admission_plugins.purgatory import CallLaterPurgatory, WheelPurgatory
from admission_plugins.wheel import TimingWheel

KEYS = "abcd"
KEY = st.sampled_from(KEYS)
TICK_SECONDS = 0.001
WATCHED_KEYS: st.SearchStrategy[Collection[Hashable]] = st.lists(KEY, min_size=1, max_size=5)
DELAY_SECONDS = st.sampled_from([-1.0, 0.0, 0.0004, 0.001, 0.019, 0.02, 0.021, 0.4, 7.9, 8.1, 161.0, 4000.0, 1e8])
WHICH = st.integers(0, 1000)


@define
class Parked:
    """An operation that waits, as simply as it can be told."""

    keys: frozenset[Hashable]
    dueSeconds: float


class PurgatoryMachine(RuleBasedStateMachine):
    """Parks, completes, cancels and expires operations, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.purgatory = self.buildPurgatory()
        self.parked: dict[ScriptedOperation, Parked] = {}
        self.cancelled: list[ScriptedOperation] = []
        self.expected: dict[ScriptedOperation, list[str]] = {}
        self.expirations = 0

    def buildPurgatory(self) -> IPurgatory:
        """Make the purgatory."""
        return WheelPurgatory(TimingWheel(self.clock))

    def park(self, operation: ScriptedOperation, keys: Collection[Hashable]) -> None:
        """Park an operation that is not ready."""
        assert not self.purgatory.tryCompleteElseWatch(operation, keys)
        self.parked[operation] = Parked(frozenset(keys), self.clock.seconds() + operation.delaySeconds)

    def leave(self, operation: ScriptedOperation, *told: str) -> None:
        """An operation has left, and should have been told."""
        del self.parked[operation]
        self.expected[operation] += told
        if told == ("cancel",):
            self.cancelled.append(operation)

    def following(self, keys: Collection[Hashable], delaySeconds: float) -> None:
        """Park an operation from within another."""
        operation = ScriptedOperation(delaySeconds)
        self.expected[operation] = []
        self.park(operation, keys)

    def chosen(self, which: int) -> ScriptedOperation:
        """One of the operations that wait."""
        return list(self.parked)[which % len(self.parked)]

    @rule(
        keys=WATCHED_KEYS,
        delaySeconds=DELAY_SECONDS,
        then=st.none() | st.tuples(WATCHED_KEYS, DELAY_SECONDS.filter(lambda delay: delay > 0)),
    )
    def tryCompleteElseWatch(
        self, keys: Collection[Hashable], delaySeconds: float, then: tuple[Collection[Hashable], float] | None
    ) -> None:
        """Park an operation that may park another when it completes."""
        operation = ScriptedOperation(delaySeconds)
        if then is not None:
            operation.cues["complete"] = lambda _: self.following(*then)
        self.expected[operation] = []
        self.park(operation, keys)

    @rule(keys=WATCHED_KEYS)
    def completeAtOnce(self, keys: Collection[Hashable]) -> None:
        """An operation that is ready is not parked."""
        operation = ScriptedOperation(1.0, isReady=True)
        assert self.purgatory.tryCompleteElseWatch(operation, keys)
        self.expected[operation] = ["complete"]

    @precondition(lambda self: self.cancelled)
    @rule(which=WHICH, keys=WATCHED_KEYS, delaySeconds=DELAY_SECONDS)
    def parkAgain(self, which: int, keys: Collection[Hashable], delaySeconds: float) -> None:
        """Park one that was cancelled."""
        operation = self.cancelled.pop(which % len(self.cancelled))
        operation.isReady = False
        operation.delaySeconds = delaySeconds
        self.park(operation, keys)

    @precondition(lambda self: self.parked)
    @rule(which=st.lists(WHICH, min_size=1, max_size=10))
    def becomeReady(self, which: list[int]) -> None:
        """Conditions come true, unnoticed so far."""
        for each in which:
            self.chosen(each).isReady = True

    @rule(key=KEY)
    def checkAndComplete(self, key: str) -> None:
        """Operations that are ready complete."""
        ready = [each for each, parked in self.parked.items() if key in parked.keys and each.isReady]
        assert self.purgatory.checkAndComplete(key) == len(ready)
        for each in ready:
            self.leave(each, "complete")

    @precondition(lambda self: self.parked)
    @rule(which=WHICH)
    def forceComplete(self, which: int) -> None:
        """Complete one."""
        operation = self.chosen(which)
        assert operation.forceComplete()
        self.leave(operation, "complete")

    @precondition(lambda self: self.parked)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        """Cancel one."""
        operation = self.chosen(which)
        assert operation.cancel()
        self.leave(operation, "cancel")

    @rule(key=KEY)
    def cancelForKey(self, key: str) -> None:
        """Cancel all of one key."""
        watching = [each for each, parked in self.parked.items() if key in parked.keys]
        cancelled = self.purgatory.cancelForKey(key)
        assert len(cancelled) == len(watching) and set(cancelled) == set(watching)
        for each in watching:
            self.leave(each, "cancel")

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.001, 0.0201, 0.5, 10.0, 200.0, 5000.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass: what is due expires, and what is nearly due may."""
        self.clock.advance(seconds)
        now = self.clock.seconds()
        while True:
            due = [each for each, parked in self.parked.items() if parked.dueSeconds <= now and each.completed]
            for each in due:
                self.leave(each, "complete", "expire")
            self.expirations += len(due)
            if not due:
                break
        late = [parked for parked in self.parked.values() if parked.dueSeconds <= now - TICK_SECONDS]
        assert not late, late

    @invariant()
    def agrees(self) -> None:
        """The purgatory holds what the model holds, and everybody was told what they should have been told."""
        assert self.purgatory.watched == self.purgatory.delayed == len(self.parked)
        assert self.purgatory.expirations == self.expirations
        for each, told in self.expected.items():
            assert each.told == told, (each.told, told)
            assert each.completed == ("complete" in told)
            assert (each.watcher is self.purgatory) == (each in self.parked)
        self.agreesOnTimers()

    def agreesOnTimers(self) -> None:
        """All operations share a timer."""
        assert len(self.clock.getDelayedCalls()) == (1 if self.parked else 0)

    def teardown(self) -> None:
        """What is left expires in the end."""
        for each in self.parked:
            each.cues.clear()
        self.advance(1e9)
        assert not self.parked
        self.agrees()


class PlainPurgatoryMachine(PurgatoryMachine):
    """The same of the plain purgatory."""

    def buildPurgatory(self) -> IPurgatory:
        """Make the purgatory."""
        return CallLaterPurgatory(self.clock)

    def agreesOnTimers(self) -> None:
        """Each has one of its own."""
        assert len(self.clock.getDelayedCalls()) == len(self.parked)


class PurgatoryStatesTests(SynchronousTestCase):
    """Whatever is done to a purgatory, nothing is lost, late or told twice."""

    def test_wheel(self) -> None:
        """Hypothesis finds no sequence of steps after which a L{WheelPurgatory} and the model differ."""
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            PurgatoryMachine, settings=settings(max_examples=100, stateful_step_count=40)
        )

    def test_callLater(self) -> None:
        """Hypothesis finds no such sequence for a L{CallLaterPurgatory} either."""
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            PlainPurgatoryMachine, settings=settings(max_examples=40, stateful_step_count=40)
        )
