"""The dashboard and the alert rules ask for what a broker tells."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.request import urlopen

from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS, ROOT, endpoint, freePort
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.statusload import clients, loadedBroker

DIRECTORY = ROOT / "examples" / "grafana"

SCRAPED = {"instance", "job"}
"""The labels that Prometheus adds."""

_GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")
_SELECTOR = re.compile(
    r"(?P<counting>\b(?:rate|increase)\()?\b(?P<name>(?:admission|process|kafka|up\b)\w*)(?:\{(?P<matchers>[^}]*)\})?"
)
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
_REST = re.compile(
    r"(?:\b(?:sum|topk|deriv|histogram_quantile|and|or|unless)\b"
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
    What a broker tells, and a gateway of its cluster's nodes and of limits that it shares.

    @ivar series: by the name of each sample, the labels of all that there are.
    @ivar counters: the names of those that only grow.
    """

    series: Mapping[str, Sequence[Labels]]
    counters: set[str]

    def labelsOf(self, name: str) -> set[str]:
        return {label for labels in self.series[name] for label in labels}


@cache
def live() -> Live:
    """Ask a broker that real clients keep busy, once it has throttled some of them."""
    broker = loadedBroker()
    broker.start()
    statusPort = freePort()
    gateway = GatewayProcess(
        broker.address, "--status", endpoint(statusPort), "--quota", "client-bytes", "--shared-limits", "topic"
    )
    gateway.start()
    try:
        with clients(broker.address):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                series: dict[str, list[Labels]] = {"up": [{}]}
                counters = set()
                with urlopen(f"http://127.0.0.1:{statusPort}/metrics", timeout=PATIENCE_SECONDS) as response:
                    passedOn = text_string_to_metric_families(response.read().decode())
                own = ("admission_node_", "admission_shared_limits_")
                ofGateway = [family for family in passedOn if family.name.startswith(own)]
                for family in (*ofGateway, *text_string_to_metric_families(broker.read("metrics"))):
                    for sample in family.samples:
                        series.setdefault(sample.name, []).append(sample.labels)
                        if family.type in ("counter", "histogram"):
                            counters.add(sample.name)
                if set(series) >= {
                    "admission_quota_throttle_seconds",
                    "admission_group_lag_records",
                    "admission_node_unanswered_seconds",
                    "admission_shared_limits_trip_seconds",
                }:
                    return Live(series, counters)
                assert time.monotonic() < deadline, sorted(series)
                time.sleep(0.2)
    finally:
        gateway.remove()
        broker.remove()


class ExpressionsTestCase(SynchronousTestCase):
    """A test that checks expressions against a broker."""

    def check(self, text: str, template: str) -> None:
        """
        An expression asks for what there is, and what is said of its result has the labels for it.

        @param template: with labels in double braces.
        """
        expression = parse(text)
        labels = set(SCRAPED)
        for selector in expression.selectors:
            self.assertIn(selector.name, live().series, text)
            labels |= live().labelsOf(selector.name)
            self.assertLessEqual({label for label, _, _ in selector.matchers}, labels, text)
            self.assertTrue(any(map(selector.isMeant, live().series[selector.name])), f"nothing is meant by {text}")
            self.assertEqual(selector.isCounted, selector.name in live().counters, text)
        self.assertLessEqual(set(expression.grouping), labels, text)
        used = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", template))
        if " by (" in text:
            labels = set(expression.grouping)
        self.assertLessEqual(used, labels, f"{template} of {text}")


class DashboardTests(ExpressionsTestCase):
    """The dashboard."""

    def setUp(self) -> None:
        self.dashboard: dict[str, Any] = json.loads(DIRECTORY.joinpath("dashboard.json").read_text("utf-8"))

    def targets(self) -> Iterator[dict[str, Any]]:
        """All that its panels ask for."""
        for panel in self.dashboard["panels"]:
            yield from panel["targets"]

    def test_expressions(self) -> None:
        """Every panel asks for something that there is."""
        for target in self.targets():
            self.check(target["expr"], target["legendFormat"])

    def test_variables(self) -> None:
        """
        Every panel goes by the data source and the broker that are chosen above; the brokers are
        found by a metric.
        """
        for target in self.targets():
            self.assertEqual(target["datasource"]["uid"], "${datasource}")
            for selector in parse(target["expr"]).selectors:
                self.assertIn(("instance", "=~", "$instance"), selector.matchers, target["expr"])
        source, instance = self.dashboard["templating"]["list"]
        self.assertEqual((source["name"], instance["name"]), ("datasource", "instance"))
        match = re.fullmatch(r"label_values\((\w+), instance\)", instance["query"]["query"])
        assert match is not None
        self.assertIn(match[1], live().series)

    def test_layout(self) -> None:
        """Panels have numbers of their own, titles, and places that do not overlap."""
        panels = self.dashboard["panels"]
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

    def rules(self) -> Iterator[dict[str, str]]:
        """The fields of each; all are lines of their own."""
        text = DIRECTORY.joinpath("alerts.yml").read_text("utf-8")
        for rule in text.split("      - alert: ")[1:]:
            name, *lines = rule.strip().splitlines()
            fields = dict(line.strip().split(": ", 1) for line in lines if not line.endswith(":"))
            yield {"alert": name, **fields}

    def test_expressions(self) -> None:
        """Every rule asks for something that there is, and its summary names only labels that it has."""
        for rule in self.rules():
            self.check(rule["expr"], rule["summary"])

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
