"""
A gateway without sockets: its pool, gate, factory and sessions on one
L{Clock}, clients whose requests kio encodes, and nodes that the test plays.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from kio.index import load_request_schema, load_response_schema
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.connection.factory import ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.client.clientconnection import ConnectionSettings
from admission.kafka.gateway.clusterbackend import ClusterBackend
from admission.kafka.gateway.discovery import Discovery
from admission.kafka.gateway.gateway import Gateway
from admission.kafka.gateway.gatewaysettings import loadGatewaySettings
from admission.kafka.gateway.nodelink import NodeLink
from admission.kafka.gateway.nodes import NodePorts, Nodes
from admission.kafka.serving.kafkarequest import Address
from admission.kafka.serving.session import KafkaSession, SessionFactory
from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.headers import parseRequestHeader
from admission.kafka.wire.relayedapis import RELAYED_APIS, RELAYED_FLEXIBLE_FROM
from admission.testing.faketransport import FakeTransport
from admission.testing.scriptedquota import ScriptedQuota
from admission_plugins.bounded import BoundedPool
from admission_plugins.orders import FirstInFirstOut
from tests.kit.admitted import gateFor
from tests.kit.brokerfixture import Client, build, framed

POOL_BYTES = 8 << 20
LARGEST_BYTES = 4 << 20
BASE_PORT = 9092
REACHED_HOST = "192.0.2.2"
"""The gateway's address, as clients reach it."""

UPSTREAM = (Address("b1.example", 9092), Address("b2.example", 9092))


API_KEYS = {api.name: api.apiKey for api in RELAYED_APIS}


def requestOf(name: str, apiVersion: int, **values: Any) -> Any:
    """The request of an API that is relayed, as a kio entity."""
    return build(load_request_schema(API_KEYS[name], apiVersion), values)


class Sent(NamedTuple):
    """
    A request that has reached a node.

    @ivar frame: all of it behind the length.
    """

    apiKey: int
    apiVersion: int
    correlationId: int
    frame: bytes


def responseFrame(apiKey: int, apiVersion: int, correlationId: int, values: Mapping[str, Any]) -> bytes:
    """A response as a node sends it; C{values} as for L{encodeEntity}."""
    responseType: Any = load_response_schema(apiKey, apiVersion)
    header = encodeEntity(responseType.__header_schema__, {"correlation_id": correlationId})
    return framed(b"".join((*header, *encodeEntity(responseType, values))))


class PlayedNode:
    """
    A node's end of one link.

    @ivar link: the gateway's end.
    @ivar transport: the gateway's transport, whose C{received} is what the node has.
    """

    def __init__(self, clock: Clock, address: Address, protocol: Any, transportType: type[FakeTransport]) -> None:
        self.clock = clock
        self.address = address
        self.link: NodeLink = protocol
        self.transport = transportType(clock, protocol, IPv4Address("TCP", address.host, address.port))
        self.unanswered: deque[Sent] = deque()

    def connect(self) -> None:
        self.transport.connect()

    def arrived(self) -> list[Sent]:
        """Take the requests that have come whole since the last time."""
        received, found = self.transport.received, []
        while len(received) >= 4:
            (sizeBytes,) = struct.unpack_from(">i", received)
            if len(received) < 4 + sizeBytes:
                break
            frame = bytes(received[4 : 4 + sizeBytes])
            del received[: 4 + sizeBytes]
            header = parseRequestHeader(frame, 0, RELAYED_FLEXIBLE_FROM)
            found.append(Sent(header.apiKey, header.apiVersion, header.correlationId, frame))
        self.unanswered += found
        return found

    def responseTo(self, sent: Sent, values: Mapping[str, Any]) -> bytes:
        return responseFrame(sent.apiKey, sent.apiVersion, sent.correlationId, values)

    def answer(self, **values: Any) -> None:
        """Answer the first request that is not answered, and let turns pass."""
        self.arrived()
        self.send(self.responseTo(self.unanswered.popleft(), values))

    def send(self, data: bytes) -> None:
        """Send anything, and let turns pass."""
        self.transport.peerSends(data)
        self.clock.advance(0)

    def close(self) -> None:
        """Hang up behind what was sent."""
        self.transport.peerCloses()
        self.clock.advance(0)

    def take(self, isTaking: bool) -> None:
        """Stop taking bytes, or go on."""
        self.transport.isTaking = isTaking
        self.transport.wake()
        self.clock.advance(0)

    @property
    def isClosed(self) -> bool:
        return self.transport.isLost


@implementer(IStreamClientEndpoint)
class PlayedEndpoint:
    """Connects to a node that the test plays, as the test says."""

    def __init__(self, case: GatewayTestCase, address: Address) -> None:
        self._case = case
        self._address = address

    def connect(self, factory: Any) -> Deferred[Any]:
        """Connect, refuse or never answer."""
        case, address = self._case, self._address
        case.attempts.append(address)
        if address in case.raising:
            raise case.raising[address]
        connecting: Deferred[Any] = Deferred(lambda _: case.cancelled.append(address))

        def accept() -> None:
            if connecting.called:
                return
            if address in case.refusing:
                connecting.errback(ConnectionRefusedError())
                return
            protocol = factory.buildProtocol(IPv4Address("TCP", address.host, address.port))
            node = PlayedNode(case.clock, address, protocol, case.nodeTransport)
            case.links.append(node)
            node.transport.isTaking = address not in case.stuck
            node.connect()
            connecting.callback(protocol)

        if address in case.silent:
            case.pending.append(accept)
        else:
            case.clock.callLater(0, accept)
        return connecting


class GatewayClient(Client):
    """
    One connection to the gateway.

    @ivar protocol: the gateway's session.
    """

    protocol: Any

    def __init__(
        self, case: GatewayTestCase, nodeId: int | None, transportType: type[FakeTransport] = FakeTransport
    ) -> None:
        self._nodeId = nodeId
        super().__init__(cast(Any, case), transportType)

    def _buildProtocol(self) -> Any:
        case: Any = self._case
        protocol = case.factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 50_000))
        backend = protocol.backend
        backend.nodeId, backend.ports, protocol.advertised = self._nodeId, case.ports, case.ports.advertised
        return protocol

    def send(self, name: str, apiVersion: int, /, *, answered: bool = True, **values: Any) -> None:
        """Send a request and let turns pass."""
        self.sendBytes(self.frame(requestOf(name, apiVersion, **values), answered))

    @property
    def closeReason(self) -> str:
        """Why the gateway has closed it."""
        return self.protocol.closeReason or ""


class GatewayTestCase(SynchronousTestCase):
    """
    A test with a gateway.  When it ends, clients hang up, and then not a byte
    of the pool may be missing, not a timer be left, and nothing be under way
    to any node.

    @cvar properties: settings that differ from the defaults.
    @cvar isLimited: whether the quota policy has a limit, so that everything is measured.
    @ivar links: the nodes' ends of all links that were made, in their order.
    @ivar attempts: the addresses of all attempts to connect.
    @ivar refusing: addresses that refuse connections.
    @ivar silent: addresses where connecting takes until L{accept}.
    @ivar stuck: addresses whose nodes take nothing.
    @ivar raising: addresses whose endpoint raises.
    """

    properties: Mapping[str, str] = {}
    gatewayFlags: Mapping[str, bool] = {}
    isLimited = True
    advertised: Address | None = None
    nodeTransport: type[FakeTransport] = FakeTransport
    largestBytes = LARGEST_BYTES
    sharePercent = 50

    def setUp(self) -> None:
        super().setUp()
        capturing = capturedLogs()
        self.addCleanup(capturing.__exit__, None, None, None)
        self.logged = capturing.__enter__()
        self.isStarted = False
        self.start()
        self.addCleanup(self.stop)

    def start(self) -> None:
        """Start a gateway that knows nothing yet."""
        self.isStarted = True
        self.clock = Clock()
        self.clients: list[GatewayClient] = []
        self.links: list[PlayedNode] = []
        self.attempts: list[Address] = []
        self.cancelled: list[Address] = []
        self.pending: deque[Callable[[], None]] = deque()
        self.refusing: set[Address] = set()
        self.silent: set[Address] = set()
        self.stuck: set[Address] = set()
        self.raising: dict[Address, Exception] = {}
        self.pool = BoundedPool(POOL_BYTES, self.largestBytes, seconds=self.clock.seconds)
        assignments = [f"{name}={value}" for name, value in self.properties.items()]
        settings = loadGatewaySettings(None, ["queued.max.request.bytes=1GiB", *assignments])
        self.gate = gateFor(self.pool, self.clock, maxRequests=settings.queuedMaxRequests)
        self.quota = ScriptedQuota()
        if self.isLimited:
            self.quota.configure(QuotaEntity(user=DEFAULT), {"scripted_rate": 1.0}, 0.0)
        self.control = AdmissionControl([("scripted", self.quota)], 1000.0)
        self.ports = NodePorts(BASE_PORT, 0, 15, self.advertised)
        self.nodes = Nodes(POOL_BYTES * self.sharePercent // 100, 0, 15, self.clock.seconds, FirstInFirstOut)
        self.gateway = Gateway(
            settings,
            self.gate,
            self.control,
            self.clock,
            lambda: 1_000_000.0,
            self.nodes,
            UPSTREAM,
            lambda host, port: PlayedEndpoint(self, Address(host, port)),
            **self.gatewayFlags,
        )
        self.factory = SessionFactory(
            lambda: KafkaSession(self.gateway, ClusterBackend),
            self.gate,
            self.clock,
            HangUpWatch(MemoryReactorClock()),
            ConnectionLimits(),
            self.control,
            debts=self.gateway.debts,
        )
        self.clock.advance(0)

    def stop(self) -> None:
        """Have all clients hang up, and look at what is left."""
        if not self.isStarted:
            return
        self.isStarted = False
        for client in self.clients:
            client.disconnect()
        # What stuck nodes do not take is given up after a while.
        self.clock.pump([0, 11, 11])
        self.assertNothingUnderWay()
        self.gate.close()
        self.assertPoolWhole()
        self.clock.advance(3600)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def assertNothingUnderWay(self) -> None:
        """No node holds memory, owes an answer or has a link."""
        for node in (self.gateway.bootstrap, *self.nodes):
            self.assertEqual(
                (node.heldBytes, node.unanswered, node.linkCount, dict(node.stalledLinks)), (0, 0, 0, {}), str(node)
            )
            self.assertEqual(node._waiters, {}, str(node))
        for played in self.links:
            self.assertTrue(played.isClosed)

    def assertPoolWhole(self) -> None:
        """Nobody holds memory, and no lease was lost."""
        held = {purpose: count for purpose, count in self.pool.usedBytesByPurpose.items() if count}
        self.assertEqual(held, {})
        self.assertEqual(self.pool.availableBytes, POOL_BYTES)
        self.assertEqual(self.pool.reclaimedLeases, 0)

    def connect(self, nodeId: int | None = None, transportType: type[FakeTransport] = FakeTransport) -> GatewayClient:
        """
        A client; it hangs up when the test ends.

        @param nodeId: the node whose port it has chosen.
        """
        client = GatewayClient(self, nodeId, transportType)
        self.clients.append(client)
        return client

    def makeDiscovery(self, settings: ConnectionSettings) -> Discovery:
        """What asks the cluster which nodes it has."""
        gateway, nodes = self.gateway, self.nodes
        refreshSeconds = gateway.settings.upstreamRefreshSeconds
        return Discovery(
            gateway.upstream,
            gateway.endpointFor,
            self.clock,
            settings,
            refreshSeconds,
            nodes.learnAll,
            lambda: nodes.addresses.values(),
        )

    def learn(self, *nodeIds: int) -> None:
        """Make nodes known."""
        for nodeId in nodeIds:
            self.nodes.learn(nodeId, *addressOf(nodeId))

    @property
    def played(self) -> PlayedNode:
        """The node's end of the link that was made last."""
        return self.links[-1]

    def accept(self) -> None:
        """
        The attempt to connect to a silent node that has waited longest succeeds, or fails if it is
        refusing meanwhile.
        """
        self.pending.popleft()()
        self.clock.advance(0)

    def messages(self) -> str:
        """What was logged."""
        return " | ".join(formatEvent(event) for event in self.logged)


def addressOf(nodeId: int) -> Address:
    """Where L{GatewayTestCase.learn} says that a node is."""
    return Address(f"k{nodeId}.example", 9092)
