"""Tests for L{admission.kafka.broker.api.topicapi}."""

from __future__ import annotations

import errno
from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from admission.kafka.broker.api.onceflushed import FLUSH_SECONDS
from tests.kit.brokerfixture import BrokerTestCase, codes
from tests.kit.logfixture import storageError

TWICE = "twice"


def creatable(name: str, partitionCount: int = 1, replicationFactor: int = 1, **others: Any) -> dict[str, Any]:
    """A topic in a CreateTopics request."""
    return {"name": name, "num_partitions": partitionCount, "replication_factor": replicationFactor, **others}


def assigned(*brokerIds: list[int], first: int = 0) -> list[dict[str, Any]]:
    """Replica assignments: the brokers of each partition."""
    return [{"partition_index": index, "broker_ids": each} for index, each in enumerate(brokerIds, first)]


class CreateTopicsTests(BrokerTestCase):
    """CreateTopics makes each topic that it can."""

    properties = {"num.partitions": "3"}

    def create(self, *topics: dict[str, Any], apiVersion: int = 7, **others: Any) -> Any:
        """
        Ask for topics.

        @return: the results.
        """
        return self.connect().ask("CreateTopics", apiVersion, topics=topics, **others).topics

    def test_everyVersion(self) -> None:
        """A topic is made as it is asked for, in every version."""
        for apiVersion in range(2, 8):
            name = f"events-{apiVersion}"
            (result,) = self.create(creatable(name, 2), apiVersion=apiVersion)
            self.assertEqual((result.error_code, result.name, result.error_message), (0, name, None))
            self.assertEqual(len(self.log.topic(name).partitions), 2)

    def test_described(self) -> None:
        """From version 5 on what was made is described, from version 7 on with its id."""
        configs = [{"name": "retention.ms", "value": "1000"}]
        (result,) = self.create(creatable("events", 2, configs=configs))
        topic = self.log.topic("events")
        self.assertEqual((result.num_partitions, result.replication_factor), (2, 1))
        self.assertEqual(result.topic_id, topic.topicId)
        self.assertEqual(topic.configs, {"retention.ms": "1000"})
        described = {config.name: (config.value, config.config_source) for config in result.configs}
        self.assertEqual(described["retention.ms"], ("1000", 1))
        self.assertEqual(described["retention.bytes"], ("-1", 5))

    def test_manyAreNotDescribed(self) -> None:
        """A client that creates thousands of topics at once is answered with all of them and without their settings."""
        results = self.create(*(creatable(f"t{number}") for number in range(1_001)))
        self.assertEqual(len(self.log.topics), 1_001)
        self.assertEqual(set(codes(results)), {ErrorCode.none})
        described = {(each.configs, each.topic_config_error_code, each.num_partitions) for each in results}
        self.assertEqual(described, {(None, ErrorCode.policy_violation, 1)})

    def test_defaults(self) -> None:
        """-1 leaves the number of partitions and of replicas to the broker."""
        (result,) = self.create(creatable("events", -1, -1))
        self.assertEqual((result.error_code, result.num_partitions, result.replication_factor), (0, 3, 1))

    def test_validateOnly(self) -> None:
        """What is only validated is judged and not made."""
        results = self.create(creatable("good"), creatable("bad name"), validate_only=True)
        self.assertEqual(codes(results), [ErrorCode.none, ErrorCode.invalid_topic_exception])
        self.assertEqual(self.log.topics, {})

    def test_refusals(self) -> None:
        """What cannot be made is refused with its error and words."""
        self.topic("there")
        for topic, errorCode in (
            (creatable("there"), ErrorCode.topic_already_exists),
            (creatable("bad name"), ErrorCode.invalid_topic_exception),
            (creatable(""), ErrorCode.invalid_topic_exception),
            (creatable("x" * 250), ErrorCode.invalid_topic_exception),
            (creatable("x", 0), ErrorCode.invalid_partitions),
            (creatable("x", -2), ErrorCode.invalid_partitions),
            (creatable("x", 20_001), ErrorCode.invalid_partitions),
            (creatable("x", 1, 0), ErrorCode.invalid_replication_factor),
            (creatable("x", 1, 3), ErrorCode.invalid_replication_factor),
            (creatable("x", configs=[{"name": "no.such.config", "value": "1"}]), ErrorCode.invalid_config),
            (creatable("x", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.invalid_config),
            (creatable("x", configs=[{"name": "retention.ms", "value": "soon"}]), ErrorCode.invalid_config),
            (creatable("x", configs=[{"name": "cleanup.policy", "value": "compact"}]), ErrorCode.invalid_config),
        ):
            for validateOnly in (False, True):
                (result,) = self.create(topic, validate_only=validateOnly)
                self.assertEqual((result.error_code, result.num_partitions), (errorCode, -1), topic)
                self.assertTrue(result.error_message)
        self.assertEqual(set(self.log.topics), {"there"})

    def test_repeated(self) -> None:
        """A topic that is named twice is not made, and the others are."""
        results = self.create(creatable("a"), creatable("b"), creatable("a", 2))
        self.assertEqual(codes(results), [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request])
        self.assertIn(TWICE, results[0].error_message)
        self.assertEqual(set(self.log.topics), {"b"})

    def test_assignments(self) -> None:
        """Replica assignments say how many partitions there are, and may name this broker only."""
        for assignments, numbers, errorCode in (
            (assigned([1], [1]), (-1, -1), 0),
            (assigned([1], [1]), (2, -1), ErrorCode.invalid_request),
            (assigned([1]), (-1, 1), ErrorCode.invalid_request),
            (assigned([1], first=1), (-1, -1), ErrorCode.invalid_replica_assignment),
            (assigned([2]), (-1, -1), ErrorCode.invalid_replica_assignment),
            (assigned([1, 2]), (-1, -1), ErrorCode.invalid_replica_assignment),
            (assigned([1, 1]), (-1, -1), ErrorCode.invalid_replica_assignment),
            (assigned([]), (-1, -1), ErrorCode.invalid_replica_assignment),
        ):
            (result,) = self.create(creatable("events", *numbers, assignments=assignments))
            self.assertEqual(result.error_code, errorCode, (assignments, numbers))
        self.assertEqual(len(self.log.topic("events").partitions), 2)

    def test_failingLog(self) -> None:
        """Where the log cannot write, its error is told."""
        self.failCommits(storageError(errno.ENOSPC))
        self.assertEqual(codes(self.create(creatable("events"))), [ErrorCode.kafka_storage_error])
        self.assertEqual(self.log.topics, {})


class FlushTests(BrokerTestCase):
    """A change is told when the disk has it."""

    def test_waits(self) -> None:
        """
        Every API that changes topics waits for the disk, and one flush serves all that wait; what changes nothing does
        not wait.
        """
        self.topic("old")
        self.topic("older")
        self.clock.advance(2)
        self.isHolding = True
        configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
        requests: list[tuple[str, int, dict[str, Any]]] = [
            ("CreateTopics", 7, {"topics": [creatable("new")]}),
            ("DeleteTopics", 6, {"topics": [{"name": "older", "topic_id": None}]}),
            ("CreatePartitions", 3, {"topics": [{"name": "old", "count": 2, "assignments": None}]}),
            (
                "IncrementalAlterConfigs",
                1,
                {"resources": [{"resource_type": 2, "resource_name": "old", "configs": configs}]},
            ),
            ("Metadata", 9, {"topics": [{"name": "made on demand"[:4]}]}),
        ]
        clients = [self.connect() for _ in requests]
        for client, (name, apiVersion, fields) in zip(clients, requests, strict=True):
            client.send(name, apiVersion, **fields)
        self.assertEqual([client.waiting() for client in clients], [0] * len(clients))
        self.assertEqual(self.connect().ask("CreateTopics", 7, topics=[creatable("old")]).topics[0].error_code, 36)
        self.finishFlush()
        self.finishFlush()
        self.assertEqual([client.waiting() for client in clients], [1] * len(clients))
        self.finishFlushes()

    def test_overdue(self) -> None:
        """
        A client that waits for the disk in vain hears of it after the time that its request says, or after ten seconds
        if it says none, and the change holds all the same; an answer comes once, whatever the disk does afterwards.
        """
        self.topic("old")
        self.clock.advance(2)
        self.isHolding = True
        impatient, patient, unspecific, asking = (self.connect() for _ in range(4))
        impatient.send("CreateTopics", 7, topics=[creatable("a")], timeout=1_000)
        patient.send("DeleteTopics", 6, topics=[{"name": "old", "topic_id": None}], timeout=60_000)
        unspecific.send("CreateTopics", 7, topics=[creatable("b")], timeout=0)
        asking.send("Metadata", 9, topics=[{"name": "c"}])
        self.clock.advance(1.1)
        (overdue,) = impatient.receive().topics
        self.assertEqual(overdue.error_code, ErrorCode.request_timed_out)
        self.assertIn("the change is made", overdue.error_message)
        self.assertEqual([client.waiting() for client in (patient, unspecific, asking)], [0, 0, 0])
        self.clock.advance(FLUSH_SECONDS)
        self.assertEqual(codes(unspecific.receive().topics), [ErrorCode.request_timed_out])
        self.assertEqual(codes(asking.receive().topics), [ErrorCode.leader_not_available])
        self.assertEqual(set(self.log.topics), {"a", "b", "c"})
        self.finishFlushes()
        self.assertEqual(codes(patient.receive().responses), [ErrorCode.none])
        self.assertEqual([client.waiting() for client in (impatient, unspecific, asking)], [0, 0, 0])
        self.assertEqual(self.purgatory.watched, 0)

    def test_leavesWhileWaiting(self) -> None:
        """A client that leaves takes its wait for the disk along."""
        self.clock.advance(2)
        self.isHolding = True
        client = self.connect()
        client.send("CreateTopics", 7, topics=[creatable("new")], timeout=60_000)
        self.assertEqual(self.purgatory.watched, 1)
        client.disconnect()
        self.assertEqual(self.purgatory.watched, 0)
        self.finishFlushes()

    def test_failedFlush(self) -> None:
        """Where the disk does not get it, the error is told."""
        self.disk.flushError = storageError(errno.EIO)
        created = self.connect().ask("CreateTopics", 7, topics=[creatable("events")]).topics[0]
        self.assertEqual(created.error_code, ErrorCode.kafka_storage_error)
        self.assertIn("nothing is confirmed any more", created.error_message)
        (described,) = self.connect().ask("Metadata", 9, topics=[{"name": "other"}]).topics
        self.assertEqual(described.error_code, ErrorCode.kafka_storage_error)
        self.logged.clear()


class TopicLimitTests(BrokerTestCase):
    """C{max.topics} holds for CreateTopics as well."""

    properties = {"max.topics": "1"}

    def test_tooMany(self) -> None:
        """One more than there may be is refused, validated or made."""
        client = self.connect()
        results = client.ask("CreateTopics", 7, topics=[creatable("a"), creatable("b")]).topics
        self.assertEqual(codes(results), [ErrorCode.none, ErrorCode.policy_violation])
        self.assertEqual(results[1].error_message, "there are 1 topics already (max.topics)")
        results = client.ask("CreateTopics", 7, topics=[creatable("b")], validate_only=True).topics
        self.assertEqual(codes(results), [ErrorCode.policy_violation])


class DeleteTopicsTests(BrokerTestCase):
    """DeleteTopics removes each topic that there is."""

    def test_byName(self) -> None:
        """Topics are deleted by name, in every version that names them."""
        client = self.connect()
        for apiVersion in range(1, 6):
            self.topic("events")
            results = client.ask("DeleteTopics", apiVersion, topic_names=["events", "none"]).responses
            self.assertEqual([each.name for each in results], ["events", "none"])
            self.assertEqual(codes(results), [ErrorCode.none, ErrorCode.unknown_topic_or_partition])
            self.assertEqual(self.log.topics, {})

    def test_byNameOrId(self) -> None:
        """In version 6 they are deleted by name or by id, and answered with both."""
        a, b, unknown = self.topic("a"), self.topic("b"), uuid4()
        wanted = [{"name": "a"}, {"name": None, "topic_id": b.topicId}, {"name": None, "topic_id": unknown}]
        results = self.connect().ask("DeleteTopics", 6, topics=wanted).responses
        self.assertEqual(
            [(each.error_code, each.name, each.topic_id) for each in results],
            [(0, "a", a.topicId), (0, "b", b.topicId), (ErrorCode.unknown_topic_id, None, unknown)],
        )
        self.assertEqual(self.log.topics, {})

    def test_ambiguous(self) -> None:
        """Both a name and an id, or neither, names nothing."""
        topic = self.topic("a")
        wanted = [{"name": "a", "topic_id": topic.topicId}, {"name": None, "topic_id": None}]
        results = self.connect().ask("DeleteTopics", 6, topics=wanted).responses
        self.assertEqual(codes(results), [ErrorCode.invalid_request] * 2)
        self.assertIn("a", self.log.topics)

    def test_repeated(self) -> None:
        """A topic that is named twice stays, and the others go."""
        self.topic("a")
        self.topic("b")
        results = self.connect().ask("DeleteTopics", 5, topic_names=["a", "b", "a"]).responses
        self.assertEqual(codes(results), [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request])
        self.assertIn(TWICE, results[0].error_message)
        self.assertEqual(set(self.log.topics), {"a"})

    def test_nameAndIdOfOne(self) -> None:
        """A topic named by name and by id is deleted by the first, and the second finds it gone."""
        topic = self.topic("a")
        wanted = [{"name": "a"}, {"name": None, "topic_id": topic.topicId}]
        results = self.connect().ask("DeleteTopics", 6, topics=wanted).responses
        self.assertEqual(codes(results), [ErrorCode.none, ErrorCode.unknown_topic_id])


class CreatePartitionsTests(BrokerTestCase):
    """CreatePartitions makes topics wider."""

    def setUp(self) -> None:
        super().setUp()
        self.topic("events", 2)

    def widen(self, *topics: dict[str, Any], apiVersion: int = 3, **others: Any) -> Any:
        """
        Ask for partitions.

        @return: the results.
        """
        return self.connect().ask("CreatePartitions", apiVersion, topics=topics, **others).results

    def count(self) -> int:
        """How many partitions the topic has."""
        return len(self.log.topic("events").partitions)

    def test_everyVersion(self) -> None:
        """A topic gets as many partitions as are asked for, in every version, and keeps its records."""
        partition = self.log.topic("events").partitions[0]
        self.store(partition, b"1")
        for apiVersion in range(4):
            count = 3 + apiVersion
            (result,) = self.widen({"name": "events", "count": count}, apiVersion=apiVersion)
            self.assertEqual((result.error_code, result.name, result.error_message), (0, "events", None))
            self.assertEqual(self.count(), count)
        self.assertEqual(partition.highWatermark, 1)
        self.assertIs(self.log.topic("events").partitions[0], partition)

    def test_validateOnly(self) -> None:
        """What is only validated is judged and not made."""
        topics = [{"name": "events", "count": 3}, {"name": "none", "count": 3}]
        results = self.widen(*topics, validate_only=True)
        self.assertEqual(codes(results), [ErrorCode.none, ErrorCode.unknown_topic_or_partition])
        self.assertEqual(self.count(), 2)

    def test_refusals(self) -> None:
        """Not more than there are, or too many, is refused."""
        for count in (2, 1, 0, -1, 20_001):
            for validateOnly in (False, True):
                (result,) = self.widen({"name": "events", "count": count}, validate_only=validateOnly)
                self.assertEqual(result.error_code, ErrorCode.invalid_partitions)
                self.assertTrue(result.error_message)

    def test_repeated(self) -> None:
        """A topic that is named twice stays as it is."""
        results = self.widen({"name": "events", "count": 3}, {"name": "events", "count": 4})
        self.assertEqual(codes(results), [ErrorCode.invalid_request] * 2)
        self.assertEqual(self.count(), 2)

    def test_assignments(self) -> None:
        """There is one replica assignment for each new partition, and it names this broker only."""
        for assignments, errorCode in (
            ([[1]], ErrorCode.invalid_replica_assignment),
            ([[1], [2]], ErrorCode.invalid_replica_assignment),
            ([[1], [1, 1]], ErrorCode.invalid_replica_assignment),
            ([], ErrorCode.invalid_replica_assignment),
            ([[1], [1]], ErrorCode.none),
        ):
            topic = {"name": "events", "count": 4, "assignments": [{"broker_ids": ids} for ids in assignments]}
            (result,) = self.widen(topic)
            self.assertEqual(result.error_code, errorCode, assignments)
        self.assertEqual(self.count(), 4)


class DeleteRecordsTests(BrokerTestCase):
    """DeleteRecords lets partitions begin later."""

    def setUp(self) -> None:
        super().setUp()
        self.partition = self.topic("events").partitions[0]
        for value in (b"1", b"2", b"3"):
            self.store(self.partition, value)
        self.client = self.connect()

    def delete(self, *wanted: tuple[str, int, int], apiVersion: int = 2) -> list[tuple[int, int, int]]:
        """
        Delete records of partitions up to offsets.

        @return: for each partition its index, where it begins, and the error.
        """
        topics = [
            {"name": name, "partitions": [{"partition_index": index, "offset": offset}]}
            for name, index, offset in wanted
        ]
        answer = self.client.ask("DeleteRecords", apiVersion, topics=topics, timeout=60_000)
        return [
            (each.partition_index, each.low_watermark, each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        ]

    def test_everyVersion(self) -> None:
        """What is before the offset is gone, and never comes back; deleting less than that changes nothing."""
        for apiVersion, offset, left in ((0, 1, 1), (1, 2, 2), (2, 1, 2), (2, -1, 3)):
            self.assertEqual(self.delete(("events", 0, offset), apiVersion=apiVersion), [(0, left, 0)])
            self.assertEqual(self.partition.logStartOffset, left)
            self.assertEqual(self.partition.highWatermark, 3)

    def test_refused(self) -> None:
        """What is not there cannot be deleted, and a partition is named once."""
        for wanted, errors in (
            ([("events", 0, 4)], [ErrorCode.offset_out_of_range]),
            ([("events", 0, -2)], [ErrorCode.offset_out_of_range]),
            ([("events", 1, 0), ("none", 0, 0)], [ErrorCode.unknown_topic_or_partition] * 2),
        ):
            self.assertEqual([error for _, _, error in self.delete(*wanted)], errors)
        ((_, _, error),) = self.delete(("events", 0, 1), ("events", 0, 1))
        self.assertEqual(error, ErrorCode.invalid_request)
        self.assertLessEqual(self.partition.logStartOffset, 1)
