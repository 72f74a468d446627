# -*- test-case-name: tests.unit.test_gate -*-
"""
The order in which waiters get memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from twisted.logger import Logger

from ..interfaces import ILease, IMemoryPool, IWaiter, IWaitOrder
from ..policyfailure import FAILURES, raiseInterrupt
from .aside import HOLDERS_PER_TURN, Aside
from .reserve import SMALL_FRAME_BYTES, Reserve

_ByHolder: TypeAlias = OrderedDict[str, dict[IWaiter, int]]


class MemoryQueue:
    """
    The connections that wait for memory for a request.

    A connection that finds the pool empty joins them, and so does every one that comes while others wait, or newcomers
    would overtake them.  Connections of a holder that has more than its share wait L{aside <Aside>}.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, pool: IMemoryPool, order: IWaitOrder, reserve: Reserve, waits: Callable[[], None]) -> None:
        """
        @param order: the order in which waiters get memory.
        @param waits: called when one has to wait, and has L{grant} called when there is memory.
        """
        self._pool = pool
        self._order = order
        self._reserve = reserve
        self._waits = waits
        self._aside = Aside(pool)
        # The same waiters as in the order.  Nearly always there are none, and each request looks.
        self._waiters: set[IWaiter] = set()
        # The waiters that the reserve may serve, and what they want, by holder, for small frames and for others.  The
        # holder that was looked at longest ago is the first.
        self._reservable: tuple[_ByHolder, _ByHolder] = (OrderedDict(), OrderedDict())
        self._holders: dict[IWaiter, str] = {}

    @property
    def waiting(self) -> int:
        """
        How many connections wait.
        """
        return len(self._waiters) + len(self._aside.waiters)

    @property
    def isAwaited(self) -> bool:
        """
        Whether any connection waits that is not aside.
        """
        return bool(self._waiters)

    @property
    def smallestWantedBytes(self) -> int | None:
        """
        The smallest amount that a connection waits for, of those that are not aside; L{None} if there is none.
        """
        return min((waiter.wantedBytes for waiter in self._waiters), default=None)

    def tryAllocate(self, waiter: IWaiter, sizeBytes: int) -> ILease | None:
        """
        Ask for memory for a request of C{waiter}.

        @return: a lease; or L{None}, and then C{waiter} gets it through
            C{leaseGranted} in a later turn, unless L{forget} comes first.
        @raise ValueError: if C{sizeBytes} is more than the pool hands out.
        """
        aside = self._aside
        # Every request comes here, so it saves a call.
        if not self._waiters and waiter.holder not in aside.holders:
            lease = self._pool.tryAllocate(sizeBytes, waiter.holder)
            if lease is not None:
                return lease
        elif not 0 < sizeBytes <= self._pool.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self._pool.largestBytes}")
        if waiter.holder in aside.holders or aside.isAboveShare(waiter.holder):
            aside.add(waiter)
            return None
        lease = self._reserve.tryAllocate(waiter, sizeBytes)
        if lease is not None:
            return lease
        if self._reserve.couldServe(sizeBytes):
            holder = self._holders[waiter] = waiter.holder
            self._reservable[sizeBytes > SMALL_FRAME_BYTES].setdefault(holder, {})[waiter] = sizeBytes
        self._join(waiter)
        self._waits()
        return None

    def forget(self, waiter: IWaiter) -> None:
        """
        C{waiter} is gone, and waits for no memory any more.
        """
        if waiter in self._waiters:
            self._leave(waiter)
        elif self._aside.has(waiter):
            self._aside.remove(waiter)

    def memoryReleased(self) -> bool:
        """
        @return: whether waiters that are aside have to be looked at.
        """
        return self._aside.memoryReleased()

    def readmit(self) -> bool:
        """
        Have waiters join again whose holders are not above their share any more.

        @return: whether others have to be looked at in another turn of the reactor.
        """
        return bool(self._aside.waiters) and self._aside.readmit(self._join)

    def grant(self) -> bool:
        """
        Give the next connection its memory, or set it aside.

        @return: whether a connection waited and was given memory or set aside.
        """
        return self._grantFromPool() or self._grantFromReserve()

    def _join(self, waiter: IWaiter) -> None:
        self._waiters.add(waiter)
        self._order.add(waiter)

    def _leave(self, waiter: IWaiter) -> None:
        self._waiters.discard(waiter)
        self._order.discard(waiter)
        holder = self._holders.pop(waiter, None)
        if holder is not None:
            for holders in self._reservable:
                waiters = holders.get(holder, {})
                if waiters.pop(waiter, 0) and not waiters:
                    del holders[holder]

    def _grantFromPool(self) -> bool:
        if not self._waiters:
            return False
        try:
            waiter = self._order.next()
            lease = self._pool.tryAllocate(waiter.wantedBytes, waiter.holder)
            isAboveShare = lease is None and self._aside.isAboveShare(waiter.holder)
        except FAILURES:
            raiseInterrupt()
            self._log.failure("the memory pool or the order of waiters failed; both are asked again later")
            return False
        if lease is not None:
            self._give(waiter, lease)
            return True
        if isAboveShare:
            self._leave(waiter)
            self._aside.add(waiter, isFirst=True)
            return True
        # A waiter that comes from aside has not said that it waits.
        self._waits()
        return False

    def _grantFromReserve(self) -> bool:
        """
        Serve a waiter from the reserve: it may have come while some memory was free, and those before it have claimed
        all of that since.
        """
        for holders in self._reservable:
            for _ in range(min(HOLDERS_PER_TURN, len(holders))):
                holder, waiters = next(iter(holders.items()))
                holders.move_to_end(holder)
                waiter, sizeBytes = next(iter(waiters.items()))
                try:
                    lease = self._reserve.tryAllocate(waiter, sizeBytes)
                except FAILURES:
                    raiseInterrupt()
                    self._log.failure("the memory pool failed; it is asked again later")
                    return False
                if lease is not None:
                    self._give(waiter, lease)
                    return True
        return False

    def _give(self, waiter: IWaiter, lease: ILease) -> None:
        self._leave(waiter)
        try:
            waiter.leaseGranted(lease)
        except Exception:
            self._log.failure("a connection failed when it was given memory")
