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


class ReactorLag:
    """
    How much later than it was due something is called, which every client waits for besides all else: because of work
    that takes long in one turn, or of a machine that has others to serve.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
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

    def _lookLater(self) -> None:
        self._dueSeconds = self._clock.seconds() + INTERVAL_SECONDS
        self._timer = self._clock.callLater(INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        self._late.append(max(self._clock.seconds() - self._dueSeconds, 0.0))
        self._lookLater()
