# -*- test-case-name: tests.contracts.test_bounded -*-
"""
Memory pools: a bounded one, as in KIP-72, one that is fair besides, and an unbounded one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

from mypy_extensions import mypyc_attr
from twisted.logger import Logger
from zope.interface import classImplements

from admission.interfaces import FRAMES, IFairPool, ILease, IMemoryPool, ISensorRegistry, PolicyContext
from admission.metrics.rate import TimeShare
from admission.units import formatBytes, parseBytes

from .buffers import Buffers

IDLE_CAP_BYTES = 64 << 20


@mypyc_attr(allow_interpreted_subclasses=True)
class Lease:
    """
    Bytes allocated from a L{BoundedPool} or an L{UnboundedPool}.

    @ivar holder: who asked for them; L{None} for a charge, which nobody asks for.
    """

    __slots__ = ("_pool", "buffer", "holder", "purpose", "sizeBytes")

    def __init__(
        self,
        pool: BoundedPool | UnboundedPool,
        sizeBytes: int,
        purpose: str,
        buffer: memoryview | None = None,
        holder: str | None = None,
    ) -> None:
        self._pool: BoundedPool | UnboundedPool | None = pool
        self.sizeBytes = sizeBytes
        self.purpose = purpose
        self.buffer = buffer
        self.holder = holder

    def release(self) -> None:
        """
        Release the bytes.  A slice of C{buffer} that is still referenced stays valid: its memory is then not reused.

        @raise RuntimeError: if the lease has been released before.
        """
        pool = self._pool
        if pool is None:
            raise RuntimeError(f"{self!r} was released twice")
        self._pool = None
        pool.giveBack(self)

    def __del__(self) -> None:
        pool = self._pool
        if pool is not None:
            self._pool = None
            pool.dropped(self.sizeBytes, self.purpose, self.holder)

    def __repr__(self) -> str:
        state = "released" if self._pool is None else "held"
        return f"<Lease of {formatBytes(self.sizeBytes)} for {self.purpose}, {state}>"


classImplements(Lease, ILease)


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledger:
    """
    The common part of both pools: the bytes allocated for each purpose, the listeners for releases, and the dropped
    leases.

    @ivar peakFrameBytes: the most bytes allocated for frames at any time.
    @ivar reclaimedLeases: how many leases were dropped without a release.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self) -> None:
        self._used = {FRAMES: 0}
        self.usedBytesByPurpose: Mapping[str, int] = self._used
        self.peakFrameBytes = 0
        self.reclaimedLeases = 0
        self._listeners: list[Callable[[], None]] = []
        self._dropped: deque[tuple[int, str, str | None]] = deque()
        self._ownThread = threading.get_ident()

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def dropped(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        """
        For L{Lease.__del__} only, which may run in any thread: the garbage collector decides.  In another thread it
        only takes note, for the next allocation to find.
        """
        self._dropped.append((sizeBytes, purpose, holder))
        if threading.get_ident() == self._ownThread:
            self._reclaim()
            self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                self._log.failure("a listener of the memory pool failed")

    def _reclaim(self) -> None:
        while self._dropped:
            sizeBytes, purpose, holder = self._dropped.popleft()
            self._uncount(sizeBytes, purpose, holder)
            self.reclaimedLeases += 1
            self._log.error(
                "a lease of {sizeBytes} bytes for {purpose} was dropped without being released: this is a bug; "
                "the memory was reclaimed",
                sizeBytes=sizeBytes,
                purpose=purpose,
            )

    def _uncount(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        self._used[purpose] -= sizeBytes


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundedPool(Ledger):
    """
    At most C{sizeBytes}, and one request more.

    In the default mode an allocation succeeds as long as a single byte is available, so that large requests cannot
    starve behind small ones; frames are then bounded by C{sizeBytes + largestBytes - 1}.  In strict mode the whole
    request must be available, and the bound is C{sizeBytes}.

    Memory kept for reuse counts against C{sizeBytes} too: it is freed before allocated and kept memory together would
    exceed it.

    @ivar depleted: the share of time during which requests are refused, from the first refusal to the next success or
        release.
    """

    def __init__(
        self,
        sizeBytes: int,
        largestBytes: int | None = None,
        strict: bool = False,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        @param largestBytes: the largest single allocation; C{sizeBytes} unless given.
        @param seconds: a monotonic clock, for C{depleted}.
        @raise ValueError: if a size is not positive or C{largestBytes} exceeds C{sizeBytes}.
        """
        if largestBytes is None:
            largestBytes = sizeBytes
        if sizeBytes < 1 or largestBytes < 1:
            raise ValueError("the size of the pool and its largest allocation must be positive")
        if largestBytes > sizeBytes:
            raise ValueError(
                f"the largest allocation, {formatBytes(largestBytes)}, exceeds the pool's {formatBytes(sizeBytes)}"
            )
        super().__init__()
        self.sizeBytes = sizeBytes
        self.largestBytes = largestBytes
        self.strict = strict
        self.availableBytes = sizeBytes
        self.depleted = TimeShare()
        self._isDry = False
        self._seconds = seconds
        self._buffers = Buffers(min(sizeBytes // 8, IDLE_CAP_BYTES))

    @property
    def idleBytes(self) -> int:
        return self._buffers.idleBytes

    def isOutOfMemory(self) -> bool:
        return self.availableBytes <= 0

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Lease | None:
        """
        Allocate C{sizeBytes} bytes if the pool has any (in strict mode: if it has them all), or if charges alone use it
        up.

        @param holder: kept in the lease.
        @return: a lease, or L{None} when there is no memory.
        @raise ValueError: if C{sizeBytes} is not from 1 to C{largestBytes}.
        """
        if not 0 < sizeBytes <= self.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self.largestBytes}")
        if self._dropped:
            self._reclaim()
        used = self._used
        if self.availableBytes < (sizeBytes if self.strict else 1) and used[FRAMES]:
            if not self._isDry:
                self._isDry = True
                self.depleted.begin(self._seconds())
            return None
        buffer = self._buffers.allocate(sizeBytes)
        # Counted only now: if the system has no memory, the pool stays consistent.
        if self._isDry:
            self._endDrySpell()
        self.availableBytes -= sizeBytes
        frames = used[FRAMES] = used[FRAMES] + sizeBytes
        if frames > self.peakFrameBytes:
            self.peakFrameBytes = frames
        if self._buffers.idleBytes and self._buffers.idleBytes > self.availableBytes:
            self._evictIdle()
        return Lease(self, sizeBytes, FRAMES, buffer, holder)

    def charge(self, sizeBytes: int, purpose: str) -> Lease:
        if sizeBytes < 0:
            raise ValueError(f"cannot charge {sizeBytes} bytes")
        self.availableBytes -= sizeBytes
        if purpose not in self._used:
            self._used[purpose] = 0
        self._used[purpose] += sizeBytes
        if self._buffers.idleBytes and self._buffers.idleBytes > self.availableBytes:
            self._evictIdle()
        return Lease(self, sizeBytes, purpose)

    def giveBack(self, lease: Lease) -> None:
        """
        For L{Lease.release} only.
        """
        self.availableBytes += lease.sizeBytes
        self._used[lease.purpose] -= lease.sizeBytes
        buffer = lease.buffer
        if buffer is not None:
            lease.buffer = None
            self._buffers.recycle(buffer, self.availableBytes)
        if self._isDry:
            self._endDrySpell()
        self._tell()

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{nameAvgDepletedPercent}, the recent share of time in which requests were refused, a fraction as in
        Kafka, and C{nameDepletedMicroseconds}, the total of that time.
        """
        registry.addGauge(f"{name}AvgDepletedPercent", lambda now: self.depleted.share(now))
        # The share forgets; this counter gives the share of any span of time afterwards.
        registry.addCounter(f"{name}DepletedMicroseconds", lambda now: round(self.depleted.total(now) * 1e6))

    def _evictIdle(self) -> None:
        excessBytes = self._buffers.idleBytes - max(self.availableBytes, 0)
        if excessBytes > 0:
            self._buffers.evict(excessBytes)

    def _endDrySpell(self) -> None:
        self._isDry = False
        self.depleted.end(self._seconds())

    def _uncount(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        super()._uncount(sizeBytes, purpose, holder)
        self.availableBytes += sizeBytes
        if self._isDry:
            self._endDrySpell()

    def __repr__(self) -> str:
        used = formatBytes(self.sizeBytes - self.availableBytes)
        strict = ", strict" if self.strict else ""
        return f"<{type(self).__name__} {used} of {formatBytes(self.sizeBytes)} used{strict}>"


classImplements(BoundedPool, IMemoryPool)


@mypyc_attr(allow_interpreted_subclasses=True)
class FairPool(BoundedPool):
    """
    A L{BoundedPool} of which a holder may take more as long as it has less than is free (dynamic thresholds, Choudhury
    and Hahne, Dynamic Queue Length Thresholds for Shared-Memory Packet Switches, 1998).  So one holder alone comes to
    half of the pool and one request more, of N that want all they can get each to one part in N + 1, and the next one
    finds memory.
    """

    def __init__(
        self,
        sizeBytes: int,
        largestBytes: int | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__(sizeBytes, largestBytes, False, seconds)
        self._heldBytes: dict[str, int] = {}

    def isBelowShare(self, holder: str) -> bool:
        return holder not in self._heldBytes or self._heldBytes[holder] < self.availableBytes

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Lease | None:
        if self._dropped:
            self._reclaim()
        if 0 < sizeBytes <= self.largestBytes and not self.isBelowShare(holder):
            return None
        lease = super().tryAllocate(sizeBytes, holder)
        if lease is not None:
            self._heldBytes[holder] = self._heldBytes.get(holder, 0) + sizeBytes
        return lease

    def giveBack(self, lease: Lease) -> None:
        if lease.holder is not None:
            self._countOff(lease.sizeBytes, lease.holder)
        super().giveBack(lease)

    def _uncount(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        if holder is not None:
            self._countOff(sizeBytes, holder)
        super()._uncount(sizeBytes, purpose, holder)

    def _countOff(self, sizeBytes: int, holder: str) -> None:
        remainingBytes = self._heldBytes[holder] - sizeBytes
        if remainingBytes:
            self._heldBytes[holder] = remainingBytes
        else:
            del self._heldBytes[holder]


classImplements(FairPool, IFairPool)


class UnboundedPool(Ledger):
    """
    Unbounded: every allocation succeeds, and the ledger is kept all the same.

    As with Kafka's C{MemoryPool.NONE}, C{sizeBytes} and C{availableBytes} are
    2^63 - 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizeBytes = self.largestBytes = self.availableBytes = 2**63 - 1
        self.idleBytes = 0

    def isOutOfMemory(self) -> bool:
        return False

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Lease:
        if not 0 < sizeBytes <= self.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self.largestBytes}")
        if self._dropped:
            self._reclaim()
        buffer = memoryview(bytearray(sizeBytes))
        frames = self._used[FRAMES] = self._used[FRAMES] + sizeBytes
        self.peakFrameBytes = max(self.peakFrameBytes, frames)
        return Lease(self, sizeBytes, FRAMES, buffer)

    def charge(self, sizeBytes: int, purpose: str) -> Lease:
        if sizeBytes < 0:
            raise ValueError(f"cannot charge {sizeBytes} bytes")
        if purpose not in self._used:
            self._used[purpose] = 0
        self._used[purpose] += sizeBytes
        return Lease(self, sizeBytes, purpose)

    def giveBack(self, lease: Lease) -> None:
        """
        For L{Lease.release} only.
        """
        self._used[lease.purpose] -= lease.sizeBytes
        lease.buffer = None
        self._tell()

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        pass


classImplements(UnboundedPool, IMemoryPool)


def buildBounded(context: PolicyContext, size: str, strict: str = "no", max: str | None = None) -> BoundedPool:
    """
    C{bounded:SIZE[:strict=yes|no][:max=SIZE]}.
    """
    if strict not in ("yes", "no"):
        raise ValueError(f"strict={strict}: say yes or no")
    return BoundedPool(*_sizes(context, size, max), strict == "yes", context.clock.seconds)


def buildFair(context: PolicyContext, size: str, max: str | None = None) -> FairPool:
    """
    C{fair:SIZE[:max=SIZE]}.
    """
    return FairPool(*_sizes(context, size, max), context.clock.seconds)


def _sizes(context: PolicyContext, size: str, largest: str | None) -> tuple[int, int]:
    sizeBytes = parseBytes(size)
    if largest is not None:
        return sizeBytes, parseBytes(largest)
    return sizeBytes, sizeBytes if context.largestRequestBytes is None else min(sizeBytes, context.largestRequestBytes)


def buildUnbounded(context: PolicyContext) -> UnboundedPool:
    """
    C{unbounded}.
    """
    return UnboundedPool()
