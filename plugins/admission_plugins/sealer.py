# -*- test-case-name: tests.contracts.test_spark_exporter -*-
"""
When segments are sealed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.recording.segments import SegmentWriter

from .sealreport import SealReport

LONGEST_SEALING_SECONDS = 600.0

Seal = Callable[[str, int], SealReport]
"""Seals what is in a directory, given how large it may be.  Runs in a thread."""


class SealingFailed(Exception):
    """
    The process that seals has ended badly; the message is its last word.
    """


def sealInProcess(directory: str, capBytes: int) -> SealReport:
    """
    Seal in a process of its own, and wait for it.

    @raise SealingFailed: if it does not end as it should.
    """
    paths = [os.path.abspath(path) for path in sys.path]
    process = subprocess.run(
        [sys.executable, "-m", "admission_plugins.sealing", directory, str(capBytes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        # What stops a server by its terminal would stop sealing in the middle.
        start_new_session=True,
        timeout=LONGEST_SEALING_SECONDS,
    )
    if process.returncode:
        words = process.stderr.strip().splitlines() or [f"it ended with status {process.returncode}"]
        raise SealingFailed(words[-1])
    return SealReport.fromJson(process.stdout)


def sealInline(directory: str, capBytes: int) -> SealReport:
    """
    Seal in this process, for one that has nothing better to do.
    """
    # Not before it is wanted: Arrow takes more memory than a server.
    from .sealing import sealAll

    return sealAll(directory, capBytes)


class Sealer:
    """
    Closes segments and has them sealed: one thing at a time, in order.

    @ivar sealedRows: how many rows have become Parquet, those included that an
        earlier run left behind.
    @ivar sealedBytes: how large the Parquet files were last.
    @ivar evictedFiles: how many of them were removed for want of room.
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
        @param sealAtBytes: seal as soon as so much waits for it.
        @param deferToThread: runs what waits for the disk or for other processes.
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
        Nothing will be written to C{segment} any more.
        """
        if segment.recordCount:
            self._waitingBytes += segment.sizeBytes
        # What is to be sealed already comes before this one is closed.
        self._isQueued = False
        self._lock.run(self._deferToThread, segment.close).addErrback(self._failed, "a segment cannot be closed")
        if self._waitingBytes >= self._sealAtBytes:
            self.seal()

    def seal(self) -> Deferred[Any]:
        """
        Seal what has been closed so far, and what earlier runs left behind.

        @return: fires when that has been done, or failed.
        """
        self._waitingBytes = 0
        if self._isQueued:
            # It has not begun, and everything was closed before it was wanted.
            return self._lock.run(lambda: None)
        self._isQueued = True
        return self._lock.run(self._pass)

    def sealWhatWaits(self) -> Deferred[Any]:
        """
        Seal if anything waits for it.

        @return: fires when nothing does any more, or sealing failed.
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
        # So that it is tried again.
        self._waitingBytes += 1
        self._log.warn("{what}: {reason}", what=what, reason=failure.getErrorMessage())
