# -*- test-case-name: tests.unit.status.test_pages -*-
"""
Values as JSON has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..interfaces import IHistogram

LONGEST_NAME = 120
"""How much of a client's or group's name is shown, in characters; they may have thousands."""

_UNBOUNDED_BYTES = 1 << 62


def finite(value: float) -> float | None:
    """
    C{value}, unless JSON could not say it.
    """
    return value if math.isfinite(value) else None


def bounded(sizeBytes: int) -> int | None:
    """
    C{sizeBytes}, unless it stands for no bound.
    """
    return sizeBytes if sizeBytes < _UNBOUNDED_BYTES else None


def shortened(name: str) -> str:
    """
    C{name}, or its beginning.
    """
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


def histogramFields(histogram: IHistogram) -> dict[str, Any]:
    """
    A histogram as JSON.  A bound of L{None} is for what exceeds all others.
    """
    bounds: Sequence[float | None] = (*histogram.bounds, None)
    return {
        "count": histogram.count,
        "total": finite(histogram.total),
        "median": finite(histogram.quantile(0.5)),
        "percentile99": finite(histogram.quantile(0.99)),
        "ranges": [
            {"upTo": bound, "count": count} for bound, count in zip(bounds, histogram.counts, strict=True) if count
        ],
    }
