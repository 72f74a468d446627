"""A site of twisted.web, protected, on fake transports."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from attrs import define
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from admission import Admission
from admission.interfaces import CONNECTIONS
from admission.testing.faketransport import FakeTransport
from admission.web import protectSite
from tests.kit.admitted import runNext


@define
class Answer:
    """What a client was sent."""

    status: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """A client of HTTP/1.1, which parses what it is sent."""

    def __init__(self, server: WebServer, transport: FakeTransport) -> None:
        self.server = server
        self.transport = transport
        self._taken = 0

    def send(self, *lines: str, body: bytes = b"", isWhole: bool = True) -> None:
        """
        Send a request, with a length if there is a body.

        @param isWhole: whether C{body} is all of it.
        """
        head = [lines[0] + " HTTP/1.1", "Host: site", *lines[1:]]
        if body and isWhole and not any(each.lower().startswith("content-length") for each in lines):
            head.append(f"Content-Length: {len(body)}")
        self.raw("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.peerSends(data)
        self.server.settle()

    @property
    def unread(self) -> bytes:
        """What was sent to it since it last looked."""
        return bytes(self.transport.received[self._taken :])

    def answer(self) -> Answer:
        """The next answer; it is there."""
        head, separator, rest = self.unread.partition(b"\r\n\r\n")
        assert separator, f"no answer: {self.unread!r}"
        first, *others = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in others)}
        sizeBytes = int(headers.get("content-length", 0))
        self._taken += len(head) + 4 + sizeBytes
        return Answer(int(first.split()[1]), headers, rest[:sizeBytes])

    @property
    def isWaiting(self) -> bool:
        """Whether something that it sent was not answered, or not whole."""
        return len(self.server.admission._underWay) > 0 or bool(self.transport.unread)

    def answers(self) -> list[Answer]:
        """All that are there."""
        found = []
        while b"\r\n\r\n" in self.unread:
            found.append(self.answer())
        return found

    def ask(self, *lines: str, body: bytes = b"") -> Answer:
        """Send a request, and see what is answered."""
        self.send(*lines, body=body)
        return self.answer()


class Pages(Resource):
    """
    Answers with the length and the beginning of the body; C{/later} when told to, by its client or us.

    @ivar requests: all there were.
    """

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    def render(self, request: Any) -> Any:
        self.requests.append(request)
        if request.path.startswith(b"/later"):
            request.notifyFinish().addErrback(lambda _: None)
            return NOT_DONE_YET
        content = request.content.read()
        return b"%s %d %s %r" % (request.method, len(content), content[:10], sorted((request.args or {}).items()))


class WebServer:
    """
    A protected site whose clock stands still.

    @cvar turnSeconds: how long each turn of the reactor takes.
    @ivar writes: what is to be written to files by "threads", if these have to wait.
    """

    turnSeconds = 0.0

    def __init__(
        self, test: SynchronousTestCase, pool: str = "bounded:16MiB", quota: Any = (), **settings: Any
    ) -> None:
        self.clock = Clock()
        self.pages = Pages()
        self.site = Site(self.pages, reactor=self.clock)
        reactor = SimpleNamespace(getThreadPool=lambda: None)
        own = {name: settings.pop(name) for name in ("limits", "export", "order", "trustedProxies") if name in settings}
        self.admission = Admission(pool=pool, quota=quota, clock=self.clock, reactor=reactor, **own)
        self.writes: list[Callable[[], None]] | None = None
        requestSite = settings.pop("site", self.site)
        self.factory = protectSite(self.admission, requestSite, random=Random(1), inThread=self.inThread, **settings)
        self.pool = self.admission.gate.pool
        self.visitors: list[Visitor] = []
        test.addCleanup(self.close, test)

    def inThread(self, function: Callable[[], None]) -> Deferred[None]:
        """Call it at once, or when it is told to."""
        if self.writes is None:
            function()
            return succeed(None)
        done: Deferred[None] = Deferred()
        self.writes.append(lambda: (function(), done.callback(None))[0])
        return done

    def connect(self, host: str = "192.0.2.1") -> Visitor:
        """A new visitor."""
        address = IPv4Address("TCP", host, 50_000 + len(self.visitors))
        transport = FakeTransport(self.clock, self.factory.buildProtocol(address), address)
        transport.connect()
        self.settle()
        visitor = Visitor(self, transport)
        self.visitors.append(visitor)
        return visitor

    def settle(self) -> None:
        """Let everything happen that is due."""
        while runNext(self.clock):
            self.clock.rightNow += self.turnSeconds

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.pump([seconds / 10] * 10)
        self.settle()

    @property
    def requestBytes(self) -> int:
        """How much memory requests have."""
        used = self.pool.usedBytesByPurpose
        return sum(used.values()) - used.get(CONNECTIONS, 0)

    def close(self, test: SynchronousTestCase) -> None:
        """All clients leave; nothing is held then."""
        for visitor in self.visitors:
            if not visitor.transport.isLost:
                visitor.transport.abortConnection()
        self.settle()
        self.pages.requests.clear()
        while self.writes:
            self.writes.pop(0)()
        # Requests that are forgotten end in a turn of their own.
        self.settle()
        test.assertEqual(self.pool.availableBytes, self.pool.sizeBytes)
        test.assertEqual(self.admission._underWay, set())
        test.assertEqual(self.factory.wrappedFactory.served.spool.usedBytes, 0)
