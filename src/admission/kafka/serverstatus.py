# -*- test-case-name: tests.unit.kafka.test_statussections -*-
"""
What all servers of Kafka's protocol add to their status page: requests, and the throttled clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any, cast

from attrs import asdict
from twisted.internet.interfaces import IReactorTime

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
from .requesttimes import RequestTimes
from .server import ANONYMOUS, Debt, Server
from .session import KafkaSession

MAX_CLIENTS = 20

RECENTLY_SECONDS = 10.0
"""How long a client is still shown after it was throttled; most delays are too short to be read."""

_PAUSES = (Pause.MEMORY, Pause.THROTTLED, Pause.BUSY, Pause.SERVER_FULL, Pause.UNSENT)

_Client = tuple[str, str]
"""A user and a client id."""


class ServerStatus:
    """
    The status page of a server.

    @ivar document: the contents of the page.
    @ivar times: an observer of requests, for who wants to know how long they take.
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
        self.times = RequestTimes(sensors.seconds)
        self.document = StatusDocument(
            factory,
            sensors,
            server.wallSeconds,
            [
                Section("listeners", lambda now: list(listeners())),
                Section("requests", self._requestsFields),
                Section("latency", self.times.fields),
                Section("throttled", self._throttledFields),
                *sections,
            ],
            [*checks, self._drainCheck],
            [reason.value for reason in _PAUSES],
            "queued.max.request.bytes",
        )

    def pages(self, clock: IReactorTime, profiler: Profiler | None) -> StatusPages:
        """
        The pages of the status port.
        """
        return StatusPages(clock, self.document, ANONYMOUS, KAFKA_NAMINGS, profiler)

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
        registry.addCounter("ResponseBytesSent", lambda now: factory.responseBytes)
        registry.addFamily("RequestSeconds", ("request", "quantile"), self.times.read)
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
            "sentBytes": factory.responseBytes,
        }

    def _throttledFields(self, now: float) -> dict[str, Any]:
        connections = cast("Collection[KafkaSession]", self._factory.connections)
        return throttledFields(self._server.debts, connections, now, self._server.control)


def throttledFields(
    debts: Mapping[_Client, Debt], connections: Iterable[KafkaSession], now: float, control: AdmissionControl
) -> dict[str, Any]:
    """
    The clients that are throttled or were throttled recently, the latest end of
    a delay first; each with the limit that it exceeds most, and the number of
    its connections, which may be none: who is throttled may hang up.

    @param connections: those that are open.
    """
    since = now - RECENTLY_SECONDS
    recent = {client: (debt.untilSeconds, debt.ip) for client, debt in debts.items() if debt.untilSeconds > since}
    count: Counter[_Client] = Counter()
    for connection in connections:
        client = connection.principal, connection.clientId
        if connection.throttledUntilSeconds > since and client not in recent:
            # Its debt was forgotten when limits changed, or for lack of room.
            recent[client] = connection.throttledUntilSeconds, connection.host
        count[client] += 1
    shown = nlargest(MAX_CLIENTS, recent.items(), key=itemgetter(1))
    return {
        "count": len(recent),
        "clients": [
            {
                "user": shortened(user),
                "clientId": shortened(clientId),
                "ip": ip,
                "connections": count[user, clientId],
                "delaySeconds": max(until - now, 0.0),
                **_worstLimit(control.explain(Request("", user, clientId, ip, 0), now)),
            }
            for (user, clientId), (until, ip) in shown
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
