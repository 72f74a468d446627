# -*- test-case-name: tests.unit.kafka.test_statussections -*-
"""
What a broker adds to its status page: the throttled clients, the consumer
groups and their lag, what the topics use of the disk, and whether the log can be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from math import inf, nan
from operator import attrgetter, itemgetter
from typing import Any, cast

from attrs import asdict
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from ..connection.factory import AdmittedFactory
from ..connection.pauses import Pause
from ..control import AdmissionControl, Explanation
from ..interfaces import Request
from ..metrics.registry import SensorRegistry
from ..profiling.profiler import Profiler
from ..status.document import StatusDocument
from ..status.pages import StatusPages
from ..status.sections import Section, finite, shortened
from .broker.broker import Broker
from .broker.groups.groupstate import Group, State
from .broker.log.interface import Topic
from .metricnames import KAFKA_NAMINGS
from .server import ANONYMOUS
from .session import KafkaSession

MAX_CLIENTS = 20
MAX_GROUPS = 20
MAX_TOPICS = 20

OTHER_TOPICS = "(others)"
"""Stands for all topics that are not listed; no topic can be called that."""

DISK_SECONDS = 5.0
"""How long what the file system has said of its free space is kept: asking may take time."""

MAX_OFFSETS = 20_000
"""How many committed offsets are compared with the log at a time; the lag of further groups is not known."""

RECENTLY_SECONDS = 10.0
"""How long a client is still shown after it was throttled; most delays are too short to be read."""

_PAUSES = (Pause.MEMORY, Pause.THROTTLED, Pause.BUSY, Pause.SERVER_FULL, Pause.UNSENT)

_Client = tuple[str, str, str]
"""A user, a client id and an address."""


class BrokerStatus:
    """
    The status page of a broker, with the sections that only a broker has.

    @ivar document: the contents of the page.
    @ivar isDraining: whether the broker is being stopped, and waits for its
        connections to end; to be set by the service that stops it.
    """

    def __init__(
        self,
        broker: Broker,
        factory: AdmittedFactory,
        sensors: SensorRegistry,
        listeners: Callable[[], Sequence[str]],
        space: Callable[[], tuple[int, int]],
    ) -> None:
        """
        @param factory: its connections are L{KafkaSession}s.
        @param listeners: returns the addresses at which the broker listens.
        @param space: returns the size of the file system with the log and how many of its bytes are free, or raises
            L{OSError}.
        """
        self.isDraining = False
        self._broker = broker
        self._factory = factory
        self._space = space
        self._known: tuple[int, int] | None = None
        self._askedSeconds = -inf
        self.document = StatusDocument(
            factory,
            sensors,
            broker.wallSeconds,
            [
                Section("listeners", lambda now: list(listeners())),
                Section("requests", self._requestsFields),
                Section("throttled", self._throttledFields),
                Section("purgatory", self._purgatoryFields),
                Section("groups", lambda now: groupsFields(broker.groups.all)),
                Section("disk", self._diskFields),
            ],
            [lambda now: broker.log.problems, self._drainCheck],
            [reason.value for reason in _PAUSES],
            "queued.max.request.bytes",
        )

    def pages(self, clock: IReactorTime, profiler: Profiler | None) -> Resource:
        """
        The root resource of the status port.
        """
        return StatusPages(clock, self.document, ANONYMOUS, KAFKA_NAMINGS, profiler).root

    def addSensors(self) -> None:
        """
        Publish the values of the document that no other sensor has.

        @raise ValueError: if sensors of these names exist.
        """
        document, factory = self.document, self._factory
        registry = document.sensors
        document.addSensors()
        registry.addGauge("Connections", lambda now: len(factory.connections))
        registry.addGauge("ClientsThrottled", lambda now: int(document.fields["throttled"]["count"]))
        registry.addGauge("GroupMembers", lambda now: int(document.fields["groups"]["memberCount"]))
        registry.addCounter("ConnectionsRefused", lambda now: factory.refusedConnections)
        registry.addCounter("RequestsRead", lambda now: factory.requestCount)
        registry.addCounter("RequestBytesRead", lambda now: factory.requestBytes)
        registry.addFamily("ConnectionsMuted", ("reason",), lambda now: _rows(document.fields["muted"]))
        registry.addFamily("Groups", ("state",), lambda now: _rows(document.fields["groups"]["states"]))
        registry.addFamily("GroupLag", ("group",), self._lags)
        for name, key in (("LogUsedBytes", "usedBytes"), ("LogFreeBytes", "freeBytes"), ("LogDiskBytes", "totalBytes")):
            registry.addGauge(name, partial(self._diskValue, key))
        registry.addFamily("TopicBytes", ("topic",), self._topicBytes)

    def _drainCheck(self, now: float) -> Iterator[str]:
        if self.isDraining:
            yield f"the broker is being stopped, and {len(self._factory.connections)} connections are still open"

    def _requestsFields(self, now: float) -> dict[str, Any]:
        gate, factory = self._broker.gate, self._factory
        return {
            "running": gate.runningRequests,
            "maxRunning": gate.maxRequests,
            "read": factory.requestCount,
            "readBytes": factory.requestBytes,
        }

    def _throttledFields(self, now: float) -> dict[str, Any]:
        connections = cast("Collection[KafkaSession]", self._factory.connections)
        return throttledFields(connections, now, self._broker.control)

    def _purgatoryFields(self, now: float) -> dict[str, Any]:
        purgatory = self._broker.purgatory
        return {
            "watched": purgatory.watched,
            "delayed": purgatory.delayed,
            "expirations": purgatory.expirations,
            "waitMedianSeconds": finite(purgatory.waits.quantile(0.5)),
            "waitPercentile99Seconds": finite(purgatory.waits.quantile(0.99)),
        }

    def _diskFields(self, now: float) -> dict[str, Any]:
        if now - self._askedSeconds >= DISK_SECONDS:
            self._askedSeconds = now
            try:
                self._known = self._space()
            except OSError:
                self._known = None
        return diskFields(self._broker.log.topics.values(), self._known)

    def _diskValue(self, key: str, now: float) -> float:
        value = self.document.fields["disk"][key]
        return nan if value is None else value

    def _topicBytes(self, now: float) -> Iterator[tuple[tuple[str], float]]:
        disk = self.document.fields["disk"]
        for topic in disk["topics"]:
            yield (topic["topic"],), topic["usedBytes"]
        if disk["topicCount"] > len(disk["topics"]):
            yield (OTHER_TOPICS,), disk["otherBytes"]

    def _lags(self, now: float) -> Iterator[tuple[tuple[str], float]]:
        for group in self.document.fields["groups"]["groups"]:
            if group["lagRecords"] is not None:
                yield (group["groupId"],), group["lagRecords"]


def throttledFields(connections: Iterable[KafkaSession], now: float, control: AdmissionControl) -> dict[str, Any]:
    """
    The clients that are throttled or were throttled recently, the latest end of
    a delay first; each with the limit that it exceeds most.
    """
    recent = [each for each in connections if each.throttledUntilSeconds > now - RECENTLY_SECONDS]
    recent.sort(key=attrgetter("throttledUntilSeconds"), reverse=True)
    untilSeconds: dict[_Client, float] = {}
    count: Counter[_Client] = Counter()
    for connection in recent:
        client = (connection.principal, connection.clientId, connection.host)
        untilSeconds.setdefault(client, connection.throttledUntilSeconds)
        count[client] += 1
    shown = list(untilSeconds.items())[:MAX_CLIENTS]
    return {
        "count": len(untilSeconds),
        "clients": [
            {
                "user": shortened(client[0]),
                "clientId": shortened(client[1]),
                "ip": client[2],
                "connections": count[client],
                "delaySeconds": max(until - now, 0.0),
                **_worstLimit(control.explain(Request("", client[0], client[1], client[2], 0), now)),
            }
            for client, until in shown
        ],
    }


def _worstLimit(explanations: Iterable[Explanation]) -> dict[str, Any]:
    worst = max(
        (each for each in explanations if not each.isShadow),
        key=lambda each: (each.status.delaySeconds, each.status.utilization),
        default=None,
    )
    if worst is None:
        return {"policy": None, "limitName": None, "limit": None, "used": None, "usedFraction": None, "entity": None}
    status = worst.status
    return {
        "policy": worst.policyName,
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "used": finite(status.used),
        "usedFraction": finite(status.utilization),
        "entity": {name: text and shortened(text) for name, text in asdict(status.entity).items()},
    }


def lagOf(group: Group) -> int | None:
    """
    How many records a group has yet to commit, in the partitions for which it
    has committed an offset.

    @return: L{None} if there are no such partitions.
    """
    lags = [
        max(partition.highWatermark - offset.offset, 0)
        for partition, offset in group.offsets.items()
        if not partition.deleted
    ]
    return sum(lags) if lags else None


def groupsFields(groups: Collection[Group]) -> dict[str, Any]:
    """
    How many groups are in each state, and the groups with the largest lag.
    """
    states = {state.value: 0 for state in State if state is not State.DEAD}
    offsetCount = memberCount = totalLag = uncounted = 0
    lags: list[tuple[int, int, Group]] = []
    for group in groups:
        states[group.state.value] += 1
        memberCount += len(group.members)
        lag = None
        if offsetCount + len(group.offsets) <= MAX_OFFSETS:
            offsetCount += len(group.offsets)
            lag = lagOf(group)
        else:
            uncounted += 1
        totalLag += lag or 0
        lags.append((-1 if lag is None else lag, len(group.members), group))
    return {
        "count": len(groups),
        "states": states,
        "memberCount": memberCount,
        "lagRecords": totalLag,
        "uncountedGroups": uncounted,
        "groups": [
            {
                "groupId": shortened(group.groupId),
                "state": group.state.value,
                "generation": group.generation,
                "memberCount": members,
                "protocol": group.protocolName,
                "lagRecords": None if lag < 0 else lag,
            }
            for lag, members, group in nlargest(MAX_GROUPS, lags, key=lambda each: each[:2])
        ],
    }


def diskFields(topics: Collection[Topic], space: tuple[int, int] | None) -> dict[str, Any]:
    """
    How much of the disk the records use, by topic, the largest first, and how much is free.

    @param space: the size of the file system and how many of its bytes are free; L{None} if not known.
    """
    used = [(sum([partition.sizeBytes for partition in topic.partitions]), topic) for topic in topics]
    largest = nlargest(MAX_TOPICS, used, key=itemgetter(0))
    usedBytes = sum(sizeBytes for sizeBytes, _ in used)
    totalBytes, freeBytes = (None, None) if space is None else space
    return {
        "usedBytes": usedBytes,
        "freeBytes": freeBytes,
        "totalBytes": totalBytes,
        "topicCount": len(topics),
        "otherBytes": usedBytes - sum(sizeBytes for sizeBytes, _ in largest),
        "topics": [
            {"topic": shortened(topic.name), "partitionCount": len(topic.partitions), "usedBytes": sizeBytes}
            for sizeBytes, topic in largest
        ],
    }


def _rows(counts: dict[str, int]) -> Iterator[tuple[tuple[str], float]]:
    for label, count in counts.items():
        yield (label,), count
