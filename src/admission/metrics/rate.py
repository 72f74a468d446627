# -*- test-case-name: tests.unit.metrics.test_rate -*-
"""
Sampled windows: totals and rates of the recent past, in constant memory.
"""

from __future__ import annotations

from collections.abc import Sequence

_Window = tuple[float, float, float]
"""The time it began, the time of its last record, and its total."""

_NEVER = float("-inf")
_MIN_SPAN_SECONDS = 0.001


class SampledTotal:
    """
    The total of the last C{samples} windows of C{windowSeconds} each; windows are
    forgotten one at a time.

    The arithmetic is that of Kafka's C{SampledStat} and C{Rate}: C{samples + 1}
    windows, the one in progress included; a window starts at its first record
    and not on a grid, and counts until C{samples} windows have passed since its
    last.  Unlike in Kafka, reading changes nothing.

    @ivar samples: how many windows count.
    @ivar windowSeconds: the length of a window.
    """

    # The window in progress is spread over slots: nearly every record adds to it.
    __slots__ = ("_last", "_older", "_olderTotal", "_start", "_value", "samples", "windowSeconds")

    def __init__(self, samples: int, windowSeconds: float) -> None:
        """
        @raise ValueError: if either is not positive.
        """
        if samples < 1 or windowSeconds <= 0:
            raise ValueError(f"samples and windowSeconds must be positive, not {samples} and {windowSeconds}")
        self.samples = samples
        self.windowSeconds = windowSeconds
        self._start = self._last = _NEVER
        self._value = 0.0
        self._older: Sequence[_Window] = ()
        self._olderTotal = 0.0

    def record(self, value: float, now: float) -> None:
        """
        Add C{value} at C{now}, on a clock that does not go back.
        """
        if now - self._start >= self.windowSeconds:
            self._advance(now)
        self._value += value
        self._last = now

    def measure(self, now: float) -> tuple[float, float]:
        """
        L{total} and L{spanSeconds} at once.
        """
        keptSeconds = self.samples * self.windowSeconds
        if now - self._last >= keptSeconds:
            return 0.0, self._span(0.0)
        older = self._older
        if not older:
            return self._value, self._span(now - self._start)
        if now - older[0][1] < keptSeconds:
            return self._olderTotal + self._value, self._span(now - older[0][0])
        live = [window for window in older if now - window[1] < keptSeconds]
        start = live[0][0] if live else self._start
        return sum(value for _, _, value in live) + self._value, self._span(now - start)

    def total(self, now: float) -> float:
        """
        The sum of the values in the windows that still count.
        """
        return self.measure(now)[0]

    def spanSeconds(self, now: float) -> float:
        """
        The time that L{total} covers.  Whole windows before the current one
        count even if nothing was recorded in them, so that the first
        records do not look like a burst.
        """
        return self.measure(now)[1]

    def rate(self, now: float) -> float:
        """
        L{total} per second.
        """
        total, spanSeconds = self.measure(now)
        return total / spanSeconds

    def isEmpty(self, now: float) -> bool:
        """
        Whether no value counts any more, so that a new one would be the same.
        """
        return now - self._last >= self.samples * self.windowSeconds

    def _advance(self, now: float) -> None:
        """
        Begin another window, and forget windows that no longer count.
        """
        keptSeconds = self.samples * self.windowSeconds
        if now - self._last >= keptSeconds:
            self._older, self._olderTotal = (), 0.0
        else:
            older = (*self._older, (self._start, self._last, self._value))
            forgotten = max(len(older) - self.samples, 0)
            while now - older[forgotten][1] >= keptSeconds:
                forgotten += 1
            if forgotten:
                older = older[forgotten:]
                # Summed anew, or rounding errors would accumulate.
                self._olderTotal = sum([value for _, _, value in older])
            else:
                self._olderTotal += self._value
            self._older = older
        self._start = now
        self._value = 0.0

    def _span(self, elapsedSeconds: float) -> float:
        if elapsedSeconds < 0.0:
            # Callers that round the time may be a little behind callers that do not.
            elapsedSeconds = 0.0
        missing = self.samples - 1 - int(elapsedSeconds // self.windowSeconds)
        if missing > 0:
            elapsedSeconds += missing * self.windowSeconds
        return max(elapsedSeconds, _MIN_SPAN_SECONDS)


class SampledMean:
    """
    The mean of the values recorded lately; not a number if there were none.
    """

    __slots__ = ("_count", "_sum")

    def __init__(self, samples: int = 2, windowSeconds: float = 30.0) -> None:
        """
        The defaults are those of Kafka's C{Avg}.
        """
        self._sum = SampledTotal(samples, windowSeconds)
        self._count = SampledTotal(samples, windowSeconds)

    def record(self, value: float, now: float) -> None:
        """
        Add C{value} at C{now}, on a clock that does not go back.
        """
        self._sum.record(value, now)
        self._count.record(1, now)

    def mean(self, now: float) -> float:
        """
        The mean of the values in the windows that still count.
        """
        count = self._count.total(now)
        return self._sum.total(now) / count if count else float("nan")


class TimeShare:
    """
    The share of the recent past during which a condition held.

    A period counts while it lasts, unlike in Kafka, where
    C{MemoryPoolAvgDepletedPercent} shows a depletion only once it is over.
    """

    __slots__ = ("_sampled", "_sinceSeconds", "totalSeconds")

    def __init__(self, samples: int = 2, windowSeconds: float = 30.0) -> None:
        """
        The defaults are those of Kafka's C{Rate}: between 30 and 60 seconds.
        """
        self._sampled = SampledTotal(samples, windowSeconds)
        self._sinceSeconds: float | None = None
        self.totalSeconds = 0.0

    def begin(self, now: float) -> None:
        """
        The condition holds from now on; no effect if it already does.
        """
        if self._sinceSeconds is None:
            self._sinceSeconds = now

    def end(self, now: float) -> None:
        """
        The condition no longer holds; no effect if it does not.
        """
        if self._sinceSeconds is not None:
            self._settle(now)
            self._sinceSeconds = None

    def share(self, now: float) -> float:
        """
        @return: from 0.0 (never) to 1.0 (all the time).
        """
        if self._sinceSeconds is not None:
            self._settle(now)
        total = self._sampled.total(now)
        return min(1.0, total / self._sampled.spanSeconds(now))

    def total(self, now: float) -> float:
        """
        @return: for how many seconds the condition has held since the start.
        """
        if self._sinceSeconds is not None:
            self._settle(now)
        return self.totalSeconds

    def _settle(self, now: float) -> None:
        """
        Record the current period up to now, in steps no longer than a window,
        so that each part of a long period ages in its own time.
        """
        since = self._sinceSeconds
        assert since is not None
        self.totalSeconds += now - since
        step = self._sampled.windowSeconds
        remembered = step * (self._sampled.samples + 1)
        since = max(since, now - remembered)
        while since < now:
            until = min(since + step, now)
            self._sampled.record(until - since, until)
            since = until
        self._sinceSeconds = now
