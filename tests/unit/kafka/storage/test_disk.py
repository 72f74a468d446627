"""Tests for L{admission.kafka.storage.disk}."""

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.datadirectory import lockHolder
from admission.kafka.storage.disk import DirectoryLock, LocalDisk, LocalFile, explain
from admission.kafka.storage.itable import LogInUse
from tests.kit.logfixture import storageError


class ExplainTests(SynchronousTestCase):
    """L{explain} says what to do."""

    def test_remedies(self) -> None:
        """Each error that an operator can do something about names the remedy; others speak for themselves."""
        for code, remedy in (
            (errno.ENOSPC, "make room"),
            (errno.EDQUOT, "make room"),
            (errno.EFBIG, "log.segment.bytes"),
            (errno.EMFILE, "log.max.open.files"),
            (errno.ENFILE, "ulimit -n"),
            (errno.EIO, "replace it"),
            (errno.EROFS, "mount it for writing"),
            (errno.EACCES, "Permission denied"),
        ):
            self.assertIn(remedy, explain(storageError(code)))
        self.assertEqual(explain(OSError("frobnicated")), "frobnicated")


class DiskTestCase(SynchronousTestCase):
    """A test with a directory."""

    def setUp(self) -> None:
        self.disk = LocalDisk()
        self.path = self.mktemp()
        os.mkdir(self.path)

    def named(self, name: str) -> str:
        """A path in the directory."""
        return os.path.join(self.path, name)

    def open(self, name: str = "file") -> LocalFile:
        """Open a file, closed when the test ends; it is made if it is not there."""
        file = self.disk.open(self.named(name), create=True)
        self.addCleanup(file.close)
        return file


class LocalFileTests(DiskTestCase):
    """L{LocalFile} reads and writes at positions."""

    def test_absent(self) -> None:
        """A file that is not there is an error unless it is to be made."""
        self.assertRaises(FileNotFoundError, self.disk.open, self.named("file"))
        self.assertEqual(self.open().size(), 0)

    def test_kept(self) -> None:
        """To open a file that is there changes nothing in it, and writing does not depend on an order."""
        self.open().write([b"hello"], 3)
        file = self.open()
        file.write([b"ab", bytearray(b"c")], 0)
        self.assertEqual((file.size(), file.read(0, 100)), (8, b"abchello"))

    def test_end(self) -> None:
        """Reading stops where the file ends."""
        file = self.open()
        file.write([b"0123456789"], 0)
        for position, sizeBytes, expected in (
            (0, 10, b"0123456789"),
            (8, 2, b"89"),
            (8, 3, b"89"),
            (10, 1, b""),
            (99, 1, b""),
            (3, 0, b""),
        ):
            self.assertEqual(file.read(position, sizeBytes), expected)

    def test_nothing(self) -> None:
        """Nothing is written for no buffers, and for empty ones."""
        file = self.open()
        file.write([], 5)
        file.write([b"", memoryview(b"")], 5)
        self.assertEqual(file.size(), 0)

    def test_manyBuffers(self) -> None:
        """More buffers than one system call takes are written all the same."""
        for count in (1023, 1024, 1025, 3000):
            file = self.open()
            file.truncate(0)
            buffers = [b"%d," % number for number in range(count)]
            file.write(buffers, 7)
            self.assertEqual(file.read(7, 1 << 20), b"".join(buffers))

    @given(
        st.lists(st.binary(max_size=5), max_size=8),
        st.lists(st.integers(1, 4), min_size=1, max_size=5),
        st.integers(0, 3),
    )
    def test_shortWrites(self, contents: list[bytes], portions: list[int], position: int) -> None:
        """However little the system takes at once, everything is written in its place."""
        turns = 0

        def next_() -> int:
            nonlocal turns
            turns += 1
            return portions[turns % len(portions)]

        def pwritev(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
            return os.pwrite(descriptor, b"".join(buffers)[: next_()], position)

        real = os.pwrite
        patches = [
            self.patch(os, "pwritev", pwritev),
            self.patch(os, "pwrite", lambda *arguments: real(arguments[0], arguments[1][: next_()], arguments[2])),
        ]
        file = self.disk.open(self.named("file"), create=True)
        try:
            file.truncate(0)
            file.write(contents, position)
            self.assertEqual(file.read(position, 100), b"".join(contents))
        finally:
            file.close()
            for patch in patches:
                patch.restore()

    def test_fullDisk(self) -> None:
        """A write of which the disk takes a part fails with the disk's reason."""
        # A disk that is always full, as Linux has it.
        full = LocalFile(os.open("/dev/full", os.O_RDWR))
        self.addCleanup(full.close)
        self.assertEqual(self.assertRaises(OSError, full.write, [b"a"], 0).errno, errno.ENOSPC)

        def refuse(descriptor: int, buffer: bytes, position: int) -> int:
            raise storageError(errno.ENOSPC)

        file = self.open()
        real = os.pwrite
        self.patch(os, "pwritev", lambda descriptor, buffers, position: real(descriptor, buffers[0][:2], position))
        self.patch(os, "pwrite", refuse)
        self.assertEqual(self.assertRaises(OSError, file.write, [b"abc", b"d"], 0).errno, errno.ENOSPC)
        self.assertEqual(file.size(), 2)

    def test_shortReads(self) -> None:
        """However little the system reads at once, everything is read."""
        file = self.open()
        file.write([b"0123456789"], 0)
        real = os.pread
        self.patch(os, "pread", lambda descriptor, sizeBytes, position: real(descriptor, min(sizeBytes, 3), position))
        self.assertEqual(file.read(1, 8), b"12345678")
        self.assertEqual(file.read(1, 100), b"123456789")


class LocalDiskTests(DiskTestCase):
    """L{LocalDisk} knows files by their paths."""

    def test_reserve(self) -> None:
        """
        A file takes the room that it is to reserve, also if it was made before; where there is too little room, it
        does not stay.
        """
        for sizeBytes in (1 << 16, 1 << 17):
            self.disk.reserve(self.named("spare"), sizeBytes)
            self.assertGreaterEqual(os.stat(self.named("spare")).st_blocks * 512, sizeBytes)

        def refuse(descriptor: int, offset: int, length: int) -> None:
            raise storageError(errno.ENOSPC)

        self.patch(os, "posix_fallocate", refuse)
        error = self.assertRaises(OSError, self.disk.reserve, self.named("spare"), 1 << 18)
        self.assertEqual((error.errno, self.disk.list(self.path)), (errno.ENOSPC, []))

    def test_names(self) -> None:
        """Files are listed, renamed over others, and removed; to remove or list what is not there is no error."""
        self.assertEqual(self.disk.list(self.named("nothing")), [])
        self.open("a").write([b"1"], 0)
        self.open("b").write([b"2"], 0)
        self.disk.makeDirectory(self.named("c/d"))
        self.disk.makeDirectory(self.named("c/d"))
        self.assertEqual(sorted(self.disk.list(self.path)), ["a", "b", "c"])
        self.disk.rename(self.named("a"), self.named("b"))
        self.assertEqual(self.open("b").read(0, 10), b"1")
        for _ in range(2):
            self.disk.remove(self.named("b"))
            self.disk.removeDirectory(self.named("c/d"))
        self.assertEqual(self.disk.list(self.path), ["c"])

    def test_directoryWithContents(self) -> None:
        """A directory is not removed with its contents."""
        self.open("file")
        self.assertRaises(OSError, self.disk.removeDirectory, self.path)
        self.assertEqual(self.disk.list(self.path), ["file"])

    def test_notInherited(self) -> None:
        """Programs that the broker starts do not have its files."""
        self.assertFalse(os.get_inheritable(self.open()._descriptor))


class DirectoryLockTests(DiskTestCase):
    """L{DirectoryLock} is for one at a time."""

    def setUp(self) -> None:
        """Lock a directory."""
        super().setUp()
        self.lock = DirectoryLock(self.path)
        self.addCleanup(self.lock.release)

    def test_refused(self) -> None:
        """A second lock is refused, naming the directory and the process."""
        refused = self.assertRaises(LogInUse, DirectoryLock, self.path)
        self.assertEqual((refused.path, refused.pid), (self.path, os.getpid()))
        self.assertIn(self.path, str(refused))
        self.assertIn(str(os.getpid()), str(refused))

    def test_released(self) -> None:
        """A released directory can be locked again, and names its new owner once."""
        self.lock.release()
        again = DirectoryLock(self.path)
        self.addCleanup(again.release)
        self.assertEqual(self.assertRaises(LogInUse, DirectoryLock, self.path).pid, os.getpid())

    def test_withoutFile(self) -> None:
        """A process that removes the file has not released the directory."""
        os.remove(os.path.join(self.path, "broker.lock"))
        for _ in range(2):
            refused = self.assertRaises(LogInUse, DirectoryLock, self.path)
            self.assertIsNone(refused.pid)
            self.assertEqual(lockHolder(self.path), "process unknown")
        self.lock.release()
        DirectoryLock(self.path).release()

    def test_noDirectories(self) -> None:
        """Where a file system locks no directories, the file has to do."""
        self.lock.release()
        flock = fcntl.flock

        def refusing(file: Any, operation: int) -> None:
            if isinstance(file, int) and stat.S_ISDIR(os.fstat(file).st_mode):
                raise OSError(errno.EBADF, "no")
            flock(file, operation)

        self.patch(fcntl, "flock", refusing)
        again = DirectoryLock(self.path)
        self.addCleanup(again.release)
        self.assertEqual(self.assertRaises(LogInUse, DirectoryLock, self.path).pid, os.getpid())

    def test_nameless(self) -> None:
        """An owner that left no number is called another process."""
        with open(os.path.join(self.path, "broker.lock"), "w"):
            pass
        refused = self.assertRaises(LogInUse, DirectoryLock, self.path)
        self.assertIsNone(refused.pid)
        self.assertIn("another process", str(refused))
