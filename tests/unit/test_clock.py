"""Tests for L{admission.clock}."""

from __future__ import annotations

import time

from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.clock import (
    BELIEVED_AFTER_SECONDS,
    AgeClock,
    MonotonicClock,
    useMonotonicTimers,
    wallSeconds,
    wholeMicroseconds,
)


class MonotonicClockTests(SynchronousTestCase):
    """L{MonotonicClock} has the reactor's timers and a time of its own."""

    def setUp(self) -> None:
        """Wrap a fake reactor whose time stands still."""
        self.reactor = Clock()
        self.clock = MonotonicClock(self.reactor)

    def test_interface(self) -> None:
        """It provides L{IReactorTime}."""
        verifyObject(IReactorTime, self.clock)

    def test_seconds(self) -> None:
        """Its time is Python's monotonic clock and has nothing to do with the reactor's."""
        before = time.monotonic()
        self.reactor.advance(1e6)
        seconds = self.clock.seconds()
        self.assertTrue(before <= seconds <= time.monotonic())

    def test_callLater(self) -> None:
        """A call runs when the reactor's delay is over, with its arguments."""
        calls: list[tuple[object, ...]] = []
        self.clock.callLater(2.0, lambda *args, **kwargs: calls.append((args, kwargs)), 1, two=2)
        self.reactor.advance(1.5)
        self.assertEqual(calls, [])
        self.reactor.advance(0.5)
        self.assertEqual(calls, [((1,), {"two": 2})])

    def test_delayedCallIsTheReactors(self) -> None:
        """A delayed call can be listed, delayed, reset and cancelled."""
        calls: list[int] = []
        delayed = self.clock.callLater(1.0, calls.append, 1)
        self.assertEqual(list(self.clock.getDelayedCalls()), [delayed])
        delayed.reset(3.0)
        delayed.delay(1.0)
        self.reactor.advance(3.5)
        self.assertEqual(calls, [])
        delayed.cancel()
        self.assertEqual(list(self.clock.getDelayedCalls()), [])


class TimersOfDay(ReactorBase):
    """The timers of a reactor, by a clock that is set."""

    timeOfDay = 1e9

    def installWaker(self) -> None:
        """It is never run."""

    def seconds(self) -> float:  # type: ignore[override]
        return self.timeOfDay


class UseMonotonicTimersTests(SynchronousTestCase):
    """L{useMonotonicTimers}."""

    def test_setBack(self) -> None:
        """Without it, what is due waits for as long as the clock was set back; with it, it does not."""
        for isUsed in (False, True):
            reactor = TimersOfDay()
            calls: list[bool] = []
            if isUsed:
                useMonotonicTimers(reactor)
            reactor.callLater(0, calls.append, True)
            reactor.timeOfDay -= 3600
            reactor.runUntilCurrent()
            self.assertEqual(calls, [True] if isUsed else [])

    def test_pending(self) -> None:
        """What is pending keeps its delay, and can be delayed further."""
        reactor = TimersOfDay()
        later, sooner = (reactor.callLater(delay, lambda: None) for delay in (7, 5))
        before = time.monotonic()
        useMonotonicTimers(reactor)
        sooner.reset(6)
        after = time.monotonic()
        for call, delay in ((later, 7), (sooner, 6)):
            # A microsecond for rounding.
            self.assertLess(abs(call.getTime() - before - delay), after - before + 1e-6)
        self.assertEqual(reactor.seconds, time.monotonic)

    def test_twice(self) -> None:
        """Doing so again changes nothing."""
        reactor = TimersOfDay()
        useMonotonicTimers(reactor)
        call = reactor.callLater(7, lambda: None)
        due = call.getTime()
        useMonotonicTimers(reactor)
        self.assertEqual(call.getTime(), due)

    def test_others(self) -> None:
        """A clock that is no reactor is left alone."""
        clock = Clock()
        useMonotonicTimers(clock)
        self.assertEqual(clock.seconds(), 0.0)


class AgeClockTests(SynchronousTestCase):
    """L{AgeClock} makes nothing old in a moment."""

    def setUp(self) -> None:
        """A machine whose clock can be set."""
        self.wallSeconds, self.doubts = 1e9, list[float]()
        self.clock = Clock()
        self.age = AgeClock(lambda: self.wallSeconds, self.clock.seconds, self.doubts.append)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wallSeconds += seconds

    def test_follows(self) -> None:
        """It goes with the machine's clock, and with little corrections of it."""
        for correction in (0.0, 1.0, -1.0, 59.0, 59.0):
            self.wait(10.0)
            self.wallSeconds += correction
            self.assertEqual(self.age.seconds(), self.wallSeconds)
        self.assertEqual(self.doubts, [])

    def test_forward(self) -> None:
        """It goes on as before when the machine's clock is set forward, says so once, and believes it after an hour."""
        self.wallSeconds += 1e6
        for _ in range(4):
            self.assertEqual(self.age.seconds(), self.wallSeconds - 1e6)
            self.wait(BELIEVED_AFTER_SECONDS / 4)
        self.assertEqual((self.age.seconds(), self.doubts), (self.wallSeconds, [1e6]))
        self.wait(1.0)
        self.assertEqual((self.age.seconds(), self.doubts), (self.wallSeconds, [1e6]))

    def test_forwardAndBack(self) -> None:
        """A clock that was set right again is as if nothing had happened; the next mistake has its own hour."""
        for _ in range(2):
            self.wallSeconds += 1e6
            self.assertEqual(self.age.seconds(), self.wallSeconds - 1e6)
            self.wait(BELIEVED_AFTER_SECONDS * 0.9)
            self.assertEqual(self.age.seconds(), self.wallSeconds - 1e6)
            self.wallSeconds -= 1e6
            self.assertEqual(self.age.seconds(), self.wallSeconds)
        self.assertEqual(self.doubts, [1e6, 1e6])

    def test_back(self) -> None:
        """It follows at once when the clock is set back."""
        self.wallSeconds -= 1e6
        self.assertEqual(self.age.seconds(), self.wallSeconds)
        self.assertEqual(self.doubts, [])


class WholeMicrosecondsTests(SynchronousTestCase):
    """L{wholeMicroseconds}."""

    def test_recorded(self) -> None:
        """
        What it returns is what a recording in whole microseconds gives back, and
        no further away than half a microsecond.
        """
        for number in range(1000):
            seconds = 1e6 + number * 0.123456789
            whole = wholeMicroseconds(seconds)
            self.assertEqual(whole, round(whole * 1e6) / 1e6)
            self.assertLess(abs(whole - seconds), 0.6e-6)


class WallSecondsTests(SynchronousTestCase):
    """L{wallSeconds} is the time of day."""

    def test_epoch(self) -> None:
        """It is what Python says the time of day is."""
        self.patch(time, "time", lambda: 1234.5)
        self.assertEqual(wallSeconds(), 1234.5)
