# -*- test-case-name: tests.unit.kafka.client.test_membership -*-
"""
Heartbeats: sending them in time, on the reactor, whatever the application is
doing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from .backoff import Backoff
from .consumersettings import ConsumerSettings
from .coordinator import Coordinator, Identity
from .errors import ClientError
from .heartbeat import Heartbeat


class Beating:
    """
    Looks at the timers of a member and does what they ask for, while the
    coordinator counts the member's session.

    What is looked at first: whether the coordinator is known, whether it is
    silent, whether the application is, whether a heartbeat is due.  So nobody
    leaves the group whose coordinator is not known.
    """

    log = Logger()

    def __init__(
        self,
        coordinator: Coordinator,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
        *,
        identity: Callable[[], Identity],
        onError: Callable[[ErrorCode, Identity], None],
        onSilence: Callable[[], None],
    ) -> None:
        """
        @param clock: runs and measures the timers; monotonic.
        @param identity: returns as whom to send heartbeats.
        @param onError: told of an error in answer to a heartbeat, if the
            member still is who it was.
        @param onSilence: called when the application has not polled in time.
        """
        self._coordinator = coordinator
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._identity = identity
        self._onError = onError
        self._onSilence = onSilence
        self._isBeating = False
        self._timer: IDelayedCall | None = None
        self._search: Deferred[Any] | None = None
        self._searchFailures = 0
        self._heartbeat = Heartbeat(
            clock.seconds,
            backoff,
            intervalSeconds=settings.heartbeatIntervalSeconds,
            sessionTimeoutSeconds=settings.sessionTimeoutSeconds,
            processTimeoutSeconds=settings.processTimeoutSeconds,
        )

    def start(self) -> None:
        """
        The coordinator counts the session from now on, and we all our timers.
        """
        self._isBeating = True
        self._heartbeat.reset()
        self._arm()

    def stop(self) -> None:
        """
        The coordinator counts no session any more.
        """
        self._isBeating = False
        self._arm()

    def close(self) -> None:
        """
        Stop, and leave no timer behind.
        """
        self.stop()
        if self._search is not None:
            self._search.cancel()

    def coordinatorSpoke(self) -> None:
        """
        The coordinator has restarted the session.
        """
        self._heartbeat.coordinatorSpoke()
        self._arm()

    def polled(self) -> None:
        """
        The application waits for us, and not we for it.
        """
        self._heartbeat.polled()
        self._arm()

    def handedOver(self) -> None:
        """
        The application has something to work on; its time begins.
        """
        self._heartbeat.handedOver()
        self._arm()

    def _arm(self) -> None:
        """
        Look at the timers when the first of them has something to say.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._isBeating and self._search is None:
            self._timer = self._clock.callLater(self._heartbeat.nextDelaySeconds, self._look)

    def _look(self) -> None:
        self._timer = None
        coordinator = self._coordinator
        if coordinator.isKnown and self._heartbeat.isSessionExpired:
            coordinator.lost(f"it has not answered for {self._settings.sessionTimeoutSeconds:g} seconds")
        if not coordinator.isKnown:
            self._searchCoordinator()
            return
        if self._heartbeat.isProcessExpired:
            self._onSilence()
        elif self._heartbeat.isBeatDue:
            self._send()
        self._arm()

    def _searchCoordinator(self) -> None:
        self._search = search = self._coordinator.find()
        search.addCallbacks(self._found, self._notFound)
        search.addErrback(self._searchCancelled)

    def _found(self, _: object) -> None:
        self._search = None
        self._searchFailures = 0
        self.coordinatorSpoke()

    def _notFound(self, failure: Failure) -> Deferred[None]:
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        self._searchFailures += 1
        waiting: Deferred[None] = deferLater(self._clock, self._backoff.delaySeconds(self._searchFailures))
        return waiting.addCallback(self._searchAgain)

    def _searchAgain(self, _: object) -> None:
        self._search = None
        if self._isBeating:
            self._look()

    def _searchCancelled(self, failure: Failure) -> None:
        failure.trap(CancelledError)  # type: ignore[no-untyped-call]
        self._search = None

    def _send(self) -> None:
        identity = self._identity()
        self._heartbeat.sent()
        beat = self._coordinator.ask(
            "Heartbeat",
            {
                "generation_id": identity.generation,
                "member_id": identity.memberId,
                "group_instance_id": self._settings.groupInstanceId,
            },
        )
        beat.addCallbacks(self._answered, self._unanswered, callbackArgs=(identity,))
        beat.addErrback(lambda failure: self.log.failure("a heartbeat went wrong", failure))

    def _answered(self, response: Any, identity: Identity) -> None:
        errorCode = response.error_code
        isPast = identity != self._identity()
        # In a rebalance the coordinator restarts the session all the same.
        if not errorCode or errorCode == ErrorCode.rebalance_in_progress or isPast:
            self._heartbeat.received()
        else:
            self._heartbeat.failed()
        if errorCode and not isPast:
            self._onError(errorCode, identity)
        self._arm()

    def _unanswered(self, failure: Failure) -> None:
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        self._heartbeat.failed()
        self._arm()
