"""Tests for L{admission.kafka.client.assignors}."""

from __future__ import annotations

import struct
from random import Random
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
    MalformedMembership,
    Subscriber,
    assignRange,
    assignRoundRobin,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from admission.kafka.client.subscriptionstate import TopicPartition

# kafka-python fails over members that want nothing, and over topics that do not exist.
_TOPICS = st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=4)
_MEMBER_IDS = st.text("0123456789", min_size=1, max_size=3)
_GROUPS = st.dictionaries(_MEMBER_IDS, _TOPICS, min_size=1, max_size=6)
_COUNTS = st.fixed_dictionaries(dict.fromkeys("abcd", st.integers(1, 9)))

PLACES = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
VERSIONS = range(NEWEST_VERSION + 1)

fewExamples = settings(max_examples=30, deadline=None, database=None, derandomize=True)


def members(*topics: str, **instanceIds: str) -> list[Subscriber]:
    """Members 0, 1, 2 and so on, the topics of each as a word of letters."""
    return [Subscriber(str(index), instanceIds.get(f"m{index}"), frozenset(word)) for index, word in enumerate(topics)]


def partitions(*places: str) -> list[TopicPartition]:
    """C{a0} for partition 0 of topic a."""
    return [TopicPartition(place[0], int(place[1:])) for place in places]


class RangeTests(SynchronousTestCase):
    """Runs of partitions, topic by topic."""

    def test_evenAndUneven(self) -> None:
        """The first members get one more if the division leaves a rest, in each topic anew."""
        self.assertEqual(
            assignRange(members("ab", "ab"), {"a": 3, "b": 3}),
            {"0": partitions("a0", "a1", "b0", "b1"), "1": partitions("a2", "b2")},
        )

    def test_moreMembersThanPartitions(self) -> None:
        """Members for whom nothing is left get nothing, and are told so."""
        self.assertEqual(
            assignRange(members("a", "a", "a"), {"a": 2}), {"0": partitions("a0"), "1": partitions("a1"), "2": []}
        )

    def test_static(self) -> None:
        """
        Static members come first, in the order of their names whatever their member ids, so that a new id changes
        nothing.
        """
        before = assignRange(members("a", "a", "a", m1="y", m2="x"), {"a": 3})
        self.assertEqual(before, {"2": partitions("a0"), "1": partitions("a1"), "0": partitions("a2")})

    def test_missingTopic(self) -> None:
        """A topic that does not exist is not handed out."""
        for assignor in ASSIGNORS.values():
            self.assertEqual(assignor(members("ab"), {"a": 1}), {"0": partitions("a0")})


class RoundRobinTests(SynchronousTestCase):
    """Partitions like cards."""

    def test_deals(self) -> None:
        """One after another across topics."""
        self.assertEqual(
            assignRoundRobin(members("ab", "ab"), {"a": 3, "b": 3}),
            {"0": partitions("a0", "a2", "b1"), "1": partitions("a1", "b0", "b2")},
        )

    def test_differentTopics(self) -> None:
        """Whoever does not want the topic is passed over."""
        self.assertEqual(
            assignRoundRobin(members("ab", "b", ""), {"a": 2, "b": 2, "c": 5}),
            {"0": partitions("a0", "a1", "b1"), "1": partitions("b0"), "2": []},
        )


@frozen
class Cluster:
    """What kafka-python asks for the number of partitions."""

    counts: dict[str, int]

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partitions of a topic."""
        return set(range(self.counts[topic])) if topic in self.counts else None


class PeerTests(SynchronousTestCase):
    """In a mixed group it does not matter who leads."""

    def check(self, name: str, peer: Any, groups: Any) -> None:
        """Compare an assignor of ours with kafka-python's."""

        @fewExamples
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
        """Ours hands out what kafka-python's does."""
        self.check("range", RangePartitionAssignor, _GROUPS)

    def test_roundRobin(self) -> None:
        """Ours hands out what kafka-python's does, which fails unless all want the same."""
        groups = st.builds(dict.fromkeys, st.sets(_MEMBER_IDS, min_size=1, max_size=6), _TOPICS)
        self.check("roundrobin", RoundRobinPartitionAssignor, groups)


class SubscriptionTests(SynchronousTestCase):
    """What members want."""

    def test_everyVersion(self) -> None:
        """Every version comes back, with whatever else it carries."""
        for version in VERSIONS:
            data = encodeSubscription(["b", "a"], PLACES, 7, version)
            self.assertEqual(struct.unpack_from(">h", data), (version,))
            self.assertEqual(decodeSubscription(data), {"a", "b"})

    def test_bytes(self) -> None:
        """Version 0 is topics, sorted, and no data of the user's."""
        self.assertEqual(encodeSubscription({"bc", "a"}), b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff")

    def test_newer(self) -> None:
        """Of versions to come the beginning is understood, whatever they add behind it."""
        data = bytearray(encodeSubscription(["a"], PLACES, 7, NEWEST_VERSION)) + b"and so on"
        struct.pack_into(">h", data, 0, 9)
        self.assertEqual(decodeSubscription(bytes(data)), {"a"})

    def test_peer(self) -> None:
        """kafka-python reads what we write, and we what it writes."""
        for version in VERSIONS:
            theirs = ConsumerProtocolSubscription.decode(encodeSubscription(["a", "b"], PLACES, 7, version))
            self.assertEqual(list(theirs.topics), ["a", "b"])
            theirs = ConsumerProtocolSubscription(version=version, topics=["a", "b"], user_data=b"x")
            self.assertEqual(decodeSubscription(bytes(theirs.encode())), {"a", "b"})


class AssignmentTests(SynchronousTestCase):
    """What members get."""

    def test_everyVersion(self) -> None:
        """Every version comes back."""
        for version in VERSIONS:
            self.assertEqual(decodeAssignment(encodeAssignment(PLACES, version)), PLACES)

    def test_nothing(self) -> None:
        """No bytes, and no partitions, are no partitions."""
        self.assertEqual(decodeAssignment(b""), [])
        self.assertEqual(decodeAssignment(encodeAssignment([])), [])

    def test_peer(self) -> None:
        """kafka-python reads what we write, and we what it writes."""
        for version in VERSIONS:
            theirs = ConsumerProtocolAssignment.decode(encodeAssignment(PLACES, version))
            self.assertEqual([tuple(each) for each in theirs.partitions()], PLACES)
            theirs = ConsumerProtocolAssignment(
                version=version, assigned_partitions=[("a", [0, 2]), ("b", [1])], user_data=b""
            )
            self.assertEqual(decodeAssignment(bytes(theirs.encode())), PLACES)


class DamageTests(SynchronousTestCase):
    """Other members are trusted no more than brokers."""

    def test_damaged(self) -> None:
        """Whatever comes, it is understood or refused by one exception."""
        random = Random(5)
        refused = 0
        for encoded, decode in [
            (encodeSubscription(["abc", "de"], PLACES, 7, 3), decodeSubscription),
            (encodeAssignment(PLACES, 1), decodeAssignment),
        ]:
            for _ in range(300):
                data = bytearray(encoded)
                data[random.randrange(len(data))] = random.choice((0, 1, 127, 128, 255))
                del data[random.randrange(len(data)) + 1 :]
                try:
                    decode(bytes(data))
                except MalformedMembership:
                    refused += 1
        self.assertGreater(refused, 300)

    def test_refused(self) -> None:
        """Too little, too much of it, and what no version is."""
        huge = struct.pack(">hi", 0, 2**31 - 1)
        for data in (b"", b"\0", b"\xff\xff\0\0\0\0", huge, b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff"):
            self.assertRaises(MalformedMembership, decodeSubscription, data)
        self.assertRaises(MalformedMembership, decodeAssignment, b"\0")
