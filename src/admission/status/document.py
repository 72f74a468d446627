# -*- test-case-name: tests.unit.status.test_document -*-
"""
The state of a server at one moment, as the status page and C{admission top}
show it, and whether the server is healthy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

from .._version import __version__
from ..metrics.process import ProcessUsage
from ..metrics.registry import SensorRegistry
from .clients import throttledFields
from .sections import HealthCheck, Section, bounded, shortened
from .servers import Server

KEPT_SECONDS = 1.0
"""The document is made at most once in this time, however many clients ask for it."""

MAX_CONNECTIONS = 20
"""How many connections are listed: the largest by the memory they hold."""

MAX_KINDS = 100
"""How many kinds of requests are listed: the most frequent ones."""

LEFT = "left"
"""Stands for the status of requests whose clients left before they were answered."""

SHORTAGE_SECONDS = 30.0
"""How long clients may wait for memory before the server counts as unhealthy: a burst is over by then."""

FULL_SECONDS = 30.0
"""How long after it had to refuse a newcomer."""


class StatusDocument:
    """
    The state of a server, read on demand and at most once in C{keptSeconds}.
    Its lists are bounded, and sorted so that the most important entries are kept.

    @ivar server: the server.
    @ivar sensors: the server's sensors; their clock is the clock of the whole document.
    @ivar wallSeconds: returns seconds since the epoch.
    @ivar anonymous: the user of clients that have not said who they are.
    @ivar keptSeconds: how long what was read is kept.
    """

    keptSeconds = KEPT_SECONDS

    def __init__(
        self,
        server: Server,
        sensors: SensorRegistry,
        wallSeconds: Callable[[], float],
        sections: Sequence[Section] = (),
        checks: Sequence[HealthCheck] = (),
        pauses: Sequence[str] = (),
        poolSetting: str = "pool",
        anonymous: str = "",
    ) -> None:
        """
        @param sections: further sections, from the driver of the server.
        @param checks: the driver's health checks.
        @param pauses: the reasons to pause a connection that are shown even
            while no connection has them.
        @param poolSetting: the setting that makes the pool larger.
        @param anonymous: the user of clients that have not said who they are.
        """
        self.server = server
        self.sensors = sensors
        self.wallSeconds = wallSeconds
        self.anonymous = anonymous
        self._process = ProcessUsage()
        self._sections = (
            Section("process", self._processFields),
            Section("pool", self._poolFields),
            Section("ledger", lambda now: dict(server.gate.ledger.usedBytes)),
            Section("connections", self._connectionsFields),
            Section("muted", self._mutedFields),
            Section("traffic", lambda now: {"inBytes": server.requestBytes, "outBytes": server.responseBytes}),
            Section("throttled", lambda now: throttledFields(server, anonymous, now)),
            Section("limitShare", lambda now: server.control.limitShare),
            Section("policies", self._policyFields),
            Section("responses", self._responsesFields),
            *sections,
        )
        self._checks = (*checks, self._memoryShortage, self._fullness)
        self._pauses = pauses
        self._poolSetting = poolSetting
        self._startedSeconds = sensors.seconds()
        self._shortSinceSeconds: float | None = None
        self._takenSeconds = float("-inf")
        self._fields: dict[str, Any] = {}
        self._text = ""
        server.gate.pressure.subscribe(self._pressed)

    @property
    def fields(self) -> Mapping[str, Any]:
        """
        The document as Python objects; do not change it.
        """
        now = self.sensors.seconds()
        if now - self._takenSeconds >= self.keptSeconds:
            self._takenSeconds = now
            self._fields = self._take(now)
            self._text = ""
        return self._fields

    @property
    def text(self) -> str:
        """
        The document as JSON.
        """
        fields = self.fields
        if not self._text:
            self._text = json.dumps(fields, allow_nan=False) + "\n"
        return self._text

    @property
    def reasons(self) -> list[str]:
        """
        Why no client should be sent here now, a sentence each; empty if the server
        is healthy.  Evaluated at each call.
        """
        now = self.sensors.seconds()
        return [reason for check in self._checks for reason in check(now)]

    def addSensors(self) -> None:
        """
        Publish the values that every server has and no other sensor reports.

        @raise ValueError: if sensors of these names exist.
        """
        server, registry = self.server, self.sensors
        registry.addGauge("MemoryPoolSize", lambda now: server.gate.pool.sizeBytes)
        registry.addGauge("ClientsThrottled", lambda now: int(self.fields["throttled"]["throttledCount"]))
        registry.addCounter("RequestBytesRead", lambda now: server.requestBytes)
        registry.addCounter("ResponseBytesSent", lambda now: server.responseBytes)
        registry.addGauge("ConnectionsAllowed", lambda now: server.limits.maxConnections)
        registry.addGauge("Healthy", lambda now: not self.reasons)
        registry.addGauge("UptimeSeconds", lambda now: now - self._startedSeconds)
        registry.addFamily(
            "SensorFailures",
            ("sensor",),
            lambda now: [((name,), count) for name, count in registry.failures.items()],
            isCounter=True,
        )
        registry.addFamily("BuildInfo", ("version",), lambda now: [((__version__,), 1)])
        self._process.addSensors(registry)

    def _take(self, now: float) -> dict[str, Any]:
        reasons = self.reasons
        return {
            "version": __version__,
            "atSeconds": self.wallSeconds(),
            "uptimeSeconds": now - self._startedSeconds,
            "health": {"status": "unavailable" if reasons else "ok", "reasons": reasons},
            **{name: value for name, value in self._read(now) if value is not None},
        }

    def _read(self, now: float) -> Iterator[tuple[str, Any]]:
        for section in self._sections:
            yield section.name, section.read(now)

    def _processFields(self, now: float) -> dict[str, Any]:
        process = self._process
        return {
            "residentBytes": process.residentBytes,
            "privateBytes": process.privateBytes,
            "cpuSeconds": process.cpuSeconds,
            "openDescriptors": process.openDescriptors,
            "maxDescriptors": process.maxDescriptors,
        }

    def _poolFields(self, now: float) -> dict[str, Any]:
        gate = self.server.gate
        pool = gate.pool
        return {
            "sizeBytes": bounded(pool.sizeBytes),
            "usedBytes": pool.sizeBytes - pool.availableBytes,
            "idleBytes": pool.idleBytes,
            "isShort": gate.pressure.isOn,
            "waiting": gate.memory.waiting,
        }

    def _connectionsFields(self, now: float) -> dict[str, Any]:
        server = self.server
        held = ((each.heldBytes, each) for each in server.connections)
        return {
            "open": len(server.connections),
            "allowed": server.limits.maxConnections,
            "refused": server.refusedConnections,
            "largest": [
                {
                    "peer": connection.peer,
                    "user": shortened(connection.principal or ""),
                    "clientId": shortened(connection.clientId),
                    "heldBytes": heldBytes,
                    "requestBytes": connection.requestBytes,
                    "bufferedBytes": connection.unservedBytes(),
                    "unsentBytes": connection.link.unsentBytes(),
                    "mutedFor": [reason.value for reason in connection.link.pauses.reasons],
                    "mutedSeconds": now - min(connection.link.pauses.reasons.values(), default=now),
                }
                for heldBytes, connection in nlargest(MAX_CONNECTIONS, held, key=lambda pair: pair[0])
            ],
        }

    def _mutedFields(self, now: float) -> dict[str, int]:
        """
        How many connections are paused, by reason; one connection may have several.
        """
        counts = dict.fromkeys(self._pauses, 0)
        for connection in self.server.connections:
            for reason in connection.link.pauses.reasons:
                counts[reason.value] = counts.get(reason.value, 0) + 1
        return counts

    def _policyFields(self, now: float) -> dict[str, Any]:
        policies: dict[str, Any] = {}
        for sensor, key in (("QuotaThrottles", "throttles"), ("QuotaRefusals", "refusals")):
            family = self.sensors.families.get(sensor)
            for (policy,), count in () if family is None else family.read(now):
                policies.setdefault(policy, {"throttles": 0, "refusals": 0})[key] = count
        return policies

    def _responsesFields(self, now: float) -> dict[str, Any] | None:
        """
        How many requests of sites were answered, by class of status, and the same by kind, the most frequent first;
        L{None} if there is no site.
        """
        family = self.sensors.families.get("Responses")
        if family is None:
            return None
        totals: Counter[str] = Counter()
        kinds: dict[str, Counter[str]] = {}
        for (kind, status), count in family.read(now):
            for counter in (totals, kinds.setdefault(kind, Counter())):
                counter[status or LEFT] += int(count)
        frequent = nlargest(MAX_KINDS, kinds.items(), key=lambda item: item[1].total())
        return {**totals, "kinds": [{"kind": shortened(kind), **counts} for kind, counts in frequent]}

    def _memoryShortage(self, now: float) -> Iterator[str]:
        since = self._shortSinceSeconds
        if since is not None and now - since >= SHORTAGE_SECONDS:
            yield (
                f"for {now - since:.0f} s the memory pool has been short, and "
                f"{self.server.gate.memory.waiting} connections wait for it ({self._poolSetting})"
            )

    def _fullness(self, now: float) -> Iterator[str]:
        server = self.server
        if now - server.fullSeconds < FULL_SECONDS:
            yield (
                f"newcomers are refused: of {server.limits.maxConnections} connections that are allowed "
                f"{len(server.connections)} are open ({server.limits.settingOf('maxConnections')}, ulimit -n)"
            )

    def _pressed(self, isPressed: bool) -> None:
        self._shortSinceSeconds = self.sensors.seconds() if isPressed else None
