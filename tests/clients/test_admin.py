"""Tests for L{admission.kafka.broker.api} with the administration clients of confluent-kafka and kafka-python."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import confluent_kafka.admin
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, KafkaAdminClient
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS, sharedBroker
from tests.kit.rawclient import RawClient

PARTITIONS = 3
MAX_TOPICS = 3
MAX_PARTITIONS = 10

_numbers = itertools.count()


class AdminCases(SynchronousTestCase):
    """What the tests of both clients need."""

    def setUp(self) -> None:
        """A broker that all share, one with narrow limits, and a topic's name."""
        self.broker = sharedBroker("--set", f"num.partitions={PARTITIONS}")
        self.limited = sharedBroker("--set", f"max.topics={MAX_TOPICS}", "--set", f"max.partitions={MAX_PARTITIONS}")
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        begin = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(begin), []))

    def partitionCount(self, topic: str) -> int:
        """How many partitions a topic has; none if it is not there."""
        with RawClient(self.broker.port) as raw:
            topics = {each.name: len(each.partitions) for each in raw.allTopics()}
        return topics.get(topic, 0)


class ConfluentAdminTests(AdminCases):
    """confluent-kafka administers the broker."""

    def setUp(self) -> None:
        """Make a client."""
        super().setUp()
        self.admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 0})

    def answer(self, futures: dict[Any, Any]) -> Any:
        """The one result, or the Kafka error and what the broker says of it."""
        (future,) = futures.values()
        try:
            return future.result(PATIENCE_SECONDS)
        except KafkaException as exception:
            error = exception.args[0]
            return ErrorCode(error.code()), error.str()

    def create(self, admin: AdminClient | None = None, **settings: Any) -> Any:
        """Create the test's topic."""
        options = {"validate_only": settings.pop("validate_only", False)}
        topic = confluent_kafka.admin.NewTopic(settings.pop("topic", self.topic), **settings)
        # A client is false when it has nothing to tell.
        return self.answer((self.admin if admin is None else admin).create_topics([topic], **options))

    def test_createAndDelete(self) -> None:
        """A topic is created with as many partitions as it should have, or the default, once; deleted it is gone."""
        self.assertIsNone(self.create(num_partitions=5))
        self.assertEqual(self.partitionCount(self.topic), 5)
        self.assertEqual(
            self.create(num_partitions=5),
            (ErrorCode.topic_already_exists, f"there is a topic '{self.topic}' already"),
        )
        self.assertIsNone(self.answer(self.admin.delete_topics([self.topic])))
        self.assertEqual(self.partitionCount(self.topic), 0)
        code, _ = self.answer(self.admin.delete_topics([self.topic]))
        self.assertEqual(code, ErrorCode.unknown_topic_or_partition)
        self.assertIsNone(self.create())
        self.assertEqual(self.partitionCount(self.topic), PARTITIONS)

    def test_validateOnly(self) -> None:
        """Validation finds what is wrong, and changes nothing."""
        self.assertIsNone(self.create(num_partitions=5, validate_only=True))
        code, _ = self.create(num_partitions=0, validate_only=True)
        self.assertEqual(code, ErrorCode.invalid_partitions)
        self.assertEqual(self.partitionCount(self.topic), 0)

    def test_refusals(self) -> None:
        """What one broker cannot do is refused in words, and nothing is made."""
        for settings, expectedCode, expectedWords in (
            ({"replication_factor": 3}, ErrorCode.invalid_replication_factor, "can be 1 and not 3"),
            (
                {"num_partitions": 1, "replica_assignment": [[7]]},
                ErrorCode.invalid_replica_assignment,
                "on the one broker, 1, only",
            ),
            ({"config": {"retention.ms": "soon"}}, ErrorCode.invalid_config, "'soon' is not a whole number"),
            ({"config": {"no.such": "1"}}, ErrorCode.invalid_config, "topics have no setting 'no.such' here"),
            ({"topic": "a b"}, ErrorCode.invalid_topic_exception, "'a b' cannot be the name of a topic"),
        ):
            code, words = self.create(**settings)
            self.assertEqual(code, expectedCode)
            self.assertIn(expectedWords, words)
        self.assertEqual(self.partitionCount(self.topic), 0)

    def test_createPartitions(self) -> None:
        """A topic can get more partitions, and never fewer."""
        self.create(num_partitions=2)

        def grow(count: int, **options: Any) -> Any:
            wanted = confluent_kafka.admin.NewPartitions(self.topic, count)
            return self.answer(self.admin.create_partitions([wanted], **options))

        self.assertIsNone(grow(4, validate_only=True))
        self.assertEqual(self.partitionCount(self.topic), 2)
        self.assertIsNone(grow(4))
        self.assertEqual(self.partitionCount(self.topic), 4)
        self.assertEqual(grow(4)[0], ErrorCode.invalid_partitions)

    def test_limits(self) -> None:
        """There are no more topics and partitions than the broker's limits allow, and the answer names the limit."""
        admin = AdminClient({"bootstrap.servers": self.limited.address, "log_level": 0})
        topics = [f"{self.topic}.{number}" for number in range(MAX_TOPICS)]
        code, words = self.create(admin, topic=topics[0], num_partitions=MAX_PARTITIONS + 1)
        self.assertEqual(code, ErrorCode.invalid_partitions)
        self.assertIn(f"more than {MAX_PARTITIONS}, which is the limit", words)
        for topic in topics:
            self.assertIsNone(self.create(admin, topic=topic, num_partitions=1))
        code, words = self.create(admin, num_partitions=1)
        self.assertEqual((code, words), (ErrorCode.policy_violation, "there are 3 topics already (max.topics)"))
        grown = confluent_kafka.admin.NewPartitions(topics[0], MAX_PARTITIONS - MAX_TOPICS + 2)
        self.assertEqual(self.answer(admin.create_partitions([grown]))[0], ErrorCode.invalid_partitions)
        with RawClient(self.limited.port) as raw:
            self.assertRaisesRegex(AssertionError, "policy_violation", raw.createTopic, "automatic")
        for topic in topics:
            self.assertIsNone(self.answer(admin.delete_topics([topic])))

    def test_describeCluster(self) -> None:
        """The cluster is the one broker, at the address that the client used."""
        described = self.admin.describe_cluster().result(PATIENCE_SECONDS)
        self.assertEqual(
            [(node.id, node.host, node.port) for node in described.nodes], [(1, "127.0.0.1", self.broker.port)]
        )
        self.assertEqual(described.controller.id, 1)
        self.assertEqual(len(described.cluster_id), 22)

    def test_configs(self) -> None:
        """
        A topic's settings are described with their sources; set and deleted
        they change, unless it is only to be validated or makes no sense.
        """
        self.create(config={"retention.ms": "1000"})

        def alter(name: str, value: str | None, operation: AlterConfigOpType, **options: Any) -> Any:
            entry = ConfigEntry(name, value, incremental_operation=operation)
            resource = confluent_kafka.admin.ConfigResource("topic", self.topic, incremental_configs=[entry])
            return self.answer(self.admin.incremental_alter_configs([resource], **options))

        def described(name: str) -> tuple[str, int]:
            resource = confluent_kafka.admin.ConfigResource("topic", self.topic)
            entry = self.answer(self.admin.describe_configs([resource]))[name]
            return entry.value, entry.source

        ofTopic = confluent_kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        default = confluent_kafka.admin.ConfigSource.DEFAULT_CONFIG.value
        self.assertEqual(described("retention.ms"), ("1000", ofTopic))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertIsNone(alter("max.message.bytes", "2000", AlterConfigOpType.SET, validate_only=True))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertIsNone(alter("max.message.bytes", "2000", AlterConfigOpType.SET))
        self.assertEqual(described("max.message.bytes"), ("2000", ofTopic))
        self.assertIsNone(alter("max.message.bytes", None, AlterConfigOpType.DELETE))
        self.assertEqual(described("max.message.bytes"), ("1048588", default))
        self.assertEqual(alter("cleanup.policy", "compact", AlterConfigOpType.SET)[0], ErrorCode.invalid_config)

    def test_brokerConfigs(self) -> None:
        """The broker describes its own settings; they cannot be changed while it runs."""
        resource = confluent_kafka.admin.ConfigResource("broker", "1")
        described = self.answer(self.admin.describe_configs([resource]))
        self.assertEqual(described["num.partitions"].value, str(PARTITIONS))
        self.assertTrue(described["num.partitions"].is_read_only)
        self.assertEqual(described["message.max.bytes"].value, "1048588")
        entry = ConfigEntry("num.partitions", "5", incremental_operation=AlterConfigOpType.SET)
        changed = confluent_kafka.admin.ConfigResource("broker", "1", incremental_configs=[entry])
        code, words = self.answer(self.admin.incremental_alter_configs([changed]))
        self.assertEqual(code, ErrorCode.invalid_request)
        self.assertIn("only the settings of topics can be changed", words)


class KafkaPythonAdminTests(AdminCases):
    """kafka-python administers the broker."""

    def setUp(self) -> None:
        """Make a client."""
        super().setUp()
        self.admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        self.addCleanup(self.admin.close)

    def create(self, admin: KafkaAdminClient | None = None, **settings: Any) -> ErrorCode:
        """Create the test's topic."""
        validateOnly = settings.pop("validate_only", False)
        topics = {settings.pop("topic", self.topic): settings}
        answer = (admin or self.admin).create_topics(topics, validate_only=validateOnly, raise_errors=False)
        return ErrorCode(answer["topics"][0]["error_code"])

    def delete(self, topic: str, admin: KafkaAdminClient | None = None) -> ErrorCode:
        """Delete a topic."""
        answer = (admin or self.admin).delete_topics([topic], raise_errors=False)
        return ErrorCode(answer["topics"][0]["error_code"])

    def test_createAndDelete(self) -> None:
        """A topic is created with as many partitions as it should have, or the default, once; deleted it is gone."""
        self.assertEqual(self.create(num_partitions=5), ErrorCode.none)
        self.assertEqual(self.partitionCount(self.topic), 5)
        self.assertIn(self.topic, self.admin.list_topics())
        self.assertEqual(self.create(num_partitions=5), ErrorCode.topic_already_exists)
        self.assertEqual(self.delete(self.topic), ErrorCode.none)
        self.assertEqual(self.partitionCount(self.topic), 0)
        self.assertEqual(self.delete(self.topic), ErrorCode.unknown_topic_or_partition)
        self.assertEqual(self.create(), ErrorCode.none)
        self.assertEqual(self.partitionCount(self.topic), PARTITIONS)

    def test_refusals(self) -> None:
        """What one broker cannot do is refused, and neither that nor a validation makes a topic."""
        for settings, expected in (
            ({"num_partitions": 5, "validate_only": True}, ErrorCode.none),
            ({"num_partitions": 0}, ErrorCode.invalid_partitions),
            ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
            ({"assignments": {0: [1, 2]}}, ErrorCode.invalid_replica_assignment),
            ({"assignments": {1: [1]}}, ErrorCode.invalid_replica_assignment),
            ({"configs": {"cleanup.policy": "compact"}}, ErrorCode.invalid_config),
        ):
            self.assertEqual(self.create(**settings), expected)
        self.assertEqual(self.partitionCount(self.topic), 0)

    def test_createPartitions(self) -> None:
        """A topic can get more partitions, and never fewer."""
        self.create(num_partitions=2)
        for count, validateOnly, expected, present in (
            (4, True, ErrorCode.none, 2),
            (4, False, ErrorCode.none, 4),
            (3, False, ErrorCode.invalid_partitions, 4),
        ):
            answer = self.admin.create_partitions({self.topic: count}, validate_only=validateOnly, raise_errors=False)
            self.assertEqual(ErrorCode(answer.results[0].error_code), expected)
            self.assertEqual(self.partitionCount(self.topic), present)

    def test_limits(self) -> None:
        """There are no more topics and partitions than the broker's limits allow."""
        topics = [f"{self.topic}.{number}" for number in range(MAX_TOPICS)]
        with closing(KafkaAdminClient(bootstrap_servers=self.limited.address)) as admin:
            tooMany = self.create(admin, topic=topics[0], num_partitions=MAX_PARTITIONS + 1)
            self.assertEqual(tooMany, ErrorCode.invalid_partitions)
            for topic in topics:
                self.assertEqual(self.create(admin, topic=topic, num_partitions=1), ErrorCode.none)
            self.assertEqual(self.create(admin, num_partitions=1), ErrorCode.policy_violation)
            for topic in topics:
                self.assertEqual(self.delete(topic, admin), ErrorCode.none)

    def test_describeCluster(self) -> None:
        """The cluster is the one broker, at the address that the client used."""
        described = self.admin.describe_cluster()
        (broker,) = described["brokers"]
        self.assertEqual((broker["broker_id"], broker["host"], broker["port"]), (1, "127.0.0.1", self.broker.port))
        self.assertEqual(described["controller_id"], 1)

    def test_configs(self) -> None:
        """A topic's settings are described, set and deleted."""
        self.create(configs={"retention.ms": "1000"})

        def alter(configs: dict[str, Any]) -> None:
            self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic, configs)])

        def described(name: str) -> Any:
            resource = ConfigResource(ConfigResourceType.TOPIC, self.topic)
            answer = self.admin.describe_configs([resource], config_filter="all")
            return answer["topic"][self.topic][name]["value"]

        self.assertEqual(described("retention.ms"), "1000")
        alter({"retention.ms": "2000", "max.message.bytes": (AlterConfigOp.SET, "5000")})
        self.assertEqual((described("retention.ms"), described("max.message.bytes")), ("2000", "5000"))
        alter({"retention.ms": (AlterConfigOp.DELETE, None)})
        self.assertEqual(described("retention.ms"), str(7 * 24 * 3600 * 1000))
