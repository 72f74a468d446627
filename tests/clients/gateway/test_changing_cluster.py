"""Nodes come, and move."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.clients.gateway.gatewaycases import Connection, GatewayTestCase
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.kafkacluster import KafkaCluster
from tests.kit.longform import longForm

KNOWN_SECONDS = 10.0
"""After that, the gateway knows of a change."""


@longForm
class ChangingClusterTests(GatewayTestCase):
    """A cluster whose nodes do not stay what they were."""

    def makeCluster(self) -> KafkaCluster:
        """One that nobody else has."""
        cluster = KafkaCluster()
        self.addCleanup(cluster.remove)
        cluster.start()
        return cluster

    def makeGateway(self) -> GatewayProcess:
        """One that nobody else has."""
        return GatewayProcess(self.cluster.bootstrap, *self.gatewayOptions).startedFor(self)

    def test_change(self) -> None:
        """
        A fourth node can be used soon, and a node that has moved to another port as well, without a restart of
        anything; clients that are connected go on.
        """
        client = Producer({"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 500, "log_level": 0})
        self.cluster.createTopic(self.topic, replicas=[[2]], min_insync_replicas=1)
        self.produce(client, self.topic)

        nodeId = self.cluster.addNode()
        begin = time.monotonic()
        until(lambda: self.isReached(nodeId))
        self.report(knownSeconds=round(time.monotonic() - begin, 2))
        self.assertLess(time.monotonic() - begin, KNOWN_SECONDS)
        self.assertIn(nodeId, AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=5).brokers)
        fresh = f"{self.topic}.fresh"
        self.cluster.createTopic(fresh, replicas=[[nodeId]], min_insync_replicas=1)
        self.produce(client, fresh)
        self.assertEqual(self.cluster.values(fresh), [b"value"])

        self.cluster.move(2)
        begin = time.monotonic()
        until(lambda: self.isReached(2))
        self.report(movedSeconds=round(time.monotonic() - begin, 2))
        self.assertLess(time.monotonic() - begin, KNOWN_SECONDS)
        self.produce(client, self.topic)
        self.assertEqual(self.cluster.values(self.topic), [b"value"] * 2)

    def isReached(self, nodeId: int) -> bool:
        """Whether a node answers."""
        time.sleep(0.05)
        try:
            with Connection(self.nodeAddress(nodeId), 1.0) as connection:
                connection.socket.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
                return bool(connection.receive())
        except OSError:
            return False

    def produce(self, client: Producer, topic: str) -> None:
        """Have one more record."""
        errors: list[object] = []
        client.produce(topic, b"value", on_delivery=lambda error, message: errors.append(error))
        self.assertEqual(client.flush(PATIENCE_SECONDS), 0)
        self.assertEqual(errors, [None])
