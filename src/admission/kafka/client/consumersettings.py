# -*- test-case-name: tests.unit.kafka.client.test_consumersettings -*-
"""
A consumer's settings, by the names that Kafka gives them.

L{ConsumerSettings} is the one table: to add a setting, add a field.  Its
attribute is named after the property, with the unit in which we count.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import field, fields, frozen

from admission.units import formatBytes, formatSeconds, parseBytes, parseSeconds

from .assignors import ASSIGNORS

EARLIEST = "earliest"
LATEST = "latest"
NONE = "none"

_PROPERTY = "property"

_milliseconds = partial(parseSeconds, defaultUnit="ms")


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for word in _words(text):
        host, colon, port = word.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"{word!r} is no address: write HOST:PORT")
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


@frozen
class _Property:
    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str

    @property
    def row(self) -> str:
        """
        The row of the table: the default as one would write it, and what a number without a unit counts.
        """
        text, unit = self.default, ""
        if self.parse is _milliseconds:
            text, unit = formatSeconds(self.default), "ms"
        elif self.parse is parseBytes:
            text, unit = formatBytes(self.default), "bytes"
        elif self.parse in (_words, _addresses):
            text = ",".join(self.default)
        elif self.parse is _boolean:
            text = str(self.default).lower()
        return f"| `{self.name}` | {'' if text is None else text} | {unit} | {self.help} |"


def _setting(name: str, parse: Callable[[str], Any], default: Any, help: str) -> Any:
    return field(default=default, metadata={_PROPERTY: _Property(name, parse, default, help)})


@frozen(kw_only=True)
class ConsumerSettings:
    """
    The values in force.  Sizes are in bytes, times in seconds.

    The three timeouts of KIP-62 are apart: a consumer is dead when the
    coordinator has not heard of it for C{sessionTimeoutSeconds}, and stuck
    when it has not polled for C{processTimeoutSeconds}; others wait for it in
    a rebalance for C{maxPollIntervalSeconds}.  What each setting is for is
    said beside its name.
    """

    bootstrapServers: tuple[tuple[str, int], ...] = _setting(
        "bootstrap.servers", _addresses, (), "Some of the brokers, as `HOST:PORT`, with commas."
    )
    groupId: str | None = _setting(
        "group.id", str, None, "The group; a consumer without one cannot subscribe and commits nothing."
    )
    groupInstanceId: str | None = _setting(
        "group.instance.id",
        str,
        None,
        "Makes the consumer a static member, which keeps its partitions when it comes back within the session timeout.",
    )
    clientId: str = _setting("client.id", str, "admission", "The name that the consumer gives itself.")
    sessionTimeoutSeconds: float = _setting(
        "session.timeout.ms", _milliseconds, 10.0, "For how long the coordinator does without a heartbeat."
    )
    heartbeatIntervalSeconds: float = _setting(
        "heartbeat.interval.ms", _milliseconds, 3.0, "Between heartbeats; less than the above."
    )
    maxPollIntervalSeconds: float = _setting(
        "max.poll.interval.ms", _milliseconds, 300.0, "For how long the application may work on what one poll gave it."
    )
    maxPollRecords: int = _setting("max.poll.records", int, 500, "The most records that one poll gives.")
    autoCommit: bool = _setting("enable.auto.commit", _boolean, True, "Whether what was polled is committed by itself.")
    autoCommitIntervalSeconds: float = _setting("auto.commit.interval.ms", _milliseconds, 5.0, "How often.")
    autoOffsetReset: str = _setting(
        "auto.offset.reset",
        str,
        LATEST,
        "Where to begin without a committed offset: `earliest`, `latest`, or `none` to fail.",
    )
    assignors: tuple[str, ...] = _setting(
        "partition.assignment.strategy", _words, tuple(ASSIGNORS), "Ways to share partitions, the preferred one first."
    )
    fetchMinBytes: int = _setting("fetch.min.bytes", parseBytes, 1, "A broker waits until it has so much.")
    fetchMaxWaitSeconds: float = _setting("fetch.max.wait.ms", _milliseconds, 0.5, "But not longer than this.")
    fetchMaxBytes: int = _setting(
        "fetch.max.bytes",
        parseBytes,
        50 << 20,
        "The most that a broker returns at once, a first batch that is larger excepted.",
    )
    maxPartitionFetchBytes: int = _setting(
        "max.partition.fetch.bytes", parseBytes, 1 << 20, "The same for one partition."
    )
    prefetchMaxBytes: int = _setting(
        "prefetch.max.bytes", parseBytes, 64 << 20, "How much is held that no poll has taken yet."
    )
    receiveMessageMaxBytes: int = _setting(
        "receive.message.max.bytes",
        parseBytes,
        100_000_000,
        "The largest response that is read, and the largest batch after decompression.",
    )
    retryBackoffSeconds: float = _setting("retry.backoff.ms", _milliseconds, 0.1, "The first wait before trying again.")
    retryBackoffMaxSeconds: float = _setting(
        "retry.backoff.max.ms", _milliseconds, 1.0, "The longest one, give or take a fifth."
    )
    requestTimeoutSeconds: float = _setting(
        "request.timeout.ms", _milliseconds, 30.0, "For how long a response is waited for."
    )
    defaultApiTimeoutSeconds: float = _setting(
        "default.api.timeout.ms", _milliseconds, 60.0, "For how long a commit and the like are tried."
    )
    metadataMaxAgeSeconds: float = _setting(
        "metadata.max.age.ms", _milliseconds, 300.0, "How often to look for new partitions."
    )
    allowAutoCreateTopics: bool = _setting(
        "allow.auto.create.topics", _boolean, True, "Whether subscribing may create a topic."
    )

    def __attrs_post_init__(self) -> None:
        if not self.bootstrapServers:
            raise ValueError("bootstrap.servers is missing: where is one of the brokers?")
        if self.heartbeatIntervalSeconds >= self.sessionTimeoutSeconds:
            raise ValueError(
                f"heartbeat.interval.ms ({self.heartbeatIntervalSeconds:g}s) must be less than"
                f" session.timeout.ms ({self.sessionTimeoutSeconds:g}s), or every beat comes too late"
            )
        for name, value in [
            ("heartbeat.interval.ms", self.heartbeatIntervalSeconds),
            ("max.poll.interval.ms", self.maxPollIntervalSeconds),
            ("max.poll.records", self.maxPollRecords),
            ("auto.commit.interval.ms", self.autoCommitIntervalSeconds),
            ("fetch.max.bytes", self.fetchMaxBytes),
            ("max.partition.fetch.bytes", self.maxPartitionFetchBytes),
            ("prefetch.max.bytes", self.prefetchMaxBytes),
            ("retry.backoff.ms", self.retryBackoffSeconds),
            ("request.timeout.ms", self.requestTimeoutSeconds),
        ]:
            if value <= 0:
                raise ValueError(f"{name} must be positive, not {value:g}")
        if self.autoOffsetReset not in (EARLIEST, LATEST, NONE):
            raise ValueError(f"auto.offset.reset is {EARLIEST}, {LATEST} or {NONE}, not {self.autoOffsetReset!r}")
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors:
            raise ValueError(
                f"partition.assignment.strategy names one or more of {', '.join(ASSIGNORS)}, not {', '.join(unknown)!r}"
            )

    @property
    def processTimeoutSeconds(self) -> float:
        """
        For how long the application may do without polling: the larger of
        session and poll interval, because the coordinator would not miss it
        earlier.
        """
        return max(self.sessionTimeoutSeconds, self.maxPollIntervalSeconds)

    @property
    def joinTimeoutSeconds(self) -> float:
        """
        For how long a JoinGroup waits for its answer: until the slowest
        member has had its time, and five seconds.
        """
        return max(self.requestTimeoutSeconds, self.maxPollIntervalSeconds + 5.0)


def consumerSettings(properties: Mapping[str, str]) -> ConsumerSettings:
    """
    Settings from properties as they stand in a file: C{"10s"} or C{"10000"}
    for C{session.timeout.ms}, C{"64MiB"} for sizes.

    @raise ValueError: in words, if a name is unknown or a value cannot be used.
    """
    known = {member.metadata[_PROPERTY].name: member for member in fields(ConsumerSettings)}
    values = {}
    for name, text in properties.items():
        member = known.get(name)
        if member is None:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise ValueError(f"unknown property {name!r}; the nearest is {nearest[0]}")
        try:
            values[member.name] = member.metadata[_PROPERTY].parse(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return ConsumerSettings(**values)


def propertyTable() -> str:
    """
    All settings as a table in Markdown.
    """
    rows = ["| property | default | unit | what it does |", "|---|---|---|---|"]
    rows += [member.metadata[_PROPERTY].row for member in fields(ConsumerSettings)]
    return "\n".join(rows) + "\n"
