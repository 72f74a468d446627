# -*- test-case-name: tests.unit.kafka.serving.test_metricnames -*-
"""
The Prometheus names of a broker's sensors.

In addition to our own names there are those that existing dashboards for
Kafka's brokers use: the names that the JMX exporter makes with the
configuration that its authors publish.
"""

from __future__ import annotations

from admission.metrics.prometheusnames import METER, Naming

_QUOTA = r"[^.]+\.(?P<resource>Produce|Fetch|Request)\."
_LABELS = {"client-id": "clientId"}


def _alias(sensors: str, name: str, help: str) -> Naming:
    return Naming(sensors, name, help, labels=_LABELS, isAlias=True)


KAFKA_NAMINGS = (
    Naming("Groups", "admission_groups", "Consumer groups, by state."),
    Naming("GroupMembers", "admission_group_members", "Members of all consumer groups."),
    Naming(
        "GroupLag",
        "admission_group_lag_records",
        "Records that a consumer group has not committed yet; of the groups with the largest lag.",
    ),
    Naming("LogUsedBytes", "admission_log_used_bytes", "Size of the records in the log."),
    Naming("LogFreeBytes", "admission_log_free_bytes", "Free space of the file system with the log."),
    Naming("LogDiskBytes", "admission_log_disk_bytes", "Size of the file system with the log."),
    Naming("Topics", "admission_topics", "Topics."),
    Naming("Partitions", "admission_partitions", "Partitions of all topics."),
    Naming(
        "TopicBytes",
        "admission_topic_bytes",
        "Size of the records of a topic: of the largest topics, and of all others together.",
    ),
    Naming(
        METER + "rate",
        "admission_quota_new_producer_ids",
        "New producer ids of a user within the last quota window.",
    ),
    Naming(
        METER + "filter-bytes", "admission_quota_filter_bytes", "Memory of the filters that know a user's producer ids."
    ),
    Naming(METER + "filter-layers", "admission_quota_filter_layers", "Layers of these filters."),
    Naming(
        METER + "false-positives",
        "admission_quota_false_positives_ratio",
        "Estimated fraction of new producer ids that the filters take for known ones.",
    ),
    Naming(METER + "memory-bytes", "admission_quota_memory_bytes", "Memory of the filters of all users."),
    Naming(
        METER + "dropped-layers",
        "admission_quota_dropped_layers_total",
        "Layers of filters that were dropped early because memory was short.",
    ),
    _alias(
        "MemoryPoolAvailable", "kafka_network_socketserver_memorypoolavailable", "As admission_pool_available_bytes."
    ),
    _alias("MemoryPoolUsed", "kafka_network_socketserver_memorypoolused", "As admission_pool_used_bytes."),
    _alias(
        "MemoryPoolAvgDepletedPercent",
        "kafka_server_socket_server_metrics_memorypoolavgdepletedpercent",
        "As admission_pool_depleted_ratio.",
    ),
    _alias("Connections", "kafka_server_socket_server_metrics_connection_count", "As admission_connections."),
    _alias(
        r"(?P<delayedOperation>\w+)PurgatorySize",
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "As admission_purgatory_watched_operations; all requests wait in one purgatory.",
    ),
    _alias(
        r"(?P<delayedOperation>\w+)NumDelayedOperations",
        "kafka_server_delayedoperationpurgatory_numdelayedoperations",
        "As admission_purgatory_delayed_operations.",
    ),
    _alias(_QUOTA + "byte-rate", "kafka_server_quota_byte_rate", "As admission_quota_bytes_per_second."),
    _alias(
        _QUOTA + "throttle-time",
        "kafka_server_quota_throttle_time",
        "As admission_quota_throttle_seconds, in milliseconds.",
    ),
    _alias(
        _QUOTA + "request-time",
        "kafka_server_quota_request_time",
        "As admission_quota_request_time_ratio, in percent.",
    ),
)
"""The names of the broker's own sensors, then Kafka's names."""
