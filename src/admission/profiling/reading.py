# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
What can be read of a process at once, before anything is counted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from attrs import frozen

from ..metrics.process import ProcessUsage
from .allocator import freeBytes


@frozen
class Reading:
    """
    Memory as the kernel, the C library and the server's ledger know it.

    @ivar residentBytes: physical memory.
    @ivar privateBytes: the part of it to which no file is mapped: what there is to explain.
    @ivar freedBytes: the part of that which the C library keeps though it is free; L{None} if it does not tell.
    @ivar claims: what the server's books say, by purpose.
    @ivar modules: how many modules have been imported.
    @ivar threads: how many threads of Python run.
    """

    residentBytes: int
    privateBytes: int
    freedBytes: int | None
    claims: Mapping[str, int]
    modules: int
    threads: int

    @property
    def fileBytes(self) -> int:
        """
        Pages of mapped files and shared memory, such as the log.
        """
        return self.residentBytes - self.privateBytes


def read(usage: ProcessUsage, claims: Mapping[str, int]) -> Reading:
    """
    Read it all.
    """
    return Reading(
        usage.residentBytes,
        usage.privateBytes,
        freeBytes(),
        dict(claims),
        len(sys.modules),
        threading.active_count(),
    )
