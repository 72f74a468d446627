# -*- test-case-name: tests.unit.test_gate -*-
"""
Room for answers that may be large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from ..interfaces import PARKED, RESPONSES, ILease, IMemoryPool, IWaiter, IWaitOrder
from ..policyfailure import FAILURES, raiseInterrupt

SMALL_ANSWER_BYTES = 64 << 10
"""Answers up to this size need no room: a connection may have as much unsent without being charged for it."""

_SHARE_OF_ANSWERS = 16
"""The fraction of the memory that answers, and requests that wait, may have in any case."""


@implementer(IWaiter)
class _AwaitedAnswer:
    """
    An answer that waits for room.
    """

    hasBoundedAnswers = True

    def __init__(self, holder: str, wantedBytes: int, heldBytes: int, cancelled: Callable[[_AwaitedAnswer], None]):
        self.holder = holder
        self.wantedBytes = wantedBytes
        self.heldBytes = heldBytes
        self.granted: Deferred[None] = Deferred(self._cancel)
        self._cancelled = cancelled

    def leaseGranted(self, lease: ILease) -> None:
        """
        Not called: it charges for itself.
        """

    def turnGranted(self) -> None:
        """
        It may be made.
        """
        self.granted.callback(None)

    def _cancel(self, _: Deferred[None]) -> None:
        self._cancelled(self)


class AnswerRoom:
    """
    Has large answers made one after another while memory is short.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, pool: IMemoryPool, order: IWaitOrder, otherOrder: IWaitOrder, waits: Callable[[], None]) -> None:
        """
        @param order: the order in which answers are made whose requests hold memory.
        @param otherOrder: the order in which requests go on that hold none yet; another object.
        @param waits: called when somebody has begun to wait, and has L{grant} called.
        """
        self._pool = pool
        self._order = order
        self._otherOrder = otherOrder
        self._waits = waits
        # Waiters that hold memory.  What they hold keeps none of them waiting, or each would wait for another.
        self._holding: set[_AwaitedAnswer] = set()
        self._heldBytes = 0
        # Waiters that hold none yet.  They come after those that do, or they would go on taking memory of which none is
        # given back.
        self._others: set[_AwaitedAnswer] = set()

    @property
    def waiting(self) -> int:
        """
        How many answers wait for room.
        """
        return len(self._holding) + len(self._others)

    @property
    def isShort(self) -> bool:
        """
        Whether a request that asks for room may have to wait.
        """
        return self.waiting > 0 or self._pool.isOutOfMemory()

    def whenRoom(self, holder: str, wantedBytes: int, heldBytes: int = 0) -> Deferred[None] | None:
        """
        Ask before a large request is decoded, or an answer is made that may be large.  While memory is short, the next
        one is made when some memory is free, or when answers and requests that wait hold little of it, so that others
        hold the rest.

        @param holder: who asks, as in L{IMemoryPool.tryAllocate}.
        @param wantedBytes: how large it may be.  A small one need not wait.
        @param heldBytes: how much it has been charged for already (L{RESPONSES}, L{PARKED}) and releases once the
            answer is made.
        @return: L{None} if it may be made now.  Otherwise fires when it may, and the answer is to be made, and charged,
            in the callback; cancel it to wait no more.
        """
        isFirst = not self._holding and (heldBytes > 0 or not self._others)
        if wantedBytes <= SMALL_ANSWER_BYTES or (isFirst and self._hasRoom(heldBytes)):
            return None
        awaited = _AwaitedAnswer(holder, wantedBytes, heldBytes, self._forget)
        if heldBytes > 0:
            self._holding.add(awaited)
            self._heldBytes += heldBytes
            self._order.add(awaited)
        else:
            self._others.add(awaited)
            self._otherOrder.add(awaited)
        self._waits()
        return awaited.granted

    def grant(self) -> bool:
        """
        Have the next answer made.

        @return: whether one waits and there is room for it.
        """
        if not self.isOwed:
            return False
        try:
            waiter = (self._order if self._holding else self._otherOrder).next()
        except FAILURES:
            raiseInterrupt()
            self._log.failure("the order of waiters failed; it is asked again later")
            return False
        assert isinstance(waiter, _AwaitedAnswer)
        self._forget(waiter)
        waiter.turnGranted()
        return True

    @property
    def isOwed(self) -> bool:
        """
        Whether an answer waits, and there is room for it.
        """
        return self.waiting > 0 and self._hasRoom(self._heldBytes)

    def _hasRoom(self, waitingBytes: int) -> bool:
        if not self._pool.isOutOfMemory():
            return True
        used = self._pool.usedBytesByPurpose
        heldBytes = used.get(RESPONSES, 0) + used.get(PARKED, 0) - waitingBytes
        return heldBytes <= self._pool.sizeBytes // _SHARE_OF_ANSWERS

    def _forget(self, awaited: _AwaitedAnswer) -> None:
        if awaited in self._holding:
            self._holding.discard(awaited)
            self._heldBytes -= awaited.heldBytes
            self._order.discard(awaited)
        elif awaited in self._others:
            self._others.discard(awaited)
            self._otherOrder.discard(awaited)
