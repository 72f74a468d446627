# -*- test-case-name: tests.unit.test_gate -*-
"""
Connections whose peers do not take their responses.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import IMemoryPool

STALL_GRACE_SECONDS = 1.0
"""For how long a peer may take nothing while memory is short."""

OVERDRAWN_GRACE_SECONDS = 0.1
"""
The same while the pool is overdrawn by half of what it may be.  After that time a holder also counts as one that does
not read its answers.
"""

_LOOK_AGAIN_SECONDS = OVERDRAWN_GRACE_SECONDS / 10
"""The least time between two looks at all of them."""

MAX_OVERDRAFT_BYTES = 32 << 20
"""
By how much a pool of at least that size may be overdrawn, besides the largest write of the connection that writes; if
that overdraws it further, those whose answers nothing bounds write nothing more until it is less.
"""

STALLER_SECONDS = 60.0
"""For how long a holder is served last while memory is short, after one of its connections was cut off."""

_MAX_STALLERS = 10_000


class StalledReader(Protocol):
    """
    A connection whose peer does not take its responses.
    """

    @property
    def holder(self) -> str:
        """
        The holder of its memory, see L{IMemoryPool.tryAllocate}.
        """

    def unsentBytes(self) -> int:
        """
        How many bytes it holds that its peer has not taken.
        """

    def largestWriteBytes(self) -> int:
        """
        The size of the largest write among these.
        """

    def stalledSeconds(self) -> float:
        """
        How long the peer has taken nothing; zero if it does.
        """

    def cutOff(self, reason: str) -> None:
        """
        Close the connection at once, and release what it holds.
        """


class StalledReaders:
    """
    Cuts off the stalled readers that hold most, while memory is short.
    """

    def __init__(
        self, pool: IMemoryPool, clock: IReactorTime, isAwaited: Callable[[], bool], looked: Callable[[], None]
    ) -> None:
        """
        @param isAwaited: whether anybody waits for memory.
        @param looked: called after each look, when those that had to go were cut off.
        """
        self._pool = pool
        self._clock = clock
        self._isAwaited = isAwaited
        self._looked = looked
        self._maxOverdraftBytes = min(pool.sizeBytes, MAX_OVERDRAFT_BYTES)
        self._farBytes = self._maxOverdraftBytes
        self._readers: dict[StalledReader, str] = {}
        # Of each holder, the peer that has taken nothing for longest is first.
        self._byHolder: dict[str, OrderedDict[StalledReader, None]] = {}
        # Until when each holder is served last, in the order in which they were cut off.
        self._stallers: dict[str, float] = {}
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
        if not isStalled:
            self._forget(reader)
            return
        holder = self._readers.get(reader)
        if holder is None:
            holder = self._readers[reader] = reader.holder
        readers = self._byHolder.setdefault(holder, OrderedDict())
        readers[reader] = None
        readers.move_to_end(reader)
        self.expect()

    def grew(self, reader: StalledReader) -> None:
        """
        More was written for C{reader}, and there is no memory.  If the pool is overdrawn too far, the readers that hold
        most are cut off at once, C{reader} perhaps among them.
        """
        excessBytes = -self._pool.availableBytes - reader.largestWriteBytes()
        self._farBytes = self._maxOverdraftBytes + min(reader.largestWriteBytes(), self._maxOverdraftBytes // 8)
        if excessBytes > self._maxOverdraftBytes:
            # More is cut off than has to be, or every write would look at all readers.
            self._cutOff(self._heaviestLast(self._readers), excessBytes - self._maxOverdraftBytes // 2)
            self._looked()
        else:
            self.expect()

    @property
    def isFarOverdrawn(self) -> bool:
        """
        Whether the pool is overdrawn by as much as it may be, and by the last write as well if that was small: nobody
        is cut off at once for such a write, so nobody is to wait for it.
        """
        return -self._pool.availableBytes > self._farBytes

    def isStalling(self, holder: str) -> bool:
        """
        Whether C{holder} does not read its answers: one of its peers takes nothing, or was cut off not long ago.
        """
        readers = self._byHolder.get(holder)
        if readers and next(iter(readers)).stalledSeconds() >= OVERDRAWN_GRACE_SECONDS:
            return True
        until = self._stallers.get(holder)
        return until is not None and until > self._clock.seconds()

    def expect(self) -> None:
        """
        Look at them in a while, if memory is short.
        """
        isShort = self._isAwaited() or (len(self._readers) > 1 and self._pool.isOutOfMemory())
        if isShort and self._timer is None:
            # As soon as the next one may have to go, so that nobody waits for two grace periods.
            graces = (OVERDRAWN_GRACE_SECONDS - next(iter(each)).stalledSeconds() for each in self._byHolder.values())
            nextSeconds = min((seconds for seconds in graces if seconds > 0), default=OVERDRAWN_GRACE_SECONDS)
            self._timer = self._clock.callLater(max(nextSeconds, _LOOK_AGAIN_SECONDS), self._relieve)

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
        missingBytes = 1 - self._pool.availableBytes
        isOverdrawn = missingBytes > self._maxOverdraftBytes // 2 + 1
        graceSeconds = OVERDRAWN_GRACE_SECONDS if isOverdrawn else STALL_GRACE_SECONDS
        stalled = [reader for reader in self._readers if reader.stalledSeconds() >= graceSeconds]
        spared = 0 if self._isAwaited() else 1
        if len(stalled) > spared and missingBytes > 0:
            self._cutOff(self._heaviestLast(stalled), missingBytes, spared)
        self._looked()

    def _heaviestLast(self, readers: Iterable[StalledReader]) -> list[StalledReader]:
        """
        The readers sorted by what they hold; those of the holder that has most in all come last.
        """
        holds: Counter[str] = Counter()
        for reader, holder in self._readers.items():
            holds[holder] += reader.unsentBytes()
        return sorted(
            readers, key=lambda reader: (holds[self._readers[reader]], self._readers[reader], reader.unsentBytes())
        )

    def _cutOff(self, readers: list[StalledReader], missingBytes: int, spared: int = 0) -> None:
        while len(readers) > spared and missingBytes > 0:
            heaviest = readers.pop()
            holder = self._forget(heaviest)
            if holder is None:
                # Cutting off another has ended it, or has made it take its responses again.
                continue
            missingBytes -= heaviest.unsentBytes()
            self._stallers.pop(holder, None)
            self._stallers[holder] = self._clock.seconds() + STALLER_SECONDS
            if len(self._stallers) > _MAX_STALLERS:
                del self._stallers[next(iter(self._stallers))]
            heaviest.cutOff("memory is short, and the peer does not take its responses")

    def _forget(self, reader: StalledReader) -> str | None:
        holder = self._readers.pop(reader, None)
        if holder is not None:
            readers = self._byHolder[holder]
            del readers[reader]
            if not readers:
                del self._byHolder[holder]
        return holder
