# -*- test-case-name: tests.test_broker_sync -*-
"""
The answers to Produce requests of one connection: each when its records are as
safe as it asked for, all in the order of the requests.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.python.failure import Failure

from ..interfaces import PARKED, ILease
from ..operations import waitFor
from ..wire.headers import RequestHeader, frame
from ..wire.produce import PartitionResult, encodeProduceResponse
from .api import produce
from .broker import SYNCED

if TYPE_CHECKING:
    from .recording import RecordedRequest
    from .session import KafkaConnection

CLOSING = "closing"
"""A reason to be mute: the connection closes after the next response."""

UNANSWERED = "unanswered"
"""So many of its Produce requests wait for the disk that no more are read."""

MOST_UNANSWERED = 128
UNANSWERED_BYTES = 512
"""What one of them is charged for while it waits."""

NOT_ON_DISK = "the disk has not confirmed its records in time"
"""What is recorded of one that waited for the disk in vain."""

_FIRST_VERSION_THAT_BACKS_OFF = 6
"""From here on clients stay away for C{throttle_time_ms} by themselves (KIP-219)."""

ALL = -1
"""What C{acks} says when records are to survive more than the broker's death."""


class Unanswered(NamedTuple):
    """
    A Produce request whose records are committed.

    @ivar commit: the commit that must be on the disk before it is answered, or 0.
    @ivar timeoutSeconds: for how long it may wait for that.
    @ivar delaySeconds: the delay that it is answered with, or 0.
    @ivar throttledUntilSeconds: when that ends.
    @ivar recorded: what is recorded of it, if anything is.
    """

    header: RequestHeader
    results: list[PartitionResult]
    commit: int
    timeoutSeconds: float
    delaySeconds: float
    throttledUntilSeconds: float
    recorded: RecordedRequest | None


def throttleTimeMs(delaySeconds: float) -> int:
    """
    A delay as clients are told of it: whole milliseconds, rounded up so that
    none comes back early, and never negative.
    """
    return max(math.ceil(delaySeconds * 1000), 0)


class Producing:
    """
    The Produce requests of one connection that have not been answered.
    """

    __slots__ = ("_connection", "_syncing", "_unanswered", "_uncommitted")

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        # Requests that wait for their commit, and those that wait for the disk or for others before them.
        self._uncommitted = 0
        self._unanswered: deque[Unanswered] = deque()
        self._syncing: Deferred[None] | None = None

    @property
    def isOutstanding(self) -> bool:
        """
        Whether there are any.
        """
        return bool(self._uncommitted or self._unanswered)

    def add(
        self,
        header: RequestHeader,
        results: list[PartitionResult],
        wantsSync: bool,
        timeoutSeconds: float,
        delaySeconds: float,
        recorded: RecordedRequest | None,
    ) -> None:
        """
        Answer a request whose records have just been appended, once the log
        has committed them.

        @param wantsSync: whether they must be on the disk, too.
        @param timeoutSeconds: see L{Unanswered}, as for C{delaySeconds}, which begins now, and C{recorded}.
        """
        connection = self._connection
        self._uncommitted += 1
        if self._uncommitted + len(self._unanswered) >= MOST_UNANSWERED:
            connection.mute.add(UNANSWERED)
        untilSeconds = connection.factory.clock.seconds() + delaySeconds
        connection.broker.log.whenCommitted(
            partial(self._committed, header, results, wantsSync, timeoutSeconds, delaySeconds, untilSeconds, recorded)
        )

    def answer(self) -> None:
        """
        Answer those that can be.  While some wait for their commit, none: they
        are answered together.
        """
        if not self._unanswered or self._uncommitted:
            return
        connection = self._connection
        if connection.isLost:
            self._unanswered.clear()
            connection.produceAnswered()
            return
        syncedCount = connection.broker.log.syncedCount
        responses: list[bytes] = []
        while self._unanswered and self._unanswered[0].commit <= syncedCount:
            header, results, _, _, delaySeconds, untilSeconds, recorded = self._unanswered[0]
            if delaySeconds and header.apiVersion < _FIRST_VERSION_THAT_BACKS_OFF:
                # It would not stay away by itself, so the response itself is late; it says how late.
                if connection.isThrottled and CLOSING not in connection.mute.reasons:
                    break
            elif delaySeconds:
                delaySeconds = untilSeconds - connection.factory.clock.seconds()
            self._unanswered.popleft()
            toldMs = throttleTimeMs(delaySeconds)
            responses += frame(header, [encodeProduceResponse(header.apiVersion, results, toldMs)])
            if recorded is not None:
                recorded.answersLate(toldMs)
        if responses:
            connection.send(responses)
        if self._unanswered and self._unanswered[0].commit > syncedCount:
            self._awaitSync(self._unanswered[0])
        if UNANSWERED in connection.mute.reasons and len(self._unanswered) < MOST_UNANSWERED:
            connection.unmuteFor(UNANSWERED)
        if not self.isOutstanding:
            connection.produceAnswered()

    def cancel(self) -> None:
        """
        The client is gone: wait for the disk no longer on its behalf.
        """
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.cancel()
        self.answer()

    def _committed(
        self,
        header: RequestHeader,
        results: list[PartitionResult],
        wantsSync: bool,
        timeoutSeconds: float,
        delaySeconds: float,
        throttledUntilSeconds: float,
        recorded: RecordedRequest | None,
        error: Exception | None,
    ) -> None:
        self._uncommitted -= 1
        commit = 0
        if error is not None:
            results = produce.failed(results, error)
        elif wantsSync and not all(result.errorCode for result in results):
            commit = self._connection.broker.log.commitCount
        self._unanswered.append(
            Unanswered(header, results, commit, timeoutSeconds, delaySeconds, throttledUntilSeconds, recorded)
        )
        self.answer()

    def _awaitSync(self, first: Unanswered) -> None:
        if self._syncing is not None:
            return
        broker = self._connection.broker
        log = broker.log
        log.sync()
        parked = broker.gate.pool.charge(len(self._unanswered) * UNANSWERED_BYTES, PARKED)
        syncing = self._syncing = waitFor(
            broker.purgatory, (SYNCED,), lambda: log.syncedCount >= first.commit, first.timeoutSeconds
        )
        syncing.addBoth(self._syncOver, parked)
        syncing.addErrback(self._syncFailed)

    def _syncOver(self, result: Any, parked: ILease) -> Any:
        parked.release()
        self._syncing = None
        if not isinstance(result, Failure):
            self.answer()
        return result

    def _syncFailed(self, failure: Failure) -> None:
        connection = self._connection
        if isinstance(failure.value, TimeoutError):
            first = self._unanswered[0]
            self._unanswered[0] = first._replace(results=produce.timedOut(first.results), commit=0)
            if first.recorded is not None:
                first.recorded.expires(NOT_ON_DISK)
            self.answer()
        elif not isinstance(failure.value, CancelledError):
            connection.factory.log.failure("a request of {peer} failed", failure, peer=connection.peer)
            connection.closeGracefully()
