"""Tests for L{admission.commands.kafka.datacommand}."""

import os
import shutil
from io import StringIO
from pathlib import Path
from struct import pack

from admission.commands.console import CommandFailed
from admission.commands.kafka.datacommand import run
from tests.kit.commandcases import CommandTestCase
from tests.kit.logfixture import ShortSegmentsTestCase


class DataTestCase(CommandTestCase, ShortSegmentsTestCase):
    """A log, and the command."""

    def run_(self, *arguments: str) -> str:
        """
        Run C{admission data}.

        @return: what it has written.
        """
        stdout = StringIO()
        self.written = stdout
        run(self.parse("data", *arguments), StringIO(), stdout)
        return stdout.getvalue()

    def failed(self, *arguments: str) -> str:
        """
        Run it, and see it fail.

        @return: the sentence.
        """
        sentence = str(self.assertRaises(CommandFailed, self.run_, *arguments))
        self.assertNotIn("\n", sentence)
        return sentence

    def damage(self) -> None:
        """Flip bits in the first segment."""
        segment = min(Path(self.path, "partitions").rglob("*.log"))
        contents = bytearray(segment.read_bytes())
        contents[100] ^= 0xFF
        segment.write_bytes(contents)


class CheckTests(DataTestCase):
    def test_whole(self) -> None:
        """A log without damage is listed, partition by partition."""
        self.fill()
        self.close()
        written = self.run_("check", self.path)
        self.assertIn("format 2, generation 0", written)
        self.assertRegex(written, r"events-0 +3 +10 +20 +[0-9,]+ +0 to 19\n")
        self.assertIn("Nothing is lost: 1 topics, 1 partitions, 20 records", written)

    def test_damaged(self) -> None:
        """Damage makes the command fail, with the file, the bytes and the offsets."""
        self.fill()
        self.close()
        self.damage()
        sentence = self.failed("check", self.path)
        self.assertIn(f"something is lost in {self.path}, in one place: partitions/events-0.0/0", sentence)
        self.assertIn("the offsets 0 to 1 are lost", sentence)
        self.assertRegex(
            self.written.getvalue(), "(?m)^lost +partitions/events-0.0/00000000000000000000.log is damaged"
        )

    def test_tornTail(self) -> None:
        """A torn end is named, and no failure."""
        self.fill()
        copy = self.mktemp()
        shutil.copytree(self.path, copy)
        last = max(Path(copy, "partitions").rglob("*.log"))
        os.truncate(last, last.stat().st_size - 1)
        self.assertRegex(self.run_("check", copy), "(?m)^note .*a start cuts them off, and goes on with offset 18$")

    def test_missingEnd(self) -> None:
        """
        That a group has committed more than there is says that records may be missing, also if the
        whole directory is.
        """
        self.fill()
        number = self.partition().number
        self.log.table("offsets").put(pack(">QQ", 1, number), pack(">Bqid", 1, 20, -1, 0.0))
        self.log.table("offsets").put(pack(">QQ", 2, number), b"strange")
        self.settle()
        self.close()
        self.assertNotIn("note", self.run_("check", self.path))
        shutil.rmtree(os.path.join(self.path, "partitions"))
        words = "(?m)^note +events-0 ends at offset 0, and a group has committed 20: records may be missing$"
        self.assertRegex(self.run_("check", self.path), words)

    def test_refusals(self) -> None:
        """What cannot be checked is refused in a sentence that says what would help."""
        self.assertIn(f"is in use by process {os.getpid()}: stop the broker first", self.failed("check", self.path))
        self.close()
        self.assertIn("is not there", self.failed("check", self.path + "-not"))
        self.assertIn("is a file", self.failed("check", self.file(b"")))
        empty = self.mktemp()
        os.mkdir(empty)
        self.assertIn("is neither the directory of a broker", self.failed("check", empty))

    def test_mistakes(self) -> None:
        """Mistakes on the command line are refused."""
        self.assertMistakes(
            [
                ("data", "check, backup or restore"),
                ("data check", "name the directory"),
                ("data backup one", "a new one for the copy"),
                ("data restore one two three", "name the backup"),
            ]
        )


class BackupTests(DataTestCase):
    def test_thereAndBack(self) -> None:
        """A broker that runs is backed up, and its backup restored."""
        self.fill()
        expected = self.read(self.partition(), 0)
        backup, restored = self.mktemp(), self.mktemp()
        written = self.run_("backup", self.path, backup)
        self.assertIn("1 topics, 1 partitions, 20 records", written)
        self.assertIn(f"admission data restore {backup} DIRECTORY", written)
        self.assertEqual(0o700, os.stat(backup).st_mode & 0o777)
        written = self.run_("restore", backup, restored)
        self.assertIn(f"Start the broker with --data {restored}", written)
        self.close()
        self.path = restored
        self.log = self.openLog()
        self.assertEqual(expected, self.read(self.partition(), 0))

    def test_damagedSource(self) -> None:
        """A copy that is damaged is not called a backup."""
        self.fill()
        self.damage()
        self.assertIn("something is lost", self.failed("backup", self.path, self.mktemp()))

    def test_damagedBackup(self) -> None:
        """A damaged backup is restored only if that is asked for."""
        self.fill()
        self.close()
        self.damage()
        restored = self.mktemp()
        self.assertIn("--despite-damage", self.failed("restore", self.path, restored))
        self.assertFalse(os.path.exists(restored))
        self.assertIn("are lost", self.run_("restore", "--despite-damage", self.path, restored))
        self.path = restored
        self.log = self.openLog()
        self.assertEqual(20, self.partition().nextOffset)

    def test_refusals(self) -> None:
        """Nothing is overwritten, nothing is copied into itself, and only a log is copied."""
        other = self.mktemp()
        os.mkdir(other)
        self.assertIn("is not the directory of a broker", self.failed("backup", other, self.mktemp()))
        self.assertIn("is inside", self.failed("backup", self.path, os.path.join(self.path, "backup")))
        Path(other, "file").write_bytes(b"")
        self.assertIn("is not empty", self.failed("backup", self.path, other))
        self.assertIn("is not empty", self.failed("restore", self.path, other))
        self.assertIn("in use", self.failed("restore", self.path, self.mktemp()))
