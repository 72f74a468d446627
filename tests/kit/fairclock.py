"""Time without the waits that a busy machine causes, and time that was computed."""

from __future__ import annotations

import time
from pathlib import Path


class FairClock:
    """
    A monotonic clock that stands still while one of some threads could run and
    the machine runs something else: what it measures is what these threads do,
    and not how busy their machine is.  When several of them wait at a time
    that is subtracted several times, so it errs towards less.

    Where the kernel does not count these waits it is an ordinary clock.
    """

    def __init__(self, *threads: str) -> None:
        """@param threads: their directories in C{/proc}, such as C{thread-self} or C{1234/task/1234}."""
        paths = [Path("/proc", thread, "schedstat") for thread in threads]
        self._paths = [path for path in paths if path.exists()]

    def seconds(self) -> float:
        """
        The time, in seconds since some moment.

        @raise OSError: if one of the threads has ended.
        """
        waitedNanoseconds = sum(int(path.read_bytes().split()[1]) for path in self._paths)
        return (time.monotonic_ns() - waitedNanoseconds) / 1e9


def cpuSeconds(pid: int) -> float:
    """
    The CPU time that the process C{pid} has used, in seconds, by the clock that clock_getcpuclockid(3) says it has.  It
    stands still whatever keeps the process from running: other processes, the machine under a virtual one, a disk.

    @raise OSError: if there is no such process.
    """
    return time.clock_gettime((~pid << 3) | 2)
