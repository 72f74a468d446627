"""
Tests for L{admission.clock}.
"""

from __future__ import annotations

import time

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.clock import HeldClock, MonotonicClock, wallSeconds


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


class HeldClockTests(SynchronousTestCase):
    """
    L{HeldClock} says what can be written down, and stands still on demand.
    """

    def setUp(self) -> None:
        """
        Hold nothing yet.
        """
        self.reactor = Clock()
        self.reactor.advance(1000.0000004)
        self.clock = HeldClock(self.reactor)

    def test_interface(self) -> None:
        """
        It provides L{IReactorTime}, with the timers of the other clock.
        """
        verifyObject(IReactorTime, self.clock)
        delayed = self.clock.callLater(1.0, lambda: None)
        self.assertEqual(list(self.clock.getDelayedCalls()), [delayed])
        self.assertEqual(self.reactor.getDelayedCalls(), [delayed])

    def test_wholeMicroseconds(self) -> None:
        """
        It says whole microseconds, never later than it is, so that nothing is
        lost where they are recorded.
        """
        for step in (0.0000003, 0.0000004, 0.123456789, 7.0):
            self.reactor.advance(step)
            said = self.clock.seconds()
            self.assertEqual(said, round(said * 1e6) / 1e6)
            self.assertLessEqual(said, self.reactor.seconds())
            self.assertGreater(said, self.reactor.seconds() - 1.1e-6)

    def test_held(self) -> None:
        """
        While it is held it says the same, and holding it again is a new moment.
        """
        held = self.clock.hold()
        self.reactor.advance(5.0)
        self.assertEqual(self.clock.seconds(), held)
        self.assertEqual(self.clock.hold(), held + 5.0)
        self.reactor.advance(1.0)
        self.clock.letGo()
        self.assertEqual(self.clock.seconds(), held + 6.0)


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
