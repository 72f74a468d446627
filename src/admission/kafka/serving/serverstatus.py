# -*- test-case-name: tests.unit.kafka.broker.test_statussections -*-
"""
What all servers of Kafka's protocol add to their status page: requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, IReactorTime

from admission.connection.factory import AdmittedFactory, peerName
from admission.connection.pauses import Pause
from admission.metrics.registry import SensorRegistry
from admission.profiling.profiler import Profiler
from admission.status.document import StatusDocument
from admission.status.pages import StatusPages
from admission.status.requesttimes import RequestTimes
from admission.status.sections import HealthCheck, Section

from .metricnames import KAFKA_NAMINGS
from .server import ANONYMOUS, Server

_PAUSES = (Pause.MEMORY, Pause.THROTTLED, Pause.BUSY, Pause.SERVER_FULL, Pause.UNSENT)


def describeAddresses(addresses: Iterable[IAddress]) -> list[str]:
    """
    Where a server listens, with ports in a row as one.
    """
    rows: list[list[Any]] = []
    for address in addresses:
        if rows and _isNext(rows[-1][-1], address):
            rows[-1].append(address)
        else:
            rows.append([address])
    return [peerName(row[0]) + (f" to {row[-1].port}" if row[1:] else "") for row in rows]


def _isNext(before: Any, address: Any) -> bool:
    return isinstance(address, IPv4Address | IPv6Address) and address == type(address)(
        "TCP", getattr(before, "host", ""), getattr(before, "port", -1) + 1
    )


class ServerStatus:
    """
    The status page of a server.

    @ivar document: the contents of the page.
    @ivar times: an observer of requests, which knows how long they take.
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
                *sections,
            ],
            [*checks, self._drainCheck],
            [reason.value for reason in _PAUSES],
            "queued.max.request.bytes",
            ANONYMOUS,
        )

    def pages(self, clock: IReactorTime, profiler: Profiler | None, process: int | None = None) -> StatusPages:
        """
        The pages of the status port.

        @param process: see L{StatusPages}.
        """
        return StatusPages(clock, self.document, KAFKA_NAMINGS, profiler, process)

    def addSensors(self) -> None:
        """
        Publish the values of the document that no other sensor has.

        @raise ValueError: if sensors of these names exist.
        """
        document, factory = self.document, self._factory
        registry = document.sensors
        document.addSensors()
        registry.addGauge("Connections", lambda now: len(factory.connections))
        registry.addCounter("ConnectionsRefused", lambda now: factory.refusedConnections)
        registry.addCounter("RequestsRead", lambda now: factory.requestCount)
        registry.addFamily("RequestSeconds", ("request", "quantile"), self.times.read)
        registry.addFamily("ConnectionsMuted", ("reason",), lambda now: rowsOf(document.fields["muted"]))

    def _drainCheck(self, now: float) -> Iterator[str]:
        if self.isDraining:
            yield f"the server is being stopped, and {len(self._factory.connections)} connections are still open"

    def _requestsFields(self, now: float) -> dict[str, Any]:
        gate, factory = self._server.gate, self._factory
        return {
            "running": gate.turns.runningRequests,
            "maxRunning": gate.turns.maxRequests,
            "read": factory.requestCount,
        }


def rowsOf(counts: dict[str, int]) -> Iterator[tuple[tuple[str], float]]:
    """
    The samples of a family with one label.
    """
    for label, count in counts.items():
        yield (label,), count
