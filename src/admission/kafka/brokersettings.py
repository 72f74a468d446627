# -*- test-case-name: tests.unit.kafka.test_brokersettings -*-
"""
The broker's settings, by the names that Kafka gives them.

An attribute of L{Settings} is named after its property, with the unit in which
the broker counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from attrs import Factory, field, frozen

from ..memorylimit import memoryLimitBytes
from ..units import formatBytes, formatSeconds
from .property import (
    BOOLEAN,
    DURATION,
    INTEGER,
    MILLISECONDS,
    PRINCIPALS,
    QUOTA,
    QUOTA_OVERRIDES,
    SECONDS,
    SIZE,
    SIZE_OR_OFF,
    TEXT,
    Given,
    Property,
    SettingsError,
    formatSettings,
    parseAssignments,
    parseGiven,
    propertiesOf,
    setting,
    unlimited,
)
from .propertyfile import readPropertyFile

POOL = "queued.max.request.bytes"
LARGEST_REQUEST = "socket.request.max.bytes"
_LARGEST_REQUEST_BYTES = 100 << 20

RESERVED_DESCRIPTORS = 128
"""
The files that the broker has open besides connections: the log, its ports, those who read the status port, recordings,
and a reserve.
"""

CREATE_TIME = "CreateTime"
APPEND_TIME = "LogAppendTime"
TIMESTAMP_TYPES = (CREATE_TIME, APPEND_TIME)

_INT32_MAX = str(2**31 - 1)

_ELSEWHERE = {
    "advertised.listeners": "use --advertise",
    "controller.quorum.voters": "there is one broker and no quorum",
    "default.replication.factor": "there is one broker, which replicates nothing",
    "listeners": "use --listen",
    "log.dir": "use --data",
    "log.dirs": "use --data",
    "log.map.bytes": "the log has no map any more; what it keeps is limited by log.retention.bytes and by the disk",
    "min.insync.replicas": "there is one broker, which replicates nothing",
    "node.id": "use broker.id",
    "num.io.threads": "one reactor serves all requests",
    "num.network.threads": "one reactor serves all connections",
    "offsets.topic.replication.factor": "there is one broker, which replicates nothing",
    "process.roles": "there is one role",
    "zookeeper.connect": "there is no ZooKeeper",
}


def _quarterOfMemory() -> int:
    # In whole MiB, so that people can read it.
    return max(memoryLimitBytes() // 4 >> 20, 1) << 20


def _largestRequest(settings: Settings) -> int:
    # Only a pool that was not asked for may lower the largest request.
    if POOL in settings.places or not settings.queuedMaxRequestBytes:
        return _LARGEST_REQUEST_BYTES
    return min(_LARGEST_REQUEST_BYTES, settings.queuedMaxRequestBytes)


@frozen(kw_only=True)
class Settings:
    """
    The values in force.  Sizes are in bytes, times in seconds; L{None} means
    no limit.

    @ivar places: for each property that was given, its place.
    """

    places: Mapping[str, str] = field(factory=dict)
    queuedMaxRequestBytes: int = setting(
        POOL,
        SIZE_OR_OFF,
        "a quarter of the memory that the process may use",
        "Memory for requests that are not finished; 0 or less turns the pool off.",
        computed=Factory(_quarterOfMemory),
    )
    socketRequestMaxBytes: int = setting(
        LARGEST_REQUEST,
        SIZE,
        "100MiB, or the pool's size if that is a default and smaller",
        "The largest request.",
        computed=Factory(_largestRequest, takes_self=True),
        minimum="1",
        maximum=_INT32_MAX,
    )
    queuedMaxRequests: int = setting(
        "queued.max.requests", INTEGER, "500", "Requests worked on at a time; then nothing is read.", minimum="1"
    )
    maxConnections: int = setting(
        "max.connections", INTEGER, "10000", "Connections in all; more are closed at once.", minimum="1"
    )
    maxConnectionsPerIp: int = setting(
        "max.connections.per.ip", INTEGER, "1000", "Connections from one address.", minimum="1"
    )
    connectionsMaxIdleSeconds: float | None = setting(
        "connections.max.idle.ms",
        unlimited(MILLISECONDS),
        "10m",
        "A connection that sends nothing and is answered nothing for this long is closed, even if its request waits "
        "for an event; -1 for never.",
        minimum="1ms",
    )
    requestReceiveTimeoutSeconds: float = setting(
        "request.receive.timeout",
        DURATION,
        "30s",
        "A request that does not arrive within this time is given up.",
        minimum="1ms",
    )
    responseSendTimeoutSeconds: float = setting(
        "response.send.timeout",
        DURATION,
        "30s",
        "A client that takes nothing of its response for this long is closed.",
        minimum="1ms",
    )
    tlsHandshakeTimeoutSeconds: float = setting(
        "tls.handshake.timeout",
        DURATION,
        "10s",
        "A client whose TLS handshake is not over within this time is closed.",
        minimum="1ms",
    )
    closeGraceTimeoutSeconds: float = setting(
        "close.grace.timeout", DURATION, "5s", "How long closing may take before the connection is aborted."
    )
    connectionFailedAuthenticationDelaySeconds: float = setting(
        "connection.failed.authentication.delay.ms",
        MILLISECONDS,
        "100ms",
        "The delay before a failed login is answered; clients try again at once.",
        maximum="1m",
    )
    saslServerMaxReceiveSize: int = setting(
        "sasl.server.max.receive.size",
        SIZE,
        "4KiB",
        "The largest request before a login.  Kafka has 512KiB for tickets of Kerberos; names and passwords need less.",
        minimum="512",
        maximum="512KiB",
    )
    loginTimeoutSeconds: float = setting(
        "login.timeout",
        DURATION,
        "30s",
        "A client that has to log in (`--auth`) and has not within this time is closed.",
        minimum="1ms",
    )
    superUsers: frozenset[str] = setting(
        "super.users",
        PRINCIPALS,
        "",
        "Who may change limits, topics and groups where clients log in or have certificates, as in "
        "`User:alice;User:CN=admin,O=Acme`.",
    )
    autoCreateTopicsEnable: bool = setting(
        "auto.create.topics.enable", BOOLEAN, "true", "Whether using a topic creates it."
    )
    numPartitions: int = setting(
        "num.partitions",
        INTEGER,
        "1",
        "Partitions of a topic that is created without a number.",
        minimum="1",
        maximum=_INT32_MAX,
    )
    maxTopics: int = setting("max.topics", INTEGER, "10000", "Topics in all.", minimum="1")
    maxPartitions: int = setting("max.partitions", INTEGER, "20000", "Partitions in all.", minimum="1")
    messageMaxBytes: int = setting(
        "message.max.bytes", SIZE, "1048588", "The largest record batch.", minimum="1", maximum=_INT32_MAX
    )
    logMessageTimestampType: str = setting(
        "log.message.timestamp.type",
        TEXT,
        CREATE_TIME,
        "Which time records have: that which their producer gave them, or that of their arrival.",
        choices=TIMESTAMP_TYPES,
    )
    logMessageTimestampAfterMaxSeconds: float = setting(
        "log.message.timestamp.after.max.ms", MILLISECONDS, "1h", "How far ahead of now a record's time may be."
    )
    logRetentionBytes: int | None = setting(
        "log.retention.bytes", unlimited(SIZE), "-1", "Bytes kept in each partition; -1 for all."
    )
    logRetentionSeconds: float | None = setting(
        "log.retention.ms",
        unlimited(MILLISECONDS),
        "7d",
        "How long records are kept; -1 for ever.",
        coarser={"log.retention.minutes": "m", "log.retention.hours": "h"},
    )
    logRetentionCheckIntervalSeconds: float = setting(
        "log.retention.check.interval.ms",
        MILLISECONDS,
        "5m",
        "How often old records are removed.",
        minimum="1ms",
    )
    logFlushIntervalSeconds: float = setting(
        "log.flush.interval.ms", MILLISECONDS, "1s", "How often the log is synced to disk.", minimum="1ms"
    )
    logSegmentBytes: int = setting(
        "log.segment.bytes",
        SIZE,
        "1GiB",
        "The size of the files of a partition; only whole files are removed.  Smaller where `log.retention.bytes` is.",
        minimum="1KiB",
        maximum=_INT32_MAX,
    )
    logRollSeconds: float | None = setting(
        "log.roll.ms",
        unlimited(MILLISECONDS),
        "7d",
        "How long a file is appended to before the next one is begun; -1 for any time.",
        coarser={"log.roll.hours": "h"},
        minimum="1ms",
    )
    logMaxOpenFiles: int = setting(
        "log.max.open.files",
        INTEGER,
        "4000",
        "Files of the log that are open at a time, and files that wait to be flushed.",
        minimum="10",
    )
    writeCaching: bool = setting(
        "write.caching",
        BOOLEAN,
        "false",
        "Whether `acks=all` is answered when records are written, as Kafka does, and not when they are on the disk.  "
        "A loss of power then takes back what was confirmed in the last `log.flush.interval.ms`.",
    )
    fetchMaxBytes: int = setting(
        "fetch.max.bytes",
        SIZE,
        "55MiB",
        "The largest response to a Fetch, unless its first batch is larger; also the largest of any other API.",
        minimum="1KiB",
        maximum=_INT32_MAX,
    )
    fetchMaxWaitSeconds: float = setting(
        "fetch.max.wait.ms",
        MILLISECONDS,
        "1m",
        "How long a Fetch may wait for records, whatever its client asks for.",
    )
    brokerId: int = setting("broker.id", INTEGER, "1", "This broker's number.", minimum="0", maximum=_INT32_MAX)
    producerIdExpirationSeconds: float = setting(
        "producer.id.expiration.ms",
        MILLISECONDS,
        "1d",
        "How long an idle producer's sequence is remembered.",
        minimum="1ms",
    )
    maxProducerIds: int = setting("max.producer.ids", INTEGER, "100000", "Producers remembered.", minimum="1")
    quotaWindowNum: int = setting(
        "quota.window.num",
        INTEGER,
        "11",
        "Windows over which a client's rate is averaged.",
        minimum="1",
        maximum="3600",
    )
    quotaWindowSizeSeconds: float = setting(
        "quota.window.size.seconds", SECONDS, "1s", "The length of one window.", minimum="1ms", maximum="1d"
    )
    quotaThrottleMaxSeconds: float = setting(
        "quota.throttle.max",
        DURATION,
        "20s",
        "The longest delay that a client over its quota is given at a time; the rest of its debt stays.  "
        "Clients take a longer silence for a dead broker.",
        minimum="1ms",
        maximum="1h",
    )
    quotaProducerDefault: float | None = setting(
        "quota.producer.default",
        unlimited(QUOTA),
        "-1",
        "Bytes a second that each client id without a limit of its own may produce; -1 for any number.",
    )
    quotaConsumerDefault: float | None = setting(
        "quota.consumer.default",
        unlimited(QUOTA),
        "-1",
        "Bytes a second that each client id without a limit of its own may fetch; -1 for any number.",
    )
    quotaProducerOverride: Mapping[str, float] = setting(
        "quota.producer.override",
        QUOTA_OVERRIDES,
        "",
        "Bytes a second that single client ids may produce, as `clientA:4M,clientB:10M`.",
    )
    quotaConsumerOverride: Mapping[str, float] = setting(
        "quota.consumer.override", QUOTA_OVERRIDES, "", "Bytes a second that single client ids may fetch."
    )
    producerIdQuotaWindowNum: int = setting(
        "producer.id.quota.window.num",
        INTEGER,
        "11",
        "Windows that the rate of new producer ids is shown over.",
        minimum="1",
        maximum="3600",
    )
    producerIdQuotaWindowSizeSeconds: float = setting(
        "producer.id.quota.window.size.seconds",
        SECONDS,
        "1h",
        "The time that `producer_ids_rate` is for, and for which a producer id is known.",
        minimum="1s",
        maximum="30d",
    )
    producerIdQuotaCacheCleanupSchedulerIntervalSeconds: float = setting(
        "producer.id.quota.cache.cleanup.scheduler.interval.ms",
        MILLISECONDS,
        "30s",
        "How often users without producers are forgotten.",
        minimum="1s",
        maximum="1h",
    )
    groupMinSessionTimeoutSeconds: float = setting(
        "group.min.session.timeout.ms",
        MILLISECONDS,
        "6s",
        "The shortest session timeout that a member of a group may ask for.",
        minimum="1ms",
    )
    groupMaxSessionTimeoutSeconds: float = setting(
        "group.max.session.timeout.ms",
        MILLISECONDS,
        "30m",
        "The longest session timeout that a member of a group may ask for.",
        minimum="1ms",
    )
    groupInitialRebalanceDelaySeconds: float = setting(
        "group.initial.rebalance.delay.ms", MILLISECONDS, "3s", "How long the first members of a group wait for more."
    )
    groupMaxSize: int = setting("group.max.size", INTEGER, "10000", "Members of one group.", minimum="1")
    groupMaxBytes: int = setting(
        "group.max.bytes",
        SIZE,
        "16MiB",
        "Memory for the members, assignments and offsets of one group.",
        minimum="64KiB",
    )
    maxGroups: int = setting("max.groups", INTEGER, "10000", "Groups in all.", minimum="1")
    maxGroupsBytes: int = setting("max.groups.bytes", SIZE, "64MiB", "Memory for all groups.", minimum="64KiB")
    maxPendingMembers: int = setting(
        "max.pending.members",
        INTEGER,
        "10000",
        "Clients that have a member id and have yet to join with it.",
        minimum="1",
    )
    offsetsRetentionSeconds: float = setting(
        "offsets.retention.ms",
        MILLISECONDS,
        "7d",
        "How long the offsets of a group without members are kept.",
        coarser={"offsets.retention.minutes": "m"},
        minimum="1ms",
    )
    offsetsRetentionCheckIntervalSeconds: float = setting(
        "offsets.retention.check.interval.ms",
        MILLISECONDS,
        "10m",
        "How often offsets that are kept no longer are removed.",
        minimum="1ms",
    )
    offsetMetadataMaxBytes: int = setting(
        "offset.metadata.max.bytes", SIZE, "4KiB", "The largest text that a client may store with an offset."
    )

    def __attrs_post_init__(self) -> None:
        if self.numPartitions > self.maxPartitions:
            raise SettingsError(
                f"num.partitions ({self.numPartitions}) must not exceed max.partitions ({self.maxPartitions})"
            )
        if self.groupMinSessionTimeoutSeconds > self.groupMaxSessionTimeoutSeconds:
            raise SettingsError(
                f"group.min.session.timeout.ms ({formatSeconds(self.groupMinSessionTimeoutSeconds)}) must not exceed "
                f"group.max.session.timeout.ms ({formatSeconds(self.groupMaxSessionTimeoutSeconds)})"
            )

    def asProperties(self) -> Mapping[str, str]:
        """
        Every setting by Kafka's name, written as Kafka writes it: bytes and
        milliseconds as whole numbers, C{-1} for no limit.
        """
        return self._properties

    @cached_property
    def _properties(self) -> Mapping[str, str]:
        # Asked for each setting of each topic that a request names, and writing them all takes half a millisecond.
        return MappingProxyType(formatSettings(self))


PROPERTIES: Mapping[str, Property] = propertiesOf(Settings)
"""The property of each attribute of L{Settings}."""


def loadSettings(path: str | None = None, assignments: Sequence[str] = (), isPoolChosen: bool = False) -> Settings:
    """
    Put the settings together.

    @param path: a file of properties (C{--config}).
    @param assignments: properties as C{name=value} (C{--set}).
    @param isPoolChosen: whether another option sets the size of the pool, so
        that its default means nothing.
    @raise SettingsError: for settings that cannot be read, are unknown or
        contradict each other.
    """
    given: list[Given] = [] if path is None else list(readPropertyFile(path))
    given += parseAssignments(assignments, "--set")
    values = parseGiven(PROPERTIES, given, _ELSEWHERE)
    settings = Settings(places={each.name: each.place for each in reversed(given)}, **values)
    if POOL in settings.places or not isPoolChosen:
        _checkPool(settings)
    return settings


def _checkPool(settings: Settings) -> None:
    def described(name: str, value: int) -> str:
        return f"{name} ({formatBytes(value)}, {settings.places.get(name, 'the default')})"

    poolBytes, largestBytes = settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes
    if 0 < poolBytes < largestBytes:
        raise SettingsError(
            f"{described(POOL, poolBytes)} must not be less than {described(LARGEST_REQUEST, largestBytes)}; set"
            f" {LARGEST_REQUEST} to at most {formatBytes(poolBytes)}, or {POOL} to at least"
            f" {formatBytes(largestBytes)}, or to 0 for no pool"
        )
