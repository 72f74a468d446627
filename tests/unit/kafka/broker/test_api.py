"""
Tests for L{admission.kafka.broker.broker} and L{admission.kafka.broker.api.metadataapi}, and
for what holds for all APIs.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from hypothesis import given
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from twisted.internet.address import IPv4Address, UNIXAddress

from admission.kafka.broker.api.refusals import reasonOf, repeated
from admission.kafka.kafkarequest import Address
from admission.kafka.wire.versions import API_VERSIONS, APIS, BY_KEY
from tests.kit.brokerfixture import (
    API_KEYS,
    POOL_BYTES,
    BrokerTestCase,
    batchOf,
    codes,
    fetchFields,
    produceFields,
    requestOf,
)
from tests.unit.kafka.wire.test_kio import entities, everyVersion, fewExamples

REQUESTS: dict[str, dict[str, Any]] = {
    "AlterClientQuotas": {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "alice"}], "ops": []}],
        "validate_only": True,
    },
    "ApiVersions": {"client_software_name": "test", "client_software_version": "1"},
    "CreatePartitions": {"topics": [{"name": "events", "count": 3, "assignments": None}], "validate_only": True},
    "CreateTopics": {
        "topics": [{"name": "fresh", "num_partitions": 1, "replication_factor": 1}],
        "validate_only": True,
    },
    "DeleteGroups": {"groups_names": []},
    "DescribeClientQuotas": {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
    "DescribeCluster": {"endpoint_type": 1},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": "events", "configuration_keys": None}]},
    "DescribeGroups": {"groups": []},
    "FindCoordinator": {"key": "group", "coordinator_keys": ["group"], "key_type": 0},
    "IncrementalAlterConfigs": {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "events",
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}],
            }
        ],
        "validate_only": True,
    },
    "InitProducerId": {"transactional_id": None},
    "ListGroups": {},
    "ListOffsets": {"topics": [{"name": "events", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    "Metadata": {"topics": [{"name": "events"}]},
    "OffsetCommit": {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "events", "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
    },
    "OffsetDelete": {
        "group_id": "readers",
        "topics": [{"name": "events", "partitions": [{"partition_index": 0}]}],
    },
    "OffsetFetch": {
        "group_id": "readers",
        "topics": [{"name": "events", "partition_indexes": [0]}],
        "groups": [{"group_id": "readers", "topics": None}],
    },
}
"""A request that succeeds, by API; fields of all versions together."""

OF_MEMBERS = {"Heartbeat", "JoinGroup", "LeaveGroup", "SyncGroup"}
"""What takes a group to succeed; see L{tests.unit.kafka.broker.groups.test_groupapi}."""

OF_LOGINS = {"SaslAuthenticate", "SaslHandshake"}
"""What takes users to succeed; see L{tests.unit.kafka.security.test_security}."""


def errorCodes(entity: Any) -> list[ErrorCode]:
    """
    Every error code in a response, at all depths.
    """
    if isinstance(entity, ErrorCode):
        return [entity]
    if isinstance(entity, tuple):
        return [code for each in entity for code in errorCodes(each)]
    if hasattr(entity, "__slots__") and hasattr(entity, "__version__"):
        return [code for name in entity.__slots__ for code in errorCodes(getattr(entity, name))]
    return []


class EveryVersionTests(BrokerTestCase):
    """
    What is advertised is served.
    """

    def test_answered(self) -> None:
        """
        Every served version of every API answers with what kio decodes, and without an error.
        """
        topic = self.topic("events")
        requests = {
            **REQUESTS,
            "DeleteTopics": {"topic_names": [], "topics": []},
            "Fetch": fetchFields(topic, 0),
            "Produce": produceFields("events", batchOf(b"1")),
        }
        self.assertEqual(set(requests) | OF_MEMBERS | OF_LOGINS, set(API_KEYS))
        client = self.connect()
        for api, apiVersion in everyVersion():
            if api.name in OF_MEMBERS | OF_LOGINS:
                continue
            answer = client.ask(api.name, apiVersion, **requests[api.name])
            self.assertEqual(set(errorCodes(answer)) - {ErrorCode.none}, set(), f"{api.name} v{apiVersion}: {answer}")

    def test_anythingIsAnsweredOrRefused(self) -> None:
        """
        Whatever a well-formed request asks for, it is answered with what kio decodes and nothing fails.
        """
        self.topic("events")
        for api, apiVersion in everyVersion():
            if api.name != "Produce":
                self._checkAnything(api.name, apiVersion)

    def _checkAnything(self, name: str, apiVersion: int) -> None:
        client = self.connect()

        @fewExamples
        @given(entities(load_request_schema(API_KEYS[name], apiVersion)))
        def check(entity: Any) -> None:
            client.sendBytes(client.frame(entity))
            # For fetches that wait.
            self.clock.advance(2**32)
            client.receive()

        check()
        client.disconnect()

    def test_elementCaps(self) -> None:
        """
        A request that would decode to too many elements closes its connection.
        """
        client = self.connect()
        count = BY_KEY[API_KEYS["Metadata"]].maxElements + 1
        client.send("Metadata", 4, topics=[{"name": "x"}] * count)
        self.assertRefused(client, f"topics announces {count} elements")

    def test_longNames(self) -> None:
        """
        The longest name there can be in a classic version does not make the answer about it too long.
        """
        name = "\x00" * 32767
        client = self.connect()
        topicNames = [{"name": name, "num_partitions": 1, "replication_factor": 1, "count": 1}]
        resources = [{"resource_type": 9, "resource_name": name, "configs": [{"name": name}]}]
        answers = [
            client.ask("CreateTopics", 4, topics=topicNames).topics[0],
            client.ask("CreatePartitions", 1, topics=topicNames).results[0],
            client.ask("DescribeConfigs", 3, resources=resources).results[0],
            client.ask("IncrementalAlterConfigs", 0, resources=resources).responses[0],
            client.ask("Produce", 8, **produceFields(name, batchOf(b"1"))).responses[0].partition_responses[0],
        ]
        self.assertNotIn(ErrorCode.none, codes(answers))
        self.assertFalse(client.isClosed)


class ReasonTests(BrokerTestCase):
    """
    What the APIs share in saying no.
    """

    def test_reasonOf(self) -> None:
        """
        A reason is told as it is, unless it is too long.
        """
        self.assertEqual(reasonOf(ValueError("no room")), "no room")
        self.assertEqual(reasonOf(ValueError("x" * 40_000)), "x" * 1000 + "...")

    def test_repeated(self) -> None:
        """
        What occurs twice is found, once.
        """
        self.assertEqual(repeated(iter("abcab")), {"a", "b"})


class BrokerTests(BrokerTestCase):
    """
    What L{Broker} knows.
    """

    properties = {"broker.id": "7", "fetch.max.bytes": "55MiB"}

    def test_nodeId(self) -> None:
        """
        The broker's number is configured.
        """
        self.assertEqual(self.broker.nodeId, 7)

    def test_largestResponse(self) -> None:
        """
        One response takes no more than a quarter of the pool, whatever C{fetch.max.bytes} says.
        """
        self.assertEqual(self.broker.largestResponseBytes, POOL_BYTES // 4)


class ApiVersionsTests(BrokerTestCase):
    """
    Clients are told what is served.
    """

    def test_table(self) -> None:
        """
        The whole table is told, in the first version and in the last.
        """
        expected = [(api.apiKey, api.advertisedMinVersion, api.maxVersion) for api in APIS]
        for apiVersion in (0, 4):
            answer = self.connect().ask("ApiVersions", apiVersion)
            told = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
            self.assertEqual(told, expected)

    def test_tooNew(self) -> None:
        """
        A client that asks in a version from the future is answered in version 0 and may ask again.
        """
        client = self.connect()
        frame = bytearray(client.frame(requestOf("ApiVersions", 4)))
        frame[6:8] = (99).to_bytes(2, "big")
        client.sendBytes(bytes(frame))
        answer = client.receive(load_response_schema(API_VERSIONS, 0))
        self.assertEqual(answer.error_code, ErrorCode.unsupported_version)
        self.assertEqual(len(answer.api_keys), len(APIS))
        self.assertEqual(client.ask("ApiVersions", 4).error_code, ErrorCode.none)


class MetadataTests(BrokerTestCase):
    """
    Metadata tells of the broker and of topics.
    """

    def test_broker(self) -> None:
        """
        The one broker is where the client has reached it, and controls the cluster.
        """
        answer = self.connect().ask("Metadata", 9, topics=[])
        (broker,) = answer.brokers
        self.assertEqual((broker.node_id, broker.host, broker.port, broker.rack), (1, "192.0.2.2", 9092, None))
        self.assertEqual((answer.cluster_id, answer.controller_id), ("test-cluster", 1))

    def test_advertised(self) -> None:
        """
        An advertised address goes before the one that the client has reached.
        """
        client = self.connect()
        client.protocol.advertised = Address("broker.example", 19092)
        (broker,) = client.ask("Metadata", 9, topics=[]).brokers
        self.assertEqual((broker.host, broker.port), ("broker.example", 19092))

    def test_hostless(self) -> None:
        """
        A client that came through a UNIX socket is told something, too.
        """
        client = self.connect()
        client.transport.getHost = lambda: UNIXAddress("/tmp/broker")  # type: ignore[method-assign]
        (broker,) = client.ask("Metadata", 9, topics=[]).brokers
        self.assertEqual((broker.host, broker.port), ("localhost", -1))

    def test_partitions(self) -> None:
        """
        Each partition is led by the broker, which is its only replica.
        """
        topic = self.topic("events", 3)
        (answer,) = self.connect().ask("Metadata", 12, topics=[{"name": "events"}]).topics
        self.assertEqual((answer.error_code, answer.name, answer.topic_id), (0, "events", topic.topicId))
        self.assertEqual([each.partition_index for each in answer.partitions], [0, 1, 2])
        for each in answer.partitions:
            self.assertEqual((each.leader_id, each.leader_epoch), (1, 0))
            self.assertEqual((each.replica_nodes, each.isr_nodes, each.offline_replicas), ((1,), (1,), ()))
            self.assertEqual(each.error_code, ErrorCode.none)

    def test_allOrNone(self) -> None:
        """
        Version 0 asks for all topics with an empty list; later an empty list is none and null is all.
        """
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
        """
        A topic that is asked for is created, with C{num.partitions} partitions.
        """
        for apiVersion in (0, 3, 4, 13):
            name = f"fresh-{apiVersion}"
            (answer,) = self.connect().ask("Metadata", apiVersion, topics=[{"name": name}]).topics
            self.assertEqual((answer.error_code, answer.name, len(answer.partitions)), (0, name, 1))
            self.assertIn(name, self.log.topics)

    def test_clientForbidsCreation(self) -> None:
        """
        A client that does not want topics created hears that there is none.
        """
        answer = self.connect().ask("Metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=False)
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_or_partition])
        self.assertEqual(self.log.topics, {})

    def test_invalidName(self) -> None:
        """
        A topic that cannot be created because of its name is refused by that name.
        """
        (answer,) = self.connect().ask("Metadata", 12, topics=[{"name": "no spaces"}]).topics
        self.assertEqual((answer.error_code, answer.name), (ErrorCode.invalid_topic_exception, "no spaces"))

    def test_byId(self) -> None:
        """
        Topics are found by id, and an id that is not there is answered with its own error.
        """
        topic, unknown = self.topic("events"), uuid4()
        asked = [{"name": None, "topic_id": topic.topicId}, {"name": None, "topic_id": unknown}]
        for apiVersion, nameless in ((10, ""), (12, None), (13, None)):
            # kio's versions 10 and 11 know null names although the protocol does not; no client sends them.
            found, missing = self.connect().ask("Metadata", apiVersion, topics=asked).topics
            self.assertEqual((found.error_code, found.name, found.topic_id), (0, "events", topic.topicId))
            self.assertEqual(
                (missing.error_code, missing.name, missing.topic_id), (ErrorCode.unknown_topic_id, nameless, unknown)
            )

    def test_neitherNameNorId(self) -> None:
        """
        A topic without a name and with the id of all zeros is none.
        """
        answer = self.connect().ask("Metadata", 12, topics=[{"name": None, "topic_id": None}])
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_id])

    def test_once(self) -> None:
        """
        A topic that a request repeats is described once, or small requests would have huge responses.
        """
        self.topic("events", 3)
        asked = [{"name": "events", "topic_id": UUID(int=number)} for number in range(1000)]
        self.assertEqual(len(self.connect().ask("Metadata", 12, topics=asked).topics), 1)

    def test_failingLog(self) -> None:
        """
        Where the log cannot create the topic, its error is told.
        """
        self.successResultOf(self.log.close())
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "x"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.kafka_storage_error])


class NoCreationTests(BrokerTestCase):
    """
    C{auto.create.topics.enable=false}.
    """

    properties = {"auto.create.topics.enable": "false"}

    def test_unknown(self) -> None:
        """
        Nothing is created, whatever the client says.
        """
        answer = self.connect().ask("Metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=True)
        self.assertEqual(codes(answer.topics), [ErrorCode.unknown_topic_or_partition])
        self.assertEqual(self.log.topics, {})


class CreationLimitTests(BrokerTestCase):
    """
    Automatic creation obeys the limits.
    """

    properties = {"max.topics": "2", "num.partitions": "2", "max.partitions": "3"}

    def test_topics(self) -> None:
        """
        There are no more topics than C{max.topics}.
        """
        self.topic("a")
        self.topic("b")
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "c"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.policy_violation])

    def test_partitions(self) -> None:
        """
        There are no more partitions than C{max.partitions}.
        """
        answer = self.connect().ask("Metadata", 9, topics=[{"name": "a"}, {"name": "b"}])
        self.assertEqual(codes(answer.topics), [ErrorCode.none, ErrorCode.invalid_partitions])


class DescribeClusterTests(BrokerTestCase):
    """
    The cluster is one broker.
    """

    def test_brokers(self) -> None:
        """
        The one broker is described.
        """
        answer = self.connect().ask("DescribeCluster", 1, endpoint_type=1)
        (broker,) = answer.brokers
        self.assertEqual((broker.broker_id, broker.host, broker.port), (1, "192.0.2.2", 9092))
        self.assertEqual((answer.cluster_id, answer.controller_id), ("test-cluster", 1))
        # Not asked for.
        self.assertEqual(answer.cluster_authorized_operations, -(2**31))

    def test_controllers(self) -> None:
        """
        There are no controllers to be described, and no endpoints of other types.
        """
        client = self.connect()
        answers = [client.ask("DescribeCluster", 2, endpoint_type=each) for each in (2, 3)]
        self.assertEqual(codes(answers), [ErrorCode.mismatched_endpoint_type, ErrorCode.unsupported_endpoint_type])
        self.assertEqual([answer.brokers for answer in answers], [(), ()])


class FindCoordinatorTests(BrokerTestCase):
    """
    The broker coordinates all groups, and nothing else.
    """

    def test_single(self) -> None:
        """
        Until version 3 one group is asked for.
        """
        for apiVersion in (0, 1, 3):
            answer = self.connect().ask("FindCoordinator", apiVersion, key="group", key_type=0)
            self.assertEqual((answer.error_code, answer.node_id, answer.host, answer.port), (0, 1, "192.0.2.2", 9092))

    def test_several(self) -> None:
        """
        From version 4 on several are, and each is answered by its name.
        """
        for apiVersion in (4, 6):
            answer = self.connect().ask("FindCoordinator", apiVersion, key_type=0, coordinator_keys=["a", "b"])
            found = [(each.key, each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators]
            self.assertEqual(found, [("a", 0, 1, "192.0.2.2", 9092), ("b", 0, 1, "192.0.2.2", 9092)])

    def test_otherKeyTypes(self) -> None:
        """
        There are no transactions and no share groups to coordinate.
        """
        client = self.connect()
        single = client.ask("FindCoordinator", 1, key="t", key_type=1)
        self.assertEqual((single.error_code, single.node_id), (ErrorCode.invalid_request, -1))
        for keyType in (1, 2):
            answer = client.ask("FindCoordinator", 6, key_type=keyType, coordinator_keys=["t"])
            self.assertEqual(codes(answer.coordinators), [ErrorCode.invalid_request])
            self.assertEqual(answer.coordinators[0].node_id, -1)


class AddressTests(BrokerTestCase):
    """
    Each client is told the address that it can use.
    """

    def test_perConnection(self) -> None:
        """
        Two clients that reached the broker by different addresses are told different ones.
        """
        first, second = self.connect(), self.connect()
        second.transport.getHost = lambda: IPv4Address("TCP", "198.51.100.7", 9094)  # type: ignore[method-assign]
        hosts = [client.ask("Metadata", 9, topics=[]).brokers[0].host for client in (first, second)]
        self.assertEqual(hosts, ["192.0.2.2", "198.51.100.7"])
