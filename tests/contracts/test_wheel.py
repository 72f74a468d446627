"""L{admission_plugins.wheel}."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from attrs import define, field
from twisted.internet.error import AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.testing.timerscontract import TimersContract
from admission_plugins.wheel import ENTRIES_PER_TURN, TURN_SECONDS, TimingWheel
from tests.kit.checkout import ROOT

YEAR_SECONDS = 365.25 * 86400
NOT_FINITE = (float("nan"), float("inf"), float("-inf"), 1e308)


def nothing() -> None:
    """Do it."""


@implementer(IReactorTime)
@define(eq=False)
class SkewedClock:
    """
    A clock that is set forward and back, while timers run by another.

    @ivar timers: what timers run by.
    @ivar skewSeconds: how far L{seconds} is ahead of it.
    @ivar armed: how many timers were ever set.
    """

    timers: Clock = field(factory=Clock)
    skewSeconds: float = 0.0
    armed: int = 0

    def seconds(self) -> float:
        """The skewed time."""
        return self.timers.seconds() + self.skewSeconds

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        """Set a timer, as strict about its delay as a reactor is."""
        assert delay >= 0
        self.armed += 1
        return self.timers.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """The timers."""
        return list(self.timers.getDelayedCalls())

    def turn(self) -> None:
        """Let one turn of the reactor happen: what its callbacks set waits."""
        due = [each for each in self.timers.getDelayedCalls() if each.getTime() <= self.timers.seconds()]
        self.timers.calls = [each for each in self.timers.calls if each not in due]
        for each in due:
            each.func(*each.args, **each.kw)  # type: ignore[attr-defined]


class WheelContractTests(TimersContract, SynchronousTestCase):
    """L{TimingWheel} does what is expected of timers."""

    def buildTimers(self, clock: Clock) -> IReactorTime:
        """A wheel of default size."""
        return TimingWheel(clock)


class TinyWheelContractTests(TimersContract, SynchronousTestCase):
    """So does one with as many levels as possible, and ticks that floats cannot express."""

    toleranceSeconds = 0.01

    def buildTimers(self, clock: Clock) -> IReactorTime:
        """A wheel of two slots."""
        return TimingWheel(clock, 0.01, 2)


class WheelTestCase(SynchronousTestCase):
    """Makes wheels on a clock that can be skewed."""

    def setUp(self) -> None:
        self.clock = SkewedClock()
        self.timers = self.clock.timers
        self.wheel = TimingWheel(self.clock)
        self.called: list[object] = []

    def later(self, delaySeconds: float, word: object = "called") -> IDelayedCall:
        """Set a call that says C{word}."""
        return self.wheel.callLater(delaySeconds, self.called.append, word)

    def armedSeconds(self) -> float:
        """When the one timer is to fire."""
        [timer] = self.timers.getDelayedCalls()
        return timer.getTime()


class TimerTests(WheelTestCase):
    """A wheel has at most one timer, which fires when something is due."""

    def test_oneTimer(self) -> None:
        """However many calls there are, there is one timer, for the first of them."""
        for delay in range(1, 1000):
            self.later(delay)
        self.assertTrue(0.5 < self.armedSeconds() <= 1.0)
        self.later(0.01)
        self.assertAlmostEqual(self.armedSeconds(), 0.01)
        self.timers.advance(0.01)
        self.assertTrue(0.5 < self.armedSeconds() <= 1.0)
        self.assertEqual((self.called, self.wheel.count), (["called"], 999))

    def test_noTickWithoutNeed(self) -> None:
        """The timer fires for a slot that holds something, however long that takes, and not in between."""
        self.later(0.005)
        self.later(3600.0)
        self.clock.armed = 0
        self.timers.pump([0.001] * 3600)
        self.assertEqual((self.called, self.clock.armed), (["called"], 1))
        self.timers.advance(3596.4)
        self.assertEqual(self.called, ["called"] * 2)
        # Its slot is reached, and then the finer ones in which it ends up.
        self.assertLessEqual(self.clock.armed, 6)

    def test_inVain(self) -> None:
        """
        When all calls of the next slot are cancelled, the timer fires in vain
        at most once, and then for the next slot that holds anything.
        """
        self.later(100.0)
        for call in [self.later(delay) for delay in (1.0, 1.5, 2.0, 3.0)]:
            call.cancel()
        self.clock.armed = 0
        self.timers.pump([0.01] * 500)
        self.assertLessEqual(self.clock.armed, 1)
        self.assertGreater(self.armedSeconds(), 90.0)

    def test_shutdown(self) -> None:
        """Shutting down cancels all calls and leaves no timer, also within a callback; the wheel can be used again."""
        for delay in (0.0, 1.0):
            self.wheel.callLater(delay, self.wheel.shutdown)
            calls = [self.later(delay) for delay in (delay, 0.5 + delay, 60.0, YEAR_SECONDS)]
            self.timers.advance(delay)
            self.assertEqual((self.called, self.clock.getDelayedCalls(), self.wheel.count), ([], [], 0))
            self.assertEqual([call.active() for call in calls], [False] * 4)
            self.assertRaises(AlreadyCancelled, calls[0].cancel)
        self.later(1.0)
        self.timers.advance(1.0)
        self.assertEqual(self.called, ["called"])

    def test_wrongSizes(self) -> None:
        """Ticks and sizes that make no sense are refused."""
        for tickSeconds in (0.0, -1.0, float("inf"), float("nan")):
            self.assertRaises(ValueError, TimingWheel, self.clock, tickSeconds)
        for size in (1, 0, -20):
            self.assertRaises(ValueError, TimingWheel, self.clock, 0.001, size)


class PunctualityTests(WheelTestCase):
    """Nothing is called early, nor later than a tick after its time."""

    def test_onTheTick(self) -> None:
        """A call that is due on a tick is made on it, although floats cannot express most of them."""
        for tickSeconds in (0.001, 0.01, 0.1, 0.003, 1.0):
            for start in (0.0, 0.1 + 0.2, 12345.678, 1.7e9 + 0.1):
                clock = Clock()
                clock.advance(start)
                wheel = TimingWheel(clock, tickSeconds)
                base = int(start / tickSeconds) + 1
                for ticks in (1, 2, 3, 7, 20, 29, 57, 399, 400, 401, 8001):
                    call = wheel.callLater((base + ticks) * tickSeconds - clock.seconds(), nothing)
                    clock.advance((base + ticks) * tickSeconds - clock.seconds())
                    self.assertFalse(call.active(), (tickSeconds, start, ticks))

    def test_ages(self) -> None:
        """Delays of years, and of ages of the universe, are as good as any."""
        for years in (1, 100, 10_000):
            self.later(years * YEAR_SECONDS, years)
        self.later(1e290)
        for years in (1, 100, 10_000):
            self.timers.advance(years * YEAR_SECONDS - self.timers.seconds() - 1.0)
            self.assertNotIn(years, self.called)
            self.timers.advance(1.0)
            self.assertIn(years, self.called)
        self.assertEqual(self.wheel.count, 1)

    def test_nearlyNow(self) -> None:
        """
        A call that is due after now by less than a rounding error is made a
        tick later, and does not keep the clock busy until then.
        """
        self.timers.advance(1.0)
        self.later(2.0**-52)
        self.timers.advance(0)
        self.assertEqual(self.called, [])
        self.timers.advance(0.001)
        self.assertEqual(self.called, ["called"])

    def test_notFinite(self) -> None:
        """
        What is not a finite number of seconds is refused, and a call that was
        to be moved stays as it was, in its place.
        """
        calls = [self.later(1.0, number) for number in range(3)]
        for seconds in NOT_FINITE:
            self.assertRaises(ValueError, self.later, seconds)
            for call in calls:
                self.assertRaises(ValueError, call.reset, seconds)
                self.assertRaises(ValueError, call.delay, seconds)
        self.assertEqual((self.wheel.count, [call.getTime() for call in calls]), (3, [1.0] * 3))
        self.timers.advance(1.0)
        self.assertEqual(self.called, [0, 1, 2])


class FailingEntry:
    """An entry whose time cannot be read when the wheel looks at it first."""

    previousEntry: Any = None
    nextEntry: Any = None
    _dueSeconds: float | None = None

    def __init__(self, expire: Callable[[], None]) -> None:
        self.expire = expire
        self.hasFailed = False

    @property
    def dueSeconds(self) -> float:
        """See L{TimerEntry}."""
        assert self._dueSeconds is not None
        if not self.hasFailed:
            self.hasFailed = True
            raise MemoryError
        return self._dueSeconds

    @dueSeconds.setter
    def dueSeconds(self, seconds: float) -> None:
        self._dueSeconds = seconds


class TurnTests(WheelTestCase):
    """What happens within the turns of a reactor."""

    def test_anotherTurn(self) -> None:
        """A call without a delay that is set in a callback waits for another turn."""
        self.wheel.callLater(0, self.later, 0)
        self.clock.turn()
        self.assertEqual(self.called, [])
        self.clock.turn()
        self.assertEqual(self.called, ["called"])

    def test_bounded(self) -> None:
        """
        One turn makes a bounded number of calls, the next one the rest, and
        calls that were set meanwhile come after those.
        """
        count = 2 * ENTRIES_PER_TURN + 500
        for number in range(count):
            self.later(0.005, number)
        self.timers.rightNow = 60.0
        made = []
        while self.clock.getDelayedCalls():
            self.clock.turn()
            made.append(len(self.called))
            if len(made) == 1:
                self.later(0, "last")
        self.assertEqual(made, [ENTRIES_PER_TURN, 2 * ENTRIES_PER_TURN, count + 1])
        self.assertEqual(self.called, [*range(count), "last"])

    def test_slowCalls(self) -> None:
        """Calls that take long leave the reactor its turn."""

        def work() -> None:
            self.called.append("slow")
            self.timers.rightNow += TURN_SECONDS / 4

        for _ in range(10):
            self.wheel.callLater(0.005, work)
        self.timers.rightNow = 1.0
        made = []
        while self.clock.getDelayedCalls():
            self.clock.turn()
            made.append(len(self.called))
        self.assertEqual(made, [4, 8, 10])

    def test_boundedMoves(self) -> None:
        """One turn moves a bounded number of calls from a wide slot to finer ones."""
        count = 10 * ENTRIES_PER_TURN
        for number in range(count):
            self.later(16.0 + number * 0.1 / count, number)
        self.timers.rightNow = 16.0
        [wide] = self.wheel._slots.values()
        self.assertGreater(wide.widthTicks, 100)
        turns = 0

        def left() -> int:
            return len(list(wide)) if wide in self.wheel._slots.values() else 0

        while left():
            before = left()
            self.clock.turn()
            turns += 1
            self.assertLessEqual(before - left(), ENTRIES_PER_TURN)
        self.assertEqual(turns, 10)
        self.timers.pump([0.1] * 20)
        self.assertEqual(self.called, list(range(count)))

    def test_spoiledEntry(self) -> None:
        """An entry whose time somebody has spoiled is dropped, and those beside it expire."""
        self.later(16.1, "before")
        spoiled: Any = self.later(16.1, "spoiled")
        self.later(16.1, "after")
        spoiled.dueSeconds = float("nan")
        self.timers.advance(16.2)
        self.assertEqual((self.called, self.wheel.count), (["before", "after"], 0))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_collectingFails(self) -> None:
        """If a turn fails in the middle the next one goes on."""
        self.later(16.1, "first")
        self.wheel.add(FailingEntry(lambda: self.called.append("failing")), 16.1)
        self.later(16.1, "second")
        self.assertRaises(MemoryError, self.timers.advance, 16.1)
        self.timers.pump([0.001] * 200)
        self.assertEqual(self.called, ["first", "failing", "second"])

    def test_exceptions(self) -> None:
        """A call that raises is logged; those after it are made in the same turn."""
        self.later(1.0, "before")
        self.wheel.callLater(1.0, lambda: 1 // 0)
        self.later(1.0, "after")
        self.later(2.0, "later")
        self.timers.advance(1.0)
        self.assertEqual(self.called, ["before", "after"])
        self.timers.advance(1.0)
        self.assertEqual(self.called, ["before", "after", "later"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_exit(self) -> None:
        """What is no ordinary exception ends the turn, but not the wheel."""

        def leave() -> None:
            raise SystemExit

        self.wheel.callLater(1.0, leave)
        self.later(1.0)
        self.later(2.0)
        self.assertRaises(SystemExit, self.timers.advance, 1.0)
        self.assertEqual(self.called, [])
        self.timers.advance(0.0)
        self.assertEqual(self.called, ["called"])
        self.timers.advance(1.0)
        self.assertEqual(self.called, ["called"] * 2)

    def test_nestedTurn(self) -> None:
        """A callback that has the reactor make a turn sees what is due called, and nothing is called twice."""
        self.wheel.callLater(1.0, self.timers.advance, 5.0)
        for delay in (2.0, 3.0, 6.0, 7.0):
            self.later(delay, delay)
        self.timers.advance(1.0)
        self.assertEqual(self.called, [2.0, 3.0, 6.0])
        self.timers.advance(1.0)
        self.assertEqual(self.called, [2.0, 3.0, 6.0, 7.0])


class StepTests(WheelTestCase):
    """Clocks are set forward and back."""

    def test_forward(self) -> None:
        """
        When the wheel's clock is set forward, what is due by it is called as
        soon as the timer fires, in order, and the rest on time.
        """
        for delay in (0.1, 50.0, 3599.0, 7000.0):
            self.later(delay, delay)
        self.clock.skewSeconds = 3600.0
        self.timers.advance(0.1)
        self.assertEqual(self.called, [0.1, 50.0, 3599.0])
        self.timers.advance(3399.8)
        self.assertEqual(self.called, [0.1, 50.0, 3599.0])
        self.timers.advance(0.2)
        self.assertEqual(self.called, [0.1, 50.0, 3599.0, 7000.0])

    def test_backWithinTurn(self) -> None:
        """So it is when a callback sets it back."""
        self.timers.advance(5000.0)
        self.wheel.callLater(1.0, setattr, self.clock, "skewSeconds", -10.0)
        self.later(1.0)
        self.timers.advance(1.0)
        self.assertEqual(self.called, [])
        self.timers.advance(9.0)
        self.assertEqual(self.called, [])
        self.timers.advance(1.0 + self.wheel.tickSeconds)
        self.assertEqual(self.called, ["called"])

    def test_timersBack(self) -> None:
        """
        When it is the reactor's clock that is set back, its timer is late by as
        much; the next call that is set wakes the wheel up.
        """
        self.timers.advance(5000.0)
        self.later(0.5, "overdue")
        self.timers.rightNow -= 3600.0
        self.clock.skewSeconds += 3600.0
        self.timers.advance(1.0)
        self.assertEqual(self.called, [])
        self.later(30.0, "waiting")
        self.timers.advance(0.0)
        self.assertEqual(self.called, ["overdue"])
        self.timers.advance(30.0)
        self.assertEqual(self.called, ["overdue", "waiting"])


class GarbageTests(WheelTestCase):
    """Slots that are over leave memory at once, and not when Python looks for garbage."""

    def test_slots(self) -> None:
        """It is so when their entries expire, when these are cancelled, and when they move to finer slots."""

        def slots() -> int:
            return sum(type(each).__name__ == "_Slot" for each in gc.get_objects())

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        clock = Clock()
        wheel = TimingWheel(clock)
        before = slots()
        for round_ in range(2):
            calls = [wheel.callLater(0.37 * number, nothing) for number in range(1000)]
            self.assertGreater(slots(), before + 10)
            for call in calls[::2]:
                call.cancel()
            if round_:
                clock.pump([1.0] * 400)
            else:
                wheel.shutdown()
            self.assertEqual((slots(), wheel.count), (before, 0))


class ReprTests(WheelTestCase):
    """Calls say what they are."""

    def test_states(self) -> None:
        """One that is to come says what it will call and when."""
        call, cancelled = self.wheel.callLater(1.5, nothing), self.later(1.0)
        self.assertRegex(repr(call), r"^<WheelCall of <function nothing at .*>, due at 1\.500 s>$")
        cancelled.cancel()
        self.timers.advance(2.0)
        self.assertEqual((repr(call), repr(cancelled)), ("<WheelCall called>", "<WheelCall cancelled>"))


PROGRAM = """
import sys
from importlib import import_module

import_module(f"twisted.internet.{sys.argv[1]}").install()

from twisted.internet import reactor

from admission.clock import MonotonicClock
from admission_plugins.wheel import TimingWheel

DELAYS = [0.1, 0.032, 0.03, 0.0125, 0.004, 0.002, 0.0]


def run(clock, following):
    wheel, calls, made = TimingWheel(clock), [], []

    def call(number, dueSeconds):
        made.append(calls[number].getTime())
        assert wheel.seconds() >= made[-1] >= dueSeconds and len(reactor.getDelayedCalls()) <= 1

    def finish():
        # In order by a tick.  How much time passes between two calls of callLater depends on the machine.
        inOrder = all(later - earlier > -wheel.tickSeconds for earlier, later in zip(made, made[1:]))
        if len(made) == len(DELAYS) and inOrder and not reactor.getDelayedCalls():
            following()
        else:
            print(made, reactor.getDelayedCalls())
            reactor.stop()

    for number, delay in enumerate(DELAYS):
        calls.append(wheel.callLater(delay, call, number, wheel.seconds() + delay))
        wheel.callLater(delay, print, "cancelled").cancel()
    wheel.callLater(0.12, finish)


def stop():
    print(type(reactor).__name__)
    reactor.stop()


reactor.callWhenRunning(run, reactor, lambda: run(MonotonicClock(reactor), stop))
reactor.run()
"""


class ReactorTests(SynchronousTestCase):
    """A wheel runs on every reactor, by its own clock and by a monotonic one."""

    def test_reactors(self) -> None:
        """Calls are made in order, none early and none when cancelled, with a single timer at a time."""
        path = os.pathsep.join(str(ROOT / root) for root in ("src", "plugins", "."))
        for name, className in (
            ("epollreactor", "EPollReactor"),
            ("pollreactor", "PollReactor"),
            ("selectreactor", "SelectReactor"),
            ("asyncioreactor", "AsyncioSelectorReactor"),
        ):
            result = subprocess.run(
                [sys.executable, "-c", PROGRAM, name],
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
            self.assertEqual((result.returncode, result.stdout.strip()), (0, className), result.stdout)
