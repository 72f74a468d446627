# -*- test-case-name: tests.unit.kafka.broker.test_brokersettings -*-
"""
The broker's settings, by the names that Kafka gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from admission.units import formatBytes, formatSeconds

from ..property import (
    BOOLEAN,
    DURATION,
    INTEGER,
    MILLISECONDS,
    SIZE,
    TEXT,
    Property,
    SettingsError,
    propertiesOf,
    setting,
    unlimited,
)
from ..serving.serversettings import LARGEST_REQUEST, ServerSettings, load

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


@frozen(kw_only=True)
class Settings(ServerSettings):
    """
    The values in force in a broker.
    """

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
        isReloaded=True,
    )
    autoCreateTopicsEnable: bool = setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether using a topic creates it.",
        isReloaded=True,
    )
    numPartitions: int = setting(
        "num.partitions",
        INTEGER,
        "1",
        "Partitions of a topic that is created without a number.",
        minimum="1",
        maximum=_INT32_MAX,
        isReloaded=True,
    )
    maxTopics: int = setting("max.topics", INTEGER, "10000", "Topics in all.", minimum="1", isReloaded=True)
    maxPartitions: int = setting("max.partitions", INTEGER, "20000", "Partitions in all.", minimum="1")
    messageMaxBytes: int = setting(
        "message.max.bytes",
        SIZE,
        "1048588",
        "The largest record batch.",
        minimum="1",
        maximum=_INT32_MAX,
        isReloaded=True,
    )
    produceBatchValidation: bool = setting(
        "produce.batch.validation",
        BOOLEAN,
        "true",
        "Whether the records in each batch are looked at, decompressed if need be, as Kafka does.  Without, a producer "
        "may store batches that no consumer gets past.",
        isReloaded=True,
    )
    logMessageTimestampType: str = setting(
        "log.message.timestamp.type",
        TEXT,
        CREATE_TIME,
        "Which time records have: that which their producer gave them, or that of their arrival.",
        choices=TIMESTAMP_TYPES,
        isReloaded=True,
    )
    logMessageTimestampAfterMaxSeconds: float = setting(
        "log.message.timestamp.after.max.ms",
        MILLISECONDS,
        "1h",
        "How far ahead of now a record's time may be.",
        isReloaded=True,
    )
    logRetentionBytes: int | None = setting(
        "log.retention.bytes",
        unlimited(SIZE),
        "-1",
        "Bytes kept in each partition; -1 for all.",
        isReloaded=True,
    )
    logRetentionSeconds: float | None = setting(
        "log.retention.ms",
        unlimited(MILLISECONDS),
        "7d",
        "How long records are kept; -1 for ever.",
        coarser={"log.retention.minutes": "m", "log.retention.hours": "h"},
        isReloaded=True,
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
        isReloaded=True,
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
        isReloaded=True,
    )
    producerIdExpirationSeconds: float = setting(
        "producer.id.expiration.ms",
        MILLISECONDS,
        "1d",
        "How long an idle producer's sequence is remembered.",
        minimum="1ms",
    )
    maxProducerIds: int = setting("max.producer.ids", INTEGER, "100000", "Producers remembered.", minimum="1")
    groupMinSessionTimeoutSeconds: float = setting(
        "group.min.session.timeout.ms",
        MILLISECONDS,
        "6s",
        "The shortest session timeout that a member of a group may ask for.",
        minimum="1ms",
        isReloaded=True,
    )
    groupMaxSessionTimeoutSeconds: float = setting(
        "group.max.session.timeout.ms",
        MILLISECONDS,
        "30m",
        "The longest session timeout that a member of a group may ask for.",
        minimum="1ms",
        isReloaded=True,
    )
    groupInitialRebalanceDelaySeconds: float = setting(
        "group.initial.rebalance.delay.ms",
        MILLISECONDS,
        "3s",
        "How long the first members of a group wait for more.",
    )
    groupMaxSize: int = setting(
        "group.max.size",
        INTEGER,
        "1000",
        "Members of one group. While the broker stores a group, 40 ms for a thousand members, it serves nobody.",
        minimum="1",
        isReloaded=True,
    )
    groupMaxBytes: int = setting(
        "group.max.bytes",
        SIZE,
        "16MiB",
        "Memory for the members, assignments and offsets of one group.",
        minimum="64KiB",
        isReloaded=True,
    )
    maxGroups: int = setting("max.groups", INTEGER, "10000", "Groups in all.", minimum="1", isReloaded=True)
    maxGroupsBytes: int = setting(
        "max.groups.bytes", SIZE, "64MiB", "Memory for all groups.", minimum="64KiB", isReloaded=True
    )
    maxPendingMembers: int = setting(
        "max.pending.members",
        INTEGER,
        "10000",
        "Clients that have a member id and have yet to join with it.",
        minimum="1",
        isReloaded=True,
    )
    offsetsRetentionSeconds: float = setting(
        "offsets.retention.ms",
        MILLISECONDS,
        "7d",
        "How long the offsets of a group without members are kept.",
        coarser={"offsets.retention.minutes": "m"},
        minimum="1ms",
        isReloaded=True,
    )
    offsetsRetentionCheckIntervalSeconds: float = setting(
        "offsets.retention.check.interval.ms",
        MILLISECONDS,
        "10m",
        "How often offsets that are kept no longer are removed.",
        minimum="1ms",
    )
    offsetMetadataMaxBytes: int = setting(
        "offset.metadata.max.bytes",
        SIZE,
        "4KiB",
        "The largest text that a client may store with an offset.",
        isReloaded=True,
    )

    def __attrs_post_init__(self) -> None:
        if self.numPartitions > self.maxPartitions:
            raise SettingsError(
                f"num.partitions ({self.numPartitions}) must not exceed max.partitions ({self.maxPartitions})"
            )
        place = self.places.get("message.max.bytes")
        if place is not None and self.messageMaxBytes > self.socketRequestMaxBytes:
            raise SettingsError(
                f"message.max.bytes ({formatBytes(self.messageMaxBytes)}, {place}) must not exceed {LARGEST_REQUEST} "
                f"({formatBytes(self.socketRequestMaxBytes)}, {self.places.get(LARGEST_REQUEST, 'the default')}): no "
                "request could carry such a batch; make the one smaller or the other larger"
            )
        if self.groupMinSessionTimeoutSeconds > self.groupMaxSessionTimeoutSeconds:
            raise SettingsError(
                f"group.min.session.timeout.ms ({formatSeconds(self.groupMinSessionTimeoutSeconds)}) must not exceed "
                f"group.max.session.timeout.ms ({formatSeconds(self.groupMaxSessionTimeoutSeconds)})"
            )


PROPERTIES: Mapping[str, Property] = propertiesOf(Settings)
"""The property of each attribute of L{Settings}."""


def loadSettings(path: str | None = None, assignments: Sequence[str] = (), isPoolChosen: bool = False) -> Settings:
    """
    Put the settings of a broker together; see L{load}.
    """
    return load(Settings, path, assignments, isPoolChosen, _ELSEWHERE)
