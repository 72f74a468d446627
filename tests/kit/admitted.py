"""A server of admitted connections on fake transports, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import AdmittedFactory, ConnectionLimits
from admission.connection.pauses import Pause
from admission.control import AdmissionControl
from admission.gate.gate import Gate
from admission.gate.placequeue import PlaceQueue
from admission.interfaces import IMemoryPool
from admission.request import ServerRequest
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission_plugins.orders import RandomRounds
from tests.kit.listpurgatory import ListPurgatory
from tests.kit.patchable import PatchablePool

WHIM = Pause.OPENING
"""A pause that nothing else in these tests asks for."""


def framed(*bodies: bytes) -> bytes:
    """The stream that carries C{bodies}."""
    return b"".join(pack(">i", len(body)) + body for body in bodies)


def runNext(clock: Clock) -> bool:
    """
    Make the next of the calls of C{clock} that are due, and no other.

    @return: whether there was one.
    """
    if not clock.calls or clock.calls[0].getTime() > clock.seconds():
        return False
    call: Any = clock.calls.pop(0)
    call.called = 1
    call.func(*call.args, **call.kw)
    return True


def advanceTo(clock: Any, atSeconds: float) -> None:
    """Let time pass, with each timer of a L{Clock} at its moment."""
    while (call := min(clock.getDelayedCalls(), key=lambda each: each.getTime(), default=None)) is not None:
        if call.getTime() > atSeconds:
            break
        clock.advance(max(call.getTime() - clock.seconds(), 0.0))
    clock.advance(max(atSeconds - clock.seconds(), 0.0))


class RecordingProtocol(AdmittedProtocol):
    """
    Keeps its requests, and answers each with itself unless told otherwise.

    @ivar behave: what to do with a request instead.
    @ivar requests: their bodies.
    @ivar lostReason: why the connection was lost, once it is.
    """

    lostReason: Failure | None = None

    def __init__(self, behave: Callable[[RecordingProtocol, ServerRequest], None] | None = None) -> None:
        self.behave = behave
        self.requests: list[bytes] = []

    def requestReceived(self, request: ServerRequest) -> None:
        """Remember, and behave."""
        self.requests.append(bytes(request.frame))
        if self.behave is None:
            self.respond([framed(bytes(request.frame))])
        else:
            self.behave(self, request)

    def connectionLost(self, reason: Failure = Failure(ValueError())) -> None:  # noqa: B008
        """Remember why."""
        super().connectionLost(reason)
        self.lostReason = reason


class RecordingWatch:
    """
    Stands in for a L{HangUpWatch <admission.connection.hangup.HangUpWatch>}.

    @ivar watched: what to call for each descriptor that is watched.
    """

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[bool], None]] = {}

    def add(self, fileno: int, hungUp: Callable[[bool], None]) -> None:
        """Watch."""
        assert fileno not in self.watched
        self.watched[fileno] = hungUp

    def discard(self, fileno: int) -> None:
        """Watch no longer."""
        self.watched.pop(fileno, None)


def gateFor(pool: IMemoryPool, clock: IReactorTime, seed: int = 0, maxRequests: int = 500) -> Gate:
    """A gate that draws from C{seed} who is served next."""
    random = Random(seed)
    memoryOrder, turnOrder, answerOrder, decodingOrder = (RandomRounds(random) for _ in range(4))
    return Gate(pool, clock, memoryOrder, turnOrder, answerOrder, decodingOrder, maxRequests)


class Server:
    """
    A gate, a pool and a factory on a clock that stands still.

    @ivar behave: what the protocols of new connections do with a request.
    """

    def __init__(
        self,
        pool: IMemoryPool | None = None,
        limits: ConnectionLimits | None = None,
        maxRequests: int = 100,
        protocol: Callable[..., RecordingProtocol] = RecordingProtocol,
        control: AdmissionControl | None = None,
    ) -> None:
        self.clock = Clock()
        self.pool: Any = PatchablePool(1 << 20, seconds=self.clock.seconds) if pool is None else pool
        self.gate = gateFor(self.pool, self.clock, maxRequests=maxRequests)
        self.watch = RecordingWatch()
        self.behave: Callable[[RecordingProtocol, ServerRequest], None] | None = None
        self.factory = AdmittedFactory(
            lambda: protocol(self.behave),
            self.gate,
            self.clock,
            self.watch,  # type: ignore[arg-type]
            limits,
            control,
        )
        purgatory = ListPurgatory(self.clock)
        self.factory.places = PlaceQueue(self.pool, self.clock, purgatory, RandomRounds(Random(0)))
        self.connected: list[FakeTransport] = []

    def connect(self, isTLS: bool = False, host: str = "192.0.2.1", transport: Any = None) -> tuple[Any, Any]:
        """
        Have a peer connect, and finish its handshake if there is one.

        @param transport: the class of the transport.
        @return: the protocol and its transport.
        """
        if transport is None:
            transport = FakeTLSTransport if isTLS else FakeTransport
        address = IPv4Address("TCP", host, 50_000 + len(self.connected))
        protocol = self.factory.buildProtocol(address)
        made = transport(self.clock, protocol, address)
        self.connected.append(made)
        made.connect()
        if isTLS:
            made.peerFinishesHandshake()
        self.settle()
        return protocol, made

    def send(self, transport: FakeTransport, *bodies: bytes) -> None:
        """Have a peer send requests, and see what comes of it."""
        transport.peerSends(framed(*bodies))
        self.settle()

    def settle(self) -> None:
        """Let everything happen that takes no time."""
        self.clock.advance(0)

    def step(self) -> bool:
        """
        Let one thing happen that takes no time.

        @return: whether there was one.
        """
        return runNext(self.clock)

    def close(self) -> None:
        """
        Have every peer gone.  For the end of tests: what connections hold is
        reported as lost when they are only dropped, in the middle of another
        test.
        """
        for connection in list(self.factory.connections):
            connection.transport.abortConnection()
        self.settle()

    def used(self) -> dict[str, int]:
        """The ledger, without what is zero."""
        return {purpose: sizeBytes for purpose, sizeBytes in self.gate.ledger.usedBytes.items() if sizeBytes}


def serve(case: SynchronousTestCase, *args: Any, **kwargs: Any) -> Server:
    """A server whose clients are gone when C{case} is over."""
    server = Server(*args, **kwargs)
    case.addCleanup(server.close)
    return server
