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
    L{Clock} as a reactor would have it.

    That one is at the end of C{advance} before it makes the first call, so
    what a call sets counts from there: two timers of a second, one set by the
    other, take however long the test happens to advance, and are called in the
    wrong order among others.  Here each call is made when it is due, by what
    L{seconds} says as well.

    And as reactors do, it refuses a delay that is negative or not a number,
    rather than taking it for none.
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
        those included that are set meanwhile.  If one raises, that is where
        the clock stays.
        """
        untilSeconds = self.rightNow + amount
        while (dueSeconds := min((call.getTime() for call in self.calls), default=inf)) <= untilSeconds:
            self.rightNow = max(self.rightNow, dueSeconds)
            super().advance(0)
        self.rightNow = untilSeconds
