# -*- test-case-name: tests.unit.kafka.storage.test_tablestore -*-
"""
The callers that wait for the disk to have what was committed.
"""

from __future__ import annotations

from collections import deque

from twisted.logger import Logger

from .itable import CommitCallback


class FlushWaiters:
    """
    Counts commits and flushes, and tells each waiter when the disk has the commits that it waits for.
    """

    _log = Logger()

    def __init__(self) -> None:
        # How many commits there were, how many of them have everything on the disk that somebody waits for, and how
        # many will have when the present flush has ended.
        self._commitCount = self._flushedCount = self._flushingCount = 0
        self._waiters: deque[tuple[int, CommitCallback]] = deque()

    def committed(self) -> None:
        """
        There is something more that has to be flushed.
        """
        self._commitCount += 1

    def begun(self) -> None:
        """
        A flush begins, of all that was committed and that somebody waits for.
        """
        self._flushingCount = self._commitCount

    def flushed(self) -> None:
        """
        That flush has ended.
        """
        self._flushedCount = self._flushingCount
        self._tell(None)

    def failed(self, error: Exception) -> None:
        """
        No flush will succeed any more.
        """
        self._tell(error)

    def add(self, callback: CommitCallback) -> bool:
        """
        Call C{callback} when the disk has everything; at once if it has.

        @return: whether that needs another flush than the present one.
        """
        if self._flushedCount >= self._commitCount:
            callback(None)
            return False
        self._waiters.append((self._commitCount, callback))
        return self._flushingCount < self._commitCount

    def _tell(self, error: Exception | None) -> None:
        waiters = self._waiters
        while waiters and (error is not None or waiters[0][0] <= self._flushedCount):
            _, callback = waiters.popleft()
            try:
                callback(error)
            except Exception:
                self._log.failure("{callback} raised when it was told of a flush", callback=callback)
