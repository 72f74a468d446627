# -*- test-case-name: tests.unit.test_gate -*-
"""
Memory beyond the pool for frames that are not large, while the pool is only claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import classImplements

from ..interfaces import FRAMES, ILease, IMemoryPool

RESERVED_SHARE = 4
"""Which part of the pool the reserve is, beyond the pool."""

LARGEST_SHARE = 16
"""Which part of the pool a frame may have of the reserve."""

SMALL_FRAME_BYTES = 64 << 10
"""Half of the reserve is for frames up to this size."""


class _ReservedLease:
    """
    Memory for a frame beyond the pool, charged to it.
    """

    def __init__(self, charge: ILease, released: Callable[[int], None]) -> None:
        self.buffer: memoryview | None = memoryview(bytearray(charge.sizeBytes))
        self.sizeBytes = charge.sizeBytes
        self.purpose = charge.purpose
        self._charge = charge
        self._released = released

    def release(self) -> None:
        # Raises if it has been released before.
        self._charge.release()
        self.buffer = None
        self._released(self.sizeBytes)


classImplements(_ReservedLease, ILease)


class Reserve:
    """
    A part of the pool's size, beyond the pool.

    @ivar freeBytes: how much of it is left.
    """

    def __init__(self, pool: IMemoryPool, isClaimed: Callable[[], bool]) -> None:
        """
        @param isClaimed: whether there is no memory only because it is claimed for what has not come.
        """
        self._pool = pool
        self._isClaimed = isClaimed
        self.freeBytes = pool.sizeBytes // RESERVED_SHARE

    def couldServe(self, sizeBytes: int) -> bool:
        """
        Whether a frame of that size is small enough for it, however much is left now.
        """
        return sizeBytes <= max(self._pool.sizeBytes // LARGEST_SHARE, SMALL_FRAME_BYTES)

    def tryAllocate(self, sizeBytes: int) -> ILease | None:
        """
        @return: a lease, if there is enough for a frame of that size and memory is only claimed.
        """
        if not (self._hasEnough(sizeBytes) and self._isClaimed()):
            return None
        lease = _ReservedLease(self._pool.charge(sizeBytes, FRAMES), self._released)
        self.freeBytes -= sizeBytes
        return lease

    def _hasEnough(self, sizeBytes: int) -> bool:
        if sizeBytes <= SMALL_FRAME_BYTES:
            return sizeBytes <= self.freeBytes
        sharedBytes = self._pool.sizeBytes // RESERVED_SHARE // 2
        return sizeBytes <= min(self.freeBytes - sharedBytes, self._pool.sizeBytes // LARGEST_SHARE)

    def _released(self, sizeBytes: int) -> None:
        self.freeBytes += sizeBytes
