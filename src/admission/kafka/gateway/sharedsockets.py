# -*- test-case-name: tests.unit.kafka.gateway.test_sharedsockets -*-
"""
Ports that one process opens and others listen on.  The kernel gives each connection to one of them, and connections
that wait in its queue are not lost as long as the first process has the socket.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer


def _family(interface: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in interface else socket.AF_INET


def _address6(interface: str, port: int) -> Any:
    # With the number of the interface that the address may name.
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(interface, port, socket.AF_INET6, socket.SOCK_STREAM, flags=flags)[0][4]


@implementer(IListeningPort)
class ReservedPort:
    """
    A socket that listens, from which this process accepts nothing.
    """

    def __init__(self, listening: socket.socket) -> None:
        self.socket = listening

    def startListening(self) -> None:
        pass

    def stopListening(self) -> Deferred[None]:
        # The socket is not shut down: processes that accept connections from it go on.
        self.socket.close()
        return succeed(None)

    def getHost(self) -> IAddress:
        host, port = self.socket.getsockname()[:2]
        return (IPv6Address if self.socket.family == socket.AF_INET6 else IPv4Address)("TCP", host, port)


class ReservingReactor:
    """
    A reactor for endpoints: the ports that they open with it accept nothing in this process.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> ReservedPort:
        family = _family(interface)
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((interface, port) if family == socket.AF_INET else _address6(interface, port))
            listening.listen(backlog)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise CannotListenError(interface, port, error) from error  # type: ignore[no-untyped-call]
        return ReservedPort(listening)

    def listenSSL(
        self, port: int, factory: Any, contextFactory: Any, backlog: int = 50, interface: str = ""
    ) -> ReservedPort:
        return self.listenTCP(port, factory, backlog, interface)


class AdoptingReactor:
    """
    A reactor for endpoints: the ports that they open with it are the sockets that the process was given, one after
    another.
    """

    def __init__(self, reactor: Any, descriptors: Iterable[int]) -> None:
        """
        @param descriptors: of sockets that listen; closed once they are adopted.
        """
        self._reactor = reactor
        self._descriptors = deque(descriptors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> IListeningPort:
        descriptor = self._descriptors.popleft()
        try:
            adopted: IListeningPort = self._reactor.adoptStreamPort(descriptor, _family(interface), factory)
        finally:
            # The port has a descriptor of its own, and the socket stays open as long as anybody has one.
            os.close(descriptor)
        return adopted

    def listenSSL(
        self, port: int, factory: Any, contextFactory: Any, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        return self.listenTCP(port, TLSMemoryBIOFactory(contextFactory, False, factory), backlog, interface)
