# -*- test-case-name: tests.unit.recording.test_recorder -*-
"""
Records a server's requests and passes the events on to exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..interfaces import IHistogram, IMetricsExporter, QuotaEntity
from ..metrics.registry import SensorRegistry
from ..policyfailure import FAILURES, raiseInterrupt
from .events import (
    CLOSED,
    COUNTER,
    GAUGE,
    OPENED,
    UNKNOWN_SECONDS,
    ConnectionEvent,
    LimitEvent,
    Origin,
    RequestEvent,
    SensorSample,
)

SAMPLE_SECONDS = 10.0
"""How often sensors are read, by default."""

MAX_SAMPLES = 1000
"""How many samples are taken at a time."""

MAX_OF_FAMILY = 100
"""How many of them are of one family, which may have one sensor for each client."""

_FAILURE_SECONDS = 60.0


@define(eq=False)
class _Member:
    name: str
    exporter: IMetricsExporter
    failures: int = 0
    silentUntilSeconds: float = field(default=float("-inf"))


class EventRecorder:
    """
    Records the events of one server.  Its connections call it as things happen; exporters get every event at once, and
    samples of sensors regularly.

    An exporter that raises still gets the next event, and the error is logged once a minute: no request fails because
    it cannot be recorded.

    All methods are for the reactor's thread.

    @ivar isRecording: whether there are exporters.  Check it before making an event, and recording costs nothing
        without any.
    @ivar shortenedSamples: how often samples were left out, because there were more than L{MAX_SAMPLES} or
        L{MAX_OF_FAMILY}.
    """

    _log = Logger()

    def __init__(
        self,
        exporters: Sequence[tuple[str, IMetricsExporter]],
        clock: IReactorTime,
        registry: SensorRegistry,
        sampleSeconds: float = SAMPLE_SECONDS,
    ) -> None:
        """
        @param exporters: the name of each, and the exporter.
        @param clock: monotonic; events have its time.
        @param registry: the sensors to sample.
        """
        self.isRecording = False
        self.shortenedSamples = 0
        self._members = [_Member(name, exporter) for name, exporter in exporters]
        self._listening: Sequence[_Member] = ()
        self._clock = clock
        self._registry = registry
        self._sampleSeconds = sampleSeconds
        self._sampling = LoopingCall(self.sample)
        self._sampling.clock = clock
        self._seq = 0
        self._connections = 0

    def start(self, origin: Origin, deferToThread: Callable[..., Deferred[Any]]) -> None:
        """
        Start recording.

        @param origin: the part that all events share.
        @param deferToThread: for exporters, to wait for the disk.
        @raise Exception: an exporter's error, if one cannot start; none has been started then.
        """
        started: list[IMetricsExporter] = []
        try:
            for member in self._members:
                member.exporter.start(origin, deferToThread)
                started.append(member.exporter)
        except BaseException:
            for exporter in started:
                exporter.stop()
            raise
        if self._members:
            self.isRecording = True
            self._listening = self._members
            self._sampling.start(self._sampleSeconds, now=False)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish for each exporter how many events it dropped and how often it raised, how often samples were left out,
        and the exporters' own sensors; nothing if there are no exporters.

        @raise ValueError: if there are sensors of these names.
        """
        if not self._members:
            return
        registry.addFamily(
            "ExportDroppedEvents",
            ("exporter",),
            lambda now: [((member.name,), member.exporter.droppedEvents) for member in self._members],
            isCounter=True,
        )
        registry.addFamily(
            "ExportFailures",
            ("exporter",),
            lambda now: [((member.name,), member.failures) for member in self._members],
            isCounter=True,
        )
        registry.addCounter("ExportShortenedSamples", lambda now: self.shortenedSamples)
        for member in self._members:
            member.exporter.addSensors(registry, member.name)

    def stop(self) -> Deferred[Any]:
        """
        Sample the sensors once more, and stop recording.

        @return: fires when the exporters have stored all events.
        """
        if not self.isRecording:
            return gatherResults([])
        self._sampling.stop()
        self.sample()
        self.isRecording = False
        self._listening = ()
        return gatherResults([maybeDeferred(member.exporter.stop) for member in self._members])

    def connectionOpened(self, listener: str, peer: str, principal: str | None = None) -> int:
        """
        A client has connected.

        @param listener: the port, as the operator describes it.
        @param peer: the client's address without its port.
        @param principal: the client's principal, if already known.
        @return: the id of the connection, for its other events.
        """
        self._connections += 1
        self._export(ConnectionEvent(self._connections, self._clock.seconds(), OPENED, listener, peer, principal))
        return self._connections

    def connectionClosed(
        self,
        connectionId: int,
        listener: str,
        peer: str,
        principal: str | None,
        reason: str | None,
        requestCount: int = 0,
        openSeconds: float = UNKNOWN_SECONDS,
    ) -> None:
        """
        A connection has ended.

        @param connectionId: the result of L{connectionOpened}.
        @param reason: why, as text.
        @param requestCount: how many requests came on it.
        @param openSeconds: for how long it was open.
        """
        self._export(
            ConnectionEvent(
                connectionId,
                self._clock.seconds(),
                CLOSED,
                listener,
                peer,
                principal,
                reason,
                requestCount,
                openSeconds,
            )
        )

    def requestAnswered(self, event: RequestEvent) -> None:
        """
        The response to a request has been sent, or there will be none.

        @param event: complete; not to be changed any more.
        """
        # NaN, so unknown.
        if event.sentSeconds != event.sentSeconds:
            event.sentSeconds = self._clock.seconds()
        self._export(event)

    def limitsChanged(
        self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float, changedBy: str | None = None
    ) -> None:
        """
        Limits were set, or with L{None} removed.  Call this also for the limits in force at the start: a replay needs
        them.

        @param entity: whose limits they are.
        @param now: when the policies were told, in seconds of the server's monotonic clock.
        @param changedBy: the user who did it; L{None} for the configuration.
        """
        for name, value in limits.items():
            self._export(
                LimitEvent(
                    now,
                    entity.user,
                    entity.clientId,
                    entity.ip,
                    name,
                    UNKNOWN_SECONDS if value is None else value,
                    changedBy,
                )
            )

    def sample(self) -> None:
        """
        Read all sensors; called every C{sampleSeconds}.  A histogram becomes a counter for each of its buckets and one
        for its total.
        """
        if not self.isRecording:
            return
        now = self._clock.seconds()
        try:
            read = self._read()
            samples = [SensorSample(now, *each) for each in islice(read, MAX_SAMPLES)]
            if next(read, None) is not None:
                self.shortenedSamples += 1
        except FAILURES:
            raiseInterrupt()
            # A sensor that raises must not end the sampling of all others.
            self._log.failure("the sensors cannot be read")
            return
        for sample in samples:
            self._seq += 1
            sample.seq = self._seq
        for member in self._listening:
            try:
                member.exporter.exportSamples(samples)
            except FAILURES:
                self._failed(member)

    def _read(self) -> Iterator[tuple[str, str, float, str | None]]:
        registry = self._registry
        for name, value in registry:
            yield name, COUNTER if name in registry.counters else GAUGE, value, None
        for name, histogram in registry.histograms.items():
            for count, label in registry.tryRead(name, partial(_countsOf, histogram)) or ():
                yield name, COUNTER, count, label
        for name, family in registry.families.items():
            kind = COUNTER if family.isCounter else GAUGE
            members = iter(family.read(registry.seconds()))
            for labels, value in islice(members, MAX_OF_FAMILY):
                pairs = zip(family.labelNames, labels, strict=True)
                yield name, kind, value, ",".join(f"{label}={text}" for label, text in pairs)
            if next(members, None) is not None:
                self.shortenedSamples += 1

    def _export(self, event: Any) -> None:
        self._seq += 1
        event.seq = self._seq
        for member in self._listening:
            try:
                member.exporter.exportEvent(event)
            except FAILURES:
                self._failed(member)

    def _failed(self, member: _Member) -> None:
        raiseInterrupt()
        member.failures += 1
        now = self._clock.seconds()
        if now >= member.silentUntilSeconds:
            member.silentUntilSeconds = now + _FAILURE_SECONDS
            self._log.failure(
                "the exporter {name} failed, {count} times so far", name=member.name, count=member.failures
            )


def _countsOf(histogram: IHistogram) -> list[tuple[float, str]]:
    buckets = zip((*histogram.bounds, float("inf")), histogram.counts, strict=True)
    return [*((float(count), f"le={bound:g}") for bound, count in buckets), (float(histogram.total), "total")]
