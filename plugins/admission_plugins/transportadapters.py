# -*- test-case-name: tests.contracts.test_transportadapters -*-
"""
Adapters that stop reading on Twisted's transports.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen
from twisted.internet.interfaces import ISSLTransport, ITransport
from twisted.python.components import registerAdapter
from zope.interface import Interface, implementer

from admission.interfaces import ITransportMutability


@implementer(ITransportMutability)
@frozen
class PlainMutability:
    """
    A transport that can stop reading at any time.  It buffers nothing: received
    bytes have been delivered.
    """

    transport: Any

    def isInMutableState(self) -> bool:
        return True

    def hasBytesBuffered(self) -> bool:
        return False

    def readBuffered(self) -> None:
        pass

    def mute(self) -> None:
        self.transport.pauseProducing()

    def unmute(self) -> None:
        self.transport.resumeProducing()


@implementer(ITransportMutability)
@frozen
class TLSMutability(PlainMutability):
    """
    A transport that must not stop before its handshake is over.

    L{hasBytesBuffered} is L{False} here as well: Twisted's TLS layer decrypts and delivers every whole record it has,
    paused or not, so that any overshoot is in the protocol above.
    """

    def isInMutableState(self) -> bool:
        handle = self.transport.getHandle()
        return handle is None or handle.get_peer_finished() is not None


def register() -> None:
    """
    Register both adapters.  On exactly these interfaces: TLS transports provide others that would come first, and every
    TCP transport provides ITLSTransport.
    """
    adapters: dict[type[Interface], type[PlainMutability]] = {ITransport: PlainMutability, ISSLTransport: TLSMutability}
    for interface, adapter in adapters.items():
        try:
            registerAdapter(adapter, interface, ITransportMutability)  # type: ignore[no-untyped-call]
        except ValueError:
            # An adapter is registered already: ours, or one that the application prefers.
            pass
