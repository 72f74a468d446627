"""Tests for L{admission.kafka.broker.servedapis}: what holds for all APIs."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from admission.kafka.broker.servedapis import SERVED
from admission.kafka.wire.versions import BY_KEY
from tests.kit.brokerfixture import API_KEYS, BrokerTestCase, batchOf, codes, fetchFields, produceFields
from tests.kit.kioentities import entities, everyVersion, fewExamples

REQUESTS: dict[str, dict[str, Any]] = {
    "AlterClientQuotas": {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "alice"}], "ops": []}],
        "validate_only": True,
    },
    "AlterConfigs": {
        "resources": [
            {"resource_type": 2, "resource_name": "events", "configs": [{"name": "retention.ms", "value": "1000"}]}
        ],
        "validate_only": True,
    },
    "ApiVersions": {"client_software_name": "test", "client_software_version": "1"},
    "CreatePartitions": {"topics": [{"name": "events", "count": 3, "assignments": None}], "validate_only": True},
    "CreateTopics": {
        "topics": [{"name": "fresh", "num_partitions": 1, "replication_factor": 1}],
        "validate_only": True,
    },
    "DeleteGroups": {"groups_names": []},
    "DeleteRecords": {"topics": [{"name": "events", "partitions": [{"partition_index": 0, "offset": 0}]}]},
    "DescribeClientQuotas": {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
    "DescribeCluster": {"endpoint_type": 1},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": "events", "configuration_keys": None}]},
    "DescribeGroups": {"groups": []},
    "DescribeLogDirs": {"topics": None},
    "DescribeProducers": {"topics": [{"name": "events", "partition_indexes": [0]}]},
    "AlterUserScramCredentials": {"deletions": [], "upsertions": []},
    "DescribeUserScramCredentials": {"users": None},
    "DescribeTopicPartitions": {"topics": [{"name": "events"}], "response_partition_limit": 1, "cursor": None},
    "ElectLeaders": {"election_type": 0, "topic_partitions": None},
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
    "ListConfigResources": {},
    "ListGroups": {},
    "ListOffsets": {"topics": [{"name": "events", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    "ListPartitionReassignments": {"topics": None},
    "ListTransactions": {},
    "Metadata": {"topics": [{"name": "events"}]},
    "OffsetCommit": {
        "group_id": "readers",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "events", "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
    },
    "OffsetDelete": {"group_id": "readers", "topics": [{"name": "events", "partitions": [{"partition_index": 0}]}]},
    "OffsetFetch": {
        "group_id": "readers",
        "topics": [{"name": "events", "partition_indexes": [0]}],
        "groups": [{"group_id": "readers", "topics": None}],
    },
    "OffsetForLeaderEpoch": {"topics": [{"topic": "events", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
}
"""A request that succeeds, by API; fields of all versions together."""

OF_MEMBERS = {"Heartbeat", "JoinGroup", "LeaveGroup", "SyncGroup"}
"""What takes a group to succeed; see L{tests.unit.kafka.broker.api.test_groupapi}."""

WITHOUT_SUCCESS = {"DescribeAcls"}
"""What never succeeds; see L{tests.unit.kafka.broker.api.test_authorization}."""

OF_LOGINS = {"SaslAuthenticate", "SaslHandshake"}
"""What takes users to succeed; see L{tests.unit.kafka.security.test_security}."""


def errorCodes(entity: Any) -> list[ErrorCode]:
    """Every error code in a response, at all depths."""
    if isinstance(entity, ErrorCode):
        return [entity]
    if isinstance(entity, tuple):
        return [code for each in entity for code in errorCodes(each)]
    if hasattr(entity, "__slots__") and hasattr(entity, "__version__"):
        return [code for name in entity.__slots__ for code in errorCodes(getattr(entity, name))]
    return []


class EveryVersionTests(BrokerTestCase):
    """What is advertised is served."""

    def test_answered(self) -> None:
        """Every served version of every API answers with what kio decodes, and without an error."""
        topic = self.topic("events")
        requests = {
            **REQUESTS,
            "DeleteTopics": {"topic_names": [], "topics": []},
            "Fetch": fetchFields(topic, 0),
            "Produce": produceFields("events", batchOf(b"1")),
        }
        self.assertEqual(set(requests) | OF_MEMBERS | OF_LOGINS | WITHOUT_SUCCESS, set(API_KEYS))
        client = self.connect()
        for api, apiVersion in everyVersion():
            if api.name in OF_MEMBERS | OF_LOGINS | WITHOUT_SUCCESS:
                continue
            answer = client.ask(api.name, apiVersion, **requests[api.name])
            self.assertEqual(set(errorCodes(answer)) - {ErrorCode.none}, set(), f"{api.name} v{apiVersion}: {answer}")

    def test_anythingIsAnsweredOrRefused(self) -> None:
        """Whatever a well-formed request asks for, it is answered with what kio decodes and nothing fails."""
        self.topic("events")
        for api, apiVersion in everyVersion():
            if api.name != "Produce":
                self._checkAnything(api.name, apiVersion)

    def _checkAnything(self, name: str, apiVersion: int) -> None:
        client = self.connect()

        @settings(fewExamples, max_examples=5)
        @given(entities(load_request_schema(API_KEYS[name], apiVersion)))
        def check(entity: Any) -> None:
            client.sendBytes(client.frame(entity))
            # For fetches that wait.
            self.clock.advance(2**32)
            client.receive()

        check()
        client.disconnect()

    def test_elementCaps(self) -> None:
        """A request that would decode to too many elements closes its connection."""
        client = self.connect()
        count = BY_KEY[API_KEYS["Metadata"]].maxElements + 1
        client.send("Metadata", 4, topics=[{"name": "x"}] * count)
        self.assertRefused(client, f"topics announces {count} elements")

    def test_longNames(self) -> None:
        """The longest name there can be in a classic version does not make the answer about it too long."""
        name = "\x00" * 32767
        client = self.connect()
        topicNames = [{"name": name, "num_partitions": 1, "replication_factor": 1, "count": 1}]
        resources = [{"resource_type": 9, "resource_name": name, "configs": [{"name": name}]}]
        answers = [
            client.ask("Metadata", 1, topics=topicNames).topics[0],
            client.ask("CreateTopics", 4, topics=topicNames).topics[0],
            client.ask("DeleteTopics", 3, topic_names=[name]).responses[0],
            client.ask("CreatePartitions", 1, topics=topicNames).results[0],
            client.ask("DescribeConfigs", 3, resources=resources).results[0],
            client.ask("IncrementalAlterConfigs", 0, resources=resources).responses[0],
            client.ask("Produce", 8, **produceFields(name, batchOf(b"1"))).responses[0].partition_responses[0],
        ]
        self.assertNotIn(ErrorCode.none, codes(answers))
        client.ask("FindCoordinator", 2, key=name)
        self.assertFalse(client.isClosed)

    def test_documented(self) -> None:
        """The docstring of each module names the APIs that it serves."""
        for name, api in SERVED.items():
            documentation = sys.modules[api.serve.__module__].__doc__ or ""
            self.assertRegex(documentation, rf"\b{name}\b")
