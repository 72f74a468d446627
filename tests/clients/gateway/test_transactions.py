"""Transactions."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.clients.gateway.gatewaycases import GatewayTestCase
from tests.clients.gateway.gatewayclients import consume, produce, tool
from tests.kit.attack import sized
from tests.kit.brokerprocess import PATIENCE_SECONDS

RECORDS = sized(1000, 10_000)


class TransactionTests(GatewayTestCase):
    """What was committed is visible to those who want no other, and what was aborted is not."""

    def test_java(self) -> None:
        """
        Kafka's copier, which aborts at random, reads its input as a member of a group, and commits offsets within its
        transactions, copies each record exactly once.
        """
        output = f"{self.topic}.copied"
        self.cluster.createTopic(self.topic, 1)
        self.cluster.createTopic(output, 1)
        values = [b"1.%d" % number for number in range(RECORDS)]
        produce("confluent", self.address, self.topic, values)
        tool(
            "TransactionalMessageCopier",
            *("--broker-list", self.address, "--transactional-id", output, "--consumer-group", output),
            *("--input-topic", self.topic, "--input-partition", "0", "--output-topic", output),
            *("--transaction-size", str(RECORDS // 20), "--enable-random-aborts"),
            seconds=2 * PATIENCE_SECONDS,
        )
        self.assertEqual(sorted(self.cluster.values(output, isCommitted=True)), sorted(values))
        self.assertEqual(self.cluster.committed(output, self.topic), {0: RECORDS})

    def test_confluent(self) -> None:
        """librdkafka commits a transaction, aborts one, and commits one over several partitions again."""
        self.cluster.createTopic(self.topic)
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": self.topic, "log_level": 0})
        producer.init_transactions(PATIENCE_SECONDS)
        for name, isCommitted in (("first", True), ("aborted", False), ("last", True)):
            producer.begin_transaction()
            for number in range(RECORDS):
                producer.produce(self.topic, f"{name}.{number}".encode(), partition=number % 3)
            # Only what has arrived can be seen to be aborted.
            self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
            if isCommitted:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
        visible = self.consumed(2 * RECORDS)
        expected = sorted(f"{name}.{number}".encode() for name in ("first", "last") for number in range(RECORDS))
        self.assertEqual(visible, expected)
        self.assertEqual(len(self.cluster.values(self.topic)), 3 * RECORDS)

    def consumed(self, count: int) -> list[bytes]:
        """What a client that wants only what was committed gets, which is librdkafka's default."""
        return sorted(consume("confluent", self.address, self.topic, count))
