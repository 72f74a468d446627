"""No client is told where a node really is."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

from kio.index import load_request_schema

from tests.clients.gateway.gatewaycases import IS_DIRECT, Connection, GatewayTestCase
from tests.clients.gateway.gatewayclients import GROUPS, ConfluentLoad, JavaLoad, consume, produce, waitForEach
from tests.kit.brokerfixture import batchOf, build
from tests.kit.longform import longForm
from tests.kit.recordingproxy import RecordingProxy

PRODUCE = 0
FETCH = 1
METADATA = 3
FIND_COORDINATOR = 10
API_VERSIONS = 18
DESCRIBE_CLUSTER = 60
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79

PER_SECOND = 100
RECORDS = 200


class EveryVersionTests(GatewayTestCase):
    """All requests whose responses have addresses, in each version that is offered."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.createTopic(self.topic, replicas=[[1], [2], [3]], min_insync_replicas=1)
        self.secrets = [self.cluster.address(nodeId).split(":")[0].encode() for nodeId in self.cluster.nodeIds]
        with Connection(self.nodeAddress(1)) as connection:
            request = build(load_request_schema(API_VERSIONS, 0), {})
            _, answer = connection.ask(request)
            self.offered = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
            topics = [{"topic_id": None, "name": self.topic}]
            _, described = connection.ask(build(load_request_schema(METADATA, 12), {"topics": topics}))
        self.topicId: UUID = described.topics[0].topic_id

    def check(self, apiKey: int, oldest: int, fieldsOf: Callable[[int], Mapping[str, Any]]) -> None:
        """
        Ask node 1, and look at the bytes.

        @param oldest: the first version that has addresses.
        @param fieldsOf: the fields of a request, by its version.
        """
        versions = [*self.versions(apiKey, oldest)]
        self.assertTrue(versions, f"nothing of API {apiKey} is offered")
        for version in versions:
            with Connection(self.nodeAddress(1)) as connection:
                request = build(load_request_schema(apiKey, version), dict(fieldsOf(version)))
                self.assertHidden(apiKey, version, *connection.ask(request))

    def assertHidden(self, apiKey: int, version: int, content: bytes, answer: Any) -> None:
        """The bytes of a response have no real address, unless they come from the node directly."""
        told = [secret for secret in self.secrets if secret in content]
        if IS_DIRECT:
            # Or the test would look at responses that have no addresses.  A node tells in ShareAcknowledge only when it
            # was the leader a moment ago, which cannot be had at will.
            if apiKey == SHARE_ACKNOWLEDGE:
                return
            self.assertTrue(told, f"version {version} of API {apiKey}: {answer}")
        else:
            self.assertEqual(told, [], f"version {version} of API {apiKey}: {answer}")

    def versions(self, apiKey: int, oldest: int) -> Iterator[int]:
        """The versions that are offered and that we can write."""
        first, last = self.offered.get(apiKey, (0, -1))
        return iter(range(max(first, oldest), last + 1))

    def named(self, version: int, firstById: int, field: str) -> dict[str, Any]:
        """The topic, as requests of a version say it."""
        return {"topic_id": self.topicId} if version >= firstById else {field: self.topic}

    def test_metadata(self) -> None:
        """Metadata."""
        self.check(METADATA, 0, lambda version: {"topics": None if version else [], "allow_auto_topic_creation": False})

    def test_findCoordinator(self) -> None:
        """FindCoordinator, once there is one."""
        # The topic of the groups may have to be made before.
        produce("confluent", self.address, self.topic, [b"1.0"])
        consume("confluent", self.address, self.topic, 1)
        self.check(
            FIND_COORDINATOR,
            0,
            lambda version: {"coordinator_keys": (self.topic,)} if version >= 4 else {"key": self.topic},
        )

    def test_describeCluster(self) -> None:
        """DescribeCluster."""
        self.check(DESCRIBE_CLUSTER, 0, lambda version: {"endpoint_type": 1} if version else {})

    def test_produce(self) -> None:
        """Produce to a node that does not lead the partition."""
        batch = batchOf(b"value", timestampMs=int(time.time() * 1000))

        def fields(version: int) -> dict[str, Any]:
            partitions = [{"index": 1, "records": batch}]
            topic = {**self.named(version, 13, "name"), "partition_data": partitions}
            return {"acks": -1, "timeout": 30_000, "topic_data": [topic]}

        self.check(PRODUCE, 10, fields)

    def test_fetch(self) -> None:
        """Fetch from a node that has nothing of the partition."""

        def fields(version: int) -> dict[str, Any]:
            partitions = [{"partition": 1, "partition_max_bytes": 1 << 20}]
            topic = {**self.named(version, 13, "topic"), "partitions": partitions}
            # A full fetch outside of any session.
            return {"max_bytes": 1 << 20, "session_epoch": -1, "topics": [topic]}

        self.check(FETCH, 16, fields)

    def test_share(self) -> None:
        """ShareFetch and ShareAcknowledge likewise, in a session that the former begins."""
        # As Kafka writes it.
        memberId = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        fetched = {"partition_index": 1, "acknowledgement_batches": []}
        batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}
        acknowledged = {"partition_index": 1, "acknowledgement_batches": [batch]}

        def fields(epoch: int, partition: Mapping[str, Any]) -> dict[str, Any]:
            topics = [{"topic_id": self.topicId, "partitions": [partition]}]
            return {"group_id": self.topic, "member_id": memberId, "share_session_epoch": epoch, "topics": topics}

        bounds = {"max_bytes": 1 << 20, "max_records": 1, "batch_size": 1}
        with Connection(self.nodeAddress(1)) as connection:
            for apiKey, request in (
                (SHARE_FETCH, fields(0, fetched) | bounds),
                (SHARE_ACKNOWLEDGE, fields(1, acknowledged)),
            ):
                for version in self.versions(apiKey, 1):
                    self.assertHidden(
                        apiKey, version, *connection.ask(build(load_request_schema(apiKey, version), request))
                    )


@longForm
class LeaderMoveTests(GatewayTestCase):
    """What real clients are told while leaders move, which all passes a network that looks into it."""

    def test_move(self) -> None:
        """They are told no real address, whatever they ask, and all that they produce is stored."""
        addresses = (
            [self.cluster.address(nodeId) for nodeId in self.cluster.nodeIds] if IS_DIRECT else self.gateway.addresses
        )
        secrets = [self.cluster.address(nodeId).split(":")[0].encode() for nodeId in self.cluster.nodeIds]
        proxy = RecordingProxy(addresses, secrets)
        self.addCleanup(proxy.stop)
        address = proxy.of(self.address)
        self.cluster.createTopic(self.topic)
        loads = [ConfluentLoad(address, self.topic, PER_SECOND), JavaLoad(address, self.topic, PER_SECOND)]
        members = [make(address, self.topic, name) for name, make in GROUPS.items()]
        try:
            waitForEach(loads, RECORDS)
            victim = self.cluster.leaders(self.topic)[0]
            self.cluster.stop(victim)
            waitForEach(loads, RECORDS)
            self.cluster.restart(victim)
            waitForEach(loads, RECORDS)
            for name in ("kafka-python", "aiokafka"):
                topic = f"{self.topic}.{name}"
                self.cluster.createTopic(topic)
                produce(name, address, topic, [b"1.0"])
                consume(name, address, topic, 1)
        finally:
            for load in loads:
                load.stop()
            for member in members:
                member.leave()
        self.report(responses=proxy.seen.total(), kinds=len(proxy.seen), seen=sorted(proxy.seen.items()))
        self.assertStored(*loads)
        if IS_DIRECT:
            # Or the network would not see what it is to look for.
            self.assertIn(METADATA, {apiKey for apiKey, _, _ in proxy.leaks})
        else:
            self.assertEqual(dict(proxy.leaks), {})
