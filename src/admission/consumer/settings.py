# -*- test-case-name: tests.test_consumer_settings -*-
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

from ..units import parseBytes, parseSeconds
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


def _setting(name: str, parse: Callable[[str], Any], default: Any, **options: Any) -> Any:
    return field(default=default, metadata={_PROPERTY: (name, parse)}, **options)


@frozen(kw_only=True)
class ConsumerSettings:
    """
    The values in force.  Sizes are in bytes, times in seconds.

    The three timeouts of KIP-62 are apart: a consumer is dead when the
    coordinator has not heard of it for C{sessionTimeoutSeconds}, and stuck
    when it has not polled for C{processTimeoutSeconds}; others wait for it in
    a rebalance for C{maxPollIntervalSeconds}.

    @ivar bootstrapServers: host and port of some of the brokers.
    @ivar groupId: the group; L{None} for a consumer without one, which cannot
        subscribe and commits nothing.
    @ivar groupInstanceId: makes the consumer a static member, which keeps its
        partitions when it comes back within the session timeout.
    @ivar clientId: the name that the consumer gives itself.
    @ivar sessionTimeoutSeconds: for how long the coordinator does without a
        heartbeat.
    @ivar heartbeatIntervalSeconds: between heartbeats; less than the above.
    @ivar maxPollIntervalSeconds: for how long the application may work on
        what one poll gave it.
    @ivar maxPollRecords: the most that one poll gives.
    @ivar autoCommit: whether what was polled is committed by itself.
    @ivar autoCommitIntervalSeconds: how often.
    @ivar autoOffsetReset: where to begin without a committed offset:
        L{EARLIEST}, L{LATEST}, or L{NONE} to fail.
    @ivar assignors: the names of L{ASSIGNORS}, the preferred one first.
    @ivar fetchMinBytes: a broker waits until it has so much.
    @ivar fetchMaxWaitSeconds: but not longer than this.
    @ivar fetchMaxBytes: the most that a broker returns at once, a first batch
        that is larger excepted.
    @ivar maxPartitionFetchBytes: the same for one partition.
    @ivar prefetchMaxBytes: how much is held that no poll has taken yet.
    @ivar receiveMessageMaxBytes: the largest response that is read, and the
        largest batch after decompression.
    @ivar retryBackoffSeconds: the first wait before trying again.
    @ivar retryBackoffMaxSeconds: the longest one, give or take a fifth.
    @ivar requestTimeoutSeconds: for how long a response is waited for.
    @ivar defaultApiTimeoutSeconds: for how long a commit and the like are
        tried.
    @ivar metadataMaxAgeSeconds: how often to look for new partitions.
    @ivar allowAutoCreateTopics: whether subscribing may create a topic.
    """

    bootstrapServers: tuple[tuple[str, int], ...] = _setting("bootstrap.servers", _addresses, ())
    groupId: str | None = _setting("group.id", str, None)
    groupInstanceId: str | None = _setting("group.instance.id", str, None)
    clientId: str = _setting("client.id", str, "admission")
    sessionTimeoutSeconds: float = _setting("session.timeout.ms", _milliseconds, 10.0)
    heartbeatIntervalSeconds: float = _setting("heartbeat.interval.ms", _milliseconds, 3.0)
    maxPollIntervalSeconds: float = _setting("max.poll.interval.ms", _milliseconds, 300.0)
    maxPollRecords: int = _setting("max.poll.records", int, 500)
    autoCommit: bool = _setting("enable.auto.commit", _boolean, True)
    autoCommitIntervalSeconds: float = _setting("auto.commit.interval.ms", _milliseconds, 5.0)
    autoOffsetReset: str = _setting("auto.offset.reset", str, LATEST)
    assignors: tuple[str, ...] = _setting("partition.assignment.strategy", _words, tuple(ASSIGNORS))
    fetchMinBytes: int = _setting("fetch.min.bytes", parseBytes, 1)
    fetchMaxWaitSeconds: float = _setting("fetch.max.wait.ms", _milliseconds, 0.5)
    fetchMaxBytes: int = _setting("fetch.max.bytes", parseBytes, 50 << 20)
    maxPartitionFetchBytes: int = _setting("max.partition.fetch.bytes", parseBytes, 1 << 20)
    prefetchMaxBytes: int = _setting("prefetch.max.bytes", parseBytes, 64 << 20)
    receiveMessageMaxBytes: int = _setting("receive.message.max.bytes", parseBytes, 100_000_000)
    retryBackoffSeconds: float = _setting("retry.backoff.ms", _milliseconds, 0.1)
    retryBackoffMaxSeconds: float = _setting("retry.backoff.max.ms", _milliseconds, 1.0)
    requestTimeoutSeconds: float = _setting("request.timeout.ms", _milliseconds, 30.0)
    defaultApiTimeoutSeconds: float = _setting("default.api.timeout.ms", _milliseconds, 60.0)
    metadataMaxAgeSeconds: float = _setting("metadata.max.age.ms", _milliseconds, 300.0)
    allowAutoCreateTopics: bool = _setting("allow.auto.create.topics", _boolean, True)

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
    known = {member.metadata[_PROPERTY][0]: member for member in fields(ConsumerSettings)}
    values = {}
    for name, text in properties.items():
        member = known.get(name)
        if member is None:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise ValueError(f"unknown property {name!r}; the nearest is {nearest[0]}")
        try:
            values[member.name] = member.metadata[_PROPERTY][1](text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return ConsumerSettings(**values)
