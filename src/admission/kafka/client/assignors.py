# -*- test-case-name: tests.unit.kafka.client.test_assignors -*-
"""
Who gets which partition, decided by the leader of a group.

The results are those of Kafka's C{RangeAssignor} and C{RoundRobinAssignor},
so it does not matter which client leads a mixed group.  There is no sticky
assignor: it would have to agree with the other clients' in more than a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle

from attrs import frozen

from .subscriptionstate import TopicPartition


@frozen
class Subscriber:
    """
    A member of a group, as its leader sees it.

    @ivar instanceId: the C{group.instance.id} of a static member.
    """

    memberId: str
    instanceId: str | None
    topics: frozenset[str]

    @property
    def rank(self) -> tuple[bool, str]:
        """
        What members are sorted by: static ones first, so that they get the
        same partitions when they come back under another member id.
        """
        return self.instanceId is None, self.memberId if self.instanceId is None else self.instanceId


#: Given the members and how many partitions each topic has, says what each member gets.
Assignor = Callable[[Iterable[Subscriber], Mapping[str, int]], dict[str, list[TopicPartition]]]


def assignRange(members: Iterable[Subscriber], partitionCounts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """
    Topic by topic, each member gets a run of partitions; the first ones get
    one more if the division leaves a rest.

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
    All partitions of all topics are dealt out like cards, past members who do
    not want the topic.

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
"""The assignors by the names that members of a group know them by, the preferred one first."""
