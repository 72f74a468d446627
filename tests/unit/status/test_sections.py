"""Tests for L{admission.status.sections}."""

from __future__ import annotations

import math

from twisted.trial.unittest import SynchronousTestCase

from admission.status.sections import LONGEST_NAME, bounded, finite, shortened


class ValuesTests(SynchronousTestCase):
    """Values that JSON can hold."""

    def test_finite(self) -> None:
        """JSON has numbers, and null for the rest."""
        self.assertEqual(
            [finite(value) for value in (1.5, 0, math.inf, -math.inf, math.nan)], [1.5, 0, None, None, None]
        )

    def test_bounded(self) -> None:
        """What stands for no bound is null."""
        self.assertEqual([bounded(value) for value in (0, 1 << 40, 2**63 - 1)], [0, 1 << 40, None])

    def test_shortened(self) -> None:
        """Names may be as long as a client likes, and are shown as long as one can read."""
        self.assertEqual(shortened("a" * LONGEST_NAME), "a" * LONGEST_NAME)
        self.assertEqual(len(shortened("a" * 30_000)), LONGEST_NAME)
