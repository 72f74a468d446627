"""L{admission.connection.protocol}, with peers and requests that do anything in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.connection.pauses import Pause
from admission.interfaces import FRAMES
from admission.request import ServerRequest
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import WHIM, RecordingProtocol, Server, framed
from tests.kit.holding import KINDS, HoldingTLSTransport, HoldingTransport

POOL_BYTES = 120_000
LARGEST_BYTES = 50_000
MAX_REQUESTS = 2

HOLDING = (HoldingTransport, HoldingTLSTransport)

SIZES = st.sampled_from([4, 5, 100, 5_000, 40_000, 50_000])
"""How large requests are; the first three bytes are a number and the fourth says what to do."""

BEHAVIOURS = [
    "answer",
    "answer largely",
    "answer and throttle",
    "finish",
    "later",
    "later",
    "later",
    "later without its memory",
    "park",
    "finish another",
    "mute and unmute",
    "mute",
    "close",
    "close and answer",
    "cut off and answer",
    "drain",
    "mute another",
    "fail",
    "answer and fail",
    "abort",
]


class Watched(RecordingProtocol):
    """
    A protocol that checks the rules whenever it is given a request, and does
    with it what the request says.

    @ivar machine: the test.
    @ivar received: how many requests it was given.
    @ivar isBusy: whether one is not over.
    """

    machine: Machine
    received = 0
    isBusy = False
    isInside = False

    def requestReceived(self, request: ServerRequest) -> None:
        """Check that it is the next one, and that none is under way."""
        frame = request.frame
        for isBroken, what in [
            (self.isBusy, "two requests at once"),
            (self.isInside, "the parser was entered again"),
            (int.from_bytes(frame[:3], "big") != self.received, "out of order"),
            (bytes(frame[4:]) != b"x" * (request.sizeBytes - 4), "not what was sent"),
        ]:
            if isBroken:
                # Raised from here it would be taken for a request that failed.
                self.machine.broken.append(what)
        self.received += 1
        self.isBusy = self.isInside = True
        try:
            self.machine.behave(self, "answer" if self.machine.isEnding else BEHAVIOURS[frame[3]])
        finally:
            self.isInside = False

    def over(self, sizeBytes: int = 4, delaySeconds: float = 0.0) -> None:
        """Answer."""
        self.isBusy = False
        self.respond([b"r" * sizeBytes], delaySeconds)


class Machine(RuleBasedStateMachine):
    """A server, its connections, and their peers."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: list[str] = []
        self.isEnding = False
        self.pending: list[Watched] = []
        self.parked: list[Watched] = []
        self.outbound: dict[FakeTransport, tuple[bytes, int]] = {}
        self.hasReceived: set[FakeTransport] = set()

    @initialize(strict=st.booleans(), peers=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=5))
    def start(self, strict: bool, peers: list[tuple[bool, bool]]) -> None:
        """
        Begin with some peers, each on TLS or not, and on a transport that keeps
        what it has received when it is paused, or not.
        """
        limits = ConnectionLimits(idleSeconds=10_000.0)
        clockless = BoundedPool(POOL_BYTES, LARGEST_BYTES, strict)
        self.server = Server(clockless, limits, MAX_REQUESTS, Watched)
        self.pool, self.gate, self.clock = clockless, self.server.gate, self.server.clock
        self.server.factory.start()
        for isTLS, isHolding in peers:
            self.connect(isTLS, isHolding, True)

    # What requests do

    def behave(self, protocol: Watched, behaviour: str) -> None:
        """Do one of C{BEHAVIOURS} with the request of C{protocol}."""
        if behaviour == "answer":
            protocol.over()
        elif behaviour == "answer largely":
            protocol.over(150_000)
        elif behaviour == "answer and throttle":
            protocol.over(delaySeconds=0.5)
        elif behaviour == "finish":
            protocol.isBusy = False
            protocol.finish()
        elif behaviour == "later":
            self.pending.append(protocol)
        elif behaviour == "later without its memory":
            protocol.releaseRequest()
            self.pending.append(protocol)
        elif behaviour == "park":
            protocol.park()
            self.parked.append(protocol)
        elif behaviour == "finish another":
            for others in (self.pending, self.parked):
                if others:
                    others.pop(0).over()
            protocol.over()
        elif behaviour == "mute and unmute":
            protocol.pause(WHIM)
            protocol.resume(WHIM)
            protocol.over()
            protocol.resume(WHIM)
        elif behaviour == "mute":
            protocol.pause(WHIM)
            protocol.over()
        elif behaviour == "mute another":
            self.muteAnother(protocol)
            protocol.over()
        elif behaviour == "drain":
            protocol.drain()
            self.pending.append(protocol)
        elif behaviour == "close":
            protocol.close("a whim")
            self.pending.append(protocol)
        elif behaviour == "close and answer":
            protocol.close("a whim")
            protocol.over()
        elif behaviour == "cut off and answer":
            protocol.cutOff("a whim")
            protocol.over()
        elif behaviour == "fail":
            protocol.isBusy = False
            raise ZeroDivisionError
        elif behaviour == "answer and fail":
            protocol.over()
            raise ZeroDivisionError
        elif behaviour == "abort":
            protocol.transport.abortConnection()
            self.pending.append(protocol)

    def muteAnother(self, protocol: Watched) -> None:
        """Let the other connections be read again, and then not the next one."""
        others = [each for each in self.server.factory.connections if each is not protocol]
        for other in others:
            other.resume(WHIM)
        if others:
            others[0].pause(WHIM)

    # What happens

    @precondition(lambda self: len(self.server.factory.connections) < 4)
    @rule(isTLS=st.booleans(), isHolding=st.booleans(), isHandshakeDone=st.booleans())
    def connect(self, isTLS: bool, isHolding: bool, isHandshakeDone: bool) -> None:
        """A peer connects."""
        protocol = self.server.factory.buildProtocol(None)
        assert isinstance(protocol, Watched)
        protocol.machine = self
        transport = KINDS[isTLS, isHolding](self.clock, protocol)
        transport.protocol = protocol  # type: ignore[attr-defined]
        self.outbound[transport] = (b"", 0)
        transport.connect()
        if isinstance(transport, FakeTLSTransport) and isHandshakeDone:
            transport.peerFinishesHandshake()

    def pick(self, number: int) -> Any:
        """One of the connections that are not lost, or L{None}."""
        alive = [transport for transport in self.outbound if not transport.isLost]
        return alive[number % len(alive)] if alive else None

    @rule(
        which=st.integers(0, 5),
        requests=st.lists(st.tuples(SIZES, st.integers(0, len(BEHAVIOURS) - 1)), min_size=1, max_size=8),
        withheldBytes=st.sampled_from([0, 0, 0, 1, 3, 60, 4_000]),
        isSettled=st.sampled_from([True, True, False]),
    )
    def send(self, which: int, requests: list[tuple[int, int]], withheldBytes: int, isSettled: bool) -> None:
        """A peer has requests to send, and sends all it has except the last few bytes."""
        transport = self.pick(which)
        if transport is None:
            return
        stream, count = self.outbound[transport]
        for sizeBytes, behaviour in requests:
            stream += framed(count.to_bytes(3, "big") + bytes([behaviour]) + b"x" * (sizeBytes - 4))
            count += 1
        sentBytes = max(len(stream) - withheldBytes, 0)
        transport.peerSends(stream[:sentBytes])
        self.outbound[transport] = (stream[sentBytes:], count)
        if isSettled:
            self.server.settle()

    @rule(which=st.integers(0, 5))
    def sendTheRest(self, which: int) -> None:
        """A peer sends all it has."""
        transport = self.pick(which)
        if transport is not None:
            stream, count = self.outbound[transport]
            transport.peerSends(stream)
            self.outbound[transport] = (b"", count)

    @rule(which=st.integers(0, 5))
    def finishHandshake(self, which: int) -> None:
        """A peer finishes its handshake."""
        transport = self.pick(which)
        if isinstance(transport, FakeTLSTransport):
            transport.peerFinishesHandshake()

    @rule(which=st.integers(0, 5), isTaking=st.booleans())
    def take(self, which: int, isTaking: bool) -> None:
        """A peer stops taking its responses, or takes them again."""
        transport = self.pick(which)
        if transport is not None:
            transport.isTaking = isTaking
            transport.wake()

    @rule(
        which=st.integers(0, 20),
        how=st.sampled_from(["end", "deaf", "gracefully", "drain", "close", "cutOff", "abort"]),
    )
    def end(self, which: int, how: str) -> None:
        """A connection ends, or a peer will not answer when it does."""
        transport = self.pick(which)
        if transport is None or which > 5:
            return
        protocol = transport.protocol
        if how == "end":
            transport.peerCloses()
        elif how == "deaf":
            transport.answersClose = False
        elif how == "gracefully":
            protocol.closeGracefully()
        elif how == "drain":
            protocol.drain()
        elif how == "close":
            protocol.close("a whim")
        elif how == "cutOff":
            protocol.cutOff("a whim")
        else:
            transport.abortConnection()

    @rule(which=st.integers(0, 5), isMuted=st.sampled_from([True, False, False]))
    def mute(self, which: int, isMuted: bool) -> None:
        """Somebody does not want a connection read, or does again."""
        transport = self.pick(which)
        if transport is not None:
            (transport.protocol.pause if isMuted else transport.protocol.resume)(WHIM)

    @precondition(lambda self: self.pending or self.parked)
    @rule(
        number=st.integers(0, 20), sizeBytes=st.sampled_from([0, 10, 150_000]), delaySeconds=st.sampled_from([0.0, 0.5])
    )
    def answer(self, number: int, sizeBytes: int, delaySeconds: float) -> None:
        """A request that was left for later is answered."""
        waiting = self.pending if self.pending and (number % 2 or not self.parked) else self.parked
        waiting.pop(number // 2 % len(waiting)).over(sizeBytes, delaySeconds)

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        """Some of what is due happens."""
        for _ in range(count):
            if not self.server.step():
                break

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.5, 1.0, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    # What always holds

    @invariant()
    def requestsAreInOrder(self) -> None:
        """See L{Watched}."""
        assert not self.broken, self.broken

    @invariant()
    def ledgerAdds(self) -> None:
        """The ledger accounts for what is taken, and frames stay within the bound."""
        if not hasattr(self, "server"):
            return
        assert sum(self.pool.usedBytesByPurpose.values()) == POOL_BYTES - self.pool.availableBytes
        assert min(self.pool.usedBytesByPurpose.values()) >= 0
        assert self.pool.peakFrameBytes <= POOL_BYTES + LARGEST_BYTES - 1
        assert self.pool.reclaimedLeases == 0, "a lease was dropped"

    @invariant()
    def turnsAreBounded(self) -> None:
        """Those work that were let through and are neither over nor parked."""
        if hasattr(self, "server"):
            assert self.gate.turns.runningRequests == len(self.pending) <= MAX_REQUESTS

    @invariant()
    def readingFollowsTheReasons(self) -> None:
        """
        A transport is stopped only for a reason, and never reads in spite of
        one, except for the request under way as long as nothing comes, and
        for TLS before anything has come.
        """
        for transport in self.outbound:
            protocol: Watched = transport.protocol  # type: ignore[attr-defined]
            if transport.isLost or protocol.isClosing or transport.disconnecting:
                continue
            assert protocol.pauses.isApplied == (not transport.isReading)
            reasons = set(protocol.pauses.reasons)
            if not transport.isReading:
                isBeingServed = isinstance(transport, HOLDING) and transport.held and self.clock.getDelayedCalls()
                assert reasons or isBeingServed, "stopped for no reason"
            elif (
                isinstance(transport, FakeTLSTransport) and not protocol.received and not protocol.framer.bufferedBytes
            ):
                continue
            elif reasons:
                assert reasons == {Pause.BUSY}, f"reads in spite of {reasons}"
                assert not protocol.framer.bufferedBytes, "reads more than it must"
            if not reasons:
                assert protocol.framer.bufferedBytes < 4, "leaves requests lying about"

    # How it ends

    def quiesce(self) -> None:
        """Everybody does what is expected of them until nothing is left to do."""
        self.isEnding = True
        for _ in range(60):
            for transport, (stream, count) in self.outbound.items():
                if not transport.isLost:
                    if isinstance(transport, FakeTLSTransport):
                        transport.peerFinishesHandshake()
                    transport.isTaking = True
                    transport.peerSends(stream)
                    self.outbound[transport] = (b"", count)
                    transport.protocol.resume(WHIM)  # type: ignore[attr-defined]
            for waiting in (self.pending, self.parked):
                while waiting:
                    waiting.pop(0).over()
            self.clock.advance(0.5)
            self.requestsAreInOrder()
            self.ledgerAdds()
            self.readingFollowsTheReasons()

    def teardown(self) -> None:
        """
        Nobody starves: a client that is still connected has had all its requests served.  And when all are gone nothing
        is left of them.
        """
        if not hasattr(self, "server"):
            return
        self.quiesce()
        for transport, (_, count) in self.outbound.items():
            protocol: Watched = transport.protocol  # type: ignore[attr-defined]
            if not (transport.isLost or protocol.isClosing):
                assert protocol.received == count, f"{protocol!r} had {protocol.received} of {count} served"
        self.server.factory.closeAll()
        self.clock.advance(5.0)
        self.clock.advance(0)
        assert all(transport.isLost for transport in self.outbound), "a connection does not end"
        assert self.pool.availableBytes == POOL_BYTES, self.server.used()
        assert not self.server.used()
        assert self.pool.usedBytesByPurpose[FRAMES] == 0
        assert (self.gate.turns.runningRequests, self.gate.memory.waiting) == (0, 0)
        assert not self.server.factory.connections
        self.gate.close()
        self.server.factory.stop()
        assert not self.clock.getDelayedCalls(), self.clock.getDelayedCalls()


class ProtocolStatesTests(SynchronousTestCase):
    """L{Machine}."""

    def test_anything(self) -> None:
        """
        Whatever peers and requests do in whatever order: requests are served
        in order and one at a time, the ledger adds up, reading follows the
        reasons, nobody starves, and nothing is left in the end.
        """
        run_state_machine_as_test(Machine, settings=settings(max_examples=200, stateful_step_count=60))
        self.flushLoggedErrors(ZeroDivisionError)
