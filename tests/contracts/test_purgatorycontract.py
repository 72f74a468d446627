"""L{admission.testing.purgatorycontract}, with purgatories of every kind that are wrong, and on wheels that are."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IDelayedOperation, IPurgatory
from admission.metrics.registry import SensorRegistry
from admission.testing.purgatorycontract import PurgatoryContract
from admission_plugins.purgatory import CallLaterPurgatory
from tests.kit.listpurgatory import ListPurgatory
from tests.kit.seededfaults import SeededFaultsTestCase


class ChecksOnce(CallLaterPurgatory):
    """Does not look again once an operation is watched."""

    def tryCompleteElseWatch(self, operation: Any, keys: Collection[Hashable]) -> bool:
        if operation.tryComplete():
            return True
        operation.tryComplete = lambda: False
        try:
            return super().tryCompleteElseWatch(operation, keys)
        finally:
            del operation.tryComplete


class Undemanding(CallLaterPurgatory):
    """Takes an operation without keys."""

    def tryCompleteElseWatch(self, operation: Any, keys: Collection[Hashable]) -> bool:
        return super().tryCompleteElseWatch(operation, keys or ["none"])


class FirstKeyOnly(CallLaterPurgatory):
    """Watches an operation under one key."""

    def tryCompleteElseWatch(self, operation: Any, keys: Collection[Hashable]) -> bool:
        hash(tuple(keys))
        return super().tryCompleteElseWatch(operation, list(keys)[:1])


class Lingering(CallLaterPurgatory):
    """Keeps the timer of an operation that is over."""

    def leave(self, operation: IDelayedOperation) -> None:
        call, operation.nextEntry = operation.nextEntry, None
        super().leave(operation)
        operation.nextEntry = call


class Clinging(CallLaterPurgatory):
    """Does not give back what an operation has lent it."""

    def leave(self, operation: IDelayedOperation) -> None:
        keys = operation.parking
        super().leave(operation)
        operation.parking = keys


class Hasty(CallLaterPurgatory):
    """Counts an operation that has time left."""

    def leave(self, operation: IDelayedOperation) -> None:
        self.expirations += operation.nextEntry is None and not operation.completed
        super().leave(operation)


class Brittle(CallLaterPurgatory):
    """Lets through what an operation raises."""

    def checkAndComplete(self, key: Hashable) -> int:
        for operation in list(self._operations.under(key)):
            operation.tryComplete()
        return super().checkAndComplete(key)


class Boastful(CallLaterPurgatory):
    """Counts what it has checked."""

    def checkAndComplete(self, key: Hashable) -> int:
        count = len(list(self._operations.under(key)))
        super().checkAndComplete(key)
        return count


class Silent(CallLaterPurgatory):
    """Cancels without telling."""

    def cancelForKey(self, key: Hashable) -> list[IDelayedOperation]:
        operations = list(self._operations.under(key))
        for operation in operations:
            self.leave(operation)
        return operations


class Completing(CallLaterPurgatory):
    """Completes what it should cancel."""

    def cancelForKey(self, key: Hashable) -> list[IDelayedOperation]:
        operations = list(self._operations.under(key))
        for operation in operations:
            operation.forceComplete()
        return operations


class Endless(CallLaterPurgatory):
    """Goes on after its shutdown."""

    def shutdown(self) -> None:
        super().shutdown()
        self._isShutDown = False


class Deaf(CallLaterPurgatory):
    """Does not hear of its shutdown."""

    def shutdown(self) -> None:
        pass


class Impatient(CallLaterPurgatory):
    """Expires within the call what has no time to wait."""

    def tryCompleteElseWatch(self, operation: Any, keys: Collection[Hashable]) -> bool:
        isCompleted = super().tryCompleteElseWatch(operation, keys)
        if not operation.completed and operation.delaySeconds <= 0:
            operation.expire()
        return isCompleted


class Nameless(CallLaterPurgatory):
    """Has one name for its sensors."""

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        super().addSensors(registry, "Purgatory")


class Recursive(CallLaterPurgatory):
    """Checks at once what is to be checked while it checks."""

    def checkAndComplete(self, key: Hashable) -> int:
        noted, self._noted = self._noted, None
        try:
            return super().checkAndComplete(key)
        finally:
            self._noted = noted


class ListPurgatoryTests(PurgatoryContract, SynchronousTestCase):
    """The contract says all that a purgatory must do: one that is written from it passes."""

    def buildPurgatory(self, clock: Clock) -> IPurgatory:
        """A list."""
        return ListPurgatory(clock)


class PurgatoryContractTests(SeededFaultsTestCase):
    """L{PurgatoryContract}."""

    def test_faults(self) -> None:
        """Each way in which a purgatory may be wrong is found by the test that is for it."""
        for purgatory, test in [
            (ChecksOnce, "test_completedAtSecondCheck"),
            (Undemanding, "test_keysAreNeeded"),
            (FirstKeyOnly, "test_anyCollectionOfKeys"),
            (Lingering, "test_forceComplete"),
            (Clinging, "test_watcher"),
            (Hasty, "test_expiryPutOff"),
            (Brittle, "test_checkRaises"),
            (Boastful, "test_checkAndComplete"),
            (Silent, "test_cancelForKey"),
            (Completing, "test_cancelForKey"),
            (Endless, "test_afterShutdown"),
            (Deaf, "test_shutdown"),
            (Impatient, "test_noDelay"),
            (Nameless, "test_sensors"),
            (Recursive, "test_longChain"),
        ]:
            self.assertBroken(PurgatoryContract, test, purgatory.__name__, buildPurgatory=purgatory)
