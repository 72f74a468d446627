"""Tests for L{admission.memorylimit}."""

from __future__ import annotations

import resource
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.memorylimit import memoryLimitBytes

PHYSICAL = 16 << 30


class MemoryLimitTests(SynchronousTestCase):
    """L{memoryLimitBytes} is the least of all limits."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp())
        self.root.mkdir()
        self.controlGroups = self.root / "cgroup"

    def write(self, path: str, text: str) -> None:
        """Put a file into the fake cgroup file system."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def limit(self, addressSpaceBytes: int = resource.RLIM_INFINITY) -> int:
        return memoryLimitBytes(self.controlGroups, self.root, PHYSICAL, addressSpaceBytes)

    def test_machine(self) -> None:
        """Without cgroups, as on other systems, the machine's memory is the limit."""
        self.assertEqual(self.limit(), PHYSICAL)

    def test_addressSpace(self) -> None:
        """A smaller C{RLIMIT_AS} goes before."""
        self.assertEqual(self.limit(1 << 30), 1 << 30)

    def test_version2(self) -> None:
        """The group's own C{memory.max} counts."""
        self.write("cgroup", "0::/system.slice/broker.service")
        self.write("system.slice/broker.service/memory.max", str(2 << 30))
        self.assertEqual(self.limit(), 2 << 30)

    def test_version2Ancestor(self) -> None:
        """
        A smaller limit of a group above counts as well, and so does the one at
        which the kernel begins to throttle.
        """
        self.write("cgroup", "0::/user/broker")
        self.write("user/broker/memory.max", "max")
        self.write("user/memory.max", str(4 << 30))
        self.assertEqual(self.limit(), 4 << 30)
        self.write("user/broker/memory.high", str(3 << 30))
        self.assertEqual(self.limit(), 3 << 30)

    def test_version2InContainer(self) -> None:
        """
        Where the container's group is mounted as the root, its limit is found
        although the path names a group outside.
        """
        self.write("cgroup", "0::/docker/0123")
        self.write("memory.max", str(1 << 30))
        self.assertEqual(self.limit(), 1 << 30)

    def test_version1(self) -> None:
        """Version 1 is read from the memory controller; its way of saying "none" is larger than any machine."""
        self.write("cgroup", "5:cpu,memory:/jobs/7\n4:cpuset:/other\n0::/")
        self.write("memory/jobs/7/memory.limit_in_bytes", "9223372036854771712")
        self.assertEqual(self.limit(), PHYSICAL)
        self.write("memory/memory.limit_in_bytes", str(5 << 30))
        self.assertEqual(self.limit(), 5 << 30)
        self.write("memory/jobs/7/memory.limit_in_bytes", str(2 << 30))
        self.assertEqual(self.limit(), 2 << 30)

    def test_hybrid(self) -> None:
        """Beside version 1, version 2 is found at its own mount."""
        self.write("cgroup", "4:memory:/a\n0::/b")
        self.write("unified/b/memory.max", str(1 << 30))
        self.assertEqual(self.limit(), 1 << 30)

    def test_otherControllers(self) -> None:
        """A controller that is not for memory does not limit it."""
        self.write("cgroup", "4:cpuset:/a")
        self.write("memory/a/memory.limit_in_bytes", "1")
        self.assertEqual(self.limit(), PHYSICAL)

    def test_here(self) -> None:
        """On the machine at hand the limit is positive."""
        self.assertGreater(memoryLimitBytes(), 0)
