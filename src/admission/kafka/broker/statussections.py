# -*- test-case-name: tests.unit.kafka.broker.test_statussections -*-
"""
What a broker adds to its status page: the consumer groups and their lag, what the topics use of the disk, and whether
the log can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from heapq import nlargest
from math import inf, nan
from operator import itemgetter
from typing import Any

from admission.connection.factory import AdmittedFactory
from admission.metrics.registry import SensorRegistry
from admission.status.sections import Section, finite, shortened

from ..serving.serverstatus import ServerStatus, rowsOf
from .broker import Broker
from .groups.groupstate import Group, State
from .log.interface import Topic

MAX_GROUPS = 20
MAX_TOPICS = 20

OTHER_TOPICS = "(others)"
"""Stands for all topics that are not listed; no topic can be called that."""

DISK_SECONDS = 5.0
"""How long what the file system has said of its free space is kept: asking may take time."""

MAX_OFFSETS = 20_000
"""How many committed offsets are compared with the log at a time; the lag of further groups is not known."""


class BrokerStatus(ServerStatus):
    """
    The status page of a broker, with the sections that only a broker has.
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
        @param space: returns the size of the file system with the log and how many of its bytes are free, or raises
            L{OSError}.
        """
        self._broker = broker
        self._space = space
        self._known: tuple[int, int] | None = None
        self._askedSeconds = -inf
        super().__init__(
            broker,
            factory,
            sensors,
            listeners,
            [
                Section("purgatory", self._purgatoryFields),
                Section("groups", lambda now: groupsFields(broker.groups.all)),
                Section("disk", self._diskFields),
            ],
            [lambda now: broker.log.problems],
        )

    def addSensors(self) -> None:
        super().addSensors()
        document = self.document
        registry = document.sensors
        registry.addGauge("GroupMembers", lambda now: int(document.fields["groups"]["memberCount"]))
        registry.addFamily("Groups", ("state",), lambda now: rowsOf(document.fields["groups"]["states"]))
        registry.addFamily("GroupLag", ("group",), self._lags)
        for name, key in (
            ("LogUsedBytes", "usedBytes"),
            ("LogFreeBytes", "freeBytes"),
            ("LogDiskBytes", "totalBytes"),
            ("Topics", "topicCount"),
            ("Partitions", "partitionCount"),
        ):
            registry.addGauge(name, partial(self._diskValue, key))
        registry.addFamily("TopicBytes", ("topic",), self._topicBytes)

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
        "partitionCount": sum(len(topic.partitions) for topic in topics),
        "otherBytes": usedBytes - sum(sizeBytes for sizeBytes, _ in largest),
        "topics": [
            {"topic": shortened(topic.name), "partitionCount": len(topic.partitions), "usedBytes": sizeBytes}
            for sizeBytes, topic in largest
        ],
    }
