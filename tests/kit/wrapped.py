"""A server that knows nothing of admission, wrapped, on fake transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.protocols.policies import ThrottlingFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.admission import wrapFactory
from admission.interfaces import DEFAULT, QuotaEntity
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit.admitted import runNext

KIB = 1 << 10

BUCKET = "client-bytes:produce=1000:fetch=1000:algorithm=bucket"
"""A thousand bytes a second in each direction, and a burst of as many."""


def limiting(**kwargs: Any) -> ScriptedQuota:
    """A policy that has a limit, and so is asked."""
    return ScriptedQuota(limits={QuotaEntity(clientId=DEFAULT): {"scripted_rate": 1.0}}, **kwargs)


class Foreign(Protocol):
    """
    Keeps what it receives, and does what it is told to.

    @ivar behave: called with the protocol and with what it has received.
    @ivar received: all of that.
    @ivar lost: why the connection was lost, once for each time it was told.
    @ivar isBusy: whether it is in the middle of receiving something.
    """

    transport: Any

    def __init__(self, behave: Callable[[Foreign, bytes], object] | None = None) -> None:
        self.behave = behave
        self.received = bytearray()
        self.lost: list[Failure] = []
        self.isBusy = False

    def dataReceived(self, data: bytes) -> None:
        """Keep it, and behave."""
        assert not self.isBusy, "it was called from within itself"
        assert not self.lost, "the connection was lost before"
        self.isBusy = True
        try:
            self.received += data
            if self.behave is not None:
                self.behave(self, data)
        finally:
            self.isBusy = False

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Remember why."""
        self.lost.append(reason)


def echo(protocol: Foreign, data: bytes) -> None:
    """Send back what was received."""
    protocol.transport.write(data)


class RecordingProducer:
    """
    A producer that does nothing but remember.

    @ivar told: what it was told, in order.
    """

    def __init__(self) -> None:
        self.told: list[str] = []

    def pauseProducing(self) -> None:
        """Remember."""
        self.told.append("pause")

    def resumeProducing(self) -> None:
        """Remember."""
        self.told.append("resume")

    def stopProducing(self) -> None:
        """Remember."""
        self.told.append("stop")


class Wrapped:
    """
    A factory of L{Foreign} protocols, wrapped, on a clock that stands still.

    @ivar behave: what the protocols of new connections do.
    @ivar protocols: all there were.
    """

    def __init__(self, wrap: Callable[..., Any] = wrapFactory, **kwargs: Any) -> None:
        """@param wrap: what wraps the factory; with what follows."""
        self.clock = Clock()
        self.behave: Callable[[Foreign, bytes], object] | None = None
        self.protocols: list[Foreign] = []
        self.inner = Factory.forProtocol(self._make)  # type: ignore[arg-type]
        if wrap is wrapFactory:
            kwargs = {"pool": "bounded:1MiB", "clock": self.clock, "reactor": object(), **kwargs}
        self.factory = wrap(self.inner, **kwargs)
        self.transports: list[FakeTransport] = []

    def connect(
        self, isTLS: bool = False, host: str = "192.0.2.1", kind: type[FakeTransport] | None = None
    ) -> tuple[Foreign, FakeTransport]:
        """
        Have a peer connect, and finish its handshake if there is one.

        @param kind: the class of the transport.

        @return: the protocol of the server, and the transport underneath.
        """
        made = self.open(isTLS, host, kind)
        return self.protocols[-1], made

    def open(
        self, isTLS: bool = False, host: str = "192.0.2.1", kind: type[FakeTransport] | None = None
    ) -> FakeTransport:
        """The same, if there may be no protocol for it."""
        address = IPv4Address("TCP", host, 50_000 + len(self.transports))
        kind = kind or (FakeTLSTransport if isTLS else FakeTransport)
        made = kind(self.clock, self.factory.buildProtocol(address), address)
        self.transports.append(made)
        made.connect()
        if isinstance(made, FakeTLSTransport):
            made.peerFinishesHandshake()
        self.settle()
        return made

    def settle(self) -> None:
        """Let everything happen that takes no time."""
        for _ in range(10_000):
            if not runNext(self.clock):
                break

    def used(self) -> dict[str, int]:
        """The ledger, without what is zero."""
        return {purpose: sizeBytes for purpose, sizeBytes in self.factory.gate.ledger.usedBytes.items() if sizeBytes}

    def close(self) -> None:
        """Have every peer gone."""
        for transport in self.transports:
            if not transport.isLost:
                transport.abortConnection()
        self.settle()

    def _make(self) -> Foreign:
        self.protocols.append(Foreign(self.behave))
        return self.protocols[-1]


def wrapped(case: SynchronousTestCase, **kwargs: Any) -> Wrapped:
    """A wrapped server whose clients are gone when C{case} is over."""
    server = Wrapped(**kwargs)
    case.addCleanup(server.close)
    return server


def stock(case: SynchronousTestCase, **limits: int) -> Wrapped:
    """The same behind Twisted's own C{ThrottlingFactory}."""
    server = Wrapped(ThrottlingFactory, **limits)
    server.factory.callLater = server.clock.callLater
    case.addCleanup(server.close)
    return server
