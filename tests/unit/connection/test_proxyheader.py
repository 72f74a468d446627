"""L{admission.connection.proxyheader}: behind a load balancer, everything goes by the client's address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import HANDSHAKE_BYTES, STRANGERS_SHARE, UNUSED_SECONDS, ConnectionLimits
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.connection.pauses import Pause
from admission.control import AdmissionControl
from admission.interfaces import CONNECTION, CONNECTIONS, RESPONSES, Decision, Request, Usage
from admission.status.clients import clientsOf
from admission.testing.faketransport import FakeTransport
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit.admitted import RecordingProtocol, Server, framed
from tests.kit.proxyheaders import BALANCER, balanced, versionOne, versionTwo
from tests.kit.wrapped import Foreign, Wrapped, limiting

ONE, OTHER = "192.0.2.7", "192.0.2.8"

UNKNOWN = b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 1 2\r\n"


class ConnectionDelay(ScriptedQuota):
    """Has every connection wait for two seconds, and bytes not."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Ask for them."""
        super().record(request, usage, now)
        return 2.0 if usage.connections else 0.0


class Refusing(ScriptedQuota):
    """Refuses connections of one address."""

    def decide(self, request: Request, now: float) -> Decision:
        """Refuse."""
        return Decision(request.kind != CONNECTION or request.peer != ONE, reason="as scripted")


class ProxyHeaderTestCase(SynchronousTestCase):
    """Servers of both kinds behind a load balancer."""

    def wrapped(self, **kwargs: Any) -> Wrapped:
        """A wrapped server."""
        server = Wrapped(**kwargs)
        self.addCleanup(server.close)
        return server

    def admitted(self, *policies: tuple[str, Any], **limits: Any) -> Server:
        """One of framed requests."""
        server = Server(limits=ConnectionLimits(**limits), control=AdmissionControl(policies))
        self.addCleanup(server.close)
        return server

    def both(self, **limits: Any) -> list[Any]:
        """One of each kind."""
        return [self.wrapped(limits=ConnectionLimits(**limits)), self.admitted(**limits)]

    def send(self, server: Any, transport: FakeTransport, *pieces: bytes) -> None:
        """Have the balancer send something, piece by piece."""
        for piece in pieces:
            transport.peerSends(piece)
            server.settle()

    def client(self, server: Any, host: str) -> FakeTransport:
        """A client whose header has come, and nothing else."""
        transport = balanced(server)
        self.send(server, transport, versionOne(host))
        return transport


class PeerTests(ProxyHeaderTestCase):
    """What a protocol, the log and the status page are told."""

    def test_protocolSees(self) -> None:
        """A wrapped protocol is told who the peer is and what it has reached, as it is without being wrapped."""
        seen: list[tuple[str, str]] = []

        def see(protocol: Foreign, data: bytes) -> None:
            seen.append((protocol.transport.getPeer().host, protocol.transport.getHost().host))

        for header in (versionOne(ONE), versionTwo(ONE)):
            for pieces in ((header + b"hello",), (header, b"hello"), (header[:20], header[20:], b"hello")):
                server = self.wrapped()
                server.behave = see
                self.send(server, balanced(server), *pieces)
                self.assertEqual((seen.pop(), bytes(server.protocols[0].received)), ((ONE, "198.51.100.2"), b"hello"))

    def test_beforeTheHeader(self) -> None:
        """Until its header has come a connection is the balancer's, and charged for as much as the header may be."""
        server = self.wrapped()
        transport = balanced(server)
        [connection] = server.factory.connections
        self.assertEqual((connection.host, connection.getPeer().host), (BALANCER, BALANCER))
        self.assertEqual(server.used(), {CONNECTIONS: HANDSHAKE_BYTES})
        self.send(server, transport, versionOne(ONE))
        self.assertEqual(server.used(), {CONNECTIONS: PLAIN_CONNECTION_BYTES})
        self.assertEqual((connection.host, connection.peer, connection.getPeer().host), (ONE, f"{ONE}:40000", ONE))

    def test_silent(self) -> None:
        """
        A client that sends nothing behind its header is seen at its own address, which holds the memory, in either
        kind.
        """
        for server in self.both():
            self.client(server, ONE)
            [client], [connection] = clientsOf(server.factory, ""), server.factory.connections
            self.assertEqual((client.ip, connection.peer, connection.holder), (ONE, f"{ONE}:40000", ONE))

    def test_ofTheBalancer(self) -> None:
        """A connection of the balancer's own, which says nothing else, is that once it sends anything."""
        for server in self.both(maxConnectionsPerAddress=1):
            for hasLeft in (False, True):
                transport = balanced(server)
                self.send(server, transport, UNKNOWN, framed(b"one"))
                self.assertEqual((transport.isLost, len(server.factory.connections)), (hasLeft, 1))
                [connection] = server.factory.connections
                self.assertEqual(connection.host, BALANCER)

    def test_observers(self) -> None:
        """Observers are told of a connection when it is known whose it is, and of the end of those alone."""
        told: list[tuple[str, str]] = []

        class Observer:
            def connectionOpened(self, connection: Any) -> None:
                told.append(("opened", connection.host))

            def connectionClosed(self, connection: Any, reason: Failure) -> None:
                told.append(("closed", connection.host))

            def requestOver(self, request: Any) -> None:
                told.append(("over", request.connection.host))

        server = self.admitted()
        server.factory.observers = (Observer(),)
        transport = balanced(server)
        self.assertEqual(told, [])
        self.send(server, transport, versionOne(ONE) + framed(b"one"))
        transport.peerCloses()
        balanced(server).peerCloses()
        server.settle()
        self.assertEqual(told, [("opened", ONE), ("over", ONE), ("closed", ONE)])
        self.assertEqual(len(server.factory.connections), 0)

    def test_openedOnce(self) -> None:
        """A protocol of framed requests is told once that it is open, and after its connection was made."""
        told: list[str] = []

        class Telling(RecordingProtocol):
            def connectionMade(self) -> None:
                told.append(f"made {self.host}")

            def opened(self) -> None:
                told.append(f"opened {self.host}")

        server = Server(protocol=Telling)
        self.addCleanup(server.close)
        self.send(server, balanced(server), versionOne(ONE), framed(b"one"), framed(b"two"))
        server.connect(host=OTHER)
        self.assertEqual(told, [f"made {BALANCER}", f"opened {ONE}", f"made {OTHER}", f"opened {OTHER}"])


class LimitTests(ProxyHeaderTestCase):
    """What is limited by address."""

    def test_connections(self) -> None:
        """
        Of each client's connections there may be as many as of one address, however many the balancer has; the log says
        whose was closed, and a place is free again when one leaves.
        """
        for server in self.both(maxConnectionsPerAddress=2):
            mine, _, others = self.client(server, ONE), self.client(server, ONE), self.client(server, OTHER)
            with capturedLogs() as events:
                refused = self.client(server, ONE)
            self.assertEqual([each.isLost for each in (mine, others, refused)], [False, False, True])
            self.assertEqual((server.factory.refusedConnections, server.factory.cutOffs), (1, 0))
            [event] = [each for each in events if "reason" in each]
            self.assertEqual(
                (event["peer"], event["reason"]),
                (f"{ONE}:40000", "there are 2 connections from its address already (maxConnectionsPerAddress)"),
            )
            mine.peerCloses()
            server.settle()
            self.assertFalse(self.client(server, ONE).isLost)

    def test_withoutHeader(self) -> None:
        """Connections whose header has not come count for no address, and give way when their place is needed."""
        for server in self.both(maxConnectionsPerAddress=1, maxConnections=3):
            silent = [balanced(server) for _ in range(3)]
            server.clock.advance(2.0)
            known = self.client(server, ONE)
            server.settle()
            self.assertEqual([each.isLost for each in (*silent, known)], [True, False, False, False])

    def test_strangers(self) -> None:
        """Those whose header has come, and no request, hold what they are charged for then."""
        server = self.admitted()
        quarter = server.pool.sizeBytes // STRANGERS_SHARE
        known = [self.client(server, ONE) for _ in range(quarter // PLAIN_CONNECTION_BYTES)]
        server.clock.advance(2.0)
        server.settle()
        self.assertFalse(any(each.isLost for each in known))
        balanced(server)
        server.settle()
        self.assertEqual(sum(each.isLost for each in known), HANDSHAKE_BYTES // PLAIN_CONNECTION_BYTES)

    def test_unusedGiveWay(self) -> None:
        """While memory is short, those of a crowded address give way before those whose header has not come."""
        server = self.admitted()
        silent = [balanced(server) for _ in range(3)]
        many = [self.client(server, ONE) for _ in range(64)]
        for each in many:
            self.send(server, each, framed(b"one"))
        charge = server.pool.charge(server.pool.availableBytes, RESPONSES)
        server.gate.pressure.begin()
        for _ in range(3):
            server.clock.advance(UNUSED_SECONDS)
            server.settle()
        # Until connections hold half of the memory.
        self.assertEqual([sum(each.isLost for each in some) for some in (silent, many)], [0, 24])
        charge.release()

    def test_quotaOfConnections(self) -> None:
        """A quota of connections is asked once, about the client; it is held back, and what it has sent comes later."""
        policy = ConnectionDelay(limits=limiting().limits)
        server = self.wrapped(quota=policy)
        transport = balanced(server)
        self.assertEqual(policy.recorded, [])
        self.send(server, transport, versionOne(ONE) + b"hello")
        asked = [request for request, usage in policy.recorded if usage.connections]
        self.assertEqual([(each.kind, each.peer, each.clientId) for each in asked], [(CONNECTION, ONE, ONE)])
        [connection] = server.factory.connections
        self.assertEqual((list(connection.link.pauses.reasons), server.protocols[0].received), ([Pause.OPENING], b""))
        server.clock.advance(2.0)
        server.settle()
        self.assertEqual(server.protocols[0].received, b"hello")

    def test_refusedByPolicy(self) -> None:
        """A connection that a policy refuses is cut off before its protocol receives anything."""
        server = self.wrapped(quota=Refusing(limits=limiting().limits))
        transport, other = balanced(server), balanced(server)
        self.send(server, transport, versionOne(ONE) + b"hello")
        self.send(server, other, versionOne(OTHER) + b"hello")
        self.assertEqual([each.isLost for each in (transport, other)], [True, False])
        self.assertEqual([bytes(each.received) for each in server.protocols], [b"", b"hello"])


class EndTests(ProxyHeaderTestCase):
    """Connections that end before their header has come, or with it."""

    def ends(self, end: Callable[[FakeTransport], object]) -> None:
        """Have connections end in some way, and look whether anything is left."""
        for server in self.both(maxConnectionsPerAddress=1):
            end(balanced(server))
            server.settle()
            server.close()
            self.assertEqual(len(server.factory.connections), 0)
            self.assertEqual({name: size for name, size in server.factory.gate.ledger.usedBytes.items() if size}, {})
            # There is a place again.
            self.assertFalse(self.client(server, BALANCER).isLost)

    def test_hangsUp(self) -> None:
        """The balancer leaves."""
        self.ends(FakeTransport.peerCloses)

    def test_noHeader(self) -> None:
        """Something else comes than a header."""
        self.ends(lambda transport: transport.peerSends(b"GET / HTTP/1.1\r\n\r\n"))

    def test_halfAHeader(self) -> None:
        """It leaves in the middle of it."""

        def leave(transport: FakeTransport) -> None:
            transport.peerSends(versionOne(ONE)[:20])
            transport.peerCloses()

        self.ends(leave)

    def test_whileClosing(self) -> None:
        """A header that comes while the connection closes makes no difference."""
        server = self.wrapped(limits=ConnectionLimits(maxConnectionsPerAddress=1))
        transport = balanced(server)
        [connection] = server.factory.connections
        connection.loseConnection()
        transport.peerSends(versionOne(ONE) + b"hello")
        server.settle()
        self.assertEqual((transport.isLost, bytes(server.protocols[0].received)), (True, b""))
        self.assertFalse(self.client(server, ONE).isLost)
