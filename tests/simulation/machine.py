"""What a broker has of a computer, for as long as it lives: time, timers, threads, and a disk that loses power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from twisted.internet.base import DelayedCall
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.kit.simulateddisk import SimulatedDisk

_TURN_SECONDS = 2.0**-20


@implementer(IReactorTime)
class WorldClock:
    """
    The time of everybody, clients included, which goes from one call to the next.

    @ivar now: what time it is, in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, DelayedCall]] = []
        self._numbers = count()

    def seconds(self) -> float:
        return self.now

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> DelayedCall:
        """Never in this turn."""
        assert delay >= 0, f"{delay} is no delay"
        due = self.now + max(delay, _TURN_SECONDS)
        call = DelayedCall(due, callable, args, kw, _ignore, self._moved, self.seconds)
        heappush(self._calls, (due, next(self._numbers), call))
        return call

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return [call for _, _, call in self._calls if call.active()]

    def runNext(self) -> None:
        """Go to the time of the next call, and make it."""
        while True:
            due, _, call = heappop(self._calls)
            if not call.active():
                continue
            if call.getTime() > due:
                # It was delayed.
                heappush(self._calls, (call.getTime(), next(self._numbers), call))
                continue
            break
        self.now = max(self.now, due)
        call.called = 1
        call.func(*call.args, **call.kw)

    def elapse(self, seconds: float) -> None:
        """Let time pass in the middle of a call."""
        self.now += seconds

    def _moved(self, call: DelayedCall) -> None:
        heappush(self._calls, (call.getTime(), next(self._numbers), call))


def _ignore(call: DelayedCall) -> None:
    pass


@implementer(IReactorTime)
class Machine:
    """
    The reactor, its pool of threads and the disk of one life of a broker.

    @ivar disk: its disk, of which everything is there after C{kill -9}, and what was flushed after a loss of power.
    @ivar isDead: whether the process or the machine is gone: nothing happens any more.
    @ivar hasLostData: whether what it has promised with its last words need not hold.
    @ivar hangsUntilSeconds: until when the disk answers nobody.
    """

    def __init__(self, world: WorldClock, random: Random, disk: SimulatedDisk, readingSeconds: float) -> None:
        """@param readingSeconds: how long the process works between two readings of its clock."""
        self.disk = disk
        self.isDead = False
        self.hasLostData = False
        self.hangsUntilSeconds = 0.0
        self._world = world
        self._random = random
        self._readingSeconds = readingSeconds
        self._calls: dict[IDelayedCall, None] = {}

    def seconds(self) -> float:
        self._world.elapse(self._readingSeconds)
        return self._world.now

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> IDelayedCall:
        def run() -> None:
            del self._calls[call]
            callable(*args, **kw)

        call = self._world.callLater(delay, run)
        self._calls[call] = None
        if self.isDead:
            call.cancel()
        return call

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return [call for call in self._calls if call.active()]

    def callFromThread(self, callable: Callable[..., object], *args: object, **kw: object) -> None:
        """As a reactor does; so the other methods."""
        self.callLater(0, callable, *args, **kw)

    def getThreadPool(self) -> Machine:
        return self

    def callInThreadWithCallback(
        self, onResult: Callable[[bool, Any], object], function: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        """Work in a thread: some time later, before or after what other threads do."""
        delaySeconds = self._random.choice([0.0, 0.0005, 0.003, 0.02]) * self._random.random()

        def work() -> None:
            if self._world.now < self.hangsUntilSeconds:
                self.callLater(self.hangsUntilSeconds - self._world.now + delaySeconds, work)
                return
            try:
                result = function(*args, **kw)
            except Exception:
                onResult(False, Failure())  # type: ignore[no-untyped-call]
            else:
                onResult(True, result)

        self.callLater(delaySeconds, work)

    def die(self) -> None:
        """Nothing that was to happen will."""
        self.isDead = True
        for call in self._calls:
            if call.active():
                call.cancel()
        self._calls.clear()
