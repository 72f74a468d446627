"""
What recording costs: CPU time for each event, and how late the reactor's ticks become while events are recorded and
sealed.

    python -m benchmarks.recording [--json] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from zope.interface import implementer

from admission.interfaces import IMetricsExporter
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.metrics.registry import SensorRegistry
from admission.recording.events import ADMIT, Origin
from admission.recording.recorder import EventRecorder
from admission.recording.recordlayout import SLOT_BYTES, TextCodes, packer
from admission.recording.tables import REQUESTS
from admission_plugins.parquetexporter import ParquetExporter, Seal, sealInProcess
from admission_plugins.sealreport import SealReport

from .loops import EpollLoop, Processes, Turns
from .measure import MIB, Report, cpuSeconds, inTurns, median, noCollections, run, spreadPercent

CAP_BYTES = 2048 * MIB
TICK_SECONDS = 0.001
EVENTS_PER_SECOND = 40_000
CLIENTS = [f"client-{number}" for number in range(2000)]

NOBODY = "nobody"
NOTHING = "nothing"
SPARK = "spark"
SPARK_WITH_LISTS = "spark, with producers and delays"


@implementer(IMetricsExporter)
class Nothing:
    """
    An exporter that does not export.
    """

    droppedEvents = 0

    def start(self, origin: Origin, deferToThread: Callable[..., Any]) -> None:
        """
        See L{IMetricsExporter}, like all others.
        """

    def exportEvent(self, event: Any) -> None:
        """
        Do nothing.
        """

    def exportSamples(self, samples: Sequence[Any]) -> None:
        """
        Do nothing.
        """

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        """
        There are none.
        """

    def stop(self) -> Deferred[None]:
        """
        Nothing is under way.
        """
        return succeed(None)


class Packing(Nothing):
    """
    Makes records as L{ParquetExporter} does, and writes each over the one before: the same work, and no disk.
    """

    def __init__(self) -> None:
        self._slot = bytearray(SLOT_BYTES)
        self._codes = TextCodes(len(CLIENTS) * 2, CLIENTS.count)
        self._pack = packer(REQUESTS, KafkaRequestEvent)

    def exportEvent(self, event: Any) -> None:
        """
        Make a record.
        """
        self._pack(self._slot, 0, self._codes, self._codes, event)


def sealInThread(directory: str, capBytes: int) -> SealReport:
    """
    Seal in this process.
    """
    from admission_plugins.sealing import sealAll

    return sealAll(directory, capBytes)


def doNotSeal(directory: str, capBytes: int) -> SealReport:
    """
    Leave the segments as they are.
    """
    return SealReport()


NOT_RECORDED = "not recorded"
PACKED = "packed only"
SEALED: dict[str, Seal] = {
    NOT_RECORDED: doNotSeal,
    PACKED: doNotSeal,
    "not sealed": doNotSeal,
    "in a process": sealInProcess,
    "in a thread": sealInThread,
}
"""Ways to record and seal while a reactor runs."""


def requestEvent(number: int, nowSeconds: float, hasLists: bool = False) -> KafkaRequestEvent:
    """
    What a session knows of a request in the end.
    """
    event = KafkaRequestEvent(
        number & 1023, nowSeconds, "tcp:9092", "127.0.0.1", "ANONYMOUS", CLIENTS[number % len(CLIENTS)], "Produce"
    )
    event.apiKey = 0
    event.apiVersion = 9
    event.correlationId = number
    event.requestBytes = 16_000
    event.responseBytes = 60
    event.decision = ADMIT
    event.inFlight = 2
    event.serviceSeconds = 0.0001
    event.poolHoldSeconds = 0.0002
    event.poolUsedBytes = 1 << 20
    event.poolAvailableBytes = 1 << 28
    if hasLists:
        event.identities = (number,)
        event.policyDelaysSeconds = (0.0, 0.25, 0.0, 0.0)
    return event


def measureEvent(name: str, count: int) -> float:
    """
    CPU seconds for each event: making it, and having it recorded.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="admission-recording-"))
        clock = Clock()
        exporter: IMetricsExporter | None = Nothing() if name == NOTHING else None
        if name in (SPARK, SPARK_WITH_LISTS):
            exporter = ParquetExporter(directory, clock, clock.seconds, 60.0, CAP_BYTES, doNotSeal)
        recorder = EventRecorder(
            [(name, exporter)] if exporter is not None else [], clock, SensorRegistry(clock.seconds)
        )
        recorder.start(Origin("0", "benchmark"), lambda function, *args: succeed(function(*args)))
        stack.callback(recorder.stop)
        answered, hasLists = recorder.requestAnswered, name == SPARK_WITH_LISTS
        with noCollections():
            started = cpuSeconds()
            if recorder.isRecording:
                for number in range(count):
                    answered(requestEvent(number, 1.0, hasLists))
            else:
                for number in range(count):
                    requestEvent(number, 1.0, hasLists)
            return (cpuSeconds() - started) / count


@frozen
class Gaps:
    """
    What ticks were like.

    @ivar seconds: the time between one and the next, ascending.
    @ivar events: how many were recorded or, where nothing is, made.
    @ivar droppedEvents: how many were dropped.
    @ivar sealedRows: how many rows were sealed meanwhile.
    """

    seconds: Sequence[float]
    events: int
    droppedEvents: int
    sealedRows: int

    def quantileMilliseconds(self, share: float) -> float:
        """
        The gap at C{share} of all.
        """
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)] * 1000


def measureGaps(name: str, runSeconds: float, warmUpSeconds: float, rotateSeconds: float) -> Gaps:
    """
    Record at a steady rate in a running reactor, and look at its ticks.

    @param name: a way to seal.
    """
    with TemporaryDirectory(prefix="admission-recording-") as directory:
        loop = EpollLoop()
        loop.reactor.seconds = time.monotonic
        found: list[Gaps] = []
        loop.run(_ticks(loop.reactor, directory, name, runSeconds, warmUpSeconds, rotateSeconds, found.append))
        return found[0]


def _ticks(
    reactor: Any,
    directory: str,
    name: str,
    runSeconds: float,
    warmUpSeconds: float,
    rotateSeconds: float,
    report: Callable[[Gaps], object],
) -> Turns:
    spark = ParquetExporter(directory, reactor, time.time, rotateSeconds, CAP_BYTES, SEALED[name])
    exporters: dict[str, Sequence[tuple[str, IMetricsExporter]]] = {NOT_RECORDED: [], PACKED: [(name, Packing())]}
    recorder = EventRecorder(exporters.get(name, [(name, spark)]), reactor, SensorRegistry(reactor.seconds))
    recorder.start(Origin("0", "benchmark"), partial(deferToThreadPool, reactor, reactor.getThreadPool()))
    gaps: list[float] = []
    now = started = reactor.seconds()
    count = 0
    while now - started < warmUpSeconds + runSeconds:
        due = int((now - started) * EVENTS_PER_SECOND)
        while count < due:
            event = requestEvent(count, now)
            if recorder.isRecording:
                recorder.requestAnswered(event)
            count += 1
        yield TICK_SECONDS
        before, now = now, reactor.seconds()
        if before - started > warmUpSeconds:
            gaps.append(now - before)
    stopped = recorder.stop()
    while not stopped.called:
        yield TICK_SECONDS
    sealedRows = 0 if name in exporters else spark.sealedRows
    report(Gaps(sorted(gaps), count - spark.droppedEvents, spark.droppedEvents, sealedRows))


def measureEvents(report: Report, processes: Processes) -> None:
    """
    Microseconds for each event.
    """
    count, rounds = (5_000, 2) if report.quick else (300_000, 5)
    names = [NOBODY, NOTHING, SPARK, SPARK_WITH_LISTS]
    costs = inTurns(names, rounds, lambda name: processes.run(measureEvent, name, count), "events")
    for name, each in costs.items():
        report.add(
            "events",
            exporter=name,
            cpuMicroseconds=median(each) * 1e6,
            spreadPercent=spreadPercent(each),
        )


def measureTicks(report: Report, processes: Processes) -> None:
    """
    Milliseconds between ticks of one millisecond.
    """
    rounds, runSeconds, warmUpSeconds = (1, 0.2, 0.05) if report.quick else (3, 10.0, 5.0)
    rotateSeconds = 1.0 if report.quick else 3.0

    def measure(name: str) -> Gaps:
        return processes.run(measureGaps, name, runSeconds, warmUpSeconds, rotateSeconds)

    for name, each in inTurns(SEALED, rounds, measure, "ticks").items():
        worst = max(each, key=lambda gaps: gaps.quantileMilliseconds(0.999))
        report.add(
            "ticks",
            sealed=name,
            events=sum(gaps.events for gaps in each),
            droppedEvents=sum(gaps.droppedEvents for gaps in each),
            sealedRows=sum(gaps.sealedRows for gaps in each),
            p99Milliseconds=median([gaps.quantileMilliseconds(0.99) for gaps in each]),
            p999Milliseconds=median([gaps.quantileMilliseconds(0.999) for gaps in each]),
            worstP999Milliseconds=worst.quantileMilliseconds(0.999),
            longestMilliseconds=max(gaps.seconds[-1] for gaps in each) * 1000,
        )


def measure(report: Report) -> None:
    """
    Everything.
    """
    with Processes(fresh=not report.quick) as processes:
        measureEvents(report, processes)
        measureTicks(report, processes)


if __name__ == "__main__":
    run(
        "What recording admission events costs: CPU time for each event, and how late ticks of a millisecond come",
        "What it costs to record admission events, and what sealing them does to the reactor.",
        measure,
    )
