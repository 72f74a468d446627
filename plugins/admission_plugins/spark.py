# -*- test-case-name: tests.contracts.test_spark_exporter -*-
"""
Records what happens for Spark: events are written into a mapped file at once,
and become Parquet in a process of its own.

Of the directory, C{_segments} holds what is not sealed yet, and each table has
a directory of its own, with one for each day and in it one for each hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from zope.interface import implementer

from admission.interfaces import IMetricsExporter, ISensorRegistry, PolicyContext
from admission.recording.events import Origin
from admission.recording.segmentheader import PAGE_BYTES, Header
from admission.recording.segments import SegmentWriter, segmentPaths
from admission.units import formatBytes, parseBytes, parseSeconds

from .sealer import Seal, Sealer, sealInline, sealInProcess
from .sealreport import SEGMENTS, SEGMENTS_SHARE
from .segmentsupply import SegmentSupply

SMALLEST_CAP_BYTES = 4 << 20
LARGEST_SEGMENT_BYTES = 16 << 20

SEGMENTS_IN_CAP = 32
"""What part of the bound a segment takes, unless it would be larger than L{LARGEST_SEGMENT_BYTES}."""

SEAL_SHARE = 16
"""Sealing begins at the latest when segments that wait for it take this part of the bound."""

_SEALS: Mapping[str, Seal] = {"process": sealInProcess, "inline": sealInline}


def buildSpark(
    context: PolicyContext, directory: str, rotate: str = "60s", cap: str = "2GiB", sealing: str = "process"
) -> SparkExporter:
    """
    Make a L{SparkExporter} of a description.

    @raise ValueError: for a duration or a size that makes no sense, or if a
        library is missing.
    """
    if sealing not in _SEALS:
        raise ValueError(f"sealing={sealing}: say {' or '.join(_SEALS)}")
    missing = [name for name in ("numpy", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ValueError(f"Parquet files need {' and '.join(missing)}: install admission[spark]")
    if not directory:
        raise ValueError("the directory to record to is missing")
    rotateSeconds, capBytes = parseSeconds(rotate), parseBytes(cap)
    if rotateSeconds < 1:
        raise ValueError(f"rotate must be 1s at least, not {rotate}")
    if capBytes < SMALLEST_CAP_BYTES:
        raise ValueError(f"cap must be {formatBytes(SMALLEST_CAP_BYTES)} at least, not {cap}")
    return SparkExporter(
        os.path.abspath(directory), context.clock, context.wallSeconds, rotateSeconds, capBytes, _SEALS[sealing]
    )


@implementer(IMetricsExporter)
class SparkExporter:
    """
    Writes one segment after the other and has them sealed.

    The next segment is made while the present one is filled.  If it is not
    ready in time, because the disk has no room or because segments that cannot
    be sealed take their share of the bound, events are dropped until it is, and
    counted.

    @ivar directory: where to.
    @ivar rotateSeconds: how long an event waits at most before its segment is
        sealed.
    @ivar capBytes: how large the directory may be.
    """

    _log = Logger()

    def __init__(
        self,
        directory: str,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        rotateSeconds: float,
        capBytes: int,
        seal: Seal = sealInProcess,
    ) -> None:
        """
        @param clock: monotonic; the one that events go by.
        @param wallSeconds: seconds since the epoch.
        @param seal: how segments are sealed.
        """
        self.directory = directory
        self.rotateSeconds = rotateSeconds
        self.capBytes = capBytes
        self.droppedEvents = 0
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._seal = seal
        self._rotating = LoopingCall(self._rotate)
        self._rotating.clock = clock
        self._segment: SegmentWriter | None = None
        self._begun = 0
        self._recordCount = 0
        self._textOverflows = 0
        self._toldDrops = 0

    @property
    def recordedEvents(self) -> int:
        """
        How many events and samples were recorded.
        """
        return self._recordCount + (self._segment.recordCount if self._segment is not None else 0)

    @property
    def textOverflows(self) -> int:
        """
        How often there was no room for a text, as for client ids that are all
        different.
        """
        return self._textOverflows + (self._segment.textOverflows if self._segment is not None else 0)

    @property
    def sealedRows(self) -> int:
        """
        How many rows have become Parquet, those included that an earlier run
        left behind.
        """
        return self._sealer.sealedRows

    def start(self, origin: Origin, deferToThread: Callable[..., Deferred[Any]]) -> None:
        """
        See L{IMetricsExporter}.  What an earlier run left behind is sealed in
        the background.
        """
        segments = os.path.join(self.directory, SEGMENTS)
        os.makedirs(segments, exist_ok=True)
        hasLeftovers = bool(segmentPaths(segments))
        sizeBytes = min(self.capBytes // SEGMENTS_IN_CAP // PAGE_BYTES * PAGE_BYTES, LARGEST_SEGMENT_BYTES)
        self._origin = origin
        self._supply = SegmentSupply(
            segments, origin.bootId, sizeBytes, self.capBytes // SEGMENTS_SHARE, self._clock, deferToThread
        )
        self._sealer = Sealer(self._seal, self.directory, self.capBytes, self.capBytes // SEAL_SHARE, deferToThread)
        self._begin(self._supply.make())
        self._supply.prepare()
        if hasLeftovers:
            self._sealer.seal()
        self._rotating.start(self.rotateSeconds, now=False)

    def exportEvent(self, event: Any) -> None:
        """
        See L{IMetricsExporter}.
        """
        segment = self._segment
        if segment is None or not segment.append(event):
            self._appendToNext(event)

    def exportSamples(self, samples: Sequence[Any]) -> None:
        """
        See L{IMetricsExporter}.
        """
        for sample in samples:
            self.exportEvent(sample)

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.recorded-events}, C{NAME.text-overflows},
        C{NAME.sealed-rows}, C{NAME.evicted-files} and C{NAME.failures}, and as
        a gauge C{NAME.sealed-bytes}.

        @raise ValueError: if there are sensors of these names.
        """
        sealer, supply = self._sealer, self._supply
        registry.addGauge(f"{name}.sealed-bytes", lambda now: sealer.sealedBytes)
        registry.addCounter(f"{name}.recorded-events", lambda now: self.recordedEvents)
        registry.addCounter(f"{name}.text-overflows", lambda now: self.textOverflows)
        registry.addCounter(f"{name}.sealed-rows", lambda now: sealer.sealedRows)
        registry.addCounter(f"{name}.evicted-files", lambda now: sealer.evictedFiles)
        registry.addCounter(f"{name}.failures", lambda now: sealer.failures + supply.failures)

    def stop(self) -> Deferred[Any]:
        """
        See L{IMetricsExporter}.  Fires when all has been sealed, or cannot be
        now; then the next start does it.
        """
        self._rotating.stop()
        self._end()
        return gatherResults([self._supply.stop(), self._sealer.sealWhatWaits()])

    def _begin(self, segment: SegmentWriter) -> None:
        self._begun += 1
        segment.begin(Header(self._origin, self._begun, self._clock.seconds(), self._wallSeconds()))
        self._segment = segment

    def _end(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            self._recordCount += segment.recordCount
            self._textOverflows += segment.textOverflows
            self._sealer.close(segment)

    def _goOn(self, isBusy: bool) -> bool:
        """
        Begin the next segment.

        @param isBusy: whether this one is full before its time.
        @return: whether there is one.
        """
        following = self._supply.take(isBusy)
        if following is None:
            return False
        self._end()
        self._begin(following)
        if self.droppedEvents > self._toldDrops:
            self._log.warn(
                "{count} events were dropped before there was room to record to",
                count=self.droppedEvents - self._toldDrops,
            )
            self._toldDrops = self.droppedEvents
        return True

    def _appendToNext(self, event: Any) -> None:
        if not (self._goOn(True) and self._segment is not None and self._segment.append(event)):
            self.droppedEvents += 1

    def _rotate(self) -> None:
        if self._segment is not None and self._segment.recordCount:
            self._goOn(False)
        self._sealer.sealWhatWaits()
