"""The gateway is a server whose requests policies admit, as L{admission.testing.servercontract} has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.address import IPv4Address

from admission.connection.factory import AdmittedFactory
from admission.control import AdmissionControl
from admission.kafka.wire.versions import FETCH, PRODUCE
from admission.testing.servercontract import WatchedPolicy
from tests.kit.kafkacontract import WAIT_MS, KafkaServerContract
from tests.unit.kafka.gateway.gatewayfixture import GatewayTestCase, PlayedNode

_STORED = {"index": 0, "error_code": ErrorCode.none, "base_offset": 0}
PRODUCED = {"responses": [{"name": "events", "partition_responses": [_STORED]}]}


class GatewayContractTests(KafkaServerContract, GatewayTestCase):
    """Requests that a node answers at once are Produce, and those that wait are Fetch."""

    def setUp(self) -> None:
        GatewayTestCase.setUp(self)
        self.policy = WatchedPolicy()
        self.control = self.gateway.control = self.factory.control = AdmissionControl([("watched", self.policy)], 20.0)
        self.control.whenConfigured.append(self.gateway.debts.configured)
        self.server: AdmittedFactory = self.factory
        self.connected = []

    def buildProtocol(self, address: IPv4Address) -> Any:
        """A session by the port where clients begin."""
        protocol: Any = self.factory.buildProtocol(address)
        backend = protocol.backend
        backend.nodeId, backend.ports, protocol.advertised = None, self.ports, self.ports.advertised
        return protocol

    def settle(self) -> None:
        """Have the node answer what it answers at once."""
        self.clock.advance(0)
        for node in self.links:
            node.arrived()
            while node.unanswered and node.unanswered[0].apiKey == PRODUCE and not node.isClosed:
                node.answer(**PRODUCED)
        self.clock.advance(0)

    def fetchedFields(self) -> Mapping[str, Any]:
        """The node answers when it is told to."""
        return {"max_wait": WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20, "topics": []}

    def _fetching(self) -> list[PlayedNode]:
        return [node for node in self.links for sent in node.unanswered if sent.apiKey == FETCH and not node.isClosed]

    def waiting(self) -> int:
        """What a node has not answered, and may."""
        return len(self._fetching())

    def release(self) -> None:
        """Have nodes answer."""
        for node in self._fetching():
            node.answer(responses=[])
