"""
Imitates a machine that has no time for its broker, so that an idempotent producer gives messages up
(C{message.timeout.ms}) while others of its messages are on their way.

librdkafka then goes on in a new epoch of its producer id, and sends again in it what it has no answer for.  If that was
stored, it stands twice: no broker can tell.
"""

from __future__ import annotations

import os
import signal
import time
from random import Random
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.attack import sized
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.faults import Busy, FaultTestCase, copiesIn, sameProducer

ROUNDS = sized(3, 30)
TOPIC = "given-up"
PARTITIONS = 5
AT_ONCE = 200


class HurriedProducer:
    """
    An idempotent producer of numbers that has too many of them for one partition, and some for the others.

    @ivar acknowledged: the values that the broker has confirmed.
    @ivar givenUp: those that the producer has given up.
    @ivar refused: other errors, each once.
    """

    def __init__(self, address: str) -> None:
        self.acknowledged: list[bytes] = []
        self.givenUp: list[bytes] = []
        self.refused: set[str] = set()
        self._sentCount = 0
        self._producer: Any = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 4000,
                "socket.timeout.ms": 1000,
                "request.timeout.ms": 900,
                "linger.ms": 5,
                # Small batches, so that it cannot send all of it.
                "batch.num.messages": 5,
                "queue.buffering.max.messages": 2_000_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )

    def send(self) -> None:
        """Send some, and hear of earlier ones."""
        for number in range(AT_ONCE):
            partition = number if number < PARTITIONS else 0
            self._producer.produce(TOPIC, b"%d" % self._sentCount, partition=partition, on_delivery=self._delivered)
            self._sentCount += 1
        self._producer.poll(0.005)

    def flush(self) -> int:
        """
        Wait for what is left.

        @return: how much is left even so.
        """
        return int(self._producer.flush(PATIENCE_SECONDS))

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        elif error.code() == KafkaError._MSG_TIMED_OUT:
            self.givenUp.append(message.value())
        else:
            self.refused.add(error.name())


class GivenUpTests(FaultTestCase):
    """An idempotent producer that gives up."""

    def test_starved(self) -> None:
        """
        What is acknowledged is stored, and what stands twice was sent in different epochs of the producer's id, or by
        different ids.
        """
        admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
        random = Random(13)
        producer = HurriedProducer(self.broker.address)
        with Busy(producer.send):
            begun = time.monotonic()
            while len(producer.acknowledged) < AT_ONCE:
                self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS)
                time.sleep(0.01)
            for number in range(ROUNDS):
                time.sleep(random.uniform(0.3, 1.0))
                os.kill(self.broker.process.pid, signal.SIGSTOP)
                time.sleep(random.uniform(1.0, 2.5))
                os.kill(self.broker.process.pid, signal.SIGCONT)
                if number % 3 == 2:
                    self.broker.kill()
                    self.broker.start()
        self.assertEqual((producer.flush(), producer.refused), (0, set()))
        stored = copiesIn(self.broker.port, TOPIC, PARTITIONS)
        twice = {value: copies for value, copies in stored.items() if len(copies) > 1}
        acknowledged, givenUp = set(producer.acknowledged), set(producer.givenUp)
        same = sameProducer(stored.values())
        lost = len(acknowledged - stored.keys())
        self.tell(
            f"{ROUNDS} rounds without time",
            f"{len(acknowledged)} acknowledged, lost {lost}; {len(givenUp)} given up by the client, "
            f"{len(givenUp & stored.keys())} of them stored; {len(twice)} stand twice, "
            f"{len(twice.keys() & acknowledged)} of them acknowledged; by one producer id in one epoch: {same}",
        )
        self.assertTrue(givenUp)
        self.assertEqual((lost, same), (0, 0))
        self.assertNoComplaints()
