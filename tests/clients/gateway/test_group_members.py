"""Groups of every protocol, with the clients that speak it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Producer

from tests.clients.gateway.gatewaycases import GatewayTestCase
from tests.clients.gateway.gatewayclients import GROUPS, ShareMember
from tests.kit.brokerprocess import PATIENCE_SECONDS, until

PARTITIONS = 6
RECORDS = 50
"""In each partition."""


class GroupTestCase(GatewayTestCase):
    """A test with a topic and a group of the same name."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.createTopic(self.topic, PARTITIONS)

    def produce(self) -> None:
        """Have some more records in each partition."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        for number in range(RECORDS * PARTITIONS):
            # Members of groupclients read how long to work on it.
            producer.produce(self.topic, b"0", partition=number % PARTITIONS)
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)

    def waitUntil(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""

        def holds() -> bool:
            time.sleep(0.05)
            return condition()

        until(holds)


class GroupTests(GroupTestCase):
    """Members share a topic, and commit."""

    def share(self, name: str) -> None:
        """Join, have a second member join, read and commit everything, and have the first one leave."""
        everything = set(range(PARTITIONS))
        first = GROUPS[name](self.address, self.topic, self.topic)
        self.addCleanup(first.leave)
        self.waitUntil(lambda: first.owned == everything)
        second = GROUPS[name](self.address, self.topic, self.topic)
        try:
            self.waitUntil(
                lambda: (
                    len(first.owned) == len(second.owned) == PARTITIONS / 2 and first.owned | second.owned == everything
                )
            )
            self.produce()
            self.waitUntil(lambda: self.cluster.committed(self.topic, self.topic) == dict.fromkeys(everything, RECORDS))
        finally:
            second.leave()
        self.waitUntil(lambda: first.owned == everything)
        self.produce()
        self.waitUntil(lambda: self.cluster.committed(self.topic, self.topic) == dict.fromkeys(everything, 2 * RECORDS))

    def test_classicConfluent(self) -> None:
        """The classic protocol, with librdkafka."""
        self.share("classic, confluent")

    def test_consumerConfluent(self) -> None:
        """The consumer protocol (KIP-848), with librdkafka."""
        self.share("consumer, confluent")


class ShareGroupTests(GroupTestCase):
    """A share group (KIP-932), which only Kafka's own clients have."""

    def test_share(self) -> None:
        """Two members get records, and each record is acknowledged once."""
        members = [ShareMember(self.address, self.topic, self.topic) for _ in range(2)]

        def acknowledgedCount() -> int:
            return sum(len(member.acknowledged) for member in members)

        produced = 0
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not all(member.acknowledged for member in members):
                self.assertLess(time.monotonic(), deadline, "one of the members gets nothing")
                self.produce()
                produced += RECORDS * PARTITIONS
                self.waitUntil(lambda goal=produced: acknowledgedCount() >= goal)  # type: ignore[misc]
        finally:
            for member in members:
                member.leave()
        acknowledged = Counter(place for member in members for place in member.acknowledged)
        self.assertEqual(acknowledged.total(), produced)
        self.assertEqual({*acknowledged.values()}, {1})
