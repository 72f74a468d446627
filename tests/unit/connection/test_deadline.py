"""L{admission.connection.deadline}."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.deadline import Deadline


class CountingClock(Clock):
    """
    A clock that tells another time than its timers and counts those, as a
    reactor does under a monotonic clock.

    @ivar made: how many timers there were.
    """

    made = 0

    def __init__(self, aheadSeconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = lambda: self.rightNow + self.aheadSeconds  # type: ignore[method-assign]
        self.aheadSeconds = 0.0
        self.timerAheadSeconds = aheadSeconds

    def callLater(self, delay: float, callable: Any, *args: object, **kw: object) -> Any:
        """Count, and make a timer on the other time."""
        self.made += 1
        call: Any = super().callLater(delay, callable, *args, **kw)
        ahead = self.timerAheadSeconds
        getTime = call.getTime
        call.getTime = lambda: getTime() + ahead
        return call

    def advance(self, amount: float) -> None:
        """Run what is due, by its own time."""
        self.rightNow += amount
        while True:
            due = [call for call in self.calls if call.getTime() <= self.rightNow + self.timerAheadSeconds]
            if not due:
                break
            call = min(due, key=lambda each: each.getTime())
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class DeadlineTests(SynchronousTestCase):
    """L{Deadline}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.expired: list[float] = []
        self.deadline = Deadline(self.clock, lambda: self.expired.append(self.clock.seconds()))

    def test_expires(self) -> None:
        """It expires once, when it is due."""
        self.deadline.start(10)
        self.clock.pump([9, 1, 30])
        self.assertEqual((self.expired, self.deadline.dueSeconds), ([10.0], None))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_moves(self) -> None:
        """Starting it again moves it, later or earlier."""
        self.deadline.start(10)
        self.clock.advance(6)
        self.deadline.start(10)
        self.clock.advance(9)
        self.assertEqual(self.expired, [])
        self.deadline.start(0.5)
        self.clock.advance(0.5)
        self.assertEqual(self.expired, [15.5])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stops(self) -> None:
        """A stopped deadline does not expire, and may be started again."""
        self.deadline.start(10)
        self.deadline.stop()
        self.clock.advance(5)
        self.deadline.start(10)
        self.clock.pump([5, 4.5])
        self.assertEqual(self.expired, [])
        self.clock.advance(0.5)
        self.assertEqual(self.expired, [15.0])

    def test_closes(self) -> None:
        """A closed deadline leaves no timer behind, and closing it twice is fine."""
        self.deadline.start(10)
        self.deadline.close()
        self.deadline.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertIs(self.deadline.dueSeconds, None)

    def test_startsFromItsOwnExpiry(self) -> None:
        """What it calls when it expires may start it again."""

        def expired() -> None:
            self.expired.append(self.clock.seconds())
            if len(self.expired) < 3:
                deadline.start(2)

        deadline = Deadline(self.clock, expired)
        deadline.start(1)
        self.clock.pump([1] * 10)
        self.assertEqual(self.expired, [1.0, 3.0, 5.0])

    def test_movingIsFree(self) -> None:
        """Moving a deadline on makes no timer, even if the timers are on another time than the clock."""
        clock = CountingClock(aheadSeconds=1e9)
        deadline = Deadline(clock, lambda: self.expired.append(clock.seconds()))
        for _ in range(1000):
            deadline.start(10)
            clock.advance(0.001)
            deadline.stop()
        self.assertEqual(clock.made, 1)
        deadline.start(10)
        clock.advance(9.5)
        self.assertEqual((clock.made, self.expired), (2, []))
        clock.advance(1)
        self.assertEqual(len(self.expired), 1)
