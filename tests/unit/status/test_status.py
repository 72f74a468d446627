"""
Tests for L{admission.status}.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from socket import gethostname
from typing import Any

from attrs import frozen
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource

from admission.connection.factory import RefusedProtocol
from admission.control import Explanation
from admission.interfaces import DEFAULT, QuotaEntity, QuotaStatus, Request
from admission.kafka.broker.broker import ANONYMOUS
from admission.kafka.options import Options
from admission.kafka.service import BrokerConfig, BrokerService
from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry
from admission.status.numbers import LONGEST_NAME, bounded, finite, shortened
from admission.status.page import BadQuestion, Page
from admission.status.pages import ROWS_PER_PIECE, statusPages
from admission.status.port import StatusPort, isLocal
from admission.status.site import (
    CONNECTION_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    StatusChannel,
    StatusSite,
)

NOW_SECONDS = 1_000_000_000.0

SVG_NAMESPACE = "http://www.w3.org/2000/svg"


TURN_SECONDS = 1e-6


class TurningClock(Clock):
    """
    A clock that advances by a turn of the reactor at a time: what is asked for
    in one turn happens in a later one.
    """

    def callLater(self, when: float, what: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """
        See L{Clock.callLater}.
        """
        return super().callLater(max(when, TURN_SECONDS), what, *args, **kwargs)


class StandInControl:
    """
    A control that says what it is told to.

    @ivar asked: what it was asked to explain.
    """

    def __init__(self) -> None:
        self.limits: dict[QuotaEntity, Mapping[str, float]] = {}
        self.explanations: list[Explanation] = []
        self.asked: list[Request] = []

    def explain(self, request: Request, now: float) -> list[Explanation]:
        """
        What was prepared.
        """
        self.asked.append(request)
        return self.explanations


class StandInSnapshot:
    """
    A snapshot of a broker that there is not.
    """

    text = '{"health": {}}\n'


class StandInHealth:
    """
    Health as it is told to be.
    """

    def __init__(self) -> None:
        self.reasons: list[str] = []


class StatusTransport(StringTransport):
    """
    A transport that can be aborted.
    """

    isAborted = False

    def abortConnection(self) -> None:
        """
        Remember it.
        """
        self.isAborted = self.disconnected = True


@frozen
class Response:
    """
    What came back.
    """

    code: int
    headers: Mapping[str, str]
    body: str

    @property
    def document(self) -> Any:
        """
        The body, which must be the JSON that it is said to be.
        """
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body, parse_constant=self._notJSON)

    def _notJSON(self, constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")


class CountingPage(Page):
    """
    A page of many pieces, which counts those it was asked for.
    """

    title = "Counts."
    parameters = ("until",)
    contentType = b"text/plain"
    made = 0

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One number a piece.
        """
        until = int(question.get("until", "5"))
        if until < 0:
            raise BadQuestion("it counts upwards")
        for self.made in range(1, until + 1):
            if self.made == 4:
                raise ValueError("it cannot count to four")
            yield f"{self.made} "


class StatusTestCase(SynchronousTestCase):
    """
    A test with a site, on transports without sockets.
    """

    def setUp(self) -> None:
        """
        Make everything that a page may show.
        """
        self.clock = TurningClock()
        self.control = StandInControl()
        self.sensors = SensorRegistry(self.clock.seconds)
        control: Any = self.control
        self.snapshot = StandInSnapshot()
        self.health = StandInHealth()
        snapshot: Any = self.snapshot
        health: Any = self.health
        self.root: Resource = statusPages(self.clock, control, self.sensors, lambda: NOW_SECONDS, snapshot, health)
        self.site = StatusSite(self.root, self.clock, ["Broker.example"])

    def connect(self) -> tuple[StatusChannel, StatusTransport]:
        """
        Open a connection.
        """
        channel, transport = self.site.buildProtocol(None), StatusTransport()
        channel.makeConnection(transport)
        self.addCleanup(self.disconnect, channel)
        return channel, transport

    def disconnect(self, channel: StatusChannel) -> None:
        """
        Have a connection be gone, if that has not been done.
        """
        if channel in self.site.channels:
            channel.connectionLost(Failure(ConnectionDone()))

    def send(self, data: bytes) -> tuple[StatusChannel, StatusTransport]:
        """
        Send C{data} on a connection of its own.
        """
        channel, transport = self.connect()
        channel.dataReceived(data)
        return channel, transport

    def turn(self, times: int = 100) -> None:
        """
        Let turns of the reactor pass, which take next to no time.
        """
        for _ in range(times):
            self.clock.advance(TURN_SECONDS)

    def exchange(self, data: bytes) -> Response:
        """
        Send a request and read the response to it, after which the connection
        is closed.
        """
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
        """
        Ask for a page.
        """
        return self.exchange(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

    def assertRefused(self, response: Response, code: int, words: str) -> None:
        """
        A request was refused with a sentence in which these words are.
        """
        self.assertEqual(response.code, code, response)
        self.assertEqual(list(response.document), ["error"])
        self.assertIn(words, response.document["error"])


def unchunked(body: str) -> str:
    """
    What a body says that came in chunks, the last one included.
    """
    whole = ""
    while True:
        size, _, body = body.partition("\r\n")
        length = int(size, 16)
        whole, body = whole + body[:length], body[length:].removeprefix("\r\n")
        if not length:
            assert not body, body
            return whole


class PagesTests(StatusTestCase):
    """
    The pages say how things are.
    """

    def test_index(self) -> None:
        """
        The list of pages has all of them, with what may be asked.
        """
        response = self.get("/help")
        self.assertEqual((response.code, response.headers["content-type"]), (200, "text/plain; charset=utf-8"))
        pages = [line for line in response.body.splitlines() if line.startswith("/")]
        self.assertEqual(
            pages,
            [
                *("/", "/status.json", "/explain?clientId=&user=&ip=", "/quotas", "/sensors", "/metrics", "/healthz"),
                "/help",
            ],
        )

    def test_front(self) -> None:
        """
        The page for people refers to nothing that is not here, and runs nothing that is in it.
        """
        response = self.get("/")
        self.assertEqual((response.code, response.headers["content-type"]), (200, "text/html; charset=utf-8"))
        targets = re.findall(r'(?:src|href|action)="([^"]*)"', response.body)
        self.assertIn("page.js", targets)
        for target in targets:
            code = 400 if target == "explain" else 200
            self.assertEqual(self.get(f"/{target}").code, code, target)
        self.assertNotRegex(response.body, r"<script(?! type=\"module\" src=)|<style|\bstyle=|\bon[a-z]+=")

    def test_assets(self) -> None:
        """
        What the page is made of comes as what it is, and names no other place.
        """
        for name, contentType in (
            ("page.js", "text/javascript; charset=utf-8"),
            ("plots.js", "text/javascript; charset=utf-8"),
            ("page.css", "text/css; charset=utf-8"),
            ("icon.svg", "image/svg+xml"),
        ):
            response = self.get(f"/{name}")
            self.assertEqual((response.code, response.headers["content-type"]), (200, contentType))
            self.assertEqual(set(re.findall(r"https?://[^\"']*", response.body)) - {SVG_NAMESPACE}, set())

    def test_snapshot(self) -> None:
        """
        The snapshot is there as JSON.
        """
        self.assertEqual(self.get("/status.json").document, {"health": {}})

    def test_health(self) -> None:
        """
        Health is a status of HTTP, with the reasons if it is bad.
        """
        response = self.get("/healthz")
        self.assertEqual((response.code, response.document), (200, {"status": "ok"}))
        self.health.reasons = ["the disk is full"]
        response = self.get("/healthz")
        self.assertEqual(response.code, 503)
        self.assertEqual(response.document, {"status": "unavailable", "reasons": ["the disk is full"]})
        self.assertEqual(self.get("/healthz", method="HEAD").code, 503)

    def test_metrics(self) -> None:
        """
        What is measured is there for Prometheus.
        """
        self.sensors.addGauge("RunningRequests", lambda now: 7)
        response = self.get("/metrics")
        self.assertEqual(
            (response.code, response.headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8")
        )
        self.assertIn("admission_requests_running 7.0\n", response.body)

    def test_explain(self) -> None:
        """
        Each limit comes with whose it is, what is used of it and how long the client is throttled.
        """
        entity = QuotaEntity(user="alice", clientId=DEFAULT)
        self.control.explanations = [
            Explanation("client-bytes", False, QuotaStatus("producer_byte_rate", 1000.0, entity, 1500.0, 2.5)),
            Explanation("request-time", True, QuotaStatus("request_percentage", 200.0, entity, 50.0, 0.0)),
        ]
        document = self.get("/explain?clientId=reports&user=alice&ip=192.0.2.1").document
        self.assertEqual(self.control.asked, [Request("", "alice", "reports", "192.0.2.1", 0)])
        whose = {"user": "alice", "clientId": DEFAULT, "ip": None}
        self.assertEqual(
            document,
            {
                "user": "alice",
                "clientId": "reports",
                "ip": "192.0.2.1",
                "limits": [
                    {
                        "policy": "client-bytes",
                        "isShadow": False,
                        "limitName": "producer_byte_rate",
                        "limit": 1000.0,
                        "entity": whose,
                        "used": 1500.0,
                        "usedFraction": 1.5,
                        "delaySeconds": 2.5,
                        "delayEndsAtSeconds": NOW_SECONDS + 2.5,
                    },
                    {
                        "policy": "request-time",
                        "isShadow": True,
                        "limitName": "request_percentage",
                        "limit": 200.0,
                        "entity": whose,
                        "used": 50.0,
                        "usedFraction": 0.25,
                        "delaySeconds": 0.0,
                        "delayEndsAtSeconds": None,
                    },
                ],
            },
        )

    def test_explainSome(self) -> None:
        """
        Who has not logged in is anonymous; an empty client id is one; limits of addresses are left out if none
        was named.
        """
        self.control.explanations = [
            Explanation("connections", False, QuotaStatus("connection_creation_rate", 1.0, entity, 0.0, 0.0))
            for entity in (QuotaEntity(ip=DEFAULT), QuotaEntity(user=DEFAULT))
        ]
        document = self.get("/explain?clientId=").document
        self.assertEqual(self.control.asked, [Request("", ANONYMOUS, "", "", 0)])
        self.assertEqual(document["ip"], None)
        self.assertEqual([limit["entity"]["user"] for limit in document["limits"]], [DEFAULT])
        self.assertEqual(len(self.get("/explain?ip=2001:DB8:0::1").document["limits"]), 2)
        self.assertEqual(self.control.asked[-1].peer, "2001:db8::1")

    def test_explainNames(self) -> None:
        """
        Names are UTF-8 and may be anything.
        """
        name = 'a "b" \u00fc&=\n'
        document = self.get("/explain?clientId=a%20%22b%22%20%C3%BC%26%3D%0A").document
        self.assertEqual(document["clientId"], name)

    def test_noQuestion(self) -> None:
        """
        What makes no sense is refused, saying what would.
        """
        for path, words in (
            ("/explain", "say which client"),
            ("/explain?ip=192.0.2.1:80", "without a port"),
            ("/explain?ip=", "'' is not an address"),
            ("/explain?client=a", "'client'; this page may have clientId, user, ip"),
            ("/explain?user=a&user=b", "user is given 2 times"),
            ("/explain?user=%ff", "not UTF-8"),
            ("/explain?%ff=a", "not UTF-8"),
            ("/quotas?user=a", "'user'; this page has no parameters"),
        ):
            self.assertRefused(self.get(path), 400, words)

    def test_quotas(self) -> None:
        """
        The limits that are set come by entity, however many there are.
        """
        self.assertEqual(self.get("/quotas").document, {"quotas": []})
        for number in range(ROWS_PER_PIECE * 2 + 1):
            self.control.limits[QuotaEntity(clientId=f"client-{number}")] = {"producer_byte_rate": 1.0 + number}
        rows = self.get("/quotas").document["quotas"]
        self.assertEqual(len(rows), ROWS_PER_PIECE * 2 + 1)
        self.assertEqual(
            rows[-1],
            {
                "user": None,
                "clientId": f"client-{ROWS_PER_PIECE * 2}",
                "ip": None,
                "limits": {"producer_byte_rate": ROWS_PER_PIECE * 2 + 1.0},
            },
        )

    def test_sensors(self) -> None:
        """
        Everything that is measured is there; what is not a number is null.
        """
        histogram = Histogram((1.0, 2.0))
        for value in (0.5, 0.5, 3.0):
            histogram.record(value)
        self.sensors.addGauge("Depth", lambda now: 7)
        self.sensors.addGauge("Rate", lambda now: math.nan)
        self.sensors.addCounter("Requests", lambda now: 3)
        self.sensors.addHistogram("WaitSeconds", histogram)
        self.sensors.addHistogram("Never", Histogram((1.0,)))
        self.sensors.addFamily("Bytes", ("user", "client-id"), lambda now: [(("a", ""), 1.5), (("b", "c"), math.inf)])
        self.sensors.addFamily("Nobody", ("user",), lambda now: [], isCounter=True)
        self.assertEqual(
            self.get("/sensors").document,
            {
                "values": {"Depth": 7, "Rate": None, "Requests": 3},
                "histograms": {
                    "WaitSeconds": {
                        "count": 3,
                        "total": 4.0,
                        "median": 1.0,
                        "percentile99": None,
                        "ranges": [{"upTo": 1.0, "count": 2}, {"upTo": None, "count": 1}],
                    },
                    "Never": {"count": 0, "total": 0.0, "median": None, "percentile99": None, "ranges": []},
                },
                "families": {
                    "Bytes": {
                        "isCounter": False,
                        "labels": ["user", "client-id"],
                        "values": [["a", "", 1.5], ["b", "c", None]],
                    },
                    "Nobody": {"isCounter": True, "labels": ["user"], "values": []},
                },
            },
        )

    def test_familyChanges(self) -> None:
        """
        A family is read as it is written, in turns; it may grow meanwhile.
        """
        members: dict[str, float] = {str(number): 0.0 for number in range(ROWS_PER_PIECE + 1)}
        read = 0

        def clients(now: float) -> Iterator[tuple[tuple[str], float]]:
            nonlocal read
            for name, value in list(members.items()):
                read += 1
                yield (name,), value

        self.sensors.addFamily("Clients", ("name",), clients)
        _channel, transport = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        for number in range(20):
            before = read
            self.turn(1)
            self.assertLessEqual(read - before, ROWS_PER_PIECE)
            members[f"new {number}"] = 1.0
        self.assertTrue(transport.disconnecting)
        document = json.loads(unchunked(transport.value().decode().partition("\r\n\r\n")[2]))
        self.assertGreater(read, ROWS_PER_PIECE)
        self.assertEqual(len(document["families"]["Clients"]["values"]), read)

    def test_finite(self) -> None:
        """
        JSON has numbers, and null for the rest.
        """
        self.assertEqual(
            [finite(value) for value in (1.5, 0, math.inf, -math.inf, math.nan)], [1.5, 0, None, None, None]
        )

    def test_bounded(self) -> None:
        """
        What stands for no bound is null.
        """
        self.assertEqual([bounded(value) for value in (0, 1 << 40, 2**63 - 1)], [0, 1 << 40, None])

    def test_shortened(self) -> None:
        """
        Names may be as long as a client likes, and are shown as long as one can read.
        """
        self.assertEqual(shortened("a" * LONGEST_NAME), "a" * LONGEST_NAME)
        self.assertEqual(len(shortened("a" * 30_000)), LONGEST_NAME)


class SiteTests(StatusTestCase):
    """
    The site keeps to its bounds, whoever asks.
    """

    def test_paths(self) -> None:
        """
        What is not there is not found, below a page neither.
        """
        for path in (
            "/none",
            "/explain/more?user=a",
            "/quotas/",
            "/..",
            "/%2e%2e/etc",
            "http://localhost/quotas",
        ):
            self.assertRefused(self.get(path), 404, "/help lists those that there are")

    def test_methods(self) -> None:
        """
        The port can be read and nothing else.
        """
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
            response = self.get("/quotas", method=method)
            self.assertRefused(response, 405, "use GET or HEAD")
            self.assertEqual(response.headers["allow"], "get, head")

    def test_head(self) -> None:
        """
        HEAD gets what GET gets, without a body, be it a refusal.
        """
        for path, code in (("/", 200), ("/sensors", 200), ("/explain", 400), ("/none", 404)):
            response = self.get(path, method="HEAD")
            self.assertEqual((response.code, response.body), (code, ""))
            self.assertEqual(response.headers["content-type"], self.get(path).headers["content-type"])

    def test_names(self) -> None:
        """
        A name that is not the broker's is refused, since it may be that of a page in an operator's browser;
        addresses and known names are not.
        """
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9090", "192.0.2.7", "[::1]:9090", "broker.example.:80"):
            self.assertEqual(self.get("/quotas", host=host).code, 200, host)
        for host in (
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "",
            "1.2.3.4.evil.example",
            "a:b:c",
        ):
            self.assertRefused(self.get("/quotas", host=host), 403, "--advertise")

    def test_severalNames(self) -> None:
        """
        One right name among others does not help; none at all is no browser's, and served.
        """
        self.assertRefused(
            self.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), 403, "name"
        )
        self.assertEqual(self.exchange(b"GET / HTTP/1.0\r\n\r\n").code, 200)

    def test_headers(self) -> None:
        """
        Nothing is cached or taken for something else, and no connection is kept.
        """
        for path in ("/quotas", "/none"):
            headers = self.get(path).headers
            self.assertEqual(
                (headers["cache-control"], headers["x-content-type-options"], headers["connection"]),
                ("no-store", "nosniff", "close"),
            )
            policy = headers["content-security-policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)

    def test_body(self) -> None:
        """
        A request with a body is refused before the body is there, and the rest of it ignored.
        """
        for header in (b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked"):
            head = b"GET / HTTP/1.1\r\n" + header + b"\r\n\r\n"
            for data in (head, head + b"hello", head + b"5\r\nhello\r\n0\r\n\r\n"):
                self.assertRefused(self.exchange(data), 413, "no body")
        self.assertEqual(self.exchange(b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").code, 200)

    def test_onePerConnection(self) -> None:
        """
        A second request on a connection is not answered.
        """
        _channel, transport = self.send(b"GET /none HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\n")
        self.turn()
        self.assertEqual(transport.value().count(b"HTTP/1.1 404"), 1)

    def test_longHead(self) -> None:
        """
        A request line that is too long, too much header or too many of them end the connection.
        """
        for data in (
            b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 1000 + b"\r\n") * 9,
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 2),
            b"nonsense\r\n\r\n",
        ):
            _channel, transport = self.send(data)
            self.assertTrue(transport.disconnecting)
            self.assertNotIn(b"200 OK", transport.value())

    def test_connections(self) -> None:
        """
        There are so many connections and no more; room comes back with the first that goes.
        """
        channels = [self.connect()[0] for _ in range(MAX_CONNECTIONS)]
        refused = self.site.buildProtocol(None)
        self.assertIsInstance(refused, RefusedProtocol)
        transport = StatusTransport()
        refused.makeConnection(transport)
        self.assertTrue(transport.isAborted)
        self.disconnect(channels[0])
        self.assertIsInstance(self.site.buildProtocol(None), StatusChannel)

    def test_deadline(self) -> None:
        """
        Whoever takes too long to ask is hung up on; a header a second does not help.
        """
        channel, transport = self.send(b"GET / HTTP/1.1\r\n")
        for _ in range(int(CONNECTION_SECONDS) - 1):
            self.clock.advance(1.0)
            channel.dataReceived(b"A: b\r\n")
        self.assertFalse(transport.isAborted)
        self.clock.advance(1.0)
        self.assertTrue(transport.isAborted)

    def test_deadlineOfReading(self) -> None:
        """
        Whoever does not read the answer is hung up on as well.
        """
        channel, transport = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        channel.pauseProducing()
        self.clock.advance(CONNECTION_SECONDS)
        self.assertTrue(transport.isAborted)

    def test_noTimers(self) -> None:
        """
        A connection that is gone leaves no timer behind, and a site without one has none.
        """
        self.site.doStart()
        channel, _ = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        self.disconnect(channel)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.site.channels, set())
        self.site.doStop()

    def test_noAccessLog(self) -> None:
        """
        Requests leave no trace in the log.
        """
        self.site.doStart()
        with capturedLogs() as events:
            self.get("/quotas")
            self.get("/quotas", host="evil.example")
        self.assertEqual(events, [])
        self.site.doStop()


class DeliveryTests(StatusTestCase):
    """
    A page leaves in pieces.
    """

    def setUp(self) -> None:
        """
        A page that can count to three.
        """
        super().setUp()
        self.page = CountingPage(self.clock)
        self.root.putChild(b"count", self.page)

    def test_turns(self) -> None:
        """
        Each piece has a turn of its own.
        """
        _channel, transport = self.send(b"GET /count?until=3 HTTP/1.0\r\n\r\n")
        for written in ("1 ", "1 2 ", "1 2 3 "):
            self.assertEqual(transport.value().decode().partition("\r\n\r\n")[2], written)
            self.assertFalse(transport.disconnecting)
            self.turn(1)
        self.assertTrue(transport.disconnecting)

    def test_backpressure(self) -> None:
        """
        Nothing is made while the client does not read.
        """
        channel, transport = self.send(b"GET /count?until=3 HTTP/1.1\r\n\r\n")
        channel.pauseProducing()
        channel.pauseProducing()
        self.turn()
        self.assertEqual(self.page.made, 1)
        channel.resumeProducing()
        channel.resumeProducing()
        self.turn()
        self.assertEqual(self.page.made, 3)
        self.assertTrue(transport.disconnecting)

    def test_clientLeaves(self) -> None:
        """
        Nothing more is made for a client that has gone.
        """
        channel, _ = self.send(b"GET /count?until=3 HTTP/1.1\r\n\r\n")
        channel.stopProducing()
        self.disconnect(channel)
        self.turn()
        self.assertEqual(self.page.made, 1)

    def test_headMakesOne(self) -> None:
        """
        For HEAD one piece is made, to know whether there is anything.
        """
        self.assertEqual(self.get("/count", method="HEAD").code, 200)
        self.assertEqual(self.page.made, 1)
        self.assertEqual(self.get("/count?until=-1", method="HEAD").code, 400)

    def test_fails(self) -> None:
        """
        A page that fails says so, and the log says why.
        """
        self.assertRefused(self.get("/count?until=many"), 500, "the broker's log")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_failsHalfway(self) -> None:
        """
        A page that fails halfway is cut off, so that nobody takes it for whole.
        """
        _channel, transport = self.send(b"GET /count?until=5 HTTP/1.1\r\n\r\n")
        self.turn()
        self.assertTrue(transport.isAborted)
        self.assertFalse(transport.value().endswith(b"0\r\n\r\n"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class StandInPort:
    """
    A port that is where it is told.
    """

    isClosed = False

    def __init__(self, address: Any) -> None:
        self._address = address

    def getHost(self) -> Any:
        """
        Where it is.
        """
        return self._address

    def stopListening(self) -> Deferred[None]:
        """
        Close at once.
        """
        self.isClosed = True
        return succeed(None)


class StandInEndpoint:
    """
    An endpoint that listens as it is told.
    """

    def __init__(self, listening: Callable[[], Deferred[Any]]) -> None:
        self._listening = listening

    def listen(self, factory: StatusSite) -> Deferred[Any]:
        """
        Do so.
        """
        return self._listening()


class PortTests(StatusTestCase):
    """
    The port comes and goes with the broker.
    """

    def port(self, listening: Callable[[], Deferred[Any]]) -> StatusPort:
        """
        A port on an endpoint of our own.
        """
        endpoint: Any = StandInEndpoint(listening)
        return StatusPort("tcp:9090", endpoint, self.clock)

    def warnings(self, address: Any) -> list[str]:
        """
        What is said about a port that listens at C{address}.
        """
        with capturedLogs() as events:
            self.successResultOf(self.port(lambda: succeed(StandInPort(address))).listen())
        return [str(formatEvent(event)) for event in events if event["log_level"] is LogLevel.warn]

    def test_warning(self) -> None:
        """
        A port that others can reach is worth a warning that says what to do; one that they cannot is not.
        """
        for address in (
            IPv4Address("TCP", "127.0.0.1", 9090),
            IPv4Address("TCP", "127.8.8.8", 9090),
            IPv6Address("TCP", "::1", 9090),
            UNIXAddress("/run/status"),
        ):
            self.assertEqual(self.warnings(address), [])
        for address in (IPv4Address("TCP", "0.0.0.0", 9090), IPv6Address("TCP", "::", 9090)):
            (warning,) = self.warnings(address)
            self.assertIn(f"listens on {address.host}:9090", warning)
            self.assertIn("tcp:9090", warning)

    def test_scopedAddress(self) -> None:
        """
        An address may name its interface.
        """
        self.assertFalse(isLocal(IPv6Address("TCP", "fe80::1%eth0", 9090)))

    def test_fails(self) -> None:
        """
        A port that cannot listen says so to whoever started it.
        """
        error = CannotListenError("", 9090, OSError("in use"))
        self.failureResultOf(self.port(lambda: fail(error)).listen(), CannotListenError)

    def test_stop(self) -> None:
        """
        Stopping frees the port and hangs up.
        """
        listening = StandInPort(UNIXAddress("/run/status"))
        port = self.port(lambda: succeed(listening))
        self.successResultOf(port.listen())
        self.site = port.site
        port.serve(self.root)
        self.assertEqual(self.get("/quotas").code, 200)
        _channel, transport = self.connect()
        self.successResultOf(port.stop())
        self.assertTrue(listening.isClosed and transport.isAborted)
        self.successResultOf(port.stop())

    def test_stopBeforeItListens(self) -> None:
        """
        A port that comes too late closes at once.
        """
        late: Deferred[Any] = Deferred()
        port = self.port(lambda: late)
        listens = port.listen()
        self.successResultOf(port.stop())
        listening = StandInPort(UNIXAddress("/run/status"))
        late.callback(listening)
        self.successResultOf(listens)
        self.assertTrue(listening.isClosed)


class OptionsTests(StatusTestCase):
    """
    C{--status} opens the port.
    """

    def parse(self, *arguments: str) -> Options:
        """
        Parse a command line of C{twistd admission}.
        """
        options = Options()
        options.parseOptions([*arguments, "--set", "queued.max.request.bytes=128MiB"])
        return options

    def test_off(self) -> None:
        """
        There is no port unless somebody asks for one.
        """
        self.assertIs(self.parse()["statusListener"], None)

    def test_endpoint(self) -> None:
        """
        It takes any endpoint, and says so when it is given none.
        """
        listener = self.parse("--status", "tcp:9090:interface=127.0.0.1")["statusListener"]
        self.assertEqual(listener.description, "tcp:9090:interface=127.0.0.1")
        self.assertIsInstance(listener.endpoint, TCP4ServerEndpoint)
        error = self.assertRaises(UsageError, self.parse, "--status", "9090")
        self.assertIn("--status 9090: ", str(error))

    def test_names(self) -> None:
        """
        The port goes by the names that clients are told, and by that of the machine.
        """
        options = self.parse("--advertise", "kafka.example:9092", "--status", "tcp:9090")
        config = BrokerConfig(
            options["settings"], options["listeners"], "data", statusListener=options["statusListener"]
        )
        service = BrokerService(self.clock, config)
        assert service._statusPort is not None
        service._statusPort.serve(self.root)
        self.site = service._statusPort.site
        for host in ("kafka.example:9090", gethostname()):
            self.assertEqual(self.get("/quotas", host=host).code, 200, host)
        self.assertEqual(self.get("/quotas", host="evil.example").code, 403)
