# -*- test-case-name: tests.unit.kafka.testing.test_takenmemory -*-
"""
All memory for requests, taken on purpose.
"""

from __future__ import annotations

from itertools import count

from admission.gate.gate import Gate
from admission.gate.reserve import SMALL_FRAME_BYTES
from admission.interfaces import FRAMES, ILease
from admission.testing.recordingwaiter import RecordingWaiter


class TakenMemory:
    """
    What takes the memory of a gate as requests of many clients would: the pool's, and the reserve for small requests.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._leases: list[ILease] = []
        self._isTaking = False
        # Called before a connection can be given what was released, which happens in a turn of the reactor of its own.
        gate.pool.subscribe(self._released)

    def take(self) -> None:
        """
        Take all memory that is free, and from now on all that is released.

        @raise ValueError: if there is memory without a bound.
        """
        self._isTaking = True
        self._takeFree()
        if not self._gate.pool.isOutOfMemory():
            self.release()
            raise ValueError("the memory pool cannot be full, since it has no bound (--pool)")

    def release(self) -> None:
        """
        Release all of it.
        """
        self._isTaking = False
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()

    def _released(self) -> None:
        if self._isTaking:
            self._takeFree()

    def _takeFree(self) -> None:
        pool = self._gate.pool
        if pool.availableBytes > 0:
            self._leases.append(pool.charge(pool.availableBytes, FRAMES))
        if pool.isOutOfMemory():
            self._takeReserve()

    def _takeReserve(self) -> None:
        memory = self._gate.memory
        sizeBytes = min(SMALL_FRAME_BYTES, self._gate.pool.largestBytes)
        # One holder may have a part of the reserve only.
        for number in count():
            waiter = RecordingWaiter(sizeBytes, holder=f"taken {number}")
            lease = memory.tryAllocate(waiter, sizeBytes)
            if lease is not None:
                self._leases.append(lease)
                continue
            memory.forget(waiter)
            sizeBytes //= 2
            if not sizeBytes:
                break
