# -*- test-case-name: tests.unit.test_gate -*-
"""
Room for answers that may be large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.defer import Deferred

from ..interfaces import PARKED, RESPONSES, IMemoryPool

_SHARE_OF_ANSWERS = 16
"""Which part of the memory answers, and requests that wait, have in any case."""


class AnswerRoom:
    """
    While memory is short, has large answers made one after another.
    """

    def __init__(self, pool: IMemoryPool, waits: Callable[[], None]) -> None:
        """
        @param waits: called when somebody has begun to wait, and has L{grant} called.
        """
        self._pool = pool
        self._waits = waits
        # In the order in which they came: those that hold memory while they wait for more of it, with how much, and
        # those that hold none.
        self._holding: dict[Deferred[None], int] = {}
        self._heldBytes = 0
        self._others: dict[Deferred[None], None] = {}

    @property
    def waiting(self) -> int:
        """
        How many answers wait for room.
        """
        return len(self._holding) + len(self._others)

    def whenRoom(self, heldBytes: int = 0) -> Deferred[None] | None:
        """
        Ask before a large request is decoded, or an answer is made that may be large.  While memory is short, the next
        is when there is some, or when others hold it: answers and requests that wait little of it.

        @param heldBytes: how much it has been charged for already (L{RESPONSES}, L{PARKED}) and releases once the
            answer is made.  Such go first, and what they hold keeps none of them waiting: each would wait for another.
        @return: L{None} if it may be made now.  Otherwise fires when it may, and the answer is to be made, and charged,
            in the callback; cancel it to wait no more.
        """
        isFirst = not self._holding and (heldBytes > 0 or not self._others)
        if isFirst and self._hasRoom(heldBytes):
            return None
        waiting: Deferred[None] = Deferred(self._forget)
        if heldBytes > 0:
            self._holding[waiting] = heldBytes
            self._heldBytes += heldBytes
        else:
            self._others[waiting] = None
        self._waits()
        return waiting

    def grant(self) -> bool:
        """
        Have the next answer made.

        @return: whether one waits and there is room for it.
        """
        waiting = self._next()
        if waiting is None:
            return False
        self._forget(waiting)
        waiting.callback(None)
        return True

    @property
    def isOwed(self) -> bool:
        """
        Whether an answer waits, and there is room for it.
        """
        return self._next() is not None

    def _next(self) -> Deferred[None] | None:
        waiters: Iterable[Deferred[None]] = self._holding or self._others
        waiting = next(iter(waiters), None)
        return waiting if waiting is not None and self._hasRoom(self._heldBytes) else None

    def _hasRoom(self, waitingBytes: int) -> bool:
        if not self._pool.isOutOfMemory():
            return True
        used = self._pool.usedBytesByPurpose
        heldBytes = used.get(RESPONSES, 0) + used.get(PARKED, 0) - waitingBytes
        return heldBytes <= self._pool.sizeBytes // _SHARE_OF_ANSWERS

    def _forget(self, waiting: Deferred[None]) -> None:
        self._others.pop(waiting, None)
        self._heldBytes -= self._holding.pop(waiting, 0)
