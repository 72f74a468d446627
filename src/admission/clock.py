# -*- test-case-name: tests.unit.test_clock -*-
"""
The two clocks, and the only place that reads them.

Twisted's reactors tell wall time: C{reactor.seconds} is L{time.time}, which
jumps when the machine's clock is set.  That would break quotas, which divide by
elapsed seconds, and waits, which compare against a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

BELIEVED_AFTER_SECONDS: Final = 3600.0
"""For how long a machine's clock that was set forward has to stay there before anything is old by it."""

_TOLERATED_SECONDS: Final = 60.0


def wallSeconds() -> float:
    """
    Seconds since the epoch: for records, retention and events, never to
    measure durations.
    """
    return time.time()


def monotonicSeconds() -> float:
    """
    Seconds of a clock that never jumps, for a process without a reactor.
    """
    return time.monotonic()


def wholeMicroseconds(seconds: float) -> float:
    """
    Round C{seconds} as a recording does.  Policies are told times that are rounded
    like this, so that a replay gives them exactly what was recorded: a difference
    of a microsecond can put a request into another window, and everything after
    it is different then.
    """
    return round(seconds * 1e6) / 1e6


class AgeClock:
    """
    Seconds since the epoch, for how old something is that will be removed when it is too old.

    A machine's clock that is set forward by mistake would make everything too old at once, and nothing brings it back.
    So this one goes on as before, and follows after L{BELIEVED_AFTER_SECONDS}.  A clock that is set back it follows at
    once: then nothing is removed too early.
    """

    def __init__(
        self, wallSeconds: Callable[[], float], seconds: Callable[[], float], doubted: Callable[[float], object]
    ) -> None:
        """
        @param wallSeconds: seconds since the epoch, by the machine's clock.
        @param seconds: a monotonic clock.
        @param doubted: called with the seconds by which the machine's clock was set forward.
        """
        self._wallSeconds = wallSeconds
        self._seconds = seconds
        self._doubted = doubted
        self._aheadSeconds = wallSeconds() - seconds()
        self._doubtedSinceSeconds: float | None = None

    def seconds(self) -> float:
        """
        Now.
        """
        now, wall = self._seconds(), self._wallSeconds()
        jumpSeconds = wall - now - self._aheadSeconds
        if jumpSeconds > _TOLERATED_SECONDS:
            if self._doubtedSinceSeconds is None:
                self._doubtedSinceSeconds = now
                self._doubted(jumpSeconds)
            if now - self._doubtedSinceSeconds < BELIEVED_AFTER_SECONDS:
                return now + self._aheadSeconds
        self._doubtedSinceSeconds = None
        self._aheadSeconds = wall - now
        return wall


@implementer(IReactorTime)
class MonotonicClock:
    """
    A reactor's timers with a clock that never jumps.

    Delays count from now, so the reactor's own C{callLater} serves.  The calls
    that it returns are the reactor's: C{delay}, C{reset} and C{cancel} work as
    usual, but C{getTime} is in the reactor's wall time and must not be compared
    with L{seconds}.  When the machine's clock is set, a reactor runs calls
    early or late by the jump, unless L{useMonotonicTimers} was told of it; code
    that must not act early checks L{seconds} when called.
    """

    def __init__(self, reactor: IReactorTime) -> None:
        """
        @param reactor: runs the timers.
        """
        self._reactor = reactor
        # An attribute rather than a method: every request reads the time several times, and this spares a Python frame.
        self.seconds: Callable[[], float] = time.monotonic

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        return self._reactor.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return self._reactor.getDelayedCalls()


def useMonotonicTimers(reactor: Any) -> None:
    """
    Have a reactor run its timers by a clock that never jumps.  Otherwise, once the machine's clock is set back by an
    hour, whatever was due waits for an hour: a throttled client, a commit of the log, a deadline.

    It holds for all timers of the process, those that are pending included.  From then on C{reactor.seconds} is not
    the time of day.

    @param reactor: as Twisted has them; others are left alone.
    """
    # Commands need a clock and no reactor.
    from twisted.internet.base import ReactorBase

    if isinstance(reactor, ReactorBase) and reactor.seconds is not time.monotonic:
        ahead = time.monotonic() - reactor.seconds()
        for call in reactor.getDelayedCalls():
            # All by the same, so their order remains.
            call.time += ahead  # type: ignore[attr-defined]
            call.seconds = time.monotonic  # type: ignore[attr-defined]
        reactor.seconds = time.monotonic
