"""How much memory something takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def measured(function: Callable[[], T]) -> tuple[T, int]:
    """
    Call a function.

    @return: its result, and the most memory that it had at a time beyond what there was before, in bytes; only what
        Python has allocated.
    """
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bounded(function: Callable[[], T], limitBytes: int) -> T:
    """Call a function, and raise if it takes more memory than it may."""
    result, usedBytes = measured(function)
    if usedBytes > limitBytes:
        # What is made once and kept, such as a decoder, is there now.
        result, usedBytes = measured(function)
        assert usedBytes <= limitBytes, f"{usedBytes} bytes were used, and {limitBytes} are allowed"
    return result
