# -*- test-case-name: tests.contracts.test_spark_exporter -*-
"""
Empty segments, made before they are needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.recording.segments import SUFFIX, SegmentWriter, segmentPaths
from admission.units import formatBytes

RETRY_SECONDS = 1.0
"""How long to wait when the disk has no room."""


class SegmentSupply:
    """
    Keeps one empty segment ready, so that whoever writes never waits for the
    disk: a thread takes the room for it and finds out if there is none.

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
        @param directory: where segments are; it exists.
        @param bootId: what their names begin with.
        @param sizeBytes: the size of each.
        @param maxBytes: what all segments there may take together, whoever
            made them.
        @param clock: for trying again.
        @param deferToThread: runs what waits for the disk.
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

        @raise OSError: if the disk does not let us.
        """
        self._number += 1
        return self._create(self._number, False)

    def take(self, isBusy: bool) -> SegmentWriter | None:
        """
        Take the segment that is ready, and see to the next one.

        @param isBusy: whether so much happens that the next one is better in
            memory before it is written to.
        @return: L{None} if none is ready.
        """
        spare, self._spare = self._spare, None
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
        Make no more, and remove the one that is ready.

        @return: fires when nothing is under way any more.
        """
        self._isStopped = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._making is not None:
            return self._making
        spare, self._spare = self._spare, None
        if spare is None:
            return succeed(None)
        return maybeDeferred(self._deferToThread, spare.close).addErrback(self._cannotClose)

    def _makeWithin(self, number: int, isPopulated: bool) -> SegmentWriter:
        # Somebody may have cleared away the whole recording meanwhile.
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
        # Sealed a moment ago.
        return 0
