# -*- test-case-name: tests.contracts.test_ordercontract -*-
"""
The rules for every order of waiters.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random

from zope.interface.verify import verifyObject

from ..interfaces import IWaiter, IWaitOrder
from .contract import Contract
from .recordingwaiter import RecordingWaiter

_WAITERS = 25
_TRIALS = 10


class WaitOrderContract(Contract):
    """
    The rules for an L{IWaitOrder}.  Subclasses say how to build one.

    @cvar servicesPerWaiter: a waiter that finds N others waiting is served before
        this many times N others are.
    """

    servicesPerWaiter = 4

    def buildOrder(self) -> IWaitOrder:
        """
        Make a fresh order.
        """
        raise NotImplementedError

    def waiting(self, order: IWaitOrder, number: int = 6) -> list[RecordingWaiter]:
        """
        Add waiters of a few holders, some of them large.
        """
        waiters = [RecordingWaiter(1 + place % 4 * 1000, holder=f"client {place % 5}") for place in range(number)]
        for waiter in waiters:
            order.add(waiter)
        return waiters

    def serve(self, order: IWaitOrder) -> IWaiter:
        """
        Serve the next waiter, as the gate does it.
        """
        waiter = order.next()
        order.discard(waiter)
        return waiter

    def test_providesItsInterface(self) -> None:
        """
        The order has all methods of L{IWaitOrder}.
        """
        verifyObject(IWaitOrder, self.buildOrder())

    def test_everybodyOnce(self) -> None:
        """
        Every waiter is served, once.
        """
        order = self.buildOrder()
        waiters = self.waiting(order, _WAITERS)
        self.assertServes(order, waiters)

    def test_addingTwice(self) -> None:
        """
        A waiter that is added again waits as before, once.
        """
        order = self.buildOrder()
        waiters = self.waiting(order)
        order.next()
        for waiter in waiters:
            order.add(waiter)
        self.assertServes(order, waiters)

    def test_discardingTwice(self) -> None:
        """
        Discarding a waiter that does not wait, or no longer waits, has no effect.
        """
        order = self.buildOrder()
        first, *others = self.waiting(order)
        for gone in (first, first, RecordingWaiter(holder=others[0].holder)):
            order.discard(gone)
        self.assertServes(order, others)

    def test_nextStays(self) -> None:
        """
        The next waiter still waits, until it is discarded.
        """
        order = self.buildOrder()
        waiters = self.waiting(order)
        for _ in range(20):
            self.assertIn(order.next(), waiters)
        self.assertServes(order, waiters)

    def test_empty(self) -> None:
        """
        If nobody waits, or nobody any more, asking for the next waiter raises
        L{LookupError}.
        """
        order = self.buildOrder()
        self.assertRaises(LookupError, order.next)
        for waiter in self.waiting(order):
            order.discard(waiter)
        self.assertRaises(LookupError, order.next)

    def test_comingAndGoing(self) -> None:
        """
        However often waiters come and go, only one that waits is next.
        """
        random = Random(1)
        everybody = [RecordingWaiter(random.randint(1, 1000), holder=f"client {place % 4}") for place in range(12)]
        order = self.buildOrder()
        waiting: set[IWaiter] = set()
        for _ in range(500):
            waiter = random.choice(everybody)
            if random.random() < 0.5:
                order.add(waiter)
                waiting.add(waiter)
            else:
                order.discard(waiter)
                waiting.discard(waiter)
            if waiting:
                self.assertIn(order.next(), waiting)
            else:
                self.assertRaises(LookupError, order.next)

    def test_holderChanges(self) -> None:
        """
        A waiter whose holder changes while it waits can still be served and
        discarded.
        """
        order = self.buildOrder()
        waiters = self.waiting(order)
        for waiter in waiters:
            waiter.holder = "somebody else"
        order.discard(waiters[0])
        self.assertServes(order, waiters[1:])

    def test_nobodyStarves(self) -> None:
        """
        While as many waiters join as are served, whatever their holders and however much they want, every waiter is
        served before C{servicesPerWaiter} times as many as were waiting.
        """
        for wantedBytes in (1, 1 << 20):
            for join in (_ofOneHolder, _ofManyHolders):
                for _ in range(_TRIALS):
                    newcomers = join(wantedBytes)
                    self.assertServesAll(lambda served, newcomers=newcomers: next(newcomers))  # type: ignore[misc]
        self.assertServesAll(lambda served: served)

    def assertServes(self, order: IWaitOrder, waiters: Sequence[IWaiter]) -> None:
        """
        Check that exactly C{waiters} wait in C{order}, each once.
        """
        served = [self.serve(order) for _ in waiters]
        self.assertEqual(sorted(map(id, served)), sorted(map(id, waiters)))
        self.assertRaises(LookupError, order.next)

    def assertServesAll(self, following: Callable[[IWaiter], IWaiter]) -> None:
        """
        Check that all who wait first are served in time.

        @param following: given the waiter just served, returns the next to join.
        """
        order = self.buildOrder()
        unserved: set[IWaiter] = set(self.waiting(order, _WAITERS))
        for _ in range(_WAITERS * self.servicesPerWaiter):
            served = self.serve(order)
            unserved.discard(served)
            order.add(following(served))
        self.assertEqual(len(unserved), 0, f"so many of {_WAITERS} have not been served")


def _ofOneHolder(wantedBytes: int) -> Iterator[IWaiter]:
    for _ in count():
        yield RecordingWaiter(wantedBytes, holder="newcomer")


def _ofManyHolders(wantedBytes: int) -> Iterator[IWaiter]:
    for number in count():
        yield RecordingWaiter(wantedBytes, holder=f"newcomer {number}")
