# -*- test-case-name: tests.unit.kafka.broker.log.test_retention -*-
"""
Removing old data from the log, a little in each turn of the reactor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.kafka.storage.disk import Disk
from admission.kafka.storage.flushing import DeferToThread, callAll
from admission.kafka.storage.itable import CommitCallback, LogClosed, LogFailed

from .partitionlog import PartitionLog, SegmentFiles
from .producers import ProducerStates
from .segment import Segment
from .topics import Topics

_SLICE_PARTITIONS: Final = 64
_SLICE_PRODUCERS: Final = 1000


class SweptLog(Protocol):
    """
    What a sweep needs of the log.
    """

    def commitStart(self, partition: PartitionLog) -> None:
        """
        Commit where a partition starts.

        @raise LogFailed: if it cannot be written.
        """

    def forgetOwners(self) -> Iterator[None]:
        """
        Drop the owners of producers that are not remembered any more, some in each step.

        @raise LogFailed: if that cannot be written.
        """

    def keepSpare(self) -> None:
        """
        Keep room on the disk for the next time that it is full.
        """

    def whenFlushed(self, callback: CommitCallback) -> None:
        """
        As L{admission.kafka.broker.log.interface.ILog.whenFlushed}.
        """


class Sweep:
    """
    Removes segments beyond the retention limits, the directories of deleted topics, and
    idle producers.

    A file is removed when the disk knows that it is not needed any more, and in a thread: freeing a large one takes
    time.
    """

    _log = Logger()

    def __init__(
        self,
        log: SweptLog,
        disk: Disk,
        files: SegmentFiles,
        topics: Topics,
        producers: ProducerStates,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        deferToThread: DeferToThread,
        producerExpirySeconds: float,
        checkIntervalSeconds: float,
    ) -> None:
        """
        @param wallSeconds: the time in seconds since 1970, to compare
            timestamps with.
        @param producerExpirySeconds: how long an idle producer is remembered.
        @param checkIntervalSeconds: the pause between two sweeps.
        """
        self._swept = log
        self._disk = disk
        self._files = files
        self._topics = topics
        self._producers = producers
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._deferToThread = deferToThread
        self._producerExpirySeconds = producerExpirySeconds
        self._checkIntervalSeconds = checkIntervalSeconds
        self._slices: Iterator[None] | None = None
        self._next: IDelayedCall | None = None
        # Segments that are no part of their partitions any more, and of which the disk does not know that yet because
        # that could not be written.
        self._untold: dict[PartitionLog, list[Segment]] = {}
        self._removals: deque[tuple[Sequence[Callable[[], object]], Callable[[], object]]] = deque()
        self._isRemoving = False
        self._stopped: Deferred[None] | None = None

    def start(self) -> None:
        """
        Begin a sweep in the next turn.
        """
        self._next = self._clock.callLater(0, self._turn)

    def stop(self) -> Deferred[None]:
        """
        Sweep no more.

        @return: fires when no thread is removing files any more.
        """
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._stopped = Deferred()
        stopped = self._stopped
        self._removeNext()
        return stopped

    def removeDirectories(self, paths: Sequence[str], removed: Callable[[], object]) -> None:
        """
        Remove directories of partitions with all their files.

        @param removed: called when they are gone, and would not come back with a loss of power.
        """
        removals: list[Callable[[], object]] = [partial(removeDirectory, self._disk, path) for path in paths]
        parents = dict.fromkeys(map(os.path.dirname, paths))
        removals += [partial(self._disk.flushDirectory, parent) for parent in parents]
        self._remove(removals, removed)

    def _turn(self) -> None:
        if self._slices is None:
            self._slices = self._sweep()
        restSeconds = 0.0
        try:
            next(self._slices)
        except StopIteration:
            self._slices = None
            restSeconds = self._checkIntervalSeconds
        except (LogClosed, LogFailed):
            # Logged already; repeating it does not mend the disk.
            self._slices = None
            restSeconds = self._checkIntervalSeconds
        except Exception:
            self._log.failure("the log could not be swept")
            self._slices = None
            restSeconds = self._checkIntervalSeconds
        self._next = self._clock.callLater(restSeconds, self._turn)

    def _sweep(self) -> Iterator[None]:
        for deleted in [partition for partition in self._untold if partition.deleted]:
            self._files.close(self._untold.pop(deleted))
        self._swept.keepSpare()
        for examined, partition in enumerate(self._topics.partitions()):
            if examined % _SLICE_PARTITIONS == 0:
                yield
            if not partition.deleted:
                self._trim(partition)
        while self._expireProducers():
            yield
        yield from self._swept.forgetOwners()

    def _trim(self, partition: PartitionLog) -> None:
        removed = self._untold.pop(partition, [])
        try:
            removed += partition.trim(self._files, int(self._wallSeconds() * 1000))
        except LogFailed as error:
            # Others can be swept all the same.
            self._log.error("old records cannot be removed: {error}", error=error)
        if not removed:
            return
        try:
            self._swept.commitStart(partition)
        except (LogClosed, LogFailed):
            self._untold[partition] = removed
            raise
        self._swept.whenFlushed(partial(self._removeSegments, partition, removed))

    def _removeSegments(self, partition: PartitionLog, segments: list[Segment], error: Exception | None) -> None:
        if error is not None:
            self._untold.setdefault(partition, []).extend(segments)
            return
        partition.closeTrimmed(self._files, segments)
        paths = [path for segment in segments for path in (segment.checkpointPath, segment.path)]
        self._remove([partial(self._disk.remove, path) for path in paths], lambda: None)

    def _remove(self, removals: Sequence[Callable[[], object]], removed: Callable[[], object]) -> None:
        if removals:
            self._removals.append((removals, removed))
            self._removeNext()

    def _removeNext(self) -> None:
        """
        One thread at a time: flushes need threads, too.
        """
        if self._isRemoving:
            return
        if not self._removals:
            if self._stopped is not None:
                stopped, self._stopped = self._stopped, None
                stopped.callback(None)
            return
        removals, removed = self._removals.popleft()
        self._isRemoving = True
        removing: Deferred[Any] = maybeDeferred(self._deferToThread, callAll, removals)
        removing.addCallback(lambda _: removed())
        removing.addErrback(self._removalFailed)
        removing.addCallback(self._removalOver)

    def _removalFailed(self, failure: Failure) -> None:
        # Tried again by the next start, which finds what belongs to nothing.
        self._log.error("old files of the log could not be removed: {error}", error=failure.value)

    def _removalOver(self, _: object) -> None:
        self._isRemoving = False
        self._removeNext()

    def _expireProducers(self) -> bool:
        """
        Forget some of the producers that have been idle for too long.

        @return: whether there may be more.
        """
        cutoffSeconds = self._wallSeconds() - self._producerExpirySeconds
        unused = self._producers.unusedSince(cutoffSeconds, _SLICE_PRODUCERS)
        self._producers.forget(unused)
        return bool(unused)


def removeDirectory(disk: Disk, path: str) -> None:
    """
    Remove the directory of a partition with all its files; in any thread.

    @raise OSError: if the disk fails.
    """
    for name in disk.list(path):
        disk.remove(os.path.join(path, name))
    disk.removeDirectory(path)
