"""Producers that want no acknowledgements, and so get no responses."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from tests.clients.gateway.gatewaycases import GatewayTestCase
from tests.kit.attack import sized
from tests.kit.brokerprocess import PATIENCE_SECONDS, until

RECORDS = sized(10_000, 100_000)
AT_ONCE = 100


class UnacknowledgedTests(GatewayTestCase):
    """Everything arrives all the same, and responses are to the requests that they are to."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.createTopic(self.topic, 1)

    def assertArrived(self, count: int) -> None:
        """All values are in the topic, in order, as soon as the nodes have had the time."""
        arrived: list[bytes] = []

        def isThere() -> bool:
            time.sleep(0.1)
            arrived[:] = self.cluster.values(self.topic)
            return len(arrived) >= count

        until(isThere)
        self.assertEqual(arrived, [b"%d" % number for number in range(count)])

    def test_confluent(self) -> None:
        """librdkafka, in many small batches, is answered afterwards."""
        settings = {"bootstrap.servers": self.address, "acks": 0, "linger.ms": 0, "batch.num.messages": 10}
        producer = Producer({**settings, "log_level": 0, "queue.buffering.max.messages": 2 * RECORDS})
        for number in range(RECORDS):
            producer.produce(self.topic, b"%d" % number)
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        self.assertIn(self.topic, producer.list_topics(self.topic, PATIENCE_SECONDS).topics)
        self.assertArrived(RECORDS)
