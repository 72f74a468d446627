"""Tests for L{admission.kafka.gateway.gatewaystatus}."""

from __future__ import annotations

from typing import Any

from admission.kafka.client.clientconnection import ConnectionSettings
from admission.kafka.gateway.gatewaystatus import UNREACHED_SECONDS, GatewayStatus
from admission.metrics.registry import SensorRegistry
from tests.unit.kafka.gateway.gatewayfixture import GatewayTestCase


class GatewayStatusTests(GatewayTestCase):
    """What the page of a gateway shows of the cluster, and when it is not well."""

    def setUp(self) -> None:
        super().setUp()
        self.registry = SensorRegistry(self.clock.seconds)
        self.discovery = self.makeDiscovery(ConnectionSettings())
        self.status = GatewayStatus(self.gateway, self.discovery, self.factory, self.registry, lambda: ["127.0.0.1:1"])
        self.status.addSensors()

    def fields(self) -> Any:
        """What the page shows now."""
        self.clock.advance(2.0)
        return self.status.document.fields

    def reasons(self) -> list[str]:
        """Why it is not well."""
        return list(self.fields()["health"]["reasons"])

    def test_nodes(self) -> None:
        """There is a row for the place where clients begin, and one for each node in the order of their ids."""
        self.nodes.learn(2, "k2.example", 9092)
        self.nodes.learn(1, "k1.example", 9093)
        node = self.nodes.of(2)
        node.throttles.add(True, False)
        node.throttles.add(True, True)
        node.failed("it hung up", self.clock.seconds())
        rows = self.fields()["nodes"]
        self.assertEqual([row["nodeId"] for row in rows], [None, 1, 2])
        self.assertEqual(
            {**rows[2], "knownSeconds": 0},
            {
                "nodeId": 2,
                "address": "k2.example:9092",
                "knownSeconds": 0,
                "links": 0,
                "unanswered": 0,
                "heldBytes": 0,
                "stalledSeconds": 0.0,
                "unansweredSeconds": 0.0,
                "throttled": {"ours": 1, "theirs": 0, "both": 1},
                "lastError": "it hung up",
            },
        )
        self.clock.advance(61.0)
        self.assertEqual([row["lastError"] for row in self.fields()["nodes"]], [None] * 3)

    def test_stalled(self) -> None:
        """A node that takes nothing says for how long, on the link that has waited longest."""
        self.nodes.learn(1, "k1.example", 9092)
        now = self.clock.seconds()
        self.nodes.of(1).stalledLinks.update({"one": now - 5.0, "another": now - 9.0})
        self.assertEqual(self.fields()["nodes"][1]["stalledSeconds"], 11.0)
        self.nodes.of(1).stalledLinks.clear()

    def test_unanswered(self) -> None:
        """A node that owes an answer for five seconds is told of, as the bootstrap servers are."""
        self.discovery.reachedSeconds = self.clock.seconds()
        self.nodes.learn(7, "k7.example", 9092)
        node, bootstrap = self.nodes.of(7), self.gateway.bootstrap
        now = self.clock.seconds()
        node.owingLinks.update({"one": now - 2.0, "another": now + 9.0})
        self.assertEqual(self.reasons(), [])
        self.assertEqual(self.fields()["nodes"][1]["unansweredSeconds"], 6.0)
        self.assertEqual(self.reasons(), ["node 7 has not answered for 8 s"])
        [(labels, value)] = self.status._unanswered(self.clock.seconds())
        self.assertEqual((labels, value), (("7",), 8.0))
        node.owingLinks.clear()
        bootstrap.owingLinks["one"] = now
        self.assertEqual(self.reasons(), ["the bootstrap servers have not answered for 8 s"])
        bootstrap.owingLinks.clear()

    def test_health(self) -> None:
        """It is not well before any node has answered, and when none has for a while; metrics and a reason say so."""
        self.assertEqual(self.reasons(), ["no node of the cluster has answered yet"])
        self.assertEqual(self.registry["ClusterReached"], 0)
        self.discovery.lastError = "refused"
        self.assertEqual(self.reasons(), ["no node of the cluster has answered yet: refused"])
        self.discovery.reachedSeconds = self.clock.seconds()
        self.assertEqual(self.reasons(), [])
        self.assertEqual(self.registry["ClusterReached"], 1)
        self.clock.advance(UNREACHED_SECONDS)
        [reason] = self.reasons()
        self.assertEqual(self.registry["ClusterReached"], 0)
        self.assertEqual(reason, "no node of the cluster has answered for 34 s: refused")

    def test_noPort(self) -> None:
        """A node that clients cannot reach is told of."""
        self.discovery.reachedSeconds = self.clock.seconds()
        self.nodes.learn(16, "k16.example", 9092)
        [reason] = self.reasons()
        self.assertIn("node 16 of the cluster has no port here", reason)
