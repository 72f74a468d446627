# -*- test-case-name: tests.unit.metrics.test_process -*-
"""
What the process takes of the machine, as the kernel counts it.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .registry import SensorRegistry


class ProcessUsage:
    """
    Reads C{/proc/self}: memory in which the process really is, time that it
    has worked, and files that it has open.
    """

    def __init__(self, directory: Path = Path("/proc/self")) -> None:
        """
        @param directory: what to read in place of C{/proc/self}.
        """
        self._directory = directory
        self._pageBytes = os.sysconf("SC_PAGE_SIZE")
        self._ticksPerSecond = os.sysconf("SC_CLK_TCK")

    @property
    def residentBytes(self) -> int:
        """
        Physical memory, pages of mapped files included.
        """
        return self._pages()[1] * self._pageBytes

    @property
    def privateBytes(self) -> int:
        """
        The part of it that no file is mapped to: what a ledger of memory can
        be held against.  The kernel takes the rest back when it is needed.
        """
        _, resident, shared, *_ = self._pages()
        return (resident - shared) * self._pageBytes

    @property
    def cpuSeconds(self) -> float:
        """
        Time on a processor, in user and kernel mode, all threads together.
        """
        # The name of the program is in parentheses, and may have any in it.
        fields = self._directory.joinpath("stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / self._ticksPerSecond

    @property
    def openDescriptors(self) -> int:
        """
        Open files, sockets included.
        """
        return len(os.listdir(self._directory / "fd"))

    @property
    def maxDescriptors(self) -> int:
        """
        How many there may be now; -1 for any number.
        """
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish all of that.

        @raise ValueError: if there are sensors of these names.
        """
        registry.addGauge("ProcessResidentBytes", lambda now: self.residentBytes)
        registry.addGauge("ProcessPrivateBytes", lambda now: self.privateBytes)
        registry.addGauge("ProcessCpuSeconds", lambda now: self.cpuSeconds)
        registry.addGauge("ProcessOpenDescriptors", lambda now: self.openDescriptors)
        registry.addGauge("ProcessMostDescriptors", lambda now: self.maxDescriptors)

    def _pages(self) -> list[int]:
        return [int(each) for each in self._directory.joinpath("statm").read_text("ascii").split()]
