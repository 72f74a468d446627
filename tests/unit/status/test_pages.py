"""Tests for L{admission.status.pages}."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from twisted.internet.defer import fail, succeed

from admission.control import Explanation
from admission.interfaces import DEFAULT, QuotaEntity, QuotaStatus, Request
from admission.metrics.histogram import Histogram
from admission.metrics.prometheusnames import Naming
from admission.profiling.profiler import ProfilerStopped
from admission.status.document import KEPT_SECONDS
from admission.status.pages import MAX_ROWS, ROWS_PER_PIECE, StatusPages
from tests.kit.statusfixture import ANONYMOUS, NOW_SECONDS, StatusTestCase, unchunked


class Client(NamedTuple):
    """A connection, as far as it is counted."""

    principal: str | None
    clientId: str
    host: str
    throttledUntilSeconds: float = 0.0


SVG_NAMESPACE = "http://www.w3.org/2000/svg"


class PagesTests(StatusTestCase):
    """The pages say how things are."""

    def test_index(self) -> None:
        """The list of pages has all of them, with what may be asked."""
        response = self.get("/help")
        self.assertEqual((response.code, response.headers["content-type"]), (200, "text/plain; charset=utf-8"))
        pages = [line for line in response.body.splitlines() if line.startswith("/")]
        self.assertEqual(
            pages,
            [
                *(
                    "/",
                    "/status.json",
                    "/history",
                    "/explain?clientId=&user=&ip=",
                    "/quotas",
                    "/sensors",
                    "/metrics",
                    "/healthz",
                ),
                "/help",
            ],
        )

    def test_front(self) -> None:
        """The page for people refers to nothing that is not here, and runs nothing that is in it."""
        response = self.get("/")
        self.assertEqual((response.code, response.headers["content-type"]), (200, "text/html; charset=utf-8"))
        targets = re.findall(r'(?:src|href|action)="([^"]*)"', response.body)
        self.assertIn("page.js", targets)
        for target in targets:
            code = 400 if target == "explain" else 200
            self.assertEqual(self.get(f"/{target}").code, code, target)
        self.assertNotRegex(response.body, r"<script(?! type=\"module\" src=)|<style|\bstyle=|\bon[a-z]+=")

    def test_history(self) -> None:
        """The numbers of the last hour are a page."""
        self.assertEqual(self.get("/history").document, {"sampleSeconds": 10, "samples": []})

    def test_assets(self) -> None:
        """What the page is made of comes as what it is, and names no other place."""
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
        """The snapshot is there as JSON."""
        self.assertEqual(self.get("/status.json").document, {"health": {}})

    def test_health(self) -> None:
        """Health is a status of HTTP, with the reasons if it is bad."""
        response = self.get("/healthz")
        self.assertEqual((response.code, response.document), (200, {"status": "ok"}))
        self.document.reasons = ["the disk is full"]
        response = self.get("/healthz")
        self.assertEqual(response.code, 503)
        self.assertEqual(response.document, {"status": "unavailable", "reasons": ["the disk is full"]})
        self.assertEqual(self.get("/healthz", method="HEAD").code, 503)

    def test_metrics(self) -> None:
        """What is measured is there for Prometheus."""
        self.sensors.addGauge("RunningRequests", lambda now: 7)
        response = self.get("/metrics")
        self.assertEqual(
            (response.code, response.headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8")
        )
        self.assertIn("admission_requests_running 7.0\n", response.body)

    def test_brokenSensor(self) -> None:
        """A sensor that raises takes no page with it."""
        self.sensors.addGauge("Raises", lambda now: 1 / 0)
        self.sensors.addHistogram("Waits", Histogram.__new__(Histogram))
        self.sensors.addGauge("RunningRequests", lambda now: 7)
        self.assertIn("admission_requests_running 7.0\n", self.get("/metrics").body)
        measured = self.get("/sensors").document
        self.assertEqual((measured["values"], measured["histograms"]), ({"RunningRequests": 7}, {}))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError, AttributeError)), 2)

    def test_namings(self) -> None:
        """What the driver measures has the names that the driver gives it."""
        self.sensors.addGauge("PagesOfDiary", lambda now: 7)
        namings = [Naming("PagesOfDiary", "diary_pages", "Pages of the diary.")]
        document: Any = self.document
        self.site.resource = StatusPages(self.clock, document, namings=namings).root
        self.assertIn("diary_pages 7.0\n", self.get("/metrics").body)

    def test_memory(self) -> None:
        """A snapshot is taken when somebody asks, and only then; why there is none is said."""
        answers: list[Any] = [
            succeed({"number": 1}),
            succeed({"number": 1}),
            fail(ProfilerStopped()),
            fail(ZeroDivisionError()),
        ]
        document: Any = self.document
        profiler: Any = SimpleNamespace(ask=lambda: answers.pop(0))
        self.site.resource = StatusPages(self.clock, document, profiler=profiler).root
        self.assertIn("/memory", self.get("/help").body)
        response = self.get("/memory", method="HEAD")
        self.assertEqual((response.code, response.body), (200, ""))
        self.assertRefused(self.get("/memory?now=yes"), 400, "no parameters")
        self.assertEqual(self.get("/memory").document, {"number": 1})
        self.assertRefused(self.get("/memory"), 503, "the server is being stopped")
        self.assertRefused(self.get("/memory"), 500, "the server's log says why")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_answer(self) -> None:
        """Pages can be asked for without HTTP; what there is not is refused."""
        document: Any = self.document
        pages = StatusPages(self.clock, document)
        names = ("status.json", "history", "quotas", "sensors", "metrics", "healthz", "explain", "help", "memory")
        asked = {name: pages.answer(name, {}) for name in names}
        self.turn()
        answers = {name: self.successResultOf(each) for name, each in asked.items()}
        self.assertEqual(answers["status.json"], (200, self.document.text))
        self.assertEqual(
            {name: code for name, (code, _) in answers.items() if code != 200},
            {"explain": 400, "help": 404, "memory": 404},
        )
        self.assertEqual(answers["memory"][1], '{"error": "there is no such page; /help lists all pages"}\n')

    def test_process(self) -> None:
        """
        A server that is one of several says in every row of its metrics which; its document is kept for a shorter time
        than the whole, so that none is counted twice.
        """
        self.sensors.addGauge("RunningRequests", lambda now: 7)
        document: Any = self.document
        self.site.resource = StatusPages(self.clock, document, process=3).root
        self.assertIn('admission_requests_running{process="3"} 7.0\n', self.get("/metrics").body)
        self.assertLess(document.keptSeconds, KEPT_SECONDS)

    def test_explain(self) -> None:
        """Each limit comes with whose it is, what is used of it and how long the client is throttled."""
        entity = QuotaEntity(user="alice", clientId=DEFAULT)
        self.control.explanations = [
            Explanation("client-bytes", False, QuotaStatus("producer_byte_rate", 1000.0, entity, 1500.0, 2.5)),
            Explanation("request-time", True, QuotaStatus("request_percentage", 200.0, entity, 50.0, 0.0)),
        ]
        for principal, clientId, host in (
            ("alice", "reports", "192.0.2.1"),
            ("alice", "reports", "192.0.2.1"),
            ("alice", "reports", "192.0.2.2"),
            ("alice", "other", "192.0.2.1"),
            (None, "reports", "192.0.2.1"),
        ):
            self.document.connections.append(Client(principal, clientId, host))
        document = self.get("/explain?clientId=reports&user=alice&ip=192.0.2.1").document
        self.assertEqual(self.control.asked, [Request("", "alice", "reports", "192.0.2.1", 0)] * 2)
        whose = {"user": "alice", "clientId": DEFAULT, "ip": None}
        self.assertEqual(
            document,
            {
                "user": "alice",
                "clientId": "reports",
                "ip": "192.0.2.1",
                "connections": 2,
                "delaySeconds": 0.0,
                "delayEndsAtSeconds": None,
                "clientCount": 1,
                "limitShare": 1.0,
                "sharing": None,
                "clients": [
                    {
                        "user": "alice",
                        "clientId": "reports",
                        "ip": "192.0.2.1",
                        "connections": 2,
                        "delaySeconds": 0.0,
                        "refused": 0,
                        "policy": "client-bytes",
                        "limitName": "producer_byte_rate",
                        "limit": 1000.0,
                        "used": 1500.0,
                        "usedFraction": 1.5,
                        "entity": whose,
                    }
                ],
                "limits": [
                    {
                        "policy": "client-bytes",
                        "isShadow": False,
                        "limitName": "producer_byte_rate",
                        "limit": 1000.0,
                        "fraction": 1.0,
                        "entity": whose,
                        "used": 1500.0,
                        "usedHere": 1500.0,
                        "usedElsewhere": None,
                        "usedFraction": 1.5,
                        "delaySeconds": 2.5,
                        "delayEndsAtSeconds": NOW_SECONDS + 2.5,
                    },
                    {
                        "policy": "request-time",
                        "isShadow": True,
                        "limitName": "request_percentage",
                        "limit": 200.0,
                        "fraction": 1.0,
                        "entity": whose,
                        "used": 50.0,
                        "usedHere": 50.0,
                        "usedElsewhere": None,
                        "usedFraction": 0.25,
                        "delaySeconds": 0.0,
                        "delayEndsAtSeconds": None,
                    },
                ],
            },
        )

    def test_explainShared(self) -> None:
        """Of limits that several servers enforce it is told what is used where, and how the sharing stands."""
        status = QuotaStatus("producer_byte_rate", 8.0, QuotaEntity(clientId=DEFAULT), 3.0, 0.0, 1.0, 0.5)
        self.control.explanations = [Explanation("client-bytes", False, status)]
        self.document.fields["sharing"] = {"servers": 2}
        document = self.get("/explain?clientId=reports").document
        self.assertEqual(document["sharing"], {"servers": 2})
        [limit] = document["limits"]
        names = ("limit", "fraction", "used", "usedHere", "usedElsewhere", "usedFraction")
        self.assertEqual([limit[name] for name in names], [8.0, 0.5, 3.0, 2.0, 1.0, 0.75])

    def test_explainSome(self) -> None:
        """
        A client that has not logged in is anonymous; an empty client id is one; limits of addresses are left out if
        none was named.
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

    def test_explainMatching(self) -> None:
        """
        What was not said of a client does not matter: if there is one such client, the answer is about that; if there
        are several, all are listed, those first that wait longest, also if they have hung up.
        """
        now = self.sensors.seconds()
        self.document.connections += [Client("alice", "reports", "192.0.2.1"), Client(None, "loader", "192.0.2.2")]
        for clientId, ip, seconds in (("reports", "192.0.2.1", 15.0), ("once", "192.0.2.2", 4.0)):
            self.document.debts.owes("alice", clientId, ip, now + seconds)
        said = self.get("/explain?clientId=reports").document
        self.assertEqual((said["user"], said["clientCount"], round(said["delaySeconds"])), ("alice", 1, 15))
        said = self.get("/explain?user=alice").document
        self.assertEqual([each["clientId"] for each in said["clients"]], ["reports", "once"])
        self.assertEqual([each["connections"] for each in said["clients"]], [1, 0])
        said = self.get("/explain?ip=192.0.2.2").document
        self.assertEqual((said["clientCount"], said["connections"], round(said["delaySeconds"])), (2, 1, 4))
        self.assertEqual(said["ip"], "192.0.2.2")
        said = self.get("/explain?ip=::ffff:192.0.2.2").document
        self.assertEqual((said["clientCount"], said["ip"]), (2, "192.0.2.2"))
        self.assertEqual(self.get("/explain?user=bob").document["clientCount"], 0)

    def test_explainNames(self) -> None:
        """Names are UTF-8 and may be anything."""
        name = 'a "b" \u00fc&=\n'
        document = self.get("/explain?clientId=a%20%22b%22%20%C3%BC%26%3D%0A").document
        self.assertEqual(document["clientId"], name)

    def test_noQuestion(self) -> None:
        """What makes no sense is refused, saying what would."""
        for path, words in (
            ("/explain", "say which client"),
            ("/explain?ip=192.0.2.1:80", "without a port"),
            ("/explain?ip=", "ip is empty: leave it out to mean any"),
            ("/explain?clientId=a&user=", "user is empty: leave it out to mean any"),
            ("/explain?client=a", "'client'; this page may have clientId, user, ip"),
            ("/explain?user=a&user=b", "user is given 2 times"),
            ("/explain?user=%ff", "not UTF-8"),
            ("/explain?%ff=a", "not UTF-8"),
            ("/quotas?user=a", "'user'; this page has no parameters"),
        ):
            self.assertRefused(self.get(path), 400, words)

    def test_quotas(self) -> None:
        """The limits in force come by entity, however many there are, with the share of what was set that they are."""
        self.assertEqual(self.get("/quotas").document, {"limitShare": 1.0, "quotas": []})
        self.control.limitShare = 0.5
        self.assertEqual(self.get("/quotas").document, {"limitShare": 0.5, "quotas": []})
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
        """Everything that is measured is there; what is not a number is null."""
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
                        "leftOut": 0,
                    },
                    "Nobody": {"isCounter": True, "labels": ["user"], "values": [], "leftOut": 0},
                },
            },
        )

    def test_manyRows(self) -> None:
        """However many rows a family has, the page has a bounded number, and says how many are left out."""
        self.sensors.addFamily("Bytes", ("user",), lambda now: [((str(row),), row) for row in range(MAX_ROWS + 777)])
        family = self.get("/sensors").document["families"]["Bytes"]
        self.assertEqual(family["values"], [[str(row), row] for row in range(MAX_ROWS)])
        self.assertEqual(family["leftOut"], 777)

    def test_familyChanges(self) -> None:
        """A family is read as it is written, in turns; it may grow meanwhile."""
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
