"""Tests for L{admission.boundedfile}."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.boundedfile import readBounded


class ReadBoundedTests(SynchronousTestCase):
    """L{readBounded} reads a bounded part of a regular file, and nothing else."""

    def setUp(self) -> None:
        self.path = self.mktemp()

    def refusal(self, path: str, maxBytes: int = 10) -> str | None:
        error = self.assertRaises(OSError, readBounded, path, maxBytes)
        self.assertEqual(error.filename, path)
        return error.strerror

    def test_read(self) -> None:
        """A file is read up to its bound, also through a link."""
        Path(self.path).write_bytes(b"0123456789")
        link = self.mktemp()
        os.symlink(os.path.abspath(self.path), link)
        self.assertEqual(readBounded(Path(link), 10), b"0123456789")

    def test_tooLarge(self) -> None:
        """A larger file is refused, and no more of it is read than is needed to know that."""
        with open(self.path, "wb") as file:
            file.truncate(1 << 40)
        self.assertEqual(self.refusal(self.path), "it has more than 10")

    def test_noRegularFile(self) -> None:
        """A pipe that nobody writes to, and a device without an end, are refused at once."""
        os.mkfifo(self.path)
        for path in (self.path, "/dev/zero", "/dev/null"):
            self.assertEqual(self.refusal(path), "it is not a regular file")

    def test_directory(self) -> None:
        self.assertEqual(self.refusal(os.path.dirname(os.path.abspath(self.path))), "Is a directory")

    def test_missing(self) -> None:
        """The system's own words are left as they are."""
        self.assertEqual(self.refusal(self.path), "No such file or directory")

    def test_pipe(self) -> None:
        """A caller that may wait reads pipes and devices, within the same bound."""
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        with open(write, "wb") as file:
            file.write(b"secret")
        self.assertEqual(readBounded(f"/dev/fd/{read}", mayBePipe=True), b"secret")
        error = self.assertRaises(OSError, readBounded, "/dev/zero", 10, True)
        self.assertEqual(error.strerror, "it has more than 10")
