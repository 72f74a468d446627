"""
Write the dashboards for Grafana: broker.json, gateway.json and site.json, beside this file.

What several kinds of servers have is said once. A gateway may have several processes, each of which has rows of its own
in /metrics: its panels add them up, or show the largest or smallest where a sum would mean nothing.

Run it:  python examples/grafana/dashboards.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WIDTH = 24
"""
How many columns Grafana has.
"""

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TIMES = "From a request's arrival to its answer."

RESPONSES = "admission_responses_total"
TOO_LARGE, TOO_MANY, OVERLOADED = ('status="413"', 'status="429"', 'status="503"')
REFUSED = 'status=~"413|429|503"'
ANSWERED, LEFT = ('status=~".+"', 'status=""')


class Panel(NamedTuple):
    """
    A panel, which is a plot unless C{kind} says otherwise.

    @ivar targets: expressions, and how the legend calls what they find.
    @ivar width: in columns.
    """

    title: str
    unit: str
    targets: Sequence[tuple[str, str]]
    width: int = 8
    description: str = ""
    kind: str = "timeseries"
    isStacked: bool = False
    textMode: str = "auto"


class Row(NamedTuple):
    """
    Panels under a heading.
    """

    title: str
    panels: Sequence[Panel]


class Server(NamedTuple):
    """
    A kind of server.

    @ivar uid: by which Grafana knows the dashboard.
    @ivar label: what is chosen above the panels.
    @ivar anchor: a metric that only these servers have.
    @ivar directions: labels of C{client-bytes} for what is received and what is sent, and how the legend calls them.
    @ivar hasProcesses: whether it may have several.
    """

    title: str
    uid: str
    label: str
    anchor: str
    directions: Sequence[tuple[str, str]]
    hasProcesses: bool = False

    def _over(self, function: str, expression: str) -> str:
        return f"{function} without (process) ({expression})" if self.hasProcesses else expression

    def total(self, name: str, matchers: str = "") -> str:
        """
        A gauge, added up over the processes.
        """
        return self._over("sum", of(name, matchers))

    def most(self, name: str, matchers: str = "") -> str:
        """
        A gauge, where it is largest of all processes.
        """
        return self._over("max", of(name, matchers))

    def least(self, name: str, matchers: str = "") -> str:
        """
        A gauge, where it is smallest of all processes.
        """
        return self._over("min", of(name, matchers))

    def growth(self, name: str, matchers: str = "") -> str:
        """
        What a counter grows by in a second, added up over the processes.
        """
        return self._over("sum", rate(name, matchers))


def of(name: str, matchers: str = "") -> str:
    """
    A metric of the servers that are chosen.
    """
    return f'{name}{{instance=~"$instance"{matchers and f", {matchers}"}}}'


def rate(name: str, matchers: str = "") -> str:
    """
    What a counter of theirs grows by in a second.
    """
    return f"rate({of(name, matchers)}[$__rate_interval])"


def stat(title: str, unit: str, expression: str, legend: str = "{{instance}}", textMode: str = "auto") -> Panel:
    """
    The last value, as a number.
    """
    return Panel(title, unit, [(expression, legend)], 4, kind="stat", textMode=textMode)


# The rows


def overview(server: Server, last: Panel) -> Row:
    return Row(
        "Overview",
        [
            stat("Health", "bool_yes_no", server.least("admission_healthy")),
            stat("Up for", "s", server.least("admission_uptime_seconds")),
            stat("Connections", "short", server.total("admission_connections")),
            stat("Throttled clients", "short", server.total("admission_clients_throttled")),
            last,
            stat("Version", "short", server.most("admission_build_info"), "{{version}}", "name"),
        ],
    )


def answers(server: Server) -> Row:
    def share(matchers: str) -> str:
        part, whole = (f"sum by (instance) ({rate(RESPONSES, each)})" for each in (matchers, ""))
        return f"{part} / {whole}"

    return Row(
        "Answers",
        [
            Panel(
                "Answers a second, by status",
                "reqps",
                [
                    (f"sum by (status) ({rate(RESPONSES, ANSWERED)})", "{{status}}"),
                    (f"sum by (instance) ({rate(RESPONSES, LEFT)})", "the client had left"),
                ],
                12,
                "413, 429 and 503 are refusals, which are not counted among 4xx and 5xx.",
            ),
            Panel(
                "Answers a second, by kind of request",
                "reqps",
                [(f"sum by (request) ({rate(RESPONSES)})", "{{request}}")],
                12,
            ),
            Panel(
                "Part of the answers that are refusals",
                "percentunit",
                [
                    (share(OVERLOADED), "503: there is too much to do"),
                    (share(TOO_MANY), "429: the client is over a limit"),
                    (share(TOO_LARGE), "413: the body is too large"),
                ],
            ),
            Panel(
                "Refusals a second, by kind of request",
                "reqps",
                [(f"sum by (request, status) ({rate(RESPONSES, REFUSED)})", "{{status}} {{request}}")],
            ),
            Panel(
                "Abandoned work",
                "short",
                [(server.total("admission_requests_abandoned"), "{{instance}}")],
                description="Requests that are still worked on though their clients have left. Each keeps its place.",
            ),
        ],
    )


def memory(server: Server) -> Row:
    return Row(
        "Memory",
        [
            Panel(
                "Memory pool",
                "bytes",
                [
                    (server.total("admission_pool_used_bytes"), "used"),
                    # More is a pool without a bound.
                    (f"{server.total('admission_pool_size_bytes')} < 2^62", "size"),
                ],
            ),
            Panel(
                "Where memory is",
                "bytes",
                [(server.total("admission_ledger_bytes"), "{{purpose}}")],
                isStacked=True,
            ),
            Panel(
                "Memory of the process",
                "bytes",
                [
                    (server.total("process_resident_memory_bytes"), "resident"),
                    (server.total("admission_process_private_bytes"), "without files"),
                    (f"sum by (instance) ({of('admission_ledger_bytes')})", "in the ledger"),
                ],
                description="Of several processes, all of them." if server.hasProcesses else "",
            ),
            Panel(
                "Pool without memory for a request",
                "percentunit",
                [(server.most("admission_pool_depleted_ratio"), "fraction of the time")],
                12,
            ),
            Panel(
                "Connections not read, by reason",
                "short",
                [
                    (server.total("admission_connections_paused"), "{{reason}}"),
                    (server.total("admission_connections_waiting_for_memory"), "wait for the pool"),
                ],
                12,
            ),
        ],
    )


def bytesAndLateness(server: Server) -> Iterator[Panel]:
    yield Panel(
        "Bytes in and out a second",
        "Bps",
        [
            (server.growth("admission_request_bytes_total"), "in"),
            (server.growth("admission_response_bytes_total"), "out"),
        ],
    )
    yield Panel(
        "How late the reactor is",
        "s",
        [(server.most("admission_reactor_lag_seconds"), "{{instance}}")],
        description="How much later than it was due something was called, at most, within the last ten seconds.",
    )
    yield Panel(
        "Processor",
        "percentunit",
        [(server.growth("process_cpu_seconds_total"), "{{instance}}")],
        description="All processes together." if server.hasProcesses else "",
    )


def times(server: Server, description: str) -> Iterator[Panel]:
    for title, quantile in (
        ("Median time of requests, by kind", "0.5"),
        ("Time that 99 % of requests do not exceed, by kind", "0.99"),
    ):
        expression = server.most("admission_request_seconds", f'quantile="{quantile}"')
        yield Panel(title, "s", [(expression, "{{request}}")], 12, description)


def kafkaTimes(server: Server) -> Iterator[Panel]:
    yield from times(server, f"{TIMES} Fetch waits for records, JoinGroup and SyncGroup for other members.")


def brokerRequests(server: Server) -> Row:
    waits = f"sum by (le) ({rate('admission_purgatory_wait_seconds_bucket')})"
    return Row(
        "Requests",
        [
            Panel(
                "Requests a second",
                "reqps",
                [
                    (server.growth("admission_requests_total"), "read"),
                    (server.growth("admission_purgatory_expirations_total"), "timed out"),
                ],
            ),
            Panel(
                "Requests that wait",
                "short",
                [
                    (server.total("admission_purgatory_watched_operations"), "watched"),
                    (server.total("admission_purgatory_delayed_operations"), "with a timeout"),
                    (server.total("admission_requests_running"), "running"),
                ],
            ),
            Panel(
                "Waiting time of requests",
                "s",
                [
                    (f"histogram_quantile(0.5, {waits})", "median"),
                    (f"histogram_quantile(0.99, {waits})", "99 %"),
                ],
            ),
            *bytesAndLateness(server),
            *kafkaTimes(server),
        ],
    )


def gatewayRequests(server: Server) -> Row:
    return Row(
        "Requests",
        [
            Panel("Requests a second", "reqps", [(server.growth("admission_requests_total"), "{{instance}}")], 12),
            Panel(
                "Requests that are being served",
                "short",
                [(server.total("admission_requests_running"), "{{instance}}")],
                12,
            ),
            *bytesAndLateness(server),
            *kafkaTimes(server),
        ],
    )


def siteRequests(server: Server) -> Row:
    return Row(
        "Requests and connections",
        [
            *bytesAndLateness(server),
            *times(server, TIMES),
            Panel(
                "Connections closed a second",
                "ops",
                [
                    (server.growth("admission_connections_cut_off_total"), "cut off"),
                    (server.growth("admission_connections_refused_total"), "refused"),
                ],
                12,
                "Cut off: because of what the peer did, which the log says. Refused: because there were too many.",
            ),
            Panel(
                "Connections",
                "short",
                [
                    (server.total("admission_connections"), "open"),
                    (server.total("admission_connections_allowed"), "allowed"),
                ],
                12,
            ),
        ],
    )


def quotas(server: Server) -> Row:
    bytesUsed = "admission_quota_bytes_per_second"
    return Row(
        "Quotas",
        [
            Panel(
                "Quota used, top ten",
                "percentunit",
                [
                    (
                        f"topk(10, {server.most('admission_quota_used_ratio')})",
                        "{{client_id}} {{user}} {{resource}}",
                    )
                ],
                12,
            ),
            Panel(
                "Bytes a second of clients with a quota",
                "Bps",
                [
                    (f"topk(10, {server.most(bytesUsed, matchers)})", f"{{{{client_id}}}} {{{{user}}}} {word}")
                    for matchers, word in server.directions
                ],
                12,
            ),
            Panel(
                "Throttles and refusals a second",
                "ops",
                [
                    (f"sum by (policy) ({rate('admission_quota_throttles_total')})", "{{policy}} throttled"),
                    (f"sum by (policy) ({rate('admission_quota_refusals_total')})", "{{policy}} refused"),
                ],
            ),
            Panel(
                "How long clients are throttled",
                "s",
                [
                    (
                        f"topk(10, {server.most('admission_quota_throttle_seconds')})",
                        "{{client_id}} {{user}} {{resource}}",
                    )
                ],
            ),
            Panel(
                "Clients that policies tell apart",
                "short",
                [(server.most("admission_quota_meters"), "{{policy}}")],
            ),
        ],
    )


def groups(server: Server) -> Row:
    return Row(
        "Groups",
        [
            Panel("Lag by group", "short", [(of("admission_group_lag_records"), "{{group}}")], 12),
            Panel(
                "Groups by state",
                "short",
                [(of("admission_groups"), "{{state}}"), (of("admission_group_members"), "members of all")],
                12,
            ),
        ],
    )


def log(server: Server) -> Row:
    return Row(
        "Log",
        [
            Panel("Disk by topic", "bytes", [(f"topk(10, {of('admission_topic_bytes')})", "{{topic}}")], 6),
            Panel("Size of the log", "bytes", [(of("admission_log_used_bytes"), "{{instance}}")], 6),
            Panel("Disk free", "bytes", [(of("admission_log_free_bytes"), "{{instance}}")], 6),
            Panel(
                "Topics and partitions",
                "short",
                [(of("admission_topics"), "topics"), (of("admission_partitions"), "partitions")],
                6,
            ),
        ],
    )


def nodes(server: Server) -> Row:
    return Row(
        "Nodes of the cluster",
        [
            Panel(
                "How long an answer has been overdue",
                "s",
                [(server.most("admission_node_unanswered_seconds"), "node {{node}}")],
                description="A growing line is a node that hangs.",
            ),
            Panel(
                "How long a node has taken nothing",
                "s",
                [(server.most("admission_node_stalled"), "node {{node}}")],
            ),
            Panel(
                "Requests that a node has to answer",
                "short",
                [(server.total("admission_node_unanswered"), "node {{node}}")],
            ),
            Panel("Links to nodes", "short", [(server.total("admission_node_links"), "node {{node}}")]),
            Panel(
                "Memory of requests on their way to a node",
                "bytes",
                [(server.total("admission_node_bytes_held"), "node {{node}}")],
                description="Of one node at most upstream.pool.percent of the pool.",
            ),
            Panel(
                "Clients told to wait, a second",
                "ops",
                [(f"sum by (node, by) ({rate('admission_node_throttles_total')})", "node {{node}}, {{by}}")],
                description="By the gateway (ours), by the node (theirs), or by both.",
            ),
        ],
    )


def sharedLimits(server: Server) -> Row:
    return Row(
        "Shared limits",
        [
            Panel(
                "Servers that share limits",
                "short",
                [(server.most("admission_shared_limits_servers"), "{{instance}}")],
                6,
                "Gateways, or all of their processes.",
            ),
            Panel(
                "Part of each limit that is enforced",
                "percentunit",
                [(server.least("admission_shared_limits_fraction"), "{{instance}}")],
                6,
                "All of it, as long as they hear from each other; otherwise each of N enforces one Nth.",
            ),
            Panel(
                "How long a message takes until it comes back",
                "s",
                [(server.most("admission_shared_limits_trip_seconds"), "{{instance}}")],
                6,
            ),
            Panel(
                "Clients told of and heard of, a second",
                "ops",
                [
                    (server.growth("admission_shared_limits_told_total"), "told of"),
                    (server.growth("admission_shared_limits_heard_total"), "heard of"),
                ],
                6,
            ),
            Panel(
                "Bytes a second that clients take at other servers, or at other processes",
                "Bps",
                [
                    (
                        f"topk(10, max without (process) ({rate('admission_quota_taken_elsewhere_total', matchers)}))",
                        f"{{{{client_id}}}} {{{{user}}}} {word}",
                    )
                    for matchers, word in server.directions
                ],
                WIDTH,
                "Of client-bytes, as they tell it; the largest that one process hears of.",
            ),
        ],
    )


def processes(server: Server) -> Row:
    legend = "process {{process}}"
    return Row(
        "Each process, of a gateway that has several",
        [
            Panel("Processes that serve", "short", [(of("admission_processes_serving"), "{{instance}}")], 6),
            Panel(
                "Processes started again",
                "short",
                [(f"increase({of('admission_process_restarts_total')}[$__rate_interval])", legend)],
                6,
            ),
            Panel("Processor of each", "percentunit", [(rate("process_cpu_seconds_total"), legend)], 6),
            Panel("How late each reactor is", "s", [(of("admission_reactor_lag_seconds"), legend)], 6),
            Panel("Connections of each", "short", [(of("admission_connections"), legend)], 6),
            Panel("Requests a second of each", "reqps", [(rate("admission_requests_total"), legend)], 6),
            Panel("Memory pool of each, used", "bytes", [(of("admission_pool_used_bytes"), legend)], 6),
            Panel("Memory of each, without files", "bytes", [(of("admission_process_private_bytes"), legend)], 6),
        ],
    )


# The dashboards

OF_KAFKA = (('resource="Produce"', "produce"), ('resource="Fetch"', "fetch"))
BROKER = Server("admission: broker", "admission", "Broker", "admission_topics", OF_KAFKA)
GATEWAY = Server(
    "admission: gateway",
    "admission-gateway",
    "Gateway",
    "admission_cluster_reached",
    OF_KAFKA,
    hasProcesses=True,
)
SITE = Server(
    "admission: sites and other servers",
    "admission-site",
    "Server",
    "admission_connections_cut_off_total",
    (('resource="Received"', "received"), ('resource="Sent"', "sent")),
)


def dashboards() -> dict[str, dict[str, Any]]:
    """
    All of them, by the names of their files.
    """
    lag = f"sum by (instance) ({of('admission_group_lag_records')})"
    refused = f"sum by (instance) ({rate(RESPONSES, REFUSED)})"
    return {
        "broker.json": dashboard(
            BROKER,
            [
                overview(BROKER, stat("Lag of all groups", "short", lag)),
                memory(BROKER),
                brokerRequests(BROKER),
                quotas(BROKER),
                groups(BROKER),
                log(BROKER),
            ],
        ),
        "gateway.json": dashboard(
            GATEWAY,
            [
                overview(GATEWAY, stat("Cluster answers", "bool_yes_no", GATEWAY.least("admission_cluster_reached"))),
                nodes(GATEWAY),
                memory(GATEWAY),
                gatewayRequests(GATEWAY),
                quotas(GATEWAY),
                sharedLimits(GATEWAY),
                processes(GATEWAY),
            ],
        ),
        "site.json": dashboard(
            SITE,
            [
                overview(SITE, stat("Refusals a second", "reqps", refused)),
                answers(SITE),
                memory(SITE),
                siteRequests(SITE),
                quotas(SITE),
            ],
        ),
    }


def dashboard(server: Server, rows: Sequence[Row]) -> dict[str, Any]:
    """
    What Grafana imports.
    """
    instances = f"label_values({server.anchor}, instance)"
    return {
        "title": server.title,
        "uid": server.uid,
        "tags": ["admission"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": server.label,
                    "datasource": DATA_SOURCE,
                    "query": {"query": instances, "refId": "instances"},
                    "definition": instances,
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "panels": [*_placed(rows)],
    }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """
    All panels, one after the other from left to right, each row under its heading.
    """
    number = top = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left = top + height, 0
            number += 1
            height = 4 if panel.kind == "stat" else 7
            yield _panel(number, panel, {"x": left, "y": top, "w": panel.width, "h": height})
            left += panel.width
        top += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "value",
            "graphMode": "none",
            "textMode": panel.textMode,
        }
    else:
        defaults["custom"] = {
            "fillOpacity": 40 if panel.isStacked else 0,
            "stacking": {"mode": "normal" if panel.isStacked else "none"},
            "showPoints": "never",
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "targets": [
            {"datasource": DATA_SOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + index)}
            for index, (expression, legend) in enumerate(panel.targets)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def texts() -> dict[str, str]:
    """
    What is in the files, by their names.
    """
    return {name: json.dumps(each, indent=1) + "\n" for name, each in dashboards().items()}


if __name__ == "__main__":
    for name, text in texts().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
