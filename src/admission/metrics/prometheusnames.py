# -*- test-case-name: tests.unit.metrics.test_prometheus -*-
"""
The Prometheus names of sensors.

Names have base units and follow Prometheus's conventions.  A component that adds
sensors of a protocol also supplies their names; see L{exposition
<admission.metrics.prometheus.exposition>}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import field, frozen

COUNTER_SUFFIX = "_total"


@frozen
class Naming:
    """
    The name of a metric.

    @ivar sensors: a regular expression that matches the names of its sensors; its
        groups become labels.
    @ivar name: the metric.  Only counters end with C{_total}; a sensor that grows
        without being a counter becomes one by such a name.
    @ivar help: a sentence.
    @ivar scale: the factor that converts values to the base unit.
    @ivar isLeastFirst: of too many rows, the smallest values are kept, not the
        largest.
    @ivar labels: other names for labels.
    @ivar isMade: the metric has no naming of its own; its name is made from the
        sensor's, whatever that ends with.
    @ivar isAlias: the metric exists in addition to the sensor's own metric, for
        dashboards that know this name.
    """

    sensors: str
    name: str
    help: str
    scale: float = 1.0
    isLeastFirst: bool = False
    labels: Mapping[str, str] = field(factory=dict)
    isAlias: bool = False
    isMade: bool = False

    def labelsOf(self, sensor: str) -> dict[str, str] | None:
        """
        The labels in a sensor's name; L{None} if the naming is not for that
        sensor.
        """
        match = re.fullmatch(self.sensors, sensor)
        return match and {label: text for label, text in match.groupdict().items() if text}


METER = r"(?P<policy>[^.]+)\.(?:(?P<resource>[^.]+)\.)?"
"""The beginning of the names of quota policies' sensors."""

NAMINGS = (
    Naming("MemoryPoolSize", "admission_pool_size_bytes", "Size of the memory pool."),
    Naming("MemoryPoolUsed", "admission_pool_used_bytes", "Memory of the pool that is in use."),
    Naming(
        "MemoryPoolAvailable",
        "admission_pool_available_bytes",
        "Memory of the pool that is free; negative if more is in use than the pool has.",
    ),
    Naming(
        "MemoryPoolAvgDepletedPercent",
        "admission_pool_depleted_ratio",
        "Fraction of the last minute in which the pool had no memory for a request.",
    ),
    Naming(
        "MemoryPoolDepletedMicroseconds",
        "admission_pool_depleted_seconds_total",
        "Time in which the pool had no memory for a request.",
        scale=1e-6,
    ),
    Naming("LedgerBytes", "admission_ledger_bytes", "Memory in use, by purpose."),
    Naming(
        "ConnectionsWaitingForMemory",
        "admission_connections_waiting_for_memory",
        "Connections that wait for memory of the pool.",
    ),
    Naming("Connections", "admission_connections", "Open connections."),
    Naming("ConnectionsAllowed", "admission_connections_allowed", "Maximum number of open connections."),
    Naming(
        "ConnectionsRefused",
        "admission_connections_refused_total",
        "Connections closed at once because there were too many.",
    ),
    Naming(
        "ConnectionsCutOff",
        "admission_connections_cut_off_total",
        "Connections closed at once because of what the peer did.",
    ),
    Naming("ConnectionsMuted", "admission_connections_paused", "Connections that are not read, by reason."),
    Naming("RunningRequests", "admission_requests_running", "Requests that are being served."),
    Naming("RequestsRead", "admission_requests_total", "Requests received."),
    Naming("ClientsThrottled", "admission_clients_throttled", "Clients throttled now or within the last ten seconds."),
    Naming("RequestBytesRead", "admission_request_bytes_total", "Bytes of the requests received."),
    Naming("ResponseBytesSent", "admission_response_bytes_total", "Bytes of the responses sent."),
    Naming(
        "ReactorLagSeconds",
        "admission_reactor_lag_seconds",
        "How much later than it was due something was called, at most, within the last ten seconds.",
    ),
    Naming(
        "Responses",
        "admission_responses_total",
        "Answers of a site, by kind of request and class of status, 413, 429 and 503 apart; without one where the "
        "client had left.",
    ),
    Naming(
        "RequestsAbandoned",
        "admission_requests_abandoned",
        "Requests of a site that are still worked on though their clients have left.",
    ),
    Naming(
        "RequestSeconds",
        "admission_request_seconds",
        "The time from a request's arrival to its answer, waits included: quantiles of the last five to ten minutes, "
        "by kind.",
    ),
    Naming(
        r"(?P<purgatory>\w+)PurgatorySize",
        "admission_purgatory_watched_operations",
        "Requests that wait for an event.",
    ),
    Naming(
        r"(?P<purgatory>\w+)NumDelayedOperations",
        "admission_purgatory_delayed_operations",
        "Requests that wait with a timeout.",
    ),
    Naming(
        r"(?P<purgatory>\w+)Expirations",
        "admission_purgatory_expirations_total",
        "Requests that waited until their timeout.",
    ),
    Naming(r"(?P<purgatory>\w+)WaitSeconds", "admission_purgatory_wait_seconds", "Time that requests have waited."),
    Naming("QuotaThrottles", "admission_quota_throttles_total", "Throttles a policy has applied."),
    Naming(
        "QuotaRefusals",
        "admission_quota_refusals_total",
        "Requests a policy has refused, or delayed where the answer cannot carry a refusal.",
    ),
    Naming(
        "QuotaShadowThrottles",
        "admission_quota_shadow_throttles_total",
        "Throttles a shadow policy would have applied.",
    ),
    Naming(
        "QuotaShadowRefusals",
        "admission_quota_shadow_refusals_total",
        "Requests a shadow policy would have refused or delayed so.",
    ),
    Naming("SensorFailures", "admission_sensor_failures_total", "How often a sensor could not be read."),
    Naming("QuotaPolicyFailures", "admission_quota_policy_failures_total", "Exceptions a policy has raised."),
    Naming(
        METER + "byte-rate",
        "admission_quota_bytes_per_second",
        "Bytes per second that a client uses of a byte quota.",
    ),
    Naming(
        METER + "request-time",
        "admission_quota_request_time_ratio",
        "Time that a client's requests take, as a fraction of one thread's time.",
        scale=0.01,
    ),
    Naming(METER + "utilization", "admission_quota_used_ratio", "Fraction of its limit that a client uses."),
    Naming(
        METER + "throttle-time",
        "admission_quota_throttle_seconds",
        "Mean delay that was applied to a client in the last minute.",
        scale=0.001,
    ),
    Naming(
        METER + "tokens",
        "admission_quota_tokens",
        "Tokens in a client's bucket; negative if the client is in debt.",
        isLeastFirst=True,
    ),
    Naming(
        METER + "request-rate",
        "admission_quota_requests_per_second",
        "Requests per second of a client or an address whose number is limited.",
    ),
    Naming(
        METER + "connection-creation-rate",
        "admission_quota_connections_per_second",
        "Connections per second that an address opens.",
    ),
    Naming(
        METER + "elsewhere-total",
        "admission_quota_taken_elsewhere_total",
        "What a client has taken of a shared limit at other servers, such as bytes, as these have told.",
    ),
    Naming(METER + "meters", "admission_quota_meters", "Clients that a policy measures separately."),
    Naming(
        METER + "overflows",
        "admission_quota_overflows_total",
        "Clients that had to share a meter because a policy has no more.",
    ),
    Naming("ExportDroppedEvents", "admission_export_dropped_events_total", "Events that an exporter has dropped."),
    Naming("ExportFailures", "admission_export_failures_total", "Exceptions that an exporter has raised."),
    Naming(
        "ExportShortenedSamples",
        "admission_export_shortened_samples_total",
        "Recorded samples of sensors that were incomplete because there were too many values.",
    ),
    Naming("Healthy", "admission_healthy", "1 while /healthz says ok, else 0."),
    Naming("UptimeSeconds", "admission_uptime_seconds", "Time since the server started."),
    Naming("BuildInfo", "admission_build_info", "Always 1; the version is a label."),
    Naming("ProcessResidentBytes", "process_resident_memory_bytes", "Resident memory of the process."),
    Naming(
        "ProcessPrivateBytes",
        "admission_process_private_bytes",
        "Resident memory of the process without mapped files, such as a recording.",
    ),
    Naming("ProcessCpuSeconds", "process_cpu_seconds_total", "User and system CPU time of the process."),
    Naming("ProcessOpenDescriptors", "process_open_fds", "Open file descriptors."),
    Naming("ProcessMostDescriptors", "process_max_fds", "Maximum number of open file descriptors; -1 if unlimited."),
    Naming("ProcessImportedModules", "process_imported_modules", "Modules that Python has imported."),
    Naming("ProcessesServing", "admission_processes_serving", "Processes of the server that serve clients."),
    Naming("ProcessRestarts", "admission_process_restarts_total", "How often a process was started again."),
)
"""The names of the framework's sensors."""


def namingsOf(sensor: str, namings: Sequence[Naming] = ()) -> Iterator[tuple[Naming, Mapping[str, str]]]:
    """
    The metrics of a sensor: the first naming that fits, or one made of the
    sensor's own name, and then its aliases.

    @param namings: names to look through before L{NAMINGS}.
    @return: the namings, each with the labels in the sensor's name.
    """
    own = _fitting(sensor, (each for each in (*namings, *NAMINGS) if not each.isAlias))
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", sensor) or ["sensor"]
    made = Naming(re.escape(sensor), f"admission_{'_'.join(words).lower()}", f"The sensor {sensor}.", isMade=True)
    yield next(own, (made, {}))
    yield from _fitting(sensor, (each for each in namings if each.isAlias))


def _fitting(sensor: str, namings: Iterable[Naming]) -> Iterator[tuple[Naming, Mapping[str, str]]]:
    for naming in namings:
        labels = naming.labelsOf(sensor)
        if labels is not None:
            yield naming, labels
