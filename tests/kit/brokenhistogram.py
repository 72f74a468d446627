"""A histogram that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from zope.interface import implementer

from admission.interfaces import IHistogram
from admission.metrics.histogram import SECONDS_BOUNDS


@implementer(IHistogram)
class BrokenHistogram:
    """One that somebody has written and not finished: L{AttributeError} is what comes of reading it."""

    bounds: Sequence[float] = SECONDS_BOUNDS
    counts: Sequence[int]
    total: float
    count: int

    def record(self, value: float) -> None:
        """Forget it."""

    def quantile(self, share: float) -> float:
        """Nothing is known."""
        return float("nan")
