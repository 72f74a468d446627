"""A consumer notices that a loss of power has taken back records that it has read."""

from __future__ import annotations

import os
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, until

RECORDS = 100


class TruncationTests(SynchronousTestCase):
    """KIP-320, with librdkafka."""

    def setUp(self) -> None:
        self.broker = BrokerProcess().startedFor(self)

    def produce(self, prefix: str) -> None:
        """Store records, one in each batch."""
        producer = Producer({"bootstrap.servers": self.broker.address, "acks": 1, "batch.num.messages": 1})
        for number in range(RECORDS):
            producer.produce("events", f"{prefix}{number}".encode())
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)

    def losePower(self) -> None:
        """Kill the broker, and take away the second half of what it has written."""
        self.broker.kill()
        (path,) = Path(self.broker.dataPath, "partitions").glob("events-0.*/*.log")
        os.truncate(path, path.stat().st_size // 2)
        self.broker.start()

    def test_noticed(self) -> None:
        """
        A consumer that has read records which are gone is told so by its library, although there are records at its
        position again.
        """
        self.produce("lost")
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.address,
                "group.id": "readers",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self.addCleanup(consumer.close)
        consumer.assign([TopicPartition("events", 0, 0)])
        read: list[bytes | None] = []
        errors: list[KafkaError] = []

        def poll() -> None:
            message = consumer.poll(0.1)
            if message is None:
                return
            if message.error() is None:
                read.append(message.value())
            else:
                errors.append(message.error())

        def hasRead() -> bool:
            poll()
            return len(read) == RECORDS

        until(hasRead)
        self.losePower()
        self.produce("new")

        def isTold() -> bool:
            poll()
            return bool(errors)

        until(isTold)
        self.assertEqual(errors[0].code(), KafkaError._AUTO_OFFSET_RESET)
        self.assertIn("truncation detected at offset 100", errors[0].str())
        self.assertIn("end offset is 50", errors[0].str())
        self.assertEqual(len(read), RECORDS)
