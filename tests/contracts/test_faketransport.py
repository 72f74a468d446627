"""L{admission.testing.faketransport}: the fakes behave as what they stand in for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.testing.faketransport import FULL_BYTES, READ_BYTES, RECORD_BYTES, FakeTLSTransport, FakeTransport
from tests.kit.admitted import runNext


class Recorder(Protocol):
    """Remembers what it is told."""

    def __init__(self, received: Callable[[], None] | None = None) -> None:
        self.chunks: list[bytes] = []
        self.lostReason: Failure | None = None
        self._received = received

    def dataReceived(self, data: bytes) -> None:
        """Remember, and do what was asked for."""
        self.chunks.append(data)
        if self._received is not None:
            self._received()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remember."""
        self.lostReason = reason


class Producer:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        """Write no more."""
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        """Write again."""
        self.calls.append("resume")

    def stopProducing(self) -> None:
        """Never write again."""
        self.calls.append("stop")


class TransportTestCase(SynchronousTestCase):
    """A protocol on a fake transport."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.protocol = Recorder()

    def connect(self, isTLS: bool = False) -> Any:
        """Connect the protocol, handshake included."""
        transport = (FakeTLSTransport if isTLS else FakeTransport)(self.clock, self.protocol)
        transport.connect()
        if isinstance(transport, FakeTLSTransport):
            transport.peerFinishesHandshake()
            self.clock.advance(0)
        return transport

    def assertLost(self, kind: type[Exception]) -> None:
        """The protocol has been told that the connection is gone."""
        assert self.protocol.lostReason is not None
        self.protocol.lostReason.trap(kind)


class FakeTransportTests(TransportTestCase):
    """L{FakeTransport}, and what is the same with L{FakeTLSTransport}."""

    def test_interfaces(self) -> None:
        """It has what Twisted's transports have."""
        plain, tls = self.connect(), self.connect(isTLS=True)
        for interface, transport in [
            (ITCPTransport, plain),
            (IConsumer, plain),
            (ISSLTransport, tls),
            (ITCPTransport, tls),
        ]:
            verifyObject(interface, transport)
        self.assertFalse(ISSLTransport.providedBy(plain))

    def test_nothingFromWithin(self) -> None:
        """What a protocol does takes effect in a later turn, never inside its call."""
        for isTLS in (False, True):
            self.protocol = Recorder()
            transport = self.connect(isTLS)
            transport.peerSends(b"one")
            self.assertEqual(self.protocol.chunks, [])
            transport.write(b"two")
            transport.pauseProducing()
            transport.resumeProducing()
            transport.abortConnection()
            self.assertEqual((self.protocol.chunks, self.protocol.lostReason), ([], None))
            self.clock.advance(0)
            self.assertEqual((self.protocol.chunks, transport.received, transport.isBusy), ([], b"", False))

    def test_chunks(self) -> None:
        """A turn brings so much at most, and in order."""
        for isTLS, largest in [(False, READ_BYTES), (True, RECORD_BYTES)]:
            self.protocol = Recorder()
            transport = self.connect(isTLS)
            transport.peerSends(b"a" * READ_BYTES + b"b" * 10)
            self.clock.advance(0)
            self.assertEqual(b"".join(self.protocol.chunks), b"a" * READ_BYTES + b"b" * 10)
            self.assertEqual(max(map(len, self.protocol.chunks)), largest)

    def test_pause(self) -> None:
        """
        A plain transport delivers nothing after it was paused; a TLS transport
        delivers the rest of what it had received.
        """
        for isTLS, expected in [(False, 1), (True, READ_BYTES // RECORD_BYTES)]:
            self.protocol = Recorder(lambda: transport.pauseProducing())  # noqa: B023
            transport = self.connect(isTLS)
            transport.peerSends(b"a" * READ_BYTES + b"b")
            self.clock.advance(0)
            self.assertEqual((len(self.protocol.chunks), transport.unread, transport.pauses), (expected, b"b", 1))
            self.protocol._received = None
            transport.resumeProducing()
            self.clock.advance(0)
            self.assertEqual((self.protocol.chunks[-1], transport.unread), (b"b", b""))

    def test_producer(self) -> None:
        """
        A producer is paused once more than so much is held, resumed when all of
        it is sent, and stopped when the connection is gone.
        """
        for isTLS in (False, True):
            transport, producer = self.connect(isTLS), Producer()
            transport.registerProducer(producer, True)
            self.assertRaises(RuntimeError, transport.registerProducer, producer, True)
            transport.isTaking = False
            transport.write(b"x" * FULL_BYTES)
            self.assertEqual(producer.calls, [])
            transport.writeSequence([b"y", b"z"])
            self.assertEqual(producer.calls, ["pause"])
            transport.isTaking = True
            transport.wake()
            self.clock.advance(0)
            self.assertEqual(producer.calls, ["pause", "resume"])
            transport.abortConnection()
            self.clock.advance(0)
            self.assertEqual(producer.calls[2:], ["stop"])
            transport.registerProducer(producer, True)
            self.assertEqual(producer.calls[3:], ["stop"])

    def test_peerCloses(self) -> None:
        """The end of the stream shows after all before it has been read, and not while nobody reads."""
        for isTLS in (False, True):
            self.protocol = Recorder()
            transport = self.connect(isTLS)
            transport.pauseProducing()
            transport.peerSends(b"last")
            transport.peerCloses()
            self.clock.advance(100)
            self.assertFalse(transport.isLost)
            transport.resumeProducing()
            self.clock.advance(0)
            self.assertEqual(self.protocol.chunks, [b"last"])
            self.assertLost(ConnectionDone)

    def test_lose(self) -> None:
        """Closing waits for what is not sent, and a plain transport reads no more."""
        for isTLS in (False, True):
            self.protocol = Recorder()
            transport = self.connect(isTLS)
            transport.isTaking = False
            transport.write(b"x" * 300_000)
            transport.loseConnection()
            self.clock.advance(0)
            self.assertFalse(transport.isLost)
            transport.isTaking = True
            transport.wake()
            self.clock.advance(0)
            self.assertEqual(len(transport.received), 300_000)
            self.assertLost(ConnectionDone)
            transport.write(b"too late")
            transport.loseConnection()
            self.assertFalse(transport.isBusy)

    def test_abort(self) -> None:
        """Aborting does not wait, and the reason tells the kind of transport."""
        for isTLS, kind in [(False, ConnectionAborted), (True, ConnectionLost)]:
            self.protocol = Recorder()
            transport = self.connect(isTLS)
            transport.isTaking = False
            transport.write(b"x")
            transport.abortConnection()
            transport.abortConnection()
            transport.write(b"y")
            transport.peerSends(b"z")
            self.clock.advance(0)
            self.assertLost(kind)
            self.assertEqual((self.protocol.chunks, transport.isBusy), ([], False))

    def test_oneTurnAtATime(self) -> None:
        """Each turn brings one chunk, so that a test may look in between."""
        transport = self.connect()
        transport.peerSends(b"x" * (READ_BYTES + 1))
        self.assertTrue(runNext(self.clock))
        self.assertEqual(len(self.protocol.chunks), 1)
        self.assertTrue(transport.isBusy)
        self.clock.advance(0)
        self.assertEqual(len(self.protocol.chunks), 2)


class FakeTLSTransportTests(TransportTestCase):
    """What is particular to L{FakeTLSTransport}."""

    def test_handshake(self) -> None:
        """
        The protocol is connected before the handshake, nothing is delivered
        until it is over, and it is never over while nobody reads.
        """
        transport = FakeTLSTransport(self.clock, self.protocol)
        transport.connect()
        self.assertIs(self.protocol.transport, transport)
        transport.pauseProducing()
        transport.peerFinishesHandshake()
        transport.peerSends(b"one")
        self.clock.advance(1000)
        self.assertFalse(transport.isHandshakeDone)
        transport.resumeProducing()
        self.clock.advance(0)
        self.assertEqual((transport.isHandshakeDone, self.protocol.chunks), (True, [b"one"]))

    def test_closingWaitsForTheAnswer(self) -> None:
        """
        Closing waits for the producer to go, for somebody to read, and for
        the peer's answer; what comes meanwhile is delivered.
        """
        transport = self.connect(isTLS=True)
        transport.registerProducer(Producer(), True)
        transport.pauseProducing()
        transport.answersClose = False
        transport.loseConnection()
        transport.peerSends(b"meanwhile")
        for step in (transport.unregisterProducer, transport.resumeProducing):
            self.clock.advance(1000)
            self.assertFalse(transport.isLost)
            step()
        self.clock.advance(1000)
        self.assertEqual((self.protocol.chunks, transport.isLost), ([b"meanwhile"], False))
        transport.answersClose = True
        transport.wake()
        self.clock.advance(0)
        self.assertLost(ConnectionDone)

    def test_closingInTheHandshake(self) -> None:
        """Closing before the handshake is over does not wait for anything."""
        transport = FakeTLSTransport(self.clock, self.protocol)
        transport.connect()
        transport.loseConnection()
        self.clock.advance(0)
        self.assertLost(ConnectionLost)

    def test_afterTheEnd(self) -> None:
        """There is no handle any more, and aborting raises."""
        transport = self.connect(isTLS=True)
        transport.abortConnection()
        self.clock.advance(0)
        self.assertIs(transport.getHandle(), None)
        self.assertRaises(AttributeError, transport.abortConnection)
