# -*- test-case-name: tests.offline.test_syntheticserver -*-
"""
Virtual time for simulations and replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from twisted.internet.base import DelayedCall
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

MICROSECONDS = 1_000_000
"""Per second."""


@implementer(IReactorTime)
class Simulator:
    """
    Calls to make, in the order of their time, and at the same moment in the order of scheduling.

    Time is in whole microseconds, as recordings have it, so that computations from a recording can reproduce it
    exactly.

    @ivar nowUs: the current time, in microseconds.
    """

    def __init__(self, nowUs: int = 0) -> None:
        self.nowUs = nowUs
        self._entries: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()

    def seconds(self) -> float:
        return self.nowUs / MICROSECONDS

    def at(self, atUs: int, call: Callable[[], object]) -> None:
        """
        Schedule C{call} for a time in microseconds; if that has passed, for the current time.  It cannot be cancelled,
        and so costs less than L{callLater}.
        """
        heappush(self._entries, (atUs, next(self._order), call))

    def runUntil(self, untilUs: int) -> None:
        """
        Advance the time to C{untilUs}, inclusive.
        """
        entries = self._entries
        while entries and entries[0][0] <= untilUs:
            atUs, _, call = heappop(entries)
            if atUs > self.nowUs:
                self.nowUs = atUs
            call()
        self.nowUs = max(self.nowUs, untilUs)

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        """
        See L{IReactorTime.callLater}; rounded to microseconds, and to at least one unless C{delay} is zero: otherwise a
        caller that waits for a moment could wait for ever.
        """
        timer = DelayedCall(
            self.seconds() + delay, callable, args, kwargs, lambda cancelled: None, self._schedule, self.seconds
        )
        self._schedule(timer)
        return timer

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """
        See L{IReactorTime.getDelayedCalls}; calls made with L{at} are not included.
        """
        timers = (call.args[0] for _, _, call in self._entries if isinstance(call, partial) and call.func == self._fire)
        return [timer for timer in timers if timer.active()]

    def _schedule(self, timer: DelayedCall) -> None:
        atUs = round(timer.getTime() * MICROSECONDS)
        if timer.getTime() > self.seconds():
            atUs = max(atUs, self.nowUs + 1)
        self.at(atUs, partial(self._fire, timer, atUs))

    def _fire(self, timer: DelayedCall, atUs: int) -> None:
        # A call that was reset to an earlier moment has two entries, and one reset to a later moment must wait again.
        if not timer.active():
            return
        if round(timer.getTime() * MICROSECONDS) > atUs:
            self._schedule(timer)
            return
        timer.called = 1
        timer.func(*timer.args, **timer.kw)
