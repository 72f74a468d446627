# -*- test-case-name: tests.unit.kafka.client.test_consumerservice -*-
"""
A consumer as a service, which hands records to an application.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from .consumer import Consumer, PartitionsCallback, ignore
from .errors import ConsumerClosed
from .recordsets import ConsumerRecord


class ConsumerService(Service):
    """
    Polls, hands over what comes, and polls again once that is done.

    When the application fails, nothing of what it was given last is
    committed: the service leaves the group and tells C{onFailure}.  Another
    member gets the records, or this one when it is started again.
    """

    log = Logger()

    def __init__(
        self,
        makeConsumer: Callable[[], Consumer],
        topics: Iterable[str],
        handle: Callable[[Sequence[ConsumerRecord]], Any],
        *,
        onRevoked: PartitionsCallback = ignore,
        onAssigned: PartitionsCallback = ignore,
        onFailure: Callable[[Failure], None] | None = None,
    ) -> None:
        """
        @param makeConsumer: makes a new consumer, for each start.
        @param topics: what to read.
        @param handle: called with one or more records; the next ones are
            polled when the L{Deferred} that it may return fires.
        @param onRevoked: see L{Consumer.subscribe}, like C{onAssigned}.
        @param onFailure: told what C{handle} or the consumer failed with;
            without it that is logged as critical.
        """
        self._makeConsumer = makeConsumer
        self._topics = list(topics)
        self._handle = handle
        self._onRevoked = onRevoked
        self._onAssigned = onAssigned
        self._onFailure = self._logFailure if onFailure is None else onFailure
        self._running: Deferred[None] | None = None
        self.consumer: Consumer | None = None

    def startService(self) -> None:
        """
        Subscribe and begin to poll.
        """
        super().startService()  # type: ignore[no-untyped-call]
        self.consumer = self._makeConsumer()
        self.consumer.subscribe(self._topics, self._onRevoked, self._onAssigned)
        self._running = self._run(self.consumer)
        self._running.addErrback(self._failed)

    def stopService(self) -> Deferred[Any]:
        """
        Let the application finish what it has, commit, and leave the group.

        @return: fires when that is done.
        """
        super().stopService()  # type: ignore[no-untyped-call]
        running, self._running = self._running, None
        return succeed(None) if running is None else self._stop(running)

    @inlineCallbacks
    def _run(self, consumer: Consumer) -> Generator[Deferred[Any], Any, None]:
        self._isWorking = False
        while self.running:
            try:
                records = yield consumer.poll()
            except ConsumerClosed:
                return
            self._isWorking = True
            try:
                yield maybeDeferred(self._handle, records)
            finally:
                self._isWorking = False

    @inlineCallbacks
    def _stop(self, running: Deferred[None]) -> Generator[Deferred[Any], Any, None]:
        consumer, self.consumer = self.consumer, None
        if self._isWorking:
            yield running
        if consumer is not None:
            yield consumer.close()

    def _failed(self, failure: Failure) -> Deferred[None] | None:
        consumer, self.consumer = self.consumer, None
        self._onFailure(failure)
        return None if consumer is None else consumer.close(commit=False)

    def _logFailure(self, failure: Failure) -> None:
        self.log.failure("consuming {topics} has ended", failure, topics=", ".join(self._topics))
