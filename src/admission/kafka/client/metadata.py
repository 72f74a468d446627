# -*- test-case-name: tests.unit.kafka.client.test_cluster -*-
"""
Keeping what is known of the cluster fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from .backoff import Backoff
from .cluster import Cluster


class Metadata:
    """
    Refreshes a L{Cluster}: now and then, and when somebody has reason to
    believe that it has changed; never twice at a time.

    @ivar onRefreshed: called after each success.
    """

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        clock: IReactorTime,
        backoff: Backoff,
        maxAgeSeconds: float,
        wanted: Callable[[], Collection[str]],
    ) -> None:
        """
        @param maxAgeSeconds: how often to refresh without a reason.
        @param wanted: returns the topics to ask about.
        """
        self._cluster = cluster
        self._clock = clock
        self._backoff = backoff
        self._maxAgeSeconds = maxAgeSeconds
        self._wanted = wanted
        self._refreshing: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        self._isStale = False
        self._timer: IDelayedCall | None = None
        self._inARow = 0
        self._isClosed = False
        self.onRefreshed: Callable[[], None] = lambda: None

    def refresh(self) -> Deferred[None]:
        """
        Refresh now.  What is wanted at this moment will have been asked for.

        @return: fails with a L{ClientError}; nothing is tried again for the
            caller.
        """
        waiting: Deferred[None] = Deferred(lambda cancelled: self._waiting.remove(cancelled))
        if self._refreshing is None:
            self._waiting.append(waiting)
            self._begin()
            return waiting
        # What is on its way may not know of the topics that are wanted now.
        again: Deferred[None] = Deferred()
        self._refreshing.addBoth(lambda _: again.callback(None))
        again.addCallback(lambda _: self.refresh())
        return again

    def refreshSoon(self, isUrgent: bool = False) -> None:
        """
        Something has changed: refresh, after a pause and until it works.

        @param isUrgent: whether to do without the pause.
        """
        if self._refreshing is not None:
            self._isStale = True
        elif isUrgent or not self._isStale:
            self._isStale = True
            self._schedule(0.0 if isUrgent else self._backoff.delaySeconds(max(self._inARow, 1)))

    def close(self) -> None:
        """
        Refresh no more.
        """
        self._isClosed = True
        self._schedule(None)
        if self._refreshing is not None:
            self._refreshing.cancel()

    def _schedule(self, delaySeconds: float | None) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        if delaySeconds is not None and not self._isClosed:
            self._timer = self._clock.callLater(delaySeconds, self._timerFired)

    def _timerFired(self) -> None:
        self._timer = None
        if self._refreshing is None:
            self._begin()

    def _begin(self) -> None:
        self._isStale = False
        self._inARow += 1
        self._refreshing = self._cluster.refresh(self._wanted())
        self._refreshing.addBoth(self._ended)

    def _ended(self, result: Any) -> None:
        self._refreshing = None
        wasStale, self._isStale = self._isStale, False
        if isinstance(result, Failure):
            if self._inARow == 1 and not self._isClosed:
                self.log.warn("no broker answers: {reason}; trying again", reason=result.getErrorMessage())
            self._schedule(self._backoff.delaySeconds(self._inARow))
        else:
            self._schedule(self._maxAgeSeconds)
            if wasStale:
                self.refreshSoon()
            self.onRefreshed()
            if not self._isStale:
                self._inARow = 0
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(result)
