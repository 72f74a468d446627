"""
Tests for L{admission.clock}.
"""

from __future__ import annotations

import time

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.clock import MonotonicClock, wallSeconds, wholeMicroseconds


class MonotonicClockTests(SynchronousTestCase):
    """
    L{MonotonicClock} has the reactor's timers and a time of its own.
    """

    def setUp(self) -> None:
        """
        Wrap a fake reactor whose time stands still.
        """
        self.reactor = Clock()
        self.clock = MonotonicClock(self.reactor)

    def test_interface(self) -> None:
        """
        It provides L{IReactorTime}.
        """
        verifyObject(IReactorTime, self.clock)

    def test_seconds(self) -> None:
        """
        Its time is Python's monotonic clock and has nothing to do with the
        reactor's.
        """
        before = time.monotonic()
        self.reactor.advance(1e6)
        seconds = self.clock.seconds()
        self.assertTrue(before <= seconds <= time.monotonic())

    def test_callLater(self) -> None:
        """
        A call runs when the reactor's delay is over, with its arguments.
        """
        calls: list[tuple[object, ...]] = []
        self.clock.callLater(2.0, lambda *args, **kwargs: calls.append((args, kwargs)), 1, two=2)
        self.reactor.advance(1.5)
        self.assertEqual(calls, [])
        self.reactor.advance(0.5)
        self.assertEqual(calls, [((1,), {"two": 2})])

    def test_delayedCallIsTheReactors(self) -> None:
        """
        A delayed call can be listed, delayed, reset and cancelled.
        """
        calls: list[int] = []
        delayed = self.clock.callLater(1.0, calls.append, 1)
        self.assertEqual(list(self.clock.getDelayedCalls()), [delayed])
        delayed.reset(3.0)
        delayed.delay(1.0)
        self.reactor.advance(3.5)
        self.assertEqual(calls, [])
        delayed.cancel()
        self.assertEqual(list(self.clock.getDelayedCalls()), [])


class WholeMicrosecondsTests(SynchronousTestCase):
    """
    L{wholeMicroseconds}.
    """

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
    """
    L{wallSeconds} is the time of day.
    """

    def test_epoch(self) -> None:
        """
        It is what Python says the time of day is.
        """
        self.patch(time, "time", lambda: 1234.5)
        self.assertEqual(wallSeconds(), 1234.5)
