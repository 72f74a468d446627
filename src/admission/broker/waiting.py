# -*- test-case-name: tests.test_broker_fetch -*-
"""
Fetches that wait for records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .log.interface import Partition


class Fetch(Protocol):
    """
    A fetch that is not satisfied yet.
    """

    @property
    def watched(self) -> Collection[Partition]:
        """
        The partitions whose growth may satisfy it, each once.
        """

    def isSatisfied(self, changed: Iterable[Partition]) -> bool:
        """
        Is it, now that some of its partitions have changed?  A client may
        watch thousands, and the others need not be looked at again.
        """

    def read(self) -> list[bytes]:
        """
        The response as it is now.
        """


class _Waiting:
    __slots__ = ("call", "deferred", "fetch")

    def __init__(self, fetch: Fetch, deferred: Deferred[list[bytes]]) -> None:
        self.fetch = fetch
        self.deferred = deferred
        self.call: IDelayedCall | None = None


class WaitingFetches:
    """
    Answers each fetch once, when it is satisfied or its time is up.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._byPartition: dict[Partition, dict[_Waiting, None]] = {}
        self.count = 0

    def wait(self, fetch: Fetch, maxWaitSeconds: float) -> Deferred[Any]:
        """
        Answer C{fetch} when it is satisfied, or after C{maxWaitSeconds}.

        @return: fires with the body of the response; cancelling it makes the
            fetch wait no longer.
        """
        deferred: Deferred[list[bytes]] = Deferred(lambda _: self._forget(waiting))
        waiting = _Waiting(fetch, deferred)
        self.count += 1
        for partition in fetch.watched:
            self._byPartition.setdefault(partition, {})[waiting] = None
        waiting.call = self._clock.callLater(maxWaitSeconds, self._answer, waiting)
        return deferred

    def changed(self, partitions: Sequence[Partition]) -> None:
        """
        C{partitions} have grown, or are gone.
        """
        if not self._byPartition:
            return
        candidates: dict[_Waiting, list[Partition]] = {}
        for partition in partitions:
            for waiting in self._byPartition.get(partition, ()):
                candidates.setdefault(waiting, []).append(partition)
        for waiting, changed in candidates.items():
            # Answering one may have cancelled another.
            if waiting.call is not None and self._isDue(waiting, changed):
                self._answer(waiting)

    def _isDue(self, waiting: _Waiting, changed: Sequence[Partition]) -> bool:
        try:
            return waiting.fetch.isSatisfied(changed)
        except Exception:
            # Then reading fails as well, and the client hears of it; the others must not wait for that.
            return True

    def _forget(self, waiting: _Waiting) -> None:
        if waiting.call is None:
            return
        if waiting.call.active():
            waiting.call.cancel()
        waiting.call = None
        self.count -= 1
        for partition in waiting.fetch.watched:
            others = self._byPartition.get(partition)
            if others is not None:
                others.pop(waiting, None)
                if not others:
                    del self._byPartition[partition]

    def _answer(self, waiting: _Waiting) -> None:
        self._forget(waiting)
        try:
            body = waiting.fetch.read()
        except Exception:
            waiting.deferred.errback()
        else:
            waiting.deferred.callback(body)
