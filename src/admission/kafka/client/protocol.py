# -*- test-case-name: tests.unit.kafka.client.test_protocol -*-
"""
What the members of a group say to each other, inside of what they say to the
coordinator: who wants which topics, and who got which partitions.

The formats are those of all Kafka consumers, versions 0 to 3 of both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from kio.index import load_entity_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType
from kio.static.protocol import Entity

from ..wire.codec import encodeEntity
from ..wire.guard import countElementsOf
from ..wire.primitives import MalformedRequest
from .assignors import Subscriber
from .subscriptionstate import TopicPartition

PROTOCOL_TYPE = "consumer"
"""What a group of consumers calls itself."""

NEWEST_VERSION = 3

MAX_ELEMENTS = 100_000
"""How many topics and partitions one member may name."""

_SUBSCRIPTION = "consumer_protocol_subscription"
_ASSIGNMENT = "consumer_protocol_assignment"
_VERSION = struct.Struct(">h")


class MalformedMembership(ValueError):
    """
    What another member says makes no sense.
    """


def encodeSubscription(
    topics: Iterable[str], ownedPartitions: Iterable[TopicPartition] = (), generation: int = -1, version: int = 0
) -> bytes:
    """
    Say which topics we want.

    @param ownedPartitions: what we have now; from version 1 on.
    @param generation: since when; from version 2 on.
    @param version: 0 is understood by every client, and the assignors that we
        know need no more.
    """
    return _encode(
        _SUBSCRIPTION,
        version,
        {
            "topics": sorted(topics),
            "owned_partitions": _byTopic(ownedPartitions),
            "generation_id": generation,
        },
    )


def decodeSubscription(data: bytes) -> frozenset[str]:
    """
    The topics that a member wants.

    @raise MalformedMembership: if C{data} says nothing of the kind.
    """
    return frozenset(_decode(_SUBSCRIPTION, data).topics)


def subscribersOf(members: Iterable[Any]) -> list[Subscriber]:
    """
    The members of a group, as the coordinator tells its leader of them.

    @param members: from a JoinGroup response.
    @raise MalformedMembership: if one of them makes no sense.
    """
    return [
        # Before version 5 nobody is static.
        Subscriber(each.member_id, getattr(each, "group_instance_id", None), decodeSubscription(each.metadata))
        for each in members
    ]


def encodeAssignment(partitions: Iterable[TopicPartition], version: int = 0) -> bytes:
    """
    Say which partitions a member gets.
    """
    return _encode(_ASSIGNMENT, version, {"assigned_partitions": _byTopic(partitions)})


def decodeAssignment(data: bytes) -> list[TopicPartition]:
    """
    The partitions that a member gets; none if C{data} is empty, which is what
    a coordinator hands out when the leader did not think of a member.

    @raise MalformedMembership: if C{data} says nothing of the kind.
    """
    if not data:
        return []
    return [
        TopicPartition(each.topic, partition)
        for each in _decode(_ASSIGNMENT, data).assigned_partitions
        for partition in each.partitions
    ]


def _byTopic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    byTopic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        byTopic.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in byTopic.items()]


def _encode(name: str, version: int, values: dict[str, Any]) -> bytes:
    return b"".join([_VERSION.pack(version), *encodeEntity(_entityType(name, version), values)])


def _decode(name: str, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            raise MalformedMembership(f"version {version} of {name} does not exist")
        # What newer versions add comes last, so that older members can read them.
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
