"""Tests for L{admission.kafka.broker.api} with the administration client of confluent-kafka."""

from __future__ import annotations

import itertools
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS, sharedBroker
from tests.kit.rawclient import RawClient

PARTITIONS = 3

_numbers = itertools.count()


class AdminTests(SynchronousTestCase):
    """confluent-kafka administers the broker."""

    def setUp(self) -> None:
        self.broker = sharedBroker("--set", f"num.partitions={PARTITIONS}")
        self.admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 0})
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        begin = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(begin), []))

    def partitionCount(self, topic: str) -> int:
        """How many partitions a topic has; none if it is not there."""
        with RawClient(self.broker.port) as raw:
            topics = {each.name: len(each.partitions) for each in raw.allTopics()}
        return topics.get(topic, 0)

    def answer(self, futures: dict[Any, Any]) -> Any:
        """The one result, or the Kafka error and what the broker says of it."""
        (future,) = futures.values()
        try:
            return future.result(PATIENCE_SECONDS)
        except KafkaException as exception:
            error = exception.args[0]
            return ErrorCode(error.code()), error.str()

    def create(self, **settings: Any) -> Any:
        """Create the test's topic."""
        return self.answer(self.admin.create_topics([NewTopic(settings.pop("topic", self.topic), **settings)]))

    def test_createAndDelete(self) -> None:
        """A topic is created with as many partitions as it should have, or the default, once; deleted it is gone."""
        self.assertIsNone(self.create(num_partitions=5))
        self.assertEqual(self.partitionCount(self.topic), 5)
        self.assertEqual(
            self.create(num_partitions=5), (ErrorCode.topic_already_exists, f"there is a topic '{self.topic}' already")
        )
        self.assertIsNone(self.answer(self.admin.delete_topics([self.topic])))
        self.assertEqual(self.partitionCount(self.topic), 0)
        code, _ = self.answer(self.admin.delete_topics([self.topic]))
        self.assertEqual(code, ErrorCode.unknown_topic_or_partition)
        self.assertIsNone(self.create())
        self.assertEqual(self.partitionCount(self.topic), PARTITIONS)

    def test_configs(self) -> None:
        """
        A topic's settings are described with their sources; set and deleted
        they change, unless it is only to be validated or makes no sense.
        """
        self.create(config={"retention.ms": "1000"})

        def alter(name: str, value: str | None, operation: AlterConfigOpType, **options: Any) -> Any:
            entry = ConfigEntry(name, value, incremental_operation=operation)
            resource = ConfigResource("topic", self.topic, incremental_configs=[entry])
            return self.answer(self.admin.incremental_alter_configs([resource], **options))

        def described(name: str) -> tuple[str, int]:
            resource = ConfigResource("topic", self.topic)
            entry = self.answer(self.admin.describe_configs([resource]))[name]
            return entry.value, entry.source

        ofTopic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        default = ConfigSource.DEFAULT_CONFIG.value
        self.assertEqual(described("retention.ms"), ("1000", ofTopic))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertIsNone(alter("max.message.bytes", "2000", AlterConfigOpType.SET, validate_only=True))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertIsNone(alter("max.message.bytes", "2000", AlterConfigOpType.SET))
        self.assertEqual(described("max.message.bytes"), ("2000", ofTopic))
        self.assertIsNone(alter("max.message.bytes", None, AlterConfigOpType.DELETE))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertEqual(alter("cleanup.policy", "compact", AlterConfigOpType.SET)[0], ErrorCode.invalid_config)
