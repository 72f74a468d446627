"""L{admission.testing.orderedclock}."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.testing.orderedclock import OrderedClock


def nested(clock: Clock) -> list[tuple[str, float]]:
    """
    Set a call that sets another one, and one that is due between them; then
    advance beyond all.

    @return: what was called, and when by the clock.
    """
    called: list[tuple[str, float]] = []

    def first() -> None:
        called.append(("first", clock.seconds()))
        clock.callLater(1.0, lambda: called.append(("second", clock.seconds())))

    clock.callLater(1.0, first)
    clock.callLater(5.0, lambda: called.append(("last", clock.seconds())))
    clock.advance(10.0)
    return called


class OrderedClockTests(SynchronousTestCase):
    """L{OrderedClock}."""

    def setUp(self) -> None:
        self.clock = OrderedClock()
        self.called: list[object] = []

    def test_interface(self) -> None:
        """It provides L{IReactorTime}."""
        verifyObject(IReactorTime, self.clock)

    def test_nested(self) -> None:
        """
        Each call is made when it is due, those included that are set on the
        way.  Twisted's clock is late with two of these three, and with the one
        in the middle later still.
        """
        self.assertEqual(nested(self.clock), [("first", 1.0), ("second", 2.0), ("last", 5.0)])
        self.assertEqual(self.clock.seconds(), 10.0)
        self.assertEqual(nested(Clock()), [("first", 10.0), ("last", 10.0)])

    def test_advance(self) -> None:
        """It arrives exactly where it was to, and makes no call that is due later."""
        self.clock.callLater(0.75, self.called.append, "due")
        self.clock.callLater(0.76, self.called.append, "not due")
        self.clock.pump([0.25, 0.25, 0.25])
        self.assertEqual((self.called, self.clock.seconds()), (["due"], 0.75))

    def test_sameTime(self) -> None:
        """
        Calls that are due at once are made in the order they were set, and
        what they set without a delay in the same step.
        """

        def add() -> None:
            self.called.append("a")
            self.clock.callLater(0, self.called.append, "c")

        self.clock.callLater(1.0, add)
        self.clock.callLater(1.0, self.called.append, "b")
        self.clock.advance(1.0)
        self.assertEqual(self.called, ["a", "b", "c"])

    def test_changed(self) -> None:
        """Calls that are moved or cancelled on the way count as they are then."""

        def change() -> None:
            cancelled.cancel()
            earlier.reset(0.5)

        self.clock.callLater(1.0, change)
        cancelled = self.clock.callLater(2.0, self.called.append, "cancelled")
        earlier = self.clock.callLater(9.0, lambda: self.called.append(self.clock.seconds()))
        self.clock.advance(5.0)
        self.assertEqual(self.called, [1.5])

    def test_raises(self) -> None:
        """A call that raises leaves the clock where it was due, and those after it are made in the next step."""
        self.clock.callLater(1.0, lambda: 1 // 0)
        self.clock.callLater(2.0, self.called.append, "after")
        self.assertRaises(ZeroDivisionError, self.clock.advance, 10.0)
        self.assertEqual((self.clock.seconds(), self.called), (1.0, []))
        self.clock.advance(1.0)
        self.assertEqual(self.called, ["after"])

    def test_refusedDelays(self) -> None:
        """A delay that reactors refuse is refused; Twisted's clock takes it."""
        for delaySeconds in (-1.0, float("nan")):
            self.assertRaises(AssertionError, self.clock.callLater, delaySeconds, self.called.append)
            Clock().callLater(delaySeconds, self.called.append)
        self.assertEqual(list(self.clock.getDelayedCalls()), [])
