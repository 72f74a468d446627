# -*- test-case-name: tests.unit.metrics.test_reactorlag -*-
"""
How late the reactor is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from .registry import SensorRegistry

INTERVAL_SECONDS: Final = 0.1
"""How often it looks; what holds up the reactor for less is seen by chance."""

KEPT_SECONDS: Final = 10.0

STANDING_LOOKS: Final = 5
"""How often in a row something has to be late to be so for more than a moment."""


class ReactorLag:
    """
    How much later than it was due something is called, which every client waits for besides all else: because of work
    that takes long in one turn, or of a machine that has others to serve.

    @ivar standingSeconds: the shortest of the last L{STANDING_LOOKS}: what stays when a burst, or one long piece of
        work, is over, as in CoDel (RFC 8289, section 3); zero until there are as many.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.standingSeconds = 0.0
        self._late: deque[float] = deque(maxlen=round(KEPT_SECONDS / INTERVAL_SECONDS))
        self._dueSeconds = 0.0
        self._timer: IDelayedCall | None = None

    @property
    def longestSeconds(self) -> float:
        """
        The longest of the last L{KEPT_SECONDS}; zero if it does not look.
        """
        return max(self._late, default=0.0)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish C{ReactorLagSeconds}.

        @raise ValueError: if there is a sensor of that name.
        """
        registry.addGauge("ReactorLagSeconds", lambda now: self.longestSeconds)

    def start(self) -> None:
        """
        Begin to look, unless it does.
        """
        if self._timer is None:
            self._lookLater()

    def stop(self) -> None:
        """
        Look no more.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late.clear()
        self.standingSeconds = 0.0

    def _lookLater(self) -> None:
        self._dueSeconds = self._clock.seconds() + INTERVAL_SECONDS
        self._timer = self._clock.callLater(INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        self._late.append(max(self._clock.seconds() - self._dueSeconds, 0.0))
        if len(self._late) >= STANDING_LOOKS:
            self.standingSeconds = min(self._late[-each] for each in range(1, STANDING_LOOKS + 1))
        self._lookLater()
