"""L{admission.connection.wrapping}: what connections cost, and peers that do not read; on fake transports."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import connectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.connection.pauses import Pause
from admission.gate.turns import TURN_SECONDS
from admission.interfaces import CONNECTIONS, RESPONSES
from admission.testing.faketransport import FakeTransport
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import runNext
from tests.kit.patchable import PatchablePool
from tests.kit.wrapped import KIB, Foreign, RecordingProducer, stock, wrapped


class SliceTests(SynchronousTestCase):
    """What comes is handed over in slices, each in its turn."""

    def setUp(self) -> None:
        self.server = wrapped(self)
        self.slices: list[tuple[int, int]] = []
        self.workSeconds = 0.0
        self.server.behave = self.work

    def work(self, protocol: Foreign, data: bytes) -> None:
        """Take as long as is said, and note whose slice of which size it was."""
        self.slices.append((self.server.protocols.index(protocol), len(data)))
        self.server.clock.rightNow += self.workSeconds

    def test_quick(self) -> None:
        """A protocol that makes short work of them is handed twice as much each time, and everything in order."""
        stream = bytes(range(256)) * 800
        protocol, transport = self.server.connect()
        transport.peerSends(stream)
        self.server.settle()
        self.assertEqual([sizeBytes // KIB for _, sizeBytes in self.slices], [1, 2, 4, 8, 16, 32, 1, 64, 64, 8])
        self.assertEqual(protocol.received, stream)

    def test_slow(self) -> None:
        """A protocol that works on one longer than a turn has others served between, and is handed little at a time."""
        transports = [self.server.connect(host=f"192.0.2.{number}")[1] for number in range(2)]
        transports[0].peerSends(bytes(100 * KIB))
        self.server.settle()
        self.slices.clear()
        self.workSeconds = 2 * TURN_SECONDS
        for transport in transports:
            transport.peerSends(bytes(200 * KIB))
        self.server.settle()
        sizes = [sizeBytes // KIB for _, sizeBytes in self.slices]
        self.assertEqual(sizes[0], 64)
        self.assertEqual(max(sizes[20:]), 1)
        owners = [owner for owner, _ in self.slices[:20]]
        self.assertGreaterEqual(min(owners.count(0), owners.count(1)), 7)
        self.assertEqual([len(protocol.received) for protocol in self.server.protocols], [300 * KIB, 200 * KIB])

    def test_leaves(self) -> None:
        """A connection that is lost while others have the turn waits no more."""
        self.workSeconds = 2 * TURN_SECONDS
        first, second = (self.server.connect(host=f"192.0.2.{number}")[1] for number in range(2))
        self.server.protocols[0].transport.dataReceived(b"one")
        self.server.protocols[1].transport.dataReceived(b"two")
        self.assertEqual(self.server.factory.gate.turns.waiting, 1)
        second.abortConnection()
        self.server.settle()
        turns = self.server.factory.gate.turns
        self.assertEqual((turns.waiting, turns.runningRequests), (0, 0))
        self.assertFalse(first.isLost)


class SendingTests(SynchronousTestCase):
    """Peers that do not read."""

    def setUp(self) -> None:
        self.server = wrapped(self, limits=ConnectionLimits(sendSeconds=10.0))

    def deaf(self, isTLS: bool = False, host: str = "192.0.2.1") -> tuple[Foreign, FakeTransport]:
        """Have a peer connect that takes nothing."""
        protocol, transport = self.server.connect(isTLS, host)
        transport.isTaking = False
        return protocol, transport

    def test_producer(self) -> None:
        """
        A producer is paused while the peer takes nothing, and resumed after;
        when the connection goes, it is stopped.
        """
        protocol, transport = self.deaf()
        producer = RecordingProducer()
        protocol.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, protocol.transport.registerProducer, producer, True)
        protocol.transport.write(bytes(100 * KIB))
        self.assertEqual(producer.told, ["pause"])
        transport.isTaking = True
        transport.wake()
        self.server.settle()
        self.assertEqual(producer.told, ["pause", "resume"])
        transport.peerCloses()
        self.server.settle()
        self.assertEqual(producer.told, ["pause", "resume", "stop"])

    def test_refillingProducer(self) -> None:
        """
        While a producer fills the transport again each time it may, its peer is
        not read, and the connection does not close.
        """
        protocol, transport = self.deaf()

        class Refilling(RecordingProducer):
            def resumeProducing(self) -> None:
                super().resumeProducing()
                protocol.transport.write(bytes(100 * KIB))

        protocol.transport.registerProducer(Refilling(), True)
        protocol.transport.write(bytes(100 * KIB))
        transport.isTaking = True
        for _ in range(3):
            transport.wake()
            for _ in range(3):
                runNext(self.server.clock)
            self.assertEqual(list(protocol.transport.link.pauses.reasons), [Pause.UNSENT])
            self.assertFalse(transport.isReading)

    def test_pulledOnce(self) -> None:
        """
        A pull producer that does not write at once is asked once, whatever
        happens meanwhile, and again after it has written.
        """
        for held in (False, True):
            protocol, transport = self.server.connect()
            producer = RecordingProducer()
            protocol.transport.registerProducer(producer, False)
            self.assertEqual(producer.told, [])
            self.server.settle()
            self.assertEqual(producer.told, ["resume"])
            if held:
                transport.isTaking = False
                protocol.transport._producer.hold(Pause.PROTOCOL)
                protocol.transport._producer.release(Pause.PROTOCOL)
            self.server.settle()
            self.assertEqual(producer.told, ["resume"])
            protocol.transport.write(b"late")
            self.server.settle()
            self.assertEqual(producer.told, ["resume", "resume"])

    def test_lateProducer(self) -> None:
        """
        A producer that comes while the peer takes nothing is paused at once;
        one that comes after the connection has gone is stopped.
        """
        protocol, transport = self.deaf()
        protocol.transport.write(bytes(100 * KIB))
        for producer, expected in [(RecordingProducer(), ["pause"]), (RecordingProducer(), ["stop"])]:
            protocol.transport.registerProducer(producer, True)
            self.assertEqual(producer.told, expected)
            protocol.transport.unregisterProducer()
            transport.abortConnection()
            self.server.settle()

    def test_failingProducer(self) -> None:
        """A producer that raises costs its connection and nothing else."""

        class Failing(RecordingProducer):
            def resumeProducing(self) -> None:
                raise ZeroDivisionError

        for isStreaming in (True, False):
            protocol, transport = self.deaf()
            protocol.transport.registerProducer(Failing(), isStreaming)
            protocol.transport.write(bytes(100 * KIB))
            transport.isTaking = True
            transport.wake()
            self.server.settle()
            self.assertEqual((transport.isLost, len(protocol.lost)), (True, 1))
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_tooMuch(self) -> None:
        """
        A connection that has more unsent than there may be, besides the largest write, which may have any size, is sent
        that, and closed.
        """
        for isTLS in (False, True):
            server = wrapped(self, maxUnsentBytes=200 * KIB)
            protocol, transport = server.connect(isTLS)
            transport.isTaking = False
            with capturedLogs() as events:
                for sizeBytes in (500, 1, 198, 1, 1, 1000):
                    protocol.transport.write(bytes(sizeBytes * KIB))
            [reason] = [event["reason"] for event in events]
            self.assertIn(
                "register a producer, which is paused meanwhile, or allow more than maxUnsentBytes=204800", reason
            )
            server.settle()
            self.assertFalse(transport.isLost)
            transport.isTaking = True
            transport.wake()
            server.settle()
            self.assertEqual((len(transport.received), transport.isLost), (700 * KIB, True))
            self.assertEqual((server.factory.cutOffs, server.used()), (1, {}))

    def test_takenMeanwhile(self) -> None:
        """What the peer has taken makes room again."""
        server = wrapped(self, maxUnsentBytes=200 * KIB)
        protocol, transport = server.connect()
        for _ in range(5):
            transport.isTaking = False
            for sizeBytes in (500, 150):
                protocol.transport.write(bytes(sizeBytes * KIB))
            transport.isTaking = True
            transport.wake()
            server.settle()
        self.assertEqual((len(transport.received), server.factory.cutOffs), (5 * 650 * KIB, 0))

    def test_stockKeepsEverything(self) -> None:
        """
        Without us a server keeps whatever is written to a peer that does not
        read, and keeps it for ever; C{ThrottlingFactory} does not change that.
        """
        server = stock(self, writeLimit=1)
        protocol, transport = server.connect()
        transport.isTaking = False
        protocol.transport.write(bytes(5000 * KIB))
        server.clock.pump([60.0] * 60)
        self.assertEqual((len(transport.unsent), transport.isLost), (5000 * KIB, False))

    def test_failingPool(self) -> None:
        """A connection that cannot be served because its pool fails ends, rather than being neither read nor closed."""
        pool = PatchablePool(1 << 20)
        self.server = wrapped(self, pool=pool)
        protocol, transport = self.server.connect()
        protocol.transport.pauseProducing()
        protocol.transport.dataReceived(b"held")
        charge = pool.charge(pool.sizeBytes, RESPONSES)
        self.addCleanup(charge.release)

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        self.patch(pool, "tryAllocate", fail)
        protocol.transport.resumeProducing()
        self.server.settle()
        self.assertTrue(transport.isLost)
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))


class MemoryTests(SynchronousTestCase):
    """What connections cost, and what happens when there is no memory."""

    def test_waits(self) -> None:
        """
        While there is no memory nothing is handed over: what has come is
        charged, and served in order when there is some.
        """
        pool = ScriptedPool()
        for isTLS in (False, True):
            server = wrapped(self, pool=pool)
            protocol, transport = server.connect(isTLS)
            pool.refuse()
            transport.peerSends(b"one")
            server.settle()
            transport.peerSends(b"two")
            server.settle()
            self.assertEqual((protocol.received, transport.isReading), (b"", False))
            link = protocol.transport.link
            self.assertEqual((server.factory.gate.memory.waiting, list(link.pauses.reasons)), (1, [Pause.MEMORY]))
            self.assertEqual(server.used(), {CONNECTIONS: link.openBytes + len(b"one")})
            pool.relent()
            server.settle()
            self.assertEqual((protocol.received, transport.isReading), (b"onetwo", True))
            transport.abortConnection()
            server.settle()
            self.assertEqual(pool.leases, [])

    def test_leavesWhileWaiting(self) -> None:
        """A connection that is lost or closed while it waits waits no more, and holds nothing."""
        pool = ScriptedPool()
        server = wrapped(self, pool=pool)
        for leave in (
            lambda protocol, transport: transport.abortConnection(),
            lambda protocol, transport: protocol.transport.loseConnection(),
            lambda protocol, transport: protocol.transport.abortConnection(),
        ):
            protocol, transport = server.connect()
            pool.refuse()
            transport.peerSends(b"one")
            server.settle()
            leave(protocol, transport)
            pool.relent()
            server.settle()
            self.assertEqual((server.factory.gate.memory.waiting, len(protocol.lost), pool.leases), (0, 1, []))

    def test_holder(self) -> None:
        """
        The pool is told who asks: the principal if there is one, else the address; C{nameOf} is not asked while there
        is memory.
        """
        pool, asked = ScriptedPool(), []
        names = {b"one": None, b"two": ("alice", "app"), b"three": ("", "app")}

        def nameOf(protocol: Foreign) -> tuple[str, str] | None:
            asked.append(protocol.received)
            return names[waiting]

        server = wrapped(self, pool=pool, nameOf=nameOf)
        _, transport = server.connect()
        transport.peerSends(b"zero")
        server.settle()
        self.assertEqual(asked, [])
        for waiting in names:
            pool.refuse()
            transport.peerSends(waiting)
            server.settle()
            pool.relent()
            server.settle()
        expected = ("192.0.2.1", "alice", "192.0.2.1")
        self.assertEqual(pool.holders, [holder for holder in expected for _ in range(2)])

    def test_holderUnknown(self) -> None:
        """A C{nameOf} that fails when memory is wanted costs the connection, which then waits for nothing."""
        pool = ScriptedPool()
        server = wrapped(self, pool=pool, nameOf=lambda protocol: 1 / 0)
        _, transport = server.connect()
        pool.refuse()
        transport.peerSends(b"one")
        server.settle()
        self.assertEqual((transport.isLost, server.factory.gate.memory.waiting, pool.leases), (True, 0, []))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_grantedTooEarly(self) -> None:
        """Memory for a connection that cannot use it yet goes to others; once it can, it asks again."""
        pool = ScriptedPool()
        server = wrapped(self, pool=pool)
        protocol, transport = server.connect()
        pool.refuse()
        transport.peerSends(b"one")
        server.settle()
        protocol.transport.pauseProducing()
        pool.relent()
        server.settle()
        self.assertEqual((len(pool.leases), protocol.received), (2, b""))
        pool.refuse()
        protocol.transport.resumeProducing()
        server.settle()
        self.assertEqual((server.factory.gate.memory.waiting, protocol.received), (1, b""))
        pool.relent()
        server.settle()
        self.assertEqual(protocol.received, b"one")

    def test_oneAtATime(self) -> None:
        """
        While charges alone have drained the pool, one connection at a time is
        let through, and not another before its peer has taken the answer.
        """
        server = wrapped(self, pool=BoundedPool(100 * KIB))
        server.behave = lambda protocol, data: protocol.transport.write(bytes(300 * KIB))
        charge = server.factory.gate.pool.charge(100 * KIB, "other")
        pairs = [server.connect(host=f"192.0.2.{index}") for index in range(3)]
        for _, transport in pairs:
            transport.isTaking = False
            transport.peerSends(b"ask")
        for expected in (1, 2, 3):
            server.settle()
            served = [transport for protocol, transport in pairs if protocol.received]
            self.assertEqual(len(served), expected)
            for transport in served:
                transport.isTaking = True
                transport.wake()
        server.settle()
        self.assertEqual([len(transport.received) for _, transport in pairs], [300 * KIB] * 3)
        charge.release()

    def test_knownReaders(self) -> None:
        """A client that has taken all that was written to it does not wait for others of which nothing is known."""
        server = wrapped(self, pool=BoundedPool(4 << 20))
        server.behave = lambda protocol, data: protocol.transport.write(bytes(300 * KIB))
        server.clock.advance(1)
        known, *others = (server.connect(host=f"192.0.2.{index}") for index in range(4))
        known[1].peerSends(b"ask")
        server.settle()
        pool = server.factory.gate.pool
        charge = pool.charge(pool.availableBytes, "other")
        for _, transport in others:
            transport.isTaking = False
            transport.peerSends(b"ask")
            server.settle()
        # One from the pool, and one from its reserve.
        self.assertEqual([protocol.received for protocol, _ in others], [b"ask", b"ask", b""])
        known[1].peerSends(b"again")
        server.settle()
        self.assertEqual(known[0].received, b"askagain")
        charge.release()

    def test_endedWithMuchUnsent(self) -> None:
        """
        A connection that is closed, however that comes about, keeps its turn until what was written to it is gone:
        there is never more than one answer at a time.
        """

        def fail(protocol: Foreign) -> None:
            raise ZeroDivisionError

        answer = 300 * KIB
        ends: dict[str, Callable[[Foreign], object]] = {
            "writes too much": lambda protocol: protocol.transport.write(b"x"),
            "aborts": lambda protocol: protocol.transport.abortConnection(),
            "closes": lambda protocol: protocol.transport.loseConnection(),
            "raises": fail,
        }
        for how, end in ends.items():
            for isTLS in (False, True):
                server = wrapped(self, pool=BoundedPool(100 * KIB), maxUnsentBytes=200 * KIB)

                def behave(protocol: Foreign, data: bytes, end: Callable[[Foreign], object] = end) -> None:
                    protocol.transport.write(bytes(answer))
                    end(protocol)

                server.behave = behave
                charge = server.factory.gate.pool.charge(100 * KIB, "other")
                pairs = [server.connect(isTLS, host=f"192.0.2.{index}") for index in range(5)]
                for _, transport in pairs:
                    transport.isTaking = False
                    transport.peerSends(b"ask")
                heldBytes = []
                for _ in range(400):
                    if not runNext(server.clock):
                        server.clock.advance(0.1)
                    heldBytes.append(server.used().get(RESPONSES, 0))
                # What the transport has taken may be charged twice, from the moment that it pauses us.
                self.assertLess(max(heldBytes), 2 * answer, (how, isTLS))
                self.assertEqual([len(protocol.received) for protocol, _ in pairs], [3] * 5, (how, isTLS))
                self.assertTrue(all(transport.isLost for _, transport in pairs))
                charge.release()
        self.flushLoggedErrors(ZeroDivisionError)

    def test_lastPlace(self) -> None:
        """
        A connection counts until its protocol knows that it is gone, even if
        that makes it raise: until then the protocol keeps what it has.
        """

        class Failing(Foreign):
            def connectionLost(self, reason: Failure = connectionDone) -> None:
                super().connectionLost(reason)
                counts.append(len(server.factory.connections))
                raise ZeroDivisionError

        counts: list[int] = []
        server = wrapped(self)
        server.inner.protocol = Failing  # type: ignore[assignment]
        address = IPv4Address("TCP", "192.0.2.1", 50_000)
        transport = FakeTransport(server.clock, server.factory.buildProtocol(address), address)
        transport.connect()
        transport.abortConnection()
        self.assertRaises(ZeroDivisionError, server.settle)
        self.assertEqual((counts, len(server.factory.connections), server.used()), ([1], 0, {}))
