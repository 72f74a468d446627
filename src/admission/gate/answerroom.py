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
"""Which part of the memory answers, and requests that wait, have in any case."""


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
        self.granted: Deferred[None] = Deferred(lambda _: cancelled(self))

    def leaseGranted(self, lease: ILease) -> None:
        """
        Not called: it charges for itself.
        """

    def turnGranted(self) -> None:
        """
        It may be made.
        """
        self.granted.callback(None)


class AnswerRoom:
    """
    While memory is short, has large answers made one after another.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, pool: IMemoryPool, order: IWaitOrder, waits: Callable[[], None]) -> None:
        """
        @param order: in which order those that wait are made.
        @param waits: called when somebody has begun to wait, and has L{grant} called.
        """
        self._pool = pool
        self._order = order
        self._waits = waits
        self._waiters: set[_AwaitedAnswer] = set()
        # What those hold that wait: it keeps none of them waiting, as each would wait for another.
        self._heldBytes = 0

    @property
    def waiting(self) -> int:
        """
        How many answers wait for room.
        """
        return len(self._waiters)

    @property
    def isShort(self) -> bool:
        """
        Whether who asks may have to wait.
        """
        return bool(self._waiters) or self._pool.isOutOfMemory()

    def whenRoom(self, holder: str, wantedBytes: int, heldBytes: int = 0) -> Deferred[None] | None:
        """
        Ask before a large request is decoded, or an answer is made that may be large.  While memory is short, the next
        is when there is some, or when others hold it: answers and requests that wait little of it.

        @param holder: who asks, as in L{IMemoryPool.tryAllocate}.
        @param wantedBytes: how large it may be.  A small one need not wait.
        @param heldBytes: how much it has been charged for already (L{RESPONSES}, L{PARKED}) and releases once the
            answer is made.
        @return: L{None} if it may be made now.  Otherwise fires when it may, and the answer is to be made, and charged,
            in the callback; cancel it to wait no more.
        """
        if wantedBytes <= SMALL_ANSWER_BYTES or (not self._waiters and self._hasRoom(heldBytes)):
            return None
        awaited = _AwaitedAnswer(holder, wantedBytes, heldBytes, self._forget)
        self._waiters.add(awaited)
        self._heldBytes += heldBytes
        self._order.add(awaited)
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
            waiter = self._order.next()
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
        return bool(self._waiters) and self._hasRoom(self._heldBytes)

    def _hasRoom(self, waitingBytes: int) -> bool:
        if not self._pool.isOutOfMemory():
            return True
        used = self._pool.usedBytesByPurpose
        heldBytes = used.get(RESPONSES, 0) + used.get(PARKED, 0) - waitingBytes
        return heldBytes <= self._pool.sizeBytes // _SHARE_OF_ANSWERS

    def _forget(self, awaited: _AwaitedAnswer) -> None:
        if awaited in self._waiters:
            self._waiters.discard(awaited)
            self._heldBytes -= awaited.heldBytes
            self._order.discard(awaited)
