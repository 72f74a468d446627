# -*- test-case-name: tests.unit.test_timeslices -*-
"""
The reactor's time, shared among work that takes long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

T = TypeVar("T")

Steps = Generator[Deferred[Any] | None, None, T]
"""
Work that yields wherever it may be interrupted, at least once in a millisecond, and returns its result.  If it yields a
L{Deferred} it goes on when that has fired, and is told nothing of its result; if that fails, so does the work.
"""

SLICE_SECONDS: Final = 0.0025
"""
How much of a turn of the reactor goes to work that takes long.  A small request takes several turns, each of which
waits for a slice.
"""

_QUANTUM_SECONDS: Final = 0.001
_SHARE_AT_ONCE: Final = 0.5


def begun(first: Deferred[Any] | None, steps: Steps[T]) -> Steps[T]:
    """
    Work of which the first step is done.

    @param first: what that has yielded.
    """
    yield first
    return (yield from steps)


class _Task:
    """
    Work that goes on in later turns.

    @ivar usedSeconds: how much of the reactor's time it has had.
    @ivar over: fires when it is over; its callback gives what the work has returned.
    """

    def __init__(self, holder: str, steps: Steps[Any], finished: Callable[[float], object] | None) -> None:
        self.holder = holder
        self.steps = steps
        self.finished = finished
        self.usedSeconds = 0.0
        self.isOver = False
        self.awaited: Deferred[Any] | None = None
        self.value: Any = None
        self.over: Deferred[Any] = Deferred(self._cancel)
        self.over.addCallback(lambda _: self.value)

    def _cancel(self, _: Deferred[Any]) -> None:
        self.isOver = True
        awaited, self.awaited = self.awaited, None
        self.close()
        if awaited is not None:
            awaited.cancel()

    def close(self) -> None:
        """
        Close the steps; if one is being done, the code that does it calls this again.
        """
        try:
            self.steps.close()
        except ValueError:
            pass


class TimeSlices:
    """
    Does work that takes long in slices, between which the reactor serves others.

    Short work is done at once, as long as such work takes no more than half of the time.  The rest has a slice of each
    turn of the reactor: holders go round, and of one holder's work goes first what has had the least time.  So nobody
    waits long for little because others ask for much.
    """

    def __init__(self, clock: IReactorTime, sliceSeconds: float = SLICE_SECONDS) -> None:
        """
        @param sliceSeconds: how long others wait at most in a turn, apart from one step.
        """
        self._clock = clock
        self._sliceSeconds = sliceSeconds
        # What may be done at once: a bucket of seconds, and when it was filled last.
        self._creditSeconds = sliceSeconds
        self._filledSeconds = clock.seconds()
        self._numbers = count()
        # Tasks that do not wait for anything, by holder: heaps, least time first.
        self._tasks: OrderedDict[str, list[tuple[float, int, _Task]]] = OrderedDict()
        self._turn: IDelayedCall | None = None

    def run(self, holder: str, steps: Steps[T], finished: Callable[[float], object] | None = None) -> T | Deferred[Any]:
        """
        Do work, at once if it is short.

        @param holder: for whom: a principal, or an address.
        @param finished: called with the seconds that the work has had, before a L{Deferred} fires.
        @return: its result; or a L{Deferred} that fires with it in a later turn.  Cancelling that closes C{steps}.
        @raise Exception: whatever C{steps} raises, if that is at once.
        """
        seconds = self._clock.seconds
        began = now = seconds()
        credit = min(self._creditSeconds + (now - self._filledSeconds) * _SHARE_AT_ONCE, self._sliceSeconds)
        awaited = None
        try:
            while awaited is None and now - began < credit:
                awaited = next(steps)
                now = seconds()
        except StopIteration as end:
            now = seconds()
            result: T = end.value
            return result
        finally:
            self._creditSeconds, self._filledSeconds = credit - (now - began), now
        task = _Task(holder, steps, finished)
        task.usedSeconds = now - began
        if awaited is None:
            self._add(task)
        else:
            self._wait(task, awaited)
        return task.over

    def close(self) -> None:
        """
        Cancel the work that is not done and waits for nothing.
        """
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        while self._tasks:
            _, tasks = self._tasks.popitem()
            for _, _, task in tasks:
                task.over.cancel()

    def _add(self, task: _Task) -> None:
        heappush(self._tasks.setdefault(task.holder, []), (task.usedSeconds, next(self._numbers), task))
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._work)

    def _wait(self, task: _Task, awaited: Deferred[Any]) -> None:
        task.awaited = awaited

        def succeeded(_: Any) -> None:
            task.awaited = None
            if not task.isOver:
                # At once: what it has waited for may be true only now.
                self._workOn(task, self._clock.seconds())

        def failed(failure: Failure) -> None:
            task.awaited = None
            if not task.isOver:
                task.close()
                self._finish(task, failure)

        awaited.addCallbacks(succeeded, failed)

    def _work(self) -> None:
        seconds = self._clock.seconds
        began = now = seconds()
        while self._tasks and now - began < self._sliceSeconds:
            holder, tasks = self._tasks.popitem(last=False)
            _, _, task = heappop(tasks)
            if tasks:
                self._tasks[holder] = tasks
            if not task.isOver:
                self._workOn(task, now)
                now = seconds()
        # Until here it was set, and nobody has begun another.
        self._turn = self._clock.callLater(0, self._work) if self._tasks else None

    def _workOn(self, task: _Task, began: float) -> None:
        seconds = self._clock.seconds
        now = began
        awaited = None
        try:
            while awaited is None and not task.isOver and now - began < _QUANTUM_SECONDS:
                awaited = next(task.steps)
                now = seconds()
        except StopIteration as end:
            task.usedSeconds += seconds() - began
            self._finish(task, end.value)
        except Exception:
            task.usedSeconds += seconds() - began
            self._finish(task, Failure())  # type: ignore[no-untyped-call]
        else:
            task.usedSeconds += now - began
            if task.isOver:
                task.close()
            elif awaited is None:
                self._add(task)
            else:
                self._wait(task, awaited)

    def _finish(self, task: _Task, value: Any) -> None:
        if task.isOver:
            # It has been cancelled by what it did last.
            return
        task.isOver = True
        task.value = value
        if task.finished is not None:
            task.finished(task.usedSeconds)
        task.over.callback(None)


class Places:
    """
    Bounds how much work is done at a time.  Holders that wait for a place go round.

    @ivar free: how many places nobody has.
    """

    def __init__(self, count: int) -> None:
        """
        @param count: how many places there are.
        """
        self.free = count
        self._waiting: OrderedDict[str, dict[Deferred[None], None]] = OrderedDict()

    def take(self, holder: str) -> Deferred[None] | None:
        """
        Have a place; L{give} it back once.

        @param holder: for whom: a principal, or an address.
        @return: L{None} if there was one.  Otherwise fires when it is had; cancel it to wait no more.
        """
        if self.free:
            self.free -= 1
            return None

        def forget(cancelled: Deferred[None]) -> None:
            if self._waiting.get(holder, {}).pop(cancelled, self) is None and not self._waiting[holder]:
                del self._waiting[holder]

        place: Deferred[None] = Deferred(forget)
        self._waiting.setdefault(holder, {})[place] = None
        return place

    def give(self) -> None:
        """
        Give a place back: the next has it, if anybody waits.
        """
        if not self._waiting:
            self.free += 1
            return
        holder, waiting = self._waiting.popitem(last=False)
        place = next(iter(waiting))
        del waiting[place]
        if waiting:
            self._waiting[holder] = waiting
        place.callback(None)
