# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
What the C library keeps of memory that nobody uses any more.
"""

from __future__ import annotations

import ctypes


class _Information(ctypes.Structure):
    """
    C{struct mallinfo2}; see mallinfo(3).
    """

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def freeBytes() -> int | None:
    """
    How much memory was freed and has not gone back to the system; L{None}
    where the C library does not tell.  Python's own arenas are not in it.
    """
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    tell.restype = _Information
    return int(tell().fordblks)
