"""The dashboards and the alert rules ask for what servers tell."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from examples.grafana.dashboards import texts
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, TWISTD, endpoint, freePort, until
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.statusload import clients, loadedBroker
from tests.system.test_documentation import anchorsOf

DIRECTORY = ROOT / "examples" / "grafana"

SCRAPED = {"instance", "job"}
"""The labels that Prometheus adds."""

_GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")
_SELECTOR = re.compile(
    r"(?P<counting>\b(?:rate|increase)\()?\b(?P<name>(?:admission|process|kafka|up\b)\w*)(?:\{(?P<matchers>[^}]*)\})?"
)
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
_REST = re.compile(
    r"(?:\b(?:sum|min|max|topk|deriv|histogram_quantile|and|or|unless)\b"
    r"|[-+*/^<>=(),. 0-9]|\[(?:\d+[smhd]|\$__rate_interval)\])*"
)

Labels = Mapping[str, str]


@frozen
class Selector:
    """
    A metric that an expression asks for.

    @ivar matchers: a label, how it is compared, and with what.
    @ivar isCounted: whether its growth is asked for.
    """

    name: str
    matchers: Sequence[tuple[str, str, str]]
    isCounted: bool

    def isMeant(self, labels: Labels) -> bool:
        """Whether a series with these labels is asked for, wherever it comes from."""
        return all(
            re.fullmatch(text if comparison == "=~" else re.escape(text), labels.get(label, ""))
            for label, comparison, text in self.matchers
            if label not in SCRAPED
        )


@frozen
class Expression:
    """
    An expression in PromQL.

    @ivar selectors: the metrics in it.
    @ivar grouping: the labels that it groups by, or not by.
    """

    selectors: Sequence[Selector]
    grouping: Sequence[str]


def parse(text: str) -> Expression:
    """
    Read as much of PromQL as our own expressions have.

    @raise ValueError: for anything else.
    """
    grouping = [label for each in _GROUPING.findall(text) for label in each.split(", ")]
    ungrouped = _GROUPING.sub("", text)
    selectors = []
    for match in _SELECTOR.finditer(ungrouped):
        matchers = match["matchers"] or ""
        parts = [_MATCHER.fullmatch(each) for each in matchers.split(", ") if matchers]
        if not all(parts):
            raise ValueError(f"{{{matchers}}} cannot be read, in {text}")
        found = [(each[1], each[2], each[3]) for each in parts if each is not None]
        selectors.append(Selector(match["name"], found, bool(match["counting"])))
    rest = _SELECTOR.sub(lambda match: "(" if match["counting"] else "", ungrouped)
    if not selectors or not _REST.fullmatch(rest) or rest.count("(") != rest.count(")"):
        raise ValueError(f"{rest!r} is left of {text}")
    return Expression(selectors, grouping)


@frozen
class Live:
    """
    What servers tell.

    @ivar series: by the name of each sample, the labels of all that there are.
    @ivar counters: the names of those that only grow.
    """

    series: Mapping[str, Sequence[Labels]]
    counters: Collection[str]

    def labelsOf(self, name: str) -> set[str]:
        return {label for labels in self.series[name] for label in labels}

    def values(self, name: str, label: str) -> set[str]:
        return {labels.get(label, "") for labels in self.series.get(name, ())}


def told(exposition: str) -> Live:
    """What a server tells in the text format of Prometheus."""
    series: dict[str, list[Labels]] = {"up": [{}]}
    counters = set()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
            if family.type in ("counter", "histogram"):
                counters.add(sample.name)
    return Live(series, counters)


def together(*lives: Live) -> Live:
    """What any of them tells."""
    series: dict[str, dict[tuple[tuple[str, str], ...], Labels]] = {}
    for live in lives:
        for name, rows in live.series.items():
            series.setdefault(name, {}).update((tuple(sorted(labels.items())), labels) for labels in rows)
    return Live(
        {name: [*rows.values()] for name, rows in series.items()}, {name for live in lives for name in live.counters}
    )


def readUntil(read: Callable[[], str], missing: Callable[[Live], Collection[str]]) -> Live:
    """
    Ask a server until it has told everything, at one time or another.

    @param missing: returns what it has not told.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    live = Live({}, ())
    while True:
        with contextlib.suppress(HTTPError):
            # Not while a process of it that has just begun does not answer yet.
            live = together(live, told(read()))
        if not missing(live):
            return live
        assert time.monotonic() < deadline, missing(live)
        time.sleep(0.2)


def pageOf(statusPort: int) -> str:
    """What is measured."""
    with urlopen(f"http://127.0.0.1:{statusPort}/metrics", timeout=PATIENCE_SECONDS) as response:
        text: str = response.read().decode()
        return text


def missingNames(*names: str) -> Callable[[Live], Collection[str]]:
    return lambda live: set(names) - set(live.series)


@cache
def liveKafka() -> tuple[Live, Live]:
    """
    Ask a broker that real clients keep busy, and a gateway of two processes before it, once each has throttled some of
    them.
    """
    broker = loadedBroker()
    broker.start()
    statusPort = freePort()
    gateway = GatewayProcess(
        broker.address,
        *("--status", endpoint(statusPort)),
        *("--quota", "client-bytes:produce=20k:fetch=30k"),
        *("--processes", "2"),
    )
    gateway.start()
    try:
        # Another group, or none of its members would have anything to read at one of them.
        with clients(broker.address), clients(gateway.address, "audits"):
            own = "admission_node_unanswered_seconds", "admission_shared_limits_trip_seconds"
            used, elsewhere = "admission_quota_bytes_per_second", "admission_quota_taken_elsewhere_total"
            return (
                readUntil(lambda: broker.read("metrics"), missingOfKafka([used], "admission_group_lag_records")),
                readUntil(lambda: pageOf(statusPort), missingOfKafka([used, elsewhere], *own)),
            )
    finally:
        gateway.remove()
        broker.remove()


def missingOfKafka(quotas: Collection[str], *names: str) -> Callable[[Live], Collection[str]]:
    """
    Beside C{names}, what is there once clients were throttled.

    @param quotas: names of what there is once they have sent and have read.
    """

    def missing(live: Live) -> Collection[str]:
        resources = {(name, each) for name in quotas for each in ("Produce", "Fetch")}
        found = {(name, each) for name in quotas for each in live.values(name, "resource")}
        return resources - found or missingNames(*SELDOM, *names)(live)

    return missing


SELDOM = "admission_quota_throttle_seconds", "admission_connections_paused"
"""What is there only while somebody is throttled, or is not read."""


@cache
def liveSite() -> Live:
    """Ask a site, once it has answered in every way that there is."""
    port, statusPort = freePort(), freePort()
    with tempfile.TemporaryDirectory(prefix="admission-site-") as directory, Path(directory, "log").open("wb") as log:
        server = subprocess.Popen(
            [*TWISTD, f"--python={ROOT / 'tests' / 'kit' / 'busysite.py'}"],
            cwd=directory,
            env={**ENVIRONMENT, "SITE_PORT": str(port), "STATUS_PORT": str(statusPort)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: couldConnect(port) and couldConnect(statusPort))

            def read() -> str:
                visit(port)
                with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
                    # No more is read while the first of so many is worked on.
                    connection.sendall(b"GET /late HTTP/1.1\r\nHost: site\r\n\r\n" * 2000)
                    return pageOf(statusPort)

            def missing(live: Live) -> Collection[str]:
                statuses = {"2xx", "413", "429", "503", "5xx", ""} - live.values("admission_responses_total", "status")
                return statuses or missingNames(*SELDOM)(live)

            return readUntil(read, missing)
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)


def couldConnect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS):
        return True
    return False


def visit(port: int) -> None:
    """
    Ask the site of L{tests.kit.busysite} for all that it has: more than it can do, more than a client may, too much at
    once, and what one does not wait for.
    """

    def ask(path: str, client: str, body: bytes | None = None) -> None:
        request = Request(f"http://127.0.0.1:{port}{path}", body, {"X-Client": client}, method="PUT" if body else "GET")
        with contextlib.suppress(HTTPError, ConnectionError), urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            answer.read()

    with ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda client: ask("/slow", client), ("alice", "bob"))]
    ask("/fail", "alice")
    ask("/", "alice")
    ask("/", "carol", bytes(60_000))
    for _ in range(2):
        ask("/", "dave", bytes(40_000))
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: site\r\n\r\n")
        time.sleep(0.1)


LIVE: Mapping[str, Callable[[], Live]] = {
    "broker.json": lambda: liveKafka()[0],
    "gateway.json": lambda: liveKafka()[1],
    "site.json": liveSite,
}
"""What servers tell, by the dashboard for them."""


class ExpressionsTestCase(SynchronousTestCase):
    """A test that checks expressions against servers."""

    def check(self, live: Live, text: str, template: str) -> None:
        """
        An expression asks for what there is, and what is said of its result has the labels for it.

        @param live: what the servers tell that it is for.
        @param template: with labels in double braces.
        """
        expression = parse(text)
        labels = set(SCRAPED)
        for selector in expression.selectors:
            self.assertIn(selector.name, live.series, text)
            labels |= live.labelsOf(selector.name)
            self.assertLessEqual({label for label, _, _ in selector.matchers}, labels, text)
            self.assertTrue(any(map(selector.isMeant, live.series[selector.name])), f"nothing is meant by {text}")
            self.assertEqual(selector.isCounted, selector.name in live.counters, text)
        # Only servers of several processes have that label, and an expression may be for others, too.
        self.assertLessEqual(set(expression.grouping), labels | {"process"}, text)
        used = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", template))
        labels = set(expression.grouping) if " by (" in text else labels - set(expression.grouping)
        self.assertLessEqual(used, labels, f"{template} of {text}")


class DashboardsTests(ExpressionsTestCase):
    """The dashboards."""

    def setUp(self) -> None:
        self.dashboards: dict[str, dict[str, Any]] = {
            path.name: json.loads(path.read_text("utf-8")) for path in DIRECTORY.glob("*.json")
        }

    def test_made(self) -> None:
        """They are what the program beside them makes."""
        written = {path.name: path.read_text("utf-8") for path in DIRECTORY.glob("*.json")}
        self.assertEqual(written.keys(), texts().keys())
        for name, text in texts().items():
            self.assertTrue(written[name] == text, f"{name} is not what examples/grafana/dashboards.py makes: run it")

    def test_expressions(self) -> None:
        """Every panel asks for something that a server of its kind has."""
        self.assertEqual(self.dashboards.keys(), LIVE.keys())
        for name, dashboard in self.dashboards.items():
            live = LIVE[name]()
            for target in self.targets(dashboard):
                self.check(live, target["expr"], target["legendFormat"])

    def test_processes(self) -> None:
        """What is not shown for each process of a gateway is added up, or one of them stands for all."""
        live = LIVE["gateway.json"]()
        for target in self.targets(self.dashboards["gateway.json"]):
            expression = parse(target["expr"])
            ofProcesses = any("process" in live.labelsOf(each.name) for each in expression.selectors)
            isTogether = "process" in expression.grouping or " by (" in target["expr"]
            isParents = "admission_processes_serving" in target["expr"]
            self.assertEqual("{{process}}" in target["legendFormat"], not isTogether and not isParents, target["expr"])
            self.assertTrue(ofProcesses, target["expr"])

    def test_variables(self) -> None:
        """
        Every panel goes by the data source and the servers that are chosen above; these are found by a metric that no
        other kind of server has.
        """
        for name, dashboard in self.dashboards.items():
            for target in self.targets(dashboard):
                self.assertEqual(target["datasource"]["uid"], "${datasource}")
                for selector in parse(target["expr"]).selectors:
                    self.assertIn(("instance", "=~", "$instance"), selector.matchers, target["expr"])
            source, instance = dashboard["templating"]["list"]
            self.assertEqual((source["name"], instance["name"]), ("datasource", "instance"))
            match = re.fullmatch(r"label_values\((\w+), instance\)", instance["query"]["query"])
            assert match is not None
            self.assertEqual([each for each, live in LIVE.items() if match[1] in live().series], [name])
        self.assertEqual(len({each["uid"] for each in self.dashboards.values()}), len(self.dashboards))

    def targets(self, dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """All that its panels ask for."""
        for panel in dashboard["panels"]:
            yield from panel.get("targets", ())

    def test_layout(self) -> None:
        """Panels have numbers of their own, titles, and places that do not overlap."""
        for dashboard in self.dashboards.values():
            panels = dashboard["panels"]
            self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
            taken: set[tuple[int, int]] = set()
            for panel in panels:
                self.assertTrue(panel["title"])
                place = panel["gridPos"]
                cells = {
                    (x, y)
                    for x in range(place["x"], place["x"] + place["w"])
                    for y in range(place["y"], place["y"] + place["h"])
                }
                self.assertEqual(cells & taken, set(), panel["title"])
                self.assertLessEqual(place["x"] + place["w"], 24)
                taken |= cells


class AlertsTests(ExpressionsTestCase):
    """The alert rules."""

    def textOf(self, name: str) -> str:
        return DIRECTORY.joinpath(name).read_text("utf-8")

    def rules(self) -> Iterator[dict[str, str]]:
        """The fields of each; all are lines of their own."""
        for rule in self.textOf("alerts.yml").split("      - alert: ")[1:]:
            name, *lines = rule.partition("\n\n")[0].splitlines()
            fields = dict(line.strip().split(": ", 1) for line in lines if not line.endswith(":"))
            yield {"alert": name, **fields}

    def test_expressions(self) -> None:
        """Every rule asks for something that there is, and its summary names only labels that it has."""
        for rule in self.rules():
            self.check(together(*liveKafka(), liveSite()), rule["expr"], rule["summary"])

    def test_fields(self) -> None:
        """Every rule has a name of its own, a severity and a sentence."""
        rules = list(self.rules())
        self.assertGreater(len(rules), 8)
        self.assertEqual(len({rule["alert"] for rule in rules}), len(rules))
        for rule in rules:
            self.assertRegex(rule["alert"], r"\AAdmission\w+\Z")
            self.assertRegex(rule["labels"], r"\A{severity: (critical|warning|info)}\Z")
            self.assertRegex(rule["summary"], r"\.\"?\Z")
            # Braces begin a mapping in YAML.
            self.assertFalse(rule["summary"].startswith("{"), rule["summary"])

    def test_runbook(self) -> None:
        """Every rule says where the manual says what to do about it, and the manual has no rules that there are not."""
        headings = re.findall(r"^### (Admission\w+)$", (ROOT / "docs" / "operate.md").read_text("utf-8"), re.M)
        self.assertEqual([rule["alert"] for rule in self.rules()], headings)
        for rule in self.rules():
            page, _, anchor = rule["runbook"].partition("#")
            self.assertEqual(anchor, rule["alert"].lower())
            self.assertIn(anchor, anchorsOf((ROOT / page).read_text("utf-8")))

    def test_tested(self) -> None:
        """For every rule it is tested when it is quiet, and when it fires."""
        text = self.textOf("alerts_test.yml")
        quiet = Counter(re.findall(r"alertname: (\w+), exp_alerts: \[\]}", text))
        firing = Counter(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text))
        alerts = {rule["alert"] for rule in self.rules()}
        self.assertEqual((quiet.keys(), firing.keys()), (alerts, alerts))

    def test_promtool(self) -> None:
        """Prometheus understands the rules, and they fire when the tests of them say so."""
        promtool = os.environ.get("PROMTOOL") or shutil.which("promtool") or shutil.which(ROOT / "build" / "promtool")
        if promtool is None:
            raise SkipTest("there is no promtool: .ci/install-tools gets one, or PROMTOOL names one")
        for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
            result = subprocess.run(
                [promtool, *words], cwd=DIRECTORY, capture_output=True, text=True, timeout=PATIENCE_SECONDS
            )
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
