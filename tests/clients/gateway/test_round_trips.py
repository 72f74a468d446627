"""Every client produces and consumes."""

from __future__ import annotations

from tests.clients.gateway.gatewaycases import GatewayTestCase
from tests.clients.gateway.gatewayclients import CLIENTS, consume, produce
from tests.kit.attack import sized

RECORDS = sized(1000, 10_000)


class RoundTripTests(GatewayTestCase):
    """Kafka's own clients, librdkafka, kafka-python and aiokafka."""

    def test_everyClient(self) -> None:
        """Each gets back all that it has sent to all partitions, once, as the only member of a group."""
        # Kafka's tool numbers values behind a number and a dot.
        values = [f"1.{number}".encode() for number in range(RECORDS)]
        for client in CLIENTS:
            topic = f"{self.topic}.{client}"
            self.cluster.createTopic(topic)
            produce(client, self.address, topic, values)
            self.assertEqual(sorted(consume(client, self.address, topic, RECORDS)), sorted(values), client)
