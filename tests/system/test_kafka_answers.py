"""The broker beside Apache Kafka: the same batches, the same questions, the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.apachekafka import ApacheKafka
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess
from tests.kit.hostilebatches import HOUR_MS, batch, gzipped, hostileBatches, record
from tests.kit.rawclient import RawClient, produceRequest

_MAX_TIMESTAMP = -3
_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
_LATEST = -1
"""Asked for in place of a time: the end of a partition."""


class SameAnswersTests(SynchronousTestCase):
    """Apache Kafka and the broker are asked the same."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.kafka = ApacheKafka()
        cls.addClassCleanup(cls.kafka.remove)
        cls.kafka.start()
        cls.broker = BrokerProcess()
        cls.addClassCleanup(cls.broker.remove)
        cls.broker.start()

    def setUp(self) -> None:
        # Kafka, whose answers are expected, and the broker.
        self.admins = [
            AdminClient({"bootstrap.servers": address, "log_level": 0})
            for address in (self.kafka.address, self.broker.address)
        ]
        for admin in self.admins:
            # Kafka takes some seconds to start.
            admin.list_topics(timeout=PATIENCE_SECONDS)
        self.clients = [RawClient(port) for port in (self.kafka.port, self.broker.port)]
        for client in self.clients:
            self.addCleanup(client.close)

    def create(self, name: str, **config: str) -> list[int]:
        """
        Create a topic on both.

        @return: the error codes.
        """
        codes = []
        for admin in self.admins:
            new = NewTopic(name, 1, 1, config=config)
            (created,) = admin.create_topics([new], request_timeout=PATIENCE_SECONDS).values()
            error = created.exception(PATIENCE_SECONDS)
            codes.append(0 if error is None else error.args[0].code())
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Kafka says that there is a topic before the broker that has it knows of it.
        while not any(codes) and any(error for error, *_ in self.lookUp(name, _LATEST)):
            self.assertLess(time.monotonic(), deadline, f"{name} is not there")
            time.sleep(0.05)
        return codes

    def ask(self, request: Any, answer: Callable[[Any], Any]) -> list[Any]:
        """Ask both."""
        return [answer(client.ask(request)) for client in self.clients]

    def produce(self, topic: str, value: bytes) -> list[int]:
        """
        Produce a batch.

        @return: the error codes.
        """
        return self.ask(
            produceRequest(topic, value), lambda answer: int(answer.responses[0].partition_responses[0].error_code)
        )

    def lookUp(self, topic: str, timestampMs: int) -> list[Any]:
        """The error, the offset and the time of the record that is found by time."""

        def found(answer: Any) -> Any:
            (each,) = answer.topics[0].partitions
            foundMs = each.timestamp if isinstance(each.timestamp, int) else each.timestamp.timestamp() * 1000
            return int(each.error_code), each.offset, round(foundMs)

        wanted = {"partition_index": 0, "timestamp": timestampMs}
        topics = [{"name": topic, "partitions": [wanted]}]
        return self.ask(requestOf("ListOffsets", 7, topics=topics), found)

    def test_batches(self) -> None:
        """Of batches with wrong contents the same are stored, and errors are the same, but for some on purpose."""
        self.assertEqual(self.create("hostile"), [0, 0])
        for name, each in hostileBatches(int(time.time() * 1000)).items():
            expected = [each.kafka, each.kafka if each.ours is None else each.ours]
            self.assertEqual(self.produce("hostile", each.batch), expected, name)

    def test_names(self) -> None:
        """The same names collide with others."""
        for name, code in (
            ("team.orders_eu", 0),
            ("team_orders.eu", 17),
            ("team.orders.eu", 17),
            ("team-orders.eu", 0),
        ):
            self.assertEqual(self.create(name), [code, code], name)

    def test_times(self) -> None:
        """The same records are found by time in five kinds of batches."""
        nowMs = int(time.time() * 1000)
        T = nowMs - HOUR_MS
        unordered = [T, T + 3000, T + 1000]
        kinds: dict[str, tuple[list[int], int, dict[str, str]]] = {
            "plain": (unordered, 0, {}),
            "gzip": (unordered, 1, {}),
            "thousand": ([*range(T, T + 10_000, 10)], 0, {}),
            "none": ([-1, -1, -1], 0, {}),
            "stamped": (unordered, 0, _APPEND_TIME),
        }
        for name, (times, codec, config) in kinds.items():
            self.assertEqual(self.create(name, **config), [0, 0])
            payload = b"".join(record(number, each - times[0]) for number, each in enumerate(times))
            sent = batch(
                gzipped(payload) if codec else payload,
                nowMs,
                count=len(times),
                attributes=codec,
                baseMs=times[0],
                maxMs=max(times),
            )
            for _ in range(2):
                self.assertEqual(self.produce(name, sent), [0, 0])
            for askedMs in (_MAX_TIMESTAMP, 0, T, T + 1, T + 1001, T + 3000, T + 3001, T + 9985, T + 9991, nowMs * 2):
                kafka, ours = self.lookUp(name, askedMs)
                if config and kafka[1] >= 0:
                    # Both have times of their own, and the second batch may have arrived in the same millisecond.
                    self.assertEqual((ours[0], ours[1] in (0, 3)), (0, True), (name, askedMs))
                    self.assertGreaterEqual(ours[2], nowMs)
                else:
                    self.assertEqual(ours, kafka, (name, askedMs - T))
