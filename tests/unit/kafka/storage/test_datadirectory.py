"""Tests for L{admission.kafka.storage.datadirectory}."""

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.datadirectory import LOCK_FILE, lockHolder
from admission.kafka.storage.disk import DirectoryLock


class DirectoryTests(SynchronousTestCase):
    """What can be said of a directory from outside."""

    def setUp(self) -> None:
        self.path = self.mktemp()
        os.mkdir(self.path)

    def test_lockHolder(self) -> None:
        """A locked directory tells who uses it; one that is free, was left, or is not there tells nothing."""
        self.assertEqual((lockHolder(self.path), lockHolder("/nowhere")), ("", ""))
        lock = DirectoryLock(self.path)
        self.assertEqual(lockHolder(self.path), f"process {os.getpid()}")
        Path(self.path, LOCK_FILE).write_bytes(b"")
        self.assertEqual(lockHolder(self.path), "process unknown")
        lock.release()
        self.assertEqual(lockHolder(self.path), "")
