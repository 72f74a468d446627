"""A purgatory that is written from the contracts alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from math import isfinite
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from admission.interfaces import IDelayedOperation, IPurgatory
from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry


@implementer(IPurgatory)
class ListPurgatory:
    """
    Operations in a list and their timers: a purgatory written from the
    contract alone, which has nothing in common with the default one.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.waits = Histogram()
        self.expirations = 0
        self.waiting: list[IDelayedOperation] = []
        self.toCheck: list[Hashable] = []
        self.isChecking = False
        self.isShutDown = False

    @property
    def watched(self) -> int:
        return len(self.waiting)

    delayed = watched

    def tryCompleteElseWatch(self, operation: IDelayedOperation, keys: Collection[Hashable]) -> bool:
        watchedKeys = frozenset(keys)
        if not watchedKeys:
            raise ValueError("no keys")
        hash(operation)
        if operation.tryComplete():
            return True
        if operation.completed:
            return False
        if operation.watcher is not None:
            raise RuntimeError("it waits already")
        if self.isShutDown:
            operation.onCancel()
            return False
        if not isfinite(operation.delaySeconds):
            raise ValueError("its delay is not finite")
        timer = self.clock.callLater(max(operation.delaySeconds, 0.0), self.expire, operation)
        operation.watcher, operation.parking = self, (watchedKeys, timer, self.clock.seconds())
        self.waiting.append(operation)
        try:
            return operation.tryComplete()
        except BaseException:
            if operation.watcher is self:
                self.leave(operation)
            raise

    def leave(self, operation: IDelayedOperation) -> None:
        _, timer, sinceSeconds = operation.parking
        operation.watcher = operation.parking = None
        self.waiting.remove(operation)
        if timer.active():
            timer.cancel()
        self.waits.record(self.clock.seconds() - sinceSeconds)

    def expire(self, operation: IDelayedOperation) -> None:
        self.quietly(operation.expire)
        self.expirations += operation.completed

    def checkAndComplete(self, key: Hashable) -> int:
        if key not in self.toCheck:
            self.toCheck.append(key)
        if self.isChecking:
            return 0
        completed = idlePasses = 0
        self.isChecking = True
        try:
            while self.toCheck and idlePasses < 10:
                departures = self.waits.count
                for operation in self.under(self.toCheck.pop(0)):
                    if operation.watcher is self:
                        isCompleted = self.quietly(operation.tryComplete)
                        completed += operation.completed if isCompleted is None else isCompleted
                idlePasses = 0 if self.waits.count > departures else idlePasses + 1
        finally:
            self.isChecking = False
            self.toCheck.clear()
        return completed

    def cancelForKey(self, key: Hashable) -> list[IDelayedOperation]:
        return self.cancel(self.under(key))

    def shutdown(self) -> None:
        self.isShutDown = True
        self.cancel(list(self.waiting))

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        registry.addGauge(f"{name}PurgatorySize", lambda now: self.watched)
        registry.addGauge(f"{name}NumDelayedOperations", lambda now: self.delayed)
        registry.addCounter(f"{name}Expirations", lambda now: self.expirations)
        registry.addHistogram(f"{name}WaitSeconds", self.waits)

    def under(self, key: Hashable) -> list[IDelayedOperation]:
        return [each for each in self.waiting if key in each.parking[0]]

    def cancel(self, operations: list[IDelayedOperation]) -> list[IDelayedOperation]:
        for each in operations:
            self.leave(each)
        for each in operations:
            if each.watcher is None and not each.completed:
                self.quietly(each.onCancel)
        return operations

    def quietly(self, function: Callable[[], Any]) -> Any:
        """Call C{function}; log what it raises, and return L{None} then."""
        try:
            return function()
        except Exception:
            self._log.failure("an operation raised")
