"""L{admission.metrics.histogram}."""

from __future__ import annotations

from math import inf, isnan, nan

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.histogram import SECONDS_BOUNDS, Histogram


class HistogramTests(SynchronousTestCase):
    """L{Histogram}."""

    def test_ranges(self) -> None:
        """A bound belongs to the range below it, and the last range has none."""
        histogram = Histogram([1.0, 2.0, 5.0])
        for value in (-3.0, 0.0, 1.0, 1.1, 2.0, 5.0, 5.1, 1e9):
            histogram.record(value)
        self.assertEqual(histogram.counts, [3, 2, 1, 2])
        self.assertEqual((histogram.count, histogram.bounds), (8, (1.0, 2.0, 5.0)))

    def test_total(self) -> None:
        """The sum of all values is kept."""
        histogram = Histogram()
        for value in (0.25, 0.5, 4.0):
            histogram.record(value)
        self.assertEqual(histogram.total, 4.75)

    def test_defaultBounds(self) -> None:
        """The default goes from 0.1 ms to 500 s, three bounds to a decade."""
        self.assertEqual(len(SECONDS_BOUNDS), 21)
        for index, bound in [(0, 0.0001), (3, 0.001), (4, 0.002), (5, 0.005), (12, 1.0), (20, 500.0)]:
            self.assertAlmostEqual(SECONDS_BOUNDS[index], bound)
        self.assertEqual(Histogram().bounds, SECONDS_BOUNDS)

    def test_boundsMustAscend(self) -> None:
        """Bounds in another order, or none, are refused."""
        for bounds in ([], [1.0, 1.0], [2.0, 1.0], [1.0, nan], [nan, 1.0]):
            self.assertRaises(ValueError, Histogram, bounds)

    def test_quantile(self) -> None:
        """A quantile is the upper bound of the range in which it lies."""
        histogram = Histogram([1.0, 2.0, 5.0])
        for value in (0.5, 0.6, 1.5, 4.0):
            histogram.record(value)
        self.assertEqual([histogram.quantile(share) for share in (0.0, 0.5, 0.51, 0.75, 0.76, 1.0)],
                         [1.0, 1.0, 2.0, 2.0, 5.0, 5.0])  # fmt: skip

    def test_quantileOutOfBounds(self) -> None:
        """Beyond the last bound it is infinite, and without values it is not a number."""
        histogram = Histogram([1.0])
        self.assertTrue(isnan(histogram.quantile(0.5)))
        histogram.record(2.0)
        self.assertEqual(histogram.quantile(0.5), inf)

    @given(st.lists(st.floats(0, 1e3), min_size=1), st.floats(0.01, 1.0))
    def test_quantileIsClose(self, values: list[float], share: float) -> None:
        """It is no less than the value it stands for, and at most one range more."""
        histogram = Histogram()
        for value in values:
            histogram.record(value)
        rank = next(rank for rank in range(1, len(values) + 1) if rank >= share * len(values))
        exact = sorted(values)[rank - 1]
        bound = histogram.quantile(share)
        self.assertLessEqual(exact, bound)
        lower = max((each for each in SECONDS_BOUNDS if each < bound), default=-1.0)
        self.assertGreater(exact, lower)
