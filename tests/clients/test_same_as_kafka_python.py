"""What a client has to do as all others do is the same as in kafka-python's code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import frozen
from hypothesis import given, settings, strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.assignors import (
    ASSIGNORS,
    NEWEST_VERSION,
    Subscriber,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from admission.kafka.client.subscriptionstate import TopicPartition

# kafka-python fails over members that want nothing, and over topics that do not exist.
_TOPICS = st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=4)
_MEMBER_IDS = st.text("0123456789", min_size=1, max_size=3)
_COUNTS = st.fixed_dictionaries(dict.fromkeys("abcd", st.integers(1, 9)))

_PLACES = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]


@frozen
class Cluster:
    """What kafka-python asks for the number of partitions."""

    counts: dict[str, int]

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


class GroupTests(SynchronousTestCase):
    """In a group of both clients it does not matter who leads."""

    def check(self, name: str, peer: Any, groups: Any) -> None:
        """Compare an assignor of ours with kafka-python's."""

        @settings(max_examples=30, deadline=None, database=None, derandomize=True)
        @given(groups, _COUNTS)
        def compare(group: dict[str, frozenset[str]], counts: dict[str, int]) -> None:
            theirMembers = [
                SimpleNamespace(member_id=memberId, group_instance_id=None, metadata=peer.metadata(topics))
                for memberId, topics in group.items()
            ]
            theirs = {
                memberId: sorted(map(tuple, assigned.partitions()))
                for memberId, assigned in peer.assign(Cluster(counts), theirMembers).items()
            }
            subscribers = [Subscriber(memberId, None, topics) for memberId, topics in group.items()]
            ours = ASSIGNORS[name](subscribers, counts)
            self.assertEqual({memberId: sorted(map(tuple, assigned)) for memberId, assigned in ours.items()}, theirs)

        compare()

    def test_range(self) -> None:
        """Partitions are handed out in the same runs."""
        self.check("range", RangePartitionAssignor, st.dictionaries(_MEMBER_IDS, _TOPICS, min_size=1, max_size=6))

    def test_roundRobin(self) -> None:
        """Partitions are dealt in the same way, where all want the same: kafka-python fails otherwise."""
        groups = st.builds(dict.fromkeys, st.sets(_MEMBER_IDS, min_size=1, max_size=6), _TOPICS)
        self.check("roundrobin", RoundRobinPartitionAssignor, groups)

    def test_messages(self) -> None:
        """Each reads what the other writes, in every version."""
        for version in range(NEWEST_VERSION + 1):
            subscription = ConsumerProtocolSubscription.decode(encodeSubscription(["a", "b"], _PLACES, 7, version))
            self.assertEqual(list(subscription.topics), ["a", "b"])
            subscription = ConsumerProtocolSubscription(version=version, topics=["a", "b"], user_data=b"x")
            self.assertEqual(decodeSubscription(bytes(subscription.encode())), {"a", "b"})
            assignment = ConsumerProtocolAssignment.decode(encodeAssignment(_PLACES, version))
            self.assertEqual([tuple(each) for each in assignment.partitions()], _PLACES)
            assignment = ConsumerProtocolAssignment(
                version=version, assigned_partitions=[("a", [0, 2]), ("b", [1])], user_data=b""
            )
            self.assertEqual(decodeAssignment(bytes(assignment.encode())), _PLACES)
