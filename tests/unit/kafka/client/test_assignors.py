"""Tests for L{admission.kafka.client.assignors}."""

from __future__ import annotations

import struct
from random import Random

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

PLACES = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
VERSIONS = range(NEWEST_VERSION + 1)


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
        """A member that does not want the topic is passed over."""
        self.assertEqual(
            assignRoundRobin(members("ab", "b", ""), {"a": 2, "b": 2, "c": 5}),
            {"0": partitions("a0", "a1", "b1"), "1": partitions("b0"), "2": []},
        )


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
