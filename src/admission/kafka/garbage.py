# -*- test-case-name: tests.unit.kafka.test_garbage -*-
"""
When Python looks for garbage in cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

_THRESHOLDS: Final = (10_000, 10, 1_000_000_000)
"""Young objects are looked at as usual, in larger lots; old ones are not."""

_LOOK_SECONDS: Final = 1.0
_IDLE_SHARE: Final = 0.1
_MIN_PAUSE_SECONDS: Final = 60.0
_MAX_PAUSE_SECONDS: Final = 600.0


class GarbageCollection:
    """
    Looks at old objects when the process has little to do, and not in the middle of a request: that takes 50 ms after a
    start and 300 ms where requests name many thousands of things, and all clients wait meanwhile.
    """

    def __init__(self, clock: IReactorTime, cpuSeconds: Callable[[], float]) -> None:
        """
        @param cpuSeconds: the CPU time of the process so far.
        """
        self._clock = clock
        self._cpuSeconds = cpuSeconds
        self._thresholds = gc.get_threshold()
        self._call: IDelayedCall | None = None
        self._usedSeconds = self._lookedSeconds = self._collectedSeconds = 0.0

    def start(self) -> None:
        gc.set_threshold(*_THRESHOLDS)
        self._lookedSeconds = self._collectedSeconds = self._clock.seconds()
        self._usedSeconds = self._cpuSeconds()
        self._call = self._clock.callLater(_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """
        Let Python decide again.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None
            gc.set_threshold(*self._thresholds)

    def _look(self) -> None:
        now, usedSeconds = self._clock.seconds(), self._cpuSeconds()
        isIdle = usedSeconds - self._usedSeconds <= _IDLE_SHARE * (now - self._lookedSeconds)
        self._usedSeconds, self._lookedSeconds = usedSeconds, now
        pauseSeconds = now - self._collectedSeconds
        if (isIdle and pauseSeconds >= _MIN_PAUSE_SECONDS) or pauseSeconds >= _MAX_PAUSE_SECONDS:
            self._collectedSeconds = now
            # Without a collection of younger ones since, no object has become old.
            if gc.get_count()[2]:
                gc.collect()
        self._call = self._clock.callLater(_LOOK_SECONDS, self._look)
