"""
What quota policies are made of: base classes, limits by client, and meters.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .limits import LimitTable as LimitTable
    from .metering import Buckets as Buckets, Meters as Meters, Windows as Windows
    from .policy import (
        LifecyclePolicy as LifecyclePolicy,
        MeteredPolicy as MeteredPolicy,
        QuotaPolicy as QuotaPolicy,
    )

__all__, __getattr__, __dir__ = lazyNames(__name__)
