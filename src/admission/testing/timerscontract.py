# -*- test-case-name: tests.contracts.test_timerscontract -*-
"""
The rules for timers.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock, LoopingCall
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import TimeoutMixin
from zope.interface.verify import verifyObject

from .contract import Contract
from .orderedclock import OrderedClock


class TimersContract(Contract):
    """
    What Twisted's code expects of a reactor's timers,
    such as the C{clock} of an L{IPurgatory <admission.interfaces.IPurgatory>}.
    Subclasses say how to make them.
    """

    toleranceSeconds = 0.001
    """How late a call may be on a clock without lag."""

    def setUp(self) -> None:
        """
        Make a clock, and timers on it.
        """
        self.clock = Clock()
        self.clock.advance(1000.0)
        self.timers = self.buildTimers(self.clock)
        self.called: list[object] = []

    def buildTimers(self, clock: Clock) -> IReactorTime:
        """
        Make timers that run by C{clock}.
        """
        raise NotImplementedError

    def later(self, delaySeconds: float, word: object = "called") -> IDelayedCall:
        """
        Set a call that records C{word}.
        """
        return self.timers.callLater(delaySeconds, self.called.append, word)

    def assertInTime(self, madeSeconds: float, dueSeconds: float) -> None:
        """
        Check that a call that was due at C{dueSeconds} was made in time, except for
        rounding errors.
        """
        lateSeconds = madeSeconds - dueSeconds
        self.assertTrue(-1e-9 < lateSeconds < self.toleranceSeconds + 1e-9, f"{lateSeconds} s late")

    def test_interfaces(self) -> None:
        """
        The timers provide L{IReactorTime}, their calls L{IDelayedCall}.
        """
        verifyObject(IReactorTime, self.timers)
        verifyObject(IDelayedCall, self.later(1.0))
        self.assertEqual(self.timers.seconds(), 1000.0)

    def test_arguments(self) -> None:
        """
        The function gets the arguments.
        """
        self.timers.callLater(1.0, lambda *args, **kwargs: self.called.append((args, kwargs)), 1, 2, three=3)
        self.timers.callLater(1.0, lambda *args, **kwargs: self.called.append((args, kwargs)))
        self.clock.advance(1.0)
        self.assertEqual(self.called, [((1, 2), {"three": 3}), ((), {})])

    def test_active(self) -> None:
        """
        A call is active until it is made or cancelled; not while it is made.
        """
        made, cancelled = self.timers.callLater(1.0, lambda: self.called.append(made.active())), self.later(1.0)
        self.assertEqual([bool(made.active()), bool(cancelled.active())], [True, True])
        cancelled.cancel()
        self.clock.advance(1.0)
        self.assertEqual([bool(made.active()), bool(cancelled.active())], [False, False])
        self.assertEqual(self.called, [False])

    def test_cancelled(self) -> None:
        """
        A cancelled call is not made, and can be changed no more.
        """
        call = self.later(1.0)
        call.cancel()
        self.assertRaises(AlreadyCancelled, call.cancel)
        self.assertRaises(AlreadyCancelled, call.reset, 1.0)
        self.assertRaises(AlreadyCancelled, call.delay, 1.0)
        self.clock.advance(60.0)
        self.assertRaises(AlreadyCancelled, call.cancel)
        self.assertEqual(self.called, [])

    def test_called(self) -> None:
        """
        A call that was made, or is being made, can be changed no more.
        """

        def change() -> None:
            self.assertRaises(AlreadyCalled, call.cancel)
            self.assertRaises(AlreadyCalled, call.reset, 1.0)
            self.assertRaises(AlreadyCalled, call.delay, 1.0)
            self.called.append("called")

        call = self.timers.callLater(1.0, change)
        self.clock.advance(60.0)
        change()
        self.assertEqual(self.called, ["called"] * 2)
        self.clock.advance(60.0)
        self.assertEqual(self.called, ["called"] * 2)

    def test_reset(self) -> None:
        """
        C{reset} counts from now, whether that is earlier or later than planned.
        """
        later, earlier, same = self.later(5.0, "later"), self.later(5.0, "earlier"), self.later(5.0, "same")
        self.clock.advance(1.0)
        for call, secondsFromNow in [(later, 5.0), (earlier, 1.0), (same, 4.0)]:
            call.reset(secondsFromNow)
            self.assertEqual(call.getTime(), 1001.0 + secondsFromNow)
        expected: list[object] = []
        for seconds, word in [(1.0, "earlier"), (3.0, "same"), (1.0, "later")]:
            self.clock.advance(seconds - 0.01)
            self.assertEqual(self.called, expected)
            self.clock.advance(0.01)
            expected.append(word)
            self.assertEqual(self.called, expected)

    def test_delay(self) -> None:
        """
        C{delay} counts from when the call was planned.
        """
        later, earlier = self.later(5.0, "later"), self.later(5.0, "earlier")
        self.clock.advance(1.0)
        later.delay(2.0)
        earlier.delay(-3.5)
        later.delay(1.0)
        self.assertEqual((later.getTime(), earlier.getTime()), (1008.0, 1001.5))
        self.clock.advance(0.49)
        self.assertEqual(self.called, [])
        self.clock.advance(0.01)
        self.assertEqual(self.called, ["earlier"])
        self.clock.advance(6.49)
        self.assertEqual(self.called, ["earlier"])
        self.clock.advance(0.01)
        self.assertEqual(self.called, ["earlier", "later"])

    def test_delayedCalls(self) -> None:
        """
        The calls that are still to come are listed.
        """
        calls = [self.later(delay) for delay in (0.0, 0.5, 30.0, 1e6)]
        self.assertCountEqual(self.timers.getDelayedCalls(), calls)
        calls.pop(2).cancel()
        self.clock.advance(0.25)
        self.assertCountEqual(self.timers.getDelayedCalls(), calls[1:])

    def test_noDelay(self) -> None:
        """
        A delay of zero ends in the next turn, not at once.
        """
        self.clock.advance(0.0005)
        self.later(0.0004, "later")
        self.later(0, "zero")
        self.assertEqual(self.called, [])
        self.clock.advance(0)
        self.assertEqual(self.called, ["zero"])

    def test_order(self) -> None:
        """
        However far the clock jumps, a call that is due earlier is made earlier.
        """
        for delay in (7.0, 0.01, 3600.0, 0.5, 0.02):
            self.later(delay, delay)
        self.clock.advance(1e6)
        self.assertEqual(self.called, [0.01, 0.02, 0.5, 7.0, 3600.0])

    def test_changesInCallbacks(self) -> None:
        """
        A callback may cancel and reset calls that are due in the same turn, which are
        then not made, and set new calls.
        """

        def change() -> None:
            cancelled.cancel()
            moved.reset(1.0)
            self.later(0.5, "new")

        self.timers.callLater(1.0, change)
        cancelled, moved = self.later(1.0, "cancelled"), self.later(1.0, "moved")
        self.clock.advance(1.0)
        self.assertEqual(self.called, [])
        self.clock.advance(0.5)
        self.assertEqual(self.called, ["new"])
        self.clock.advance(0.5)
        self.assertEqual(self.called, ["new", "moved"])

    def test_addTimeout(self) -> None:
        """
        A L{Deferred} takes the timers for its timeout.
        """
        late: Deferred[None] = Deferred()
        late.addTimeout(2.0, self.timers)
        inTime: Deferred[str] = Deferred()
        inTime.addTimeout(2.0, self.timers)
        self.clock.advance(1.0)
        self.assertNoResult(late)
        inTime.callback("result")
        self.clock.advance(1.0)
        self.failureResultOf(late, TimeoutError)
        self.assertEqual(self.successResultOf(inTime), "result")
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_loopingCall(self) -> None:
        """
        A L{LoopingCall} takes the timers for its clock, and keeps its rhythm.
        """
        loop = LoopingCall(lambda: self.called.append(self.clock.seconds()))
        loop.clock = self.timers
        loop.start(0.1)
        self.clock.pump([0.1] * 10)
        loop.stop()
        self.clock.advance(60.0)
        self.assertEqual(len(self.called), 11)
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_timeoutMixin(self) -> None:
        """
        A L{TimeoutMixin} takes them for its C{callLater}, and resets them.
        """

        class Idle(TimeoutMixin, Protocol):
            callLater = staticmethod(self.timers.callLater)  # type: ignore[assignment]

        protocol, transport = Idle(), StringTransport()
        protocol.makeConnection(transport)
        protocol.setTimeout(3)
        for _ in range(5):
            self.clock.advance(2.0)
            protocol.resetTimeout()
        self.assertFalse(transport.disconnecting)
        self.clock.advance(3.0)
        self.assertTrue(transport.disconnecting)
        protocol.setTimeout(3)
        protocol.setTimeout(None)
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_neverEarly(self) -> None:
        """
        A call is made when its delay is over, no sooner, and hardly later.
        """
        clock = OrderedClock()
        timers = self.buildTimers(clock)
        for delaySeconds in (0.001, 0.0105, 0.25, 1.0, 61.7, 86400.3):
            made: list[float] = []
            call = timers.callLater(delaySeconds, lambda made=made: made.append(clock.seconds()))
            dueSeconds = clock.seconds() + delaySeconds
            self.assertEqual(call.getTime(), dueSeconds)
            clock.advance(2 * delaySeconds + 1.0)
            [madeSeconds] = made
            self.assertInTime(madeSeconds, dueSeconds)

    def test_nested(self) -> None:
        """
        A call that is set by a call counts from when that was made, and is
        made as well, however far the clock goes in one step.
        """

        clock = OrderedClock()
        timers = self.buildTimers(clock)
        made = [clock.seconds()]

        def again() -> None:
            made.append(clock.seconds())
            if len(made) <= 5:
                timers.callLater(1.0, again)

        timers.callLater(1.0, again)
        clock.advance(100.0)
        self.assertEqual(len(made), 6)
        for before, after in pairwise(made):
            self.assertInTime(after, before + 1.0)

    def test_callRaises(self) -> None:
        """
        A call that raises keeps no other from being made.
        """
        self.timers.callLater(1.0, lambda: 1 // 0)
        self.later(1.0, "same")
        self.later(2.0, "later")
        for _ in range(2):
            try:
                self.clock.advance(5.0)
            except ZeroDivisionError:
                # The clock lets it through, where a reactor logs it.
                pass
        self.assertEqual(self.called, ["same", "later"])
        self.flushLoggedErrors(ZeroDivisionError)
