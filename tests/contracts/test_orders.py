"""L{admission_plugins.orders}."""

from __future__ import annotations

from collections import Counter
from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IWaiter, IWaitOrder, IWaitOrderFactory, PolicyContext
from admission.plugins import buildPolicy
from admission.testing.ordercontract import WaitOrderContract
from admission.testing.recordingwaiter import RecordingWaiter
from admission_plugins.orders import FirstInFirstOut, HolderRounds, RandomRounds


def contextWith(random: Random | None) -> PolicyContext:
    """What a server offers, with its random source."""
    return PolicyContext(Clock(), lambda: 0.0, random=random)


class RandomRoundsContractTests(WaitOrderContract, SynchronousTestCase):
    """L{RandomRounds} is an L{IWaitOrder}."""

    servicesPerWaiter = 2

    def buildOrder(self) -> IWaitOrder:
        """With a seed, so that it is the same each time."""
        return RandomRounds(Random(1))


class FirstInFirstOutContractTests(WaitOrderContract, SynchronousTestCase):
    """L{FirstInFirstOut} is an L{IWaitOrder}."""

    servicesPerWaiter = 1

    def buildOrder(self) -> IWaitOrder:
        """As a server builds it."""
        order: IWaitOrder = buildPolicy(IWaitOrderFactory, "fifo", contextWith(None))
        return order


class FirstInFirstOutTests(SynchronousTestCase):
    """L{FirstInFirstOut}."""

    def test_order(self) -> None:
        """The waiter that came first is first, also after it has asked again; one that left and came back is last."""
        order = FirstInFirstOut()
        first, second, third = (RecordingWaiter(holder=name) for name in "abc")
        for waiter in (first, second, third, first):
            order.add(waiter)
        self.assertIs(order.next(), first)
        order.discard(first)
        order.add(first)
        served = []
        for _ in range(3):
            served.append(order.next())
            order.discard(served[-1])
        self.assertEqual(served, [second, third, first])


class RandomRoundsTests(SynchronousTestCase):
    """L{RandomRounds}."""

    def test_everybodyAlike(self) -> None:
        """Each of those who wait is next as often as the others."""
        order = RandomRounds(Random(1))
        waiters = [RecordingWaiter() for _ in range(6)]
        for waiter in waiters:
            order.add(waiter)
        order.discard(waiters[0])
        drawn = Counter(order.next() for _ in range(5000))
        self.assertEqual(set(drawn), set(waiters[1:]))
        self.assertTrue(all(900 < count < 1100 for count in drawn.values()), drawn)

    def test_orders(self) -> None:
        """A waiter that joins during a round is served when that is over."""
        order = RandomRounds(Random(1))
        first, second = ([RecordingWaiter() for _ in range(10)] for _ in range(2))
        for waiter in first:
            order.add(waiter)
        order.discard(order.next())
        for waiter in second:
            order.add(waiter)
        served = []
        for _ in range(19):
            served.append(order.next())
            order.discard(served[-1])
        self.assertLess(set(served[:9]), set(first))
        self.assertEqual(set(served[9:]), set(second))

    def test_drawsStay(self) -> None:
        """
        What comes of a seed does not change from one release to the next, or
        recordings could not be replayed; both orders of a gate draw from it.
        """
        waiters = [RecordingWaiter() for _ in range(15)]
        context = contextWith(Random(7))
        memoryOrder, turnOrder = (buildPolicy(IWaitOrderFactory, "rounds", context) for _ in range(2))
        for waiter in waiters[:8]:
            memoryOrder.add(waiter)
        for waiter in waiters[:4]:
            turnOrder.add(waiter)
        drawn, newcomers = [], iter(waiters[8:])
        for step in range(14):
            waiter = memoryOrder.next()
            drawn.append(waiters.index(waiter))
            if step % 3:
                memoryOrder.discard(waiter)
            if step % 2:
                memoryOrder.add(next(newcomers))
            if step % 4 == 0:
                waiter = turnOrder.next()
                turnOrder.discard(waiter)
                drawn.append(100 + waiters.index(waiter))
        self.assertEqual(drawn, [2, 100, 5, 0, 3, 2, 103, 7, 6, 1, 6, 102, 4, 3, 4, 9, 101, 13])

    def test_withoutASource(self) -> None:
        """Where the server offers nothing to draw from, nobody can tell what comes: two orders differ."""
        orders = [buildPolicy(IWaitOrderFactory, "rounds", contextWith(None)) for _ in range(2)]
        waiters = [RecordingWaiter() for _ in range(100)]
        for order in orders:
            for waiter in waiters:
                order.add(waiter)
        first, second = ([order.next() for _ in range(20)] for order in orders)
        self.assertNotEqual(first, second)


class HolderRoundsContractTests(WaitOrderContract, SynchronousTestCase):
    """L{HolderRounds} is an L{IWaitOrder}."""

    def buildOrder(self) -> IWaitOrder:
        """With a seed, so that it is the same each time."""
        return HolderRounds(Random(1))


class HolderRoundsTests(SynchronousTestCase):
    """L{HolderRounds}."""

    def setUp(self) -> None:
        """A hundred of one holder wait."""
        self.order = buildPolicy(IWaitOrderFactory, "holders", contextWith(Random(1)))
        self.many = [RecordingWaiter(holder="many") for _ in range(100)]
        for waiter in self.many:
            self.order.add(waiter)

    def servedBefore(self, waiter: IWaiter) -> int:
        """How many are served before C{waiter}."""
        self.order.add(waiter)
        for served in range(101):
            chosen = self.order.next()
            self.order.discard(chosen)
            if chosen is waiter:
                return served
            # A waiter that is served comes again.
            self.order.add(chosen)
        raise AssertionError("it is never served")

    def test_oneAmongMany(self) -> None:
        """A holder with one connection does not wait for all connections of somebody else."""
        for _ in range(20):
            self.assertLessEqual(self.servedBefore(RecordingWaiter(holder="one")), 3)

    def test_manyAmongMany(self) -> None:
        """Several holders go round, however many connections each has."""
        for holder in ("few", "fewer"):
            for _ in range(10):
                self.order.add(RecordingWaiter(holder=holder))
        served = Counter()  # type: Counter[str]
        for _ in range(40):
            chosen = self.order.next()
            self.order.discard(chosen)
            served[chosen.holder] += 1
            self.order.add(RecordingWaiter(holder=chosen.holder))
        self.assertGreaterEqual(served["few"], 6)
        self.assertGreaterEqual(served["fewer"], 6)

    def test_refused(self) -> None:
        """As long as there is not enough for the next waiter, it is the same holder's turn."""
        self.order.add(RecordingWaiter(holder="one"))
        self.order.discard(self.order.next())
        self.order.discard(self.order.next())
        self.assertEqual({self.order.next().holder for _ in range(20)}, {"one"})
