"""Tests for L{admission.kafka.gateway.nodes}."""

from __future__ import annotations

from random import Random

from hypothesis import given, strategies as st
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.interfaces import ILease
from admission.kafka.gateway.nodes import MOVE_LOGGED_SECONDS, IShareWaiter, Node, NodePorts, Nodes
from admission.kafka.serving.kafkarequest import Address
from admission_plugins.orders import FirstInFirstOut, HolderRounds


@implementer(IShareWaiter)
class Waiter:
    """
    Waits for so many bytes, and holds them once there is room.

    @ivar told: all that were told that there is room, in their order.
    """

    hasBoundedAnswers = True

    def __init__(
        self, node: Node, wantedBytes: int, told: list[Waiter], isHolding: bool = True, holder: str = "many"
    ) -> None:
        self.node = node
        self.wantedBytes = wantedBytes
        self.told = told
        self.isHolding = isHolding
        self.holder = holder
        self.reasons: list[str] = []

    def allocateAgain(self) -> None:
        """Go on."""
        self.told.append(self)
        if self.isHolding:
            self.node.hold(self.wantedBytes)

    def leaseGranted(self, lease: ILease) -> None:
        """Not called."""

    def turnGranted(self) -> None:
        """Not called."""

    def cutOff(self, reason: str) -> None:
        """Be told to give up."""
        self.reasons.append(reason)


class NodeTests(SynchronousTestCase):
    """L{Node} has a share of the pool."""

    def setUp(self) -> None:
        self.node = Node(1, 100, FirstInFirstOut())
        self.told: list[Waiter] = []

    def wait(self, *sizes: int) -> list[Waiter]:
        """Have some wait."""
        waiters = [Waiter(self.node, size, self.told) for size in sizes]
        for waiter in waiters:
            self.node.wait(waiter)
        return waiters

    def test_hasRoom(self) -> None:
        """There is room up to the share, and always for something if nothing is held."""
        self.assertTrue(self.node.hasRoom(1000))
        self.node.hold(60)
        self.assertTrue(self.node.hasRoom(40))
        self.assertFalse(self.node.hasRoom(41))

    def test_holders(self) -> None:
        """Waiters are told in the order that was asked for, such as by turns with their holders."""
        self.node = Node(1, 100, HolderRounds(Random(0)))
        self.node.hold(100)
        self.wait(*[10] * 50)
        good = Waiter(self.node, 10, self.told, holder="good")
        self.node.wait(good)
        self.node.release(40)
        self.assertIn(good, self.told)

    def test_failingOrder(self) -> None:
        """If the order fails, the waiter that waited longest goes on."""
        self.node.hold(100)
        waiters = self.wait(10, 10)
        self.node.order.discard(waiters[0])
        self.node.order.discard(waiters[1])
        self.node.release(100)
        self.assertEqual(self.told, waiters)
        self.assertEqual(len(self.flushLoggedErrors(LookupError)), 2)

    def test_notHolding(self) -> None:
        """One that does not want its room any more leaves it to the next."""
        self.node.hold(100)
        first, second = self.wait(60, 60)
        first.isHolding = False
        self.node.release(100)
        self.assertEqual(self.told, [first, second])

    def test_forget(self) -> None:
        """A waiter that was forgotten is told nothing, and may be forgotten twice."""
        self.node.hold(100)
        first, second = self.wait(50, 50)
        for _ in range(2):
            self.node.forget(first)
        self.node.release(100)
        self.assertEqual(self.told, [second])

    @given(held=st.lists(st.integers(1, 150), min_size=1), wanted=st.lists(st.integers(1, 150)))
    def test_ends(self, held: list[int], wanted: list[int]) -> None:
        """
        Whatever is held and wanted, in the end everybody was told once, and there was never more than the share but for
        a single one.
        """
        self.setUp()
        for size in held:
            self.node.hold(size)
        waiters = self.wait(*wanted)
        for size in held:
            self.node.release(size)
        for waiter in self.told:
            # Those who are told meanwhile come behind it.
            self.assertTrue(self.node.heldBytes <= 100 or self.node.heldBytes == waiter.wantedBytes)
            self.node.release(waiter.wantedBytes)
        self.assertEqual(self.told, waiters)
        self.assertEqual(self.node.heldBytes, 0)

    def test_tookNothing(self) -> None:
        """When nothing was taken lately, those who wait are told to give up."""
        self.node.hold(100)
        (waiter,) = self.wait(10)
        self.node.tookSeconds = 6.0
        self.node.tookNothing(10.0, 10.0)
        self.assertEqual(waiter.reasons, [])
        self.node.tookNothing(10.0, 11.0)
        self.assertEqual(waiter.reasons, ["node 1 has taken nothing for 10 s (upstream.send.timeout)"])
        self.node.release(100)
        self.assertEqual(self.told, [])

    def test_str(self) -> None:
        """It says which one it is."""
        self.assertEqual(str(Node(None, 1, FirstInFirstOut())), "the bootstrap servers")
        self.assertEqual(str(self.node), "node 1")
        self.node.address = Address("k1", 9092)
        self.assertEqual(str(self.node), "node 1 (k1:9092)")

    def test_failed(self) -> None:
        """It remembers what went wrong last."""
        self.node.failed("one", 1.0)
        self.node.failed("two", 2.0)
        self.assertEqual((self.node.lastError, self.node.lastErrorSeconds), ("two", 2.0))


class NodePortsTests(SynchronousTestCase):
    """L{NodePorts} gives each node a port."""

    def test_addresses(self) -> None:
        """Behind the first port, counted from the lowest id; others have port 0."""
        ports = NodePorts(9092, 5, 7)
        found = [ports.addressOf(nodeId, "here") for nodeId in (4, 5, 7, 8, -1)]
        self.assertEqual(found, [("here", 0), ("here", 9093), ("here", 9095), ("here", 0), ("here", 0)])

    def test_advertised(self) -> None:
        """They are counted from the advertised port, if there is one."""
        ports = NodePorts(9092, 0, 7, Address("there", 100))
        self.assertEqual(ports.addressOf(2, "here"), ("there", 103))


class NodesTests(SynchronousTestCase):
    """L{Nodes} knows where nodes are."""

    def setUp(self) -> None:
        """Three may be there."""
        self.clock = Clock()
        self.nodes = Nodes(100, 1, 3, self.clock.seconds, FirstInFirstOut)
        capturing = capturedLogs()
        self.addCleanup(capturing.__exit__, None, None, None)
        self.logged = capturing.__enter__()

    def test_learn(self) -> None:
        """
        What was learnt is known, since when it was learnt first, and in the order of ids; it is
        logged when it changes.
        """
        self.clock.advance(5.0)
        for nodeId, host in ((2, "a"), (1, "b"), (2, "a"), (2, "c")):
            self.nodes.learn(nodeId, host, 9092)
            self.clock.advance(1.0)
        self.assertEqual(self.nodes.addresses, {1: Address("b", 9092), 2: Address("c", 9092)})
        self.assertEqual([node.nodeId for node in self.nodes], [1, 2])
        self.assertEqual(self.nodes.of(2).sinceSeconds, 5.0)
        self.assertEqual(
            [formatEvent(event) for event in self.logged],
            ["node 2 is at a:9092", "node 1 is at b:9092", "node 2 has moved to c:9092"],
        )

    def test_movesWithoutEnd(self) -> None:
        """That a node has moved is logged once a second, however often it does; it is where it was last."""
        for port in range(100):
            self.nodes.learn(1, "a", port)
        self.assertEqual([formatEvent(each) for each in self.logged], ["node 1 is at a:0", "node 1 has moved to a:1"])
        self.clock.advance(MOVE_LOGGED_SECONDS)
        self.nodes.learn(1, "b", 9092)
        self.assertEqual(formatEvent(self.logged[-1]), "node 1 has moved to b:9092")

    def test_unreachable(self) -> None:
        """Nodes without a port are logged once, are told as troubles, and are bounded in number."""
        for nodeId in (9, 8, 9, 0, -5, 100):
            self.nodes.learn(nodeId, "a", 9092)
        self.assertEqual(self.nodes.unreachable, {9, 8, 0})
        self.assertEqual([event["log_level"] for event in self.logged], [LogLevel.error] * 3)
        self.assertEqual(self.nodes.troubles(0.0), [self.nodes.whyUnreachable(each) for each in (0, 8, 9)])
        self.assertIn("node ids 1 to 3 have (--node-ids)", self.nodes.troubles(0.0)[0])
        self.assertEqual(self.nodes.addresses, {})

    def test_of(self) -> None:
        """A node is the same before and after it is known."""
        node = self.nodes.of(1)
        self.nodes.learn(1, "a", 9092)
        self.assertIs(self.nodes.of(1), node)
        self.assertEqual(node.address, Address("a", 9092))

    def test_whenKnown(self) -> None:
        """Waiters for a node are told when it is known, except for those that wait no more."""
        first, second = self.nodes.whenKnown(1), self.nodes.whenKnown(1)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertNoResult(second)
        self.nodes.learn(2, "a", 9092)
        self.assertNoResult(second)
        self.nodes.learn(1, "a", 9092)
        self.assertIs(self.successResultOf(second), self.nodes.of(1))
        self.assertIs(self.successResultOf(self.nodes.whenKnown(1)), self.nodes.of(1))
