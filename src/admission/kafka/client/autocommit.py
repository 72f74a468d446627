# -*- test-case-name: tests.unit.kafka.client.test_offsetcommits -*-
"""
Committing what was polled, without being asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .errors import ClientError
from .subscriptionstate import TopicPartition


class AutoCommit:
    """
    Commits now and then, at a poll or while the application waits in one:
    then it is done with all that earlier polls gave it.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        intervalSeconds: float,
        offsets: Callable[[], Mapping[TopicPartition, int]],
        commit: Callable[[Mapping[TopicPartition, int], float], Deferred[None]],
        timeoutSeconds: float,
    ) -> None:
        """
        @param intervalSeconds: between commits.
        @param offsets: returns what to commit; nothing if nothing can be.
        @param commit: commits it, within so many seconds.
        @param timeoutSeconds: for how long one commit is tried.
        """
        self._clock = clock
        self._intervalSeconds = intervalSeconds
        self._offsets = offsets
        self._commit = commit
        self._timeoutSeconds = timeoutSeconds
        self._timer: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._isDue = False
        self._isPolling = False
        self._isSilent = False
        self._committed: Mapping[TopicPartition, int] = {}

    def start(self) -> None:
        """
        Commit from now on.
        """
        if self._timer is None:
            self._timer = self._clock.callLater(self._intervalSeconds, self._timeIsUp)

    def polled(self) -> None:
        """
        The application is done with what it was given.
        """
        self._isPolling = True
        if self._isDue:
            self._begin()

    def handedOver(self) -> None:
        """
        The application is given something.
        """
        self._isPolling = False

    def _timeIsUp(self) -> None:
        self._timer = self._clock.callLater(self._intervalSeconds, self._timeIsUp)
        self._isDue = True
        if self._isPolling:
            self._begin()

    def _begin(self) -> None:
        self._isDue = False
        if self._running is None:
            self._running = running = self.commitNow(self._timeoutSeconds)
            running.addBoth(self._ended)
            running.addErrback(lambda failure: self.log.failure("a commit went wrong", failure))

    def _ended(self, result: Any) -> Any:
        self._running = None
        return result

    @inlineCallbacks
    def commitNow(self, timeoutSeconds: float) -> Generator[Deferred[Any], Any, None]:
        """
        Commit, for example because the partitions are about to be revoked.

        @return: never fails because of brokers; what cannot be committed will
            be read again by somebody.
        """
        offsets = dict(self._offsets())
        if self._isSilent or not offsets or offsets == self._committed:
            return
        try:
            yield self._commit(offsets, timeoutSeconds)
            self._committed = offsets
        except ClientError as error:
            self.log.warn("what was polled could not be committed: {reason}", reason=error)

    def forget(self) -> None:
        """
        The partitions are revoked; what was committed for them says nothing
        about the next ones.
        """
        self._committed = {}

    def close(self, commit: bool) -> Deferred[None]:
        """
        Commit no more unless told to.

        @param commit: whether L{commitNow} is still to do anything.
        @return: fires when a commit that was running has ended.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._isDue = False
        self._isSilent = not commit
        if self._running is None:
            return succeed(None)
        ended: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: ended.callback(None))
        return ended
