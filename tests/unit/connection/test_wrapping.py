"""L{admission.connection.wrapping}: what passes, what pauses, what ends; on fake transports."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any
from weakref import WeakSet

from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IHandshakeListener,
    IProtocolNegotiationFactory,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.protocols.basic import LineReceiver
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import directlyProvides, implementer

from admission import admission as module
from admission.admission import Admission, warnOfPools, wrapFactory
from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import HANDSHAKE_BYTES, TLS_CONNECTION_BYTES, ConnectionLimits
from admission.connection.wrapped import MAX_HELD_BYTES
from admission.connection.wrapping import WrappedFactory
from admission.interfaces import CONNECTIONS, Usage
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError
from admission.quotas.metering import Buckets
from admission.testing.faketransport import FakeTLSHandle, FakeTransport
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.clientquotas import ClientBytes
from admission_plugins.orders import RandomRounds
from tests.kit.holding import HoldingTransport
from tests.kit.wrapped import BUCKET, KIB, Foreign, RecordingProducer, limiting, stock, wrapped


class PassingTests(SynchronousTestCase):
    """What a wrapped protocol and its peer notice as long as nobody takes too much."""

    def test_interfaces(self) -> None:
        """
        Its transport provides what the transport underneath does, and no more;
        the transport underneath sees what the protocol provides.
        """

        @implementer(IHalfCloseableProtocol)
        class HalfCloseable(Protocol):
            def readConnectionLost(self) -> None:
                """Nothing to do."""

            def writeConnectionLost(self) -> None:
                """Nothing to do."""

        server = wrapped(self)
        plain, _ = server.connect()
        tls, _ = server.connect(isTLS=True)
        self.assertEqual([ISSLTransport.providedBy(each.transport) for each in (plain, tls)], [False, True])
        for each in (plain, tls):
            self.assertTrue(ITCPTransport.providedBy(each.transport))
            self.assertTrue(IPushProducer.providedBy(each.transport))
            self.assertFalse(IHalfCloseableProtocol.providedBy(each.transport))
        each.transport.setTcpNoDelay(True)
        self.assertTrue(each.transport.getTcpNoDelay())
        server.inner.protocol = HalfCloseable  # type: ignore[assignment]
        made = server.factory.buildProtocol(None)
        made.makeConnection(StringTransport())
        self.assertTrue(IHalfCloseableProtocol.providedBy(made))
        made.connectionLost()

    def test_handshakeCompleted(self) -> None:
        """
        A protocol that wants to know when the handshake is over is told, which
        a wrapper usually keeps from it (twisted issue 12007).
        """
        told: list[str] = []

        @implementer(IHandshakeListener)
        class Listener(Protocol):
            def handshakeCompleted(self) -> None:
                told.append("completed")

        factory = wrapFactory(Factory.forProtocol(Listener), clock=Clock(), reactor=object())
        made: Any = factory.buildProtocol(None)
        self.assertTrue(IHandshakeListener.providedBy(made))
        made.makeConnection(StringTransport())
        made.handshakeCompleted()
        self.assertEqual(told, ["completed"])
        made.connectionLost()

    def test_negotiation(self) -> None:
        """A factory that negotiates a protocol over TLS still does, and no other begins to."""

        @implementer(IProtocolNegotiationFactory)
        class Negotiating(Factory):
            def acceptableProtocols(self) -> list[bytes]:
                return [b"h2"]

        negotiating = wrapFactory(Negotiating(), reactor=object())
        self.assertTrue(IProtocolNegotiationFactory.providedBy(negotiating))
        self.assertEqual(negotiating.acceptableProtocols(), [b"h2"])
        self.assertFalse(IProtocolNegotiationFactory.providedBy(wrapFactory(Factory(), reactor=object())))

    def test_poolsOfAProcess(self) -> None:
        """
        Servers whose pools may hold more than half of the memory between them are named in the log, once, with what to
        do; not if they share one, and not for a pool that is no bound.
        """
        gib = 1 << 30
        one, other, third = (Admission(pool=f"bounded:{gib}", reactor=object()) for _ in range(3))
        sharing = Admission(pool=one.gate.pool, reactor=object())
        unbounded = Admission(pool="unbounded", reactor=object())
        for each in (one, other, third, sharing, unbounded):
            each.wrap(Factory())
        told: list[list[str]] = []
        for serving, others, limitBytes in (
            (one, (), gib),
            (sharing, (one,), gib),
            (unbounded, (one,), gib),
            (one, (unbounded,), gib),
            (other, (one,), 4 * gib),
            (other, (one, sharing, unbounded), 3 * gib),
            (third, (one, other), 3 * gib),
            (third, (one, other), 4 * gib),
        ):
            with capturedLogs() as events:
                warnOfPools(serving, others, limitBytes)
            told.append([formatEvent(event) or "" for event in events])
        self.assertEqual([len(each) for each in told], [0, 0, 0, 0, 0, 1, 0, 1])
        self.assertIn(
            "the pools of 3 servers may hold 3 GiB together, and the process 4 GiB: Factory 1 GiB, ", told[7][0]
        )
        self.assertIn("Admission(pool='bounded:64MiB').wrap(...)", told[7][0])

    def test_poolsOfThoseThatServe(self) -> None:
        """Those count that listen or have connections."""
        told: list[tuple[Any, set[Any]]] = []
        self.patch(module, "_serving", WeakSet())
        self.patch(module, "warnOfPools", lambda serving, others, limitBytes: told.append((serving, set(others))))
        both = [Admission(pool="unbounded", clock=Clock(), reactor=object()) for _ in range(2)]
        one, other = (each.wrap(Factory()) for each in both)
        one.doStart()
        other.doStart()
        other.doStop()
        other.doStart()
        one.doStop()
        other.doStop()
        one.doStart()
        one.doStop()
        self.assertEqual(told, [(both[1], {both[0]}), (both[1], {both[0]})])

    def test_halfClose(self) -> None:
        """
        Half-closing goes through, ours once everything is sent, and the
        peer's after all that came before; both are told once, also if a
        producer leaves after that.
        """
        told: list[str] = []

        @implementer(IHalfCloseableProtocol)
        class HalfCloseable(Foreign):
            def readConnectionLost(self) -> None:
                told.append(f"read {len(self.received)}")

            def writeConnectionLost(self) -> None:
                told.append("write")

        class HalfCloseTransport(FakeTransport):
            def loseWriteConnection(self) -> None:
                told.append(f"half-closed after {len(self.received + self.unsent)}")

        server = wrapped(self)
        server.inner.protocol = HalfCloseable  # type: ignore[assignment]
        connection = server.factory.buildProtocol(None)
        transport = HalfCloseTransport(server.clock, connection)
        server.transports.append(transport)
        transport.isTaking = False
        transport.connect()
        protocol = connection.wrappedProtocol
        protocol.transport.write(bytes(300 * KIB))
        protocol.transport.loseWriteConnection()
        self.assertEqual(told, [])
        protocol.transport.pauseProducing()
        connection.dataReceived(b"abc")
        connection.readConnectionLost()
        transport.isTaking = True
        transport.wake()
        server.settle()
        protocol.transport.unregisterProducer()
        server.settle()
        self.assertEqual(told, ["read 3", f"half-closed after {300 * KIB}"])
        connection.writeConnectionLost()
        self.assertEqual(told[2:], ["write"])
        self.assertEqual(transport.received, bytes(300 * KIB))
        protocol.transport.write(b"x")
        protocol.transport.resumeProducing()
        self.assertEqual(transport.isReading, False)

    def test_refusing(self) -> None:
        """
        Where the wrapped factory makes no protocol, or fails to, the connection is closed, also inside TLS, where
        there must be a protocol.
        """
        server = wrapped(self)
        for isTLS, build in product((False, True), (lambda addr: None, lambda addr: 1 / 0)):
            server.inner.buildProtocol = build  # type: ignore[method-assign, assignment]
            self.assertTrue(server.open(isTLS).isLost)
        self.assertEqual((len(server.factory.connections), server.used()), (0, {}))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_failing(self) -> None:
        """
        A protocol that raises is logged and loses its connection, as without
        us; also when it does so in a turn of ours.
        """
        server = wrapped(self)

        def fail(protocol: Foreign, data: bytes) -> None:
            raise error

        server.behave = fail
        for isLater, error in product((False, True), (ZeroDivisionError, SystemExit)):
            protocol, transport = server.connect()
            if isLater:
                protocol.transport.pauseProducing()
                protocol.transport.transport.isReading = True
            transport.peerSends(b"x")
            server.settle()
            if isLater:
                protocol.transport.resumeProducing()
                server.settle()
            self.assertEqual((len(protocol.lost), transport.isLost), (1, True))
            self.assertEqual(len(self.flushLoggedErrors(error)), 1)

    def test_notBytes(self) -> None:
        """Text is refused as Twisted's transports refuse it."""
        protocol, _ = wrapped(self).connect()
        self.assertRaises(TypeError, protocol.transport.write, "text")
        self.assertRaises(TypeError, protocol.transport.writeSequence, [b"bytes", "text"])

    def test_representation(self) -> None:
        """A connection says in words whether it is read, and why not."""
        server = wrapped(self)
        protocol, transport = server.connect()
        connection = protocol.transport
        self.assertEqual(repr(connection), "<WrappedConnection 192.0.2.1:50000 not muted>")
        connection.pauseProducing()
        server.clock.advance(2.0)
        self.assertEqual(repr(connection), "<WrappedConnection 192.0.2.1:50000 muted: protocol 2.0 s>")
        connection.loseConnection()
        self.assertIn("closing", repr(connection))
        server.settle()
        self.assertIn("lost", repr(connection))
        self.assertTrue(transport.isLost)


class PauseTests(SynchronousTestCase):
    """The protocol stops reading, and so do we."""

    def test_stockResumesWhatWasPaused(self) -> None:
        """C{ThrottlingFactory} reads from a protocol that has paused itself."""
        server = stock(self, readLimit=10)
        protocol, transport = server.connect()
        transport.peerSends(bytes(20))
        server.clock.advance(1)
        protocol.transport.pauseProducing()
        server.clock.advance(1)
        self.assertTrue(transport.isReading)

    def test_unstoppable(self) -> None:
        """A transport that goes on delivering is cut off before it fills the memory."""
        server = wrapped(self)
        connection = server.factory.buildProtocol(None)
        transport = StringTransport()
        transport.pauseProducing = lambda: None  # type: ignore[method-assign]
        connection.makeConnection(transport)
        connection.pauseProducing()
        for _ in range(MAX_HELD_BYTES // (64 * KIB)):
            connection.dataReceived(bytes(64 * KIB))
        self.assertFalse(transport.disconnecting)
        with capturedLogs() as events:
            connection.dataReceived(b"x")
        self.assertTrue(transport.disconnecting)
        self.assertIn("although it is not read", events[0]["reason"])
        connection.connectionLost()

    def test_lineReceiver(self) -> None:
        """A C{LineReceiver} that pauses and resumes within each line gets each line once, in order, also over TLS."""
        lines: list[bytes] = []

        class Lines(LineReceiver):
            def lineReceived(self, line: bytes) -> None:
                self.pauseProducing()  # type: ignore[no-untyped-call]
                lines.append(line)
                self.resumeProducing()  # type: ignore[no-untyped-call]

        sent = [b"%d" % number for number in range(5000)]
        for isTLS in (False, True):
            server = wrapped(self)
            server.inner.protocol = Lines  # type: ignore[assignment]
            server.protocols.append(Foreign())
            _, transport = server.connect(isTLS)
            transport.peerSends(b"".join(line + b"\r\n" for line in sent))
            server.settle()
            self.assertEqual(lines, sent)
            lines.clear()


class ClosingTests(SynchronousTestCase):
    """How connections end."""

    def test_unansweredFarewell(self) -> None:
        """A TLS peer that does not answer when we close is cut off; Twisted's own transport would wait for ever."""
        server = wrapped(self, limits=ConnectionLimits(sendSeconds=7.0))
        protocol, transport = server.connect(isTLS=True)
        transport.answersClose = False
        protocol.transport.loseConnection()
        server.clock.advance(6.9)
        self.assertFalse(transport.isLost)
        server.clock.advance(0.2)
        server.settle()
        self.assertEqual((transport.isLost, len(protocol.lost)), (True, 1))

    def test_producers(self) -> None:
        """
        A pull producer writes all it has before the connection closes, and on
        TLS so does one that pushes; on a plain transport that one is stopped,
        as it is without us.
        """
        for isTLS, isStreaming, expected in [
            (False, False, False),
            (True, False, False),
            (True, True, False),
            (False, True, True),
        ]:
            server = wrapped(self)
            protocol, transport = server.connect(isTLS)
            producer = RecordingProducer()
            protocol.transport.registerProducer(producer, isStreaming)
            protocol.transport.loseConnection()
            server.settle()
            self.assertEqual(transport.isLost, expected)
            if not expected:
                protocol.transport.write(b"last")
                protocol.transport.unregisterProducer()
                server.settle()
                self.assertEqual((transport.isLost, transport.received), (True, b"last"))

    def test_abortTwice(self) -> None:
        """
        Aborting what is lost does nothing, on TLS too, where Twisted's own
        transport raises; likewise anything else.
        """
        server = wrapped(self)
        for isTLS in (False, True):
            protocol, transport = server.connect(isTLS)
            wrapper = protocol.transport
            wrapper.abortConnection()
            wrapper.abortConnection()
            server.settle()
            for method in (
                wrapper.abortConnection,
                wrapper.loseConnection,
                wrapper.closeGracefully,
                wrapper.stopConsuming,
                wrapper.unregisterProducer,
                wrapper.pauseProducing,
                wrapper.resumeProducing,
            ):
                method()
            wrapper.write(b"x")
            server.settle()
            self.assertEqual((transport.isLost, len(protocol.lost), server.used()), (True, 1, {}))
        self.assertEqual(server.clock.getDelayedCalls(), [])

    def test_lostAtOnce(self) -> None:
        """
        A connection that is lost while the protocol is being called is over:
        what came with it counts, and leaves no timer behind.
        """
        policy = limiting()
        server = wrapped(self, quota=policy)
        connection = server.factory.buildProtocol(None)
        transport = StringTransport()
        connection.makeConnection(transport)
        transport.abortConnection = connection.connectionLost  # type: ignore[method-assign]
        protocol = connection.wrappedProtocol
        protocol.behave = lambda protocol, data: protocol.transport.abortConnection()
        policy.delaySeconds = 5.0
        connection.dataReceived(b"fatal")
        self.assertEqual(policy.recorded[-1][1], Usage(requestBytes=5))
        self.assertEqual((len(protocol.lost), protocol.received, server.used()), (1, b"fatal", {}))
        self.assertEqual(server.clock.getDelayedCalls(), [])

    def test_otherNames(self) -> None:
        """The other words that transports have for pausing and closing mean the same."""
        server = wrapped(self)
        protocol, transport = server.connect()
        protocol.transport.stopReading()
        self.assertFalse(transport.isReading)
        protocol.transport.startReading()
        self.assertTrue(transport.isReading)
        protocol.transport.stopProducing()
        server.settle()
        self.assertTrue(transport.isLost)
        protocol, transport = server.connect()
        protocol.transport.registerProducer(RecordingProducer(), True)
        protocol.transport.stopConsuming()
        server.settle()
        self.assertTrue(transport.isLost)

    def test_restIsHandedOver(self) -> None:
        """
        What a TLS peer sent before it left is handed over, though nobody was
        reading, and then the protocol is told.
        """
        policy = limiting()
        server = wrapped(self, quota=policy)
        protocol, transport = server.connect(isTLS=True)
        policy.delaySeconds = 100.0
        transport.peerSends(bytes(60 * KIB))
        server.settle()
        self.assertEqual(len(protocol.received), KIB)
        transport.abortConnection()
        server.settle()
        self.assertEqual((len(protocol.received), len(protocol.lost)), (60 * KIB, 1))

    def test_startTLS(self) -> None:
        """
        After STARTTLS the connection is a TLS one to everybody, and the
        handshake is read although the client is over its quota.
        """
        policy = limiting()
        server = wrapped(self, quota=policy)
        protocol, transport = server.connect()
        started: list[object] = []

        def startTLS(context: object) -> None:
            started.append(context)
            directlyProvides(transport, ISSLTransport)
            transport.getHandle = lambda: FakeTLSHandle()  # type: ignore[attr-defined]

        transport.startTLS = startTLS  # type: ignore[attr-defined]
        policy.delaySeconds = 100.0
        transport.peerSends(b"STARTTLS")
        server.settle()
        self.assertFalse(transport.isReading)
        protocol.transport.startTLS("context")
        self.assertEqual((started, transport.isReading), (["context"], True))
        self.assertTrue(ISSLTransport.providedBy(protocol.transport))
        self.assertEqual(server.used(), {CONNECTIONS: HANDSHAKE_BYTES})
        protocol.transport.handshakeCompleted()
        self.assertEqual(server.used(), {CONNECTIONS: TLS_CONNECTION_BYTES})

    def test_lastWords(self) -> None:
        """
        What a protocol writes while it is handed something leaves before whatever it does then: it begins TLS, closes,
        or closes its side; also if a producer has to go first.
        """
        server = wrapped(self)

        class LastWordsTransport(FakeTransport):
            def startTLS(self, context: object) -> None:
                done.append((context, bytes(self.received + self.unsent)))

            def loseWriteConnection(self) -> None:
                done.append(("half-closed", bytes(self.received + self.unsent)))

            def loseConnection(self) -> None:
                done.append(("closed", bytes(self.received + self.unsent)))
                super().loseConnection()

        def written(protocol: Foreign, data: bytes) -> None:
            transport = protocol.transport
            transport.write(b"one")
            transport.writeSequence([b", two"])
            if data == b"TLS":
                transport.startTLS("TLS")
            elif data == b"half-closed":
                transport.loseWriteConnection()
            else:
                transport.registerProducer(RecordingProducer(), data == b"pushed")
                transport.loseConnection()
                transport.write(b", three")
                transport.unregisterProducer()

        server.behave = written
        for data, expected in (
            (b"TLS", ("TLS", b"one, two")),
            (b"half-closed", ("half-closed", b"one, two")),
            (b"pulled", ("closed", b"one, two, three")),
            (b"pushed", ("closed", b"one, two")),
        ):
            done: list[tuple[object, bytes]] = []
            _, transport = server.connect(kind=LastWordsTransport)
            transport.peerSends(data)
            server.settle()
            self.assertEqual(done[:1], [expected])

    def test_injection(self) -> None:
        """
        What came before TLS and was held is never taken for something that
        came by TLS: the connection is cut off.
        """
        server = wrapped(self)
        for kind, holds in [
            (FakeTransport, lambda transport, protocol: protocol.transport.dataReceived(b"injected")),
            (HoldingTransport, lambda transport, protocol: transport.held.extend(b"injected")),
        ]:
            protocol, transport = server.connect(kind=kind)
            protocol.transport.pauseProducing()
            holds(transport, protocol)
            protocol.transport.startTLS("context")
            server.settle()
            self.assertEqual((transport.isLost, protocol.received), (True, b""))


class FactoryTests(SynchronousTestCase):
    """L{wrapFactory} and what it makes."""

    def test_mistakes(self) -> None:
        """What makes no sense is refused in words that name the argument."""
        for kwargs, kind, words in [
            ({"pool": "bounded:lots"}, PolicyError, "pool: 'bounded:lots': "),
            ({"pool": "pond:1MiB"}, PolicyError, "pool: no memory pool is called 'pond'"),
            ({"pool": 64}, TypeError, "pool=64: give a description such as 'bounded:64MiB'"),
            ({"order": "rounds:7"}, PolicyError, "order: 'rounds:7': "),
            ({"order": [7]}, TypeError, "order=[7]: give a description such as 'holders', or an IWaitOrder"),
            ({"quota": "client-bytes:produce=fast"}, PolicyError, "quota: 'client-bytes:produce=fast': "),
            ({"quota": "client-bytes:prodce=1"}, PolicyError, "client-bytes has no argument 'prodce'; expected "),
            ({"quota": [object]}, TypeError, "give a description such as"),
            ({"quota": 5}, TypeError, "quota=5: give a description such as"),
            ({"maxUnsentBytes": 0}, ValueError, "maxUnsentBytes=0: write a number of bytes, 1 or more"),
            ({"maxUnsentBytes": "1M"}, ValueError, "maxUnsentBytes='1M': write a number of bytes, 1 or more"),
            ({"limits": {"maxConnections": 3}}, TypeError, "limits={'maxConnections': 3}: give ConnectionLimits, such"),
            ({"nameOf": "x"}, TypeError, "nameOf='x': give a function that takes a protocol"),
        ]:
            error = self.assertRaises(kind, wrapFactory, Factory(), reactor=object(), clock=Clock(), **kwargs)
            self.assertIn(words, str(error))

    def test_noFactory(self) -> None:
        """What is no factory is refused with how to make one."""
        for given in (None, "x", Protocol(), Protocol, Factory):
            error = self.assertRaises(TypeError, wrapFactory, given)
            self.assertEqual(
                str(error), f"factory={given!r}: give an IProtocolFactory, such as Factory.forProtocol(YourProtocol)"
            )

    def test_twice(self) -> None:
        """What is protected already is not protected again: each byte would be counted twice."""
        admission = Admission(reactor=object(), clock=Clock())
        for given in (wrapFactory(Factory(), reactor=object(), clock=Clock()), admission.frames(AdmittedProtocol)):
            error = self.assertRaises(ValueError, admission.wrap, given)
            self.assertEqual(str(error), f"factory={given!r}: it is protected already; listen with it as it is")

    def test_defaults(self) -> None:
        """By default nothing is without a bound, and no client is limited."""
        factory = wrapFactory(Factory(), reactor=object())
        self.assertIsInstance(factory, WrappedFactory)
        self.assertEqual(factory.limits, ConnectionLimits())
        self.assertEqual(factory.maxUnsentBytes, factory.gate.pool.sizeBytes)
        self.assertLess(factory.gate.pool.sizeBytes, 2**50)
        self.assertFalse(factory.control.isLimiting)

    def test_order(self) -> None:
        """Connections that wait for memory are served in the order that was asked for."""
        order, pool = RandomRounds(Random(1)), ScriptedPool()
        for given in (order, "rounds"):
            server = wrapped(self, pool=pool, order=given)
            protocol, transport = server.connect()
            pool.refuse()
            transport.peerSends(b"one")
            server.settle()
            self.assertEqual(server.factory.gate.memory.waiting, 1)
            if given is order:
                self.assertIs(order.next(), protocol.transport._incoming)
            else:
                self.assertRaises(LookupError, order.next)
            pool.relent()
            server.settle()
            self.assertEqual((protocol.received, server.factory.gate.memory.waiting), (b"one", 0))
            self.assertRaises(LookupError, order.next)

    def test_globalReactor(self) -> None:
        """It finds the reactor by itself."""
        from twisted.internet import reactor

        call = wrapFactory(Factory()).clock.callLater(60, self.fail)
        self.addCleanup(call.cancel)
        self.assertIn(call, reactor.getDelayedCalls())  # type: ignore[attr-defined]

    def test_addressesStay(self) -> None:
        """What the protocol is handed when the connection is gone already finds the addresses as they were."""
        server = wrapped(self)
        protocol, transport = server.connect()
        connection = protocol.transport
        expected = connection.getHost(), connection.getPeer()
        self.assertEqual(expected, (transport.getHost(), transport.getPeer()))
        found: list[object] = []
        protocol.dataReceived = lambda data: found.append((connection.getHost(), connection.getPeer()))
        connection.pauseProducing()
        connection.dataReceived(b"late")
        transport.getHost = transport.getPeer = self.fail
        transport._lose(ConnectionError())
        self.assertEqual(found, [expected])

    def test_severalPolicies(self) -> None:
        """Policies are given by description or as they are, several of a kind too, and each is told apart."""
        clock = Clock()
        own = ClientBytes(Buckets(1.0))
        factory = wrapFactory(Factory(), reactor=object(), clock=clock, quota=["connections", own, "connections", own])
        self.assertEqual(
            list(factory.control.policyNames), ["connections", "ClientBytes", "connections#2", "ClientBytes#2"]
        )

    def test_idlePolicies(self) -> None:
        """Policies that could limit nobody here are refused, by name."""
        quota = ["client-bytes:produce=1M", "concurrency:limit=5", "requests:rate=5", "request-time:percent=50"]
        error = self.assertRaises(ValueError, wrapFactory, Factory(), quota=quota, reactor=object(), clock=Clock())
        self.assertIn("quota: concurrency and requests and request-time would limit nobody", str(error))

    def test_startAndStop(self) -> None:
        """The wrapped factory starts with the first port and stops with the last one, and then no timer is left."""
        told: list[str] = []
        server = wrapped(self)
        server.inner.startFactory = lambda: told.append("start")  # type: ignore[method-assign]
        server.inner.stopFactory = lambda: told.append("stop")  # type: ignore[method-assign]
        server.factory.doStart()
        server.factory.doStart()
        self.assertNotEqual(server.clock.getDelayedCalls(), [])
        _, transport = server.connect()
        server.factory.doStop()
        server.factory.doStop()
        self.assertEqual(told, ["start", "stop"])
        self.assertNotEqual(server.clock.getDelayedCalls(), [])
        server.factory.doStart()
        transport.abortConnection()
        server.settle()
        self.assertNotEqual(server.clock.getDelayedCalls(), [])
        server.factory.doStop()
        self.assertEqual(server.clock.getDelayedCalls(), [])

    def test_sensors(self) -> None:
        """
        It publishes how many connections there are, refused, cut off and muted
        for which reason, and what its gate and its policies know.
        """
        server = wrapped(self, limits=ConnectionLimits(maxConnections=2), quota=BUCKET)
        registry = SensorRegistry(server.clock.seconds)
        server.factory.addSensors(registry)
        _, transport = server.connect()
        protocol, _ = server.connect()
        server.connect()
        protocol.transport.pauseProducing()
        transport.peerSends(bytes(5000))
        server.settle()
        server.factory.refused(protocol.transport, "whim")
        self.assertEqual(
            {name: registry[name] for name in ("Connections", "ConnectionsRefused", "ConnectionsCutOff")},
            {"Connections": 2, "ConnectionsRefused": 1, "ConnectionsCutOff": 1},
        )
        self.assertEqual(dict(registry.families["ConnectionsMuted"].read(0.0)), {("quota",): 1, ("protocol",): 1})
        self.assertIn("client-bytes.Received.byte-rate", registry.families)
        self.assertIn("MemoryPoolUsed", dict(registry))

    def test_logPrefix(self) -> None:
        """In the log a port is the wrapped factory's."""
        server = wrapped(self)
        self.assertEqual(server.factory.logPrefix(), "Factory (admitted)")
