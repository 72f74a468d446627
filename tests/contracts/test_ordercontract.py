"""L{admission.testing.ordercontract}."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.interfaces import IWaiter, IWaitOrder
from admission.testing.ordercontract import WaitOrderContract
from admission_plugins.orders import RandomRounds
from tests.kit.seededfaults import SeededFaultsTestCase


@implementer(IWaitOrder)
class RoundRobin:
    """One of each holder, then the next of each."""

    def __init__(self) -> None:
        self._holders: dict[IWaiter, str] = {}
        self._queues: dict[str, dict[IWaiter, None]] = {}

    def add(self, waiter: IWaiter) -> None:
        """At the end of its holder's queue."""
        if waiter not in self._holders:
            holder = self._holders[waiter] = waiter.holder
            self._queues.setdefault(holder, {})[waiter] = None

    def discard(self, waiter: IWaiter) -> None:
        """Have its holder's other waiters wait until all other holders have had theirs."""
        holder = self._holders.pop(waiter, None)
        if holder is not None:
            queue = self._queues.pop(holder)
            del queue[waiter]
            if queue:
                self._queues[holder] = queue

    def next(self) -> IWaiter:
        """The first of the holder who has waited longest."""
        if not self._queues:
            raise LookupError("nobody waits")
        return next(iter(next(iter(self._queues.values()))))


class RoundRobinContractTests(WaitOrderContract, SynchronousTestCase):
    """An order that goes by holders keeps the contract, too."""

    def buildOrder(self) -> IWaitOrder:
        """Round robin."""
        return RoundRobin()


class Seeded(RandomRounds):
    """The default."""

    def __init__(self) -> None:
        super().__init__(Random(1))


@implementer(IWaitOrder)
class Queue:
    """First come, first served."""

    def __init__(self) -> None:
        self.waiters: dict[IWaiter, None] = {}

    def add(self, waiter: IWaiter) -> None:
        self.waiters.setdefault(waiter)

    def discard(self, waiter: IWaiter) -> None:
        self.waiters.pop(waiter, None)

    def next(self) -> IWaiter:
        if not self.waiters:
            raise LookupError
        return next(iter(self.waiters))


class LastFirst(Queue):
    """The waiter that came last is next."""

    def next(self) -> IWaiter:
        if not self.waiters:
            raise LookupError
        return next(reversed(self.waiters))


class SmallestFirst(Queue):
    """The waiter that wants least is next."""

    def next(self) -> IWaiter:
        super().next()
        return min(self.waiters, key=lambda waiter: waiter.wantedBytes)


class LargestFirst(Queue):
    """The waiter that wants most is next."""

    def next(self) -> IWaiter:
        super().next()
        return max(self.waiters, key=lambda waiter: waiter.wantedBytes)


class Lucky(Queue):
    """Anybody, without rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(1)

    def next(self) -> IWaiter:
        super().next()
        return self.random.choice(list(self.waiters))


class Exclusive(Queue):
    """The waiters of one holder go before all others."""

    def next(self) -> IWaiter:
        super().next()
        return min(self.waiters, key=lambda waiter: waiter.holder != "newcomer")


class Impatient(Queue):
    """Lets go of the waiter that is next."""

    def next(self) -> IWaiter:
        waiter = super().next()
        self.discard(waiter)
        return waiter


class Strict(Queue):
    """Knows only those who wait."""

    def discard(self, waiter: IWaiter) -> None:
        del self.waiters[waiter]


class Speechless(Queue):
    """Says that nobody is next."""

    def next(self) -> IWaiter:
        return super().next() if self.waiters else None  # type: ignore[return-value]


class Repetitive(Queue):
    """Has everybody wait as often as they were added."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[IWaiter] = []

    def add(self, waiter: IWaiter) -> None:
        self.added.append(waiter)

    def discard(self, waiter: IWaiter) -> None:
        if waiter in self.added:
            self.added.remove(waiter)

    def next(self) -> IWaiter:
        if not self.added:
            raise LookupError
        return self.added[0]


class Haunted(Queue):
    """Goes on with a waiter that is gone as long as there are others."""

    last: IWaiter | None = None

    def next(self) -> IWaiter:
        waiter = super().next()
        if self.last is None:
            self.last = waiter
        return self.last


class Credulous(RoundRobin):
    """Looks for waiters where their holder of now would have been."""

    def discard(self, waiter: IWaiter) -> None:
        if waiter in self._holders:
            self._holders[waiter] = waiter.holder
        super().discard(waiter)


class Bare:
    """Has nothing."""


class WaitOrderContractTests(SeededFaultsTestCase):
    """L{WaitOrderContract}."""

    def test_sound(self) -> None:
        """Sound orders pass."""
        for order in (Seeded, Queue, RoundRobin):
            self.assertSound(WaitOrderContract, buildOrder=order)

    def test_faults(self) -> None:
        """Each way in which an order may be wrong is found by the test that is for it."""
        faults: list[tuple[Callable[[], object], str]] = [
            (Bare, "test_providesItsInterface"),
            (LastFirst, "test_nobodyStarves"),
            (SmallestFirst, "test_nobodyStarves"),
            (LargestFirst, "test_nobodyStarves"),
            (Lucky, "test_nobodyStarves"),
            (Exclusive, "test_nobodyStarves"),
            (Impatient, "test_nextStays"),
            (Strict, "test_discardingTwice"),
            (Speechless, "test_empty"),
            (Repetitive, "test_addingTwice"),
            (Repetitive, "test_comingAndGoing"),
            (Haunted, "test_everybodyOnce"),
            (Haunted, "test_comingAndGoing"),
            (Credulous, "test_holderChanges"),
        ]
        for order, test in faults:
            self.assertBroken(WaitOrderContract, test, str(order), buildOrder=order)
