# -*- test-case-name: tests.contracts.test_purgatory -*-
"""
Purgatories, where requests are parked: one on a timing wheel, and a plain one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from math import isfinite
from sys import getsizeof
from typing import ClassVar, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import classImplements

from admission.interfaces import IDelayedOperation, IPurgatory, ISensorRegistry, PolicyContext
from admission.metrics.histogram import Histogram
from admission.units import parseSeconds

from .wheel import TimerEntry, TimingWheel

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Watcher = TypeVar("_Watcher", bound=Hashable)

IDLE_PASSES = 10
"""How often in a row a check is repeated because operations asked for it, although none has completed since."""


def shrunk(entries: dict[_Key, _Value]) -> dict[_Key, _Value]:
    """
    C{entries}, or a smaller copy if there is room for about ten times as many: deleting frees no memory, and iterating
    a dictionary visits all slots that were ever used.
    """
    return dict(entries) if getsizeof(entries) > 1000 + 600 * len(entries) else entries


class Watchers(Generic[_Watcher]):
    """
    Watchers by key, in order of arrival.  A watcher is removed from its keys in constant time, and keys without
    watchers are not kept.
    """

    __slots__ = ("_byKey",)

    def __init__(self) -> None:
        self._byKey: dict[Hashable, dict[_Watcher, None]] = {}

    def add(self, watcher: _Watcher, keys: Iterable[Hashable]) -> None:
        """
        Add C{watcher} under C{keys}; duplicates count once.
        """
        byKey = self._byKey
        for key in keys:
            watchers = byKey.get(key)
            if watchers is None:
                byKey[key] = {watcher: None}
            else:
                watchers[watcher] = None

    def discard(self, watcher: _Watcher, keys: Iterable[Hashable]) -> None:
        """
        Remove C{watcher}.

        @param keys: the keys it was added with.
        """
        byKey = self._byKey
        for key in keys:
            try:
                watchers = byKey[key]
                del watchers[watcher]
            except KeyError:
                # A duplicate key.
                continue
            # Both are shrunk whenever the count has come down to a power of two: often enough, and cheap.
            count = len(watchers)
            if count:
                if not count & (count - 1):
                    byKey[key] = shrunk(watchers)
                continue
            del byKey[key]
            count = len(byKey)
            if not count & (count - 1):
                self._byKey = byKey = shrunk(byKey)

    def under(self, key: Hashable) -> Iterable[_Watcher]:
        """
        The watchers of C{key}; a live view.
        """
        return self._byKey.get(key, ())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._byKey

    def __iter__(self) -> Iterator[_Watcher]:
        """
        All watchers, each as often as it watches keys.
        """
        for watchers in self._byKey.values():
            yield from watchers


class _Timers(Protocol):
    """
    The part of a L{TimingWheel} that a purgatory needs.
    """

    def add(self, entry: TimerEntry, delaySeconds: float) -> None:
        """
        Have C{entry} expire after C{delaySeconds}.
        """

    def discard(self, entry: TimerEntry) -> bool:
        """
        Cancel the timer of C{entry}.

        @return: L{False} if it has fired already.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class _Purgatory:
    """
    The common part of the purgatories here; they differ in their timers.

    For each key there is a dictionary of the operations that are watched under it.  A completed operation is removed at
    once and in constant time, so nothing has to be purged.

    @ivar expirations: see L{IPurgatory}, like C{waits}.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, clock: IReactorTime, timers: _Timers) -> None:
        self.expirations = 0
        self.waits = Histogram()
        self._seconds = clock.seconds
        self._timers = timers
        self._operations: Watchers[IDelayedOperation] = Watchers()
        self._arrivals = 0
        self._noted: dict[Hashable, None] | None = None
        self._isShutDown = False

    @property
    def watched(self) -> int:
        # Every removal records a waiting time, so a count of removals would be redundant.
        return self._arrivals - self.waits.count

    @property
    def delayed(self) -> int:
        return self.watched

    def tryCompleteElseWatch(self, operation: IDelayedOperation, keys: Collection[Hashable]) -> bool:
        watchedKeys = tuple(keys)
        if not watchedKeys:
            raise ValueError("there must be at least one key to watch")
        # Raises now if one of them cannot be a key.
        hash(watchedKeys)
        if operation.tryComplete():
            return True
        if operation.completed:
            return False
        if operation.watcher is not None:
            raise RuntimeError(f"{operation!r} waits already")
        if self._isShutDown:
            operation.onCancel()
            return False
        self._timers.add(operation, operation.delaySeconds)
        try:
            self._operations.add(operation, watchedKeys)
        except BaseException:
            # The operation's class is unhashable.
            self._timers.discard(operation)
            raise
        operation.parking = watchedKeys
        self._arrivals += 1
        try:
            operation.watcher = self
            return operation.tryComplete()
        except BaseException:
            if operation.watcher is self:
                self.leave(operation)
            raise

    def leave(self, operation: IDelayedOperation) -> None:
        self._operations.discard(operation, operation.parking)
        operation.watcher = operation.parking = None
        if not self._timers.discard(operation) and operation.completed:
            # It completes because its timer has fired.
            self.expirations += 1
        self.waits.record(self._seconds() - operation.dueSeconds + operation.delaySeconds)

    def checkAndComplete(self, key: Hashable) -> int:
        if key not in self._operations:
            return 0
        if self._noted is not None:
            self._noted[key] = None
            return 0
        keys: Iterable[Hashable] = (key,)
        completed = idlePasses = 0
        try:
            while keys and idlePasses < IDLE_PASSES:
                self._noted = {}
                departures = self.waits.count
                completed += sum(map(self._check, keys))
                idlePasses = idlePasses + 1 if departures == self.waits.count else 0
                keys = self._noted
        finally:
            self._noted = None
        return completed

    def cancelForKey(self, key: Hashable) -> list[IDelayedOperation]:
        operations = list(self._operations.under(key))
        self._cancel(operations)
        return operations

    def shutdown(self) -> None:
        self._isShutDown = True
        self._cancel(list(dict.fromkeys(self._operations)))

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        registry.addGauge(f"{name}PurgatorySize", lambda now: self.watched)
        registry.addGauge(f"{name}NumDelayedOperations", lambda now: self.delayed)
        registry.addCounter(f"{name}Expirations", lambda now: self.expirations)
        registry.addHistogram(f"{name}WaitSeconds", self.waits)

    def _check(self, key: Hashable) -> int:
        completed = 0
        for operation in list(self._operations.under(key)):
            # An operation that was checked before may have completed this one.
            if operation.watcher is not self:
                continue
            try:
                if operation.tryComplete():
                    completed += 1
            except Exception:
                completed += operation.completed
                self._log.failure("{operation!r} raised when it was checked", operation=operation)
        return completed

    def _cancel(self, operations: Iterable[IDelayedOperation]) -> None:
        for operation in operations:
            self.leave(operation)
        for operation in operations:
            # An operation that was told before may have parked or completed this one.
            if operation.watcher is None and not operation.completed:
                try:
                    operation.onCancel()
                except Exception:
                    self._log.failure("{operation!r} raised when it was cancelled", operation=operation)


classImplements(_Purgatory, IPurgatory)


@mypyc_attr(allow_interpreted_subclasses=True)
class WheelPurgatory(_Purgatory):
    """
    A purgatory whose timeouts are on a L{TimingWheel}.

    @ivar wheel: the wheel; others may share it.
    """

    def __init__(self, wheel: TimingWheel) -> None:
        super().__init__(wheel, wheel)
        self.wheel = wheel


@mypyc_attr(allow_interpreted_subclasses=True)
class CallLaterPurgatory(_Purgatory):
    """
    A purgatory with a timer of the reactor for each operation: the plain way, for comparison.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock, _ReactorTimers(clock))


class _ReactorTimers:
    """
    Expires each entry by a C{callLater} of its own, which is its C{nextEntry}.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock

    def add(self, entry: TimerEntry, delaySeconds: float) -> None:
        if not isfinite(delaySeconds):
            raise ValueError(f"a delay must be a finite number of seconds, not {delaySeconds}")
        entry.dueSeconds = self._clock.seconds() + delaySeconds
        entry.nextEntry = self._clock.callLater(max(delaySeconds, 0.0), self._expire, entry)

    def discard(self, entry: TimerEntry) -> bool:
        call: IDelayedCall | None = entry.nextEntry
        if call is None:
            return False
        entry.nextEntry = None
        call.cancel()
        return True

    def _expire(self, entry: TimerEntry) -> None:
        entry.nextEntry = None
        try:
            entry.expire()
        except Exception:
            self._log.failure("{entry!r} raised when its time was up", entry=entry)


def buildWheel(context: PolicyContext, tick: str = "1ms", size: str = "20") -> WheelPurgatory:
    """
    C{wheel[:tick=1ms][:size=20]}.
    """
    if not size.isdecimal():
        raise ValueError(f"size={size}: say how many slots a wheel has, a whole number from 2")
    return WheelPurgatory(TimingWheel(context.clock, parseSeconds(tick), int(size)))


def buildCallLater(context: PolicyContext) -> CallLaterPurgatory:
    """
    C{calllater}.
    """
    return CallLaterPurgatory(context.clock)
