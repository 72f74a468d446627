# -*- test-case-name: tests.unit.kafka.gateway.test_nodes -*-
"""
The nodes of the cluster behind a gateway: where they are, and what is under way to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from attrs import define, field, frozen
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from admission.interfaces import IWaitOrder
from admission.policyfailure import FAILURES

from ..serving.kafkarequest import Address
from ..serving.session import IShareWaiter

MOVE_LOGGED_SECONDS: Final = 1.0
"""How often it is logged, at most, that a node has moved."""

GIVEN_UP_SECONDS: Final = 60.0
"""How long a node is remembered to owe an answer for which nobody waits any more."""


@define
class Throttles:
    """
    How many answers told a client to wait: because of our limits, the node's, or both.
    """

    ours: int = 0
    theirs: int = 0
    both: int = 0

    def add(self, isOurs: bool, isTheirs: bool) -> None:
        """
        Count one answer.
        """
        if isOurs and isTheirs:
            self.both += 1
        elif isOurs:
            self.ours += 1
        elif isTheirs:
            self.theirs += 1


@define(eq=False)
class Node:
    """
    One node of the cluster, or the place where clients find the first one.

    Requests on their way to it hold memory, from their first byte, and may hold no more than a share of the pool
    together: so a node that takes nothing stops only its own clients.

    @ivar nodeId: its number; L{None} for the servers that the gateway was started with.
    @ivar shareBytes: how much memory requests on their way to it may hold.
    @ivar order: the order in which requests go on that wait for that.
    @ivar address: where it is; L{None} while that is not known.
    @ivar sinceSeconds: since when it is known to be at that address.
    @ivar movedSeconds: when it was last logged that it has another address.
    @ivar linkCount: how many links to it are open or being opened.
    @ivar unanswered: how many requests it has not answered.
    @ivar heldBytes: how much memory requests on their way to it hold.
    @ivar tookSeconds: when it has last taken anything.
    @ivar stalledLinks: the links of which it takes nothing, each with the time since then.
    @ivar owingLinks: the links on which it owes an answer, each with the time from which on the answer is late; that
        may be later than now.
    @ivar heardSeconds: when anything has last come from it.
    @ivar lastError: what went wrong last, in words.
    @ivar lastErrorSeconds: when that was.
    @ivar throttles: how often its clients were told to wait.
    """

    _log: ClassVar[Logger] = Logger()

    nodeId: int | None
    shareBytes: int
    order: IWaitOrder
    address: Address | None = None
    sinceSeconds: float = 0.0
    movedSeconds: float = float("-inf")
    linkCount: int = 0
    unanswered: int = 0
    heldBytes: int = 0
    tookSeconds: float = 0.0
    stalledLinks: dict[Any, float] = field(factory=dict)
    owingLinks: dict[Any, float] = field(factory=dict)
    heardSeconds: float = float("-inf")
    lastError: str | None = None
    lastErrorSeconds: float = 0.0
    throttles: Throttles = field(factory=Throttles)
    _waiters: dict[IShareWaiter, None] = field(init=False, factory=dict)
    # Since when it had owed an answer when the link ended, and when the link ended.
    _givenUp: tuple[float, float] = field(init=False, default=(float("inf"), float("-inf")))

    def hasRoom(self, sizeBytes: int) -> bool:
        """
        Whether C{sizeBytes} more may wait for it.  Any number may if nothing else does.
        """
        return not self.heldBytes or self.heldBytes + sizeBytes <= self.shareBytes

    def wait(self, waiter: IShareWaiter) -> None:
        """
        Have C{waiter} told when there is room again.
        """
        self._waiters[waiter] = None
        self.order.add(waiter)

    def forget(self, waiter: IShareWaiter) -> None:
        self._waiters.pop(waiter, None)
        self.order.discard(waiter)

    def hold(self, sizeBytes: int) -> None:
        """
        C{sizeBytes} more wait for it.
        """
        self.heldBytes += sizeBytes

    def release(self, sizeBytes: int) -> None:
        """
        C{sizeBytes} no longer wait for it.
        """
        self.heldBytes -= sizeBytes
        # This may be called again while a waiter is being told.
        while self._waiters:
            waiter = self._next()
            if not self.hasRoom(waiter.wantedBytes):
                return
            self.forget(waiter)
            waiter.allocateAgain()

    def _next(self) -> IShareWaiter:
        try:
            waiter: Any = self.order.next()
        except FAILURES:
            self._log.failure("the order of waiters failed; the one that has waited longest goes on")
            return next(iter(self._waiters))
        return waiter if waiter in self._waiters else next(iter(self._waiters))

    def tookNothing(self, seconds: float, now: float) -> None:
        """
        One of its links is given up, of which it has taken nothing for C{seconds}.  If it has lately taken nothing of
        the others either, nobody waits for it any longer.
        """
        if now - self.tookSeconds < seconds / 2:
            return
        for waiter in [*self._waiters]:
            self.forget(waiter)
            waiter.cutOff(f"{self} has taken nothing for {seconds:g} s (upstream.send.timeout)")

    def gaveUp(self, link: Any, now: float) -> None:
        """
        A link ends, and what is owed on it is remembered: clients of a frozen node hang up again and again, and it is
        no less frozen for that.
        """
        since = self.owingLinks.pop(link, now)
        if since < now:
            if self._isGivenUp(now):
                since = min(since, self._givenUp[0])
            self._givenUp = since, now

    def unansweredSeconds(self, now: float) -> float:
        """
        For how long it has owed the answer that it has owed longest.
        """
        since = min(self.owingLinks.values(), default=now)
        if self._isGivenUp(now):
            since = min(since, self._givenUp[0])
        return max(now - since, 0.0)

    def _isGivenUp(self, now: float) -> bool:
        """
        Whether an answer was given up lately, and nothing has come from the node since it was owed.
        """
        since, atSeconds = self._givenUp
        return since >= self.heardSeconds and now - atSeconds <= GIVEN_UP_SECONDS

    def failed(self, reason: str, now: float) -> None:
        """
        Something went wrong between us and it.
        """
        self.lastError, self.lastErrorSeconds = reason, now

    def __str__(self) -> str:
        name = "the bootstrap servers" if self.nodeId is None else f"node {self.nodeId}"
        return name if self.address is None else f"{name} ({self.address.host}:{self.address.port})"


@frozen
class NodePorts:
    """
    The ports of one listener: one to begin with, and behind it one for each node.

    @ivar port: the first one, where clients begin.
    @ivar lowest: the lowest node id that has a port.
    @ivar highest: the highest one.
    @ivar advertised: the address under which clients know the first port; L{None} for the address that they have
        reached.
    """

    port: int
    lowest: int
    highest: int
    advertised: Address | None = None

    def addressOf(self, nodeId: int, reachedHost: str) -> tuple[str, int]:
        """
        The address at which clients reach a node; port 0 if there is none.
        """
        host, port = (reachedHost, self.port) if self.advertised is None else self.advertised
        return host, port + self.offsetOf(nodeId) if self.lowest <= nodeId <= self.highest else 0

    def offsetOf(self, nodeId: int) -> int:
        """
        The distance of a node's port from the first one.
        """
        return 1 + nodeId - self.lowest


class FoundNode(NamedTuple):
    """
    Where an answer says that a node is.
    """

    nodeId: int
    host: str
    port: int


class Nodes:
    """
    What is known of the cluster's nodes.

    @ivar byId: the nodes that are known or asked for.
    @ivar shareBytes: how much memory may wait for one of them.
    @ivar makeOrder: makes an order for the requests that wait for one of them.
    @ivar unreachable: the ids of nodes that have no port here.
    """

    _log = Logger()

    def __init__(
        self,
        shareBytes: int,
        lowest: int,
        highest: int,
        seconds: Callable[[], float],
        makeOrder: Callable[[], IWaitOrder],
    ) -> None:
        """
        @param shareBytes: how much memory may wait for one node.
        @param lowest: the lowest node id that has a port.
        @param highest: the highest one.
        @param makeOrder: makes an order for those that wait for a node's share.
        """
        self.shareBytes = shareBytes
        self.makeOrder = makeOrder
        self._lowest, self._highest = lowest, highest
        self._seconds = seconds
        self._waiting: dict[int, list[Deferred[Node]]] = {}
        self.byId: dict[int, Node] = {}
        self.unreachable: set[int] = set()

    def __iter__(self) -> Iterator[Node]:
        return iter(sorted(self.byId.values(), key=lambda node: node.nodeId or 0))

    def learn(self, nodeId: int, host: str, port: int) -> None:
        """
        A node of the cluster says where a node is.
        """
        if not self._lowest <= nodeId <= self._highest:
            if nodeId not in self.unreachable and len(self.unreachable) < self._highest - self._lowest + 1:
                self._log.error("{reason}", reason=self.whyUnreachable(nodeId))
                self.unreachable.add(nodeId)
            return
        node = self.of(nodeId)
        address = Address(host, port)
        if node.address != address:
            now = self._seconds()
            if node.address is None:
                self._log.info("node {id} is at {host}:{port}", id=nodeId, host=host, port=port)
                node.sinceSeconds = now
            elif now - node.movedSeconds >= MOVE_LOGGED_SECONDS:
                # One response may name a node ten thousand times, each time at another place.
                node.movedSeconds = now
                self._log.info("node {id} has moved to {host}:{port}", id=nodeId, host=host, port=port)
            node.address = address
            for waiting in self._waiting.pop(nodeId, ()):
                waiting.callback(node)

    def learnAll(self, found: Collection[FoundNode]) -> None:
        """
        The cluster has these nodes and no others.
        """
        for each in found:
            self.learn(*each)
        # Nodes that have left the cluster are no trouble.
        self.unreachable.intersection_update(each.nodeId for each in found)

    def of(self, nodeId: int) -> Node:
        """
        A node that has a port, known or not.
        """
        node = self.byId.get(nodeId)
        if node is None:
            node = self.byId[nodeId] = Node(nodeId, self.shareBytes, self.makeOrder())
        return node

    def whenKnown(self, nodeId: int) -> Deferred[Node]:
        """
        @return: fires with the node once its address is known; may be cancelled.
        """
        node = self.of(nodeId)
        if node.address is not None:
            return succeed(node)

        def forget(cancelled: Deferred[Node]) -> None:
            waiting = self._waiting.get(nodeId, [])
            if cancelled in waiting:
                waiting.remove(cancelled)

        known: Deferred[Node] = Deferred(forget)
        self._waiting.setdefault(nodeId, []).append(known)
        return known

    def whyUnreachable(self, nodeId: int) -> str:
        """
        Why clients cannot reach a node.
        """
        return (
            f"node {nodeId} of the cluster has no port here: node ids {self._lowest} to {self._highest} have "
            "(--node-ids), and clients cannot reach its partitions"
        )

    def troubles(self, now: float) -> Sequence[str]:
        """
        What is wrong, in sentences.
        """
        return [self.whyUnreachable(nodeId) for nodeId in sorted(self.unreachable)]

    @property
    def addresses(self) -> Mapping[int, Address]:
        """
        Where the known nodes are.
        """
        return {nodeId: node.address for nodeId, node in self.byId.items() if node.address is not None}
