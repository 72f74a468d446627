# -*- test-case-name: tests.unit.test_gate -*-
"""
Memory beyond the pool for frames that are not large.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zope.interface import classImplements

from ..interfaces import FRAMES, ILease, IMemoryPool, IWaiter

RESERVED_SHARE = 4
"""The size of the reserve, as a fraction of the pool's, which it comes on top of."""

MAX_RESERVED_BYTES = 32 << 20
"""The largest reserve, however large the pool is: all of it may be in memory beside all of the pool."""

LARGEST_SHARE = 16
"""The largest frame that may have the reserve, as a fraction of the pool."""

SMALL_FRAME_BYTES = 64 << 10
"""Half of the reserve is for frames up to this size."""

_HOLDER_SHARE = 64
"""The fraction of the reserve that one holder may have in small frames; at least the size of one."""

_FEW_SMALL_FRAMES = 4
"""A reserve of no more than that many small frames is not used: a pool of up to 1 MiB is exact."""


class _ReservedLease:
    """
    Memory for a frame beyond the pool, charged to it.
    """

    def __init__(self, charge: ILease, released: Callable[[_ReservedLease], None]) -> None:
        self.buffer: memoryview | None = memoryview(bytearray(charge.sizeBytes))
        self.sizeBytes = charge.sizeBytes
        self.purpose = charge.purpose
        self._charge = charge
        self._released = released

    def release(self) -> None:
        # Raises if it has been released before.
        self._charge.release()
        self.buffer = None
        self._released(self)


classImplements(_ReservedLease, ILease)


class Reserve:
    """
    Memory beyond the pool, in proportion to its size.  Small frames have it whatever holds the pool; larger ones have
    it only while the pool is claimed for bodies that have not come.

    Where nothing bounds the answers of a waiter, a small frame may lead to any number of bytes.  Such frames go one at
    a time, and not while the pool is far overdrawn.

    @ivar freeBytes: how much of it is left.
    """

    def __init__(
        self,
        pool: IMemoryPool,
        isClaimed: Callable[[], bool],
        isStalling: Callable[[str], bool],
        isFarOverdrawn: Callable[[], bool],
    ) -> None:
        """
        @param isClaimed: whether there is no memory only because it is claimed for bodies that have not come.
        @param isStalling: whether a holder does not read its answers; it waits for the pool.
        @param isFarOverdrawn: whether there is little room for more answers.
        """
        self._pool = pool
        self._isClaimed = isClaimed
        self._isStalling = isStalling
        self._isFarOverdrawn = isFarOverdrawn
        self._sizeBytes = self.freeBytes = min(pool.sizeBytes // RESERVED_SHARE, MAX_RESERVED_BYTES)
        self._holderBytes = max(self._sizeBytes // _HOLDER_SHARE, SMALL_FRAME_BYTES)
        self._heldBytes: dict[str, int] = {}
        # The last small frame that was let through for a waiter whose answers nothing bounds, and its holder.
        self._unbounded: _ReservedLease | None = None
        self._unboundedHolder = ""

    def couldServe(self, sizeBytes: int) -> bool:
        """
        Whether a frame of that size is small enough for it, however much is left now.
        """
        return sizeBytes <= max(self._pool.sizeBytes // LARGEST_SHARE, SMALL_FRAME_BYTES)

    def tryAllocate(self, waiter: IWaiter, sizeBytes: int) -> ILease | None:
        """
        @return: a lease, if C{waiter} may have one for a frame of that size.
        """
        holder = waiter.holder
        if sizeBytes <= SMALL_FRAME_BYTES:
            heldBytes = self._heldBytes.get(holder, 0) + sizeBytes
            if sizeBytes > self.freeBytes or heldBytes > self._holderBytes:
                return None
            isBeyond = not self._isClaimed()
            if isBeyond and not self._mayGoBeyond(waiter):
                return None
            isUnbounded = isBeyond and not waiter.hasBoundedAnswers
        else:
            sharedBytes = self._sizeBytes // 2
            largestBytes = min(self.freeBytes - sharedBytes, self._pool.sizeBytes // LARGEST_SHARE)
            if sizeBytes > largestBytes or not self._isClaimed():
                return None
            isUnbounded = False
        charge = self._pool.charge(sizeBytes, FRAMES)
        self.freeBytes -= sizeBytes
        self._heldBytes[holder] = self._heldBytes.get(holder, 0) + sizeBytes
        lease = _ReservedLease(charge, partial(self._released, holder))
        if isUnbounded:
            self._unbounded, self._unboundedHolder = lease, holder
        return lease

    def _mayGoBeyond(self, waiter: IWaiter) -> bool:
        if self._sizeBytes <= _FEW_SMALL_FRAMES * SMALL_FRAME_BYTES or self._isStalling(waiter.holder):
            return False
        if waiter.hasBoundedAnswers:
            return True
        # A holder that does not read the answers to that frame keeps nobody else from the reserve.
        isTaken = self._unbounded is not None and not self._isStalling(self._unboundedHolder)
        return not (isTaken or self._isFarOverdrawn())

    def _released(self, holder: str, lease: _ReservedLease) -> None:
        self.freeBytes += lease.sizeBytes
        self._heldBytes[holder] -= lease.sizeBytes
        if not self._heldBytes[holder]:
            del self._heldBytes[holder]
        if lease is self._unbounded:
            self._unbounded = None
