"""Tests for L{admission.kafka.storage.documents}."""

import errno
import os
import shutil
import tracemalloc
from pathlib import Path

from hypothesis import given, settings, strategies as st
from twisted.internet.defer import maybeDeferred
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage import documents as documentsModule
from admission.kafka.storage.documents import FORMAT, Documents
from admission.kafka.storage.flushing import DeferToThread
from admission.kafka.storage.itable import LogFailed
from admission.kafka.storage.openfiles import OpenFiles
from tests.kit.logfixture import FailingDisk, Threads, storageError


def journal(generation: int) -> str:
    """The name of a journal."""
    return f"{generation:020d}.journal"


def snapshot(generation: int) -> str:
    """The name of a snapshot."""
    return f"{generation:020d}.snapshot"


class DocumentsTestCase(SynchronousTestCase):
    """A test with documents."""

    minJournalBytes = 1 << 20

    def setUp(self) -> None:
        self.patch(documentsModule, "MIN_JOURNAL_BYTES", self.minJournalBytes)
        self.disk = FailingDisk()
        self.threads = Threads()
        self.directory = os.path.join(self.mktemp(), "documents")
        self.documents = self.open()

    def open(self, directory: str = "", deferToThread: DeferToThread | None = None) -> Documents:
        """Open the documents, or a copy of them."""
        self.files = OpenFiles(self.disk, 10)
        self.addCleanup(self.files.closeAll)
        return Documents(
            self.disk, self.files, directory or self.directory, deferToThread or self.threads.deferToThread
        )

    def reopen(self, deferToThread: DeferToThread | None = None) -> None:
        """Open them again, as after a kill."""
        self.files.closeAll()
        self.threads.waiting.clear()
        self.documents = self.open(deferToThread=deferToThread)

    def commit(self, *changes: tuple[str, bytes, bytes | None]) -> None:
        """Put and delete, and keep that."""
        self.change(*changes)
        if self.documents.hasChanges:
            self.documents.write()
        self.documents.settle()

    def change(self, *changes: tuple[str, bytes, bytes | None]) -> None:
        """Put, or delete where there is no value."""
        for table, key, value in changes:
            if value is None:
                self.documents.delete(table, key)
            else:
                self.documents.put(table, key, value)

    def contents(self) -> dict[str, dict[bytes, bytes]]:
        """All tables that are not empty."""
        return {name: dict(values) for name, values in self.documents.tables.items() if values}

    def names(self) -> list[str]:
        """What is in the directory."""
        return sorted(os.listdir(self.directory))

    def path(self, name: str) -> str:
        """A path in the directory."""
        return os.path.join(self.directory, name)


class TableTests(DocumentsTestCase):
    """Tables, and what a start finds of them."""

    def test_nothing(self) -> None:
        """A commit without changes writes nothing."""
        sizeBytes = os.path.getsize(self.path(journal(0)))
        self.commit(("a", b"x", None))
        self.assertEqual(os.path.getsize(self.path(journal(0))), sizeBytes)

    def test_dirty(self) -> None:
        """
        What was written is to be flushed, and the directory has been; it is urgent if somebody said so before that
        commit.
        """
        files, directories = self.documents.takeDirty()
        self.assertEqual((len(files), directories), (1, []))
        self.assertFalse(self.documents.isDirty)
        self.commit(("a", b"x", b"1"))
        self.assertEqual((self.documents.isDirty, self.documents.isUrgent), (True, False))
        self.documents.urge()
        self.assertFalse(self.documents.isUrgent)
        self.commit(("a", b"x", b"2"))
        self.assertTrue(self.documents.isUrgent)
        self.commit(("a", b"x", b"3"))
        self.assertTrue(self.documents.isUrgent)
        files, directories = self.documents.takeDirty()
        self.assertEqual((len(files), directories), (1, []))
        self.assertEqual((self.documents.isDirty, self.documents.isUrgent), (False, False))

    def test_revertIsNotUrgent(self) -> None:
        """What is lost leaves nothing urgent behind."""
        self.change(("a", b"x", b"1"))
        self.documents.urge()
        self.documents.revert()
        self.commit(("a", b"x", b"2"))
        self.assertFalse(self.documents.isUrgent)


class TornTests(DocumentsTestCase):
    """A journal that a loss of power has torn or damaged."""

    def setUp(self) -> None:
        super().setUp()
        self.ends = [os.path.getsize(self.path(journal(0)))]
        for number in range(3):
            self.commit(("a", b"%d" % number, b"x" * number), ("a", b"last", b"%d" % number))
            self.ends.append(os.path.getsize(self.path(journal(0))))
        self.files.closeAll()
        self.whole = Path(self.path(journal(0))).read_bytes()

    def check(self, contents: bytes, count: int) -> None:
        """With these contents a number of commits is found, and what is committed then follows."""
        with open(self.path(journal(0)), "wb") as file:
            file.write(contents)
        self.reopen()
        expected = {b"%d" % number: b"x" * number for number in range(count)}
        if count:
            expected[b"last"] = b"%d" % (count - 1)
        self.assertEqual(self.contents().get("a", {}), expected)
        self.commit(("a", b"new", b"y"))
        self.reopen()
        self.assertEqual(self.contents()["a"], {**expected, b"new": b"y"})

    def test_truncated(self) -> None:
        """At whatever byte it ends, the commits before are found."""
        for sizeBytes in range(len(self.whole) + 1):
            self.check(self.whole[:sizeBytes], sum(end <= sizeBytes for end in self.ends[1:]))

    def test_flipped(self) -> None:
        """Whatever byte is wrong, the commits before are found, and none behind it."""
        for position in range(self.ends[0], len(self.whole)):
            damaged = bytearray(self.whole)
            damaged[position] ^= 0x01
            self.check(bytes(damaged), sum(end <= position for end in self.ends[1:]))

    def test_holes(self) -> None:
        """A part that was never written, and reads as zeros, ends what is found."""
        for begin in range(self.ends[0], len(self.whole), 7):
            damaged = self.whole[:begin] + bytes(len(self.whole) - begin) + bytes(5000)
            self.check(damaged, sum(end <= begin for end in self.ends[1:]))

    def test_oldFrames(self) -> None:
        """Frames of before, behind those that were cut off, are not taken for new ones."""
        self.check(self.whole[: self.ends[1]] + self.whole[self.ends[2] :], 1)
        self.check(self.whole[: self.ends[1]] + self.whole[self.ends[0] :], 1)

    def test_format(self) -> None:
        """A journal of a newer version is refused, naming both, and left alone."""
        contents = self.whole.replace(b"log %d\n" % FORMAT, b"log 17\n")[:-1]
        with open(self.path(journal(0)), "wb") as file:
            file.write(contents)
        for _ in range(2):
            refused = str(self.assertRaises(LogFailed, self.reopen))
            self.assertIn("format 17", refused)
            self.assertIn(f"reads {FORMAT}", refused)
        self.assertEqual(Path(self.path(journal(0))).read_bytes(), contents)

    def test_diskFails(self) -> None:
        """An error of the disk is no damage: the start fails, and nothing is cut off."""
        kind = type(self.disk.open(self.path(journal(0))))

        def fail(*_: object) -> None:
            raise storageError(errno.EIO)

        patch = self.patch(kind, "read", fail)
        self.assertIn("replace it", str(self.assertRaises(LogFailed, self.reopen)))
        patch.restore()
        self.assertEqual(Path(self.path(journal(0))).read_bytes(), self.whole)


class SnapshotTests(DocumentsTestCase):
    """A journal that has grown is replaced by a snapshot."""

    minJournalBytes = 1000

    def grow(self, number: int = 0) -> None:
        """Commit more than a journal holds."""
        self.commit(("a", b"large", bytes([number]) * 1000), ("a", b"%d" % number, b"1"))

    def test_generations(self) -> None:
        """Snapshots follow one another, each when the journal is larger than twice the one before."""
        self.reopen(maybeDeferred)
        for number in range(40):
            self.commit(("a", b"%d" % (number % 7), bytes(300)))
            before = self.contents()
            if number % 3 == 0:
                self.reopen(maybeDeferred)
            self.assertEqual(self.contents(), before)
        (journals, snapshots) = self.names()
        self.assertEqual((journals[:20], journals[20:], snapshots[20:]), (snapshots[:20], ".journal", ".snapshot"))
        self.assertGreater(int(journals[:20]), 1)
        self.assertLess(int(journals[:20]), 6)

    def test_fails(self) -> None:
        """
        If the snapshot cannot be written, that is logged, the journals stay, and the next one is written when the new
        journal has grown.
        """
        self.grow()
        self.disk.writeError = storageError(errno.ENOSPC)
        with capturedLogs() as events:
            self.threads.run()
        self.assertEqual([event["log_level"] for event in events], [LogLevel.error])
        self.disk.writeError = None
        self.commit(("a", b"x", b"1"))
        before = self.contents()
        self.reopen()
        self.assertEqual(self.contents(), before)
        self.grow(1)
        self.threads.run()
        before = self.contents()
        self.reopen()
        self.assertEqual((self.contents(), self.names()), (before, [journal(2), snapshot(2)]))

    def test_noNewJournal(self) -> None:
        """If the new journal cannot be made, the old one goes on."""
        self.documents.put("a", b"x", bytes(1000))
        self.documents.write()
        self.disk.writeError = storageError(errno.ENOSPC)
        with capturedLogs() as events:
            self.documents.settle()
        self.disk.writeError = None
        self.assertEqual([event["log_level"] for event in events], [LogLevel.error])
        self.assertEqual(self.threads.waiting, [])
        self.documents.put("a", b"y", b"1")
        self.documents.write()
        self.documents.settle(isLast=True)
        before = self.contents()
        self.reopen()
        self.assertEqual(self.contents(), before)

    def test_replacedDuringFlush(self) -> None:
        """The old journal may be replaced while it is flushed."""
        self.grow()
        self.commit(("a", b"x", b"1"))
        files, _ = self.documents.takeDirty()
        flushes = [self.files.beginFlush(file).flush for file in files]
        self.threads.run()
        for flush in flushes:
            flush()
        self.files.endFlush(files)
        self.assertEqual(len(self.files), 1)

    def test_last(self) -> None:
        """After the last commit no snapshot is begun."""
        self.documents.put("a", b"x", bytes(5000))
        self.documents.write()
        self.documents.settle(isLast=True)
        self.assertEqual((self.names(), self.threads.waiting), ([journal(0)], []))

    def test_close(self) -> None:
        """Closing waits for the snapshot that is being written."""
        self.successResultOf(self.documents.close())
        self.grow()
        closed = self.documents.close()
        self.assertNoResult(closed)
        self.threads.run()
        self.successResultOf(closed)

    def test_leftovers(self) -> None:
        """An unfinished snapshot, and what a snapshot has replaced, are removed by a start."""
        old = Path(self.path(journal(0))).read_bytes()
        self.grow()
        self.threads.run()
        before = self.contents()
        for name in (snapshot(2) + ".tmp", journal(0), snapshot(0)):
            with open(self.path(name), "wb") as file:
                file.write(old)
        self.reopen()
        self.assertEqual((self.contents(), self.names()), (before, [journal(1), snapshot(1)]))

    def test_damagedSnapshot(self) -> None:
        """If the only snapshot is damaged or cut off, wherever, the documents are refused, and left alone."""
        self.grow()
        self.threads.run()
        whole = Path(self.path(snapshot(1))).read_bytes()
        for position in range(0, len(whole), 13):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            for contents in (bytes(damaged), whole[:position]):
                with open(self.path(snapshot(1)), "wb") as file:
                    file.write(contents)
                self.assertRaises(LogFailed, self.reopen)
        self.assertEqual(self.names(), [journal(1), snapshot(1)])
        with open(self.path(snapshot(1)), "wb") as file:
            file.write(whole)
        self.reopen()
        self.assertEqual(self.contents()["a"][b"0"], b"1")

    def test_format(self) -> None:
        """A snapshot of a newer version is refused, naming both, and left alone."""
        self.grow()
        self.threads.run()
        whole = Path(self.path(snapshot(1))).read_bytes()
        newer = whole.replace(b"log %d\n" % FORMAT, b"log 9\n", 1)
        Path(self.path(snapshot(1))).write_bytes(newer)
        for _ in range(2):
            self.assertIn("format 9", str(self.assertRaises(LogFailed, self.reopen)))
        self.assertEqual(Path(self.path(snapshot(1))).read_bytes(), newer)

    def test_lostSnapshot(self) -> None:
        """If the only snapshot is missing, the documents are refused: they had more than the journal."""
        self.grow()
        self.threads.run()
        os.unlink(self.path(snapshot(1)))
        self.assertIn("restore a backup", str(self.assertRaises(LogFailed, self.reopen)))

    def test_senseless(self) -> None:
        """Changes that make no sense are refused, though they have the right checksum."""
        self.commit(("a", b"x", b"1"))
        path = self.path(journal(0))
        before = Path(path).read_bytes()
        for changes in (b"\x01", b"\x01\x00\x01\x00\x00\x00\x00\xffk", b"\x01\x00\x01\x00\x00\x00\x05tk..."):
            frame = b"".join(documentsModule._frame(2, changes))
            Path(path).write_bytes(before + frame)
            self.assertIn(path, str(self.assertRaises(LogFailed, self.reopen)))

    def test_olderSnapshot(self) -> None:
        """If a damaged snapshot is there together with the one that it replaces, that is taken."""
        self.grow()
        self.threads.run()
        for number in (1, 2, 3):
            self.grow(number)
        self.commit(("a", b"x", b"1"))
        before = self.contents()
        with open(self.path(snapshot(2)), "wb") as file:
            file.write(bytes(100))
        self.reopen()
        self.assertEqual(self.contents(), before)

    def test_tornFormerJournal(self) -> None:
        """
        If the former journal is torn, later ones are not read: their changes do not follow; and they go.  What they
        had is kept beside them, for people: it may be damage.
        """
        self.commit(("a", b"x", b"1"))
        self.grow()
        self.commit(("a", b"x", b"2"))
        with open(self.path(journal(0)), "r+b") as file:
            file.truncate(os.path.getsize(self.path(journal(0))) - 1)
        self.reopen()
        cut = [journal(number) + ".cut" for number in (0, 1)]
        self.assertEqual((self.contents(), self.names()), ({"a": {b"x": b"1"}}, [journal(0), *cut]))
        self.reopen()
        self.assertEqual(self.contents(), {"a": {b"x": b"1"}})

    def test_longEnd(self) -> None:
        """What is cut off is kept a piece at a time, without the room behind it: it may be larger than the memory."""
        self.commit(("a", b"x", b"1"))
        path = self.path(journal(0))
        sizeBytes = os.path.getsize(path)
        rest = b"rest" + bytes(3 << 20) + b"of it"
        with open(path, "ab") as file:
            file.write(rest)
            file.truncate(64 << 20)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.reopen()
        self.assertLess(tracemalloc.get_traced_memory()[1], 16 << 20)
        self.assertEqual(os.path.getsize(path), sizeBytes)
        kept = Path(path + ".cut").read_bytes()
        self.assertEqual((kept.rstrip(b"\0"), len(kept)), (rest, 4 << 20))
        self.assertEqual(self.contents(), {"a": {b"x": b"1"}})

    def test_missingJournal(self) -> None:
        """If the former journal is missing, later ones are not read either."""
        self.grow()
        self.threads.run()
        before = self.contents()
        for number in (1, 2, 3):
            self.grow(number)
        self.commit(("a", b"x", b"2"))
        self.assertIn(journal(2), self.names())
        os.unlink(self.path(journal(1)))
        self.reopen()
        self.assertEqual(self.contents(), before)
        self.commit(("a", b"y", b"3"))
        self.reopen()
        self.assertEqual(self.contents()["a"][b"y"], b"3")

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(
            st.one_of(
                st.tuples(
                    st.sampled_from(["a", "b"]), st.sampled_from([b"x", b"y", b"z"]), st.none() | st.binary(max_size=4)
                ),
                st.sampled_from(["commit", "fail", "large", "thread", "kill"]),
            ),
            max_size=40,
        )
    )
    def test_any(self, steps: list[tuple[str, bytes, bytes | None] | str]) -> None:
        """
        Whatever happens in whatever order, the tables are what dictionaries would be, and what was committed is found
        by a start at any moment.
        """
        shutil.rmtree(self.directory)
        self.reopen()
        present: dict[tuple[str, bytes], bytes] = {}
        committed: dict[tuple[str, bytes], bytes] = {}
        for step in steps:
            if isinstance(step, tuple):
                self.change(step)
                table, key, value = step
                if value is None:
                    present.pop((table, key), None)
                else:
                    present[table, key] = value
            elif step == "large":
                self.change(("a", b"large", bytes(600)))
                present["a", b"large"] = bytes(600)
            elif step == "thread" and self.threads.waiting:
                self.threads.run()
            elif step == "fail" and self.documents.hasChanges:
                self.disk.writeError = storageError(errno.ENOSPC)
                self.assertRaises(OSError, self.documents.write)
                self.documents.revert()
                self.disk.writeError = None
                present = dict(committed)
            elif step == "kill":
                self.reopen()
                present = dict(committed)
            elif step == "commit":
                self.commit()
                committed = dict(present)
            found = {(name, key): value for name, values in self.contents().items() for key, value in values.items()}
            self.assertEqual(found, present)
        self.reopen()
        found = {(name, key): value for name, values in self.contents().items() for key, value in values.items()}
        self.assertEqual(found, committed)
        self.files.closeAll()
