# -*- test-case-name: tests.unit.connection.test_heldcharge -*-
"""
A charge for what is held, however much that is at the moment.
"""

from __future__ import annotations

from ..interfaces import ILease, IMemoryPool


class HeldCharge:
    """
    Exchanges one charge for another as what is held grows and shrinks.

    @ivar sizeBytes: how much is charged.
    """

    __slots__ = ("_lease", "_pool", "_purpose", "sizeBytes")

    def __init__(self, pool: IMemoryPool, purpose: str) -> None:
        """
        @param purpose: see L{IMemoryPool.charge}.
        """
        self._pool = pool
        self._purpose = purpose
        self._lease: ILease | None = None
        self.sizeBytes = 0

    def hold(self, sizeBytes: int) -> None:
        """
        C{sizeBytes} are held from now on.
        """
        if sizeBytes == self.sizeBytes:
            return
        before, self.sizeBytes = self._lease, sizeBytes
        # Charge before releasing, so that nobody is told of memory that is not free.
        self._lease = self._pool.charge(sizeBytes, self._purpose) if sizeBytes else None
        if before is not None:
            before.release()
