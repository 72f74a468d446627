"""Requests of a site after which their connection speaks something else, as websockets do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Protocol
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from tests.kit.website import Visitor, WebServer


class Echo(Protocol):
    """What is spoken then."""

    transport: Any

    def dataReceived(self, data: bytes) -> None:
        """Send it back."""
        self.transport.write(data)


def asTwisted(request: Any) -> None:
    """As C{twisted.web.websocket} does it: the channel stays, and hands over what it receives."""
    transport = request.channel.transport
    request.channel._protocolUpgradeForWebsockets(Echo())
    transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")


def asAutobahn(request: Any) -> None:
    """As Autobahn and daphne do it: another protocol is in the place of the channel."""
    transport, request.channel.transport = request.channel.transport, None
    transport.wrappedProtocol = Echo()
    transport.wrappedProtocol.makeConnection(transport)
    transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")


class Upgrading(Resource):
    """Upgrades at once, or when it is told to."""

    isLeaf = True

    def __init__(self, upgrade: Callable[[Any], None]) -> None:
        super().__init__()
        self.upgrade = upgrade
        self.later: list[Any] = []

    def render_GET(self, request: Any) -> Any:
        """See above."""
        if request.path == b"/page":
            return b"page"
        if request.path == b"/later":
            self.later.append(request)
        else:
            self.upgrade(request)
        return NOT_DONE_YET


class UpgradeTests(SynchronousTestCase):
    """One place for requests, and each way to upgrade."""

    def each(self, **settings: Any) -> list[tuple[WebServer, Upgrading]]:
        """A server for each way."""
        made = []
        for upgrade in (asTwisted, asAutobahn):
            resource = Upgrading(upgrade)
            quota = settings.get("quota", "concurrency:total=1")
            made.append((WebServer(self, site=Site(resource), **{**settings, "quota": quota}), resource))
        return made

    def upgraded(self, server: WebServer, path: str = "/") -> Visitor:
        """A visitor that speaks something else by now."""
        visitor = server.connect()
        self.assertEqual(visitor.ask(f"GET {path}", "Upgrade: echo").status, 101)
        return visitor

    def test_over(self) -> None:
        """The request is over, and its place free, while what follows goes on; it is counted as what it was."""
        for server, _ in self.each():
            visitors = [self.upgraded(server) for _ in range(3)]
            for visitor in visitors:
                visitor.raw(b"hello")
                self.assertEqual(visitor.unread, b"hello")
            self.assertEqual(server.connect().ask("GET /page").status, 200)
            responses = dict(server.admission.sensors.families["Responses"].read(0.0))
            self.assertEqual(responses, {("GET", "1xx"): 3, ("GET", "2xx"): 1})

    def test_later(self) -> None:
        """A request that is upgraded later is over when its connection is, and so is one that is not at all."""
        for server, resource in self.each():
            for isUpgraded in (True, False):
                visitor = server.connect()
                visitor.send("GET /later")
                self.assertEqual(server.connect().ask("GET /page").status, 503)
                if isUpgraded:
                    resource.upgrade(resource.later[-1])
                    server.settle()
                    self.assertEqual(visitor.answer().status, 101)
                visitor.transport.abortConnection()
                server.settle()
                resource.later.clear()
                self.assertEqual(server.connect().ask("GET /page").status, 200)

    def test_bytes(self) -> None:
        """What follows is limited by its bytes, under the name of the client that asked, in both directions."""
        for server, _ in self.each(
            quota="client-bytes:received=1000:algorithm=bucket", nameOf=lambda request: ("", "alice")
        ):
            visitor = self.upgraded(server)
            visitor.raw(b"x" * 3000)
            visitor.raw(b"more")
            other = self.upgraded(server)
            other.raw(b"hello")
            self.assertEqual((visitor.unread[-4:], other.unread), (b"xxxx", b""))
            server.pass_(4)
            self.assertEqual((visitor.unread[-4:], other.unread), (b"more", b"hello"))

    def test_stops(self) -> None:
        """When the server stops, such a connection is closed at once."""
        for server, _ in self.each():
            server.factory.doStart()
            visitor = self.upgraded(server)
            stopped = server.admission.stop()
            server.settle()
            self.assertTrue(visitor.transport.isLost)
            self.successResultOf(stopped)
            server.factory.doStop()
