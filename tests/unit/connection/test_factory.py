"""
L{admission.connection.factory}.
"""

from __future__ import annotations

import math
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import LOGGED_REFUSALS, TLS_CONNECTION_BYTES, ConnectionLimits, RefusedProtocol
from admission.connection.protocol import AdmittedProtocol
from admission.control import SWEEP_SECONDS, AdmissionControl
from admission.interfaces import CONNECTIONS, ILease
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission.testing.scriptedquota import ScriptedQuota
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import WHIM, RecordingProtocol, Server, framed, serve
from tests.kit.certificates import Authority
from tests.kit.holding import HoldingTransport


def address(host: str = "192.0.2.1") -> IPv4Address:
    """
    Where a peer comes from.
    """
    return IPv4Address("TCP", host, 50_000)


class LimitsTests(SynchronousTestCase):
    """
    L{ConnectionLimits}.
    """

    def test_mistakes(self) -> None:
        """
        What would fail with the first connection, or keep the reactor busy, is refused at once by its name.
        """
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
        """
        None at all, and for ever, are limits.
        """
        limits = ConnectionLimits(maxConnections=0, idleSeconds=math.inf, closeGraceSeconds=0)
        self.assertEqual((limits.maxConnections, limits.idleSeconds, limits.closeGraceSeconds), (0, math.inf, 0))


class NumberTests(SynchronousTestCase):
    """
    How many connections there may be.
    """

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(maxConnections=3, maxConnectionsPerAddress=2))
        self.factory = self.server.factory

    def assertRefused(self, host: str) -> None:
        """
        A connection from C{host} is refused and gone.
        """
        protocol, transport = self.server.connect(host=host)
        self.assertIsInstance(protocol, RefusedProtocol)
        self.assertTrue(transport.isLost)

    def test_perAddress(self) -> None:
        """
        From one address come so many and no more; others are not affected.
        """
        for _ in range(2):
            protocol, _ = self.server.connect(host="192.0.2.1")
            self.assertIsInstance(protocol, AdmittedProtocol)
        self.assertRefused("192.0.2.1")
        protocol, _ = self.server.connect(host="192.0.2.2")
        self.assertIsInstance(protocol, AdmittedProtocol)

    def test_inAll(self) -> None:
        """
        In all there are so many and no more, wherever they come from.
        """
        for number in range(3):
            self.server.connect(host=f"192.0.2.{number}")
        self.assertRefused("192.0.2.9")
        self.assertEqual((len(self.factory.connections), self.factory.refusedConnections), (3, 1))

    def test_roomAgain(self) -> None:
        """
        A connection that is gone makes room for another from its address; the
        ones that were refused never took any.
        """
        transports = [self.server.connect()[1] for _ in range(2)]
        for _ in range(5):
            self.assertRefused("192.0.2.1")
        transports[0].abortConnection()
        self.server.settle()
        protocol, _ = self.server.connect()
        self.assertIsInstance(protocol, AdmittedProtocol)
        self.assertRefused("192.0.2.1")

    def test_noAddress(self) -> None:
        """
        Peers without an address, as on UNIX sockets, are limited in all only.
        """
        for _ in range(3):
            protocol = self.factory.buildProtocol(None)
            self.assertIsInstance(protocol, AdmittedProtocol)
            transport = FakeTransport(self.server.clock, protocol)
            transport.getPeer = object  # type: ignore[method-assign]
            transport.connect()
        self.assertIsInstance(self.factory.buildProtocol(None), RefusedProtocol)

    def test_refusalsSayWhy(self) -> None:
        """
        The log names the peer and the limit by its property.
        """
        with capturedLogs() as events:
            for _ in range(3):
                self.server.connect(host="192.0.2.1")
            for _ in range(2):
                self.server.connect(host="192.0.2.2")
        reasons = [event["reason"] for event in events]
        self.assertEqual(len(reasons), 2)
        self.assertIn("max.connections.per.ip", reasons[0])
        self.assertIn("(max.connections)", reasons[1])
        self.assertEqual(events[0]["peer"], "192.0.2.1:50002")

    def test_throughTLS(self) -> None:
        """
        A TLS factory gets a protocol for the connection too many as well, and
        closes it.
        """
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
    """
    How much is logged of what peers make us do.
    """

    def test_limited(self) -> None:
        """
        So many refusals are logged in words, the rest are counted until the
        next sweep, and then it begins anew.
        """
        server = serve(self, limits=ConnectionLimits(maxConnections=1, idleSeconds=1_000_000))
        server.factory.start()
        server.connect()
        for expectedMore in (10, 7):
            with capturedLogs() as events:
                for _ in range(LOGGED_REFUSALS + expectedMore):
                    server.connect()
            self.assertEqual(len(events), LOGGED_REFUSALS)
            with capturedLogs() as events:
                server.clock.advance(10)
            self.assertEqual([event.get("count") for event in events], [expectedMore])
        with capturedLogs() as events:
            server.clock.advance(10)
        self.assertEqual(events, [])
        server.factory.stop()

    def test_badFramesCount(self) -> None:
        """
        Connections that are closed for what they sent count towards the same.
        """
        server = serve(self)
        with capturedLogs() as events:
            for _ in range(LOGGED_REFUSALS + 5):
                _, transport = server.connect()
                transport.peerSends(b"\xff" * 4)
                server.settle()
        self.assertEqual(len(events), LOGGED_REFUSALS)


class IdleTests(SynchronousTestCase):
    """
    Connections that do nothing.
    """

    def setUp(self) -> None:
        self.server = serve(self, limits=ConnectionLimits(idleSeconds=60.0, receiveSeconds=1e9))
        self.clock = self.server.clock
        self.server.factory.start()
        self.addCleanup(self.server.factory.stop)

    def pass_(self, seconds: int) -> None:
        """
        Let time pass, second by second.
        """
        self.clock.pump([1] * seconds)

    def test_idle(self) -> None:
        """
        A connection that is silent for the time is closed, one that sends now
        and then is not.
        """
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
        """
        A part of a length does not keep a connection open.
        """
        _, transport = self.server.connect()
        transport.peerSends(b"\0\0")
        self.pass_(64)
        self.assertTrue(transport.isLost)

    def test_handshakeThatNeverEnds(self) -> None:
        """
        Nor does a TLS handshake that was begun.
        """
        _, transport = self.server.connect(transport=FakeTLSTransport)
        self.pass_(64)
        self.assertTrue(transport.isLost)

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
        """
        A connection that has waited for nearly the time, and is answered, has
        the whole time again.
        """
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
        """
        As long as we keep it from going on for another reason as well, it is
        not idle.
        """
        self.server.behave = lambda protocol, request: protocol.park()
        protocol, transport = self.server.connect()
        self.server.send(transport, b"one")
        protocol.pause(WHIM)
        self.pass_(300)
        self.assertFalse(transport.isLost)

    def test_never(self) -> None:
        """
        With no limit nothing is ever idle.
        """
        server = serve(self, limits=ConnectionLimits(idleSeconds=math.inf))
        server.factory.start()
        _, transport = server.connect()
        server.clock.pump([3600] * 100)
        self.assertFalse(transport.isLost)
        server.factory.stop()

    def test_failingClose(self) -> None:
        """
        A connection that fails to close does not keep the others open.
        """

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
        """
        A factory that is stopped, twice if need be, looks no more.
        """
        self.server.factory.stop()
        self.server.factory.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class SweepTests(SynchronousTestCase):
    """
    The control of a factory is swept.
    """

    def test_nowAndThen(self) -> None:
        """
        From the start on to the stop, at the time that it is then, and no timer
        is left.
        """
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
        """
        A factory that is given none has one without policies.
        """
        self.assertEqual(Server().factory.control.policyNames, ())


class CloseAllTests(SynchronousTestCase):
    """
    C{AdmittedFactory.closeAll}.
    """

    def test_none(self) -> None:
        """
        Without connections it is done at once.
        """
        self.assertIs(self.successResultOf(serve(self).factory.closeAll()), None)

    def test_all(self) -> None:
        """
        It is done when the last connection is gone, and whoever asked again
        hears of it too.
        """
        server = serve(self)
        server.connect()
        _, deaf = server.connect(isTLS=True)
        deaf.answersClose = False
        closings = [server.factory.closeAll(), server.factory.closeAll()]
        server.settle()
        self.assertEqual(len(server.factory.connections), 1)
        for closing in closings:
            self.assertNoResult(closing)
        server.clock.advance(5)
        server.settle()
        for closing in closings:
            self.assertIs(self.successResultOf(closing), None)


class Port:
    """
    A port that can be told to stop accepting.

    @ivar calls: what it was told.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        """
        Stop accepting.
        """
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        """
        Accept again.
        """
        self.calls.append("resume")


class PortTests(SynchronousTestCase):
    """
    When ports stop accepting.
    """

    def setUp(self) -> None:
        self.server = serve(self, BoundedPool(1 << 20))
        self.ports: list[Any] = [Port(), Port()]
        for port in self.ports:
            self.server.factory.addPort(port)

    def calls(self) -> list[str]:
        """
        What both ports were told.
        """
        self.assertEqual(self.ports[0].calls, self.ports[1].calls)
        return list(self.ports[0].calls)

    def test_plain(self) -> None:
        """
        Plain connections can be muted at once, so ports go on accepting them.
        """
        _, transport = self.server.connect()
        lease = self.server.pool.tryAllocate(1 << 20)
        self.server.send(transport, b"one")
        self.assertTrue(self.server.gate.isUnderPressure)
        self.assertEqual(self.calls(), [])
        lease.release()

    def test_tls(self) -> None:
        """
        TLS connections cannot, so ports pause while somebody waits for memory.
        """
        _, transport = self.server.connect(isTLS=True)
        lease = self.server.pool.tryAllocate(1 << 20)
        self.server.send(transport, b"one")
        self.assertEqual(self.calls(), ["pause"])
        lease.release()
        self.server.settle()
        self.assertEqual(self.calls(), ["pause", "resume"])
        self.assertEqual(transport.received, framed(b"one"))

    def test_tlsComesLater(self) -> None:
        """
        The first TLS connection pauses them if there is pressure already.
        """
        _, transport = self.server.connect()
        lease = self.server.pool.tryAllocate(1 << 20)
        self.server.send(transport, b"one")
        self.server.connect(isTLS=True, host="192.0.2.2")
        self.assertEqual(self.calls(), ["pause"])
        lease.release()
        self.server.settle()
        self.assertEqual(self.calls(), ["pause", "resume"])

    def test_notAfforded(self) -> None:
        """
        A TLS connection after which there is no memory for another pauses the
        ports until there is.
        """
        charge = self.server.pool.charge((1 << 20) - TLS_CONNECTION_BYTES - 100, CONNECTIONS)
        self.server.connect(isTLS=True)
        self.assertEqual(self.calls(), ["pause"])
        charge.release()
        self.server.settle()
        self.assertEqual(self.calls(), ["pause", "resume"])


class RefusedProtocolTests(SynchronousTestCase):
    """
    L{RefusedProtocol}.
    """

    def test_aborts(self) -> None:
        """
        It closes at once, on plain and TLS transports alike, and reads nothing.
        """
        for transport in (FakeTransport, FakeTLSTransport):
            clock = Clock()
            protocol: Protocol = RefusedProtocol()
            made = transport(clock, protocol)
            made.peerSends(b"x")
            made.connect()
            clock.advance(0)
            self.assertEqual((made.isLost, made.unread), (True, b"x"))
