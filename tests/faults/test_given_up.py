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
from collections.abc import Callable
from random import Random
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.apachekafka import ApacheKafka
from tests.kit.attack import sized
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.faults import Busy, FaultTestCase, copiesIn, sameProducer
from tests.kit.longform import longForm

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


class GivenUpTestCase(SynchronousTestCase):
    """What both brokers are asked."""

    def starve(self, name: str, address: str, port: int, pid: Callable[[], int], kill: Callable[[], object]) -> None:
        """
        Starve a broker in rounds, and look at what it has stored.

        @param pid: its process.
        @param kill: kills it, and starts it again.
        """
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
        random = Random(13)
        producer = HurriedProducer(address)
        with Busy(producer.send):
            begun = time.monotonic()
            while len(producer.acknowledged) < AT_ONCE:
                self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS)
                time.sleep(0.01)
            for number in range(ROUNDS):
                time.sleep(random.uniform(0.3, 1.0))
                os.kill(pid(), signal.SIGSTOP)
                time.sleep(random.uniform(1.0, 2.5))
                os.kill(pid(), signal.SIGCONT)
                if number % 3 == 2:
                    kill()
        self.assertEqual((producer.flush(), producer.refused), (0, set()))
        stored = copiesIn(port, TOPIC, PARTITIONS)
        twice = {value: copies for value, copies in stored.items() if len(copies) > 1}
        acknowledged, givenUp = set(producer.acknowledged), set(producer.givenUp)
        same = sameProducer(stored.values())
        lost = len(acknowledged - stored.keys())
        example = next(iter(twice.values()), "none")
        print(
            f"\n{name}, {ROUNDS} rounds without time: {len(acknowledged)} acknowledged, lost {lost}; "
            f"{len(givenUp)} given up by the client, {len(givenUp & stored.keys())} of them stored; "
            f"{len(twice)} stand twice, {len(twice.keys() & acknowledged)} of them acknowledged; "
            f"by one producer id in one epoch: {same}; {example}"
        )
        self.assertTrue(givenUp)
        self.assertEqual((lost, same), (0, 0))


class GivenUpTests(GivenUpTestCase, FaultTestCase):
    """Our broker."""

    def test_starved(self) -> None:
        """
        What is acknowledged is stored, and what stands twice was sent in different epochs of the producer's id, or by
        different ids.
        """

        def kill() -> None:
            self.broker.kill()
            self.broker.start()

        self.starve("this broker", self.broker.address, self.broker.port, lambda: self.broker.process.pid, kill)
        self.assertNoComplaints()


class KafkasTests(GivenUpTestCase):
    """Apache Kafka, which cannot tell either."""

    @longForm
    def test_starved(self) -> None:
        """The same holds for it."""
        kafka = ApacheKafka()
        self.addCleanup(kafka.remove)
        kafka.start()
        self.starve("Apache Kafka", kafka.address, kafka.port, lambda: kafka.pid, lambda: None)
