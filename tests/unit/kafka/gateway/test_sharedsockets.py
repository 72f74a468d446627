"""Tests for L{admission.kafka.gateway.sharedsockets}: with sockets, since all of it is about them."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, clientFromString, connectProtocol
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from admission.kafka.gateway.sharedsockets import AdoptingReactor, ReservedPort, ReservingReactor
from admission.kafka.serving.servercertificate import TLSEndpoint
from tests.kit.brokerprocess import certificates


class Greeting(Protocol):
    """Says something, and hangs up."""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"hello")
        self.transport.loseConnection()


class Listening(Protocol):
    """What a server says until it hangs up."""

    def __init__(self) -> None:
        self.said = b""
        self.whole: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.said += data

    def connectionLost(self, *_: object) -> None:
        self.whole.callback(self.said)


class SharedSocketTests(TestCase):
    """Ports that are opened once, and adopted by several."""

    def reserve(self, interface: str = "127.0.0.1") -> ReservedPort:
        """A port that is open."""
        kind: Any = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
        port = self.successResultOf(kind(ReservingReactor(reactor), 0, interface=interface).listen(Factory()))
        self.addCleanup(port.stopListening)
        self.assertIsInstance(port, ReservedPort)
        verifyObject(IListeningPort, port)
        return port

    def adopt(self, *ports: ReservedPort) -> list[IListeningPort]:
        """The same ports, as another process has them."""
        adopting = AdoptingReactor(reactor, [os.dup(port.socket.fileno()) for port in ports])
        return [
            self.successResultOf(
                TCP4ServerEndpoint(adopting, port.getHost().port).listen(Factory.forProtocol(Greeting))
            )
            for port in ports
        ]

    @inlineCallbacks
    def ask(self, description: str) -> Any:
        """What is said there."""
        endpoint = clientFromString(reactor, description)
        client = yield connectProtocol(endpoint, Listening())
        said = yield client.whole
        return said

    @inlineCallbacks
    def test_adopted(self) -> Any:
        """
        A client that has come before anybody accepts is served by the process that adopts the port, and each has its
        own.
        """
        first, second = self.reserve(), self.reserve()
        waiting = self.ask(f"tcp:127.0.0.1:{first.getHost().port}")
        adopted = self.adopt(first, second)
        for port in adopted:
            self.addCleanup(port.stopListening)
        self.assertEqual([each.getHost() for each in adopted], [first.getHost(), second.getHost()])
        self.assertEqual((yield waiting), b"hello")
        self.assertEqual((yield self.ask(f"tcp:127.0.0.1:{second.getHost().port}")), b"hello")

    @inlineCallbacks
    def test_oneEnds(self) -> Any:
        """Where one process has ended clients wait for the next; the port is closed when all have."""
        port = self.reserve()
        description = f"tcp:127.0.0.1:{port.getHost().port}"
        (adopted,) = self.adopt(port)
        yield adopted.stopListening()
        waiting = self.ask(description)
        (adopted,) = self.adopt(port)
        self.assertEqual((yield waiting), b"hello")
        yield port.stopListening()
        self.assertEqual((yield self.ask(description)), b"hello")
        yield adopted.stopListening()
        yield self.assertFailure(self.ask(description), ConnectionRefusedError, Exception)

    def test_inUse(self) -> None:
        """A port that is taken is an error that says so, and no socket is left open."""
        taken = self.reserve().getHost().port
        before = len(os.listdir("/proc/self/fd"))
        listening = TCP4ServerEndpoint(ReservingReactor(reactor), taken, interface="127.0.0.1").listen(Factory())
        error = self.failureResultOf(listening, CannotListenError).value
        self.assertEqual((error.port, error.socketError.strerror), (taken, "Address already in use"))
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_version6(self) -> None:
        """Addresses of IPv6 are as Twisted's own endpoint has them: all of them are those of IPv4, too."""
        if not socket.has_ipv6:
            self.skipTest("there is no IPv6 here")
        port = self.reserve("::")
        self.assertEqual(port.getHost().host, "::")
        with socket.create_connection(("127.0.0.1", port.getHost().port), 10):
            pass

    @inlineCallbacks
    def test_certificate(self) -> Any:
        """A port with TLS is opened without it, and the process that adopts it shows the certificate."""
        files = certificates()
        description = f"ssl:0:privateKey={files.serverKey}:certKey={files.serverCertificate}:interface=127.0.0.1"
        port = yield TLSEndpoint(ReservingReactor(reactor), description).listen(Factory())
        self.addCleanup(port.stopListening)
        adopting = AdoptingReactor(reactor, [os.dup(port.socket.fileno())])
        adopted = yield TLSEndpoint(adopting, description).listen(Factory.forProtocol(Greeting))
        self.addCleanup(adopted.stopListening)
        roots = self.mktemp()
        os.mkdir(roots)
        os.symlink(files.authority, os.path.join(roots, "authority.pem"))
        said = yield self.ask(f"tls:localhost:{port.getHost().port}:trustRoots={roots}")
        self.assertEqual(said, b"hello")
