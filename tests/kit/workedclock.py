"""The time that work takes, where nothing else takes any."""

from __future__ import annotations

from twisted.internet.task import Clock


class WorkedClock:
    """A clock for work each of whose steps takes some time."""

    def __init__(self, clock: Clock, stepSeconds: float) -> None:
        self.stepSeconds = stepSeconds
        self.callLater = clock.callLater
        self._now = clock.seconds()

    def seconds(self) -> float:
        """Seconds since some moment."""
        self._now += self.stepSeconds
        return self._now
