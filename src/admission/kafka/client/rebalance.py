# -*- test-case-name: tests.unit.kafka.client.test_consumer -*-
"""
Partitions change hands: what the application is told, in which order, and
what is committed before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from .autocommit import AutoCommit
from .groupmember import Membership, MembershipLost
from .reading import Reading
from .subscriptionstate import TopicPartition

#: Told which partitions are revoked or assigned; what it returns is waited for.
PartitionsCallback = Callable[[list[TopicPartition]], Any]


def ignore(partitions: list[TopicPartition]) -> None:
    """
    Nobody wants to know.
    """


class Rebalances:
    """
    Has one rebalance at a time: commit and revoke, join, assign.

    @ivar onEnd: called when it has ended, with what was wrong, if anything.
    """

    def __init__(
        self,
        membership: Membership,
        reading: Reading,
        autoCommit: AutoCommit | None,
        clock: IReactorTime,
        commitSeconds: float,
        isPolling: Callable[[], bool],
    ) -> None:
        """
        @param commitSeconds: for how long a commit is tried before others
            get the partitions.
        @param isPolling: returns whether the application waits for us.
        """
        self._membership = membership
        self._reading = reading
        self._autoCommit = autoCommit
        self._clock = clock
        self._commitSeconds = commitSeconds
        self._isPolling = isPolling
        self._running: Deferred[None] | None = None
        self._callbackError: Exception | None = None
        self._onRevoked: PartitionsCallback = ignore
        self._onAssigned: PartitionsCallback = ignore
        self.onEnd: Callable[[Exception | None], None] = lambda error: None

    @property
    def isRunning(self) -> bool:
        """
        Whether partitions are changing hands.
        """
        return self._running is not None

    def subscribe(self, topics: frozenset[str], onRevoked: PartitionsCallback, onAssigned: PartitionsCallback) -> None:
        """
        See L{Consumer.subscribe <admission.kafka.client.consumer.Consumer.subscribe>}.
        """
        self._onRevoked, self._onAssigned = onRevoked, onAssigned
        if topics != self._reading.subscribed:
            self._reading.subscribed = topics
            self._membership.requestRejoin(f"the subscription is now {', '.join(sorted(topics))}")

    def begin(self) -> None:
        """
        Give up what we have, join, and see what we get.
        """
        self._running = self._rebalance()
        self._running.addBoth(self._ended)

    def cancel(self) -> None:
        """
        Wait for nobody any more.
        """
        if self._running is not None:
            self._running.cancel()

    @inlineCallbacks
    def _rebalance(self) -> Generator[Deferred[Any], Any, None]:
        yield self.revoke()
        topics = self._reading.subscribed
        partitions = yield self._membership.join(topics)
        self._reading.assign(partitions)
        if topics != self._reading.subscribed:
            self._membership.requestRejoin("the subscription has changed meanwhile")
        yield self._callBack(self._onAssigned, partitions)

    @inlineCallbacks
    def revoke(self, callbackSeconds: float | None = None) -> Generator[Deferred[Any], Any, None]:
        """
        Give up the partitions: commit what was polled, tell the application.

        @param callbackSeconds: for how long the application is waited for;
            for as long as it takes unless given.
        """
        partitions = self._reading.partitions
        if not partitions:
            return
        if self._autoCommit is not None:
            yield self._autoCommit.commitNow(self._commitSeconds)
            self._autoCommit.forget()
        try:
            yield self._callBack(self._onRevoked, partitions, callbackSeconds)
        finally:
            # Also when it is cancelled, so that nobody is told twice.
            self._reading.assign(())

    @inlineCallbacks
    def _callBack(
        self, callback: PartitionsCallback, partitions: list[TopicPartition], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, None]:
        """
        Have the application do something, in its own time.
        """
        beating = self._membership.beating
        beating.handedOver()
        try:
            finished = maybeDeferred(callback, partitions)
            if timeoutSeconds is not None:
                finished.addTimeout(timeoutSeconds, self._clock)
            yield finished
        except CancelledError:
            raise
        except Exception as error:
            # The partitions change hands all the same; the poll will tell.
            self._callbackError = error
        finally:
            if self._isPolling():
                beating.polled()

    def _ended(self, result: Any) -> None:
        self._running = None
        error, self._callbackError = self._callbackError, None
        if isinstance(result, Failure) and not isinstance(result.value, MembershipLost | CancelledError):
            error = result.value if isinstance(result.value, Exception) else error
        self.onEnd(error)
