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
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer


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
