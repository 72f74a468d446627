"""The gateway is a server whose requests policies admit, as L{admission.testing.servercontract} has it."""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from twisted.internet.address import IPv4Address

from admission.connection.factory import AdmittedFactory
from admission.control import AdmissionControl
from admission.kafka.wire.versions import FETCH, PRODUCE
from admission.testing.servercontract import REFUSED, SERVED, AdmittedServerContract, WatchedPolicy
from tests.kit.brokerfixture import batchOf, produceFields, readResponse, requestFrame, requestOf
from tests.unit.kafka.gateway.gatewayfixture import GatewayTestCase, PlayedNode

WAITING = 1000
"""Added to the numbers of requests that wait."""

_STORED = {"index": 0, "error_code": ErrorCode.none, "base_offset": 0}
PRODUCED = {"responses": [{"name": "events", "partition_responses": [_STORED]}]}


class GatewayContractTests(AdmittedServerContract, GatewayTestCase):
    """Requests that a node answers at once are Produce, and those that wait are Fetch."""

    # What is charged has not been passed on yet.
    isChargedLast = False

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
        protocol.nodeId, protocol.ports, protocol.advertised = None, self.ports, self.ports.advertised
        return protocol

    def settle(self) -> None:
        """Have the node answer what it answers at once."""
        self.clock.advance(0)
        for node in self.links:
            node.arrived()
            while node.unanswered and node.unanswered[0].apiKey == PRODUCE and not node.isClosed:
                node.answer(**PRODUCED)
        self.clock.advance(0)

    def encode(self, client: str, number: int, isWaiting: bool = False) -> bytes:
        """A frame, which has the number for its correlation id."""
        if isWaiting:
            fields = {"max_wait": 3_600_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": []}
            return requestFrame(requestOf("Fetch", 12, **fields), number + WAITING, client)
        return requestFrame(requestOf("Produce", 9, **produceFields("events", batchOf(b"a"))), number, client)

    def answersIn(self, received: bytes) -> Sequence[str]:
        """What is in frames."""
        answers, offset = [], 0
        while offset < len(received):
            sizeBytes, number = unpack_from(">ii", received, offset)
            body = received[offset + 4 : offset + 4 + sizeBytes]
            offset += 4 + sizeBytes
            isRefused = False
            if number < WAITING:
                _, answer = readResponse(body, load_response_schema(PRODUCE, 9))
                error = answer.responses[0].partition_responses[0].error_code
                isRefused = error is ErrorCode.throttling_quota_exceeded
            answers.append(REFUSED if isRefused else SERVED)
        return answers

    def _fetching(self) -> list[PlayedNode]:
        return [node for node in self.links for sent in node.unanswered if sent.apiKey == FETCH and not node.isClosed]

    def waiting(self) -> int:
        """What a node has not answered, and may."""
        return len(self._fetching())

    def release(self) -> None:
        """Have nodes answer."""
        for node in self._fetching():
            node.answer(responses=[])
