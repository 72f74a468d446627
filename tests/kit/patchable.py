"""Objects whose methods a test may replace: those of a class that is compiled cannot be."""

from __future__ import annotations

from admission_plugins.bounded import BoundedPool
from admission_plugins.purgatory import WheelPurgatory


class PatchablePool(BoundedPool):
    """A pool."""


class PatchablePurgatory(WheelPurgatory):
    """A purgatory."""
