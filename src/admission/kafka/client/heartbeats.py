# -*- test-case-name: tests.unit.kafka.client.test_heartbeats -*-
"""
Heartbeats of a group's member (KIP-62): when to send one, when the coordinator
has been silent for too long, when the application has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from .consumersettings import ConsumerSettings
from .coordinatorclient import CoordinatorClient, Identity
from .errors import Backoff, ClientError


class HeartbeatTimers:
    """
    The three timers of one member, without I/O, to be told what happens.  A
    timer has expired once its time has come.

    @ivar isInFlight: whether a heartbeat waits for its answer.
    @ivar isHeartbeatDue: whether to send a heartbeat.
    @ivar isSessionExpired: whether the coordinator has been silent for too
        long.
    @ivar isProcessExpired: whether the application has not polled for too long.
    """

    def __init__(self, seconds: Callable[[], float], backoff: Backoff, settings: ConsumerSettings) -> None:
        """
        @param seconds: a monotonic clock.
        @param backoff: delays the next heartbeat after one that has failed.
        """
        self._seconds = seconds
        self._backoff = backoff
        self._settings = settings
        self._failures = 0
        self._isProcessing = False
        self._processDue = math.inf
        self.isInFlight = False
        self.reset()

    def reset(self) -> None:
        """
        Restart all timers: the member has joined.
        """
        now = self._seconds()
        self._failures = 0
        self._heartbeatDue = now + self._settings.heartbeatIntervalSeconds
        self._sessionDue = now + self._settings.sessionTimeoutSeconds
        if self._isProcessing:
            self._processDue = now + self._settings.processTimeoutSeconds

    def sent(self) -> None:
        self.isInFlight = True
        self._heartbeatDue = self._seconds() + self._settings.heartbeatIntervalSeconds

    def failed(self) -> None:
        """
        The heartbeat was not answered, or with an error; send the next one soon.
        """
        self.isInFlight = False
        self._failures += 1
        self._heartbeatDue = self._seconds() + self._backoff.delaySeconds(self._failures)

    def succeeded(self) -> None:
        self.isInFlight = False
        self._failures = 0
        self.restartSession()

    def restartSession(self) -> None:
        self._sessionDue = self._seconds() + self._settings.sessionTimeoutSeconds

    def pollStarted(self) -> None:
        self._isProcessing = False
        self._processDue = math.inf

    def recordsReturned(self) -> None:
        self._isProcessing = True
        self._processDue = self._seconds() + self._settings.processTimeoutSeconds

    @property
    def isHeartbeatDue(self) -> bool:
        return not self.isInFlight and self._seconds() >= self._heartbeatDue

    @property
    def isSessionExpired(self) -> bool:
        return self._seconds() >= self._sessionDue

    @property
    def isProcessExpired(self) -> bool:
        return self._seconds() >= self._processDue

    @property
    def nextDelaySeconds(self) -> float:
        """
        How long until one of the above can change by itself; zero or more,
        perhaps infinite.
        """
        due = min(self._sessionDue, self._processDue, math.inf if self.isInFlight else self._heartbeatDue)
        return max(due - self._seconds(), 0.0)


class HeartbeatSender:
    """
    Sends heartbeats while the coordinator counts the member's session,
    whatever the application is doing.

    The coordinator being unknown is looked at first, then its silence, then
    that of the application, then whether a heartbeat is due.  So no member
    leaves a group whose coordinator is unknown.
    """

    log = Logger()

    def __init__(
        self,
        coordinator: CoordinatorClient,
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
        @param identity: returns the member's identity.
        @param onError: called with an error in answer to a heartbeat, if the
            member still has the identity that it was sent with.
        @param onSilence: called when the application has not polled in time.
        """
        self._coordinator = coordinator
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._identity = identity
        self._onError = onError
        self._onSilence = onSilence
        self._isRunning = False
        self._timer: IDelayedCall | None = None
        self._search: Deferred[None] | None = None
        self._timers = HeartbeatTimers(clock.seconds, backoff, settings)

    def start(self) -> None:
        """
        Restart all timers: the coordinator counts a session from now on.
        """
        self._isRunning = True
        self._timers.reset()
        self._arm()

    def stop(self) -> None:
        """
        The coordinator counts no session any more.
        """
        self._isRunning = False
        self._arm()

    def close(self) -> None:
        """
        Cancel all timers.
        """
        self.stop()
        if self._search is not None:
            self._search.cancel()

    def restartSession(self) -> None:
        """
        The coordinator has restarted the session.
        """
        self._timers.restartSession()
        self._arm()

    def pollStarted(self) -> None:
        """
        The application waits for records.
        """
        self._timers.pollStarted()
        self._arm()

    def recordsReturned(self) -> None:
        """
        The application has records to process, or a callback to run.
        """
        self._timers.recordsReturned()
        self._arm()

    def _arm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._isRunning and self._search is None:
            self._timer = self._clock.callLater(self._timers.nextDelaySeconds, self._check)

    def _check(self) -> None:
        self._timer = None
        coordinator = self._coordinator
        if coordinator.isKnown and self._timers.isSessionExpired:
            coordinator.lost(f"it has not answered for {self._settings.sessionTimeoutSeconds:g} seconds")
        if not coordinator.isKnown:
            self._search = self._findCoordinator()
            self._search.addBoth(self._searchEnded)
            return
        if self._timers.isProcessExpired:
            self._onSilence()
        elif self._timers.isHeartbeatDue:
            self._send().addErrback(lambda failure: self.log.failure("a heartbeat went wrong", failure))
        self._arm()

    @inlineCallbacks
    def _findCoordinator(self) -> Generator[Deferred[Any], Any, None]:
        failures = 0
        while self._isRunning and not self._coordinator.isKnown:
            try:
                yield self._coordinator.find()
                self._timers.restartSession()
            except ClientError:
                failures += 1
                yield deferLater(self._clock, self._backoff.delaySeconds(failures))

    def _searchEnded(self, result: Any) -> None:
        self._search = None
        if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
            self.log.failure("finding the coordinator went wrong", result)
        self._arm()

    @inlineCallbacks
    def _send(self) -> Generator[Deferred[Any], Any, None]:
        identity = self._identity()
        self._timers.sent()
        try:
            response = yield self._coordinator.ask("Heartbeat", self._coordinator.memberFields(identity))
        except ClientError:
            self._timers.failed()
        else:
            errorCode = response.error_code
            isPast = identity != self._identity()
            # In a rebalance the coordinator restarts the session all the same.
            if not errorCode or errorCode == ErrorCode.rebalance_in_progress or isPast:
                self._timers.succeeded()
            else:
                self._timers.failed()
            if errorCode and not isPast:
                self._onError(errorCode, identity)
        self._arm()
