# -*- test-case-name: tests.unit.kafka.client.test_subscriptionstate -*-
"""
What a consumer reads, and how far it is: plain state, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from attrs import define


class TopicPartition(NamedTuple):
    """
    One partition of a topic.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def byTopic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """
    The indexes of partitions, by topic.
    """
    indexes: dict[str, list[int]] = {}
    for topic, partition in places:
        indexes.setdefault(topic, []).append(partition)
    return indexes


@define(eq=False)
class PartitionState:
    """
    An assigned partition.

    @ivar position: the offset of the next record to return; L{None} until it
        is known.
    @ivar isUncommitted: whether the group is known to have no usable offset
        for it, so that C{auto.offset.reset} decides.
    @ivar isPaused: whether its records are not to be returned for now.
    @ivar isFetching: whether it is part of a Fetch on its way.
    @ivar retrySeconds: when to fetch it again after an error.
    @ivar failures: errors in a row.
    """

    place: TopicPartition
    position: int | None = None
    isUncommitted: bool = False
    isPaused: bool = False
    isFetching: bool = False
    retrySeconds: float = float("-inf")
    failures: int = 0


class SubscriptionState:
    """
    The subscription, the assignment and the positions of a consumer.

    A partition that is revoked and assigned again gets another
    L{PartitionState}; L{holds} tells an old one from the current one.

    @ivar topics: what is subscribed to; empty if partitions were assigned by
        hand.
    @ivar groupTopics: what all members of the group subscribe to, while this
        one leads it.
    @ivar partitions: the assigned ones; those to be fetched first come first.
    @ivar assignment: the same, sorted.
    @ivar ownTopics: the topics of the subscription and of the assignment.
    @ivar offsets: the positions, as far as they are known.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """
        @param changed: called after each change of what is to be read from
            where; not when positions move on behind records.
        """
        self._changed = changed
        self.topics: frozenset[str] = frozenset()
        self.groupTopics: frozenset[str] = frozenset()
        self.partitions: dict[TopicPartition, PartitionState] = {}

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self.partitions)

    @property
    def ownTopics(self) -> frozenset[str]:
        return self.topics.union(place.topic for place in self.partitions)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        return {place: each.position for place, each in self.partitions.items() if each.position is not None}

    def partition(self, place: TopicPartition) -> PartitionState:
        """
        @raise KeyError: if the partition is not assigned.
        """
        return self.partitions[TopicPartition(*place)]

    def holds(self, partition: PartitionState) -> bool:
        """
        Whether it is assigned still, without a break.
        """
        return self.partitions.get(partition.place) is partition

    def subscribe(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._changed()

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """
        Replace the assignment.  Partitions that stay keep their state.
        """
        wanted = dict.fromkeys(TopicPartition(*place) for place in places)
        kept = {place: state for place, state in self.partitions.items() if place in wanted}
        self.partitions = kept | {place: PartitionState(place) for place in wanted if place not in kept}
        self._changed()

    def pause(self, places: Iterable[TopicPartition], isPaused: bool = True) -> None:
        """
        Stop or resume returning records of C{places}.

        @raise KeyError: if one is not assigned; then nothing changes.
        """
        for partition in [self.partition(place) for place in places]:
            partition.isPaused = isPaused
        self._changed()

    def seek(self, place: TopicPartition, offset: int) -> None:
        """
        Go on with C{offset}.

        @raise KeyError: if the partition is not assigned.
        @raise ValueError: if the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self.partition(place).position = offset
        self._changed()

    def moveToEnd(self, partition: PartitionState) -> None:
        """
        Fetch C{partition} after all others.
        """
        self.partitions[partition.place] = self.partitions.pop(partition.place)
