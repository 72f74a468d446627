# -*- test-case-name: tests.unit.kafka.client.test_heartbeats -*-
"""
How long to wait before trying again.
"""

from __future__ import annotations

from random import Random

from attrs import frozen

_FACTOR = 2.0
_JITTER = 0.2


@frozen
class Backoff:
    """
    Waits that double, up to a longest one, each a fifth shorter to a fifth
    longer, so that clients who fail together do not come back together.
    """

    firstSeconds: float
    longestSeconds: float
    random: Random

    def delaySeconds(self, failures: int) -> float:
        """
        How long to wait after so many failures in a row.

        @param failures: one or more.
        """
        # Beyond some power everything is the longest, and floats end.
        seconds = min(self.firstSeconds * _FACTOR ** min(failures - 1, 64), self.longestSeconds)
        return seconds * self.random.uniform(1 - _JITTER, 1 + _JITTER)
