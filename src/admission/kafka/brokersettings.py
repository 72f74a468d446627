# -*- test-case-name: tests.unit.kafka.test_brokersettings -*-
"""
The broker's settings, by the names that Kafka gives them.

L{Settings} is the one table: to add a setting, add a field.  Its attribute is
named after the property, with the unit in which the broker counts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import Factory, field, fields, frozen
from twisted.python.usage import UsageError

from ..memorylimit import memoryLimitBytes
from ..units import formatBytes, formatSeconds, parseBytes, parseSeconds
from .property import Property, parseBoolean, parseInteger, parseOverrides, parseQuota, parseSizeOrOff, parseUnlimited
from .propertyfile import parseProperties

_PROPERTY = "property"

_QUEUED = "queued.max.request.bytes"
_LARGEST = "socket.request.max.bytes"
_LARGEST_BYTES = 100 << 20

RESERVED_DESCRIPTORS = 64
"""What the broker has open besides connections: the log, its ports, recordings, and room to spare."""

_ELSEWHERE = {
    "advertised.listeners": "use --advertise",
    "controller.quorum.voters": "there is one broker and no quorum",
    "default.replication.factor": "there is one broker, which replicates nothing",
    "listeners": "use --listen",
    "log.dir": "use --data",
    "log.dirs": "use --data",
    "log.segment.bytes": "the log is a database and has no segments",
    "min.insync.replicas": "there is one broker, which replicates nothing",
    "node.id": "use broker.id",
    "num.io.threads": "one reactor serves all requests",
    "num.network.threads": "one reactor serves all connections",
    "offsets.topic.replication.factor": "there is one broker, which replicates nothing",
    "process.roles": "there is one role",
    "zookeeper.connect": "there is no ZooKeeper",
}


class SettingsError(UsageError):
    """
    Settings that cannot be used, in words for the operator.
    """


_INT32_MAX = 2**31 - 1
_MILLISECOND = 0.001
_SIZES = (".bytes", ".receive.size")
_RATES = ("quota.producer.", "quota.consumer.")
_TIMES = (".ms", ".timeout", ".seconds", ".throttle.max")

_milliseconds = partial(parseSeconds, defaultUnit="ms")


def _quarterOfMemory() -> int:
    # In whole MiB, so that people can read it.
    return max(memoryLimitBytes() // 4 >> 20, 1) << 20


def _largestRequest(settings: Settings) -> int:
    return min(_LARGEST_BYTES, settings.queuedMaxRequestBytes or _LARGEST_BYTES)


def _unitOf(name: str) -> str:
    if name.startswith(_RATES):
        return "bytes/s"
    return "bytes" if name.endswith(_SIZES) else "seconds" if name.endswith(_TIMES) else ""


def _setting(
    name: str, parse: Callable[[str], Any], default: str, help: str, computed: Any = None, **options: Any
) -> Any:
    listed = Property(name, parse, default, _unitOf(name), help, **options)
    return field(
        default=listed.valueOf(default, name) if computed is None else computed,
        metadata={_PROPERTY: listed},
    )


@frozen(kw_only=True)
class Settings:
    """
    The values in force.  Sizes are in bytes, times in seconds; L{None} means
    no limit.

    @ivar places: for each property that was given, where.
    """

    queuedMaxRequestBytes: int = _setting(
        _QUEUED,
        parseSizeOrOff,
        "a quarter of the memory that the process may use",
        "Memory for requests that are not finished; 0 or less turns the pool off.",
        computed=Factory(_quarterOfMemory),
    )
    socketRequestMaxBytes: int = _setting(
        _LARGEST,
        parseBytes,
        "100MiB, or the pool's size if that is a default and smaller",
        "The largest request.",
        computed=Factory(_largestRequest, takes_self=True),
        minimum=1,
        maximum=_INT32_MAX,
    )
    queuedMaxRequests: int = _setting(
        "queued.max.requests", parseInteger, "500", "Requests worked on at a time; then nothing is read.", minimum=1
    )
    maxConnections: int = _setting(
        "max.connections", parseInteger, "10000", "Connections in all; more are closed at once.", minimum=1
    )
    maxConnectionsPerIp: int = _setting(
        "max.connections.per.ip", parseInteger, "1000", "Connections from one address.", minimum=1
    )
    connectionsMaxIdleSeconds: float | None = _setting(
        "connections.max.idle.ms",
        partial(parseUnlimited, _milliseconds),
        "10m",
        "A connection without a request for so long is closed; -1 for never.",
        minimum=_MILLISECOND,
    )
    requestReceiveTimeoutSeconds: float = _setting(
        "request.receive.timeout",
        parseSeconds,
        "30s",
        "A request that does not arrive within this is given up.",
        minimum=_MILLISECOND,
    )
    responseSendTimeoutSeconds: float = _setting(
        "response.send.timeout",
        parseSeconds,
        "30s",
        "A client that takes nothing of its response for so long is closed.",
        minimum=_MILLISECOND,
    )
    closeGraceTimeoutSeconds: float = _setting(
        "close.grace.timeout", parseSeconds, "5s", "How long closing may take before the connection is aborted."
    )
    connectionFailedAuthenticationDelaySeconds: float = _setting(
        "connection.failed.authentication.delay.ms",
        _milliseconds,
        "100ms",
        "How late a failed login is answered; clients try again at once.",
        maximum=60,
    )
    saslServerMaxReceiveSize: int = _setting(
        "sasl.server.max.receive.size",
        parseBytes,
        "4KiB",
        "The largest request before a login.  Kafka has 512KiB for tickets of Kerberos; names and passwords need less.",
        minimum=512,
        maximum=512 << 10,
    )
    loginTimeoutSeconds: float = _setting(
        "login.timeout",
        parseSeconds,
        "30s",
        "A client that has to log in (`--auth`) and has not by then is closed.",
        minimum=_MILLISECOND,
    )
    autoCreateTopicsEnable: bool = _setting(
        "auto.create.topics.enable", parseBoolean, "true", "Whether using a topic creates it."
    )
    numPartitions: int = _setting(
        "num.partitions", parseInteger, "1", "Partitions of a topic that does not say.", minimum=1, maximum=_INT32_MAX
    )
    maxTopics: int = _setting("max.topics", parseInteger, "10000", "Topics in all.", minimum=1)
    maxPartitions: int = _setting("max.partitions", parseInteger, "20000", "Partitions in all.", minimum=1)
    messageMaxBytes: int = _setting(
        "message.max.bytes", parseBytes, "1048588", "The largest record batch.", minimum=1, maximum=_INT32_MAX
    )
    logMessageTimestampAfterMaxSeconds: float = _setting(
        "log.message.timestamp.after.max.ms", _milliseconds, "1h", "How far ahead of now a record's time may be."
    )
    logRetentionBytes: int | None = _setting(
        "log.retention.bytes", partial(parseUnlimited, parseBytes), "-1", "Bytes kept in each partition; -1 for all."
    )
    logRetentionSeconds: float | None = _setting(
        "log.retention.ms",
        partial(parseUnlimited, _milliseconds),
        "7d",
        "How long records are kept; -1 for ever.",
        coarser={"log.retention.minutes": "m", "log.retention.hours": "h"},
    )
    logRetentionCheckIntervalSeconds: float = _setting(
        "log.retention.check.interval.ms",
        _milliseconds,
        "5m",
        "How often old records are removed.",
        minimum=_MILLISECOND,
    )
    logFlushIntervalSeconds: float = _setting(
        "log.flush.interval.ms", _milliseconds, "1s", "How often the log is synced to disk.", minimum=_MILLISECOND
    )
    logMapBytes: int = _setting(
        "log.map.bytes", parseBytes, "1TiB", "Address space for the log, and so its largest size.", minimum=1 << 20
    )
    fetchMaxBytes: int = _setting(
        "fetch.max.bytes",
        parseBytes,
        "55MiB",
        "The most that one Fetch returns, a first batch excepted.",
        minimum=1024,
        maximum=_INT32_MAX,
    )
    brokerId: int = _setting("broker.id", parseInteger, "1", "This broker's number.", minimum=0, maximum=_INT32_MAX)
    producerIdExpirationSeconds: float = _setting(
        "producer.id.expiration.ms",
        _milliseconds,
        "1d",
        "How long an idle producer's sequence is remembered.",
        minimum=_MILLISECOND,
    )
    maxProducerIds: int = _setting("max.producer.ids", parseInteger, "100000", "Producers remembered.", minimum=1)
    quotaWindowNum: int = _setting(
        "quota.window.num", parseInteger, "11", "Windows that a client's rate is taken over.", minimum=1, maximum=3600
    )
    quotaWindowSizeSeconds: float = _setting(
        "quota.window.size.seconds", parseSeconds, "1s", "The length of one.", minimum=_MILLISECOND, maximum=86400
    )
    quotaThrottleMaxSeconds: float = _setting(
        "quota.throttle.max",
        parseSeconds,
        "20s",
        "The longest delay that a client over its quota is given at a time; what it owes beyond that it owes still.  "
        "Clients take a longer silence for a dead broker.",
        minimum=_MILLISECOND,
        maximum=3600,
    )
    quotaProducerDefault: float | None = _setting(
        "quota.producer.default",
        partial(parseUnlimited, parseQuota),
        "-1",
        "Bytes a second that each client id may produce, if nothing else is said of it; -1 for any number.",
    )
    quotaConsumerDefault: float | None = _setting(
        "quota.consumer.default",
        partial(parseUnlimited, parseQuota),
        "-1",
        "The same for what it fetches.",
    )
    quotaProducerOverride: Mapping[str, float] = _setting(
        "quota.producer.override",
        parseOverrides,
        "",
        "The same for single client ids, as `clientA:4M,clientB:10M`.",
    )
    quotaConsumerOverride: Mapping[str, float] = _setting(
        "quota.consumer.override", parseOverrides, "", "The same for what they fetch."
    )
    producerIdQuotaWindowNum: int = _setting(
        "producer.id.quota.window.num",
        parseInteger,
        "11",
        "Windows that the rate of new producer ids is shown over.",
        minimum=1,
        maximum=3600,
    )
    producerIdQuotaWindowSizeSeconds: float = _setting(
        "producer.id.quota.window.size.seconds",
        parseSeconds,
        "1h",
        "The time that `producer_ids_rate` is for, and for which a producer id is known.",
        minimum=1,
        maximum=30 * 86400,
    )
    producerIdQuotaCacheCleanupSchedulerIntervalSeconds: float = _setting(
        "producer.id.quota.cache.cleanup.scheduler.interval.ms",
        _milliseconds,
        "30s",
        "How often users without producers are forgotten.",
        minimum=1,
        maximum=3600,
    )
    groupMinSessionTimeoutSeconds: float = _setting(
        "group.min.session.timeout.ms",
        _milliseconds,
        "6s",
        "The shortest session timeout that a member of a group may ask for.",
        minimum=_MILLISECOND,
    )
    groupMaxSessionTimeoutSeconds: float = _setting(
        "group.max.session.timeout.ms", _milliseconds, "30m", "The longest one.", minimum=_MILLISECOND
    )
    groupInitialRebalanceDelaySeconds: float = _setting(
        "group.initial.rebalance.delay.ms", _milliseconds, "3s", "How long the first members of a group wait for more."
    )
    groupMaxSize: int = _setting("group.max.size", parseInteger, "10000", "Members of one group.", minimum=1)
    groupMaxBytes: int = _setting(
        "group.max.bytes",
        parseBytes,
        "16MiB",
        "What the members, assignments and offsets of one group may take of memory.",
        minimum=1 << 16,
    )
    maxGroups: int = _setting("max.groups", parseInteger, "10000", "Groups in all.", minimum=1)
    maxGroupsBytes: int = _setting(
        "max.groups.bytes", parseBytes, "64MiB", "What all groups may take of memory.", minimum=1 << 16
    )
    maxPendingMembers: int = _setting(
        "max.pending.members",
        parseInteger,
        "10000",
        "Clients that were told their member id and have yet to join with it.",
        minimum=1,
    )
    offsetsRetentionSeconds: float = _setting(
        "offsets.retention.ms",
        _milliseconds,
        "7d",
        "How long the offsets of a group without members are kept.",
        coarser={"offsets.retention.minutes": "m"},
        minimum=_MILLISECOND,
    )
    offsetsRetentionCheckIntervalSeconds: float = _setting(
        "offsets.retention.check.interval.ms",
        _milliseconds,
        "10m",
        "How often they are looked for.",
        minimum=_MILLISECOND,
    )
    offsetMetadataMaxBytes: int = _setting(
        "offset.metadata.max.bytes", parseBytes, "4KiB", "What a client may remember with an offset."
    )
    places: Mapping[str, str] = field(factory=dict)

    def asProperties(self) -> dict[str, str]:
        """
        Every setting by Kafka's name, written as Kafka writes it: bytes and
        milliseconds as whole numbers, C{-1} for no limit.
        """
        return {listed.name: listed.textOf(getattr(self, name)) for name, listed in PROPERTIES.items()}


PROPERTIES: Mapping[str, Property] = {
    each.name: each.metadata[_PROPERTY] for each in fields(Settings) if _PROPERTY in each.metadata
}
"""The table: for each attribute of L{Settings} its property."""


@frozen
class _Given:
    name: str
    value: Any
    text: str
    place: str


def loadSettings(
    path: str | None = None,
    assignments: Sequence[str] = (),
    given: Mapping[str, tuple[str, str]] | None = None,
    isPoolChosen: bool = False,
) -> Settings:
    """
    Put the settings together.  No place goes before another: what is given
    twice must be the same.

    @param path: a file of properties (C{--config}).
    @param assignments: properties as C{name=value} (C{--set}).
    @param given: what other options say, as C{name: (value, option)}.
    @param isPoolChosen: whether the pool's size comes from somewhere else than
        these properties, so that their default for it means nothing.
    @raise SettingsError: for what cannot be read, is unknown, makes no sense
        or contradicts itself, saying where and what to do.
    """
    attributes = {name: each for each, listed in PROPERTIES.items() for name in (listed.name, *listed.coarser)}
    chosen: dict[str, _Given] = {}
    for name, text, place in _collect(path, assignments, given or {}):
        attribute = attributes.get(name)
        if attribute is None:
            raise SettingsError(f"{place}: {_unknown(name, attributes)}")
        try:
            value = PROPERTIES[attribute].valueOf(text, name)
        except ValueError as error:
            raise SettingsError(f"{place}: {name}: {error}") from error
        before = chosen.setdefault(name, _Given(name, value, text, place))
        if before.value != value:
            raise SettingsError(
                f"{name} is {before.text!r} at {before.place} but {text!r} at {place}; keep one of them"
            )

    values: dict[str, Any] = {}
    for attribute, listed in PROPERTIES.items():
        winner = next((chosen[name] for name in (listed.name, *listed.coarser) if name in chosen), None)
        if winner is not None:
            values[attribute] = winner.value
    if _QUEUED in chosen and _LARGEST not in chosen:
        # Only a pool that was not asked for may lower the largest request.
        values[attributes[_LARGEST]] = _LARGEST_BYTES
    settings = Settings(places={name: each.place for name, each in chosen.items()}, **values)
    if _QUEUED in settings.places or not isPoolChosen:
        _checkPool(settings)
    if settings.numPartitions > settings.maxPartitions:
        raise SettingsError(
            f"num.partitions ({settings.numPartitions}) must not exceed max.partitions ({settings.maxPartitions})"
        )
    if settings.groupMinSessionTimeoutSeconds > settings.groupMaxSessionTimeoutSeconds:
        raise SettingsError(
            f"group.min.session.timeout.ms ({formatSeconds(settings.groupMinSessionTimeoutSeconds)}) must not exceed "
            f"group.max.session.timeout.ms ({formatSeconds(settings.groupMaxSessionTimeoutSeconds)})"
        )
    return settings


def propertyTable() -> str:
    """
    All settings as a table in Markdown.
    """
    rows = ["| property | default | unit | what it does |", "|---|---|---|---|"]
    for listed in PROPERTIES.values():
        names = " ".join(f"`{name}`" for name in (listed.name, *listed.coarser))
        rows.append(f"| {names} | {listed.default} | {', '.join(listed.bareUnits)} | {listed.help} |")
    return "\n".join(rows) + "\n"


def _collect(
    path: str | None, assignments: Sequence[str], given: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path} is not UTF-8 at byte {error.start}") from error
        for line, name, value in parseProperties(text):
            yield name, value, f"{path}:{line}"
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: write --set NAME=VALUE")
        yield name.strip(), value.strip(), f"--set {assignment}"
    for name, (value, option) in given.items():
        yield name, value, option


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if name in _ELSEWHERE:
        return f"{name} is a property of Kafka's that is not used here: {_ELSEWHERE[name]}"
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return f"unknown property {name!r}; the nearest is {nearest[0]}"


def _checkPool(settings: Settings) -> None:
    def described(name: str, value: int) -> str:
        return f"{name} ({formatBytes(value)}, {settings.places.get(name, 'the default')})"

    poolBytes, largestBytes = settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes
    if 0 < poolBytes < largestBytes:
        raise SettingsError(
            f"{described(_QUEUED, poolBytes)} must not be less than {described(_LARGEST, largestBytes)}; set {_LARGEST}"
            f" to at most {formatBytes(poolBytes)}, or {_QUEUED} to at least {formatBytes(largestBytes)},"
            " or to 0 for no pool"
        )
