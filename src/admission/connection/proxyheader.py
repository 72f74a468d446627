# -*- test-case-name: tests.unit.connection.test_proxyheader -*-
"""
The header by which a load balancer says whose connection it passes on (PROXY protocol).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.protocols.policies import ProtocolWrapper


def readerOfHeader(transport: Any) -> Any:
    """
    What lies between C{transport} and its socket and says who the peer is, though it may have to read that first, as
    Twisted's C{haproxy:} has; L{None} if the socket itself knows.
    """
    while isinstance(transport, ProtocolWrapper):
        if type(transport).getPeer is not ProtocolWrapper.getPeer:
            return transport
        transport = transport.transport
    return None


class ProxyHeader:
    """
    A header that has not come, as far as anybody has said.
    """

    __slots__ = ("_address", "_came", "_reader", "_receive")

    def __init__(self, reader: Any, came: Callable[[], None]) -> None:
        """
        @param reader: see L{readerOfHeader}.
        @param came: called when there is another peer than before; what came behind the header was delivered then.
        """
        self._reader = reader
        self._came = came
        self._address = reader.getPeer()
        # Whoever sends nothing behind its header is known by this alone.
        self._receive: Callable[[bytes], None] | None = reader.dataReceived
        reader.dataReceived = self._received

    def close(self) -> None:
        """
        It has come, or the connection is gone.
        """
        if self._receive is not None:
            self._receive = None
            del self._reader.dataReceived

    def _received(self, data: bytes) -> None:
        receive = self._receive
        assert receive is not None
        receive(data)
        if self._receive is not None and self._reader.getPeer() != self._address:
            self._came()
