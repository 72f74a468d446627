"""Tests for L{admission.status.wholepages}."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.defer import Deferred

from admission._version import __version__
from admission.status.document import KEPT_SECONDS
from admission.status.history import SAMPLE_SECONDS
from admission.status.wholepages import ProcessAnswer, WholePages
from tests.kit.statusfixture import NOW_SECONDS, StatusTestCase
from tests.kit.wholestatus import RealProcesses, StandInProcesses
from tests.kit.wrapped import KIB, echo


class WholeTestCase(StatusTestCase):
    """A test with three processes."""

    def serve(self, processes: StandInProcesses) -> None:
        """Show their pages."""
        self.pages = WholePages(self.clock, self.clock.seconds, lambda: NOW_SECONDS, processes)
        self.site.resource = self.pages.root


class RealTests(WholeTestCase):
    """The pages of three whole servers, in front of which is one port."""

    def setUp(self) -> None:
        super().setUp()
        slow = "client-bytes:produce=500:fetch=500:algorithm=bucket"
        self.processes = RealProcesses(self, self.clock, 3, quota=slow)
        self.serve(self.processes)

    def connect_(self, process: int, sizeBytes: int = 0, isTLS: bool = False) -> None:
        """Have a client of a process send so many bytes."""
        server = self.processes.servers[process]
        server.behave = echo
        _, transport = server.connect(host="192.0.2.7", isTLS=isTLS)
        if sizeBytes:
            transport.peerSends(b"x" * sizeBytes)
            server.settle()

    def look(self) -> Any:
        """How all are now."""
        self.clock.advance(KEPT_SECONDS)
        self.processes.advance(KEPT_SECONDS)
        return self.get("/status.json").document

    def test_samePages(self) -> None:
        """There are the pages that one process has, and those of a process can be asked for."""
        pages = [line for line in self.get("/help").body.splitlines() if line.startswith("/")]
        self.assertEqual(
            pages,
            [
                *("/", "/status.json?process=", "/history", "/explain?clientId=&user=&ip=&process=", "/quotas"),
                *("/sensors", "/metrics", "/healthz", "/memory?process=", "/help"),
            ],
        )
        self.assertEqual(self.get("/").code, 200)
        self.assertEqual(self.get("/page.js").code, 200)
        self.assertRefused(self.get("/nothing"), 404, "no such page")

    def test_status(self) -> None:
        """The document is that of one server, with a row for each process."""
        self.connect_(1)
        self.connect_(1)
        self.connect_(3, sizeBytes=KIB, isTLS=True)
        seen = self.look()
        self.assertEqual((seen["version"], seen["atSeconds"]), (__version__, NOW_SECONDS))
        self.assertAlmostEqual(seen["uptimeSeconds"], KEPT_SECONDS, 3)
        self.assertEqual(seen["health"], {"status": "ok", "reasons": []})
        self.assertEqual(seen["listeners"], ["127.0.0.1:9092"])
        self.assertEqual((seen["connections"]["open"], seen["connections"]["allowed"]), (3, 30_000))
        self.assertEqual([row["process"] for row in seen["connections"]["largest"]], [3, 1, 1])
        self.assertEqual(seen["pool"]["sizeBytes"], 3 * 1024 * KIB)
        self.assertEqual(seen["nodes"], [{"nodeId": 7, "links": 6, "lastError": None}])
        self.assertEqual((seen["throttled"]["count"], seen["limitShare"]), (1, 1.0))
        self.assertEqual([row["connections"] for row in seen["processes"]], [2, 0, 1])
        self.assertGreater(seen["processes"][1]["residentBytes"], 0)
        self.assertEqual(
            set(seen["processes"][0]),
            {
                *("process", "pid", "state", "sinceSeconds", "restarts"),
                *("cpuSeconds", "residentBytes", "connections"),
            },
        )

    def test_silentProcess(self) -> None:
        """What one process does not say in time is left out, and that it does not is a reason not to send clients."""
        self.connect_(1)
        self.connect_(2)
        self.processes.silent = {2}
        seen = self.look()
        self.assertEqual(seen["connections"]["open"], 1)
        self.assertEqual(seen["health"]["reasons"], ["process 2 has not answered in time"])
        self.assertEqual((seen["processes"][1]["pid"], seen["processes"][1]["connections"]), (102, None))
        health = self.get("/healthz")
        self.assertEqual((health.code, health.document["reasons"]), (503, ["process 2 has not answered in time"]))
        self.assertEqual(list(self.get("/sensors").document["processes"]), ["1", "3"])
        self.assertIn('process="3"', self.get("/metrics").body)
        self.assertNotIn('process="2",', self.get("/metrics").body)
        self.processes.rows[1].update(state="waiting to be started again", pid=None)
        self.assertEqual(self.get("/healthz").document, {"status": "ok"})

    def test_nobodyAnswers(self) -> None:
        """If no process answers, a sentence says so."""
        self.processes.silent = {1, 2, 3}
        for page in ("status.json", "explain?clientId=a", "quotas", "sensors", "metrics"):
            self.assertRefused(self.get(f"/{page}"), 503, "no process has answered in time")
        self.assertEqual(self.get("/healthz").code, 503)
        self.assertEqual(self.get("/metrics").headers["content-type"], "application/json")
        self.processes.rows = []
        health = self.get("/healthz")
        self.assertEqual((health.code, health.document["reasons"]), (503, ["no process has answered in time"]))

    def test_health(self) -> None:
        """Reasons are those of all, each once, with the process where not all say the same."""
        self.assertEqual(self.get("/healthz").document, {"status": "ok"})
        for number, reasons in enumerate((["a"], ["a", "b"], ["a", "b"]), 1):
            self.processes.checks[number] += reasons
        self.processes.problems = ["process 4 has ended"]
        health = self.get("/healthz")
        reasons = ["process 4 has ended", "a", "processes 2, 3: b"]
        self.assertEqual((health.code, health.document), (503, {"status": "unavailable", "reasons": reasons}))
        self.assertEqual(self.look()["health"], health.document)
        head = self.get("/healthz", method="HEAD")
        self.assertEqual((head.code, head.body), (503, ""))

    def test_explain(self) -> None:
        """A client is explained as one, whichever processes it is connected to."""
        self.connect_(1)
        self.connect_(2, sizeBytes=2 * KIB)
        said = self.get("/explain?clientId=192.0.2.7").document
        self.assertEqual((said["clientCount"], said["connections"], len(said["clients"])), (1, 2, 1))
        self.assertGreater(said["delaySeconds"], 0.0)
        self.assertEqual(said["delaySeconds"], said["clients"][0]["delaySeconds"])
        self.assertEqual(len({each["limitName"] for each in said["limits"]}), len(said["limits"]))
        self.assertGreater(max(each["usedFraction"] for each in said["limits"]), 1.0)
        alone = self.get("/explain?clientId=192.0.2.7&process=1").document
        self.assertEqual((alone["connections"], alone["delaySeconds"]), (1, 0.0))

    def test_questions(self) -> None:
        """A bad question is refused as a process refuses it, or as it would be for a process that there is not."""
        self.assertRefused(self.get("/explain"), 400, "say which client")
        self.assertRefused(self.get("/explain?process=1"), 400, "say which client")
        self.assertRefused(self.get("/explain?ip=nowhere"), 400, "is not an address")
        self.assertRefused(self.get("/status.json?process=4"), 400, "no process '4'; write 1 or 2 or 3")
        self.assertRefused(self.get("/memory"), 400, "--process N; N is 1 or 2 or 3")
        self.assertRefused(self.get("/memory?process=1"), 404, "no such page")
        self.processes.silent = {1}
        self.assertRefused(self.get("/status.json?process=1"), 503, "process 1 does not answer")
        self.assertEqual(self.get("/status.json?process=2").document["connections"]["allowed"], 10_000)

    def test_quotas(self) -> None:
        """The limits are those of one process, which is asked alone; of the next if it does not answer."""
        self.processes.rows[0]["state"] = "draining"
        self.processes.silent = {2}
        self.assertIn("quotas", self.get("/quotas").document)
        self.processes.silent = {2, 3}
        self.assertIn("quotas", self.get("/quotas").document)
        self.assertEqual([process for _, _, process in self.processes.asked], [2, 3, 2, 3, 1])

    def test_metrics(self) -> None:
        """Prometheus can read the metrics of all: none is there twice, and each row has its process."""
        self.connect_(1)
        self.processes.rows[2].update(state="draining", restarts=5)
        body = self.get("/metrics").body
        families = list(text_string_to_metric_families(body))
        names = [each.name for each in families]
        self.assertEqual(len(names), len(set(names)))
        rows = [(each.name, frozenset(each.labels.items())) for family in families for each in family.samples]
        self.assertEqual(len(rows), len(set(rows)))
        self.assertEqual(
            {dict(labels).get("process") for _, labels in rows},
            {"1", "2", "3", "parent"},
        )
        values = {(each.name, each.labels["process"]): each.value for family in families for each in family.samples}
        self.assertEqual([values["admission_connections_allowed", each] for each in "123"], [10_000] * 3)
        self.assertEqual(values["admission_processes_serving", "parent"], 2)
        self.assertEqual(values["admission_process_restarts_total", "3"], 5)
        self.assertGreater(values["process_resident_memory_bytes", "parent"], 0)
        self.assertEqual(body.count("# TYPE process_resident_memory_bytes "), 1)

    def test_kept(self) -> None:
        """However many ask, the processes are asked once in a second."""
        self.look()
        self.connect_(1)
        self.assertEqual(self.get("/status.json").document["connections"]["open"], 0)
        self.assertEqual(len(self.processes.asked), 1)
        self.assertEqual(self.look()["connections"]["open"], 1)
        self.assertEqual(len(self.processes.asked), 2)

    def test_history(self) -> None:
        """The numbers of the whole are kept as those of one process are, and nothing is if no process answers."""
        self.pages.history.start()
        self.clock.advance(SAMPLE_SECONDS)
        self.turn(3)
        self.processes.silent = {1, 2, 3}
        self.clock.advance(SAMPLE_SECONDS)
        self.pages.history.stop()
        (sample,) = self.get("/history").document["samples"]
        self.assertEqual((sample["atSeconds"], sample["connections"]["allowed"]), (NOW_SECONDS, 30_000))


class RoundTests(WholeTestCase):
    """Questions that come at once."""

    def setUp(self) -> None:
        super().setUp()
        self.processes = StandInProcesses(2)
        self.rounds: list[Deferred[list[ProcessAnswer]]] = []
        self.ended: list[Deferred[list[ProcessAnswer]]] = []
        self.patch(self.processes, "ask", self.ask)
        self.serve(self.processes)

    def ask(self, *question: Any) -> Deferred[list[ProcessAnswer]]:
        """Nobody answers yet."""
        self.rounds.append(Deferred(self.ended.append))
        return self.rounds[-1]

    def test_shared(self) -> None:
        """All share one round, which goes on when one of them has left."""
        sent = [self.send(b"GET /status.json HTTP/1.0\r\n\r\n") for _ in range(3)]
        self.disconnect(sent[0][0])
        (round_,) = self.rounds
        documents = [{"health": {"reasons": []}, "connections": {"open": n, "largest": []}} for n in (1, 2)]
        for each in documents:
            each.update(throttled={"count": 0, "throttledCount": 0, "clients": []}, process={})
        round_.callback([ProcessAnswer(n, 200, json.dumps(each)) for n, each in enumerate(documents, 1)])
        for _, transport in sent[1:]:
            self.assertTrue(transport.disconnecting)
            self.assertEqual(json.loads(transport.value().partition(b"\r\n\r\n")[2])["connections"]["open"], 3)
        self.assertEqual(sent[0][1].value(), b"")

    def test_broken(self) -> None:
        """A round that fails is logged for each who asked, and the next begins anew."""
        sent = [self.send(b"GET /status.json HTTP/1.0\r\n\r\n") for _ in range(2)]
        self.rounds[0].callback([ProcessAnswer(1, 200, "nonsense")])
        for _, transport in sent:
            self.assertIn(b"500", transport.value())
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        self.send(b"GET /status.json HTTP/1.0\r\n\r\n")
        self.assertEqual(len(self.rounds), 2)

    def test_pageFailed(self) -> None:
        """A process whose page has failed is not healthy, and says what it can."""
        _, transport = self.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        self.rounds[0].callback([ProcessAnswer(1, 200, '{"status": "ok"}'), ProcessAnswer(2, 500, '{"error": "no"}')])
        self.assertIn(b'["process 2: no"]', transport.value())
        _, transport = self.send(b"GET /sensors HTTP/1.0\r\n\r\n")
        self.rounds[1].callback([ProcessAnswer(2, 500, '{"error": "no"}')])
        self.assertIn(b'{"error": "no"}', transport.value())

    def test_clientLeaves(self) -> None:
        """What only one client has asked is ended when it leaves."""
        channel, _ = self.send(b"GET /sensors HTTP/1.0\r\n\r\n")
        self.disconnect(channel)
        self.assertEqual(self.ended, self.rounds)
