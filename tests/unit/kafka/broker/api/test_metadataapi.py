"""Tests for L{admission.kafka.broker.api.metadataapi}."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from twisted.internet.address import UNIXAddress
from twisted.logger import LogLevel, formatEvent

from admission.kafka.serving.kafkarequest import Address
from admission.kafka.wire.versions import API_VERSIONS, APIS
from tests.kit.brokerfixture import BrokerTestCase, codes, requestOf


class ApiVersionsTests(BrokerTestCase):
    """Clients are told what is served."""

    def test_table(self) -> None:
        """The whole table is told, in the first version and in the last."""
        expected = [(api.apiKey, api.advertisedMinVersion, api.maxVersion) for api in APIS]
        for apiVersion in (0, 4):
            answer = self.connect().ask("ApiVersions", apiVersion)
            told = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
            self.assertEqual(told, expected)

    def test_tooNew(self) -> None:
        """A client that asks in a version from the future is answered in version 0 and may ask again."""
        client = self.connect()
        frame = bytearray(client.frame(requestOf("ApiVersions", 4)))
        frame[6:8] = (99).to_bytes(2, "big")
        client.sendBytes(bytes(frame))
        answer = client.receive(load_response_schema(API_VERSIONS, 0))
        self.assertEqual(answer.error_code, ErrorCode.unsupported_version)
        self.assertEqual(len(answer.api_keys), len(APIS))
        self.assertEqual(client.ask("ApiVersions", 4).error_code, ErrorCode.none)


class MetadataTests(BrokerTestCase):
    """Metadata tells of the broker and of topics."""

    def test_broker(self) -> None:
        """The one broker is where the client has reached it, and controls the cluster."""
        answer = self.connect().ask("Metadata", 9, topics=[])
        (broker,) = answer.brokers
        self.assertEqual((broker.node_id, broker.host, broker.port, broker.rack), (1, "192.0.2.2", 9092, None))
        self.assertEqual((answer.cluster_id, answer.controller_id), (self.log.clusterId, 1))

    def test_advertised(self) -> None:
        """An advertised address goes before the one that the client has reached."""
        client = self.connect()
        client.protocol.advertised = Address("broker.example", 19092)
        (broker,) = client.ask("Metadata", 9, topics=[]).brokers
        self.assertEqual((broker.host, broker.port), ("broker.example", 19092))

    def test_hostless(self) -> None:
        """A client that came through a UNIX socket is told something, too."""
        client = self.connect()
        client.transport.getHost = lambda: UNIXAddress("/tmp/broker")  # type: ignore[method-assign]
        (broker,) = client.ask("Metadata", 9, topics=[]).brokers
        self.assertEqual((broker.host, broker.port), ("localhost", -1))

    def test_partitions(self) -> None:
        """Each partition is led by the broker, which is its only replica."""
        topic = self.topic("events", 3)
        (answer,) = self.connect().ask("Metadata", 12, topics=[{"name": "events"}]).topics
        self.assertEqual((answer.error_code, answer.name, answer.topic_id), (0, "events", topic.topicId))
        self.assertEqual([each.partition_index for each in answer.partitions], [0, 1, 2])
        for each in answer.partitions:
            self.assertEqual((each.leader_id, each.leader_epoch), (1, 0))
            self.assertEqual((each.replica_nodes, each.isr_nodes, each.offline_replicas), ((1,), (1,), ()))
            self.assertEqual(each.error_code, ErrorCode.none)

    def test_allOrNone(self) -> None:
        """Version 0 asks for all topics with an empty list; later an empty list is none and null is all."""
        self.topic("a")
        self.topic("b")
        client = self.connect()

        def named(apiVersion: int, topics: Any) -> set[str]:
            return {topic.name for topic in client.ask("Metadata", apiVersion, topics=topics).topics}

        self.assertEqual(named(0, []), {"a", "b"})
        for apiVersion in (1, 9, 13):
            self.assertEqual(named(apiVersion, []), set())
            self.assertEqual(named(apiVersion, None), {"a", "b"})

    def test_creates(self) -> None:
        """A topic that is asked for is created, with C{num.partitions} partitions."""
        for apiVersion in (0, 3, 4, 13):
            name = f"fresh-{apiVersion}"
            (answer,) = self.connect().ask("Metadata", apiVersion, topics=[{"name": name}]).topics
            self.assertEqual((answer.error_code, answer.name, len(answer.partitions)), (0, name, 1))
            self.assertIn(name, self.log.topics)

    def test_clientForbidsCreation(self) -> None:
        """A client that does not want topics created hears that there is none."""
        answer = self.connect().ask("Metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=False)
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_or_partition])
        self.assertEqual(self.log.topics, {})

    def test_invalidName(self) -> None:
        """A topic that cannot be created because of its name is refused by that name."""
        (answer,) = self.connect().ask("Metadata", 12, topics=[{"name": "no spaces"}]).topics
        self.assertEqual((answer.error_code, answer.name), (ErrorCode.invalid_topic_exception, "no spaces"))

    def test_byId(self) -> None:
        """Topics are found by id, and an id that is not there is answered with its own error."""
        topic, unknown = self.topic("events"), uuid4()
        # Java's clients send an empty name.  kio's versions 10 and 11 know null names although the protocol does not;
        # no client sends them.
        for apiVersion, name, nameless in ((10, None, ""), (12, None, None), (12, "", None), (13, "", None)):
            asked = [{"name": name, "topic_id": topic.topicId}, {"name": name, "topic_id": unknown}]
            found, missing = self.connect().ask("Metadata", apiVersion, topics=asked).topics
            self.assertEqual((found.error_code, found.name, found.topic_id), (0, "events", topic.topicId))
            self.assertEqual(
                (missing.error_code, missing.name, missing.topic_id), (ErrorCode.unknown_topic_id, nameless, unknown)
            )

    def test_neitherNameNorId(self) -> None:
        """A topic without a name and with the id of all zeros is none."""
        answer = self.connect().ask("Metadata", 12, topics=[{"name": None, "topic_id": None}])
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_id])

    def test_emptyName(self) -> None:
        """An empty name without an id is no name for a topic, in all versions, with and without ids."""
        for apiVersion in range(14):
            (answer,) = self.connect().ask("Metadata", apiVersion, topics=[{"name": ""}]).topics
            self.assertEqual((answer.error_code, answer.name), (ErrorCode.invalid_topic_exception, ""))

    def test_once(self) -> None:
        """A topic that a request repeats is described once, or small requests would have huge responses."""
        self.topic("events", 3)
        asked = [{"name": "events", "topic_id": UUID(int=number)} for number in range(1000)]
        self.assertEqual(len(self.connect().ask("Metadata", 12, topics=asked).topics), 1)

    def test_failingLog(self) -> None:
        """Where the log cannot create the topic, its error is told."""
        self.successResultOf(self.log.close())
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "x"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.kafka_storage_error])


class NoCreationTests(BrokerTestCase):
    """C{auto.create.topics.enable=false}."""

    properties = {"auto.create.topics.enable": "false"}

    def test_unknown(self) -> None:
        """Nothing is created, whatever the client says."""
        answer = self.connect().ask("Metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=True)
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_or_partition])
        self.assertEqual(self.log.topics, {})


class CreationLimitTests(BrokerTestCase):
    """Automatic creation obeys the limits."""

    properties = {"max.topics": "3", "num.partitions": "2", "max.partitions": "3"}

    def test_topics(self) -> None:
        """There are no more topics than C{max.topics}."""
        for name in ("a", "b", "d"):
            self.topic(name)
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "c"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.policy_violation])

    def test_partitions(self) -> None:
        """There are no more partitions than C{max.partitions}."""
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "a"}, {"name": "b"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.none, ErrorCode.invalid_partitions])


class CreationShareTests(BrokerTestCase):
    """One client leaves topics and partitions to others."""

    properties = {"max.topics": "5", "num.partitions": "10", "max.partitions": "60"}

    def created(self, holder: str, *names: str) -> list[ErrorCode]:
        """Ask about topics."""
        client = self.connect()
        client.protocol.holder = holder
        return codes(client.ask("Metadata", 9, topics=[{"name": name} for name in names]).topics)

    def test_topics(self) -> None:
        """
        A client that asks about many topics has no more than its share created; the log says so, and CreateTopics is
        free.
        """
        refused = ErrorCode.policy_violation
        self.assertEqual(self.created("a", *"1234"), [ErrorCode.none] * 3 + [refused])
        self.assertEqual(self.created("b", "4"), [ErrorCode.none])
        said = [formatEvent(event) for event in self.logged if event["log_level"] is LogLevel.warn]
        self.assertEqual(len([each for each in said if "more of max.topics" in (each or "")]), 1)
        topic = {"name": "5", "num_partitions": 1, "replication_factor": 1}
        self.assertEqual(codes(self.connect().ask("CreateTopics", 5, topics=[topic]).topics), [ErrorCode.none])

    def test_partitions(self) -> None:
        """The same holds for their partitions."""
        self.topic("large", 30)
        self.assertEqual(self.created("a", "1", "2"), [ErrorCode.none, ErrorCode.policy_violation])
        self.assertEqual(self.created("b", "2"), [ErrorCode.none])


class DescribeClusterTests(BrokerTestCase):
    """The cluster is one broker."""

    def test_brokers(self) -> None:
        """The one broker is described."""
        answer = self.connect().ask("DescribeCluster", 1, endpoint_type=1)
        (broker,) = answer.brokers
        self.assertEqual((broker.broker_id, broker.host, broker.port), (1, "192.0.2.2", 9092))
        self.assertEqual((answer.cluster_id, answer.controller_id), (self.log.clusterId, 1))
        # Not asked for.
        self.assertEqual(answer.cluster_authorized_operations, -(2**31))

    def test_controllers(self) -> None:
        """There are no controllers to be described, and no endpoints of other types."""
        client = self.connect()
        answers = [client.ask("DescribeCluster", 2, endpoint_type=each) for each in (2, 3)]
        self.assertEqual(codes(answers), [ErrorCode.mismatched_endpoint_type, ErrorCode.unsupported_endpoint_type])
        self.assertEqual([answer.brokers for answer in answers], [(), ()])


class FindCoordinatorTests(BrokerTestCase):
    """The broker coordinates all groups, and nothing else."""

    def test_single(self) -> None:
        """Until version 3 one group is asked for."""
        for apiVersion in (0, 1, 3):
            answer = self.connect().ask("FindCoordinator", apiVersion, key="group", key_type=0)
            self.assertEqual((answer.error_code, answer.node_id, answer.host, answer.port), (0, 1, "192.0.2.2", 9092))

    def test_several(self) -> None:
        """From version 4 on several are, and each is answered by its name."""
        for apiVersion in (4, 6):
            answer = self.connect().ask("FindCoordinator", apiVersion, key_type=0, coordinator_keys=["a", "b"])
            found = [(each.key, each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators]
            self.assertEqual(found, [("a", 0, 1, "192.0.2.2", 9092), ("b", 0, 1, "192.0.2.2", 9092)])

    def test_otherKeyTypes(self) -> None:
        """
        There are no transactions and no share groups to coordinate.  Clients ask again after some errors; what is
        said of a transaction ends it.
        """
        client = self.connect()
        ended = ErrorCode.transactional_id_authorization_failed
        single = client.ask("FindCoordinator", 1, key="t", key_type=1)
        self.assertEqual((single.error_code, single.node_id), (ended, -1))
        for keyType, errorCode in ((1, ended), (2, ErrorCode.invalid_request)):
            answer = client.ask("FindCoordinator", 6, key_type=keyType, coordinator_keys=["t"])
            self.assertEqual(codes(answer.coordinators), [errorCode])
            self.assertEqual(answer.coordinators[0].node_id, -1)
            self.assertIn("no transactions", answer.coordinators[0].error_message)


class DescribeTopicPartitionsTests(BrokerTestCase):
    """DescribeTopicPartitions tells of topics page by page."""

    def pages(self, limit: int, *names: str) -> list[list[tuple[str, list[int]]]]:
        """
        Follow the cursor to the end.

        @return: for each page its topics with the indexes of their partitions.
        """
        pages, cursor = [], None
        while True:
            answer = self.connect().ask(
                "DescribeTopicPartitions",
                0,
                topics=[{"name": name} for name in names],
                response_partition_limit=limit,
                cursor=cursor,
            )
            pages.append([(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics])
            if answer.next_cursor is None:
                return pages
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }

    def test_pages(self) -> None:
        """A page has no more partitions than wanted, but one at least; topics come by name, and once."""
        for name, partitionCount in (("b", 3), ("a", 2), ("c", 1)):
            self.topic(name, partitionCount)
        self.assertEqual(self.pages(2000), [[("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]])
        self.assertEqual(self.pages(2), [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]])
        self.assertEqual(len(self.pages(0)), 6)
        self.assertEqual(self.pages(9, "c", "none", "a", "c"), [[("a", [0, 1]), ("c", [0]), ("none", [])]])

    def test_described(self) -> None:
        """A partition is described as in Metadata; a topic that is not there has an error."""
        topic = self.topic("events")
        asked = [{"name": "events"}, {"name": "none"}]
        answer = self.connect().ask("DescribeTopicPartitions", 0, topics=asked, response_partition_limit=9, cursor=None)
        self.assertEqual(codes(answer.topics), [ErrorCode.none, ErrorCode.unknown_topic_or_partition])
        events = answer.topics[0]
        (partition,) = events.partitions
        self.assertEqual((events.topic_id, partition.leader_id, partition.isr_nodes), (topic.topicId, 1, (1,)))
        # Java's clients fail at null.
        self.assertEqual((partition.eligible_leader_replicas, partition.last_known_elr), ((), ()))


class AuthorizedOperationsTests(BrokerTestCase):
    """Clients that ask are told what they may do."""

    properties = {"super.users": "User:root"}

    def test_operations(self) -> None:
        """Others than super users may not create, change or delete; a client that does not ask is told nothing."""
        self.topic("events")
        everything, nothing = [], -(2**31)
        for principal in ("root", "alice"):
            client = self.connect()
            client.protocol.principal = principal
            told = []
            for isAsked in (True, False):
                metadata = client.ask(
                    "Metadata",
                    8,
                    topics=[{"name": "events"}],
                    include_topic_authorized_operations=isAsked,
                    include_cluster_authorized_operations=isAsked,
                )
                cluster = client.ask("DescribeCluster", 1, include_cluster_authorized_operations=isAsked)
                told.append(
                    (
                        metadata.topics[0].topic_authorized_operations,
                        metadata.cluster_authorized_operations,
                        cluster.cluster_authorized_operations,
                    )
                )
            self.assertEqual(told[1], (nothing,) * 3)
            everything.append(told[0])
        root, alice = everything
        # As bits: READ is 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8.
        self.assertEqual([bits >> 3 & 0b111111 for bits in (root[0], alice[0])], [0b111111, 0b100011])
        for rights, others in zip(root, alice, strict=True):
            self.assertEqual(others & ~rights, 0)
            self.assertNotEqual(others, rights)
        self.assertEqual(root[1], root[2])
