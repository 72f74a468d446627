# -*- test-case-name: tests.unit.offline.test_replay_pool -*-
"""
What can be seen of a memory pool as time passes.
"""

from __future__ import annotations

from attrs import define

from ...interfaces import IMemoryPool
from ..agenda import MICROSECONDS

_MINUTE_US = 60 * MICROSECONDS


@define
class Minute:
    """
    A minute of the pool.

    @ivar beginUs: when it began, in microseconds since the epoch.
    @ivar usedMaxBytes: the most that was taken.
    @ivar availableMinBytes: the least that was left.
    @ivar depletedUs: for how long nothing was left.
    @ivar mutedUs: for how long connections waited for memory, all together.
    @ivar waitingMax: how many did at a time, at most.
    @ivar spanUs: how much of the minute was replayed.
    """

    beginUs: int
    usedMaxBytes: int
    availableMinBytes: int
    waitingMax: int
    depletedUs: int = 0
    mutedUs: int = 0
    spanUs: int = 0


class PoolWatch:
    """
    Looks at a pool whenever something happens to it.  In between everything is
    as it was seen last.

    @ivar minutes: what was seen, by minutes of wall time.
    @ivar peakBytes: the most that was taken at a time.
    """

    def __init__(self, pool: IMemoryPool, nowUs: int, wallOffsetUs: int) -> None:
        """
        @param nowUs: the time, like all here in microseconds of the clock that
            the recording goes by.
        @param wallOffsetUs: what to add to it to have wall time.
        """
        self.peakBytes = 0
        self._pool = pool
        self._wallOffsetUs = wallOffsetUs
        self._seenUs = nowUs
        self._usedBytes = self._waiting = 0
        self._availableBytes = pool.availableBytes
        self._isDry = pool.isOutOfMemory()
        self._minute = self._minuteOf(nowUs)
        self.minutes = [self._minute]

    def see(self, nowUs: int, changeBytes: int = 0) -> None:
        """
        Look.

        @param changeBytes: how much has been taken since, or given back if it
            is less than nothing.
        """
        if nowUs > self._seenUs:
            self._pass(nowUs)
        self._isDry = self._pool.isOutOfMemory()
        self._availableBytes = availableBytes = self._pool.availableBytes
        self._usedBytes = usedBytes = self._usedBytes + changeBytes
        minute = self._minute
        if usedBytes > minute.usedMaxBytes:
            minute.usedMaxBytes = usedBytes
            self.peakBytes = max(self.peakBytes, usedBytes)
        if availableBytes < minute.availableMinBytes:
            minute.availableMinBytes = availableBytes

    def wait(self, nowUs: int, change: int) -> None:
        """
        A connection begins to wait, or does not wait any more.

        @param change: 1 or -1.
        """
        self.see(nowUs)
        self._waiting += change
        if self._waiting > self._minute.waitingMax:
            self._minute.waitingMax = self._waiting

    def close(self, nowUs: int) -> None:
        """
        Nothing more will be seen.
        """
        self.see(nowUs)
        if len(self.minutes) > 1 and not self._minute.spanUs:
            self.minutes.pop()

    def _pass(self, nowUs: int) -> None:
        while True:
            minute = self._minute
            endUs = minute.beginUs + _MINUTE_US - self._wallOffsetUs
            passedUs = min(nowUs, endUs) - self._seenUs
            minute.spanUs += passedUs
            minute.mutedUs += passedUs * self._waiting
            if self._isDry:
                minute.depletedUs += passedUs
            self._seenUs += passedUs
            if nowUs < endUs:
                return
            self._minute = self._minuteOf(endUs)
            self.minutes.append(self._minute)

    def _minuteOf(self, nowUs: int) -> Minute:
        wallUs = nowUs + self._wallOffsetUs
        return Minute(wallUs - wallUs % _MINUTE_US, self._usedBytes, self._availableBytes, self._waiting)
