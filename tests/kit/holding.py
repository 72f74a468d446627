"""Transports that keep what a protocol has no use for at the moment, and say so."""

from __future__ import annotations

from twisted.internet.interfaces import IProtocol, IReactorTime, ITransport
from twisted.python.components import registerAdapter
from zope.interface import implementer

from admission.interfaces import ITransportMutability
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission_plugins.transportadapters import PlainMutability, TLSMutability

PIECE_BYTES = 1 << 12
"""What is delivered at once."""


class IHoldingTransport(ITransport):
    """
    A transport that keeps the rest of what it has received when it is paused in
    the middle of it, and forgets to go on.
    """


class _Holding(FakeTransport):
    def __init__(self, clock: IReactorTime, protocol: IProtocol, peer: object = None) -> None:
        super().__init__(clock, protocol, peer)
        self.held = bytearray()

    def deliverNext(self) -> None:
        """Deliver a piece of what is held."""
        piece = bytes(self.held[:PIECE_BYTES])
        del self.held[:PIECE_BYTES]
        if not self.isLost and self._aborting is None:
            self._protocol.dataReceived(piece)

    def _deliver(self, chunk: bytes) -> None:
        self.held += chunk
        while self.held and self.isReading:
            self.deliverNext()


@implementer(IHoldingTransport)
class HoldingTransport(_Holding):
    """A plain one."""


@implementer(IHoldingTransport)
class HoldingTLSTransport(_Holding, FakeTLSTransport):
    """One of TLS."""


class HoldingMutability(PlainMutability):
    """Says what is held, and has it delivered."""

    def isInMutableState(self) -> bool:
        isTLS = isinstance(self.transport, FakeTLSTransport)
        return not isTLS or TLSMutability(self.transport).isInMutableState()

    def hasBytesBuffered(self) -> bool:
        return bool(self.transport.held)

    def readBuffered(self) -> None:
        if self.transport.held:
            self.transport.deliverNext()


registerAdapter(HoldingMutability, IHoldingTransport, ITransportMutability)  # type: ignore[no-untyped-call]

KINDS = {
    (False, False): FakeTransport,
    (True, False): FakeTLSTransport,
    (False, True): HoldingTransport,
    (True, True): HoldingTLSTransport,
}
"""Transports, by whether they are TLS and whether they hold bytes."""
