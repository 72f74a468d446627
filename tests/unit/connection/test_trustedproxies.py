"""L{admission.connection.trustedproxies}, and connections from them."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.connection.trustedproxies import TrustedProxies
from admission.control import AdmissionControl
from admission.interfaces import CONNECTION
from admission.testing.faketransport import FakeTransport
from tests.kit.admitted import Server, framed
from tests.kit.proxyheaders import BALANCER, versionOne, versionTwo
from tests.kit.wrapped import Foreign, Wrapped, limiting

ONE, OTHER = "192.0.2.7", "192.0.2.8"

LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
"""What a balancer sends before a health check of its own."""


class NetworksTests(SynchronousTestCase):
    """L{TrustedProxies}."""

    def test_among(self) -> None:
        """A proxy is believed if its address is in one of the networks."""
        for networks, trusted, others in (
            ("192.0.2.0/24", ("192.0.2.1", "192.0.2.255"), ("192.0.3.1", "::1", "", "balancer", "192.0.2")),
            (("192.0.2.1", "fd00::/8"), ("192.0.2.1", "fd12::1"), ("192.0.2.2", "fe80::1", "")),
            ("fe80::/10", ("fe80::1%eth0",), ("fc00::1",)),
            (["unix"], ("",), ("127.0.0.1",)),
        ):
            proxies = TrustedProxies(networks)
            self.assertEqual(
                [[host in proxies for host in hosts] for hosts in (trusted, others)],
                [[True] * len(trusted), [False] * len(others)],
            )

    def test_mistakes(self) -> None:
        """What is no network is refused in a sentence."""
        for networks, words in (
            ("10.0.0.1/8", "'10.0.0.1/8' is no network of proxies"),
            ("balancer", "write one as in 10.0.0.0/8"),
            ((), "name the networks of your proxies"),
            ([None], "None is no network"),
        ):
            error = self.assertRaises(ValueError, TrustedProxies, networks)
            self.assertIn(words, str(error))


class ConnectionTests(SynchronousTestCase):
    """Servers of both kinds, which believe one balancer."""

    def both(self, *policies: Any, **limits: Any) -> list[Any]:
        """One of each kind."""
        wrapped = Wrapped(limits=ConnectionLimits(**limits), quota=[policy for _, policy in policies])
        admitted = Server(limits=ConnectionLimits(**limits), control=AdmissionControl(policies))
        for server in (wrapped, admitted):
            server.factory.believe(TrustedProxies(BALANCER))
            self.addCleanup(server.close)
        return [wrapped, admitted]

    def connect(self, server: Any, *pieces: bytes, host: str = BALANCER) -> FakeTransport:
        """A connection on which all of this comes."""
        address = IPv4Address("TCP", host, 50_000)
        transport = FakeTransport(server.clock, server.factory.buildProtocol(address), address)
        transport.connect()
        server.settle()
        for piece in pieces:
            transport.peerSends(piece)
            server.settle()
        return transport

    def hosts(self, server: Any) -> list[str]:
        """The hosts whose connections are open."""
        return [connection.host for connection in server.factory.connections]

    def test_believed(self) -> None:
        """A header of either version is believed, wherever it is torn, and what comes behind it is the client's."""
        for header in (versionOne(ONE), versionTwo(ONE)):
            for cut in range(len(header) + 1):
                for server in self.both():
                    self.connect(server, header[:cut], header[cut:] + framed(b"one"))
                    self.assertEqual(self.hosts(server), [ONE])

    def test_others(self) -> None:
        """From anybody else a header is what the client sends, and says nothing."""
        for server in self.both():
            self.connect(server, versionOne(ONE), host=OTHER)
            self.assertEqual(self.hosts(server), [OTHER][: len(server.factory.connections)])
        wrapped = self.both()[0]
        self.connect(wrapped, versionOne(ONE), host=OTHER)
        self.assertEqual(bytes(wrapped.protocols[0].received), versionOne(ONE))

    def test_protocolSees(self) -> None:
        """A wrapped protocol is told who its peer is, and gets what was behind the header."""
        [server, _] = self.both()
        seen: list[str] = []

        def see(protocol: Foreign, data: bytes) -> None:
            seen.append(protocol.transport.getPeer().host)

        server.behave = see
        self.connect(server, versionTwo(ONE) + b"hello")
        self.assertEqual((seen, bytes(server.protocols[0].received)), ([ONE], b"hello"))

    def test_noHeader(self) -> None:
        """A trusted proxy that sends anything else is cut off, and the log says why."""
        for sent, words in (
            (b"GET / HTTP/1.1\r\n", "it sent no PROXY header, as a trusted proxy has to"),
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 nowhere 1\r\n", "its PROXY header makes no sense"),
            (b"PROXY TCP4 somebody 192.0.2.1 1 2\r\n", "its PROXY header makes no sense"),
            (b"PROXY " + bytes(200), "its PROXY header makes no sense"),
            (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff" + bytes(5000), "it is too long"),
            (b"\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c" + bytes(12), "its PROXY header makes no sense"),
        ):
            for server in self.both():
                with capturedLogs() as logs:
                    transport = self.connect(server, sent)
                self.assertTrue(transport.isLost, sent)
                self.assertEqual((server.factory.refusedConnections, self.hosts(server)), (1, []))
                self.assertIn(words, " ".join(str(event.get("reason", event)) for event in logs))

    def test_noClient(self) -> None:
        """
        A balancer is no client: its connections count for no address, and the policies are not asked about those of
        which nobody says whose they are.
        """
        policy = limiting()
        for server in self.both(("limiting", policy), maxConnectionsPerAddress=1):
            policy.recorded.clear()
            for _ in range(3):
                self.connect(server)
                self.connect(server, LOCAL + framed(b"one"))
            self.assertEqual(set(self.hosts(server)), {BALANCER})
            self.assertEqual(len(server.factory.connections), 6)
            self.assertNotIn(CONNECTION, [request.kind for request, _ in policy.recorded])
            self.connect(server, versionOne(ONE))
            self.connect(server, versionOne(ONE))
            self.assertEqual(self.hosts(server).count(ONE), 1)
            peers = [request.peer for request, _ in policy.recorded if request.kind == CONNECTION]
            self.assertEqual(peers, [ONE])
