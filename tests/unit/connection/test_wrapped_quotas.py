"""
L{admission.connection.wrapping}: how many connections, and how many bytes; on fake transports.

Beside what is promised are tests of what Twisted's own classes make of it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IPullProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.protocols import htb
from twisted.protocols.policies import LimitConnectionsByPeer, ThrottlingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.admission import wrapFactory
from admission.connection.factory import ConnectionLimits
from admission.connection.pauses import Pause
from admission.interfaces import (
    ADMITTED,
    CONNECTION,
    CONNECTION_TRAITS,
    DEFAULT,
    NOTHING,
    RECEIVED,
    RECEIVED_TRAITS,
    SENT,
    SENT_TRAITS,
    Decision,
    QuotaEntity,
    Request,
    Usage,
)
from admission.names import boundedName
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit.certificates import Authority
from tests.kit.wrapped import BUCKET, KIB, Foreign, RecordingProducer, Wrapped, limiting, stock, wrapped

RATE = 1000.0


class SentDelay(ScriptedQuota):
    """Asks for two seconds whenever anything is sent, and for nothing after that."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Ask for them."""
        return 2.0 if usage.responseBytes else 0.0


class Chunks:
    """
    A producer that writes chunks of so many bytes: one each time it is asked
    for it, or one in every turn until it is paused.
    """

    def __init__(self, consumer: Any, clock: Clock, sizeBytes: int, isStreaming: bool) -> None:
        self._consumer = consumer
        self._clock = clock
        self._chunk = bytes(sizeBytes)
        self._isStreaming = isStreaming
        self._isPaused = False
        if isStreaming:
            clock.callLater(0, self._push)

    def resumeProducing(self) -> None:
        """Write, or begin to."""
        if self._isStreaming:
            self._isPaused = False
            self._clock.callLater(0, self._push)
        else:
            self._consumer.write(self._chunk)

    def pauseProducing(self) -> None:
        """Write no more."""
        self._isPaused = True

    def stopProducing(self) -> None:
        """Write no more."""
        self._isPaused = True

    def _push(self) -> None:
        if not self._isPaused:
            self._consumer.write(self._chunk)
            self._clock.callLater(0, self._push)


class QuotaTests(SynchronousTestCase):
    """Clients that take too many bytes."""

    def test_received(self) -> None:
        """
        A client that sends too much is not read for as long as it takes to pay for it, and is not cut short: what it
        sent arrives.
        """
        server = wrapped(self, quota=BUCKET)
        protocol, transport = server.connect()
        transport.peerSends(bytes(5000))
        server.settle()
        [(name, debt)] = server.factory.debts.items()
        self.assertEqual((name, debt.ip, debt.untilSeconds), (("", "192.0.2.1"), "192.0.2.1", 0.024))
        transport.peerSends(b"x")
        server.clock.pump([0.01] * 399)
        self.assertEqual((len(protocol.received), transport.isReading), (5000, False))
        server.clock.advance(0.02)
        server.settle()
        self.assertEqual((len(protocol.received), transport.isReading), (5001, True))

    def test_sliceBySlice(self) -> None:
        """What has come is charged as it is handed over, and the rest waits until that is paid for."""
        server = wrapped(self, quota=BUCKET)
        protocol, transport = server.connect()
        transport.peerSends(bytes(10_000))
        server.settle()
        for seconds, receivedBytes in (
            (0.01, 1024),
            (0.03, 1024 + 2048),
            (2.0, 1024 + 2048),
            (0.1, 1024 + 2048 + 4096),
        ):
            server.clock.advance(seconds)
            server.settle()
            self.assertEqual(len(protocol.received), receivedBytes)

    def test_oneOfADebtor(self) -> None:
        """Of connections that wait for the same debt, one is served when it is paid, and owes anew for all."""
        server = wrapped(self, quota="client-bytes:produce=1000:algorithm=bucket")
        transports = [server.connect()[1] for _ in range(8)]
        for _ in range(2):
            for transport in transports:
                transport.peerSends(bytes(3000))
                server.settle()
        receivedBytes = []
        for _ in range(240):
            server.clock.advance(0.1)
            server.settle()
            receivedBytes.append(sum(len(protocol.received) for protocol in server.protocols))
        steps = {after - before for before, after in pairwise(receivedBytes)}
        self.assertEqual(sorted(steps), [0, 3000 - 1024, 3000])

    def test_writesAreNotStopped(self) -> None:
        """A client that has sent too much is still answered, by writes and by a producer."""
        server = wrapped(self, quota="client-bytes:produce=1000:algorithm=bucket")
        protocol, transport = server.connect()
        producer = RecordingProducer()
        protocol.transport.registerProducer(producer, True)
        transport.peerSends(bytes(5000))
        server.settle()
        protocol.transport.write(b"still here")
        server.settle()
        self.assertEqual((transport.isReading, transport.received, producer.told), (False, b"still here", []))

    def test_moreThanTheLongestDelay(self) -> None:
        """What takes longer to pay than the longest delay is waited for in full."""
        server = wrapped(self, quota=BUCKET)
        protocol, transport = server.connect()
        transport.peerSends(bytes(60_000))
        server.settle()
        transport.peerSends(b"x")
        for _ in range(58):
            server.clock.advance(1.0)
        self.assertEqual(len(protocol.received), 60_000)
        server.clock.advance(1.0)
        server.settle()
        self.assertEqual(len(protocol.received), 60_001)

    def test_limitRaised(self) -> None:
        """A client whose limit was removed waits no longer."""
        server = wrapped(self, quota=BUCKET)
        protocol, transport = server.connect()
        transport.peerSends(bytes(60_000))
        server.settle()
        transport.peerSends(b"x")
        server.factory.control.configure(
            QuotaEntity(clientId=DEFAULT), {"received_byte_rate": None}, server.clock.seconds()
        )
        server.factory.control.configure(
            QuotaEntity(clientId=DEFAULT), {"sent_byte_rate": None}, server.clock.seconds()
        )
        server.settle()
        self.assertEqual((len(protocol.received), transport.isReading), (60_001, True))

    def test_stockPausesEverybody(self) -> None:
        """
        C{ThrottlingFactory} stops reading from everybody for what one has
        sent, and does not throttle those who come meanwhile.
        """
        server = stock(self, readLimit=1000)
        _, noisy = server.connect(host="192.0.2.1")
        _, calm = server.connect(host="192.0.2.2")
        noisy.peerSends(bytes(60_000))
        server.settle()
        server.clock.advance(1.0)
        self.assertEqual((noisy.isReading, calm.isReading), (False, False))
        server.clock.advance(50.0)
        self.assertFalse(calm.isReading)
        _, again = server.connect(host="192.0.2.1")
        self.assertTrue(again.isReading)

    def test_reconnecting(self) -> None:
        """Another connection does not get round the quota: it is not read until the client has paid."""
        server = wrapped(self, quota=BUCKET)
        _, first = server.connect()
        first.peerSends(bytes(3072))
        server.settle()
        for isTLS in (False, True):
            protocol, again = server.connect(isTLS)
            again.peerSends(b"x")
            server.settle()
            self.assertEqual((protocol.received, again.isReading), (b"", False))
        server.clock.pump([0.01] * 220)
        self.assertEqual(protocol.received, b"x")

    def test_counted(self) -> None:
        """
        What was received counts as such, also if it made the server close;
        what was sent counts when it is written.
        """
        policy = limiting()
        server = wrapped(self, quota=policy)

        def answer(protocol: Foreign, data: bytes) -> None:
            protocol.transport.write(b"bad ")
            protocol.transport.writeSequence([b"re", b"quest"])
            protocol.transport.loseConnection()

        server.behave = answer
        protocol, transport = server.connect()
        policy.recorded.clear()
        transport.peerSends(b"hello")
        server.settle()
        expected = [
            (Request(SENT, "", "192.0.2.1", "192.0.2.1", 4, traits=SENT_TRAITS), Usage(responseBytes=4)),
            (Request(SENT, "", "192.0.2.1", "192.0.2.1", 7, traits=SENT_TRAITS), Usage(responseBytes=7)),
            (Request(RECEIVED, "", "192.0.2.1", "192.0.2.1", 5, traits=RECEIVED_TRAITS), Usage(requestBytes=5)),
        ]
        self.assertEqual([each for each in policy.recorded if each[1] != NOTHING], expected)
        self.assertEqual((len(protocol.lost), transport.received), (1, b"bad request"))

    def test_names(self) -> None:
        """From when the protocol knows who it talks to, bytes count for that name; until then for the address."""
        policy = limiting()
        names: dict[Foreign, tuple[str, str]] = {}
        server = wrapped(self, quota=policy, nameOf=names.get)
        server.behave = lambda protocol, data: names.setdefault(protocol, ("alice", "app"))
        _, transport = server.connect()
        policy.recorded.clear()
        transport.peerSends(b"login")
        server.settle()
        self.assertEqual(policy.recorded[0][0], Request(RECEIVED, "alice", "app", "192.0.2.1", 5, (), RECEIVED_TRAITS))
        server.factory.nameOf = lambda protocol: None
        transport.peerSends(b"more")
        server.settle()
        self.assertEqual(policy.recorded[1][0], Request(RECEIVED, "", "192.0.2.1", "192.0.2.1", 4, (), RECEIVED_TRAITS))

    def test_longNames(self) -> None:
        """However long the names are that a protocol has from its peers, policies are given bounded ones."""
        policy = limiting()
        server = wrapped(self, quota=policy, nameOf=lambda protocol: ("a" * 9999, "b" * 9999))
        _, transport = server.connect()
        policy.recorded.clear()
        transport.peerSends(b"login")
        server.settle()
        request = policy.recorded[0][0]
        self.assertEqual((request.principal, request.clientId), (boundedName("a" * 9999), boundedName("b" * 9999)))

    def test_badNames(self) -> None:
        """
        A C{nameOf} that fails, or returns something else, is logged with what
        it should return, and costs the connection.
        """
        for nameOf, words in [
            (lambda protocol: "alice", "must return (principal, clientId)"),
            (lambda protocol: 1 / 0, ""),
        ]:
            server = wrapped(self, quota=limiting(), nameOf=nameOf)
            _, transport = server.connect()
            transport.peerSends(b"x")
            server.settle()
            self.assertTrue(transport.isLost)
            [error] = self.flushLoggedErrors(TypeError, ZeroDivisionError)
            self.assertIn(words, str(error.value))

    def test_nameThatAsksUs(self) -> None:
        """A C{nameOf} that asks one of Twisted's wrappers, which asks us, fails once, and not again within itself."""
        server = wrapped(self, quota=limiting(), nameOf=lambda protocol: (protocol.principal, protocol.clientId))
        inner = ThrottlingFactory(server.inner)  # type: ignore[no-untyped-call]
        server.factory.wrappedFactory = inner
        _, transport = server.connect()
        transport.peerSends(b"x")
        server.settle()
        self.assertTrue(transport.isLost)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_producer(self) -> None:
        """A producer writes as fast as the quota allows, whether it pushes or is pulled."""
        for isStreaming in (True, False):
            server = wrapped(self, quota=BUCKET)
            protocol, transport = server.connect()
            supply = Chunks(protocol.transport, server.clock, 500, isStreaming)
            protocol.transport.registerProducer(supply, isStreaming)
            sent = []
            for _ in range(11):
                server.settle()
                sent.append(len(transport.received))
                server.clock.advance(1.0)
            self.assertEqual(sent, [1500 + 1000 * each for each in range(11)])
            protocol.transport.unregisterProducer()
            server.close()

    def test_producerThatOwesAtOnce(self) -> None:
        """A producer that is let go on and writes too much at once has its client throttled again, and not read."""
        server = wrapped(self, quota=SentDelay(limits={QuotaEntity(clientId=DEFAULT): {"scripted_rate": 1.0}}))
        protocol, transport = server.connect()

        class Eager(RecordingProducer):
            def resumeProducing(self) -> None:
                super().resumeProducing()
                protocol.transport.write(b"much")

        producer = Eager()
        protocol.transport.registerProducer(producer, True)
        protocol.transport.write(b"more")
        server.clock.advance(2.0)
        self.assertEqual(producer.told, ["pause", "resume", "pause"])
        self.assertIn(Pause.SENT_THROTTLED, protocol.transport.link.pauses.reasons)
        transport.peerSends(b"next")
        server.settle()
        self.assertEqual(protocol.received, b"")
        protocol.transport.unregisterProducer()
        server.clock.advance(2.0)
        server.settle()
        self.assertEqual(protocol.received, b"next")

    def test_stockFailsOnPullProducers(self) -> None:
        """C{ThrottlingFactory} fails when it is to throttle a pull producer, and from then on throttles nobody."""
        server = Wrapped(ThrottlingFactory, writeLimit=1000)
        server.factory.callLater = server.clock.callLater
        protocol, _ = server.connect()

        @implementer(IPullProducer)
        class Pulled:
            def resumeProducing(self) -> None:
                """Nothing to do."""

            def stopProducing(self) -> None:
                """Nothing to do."""

        protocol.transport.registerProducer(Pulled(), False)
        protocol.transport.write(bytes(5000))
        self.assertRaises(AttributeError, server.clock.advance, 1.0)
        self.assertEqual(server.clock.getDelayedCalls(), [])

    @settings(deadline=None, max_examples=25)
    @given(
        pushes=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30_000), st.booleans()), max_size=20),
        isTLS=st.booleans(),
    )
    def test_longRun(self, pushes: list[tuple[float, int, bool]], isTLS: bool) -> None:
        """
        However a client spreads its bytes over time and connections, the
        server takes no more than its rate, its burst, and what one turn
        delivers to each of its connections.
        """
        server = Wrapped(quota=BUCKET)
        connections = [server.connect(isTLS) for _ in range(2)]
        for pauseSeconds, sizeBytes, isSecond in pushes:
            connections[isSecond][1].peerSends(bytes(sizeBytes))
            server.clock.pump([0.5] * math.ceil(pauseSeconds))
            taken = sum(len(protocol.received) for protocol, _ in connections)
            self.assertLessEqual(taken, RATE * (server.clock.seconds() + 1) + 2 * 80 * KIB)
        server.clock.pump([20.0] * 60)
        for index, (protocol, _) in enumerate(connections):
            expected = sum(size for _, size, isSecond in pushes if isSecond == bool(index))
            self.assertEqual(len(protocol.received), expected)
        server.close()


class ConnectionTests(SynchronousTestCase):
    """How many connections there may be, and how fast they may come."""

    def test_stockCountsByNothing(self) -> None:
        """
        C{LimitConnectionsByPeer} expects addresses to be tuples, which they
        have not been for twenty years: it can neither let anybody in nor out.
        """
        stock = Wrapped(LimitConnectionsByPeer)
        stock.factory.startFactory()
        self.assertRaises(TypeError, stock.connect)

    def test_stockHasNoProtocolForTLS(self) -> None:
        """
        C{ThrottlingFactory} makes nothing of a connection too many, which inside
        TLS fails; ours makes a protocol that closes.
        """
        options = Authority().server().options()
        address = IPv4Address("TCP", "192.0.2.1", 50_000)
        stock = ThrottlingFactory(Factory.forProtocol(Protocol), maxConnectionCount=0)
        tls: Any = TLSMemoryBIOFactory(options, False, stock, Clock()).buildProtocol(address)
        self.assertRaises(AttributeError, tls.makeConnection, StringTransport())
        ours = wrapFactory(
            Factory.forProtocol(Protocol), limits=ConnectionLimits(maxConnections=0), clock=Clock(), reactor=object()
        )
        tls = TLSMemoryBIOFactory(options, False, ours, Clock()).buildProtocol(address)
        tls.makeConnection(transport := StringTransport())
        self.assertTrue(transport.disconnecting)

    def test_rate(self) -> None:
        """A connection that comes too soon is there, and not read before its time."""
        server = wrapped(self, quota="connections:perSecond=1")
        pairs = [server.connect() for _ in range(4)]
        for _, transport in pairs:
            transport.peerSends(b"x")
        for expected in (1, 2, 3, 4):
            server.settle()
            self.assertEqual([len(protocol.received) for protocol, _ in pairs], [1] * expected + [0] * (4 - expected))
            server.clock.advance(1.0)

    def test_rateChanged(self) -> None:
        """It is read when its address may open more, as clients of every server are when limits change."""
        server = wrapped(self, quota="connections:perSecond=0.01")
        server.connect()
        protocol, transport = server.connect()
        transport.peerSends(b"x")
        server.settle()
        self.assertEqual(protocol.received, b"")
        server.factory.control.configure(
            QuotaEntity(ip=DEFAULT), {"connection_creation_rate": 1000.0}, server.clock.seconds()
        )
        server.clock.advance(0.01)
        server.settle()
        self.assertEqual(protocol.received, b"x")

    def test_refusedByPolicy(self) -> None:
        """A connection that a policy refuses is closed, the log says why, and the protocol never hears of it."""
        policy = limiting(decision=Decision(False, 1.0, "not today"))
        server = wrapped(self, quota=policy)
        for isTLS in (False, True):
            with capturedLogs() as events:
                transport = server.open(isTLS)
            self.assertEqual((transport.isLost, server.protocols), (True, []))
            self.assertEqual([event["reason"] for event in events], ["ScriptedQuota: not today"])
        self.assertEqual(policy.recorded, [])

    def test_refusedAreNotCountedInside(self) -> None:
        """A wrapped factory that counts its protocols counts none of those that a policy refuses."""
        policy = limiting(decision=Decision(False, 1.0, "not today"))
        server = wrapped(self, quota=policy)
        counting = ThrottlingFactory(server.inner, maxConnectionCount=1)  # type: ignore[no-untyped-call]
        server.factory.wrappedFactory = counting
        server.open()
        self.assertEqual((server.protocols, counting.connectionCount), ([], 0))
        policy.decision = ADMITTED
        _, transport = server.connect()
        self.assertEqual((transport.isLost, counting.connectionCount), (False, 1))
        transport.peerCloses()
        server.settle()
        self.assertEqual(counting.connectionCount, 0)

    def test_connectionIsCounted(self) -> None:
        """A connection is counted once, by its address."""
        policy = limiting()
        wrapped(self, quota=policy).connect(host="192.0.2.7")
        [(request, usage)] = [each for each in policy.recorded if each[1] != NOTHING]
        asked = (CONNECTION, "", "192.0.2.7", "192.0.2.7", 0, (), CONNECTION_TRAITS)
        self.assertEqual((request[:7], usage), (asked, Usage(connections=1)))

    def test_stockBuckets(self) -> None:
        """C{twisted.protocols.htb} finds no bucket for a transport, and shapes no bytes."""
        for bucketFilter in (htb.FilterByHost(), htb.FilterByServer()):
            self.assertRaises(TypeError, bucketFilter.getBucketFor, StringTransport())
        bucket = htb.Bucket()
        bucketFilter = htb.HierarchicalBucketFilter()
        bucketFilter.buckets = {"one": bucket, "two": htb.Bucket()}
        self.assertRaises(RuntimeError, bucketFilter.sweep)
        shaped = htb.ShapedTransport(StringTransport(), bucket)
        for data in (b"one", b"two"):
            shaped.write(data)
        self.assertRaises(TypeError, shaped.resumeProducing)
