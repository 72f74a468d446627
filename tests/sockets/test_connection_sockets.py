"""L{admission.connection} on real sockets: TCP, TLS and UNIX, on loopback."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from twisted.internet.defer import DeferredList, maybeDeferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SkipTest, TestCase

from admission.clock import MonotonicClock
from admission.connection.factory import (
    MAX_ACCEPTS,
    MAX_READ_BYTES,
    READ_SHARE,
    TLS_CONNECTION_BYTES,
    AdmittedFactory,
    ConnectionLimits,
)
from admission.connection.hangup import HangUpWatch
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.gate.reserve import RESERVED_SHARE
from admission.interfaces import CONNECTIONS, ILease
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import WHIM, RecordingProtocol, framed, gateFor
from tests.kit.certificates import Authority

MIB = 1 << 20
KINDS = ("tcp", "tls", "unix")
RESET = struct.pack("ii", 1, 0)

AUTHORITY = Authority()


class Peer:
    """
    The other end of a connection, by a blocking socket; its methods are for
    another thread, which L{SocketTestCase.do} runs them in.
    """

    def __init__(self, kind: str, address: Any, receiveBytes: int | None = None) -> None:
        """
        Connect, handshake included.

        @param receiveBytes: how much the system may receive for us unread.
        """
        self.kind = kind
        self.socket: Any = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        self.socket.settimeout(10)
        if receiveBytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receiveBytes)
        self.socket.connect(address)
        if kind == "tls":
            context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode("ascii"))
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def send(self, data: bytes) -> None:
        """Send C{data}."""
        self.socket.sendall(data)

    def receive(self, sizeBytes: int) -> bytes:
        """Receive exactly so many bytes, or fewer at the end of the stream."""
        received = bytearray()
        while len(received) < sizeBytes:
            chunk = self.socket.recv(sizeBytes - len(received))
            if not chunk:
                break
            received += chunk
        return bytes(received)

    def ask(self, *bodies: bytes) -> bytes:
        """Send requests and receive as many bytes as were sent."""
        stream = framed(*bodies)
        self.send(stream)
        return self.receive(len(stream))

    def askInTurn(self, bodies: Sequence[bytes]) -> bytes:
        """
        Send requests, two at a time: with more unanswered, we and a server that
        does not read before we do would wait for each other.
        """
        return b"".join(self.ask(*bodies[start : start + 2]) for start in range(0, len(bodies), 2))

    def isAtEnd(self) -> bool:
        """Whether the other side has closed, in whatever way."""
        try:
            return self.socket.recv(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True

    def end(self) -> None:
        """Close our side in order, on TLS with its farewell."""
        if self.kind == "tls":
            self.sayFarewell()
        self.socket.shutdown(socket.SHUT_WR)

    def sayFarewell(self) -> None:
        """Say that no more TLS comes, and from now on receive what is under it."""
        self.socket.settimeout(0.05)
        try:
            self.socket.unwrap()
        except (TimeoutError, OSError):
            # Nobody reads our farewell, let alone answers it.
            pass
        self.socket = socket.socket(fileno=self.socket.detach())
        self.socket.settimeout(10)

    def reset(self) -> None:
        """Have the connection fail."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def close(self) -> None:
        """Close."""
        self.socket.close()


class PeersTestCase(TestCase):
    """Peers in threads of their own, and a reactor that goes on meanwhile."""

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.peers: list[Peer] = []

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """What C{function} returns, in a thread."""
        return await deferToThread(function, *args)

    async def until(self, isSo: Callable[[], Any]) -> None:
        """Wait for something to be so."""
        while not isSo():
            await deferLater(self.reactor, 0.002)

    async def turns(self, seconds: float = 0.05) -> None:
        """Let happen what will."""
        await deferLater(self.reactor, seconds)


class SocketTestCase(PeersTestCase):
    """A server on ports of all kinds."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = MonotonicClock(self.reactor)
        self.behave: Callable[[RecordingProtocol, ILease], None] | None = None
        self.protocols: list[RecordingProtocol] = []
        self.directories: list[str] = []
        self.serve()

    def serve(self, poolBytes: int = MIB, limits: ConnectionLimits | None = None) -> None:
        """Make a server; it listens when the first peer connects."""
        self.pool = BoundedPool(poolBytes, seconds=self.clock.seconds)
        self.gate = gateFor(self.pool, self.clock, maxRequests=10)
        self.watch = HangUpWatch(self.reactor)
        self.factory = AdmittedFactory(self.makeProtocol, self.gate, self.clock, self.watch, limits)
        self.ports: dict[str, Any] = {}

    def makeProtocol(self) -> RecordingProtocol:
        """A protocol for the next connection."""
        self.protocols.append(RecordingProtocol(self.behave))
        return self.protocols[-1]

    async def tearDown(self) -> None:
        """Have everything gone, and nothing left."""
        await DeferredList([maybeDeferred(port.stopListening) for port in self.ports.values()])
        for protocol in list(self.factory.connections):
            protocol.transport.abortConnection()
        for peer in self.peers:
            peer.close()
        await self.until(lambda: not self.factory.connections)
        for protocol in self.protocols:
            protocol.finish()
        self.gate.close()
        self.watch.close()
        for directory in self.directories:
            os.rmdir(directory)
        used = {purpose: sizeBytes for purpose, sizeBytes in self.gate.ledger.usedBytes.items() if sizeBytes}
        self.assertEqual((used, self.gate.turns.runningRequests, self.pool.reclaimedLeases), ({}, 0, 0))

    def listen(self, kind: str) -> Any:
        """A port of that kind."""
        if kind not in self.ports:
            if kind == "unix":
                # A directory of its own: such paths must be short.
                directory = tempfile.mkdtemp()
                self.directories.append(directory)
                port = self.reactor.listenUNIX(os.path.join(directory, "it"), self.factory)
            elif kind == "tls":
                port = self.reactor.listenSSL(0, self.factory, AUTHORITY.server().options(), interface="127.0.0.1")
            else:
                port = self.reactor.listenTCP(0, self.factory, interface="127.0.0.1")
            self.factory.addPort(port)
            self.ports[kind] = port
        return self.ports[kind]

    async def connect(self, kind: str, receiveBytes: int | None = None) -> tuple[RecordingProtocol, Peer]:
        """
        Have a peer connect.

        @return: the server's protocol and the peer.
        """
        host = self.listen(kind).getHost()
        count = len(self.protocols)
        address = host.name if kind == "unix" else (host.host, host.port)
        peer: Peer = await self.do(Peer, kind, address, receiveBytes)
        self.peers.append(peer)
        await self.until(lambda: len(self.protocols) > count and self.protocols[count].transport)
        return self.protocols[count], peer

    def takeAll(self) -> ILease:
        """Take all the memory there is."""
        lease = self.pool.tryAllocate(self.pool.sizeBytes)
        assert lease is not None
        return lease


class RequestTests(SocketTestCase):
    """Requests and responses."""

    async def test_echo(self) -> None:
        """
        Requests of all sizes are answered in order on every kind of socket,
        and a connection costs what its kind costs.
        """
        costs = {"tcp": PLAIN_CONNECTION_BYTES, "tls": TLS_CONNECTION_BYTES, "unix": PLAIN_CONNECTION_BYTES}
        bodies = [b"", b"x", b"y" * 70_000, b"z" * 20_000, b"", b"w" * 300_000]
        for kind in KINDS:
            before = self.gate.ledger.usedBytes.get(CONNECTIONS, 0)
            protocol, peer = await self.connect(kind)
            await self.until(lambda: protocol.link.handshake is None)  # noqa: B023
            self.assertEqual(self.gate.ledger.usedBytes[CONNECTIONS] - before, costs[kind])
            self.assertEqual(await self.do(peer.ask, *bodies), framed(*bodies))

    async def test_shortOfMemory(self) -> None:
        """
        Peers on all kinds of sockets that together want far more than there
        is have every request answered in order, and frames never hold more
        than the pool, one request and the reserve.
        """
        self.serve(poolBytes=300_000)
        random = Random(3)

        def behave(protocol: RecordingProtocol, lease: ILease) -> None:
            body = protocol.requests.pop()
            if len(body) % 2:
                protocol.respond([framed(body)])
            else:
                self.reactor.callLater(0.001, protocol.respond, [framed(body)])

        self.behave = behave
        waited: list[bool] = []
        self.gate.pressure.subscribe(waited.append)
        asked = []
        for number in range(9):
            _, peer = await self.connect(KINDS[number % 3])
            bodies = [random.randbytes(random.choice([10, 5_000, 100_001, 100_000])) for _ in range(12)]
            asked.append((deferToThread(peer.askInTurn, bodies), bodies))
        for answered, bodies in asked:
            self.assertEqual(await answered, framed(*bodies))
        self.assertIn(True, waited)
        self.assertLessEqual(self.pool.peakFrameBytes, 300_000 + 100_001 - 1 + 300_000 // RESERVED_SHARE)
        self.assertEqual((self.gate.memory.waiting, self.gate.turns.runningRequests), (0, 0))

    async def test_manyParts(self) -> None:
        """
        Responses in very many parts, small, large and empty ones, arrive whole and in order at a peer that takes them
        in pieces, and what waited for it is charged for no longer.
        """
        random = Random(7)
        sizes = [0, 1, 100, 5_000, 70_000, 300_000, 2 * MIB]
        responses = [
            [random.randbytes(random.choices(sizes, [1, 4, 8, 4, 1, 1, 0.02])[0]) for _ in range(count)]
            for count in (1, 3, 600, 1500)
        ]
        self.behave = lambda protocol, lease: protocol.respond(responses[len(protocol.requests) - 1])
        for kind in KINDS:
            protocol, peer = await self.connect(kind, receiveBytes=50_000)
            for parts in responses:
                whole = b"".join(parts)
                await self.do(peer.send, framed(b"next"))
                self.assertEqual(await self.do(peer.receive, len(whole)), whole)
            await self.until(lambda: not protocol.pauses.reasons)  # noqa: B023
            self.assertEqual(protocol.link.unsentBytes(), 0)

    async def test_resetWhileSending(self) -> None:
        """A peer that fails with much unsent is noticed, and nothing is left of it."""
        self.behave = lambda protocol, lease: protocol.respond([bytes(MIB)] * 30)
        for kind in KINDS:
            protocol, peer = await self.connect(kind)
            await self.do(peer.send, framed(b"much"))
            await self.until(lambda: protocol.link.unsentBytes() > 0)  # noqa: B023
            await self.do(peer.reset)
            await self.until(lambda: protocol.isLost)  # noqa: B023
            self.assertEqual(protocol.link.unsentBytes(), 0)


class MuteTests(SocketTestCase):
    """Connections that are not read."""

    async def test_manyOvershoot(self) -> None:
        """
        The more connections there are for the pool, the less each has received when it is muted; but a body for which
        there is memory comes in large pieces.
        """
        self.behave = lambda protocol, lease: protocol.pause(WHIM)
        small = framed(*[bytes(100)] * 2000)
        for kind in ("tcp", "unix"):
            # The pool is for connections and leases, too.
            connected = [await self.connect(kind) for _ in range(8)]
            sent = [deferToThread(peer.send, small) for _, peer in connected]
            for number, (protocol, _) in enumerate(connected):
                await self.until(lambda: protocol.pauses.isApplied)  # noqa: B023
                self.assertLessEqual(protocol.framer.bufferedBytes, MIB // READ_SHARE // max(number, 1))
            for protocol, _ in connected:
                protocol.transport.abortConnection()
            await DeferredList(sent, consumeErrors=True)
        self.behave = None
        protocol, peer = await self.connect("tcp")
        await self.do(peer.send, framed(bytes(300_000))[:200_000])
        await self.until(lambda: protocol.framer.filledBytes > 100_000)
        self.assertEqual(protocol.transport.bufferSize, MAX_READ_BYTES)

    async def test_beforeTheHandshake(self) -> None:
        """
        A connection that is muted as soon as it is made still finishes its
        handshake; it is served when it is unmuted.
        """

        class Reluctant(RecordingProtocol):
            def connectionMade(self) -> None:
                self.pause(WHIM)

        def makeReluctant() -> RecordingProtocol:
            self.protocols.append(Reluctant(self.behave))
            return self.protocols[-1]

        self.factory._makeProtocol = makeReluctant
        for kind in KINDS:
            protocol, peer = await self.connect(kind)
            await self.do(peer.send, framed(b"one", b"two"))
            await self.turns()
            self.assertEqual((protocol.requests, protocol.pauses.isApplied), ([], True))
            protocol.resume(WHIM)
            self.assertEqual(await self.do(peer.receive, 14), framed(b"one", b"two"))


class HangUpTests(SocketTestCase):
    """Peers that leave while nobody reads from them."""

    def setUp(self) -> None:
        if not HangUpWatch.isSupported:
            raise SkipTest("this system has no epoll")
        super().setUp()

    async def mutedPeer(self, kind: str, unread: bytes = b"") -> tuple[RecordingProtocol, Peer]:
        """A muted connection whose peer has sent something that nobody has read."""
        protocol, peer = await self.connect(kind)
        self.assertEqual(await self.do(peer.ask, b"hello"), framed(b"hello"))
        protocol.pause(WHIM)
        await self.do(peer.send, unread)
        return protocol, peer

    async def test_endBehindRequests(self) -> None:
        """
        A peer that has sent requests and gone has them served when its turn
        comes, and is gone then; on a UNIX socket as well, where its going
        looks like more.
        """
        for kind in KINDS:
            protocol, peer = await self.mutedPeer(kind, framed(b"x" * 1000, b"last"))
            await self.do(peer.end)
            if kind == "unix":
                await self.do(peer.close)
            await self.turns()
            self.assertFalse(protocol.isLost, kind)
            protocol.behave = lambda protocol, lease: protocol.finish()
            protocol.resume(WHIM)
            await self.until(lambda: protocol.isLost)  # noqa: B023
            self.assertEqual(protocol.requests, [b"hello", b"x" * 1000, b"last"])


class ClosingTests(SocketTestCase):
    """Connections that we close."""

    async def test_ends(self) -> None:
        """Closing ends, with the last response sent, for a peer that takes part, muted or not."""
        for kind in KINDS:
            for isMuted in (False, True):
                protocol, peer = await self.connect(kind)
                self.assertEqual(await self.do(peer.ask, b"hello"), framed(b"hello"))
                if isMuted:
                    protocol.pause(WHIM)
                protocol.closeGracefully()
                self.assertTrue(await self.do(peer.isAtEnd))
                await self.do(peer.close)
                await self.until(lambda: protocol.isLost)  # noqa: B023

    async def test_farewellBehindTheRequest(self) -> None:
        """
        A peer that asks for much and says farewell at once gets as much as TLS
        had taken, and then its connection ends.
        """
        self.behave = lambda protocol, lease: protocol.respond([bytes(8 * MIB)])
        protocol, peer = await self.connect("tls")
        await self.until(lambda: protocol.link.handshake is None)
        protocol.pause(WHIM)
        await self.do(peer.send, framed(b"much"))
        await self.do(peer.sayFarewell)
        protocol.resume(WHIM)
        received = await self.do(peer.receive, 16 * MIB)
        self.assertGreater(len(received), MIB)
        await self.until(lambda: protocol.isLost)


class PressureTests(SocketTestCase):
    """Ports when memory is short."""

    async def test_portPauses(self) -> None:
        """While a TLS connection waits for memory no other is accepted; it is when there is memory again."""
        _, peer = await self.connect("tls")
        lease = self.takeAll()
        await self.do(peer.send, framed(b"one"))
        await self.until(lambda: self.gate.pressure.isOn)
        connecting = maybeDeferred(lambda: deferToThread(Peer, "tls", ("127.0.0.1", self.ports["tls"].getHost().port)))
        await self.turns(0.1)
        self.assertEqual((len(self.factory.connections), connecting.called), (1, False))
        lease.release()
        self.assertEqual(await self.do(peer.receive, 7), framed(b"one"))
        late = await connecting
        self.peers.append(late)
        self.assertEqual(await self.do(late.ask, b"two"), framed(b"two"))

    async def test_acceptsFew(self) -> None:
        """Of many that connect at once some are accepted in each turn."""
        address = self.listen("tcp").getHost()
        count = 4 * MAX_ACCEPTS
        # Without a turn of the reactor: they wait in the kernel.
        newcomers = [socket.create_connection((address.host, address.port)) for _ in range(count)]
        accepted = [0]
        while accepted[-1] < count:
            await deferLater(self.reactor, 0)
            accepted.append(len(self.protocols))
        self.assertLessEqual(max(now - before for before, now in pairwise(accepted)), MAX_ACCEPTS)
        for newcomer in newcomers:
            newcomer.close()
        await self.until(lambda: not self.factory.connections)

    async def test_stopsWhilePaused(self) -> None:
        """A port that is paused can be stopped."""
        _, peer = await self.connect("tls")
        lease = self.takeAll()
        await self.do(peer.send, framed(b"one"))
        await self.until(lambda: self.gate.pressure.isOn)
        await maybeDeferred(self.ports.pop("tls").stopListening)
        lease.release()
        self.assertEqual(await self.do(peer.receive, 7), framed(b"one"))


class SilentTests(SocketTestCase):
    """Peers of which nothing is heard any more."""

    async def test_vanishedWhileWaiting(self) -> None:
        """
        A peer that has asked to be told of something, and then says nothing, is
        gone after the idle time with all that it held; one that we do not read
        because of its quota stays.
        """
        self.behave = lambda protocol, lease: protocol.park()
        self.serve(limits=ConnectionLimits(idleSeconds=0.5, closeGraceSeconds=0.2))
        self.factory.start()
        try:
            for kind in KINDS:
                throttled, _ = await self.connect(kind)
                throttled.throttle(1000.0)
                protocol, peer = await self.connect(kind)
                await self.do(peer.send, framed(b"tell me"))
                await self.until(lambda: protocol.requests)  # noqa: B023
                await self.until(lambda: protocol.isLost)  # noqa: B023
                self.assertEqual(protocol.closeReason, "it was idle for too long")
                self.assertFalse(throttled.isClosing)
        finally:
            self.factory.stop()

    async def raw(self, count: int) -> list[socket.socket]:
        """Have peers connect to the TLS port that have yet to say anything."""
        host = self.listen("tls").getHost()
        made: list[socket.socket] = []
        for _ in range(count):
            made.append(await self.do(socket.create_connection, (host.host, host.port), 10))
            self.addCleanup(made[-1].close)
        return made

    async def test_endlessGreeting(self) -> None:
        """A peer that sends far more than a handshake takes is cut off."""
        (endless,) = await self.raw(1)
        record = b"\x16\x03\x01\x40\x00"
        greeting = b"\x01\x01\xff\x00\x03\x03".ljust(16_384, b"\0")
        try:
            await self.do(endless.sendall, (record + greeting) + (record + bytes(16_384)) * 3)
        except ConnectionError:
            # It may be cut off before all is sent.
            pass
        await self.until(lambda: self.protocols and self.protocols[0].isLost)
        self.assertIn("for its TLS handshake", self.protocols[0].closeReason or "")


class UnwantedTests(SocketTestCase):
    """Connections that come to nothing."""

    async def test_tooMany(self) -> None:
        """A connection too many from one address is closed, on TLS before any handshake."""
        self.serve(limits=ConnectionLimits(maxConnectionsPerAddress=2))
        for kind in ("tcp", "tls"):
            await self.connect(kind)
        for kind in ("tcp", "tls"):
            host = self.ports[kind].getHost()
            try:
                raw = await self.do(socket.create_connection, (host.host, host.port), 10)
                self.addCleanup(raw.close)
                self.assertEqual(await self.do(raw.recv, 1), b"")
            except ConnectionError:
                # It may be gone before connecting has returned.
                pass
        self.assertEqual((len(self.factory.connections), self.factory.refusedConnections), (2, 2))
