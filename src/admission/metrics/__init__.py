"""
What is measured: sampled rates, and the registry of what can be read.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .rate import SampledTotal as SampledTotal
    from .registry import SensorRegistry as SensorRegistry

__all__, __getattr__, __dir__ = lazyNames(__name__)
