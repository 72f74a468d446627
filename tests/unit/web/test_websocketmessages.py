"""Messages of websockets: each is admitted before a protocol has all of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission import Admission
from admission.connection.factory import ConnectionLimits
from admission.interfaces import CONNECTIONS
from admission.testing.faketransport import FakeTransport
from admission.web import protectWebSockets
from tests.kit.admitted import runNext
from tests.kit.website import Site, Visitor, WebServer
from tests.unit.web.test_upgrades import Upgrading, asAutobahn, asTwisted

KIB = 1 << 10
HANDSHAKE = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
TEXT, BYTES, MORE, CLOSE, PING = 1, 2, 0, 8, 9


def frame(data: bytes, opcode: int = BYTES, isLast: bool = True, isMasked: bool = True) -> bytes:
    """As clients send it, with a mask that changes nothing."""
    size, mask = len(data), 0x80 if isMasked else 0
    head = bytes([opcode | (0x80 if isLast else 0)])
    if size < 126:
        head += bytes([mask | size])
    elif size < 1 << 16:
        head += bytes([mask | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([mask | 127]) + size.to_bytes(8, "big")
    return head + (bytes(4) if isMasked else b"") + data


def closeFrame(code: int) -> bytes:
    """What tells a client why its connection is closed."""
    return frame(code.to_bytes(2, "big"), CLOSE, isMasked=False)


class Kept(Protocol):
    """Keeps what it is handed; may pause, close or raise when it is."""

    transport: Any

    def __init__(self) -> None:
        self.received = bytearray()
        self.whims: list[str] = []

    def dataReceived(self, data: bytes) -> None:
        """See above."""
        self.received += data
        whim = self.whims.pop() if self.whims else ""
        if whim == "pause":
            self.transport.pauseProducing()
        elif whim == "close":
            self.transport.loseConnection()
        elif whim == "abort":
            self.transport.abortConnection()
        elif whim == "raise":
            raise ValueError("as it is told to")


class Server:
    """Clients of a server of websockets, on a clock that stands still."""

    def __init__(self, quota: Any = (), pool: str = "bounded:1MiB", **settings: Any) -> None:
        self.clock = Clock()
        limits = ConnectionLimits(receiveSeconds=3)
        self.admission = Admission(pool=pool, quota=quota, clock=self.clock, reactor=self.clock, limits=limits)
        self.protocols: list[Kept] = []
        factory = Factory.forProtocol(self._made)  # type: ignore[arg-type]
        self.factory = protectWebSockets(self.admission, factory, **settings)
        self.pool = self.admission.gate.pool

    def _made(self) -> Kept:
        self.protocols.append(Kept())
        return self.protocols[-1]

    def connect(self, host: str = "192.0.2.1", isAsking: bool = True) -> tuple[FakeTransport, Kept]:
        """A client that has asked for a websocket, and what receives its messages."""
        address = IPv4Address("TCP", host, 50_000 + len(self.protocols))
        transport = FakeTransport(self.clock, self.factory.buildProtocol(address), address)
        transport.connect()
        if isAsking:
            transport.peerSends(HANDSHAKE)
        self.settle()
        kept = self.protocols[-1]
        if isAsking:
            del kept.received[:]
        return transport, kept

    def settle(self) -> None:
        """Let everything happen that is due."""
        while runNext(self.clock):
            pass

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.pump([seconds / 10] * 10)
        self.settle()

    @property
    def messageBytes(self) -> int:
        """How much memory messages have."""
        used = self.pool.usedBytesByPurpose
        return sum(used.values()) - used.get(CONNECTIONS, 0)


class MessageTests(SynchronousTestCase):
    """Sizes, memory and rates."""

    def test_sizes(self) -> None:
        """A message, in one frame or several, is taken up to the largest size; a longer one ends the connection."""
        server = Server(maxMessageBytes=10 * KIB)
        for sent in (
            frame(bytes(10 * KIB)),
            frame(bytes(5 * KIB), isLast=False) + frame(b"", PING) + frame(bytes(5 * KIB), MORE),
            frame(b""),
            frame(bytes(200), isMasked=False),
        ):
            client, kept = server.connect()
            client.peerSends(sent)
            server.settle()
            self.assertEqual((bytes(kept.received), client.isLost), (sent, False))
        for sent, handed in (
            (frame(bytes(10 * KIB + 1)), b""),
            (frame(bytes(6 * KIB), isLast=False) + frame(bytes(5 * KIB), MORE), frame(bytes(6 * KIB), isLast=False)),
        ):
            client, kept = server.connect()
            client.peerSends(sent)
            server.settle()
            self.assertEqual(bytes(kept.received), handed)
            self.assertEqual(bytes(client.received), closeFrame(1009))
            self.assertTrue(client.isLost)
        self.assertEqual(server.messageBytes, 0)

    def test_wrongControls(self) -> None:
        """A ping has one frame, and 125 bytes at most."""
        for sent in (frame(bytes(126), PING), frame(b"", PING, isLast=False)):
            server = Server()
            client, kept = server.connect()
            client.peerSends(sent)
            server.settle()
            self.assertEqual((bytes(kept.received), bytes(client.received)), (b"", closeFrame(1002)))

    def test_rate(self) -> None:
        """A client that sends more messages than it may is read later, pings included; others are not kept waiting."""
        server = Server(quota="requests:rate=1:burst=2")
        client, kept = server.connect()
        other, otherKept = server.connect("192.0.2.2")
        messages = [frame(b"one"), frame(b"", PING), frame(b"two"), frame(b"three")]
        client.peerSends(b"".join(messages))
        other.peerSends(messages[0])
        server.settle()
        counts = [bytes(kept.received).count(b"\x82"), bytes(otherKept.received).count(b"\x82")]
        self.assertEqual(counts, [1, 1])
        server.pass_(10)
        self.assertEqual(bytes(kept.received), b"".join(messages))

    def test_bytes(self) -> None:
        """Bytes count for the client in both directions, whichever connection it has."""
        server = Server(quota="client-bytes:received=1000:sent=1000:algorithm=bucket")
        client, kept = server.connect()
        client.peerSends(frame(bytes(3000)) + frame(b"more"))
        server.settle()
        self.assertEqual(len(kept.received), len(frame(bytes(3000))))
        again, _ = server.connect(isAsking=False)
        again.peerSends(HANDSHAKE)
        server.settle()
        self.assertEqual(bytes(server.protocols[-1].received[-4:]), b"")
        server.pass_(4)
        self.assertTrue(bytes(kept.received).endswith(b"more"))
        self.assertEqual(bytes(server.protocols[-1].received), HANDSHAKE)

    def test_memory(self) -> None:
        """
        A message that does not come at once has its memory before any of it is handed over; while there is none it
        waits, and if it does not come it gives way.
        """
        server = Server(pool="bounded:100KiB", maxMessageBytes=64 * KIB)
        first, _ = server.connect()
        sent = frame(bytes(60 * KIB))
        first.peerSends(sent[:100])
        second, _ = server.connect("192.0.2.2")
        second.peerSends(sent[:100])
        third, thirdKept = server.connect("192.0.2.3")
        third.peerSends(sent[:100])
        server.settle()
        self.assertEqual([len(each.received) for each in server.protocols], [100, 100, 0])
        self.assertEqual(server.messageBytes, 120 * KIB)
        server.pass_(4)
        self.assertTrue(first.isLost)
        self.assertEqual(len(thirdKept.received), 100)
        third.peerSends(sent[100:])
        server.settle()
        self.assertEqual(bytes(thirdKept.received), sent)
        server.pass_(4)
        self.assertEqual((second.isLost, server.messageBytes), (True, 0))

    def test_inFrames(self) -> None:
        """Nobody knows how much follows after a first frame: memory for all that may is asked for in one step."""
        server = Server(maxMessageBytes=64 * KIB)
        client, kept = server.connect()
        client.peerSends(frame(b"some", isLast=False))
        server.settle()
        self.assertEqual((len(kept.received), server.messageBytes), (len(frame(b"some")), 64 * KIB))
        client.peerSends(frame(b"", PING) + frame(b"rest", MORE))
        server.settle()
        self.assertEqual(server.messageBytes, 0)

    def test_handshake(self) -> None:
        """What asks for a websocket is a request, of a bounded size."""
        server = Server(quota="requests:rate=1:burst=1")
        for _ in range(3):
            server.connect()
        client, kept = server.connect(isAsking=False)
        client.peerSends(HANDSHAKE + frame(b"early"))
        server.settle()
        self.assertFalse(bytes(kept.received).endswith(b"\r\n\r\n"))
        server.pass_(20)
        self.assertEqual(bytes(kept.received), HANDSHAKE + frame(b"early"))
        client, kept = server.connect("192.0.2.2", isAsking=False)
        for _ in range(17):
            client.peerSends(bytes(KIB))
            server.settle()
        self.assertTrue(client.isLost)
        self.assertLessEqual(len(kept.received), 16 * KIB)

    def test_stops(self) -> None:
        """Clients are told that the server goes away."""
        server = Server()
        server.factory.doStart()
        client, _ = server.connect()
        stopped = server.admission.stop()
        server.settle()
        self.assertEqual((bytes(client.received), client.isLost), (closeFrame(1001), True))
        self.successResultOf(stopped)
        server.factory.doStop()

    def test_settings(self) -> None:
        """A size that means nothing is refused, in a sentence."""
        for wrong in (0, -1, "1MiB"):
            error = self.assertRaises(ValueError, Server, maxMessageBytes=wrong)
            self.assertEqual(str(error), f"maxMessageBytes={wrong!r}: write a number of bytes, 1 or more")


class SiteTests(SynchronousTestCase):
    """Requests of a site that become websockets."""

    def upgraded(self, **settings: Any) -> list[tuple[WebServer, Visitor]]:
        """A visitor with a websocket, for each way to have one."""
        made = []
        for upgrade in (asTwisted, asAutobahn):
            server = WebServer(self, site=Site(Upgrading(upgrade)), **settings)
            visitor = server.connect()
            self.assertEqual(visitor.ask("GET /", "Upgrade: WebSocket").status, 101)
            made.append((server, visitor))
        return made

    def test_messages(self) -> None:
        """Each message is a request of its client, as the site names it, and too large a one is its last."""
        for server, visitor in self.upgraded(
            quota="requests:rate=1:burst=1", nameOf=lambda request: ("", "alice"), maxMessageBytes=KIB
        ):
            one, two, large = frame(b"one"), frame(b"two"), frame(bytes(KIB + 1))
            visitor.raw(one + two + large)
            self.assertEqual(visitor.unread, one)
            server.pass_(5)
            self.assertEqual(visitor.unread, one + two + closeFrame(1009))

    def test_early(self) -> None:
        """What follows before there is a websocket would be taken for a message, wherever it begins."""
        for upgrade in (asTwisted, asAutobahn):
            server = WebServer(self, site=Site(Upgrading(upgrade)))
            visitor = server.connect()
            visitor.raw(b"GET / HTTP/1.1\r\nHost: site\r\nUpgrade: websocket\r\n\r\n" + frame(bytes(40))[:20])
            self.assertTrue(visitor.transport.isLost)


class AnyOrderTests(SynchronousTestCase):
    """Clients that do anything, and protocols that have whims."""

    @settings(max_examples=200, deadline=None)
    @given(
        sizes=st.lists(
            st.tuples(st.sampled_from([0, 1, 125, 126, 3 * KIB, 70 * KIB]), st.sampled_from([BYTES, MORE, PING])),
            min_size=1,
            max_size=12,
        ),
        pieces=st.lists(st.integers(1, 9000), min_size=1, max_size=30),
        whims=st.lists(st.sampled_from(["", "", "", "pause", "close", "abort", "raise"]), max_size=12),
        times=st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=8),
        end=st.sampled_from(["all", "closes", "aborts"]),
        quota=st.sampled_from(
            [[], ["requests:rate=5:burst=2"], ["client-bytes:received=20k:algorithm=bucket", "concurrency:total=1"]]
        ),
    )
    def test_any(
        self,
        sizes: list[tuple[int, int]],
        pieces: list[int],
        whims: list[str],
        times: list[float],
        end: str,
        quota: list[str],
    ) -> None:
        """A protocol has what its client sent, in order, or the beginning of it; in the end nothing is held."""
        server = Server(quota=quota, pool="bounded:200KiB", maxMessageBytes=150 * KIB)
        client, kept = server.connect()
        server.pass_(1)
        kept.whims = whims
        sent, isOpen = b"", False
        for index, (size, kind) in enumerate(sizes):
            if kind == PING:
                sent += frame(bytes(min(size, 125)), PING)
                continue
            # Of two frames, as long as another follows.
            isLast = kind != MORE or index == len(sizes) - 1
            sent += frame(bytes([index]) * size, MORE if isOpen else BYTES, isLast)
            isOpen = not isLast
        at = 0
        for index in range(len(sent)):
            if at >= len(sent):
                break
            client.peerSends(sent[at : at + pieces[index % len(pieces)]])
            at += pieces[index % len(pieces)]
            server.settle()
            if times[index % len(times)]:
                server.pass_(times[index % len(times)])
            if not client.isLost and kept.transport.link.pauses.reasons:
                kept.transport.resumeProducing()
        isTroubled = bool(set(whims) & {"close", "abort", "raise"})
        for _ in range(60 if end == "all" else 0):
            server.pass_(1)
            if not client.isLost:
                kept.transport.resumeProducing()
        if end == "closes":
            client.peerCloses()
            server.settle()
        self.assertTrue(sent.startswith(bytes(kept.received)))
        if end == "all" and not (isTroubled or client.isLost):
            self.assertEqual(bytes(kept.received), sent)
        if not client.isLost:
            client.abortConnection()
        server.settle()
        self.flushLoggedErrors(ValueError)
        self.assertEqual(server.pool.availableBytes, server.pool.sizeBytes)
