# -*- test-case-name: tests.unit.metrics.test_process -*-
"""
The resources that the process uses, as the kernel counts them.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from .registry import SensorRegistry


class ProcessUsage:
    """
    Reads C{/proc/self}, and what Python says: memory, CPU time, open files and imported modules.
    """

    def __init__(self, directory: Path = Path("/proc/self")) -> None:
        """
        @param directory: read instead of C{/proc/self}.
        """
        self._directory = directory
        self._pageBytes = os.sysconf("SC_PAGE_SIZE")
        self._ticksPerSecond = os.sysconf("SC_CLK_TCK")

    @property
    def residentBytes(self) -> int:
        """
        Physical memory, including pages of mapped files.
        """
        return self._pages()[1] * self._pageBytes

    @property
    def privateBytes(self) -> int:
        """
        Resident memory without mapped files, which the kernel can reclaim:
        comparable to the ledger.
        """
        _, resident, shared, *_ = self._pages()
        return (resident - shared) * self._pageBytes

    @property
    def cpuSeconds(self) -> float:
        """
        CPU time in user and kernel mode, of all threads together.
        """
        # The name of the program is in parentheses, and may contain parentheses itself.
        fields = self._directory.joinpath("stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / self._ticksPerSecond

    @property
    def openDescriptors(self) -> int:
        """
        Open file descriptors, sockets included.
        """
        return len(os.listdir(self._directory / "fd"))

    @property
    def maxDescriptors(self) -> int:
        """
        The limit on open file descriptors; -1 if unlimited.
        """
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def importedModules(self) -> int:
        """
        How many modules Python has imported: each takes memory once.
        """
        return len(sys.modules)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish all of this.

        @raise ValueError: if sensors of these names exist.
        """
        registry.addGauge("ProcessResidentBytes", lambda now: self.residentBytes)
        registry.addGauge("ProcessPrivateBytes", lambda now: self.privateBytes)
        registry.addGauge("ProcessCpuSeconds", lambda now: self.cpuSeconds)
        registry.addGauge("ProcessOpenDescriptors", lambda now: self.openDescriptors)
        registry.addGauge("ProcessMostDescriptors", lambda now: self.maxDescriptors)
        registry.addGauge("ProcessImportedModules", lambda now: self.importedModules)

    def _pages(self) -> list[int]:
        return [int(each) for each in self._directory.joinpath("statm").read_text("ascii").split()]
