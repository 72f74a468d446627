# -*- test-case-name: tests.unit.test_gate -*-
"""
Where a server's memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..interfaces import IMemoryPool


class Ledger:
    """
    Adds what the pool does not count to what it does.
    """

    def __init__(self, pool: IMemoryPool) -> None:
        self._pool = pool
        self._accounts: dict[str, Callable[[], int]] = {}

    @property
    def usedBytes(self) -> Mapping[str, int]:
        """
        By purpose: the pool's own, and what L{account} added.
        """
        accounts = {purpose: sizeBytes() for purpose, sizeBytes in self._accounts.items()}
        return {**self._pool.usedBytesByPurpose, **accounts}

    def account(self, purpose: str, sizeBytes: Callable[[], int]) -> None:
        """
        Show memory that the pool does not count, because something else bounds it.

        @param purpose: what it is for; no purpose of the pool.
        @param sizeBytes: returns how much it is now, in bytes.
        """
        self._accounts[purpose] = sizeBytes
