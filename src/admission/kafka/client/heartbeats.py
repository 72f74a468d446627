# -*- test-case-name: tests.unit.kafka.client.test_heartbeats -*-
"""
The three timers of a group's member (KIP-62): when to send a heartbeat, when
the coordinator has been silent for too long, when the application has.

Nothing here sends anything.  A timer has expired when its time has come, not
only when it has passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .backoff import Backoff


class Heartbeat:
    """
    The timers of one member, which somebody else looks at.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        backoff: Backoff,
        *,
        intervalSeconds: float,
        sessionTimeoutSeconds: float,
        processTimeoutSeconds: float,
    ) -> None:
        """
        @param seconds: a monotonic clock.
        @param backoff: how long to wait after a heartbeat has failed.
        @param intervalSeconds: between heartbeats.
        @param sessionTimeoutSeconds: how long the coordinator may be silent.
        @param processTimeoutSeconds: how long the application may.
        """
        self._seconds = seconds
        self._backoff = backoff
        self._intervalSeconds = intervalSeconds
        self._sessionTimeoutSeconds = sessionTimeoutSeconds
        self._processTimeoutSeconds = processTimeoutSeconds
        self._failures = 0
        self._isBusy = False
        self._processDue = math.inf
        self.isInFlight = False
        self.reset()

    def reset(self) -> None:
        """
        Start all timers afresh: the member has joined.
        """
        now = self._seconds()
        self._failures = 0
        self._beatDue = now + self._intervalSeconds
        self._sessionDue = now + self._sessionTimeoutSeconds
        if self._isBusy:
            self._processDue = now + self._processTimeoutSeconds

    def sent(self) -> None:
        """
        A heartbeat is on its way.
        """
        self.isInFlight = True
        self._beatDue = self._seconds() + self._intervalSeconds

    def failed(self) -> None:
        """
        The heartbeat was not answered, or not well; another follows soon.
        """
        self.isInFlight = False
        self._failures += 1
        self._beatDue = self._seconds() + self._backoff.delaySeconds(self._failures)

    def received(self) -> None:
        """
        The coordinator knows that we live, and we know that it does.
        """
        self.isInFlight = False
        self._failures = 0
        self.coordinatorSpoke()

    def coordinatorSpoke(self) -> None:
        """
        The coordinator lives: restart the session.
        """
        self._sessionDue = self._seconds() + self._sessionTimeoutSeconds

    def polled(self) -> None:
        """
        The application waits for us, and not we for it.
        """
        self._isBusy = False
        self._processDue = math.inf

    def handedOver(self) -> None:
        """
        The application has something to work on; its time begins.
        """
        self._isBusy = True
        self._processDue = self._seconds() + self._processTimeoutSeconds

    @property
    def isBeatDue(self) -> bool:
        """
        Whether to send a heartbeat.
        """
        return not self.isInFlight and self._seconds() >= self._beatDue

    @property
    def isSessionExpired(self) -> bool:
        """
        Whether the coordinator has been silent for too long.
        """
        return self._seconds() >= self._sessionDue

    @property
    def isProcessExpired(self) -> bool:
        """
        Whether the application has.
        """
        return self._seconds() >= self._processDue

    @property
    def nextDelaySeconds(self) -> float:
        """
        How long nothing of the above will change by itself; zero or more,
        perhaps infinite.
        """
        due = min(self._sessionDue, self._processDue, math.inf if self.isInFlight else self._beatDue)
        return max(due - self._seconds(), 0.0)
