"""Tests for L{admission.kafka.broker.api.authorization}, and for what only super users may do."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from admission.control import AdmissionControl
from admission.interfaces import QuotaEntity
from admission.kafka.broker.servedapis import SERVED
from admission.kafka.serving.quotalimits import QuotaLimits
from admission.quotas.limits import CLIENT_KINDS, LimitTable
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit.brokerfixture import BrokerTestCase, Client, codes
from tests.kit.kioentities import everyVersion
from tests.unit.kafka.broker.test_servedapis import REQUESTS, errorCodes
from tests.unit.kafka.serving.test_quotalimits import TablePolicy

RATE = "producer_byte_rate"

OF_SUPER_USERS = {
    "AlterClientQuotas": ErrorCode.cluster_authorization_failed,
    "AlterConfigs": ErrorCode.topic_authorization_failed,
    "AlterUserScramCredentials": ErrorCode.cluster_authorization_failed,
    "DescribeUserScramCredentials": ErrorCode.cluster_authorization_failed,
    "CreatePartitions": ErrorCode.topic_authorization_failed,
    "CreateTopics": ErrorCode.topic_authorization_failed,
    "DeleteGroups": ErrorCode.group_authorization_failed,
    "DeleteRecords": ErrorCode.topic_authorization_failed,
    "DeleteTopics": ErrorCode.topic_authorization_failed,
    "DescribeLogDirs": ErrorCode.cluster_authorization_failed,
    "IncrementalAlterConfigs": ErrorCode.topic_authorization_failed,
    "OffsetDelete": ErrorCode.group_authorization_failed,
}
"""What only super users may do, with the error that others get."""

OF_EVERYBODY = {
    *("ApiVersions", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster", "DescribeConfigs"),
    *("DescribeGroups", "DescribeProducers", "DescribeTopicPartitions", "ElectLeaders", "Fetch"),
    *("FindCoordinator", "Heartbeat", "InitProducerId", "JoinGroup", "LeaveGroup", "ListConfigResources"),
    *("ListGroups", "ListOffsets", "ListPartitionReassignments", "ListTransactions", "Metadata"),
    *("OffsetCommit", "OffsetFetch", "OffsetForLeaderEpoch", "SyncGroup"),
}
"""What reads, or changes only what a client brings along itself."""

ENTITY = [{"entity_type": "user", "entity_name": "alice"}]
ALTERATION: dict[str, Any] = {"entries": [{"entity": ENTITY, "ops": [{"key": RATE, "value": 5.0, "remove": False}]}]}
CONFIGS = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
CHANGES: dict[str, dict[str, Any]] = {
    **REQUESTS,
    "AlterClientQuotas": ALTERATION,
    "AlterUserScramCredentials": {"deletions": [{"name": "bob", "mechanism": 1}], "upsertions": []},
    "CreatePartitions": {"topics": [{"name": "events", "count": 3, "assignments": None}]},
    "CreateTopics": {"topics": [{"name": "fresh", "num_partitions": 1, "replication_factor": 1}]},
    "DeleteGroups": {"groups_names": ["readers"]},
    "DeleteTopics": {"topic_names": ["events"], "topics": [{"name": "events", "topic_id": None}]},
    "IncrementalAlterConfigs": {"resources": [{"resource_type": 2, "resource_name": "events", "configs": CONFIGS}]},
}
"""A request that changes something, by API; fields of all versions together."""


class AuthorizationTests(BrokerTestCase):
    """A broker with a super user."""

    properties = {"super.users": "User:root"}

    def setUp(self) -> None:
        """There is a topic, a group with an offset, and a policy."""
        super().setUp()
        policies = [("clients", TablePolicy(LimitTable((RATE,), CLIENT_KINDS)))]
        self.broker.control = self.factory.control = AdmissionControl(policies, 20.0)
        self.broker.limits = QuotaLimits(self.log, self.broker.control, {}, self.clock.seconds)
        self.events = self.topic("events")
        self.client = self.connectAs("alice")
        self.client.ask("OffsetCommit", 8, **REQUESTS["OffsetCommit"])

    def connectAs(self, principal: str) -> Client:
        """The connection of a client that has logged in."""
        client = self.connect()
        client.protocol.principal = principal
        return client

    def state(self) -> Any:
        """Everything that super users can change."""
        return (
            {name: (len(topic.partitions), dict(topic.configs)) for name, topic in self.log.topics.items()},
            dict(self.broker.limits.describe({}, strict=False)),
            {group.groupId: dict(group.offsets) for group in self.broker.groups.all},
        )

    def test_everyApi(self) -> None:
        """It is decided for every API who may use it."""
        self.assertEqual(set(OF_SUPER_USERS), {name for name, api in SERVED.items() if api.forbid is not None})
        self.assertEqual(OF_EVERYBODY, set(SERVED) - set(OF_SUPER_USERS))

    def test_refused(self) -> None:
        """In every version others get Kafka's error, and nothing changes."""
        before = self.state()
        for api, apiVersion in everyVersion():
            if api.name in OF_SUPER_USERS:
                answer = self.client.ask(api.name, apiVersion, **CHANGES[api.name])
                self.assertEqual(
                    set(errorCodes(answer)), {OF_SUPER_USERS[api.name]}, f"{api.name} v{apiVersion}: {answer}"
                )
                self.assertEqual(self.state(), before)

    def test_allowed(self) -> None:
        """Super users change things."""
        root = self.connectAs("root")
        for name in ("AlterClientQuotas", "CreatePartitions", "CreateTopics", "IncrementalAlterConfigs"):
            before = self.state()
            answer = root.ask(name, 4 if name == "CreateTopics" else 1, **CHANGES[name])
            self.assertEqual(set(errorCodes(answer)), {ErrorCode.none}, name)
            self.assertNotEqual(self.state(), before)
        for name, apiVersion in (("OffsetDelete", 0), ("DeleteGroups", 1), ("DeleteTopics", 5)):
            before = self.state()
            self.assertEqual(set(errorCodes(root.ask(name, apiVersion, **CHANGES[name]))), {ErrorCode.none}, name)
            self.assertNotEqual(self.state(), before)

    def test_accessControlLists(self) -> None:
        """A client that asks for access control lists is told that there are none, and what there is instead."""
        for apiVersion in (1, 2, 3):
            answer = self.client.ask("DescribeAcls", apiVersion, resource_type_filter=1, operation=1, permission_type=1)
            self.assertEqual((answer.error_code, answer.resources), (ErrorCode.security_disabled, ()))
            self.assertIn("super.users", answer.error_message)

    def test_sentence(self) -> None:
        """Where the protocol has room for it, the client is told the setting and the remedy."""
        for name, apiVersion, part in (
            ("AlterClientQuotas", 1, "entries"),
            ("CreatePartitions", 1, "results"),
            ("CreateTopics", 4, "topics"),
            ("DeleteTopics", 5, "responses"),
            ("IncrementalAlterConfigs", 1, "responses"),
        ):
            (only,) = getattr(self.client.ask(name, apiVersion, **CHANGES[name]), part)
            self.assertIn("add 'User:alice' to super.users of the broker", only.error_message)

    def test_broker(self) -> None:
        """To change the settings of the broker takes an administrator of the cluster."""
        resources = [{"resource_type": 4, "resource_name": "1", "configs": []}]
        answer = self.client.ask("IncrementalAlterConfigs", 1, resources=resources)
        self.assertEqual(codes(answer.responses), [ErrorCode.cluster_authorization_failed])

    def test_manyParts(self) -> None:
        """The answer to a request of many parts has the reason once, and is hardly larger than the request."""
        topics = [{"name": f"t{index:05}", "num_partitions": 1, "replication_factor": 1} for index in range(10_000)]
        self.client.send("CreateTopics", 7, topics=topics)
        sizeBytes = len(self.client.transport.received)
        self.assertLess(sizeBytes, 10_000 * 40)
        reasons = [each.error_message for each in self.client.receive().topics]
        self.assertEqual([reason is None for reason in reasons], [False] + [True] * 9_999)

    def test_charged(self) -> None:
        """A request that is forbidden counts against its client's limits, as any other."""
        policy = ScriptedQuota()
        self.broker.control = self.factory.control = AdmissionControl([("scripted", policy)], 20.0)
        self.broker.control.configure(QuotaEntity(user="alice"), {"scripted_rate": 1.0}, 0.0)
        client = self.connectAs("alice")
        policy.recorded.clear()
        client.ask("DeleteTopics", 5, **CHANGES["DeleteTopics"])
        ((request, usage),) = policy.recorded
        self.assertEqual((request.kind, request.principal), ("DeleteTopics", "alice"))
        self.assertGreater(usage.requestBytes, 0)
