# -*- test-case-name: tests.unit.metrics.test_histogram -*-
"""
The distribution of values, in constant memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from zope.interface import classImplements

from ..interfaces import IHistogram

SECONDS_BOUNDS: Sequence[float] = tuple(base * 10.0**exponent for exponent in range(-4, 3) for base in (1.0, 2.0, 5.0))
"""From 0.1 ms to 500 s, three to a decade."""


class Histogram:
    """
    Counts of values by range.

    @ivar bounds: the upper bounds of the ranges, each included in its range.
    @ivar counts: how many values fell into each range; the last one is for
        values above all bounds.
    @ivar total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS_BOUNDS) -> None:
        """
        @raise ValueError: if the bounds do not ascend, or there are none.
        """
        if not bounds or not all(low < high for low, high in pairwise(bounds)):
            raise ValueError("the bounds of a histogram must ascend")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """
        How many values there were.
        """
        return sum(self.counts)

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def quantile(self, share: float) -> float:
        """
        The upper bound of the range that the value at C{share} fell into.  It is at
        least that value, and at most one range above it.

        @param share: from 0 to 1; 0.99 for the 99th percentile.
        @return: infinity above the last bound; not a number if there were no values.
        """
        count = self.count
        if not count:
            return float("nan")
        wanted = share * count
        seen = 0
        for bound, inRange in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += inRange
            if inRange and seen >= wanted:
                return bound
        return float("inf")


classImplements(Histogram, IHistogram)
