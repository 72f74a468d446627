"""Connections that a load balancer passes on, whose headers say whose they are (PROXY protocol)."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from struct import pack
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.protocols.haproxy._wrapper import HAProxyWrappingFactory

from admission.testing.faketransport import FakeTransport
from tests.kit.recordingproxy import closeSocket

BALANCER = "192.0.2.250"

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def versionOne(host: str, reachedHost: str = "198.51.100.2", reachedPort: int = 9000) -> bytes:
    """A header of text."""
    return f"PROXY TCP4 {host} {reachedHost} 40000 {reachedPort}\r\n".encode()


def versionTwo(host: str) -> bytes:
    """A binary one."""
    addresses = ip_address(host).packed + ip_address("198.51.100.2").packed + pack(">HH", 40000, 9000)
    return _SIGNATURE + b"\x21\x11" + pack(">H", len(addresses)) + addresses


def balanced(server: Any, kind: type[FakeTransport] = FakeTransport) -> FakeTransport:
    """
    A connection of the load balancer to C{server}, on which nothing has come.

    @param server: one of L{tests.kit.wrapped} or L{tests.kit.admitted}.
    """
    address = IPv4Address("TCP", BALANCER, 50_000)
    protocol = HAProxyWrappingFactory(server.factory).buildProtocol(address)  # type: ignore[no-untyped-call]
    transport = kind(server.clock, protocol, address)
    transport.connect()
    server.settle()
    return transport


class Balancer:
    """
    Passes on connections, and says that they are from somewhere else than they are.

    @ivar port: where to reach it.
    """

    def __init__(self, serverPort: int, host: str) -> None:
        """
        @param serverPort: on 127.0.0.1.
        @param host: from where they are said to be.
        """
        self._host = host
        self._serverPort = serverPort
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close everything."""
        for each in self._sockets:
            closeSocket(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._serverPort))
                self._sockets += client, server
                server.sendall(versionOne(self._host, "127.0.0.1", self.port))
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_pass, args=(one, other), daemon=True).start()


def _pass(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    closeSocket(other)
