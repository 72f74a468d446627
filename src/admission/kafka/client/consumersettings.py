# -*- test-case-name: tests.unit.kafka.client.test_consumersettings -*-
"""
A consumer's settings, by the names that Kafka gives them.

An attribute of L{ConsumerSettings} is named after its property, with the unit
in which the consumer counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from admission.units import formatSeconds

from ..property import (
    ADDRESSES,
    BOOLEAN,
    INTEGER,
    MILLISECONDS,
    SIZE,
    TEXT,
    TEXT_OR_NONE,
    WORDS,
    Given,
    SettingsError,
    parseGiven,
    propertiesOf,
    setting,
)
from .assignors import ASSIGNORS

EARLIEST = "earliest"
LATEST = "latest"
NONE = "none"


@frozen(kw_only=True)
class ConsumerSettings:
    """
    The values in force.  Sizes are in bytes, times in seconds.

    The three timeouts of KIP-62 are apart: a consumer is dead when the
    coordinator has not heard of it for C{sessionTimeoutSeconds}, and stuck
    when it has not polled for C{processTimeoutSeconds}; others wait for it in
    a rebalance for C{maxPollIntervalSeconds}.
    """

    bootstrapServers: tuple[tuple[str, int], ...] = setting(
        "bootstrap.servers", ADDRESSES, "", "Some of the brokers, as `HOST:PORT`, with commas."
    )
    groupId: str | None = setting(
        "group.id", TEXT_OR_NONE, "", "The group; a consumer without one cannot subscribe and commits nothing."
    )
    groupInstanceId: str | None = setting(
        "group.instance.id",
        TEXT_OR_NONE,
        "",
        "Makes the consumer a static member, which keeps its partitions when it comes back within the session timeout.",
    )
    clientId: str = setting("client.id", TEXT, "admission", "The name that the consumer gives itself.")
    sessionTimeoutSeconds: float = setting(
        "session.timeout.ms",
        MILLISECONDS,
        "10s",
        "The coordinator removes a member that it has not heard of for this long.",
    )
    heartbeatIntervalSeconds: float = setting(
        "heartbeat.interval.ms",
        MILLISECONDS,
        "3s",
        "The time between heartbeats; less than the session timeout.",
        minimum="1ms",
    )
    maxPollIntervalSeconds: float = setting(
        "max.poll.interval.ms",
        MILLISECONDS,
        "5m",
        "The longest time that the application may work on the records of one poll.",
        minimum="1ms",
    )
    maxPollRecords: int = setting(
        "max.poll.records", INTEGER, "500", "The most records that one poll gives.", minimum="1"
    )
    autoCommit: bool = setting(
        "enable.auto.commit", BOOLEAN, "true", "Whether the consumer commits by itself what was polled."
    )
    autoCommitIntervalSeconds: float = setting(
        "auto.commit.interval.ms", MILLISECONDS, "5s", "The time between such commits.", minimum="1ms"
    )
    autoOffsetReset: str = setting(
        "auto.offset.reset",
        TEXT,
        LATEST,
        "Where to begin without a committed offset: `earliest`, `latest`, or `none` to fail.",
        choices=(EARLIEST, LATEST, NONE),
    )
    assignors: tuple[str, ...] = setting(
        "partition.assignment.strategy",
        WORDS,
        ",".join(ASSIGNORS),
        "Ways to share partitions, the preferred one first.",
        choices=ASSIGNORS,
    )
    fetchMinBytes: int = setting("fetch.min.bytes", SIZE, "1", "A broker answers a fetch when it has this many bytes.")
    fetchMaxWaitSeconds: float = setting(
        "fetch.max.wait.ms", MILLISECONDS, "500ms", "The longest wait of a broker for `fetch.min.bytes`."
    )
    fetchMaxBytes: int = setting(
        "fetch.max.bytes",
        SIZE,
        "50MiB",
        "The largest response of a broker to a fetch, unless its first batch is larger.",
        minimum="1",
    )
    maxPartitionFetchBytes: int = setting(
        "max.partition.fetch.bytes",
        SIZE,
        "1MiB",
        "The largest part of a response for one partition, with the same exception.",
        minimum="1",
    )
    prefetchMaxBytes: int = setting(
        "prefetch.max.bytes", SIZE, "64MiB", "Memory for records that no poll has taken yet.", minimum="1"
    )
    receiveMessageMaxBytes: int = setting(
        "receive.message.max.bytes",
        SIZE,
        "100M",
        "The largest response that is read, and the largest batch after decompression.",
    )
    retryBackoffSeconds: float = setting(
        "retry.backoff.ms", MILLISECONDS, "100ms", "The first wait before trying again.", minimum="1ms"
    )
    retryBackoffMaxSeconds: float = setting(
        "retry.backoff.max.ms", MILLISECONDS, "1s", "The longest wait before trying again, give or take a fifth."
    )
    requestTimeoutSeconds: float = setting(
        "request.timeout.ms", MILLISECONDS, "30s", "The longest wait for a response.", minimum="1ms"
    )
    defaultApiTimeoutSeconds: float = setting(
        "default.api.timeout.ms", MILLISECONDS, "1m", "How long a commit and the like are tried."
    )
    metadataMaxAgeSeconds: float = setting(
        "metadata.max.age.ms", MILLISECONDS, "5m", "How often to look for new partitions."
    )
    allowAutoCreateTopics: bool = setting(
        "allow.auto.create.topics", BOOLEAN, "true", "Whether subscribing may create a topic."
    )

    def __attrs_post_init__(self) -> None:
        if not self.bootstrapServers:
            raise SettingsError("bootstrap.servers is missing: where is one of the brokers?")
        if self.heartbeatIntervalSeconds >= self.sessionTimeoutSeconds:
            raise SettingsError(
                f"heartbeat.interval.ms ({formatSeconds(self.heartbeatIntervalSeconds)}) must be less than"
                f" session.timeout.ms ({formatSeconds(self.sessionTimeoutSeconds)}), or every heartbeat comes too late"
            )

    @property
    def processTimeoutSeconds(self) -> float:
        """
        How long the application may do without polling: the larger of
        session and poll interval, because the coordinator would not miss it
        earlier.
        """
        return max(self.sessionTimeoutSeconds, self.maxPollIntervalSeconds)

    @property
    def joinTimeoutSeconds(self) -> float:
        """
        How long a JoinGroup waits for its answer: until the slowest member has
        had its time, and five seconds.
        """
        return max(self.requestTimeoutSeconds, self.maxPollIntervalSeconds + 5.0)


def consumerSettings(properties: Mapping[str, str]) -> ConsumerSettings:
    """
    Settings from properties as they stand in a file: C{"10s"} or C{"10000"}
    for C{session.timeout.ms}, C{"64MiB"} for sizes.

    @raise SettingsError: a L{ValueError}, if a name is unknown or a value
        cannot be used.
    """
    given = [Given(name, text) for name, text in properties.items()]
    return ConsumerSettings(**parseGiven(propertiesOf(ConsumerSettings), given))
