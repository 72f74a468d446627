# -*- test-case-name: tests.unit.kafka.client.test_clientconnection -*-
"""
For how long brokers have asked a client to be quiet.
"""

from __future__ import annotations

from admission.metrics.rate import SampledTotal

WINDOW_SECONDS = 30.0
"""The length of a window; what the last two brought counts, as in Kafka."""

_WINDOWS = 2


class ThrottleTimes:
    """
    The average and the largest C{throttle_time_ms} of the last minute, of
    responses that name one, zero included.
    """

    def __init__(self) -> None:
        self._totalSeconds = SampledTotal(_WINDOWS, WINDOW_SECONDS)
        self._responses = SampledTotal(_WINDOWS, WINDOW_SECONDS)
        self._windowBegan = float("-inf")
        self._largest = (0.0, 0.0)

    def record(self, throttleSeconds: float, nowSeconds: float) -> None:
        """
        Count one response.
        """
        self._totalSeconds.record(throttleSeconds, nowSeconds)
        self._responses.record(1, nowSeconds)
        self._age(nowSeconds)
        older, current = self._largest
        self._largest = (older, max(current, throttleSeconds))

    def averageSeconds(self, nowSeconds: float) -> float:
        """
        The average, or zero if there was no response.
        """
        responses = self._responses.total(nowSeconds)
        return self._totalSeconds.total(nowSeconds) / responses if responses else 0.0

    def largestSeconds(self, nowSeconds: float) -> float:
        """
        The largest, or zero if there was no response.
        """
        self._age(nowSeconds)
        return max(self._largest)

    def _age(self, nowSeconds: float) -> None:
        elapsed = nowSeconds - self._windowBegan
        if elapsed >= WINDOW_SECONDS:
            # What is older than a whole window besides the current one counts no more.
            self._largest = (self._largest[1] if elapsed < 2 * WINDOW_SECONDS else 0.0, 0.0)
            self._windowBegan = nowSeconds
