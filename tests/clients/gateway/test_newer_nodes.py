"""A cluster and clients that are newer than the gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.index import load_response_schema

from admission.kafka.wire.relayedapis import RELAYED_BY_KEY
from admission.kafka.wire.versions import API_VERSIONS
from tests.clients.gateway.gatewaycases import IS_DIRECT, GatewayTestCase
from tests.clients.gateway.gatewayclients import consume, produce
from tests.kit.brokerfixture import encode, framed, readResponse
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.recordingproxy import RecordingProxy

FUTURE_API = 999
LATER = 5
UNSUPPORTED_VERSION = 35
RECORDS = 50


class NewerNodes(RecordingProxy):
    """
    A network that makes all nodes say that they know later versions than the gateway, and an API that nobody knows.
    What a node really knows less of than the gateway stays as it is, or clients would ask for it.
    """

    def altered(self, apiKey: int, apiVersion: int, frame: bytes) -> bytes:
        """See L{RecordingProxy.altered}."""
        if apiKey != API_VERSIONS:
            return frame
        responseType: Any = load_response_schema(apiKey, apiVersion)
        correlationId, answer = readResponse(frame[4:], responseType)
        newer = [
            replace(each, max_version=each.max_version + LATER) if _isLatest(each) else each for each in answer.api_keys
        ]
        newer.append(replace(newer[0], api_key=FUTURE_API))
        header = responseType.__header_schema__(correlation_id=correlationId)
        return framed(encode(header) + encode(replace(answer, api_keys=tuple(newer))))


def _isLatest(each: Any) -> bool:
    api = RELAYED_BY_KEY.get(each.api_key)
    return api is None or each.max_version >= api.maxVersion


class NewerTests(GatewayTestCase):
    """The gateway stands between them."""

    if IS_DIRECT:
        skip = "this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out"

    def makeGateway(self) -> GatewayProcess:
        """One before such a cluster."""
        self.nodes = NewerNodes([self.cluster.address(nodeId) for nodeId in self.cluster.nodeIds], [])
        self.addCleanup(self.nodes.stop)
        return GatewayProcess(self.nodes.of(self.cluster.bootstrap)).startedFor(self)

    def test_client(self) -> None:
        """A real client works."""
        self.cluster.createTopic(self.topic)
        values = [f"1.{number}".encode() for number in range(RECORDS)]
        produce("confluent", self.address, self.topic, values)
        self.assertEqual(sorted(consume("confluent", self.address, self.topic, RECORDS)), sorted(values))
        self.assertGreater(self.nodes.seen.total(), 0)
