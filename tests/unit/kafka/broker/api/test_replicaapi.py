"""Tests for L{admission.kafka.broker.api.replicaapi}."""

from __future__ import annotations

import os
import shutil

from kio.schema.errors import ErrorCode

from tests.kit.brokerfixture import BrokerTestCase, codes


class ReplicaTests(BrokerTestCase):
    """Tools ask about replicas, and are told of the one that each partition has."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.client = self.connect()
        self.batch = self.store(self.events.partitions[1], b"1")

    def test_electLeaders(self) -> None:
        """Every partition has its leader."""
        asked = [
            {"topic": "events", "partitions": [0, 1, 2, 0]},
            {"topic": "none", "partitions": [0]},
            {"topic": "events", "partitions": [0]},
        ]
        for apiVersion in (0, 1, 2):
            answer = self.client.ask("ElectLeaders", apiVersion, election_type=0, topic_partitions=asked)
            events, none = answer.replica_election_results
            self.assertEqual((events.topic, none.topic), ("events", "none"))
            self.assertEqual([each.partition_id for each in events.partition_result], [0, 1, 2])
            self.assertEqual(
                codes(events.partition_result),
                [*[ErrorCode.election_not_needed] * 2, ErrorCode.unknown_topic_or_partition],
            )
            self.assertEqual(codes(none.partition_result), [ErrorCode.unknown_topic_or_partition])
            everything = self.client.ask("ElectLeaders", apiVersion, election_type=0, topic_partitions=None)
            self.assertEqual(everything.replica_election_results, ())

    def test_listPartitionReassignments(self) -> None:
        """Nothing moves."""
        answer = self.client.ask("ListPartitionReassignments", 0, topics=None)
        self.assertEqual((answer.error_code, answer.topics), (ErrorCode.none, ()))

    def test_describeLogDirs(self) -> None:
        """There is one directory, with the sizes of all partitions or of those that are asked for, and of its disk."""
        some = [{"topic": "events", "partitions": [1, 1, 7, -1]}, {"topic": "none", "partitions": [0]}]
        for apiVersion in (1, 2, 3, 4):
            for asked, wanted in ((None, [(0, 0), (1, len(self.batch))]), (some, [(1, len(self.batch))]), ([], None)):
                answer = self.client.ask("DescribeLogDirs", apiVersion, topics=asked)
                (directory,) = answer.results
                self.assertEqual(
                    (directory.error_code, directory.log_dir), (ErrorCode.none, os.path.abspath(self.log.path))
                )
                if wanted is None:
                    self.assertEqual(directory.topics, ())
                else:
                    (topic,) = directory.topics
                    sizes = [(each.partition_index, each.partition_size) for each in topic.partitions]
                    self.assertEqual((topic.name, sizes), ("events", wanted))
        self.assertEqual(directory.total_bytes, shutil.disk_usage(self.log.path).total)
        self.assertGreater(directory.usable_bytes, 0)
