"""
The memory of a server: the heap compared with the ledger. Names that are not published here may move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .objectgroups import (
        Group as Group,
        Grouping as Grouping,
        implementing as implementing,
        subclassOf as subclassOf,
    )
    from .profiler import Profiler as Profiler
    from .reports import textOf as textOf

__all__, __getattr__, __dir__ = lazyNames(__name__)
