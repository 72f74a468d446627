# -*- test-case-name: tests.contracts.test_servercontract -*-
"""
The rules for every server whose requests quota policies admit, whatever its protocol.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from ..connection.factory import AdmittedFactory
from ..interfaces import (
    ADMITTED,
    CONNECTIONS,
    NOTHING,
    Decision,
    IRequestLifecycle,
    Outcome,
    QuotaEntity,
    Request,
    Usage,
)
from ..quotas.policy import QuotaPolicy
from .contract import Contract
from .faketransport import FakeTransport

LIMIT = "contract_rate"

SERVED = "served"
REFUSED = "refused"


@implementer(IRequestLifecycle)
class WatchedPolicy(QuotaPolicy):
    """
    A policy that does as a test says, and remembers what it was told.

    @ivar decision: its decision about every request.
    @ivar delaySeconds: its delay for every request that has used something, until a limit is changed.
    @ivar charged: the requests that it was charged for, with their usage; connections apart.
    @ivar running: how many requests are in progress.
    """

    limitNames = (LIMIT,)
    countsParked = True

    def __init__(self) -> None:
        self._limits: dict[QuotaEntity, dict[str, float]] = {QuotaEntity(user="somebody"): {LIMIT: 1.0}}
        self.limits = self._limits
        self.decision = ADMITTED
        self.delaySeconds = 0.0
        self.charged: list[tuple[Request, Usage]] = []
        self.running = 0

    def decide(self, request: Request, now: float) -> Decision:
        return self.decision if request.traits.isRequest else ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        if not request.traits.isRequest:
            return 0.0
        if usage is not NOTHING:
            self.charged.append((request, usage))
        return self.delaySeconds

    def configure(self, entity: QuotaEntity, limits: Any, now: float) -> None:
        self._limits[entity] = dict(limits)
        self.delaySeconds = 0.0

    def begun(self, request: Request, now: float) -> None:
        self.running += 1

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        self.running -= 1


class AdmittedServerContract(Contract):
    """
    The rules for a server on L{RequestDriver <admission.connection.driver.RequestDriver>}.  Subclasses say how to make
    one and how its clients talk; C{alice} and C{bob} are clients.

    @cvar isChargedLast: whether requests are charged when their answer is known, and not before.
    """

    isChargedLast = True

    def buildServer(self, clock: Clock, policy: WatchedPolicy) -> AdmittedFactory:
        """
        Make a server on C{clock} that asks C{policy}.
        """
        raise NotImplementedError

    def buildProtocol(self, address: IPv4Address) -> Any:
        """
        Make a connection of the server.
        """
        return self.server.buildProtocol(address)

    def settle(self) -> None:
        """
        Let everything happen that takes no time.
        """
        self.clock.advance(0)

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """
        A request of a client.

        @param number: tells it from others.
        @param isWaiting: whether it is to be answered only when L{release} is called, and otherwise at once.
        """
        raise NotImplementedError

    def answersIn(self, received: bytes) -> Sequence[str]:
        """
        The answers that a client has been sent, each L{SERVED} or L{REFUSED}.
        """
        raise NotImplementedError

    def waiting(self) -> int:
        """
        How many requests wait for L{release} and were not cancelled.
        """
        raise NotImplementedError

    def release(self) -> None:
        """
        Answer the requests that wait.
        """
        raise NotImplementedError

    def stop(self) -> Deferred[Any]:
        """
        Stop the server.

        @return: fires when it has.
        """
        return self.server.closeAll()

    def setUp(self) -> None:
        self.clock = Clock()
        self.policy = WatchedPolicy()
        self.server = self.buildServer(self.clock, self.policy)
        self.connected: list[FakeTransport] = []

    def connect(self) -> FakeTransport:
        """
        Have a client connect.
        """
        address = IPv4Address("TCP", "192.0.2.1", 50_000 + len(self.connected))
        protocol = self.buildProtocol(address)
        transport = FakeTransport(self.clock, protocol, address)
        self.connected.append(transport)
        self.addCleanup(self._hangUp, transport)
        transport.connect()
        self.settle()
        return transport

    def _hangUp(self, transport: FakeTransport) -> None:
        if not transport.isLost:
            transport.abortConnection()
        self.settle()

    def send(self, transport: FakeTransport, *requests: bytes) -> Sequence[str]:
        """
        Have a client send requests.

        @return: all that it has been answered by then.
        """
        transport.peerSends(b"".join(requests))
        self.settle()
        return self.answersIn(bytes(transport.received))

    def served(self, transport: FakeTransport) -> int:
        """
        How many requests of a client were served.
        """
        self.settle()
        return list(self.answersIn(bytes(transport.received))).count(SERVED)

    def assertNothingHeld(self) -> None:
        """
        Check that nothing of the pool but connections is held, nobody has a turn, and nothing is in progress.
        """
        used = self.server.gate.pool.usedBytesByPurpose
        self.assertEqual({purpose for purpose, size in used.items() if size} - {CONNECTIONS}, set())
        self.assertEqual((self.server.gate.turns.runningRequests, self.policy.running), (0, 0))

    def test_charged(self) -> None:
        """
        Each request is charged once, to its client, with the bytes that came and went.
        """
        transport = self.connect()
        self.assertEqual(self.send(transport, self.encode("alice", 1), self.encode("alice", 2)), [SERVED] * 2)
        self.assertEqual([request.clientId for request, _ in self.policy.charged], ["alice"] * 2)
        for request, usage in self.policy.charged:
            self.assertGreater(request.sizeBytes, 0)
            self.assertEqual(usage.requestBytes, request.sizeBytes)
            self.assertEqual(usage.responseBytes > 0, self.isChargedLast)
        self.assertNothingHeld()

    def test_quota(self) -> None:
        """
        A client that is told to wait has nothing served before that is over, and everything after.
        """
        transport = self.connect()
        self.policy.delaySeconds = 2.0
        self.send(transport, self.encode("alice", 1))
        self.policy.delaySeconds = 0.0
        self.send(transport, self.encode("alice", 2))
        self.clock.advance(1.9)
        self.assertEqual(self.served(transport), 1)
        self.clock.advance(0.2)
        self.send(transport, self.encode("alice", 3))
        self.assertGreaterEqual(self.served(transport), 2)

    def test_debtFollowsClient(self) -> None:
        """
        A client that connects anew waits for as long as it was told to, and others do not.
        """
        transport = self.connect()
        self.policy.delaySeconds = 2.0
        self.send(transport, self.encode("alice", 1))
        self.policy.delaySeconds = 0.0
        transport.abortConnection()
        again, other = self.connect(), self.connect()
        self.send(again, self.encode("alice", 2))
        self.send(other, self.encode("bob", 1))
        self.clock.advance(1.9)
        self.assertEqual((self.served(again), self.served(other)), (0, 1))
        self.clock.advance(0.2)
        self.send(again, self.encode("alice", 3))
        self.assertGreater(self.served(again), 0)

    def test_refused(self) -> None:
        """
        A request that is refused is answered so, nothing of it is charged, and it is not in progress.
        """
        transport = self.connect()
        self.policy.decision = Decision(False, 1.0, "not now")
        self.assertEqual(self.send(transport, self.encode("alice", 1)), [REFUSED])
        self.assertEqual(self.policy.charged, [])
        self.assertNothingHeld()
        self.policy.decision = ADMITTED
        self.clock.advance(1.1)
        self.assertEqual(self.send(transport, self.encode("alice", 2)), [REFUSED, SERVED])

    def test_newLimits(self) -> None:
        """
        When limits change, a client that waits is served at once if they allow it.
        """
        transport = self.connect()
        self.policy.delaySeconds = 20.0
        self.send(transport, self.encode("alice", 1))
        self.server.control.configure(QuotaEntity(user="somebody"), {LIMIT: 2.0}, self.clock.seconds())
        self.settle()
        self.send(transport, self.encode("alice", 2))
        self.assertEqual(self.served(transport), 2)

    def test_inProgress(self) -> None:
        """
        A request that waits is in progress until it is answered, and holds none of the memory that it came in.
        """
        transport = self.connect()
        self.assertEqual(self.send(transport, self.encode("alice", 1, isWaiting=True)), [])
        self.assertEqual(self.policy.running, 1)
        self.assertEqual(self.server.gate.turns.runningRequests, 0)
        self.release()
        self.assertEqual(self.served(transport), 1)
        self.assertNothingHeld()

    def test_hangUp(self) -> None:
        """
        A client that hangs up while its request waits ends it: what it waits for is cancelled, it is in progress no
        longer, nothing is held for it, and what comes later does no harm.
        """
        for leave in ("peerCloses", "abortConnection"):
            transport = self.connect()
            self.send(transport, self.encode("alice", 1, isWaiting=True))
            self.assertEqual(self.waiting(), 1)
            getattr(transport, leave)()
            self.settle()
            self.assertEqual(self.waiting(), 0)
            self.assertNothingHeld()
            self.release()
            self.settle()
            self.assertNothingHeld()
        self.assertEqual(len(self.policy.charged), 2)

    def test_drain(self) -> None:
        """
        A server that stops answers what has been read, and then closes; it closes connections without requests at once.
        """
        waiting, idle = self.connect(), self.connect()
        self.send(waiting, self.encode("alice", 1, isWaiting=True))
        emptied = self.stop()
        self.settle()
        self.assertNoResult(emptied)
        self.assertTrue(idle.disconnecting or idle.isLost)
        self.release()
        self.assertEqual(self.served(waiting), 1)
        self.settle()
        self.successResultOf(emptied)
        self.assertNothingHeld()
