# -*- test-case-name: tests.unit.kafka.client.test_assignors -*-
"""
How the leader of a group decides which member gets which partition, and how members encode their subscriptions and
assignments.

The results are those of Kafka's C{RangeAssignor} and C{RoundRobinAssignor},
so it does not matter which client leads a mixed group.  There is no sticky
assignor: it would have to agree with the other clients' in more than a name.
The formats are those of all Kafka consumers, versions 0 to 3 of both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

from attrs import frozen
from kio.index import load_entity_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType
from kio.static.protocol import Entity

from ..wire.codec import encodeEntity
from ..wire.guard import countElementsOf
from ..wire.primitives import MalformedRequest
from .subscriptionstate import TopicPartition, byTopic

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups of consumers."""

NEWEST_VERSION = 3

MAX_ELEMENTS = 100_000
"""The most topics and partitions that one member may name."""

_SUBSCRIPTION = "consumer_protocol_subscription"
_ASSIGNMENT = "consumer_protocol_assignment"
_VERSION = struct.Struct(">h")


@frozen
class Subscriber:
    """
    A member of a group, as its leader sees it.

    @ivar instanceId: the C{group.instance.id} of a static member.
    @ivar rank: the key to sort members by: static ones first, so that they get
        the same partitions when they come back under another member id.
    """

    memberId: str
    instanceId: str | None
    topics: frozenset[str]

    @property
    def rank(self) -> tuple[bool, str]:
        return self.instanceId is None, self.memberId if self.instanceId is None else self.instanceId


#: Given the members and how many partitions each topic has, says what each member gets.
Assignor = Callable[[Iterable[Subscriber], Mapping[str, int]], dict[str, list[TopicPartition]]]


def assignRange(members: Iterable[Subscriber], partitionCounts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """
    Topic by topic, each member gets consecutive partitions; the first members
    get one more if the division leaves a remainder.

    @param partitionCounts: topics that do not exist are absent.
    @return: by member id, for all members.
    """
    ranked = _ranked(members)
    assignment: dict[str, list[TopicPartition]] = {member.memberId: [] for member in ranked}
    for topic, count in sorted(partitionCounts.items()):
        subscribed = [member for member in ranked if topic in member.topics]
        begin = 0
        for index, member in enumerate(subscribed):
            share, rest = divmod(count, len(subscribed))
            end = begin + share + (index < rest)
            assignment[member.memberId] += [TopicPartition(topic, partition) for partition in range(begin, end)]
            begin = end
    return assignment


def assignRoundRobin(
    members: Iterable[Subscriber], partitionCounts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """
    All partitions of all topics are dealt out in turn, skipping members that
    do not subscribe to the topic.

    @param partitionCounts: topics that do not exist are absent.
    @return: by member id, for all members.
    """
    ranked = _ranked(members)
    assignment: dict[str, list[TopicPartition]] = {member.memberId: [] for member in ranked}
    turns = cycle(ranked)
    for topic, count in sorted(partitionCounts.items()):
        if any(topic in member.topics for member in ranked):
            for partition in range(count):
                member = next(member for member in turns if topic in member.topics)
                assignment[member.memberId].append(TopicPartition(topic, partition))
    return assignment


def _ranked(members: Iterable[Subscriber]) -> Sequence[Subscriber]:
    return sorted(members, key=lambda member: member.rank)


ASSIGNORS: Mapping[str, Assignor] = {"range": assignRange, "roundrobin": assignRoundRobin}
"""The assignors by their names in the protocol, the preferred one first."""


class MalformedMembership(ValueError):
    """
    A subscription or an assignment of another member is malformed.
    """


def encodeSubscription(
    topics: Iterable[str], ownedPartitions: Iterable[TopicPartition] = (), generation: int = -1, version: int = 0
) -> bytes:
    """
    Encode a member's subscription.

    @param ownedPartitions: its current assignment; from version 1 on.
    @param generation: that of C{ownedPartitions}; from version 2 on.
    @param version: every client understands 0, and our assignors need no more.
    """
    return _encode(
        _SUBSCRIPTION,
        version,
        {
            "topics": sorted(topics),
            "owned_partitions": _topics(ownedPartitions),
            "generation_id": generation,
        },
    )


def decodeSubscription(data: bytes) -> frozenset[str]:
    """
    The topics that a member subscribes to.

    @raise MalformedMembership: if C{data} is malformed.
    """
    return frozenset(_decode(_SUBSCRIPTION, data).topics)


def subscribersOf(members: Iterable[Any]) -> list[Subscriber]:
    """
    The members of a group.

    @param members: from a JoinGroup response to the leader.
    @raise MalformedMembership: if a subscription is malformed.
    """
    return [
        # Before version 5 nobody is static.
        Subscriber(each.member_id, getattr(each, "group_instance_id", None), decodeSubscription(each.metadata))
        for each in members
    ]


def encodeAssignment(partitions: Iterable[TopicPartition], version: int = 0) -> bytes:
    """
    Encode which partitions a member gets.
    """
    return _encode(_ASSIGNMENT, version, {"assigned_partitions": _topics(partitions)})


def decodeAssignment(data: bytes) -> list[TopicPartition]:
    """
    The partitions that a member gets; none if C{data} is empty, as for a
    member that the leader has not assigned anything to.

    @raise MalformedMembership: if C{data} is malformed.
    """
    if not data:
        return []
    return [
        TopicPartition(each.topic, partition)
        for each in _decode(_ASSIGNMENT, data).assigned_partitions
        for partition in each.partitions
    ]


def _topics(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": indexes} for topic, indexes in byTopic(partitions).items()]


def _encode(name: str, version: int, values: dict[str, Any]) -> bytes:
    return b"".join([_VERSION.pack(version), *encodeEntity(_entityType(name, version), values)])


def _decode(name: str, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            raise MalformedMembership(f"version {version} of {name} does not exist")
        # Newer versions add fields at the end, so that older members can read them.
        entityType = _entityType(name, min(version, NEWEST_VERSION))
        body = data[_VERSION.size :]
        countElementsOf(entityType, name, body, MAX_ELEMENTS)
        entity, _ = _readerFor(entityType)(body, 0)
    except MalformedMembership:
        raise
    except (MalformedRequest, struct.error) as refusal:
        raise MalformedMembership(str(refusal)) from None
    except Exception as refusal:
        raise MalformedMembership(f"{name} has a field that makes no sense: {refusal}") from refusal
    return entity


@cache
def _entityType(name: str, version: int) -> type[Entity]:
    return load_entity_schema(name, version, EntityType.data)


@cache
def _readerFor(entityType: type[Entity]) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(entityType)
