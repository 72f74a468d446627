# -*- test-case-name: tests.unit.test_garbage -*-
"""
When Python looks for garbage in cycles.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

_THRESHOLDS: Final = (10_000, 10, 1_000_000_000)
"""Young objects are looked at as usual, in larger lots; old ones are not."""

_LOOK_SECONDS: Final = 1.0
_IDLE_SHARE: Final = 0.1
_MIN_PAUSE_SECONDS: Final = 60.0
_MAX_PAUSE_SECONDS: Final = 600.0

GROWTH_BLOCKS: Final = 100_000
"""
By how many blocks of memory Python's objects may grow before garbage is suspected: some 10 MiB, or what a thousand
connections leave behind, each a cycle with its transport.
"""

_GROWTH_SHARE: Final = 0.25
"""The same as a share of the blocks, because what is alive has to be looked at as well."""

GONE_CONNECTIONS: Final = 1_000
"""How many connections may be gone before they are: what was in use and is garbage now does not grow."""

_GROWN_LOOKS: Final = 3
"""How many times in a row it must be found: a large request that is worked on is gone at the next look."""

_COLLECTING_SHARE: Final = 0.02
"""How much of the time may go to looking for suspected garbage."""

CHEAP_SECONDS: Final = 0.02
"""For each so long that it took the last time, as much garbage is waited for as is worth it."""


class GarbageCollection:
    """
    Looks at old objects when the process has little to do or when there may be much garbage, and not in the middle of a
    request: that takes 50 ms for each hundred thousand objects, and all clients wait meanwhile.  What was made for the
    start is not looked at.

    For any server: make one when everything is set up, and L{start} it.  There is one collector in a process.
    """

    def __init__(
        self,
        clock: IReactorTime,
        cpuSeconds: Callable[[], float] = time.process_time,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        goneConnections: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        @param clock: the reactor.
        @param cpuSeconds: the CPU time of the process so far.
        @param blocks: how many blocks of memory Python's objects have.
        @param goneConnections: how many connections are gone by now.
        """
        self._clock = clock
        self._cpuSeconds = cpuSeconds
        self._blocks = blocks
        self._goneConnections = goneConnections
        self._collectedConnections = 0
        self._tookSeconds = 0.0
        self._thresholds = gc.get_threshold()
        self._call: IDelayedCall | None = None
        self._usedSeconds = self._lookedSeconds = self._collectedSeconds = self._suspectAfterSeconds = 0.0
        self._recentBlocks: deque[int] = deque(maxlen=_GROWN_LOOKS)
        # The fewest since garbage was looked for last: so many are in use, or were.
        self._fewestBlocks = 0

    def start(self) -> None:
        """
        Take all objects that there are for needed as long as the process lives, and go on looking at others.
        """
        gc.set_threshold(*_THRESHOLDS)
        gc.freeze()
        self._lookedSeconds = self._collectedSeconds = self._clock.seconds()
        self._usedSeconds = self._cpuSeconds()
        self._fewestBlocks = self._blocks()
        self._call = self._clock.callLater(_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """
        Let Python decide again.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None
            gc.unfreeze()
            gc.set_threshold(*self._thresholds)

    def _look(self) -> None:
        now, usedSeconds, blocks = self._clock.seconds(), self._cpuSeconds(), self._blocks()
        isIdle = usedSeconds - self._usedSeconds <= _IDLE_SHARE * (now - self._lookedSeconds)
        self._usedSeconds, self._lookedSeconds = usedSeconds, now
        self._recentBlocks.append(blocks)
        self._fewestBlocks = min(self._fewestBlocks, blocks)
        pauseSeconds = now - self._collectedSeconds
        isDue = (isIdle and pauseSeconds >= _MIN_PAUSE_SECONDS) or pauseSeconds >= _MAX_PAUSE_SECONDS
        if isDue or (now >= self._suspectAfterSeconds and self._isSuspected()):
            self._collectedSeconds = now
            # Without a collection of younger ones since, no object has become old.
            if gc.get_count()[2]:
                self._collect()
        self._call = self._clock.callLater(_LOOK_SECONDS, self._look)

    def _isSuspected(self) -> bool:
        patience = max(self._tookSeconds / CHEAP_SECONDS, 1.0)
        if self._goneConnections() - self._collectedConnections >= patience * GONE_CONNECTIONS:
            return True
        grownBlocks = min(self._recentBlocks) - self._fewestBlocks
        enoughBlocks = patience * max(GROWTH_BLOCKS, _GROWTH_SHARE * self._fewestBlocks)
        return len(self._recentBlocks) == _GROWN_LOOKS and grownBlocks > enoughBlocks

    def _collect(self) -> None:
        began = self._clock.seconds()
        gc.collect()
        now = self._clock.seconds()
        self._tookSeconds = now - began
        self._suspectAfterSeconds = now + self._tookSeconds / _COLLECTING_SHARE
        self._recentBlocks.clear()
        self._collectedConnections = self._goneConnections()
        self._fewestBlocks = self._blocks()
