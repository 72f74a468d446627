# -*- test-case-name: tests.offline.test_parquetexporter -*-
"""
Records events as Parquet: events are written into a mapped file at once, and become Parquet in a process of its own.

In the directory, C{_segments} holds the segments that are not sealed yet, and each table has a directory of its own,
with one for each day and in it one for each hour.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, gatherResults, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from admission.extras import lacking
from admission.interfaces import IMetricsExporter, ISensorRegistry, ITryOut, PolicyContext
from admission.recording.events import Origin
from admission.recording.segmentheader import PAGE_BYTES, Header
from admission.recording.segments import MAX_SEGMENT_BYTES, SUFFIX, SegmentWriter, segmentPaths
from admission.units import formatBytes, parseBytes, parseSeconds

from .sealreport import SEGMENTS, SEGMENTS_SHARE, SealReport

SMALLEST_CAP_BYTES = 4 << 20

SEGMENTS_IN_CAP = 32
"""A segment's part of the bound, unless it would be larger than L{MAX_SEGMENT_BYTES}."""

SEAL_SHARE = 16
"""Sealing begins at the latest when waiting segments take this part of the bound."""

RETRY_SECONDS = 1.0
"""How long to wait when the disk is full."""

LOOK_SECONDS = 1.0
"""How often to look whether the segment that is written was deleted."""

LONGEST_SEALING_SECONDS = 600.0

Seal = Callable[[str, int], SealReport]
"""Seals the segments in a directory, given its maximum size.  Runs in a thread."""


class SegmentSupply:
    """
    Keeps one empty segment ready, so that writing never waits for the disk: a thread allocates its disk space and finds
    out if there is none.

    @ivar failures: how often that failed.
    """

    _log = Logger()

    def __init__(
        self,
        directory: str,
        bootId: str,
        sizeBytes: int,
        maxBytes: int,
        clock: IReactorTime,
        deferToThread: Callable[..., Deferred[Any]],
    ) -> None:
        """
        @param directory: of the segments; it exists.
        @param bootId: the prefix of their names.
        @param sizeBytes: the size of each.
        @param maxBytes: the maximum size of all segments together, including those of other processes.
        @param clock: for retries.
        @param deferToThread: runs functions that wait for the disk.
        """
        self.failures = 0
        self._directory = directory
        self._bootId = bootId
        self._sizeBytes = sizeBytes
        self._maxBytes = maxBytes
        self._clock = clock
        self._deferToThread = deferToThread
        self._number = 0
        self._spare: SegmentWriter | None = None
        self._making: Deferred[None] | None = None
        self._retry: IDelayedCall | None = None
        self._isBusy = False
        self._isFailing = False
        self._isStopped = False

    def make(self) -> SegmentWriter:
        """
        Make a segment now, however many there are.

        @raise OSError: if the disk is full or fails.
        """
        self._number += 1
        return self._create(self._number, False)

    def take(self, isBusy: bool) -> SegmentWriter | None:
        """
        Take the ready segment, and prepare the next one.

        @param isBusy: whether the next one should be populated in memory, because many events come.
        @return: L{None} if none is ready.
        """
        spare, self._spare = self._spare, None
        if spare is not None and spare.isRemoved:
            self._close(spare)
            spare = None
        self._isBusy = isBusy
        self.prepare()
        return spare

    def prepare(self) -> None:
        """
        Have a segment made, unless one is ready or about to be.
        """
        if self._isStopped or not (self._spare is None and self._making is None and self._retry is None):
            return
        self._number += 1
        done: Deferred[None] = Deferred()
        self._making = done
        made = maybeDeferred(self._deferToThread, self._makeWithin, self._number, self._isBusy)
        made.addCallbacks(self._made, self._failed)
        made.addErrback(self._cannotClose)
        made.addCallback(lambda ignored: done.callback(None))

    def stop(self) -> Deferred[None]:
        """
        Make no more segments, and remove the one that is ready.

        @return: fires when no thread is running any more.
        """
        self._isStopped = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._making is not None:
            return self._making
        spare, self._spare = self._spare, None
        return succeed(None) if spare is None else self._close(spare)

    def _close(self, spare: SegmentWriter) -> Deferred[Any]:
        return maybeDeferred(self._deferToThread, spare.close).addErrback(self._cannotClose)

    def _makeWithin(self, number: int, isPopulated: bool) -> SegmentWriter:
        # The whole recording may have been removed meanwhile.
        os.makedirs(self._directory, exist_ok=True)
        taken = sum(map(_sizeOf, segmentPaths(self._directory)))
        if taken + self._sizeBytes > self._maxBytes:
            raise OSError(
                errno.ENOSPC,
                f"segments that are not sealed have taken {formatBytes(taken)} "
                f"of the {formatBytes(self._maxBytes)} that cap leaves to them",
            )
        return self._create(number, isPopulated)

    def _create(self, number: int, isPopulated: bool) -> SegmentWriter:
        path = os.path.join(self._directory, f"{self._bootId}-{number:06d}{SUFFIX}")
        return SegmentWriter(path, self._sizeBytes, isPopulated)

    def _made(self, segment: SegmentWriter) -> None:
        self._making = None
        self._isFailing = False
        if self._isStopped:
            segment.close()
        else:
            self._spare = segment

    def _failed(self, failure: Failure) -> None:
        self._making = None
        self.failures += 1
        if not self._isFailing:
            self._isFailing = True
            self._log.warn(
                "there is no room to record to, and events are dropped until there is: {reason}",
                reason=failure.getErrorMessage(),
            )
        if not self._isStopped:
            self._retry = self._clock.callLater(RETRY_SECONDS, self._tryAgain)

    def _tryAgain(self) -> None:
        self._retry = None
        self.prepare()

    def _cannotClose(self, failure: Failure) -> None:
        self.failures += 1
        self._log.warn("an empty segment cannot be removed: {reason}", reason=failure.getErrorMessage())


def _sizeOf(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        # It has just been sealed.
        return 0


class SealingFailed(Exception):
    """
    The process that seals has failed; the message is its last line.
    """


def sealInProcess(directory: str, capBytes: int) -> SealReport:
    """
    Seal in a process of its own, and wait for it.

    @raise SealingFailed: if it fails.
    """
    paths = [os.path.abspath(path) for path in sys.path]
    process = subprocess.run(
        [sys.executable, "-m", "admission_plugins.sealing", directory, str(capBytes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        # An interrupt from the server's terminal must not stop sealing in the middle.
        start_new_session=True,
        timeout=LONGEST_SEALING_SECONDS,
    )
    if process.returncode:
        words = process.stderr.strip().splitlines() or [f"it ended with status {process.returncode}"]
        raise SealingFailed(words[-1])
    return SealReport.fromJson(process.stdout)


def sealInline(directory: str, capBytes: int) -> SealReport:
    """
    Seal in this process, which serves no client meanwhile.
    """
    # Imported only when needed: Arrow takes more memory than a server.
    from .sealing import sealAll

    return sealAll(directory, capBytes)


class Sealer:
    """
    Closes segments and has them sealed: one thing at a time, in order.

    @ivar sealedRows: how many rows have become Parquet, including rows that an earlier run left behind.
    @ivar sealedBytes: the last known size of the Parquet files.
    @ivar evictedFiles: how many of them were removed to keep the bound.
    @ivar failures: how often a segment could not be closed or sealed.
    """

    _log = Logger()

    def __init__(
        self,
        seal: Seal,
        directory: str,
        capBytes: int,
        sealAtBytes: int,
        deferToThread: Callable[..., Deferred[Any]],
    ) -> None:
        """
        @param sealAtBytes: seal as soon as waiting segments have this size.
        @param deferToThread: runs functions that wait for the disk or for other processes.
        """
        self.sealedRows = 0
        self.sealedBytes = 0
        self.evictedFiles = 0
        self.failures = 0
        self._seal = seal
        self._directory = directory
        self._capBytes = capBytes
        self._sealAtBytes = sealAtBytes
        self._deferToThread = deferToThread
        self._lock = DeferredLock()
        self._waitingBytes = 0
        self._isQueued = False

    def close(self, segment: SegmentWriter) -> None:
        """
        Close C{segment}, to which nothing may be written any more.
        """
        if segment.recordCount:
            self._waitingBytes += segment.sizeBytes
        # A pending sealing comes before this one is closed.
        self._isQueued = False
        self._lock.run(self._deferToThread, segment.close).addErrback(self._failed, "a segment cannot be closed")
        if self._waitingBytes >= self._sealAtBytes:
            self.seal()

    def seal(self) -> Deferred[Any]:
        """
        Seal all closed segments, and segments that earlier runs left behind.

        @return: fires when that has been done, or failed.
        """
        self._waitingBytes = 0
        if self._isQueued:
            # It has not begun, and everything was closed before this request.
            return self._lock.run(lambda: None)
        self._isQueued = True
        return self._lock.run(self._pass)

    def sealWaiting(self) -> Deferred[Any]:
        """
        Seal if any segment waits for it.

        @return: fires when none does any more, or sealing failed.
        """
        return self.seal() if self._waitingBytes else self._lock.run(lambda: None)

    def _pass(self) -> Deferred[Any]:
        self._isQueued = False
        sealing = self._deferToThread(self._seal, self._directory, self._capBytes)
        sealing.addCallback(self._sealed)
        return sealing.addErrback(self._failed, "recorded events cannot be sealed")

    def _sealed(self, report: SealReport) -> None:
        self.sealedRows += report.sealedRows
        self.sealedBytes = report.sealedBytes
        self.evictedFiles += report.evictedFiles
        self.failures += len(report.problems)
        for problem in report.problems:
            self._log.warn("recorded events: {problem}", problem=problem)
        if report.problems:
            self._waitingBytes += 1

    def _failed(self, failure: Failure, what: str) -> None:
        self.failures += 1
        # So that sealing is tried again.
        self._waitingBytes += 1
        self._log.warn("{what}: {reason}", what=what, reason=failure.getErrorMessage())


@implementer(IMetricsExporter, ITryOut)
class ParquetExporter:
    """
    Writes one segment after the other and has them sealed.  Segments that cannot be sealed when it stops are sealed in
    the background after the next start.

    The next segment is made while the present one is filled.  If it is not ready in time, because the disk is full or
    because segments that cannot be sealed take their share of the bound, events are dropped until it is, and counted.
    Those in a segment that is deleted while it is written count as dropped, too.

    @ivar directory: of the recording.
    @ivar rotateSeconds: how long an event waits at most before its segment is sealed.
    @ivar capBytes: the maximum size of the directory.
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
        @param clock: monotonic; events have its time.
        @param wallSeconds: seconds since the epoch.
        @param seal: seals segments.
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
        self._looking = LoopingCall(self._look)
        self._looking.clock = clock
        self._segment: SegmentWriter | None = None
        self._segmentCount = 0
        self._closedRecords = 0
        self._closedOverflows = 0
        self._loggedDrops = 0

    @property
    def recordedEvents(self) -> int:
        return self._closedRecords + (self._segment.recordCount if self._segment is not None else 0)

    @property
    def textOverflows(self) -> int:
        """
        How often there was no room for a text, for instance for client ids that are all different.
        """
        return self._closedOverflows + (self._segment.textOverflows if self._segment is not None else 0)

    @property
    def sealedRows(self) -> int:
        return self._sealer.sealedRows

    def start(self, origin: Origin, deferToThread: Callable[..., Deferred[Any]]) -> None:
        segments = os.path.join(self.directory, SEGMENTS)
        os.makedirs(segments, exist_ok=True)
        hasLeftovers = bool(segmentPaths(segments))
        self._origin = origin
        self._supply = SegmentSupply(
            segments,
            origin.bootId,
            self._segmentBytes,
            self.capBytes // SEGMENTS_SHARE,
            self._clock,
            deferToThread,
        )
        self._sealer = Sealer(self._seal, self.directory, self.capBytes, self.capBytes // SEAL_SHARE, deferToThread)
        self._begin(self._supply.make())
        self._supply.prepare()
        if hasLeftovers:
            self._sealer.seal()
        self._rotating.start(self.rotateSeconds, now=False)
        self._looking.start(LOOK_SECONDS, now=False)

    @property
    def _segmentBytes(self) -> int:
        return min(self.capBytes // SEGMENTS_IN_CAP // PAGE_BYTES * PAGE_BYTES, MAX_SEGMENT_BYTES)

    def tryOut(self) -> None:
        segments = Path(self.directory, SEGMENTS).absolute()
        made = [each for each in (segments, *segments.parents) if not each.exists()]
        try:
            segments.mkdir(parents=True, exist_ok=True)
            SegmentWriter(str(segments / f"{uuid.uuid4().hex}{SUFFIX}"), self._segmentBytes).close()
        finally:
            # A server that starts meanwhile may have taken them.
            with suppress(OSError):
                for each in made:
                    each.rmdir()

    def exportEvent(self, event: Any) -> None:
        segment = self._segment
        if segment is None or not segment.append(event):
            self._appendToNext(event)

    def exportSamples(self, samples: Sequence[Any]) -> None:
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
        self._rotating.stop()
        self._looking.stop()
        self._end()
        return gatherResults([self._supply.stop(), self._sealer.sealWaiting()])

    def _begin(self, segment: SegmentWriter) -> None:
        self._segmentCount += 1
        segment.begin(Header(self._origin, self._segmentCount, self._clock.seconds(), self._wallSeconds()))
        self._segment = segment

    def _end(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            if segment.isRemoved:
                self._lost(segment)
            else:
                self._closedRecords += segment.recordCount
            self._closedOverflows += segment.textOverflows
            self._sealer.close(segment)

    def _lost(self, segment: SegmentWriter) -> None:
        self.droppedEvents += segment.recordCount
        self._loggedDrops += segment.recordCount
        self._log.warn(
            "{count} recorded events are lost, as {path} was deleted while it was written",
            count=segment.recordCount,
            path=segment.path,
        )

    def _look(self) -> None:
        if self._segment is not None and self._segment.isRemoved:
            self._end()
            self._beginNext(False)

    def _beginNext(self, isBusy: bool) -> bool:
        """
        Begin the next segment.

        @param isBusy: whether this one was filled early.
        @return: whether there is one.
        """
        following = self._supply.take(isBusy)
        if following is None:
            return False
        self._end()
        self._begin(following)
        if self.droppedEvents > self._loggedDrops:
            self._log.warn(
                "{count} events were dropped before there was room to record to",
                count=self.droppedEvents - self._loggedDrops,
            )
            self._loggedDrops = self.droppedEvents
        return True

    def _appendToNext(self, event: Any) -> None:
        if not (self._beginNext(True) and self._segment is not None and self._segment.append(event)):
            self.droppedEvents += 1

    def _rotate(self) -> None:
        if self._segment is not None and self._segment.recordCount:
            self._beginNext(False)
        self._sealer.sealWaiting()


_SEALS: Mapping[str, Seal] = {"process": sealInProcess, "inline": sealInline}


def buildParquet(
    context: PolicyContext, directory: str, rotate: str = "60s", cap: str = "2GiB", sealing: str = "process"
) -> ParquetExporter:
    """
    Make a L{ParquetExporter} from a description.

    @raise ValueError: for an invalid duration or size, or if a library is missing.
    """
    if sealing not in _SEALS:
        raise ValueError(f"sealing={sealing}: say {' or '.join(_SEALS)}")
    if lack := lacking("the exporter", "numpy", "pyarrow"):
        raise ValueError(lack)
    if not directory:
        raise ValueError("the directory to record to is missing")
    rotateSeconds, capBytes = parseSeconds(rotate), parseBytes(cap)
    if rotateSeconds < 1:
        raise ValueError(f"rotate must be 1s at least, not {rotate}")
    if capBytes < SMALLEST_CAP_BYTES:
        raise ValueError(f"cap must be {formatBytes(SMALLEST_CAP_BYTES)} at least, not {cap}")
    return ParquetExporter(
        os.path.abspath(directory), context.clock, context.wallSeconds, rotateSeconds, capBytes, _SEALS[sealing]
    )
