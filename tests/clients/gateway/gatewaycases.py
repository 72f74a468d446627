"""
Tests of a gateway before a cluster of Apache Kafka, by real clients.

With C{ADMISSION_GATEWAY_DIRECT=yes} in the environment there is no gateway, and clients go to the cluster itself: what
fails then is wrong with the tests.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kio.index import load_response_schema
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.clients.gateway.gatewayclients import Load
from tests.kit.brokerfixture import readResponse, requestFrame
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.gatewayprocess import GatewayProcess, sharedGateway
from tests.kit.kafkacluster import KafkaCluster, sharedCluster
from tests.kit.recordingproxy import readFrame

IS_DIRECT = bool(os.environ.get("ADMISSION_GATEWAY_DIRECT"))

_numbers = itertools.count()


class GatewayTestCase(SynchronousTestCase):
    """
    A test with a gateway and a cluster, which it may ill-treat.

    @cvar gatewayOptions: of C{twistd admission-gateway}.
    @ivar cluster: all its nodes run.
    @ivar topic: a name that nobody else uses.
    """

    gatewayOptions: Sequence[str] = ()

    def setUp(self) -> None:
        self.cluster = self.makeCluster()
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        self._gateway: GatewayProcess | None = None
        if not IS_DIRECT:
            self._gateway = gateway = self.makeGateway()
            begin = gateway.mark()
            self.addCleanup(lambda: self.assertEqual(gateway.complaints(begin), []))

    def makeCluster(self) -> KafkaCluster:
        """What stands behind the gateway."""
        cluster = sharedCluster()
        cluster.heal()
        return cluster

    def makeGateway(self) -> GatewayProcess:
        """What stands before the cluster, running."""
        return sharedGateway(self.cluster.bootstrap, *self.gatewayOptions)

    @property
    def gateway(self) -> GatewayProcess:
        """
        The gateway.

        @raise SkipTest: if there is none.
        """
        if self._gateway is None:
            raise SkipTest("this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out")
        return self._gateway

    @property
    def address(self) -> str:
        """Where clients begin."""
        return self.cluster.bootstrap if IS_DIRECT else self.gateway.address

    def nodeAddress(self, nodeId: int) -> str:
        """Where clients find a node."""
        return self.cluster.address(nodeId) if IS_DIRECT else self.gateway.nodeAddress(nodeId)

    def assertStored(self, *loads: Load) -> None:
        """What was acknowledged is in the topic, once each; nothing was given up, and nothing else is there."""
        for load in loads:
            self.assertEqual(load.failed, [])
        stored = Counter(self.cluster.values(self.topic))
        acknowledged = Counter(value for load in loads for value in load.acknowledged)
        self.assertEqual(dict(acknowledged - stored), {}, "lost")
        self.assertEqual(dict(stored - acknowledged), {}, "stored more often than acknowledged")

    def report(self, **figures: object) -> None:
        """Show what was measured, with C{pytest -s}."""
        told = ", ".join(f"{name} {value}" for name, value in figures.items())
        print(f"{self.id()}: {'direct, ' if IS_DIRECT else ''}{told}", file=sys.stderr)


class Connection:
    """A client that asks one thing after the other, of any API."""

    def __init__(self, address: str, timeoutSeconds: float = PATIENCE_SECONDS) -> None:
        """@param timeoutSeconds: after which waiting for the server fails."""
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeoutSeconds)
        self._stream = self.socket.makefile("rb")
        self._correlationIds = itertools.count(1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, entity: Any) -> int:
        """
        Send a request, given as one of kio's entities.

        @return: its correlation id.
        """
        correlationId = next(self._correlationIds)
        self.socket.sendall(requestFrame(entity, correlationId))
        return correlationId

    def receive(self) -> bytes:
        """
        The next response without its length.

        @raise ConnectionError: if the server closes instead.
        """
        frame = readFrame(self._stream)
        if frame is None:
            raise ConnectionError("closed instead of a response")
        return frame[4:]

    def ask(self, entity: Any) -> tuple[bytes, Any]:
        """
        Send a request and receive its response.

        @return: its bytes, and kio's entity.
        """
        correlationId = self.send(entity)
        content = self.receive()
        actualId, answer = readResponse(content, load_response_schema(entity.__api_key__, entity.__version__))
        assert actualId == correlationId, f"the response is to request {actualId} and not {correlationId}"
        return content, answer
