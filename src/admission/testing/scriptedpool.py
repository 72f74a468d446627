# -*- test-case-name: tests.contracts.test_poolcontract -*-
"""
A memory pool that grants or refuses as a test says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger
from zope.interface import implementer

from ..interfaces import FRAMES, ILease, IMemoryPool, ISensorRegistry


@implementer(ILease)
class ScriptedLease:
    def __init__(self, pool: ScriptedPool, sizeBytes: int, purpose: str, buffer: memoryview | None) -> None:
        self._pool = pool
        self.sizeBytes = sizeBytes
        self.purpose = purpose
        self.buffer = buffer

    def release(self) -> None:
        """
        @raise RuntimeError: if the lease has been released before.
        """
        if self not in self._pool.leases:
            raise RuntimeError("a lease was released twice")
        self._pool.leases.remove(self)
        self.buffer = None
        self._pool.tell()


@implementer(IMemoryPool)
class ScriptedPool:
    """
    Grants everything, however much is taken, except between L{refuse} and
    L{relent}.

    @ivar leases: the leases held, charges included, oldest first.
    @ivar requested: the size of every allocation that was asked for, refused
        ones included.
    @ivar holders: the holders of these allocations.
    """

    _log = Logger()

    idleBytes = 0

    def __init__(self, sizeBytes: int = 1 << 20, largestBytes: int | None = None) -> None:
        self.sizeBytes = sizeBytes
        self.largestBytes = sizeBytes if largestBytes is None else largestBytes
        self.leases: list[ScriptedLease] = []
        self.requested: list[int] = []
        self.holders: list[str] = []
        self._isRefusing = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def availableBytes(self) -> int:
        """
        The bytes that are not taken; 0 while the pool refuses.
        """
        return 0 if self._isRefusing else self.sizeBytes - sum(lease.sizeBytes for lease in self.leases)

    @property
    def usedBytesByPurpose(self) -> Mapping[str, int]:
        used = {FRAMES: 0}
        for lease in self.leases:
            used[lease.purpose] = used.get(lease.purpose, 0) + lease.sizeBytes
        return used

    def refuse(self) -> None:
        """
        Refuse from now on.
        """
        self._isRefusing = True

    def relent(self) -> None:
        """
        Grant again, and call the listeners.
        """
        self._isRefusing = False
        self.tell()

    def isOutOfMemory(self) -> bool:
        return self.availableBytes <= 0

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> ScriptedLease | None:
        """
        Take C{sizeBytes}, unless the pool refuses.

        @raise ValueError: if C{sizeBytes} is not from 1 to C{largestBytes}.
        """
        if not 0 < sizeBytes <= self.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self.largestBytes}")
        self.requested.append(sizeBytes)
        self.holders.append(holder)
        return None if self._isRefusing else self._take(sizeBytes, FRAMES, memoryview(bytearray(sizeBytes)))

    def charge(self, sizeBytes: int, purpose: str) -> ScriptedLease:
        """
        Count C{sizeBytes}.

        @raise ValueError: if C{sizeBytes} is negative.
        """
        if sizeBytes < 0:
            raise ValueError(f"cannot charge {sizeBytes} bytes")
        return self._take(sizeBytes, purpose, None)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """
        Call C{listener} at each release and by L{relent}.
        """
        self._listeners.append(listener)

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        pass

    def tell(self) -> None:
        """
        Call the listeners.
        """
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                self._log.failure("a listener of the memory pool failed")

    def _take(self, sizeBytes: int, purpose: str, buffer: memoryview | None) -> ScriptedLease:
        lease = ScriptedLease(self, sizeBytes, purpose, buffer)
        self.leases.append(lease)
        return lease
