"""Tests for L{admission.kafka.broker.log.topics}, through the log."""

import errno
import os
from collections.abc import Sequence
from uuid import uuid4

from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log import topics
from admission.kafka.broker.log.interface import (
    InvalidPartitionCount,
    InvalidTopicConfig,
    InvalidTopicName,
    Partition,
    Topic,
    TopicExists,
    UnknownTopic,
)
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.log.topics import directoryName, numberIn
from admission.kafka.storage.itable import LogFailed
from tests.kit.logfixture import LogTestCase, Threads, storageError


def outline(topic: Topic) -> tuple[str, str, list[tuple[int, int]], dict[str, str]]:
    """Everything about a topic that must survive a restart."""
    partitions = [(partition.index, partition.number) for partition in topic.partitions]
    return topic.name, topic.topicId.hex, partitions, dict(topic.configs)


class TopicTests(LogTestCase):
    """Topics are made, changed and deleted at once and for good."""

    limits = {**LogTestCase.limits, "maxPartitions": 10}

    def test_create(self) -> None:
        """A topic is found by name and id as soon as it is made."""
        topic = self.log.createTopic("events", 3, {"retention.ms": "1000"})
        self.assertEqual(dict(self.log.topics), {"events": topic})
        self.assertIs(self.log.topic("events"), topic)
        self.assertIs(self.log.topicById(topic.topicId), topic)
        self.assertEqual([partition.index for partition in topic.partitions], [0, 1, 2])
        self.assertEqual({partition.topicName for partition in topic.partitions}, {"events"})

    def test_unknown(self) -> None:
        """What is not there is refused by every method."""
        self.assertRaises(UnknownTopic, self.log.topic, "events")
        self.assertRaises(UnknownTopic, self.log.topicById, uuid4())
        self.assertRaises(UnknownTopic, self.log.deleteTopic, "events")
        self.assertRaises(UnknownTopic, self.log.addPartitions, "events", 2)
        self.assertRaises(UnknownTopic, self.log.setTopicConfigs, "events", {})

    def test_names(self) -> None:
        """Names are those that Kafka allows."""
        for name in ("a", "A-z_0.9", "x" * 249, "..."):
            self.log.createTopic(name, 1, {})
        for name in ("", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n"):
            self.assertRaises(InvalidTopicName, self.log.createTopic, name, 1, {})

    def test_collisions(self) -> None:
        """Names that are one in metrics are refused, unless the other is deleted; pairs of older logs still open."""
        self.log.createTopic("team.orders_eu", 1, {})
        for name in ("team_orders.eu", "team.orders.eu", "team_orders_eu"):
            for validateOnly in (True, False):
                refused = self.assertRaises(InvalidTopicName, self.log.createTopic, name, 1, {}, validateOnly)
                self.assertEqual(refused.errorCode, 17)
                self.assertIn("collides with the topic 'team.orders_eu'", str(refused))
        self.assertRaises(TopicExists, self.log.createTopic, "team.orders_eu", 1, {})
        self.log.createTopic("team.orders-eu", 1, {})
        patched = self.patch(topics, "_metricName", str)
        self.log.createTopic("team_orders.eu", 1, {})
        patched.restore()
        self.reopenLog()
        self.assertEqual(set(self.log.topics), {"team.orders_eu", "team_orders.eu", "team.orders-eu"})
        for name in ("team.orders_eu", "team_orders.eu"):
            self.assertRaises(InvalidTopicName, self.log.createTopic, "team_orders_eu", 1, {})
            self.log.addPartitions(name, 2)
            self.log.deleteTopic(name)
        self.log.createTopic("team_orders_eu", 1, {})

    def test_partitionCounts(self) -> None:
        """Counts that make no sense or exceed the limit of the log are refused."""
        for count in (0, -1, 11):
            self.assertRaises(InvalidPartitionCount, self.log.createTopic, "events", count, {})
        self.log.createTopic("events", 9, {})
        self.assertRaises(InvalidPartitionCount, self.log.createTopic, "more", 2, {})
        for count in (9, 8, 11):
            self.assertRaises(InvalidPartitionCount, self.log.addPartitions, "events", count)
        self.log.addPartitions("events", 10)
        self.assertRaises(InvalidPartitionCount, self.log.createTopic, "more", 1, {})
        self.log.deleteTopic("events")
        self.log.createTopic("more", 10, {})

    def test_configs(self) -> None:
        """Settings that the log obeys must be numbers; others may be anything."""
        for configs in (
            {"retention.bytes": "many"},
            {"retention.ms": "-2"},
            {"retention.ms": "1.5"},
            {"segment.bytes": "x"},
            {"segment.ms": ""},
        ):
            self.assertRaises(InvalidTopicConfig, self.log.createTopic, "events", 1, configs)
        self.log.createTopic("events", 1, {"retention.bytes": "-1", "cleanup.policy": "delete"})
        self.assertRaises(InvalidTopicConfig, self.log.setTopicConfigs, "events", {"retention.bytes": ""})
        self.log.setTopicConfigs("events", {"retention.ms": "0"})
        self.assertEqual(dict(self.log.topic("events").configs), {"retention.ms": "0"})

    def test_addPartitions(self) -> None:
        """Partitions that were there stay the same objects."""
        before = self.log.createTopic("events", 2, {"a": "b"})
        after = self.log.addPartitions("events", 4)
        self.assertEqual(after.partitions[:2], before.partitions)
        self.assertEqual([partition.index for partition in after.partitions], [0, 1, 2, 3])
        self.assertEqual((after.topicId, after.configs), (before.topicId, before.configs))
        self.assertIs(self.log.topicById(before.topicId), after)

    def test_holders(self) -> None:
        """Topics that somebody got by asking count for them as long as they are there, across restarts."""
        self.log.createTopic("asked", 2, {}, holder="a")
        self.log.createTopic("made", 1, {})
        self.log.createTopic("gone", 1, {}, holder="b")
        self.log.addPartitions("asked", 3)
        self.log.setTopicConfigs("asked", {"retention.ms": "1"})
        self.log.deleteTopic("gone")
        for _ in range(2):
            self.assertEqual(dict(self.log.topicHoldings), {"a": 1, "": 1})
            self.assertEqual(dict(self.log.partitionHoldings), {"a": 3, "": 1})
            self.reopenLog()

    def test_numbers(self) -> None:
        """The number of a partition is never given again, nor is a topic's id."""
        numbers: list[int] = []
        ids = set()
        for _ in range(3):
            topic = self.log.createTopic("events", 2, {})
            numbers += [partition.number for partition in topic.partitions]
            ids.add(topic.topicId)
            self.log.deleteTopic("events")
            self.reopenLog()
        self.assertEqual(len(set(numbers)), 6)
        self.assertEqual(len(ids), 3)

    def test_delete(self) -> None:
        """A deleted topic is gone, also for those who have its partitions, and a new one of its name is empty."""
        old = self.partition()
        self.append(old)
        self.log.deleteTopic("events")
        self.assertEqual(dict(self.log.topics), {})
        for use in (
            lambda: self.append(old),
            lambda: self.read(old, 0, 1000),
            lambda: self.log.bytesAvailable(old, 0),
            lambda: self.offsetForTimestamp(old, 0),
            lambda: self.maxTimestampOffset(old),
            lambda: self.log.endOfEpoch(old, 0),
        ):
            self.assertRaises(UnknownTopic, use)
        new = self.partition()
        self.assertEqual((new.nextOffset, self.read(new, 0, 1000)), (0, []))

    def directories(self) -> list[str]:
        """The directories of partitions."""
        return sorted(self.disk.list(os.path.join(self.path, "partitions")))

    def test_directories(self) -> None:
        """
        A partition gets a directory with its first batch, and it goes with the topic; one of the
        same name has another.
        """
        first, _ = self.log.createTopic("events", 2, {}).partitions
        self.assertEqual(self.directories(), [])
        self.append(first)
        self.clock.turn()
        self.assertEqual(self.directories(), ["events-0.0"])
        self.log.deleteTopic("events")
        self.settle()
        self.assertEqual(self.directories(), [])
        _, second = self.log.createTopic("events", 2, {}).partitions
        self.append(second)
        self.clock.turn()
        self.assertEqual(self.directories(), ["events-1.3"])

    def test_longName(self) -> None:
        """Topics with the longest names have directories, too, which their numbers tell apart."""
        names = ["x" * 248 + last for last in "ab"]
        for name in names:
            self.append(self.partition(name))
        self.reopenLog()
        self.assertEqual([self.partition(name).highWatermark for name in names], [1, 1])
        self.assertEqual(self.directories(), ["x" * 200 + "-0.0", "x" * 200 + "-0.1"])

    def test_deletedEmpty(self) -> None:
        """The directory goes also if retention has removed all segments."""
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.ms": "0"})
        self.append(events)
        self.clock.turn()
        self.sweep()
        self.assertEqual((events.sizeBytes, self.directories()), (0, ["events-0.0"]))
        self.log.deleteTopic("events")
        self.settle()
        self.assertEqual(self.directories(), [])

    def test_deletionBeforeFiles(self) -> None:
        """The records go when the disk knows that the topic is gone, not before; if it fails, they stay."""
        threads = Threads()
        self.successResultOf(self.log.close())
        self.log = SegmentLog(self.path, self.clock, lambda: 0.0, threads.deferToThread, disk=self.disk)
        self.append(self.partition())
        self.log.deleteTopic("events")
        self.clock.turn()
        self.assertEqual(self.directories(), ["events-0.0"])
        self.disk.flushError = storageError(errno.EIO)
        with capturedLogs():
            threads.runAll()
            closed = self.log.close()
            threads.runAll()
        self.successResultOf(closed)
        self.assertEqual(self.directories(), ["events-0.0"])
        self.disk.flushError = None
        self.log = self.openLog()

    def test_removalFails(self) -> None:
        """What cannot be removed is left to the next start, which then forgets about it, and that is logged."""
        self.append(self.partition())
        self.clock.turn()

        def fail(*_: object) -> None:
            raise storageError(errno.EROFS)

        patch = self.patch(self.disk, "remove", fail)
        with capturedLogs() as events:
            self.log.deleteTopic("events")
            self.settle()
        patch.restore()
        self.assertEqual(([event["log_level"] for event in events], len(self.directories())), ([LogLevel.error], 1))
        self.reopenLog()
        self.settle()
        self.assertEqual((self.directories(), list(self.log._documents.tables["tombstones"])), ([], []))

    def test_deleteAnnounced(self) -> None:
        """A listener hears of the partitions of a deleted topic."""
        told: list[list[Partition]] = []
        topic = self.log.createTopic("events", 2, {})
        self.log.subscribe(lambda partitions: told.append(list(partitions)))
        self.log.deleteTopic("events")
        self.assertEqual(told, [])
        self.clock.turn()
        self.assertEqual(told, [list(topic.partitions)])

    def test_listenerChangesTopics(self) -> None:
        """A listener that hears of a deletion may make a topic of the same name, and delete it again."""
        told: list[str] = []

        def listen(partitions: Sequence[Partition]) -> None:
            told.extend(partition.topicName for partition in partitions)
            if len(told) < 3:
                self.log.createTopic("events", 1, {})
                self.log.deleteTopic("events")

        self.log.subscribe(listen)
        self.partition()
        self.log.deleteTopic("events")
        self.settle()
        self.assertEqual((told, dict(self.log.topics)), (["events"] * 3, {}))

    def test_failure(self) -> None:
        """If the storage fails, topics are what they were."""
        self.log.createTopic("events", 1, {})
        before = outline(self.log.topic("events"))
        self.failCommits(storageError(errno.ENOSPC))
        self.assertRaises(LogFailed, self.log.createTopic, "other", 1, {})
        self.assertRaises(LogFailed, self.log.addPartitions, "events", 2)
        self.assertRaises(LogFailed, self.log.setTopicConfigs, "events", {"a": "b"})
        self.assertRaises(LogFailed, self.log.deleteTopic, "events")
        self.failCommits(None)
        for _ in range(2):
            self.assertEqual([outline(topic) for topic in self.log.topics.values()], [before])
            self.assertFalse(self.log.topic("events").partitions[0].deleted)
            self.reopenLog()


class DirectoryNameTests(SynchronousTestCase):
    """The names of the directories of partitions."""

    def test_number(self) -> None:
        """The number is found in the name, whatever the topic is called; other names have none."""
        for topicName in ("events", "a.b-1.2", "...", "x" * 249, "7"):
            self.assertEqual(numberIn(directoryName(topicName, 3, 12)), 12)
            self.assertLessEqual(len(directoryName(topicName, 10_000, 2**32)), 255)
        for name in ("events", "lost+found", "events-0.", "events-0.x", "", "a-0.20261122235118", "a-0.\u0661"):
            self.assertIsNone(numberIn(name))
