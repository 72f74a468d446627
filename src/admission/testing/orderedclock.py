# -*- test-case-name: tests.contracts.test_orderedclock -*-
"""
A clock that goes through time instead of jumping over it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock


class OrderedClock(Clock):
    """
    L{Clock} with the timing of a reactor.

    L{Clock.advance} goes to the end of the step before it makes the first call, so
    timers that a call sets count from there: two timers of a second, one set by the
    other, take as long as the test happens to advance, and are called in the
    wrong order among others.  Here each call is made at the time when it is due,
    as L{Clock.seconds} confirms.

    Like a reactor, it also refuses a delay that is negative or not a number.
    """

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> IDelayedCall:
        """
        See L{twisted.internet.interfaces.IReactorTime.callLater}.

        @raise AssertionError: for a delay that reactors refuse.
        """
        if not delay >= 0:
            raise AssertionError(f"{delay} is not greater than or equal to 0 seconds")
        return super().callLater(delay, callable, *args, **kw)

    def advance(self, amount: float) -> None:
        """
        Go on by C{amount} seconds, and make the calls that are due on the way,
        including calls that are set meanwhile.  If one raises, the clock stays at
        its time.
        """
        untilSeconds = self.rightNow + amount
        while (dueSeconds := min((call.getTime() for call in self.calls), default=inf)) <= untilSeconds:
            self.rightNow = max(self.rightNow, dueSeconds)
            super().advance(0)
        self.rightNow = untilSeconds
