"""The site of the status port on transports without sockets, with pages that show what a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource

from admission.connection.debts import Debts
from admission.control import Explanation
from admission.interfaces import QuotaEntity, Request
from admission.metrics.registry import SensorRegistry
from admission.status.pages import StatusPages
from admission.status.site import StatusChannel, StatusSite

NOW_SECONDS = 1_000_000_000.0

ANONYMOUS = "ANONYMOUS"
"""The principal of clients that have not logged in."""

TURN_SECONDS = 1e-6


class TurningClock(Clock):
    """
    A clock that advances by a turn of the reactor at a time: what is asked for
    in one turn happens in a later one.
    """

    def callLater(self, when: float, what: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """See L{Clock.callLater}."""
        return super().callLater(max(when, TURN_SECONDS), what, *args, **kwargs)


class StandInControl:
    """
    A control that says what it is told to.

    @ivar asked: what it was asked to explain.
    """

    limitShare = 1.0

    def __init__(self) -> None:
        self.limits: dict[QuotaEntity, Mapping[str, float]] = {}
        self.explanations: list[Explanation] = []
        self.asked: list[Request] = []

    def explain(self, request: Request, now: float) -> list[Explanation]:
        """What was prepared."""
        self.asked.append(request)
        return self.explanations


class StandInDocument:
    """The state of a server as it is told to be."""

    text = '{"health": {}}\n'

    def __init__(self, control: StandInControl, sensors: SensorRegistry) -> None:
        self.server = self
        self.control = control
        self.sensors = sensors
        self.fields: dict[str, Any] = {}
        self.reasons: list[str] = []
        self.connections: list[Any] = []
        self.debts = Debts()
        self.anonymous = ANONYMOUS

    def wallSeconds(self) -> float:
        """Always the same time."""
        return NOW_SECONDS

    def clientIdAt(self, host: str) -> str:
        """Nobody is known by an address."""
        return ""


class StatusTransport(StringTransport):
    """A transport that can be aborted."""

    isAborted = False

    def abortConnection(self) -> None:
        """Remember it."""
        self.isAborted = self.disconnected = True


@frozen
class Response:
    """What came back."""

    code: int
    headers: Mapping[str, str]
    body: str

    @property
    def document(self) -> Any:
        """The body, which must be the JSON that it is said to be."""
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body, parse_constant=self._notJSON)

    def _notJSON(self, constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")


class StatusTestCase(SynchronousTestCase):
    """A test with a site, on transports without sockets."""

    def setUp(self) -> None:
        self.clock = TurningClock()
        self.control = StandInControl()
        self.sensors = SensorRegistry(self.clock.seconds)
        self.document = StandInDocument(self.control, self.sensors)
        document: Any = self.document
        self.root: Resource = StatusPages(self.clock, document).root
        self.site = StatusSite(self.root, self.clock, ["Broker.example"])

    def connect(self, host: str = "192.0.2.9") -> tuple[StatusChannel, StatusTransport]:
        """Open a connection from an address."""
        channel = self.site.buildProtocol(None)
        transport = StatusTransport(peerAddress=IPv4Address("TCP", host, 54321))
        channel.makeConnection(transport)
        self.addCleanup(self.disconnect, channel)
        return channel, transport

    def disconnect(self, channel: StatusChannel) -> None:
        """Have a connection be gone, if that has not been done."""
        if channel in self.site.channels:
            channel.connectionLost(Failure(ConnectionDone()))

    def send(self, data: bytes) -> tuple[StatusChannel, StatusTransport]:
        """Send C{data} on a connection of its own."""
        channel, transport = self.connect()
        channel.dataReceived(data)
        return channel, transport

    def turn(self, times: int = 100) -> None:
        """Let turns of the reactor pass, which take next to no time."""
        for _ in range(times):
            self.clock.advance(TURN_SECONDS)

    def exchange(self, data: bytes) -> Response:
        """Send a request and read the response to it, after which the connection is closed."""
        channel, transport = self.send(data)
        self.turn()
        self.assertTrue(transport.disconnecting, transport.value())
        self.disconnect(channel)
        head, _, body = transport.value().decode().partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if headers.get("transfer-encoding") == "chunked":
            body = unchunked(body)
        return Response(int(status.split()[1]), headers, body)

    def get(self, path: str, host: str = "localhost:9090", method: str = "GET") -> Response:
        """Ask for a page."""
        return self.exchange(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

    def assertRefused(self, response: Response, code: int, words: str) -> None:
        """A request was refused with a sentence in which these words are."""
        self.assertEqual(response.code, code, response)
        self.assertEqual(list(response.document), ["error"])
        self.assertIn(words, response.document["error"])


def unchunked(body: str) -> str:
    """What a body says that came in chunks, the last one included."""
    whole = ""
    while True:
        size, _, body = body.partition("\r\n")
        length = int(size, 16)
        whole, body = whole + body[:length], body[length:].removeprefix("\r\n")
        if not length:
            assert not body, body
            return whole
