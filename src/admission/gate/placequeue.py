# -*- test-case-name: tests.unit.test_placequeue -*-
"""
The order in which requests begin, where a policy bounds how many are in progress and lets others wait for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from ..interfaces import ILease, IMemoryPool, IPurgatory, IWaiter, IWaitOrder, Places
from ..operations import DelayedOperation
from ..policyfailure import FAILURES, raiseInterrupt

POOL_SHARE = 4
"""Requests that wait for a place have at most this fraction of the memory."""

TARGET_SECONDS = 0.05
INTERVAL_SECONDS = 0.1
"""
When the oldest request of a holder has waited longer than the target for an interval, the newest go first, until none
waits that long: in a queue that does not get shorter, requests at the head are answered too late for anybody.  That
tells a burst from overload as CoDel does, whose interval this is (Nichols and Jacobson, Controlling Queue Delay, 2012).
"""

ASKED_PER_TURN = 64


@implementer(IWaiter)
class AwaitedPlace(DelayedOperation):
    """
    A request that waits for a place.

    @ivar holder: whose it is.
    @ivar heldBytes: the memory that it holds meanwhile.
    """

    __slots__ = ("_begins", "_expired", "_gone", "_queue", "_waits", "heldBytes", "holder", "joinedSeconds")

    wantedBytes = 0
    hasBoundedAnswers = False

    def __init__(
        self,
        places: Places,
        holder: str,
        heldBytes: int,
        waits: Callable[[], bool],
        begins: Callable[[], None],
        expired: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        """
        @param waits: asks again; tells whether it still has to wait.
        @param begins: called when it does not have to any more.
        @param expired: called instead if its time is up, or others need its place in the queue.
        @param gone: called instead if it is cancelled.
        """
        super().__init__(places.waitSeconds)
        self.holder = holder
        self.heldBytes = heldBytes
        self.joinedSeconds = 0.0
        self._waits = waits
        self._begins = begins
        self._expired = expired
        self._gone = gone
        self._queue: PlaceQueue | None = None

    def leaseGranted(self, lease: ILease) -> None:
        """
        Not called: it waits for no memory.
        """

    def turnGranted(self) -> None:
        """
        Not called: it has its turn with its place.
        """

    def tryPlace(self) -> bool:
        """
        @return: whether it is over.
        """
        if self._waits():
            return False
        if self._queue is not None and self.forceComplete():
            self._begins()
        return True

    def expire(self) -> None:
        # One that was cancelled is not complete, and is told nothing more.
        if self._queue is not None and self.forceComplete():
            self._expired()

    def onComplete(self) -> None:
        self._leave()

    def onCancel(self) -> None:
        if self._queue is not None:
            self._leave()
            self._gone()

    def _leave(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.left(self)


class PlaceQueue:
    """
    The requests that wait for a place.  The order chooses the holder whose request is next.  That is the holder's
    oldest one, or the newest while they wait for too long.  A full queue has room for a holder that has less in it than
    another.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, pool: IMemoryPool, clock: IReactorTime, purgatory: IPurgatory, order: IWaitOrder) -> None:
        """
        @param purgatory: where they are until their time is up.
        @param order: the order of holders; an object of its own.
        """
        self._pool = pool
        self._clock = clock
        self._purgatory = purgatory
        self._order = order
        # The oldest first.
        self._byHolder: dict[str, dict[AwaitedPlace, None]] = {}
        self._lateSince: dict[str, float] = {}
        self._heldBytes = 0
        self._serving: IDelayedCall | None = None
        self.waiting = 0

    def hasRoom(self, places: Places, holder: str, sizeBytes: int) -> bool:
        """
        Whether a request of C{holder} that holds C{sizeBytes} meanwhile may wait.
        """
        if self._heldBytes + sizeBytes > self._pool.sizeBytes // POOL_SHARE:
            return False
        return self.waiting < places.maxWaiting or self._longest() > len(self._byHolder.get(holder, ())) + 1

    def add(self, awaited: AwaitedPlace, places: Places) -> None:
        """
        Let a request wait; there has to be room for it.
        """
        if self.waiting >= places.maxWaiting:
            holder = max(self._byHolder, key=lambda each: len(self._byHolder[each]))
            next(iter(self._byHolder[holder])).expire()
        awaited.joinedSeconds = self._clock.seconds()
        awaited._queue = self
        self._byHolder.setdefault(awaited.holder, {})[awaited] = None
        self._heldBytes += awaited.heldBytes
        self.waiting += 1
        self._order.add(awaited)
        self._purgatory.tryCompleteElseWatch(awaited, [awaited])

    def left(self, awaited: AwaitedPlace) -> None:
        """
        Called by one that waits no more.
        """
        waiting = self._byHolder[awaited.holder]
        del waiting[awaited]
        if not waiting:
            del self._byHolder[awaited.holder]
            self._lateSince.pop(awaited.holder, None)
        self._heldBytes -= awaited.heldBytes
        self.waiting -= 1
        self._order.discard(awaited)

    def freed(self) -> None:
        """
        There may be a place: ask again, in a turn of its own.
        """
        if self.waiting and self._serving is None:
            self._serving = self._clock.callLater(0, self._serve)

    def dismiss(self) -> None:
        """
        Have all waiting requests wait no longer.
        """
        for awaited in [each for waiting in self._byHolder.values() for each in waiting]:
            awaited.expire()

    def close(self) -> None:
        """
        Cancel the timer.
        """
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None

    def _serve(self) -> None:
        self._serving = None
        now = self._clock.seconds()
        # The waiters of holders for which there is no place.
        refused: list[AwaitedPlace] = []
        try:
            for _ in range(ASKED_PER_TURN):
                if self.waiting == len(refused):
                    break
                named = self._order.next()
                assert isinstance(named, AwaitedPlace)
                holder = named.holder
                if self._next(holder, now).tryPlace():
                    continue
                for each in self._byHolder.get(holder, ()):
                    self._order.discard(each)
                    refused.append(each)
            else:
                self.freed()
        except FAILURES:
            raiseInterrupt()
            self._log.failure("the order of waiters failed, or one of them; they are asked again later")
        for each in refused:
            if each._queue is self:
                self._order.add(each)

    def _next(self, holder: str, now: float) -> AwaitedPlace:
        waiting = self._byHolder[holder]
        oldest = next(iter(waiting))
        if now - oldest.joinedSeconds <= TARGET_SECONDS:
            self._lateSince.pop(holder, None)
            return oldest
        isLate = now - self._lateSince.setdefault(holder, now) >= INTERVAL_SECONDS
        return next(reversed(waiting)) if isLate else oldest

    def _longest(self) -> int:
        return max(map(len, self._byHolder.values()), default=0)
