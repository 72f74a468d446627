# -*- test-case-name: tests.unit.metrics.test_prometheus -*-
"""
What sensors are called in Prometheus.

Our own names say what is measured and in which unit.  Beside them stand the
names under which Kafka's brokers are graphed already: those that the JMX
exporter makes with the configuration that its authors publish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import field, frozen


@frozen
class Naming:
    """
    The name of a metric.

    @ivar sensors: which sensors it is for: an expression that matches their
        names; its groups become labels.
    @ivar name: the metric, without the C{_total} that counters end with.
    @ivar help: what it says.
    @ivar scale: by what to multiply, for its unit.
    @ivar isCounter: L{True} if the sensors grow without being counters.
    @ivar isLeastFirst: which of too many rows matter: the small ones.
    @ivar labels: other names for labels.
    """

    sensors: str
    name: str
    help: str
    scale: float = 1.0
    isCounter: bool = False
    isLeastFirst: bool = False
    labels: Mapping[str, str] = field(factory=dict)

    def labelsOf(self, sensor: str) -> dict[str, str] | None:
        """
        The labels that a sensor's name says; L{None} if it is not for it.
        """
        match = re.fullmatch(self.sensors, sensor)
        return match and {label: text for label, text in match.groupdict().items() if text}


_METER = r"(?P<policy>[^.]+)\.(?:(?P<resource>[^.]+)\.)?"

NAMINGS = (
    Naming("MemoryPoolSize", "admission_pool_size_bytes", "The bound of the memory pool."),
    Naming("MemoryPoolUsed", "admission_pool_used_bytes", "Bytes of the memory pool that are taken."),
    Naming(
        "MemoryPoolAvailable",
        "admission_pool_available_bytes",
        "Bytes of the memory pool that are left; negative when more is held than it has.",
    ),
    Naming(
        "MemoryPoolAvgDepletedPercent",
        "admission_pool_depleted_ratio",
        "The part of the last minute in which the memory pool refused requests.",
    ),
    Naming(
        "MemoryPoolDepletedMicroseconds",
        "admission_pool_depleted_microseconds",
        "For how long the memory pool has refused requests, ever.",
    ),
    Naming("LedgerBytes", "admission_ledger_bytes", "Where memory is, by what it is for."),
    Naming("ConnectionsWaitingForMemory", "admission_connections_waiting_for_memory", "Who waits for the memory pool."),
    Naming("Connections", "admission_connections", "Open connections."),
    Naming("ConnectionsAllowed", "admission_connections_allowed", "How many there may be."),
    Naming("ConnectionsRefused", "admission_connections_refused", "Connections closed because there were too many."),
    Naming("ConnectionsMuted", "admission_connections_muted", "Connections that are not read, by reason."),
    Naming("ClientsThrottled", "admission_clients_held_back", "Clients over a quota now or in the last ten seconds."),
    Naming("RunningRequests", "admission_requests_running", "Requests that are being worked on."),
    Naming("RequestsRead", "admission_requests", "Requests that have been read."),
    Naming("RequestBytesRead", "admission_request_bytes", "The bytes of these."),
    Naming(
        r"(?P<purgatory>\w+)PurgatorySize",
        "admission_purgatory_watched_operations",
        "Requests that wait for something to happen.",
    ),
    Naming(
        r"(?P<purgatory>\w+)NumDelayedOperations",
        "admission_purgatory_delayed_operations",
        "Requests whose time runs while they wait.",
    ),
    Naming(
        r"(?P<purgatory>\w+)Expirations",
        "admission_purgatory_expirations",
        "Requests whose time ran out while they waited.",
    ),
    Naming(r"(?P<purgatory>\w+)WaitSeconds", "admission_purgatory_wait_seconds", "For how long requests have waited."),
    Naming("Groups", "admission_groups", "Groups of consumers, by state."),
    Naming("GroupMembers", "admission_group_members", "Members of all groups."),
    Naming(
        "GroupLag",
        "admission_group_lag_records",
        "Records that a group has yet to commit; of the groups that lag most.",
    ),
    Naming("QuotaThrottles", "admission_quota_throttles", "How often a policy has held a client back."),
    Naming("QuotaRefusals", "admission_quota_refusals", "How often a policy has refused a request."),
    Naming("QuotaShadowThrottles", "admission_quota_shadow_throttles", "How often a shadow policy would have."),
    Naming("QuotaShadowRefusals", "admission_quota_shadow_refusals", "How often a shadow policy would have refused."),
    Naming("QuotaPolicyFailures", "admission_quota_policy_failures", "How often a policy has raised an exception."),
    Naming(_METER + "byte-rate", "admission_quota_bytes_per_second", "What a client takes of a byte quota."),
    Naming(
        _METER + "request-time",
        "admission_quota_request_time_ratio",
        "How much of one thread a client's requests take.",
        scale=0.01,
    ),
    Naming(
        _METER + "utilization",
        "admission_quota_used_ratio",
        "The part of its limit that a client uses.",
    ),
    Naming(
        _METER + "throttle-time",
        "admission_quota_throttle_seconds",
        "For how long a client was throttled at a time, on average of the last minute.",
        scale=0.001,
    ),
    Naming(
        _METER + "tokens",
        "admission_quota_tokens",
        "What is left in a client's bucket; negative for what it owes.",
        isLeastFirst=True,
    ),
    Naming(
        _METER + "connection-creation-rate",
        "admission_quota_connections_per_second",
        "How many connections an address opens.",
    ),
    Naming(_METER + "rate", "admission_quota_producer_ids_per_window", "New producer ids of a user."),
    Naming(_METER + "filter-bytes", "admission_quota_filter_bytes", "Memory that knows a user's producer ids."),
    Naming(_METER + "filter-layers", "admission_quota_filter_layers", "The filters that it consists of."),
    Naming(
        _METER + "false-positives",
        "admission_quota_false_positives_ratio",
        "The estimated part of new producer ids that pass for known ones.",
    ),
    Naming(_METER + "memory-bytes", "admission_quota_memory_bytes", "Memory that knows all users' producer ids."),
    Naming(
        _METER + "dropped-layers",
        "admission_quota_dropped_layers",
        "Filters that were dropped before their time for lack of memory.",
    ),
    Naming(_METER + "meters", "admission_quota_meters", "How many clients a policy tells apart now."),
    Naming(_METER + "overflows", "admission_quota_overflows", "How often a client had to share a meter."),
    Naming("ExportDroppedEvents", "admission_export_dropped_events", "Events that an exporter had no room for."),
    Naming("ExportFailures", "admission_export_failures", "How often an exporter has raised an exception."),
    Naming("Healthy", "admission_healthy", "1 while /healthz says ok, else 0."),
    Naming("UptimeSeconds", "admission_uptime_seconds", "For how long the broker has served."),
    Naming("BuildInfo", "admission_build_info", "Always 1; the version is a label."),
    Naming("ProcessResidentBytes", "process_resident_memory_bytes", "Physical memory of the process."),
    Naming(
        "ProcessPrivateBytes",
        "admission_process_private_bytes",
        "The part of it that is no mapped file, such as the log.",
    ),
    Naming("ProcessCpuSeconds", "process_cpu_seconds", "Time on a processor.", isCounter=True),
    Naming("ProcessOpenDescriptors", "process_open_fds", "Open files, sockets included."),
    Naming("ProcessMostDescriptors", "process_max_fds", "How many there may be."),
)
"""Our names; the first that fits a sensor holds.  Sensors that none is for get one that is made of theirs."""

_QUOTA = r"[^.]+\.(?P<resource>Produce|Fetch|Request)\."
_KAFKA_LABELS = {"client-id": "clientId"}

KAFKA_NAMINGS = (
    Naming(
        "MemoryPoolAvailable", "kafka_network_socketserver_memorypoolavailable", "As admission_pool_available_bytes."
    ),
    Naming("MemoryPoolUsed", "kafka_network_socketserver_memorypoolused", "As admission_pool_used_bytes."),
    Naming(
        "MemoryPoolAvgDepletedPercent",
        "kafka_server_socket_server_metrics_memorypoolavgdepletedpercent",
        "As admission_pool_depleted_ratio.",
    ),
    Naming("Connections", "kafka_server_socket_server_metrics_connection_count", "As admission_connections."),
    Naming(
        r"(?P<delayedOperation>\w+)PurgatorySize",
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "As admission_purgatory_watched_operations; all requests wait in one place.",
    ),
    Naming(
        r"(?P<delayedOperation>\w+)NumDelayedOperations",
        "kafka_server_delayedoperationpurgatory_numdelayedoperations",
        "As admission_purgatory_delayed_operations.",
    ),
    Naming(
        _QUOTA + "byte-rate",
        "kafka_server_quota_byte_rate",
        "As admission_quota_bytes_per_second.",
        labels=_KAFKA_LABELS,
    ),
    Naming(
        _QUOTA + "throttle-time",
        "kafka_server_quota_throttle_time",
        "As admission_quota_throttle_seconds, in milliseconds.",
        labels=_KAFKA_LABELS,
    ),
    Naming(
        _QUOTA + "request-time",
        "kafka_server_quota_request_time",
        "As admission_quota_request_time_ratio, in percent.",
        labels=_KAFKA_LABELS,
    ),
)
"""What Kafka calls the same."""


def namingOf(sensor: str) -> Naming:
    """
    Our name for a sensor.
    """
    for naming in NAMINGS:
        if naming.labelsOf(sensor) is not None:
            return naming
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", sensor) or ["sensor"]
    return Naming(re.escape(sensor), f"admission_{'_'.join(words).lower()}", f"The sensor {sensor}.")
