# -*- test-case-name: tests.unit.kafka.broker.test_brokersettings -*-
"""
The settings of any server of Kafka's protocol, by the names that Kafka gives them.

An attribute of L{ServerSettings} is named after its property, with the unit in which
the server counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from attrs import Factory, field, frozen

from admission.connection.trustedproxies import TrustedProxies
from admission.memorylimit import memoryLimitBytes
from admission.units import formatBytes

from ..property import (
    DURATION,
    INTEGER,
    MILLISECONDS,
    PRINCIPALS,
    QUOTA,
    QUOTA_OVERRIDES,
    SECONDS,
    SIZE,
    SIZE_OR_OFF,
    WORDS,
    Given,
    Kind,
    SettingsError,
    formatSettings,
    parseAssignments,
    parseGiven,
    propertiesOf,
    setting,
    unlimited,
)
from .listenoptions import CONFIGURED_OPTIONS
from .propertyfile import readPropertyFile

POOL = "queued.max.request.bytes"
LARGEST_REQUEST = "socket.request.max.bytes"
_LARGEST_REQUEST_BYTES = 100 << 20

RESERVED_DESCRIPTORS = 128
"""
The files that a server has open besides connections and a log: its ports, those who read the status port, recordings,
and a reserve.
"""

_INT32_MAX = str(2**31 - 1)


def _parseNetworks(text: str) -> tuple[str, ...]:
    networks = WORDS.parse(text)
    if networks:
        TrustedProxies(networks)
    return tuple(networks)


_NETWORKS = Kind("", _parseNetworks, ",".join)


def _quarterOfMemory() -> int:
    # In whole MiB, so that people can read it.
    return max(memoryLimitBytes() // 4 >> 20, 1) << 20


def _largestRequest(settings: ServerSettings) -> int:
    # Only a pool that was not asked for may lower the largest request.
    if POOL in settings.places or not settings.queuedMaxRequestBytes:
        return _LARGEST_REQUEST_BYTES
    return min(_LARGEST_REQUEST_BYTES, settings.queuedMaxRequestBytes)


@frozen(kw_only=True)
class ServerSettings:
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
        "max.connections",
        INTEGER,
        "10000",
        "Connections in all; more are closed at once.",
        minimum="1",
        isReloaded=True,
    )
    maxConnectionsPerIp: int = setting(
        "max.connections.per.ip",
        INTEGER,
        "1000",
        "Connections from one address.",
        minimum="1",
        isReloaded=True,
    )
    trustedProxies: tuple[str, ...] = setting(
        "trusted.proxies",
        _NETWORKS,
        "",
        "Networks of load balancers whose connections begin with a header of the PROXY protocol, which says who the "
        "client is.",
    )
    connectionsMaxIdleSeconds: float | None = setting(
        "connections.max.idle.ms",
        unlimited(MILLISECONDS),
        "10m",
        "A connection that sends nothing and is answered nothing for this long is closed, even if its request waits "
        "for an event; -1 for never.",
        minimum="1ms",
        isReloaded=True,
    )
    requestReceiveTimeoutSeconds: float = setting(
        "request.receive.timeout",
        DURATION,
        "30s",
        "A request that does not arrive within this time is given up.",
        minimum="1ms",
        isReloaded=True,
    )
    responseSendTimeoutSeconds: float = setting(
        "response.send.timeout",
        DURATION,
        "30s",
        "A client that takes nothing of its response for this long is closed.",
        minimum="1ms",
        isReloaded=True,
    )
    tlsHandshakeTimeoutSeconds: float = setting(
        "tls.handshake.timeout",
        DURATION,
        "10s",
        "A client whose TLS handshake is not over within this time is closed.",
        minimum="1ms",
        isReloaded=True,
    )
    closeGraceTimeoutSeconds: float = setting(
        "close.grace.timeout",
        DURATION,
        "5s",
        "How long closing may take before the connection is aborted.",
        isReloaded=True,
    )
    superUsers: frozenset[str] = setting(
        "super.users",
        PRINCIPALS,
        "",
        "The principals that may change limits, topics and groups where clients log in or have certificates, as in "
        "`User:alice;User:CN=admin,O=Acme`.",
        isReloaded=True,
    )
    brokerId: int = setting("broker.id", INTEGER, "1", "This broker's number.", minimum="0", maximum=_INT32_MAX)
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
        isReloaded=True,
    )
    quotaConsumerDefault: float | None = setting(
        "quota.consumer.default",
        unlimited(QUOTA),
        "-1",
        "Bytes a second that each client id without a limit of its own may fetch; -1 for any number.",
        isReloaded=True,
    )
    quotaProducerOverride: Mapping[str, float] = setting(
        "quota.producer.override",
        QUOTA_OVERRIDES,
        "",
        "Bytes a second that single client ids may produce, as `clientA:4M,clientB:10M`.",
        isReloaded=True,
    )
    quotaConsumerOverride: Mapping[str, float] = setting(
        "quota.consumer.override",
        QUOTA_OVERRIDES,
        "",
        "Bytes a second that single client ids may fetch.",
        isReloaded=True,
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


S = TypeVar("S", bound=ServerSettings)


def load(
    kind: type[S],
    path: str | None = None,
    assignments: Sequence[str] = (),
    isPoolChosen: bool = False,
    elsewhere: Mapping[str, str] = {},
) -> S:
    """
    Put the settings together.

    @param kind: which.
    @param path: a file of properties (C{--config}).
    @param assignments: properties as C{name=value} (C{--set}).
    @param isPoolChosen: whether another option sets the size of the pool, so
        that its default means nothing.
    @param elsewhere: names that are no settings here, with the reason or the replacement.
    @raise SettingsError: for settings that cannot be read, are unknown or
        contradict each other.
    """
    given: list[Given] = [] if path is None else list(readPropertyFile(path))
    # These are options, for programs that take them from the file.
    given = [each for each in given if each.name not in CONFIGURED_OPTIONS]
    given += parseAssignments(assignments, "--set")
    values = parseGiven(propertiesOf(kind), given, elsewhere)
    settings = kind(places={each.name: each.place for each in reversed(given)}, **values)
    if POOL in settings.places or not isPoolChosen:
        _checkPool(settings)
    return settings


def _checkPool(settings: ServerSettings) -> None:
    def described(name: str, value: int) -> str:
        return f"{name} ({formatBytes(value)}, {settings.places.get(name, 'the default')})"

    poolBytes, largestBytes = settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes
    if 0 < poolBytes < largestBytes:
        raise SettingsError(
            f"{described(POOL, poolBytes)} must not be less than {described(LARGEST_REQUEST, largestBytes)}; set"
            f" {LARGEST_REQUEST} to at most {formatBytes(poolBytes)}, or {POOL} to at least"
            f" {formatBytes(largestBytes)}, or to 0 for no pool"
        )
