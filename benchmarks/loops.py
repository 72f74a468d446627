"""
Event loops to measure timers in, and processes to measure them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from multiprocessing import get_context
from operator import getitem
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from attrs import define, field
from twisted.internet.epollreactor import EPollReactor

_MAX_CANCELLED_SHARE = 0.5

P = ParamSpec("P")
T = TypeVar("T")

Turns = Iterator[float]
"""Work done a piece in each turn of a loop; says after each piece how many seconds to leave until the next."""


class SteppedTime:
    """
    Time that stands still until somebody moves it, read as fast as a real clock.

    @ivar seconds: what time it is.
    """

    def __init__(self) -> None:
        self._now = [0.0]
        self.seconds: Callable[[], float] = cast(Callable[[], float], partial(getitem, self._now, 0))

    def advance(self, seconds: float) -> None:
        """
        Move on.
        """
        self._now[0] += seconds


class Loop(Protocol):
    """
    An event loop.
    """

    def callLater(self, delaySeconds: float, function: Callable[..., object], /, *arguments: object) -> Any:
        """
        Set a timer.
        """

    def cancel(self, call: Any, /) -> None:
        """
        Cancel what L{callLater} returned.
        """

    def run(self, turns: Turns) -> None:
        """
        Run until C{turns} come to their end.
        """


class EpollLoop:
    """
    Twisted's epoll reactor.

    @ivar reactor: the reactor.
    """

    def __init__(self, time: SteppedTime | None = None) -> None:
        """
        @param time: what the reactor goes by; the machine's clock unless given.
        """
        self.reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]
        if time is not None:
            self.reactor.seconds = time.seconds
        self.callLater = self.reactor.callLater

    def cancel(self, call: Any) -> None:
        """
        See L{Loop}.
        """
        call.cancel()

    def run(self, turns: Turns) -> None:
        """
        See L{Loop}.
        """

        def turn() -> None:
            delaySeconds = None
            try:
                delaySeconds = next(turns, None)
            finally:
                if delaySeconds is None:
                    self.reactor.stop()
                else:
                    self.reactor.callLater(delaySeconds, turn)

        self.reactor.callWhenRunning(turn)
        self.reactor.run(installSignalHandlers=False)


class AsyncioLoop:
    """
    The loop that asyncio takes by itself.
    """

    def __init__(self, time: SteppedTime | None = None) -> None:
        """
        @param time: what the loop goes by; the machine's clock unless given.
        """
        self._loop = asyncio.new_event_loop()
        if time is not None:
            self._loop.time = time.seconds  # type: ignore[method-assign]
        self.callLater = self._loop.call_later

    def cancel(self, call: Any) -> None:
        """
        See L{Loop}.
        """
        call.cancel()

    def run(self, turns: Turns) -> None:
        """
        See L{Loop}.
        """

        def turn() -> None:
            delaySeconds = None
            try:
                delaySeconds = next(turns, None)
            finally:
                if delaySeconds is None:
                    self._loop.stop()
                elif delaySeconds:
                    self._loop.call_later(delaySeconds, turn)
                else:
                    self._loop.call_soon(turn)

        self._loop.call_soon(turn)
        self._loop.run_forever()
        self._loop.close()


class HeapLoop:
    """
    A loop that has nothing but a heap of timers: the least that one can write.  What is cancelled stays in the heap
    until its time comes, or until half of the heap is cancelled.
    """

    def __init__(self, time: SteppedTime) -> None:
        """
        @param time: what the loop goes by.
        """
        self._seconds = time.seconds
        self._numbers = count()
        self._heap: list[list[Any]] = []
        self._cancelled = 0

    def callLater(self, delaySeconds: float, function: Callable[..., object], /, *arguments: object) -> Any:
        """
        See L{Loop}.
        """
        call = [self._seconds() + delaySeconds, next(self._numbers), function, arguments]
        heappush(self._heap, call)
        return call

    def cancel(self, call: Any) -> None:
        """
        See L{Loop}.
        """
        call[2] = None
        self._cancelled += 1

    def run(self, turns: Turns) -> None:
        """
        See L{Loop}.  Nobody is waited for, since nothing but C{turns} moves the time.
        """
        for _ in turns:
            now, heap = self._seconds(), self._heap
            while heap and heap[0][0] <= now:
                _, _, function, arguments = heappop(heap)
                if function is None:
                    self._cancelled -= 1
                else:
                    function(*arguments)
            if self._cancelled > _MAX_CANCELLED_SHARE * len(heap):
                self._heap = [call for call in heap if call[2] is not None]
                heapify(self._heap)
                self._cancelled = 0


@define
class Processes:
    """
    Runs one function after another away from this process, whose heap would slow down the collection of garbage.

    @ivar fresh: whether each gets a process of its own, which takes half a second.
    """

    fresh: bool
    _shared: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Processes:
        if not self.fresh:
            self._shared = _newProcess()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shared is not None:
            self._shared.shutdown()

    def run(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """
        @param function: can be imported.
        @return: what it returns; raises what it raises.
        """
        if self._shared is not None:
            return self._shared.submit(function, *arguments, **options).result()
        with _newProcess() as process:
            return process.submit(function, *arguments, **options).result()


def _newProcess() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))
