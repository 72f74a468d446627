"""L{admission.connection.protocol}."""

from __future__ import annotations

from functools import partial
from struct import pack
from typing import Any

from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionAborted
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import ConnectionLimits
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.gate.slowbodies import BODY_GRACE_SECONDS
from admission.interfaces import CONNECTIONS, FRAMES, ILease
from admission.request import ServerRequest
from admission.testing.faketransport import FakeTransport
from tests.kit.admitted import WHIM, RecordingProtocol, framed, serve

MIB = 1 << 20


def later(protocol: RecordingProtocol, request: ServerRequest) -> None:
    """Leave a request for later."""


class ProtocolTestCase(SynchronousTestCase):
    """A server with a pool of 1 MiB."""

    def setUp(self) -> None:
        self.server = serve(self)
        self.clock = self.server.clock
        self.gate = self.server.gate

    def assertWhole(self) -> None:
        """With all connections gone nothing is held, nobody waits and no timer runs."""
        self.assertEqual((self.server.used(), self.server.factory.connections), ({}, {}))
        self.assertEqual((self.gate.turns.runningRequests, self.gate.memory.waiting), (0, 0))
        self.gate.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.server.watch.watched, {})

    def abortAll(self) -> None:
        """Have all connections lost."""
        for transport in self.server.connected:
            if not transport.isLost:
                transport.abortConnection()
        self.server.settle()


class RequestTests(ProtocolTestCase):
    """The way of a request."""

    def test_answeredAtOnce(self) -> None:
        """
        A request that is answered at once leaves nothing behind, and never touches the transport's reading; its answer
        is not delayed to be joined with others.
        """
        _, transport = self.server.connect()
        self.assertTrue(transport.isNoDelay)
        for number in range(10):
            self.server.send(transport, b"request %d" % number)
        self.assertEqual(transport.received, framed(*(b"request %d" % number for number in range(10))))
        self.assertEqual((transport.pauses, self.server.used()), (0, {CONNECTIONS: PLAIN_CONNECTION_BYTES}))
        self.assertEqual((self.gate.turns.runningRequests, self.clock.getDelayedCalls()), (0, []))

    def test_runningIsNotMuted(self) -> None:
        """
        While a request is worked on the transport reads on, until something
        comes: that is charged, and then it does not.
        """
        self.server.behave = later
        protocol, transport = self.server.connect()
        self.server.send(transport, b"one")
        self.assertTrue(transport.isReading)
        transport.peerSends(framed(b"two"))
        transport.peerSends(framed(b"three"))
        self.server.settle()
        self.assertFalse(transport.isReading)
        buffered = protocol.framer.bufferedBytes
        self.assertEqual(self.server.used(), {FRAMES: 3, CONNECTIONS: PLAIN_CONNECTION_BYTES + buffered})
        protocol.respond([])
        protocol.respond([])
        protocol.respond([])
        self.server.settle()
        self.assertTrue(transport.isReading)
        self.assertEqual(protocol.requests, [b"one", b"two", b"three"])
        self.assertEqual(self.server.used(), {CONNECTIONS: PLAIN_CONNECTION_BYTES})

    def test_failure(self) -> None:
        """A request that fails, whatever it raises, is logged and closes the connection; nothing stays behind."""
        for error in (ZeroDivisionError, SystemExit):

            def behave(protocol: RecordingProtocol, request: ServerRequest) -> None:
                raise error  # noqa: B023

            self.server.behave = behave
            protocol, transport = self.server.connect()
            self.server.send(transport, b"one", b"two")
            self.assertEqual(len(self.flushLoggedErrors(error)), 1)
            self.assertEqual((protocol.requests, transport.isLost), ([b"one"], True))
        self.assertWhole()

    def test_failureAtTheBeginning(self) -> None:
        """A connection that cannot be set up, because the pool fails, is closed; nothing stays behind."""

        def fail(sizeBytes: int, purpose: str) -> ILease:
            raise ZeroDivisionError

        self.patch(self.server.gate.pool, "charge", fail)
        protocol = self.server.factory.buildProtocol(None)
        transport = FakeTransport(self.server.clock, protocol)
        self.assertRaises(ZeroDivisionError, transport.connect)
        self.server.settle()
        self.assertTrue(transport.isLost)
        self.assertEqual(len(self.server.factory.connections), 0)

    def test_onAUnixSocket(self) -> None:
        """A UNIX socket claims to be TCP, refuses to be told about delays, and has no host: that is fine."""

        class UnixTransport(FakeTransport):
            def setTcpNoDelay(self, enabled: bool) -> None:
                raise OSError

            def getPeer(self) -> Any:
                return UNIXAddress(None)

        protocol, transport = self.server.connect(transport=UnixTransport)
        self.server.send(transport, b"one")
        self.assertEqual((transport.received, protocol.host), (framed(b"one"), ""))


class RefusalTests(ProtocolTestCase):
    """Frames that are not read."""

    def assertRefused(self, data: bytes, expected: str) -> None:
        """Sending C{data} closes the connection for the given reason, without any memory being asked for."""
        self.server.pool.peakFrameBytes = 0
        with capturedLogs() as events:
            _, transport = self.server.connect()
            transport.peerSends(data)
            self.server.settle()
        self.assertTrue(transport.isLost)
        self.assertEqual([event["reason"] for event in events if "reason" in event], [expected])
        self.assertEqual(self.server.pool.peakFrameBytes, 0)

    def test_negative(self) -> None:
        """A negative length closes, saying so, and so does one over the largest, which itself is read."""
        self.assertRefused(pack(">i", -5) + b"more", "a frame of -5 bytes was announced")
        self.assertRefused(
            pack(">i", MIB + 1), f"a frame of {MIB + 1} bytes was announced, and the largest allowed is {MIB}"
        )
        self.assertWhole()
        protocol, transport = self.server.connect()
        self.server.send(transport, b"x" * MIB)
        self.assertEqual(len(protocol.requests[0]), MIB)

    def test_answersFirst(self) -> None:
        """What was answered before a bad frame is sent before the connection closes."""
        _, transport = self.server.connect()
        transport.peerSends(framed(b"good") + pack(">i", -1))
        self.server.settle()
        self.assertEqual((transport.received, transport.isLost), (framed(b"good"), True))

    def test_brokenSubclass(self) -> None:
        """
        A subclass that fails to say whether a frame may be read is logged and
        closes, from whatever turn the parser was called.
        """

        class Broken(RecordingProtocol):
            def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
                if sizeBytes == 3:
                    raise ZeroDivisionError
                return None

        self.server = serve(self, protocol=Broken)
        self.clock, self.gate = self.server.clock, self.server.gate
        _, transport = self.server.connect()
        self.server.send(transport, b"bad")
        self.assertTrue(transport.isLost)
        self.server.behave = later
        protocol, transport = self.server.connect()
        self.server.send(transport, b"good", b"bad")
        protocol.respond([b"1"])
        self.server.settle()
        self.assertEqual((transport.received, transport.isLost), (b"1", True))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertWhole()

    def test_closedMeanwhile(self) -> None:
        """
        A subclass that closes while it is asked whether a frame may be read has
        none of it read, even if it says yes.
        """

        class Hasty(RecordingProtocol):
            def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
                self.ends(self)
                return None

        self.server = serve(self, protocol=Hasty)
        self.clock, self.gate = self.server.clock, self.server.gate
        for ends in (
            lambda protocol: protocol.close("a whim"),
            lambda protocol: protocol.cutOff("a whim"),
            lambda protocol: protocol.closeGracefully(),
            lambda protocol: protocol.abortConnection(),
        ):
            Hasty.ends = staticmethod(ends)
            protocol, transport = self.server.connect()
            self.server.send(transport, b"one", b"two")
            self.assertEqual((protocol.requests, protocol.framer.bufferedBytes, transport.isLost), ([], 0, True))
        self.assertWhole()

    def test_head(self) -> None:
        """A subclass sees as much of the body as it wants before memory is asked for."""

        class Choosy(RecordingProtocol):
            headBytes = 2

            def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
                return "not this" if head == b"no" else super().refuseFrame(sizeBytes, head)

        self.server = serve(self, protocol=Choosy)
        self.clock, self.gate = self.server.clock, self.server.gate
        self.assertRefused(framed(b"no, thanks")[:6], "not this")
        _, transport = self.server.connect()
        self.server.send(transport, b"yes", b"n", b"")
        self.assertEqual(transport.received, framed(b"yes", b"n", b""))


class MemoryTests(ProtocolTestCase):
    """Connections that wait for memory."""

    def hold(self, sizeBytes: int) -> ILease:
        """Take memory from the pool."""
        lease = self.server.pool.tryAllocate(sizeBytes)
        assert lease is not None
        return lease

    def test_waits(self) -> None:
        """
        Without memory the connection is mute for that reason and charged for
        what has come all the same; with it, the request is served.
        """
        protocol, transport = self.server.connect()
        lease = self.hold(MIB)
        self.server.send(transport, b"x" * 1000, b"next")
        self.clock.advance(3.2)
        self.assertEqual(repr(protocol), "<RecordingProtocol 192.0.2.1:50000 muted: memory 3.2 s>")
        self.assertEqual((protocol.wantedBytes, transport.isReading, self.gate.memory.waiting), (1000, False, 1))
        self.assertEqual(self.server.used()[CONNECTIONS], PLAIN_CONNECTION_BYTES + 1000 + 4 + 4)
        lease.release()
        self.server.settle()
        self.assertEqual(transport.received, framed(b"x" * 1000, b"next"))
        self.assertEqual((protocol.wantedBytes, transport.isReading), (0, True))
        self.assertEqual(self.server.used(), {CONNECTIONS: PLAIN_CONNECTION_BYTES})

    def test_lostWhileWaiting(self) -> None:
        """A connection that is lost or closed while it waits is forgotten."""
        for end in (AdmittedProtocol.abortConnection, AdmittedProtocol.closeGracefully):
            protocol, transport = self.server.connect()
            lease = self.hold(MIB)
            self.server.send(transport, b"x")
            end(protocol)
            self.assertEqual(self.gate.memory.waiting, 0)
            self.server.settle()
            self.assertTrue(transport.isLost)
            lease.release()
        self.assertWhole()


class TurnTests(ProtocolTestCase):
    """Connections that wait for their turn."""

    def setUp(self) -> None:
        self.server = serve(self, maxRequests=1)
        self.clock, self.gate = self.server.clock, self.server.gate
        self.server.behave = later
        self.first, transport = self.server.connect()
        self.server.send(transport, b"one")
        self.protocol, self.transport = self.server.connect()
        self.server.send(self.transport, b"two")

    def test_waits(self) -> None:
        """
        A request over the number is read, and worked on when one before it is
        over; its connection is not read meanwhile.
        """
        self.assertEqual(self.protocol.requests, [])
        self.assertEqual(repr(self.protocol.pauses), "muted: request 0.0 s, requests 0.0 s")
        self.assertFalse(self.transport.isReading)
        self.first.respond([])
        self.server.settle()
        self.assertEqual((self.protocol.requests, self.gate.turns.runningRequests), ([b"two"], 1))
        self.protocol.respond([])
        self.assertTrue(self.transport.isReading)
        self.abortAll()
        self.assertWhole()

    def test_lost(self) -> None:
        """A connection that ends while it waits gives its request's memory back at once, and never gets a turn."""
        for end in (AdmittedProtocol.abortConnection, AdmittedProtocol.closeGracefully):
            self.setUp()
            end(self.protocol)
            self.assertEqual(self.server.used()[FRAMES], len(b"one"))
            self.first.respond([])
            self.server.settle()
            self.assertEqual((self.protocol.requests, self.gate.turns.runningRequests), ([], 0))
            self.abortAll()
            self.assertWhole()

    def test_cutOff(self) -> None:
        """A connection that is cut off when its turn is due already never gets it either."""
        self.first.respond([])
        self.protocol.cutOff("a whim")
        self.server.settle()
        self.assertEqual((self.protocol.requests, self.gate.turns.runningRequests), ([], 0))


class BodyTests(ProtocolTestCase):
    """Bodies that stop arriving."""

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(receiveSeconds=30.0))
        self.clock, self.gate = self.server.clock, self.server.gate
        self.protocol, self.transport = self.server.connect()

    def send(self, sizeBytes: int) -> None:
        """Have the peer send so much of a body."""
        self.transport.peerSends(b"x" * sizeBytes)
        self.server.settle()

    def test_silence(self) -> None:
        """
        A length and then nothing, or a byte now and then, holds memory for thirty seconds and no longer; the reason
        names the timeout.
        """
        for drops in (0, 1):
            _, transport = self.server.connect()
            with capturedLogs() as events:
                transport.peerSends(pack(">i", 1600))
                self.server.settle()
                self.assertEqual(self.server.used()[FRAMES], 1600)
                for seconds in (10, 10, 9.9):
                    transport.peerSends(b"x" * drops)
                    self.clock.advance(seconds)
                self.assertFalse(transport.isLost)
                self.clock.advance(0.1)
                self.server.settle()
            self.assertTrue(transport.isLost)
            self.assertIn("receiveSeconds", next(event["reason"] for event in events if "reason" in event))
        self.abortAll()
        self.assertWhole()

    def test_slowly(self) -> None:
        """
        A sixteenth in each thirty seconds is enough, however long it takes; the time begins anew with each body, and
        none runs between them.
        """
        for _ in range(2):
            self.transport.peerSends(pack(">i", 1600))
            for _ in range(16):
                self.clock.advance(29)
                self.assertFalse(self.transport.isLost)
                self.send(100)
            self.clock.advance(1000)
        self.assertEqual(self.protocol.requests, [b"x" * 1600] * 2)
        self.transport.peerSends(pack(">i", 1600))
        self.server.settle()
        self.clock.advance(29)
        self.assertFalse(self.transport.isLost)
        self.clock.advance(1)
        self.server.settle()
        self.assertTrue(self.transport.isLost)

    def test_nearlyThere(self) -> None:
        """If others wait for memory, a body that came up to its last byte and no further gives way in two seconds."""
        self.transport.peerSends(pack(">i", MIB) + bytes(MIB - 1))
        self.server.settle()
        self.clock.advance(10)
        protocol, other = self.server.connect()
        self.server.send(other, b"y" * MIB)
        self.clock.advance(BODY_GRACE_SECONDS - 0.01)
        self.assertFalse(self.transport.isLost)
        self.clock.advance(0.01)
        self.server.settle()
        self.assertTrue(self.transport.isLost)
        self.assertEqual(protocol.requests, [b"y" * MIB])

    def test_pausedMeanwhile(self) -> None:
        """Time in which we do not read does not count against the peer, nor what had passed before."""
        lease = self.server.pool.tryAllocate(MIB)
        self.transport.peerSends(pack(">i", 1600))
        self.server.settle()
        self.clock.advance(300)
        lease.release()
        self.send(10)
        self.clock.advance(29)
        self.protocol.pause(WHIM)
        self.clock.pump([1] * 100)
        self.assertFalse(self.transport.isLost)
        self.protocol.resume(WHIM)
        self.clock.advance(29)
        self.assertFalse(self.transport.isLost)
        self.clock.advance(1)
        self.server.settle()
        self.assertTrue(self.transport.isLost)


class ClosingTests(ProtocolTestCase):
    """Ends."""

    def test_closeSaysWhy(self) -> None:
        """Closing for a reason is logged once, with the peer's name."""
        with capturedLogs() as events:
            protocol, _ = self.server.connect()
            protocol.close("it is late")
            protocol.close("it is later")
            self.server.settle()
            protocol.close("it is too late")
            protocol.cutOff("it is too late")
        said = [(event["peer"], event["reason"]) for event in events if "reason" in event]
        self.assertEqual(said, [("192.0.2.1:50000", "it is late")])

    def test_answerAfterClosing(self) -> None:
        """
        A request that ends when its connection is closing or lost gives back
        its memory and its turn, and nothing is written.
        """
        for close in (AdmittedProtocol.closeGracefully, partial(AdmittedProtocol.cutOff, reason="a whim")):
            for isSettled in (False, True):
                self.server.behave = later
                protocol, transport = self.server.connect()
                self.server.send(transport, b"one")
                close(protocol)
                if isSettled:
                    self.server.settle()
                self.assertEqual((self.server.used()[FRAMES], self.gate.turns.runningRequests), (3, 1))
                protocol.respond([b"1"])
                self.server.settle()
                self.assertEqual((transport.received, transport.isLost), (b"", True))
        self.assertWhole()

    def test_dataAfterTheEnd(self) -> None:
        """Data that comes after the connection was lost is not kept."""
        protocol, transport = self.server.connect()
        protocol.pause(WHIM)
        transport.abortConnection()
        self.server.settle()
        protocol.dataReceived(framed(b"one"))
        self.assertEqual(protocol.requests, [])
        self.assertWhole()


class HangUpTests(ProtocolTestCase):
    """Peers are watched for leaving."""

    def setUp(self) -> None:
        super().setUp()

        class Described(FakeTransport):
            def fileno(self) -> int:
                return -1 if self.isLost else 1000 + self.getPeer().port

        self.protocol, self.transport = self.server.connect(transport=Described)

    def test_reset(self) -> None:
        """A connection that failed is aborted, whatever is still unread."""
        self.protocol.pause(WHIM)
        self.protocol.dataReceived(framed(b"one"))
        self.server.watch.watched.pop(51_000)(True)
        self.server.settle()
        assert self.protocol.lostReason is not None
        self.protocol.lostReason.trap(ConnectionAborted)
        self.assertWhole()

    def test_leftWithRequestsBehind(self) -> None:
        """
        A peer that has sent requests and gone has them served first; the
        protocol is told, so that nothing waits for the peer's sake.
        """
        told: list[bool] = []
        self.protocol.peerGone = lambda: told.append(self.protocol.hasPeerGone)
        self.protocol.pause(WHIM)
        self.protocol.dataReceived(framed(b"one"))
        self.server.watch.watched.pop(51_000)(False)
        self.server.settle()
        self.assertEqual((self.transport.isLost, told), (False, [True]))
        self.transport.peerCloses()
        self.protocol.resume(WHIM)
        self.server.settle()
        self.assertEqual((self.protocol.requests, self.transport.isLost), ([b"one"], True))
        self.assertWhole()
