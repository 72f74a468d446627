"""Every client produces and consumes."""

from __future__ import annotations

from tests.kit.attack import sized
from tests.kit.gatewaycases import GatewayTestCase
from tests.kit.gatewayclients import FAMILIES

RECORDS = sized(1000, 10_000)


class RoundTripTests(GatewayTestCase):
    """What a client produces, all clients could consume; each consumes its own."""

    def roundTrip(self, name: str) -> None:
        """Produce to all partitions, and consume as the only member of a group."""
        family = FAMILIES[name]
        self.cluster.createTopic(self.topic)
        # Kafka's tool numbers values behind a number and a dot.
        values = [f"1.{number}".encode() for number in range(RECORDS)]
        family.produce(self.address, self.topic, values)
        self.assertEqual(sorted(family.consume(self.address, self.topic, RECORDS)), sorted(values))

    def test_java(self) -> None:
        """Kafka's own clients get back all they sent, once."""
        self.roundTrip("Java")

    def test_confluent(self) -> None:
        """So does librdkafka."""
        self.roundTrip("confluent-kafka")

    def test_kafkaPython(self) -> None:
        """So does kafka-python."""
        self.roundTrip("kafka-python")

    def test_aiokafka(self) -> None:
        """So does aiokafka, idempotent."""
        self.roundTrip("aiokafka")
