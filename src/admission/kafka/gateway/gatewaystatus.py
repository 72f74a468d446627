# -*- test-case-name: tests.unit.kafka.gateway.test_gatewaystatus -*-
"""
What a gateway adds to its status page: the nodes of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from attrs import asdict

from admission.connection.factory import AdmittedFactory
from admission.metrics.registry import SensorRegistry
from admission.status.sections import Section, shortened

from ..serving.serverstatus import ServerStatus
from .backing import Discovered
from .gateway import Gateway
from .nodes import Node

MAX_NODES = 100
UNREACHED_SECONDS = 30.0
"""The time without an answer of any node after which the gateway is not healthy."""

UNANSWERED_SECONDS = 5.0
"""A node that owes an answer for so long makes the gateway not healthy."""

RECENTLY_SECONDS = 60.0
"""How long an error of a node is shown."""


class GatewayStatus(ServerStatus):
    """
    The status page of a gateway.
    """

    def __init__(
        self,
        gateway: Gateway,
        discovery: Discovered,
        factory: AdmittedFactory,
        sensors: SensorRegistry,
        listeners: Callable[[], Sequence[str]],
    ) -> None:
        self._gateway = gateway
        self._discovery = discovery
        sharing = gateway.sharing
        super().__init__(
            gateway,
            factory,
            sensors,
            listeners,
            [Section("nodes", self._nodesFields), *([] if sharing is None else [Section("sharing", sharing.fields)])],
            [
                gateway.nodes.troubles,
                self._clusterCheck,
                self._unansweredCheck,
                *([] if sharing is None else [sharing.troubles]),
            ],
        )

    def addSensors(self) -> None:
        super().addSensors()
        registry = self.document.sensors
        for name, attribute in (
            ("NodeLinks", "linkCount"),
            ("NodeUnanswered", "unanswered"),
            ("NodeBytesHeld", "heldBytes"),
        ):
            registry.addFamily(name, ("node",), partial(self._values, attribute))
        registry.addFamily("NodeThrottles", ("node", "by"), self._throttles, isCounter=True)
        registry.addFamily("NodeStalled", ("node",), self._stalled)
        registry.addFamily("NodeUnansweredSeconds", ("node",), self._unanswered)
        registry.addGauge("ClusterReached", lambda now: not any(self._clusterCheck(now)))
        if self._gateway.sharing is not None:
            self._gateway.sharing.addSensors(registry)

    def _nodesFields(self, now: float) -> list[dict[str, Any]]:
        gateway = self._gateway
        return [_nodeFields(node, now) for node in [gateway.bootstrap, *gateway.nodes][:MAX_NODES]]

    def _clusterCheck(self, now: float) -> Iterator[str]:
        discovery = self._discovery
        reason = "" if discovery.lastError is None else f": {discovery.lastError}"
        if discovery.reachedSeconds is None:
            yield f"no node of the cluster has answered yet{reason}"
        elif now - discovery.reachedSeconds > max(UNREACHED_SECONDS, 3 * self._gateway.settings.upstreamRefreshSeconds):
            yield f"no node of the cluster has answered for {now - discovery.reachedSeconds:.0f} s{reason}"

    def _unansweredCheck(self, now: float) -> Iterator[str]:
        for node in (self._gateway.bootstrap, *self._gateway.nodes):
            seconds = node.unansweredSeconds(now)
            if seconds >= UNANSWERED_SECONDS:
                who = "the bootstrap servers have" if node.nodeId is None else f"node {node.nodeId} has"
                yield f"{who} not answered for {seconds:.0f} s"

    def _values(self, attribute: str, now: float) -> Iterator[tuple[tuple[str], float]]:
        for node in self._gateway.nodes:
            yield (str(node.nodeId),), getattr(node, attribute)

    def _throttles(self, now: float) -> Iterator[tuple[tuple[str, str], float]]:
        for node in self._gateway.nodes:
            for by, count in asdict(node.throttles).items():
                yield (str(node.nodeId), by), count

    def _stalled(self, now: float) -> Iterator[tuple[tuple[str], float]]:
        for node in self._gateway.nodes:
            yield (str(node.nodeId),), _stalledSeconds(node, now)

    def _unanswered(self, now: float) -> Iterator[tuple[tuple[str], float]]:
        for node in self._gateway.nodes:
            yield (str(node.nodeId),), node.unansweredSeconds(now)


def _nodeFields(node: Node, now: float) -> dict[str, Any]:
    isRecent = node.lastError is not None and now - node.lastErrorSeconds <= RECENTLY_SECONDS
    return {
        "nodeId": node.nodeId,
        "address": None if node.address is None else shortened(f"{node.address.host}:{node.address.port}"),
        "knownSeconds": None if node.address is None else now - node.sinceSeconds,
        "links": node.linkCount,
        "unanswered": node.unanswered,
        "heldBytes": node.heldBytes,
        "stalledSeconds": _stalledSeconds(node, now),
        "unansweredSeconds": node.unansweredSeconds(now),
        "throttled": asdict(node.throttles),
        "lastError": shortened(node.lastError or "") if isRecent else None,
    }


def _stalledSeconds(node: Node, now: float) -> float:
    return max((now - since for since in node.stalledLinks.values()), default=0.0)
