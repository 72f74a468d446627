# -*- test-case-name: tests.unit.test_gate -*-
"""
Connections whose peers do not take their responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import IMemoryPool

STALL_GRACE_SECONDS = 1.0


class StalledReader(Protocol):
    """
    A connection whose peer does not take its responses.
    """

    def unsentBytes(self) -> int:
        """
        How many bytes it holds that its peer has not taken.
        """

    def stalledSeconds(self) -> float:
        """
        How long the peer has taken nothing; zero if it does.
        """

    def cutOff(self, reason: str) -> None:
        """
        Close the connection at once.
        """


class StalledReaders:
    """
    Cuts off those that hold most, while memory is short.
    """

    def __init__(
        self, pool: IMemoryPool, clock: IReactorTime, isAwaited: Callable[[], bool], looked: Callable[[], None]
    ) -> None:
        """
        @param isAwaited: whether anybody waits for memory.
        @param looked: called when they were looked at, and those that had to were cut off.
        """
        self._pool = pool
        self._clock = clock
        self._isAwaited = isAwaited
        self._looked = looked
        # A dictionary for its order: with a set, chance would decide between equals.
        self._readers: dict[StalledReader, None] = {}
        self._timer: IDelayedCall | None = None

    @property
    def count(self) -> int:
        """
        How many peers do not take their responses.
        """
        return len(self._readers)

    def note(self, reader: StalledReader, isStalled: bool) -> None:
        """
        The peer of C{reader} has stopped taking its responses, or takes them again.
        """
        if isStalled:
            self._readers[reader] = None
            self.expect()
        else:
            self._readers.pop(reader, None)

    def expect(self) -> None:
        """
        Look at them in a while, if memory is short.
        """
        if self._timer is None and (self._isAwaited() or (len(self._readers) > 1 and self._pool.isOutOfMemory())):
            self._timer = self._clock.callLater(STALL_GRACE_SECONDS, self._relieve)

    def close(self) -> None:
        """
        Cancel the timer.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _relieve(self) -> None:
        """
        Memory has been short for a while.  Close the connections that hold most
        responses which their peers do not take, as many as it needs.  While no
        request waits the last of them is spared: one may be slow, but together
        they grow without bound.
        """
        self._timer = None
        stalled = [reader for reader in self._readers if reader.stalledSeconds() >= STALL_GRACE_SECONDS]
        stalled.sort(key=lambda reader: reader.unsentBytes())
        missingBytes = 1 - self._pool.availableBytes
        spared = 0 if self._isAwaited() else 1
        while len(stalled) > spared and missingBytes > 0:
            largest = stalled.pop()
            missingBytes -= largest.unsentBytes()
            self._readers.pop(largest, None)
            largest.cutOff("memory is short, and the peer does not take its responses")
        self._looked()
