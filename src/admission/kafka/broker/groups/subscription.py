# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstore -*-
"""
Which topics the members of a group read, as far as they say so in the way of
Kafka's consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial import entity_reader

from admission.kafka.wire.guard import countElementsOf
from admission.kafka.wire.primitives import MalformedRequest

from .groupstate import Group

CONSUMERS: Final = "consumer"
"""The type of the protocols that consumers speak."""

_MAX_TOPICS: Final = 100_000
_VERSION_BYTES: Final = 2

# Later versions only add to the first.
_read: Final[Callable[[bytes, int], tuple[Any, int]]] = entity_reader(ConsumerProtocolSubscription)


def subscribedTopics(group: Group) -> set[str]:
    """
    The topics that any member of this generation reads.  Whoever cannot be
    understood reads none.
    """
    topics: set[str] = set()
    for member in group.members.values():
        topics.update(_topicsIn(member.metadata(group.protocolName)))
    return topics


def _topicsIn(metadata: bytes) -> tuple[str, ...]:
    subscription = metadata[_VERSION_BYTES:]
    try:
        countElementsOf(ConsumerProtocolSubscription, "a subscription", subscription, _MAX_TOPICS)
        topics: tuple[str, ...] = _read(subscription, 0)[0].topics
    except (MalformedRequest, ValueError):
        return ()
    return topics
