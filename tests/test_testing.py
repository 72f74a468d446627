"""
L{admission.testing}: the fakes behave as what they stand in for, and the
contracts find what is wrong.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.interfaces import FRAMES, IMemoryPool, ITransportMutability
from admission.testing.contracts import MemoryPoolContract, TransportMutabilityContract
from admission.testing.pools import CuedPool
from admission.testing.transports import FULL_BYTES, READ_BYTES, RECORD_BYTES, FakeTLSTransport, FakeTransport
from admission.testing.waiters import RecordingWaiter
from admission_plugins.bounded import BoundedPool, UnboundedPool
from admission_plugins.mutability import PlainMutability

from .admitted import runNext


class Recorder(Protocol):
    """
    Remembers what it is told.
    """

    def __init__(self, received: Callable[[], None] | None = None) -> None:
        self.chunks: list[bytes] = []
        self.lostReason: Failure | None = None
        self._received = received

    def dataReceived(self, data: bytes) -> None:
        """
        Remember, and do what was asked for.
        """
        self.chunks.append(data)
        if self._received is not None:
            self._received()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Remember.
        """
        self.lostReason = reason


class Producer:
    """
    Remembers what it is told.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        """
        Write no more.
        """
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        """
        Write again.
        """
        self.calls.append("resume")

    def stopProducing(self) -> None:
        """
        Never write again.
        """
        self.calls.append("stop")


class TransportTestCase(SynchronousTestCase):
    """
    A protocol on a fake transport.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.protocol = Recorder()

    def connect(self, isTLS: bool = False) -> Any:
        """
        Connect the protocol, handshake included.
        """
        transport = (FakeTLSTransport if isTLS else FakeTransport)(self.clock, self.protocol)
        transport.connect()
        if isinstance(transport, FakeTLSTransport):
            transport.peerFinishesHandshake()
            self.clock.advance(0)
        return transport

    def assertLost(self, kind: type[Exception]) -> None:
        """
        The protocol has been told that the connection is gone.
        """
        assert self.protocol.lostReason is not None
        self.protocol.lostReason.trap(kind)


class FakeTransportTests(TransportTestCase):
    """
    L{FakeTransport}, and what is the same with L{FakeTLSTransport}.
    """

    def test_interfaces(self) -> None:
        """
        It has what Twisted's transports have.
        """
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
        """
        What a protocol does takes effect in a later turn, never inside its call.
        """
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
        """
        A turn brings so much at most, and in order.
        """
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
        """
        The end of the stream shows after all before it has been read, and not
        while nobody reads.
        """
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
        """
        Closing waits for what is not sent, and a plain transport reads no more.
        """
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
        """
        Aborting does not wait, and the reason tells the kind of transport.
        """
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
        """
        Each turn brings one chunk, so that a test may look in between.
        """
        transport = self.connect()
        transport.peerSends(b"x" * (READ_BYTES + 1))
        self.assertTrue(runNext(self.clock))
        self.assertEqual(len(self.protocol.chunks), 1)
        self.assertTrue(transport.isBusy)
        self.clock.advance(0)
        self.assertEqual(len(self.protocol.chunks), 2)


class FakeTLSTransportTests(TransportTestCase):
    """
    What is particular to L{FakeTLSTransport}.
    """

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
        """
        Closing before the handshake is over does not wait for anything.
        """
        transport = FakeTLSTransport(self.clock, self.protocol)
        transport.connect()
        transport.loseConnection()
        self.clock.advance(0)
        self.assertLost(ConnectionLost)

    def test_afterTheEnd(self) -> None:
        """
        There is no handle any more, and aborting raises.
        """
        transport = self.connect(isTLS=True)
        transport.abortConnection()
        self.clock.advance(0)
        self.assertIs(transport.getHandle(), None)
        self.assertRaises(AttributeError, transport.abortConnection)


class CuedPoolContractTests(MemoryPoolContract, SynchronousTestCase):
    """
    L{CuedPool} is an L{IMemoryPool}.
    """

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """
        A pool that refuses nothing.
        """
        return CuedPool(sizeBytes)


class CuedPoolTests(SynchronousTestCase):
    """
    L{CuedPool}.
    """

    def test_onCue(self) -> None:
        """
        It refuses from one cue to the other, tells its listeners of the
        second, and remembers what was asked for.
        """
        pool = CuedPool()
        told: list[None] = []
        pool.subscribe(lambda: told.append(None))
        pool.refuse()
        self.assertEqual((pool.tryAllocate(10), pool.isOutOfMemory(), told), (None, True, []))
        pool.relent()
        lease = pool.tryAllocate(20)
        assert lease is not None
        self.assertEqual((pool.requested, pool.leases, len(told)), ([10, 20], [lease], 1))
        self.assertEqual((pool.usedBytesByPurpose, pool.availableBytes), ({FRAMES: 20}, (1 << 20) - 20))


class RecordingWaiterTests(SynchronousTestCase):
    """
    L{RecordingWaiter}.
    """

    def test_records(self) -> None:
        """
        It keeps what it was granted and tells who wants to know.
        """
        told: list[RecordingWaiter] = []
        waiter = RecordingWaiter(5, told.append)
        lease = CuedPool().charge(5, FRAMES)
        waiter.leaseGranted(lease)
        waiter.turnGranted()
        self.assertEqual((waiter.wantedBytes, waiter.leases, waiter.turns, told), (5, [lease], 1, [waiter, waiter]))


class BrokenTests(SynchronousTestCase):
    """
    The contracts find pools and adapters that break them.
    """

    def failures(self, contract: type, **methods: Any) -> set[str]:
        """
        Which of the tests of C{contract} fail when it builds with C{methods}.
        """
        case = type("BrokenTests", (contract, SynchronousTestCase), methods)
        failed = set()
        for name in dir(contract):
            if name.startswith("test_"):
                result = unittest.TestResult()
                case(name).run(result)
                if not result.wasSuccessful():
                    failed.add(name)
        self.flushLoggedErrors()
        return failed

    def brokenPool(self, pool: Callable[[int], Any]) -> set[str]:
        """
        Which tests fail for what C{pool} makes of a size.
        """
        return self.failures(MemoryPoolContract, buildPool=lambda self, sizeBytes: pool(sizeBytes))

    def test_sound(self) -> None:
        """
        A sound pool passes, whatever its kind.
        """
        for pool in (CuedPool, BoundedPool, lambda sizeBytes: UnboundedPool()):
            self.assertEqual(self.brokenPool(pool), set())

    def test_pools(self) -> None:
        """
        Each way in which a pool may be wrong is found by the test that is for it.
        """

        class Generous(CuedPool):
            def tryAllocate(self, sizeBytes: int) -> Any:
                return super().tryAllocate(max(min(sizeBytes, self.largestBytes), 1))

        class Inexact(CuedPool):
            def tryAllocate(self, sizeBytes: int) -> Any:
                return super().tryAllocate(min(sizeBytes + 1, self.largestBytes))

        class Stingy(CuedPool):
            def charge(self, sizeBytes: int, purpose: str) -> Any:
                return None if sizeBytes > self.availableBytes else super().charge(sizeBytes, purpose)

        class Lenient(CuedPool):
            def _take(self, *args: Any) -> Any:
                lease: Any = super()._take(*args)
                release = lease.release
                lease.release = lambda: release() if lease in self.leases else None
                return lease

        class Secretive(CuedPool):
            def tell(self) -> None:
                pass

        class Fragile(CuedPool):
            def tell(self) -> None:
                for listener in self._listeners:
                    listener()

        for test, pool in [
            ("test_sizesOutOfRangeRaise", Generous),
            ("test_bufferIsExact", Inexact),
            ("test_chargesAreNeverRefused", Stingy),
            ("test_releasingTwiceRaises", Lenient),
            ("test_releasesAreTold", Secretive),
            ("test_failingListener", Fragile),
        ]:
            self.assertIn(test, self.brokenPool(pool))

    def test_adapters(self) -> None:
        """
        So is each way in which an adapter may be wrong.
        """

        class Deaf(PlainMutability):
            def unmute(self) -> None:
                """
                Do nothing.
                """

        class Vague(PlainMutability):
            def isInMutableState(self) -> bool:
                """
                Be vague.
                """
                return 1  # type: ignore[return-value]

        for adapter, tests in [
            (PlainMutability, set()),
            (Deaf, {"test_muteAndUnmute", "test_repetitionIsHarmless"}),
            (Vague, {"test_answersAreBooleans"}),
        ]:

            def build(adapter: Any = adapter) -> tuple[ITransportMutability, Callable[[], bool]]:
                transport = FakeTransport(Clock(), Protocol())
                return adapter(transport), lambda: transport.isReading

            failed = self.failures(TransportMutabilityContract, buildMutability=lambda self: build())
            self.assertEqual(failed, tests)
