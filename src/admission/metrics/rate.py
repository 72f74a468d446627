# -*- test-case-name: tests.test_rate -*-
"""
Sampled windows: how much happened lately, in constant memory.
"""

from __future__ import annotations


class SampledTotal:
    """
    What was recorded during the last C{samples} windows of C{windowSeconds}
    each, forgotten a window at a time.

    The arithmetic is that of Kafka's C{SampledStat} and C{Rate}: a ring of
    C{samples + 1} windows, the window in progress included; a window starts at
    its first record and not on a grid.

    @ivar samples: how many windows count.
    @ivar windowSeconds: the length of one.
    """

    __slots__ = ("_current", "_last", "_starts", "_values", "samples", "windowSeconds")

    def __init__(self, samples: int, windowSeconds: float) -> None:
        """
        @raise ValueError: if either is not positive.
        """
        if samples < 1 or windowSeconds <= 0:
            raise ValueError(f"samples and windowSeconds must be positive, not {samples} and {windowSeconds}")
        self.samples = samples
        self.windowSeconds = windowSeconds
        self._current = 0
        self._values: list[float] = []
        self._starts: list[float] = []
        self._last: list[float] = []

    def record(self, value: float, nowSeconds: float) -> None:
        """
        Count C{value} at C{nowSeconds}, on a clock that does not go back.
        """
        if not self._values:
            self._open(nowSeconds)
        elif nowSeconds - self._starts[self._current] >= self.windowSeconds:
            self._current = (self._current + 1) % (self.samples + 1)
            self._open(nowSeconds)
        self._values[self._current] += value
        self._last[self._current] = nowSeconds

    def total(self, nowSeconds: float) -> float:
        """
        The sum of what was recorded in the windows that still count.
        """
        self._purge(nowSeconds)
        return sum(self._values)

    def spanSeconds(self, nowSeconds: float) -> float:
        """
        The time that L{total} covers: whole windows before the current one
        count even where nothing was recorded in them, so that the first
        records do not look like a burst.
        """
        self._purge(nowSeconds)
        oldest = min(self._starts, default=nowSeconds)
        elapsed = nowSeconds - oldest
        whole = int(elapsed // self.windowSeconds)
        if whole < self.samples - 1:
            elapsed += (self.samples - 1 - whole) * self.windowSeconds
        return max(elapsed, 0.001)

    def rate(self, nowSeconds: float) -> float:
        """
        L{total} per second.
        """
        return self.total(nowSeconds) / self.spanSeconds(nowSeconds)

    def _open(self, nowSeconds: float) -> None:
        if self._current == len(self._values):
            self._values.append(0.0)
            self._starts.append(nowSeconds)
            self._last.append(nowSeconds)
        else:
            self._values[self._current] = 0.0
            self._starts[self._current] = nowSeconds
            self._last[self._current] = nowSeconds

    def _purge(self, nowSeconds: float) -> None:
        forgotten = nowSeconds - self.samples * self.windowSeconds
        for index, last in enumerate(self._last):
            if last <= forgotten:
                self._values[index] = 0.0
                self._starts[index] = self._last[index] = nowSeconds


class TimeShare:
    """
    The share of the recent past during which something was the case.

    A spell counts while it lasts, unlike in Kafka, where
    C{MemoryPoolAvgDepletedPercent} shows a dry spell only once it is over.
    """

    __slots__ = ("_sampled", "_sinceSeconds", "totalSeconds")

    def __init__(self, samples: int = 2, windowSeconds: float = 30.0) -> None:
        """
        The defaults are those of Kafka's C{Rate}: between 30 and 60 seconds.
        """
        self._sampled = SampledTotal(samples, windowSeconds)
        self._sinceSeconds: float | None = None
        self.totalSeconds = 0.0

    def begin(self, nowSeconds: float) -> None:
        """
        It is the case from now on; no effect if it already is.
        """
        if self._sinceSeconds is None:
            self._sinceSeconds = nowSeconds

    def end(self, nowSeconds: float) -> None:
        """
        It is no longer the case; no effect if it is not.
        """
        if self._sinceSeconds is not None:
            self._settle(nowSeconds)
            self._sinceSeconds = None

    def share(self, nowSeconds: float) -> float:
        """
        @return: from 0.0 (never) to 1.0 (all the time).
        """
        if self._sinceSeconds is not None:
            self._settle(nowSeconds)
        total = self._sampled.total(nowSeconds)
        return min(1.0, total / self._sampled.spanSeconds(nowSeconds))

    def _settle(self, nowSeconds: float) -> None:
        """
        Record the running spell up to now, in steps no longer than a window,
        so that each part of a long spell ages in its own time.
        """
        since = self._sinceSeconds
        assert since is not None
        self.totalSeconds += nowSeconds - since
        step = self._sampled.windowSeconds
        remembered = step * (self._sampled.samples + 1)
        since = max(since, nowSeconds - remembered)
        while since < nowSeconds:
            until = min(since + step, nowSeconds)
            self._sampled.record(until - since, until)
            since = until
        self._sinceSeconds = nowSeconds
