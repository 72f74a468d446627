"""A wrapped connection, whatever its protocol, its peer and the policies do, and in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.testing.scriptedpool import ScriptedPool
from tests.kit.holding import KINDS
from tests.kit.wrapped import KIB, Foreign, Wrapped, limiting

ACTIONS = st.sampled_from(
    ["nothing", "pause", "resume", "resume", "write", "write much", "push", "pull", "unregister", "more"] * 5
    + ["lose", "abort", "raise"]
)
"""What a protocol or a producer does when it is called."""

STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 20_000, 100_000])),
    st.tuples(st.just("send"), st.integers(1, 100_000)),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("delay"), st.sampled_from([0.0, 0.0, 0.5, 30.0])),
    st.tuples(st.just("memory"), st.booleans()),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 25.0])),
    st.tuples(st.just("act"), ACTIONS),
    st.tuples(st.just("leave"), st.sampled_from([True] + [False] * 5)),
)
"""What happens to a connection."""


class Erratic(Foreign):
    """
    A protocol, and a producer, that does one of the actions whenever it is called.

    @ivar actions: what to do, the first of them next.
    @ivar written: all that it wrote while it could expect that to be sent.
    @ivar isPaused: whether it has paused its transport.
    @ivar isOver: whether it has closed its connection.
    @ivar isSupplying: whether it is registered as a producer.
    @ivar registrations: how often it was, without having ended that itself.
    @ivar stops: how often it was told to stop.
    @ivar complaints: why it should not have been given anything when it was.
    """

    def __init__(self, actions: list[str]) -> None:
        super().__init__()
        self.actions = actions
        self.written = bytearray()
        self.isPaused = self.isOver = self.isSupplying = False
        self.registrations = self.stops = 0
        self.complaints: list[str] = []

    def dataReceived(self, data: bytes) -> None:
        """Check that it may be called, and do something."""
        for isWrong, words in [
            (self.isBusy, "was called from within itself"),
            (self.isOver, "had closed"),
            (self.isPaused and not self.transport.isLost, "had paused"),
            (bool(self.lost), "had lost its connection"),
        ]:
            if isWrong:
                self.complaints.append(words)
        self.received += data
        self.isBusy = True
        try:
            self.act()
        finally:
            self.isBusy = False

    def act(self, action: str | None = None) -> None:
        """Do C{action}, or what comes next."""
        if action is None:
            action = self.actions.pop(0) if self.actions else "nothing"
        transport = self.transport
        if transport is None:
            return
        if action == "pause":
            transport.pauseProducing()
            self.isPaused = True
        elif action == "resume":
            self.isPaused = False
            transport.resumeProducing()
        elif action in ("write", "write much"):
            self.write(bytes([len(self.written) % 251]) * (100 if action == "write" else 150 * KIB))
        elif action in ("push", "pull") and not self.isSupplying:
            self.isSupplying = True
            self.registrations += 1
            transport.registerProducer(self, action == "push")
        elif action == "unregister":
            if self.isSupplying:
                self.registrations -= 1
            self.isSupplying = False
            transport.unregisterProducer()
        elif action in ("lose", "abort"):
            self.isOver = True
            transport.loseConnection() if action == "lose" else transport.abortConnection()
        elif action == "raise":
            self.isOver = True
            raise ZeroDivisionError
        elif action == "more" and len(self.actions) < 100:
            self.actions += ["write", "nothing", "resume"]

    def write(self, data: bytes) -> None:
        """Write, and remember it."""
        self.written += data
        self.transport.write(data)

    def pauseProducing(self) -> None:
        """Do something."""
        self.act()

    def resumeProducing(self) -> None:
        """Do something."""
        self.act()

    def stopProducing(self) -> None:
        """It supplies nothing any more."""
        self.isSupplying = False
        self.stops += 1


class StatesTests(SynchronousTestCase):
    """What holds for every connection at any time."""

    @settings(deadline=None, max_examples=250)
    @given(
        isTLS=st.booleans(),
        isHolding=st.booleans(),
        actions=st.lists(ACTIONS, min_size=10, max_size=40),
        steps=st.lists(STEPS, min_size=10, max_size=40),
    )
    def test_anything(self, isTLS: bool, isHolding: bool, actions: list[str], steps: list[tuple[str, Any]]) -> None:
        """
        A protocol gets what its peer has sent, in order, each byte once, never
        from within itself, never while it has paused or after it has closed,
        and all of it once nothing keeps it; the peer gets what was written
        likewise; the end is told once; and then nothing is held.
        """
        pool = ScriptedPool(1 << 30)
        policy = limiting()
        server = Wrapped(pool=pool, quota=policy, limits=ConnectionLimits(sendSeconds=1e6))
        protocol = Erratic(list(actions))
        server.inner.protocol = lambda: protocol  # type: ignore[assignment,method-assign]
        server.protocols.append(protocol)
        _, transport = server.connect(isTLS, kind=KINDS[isTLS, isHolding])
        sent = bytearray()
        for step, argument in steps:
            if step == "send":
                data = bytes([len(sent) % 251]) * argument
                sent += data
                transport.peerSends(data)
            elif step == "take":
                transport.isTaking = argument
                transport.wake()
            elif step == "delay":
                policy.delaySeconds = argument
            elif step == "memory":
                pool.relent() if argument else pool.refuse()
            elif step == "pass":
                server.clock.advance(argument)
            elif step == "act":
                try:
                    protocol.act(argument)
                except ZeroDivisionError:
                    # Not in anybody's call, and so nobody's business.
                    protocol.isOver = protocol.transport.isClosing
            elif argument and not transport.isLost:
                transport.peerCloses()
            server.clock.advance(0)
            self.check(protocol, transport, sent)
        # From here on nothing is in the way.
        protocol.actions.clear()
        policy.delaySeconds = 0.0
        pool.relent()
        transport.isTaking = True
        transport.wake()
        protocol.isPaused = False
        if protocol.transport is not None:
            protocol.transport.resumeProducing()
        for _ in range(80):
            server.clock.advance(1.0)
        self.check(protocol, transport, sent)
        if not (protocol.isOver or transport.isLost):
            self.assertEqual(protocol.received, sent)
            self.assertEqual(transport.received, protocol.written)
        server.close()
        self.assertEqual((len(protocol.lost), protocol.stops), (1, protocol.registrations))
        self.assertEqual((pool.leases, server.clock.getDelayedCalls()), ([], []))
        self.assertEqual((len(server.factory.connections), server.factory.gate.memory.waiting), (0, 0))
        self.flushLoggedErrors(ZeroDivisionError)

    def check(self, protocol: Erratic, transport: Any, sent: bytearray) -> None:
        """What holds at any time."""
        self.assertEqual(protocol.complaints, [])
        self.assertTrue(sent.startswith(protocol.received))
        self.assertTrue(protocol.written.startswith(transport.received))
        self.assertLessEqual(len(protocol.lost), 1)
        self.assertEqual(len(protocol.lost), transport.isLost)
