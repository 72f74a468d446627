"""L{admission.connection.factory}."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import (
    HANDSHAKE_BYTES,
    MAX_LEAVING,
    TLS_CONNECTION_BYTES,
    UNUSED_SECONDS,
    ConnectionLimits,
    RefusedProtocol,
)
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.connection.refusallog import MAX_LINES_OF_ADDRESS
from admission.control import SWEEP_SECONDS, AdmissionControl
from admission.interfaces import CONNECTIONS, RESPONSES, ILease
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission.testing.scriptedquota import ScriptedQuota
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import WHIM, RecordingProtocol, Server, framed, serve
from tests.kit.certificates import Authority
from tests.kit.holding import HoldingTransport
from tests.kit.wrapped import wrapped


def address(host: str = "192.0.2.1") -> IPv4Address:
    """Where a peer comes from."""
    return IPv4Address("TCP", host, 50_000)


class LimitsTests(SynchronousTestCase):
    """L{ConnectionLimits}."""

    def test_mistakes(self) -> None:
        """What would fail with the first connection, or keep the reactor busy, is refused at once by its name."""
        mistakes: list[tuple[dict[str, Any], str]] = [
            ({"maxConnections": "5"}, "maxConnections='5': write a number, 0 or more"),
            ({"maxConnectionsPerAddress": -1}, "maxConnectionsPerAddress=-1: write a number, 0 or more"),
            ({"idleSeconds": None}, "idleSeconds=None: write a number, more than 0"),
            ({"idleSeconds": 0}, "idleSeconds=0: write a number, more than 0"),
            ({"sendSeconds": math.nan}, "sendSeconds=nan: write a number, more than 0"),
        ]
        for arguments, words in mistakes:
            error = self.assertRaises(ValueError, ConnectionLimits, **arguments)
            self.assertEqual(str(error), words)

    def test_extremes(self) -> None:
        """None at all, and for ever, are limits."""
        limits = ConnectionLimits(maxConnections=0, idleSeconds=math.inf, closeGraceSeconds=0)
        self.assertEqual((limits.maxConnections, limits.idleSeconds, limits.closeGraceSeconds), (0, math.inf, 0))


class NumberTests(SynchronousTestCase):
    """How many connections there may be."""

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(maxConnections=3, maxConnectionsPerAddress=2))
        self.factory = self.server.factory

    def assertRefused(self, host: str) -> None:
        """A connection from C{host} is refused and gone."""
        protocol, transport = self.server.connect(host=host)
        self.assertIsInstance(protocol, RefusedProtocol)
        self.assertTrue(transport.isLost)

    def test_inAll(self) -> None:
        """In all there are so many and no more, wherever they come from."""
        for number in range(3):
            self.server.connect(host=f"192.0.2.{number}")
        self.assertRefused("192.0.2.9")
        self.assertEqual((len(self.factory.connections), self.factory.refusedConnections), (3, 1))

    def test_roomAgain(self) -> None:
        """
        From one address come so many and no more, whatever comes from others.  A connection that is gone makes room for
        another; the ones that were refused never took any.
        """
        transports = [self.server.connect()[1] for _ in range(2)]
        for _ in range(5):
            self.assertRefused("192.0.2.1")
        transports[0].abortConnection()
        self.server.settle()
        protocol, _ = self.server.connect()
        self.assertIsInstance(protocol, AdmittedProtocol)
        self.assertRefused("192.0.2.1")
        protocol, _ = self.server.connect(host="192.0.2.2")
        self.assertIsInstance(protocol, AdmittedProtocol)

    def test_noAddress(self) -> None:
        """Peers without an address, as on UNIX sockets, are limited in all only."""
        for _ in range(3):
            protocol = self.factory.buildProtocol(None)
            self.assertIsInstance(protocol, AdmittedProtocol)
            transport = FakeTransport(self.server.clock, protocol)
            transport.getPeer = object  # type: ignore[method-assign]
            transport.connect()
        self.assertIsInstance(self.factory.buildProtocol(None), RefusedProtocol)

    def test_refusalsSayWhy(self) -> None:
        """The log names the peer and the limit by its property."""
        with capturedLogs() as events:
            for _ in range(3):
                self.server.connect(host="192.0.2.1")
            for _ in range(2):
                self.server.connect(host="192.0.2.2")
        reasons = [event["reason"] for event in events]
        self.assertEqual(len(reasons), 2)
        self.assertIn("maxConnectionsPerAddress", reasons[0])
        self.assertIn("(maxConnections)", reasons[1])
        self.assertEqual(events[0]["peer"], "192.0.2.1:50002")

    def test_throughTLS(self) -> None:
        """A TLS factory gets a protocol for the connection too many as well, and closes it."""
        authority = Authority()
        tls = TLSMemoryBIOFactory(authority.server().options(), False, self.factory, self.server.clock)
        for isRefused in (False, False, True):
            wrapper = tls.buildProtocol(address())
            assert isinstance(wrapper, ProtocolWrapper)
            self.assertEqual(isinstance(wrapper.wrappedProtocol, RefusedProtocol), isRefused)
            transport = FakeTransport(self.server.clock, wrapper, address())
            transport.connect()
            self.server.settle()
            self.assertEqual(transport.isLost, isRefused)


class RefusalLogTests(SynchronousTestCase):
    """What peers make us do goes to L{admission.connection.refusallog}."""

    def test_limited(self) -> None:
        """
        Newcomers who are one too many, and connections that are closed for what they sent, count towards the same until
        the next sweep.
        """
        server = serve(self, limits=ConnectionLimits(maxConnections=2, idleSeconds=1_000_000))
        server.factory.start()
        self.addCleanup(server.factory.stop)
        server.connect()
        with capturedLogs() as events:
            for _ in range(MAX_LINES_OF_ADDRESS):
                _, transport = server.connect()
                transport.peerSends(b"\xff" * 4)
                server.settle()
            server.connect()
            for _ in range(5):
                server.connect()
        self.assertEqual(len(events), MAX_LINES_OF_ADDRESS)
        with capturedLogs() as events:
            server.clock.advance(10)
        self.assertEqual([event.get("count") for event in events], [5])


class IdleTests(SynchronousTestCase):
    """Connections that do nothing."""

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(idleSeconds=60.0, receiveSeconds=1e9))
        self.clock = self.server.clock
        self.server.factory.start()
        self.addCleanup(self.server.factory.stop)

    def pass_(self, seconds: int) -> None:
        """Let time pass, second by second."""
        self.clock.pump([1] * seconds)

    def test_idle(self) -> None:
        """A connection that is silent for the time is closed, one that sends now and then is not."""
        _, idle = self.server.connect()
        _, busy = self.server.connect()
        self.pass_(40)
        self.server.send(busy, b"one")
        self.pass_(19)
        self.assertFalse(idle.isLost)
        self.pass_(5)
        self.assertEqual((idle.isLost, busy.isLost), (True, False))
        self.pass_(45)
        self.assertTrue(busy.isLost)

    def test_servedFromTheTransport(self) -> None:
        """
        A connection is not idle while what its transport holds is yet to be
        served, though there is no reason any more not to read.
        """
        protocol, transport = self.server.connect(transport=HoldingTransport)
        protocol.behave = lambda protocol, request: protocol.pause(WHIM)
        self.server.send(transport, b"x" * 3000, b"y" * 3000)
        self.assertTrue(transport.held)
        protocol.respond([])
        self.pass_(100)
        protocol.resume(WHIM)
        self.server.factory._sweep()
        self.assertFalse(protocol.isClosing)
        self.server.settle()
        self.assertEqual(len(protocol.requests), 2)

    def test_halfAFrameIsNotEnough(self) -> None:
        """A part of a length does not keep a connection open, nor does a handshake that was begun."""
        _, transport = self.server.connect()
        transport.peerSends(b"\0\0")
        _, shaking = self.server.connect(transport=FakeTLSTransport)
        self.pass_(64)
        self.assertEqual((transport.isLost, shaking.isLost), (True, True))

    def test_mutedIsNotIdle(self) -> None:
        """
        A connection that waits for us, for memory, for the work on its request
        or for its quota, is not idle, and has the whole time once it is read
        again.
        """
        lease = self.server.pool.tryAllocate(self.server.pool.sizeBytes)
        _, waiting = self.server.connect(host="192.0.2.2")
        self.server.send(waiting, b"one")

        def later(protocol: RecordingProtocol, lease: ILease) -> None:
            pass

        self.pass_(1000)
        self.assertFalse(waiting.isLost)
        lease.release()
        self.server.settle()
        self.server.behave = later
        protocol, worked = self.server.connect()
        self.server.send(worked, b"one")
        self.pass_(59)
        self.assertFalse(waiting.isLost)
        self.pass_(200)
        self.assertEqual((waiting.isLost, worked.isLost), (True, False))
        protocol.respond([], delaySeconds=300)
        self.pass_(299)
        self.assertFalse(worked.isLost)

    def test_parkedIsIdle(self) -> None:
        """
        A connection whose request waits for an event is idle when the time is
        over: a machine that vanished does not keep its place for as long as it
        asked to wait.  What it held is given back.
        """
        self.server.behave = lambda protocol, request: protocol.park()
        for bodies in ([b"one"], [b"one", b"behind it"]):
            protocol, transport = self.server.connect()
            self.server.send(transport, *bodies)
            self.assertEqual(protocol.pauses.isApplied, len(bodies) == 2)
            self.pass_(59)
            self.assertFalse(transport.isLost)
            self.pass_(5)
            self.server.settle()
            self.assertEqual((transport.isLost, self.server.used()), (True, {}))
            self.assertEqual(protocol.closeReason, "it was idle for too long")

    def test_answeredIsNotIdle(self) -> None:
        """A connection that has waited for nearly the time, and is answered, has the whole time again."""
        self.server.behave = lambda protocol, request: protocol.park()
        protocol, transport = self.server.connect()
        self.server.send(transport, b"one")
        self.pass_(58)
        protocol.request.resume(self.clock.seconds())
        protocol.respond([b"answer"])
        self.pass_(58)
        self.assertFalse(transport.isLost)
        self.pass_(6)
        self.assertTrue(transport.isLost)

    def test_heldBackWhileParked(self) -> None:
        """As long as we keep it from going on for another reason as well, it is not idle."""
        self.server.behave = lambda protocol, request: protocol.park()
        protocol, transport = self.server.connect()
        self.server.send(transport, b"one")
        protocol.pause(WHIM)
        self.pass_(300)
        self.assertFalse(transport.isLost)

    def test_never(self) -> None:
        """With no limit nothing is ever idle."""
        server = serve(self, limits=ConnectionLimits(idleSeconds=math.inf))
        server.factory.start()
        _, transport = server.connect()
        server.clock.pump([3600] * 100)
        self.assertFalse(transport.isLost)
        server.factory.stop()

    def test_failingClose(self) -> None:
        """A connection that fails to close does not keep the others open."""

        def fail() -> None:
            raise ZeroDivisionError

        protocol, _ = self.server.connect()
        protocol.closeGracefully = fail
        _, transport = self.server.connect()
        self.pass_(61)
        self.server.settle()
        self.assertTrue(transport.isLost)
        self.assertGreater(len(self.flushLoggedErrors(ZeroDivisionError)), 0)

    def test_stop(self) -> None:
        """A factory that is stopped, twice if need be, looks no more."""
        self.server.factory.stop()
        self.server.factory.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class SweepTests(SynchronousTestCase):
    """The control of a factory is swept."""

    def test_nowAndThen(self) -> None:
        """From the start on to the stop, at the time that it is then, and no timer is left."""
        policy = ScriptedQuota()
        server = Server(control=AdmissionControl([("scripted", policy)]))
        server.factory.start()
        for _ in range(3):
            server.clock.advance(SWEEP_SECONDS)
        self.assertEqual(policy.moments, [SWEEP_SECONDS, 2 * SWEEP_SECONDS, 3 * SWEEP_SECONDS])
        server.factory.stop()
        server.factory.stop()
        server.clock.advance(SWEEP_SECONDS)
        self.assertEqual((policy.sweeps, server.clock.getDelayedCalls()), (3, []))

    def test_none(self) -> None:
        """A factory that is given none has one without policies."""
        self.assertEqual(Server().factory.control.policyNames, ())


class CloseAllTests(SynchronousTestCase):
    """C{AdmittedFactory.closeAll}."""

    def test_none(self) -> None:
        """Without connections it is done at once."""
        self.assertIs(self.successResultOf(serve(self).factory.closeAll()), None)

    def test_all(self) -> None:
        """It is done when the last connection is gone, as all who asked hear; then no timer is left."""
        made: tuple[Any, ...] = (serve(self), wrapped(self))
        for server in made:
            server.factory.doStart()
            server.connect()
            _, deaf = server.connect(isTLS=True)
            deaf.answersClose = False
            server.factory.doStop()
            closings = [server.factory.closeAll(), server.factory.closeAll()]
            server.settle()
            self.assertEqual(len(server.factory.connections), 1)
            for closing in closings:
                self.assertNoResult(closing)
            server.clock.advance(5)
            server.settle()
            for closing in closings:
                self.assertIs(self.successResultOf(closing), None)
            self.assertEqual(server.clock.getDelayedCalls(), [])


class Port:
    """
    A port that can be told to stop accepting.

    @ivar calls: what it was told.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        """Stop accepting."""
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        """Accept again."""
        self.calls.append("resume")


class PortTests(SynchronousTestCase):
    """When ports stop accepting."""

    def setUp(self) -> None:
        self.server = serve(self, BoundedPool(1 << 20))
        self.ports: list[Any] = [Port(), Port()]
        for port in self.ports:
            self.server.factory.addPort(port)

    def test_notYet(self) -> None:
        """What an endpoint returns is no port yet, and refused with what to write."""
        listening: Any = Deferred()
        refused = self.assertRaises(TypeError, self.server.factory.addPort, listening)
        self.assertIn("addCallback(factory.addPort)", str(refused))

    def calls(self) -> list[str]:
        """What both ports were told."""
        self.assertEqual(self.ports[0].calls, self.ports[1].calls)
        return list(self.ports[0].calls)

    def test_plain(self) -> None:
        """Plain connections can be muted at once, so ports go on accepting them."""
        _, transport = self.server.connect()
        lease = self.server.pool.tryAllocate(1 << 20)
        self.server.send(transport, b"one")
        self.assertTrue(self.server.gate.pressure.isOn)
        self.assertEqual(self.calls(), [])
        lease.release()

    def test_tls(self) -> None:
        """TLS connections cannot, so ports pause while somebody waits for memory, whether or not it was first."""
        for isFirst in (True, False):
            _, transport = self.server.connect(isTLS=isFirst)
            lease = self.server.pool.tryAllocate(1 << 20)
            self.server.send(transport, b"one")
            self.server.connect(isTLS=not isFirst, host="192.0.2.2")
            self.assertEqual(self.calls(), ["pause"])
            lease.release()
            self.server.settle()
            self.assertEqual(self.calls(), ["pause", "resume"])
            self.assertEqual(transport.received, framed(b"one"))
            self.server.close()
            for port in self.ports:
                port.calls.clear()

    def test_notAfforded(self) -> None:
        """A TLS connection after which there is no memory for another pauses the ports until there is."""
        charge = self.server.pool.charge((1 << 20) - TLS_CONNECTION_BYTES, CONNECTIONS)
        self.server.connect(isTLS=True)
        self.assertEqual(self.calls(), ["pause"])
        charge.release()
        self.server.settle()
        self.assertEqual(self.calls(), ["pause", "resume"])


class UnusedTests(SynchronousTestCase):
    """Connections that nobody uses, while they take the memory of others."""

    def setUp(self) -> None:
        self.server = serve(self, BoundedPool(16 * TLS_CONNECTION_BYTES))

    def pass_(self, seconds: float) -> None:
        """Let time pass, and everything happen then that takes none."""
        self.server.clock.advance(seconds)
        self.server.settle()

    def used(self, count: int, host: str) -> list[FakeTransport]:
        """Connections that have asked for something."""
        transports = [self.server.connect(host=host, isTLS=True)[1] for _ in range(count)]
        for transport in transports:
            self.server.send(transport, b"one")
        self.server.settle()
        return transports

    def test_giveWay(self) -> None:
        """
        When there is no memory for another connection, those give way that have been unused for a while, the longest
        unused of the most crowded address first, until connections hold half of the memory.
        """
        few = self.used(2, "192.0.2.1")
        many = self.used(13, "192.0.2.2")
        self.assertFalse(self.server.gate.pressure.isOn)
        self.pass_(UNUSED_SECONDS)
        self.server.send(many[0], b"two")
        (newcomer,) = self.used(1, "192.0.2.3")
        self.assertTrue(self.server.gate.pressure.isOn)
        with capturedLogs() as events:
            self.pass_(UNUSED_SECONDS - 0.1)
            self.assertEqual(events, [])
            self.pass_(0.2)
        self.assertEqual([transport.isLost for transport in many], [False] + [True] * 8 + [False] * 4)
        self.assertFalse(any(transport.isLost for transport in [*few, newcomer]))
        self.assertIn("asked for nothing in 10 s, memory is short", events[0]["reason"])
        self.assertFalse(self.server.gate.pressure.isOn)
        self.pass_(10 * UNUSED_SECONDS)
        self.assertEqual(sum(transport.isLost for transport in many), 8)
        self.assertEqual(self.server.clock.getDelayedCalls(), [])

    def test_waiting(self) -> None:
        """Connections that wait for an answer are not unused."""
        self.server.behave = lambda protocol, request: None
        transports = self.used(16, "192.0.2.2")
        self.pass_(2 * UNUSED_SECONDS)
        self.assertFalse(any(transport.isLost for transport in transports))

    def test_othersHoldIt(self) -> None:
        """Where it is not connections that hold the memory, none is closed."""
        transports = self.used(4, "192.0.2.2")
        charge = self.server.pool.charge(12 * TLS_CONNECTION_BYTES, RESPONSES)
        transports += self.used(1, "192.0.2.3")
        self.assertTrue(self.server.gate.pressure.isOn)
        self.pass_(2 * UNUSED_SECONDS)
        self.assertFalse(any(transport.isLost for transport in transports))
        charge.release()


class StrangerTests(SynchronousTestCase):
    """Connections that have yet to introduce themselves."""

    def setUp(self) -> None:
        self.server = self.serve()
        self.port = Port()
        self.server.factory.addPort(self.port)  # type: ignore[arg-type]

    def serve(self, poolBytes: int = 16 * HANDSHAKE_BYTES, **limits: Any) -> Server:
        """A server whose strangers may hold as much as four handshakes."""
        return serve(self, BoundedPool(poolBytes), ConnectionLimits(**limits))

    def silent(self, count: int, kind: type[FakeTransport] = FakeTLSTransport) -> list[FakeTransport]:
        """Have peers connect that say nothing."""
        return [self.server.connect(transport=kind)[1] for _ in range(count)]

    def pass_(self, seconds: float) -> None:
        """Let time pass, and everything happen then that takes none."""
        self.server.clock.advance(seconds)
        self.server.settle()

    def lost(self, transports: Sequence[FakeTransport]) -> list[bool]:
        """Which of C{transports} are gone."""
        return [transport.isLost for transport in transports]

    def test_handshakeDeadline(self) -> None:
        """
        A handshake that is not over in time ends the connection, which says
        why; one that is over in time costs less from then on, and no time
        limit is left.
        """
        silent, _ = self.server.connect(transport=FakeTLSTransport)
        done, transport = self.server.connect(isTLS=True)
        self.assertEqual((silent.link.openBytes, done.link.openBytes), (HANDSHAKE_BYTES, TLS_CONNECTION_BYTES))
        self.pass_(9.9)
        self.assertFalse(silent.isLost)
        with capturedLogs() as events:
            self.pass_(0.2)
        self.assertEqual((silent.isLost, done.isLost), (True, False))
        self.assertEqual(
            [event["reason"] for event in events], ["its TLS handshake is not over after 10 s (handshakeSeconds)"]
        )
        transport.abortConnection()
        self.pass_(0)
        self.assertEqual((self.server.used(), self.server.clock.getDelayedCalls()), ({}, []))

    def test_notTold(self) -> None:
        """Where nobody says that a handshake is over, the first bytes do, or else its time limit finds out."""

        class Untold(FakeTLSTransport):
            """As behind a wrapper that does not pass it on (twisted issue 12007)."""

            def _takeTurn(self) -> None:
                if self._hasFinishedArrived:
                    self._handle.isHandshakeDone = True  # type: ignore[union-attr]
                super()._takeTurn()

        sending, silent = (self.server.connect(transport=Untold) for _ in range(2))
        for _, transport in (sending, silent):
            transport.peerFinishesHandshake()
        self.server.send(sending[1], b"one")
        costs = [protocol.link.openBytes for protocol, _ in (sending, silent)]
        self.assertEqual(costs, [TLS_CONNECTION_BYTES, HANDSHAKE_BYTES])
        self.pass_(11.0)
        self.assertEqual((silent[0].isLost, silent[0].link.openBytes), (False, TLS_CONNECTION_BYTES))

    def test_oldestGivesWay(self) -> None:
        """
        Silent connections hold their share of the pool and no more: the one that has been silent longest gives way to
        the next.  A connection that has sent a request is none of them.
        """
        known, transport = self.server.connect(isTLS=True)
        self.server.send(transport, b"one")
        silent = self.silent(4)
        self.pass_(2.0)
        self.assertEqual(self.port.calls, [])
        with capturedLogs() as events:
            silent += self.silent(2)
            self.pass_(0)
        self.assertEqual(self.lost(silent), [True, True, False, False, False, False])
        self.assertEqual(
            {event["reason"] for event in events}, {"it has asked for nothing in 2.0 s, and others want its place"}
        )
        self.assertEqual((known.isLost, self.port.calls), (False, []))

    def test_youngAreSpared(self) -> None:
        """
        Strangers that came just now may be introducing themselves.  They may
        hold twice as much; then nothing more is accepted until they have, or
        have had the time.
        """
        silent = self.silent(8)
        self.assertEqual((self.lost(silent), self.port.calls), ([False] * 8, []))
        silent += self.silent(1)
        self.pass_(0.2)
        self.assertEqual((self.lost(silent), self.port.calls), ([False] * 9, ["pause"]))
        self.pass_(0.1)
        self.assertEqual((self.lost(silent), self.port.calls), ([True] * 5 + [False] * 4, ["pause", "resume"]))
        asking = [self.server.connect(transport=FakeTLSTransport) for _ in range(5)]
        self.assertEqual(self.port.calls[2:], [])
        asking += [self.server.connect(transport=FakeTLSTransport) for _ in range(5)]
        self.assertEqual(self.port.calls[2:], ["pause"])
        for _, transport in asking:
            transport.peerFinishesHandshake()
            self.server.send(transport, b"one")
        self.assertEqual(self.port.calls[2:], ["pause", "resume"])
        self.pass_(5.0)
        self.assertEqual(self.lost([transport for _, transport in asking]), [False] * 10)

    def test_speakingHasMoreTime(self) -> None:
        """
        A stranger that has sent something is spared for longer than one that
        has sent nothing, which gives way in its stead.
        """
        protocols = [self.server.connect(transport=FakeTLSTransport)[0] for _ in range(4)]
        for protocol in protocols[:2]:
            protocol.link.handshake.receivedBytes = 1
        self.pass_(0.5)
        self.silent(2)
        self.pass_(0)
        self.assertEqual([protocol.isLost for protocol in protocols], [False, False, True, True])
        self.pass_(0.6)
        self.silent(1)
        self.pass_(0)
        self.assertEqual([protocol.isLost for protocol in protocols], [True, False, True, True])

    def test_plain(self) -> None:
        """
        The same holds for plain connections, which are strangers until they
        have said which request is their first: from then on they may have to
        wait for memory.
        """
        count = 4 * HANDSHAKE_BYTES // PLAIN_CONNECTION_BYTES
        asking, transport = self.server.connect()
        transport.peerSends(framed(b"one")[:-1])
        silent = self.silent(count, FakeTransport)
        silent[0].peerSends(framed(b"two")[:3])
        self.pass_(2.0)
        silent += self.silent(1, FakeTransport)
        self.pass_(0)
        self.assertEqual(self.lost(silent), [True] + [False] * count)
        self.assertFalse(asking.isLost)

    def test_noMemory(self) -> None:
        """
        When the pool has no memory for another connection, silent ones give way
        even if they do not hold their share; without any, the ports wait.
        """
        silent = self.silent(2)
        self.pass_(2.0)
        charge = self.server.pool.charge(13 * HANDSHAKE_BYTES, RESPONSES)
        for _ in range(3):
            self.server.connect(isTLS=True)
        self.pass_(0)
        self.assertEqual(self.lost(silent), [True, True])
        charge.release()
        self.pass_(0)
        self.assertEqual(self.port.calls[-1:], ["resume"])

    def test_noPlace(self) -> None:
        """
        When there are as many connections as there may be, a silent one gives
        way as well; nobody does who has sent a request.
        """
        self.server = self.serve(maxConnections=3)
        silent = self.silent(2, FakeTransport)
        _, known = self.server.connect()
        self.server.send(known, b"one")
        self.assertIsInstance(self.server.factory.buildProtocol(None), RefusedProtocol)
        self.pass_(2.0)
        others = [self.server.connect()[1] for _ in range(2)]
        for transport in others:
            self.server.send(transport, b"one")
        self.pass_(2.0)
        self.assertEqual(self.lost([*silent, known, *others]), [True, True, False, False, False])
        self.assertIsInstance(self.server.factory.buildProtocol(None), RefusedProtocol)

    def test_flood(self) -> None:
        """However many come in one turn, only so many at a time give way: their sockets close in the next."""
        self.server = self.serve(maxConnections=100, poolBytes=1 << 30)
        silent = self.silent(100, FakeTransport)
        self.server.clock.advance(2.0)
        factory = self.server.factory
        made = []
        for _ in range(200):
            protocol = factory.buildProtocol(None)
            if not isinstance(protocol, RefusedProtocol):
                transport = FakeTransport(self.server.clock, protocol)
                transport.connect()
                made.append(transport)
        self.assertEqual((len(made), len(factory.connections)), (MAX_LEAVING, 100 + MAX_LEAVING))
        self.pass_(0)
        self.assertEqual((sum(self.lost(silent)), len(factory.connections)), (MAX_LEAVING, 100))

    def test_stop(self) -> None:
        """A server that stops waits for no stranger."""
        self.silent(5)
        self.server.factory.stop()
        self.server.close()
        self.assertEqual(self.server.clock.getDelayedCalls(), [])

    def test_lastLeavesWhileShort(self) -> None:
        """When the last stranger has left no timer waits for it, however short of memory the pool is."""
        charge = self.server.pool.charge(16 * HANDSHAKE_BYTES, RESPONSES)
        _, transport = self.server.connect(transport=FakeTLSTransport)
        self.pass_(0.1)
        self.assertEqual([call.getTime() for call in self.server.clock.getDelayedCalls()], [0.25, UNUSED_SECONDS, 10.0])
        transport.abortConnection()
        self.pass_(0)
        self.assertEqual(self.server.clock.getDelayedCalls(), [])
        charge.release()

    def test_wrapped(self) -> None:
        """
        A connection of a wrapped server is a stranger until its handshake is
        over, and never without one: its protocol may have to speak first.
        """
        server = wrapped(self, pool=BoundedPool(16 * HANDSHAKE_BYTES))
        plain = [server.connect()[1] for _ in range(40)]
        done = [server.connect(isTLS=True)[1] for _ in range(5)]
        silent: list[FakeTransport] = []
        for _ in range(5):
            silent.append(FakeTLSTransport(server.clock, server.factory.buildProtocol(address()), address()))
            silent[-1].connect()
            server.settle()
            server.clock.advance(2.0)
            server.settle()
        self.assertEqual((any(self.lost(plain + done)), self.lost(silent)), (False, [True] + [False] * 4))
        server.clock.advance(11.0)
        server.settle()
        self.assertEqual((any(self.lost(plain + done)), self.lost(silent)), (False, [True] * 5))


class RefusedProtocolTests(SynchronousTestCase):
    """L{RefusedProtocol}."""

    def test_aborts(self) -> None:
        """It closes at once, on plain and TLS transports alike, and reads nothing."""
        for transport in (FakeTransport, FakeTLSTransport):
            clock = Clock()
            protocol: Protocol = RefusedProtocol()
            made = transport(clock, protocol)
            made.peerSends(b"x")
            made.connect()
            clock.advance(0)
            self.assertEqual((made.isLost, made.unread), (True, b"x"))
