"""
Tests for L{admission.kafka.client.protocol}.
"""

from __future__ import annotations

import struct
from random import Random

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.protocol import (
    NEWEST_VERSION,
    MalformedMembership,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from admission.kafka.client.subscriptionstate import TopicPartition

PLACES = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
VERSIONS = range(NEWEST_VERSION + 1)


class SubscriptionTests(SynchronousTestCase):
    """
    What members want.
    """

    def test_everyVersion(self) -> None:
        """
        Every version comes back, with whatever else it carries.
        """
        for version in VERSIONS:
            data = encodeSubscription(["b", "a"], PLACES, 7, version)
            self.assertEqual(struct.unpack_from(">h", data), (version,))
            self.assertEqual(decodeSubscription(data), {"a", "b"})

    def test_bytes(self) -> None:
        """
        Version 0 is topics, sorted, and no data of the user's.
        """
        self.assertEqual(encodeSubscription({"bc", "a"}), b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff")

    def test_newer(self) -> None:
        """
        Of versions to come the beginning is understood, whatever they add behind it.
        """
        data = bytearray(encodeSubscription(["a"], PLACES, 7, NEWEST_VERSION)) + b"and so on"
        struct.pack_into(">h", data, 0, 9)
        self.assertEqual(decodeSubscription(bytes(data)), {"a"})

    def test_peer(self) -> None:
        """
        kafka-python reads what we write, and we what it writes.
        """
        for version in VERSIONS:
            theirs = ConsumerProtocolSubscription.decode(encodeSubscription(["a", "b"], PLACES, 7, version))
            self.assertEqual(list(theirs.topics), ["a", "b"])
            theirs = ConsumerProtocolSubscription(version=version, topics=["a", "b"], user_data=b"x")
            self.assertEqual(decodeSubscription(bytes(theirs.encode())), {"a", "b"})


class AssignmentTests(SynchronousTestCase):
    """
    What members get.
    """

    def test_everyVersion(self) -> None:
        """
        Every version comes back.
        """
        for version in VERSIONS:
            self.assertEqual(decodeAssignment(encodeAssignment(PLACES, version)), PLACES)

    def test_nothing(self) -> None:
        """
        No bytes, and no partitions, are no partitions.
        """
        self.assertEqual(decodeAssignment(b""), [])
        self.assertEqual(decodeAssignment(encodeAssignment([])), [])

    def test_peer(self) -> None:
        """
        kafka-python reads what we write, and we what it writes.
        """
        for version in VERSIONS:
            theirs = ConsumerProtocolAssignment.decode(encodeAssignment(PLACES, version))
            self.assertEqual([tuple(each) for each in theirs.partitions()], PLACES)
            theirs = ConsumerProtocolAssignment(
                version=version, assigned_partitions=[("a", [0, 2]), ("b", [1])], user_data=b""
            )
            self.assertEqual(decodeAssignment(bytes(theirs.encode())), PLACES)


class DamageTests(SynchronousTestCase):
    """
    Other members are trusted no more than brokers.
    """

    def test_damaged(self) -> None:
        """
        Whatever comes, it is understood or refused by one exception.
        """
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
        """
        Too little, too much of it, and what no version is.
        """
        huge = struct.pack(">hi", 0, 2**31 - 1)
        for data in (b"", b"\0", b"\xff\xff\0\0\0\0", huge, b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff"):
            self.assertRaises(MalformedMembership, decodeSubscription, data)
        self.assertRaises(MalformedMembership, decodeAssignment, b"\0")
