"""L{admission.connection.link}."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import product
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IHalfCloseableDescriptor, IHandshakeListener
from twisted.internet.protocol import Protocol
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import alsoProvides, implementer

from admission.connection.factory import HANDSHAKE_BYTES, TLS_CONNECTION_BYTES, ConnectionLimits, hostOf, peerName
from admission.connection.link import PLAIN_CONNECTION_BYTES, Link, LinkState
from admission.connection.pauses import Pause
from admission.connection.responses import ResponseQueue, WrittenQueue
from admission.interfaces import CONNECTIONS, RESPONSES
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from tests.kit.admitted import WHIM, Server, serve
from tests.kit.holding import PIECE_BYTES, HoldingMutability, HoldingTLSTransport, HoldingTransport
from tests.kit.wrapped import wrapped

MIB = 1 << 20


@implementer(IHandshakeListener)
class Owner(Protocol):
    """
    Owns a link, and serves what comes by counting it.

    @ivar behave: called with each piece that is served.
    @ivar served: all that was.
    @ivar held: what has come and was not.
    @ivar told: what the link has asked for, in order.
    """

    link: Link
    queue = ResponseQueue
    isWaiting = False
    holder = "192.0.2.1"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.behave: Callable[[], object] = lambda: None
        self.served = b""
        self.held: list[bytes] = []
        self.told: list[Any] = []

    @property
    def host(self) -> str:
        return self.link.host

    @property
    def peer(self) -> str:
        return self.link.peer

    @property
    def isTLS(self) -> bool:
        return self.link.isTLS

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.link = Link(self, self.server.factory, transport, self.queue)

    def dataReceived(self, data: bytes) -> None:
        if self.link.state < LinkState.CLOSING:
            self.held.append(data)
            self.serve()

    def connectionLost(self, reason: Failure = Failure(ValueError())) -> None:  # noqa: B008
        self.link.lost()

    def handshakeCompleted(self) -> None:
        self.link.handshakeCompleted()

    def unservedBytes(self) -> int:
        return sum(map(len, self.held))

    def serve(self) -> None:
        if self.link.isServing:
            return
        self.link.isServing = True
        while self.held and not self.link.pauses.reasons:
            self.served += self.held.pop(0)
            self.behave()
        self.link.isServing = False
        self.link.chargeHeld()
        self.link.settle()

    def sendingBlocked(self, isBlocked: bool) -> None:
        self.told.append(("blocked", isBlocked))
        if not isBlocked:
            self.link.closeWhenSent()

    def peerHungUp(self, isReset: bool) -> None:
        self.told.append(("hung up", isReset, self.link.hasUnserved))

    def closing(self) -> None:
        self.told.append("closing")
        self.held.clear()


class Writing(Owner):
    """Leaves what the peer has not taken to the transport."""

    queue = WrittenQueue


class KeepAliveTests(SynchronousTestCase):
    """Peers that vanish without a word."""

    def test_everyConnection(self) -> None:
        """
        The system looks after the peers of all connections that it can look
        after, wrapped ones as well, and a transport that fails or cannot do
        that is served all the same.
        """

        class Failing(FakeTransport):
            def setTcpKeepAlive(self, enabled: bool) -> None:
                raise OSError

        class Other(FakeTransport):
            setTcpKeepAlive = None  # type: ignore[assignment]

        for server in (serve(self), wrapped(self)):
            made: list[Any] = [server.connect(isTLS)[1] for isTLS in (False, True)]
            self.assertEqual([transport.isKeepAlive for transport in made], [True, True])
            for kind in (Failing, Other):
                if isinstance(server, Server):
                    self.assertFalse(server.connect(transport=kind)[1].isLost)
                else:
                    self.assertFalse(server.connect(kind=kind)[1].isLost)


class LinkTestCase(SynchronousTestCase):
    """A server with a pool of 1 MiB."""

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(sendSeconds=30.0, closeGraceSeconds=5.0))
        self.clock = self.server.clock
        self.transports: list[Any] = []
        self.addCleanup(self.assertWhole)

    def connect(self, kind: type[Any] = FakeTransport, owner: type[Owner] = Owner) -> tuple[Owner, Any]:
        """Have a peer connect, and finish its handshake if there is one."""
        made = owner(self.server)
        transport = kind(self.clock, made)
        transport.connect()
        if isinstance(transport, FakeTLSTransport):
            transport.peerFinishesHandshake()
        self.server.settle()
        self.transports.append(transport)
        return made, transport

    def end(self, transport: Any) -> None:
        """Have a peer gone."""
        if not transport.isLost:
            transport.abortConnection()
        self.settle()

    def assertWhole(self) -> None:
        """With all peers gone nothing is held or watched, and no timer runs."""
        for transport in self.transports:
            self.end(transport)
        self.assertEqual((self.server.used(), self.server.watch.watched), ({}, {}))
        self.server.gate.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def settle(self) -> None:
        """Let everything happen that takes no time."""
        while self.server.step():
            pass

    def send(self, transport: Any, data: bytes) -> None:
        """Have the peer send, and see what comes of it."""
        transport.peerSends(data)
        self.settle()


class NameTests(SynchronousTestCase):
    """L{peerName} and L{hostOf}."""

    def test_names(self) -> None:
        """Addresses are written as people write them."""
        self.assertEqual(peerName(IPv4Address("TCP", "192.0.2.1", 1)), "192.0.2.1:1")
        self.assertEqual(peerName(IPv6Address("TCP", "2001:db8::1", 1)), "[2001:db8::1]:1")
        self.assertIn("/run/it", peerName(UNIXAddress("/run/it")))

    def test_hostOf(self) -> None:
        """Without its port, and the same for IPv4 at either kind of port."""
        self.assertEqual(hostOf(IPv4Address("TCP", "192.0.2.1", 1)), "192.0.2.1")
        self.assertEqual(hostOf(IPv6Address("TCP", "::ffff:192.0.2.1", 1)), "192.0.2.1")
        self.assertEqual(hostOf(IPv6Address("TCP", "::ffff:0:1", 1)), "::ffff:0:1")
        self.assertEqual((hostOf(UNIXAddress("/run/it")), hostOf(None)), ("", ""))


class PauseTests(LinkTestCase):
    """When it is read."""

    def test_heldFirst(self) -> None:
        """With the last reason gone, what has come is served before anything is read."""
        owner, transport = self.connect(FakeTLSTransport)
        owner.behave = lambda: owner.link.pause(WHIM)
        self.send(transport, bytes(40_000))
        self.assertEqual((len(owner.served), owner.unservedBytes(), transport.isReading), (16_384, 23_616, False))
        owner.behave = lambda: self.assertFalse(transport.isReading)
        owner.link.resume(WHIM)
        self.assertEqual((len(owner.served), transport.isReading), (40_000, True))

    def test_whileServing(self) -> None:
        """A pause that is over before serving is never reaches the transport."""
        owner, transport = self.connect()

        def behave() -> None:
            owner.link.pause(WHIM)
            owner.link.resume(WHIM)

        owner.behave = behave
        self.send(transport, b"one")
        self.assertEqual((transport.pauses, owner.served), (0, b"one"))

    def test_whileClosing(self) -> None:
        """What closes is not paused any more, or it would not end."""
        owner, transport = self.connect(FakeTLSTransport)
        owner.link.beginClosing(isReadOn=True)
        owner.link.pause(WHIM)
        self.assertTrue(transport.isReading)

    def test_readClosed(self) -> None:
        """A connection that its peer has closed is not paused either, and must not be resumed."""
        owner, transport = self.connect()
        owner.link.pause(WHIM)
        owner.link.readClosed()
        owner.link.resume(WHIM)
        self.assertFalse(transport.isReading)

    def test_active(self) -> None:
        """It is active, and its peer has time again, from when it is resumed."""
        owner, _ = self.connect()
        owner.link.pause(WHIM)
        self.clock.advance(7.0)
        owner.link.resume(WHIM)
        self.assertEqual((owner.link.lastActiveSeconds, owner.link.resumedSeconds), (7.0, 7.0))


class BufferedTests(LinkTestCase):
    """Transports that keep what they have received."""

    KINDS = (HoldingTransport, HoldingTLSTransport)
    DATA = bytes(number % 251 for number in range(5 * PIECE_BYTES))

    def hold(self, kind: type[Any]) -> tuple[Owner, Any]:
        """Have a transport hold all but the first piece of C{DATA}."""
        owner, transport = self.connect(kind)
        owner.behave = lambda: owner.link.pause(WHIM)
        self.send(transport, self.DATA)
        self.assertEqual((len(owner.served), len(transport.held)), (PIECE_BYTES, 4 * PIECE_BYTES))
        owner.behave = lambda: None
        return owner, transport

    def test_withoutAnEvent(self) -> None:
        """
        What the transport holds is served although the socket says nothing, a
        piece in each turn, and before the transport is resumed.
        """
        for kind in self.KINDS:
            owner, transport = self.hold(kind)
            owner.link.resume(WHIM)
            self.assertEqual(len(owner.served), PIECE_BYTES)
            for pieces in (2, 3, 4, 5):
                self.assertFalse(transport.isReading)
                self.server.step()
                self.assertEqual(len(owner.served), pieces * PIECE_BYTES)
            self.assertEqual((owner.served, transport.isReading), (self.DATA, True))
            self.send(transport, b"more")
            self.assertEqual(owner.served, self.DATA + b"more")

    def test_pausedInBetween(self) -> None:
        """A pause that begins before the turn or in it ends the serving; it goes on after the pause, in order."""
        for kind in self.KINDS:
            owner, transport = self.hold(kind)
            owner.link.resume(WHIM)
            owner.link.pause(WHIM)
            self.settle()
            self.assertEqual(len(owner.served), PIECE_BYTES)
            owner.behave = lambda: owner.link.pause(WHIM)  # noqa: B023
            for pieces in (2, 3, 4):
                owner.link.resume(WHIM)
                self.settle()
                self.assertEqual((len(owner.served), transport.isReading), (pieces * PIECE_BYTES, False))
            owner.behave = lambda: None
            owner.link.resume(WHIM)
            self.settle()
            self.assertEqual((owner.served, transport.isReading), (self.DATA, True))

    def test_pausedAndResumedFromWithin(self) -> None:
        """
        A pause that begins and ends within the delivery changes nothing, and the
        transport is not resumed from within it.
        """

        def behave() -> None:
            owner.link.pause(WHIM)
            owner.link.resume(WHIM)
            owner.link.settle()
            self.assertFalse(transport.isReading)

        for kind in self.KINDS:
            owner, transport = self.hold(kind)
            owner.behave = behave
            owner.link.resume(WHIM)
            self.settle()
            self.assertEqual((owner.served, transport.isReading), (self.DATA, True))

    def test_endedFromWithin(self) -> None:
        """A delivery that closes, aborts or cuts off is the last, and so is one that is due when that happens."""

        def close(owner: Owner) -> None:
            owner.link.beginClosing(isReadOn=True)
            owner.link.closeWhenSent()

        ways: list[Callable[[Owner], object]] = [
            close,
            lambda owner: owner.link.beginClosing(isReadOn=False),
            lambda owner: owner.link.abort(),
            lambda owner: owner.link.cutOff("a whim"),
        ]
        for kind in self.KINDS:
            for way in ways:
                for isWithin in (True, False):
                    owner, transport = self.hold(kind)
                    if isWithin:
                        owner.behave = lambda: way(owner)  # noqa: B023
                    owner.link.resume(WHIM)
                    if not isWithin:
                        way(owner)
                    self.settle()
                    self.assertEqual(len(owner.served), (1 + isWithin) * PIECE_BYTES)
                    self.assertEqual(owner.told, ["closing"])
                    self.end(transport)

    def test_lostMeanwhile(self) -> None:
        """What is lost while a delivery is due leaves nothing behind."""
        owner, transport = self.hold(HoldingTransport)
        owner.link.resume(WHIM)
        transport.abortConnection()
        self.settle()
        self.assertEqual((owner.link.state, len(owner.served)), (LinkState.LOST, PIECE_BYTES))

    def test_failure(self) -> None:
        """An adapter that fails is logged, and its connection cut off: it would never be read again."""
        owner, transport = self.hold(HoldingTransport)
        self.patch(HoldingMutability, "readBuffered", lambda self: 1 / 0)
        with capturedLogs() as events:
            owner.link.resume(WHIM)
            self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((transport.isLost, owner.link.closeReason), (True, "what it sent could not be read"))
        self.assertEqual([event["reason"] for event in events if "reason" in event], [owner.link.closeReason])

    def test_closesReading(self) -> None:
        """If its peer has closed its side meanwhile, the transport is not resumed."""
        owner, transport = self.hold(HoldingTransport)
        owner.link.resume(WHIM)
        owner.link.readClosed()
        self.settle()
        self.assertFalse(transport.isReading)

    def test_hungUp(self) -> None:
        """What the transport holds was not served when the peer hung up."""
        owner, _ = self.hold(HoldingTransport)
        self.assertTrue(owner.link.hasUnserved)
        owner.link.resume(WHIM)
        self.settle()
        self.assertFalse(owner.link.hasUnserved)


class ChargeTests(LinkTestCase):
    """What a connection costs."""

    def test_open(self) -> None:
        """
        Plain and TLS connections are charged what they cost, and a plain one
        that becomes one of TLS likewise; it costs more until the handshake is
        over.
        """
        owner, transport = self.connect()
        self.assertEqual(self.server.used(), {CONNECTIONS: PLAIN_CONNECTION_BYTES})
        owner.link.tlsStarted()
        self.assertEqual(self.server.used(), {CONNECTIONS: HANDSHAKE_BYTES})
        owner.link.handshakeCompleted()
        self.assertEqual(self.server.used(), {CONNECTIONS: TLS_CONNECTION_BYTES})
        self.assertEqual((owner.link.isTLS, owner.link.openBytes), (True, TLS_CONNECTION_BYTES))
        self.end(transport)
        self.connect(FakeTLSTransport)
        self.assertEqual(self.server.used(), {CONNECTIONS: TLS_CONNECTION_BYTES})

    def test_held(self) -> None:
        """What has come and is not served is charged, until it is served or dropped."""
        for isServed in (True, False):
            owner, transport = self.connect(FakeTLSTransport)
            owner.link.pause(WHIM)
            transport.isReading = True
            self.send(transport, bytes(1000))
            self.assertEqual(self.server.used(), {CONNECTIONS: TLS_CONNECTION_BYTES + 1000})
            if isServed:
                owner.link.resume(WHIM)
            else:
                owner.link.beginClosing(isReadOn=False)
            self.assertEqual(self.server.used(), {CONNECTIONS: TLS_CONNECTION_BYTES})
            self.end(transport)

    def test_unchanged(self) -> None:
        """What has not changed is not charged again: that would look like a release to those who wait."""
        owner, transport = self.connect()
        owner.link.pause(WHIM)
        transport.isReading = True
        self.send(transport, b"one")
        releases: list[None] = []
        self.server.pool.subscribe(lambda: releases.append(None))
        owner.link.chargeHeld()
        owner.link.pause(Pause.PROTOCOL)
        owner.link.resume(Pause.PROTOCOL)
        self.assertEqual(releases, [])

    def test_notWhenLost(self) -> None:
        """What is served after the end is not charged."""
        owner, transport = self.connect()
        self.end(transport)
        owner.held.append(b"one")
        owner.link.chargeHeld()
        self.assertEqual(self.server.used(), {})


class HangUpTests(LinkTestCase):
    """Peers that leave while they are not read."""

    def described(self, kind: type[Any] = FakeTransport) -> tuple[Owner, Any, socket.socket]:
        """
        Have a peer connect through a transport with a descriptor.

        @return: the peer's end as well.
        """
        ours, peer = socket.socketpair()
        for end in (ours, peer):
            self.addCleanup(end.close)
        Described = type("Described", (kind,), {"fileno": lambda transport: -1 if transport.isLost else ours.fileno()})
        return *self.connect(Described), peer

    def test_watchedWhilePaused(self) -> None:
        """It is watched exactly while it is not read."""
        owner, transport, _ = self.described()
        self.assertEqual(self.server.watch.watched, {})
        owner.link.pause(WHIM)
        self.assertEqual(list(self.server.watch.watched), [transport.fileno()])
        owner.link.resume(WHIM)
        self.assertEqual(self.server.watch.watched, {})

    def test_notWatchedAnyMore(self) -> None:
        """It is not watched any more once it is read in order to close, or lost."""
        owner, _, _ = self.described()
        owner.link.pause(WHIM)
        owner.link.beginClosing(isReadOn=True)
        self.assertEqual(self.server.watch.watched, {})
        owner, transport, _ = self.described()
        owner.link.pause(WHIM)
        self.end(transport)

    def test_told(self) -> None:
        """Its owner is told, once, whether the connection has failed."""
        for isReset in (False, True):
            owner, transport, _ = self.described()
            owner.link.pause(WHIM)
            _, hungUp = self.server.watch.watched.popitem()
            hungUp(isReset)
            hungUp(isReset)
            self.assertEqual(owner.told, [("hung up", isReset, False)])
            self.end(transport)

    def test_unserved(self) -> None:
        """
        What the peer has sent was not served if its owner holds it, or nobody
        has read it; but what TLS says in farewell is not counted.
        """
        for kind, farewellBytes in [(FakeTransport, 0), (FakeTLSTransport, 85)]:
            owner, transport, peer = self.described(kind)
            peer.sendall(bytes(farewellBytes))
            self.assertFalse(owner.link.hasUnserved)
            peer.sendall(b"x")
            self.assertTrue(owner.link.hasUnserved)
            self.end(transport)
        owner, _ = self.connect()
        self.assertFalse(owner.link.hasUnserved)
        owner.held.append(b"x")
        self.assertTrue(owner.link.hasUnserved)


class SendingTests(LinkTestCase):
    """Peers that do not take what is sent."""

    def stall(
        self, owner: type[Owner] = Owner, kind: type[Any] = FakeTransport, sizeBytes: int = 3 * MIB
    ) -> tuple[Owner, Any]:
        """Have a peer connect that takes nothing of what is sent to it."""
        made, transport = self.connect(kind, owner)
        transport.isTaking = False
        made.link.responses.write([bytes(sizeBytes)], sizeBytes)
        self.settle()
        return made, transport

    def take(self, transport: Any) -> None:
        """Have it take everything."""
        transport.isTaking = True
        transport.wake()
        self.settle()

    def test_notRead(self) -> None:
        """A peer that takes nothing is not read until it has taken everything; its owner is told of both."""
        for kind in (Owner, Writing):
            owner, transport = self.stall(kind)
            self.assertEqual((list(owner.link.pauses.reasons), transport.isReading), ([Pause.UNSENT], False))
            self.clock.advance(2)
            self.assertEqual((owner.link.unsentBytes(), owner.link.stalledSeconds()), (3 * MIB, 2.0))
            self.assertEqual(self.server.used()[RESPONSES], 3 * MIB)
            self.send(transport, b"more")
            self.take(transport)
            self.assertEqual((owner.link.unsentBytes(), owner.link.stalledSeconds()), (0, 0.0))
            self.assertEqual((list(owner.link.pauses.reasons), transport.isReading), ([], True))
            self.assertEqual((owner.told[0], owner.told[-1]), (("blocked", True), ("blocked", False)))
            self.assertEqual((owner.served, owner.link.lastActiveSeconds), (b"more", self.clock.seconds()))
            self.assertNotIn(RESPONSES, self.server.used())

    def test_takesLittle(self) -> None:
        """A slow peer that takes something in every such time gets everything."""
        for kind in (Owner, Writing):
            _, transport = self.stall(kind)
            while len(transport.received) < 3 * MIB:
                self.clock.advance(29.0)
                self.assertFalse(transport.isLost)
                transport.isTaking = True
                transport.wake()
                self.clock.advance(0)
                transport.isTaking = False
            self.take(transport)
            self.assertEqual(len(transport.received), 3 * MIB)

    def test_sendTimeout(self) -> None:
        """A peer that takes nothing for thirty seconds is cut off, and the log names the setting that says so."""
        for kind in (FakeTransport, FakeTLSTransport):
            for owner in (Owner, Writing):
                with capturedLogs() as events:
                    made, transport = self.stall(owner, kind)
                    self.clock.advance(29)
                    self.assertFalse(transport.isLost)
                    self.clock.advance(1)
                    self.settle()
                self.assertTrue(transport.isLost)
                (reason,) = [event["reason"] for event in events if "reason" in event]
                self.assertIn("for 30 s it has taken none (sendSeconds)", reason)
                self.assertEqual(made.link.closeReason, reason)

    def test_stalledReader(self) -> None:
        """To the gate the link is the reader that has stalled: short of memory it cuts off the one that holds most."""
        (_, smallTransport), (large, largeTransport) = (self.stall(sizeBytes=each) for each in (MIB // 2, MIB))
        self.clock.advance(1.0)
        self.settle()
        self.assertEqual((smallTransport.isLost, largeTransport.isLost), (False, True))
        self.assertIn("memory is short", str(large.link.closeReason))
        self.end(smallTransport)

    def test_tooMuchAtOnce(self) -> None:
        """A connection that overdraws the pool too far is cut off within its write, and its memory is free at once."""
        _, smallTransport = self.stall(sizeBytes=MIB // 2)
        large, largeTransport = self.stall(sizeBytes=MIB)
        large.link.responses.write([bytes(MIB)], MIB)
        self.assertGreater(large.link.unsentBytes(), MIB)
        large.link.responses.write([bytes(MIB)], MIB)
        self.assertEqual((large.link.state, large.link.unsentBytes()), (LinkState.ABORTED, 0))
        self.settle()
        self.assertEqual((smallTransport.isLost, largeTransport.isLost), (False, True))

    def test_filledAgain(self) -> None:
        """While its owner fills the transport again each time, nothing is read."""

        class Refilling(Owner):
            def sendingBlocked(self, isBlocked: bool) -> None:
                super().sendingBlocked(isBlocked)
                if not isBlocked:
                    self.link.responses.write([bytes(MIB)], MIB)

        _, transport = self.stall(Refilling)
        transport.isTaking = True
        transport.wake()
        for _ in range(10):
            self.server.step()
            self.assertFalse(transport.isReading)
        transport.isTaking = False


class StateTests(LinkTestCase):
    """The life of a connection."""

    def test_transitions(self) -> None:
        """
        From each state each method leads to the state that it should, never
        back; and the owner is told once that it closes.
        """
        methods: dict[str, Callable[[Link], object]] = {
            "drain": lambda link: link.drain(),
            "begin": lambda link: link.beginClosing(isReadOn=False),
            "close": lambda link: link.closeWhenSent(),
            "abort": lambda link: link.abort(),
            "cutOff": lambda link: link.cutOff("a whim"),
            "lost": lambda link: link.lost(),
        }
        S = LinkState
        for before, method, after in [
            ([], "close", S.OPEN),
            ([], "drain", S.DRAINING),
            (["drain"], "close", S.DRAINING),
            (["drain"], "begin", S.CLOSING),
            (["drain"], "abort", S.ABORTED),
            (["begin"], "drain", S.CLOSING),
            (["abort"], "drain", S.ABORTED),
            (["abort"], "begin", S.ABORTED),
            (["lost"], "drain", S.LOST),
            (["lost"], "begin", S.LOST),
            ([], "begin", S.CLOSING),
            ([], "abort", S.ABORTED),
            ([], "cutOff", S.ABORTED),
            (["begin"], "close", S.CLOSED),
            (["begin"], "abort", S.ABORTED),
            (["begin", "close"], "close", S.CLOSED),
            (["begin", "close"], "abort", S.ABORTED),
            (["begin", "close"], "cutOff", S.ABORTED),
            (["abort"], "close", S.ABORTED),
            (["abort"], "cutOff", S.ABORTED),
            (["abort"], "lost", S.LOST),
            (["lost"], "close", S.LOST),
            (["lost"], "abort", S.LOST),
            (["lost"], "cutOff", S.LOST),
        ]:
            owner, transport = self.connect()
            for name in [*before, method]:
                methods[name](owner.link)
            self.assertIs(owner.link.state, after, (before, method))
            isTold = after not in (S.OPEN, S.DRAINING, S.LOST) or before == ["abort"]
            self.assertEqual(owner.told, ["closing"] * isTold)
            self.end(transport)

    def test_sentFirst(self) -> None:
        """What was written is sent before the connection closes, and what comes meanwhile is dropped."""
        for kind, made in product((FakeTransport, FakeTLSTransport), (Owner, Writing)):
            owner, transport = self.connect(kind, made)
            transport.isTaking = False
            owner.link.responses.write([bytes(3 * MIB)], 3 * MIB)
            owner.link.beginClosing(isReadOn=True)
            owner.link.closeWhenSent()
            self.send(transport, b"more")
            self.assertEqual((owner.link.state, owner.served, transport.unread), (LinkState.CLOSING, b"", b""))
            transport.isTaking = True
            transport.wake()
            self.settle()
            self.assertEqual((len(transport.received), transport.isLost), (3 * MIB, True))

    def test_grace(self) -> None:
        """
        A peer that takes nothing, or does not answer when TLS closes, is cut
        off after the grace period; of two such periods the earlier end holds.
        """
        for kind in (FakeTransport, FakeTLSTransport):
            owner, transport = self.connect(kind)
            transport.answersClose = False
            transport.isTaking = False
            owner.link.responses.write([bytes(3 * MIB)], 3 * MIB)
            owner.link.beginClosing(isReadOn=True)
            owner.link.closeWithin(7.0)
            owner.link.closeWithin(5.0)
            self.clock.advance(1.0)
            owner.link.closeWithin(5.0)
            self.clock.advance(3.9)
            self.assertFalse(transport.isLost)
            self.clock.advance(0.1)
            self.settle()
            self.assertTrue(transport.isLost)

    def test_draining(self) -> None:
        """One that drains reads nothing more, can still answer, and ends after the grace period at the latest."""
        owner, transport = self.connect()
        owner.link.drain()
        self.assertEqual((owner.link.state, transport.isReading), (LinkState.DRAINING, False))
        owner.link.responses.write([b"answer"], 6)
        self.settle()
        self.assertEqual(transport.received, b"answer")
        self.clock.advance(5.0)
        self.settle()
        self.assertTrue(transport.isLost)

    def test_owedToThePeer(self) -> None:
        """
        A connection that drained and has just answered closes only its own side,
        where there are sides, until the peer has the answer and hangs up; else a
        request that nobody has read would take the answer back.
        """
        for kind, isAnswered, isHalf in [
            (FakeTransport, True, True),
            (FakeTransport, False, False),
            (FakeTLSTransport, True, False),
        ]:
            owner, transport = self.connect(kind)
            alsoProvides(transport, IHalfCloseableDescriptor)
            halfClosed: list[bool] = []
            transport.loseWriteConnection = lambda told=halfClosed: told.append(True)
            owner.link.drain()
            if isAnswered:
                owner.link.answerSent()
            owner.link.beginClosing(isReadOn=True)
            owner.link.closeWhenSent()
            self.settle()
            self.assertEqual((bool(halfClosed), transport.isLost), (isHalf, not isHalf))
            self.end(transport)

    def test_explained(self) -> None:
        """The first reason is why it closes; the log is told each time that it is cut off, which is once."""
        owner, _ = self.connect()
        with capturedLogs() as events:
            owner.link.cutOff("it is late")
            owner.link.cutOff("it is later")
            owner.link.explain("it was too late")
        self.assertEqual([event["reason"] for event in events if "reason" in event], ["it is late"])
        self.assertEqual(owner.link.closeReason, "it is late")

    def test_repr(self) -> None:
        """It says who is connected and in what state."""
        owner, transport = self.connect()
        self.assertEqual(repr(owner.link), "192.0.2.1:50000 not muted")
        owner.link.pause(WHIM)
        self.assertEqual(repr(owner.link), "192.0.2.1:50000 muted: opening 0.0 s")
        owner.link.beginClosing(isReadOn=False)
        self.assertEqual(repr(owner.link), "192.0.2.1:50000 closing")
        self.end(transport)
        self.assertEqual(repr(owner.link), "192.0.2.1:50000 lost")
