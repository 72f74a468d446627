# -*- test-case-name: tests.unit.kafka.test_statussections -*-
"""
How a broker is at one moment: what the status page and C{admission top} show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from .._version import __version__
from ..connection.factory import AdmittedFactory
from ..kafka.broker.broker import Broker
from ..kafka.session import KafkaConnection
from ..kafka.statussections import largestFields, mutedFields, throttledFields
from ..metrics.process import ProcessUsage
from ..metrics.registry import SensorRegistry
from .groups import groupsFields
from .health import Health
from .sections import bounded, finite

KEPT_SECONDS = 1.0
"""For how long a snapshot will do: however many people look, connections are counted once in this time."""


class Snapshot:
    """
    Looks at everything when somebody asks, and at most once a second.

    Its lists are bounded; their order says what was left out.
    """

    def __init__(
        self,
        broker: Broker,
        factory: AdmittedFactory,
        health: Health,
        process: ProcessUsage,
        listeners: Callable[[], Sequence[str]],
        seconds: Callable[[], float],
    ) -> None:
        """
        @param factory: the connections, all of which are L{KafkaConnection}s.
        @param listeners: tells where the broker listens, in words.
        @param seconds: a monotonic clock.
        """
        self._broker = broker
        self._factory = factory
        self._health = health
        self._process = process
        self._listeners = listeners
        self._seconds = seconds
        self._startedSeconds = seconds()
        self._takenSeconds = float("-inf")
        self._fields: dict[str, Any] = {}
        self._text = ""
        self._sensors: SensorRegistry | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """
        All of it, in the form of the document that L{text} is; not to be
        changed.
        """
        nowSeconds = self._seconds()
        if nowSeconds - self._takenSeconds >= KEPT_SECONDS:
            self._takenSeconds = nowSeconds
            self._fields = self._take(nowSeconds)
            self._text = ""
        return self._fields

    @property
    def text(self) -> str:
        """
        The same as JSON.
        """
        fields = self.fields
        if not self._text:
            self._text = json.dumps(fields, allow_nan=False) + "\n"
        return self._text

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what a snapshot knows and no other sensor tells.

        @raise ValueError: if there are sensors of these names.
        """
        self._sensors = registry
        factory, pool = self._factory, self._broker.gate.pool
        registry.addGauge("MemoryPoolSize", lambda now: pool.sizeBytes)
        registry.addGauge("Connections", lambda now: len(factory.connections))
        registry.addGauge("ConnectionsAllowed", lambda now: factory.limits.maxConnections)
        registry.addGauge("ClientsThrottled", lambda now: int(self.fields["throttled"]["count"]))
        registry.addGauge("GroupMembers", lambda now: int(self.fields["groups"]["memberCount"]))
        registry.addGauge("Healthy", lambda now: not self._health.reasons)
        registry.addGauge("UptimeSeconds", lambda now: now - self._startedSeconds)
        registry.addCounter("ConnectionsRefused", lambda now: factory.refusedConnections)
        registry.addCounter("RequestsRead", lambda now: factory.requestCount)
        registry.addCounter("RequestBytesRead", lambda now: factory.requestBytes)
        registry.addFamily("ConnectionsMuted", ("reason",), lambda now: _rows(self.fields["muted"]))
        registry.addFamily("Groups", ("state",), lambda now: _rows(self.fields["groups"]["states"]))
        registry.addFamily("GroupLag", ("group",), self._lags)
        registry.addFamily("BuildInfo", ("version",), lambda now: [((__version__,), 1)])
        self._process.addSensors(registry)

    def _lags(self, now: float) -> Iterator[tuple[tuple[str], float]]:
        for group in self.fields["groups"]["groups"]:
            if group["lagRecords"] is not None:
                yield (group["groupId"],), group["lagRecords"]

    def _take(self, nowSeconds: float) -> dict[str, Any]:
        broker, factory, process = self._broker, self._factory, self._process
        connections = cast("list[KafkaConnection]", list(factory.connections))
        reasons = self._health.reasons
        return {
            "version": __version__,
            "atSeconds": broker.wallSeconds(),
            "uptimeSeconds": nowSeconds - self._startedSeconds,
            "listeners": list(self._listeners()),
            "health": {"status": "unavailable" if reasons else "ok", "reasons": reasons},
            "process": {
                "residentBytes": process.residentBytes,
                "privateBytes": process.privateBytes,
                "cpuSeconds": process.cpuSeconds,
                "openDescriptors": process.openDescriptors,
                "maxDescriptors": process.maxDescriptors,
            },
            "pool": self._poolFields(),
            "ledger": dict(broker.gate.ledger),
            "requests": {
                "running": broker.gate.runningRequests,
                "maxRunning": broker.gate.maxRequests,
                "read": factory.requestCount,
                "readBytes": factory.requestBytes,
            },
            "connections": {
                "open": len(connections),
                "allowed": factory.limits.maxConnections,
                "refused": factory.refusedConnections,
                "largest": largestFields(connections, nowSeconds),
            },
            "muted": mutedFields(connections),
            "throttled": throttledFields(connections, nowSeconds, broker.control),
            "policies": self._policyFields(nowSeconds),
            "purgatory": self._purgatoryFields(),
            "groups": groupsFields(broker.groups.all),
        }

    def _poolFields(self) -> dict[str, Any]:
        gate, pool = self._broker.gate, self._broker.gate.pool
        return {
            "sizeBytes": bounded(pool.sizeBytes),
            "usedBytes": pool.sizeBytes - pool.availableBytes,
            "idleBytes": pool.idleBytes,
            "isShort": gate.isUnderPressure,
            "waiting": gate.waitingForMemory,
        }

    def _purgatoryFields(self) -> dict[str, Any]:
        purgatory = self._broker.purgatory
        return {
            "watched": purgatory.watched,
            "delayed": purgatory.delayed,
            "expirations": purgatory.expirations,
            "waitMedianSeconds": finite(purgatory.waits.quantile(0.5)),
            "waitPercentile99Seconds": finite(purgatory.waits.quantile(0.99)),
        }

    def _policyFields(self, nowSeconds: float) -> dict[str, Any]:
        policies: dict[str, Any] = {}
        if self._sensors is not None:
            for sensor, key in (("QuotaThrottles", "throttles"), ("QuotaRefusals", "refusals")):
                family = self._sensors.families.get(sensor)
                for (policy,), count in () if family is None else family.read(nowSeconds):
                    policies.setdefault(policy, {"throttles": 0, "refusals": 0})[key] = count
        return policies


def _rows(counts: dict[str, int]) -> Iterator[tuple[tuple[str], float]]:
    for label, count in counts.items():
        yield (label,), count
