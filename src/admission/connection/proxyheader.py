# -*- test-case-name: tests.unit.connection.test_proxyheader -*-
"""
The header by which a load balancer says whose connection it passes on (PROXY protocol).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

from ..names import canonicalAddress

LONGEST_HEADER_BYTES = 4096
"""Addresses take 232 at most; the rest is for what a balancer may add."""

_BEGINNINGS = (V1Parser.PROXYSTR + b" ", V2Parser.PREFIX)


class HeaderFactory(WrappingFactory["HeaderReader"]):
    """
    Reads the headers of trusted proxies in front of all else, TLS too.
    """

    def __init__(
        self,
        wrappedFactory: Any,
        isTrusted: Callable[[IAddress | None], bool],
        isOptional: bool,
        refused: HeaderRefused,
    ) -> None:
        """
        @param isTrusted: whether a header of this peer is read, and believed.
        @param isOptional: whether a trusted proxy may send none, since it has other ways to say who its clients are.
        """
        super().__init__(wrappedFactory)  # type: ignore[no-untyped-call]
        self._isTrusted = isTrusted
        self.isOptional = isOptional
        self.refused = refused

    def buildProtocol(self, addr: IAddress | None) -> Any:
        built: Any = self.wrappedFactory.buildProtocol(addr)
        return self.reading(built) if self._isTrusted(addr) else built

    def reading(self, protocol: Any) -> HeaderReader:
        """
        C{protocol}, which is told of nothing until the header has come.
        """
        return HeaderReader(self, protocol)


HeaderRefused = Callable[[IAddress, str], None]
"""Called with the address of a trusted proxy, and with the reason why what it sent is no header."""


class HeaderReader(ProtocolWrapper):
    """
    Reads a header, of version 1 or 2, and is the transport of its protocol.
    """

    factory: HeaderFactory
    transport: Any
    wrappedProtocol: Any

    def __init__(self, factory: HeaderFactory, wrappedProtocol: Any) -> None:
        super().__init__(factory, wrappedProtocol)
        self._buffer: bytes | None = b""
        self._source: IAddress | None = None
        self._destination: IAddress | None = None

    def dataReceived(self, data: bytes) -> None:
        if self._buffer is None:
            self.wrappedProtocol.dataReceived(data)
            return
        self._buffer += data
        try:
            rest = self._read(self._buffer)
        except (InvalidProxyHeader, ValueError, LookupError) as error:
            self._refuse(f"its PROXY header makes no sense ({str(error) or type(error).__name__})")
            return
        if rest is not None:
            self._buffer = None
            if rest:
                self.wrappedProtocol.dataReceived(rest)

    def getPeer(self) -> IAddress:
        """
        The client, once that is known.
        """
        return self._source or self.transport.getPeer()

    def getHost(self) -> IAddress:
        return self._destination or self.transport.getHost()

    def _read(self, data: bytes) -> bytes | None:
        """
        @return: what comes behind the header; L{None} if it is not whole.
        """
        if not any(data.startswith(each[: len(data)]) for each in _BEGINNINGS):
            if self.factory.isOptional:
                return data
            self._refuse("it sent no PROXY header, as a trusted proxy has to")
            return None
        if len(data) < len(V2Parser.PREFIX) + 4:
            return None
        parser = V2Parser() if data.startswith(V2Parser.PREFIX) else V1Parser()
        info, rest = parser.feed(data)
        if info is None:
            if len(data) > LONGEST_HEADER_BYTES:
                raise InvalidProxyHeader("it is too long")
            return None
        self._source, self._destination = _checked(info.source), _checked(info.destination)
        return rest

    def _refuse(self, reason: str) -> None:
        self._buffer = b""
        self.factory.refused(self.transport.getPeer(), reason)
        self.transport.abortConnection()


def _checked(address: Any) -> IAddress | None:
    """
    An address of a header, as it is usually written; that of a UNIX socket says nothing.

    @raise ValueError: if it is none.
    """
    host = getattr(address, "host", None)
    if host is None:
        return None
    written = canonicalAddress(host)
    return (IPv6Address if ":" in written else IPv4Address)("TCP", written, address.port)


def readerOfHeader(transport: Any) -> Any:
    """
    The wrapper between C{transport} and its socket that says who the peer is, though it may have to read that first, as
    Twisted's C{haproxy:} has; L{None} if the socket itself knows.
    """
    while isinstance(transport, ProtocolWrapper):
        if type(transport).getPeer is not ProtocolWrapper.getPeer:
            return transport
        transport = transport.transport
    return None


class ProxyHeader:
    """
    A header of which nobody has said yet that it has come.
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
        # Only this notices the address of a peer that sends nothing behind its header.
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
