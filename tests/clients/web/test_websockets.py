"""Autobahn's websockets and twisted.web's own, plain and on TLS, with Autobahn's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autobahn.twisted.resource import WebSocketResource as AutobahnResource
from autobahn.twisted.websocket import (
    WebSocketClientFactory,
    WebSocketClientProtocol,
    WebSocketServerFactory,
    WebSocketServerProtocol,
)
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, serverFromString, wrapClientTLS
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.websocket import WebSocketResource

from tests.kit.certificates import Authority

LARGEST_BYTES = 200_000
QUOTA = r"quota=requests\:rate=20\:burst=5"


class Echo(WebSocketServerProtocol):  # type: ignore[misc]
    """Autobahn's way to say the same again."""

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Send it back."""
        self.sendMessage(payload, isBinary)


class OwnEcho:
    """An echo with the websockets of twisted.web."""

    transport: Any

    @classmethod
    def buildProtocol(cls, request: Any) -> OwnEcho:
        """One for each websocket."""
        return cls()

    def negotiationStarted(self, transport: Any) -> None:
        """Keep what sends."""
        self.transport = transport

    def negotiationFinished(self) -> None:
        """Nothing to do."""

    def textMessageReceived(self, message: str) -> None:
        """Send it back."""
        self.transport.sendTextMessage(message)

    def bytesMessageReceived(self, data: bytes) -> None:
        """Send it back."""
        self.transport.sendBytesMessage(bytes(data))

    def pongReceived(self, payload: bytes) -> None:
        """Nothing to do."""

    def connectionLost(self, reason: Any) -> None:
        """Nothing to do."""


class Asking(WebSocketClientProtocol):  # type: ignore[misc]
    """A client that keeps what it is told."""

    def onOpen(self) -> None:
        """It may ask from now on."""
        self.factory.opened.callback(self)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Count it."""
        self.factory.received.append(payload)
        if len(self.factory.received) == self.factory.expected:
            self.factory.done.callback(None)

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:
        """Tell with which code."""
        self.factory.closed.callback(code)


class WebSocketTests(TestCase):
    """As their users write them, behind the endpoint prefix."""

    async def served(self, factory: Any, isTLS: bool) -> Any:
        """Have it listen, protected; what connects a client to it."""
        authority, kind = Authority(), "tcp:0"
        if isTLS:
            identity, path = authority.server(), Path(self.mktemp()).absolute()
            path.write_bytes(identity.key + identity.certificate)
            kind = f"ssl:0:privateKey={path}"
        description = (
            rf"admission:{kind}:interface=127.0.0.1:pool=bounded\:16MiB:{QUOTA}:maxMessageBytes={LARGEST_BYTES}"
        )
        port: Any = await serverFromString(reactor, description).listen(factory)
        self.addCleanup(port.stopListening)
        number = port.getHost().port
        endpoint: Any = TCP4ClientEndpoint(reactor, "127.0.0.1", number)
        if isTLS:
            endpoint = wrapClientTLS(authority.trust(), endpoint)

        async def connect(path: str) -> Any:
            factory = WebSocketClientFactory(f"{'wss' if isTLS else 'ws'}://localhost:{number}{path}")
            factory.protocol = Asking
            factory.opened, factory.closed, factory.received = Deferred(), Deferred(), []
            await endpoint.connect(factory)
            return await factory.opened

        return connect

    def site(self) -> Site:
        """Both kinds on one site."""
        echoing = WebSocketServerFactory()
        echoing.protocol = Echo
        root = Resource()
        root.putChild(b"autobahn", AutobahnResource(echoing))
        root.putChild(b"own", WebSocketResource(OwnEcho()))
        return Site(root)

    async def used(self, connect: Any, path: str) -> None:
        """Messages come back, as fast as the policies allow; too large a one is the last."""
        client = await connect(path)
        factory = client.factory
        messages = [b"x" * size for size in (0, 1, 125, 126, 65_535, 65_536, LARGEST_BYTES)] + [
            b"%d" % n for n in range(15)
        ]
        factory.expected, factory.done = len(messages), Deferred()
        begun = reactor.seconds()  # type: ignore[attr-defined]
        for message in messages:
            client.sendMessage(message, isBinary=True)
        await factory.done
        self.assertEqual(factory.received, messages)
        # The request that asked for it counts, too, and one goes on credit.
        self.assertGreater(reactor.seconds() - begun, (len(messages) - 5) / 20 - 0.1)  # type: ignore[attr-defined]
        client.sendMessage(bytes(LARGEST_BYTES + 1), isBinary=True)
        self.assertEqual(await factory.closed, 1009)

    async def test_site(self) -> None:
        """On a site, plain and on TLS."""
        for isTLS in (False, True):
            for path in ("/autobahn", "/own"):
                await self.used(await self.served(self.site(), isTLS), path)

    async def test_alone(self) -> None:
        """A server that speaks nothing else."""
        for isTLS in (False, True):
            echoing = WebSocketServerFactory()
            echoing.protocol = Echo
            await self.used(await self.served(echoing, isTLS), "/")
