"""Tests for L{admission.metrics.process}."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.process import ProcessUsage
from admission.metrics.registry import SensorRegistry


class ProcessUsageTests(SynchronousTestCase):
    """The kernel's figures are read as they are meant."""

    def setUp(self) -> None:
        directory = Path(self.mktemp())
        directory.joinpath("fd").mkdir(parents=True)
        for number in range(5):
            directory.joinpath("fd", str(number)).touch()
        directory.joinpath("statm").write_text("9000 250 120 1 0 800 0\n", "ascii")
        fields = ["S", "1", "1", "1", "0", "-1", "0", "0", "0", "0", "0", "700", "50", "9", "9", "20", "0"]
        directory.joinpath("stat").write_text(f"42 (a (b) c) {' '.join(fields)}\n", "ascii")
        self.usage = ProcessUsage(directory)

    def test_memory(self) -> None:
        """Memory comes in pages; those of files are not private."""
        self.assertEqual(self.usage.residentBytes, 250 * os.sysconf("SC_PAGE_SIZE"))
        self.assertEqual(self.usage.privateBytes, 130 * os.sysconf("SC_PAGE_SIZE"))

    def test_cpu(self) -> None:
        """User and kernel time count, whatever the program calls itself."""
        self.assertEqual(self.usage.cpuSeconds, 750 / os.sysconf("SC_CLK_TCK"))

    def test_descriptors(self) -> None:
        """Every open file counts, and the limit is that of the process."""
        self.assertEqual(self.usage.openDescriptors, 5)
        self.assertEqual(self.usage.maxDescriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def test_ourselves(self) -> None:
        """The kernel of this machine writes what is read."""
        usage = ProcessUsage()
        before = usage.openDescriptors
        with open(os.devnull):
            self.assertEqual(usage.openDescriptors, before + 1)
        self.assertGreater(usage.residentBytes, 1 << 20)
        self.assertGreater(usage.cpuSeconds, 0)

    def test_sensors(self) -> None:
        """All of it is published."""
        registry = SensorRegistry(lambda: 0.0)
        self.usage.addSensors(registry)
        self.assertEqual(
            list(registry),
            [
                ("ProcessResidentBytes", self.usage.residentBytes),
                ("ProcessPrivateBytes", self.usage.privateBytes),
                ("ProcessCpuSeconds", self.usage.cpuSeconds),
                ("ProcessOpenDescriptors", 5),
                ("ProcessMostDescriptors", self.usage.maxDescriptors),
                ("ProcessImportedModules", len(sys.modules)),
            ],
        )
