# -*- test-case-name: tests.unit.connection.test_heaptrim -*-
"""
Memory that the C library keeps after a burst goes back to the system.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..gate.gate import Gate
from ..metrics.process import ProcessUsage
from ..units import roundedBytes, roundedSeconds

CHECK_SECONDS: Final = 5.0
"""How often to look; memory is given back when it was found to be unused twice in a row."""

MIN_EXCESS_BYTES: Final = 64 << 20
"""The least amount that is given back; less is not worth the time that it takes."""

MIN_INTERVAL_SECONDS: Final = 60.0
"""The least time between two trims: a server whose bursts come more often keeps the memory for the next one."""


def heapTrimmer() -> Callable[[], Any] | None:
    """
    What gives unused memory of the heap back to the system: glibc's
    C{malloc_trim}.  Other C libraries have none, and then this is L{None}.
    """
    try:
        giveBack = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None

    def trim() -> None:
        # Python's garbage is still in use for the C library, and would be taken for needed from then on.
        gc.collect()
        giveBack(0)

    return trim


class HeapTrim:
    """
    Watches how much more memory the process has than the pool says.

    glibc keeps what is freed below something that is still in use, however much
    that is.  Giving it back takes about 0.1 ms for each MiB, during which the
    reactor stands still; so it is done only when it has not been used for a
    while, and at most once in L{MIN_INTERVAL_SECONDS}.
    """

    _log = Logger()

    def __init__(
        self,
        gate: Gate,
        clock: IReactorTime,
        trim: Callable[[], Any] | None,
        privateBytes: Callable[[], int],
    ) -> None:
        """
        @param trim: see L{heapTrimmer}; with L{None} nothing is done.
        @param privateBytes: the private memory of the process.
        """
        self._gate = gate
        self._clock = clock
        self._trim = trim
        self._privateBytes = privateBytes
        self._checking = LoopingCall(self.check)
        self._checking.clock = clock
        # What the process has when the pool holds nothing.
        self._floorBytes: int | None = None
        self._wasExcessive = False
        self._notBeforeSeconds = float("-inf")

    def start(self) -> None:
        """
        Take what the process has now for needed, and go on looking.
        """
        if self._trim is not None:
            self._checking.start(CHECK_SECONDS)

    def stop(self) -> None:
        if self._checking.running:
            self._checking.stop()

    def check(self) -> None:
        """
        Give memory back if enough of it is unused, and was when this was called last.
        """
        try:
            besidePool = self._besidePoolBytes()
        except (OSError, ValueError):
            # Without /proc.
            self.stop()
            return
        if self._floorBytes is None or besidePool < self._floorBytes:
            self._floorBytes = besidePool
        isExcessive = besidePool - self._floorBytes >= MIN_EXCESS_BYTES
        now = self._clock.seconds()
        isDue = isExcessive and self._wasExcessive and now >= self._notBeforeSeconds
        self._wasExcessive = isExcessive
        if isDue and self._trim is not None:
            self._notBeforeSeconds = now + MIN_INTERVAL_SECONDS
            self._trimNow(self._trim, besidePool)

    def _trimNow(self, trim: Callable[[], Any], besidePoolBytes: int) -> None:
        begunSeconds = self._clock.seconds()
        trim()
        tookSeconds = self._clock.seconds() - begunSeconds
        # What is left is in use, and no excess any more.
        self._floorBytes = self._besidePoolBytes()
        freedBytes = besidePoolBytes - self._floorBytes
        if freedBytes >= MIN_EXCESS_BYTES // 2:
            self._log.info(
                "{freed} of unused heap went back to the system, in {took}",
                freed=roundedBytes(freedBytes),
                took=roundedSeconds(tookSeconds),
            )

    def _besidePoolBytes(self) -> int:
        pool = self._gate.pool
        return self._privateBytes() - sum(pool.usedBytesByPurpose.values()) - pool.idleBytes


def heapTrimOf(gate: Gate, clock: IReactorTime) -> HeapTrim:
    """
    For the current process.
    """
    usage = ProcessUsage()
    return HeapTrim(gate, clock, heapTrimmer(), lambda: usage.privateBytes)
