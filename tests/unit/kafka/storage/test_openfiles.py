"""Tests for L{admission.kafka.storage.openfiles}."""

import os

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.disk import LocalDisk, LocalFile
from admission.kafka.storage.openfiles import LogFile, OpenFiles


class CountedFile(LocalFile):
    """A file that is counted while it is open."""

    def __init__(self, disk: "CountingDisk", path: str, descriptor: int) -> None:
        super().__init__(descriptor)
        self._disk = disk
        self._path = path

    def close(self) -> None:
        """Close it, once."""
        self._disk.open_.remove(self._path)
        super().close()


class CountingDisk(LocalDisk):
    """
    A disk that knows which files are open.

    @ivar open_: their names.
    """

    def __init__(self) -> None:
        self.open_: list[str] = []

    def open(self, path: str, create: bool = False) -> CountedFile:
        """As the disk does."""
        file = CountedFile(self, os.path.basename(path), os.open(path, os.O_RDWR | (os.O_CREAT if create else 0)))
        self.open_.append(os.path.basename(path))
        return file


class OpenFilesTests(SynchronousTestCase):
    """L{OpenFiles} keeps few files open."""

    def setUp(self) -> None:
        """Have ten files, of which three may be open."""
        path = self.mktemp()
        os.mkdir(path)
        self.disk = CountingDisk()
        self.files = OpenFiles(self.disk, 3)
        self.addCleanup(self.files.closeAll)
        self.logFiles = [LogFile(os.path.join(path, str(number))) for number in range(10)]
        for logFile in self.logFiles:
            self.files.get(logFile, create=True).write([b"x"], 0)
        self.files.closeAll()

    def read(self, *numbers: int) -> None:
        """Read some files."""
        for number in numbers:
            self.assertEqual(self.files.get(self.logFiles[number]).read(0, 10), b"x")

    def write(self, *numbers: int) -> None:
        """Write to some files."""
        for number in numbers:
            self.files.willWrite(self.logFiles[number]).write([b"x"], 0)

    def flush(self, *numbers: int) -> list[LogFile]:
        """Begin to flush some files."""
        logFiles = [self.logFiles[number] for number in numbers]
        for logFile in logFiles:
            self.files.beginFlush(logFile).flush()
        return logFiles

    def check(self, *numbers: int) -> None:
        """Exactly these files are open, each once."""
        self.assertEqual(sorted(self.disk.open_), [str(number) for number in sorted(numbers)])
        self.assertEqual(len(self.files), len(numbers))

    def test_leastRecentlyUsed(self) -> None:
        """The files that were not used for the longest are closed."""
        self.read(0, 1, 2)
        self.check(0, 1, 2)
        self.read(0, 3)
        self.check(0, 2, 3)
        self.read(4)
        self.check(0, 3, 4)

    def test_absent(self) -> None:
        """A file that cannot be opened is not remembered as open."""
        self.assertRaises(FileNotFoundError, self.files.get, LogFile(self.logFiles[0].path + "0"))
        self.assertRaises(FileNotFoundError, self.files.willWrite, LogFile(self.logFiles[0].path + "0"))
        self.check()
        self.write(0, 1, 2)

    def test_tooManyDirty(self) -> None:
        """
        There is no room for another file while as many as may be open have unflushed bytes or are being
        flushed, or will have; those that have some already may get more.
        """
        self.write(0)
        self.assertEqual([self.files.hasRoom(None, "a", others) for others in range(3)], [True, False, False])
        self.write(1, 2)
        flushed = self.flush(0)
        self.assertEqual([self.files.hasRoom(each, "a", 7) for each in self.logFiles[:4]], [True, True, True, False])
        self.write(0, 1)
        self.files.endFlush(flushed)
        self.assertFalse(self.files.hasRoom(None, "a"))
        self.files.endFlush(self.flush(0))
        self.assertTrue(self.files.hasRoom(self.logFiles[3], "a"))
        self.assertFalse(self.logFiles[0].isDirty)

    def test_holders(self) -> None:
        """A file counts for the holder that wrote it first until it is flushed or removed, and others have room."""
        self.files.holder = "a"
        self.write(0, 1)
        self.files.holder = "b"
        self.assertEqual([self.files.hasRoom(None, each) for each in "ab"], [False, True])
        self.write(0, 2)
        self.assertEqual(dict(self.files.unflushed), {"a": 2, "b": 1})
        self.files.endFlush(self.flush(0))
        self.files.close(self.logFiles[2])
        self.assertEqual(dict(self.files.unflushed), {"a": 1})
        self.assertTrue(self.files.hasRoom(None, "a"))

    @given(
        st.lists(
            st.tuples(st.sampled_from(["read", "write", "begin", "end", "remove"]), st.integers(0, 9)), max_size=60
        )
    )
    def test_any(self, steps: list[tuple[str, int]]) -> None:
        """
        Whatever happens: files with unflushed bytes or in a flush are open, removed ones are
        not, none is open twice, and no more are open than may be and one to work with.
        """
        disk = CountingDisk()
        files = OpenFiles(disk, 3)
        logFiles = [LogFile(each.path) for each in self.logFiles]
        dirty: set[int] = set()
        flushing: set[int] = set()
        removed: set[int] = set()
        for kind, number in steps:
            busy = dirty | flushing
            if kind == "end":
                files.endFlush([logFiles[each] for each in flushing])
                flushing.clear()
            elif number in removed:
                continue
            elif kind == "read":
                files.get(logFiles[number])
            elif kind == "write":
                hasRoom = number in busy or len(busy) < 3
                files.holder = str(number)
                self.assertEqual(files.hasRoom(logFiles[number], files.holder), hasRoom)
                if hasRoom:
                    files.willWrite(logFiles[number])
                    dirty.add(number)
            elif kind == "begin" and number in dirty and not flushing:
                files.beginFlush(logFiles[number])
                dirty.remove(number)
                flushing.add(number)
            elif kind == "remove":
                files.close(logFiles[number])
                removed.add(number)
                dirty.discard(number)
            opened = set(map(int, disk.open_))
            self.assertEqual(len(opened), len(disk.open_))
            self.assertLessEqual(dirty | flushing, opened)
            self.assertEqual(opened & removed, flushing & removed)
            self.assertLessEqual(len(opened), 4)
        files.endFlush([logFiles[each] for each in flushing])
        self.assertEqual(dict(files.unflushed), {str(each): 1 for each in dirty})
        files.closeAll()
        self.assertEqual(disk.open_, [])
