# -*- test-case-name: tests.unit.kafka.test_statussections -*-
"""
What all servers of Kafka's protocol add to their status page: requests, and the throttled clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

from attrs import asdict
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from ..connection.factory import AdmittedFactory
from ..connection.pauses import Pause
from ..control import AdmissionControl, Explanation
from ..interfaces import Request
from ..metrics.registry import SensorRegistry
from ..profiling.profiler import Profiler
from ..status.document import StatusDocument
from ..status.pages import StatusPages
from ..status.sections import HealthCheck, Section, finite, shortened
from .metricnames import KAFKA_NAMINGS
from .server import ANONYMOUS, Server
from .session import KafkaSession

MAX_CLIENTS = 20

RECENTLY_SECONDS = 10.0
"""How long a client is still shown after it was throttled; most delays are too short to be read."""

_PAUSES = (Pause.MEMORY, Pause.THROTTLED, Pause.BUSY, Pause.SERVER_FULL, Pause.UNSENT)

_Client = tuple[str, str, str]
"""A user, a client id and an address."""


class ServerStatus:
    """
    The status page of a server.

    @ivar document: the contents of the page.
    @ivar isDraining: whether the server is being stopped, and waits for its
        connections to end; to be set by the service that stops it.
    """

    def __init__(
        self,
        server: Server[Any],
        factory: AdmittedFactory,
        sensors: SensorRegistry,
        listeners: Callable[[], Sequence[str]],
        sections: Sequence[Section] = (),
        checks: Sequence[HealthCheck] = (),
    ) -> None:
        """
        @param factory: its connections are L{KafkaSession}s.
        @param listeners: returns the addresses at which the server listens.
        @param sections: what else the page shows.
        @param checks: what else may be wrong with it.
        """
        self.isDraining = False
        self._server = server
        self._factory = factory
        self.document = StatusDocument(
            factory,
            sensors,
            server.wallSeconds,
            [
                Section("listeners", lambda now: list(listeners())),
                Section("requests", self._requestsFields),
                Section("throttled", self._throttledFields),
                *sections,
            ],
            [*checks, self._drainCheck],
            [reason.value for reason in _PAUSES],
            "queued.max.request.bytes",
        )

    def pages(self, clock: IReactorTime, profiler: Profiler | None) -> Resource:
        """
        The root resource of the status port.
        """
        return StatusPages(clock, self.document, ANONYMOUS, KAFKA_NAMINGS, profiler).root

    def addSensors(self) -> None:
        """
        Publish the values of the document that no other sensor has.

        @raise ValueError: if sensors of these names exist.
        """
        document, factory = self.document, self._factory
        registry = document.sensors
        document.addSensors()
        registry.addGauge("Connections", lambda now: len(factory.connections))
        registry.addGauge("ClientsThrottled", lambda now: int(document.fields["throttled"]["count"]))
        registry.addCounter("ConnectionsRefused", lambda now: factory.refusedConnections)
        registry.addCounter("RequestsRead", lambda now: factory.requestCount)
        registry.addCounter("RequestBytesRead", lambda now: factory.requestBytes)
        registry.addFamily("ConnectionsMuted", ("reason",), lambda now: rowsOf(document.fields["muted"]))

    def _drainCheck(self, now: float) -> Iterator[str]:
        if self.isDraining:
            yield f"the server is being stopped, and {len(self._factory.connections)} connections are still open"

    def _requestsFields(self, now: float) -> dict[str, Any]:
        gate, factory = self._server.gate, self._factory
        return {
            "running": gate.runningRequests,
            "maxRunning": gate.maxRequests,
            "read": factory.requestCount,
            "readBytes": factory.requestBytes,
        }

    def _throttledFields(self, now: float) -> dict[str, Any]:
        connections = cast("Collection[KafkaSession]", self._factory.connections)
        return throttledFields(connections, now, self._server.control)


def throttledFields(connections: Iterable[KafkaSession], now: float, control: AdmissionControl) -> dict[str, Any]:
    """
    The clients that are throttled or were throttled recently, the latest end of
    a delay first; each with the limit that it exceeds most.
    """
    recent = [each for each in connections if each.throttledUntilSeconds > now - RECENTLY_SECONDS]
    recent.sort(key=attrgetter("throttledUntilSeconds"), reverse=True)
    untilSeconds: dict[_Client, float] = {}
    count: Counter[_Client] = Counter()
    for connection in recent:
        client = (connection.principal, connection.clientId, connection.host)
        untilSeconds.setdefault(client, connection.throttledUntilSeconds)
        count[client] += 1
    shown = list(untilSeconds.items())[:MAX_CLIENTS]
    return {
        "count": len(untilSeconds),
        "clients": [
            {
                "user": shortened(client[0]),
                "clientId": shortened(client[1]),
                "ip": client[2],
                "connections": count[client],
                "delaySeconds": max(until - now, 0.0),
                **_worstLimit(control.explain(Request("", client[0], client[1], client[2], 0), now)),
            }
            for client, until in shown
        ],
    }


def _worstLimit(explanations: Iterable[Explanation]) -> dict[str, Any]:
    worst = max(
        (each for each in explanations if not each.isShadow),
        key=lambda each: (each.status.delaySeconds, each.status.utilization),
        default=None,
    )
    if worst is None:
        return {"policy": None, "limitName": None, "limit": None, "used": None, "usedFraction": None, "entity": None}
    status = worst.status
    return {
        "policy": worst.policyName,
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "used": finite(status.used),
        "usedFraction": finite(status.utilization),
        "entity": {name: text and shortened(text) for name, text in asdict(status.entity).items()},
    }


def rowsOf(counts: dict[str, int]) -> Iterator[tuple[tuple[str], float]]:
    """
    The samples of a family with one label.
    """
    for label, count in counts.items():
        yield (label,), count
