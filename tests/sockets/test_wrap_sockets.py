"""L{admission.connection.wrapping} on real sockets, plain and TLS, on loopback."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHandshakeListener, ISSLTransport
from twisted.internet.protocol import Factory
from twisted.protocols.policies import ThrottlingFactory, TimeoutFactory, TrafficLoggingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.trial.unittest import SkipTest
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.static import File
from zope.interface import implementer

from admission.admission import Admission, wrapFactory
from admission.connection.factory import ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.connection.pauses import Pause
from admission.interfaces import DEFAULT, RESPONSES, QuotaEntity
from tests.kit.certificates import makeCertificates
from tests.kit.proxyheaders import versionOne, versionTwo
from tests.kit.wrapped import KIB, Foreign, echo
from tests.sockets.test_connection_sockets import AUTHORITY, Peer, PeersTestCase

MIB = 1 << 20
KINDS = ("tcp", "tls")
TLS_OVERSHOOT_BYTES = 82_000
"""What Twisted's TLS delivers in one turn at most, rounded up."""
SLOW = "client-bytes:produce=1000:fetch=1000:algorithm=bucket"


def echoOrStartTLS(protocol: Foreign, data: bytes) -> None:
    """Send back what was received, and go on with TLS when asked to."""
    if data == b"STARTTLS\r\n":
        protocol.transport.write(b"go ahead\r\n")
        protocol.transport.startTLS(AUTHORITY.server().options())
    else:
        protocol.transport.write(data)


@implementer(IHandshakeListener)
class Listening(Foreign):
    """Wants to know when the handshake is over; C{handshakes} says how often it was told."""

    handshakes = 0

    def handshakeCompleted(self) -> None:
        """Count."""
        self.handshakes += 1


class PageWithoutLength(Resource):
    """A page that is written in pieces, all at once."""

    isLeaf = True

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self.pieces = (*pieces, b"the end")

    def render_GET(self, request: Any) -> int:
        """Write it."""
        for piece in self.pieces:
            request.write(piece)
        request.finish()
        return NOT_DONE_YET


class WrapSocketTestCase(PeersTestCase):
    """Wrapped servers on real ports."""

    def setUp(self) -> None:
        super().setUp()
        self.behave: Callable[[Foreign, bytes], object] | None = echo
        self.protocols: list[Foreign] = []
        self.ports: list[Any] = []
        self.factories: list[Any] = []

    async def tearDown(self) -> None:
        """Have everything gone, and nothing left: the factories rest by themselves."""
        await DeferredList([maybeDeferred(port.stopListening) for port in self.ports])
        for factory in self.factories:
            for connection in list(factory.connections):
                connection.abortConnection()
        for peer in self.peers:
            peer.close()
        await self.until(lambda: not any(factory.connections for factory in self.factories))
        for factory in self.factories:
            # Policies may remember clients for a while.
            pool = factory.gate.pool
            used = {purpose: sizeBytes for purpose, sizeBytes in pool.usedBytesByPurpose.items() if sizeBytes}
            self.assertEqual((used, factory.gate.pool.reclaimedLeases), ({}, 0))

    def make(self) -> Foreign:
        """A protocol for the next connection."""
        self.protocols.append(Foreign(self.behave))
        return self.protocols[-1]

    def wrap(self, factory: Any = None, **kwargs: Any) -> Any:
        """A wrapped factory, of our protocols unless another is given."""
        inner = Factory.forProtocol(self.make) if factory is None else factory  # type: ignore[arg-type]
        made = wrapFactory(inner, reactor=self.reactor, **{"pool": "bounded:1MiB", **kwargs})
        self.factories.append(made)
        return made

    def listen(self, kind: str, factory: Any) -> Any:
        """Where C{factory} is reached."""
        if kind == "tls":
            port = self.reactor.listenSSL(0, factory, AUTHORITY.server().options(), interface="127.0.0.1")
        else:
            port = self.reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.ports.append(port)
        host = port.getHost()
        return (host.host, host.port)

    async def connect(self, kind: str, address: Any, receiveBytes: int | None = None) -> Peer:
        """Have a peer connect."""
        peer: Peer = await self.do(Peer, kind, address, receiveBytes)
        self.peers.append(peer)
        return peer

    async def startTLS(self, peer: Peer) -> None:
        """Have a peer ask for TLS, and go on with it."""
        await self.do(peer.send, b"STARTTLS\r\n")
        self.assertEqual(await self.do(peer.receive, 10), b"go ahead\r\n")
        await self.do(self.secure, peer, AUTHORITY.certificate.decode("ascii"))
        await self.do(peer.send, b"secret")
        self.assertEqual(await self.do(peer.receive, 6), b"secret")

    def secure(self, peer: Peer, authority: str) -> None:
        """Have a plain peer go on with TLS; for another thread."""
        context = ssl.create_default_context(cadata=authority)
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")


class PassingTests(WrapSocketTestCase):
    """Bytes come through, however the factory listens."""

    async def echoes(self, peer: Peer) -> None:
        """Have more go both ways than fits into any record."""
        stream = Random(3).randbytes(100 * KIB)
        for _ in range(10):
            await self.do(peer.send, stream)
            self.assertEqual(await self.do(peer.receive, len(stream)), stream)

    async def test_echo(self) -> None:
        """Wrapped inside TLS, around it, and without it: all that is sent comes back, in order."""
        for kind in KINDS:
            await self.echoes(await self.connect(kind, self.listen(kind, self.wrap())))
        tls = TLSMemoryBIOFactory(AUTHORITY.server().options(), False, Factory.forProtocol(self.make), self.reactor)  # type: ignore[arg-type]
        await self.echoes(await self.connect("tls", self.listen("tcp", self.wrap(tls))))
        # Autobahn looks for the class.
        self.assertIsInstance(self.protocols[-1].transport, TLSMemoryBIOProtocol)

    async def test_twistedsWrappers(self) -> None:
        """Twisted's own wrappers work inside, on TLS and with STARTTLS."""
        self.behave = echoOrStartTLS
        wrappers: tuple[Callable[[Any], Any], ...] = (
            TimeoutFactory,
            ThrottlingFactory,
            lambda factory: TrafficLoggingFactory(factory, self.mktemp()),  # type: ignore[no-untyped-call]
        )
        for wrapper in wrappers:
            factory = self.wrap(wrapper(Factory.forProtocol(self.make)))  # type: ignore[arg-type]
            await self.startTLS(await self.connect("tcp", self.listen("tcp", factory)))
            peer = await self.connect("tls", self.listen("tls", factory))
            await self.do(peer.send, b"hello")
            self.assertEqual(await self.do(peer.receive, 5), b"hello")

    async def test_handshakeListener(self) -> None:
        """
        A protocol that wants to know when the handshake is over is told once, on TLS and with STARTTLS, where the
        handshake is read although the client is over its quota.
        """
        made: list[Listening] = []

        def make() -> Listening:
            made.append(Listening(echoOrStartTLS))
            return made[-1]

        factory = self.wrap(Factory.forProtocol(make), quota="client-bytes:produce=1000:algorithm=bucket:burst=1ms")  # type: ignore[arg-type]
        await self.startTLS(await self.connect("tcp", self.listen("tcp", factory)))
        peer = await self.connect("tls", self.listen("tls", factory))
        await self.do(peer.send, b"hello")
        self.assertEqual(await self.do(peer.receive, 5), b"hello")
        self.assertEqual([(each.handshakes, each.transport.isTLS) for each in made], [(1, True)] * 2)

    async def test_site(self) -> None:
        """A site of twisted.web works, keeps connections, and sends files whole."""
        directory = Path(self.mktemp())
        directory.mkdir()
        content = Random(5).randbytes(2 * MIB)
        directory.joinpath("file").write_bytes(content)
        for kind in KINDS:
            factory = self.wrap(Site(File(str(directory))), quota="client-bytes:fetch=100M:algorithm=bucket:burst=10ms")
            peer = await self.connect(kind, self.listen(kind, factory))
            for _ in range(2):
                await self.do(peer.send, b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 OK\r\n", await self.head(peer))
                self.assertEqual(await self.do(peer.receive, len(content)), content)

    async def test_pageWithoutLength(self) -> None:
        """
        A page that is larger than the pool and does not say how large it is is written in three pieces, of which the
        last two are small: all of them are sent.
        """
        content = Random(5).randbytes(3 * MIB)
        for kind in KINDS:
            factory = self.wrap(Site(PageWithoutLength(content)))
            peer = await self.connect(kind, self.listen(kind, factory))
            await self.do(peer.send, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await self.head(peer)
            self.assertIn(b"Transfer-Encoding: chunked\r\n", head)
            for chunk in (content, b"the end", b""):
                self.assertEqual(await self.do(peer.receive, len(b"%x\r\n" % len(chunk))), b"%x\r\n" % len(chunk))
                self.assertEqual(await self.do(peer.receive, len(chunk) + 2), chunk + b"\r\n")
            self.assertEqual(factory.cutOffs, 0)

    async def head(self, peer: Peer) -> bytes:
        """The head of an answer."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await self.do(peer.receive, 1)
        return head


class StopTests(WrapSocketTestCase):
    """A server that stops."""

    async def test_work(self) -> None:
        """Pieces of work inside of a wrapped server are done, and their answers leave before its connections end."""
        admission = Admission(pool="bounded:1MiB", reactor=self.reactor)
        work: list[Deferred[None]] = []

        async def report(protocol: Foreign) -> None:
            with admission.work("report"):
                work.append(Deferred())
                await work[0]
            protocol.transport.write(b"done")

        self.behave = lambda protocol, data: Deferred.fromCoroutine(report(protocol))
        factory = admission.wrap(Factory.forProtocol(self.make))  # type: ignore[arg-type]
        self.factories.append(factory)
        peer = await self.connect("tcp", self.listen("tcp", factory))
        await self.do(peer.send, b"go")
        await self.until(lambda: bool(work))
        stopped = admission.stop()
        await self.turns()
        self.assertFalse(stopped.called)
        work[0].callback(None)
        self.assertEqual(await self.do(peer.receive, 5), b"done")
        await stopped


class BalancedTests(WrapSocketTestCase):
    """Behind a load balancer, by Twisted's C{haproxy:}."""

    async def listenBehind(self, factory: Any, listening: str = "tcp:0:interface=127.0.0.1") -> Any:
        """Where C{factory} is reached."""
        port = await serverFromString(self.reactor, f"haproxy:{listening}").listen(factory)
        self.ports.append(port)
        return ("127.0.0.1", port.getHost().port)

    async def test_peer(self) -> None:
        """The protocol, its limits and the status page know the client, with both kinds of headers."""
        self.behave = lambda protocol, data: protocol.transport.write(protocol.transport.getPeer().host.encode())
        for header in (versionOne("192.0.2.7"), versionTwo("192.0.2.7")):
            factory = self.wrap(limits=ConnectionLimits(maxConnectionsPerAddress=1))
            address = await self.listenBehind(factory)
            peer, other = await self.connect("tcp", address), await self.connect("tcp", address)
            await self.do(peer.send, header + b"who?")
            self.assertEqual(await self.do(peer.receive, 9), b"192.0.2.7")
            self.assertEqual([each.host for each in factory.connections], ["192.0.2.7", "127.0.0.1"])
            await self.do(other.send, header)
            self.assertTrue(await self.do(other.isAtEnd))

    async def test_startTLS(self) -> None:
        """STARTTLS works there, too: it cannot be paused before its handshake is over."""
        self.behave = echoOrStartTLS
        peer = await self.connect("tcp", await self.listenBehind(self.wrap()))
        await self.do(peer.send, versionOne("192.0.2.7"))
        await self.startTLS(peer)
        transport = self.protocols[0].transport
        self.assertTrue(ISSLTransport.providedBy(transport))
        self.assertEqual((transport.isTLS, transport.getPeer().host), (True, "192.0.2.7"))

    async def test_headerInsideTLS(self) -> None:
        """A header that comes through TLS says whose the connection is as well."""
        certificates = makeCertificates(Path(self.mktemp()).absolute())
        factory = self.wrap()
        address = await self.listenBehind(
            factory,
            f"ssl:0:interface=127.0.0.1:privateKey={certificates.serverKey}:certKey={certificates.serverCertificate}",
        )
        peer = await self.connect("tcp", address)
        await self.do(self.secure, peer, certificates.authority.read_text("ascii"))
        await self.do(peer.send, versionOne("192.0.2.7") + b"hello")
        self.assertEqual(await self.do(peer.receive, 5), b"hello")
        self.assertEqual([each.host for each in factory.connections], ["192.0.2.7"])


class QuotaTests(WrapSocketTestCase):
    """Peers that send too much."""

    async def test_flood(self) -> None:
        """A peer that floods is not read beyond what one turn brings, while others are served at once."""
        self.behave = None
        for kind in KINDS:
            address = self.listen(kind, self.wrap(quota=SLOW))
            flooding = await self.connect(kind, address)
            flooding.socket.settimeout(0.3)
            try:
                await self.do(flooding.send, bytes(30 * MIB))
                self.fail("all of it was read")
            except TimeoutError:
                pass
            protocol = self.protocols[-1]
            self.assertLessEqual(len(protocol.received), 64 * KIB)
            self.assertLessEqual(protocol.transport._incoming.heldBytes, TLS_OVERSHOOT_BYTES)
            self.assertIn(Pause.THROTTLED, protocol.transport.link.pauses.reasons)
            if kind == "tcp":
                self.behave = echo
                other = socket.create_connection(address, timeout=60, source_address=("127.0.0.2", 0))
                self.addCleanup(other.close)
                await self.do(other.sendall, b"hello")
                self.assertEqual(await self.do(other.recv, 5), b"hello")
                self.behave = None

    async def throttled(self, kind: str, sizeBytes: int) -> tuple[Foreign, Peer]:
        """A peer that has sent so much that it is throttled for minutes."""
        address = self.listen(kind, self.wrap(quota="client-bytes:produce=10:algorithm=bucket"))
        count = len(self.protocols)
        peer = await self.connect(kind, address)
        await self.do(peer.send, bytes(sizeBytes))
        await self.until(lambda: len(self.protocols) > count and self.protocols[count].received)
        protocol = self.protocols[count]
        await self.until(lambda: protocol.transport.link.pauses.isApplied)
        return protocol, peer

    async def test_leavesWhileThrottled(self) -> None:
        """A peer that is throttled and leaves is noticed at once, and reported as it would be if it were read."""
        if not HangUpWatch.isSupported:
            raise SkipTest("this system has no epoll")
        self.behave = None
        for kind in KINDS:
            protocol, peer = await self.throttled(kind, 1000)
            await self.do(peer.end)
            await self.until(lambda: protocol.lost)  # noqa: B023
            self.assertEqual((len(protocol.received), protocol.lost[0].type), (1000, ConnectionDone))
            protocol, peer = await self.throttled(kind, 60_000)
            await self.do(peer.reset)
            await self.until(lambda: protocol.lost)  # noqa: B023
            self.assertEqual((len(protocol.lost), protocol.lost[0].type), (1, ConnectionLost))

    async def test_lastWords(self) -> None:
        """What a peer sent before it left waits for its time, and its end for that."""
        self.behave = None
        for kind in KINDS:
            protocol, peer = await self.throttled(kind, 1000)
            await self.do(peer.send, b"last words, more than a farewell" * 10)
            await self.do(peer.end)
            await self.turns()
            self.assertEqual((len(protocol.received), protocol.lost), (1000, []))
            quotas = protocol.transport.factory.control
            quotas.configure(
                QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": None}, protocol.transport.factory.clock.seconds()
            )
            protocol.transport._received.ask()
            await self.until(lambda: protocol.lost)  # noqa: B023
            self.assertEqual((len(protocol.received), protocol.lost[0].type), (1320, ConnectionDone))

    async def test_pausedAndHalfClosed(self) -> None:
        """A protocol that has paused its transport can still answer a peer that has closed its own side."""

        def pause(protocol: Foreign, data: bytes) -> None:
            protocol.transport.pauseProducing()

        self.behave = pause
        peer = await self.connect("tcp", self.listen("tcp", self.wrap()))
        await self.do(peer.send, b"ask")
        await self.until(lambda: self.protocols and self.protocols[0].received)
        await self.do(peer.end)
        await self.turns()
        self.protocols[0].transport.write(b"answer")
        self.assertEqual(await self.do(peer.receive, 6), b"answer")
        self.protocols[0].transport.resumeProducing()
        await self.until(lambda: self.protocols[0].lost)
        self.assertIs(self.protocols[0].lost[0].type, ConnectionDone)


class SendingTests(WrapSocketTestCase):
    """Peers that do not read."""

    async def test_deaf(self) -> None:
        """
        A peer that reads nothing is cut off after the time, and its memory is
        there for others, who were served meanwhile.
        """
        self.behave = lambda protocol, data: protocol.transport.write(bytes(20 * MIB) if data == b"all" else data)
        for kind in KINDS:
            factory = self.wrap(limits=ConnectionLimits(sendSeconds=0.4))
            address = self.listen(kind, factory)
            deaf = await self.connect(kind, address, receiveBytes=4096)
            await self.do(deaf.send, b"all")
            await self.until(lambda: factory.gate.ledger.usedBytes.get(RESPONSES))  # noqa: B023
            calm = await self.connect(kind, address)
            await self.do(calm.send, b"hello")
            self.assertEqual(await self.do(calm.receive, 5), b"hello")
            await self.until(lambda: len(factory.connections) == 1)  # noqa: B023
            self.assertEqual((factory.gate.ledger.usedBytes[RESPONSES], factory.cutOffs), (0, 1))

    async def test_oneAnswerAtATime(self) -> None:
        """
        While there is no memory, a peer that is cut off has freed what it held before the next peer is served; and its
        transport keeps nothing.
        """
        heldBytes: list[int] = []
        transports: list[Any] = []

        def behave(protocol: Foreign, data: bytes) -> None:
            heldBytes.append(protocol.transport.factory.gate.ledger.usedBytes.get(RESPONSES, 0))
            transports.append(protocol.transport.transport)
            protocol.transport.write(bytes(4 * MIB))

        self.behave = behave
        for kind in KINDS:
            factory = self.wrap(limits=ConnectionLimits(sendSeconds=0.1))
            address = self.listen(kind, factory)
            peers = [await self.connect(kind, address, receiveBytes=4096) for _ in range(8)]
            await self.until(lambda: len(factory.connections) == 8)  # noqa: B023
            for peer in peers:
                peer.socket.sendall(b"ask")
            await self.until(lambda: not factory.connections)  # noqa: B023
            # The first came while there was memory, so that it holds up nobody; all others wait for one another.
            self.assertLessEqual(max(heldBytes), 4 * MIB)
            self.assertEqual((len(heldBytes), factory.cutOffs), (8, 8))
            for transport in transports:
                plain = transport.transport if kind == "tls" else transport
                self.assertFalse(plain.dataBuffer or plain._tempDataBuffer)
            heldBytes.clear()
            transports.clear()

    async def test_slowThenClosed(self) -> None:
        """A peer that reads late gets everything, though the server has closed."""
        answer = Random(7).randbytes(8 * MIB)

        def behave(protocol: Foreign, data: bytes) -> None:
            protocol.transport.write(answer)
            protocol.transport.loseConnection()

        self.behave = behave
        for kind in KINDS:
            peer = await self.connect(kind, self.listen(kind, self.wrap()), receiveBytes=64 * KIB)
            await self.do(peer.send, b"all")
            await self.turns(0.2)
            self.assertEqual(await self.do(peer.receive, len(answer) + 1), answer)
            peer.close()
            await self.until(lambda: not any(factory.connections for factory in self.factories))
