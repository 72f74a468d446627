# -*- test-case-name: tests.unit.kafka.client.test_consumerservice -*-
"""
A consumer as a service, which calls an application with records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from .consumer import Consumer, PartitionsCallback, ignore
from .errors import ConsumerClosed
from .recordsets import ConsumerRecord


class ConsumerService(Service):
    """
    Polls, calls the application with the records, and polls again once it has
    processed them.

    When the application fails, the records of its last call are not committed:
    the service leaves the group and calls C{onFailure}.  Another member gets
    the records, or this one when it is started again.

    @ivar consumer: the consumer while the service runs, else L{None}.
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
        @param onFailure: called with the failure of C{handle} or the consumer;
            without it the failure is logged as critical.
        """
        self._makeConsumer = makeConsumer
        self._topics = list(topics)
        self._handle = handle
        self._onRevoked = onRevoked
        self._onAssigned = onAssigned
        self._onFailure = self._logFailure if onFailure is None else onFailure
        self._running: Deferred[None] | None = None
        self._isProcessing = False
        self.consumer: Consumer | None = None

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self.consumer = consumer = self._makeConsumer()
        consumer.subscribe(self._topics, self._onRevoked, self._onAssigned)
        self._running = self._run(consumer)
        self._running.addErrback(self._failed, consumer)

    @inlineCallbacks
    def stopService(self) -> Generator[Deferred[Any], Any, None]:
        """
        Let the application finish, commit, and leave the group.

        @return: fires when that is done.
        """
        super().stopService()  # type: ignore[no-untyped-call]
        running, self._running = self._running, None
        consumer, self.consumer = self.consumer, None
        if running is not None and self._isProcessing:
            # If it fails, this closes the consumer without a commit.
            yield running
        if consumer is not None:
            yield consumer.close()

    @inlineCallbacks
    def _run(self, consumer: Consumer) -> Generator[Deferred[Any], Any, None]:
        while self.running:
            try:
                records = yield consumer.poll()
            except ConsumerClosed:
                return
            self._isProcessing = True
            try:
                yield maybeDeferred(self._handle, records)
            finally:
                self._isProcessing = False

    def _failed(self, failure: Failure, consumer: Consumer) -> Deferred[None]:
        self.consumer = None
        self._onFailure(failure)
        return consumer.close(commit=False)

    def _logFailure(self, failure: Failure) -> None:
        self.log.failure("consuming {topics} has ended", failure, topics=", ".join(self._topics))
