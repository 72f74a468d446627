# -*- test-case-name: tests.unit.test_gate -*-
"""
Connections of holders above their share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from twisted.logger import Logger

from ..interfaces import IFairPool, IMemoryPool, IWaiter
from ..policyfailure import FAILURES, raiseInterrupt

HOLDERS_PER_TURN = 64
"""How many holders above their share are looked at in one turn of the reactor."""


class Aside:
    """
    Where the connections of a holder that has more than its share of an L{IFairPool} wait, and keep nobody waiting.

    @ivar waiters: the connections that wait, each with its holder; to be read only.
    @ivar holders: the same by holder, of which the first was looked at longest ago; to be read only.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, pool: IMemoryPool) -> None:
        self._pool = pool
        self._fairPool: IFairPool | None = IFairPool(pool, None)
        self.waiters: dict[IWaiter, str] = {}
        self.holders: OrderedDict[str, OrderedDict[IWaiter, None]] = OrderedDict()
        self._unexaminedHolders = 0

    def has(self, waiter: IWaiter) -> bool:
        """
        Whether C{waiter} waits here.
        """
        return waiter in self.waiters

    def isAboveShare(self, holder: str) -> bool:
        """
        Whether there is memory, and C{holder} is refused all the same.
        """
        fairPool = self._fairPool
        return fairPool is not None and not self._pool.isOutOfMemory() and not fairPool.isBelowShare(holder)

    def add(self, waiter: IWaiter, isFirst: bool = False) -> None:
        """
        C{waiter} waits until its holder is below its share.

        @param isFirst: whether it goes before all others of its holder.
        """
        holder = self.waiters[waiter] = waiter.holder
        waiters = self.holders.setdefault(holder, OrderedDict())
        waiters[waiter] = None
        if isFirst:
            waiters.move_to_end(waiter, last=False)

    def remove(self, waiter: IWaiter) -> None:
        """
        C{waiter} waits here no more.
        """
        holder = self.waiters.pop(waiter)
        waiters = self.holders[holder]
        del waiters[waiter]
        if not waiters:
            del self.holders[holder]

    def memoryReleased(self) -> bool:
        """
        Every holder may be below its share again.

        @return: whether L{readmit} has anything to look at.
        """
        self._unexaminedHolders = len(self.holders)
        return self._unexaminedHolders > 0

    def readmit(self, admitted: Callable[[IWaiter], None]) -> bool:
        """
        Let go of one waiter of each holder that is not above its share any more, or that waits like all others because
        there is no memory.  Each call looks at some of the holders.

        @param admitted: called with each.
        @return: whether there are other holders to look at.
        """
        for _ in range(min(HOLDERS_PER_TURN, self._unexaminedHolders, len(self.holders))):
            self._unexaminedHolders -= 1
            holder, waiters = next(iter(self.holders.items()))
            self.holders.move_to_end(holder)
            try:
                isAboveShare = self.isAboveShare(holder)
            except FAILURES:
                raiseInterrupt()
                self._log.failure("the memory pool failed; it is asked again later")
                return False
            if isAboveShare:
                continue
            waiter = next(iter(waiters))
            self.remove(waiter)
            admitted(waiter)
            if not self._pool.isOutOfMemory():
                # There may be enough for another.
                self._unexaminedHolders += 1
        return self._unexaminedHolders > 0 and bool(self.holders)
