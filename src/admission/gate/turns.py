# -*- test-case-name: tests.unit.test_gate -*-
"""
How many requests are worked on, and which one is next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from ..interfaces import IWaiter, IWaitOrder
from ..policyfailure import FAILURES, raiseInterrupt

TURN_SECONDS = 0.005
"""For how long requests are begun in one turn of the reactor; the others wait for the next."""

RETRY_SECONDS = 1.0
"""How long to wait before an order of waiters that has failed is asked again."""

_UNTIMED_REQUESTS = 8
"""How many requests of a turn need no timer: most turns have fewer."""


class Turns:
    """
    Bounds how many requests are worked on at a time, and how many are begun in one turn of the reactor.

    @ivar runningRequests: how many requests are being worked on; at most C{maxRequests}.  Requests that are parked do
        not count.
    @ivar waitedSeconds: how long the request that began last had waited for its turn.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(
        self, clock: IReactorTime, order: IWaitOrder, maxRequests: int, grantLater: Callable[[float], None]
    ) -> None:
        """
        @param order: the order in which waiting requests are worked on.
        @param grantLater: has L{grant} called after that many seconds, unless it will be sooner.
        @raise ValueError: if C{maxRequests} is not positive.
        """
        if maxRequests < 1:
            raise ValueError(f"maxRequests must be positive, not {maxRequests}")
        self.maxRequests = maxRequests
        self.runningRequests = 0
        self._clock = clock
        self._order = order
        self._grantLater = grantLater
        # The same waiters as in the order, and since when they wait.  Nearly always there are none, and each request
        # looks.
        self._waiters: dict[IWaiter, float] = {}
        self.waitedSeconds = 0.0
        # How many requests this turn of the reactor has begun, and when it begins no more.
        self._begunRequests = 0
        self._endsSeconds = 0.0
        self._over: IDelayedCall | None = None

    @property
    def waiting(self) -> int:
        """
        How many requests wait for a turn.
        """
        return len(self._waiters)

    @property
    def isOwed(self) -> bool:
        """
        Whether a request waits, and could be worked on.
        """
        return bool(self._waiters) and self.runningRequests < self.maxRequests

    def tryBegin(self, waiter: IWaiter) -> bool:
        """
        Ask for a turn for a request of C{waiter}.

        @return: L{True} if it may be worked on; call L{end} once then.  L{False}
            if it must wait; C{turnGranted} is called later then, unless
            L{forget} comes first.
        """
        if self.runningRequests < self.maxRequests and not self._waiters:
            self._begunRequests += 1
            if self._begunRequests < _UNTIMED_REQUESTS or self._hasTime():
                self.runningRequests += 1
                self.waitedSeconds = 0.0
                return True
            self._grantLater(0)
        self._waiters.setdefault(waiter, self._clock.seconds())
        self._order.add(waiter)
        return False

    def beginNoMore(self) -> None:
        """
        A request has taken long: this turn of the reactor begins no other.
        """
        self._begunRequests = _UNTIMED_REQUESTS
        self._hasTime()
        self._endsSeconds = self._clock.seconds()

    def end(self) -> None:
        """
        A request that had a turn is answered, or parked.
        """
        self.runningRequests -= 1
        if self._waiters:
            self._grantLater(0)

    def forget(self, waiter: IWaiter) -> None:
        """
        C{waiter} is gone, and waits for no turn any more.
        """
        if self._waiters.pop(waiter, None) is not None:
            self._order.discard(waiter)

    def grant(self) -> bool:
        """
        Let the next request begin.

        @return: whether there was one that may.
        """
        if not self.isOwed:
            return False
        try:
            waiter = self._order.next()
        except FAILURES:
            raiseInterrupt()
            self._log.failure("the order of waiters failed; it is asked again later")
            # There may be no other request whose end would call this again.
            self._grantLater(RETRY_SECONDS)
            return False
        self.waitedSeconds = self._clock.seconds() - self._waiters.pop(waiter)
        self._order.discard(waiter)
        self.runningRequests += 1
        try:
            waiter.turnGranted()
        except Exception:
            self._log.failure("a connection failed when its request was let through")
        return True

    def close(self) -> None:
        """
        Cancel the timer.
        """
        if self._over is not None:
            self._over.cancel()
            self._over = None

    def _hasTime(self) -> bool:
        """
        Whether this turn of the reactor may begin another request.
        """
        now = self._clock.seconds()
        if self._over is None:
            self._endsSeconds = now + TURN_SECONDS
            self._over = self._clock.callLater(0, self._turnOver)
        return now < self._endsSeconds

    def _turnOver(self) -> None:
        self._over = None
        self._begunRequests = 0
