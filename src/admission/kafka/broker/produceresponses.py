# -*- test-case-name: tests.unit.kafka.broker.test_sync -*-
"""
The answers to the Produce requests of one connection, in the order of the
requests: each is sent when its records are as safe as it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.python.failure import Failure

from admission.connection.driver import FAILED
from admission.connection.pauses import Pause
from admission.interfaces import PARKED, ILease
from admission.operations import waitFor

from ..serving.kafkarequest import KafkaRequest
from ..serving.session import KafkaSession
from ..wire.headers import frame
from ..wire.produce import encodeProduceResponse
from ..wire.throttletime import throttleTimeMs
from .api import produceapi
from .broker import Broker

UNANSWERED_BYTES = 512
"""The memory charged for a request while it waits."""

NOT_ON_DISK = "the disk has not confirmed its records in time"
"""The recorded outcome of a request that waited for the disk in vain."""

_FIRST_VERSION_THAT_BACKS_OFF = 6
"""From this version on clients wait for C{throttle_time_ms} by themselves (KIP-219)."""


class ProduceResponses:
    """
    The Produce requests of one connection that have not been answered.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_broker",
        "_connection",
        "_deadlineSeconds",
        "_uncommitted",
        "_waiting",
    )

    def __init__(
        self,
        connection: KafkaSession,
        broker: Broker,
        answered: Callable[[], None],
    ) -> None:
        """
        @param answered: called when all requests have been answered.
        """
        self._connection = connection
        self._broker = broker
        self._answered = answered
        # How many requests wait for their commit, requests of a client that has left included.
        self._uncommitted = 0
        # The requests for which the log was asked to flush, until it has; the wait for all that are not flushed, and
        # when it ends in any case.
        self._asked: list[KafkaRequest] | None = None
        self._waiting: Deferred[None] | None = None
        self._deadlineSeconds = 0.0

    def add(self, request: KafkaRequest, wantsFlush: bool, delaySeconds: float, isCommitted: bool = False) -> None:
        """
        Answer a request once the log has committed its records, which have just
        been appended, and set it aside.

        @param wantsFlush: whether the records must be on the disk, too.
        @param delaySeconds: the delay to report in the answer; it begins now.
        @param isCommitted: whether the log has committed them already.
        """
        connection = self._connection
        # Before others are told that it waits: the client may leave at that.
        connection.request = None
        now = connection.driver.park(request)
        if delaySeconds:
            request.delaySeconds = delaySeconds
            request.throttledUntilSeconds = now + delaySeconds
        connection.setAside(request)
        if connection.isLost:
            return
        self._uncommitted += 1
        committed = partial(self._committed, request, wantsFlush)
        if isCommitted:
            committed(None)
        else:
            self._broker.log.whenCommitted(committed)

    def answer(self) -> None:
        """
        Answer all requests that can be answered.  While some wait for their commit, none
        is: they are answered together.
        """
        connection = self._connection
        requests = connection.unanswered
        if not requests or self._uncommitted:
            return
        now = connection.factory.clock.seconds()
        self._awaitFlush(now)
        responses: list[bytes] = []
        isFailed = False
        while requests:
            request = next(iter(requests))
            if request.isUnflushed:
                break
            apiVersion, delaySeconds = request.header.apiVersion, request.delaySeconds
            if delaySeconds and apiVersion < _FIRST_VERSION_THAT_BACKS_OFF:
                # The client would not wait by itself, so the response itself is late, and says by how much.
                if connection.driver.isThrottled and Pause.CLOSING not in connection.pauses.reasons:
                    break
            elif delaySeconds:
                delaySeconds = request.throttledUntilSeconds - now
            try:
                body = encodeProduceResponse(apiVersion, request.results, throttleTimeMs(delaySeconds))
            except Exception:
                connection.factory.log.failure("a request of {peer} failed", peer=connection.peer)
                connection.abandon(request)
                isFailed = True
                break
            responses += frame(request.header, [body])
            connection.requestAnswered(request, now, delaySeconds)
        if responses:
            connection.send(responses)
        if isFailed:
            self._failed()
            return
        connection.readOn()
        if not requests:
            self._answered()

    def cancel(self) -> None:
        """
        Stop all waiting: the client is gone.
        """
        self._asked = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    def _committed(self, request: KafkaRequest, wantsFlush: bool, error: Exception | None) -> None:
        self._uncommitted -= 1
        if error is not None:
            request.results = produceapi.failed(request.results, error)
        elif wantsFlush and not all(result.errorCode for result in request.results):
            request.isUnflushed = True
            request.deadlineSeconds = self._connection.factory.clock.seconds() + request.timeoutSeconds
        self._orClose(self.answer)

    def _orClose(self, goOn: Callable[[], object]) -> None:
        """
        Go on, on behalf of the log, which would only note that this failed: the client would get no answer and wait
        for it.
        """
        try:
            goOn()
        except Exception:
            self._connection.factory.log.failure("a request of {peer} failed", peer=self._connection.peer)
            self._failed()

    def _failed(self) -> None:
        """
        Close the connection, since there is no answer to a Produce request: the client would take the next response
        for it.
        """
        connection = self._connection
        connection.factory.refused(connection, FAILED)
        connection.abandonAll()
        connection.closeGracefully()

    def _awaitFlush(self, now: float) -> None:
        """
        Wait until the disk has what requests were appended, but no longer than the least patient of them does.  While
        the log flushes for some, others gather for the next flush.
        """
        unflushed = [request for request in self._connection.unanswered if request.isUnflushed]
        if not unflushed:
            return
        broker = self._broker
        if self._asked is None:
            self._asked = unflushed
            broker.log.whenFlushed(partial(self._flushed, unflushed))
            if self._asked is None:
                return
        deadlineSeconds = min([request.deadlineSeconds for request in unflushed])
        if self._waiting is not None:
            if deadlineSeconds >= self._deadlineSeconds:
                return
            self._waiting.cancel()
        self._deadlineSeconds = deadlineSeconds
        parked = broker.gate.pool.charge(len(self._connection.unanswered) * UNANSWERED_BYTES, PARKED)
        try:
            waiting = waitFor(broker.purgatory, (self,), lambda: self._asked is None, deadlineSeconds - now)
        except BaseException:
            parked.release()
            raise
        if waiting.called and self._asked is not None:
            # The purgatory has no place for it.
            parked.release()
            waiting.addErrback(self._waitFailed)
            self._giveUp(unflushed)
            return
        self._waiting = waiting
        waiting.addBoth(self._waitOver, parked)
        waiting.addErrback(self._waitFailed)

    def _flushed(self, asked: list[KafkaRequest], error: Exception | None) -> None:
        if self._asked is not asked:
            # The client is gone.
            return
        self._asked = None
        for request in asked:
            if request.isUnflushed:
                request.isUnflushed = False
                if error is not None:
                    request.results = produceapi.failed(request.results, error)
        self._orClose(partial(self._broker.purgatory.checkAndComplete, self))

    def _waitOver(self, result: Any, parked: ILease) -> Any:
        parked.release()
        self._waiting = None
        if not isinstance(result, Failure):
            if self._asked is not None:
                # The purgatory has ended it before its time.
                self._giveUp([request for request in self._connection.unanswered if request.isUnflushed])
            self.answer()
        return result

    def _giveUp(self, requests: Iterable[KafkaRequest]) -> None:
        """
        Have requests answered that the disk has not confirmed.
        """
        for request in requests:
            request.isUnflushed = False
            request.results = produceapi.timedOut(request.results)
            request.expire(NOT_ON_DISK)

    def _waitFailed(self, failure: Failure) -> None:
        connection = self._connection
        if isinstance(failure.value, TimeoutError):
            overdue = [each for each in connection.unanswered if each.deadlineSeconds <= self._deadlineSeconds]
            self._giveUp([request for request in overdue if request.isUnflushed])
            self.answer()
        elif not isinstance(failure.value, CancelledError):
            connection.factory.log.failure("a request of {peer} failed", failure, peer=connection.peer)
            connection.closeGracefully()
