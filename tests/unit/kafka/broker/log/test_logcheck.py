"""Tests for L{admission.kafka.broker.log.logcheck}."""

import os
import shutil
from pathlib import Path
from typing import Any

from admission.kafka.broker.log.logcheck import LogReport, PartitionReport, checkLog, lockHolder, logBytes
from admission.kafka.storage.disk import LocalDisk
from admission.kafka.storage.itable import LogFailed, LogInUse
from tests.kit.logfixture import ShortSegmentsTestCase


class CheckTestCase(ShortSegmentsTestCase):
    """A closed log that is checked."""

    def kill(self) -> None:
        """Leave the directory as a killed broker does: without checkpoints at the ends, and not in use."""
        copy = self.mktemp()
        shutil.copytree(self.path, copy)
        self.close()
        shutil.rmtree(self.path)
        os.rename(copy, self.path)

    def fillAndClose(self, *arguments: Any) -> None:
        """Have a log with records that was closed well."""
        self.fill(*arguments)
        self.close()

    def segments(self, topicName: str = "events") -> list[Path]:
        """The segments of a topic's only partition, oldest first."""
        return sorted(Path(self.path, "partitions").glob(f"{topicName}-0.*/*.log"))

    def damage(self, path: Path, position: int) -> None:
        """Flip bits."""
        contents = bytearray(path.read_bytes())
        contents[position] ^= 0xFF
        path.write_bytes(contents)

    def check(self) -> LogReport:
        """Check the log, which changes nothing."""
        before = self.contents()
        report = checkLog(self.path)
        self.assertEqual(before, self.contents())
        return report

    def contents(self) -> dict[str, bytes]:
        """All files."""
        return {str(path): path.read_bytes() for path in Path(self.path).rglob("*") if path.is_file()}

    def only(self, report: LogReport) -> PartitionReport:
        """The only partition."""
        (partition,) = report.partitions
        return partition


class WholeTests(CheckTestCase):
    def test_counts(self) -> None:
        """A log without damage is described: its segments, batches, records, bytes and offsets."""
        self.fillAndClose()
        report = self.check()
        self.assertEqual([], report.problems)
        found = self.only(report)
        self.assertEqual(
            ("events-0", "events", 10, 20), (found.name, found.topicName, found.batchCount, found.recordCount)
        )
        self.assertEqual((0, 20), (found.startOffset, found.nextOffset))
        self.assertEqual(len(self.segments()), found.segmentCount)
        self.assertGreater(found.segmentCount, 1)
        self.assertEqual(logBytes(self.path), found.sizeBytes)

    def test_documents(self) -> None:
        """The documents are described: format, generation, and tables."""
        self.fill(1)
        self.log.table("groups").put(b"key", b"value")
        self.settle()
        self.close()
        report = self.check()
        self.assertEqual((2, 0), (report.format, report.generation))
        self.assertEqual({b"key": b"value"}, report.documents["groups"])
        self.assertEqual(["events"], list(report.topics))

    def test_killed(self) -> None:
        """A broker that was killed leaves nothing to complain about."""
        self.fill()
        self.kill()
        self.assertEqual([], self.check().problems)

    def test_empty(self) -> None:
        """A partition to which nothing was ever appended is none that is lost."""
        self.partition()
        self.close()
        report = self.check()
        self.assertEqual([], report.problems)
        self.assertEqual((0, 0), (self.only(report).segmentCount, self.only(report).nextOffset))

    def test_trimmed(self) -> None:
        """What retention has removed is not missing, also if the disk still has the file."""
        self.fill()
        kept = self.segments()[0].read_bytes()
        name = str(self.segments()[0])
        self.reopenLog(retentionBytes=1000)
        self.sweep()
        self.close()
        self.assertNotIn(name, map(str, self.segments()))
        self.assertEqual([], self.check().problems)
        Path(name).write_bytes(kept)
        report = self.check()
        self.assertEqual([], report.problems)
        self.assertEqual(20, self.only(report).nextOffset)

    def test_progress(self) -> None:
        """The caller is told how much has been read."""
        self.fillAndClose()
        told: list[int] = []
        checkLog(self.path, told.append)
        self.assertEqual(logBytes(self.path), sum(told))


class DamagedTests(CheckTestCase):
    def test_middle(self) -> None:
        """Damage within a segment is named by the file, the bytes and the offsets; the batches behind it are found."""
        self.fillAndClose()
        first = self.segments()[0]
        batchBytes = first.stat().st_size // 4
        self.damage(first, batchBytes + 100)
        report = self.check()
        (problem,) = report.losses
        self.assertEqual(os.path.relpath(first, self.path), problem.where)
        self.assertEqual(
            f"is damaged from byte {batchBytes} to {2 * batchBytes}; the offsets 2 to 3 are lost", problem.what
        )
        self.assertEqual(9, self.only(report).batchCount)
        self.assertEqual(20, self.only(report).nextOffset)

    def test_noFile(self) -> None:
        """What is no file in the place of one is named, and neither a check nor a start waits for it."""
        self.fillAndClose()
        segment = self.segments()[-1]
        for make in (os.mkfifo, os.mkdir):
            segment.unlink()
            make(segment)
            error = self.assertRaises(OSError, self.check)
            self.assertEqual((error.strerror, error.filename), ("it is not a regular file", str(segment)))
            with self.assertRaises(LogFailed) as failing:
                self.openLog(disk=LocalDisk())
            self.assertTrue(str(failing.exception).startswith(f"{segment} cannot be read: "), failing.exception)

    def test_lengthDamaged(self) -> None:
        """Batches are found again also if the length of one is wrong."""
        self.fillAndClose()
        self.damage(self.segments()[0], 8)
        (problem,) = self.check().losses
        self.assertIn("is damaged from byte 0 to ", problem.what)
        self.assertIn("the offsets 0 to 1 are lost", problem.what)

    def test_endOfSealed(self) -> None:
        """What is missing at the end of a segment is lost if another follows."""
        self.fillAndClose()
        first = self.segments()[0]
        os.truncate(first, first.stat().st_size - 10)
        (problem,) = self.check().losses
        self.assertIn("the offsets 6 to 7 are lost", problem.what)

    def test_missingSegment(self) -> None:
        """Segments that are gone are noticed by their offsets, the first because the documents say where it starts."""
        self.fillAndClose()
        for number, offsets in (1, "8 to 15"), (0, "0 to 15"):
            self.segments()[number].unlink()
            (problem,) = self.check().losses
            self.assertIn(f"no segment has the offsets {offsets} before it", problem.what)

    def test_tornTail(self) -> None:
        """
        What is not whole at the very end was never confirmed: it is said that a start cuts it, and
        nothing is lost.
        """
        self.fill()
        self.kill()
        last = self.segments()[-1]
        sizeBytes = last.stat().st_size
        os.truncate(last, sizeBytes - 10)
        report = self.check()
        self.assertEqual([], report.losses)
        (problem,) = report.problems
        self.assertIn("a start cuts them off, and goes on with offset 18", problem.what)
        self.reopen(18)

    def test_tailOfZeros(self) -> None:
        """So is what a loss of power may leave: a length without contents."""
        self.fill()
        self.kill()
        last = self.segments()[-1]
        os.truncate(last, last.stat().st_size + 10_000)
        report = self.check()
        self.assertEqual([], report.losses)
        self.assertIn("10000 bytes", report.problems[0].what)
        self.reopen(20)

    def test_damageInTail(self) -> None:
        """Damage before whole batches that a start would cut off is a loss."""
        self.limits = {"retentionSeconds": None}
        self.reopenLog()
        self.fill()
        self.kill()
        (segment,) = self.segments()
        batchBytes = segment.stat().st_size // 10
        self.damage(segment, 3 * batchBytes + 70)
        damaged, cut = self.check().losses
        self.assertIn("the offsets 6 to 7 are lost", damaged.what)
        self.assertIn("6 whole batches stand behind that place, and a start would cut them off", cut.what)
        self.reopen(6)

    def reopen(self, nextOffset: int) -> None:
        """A start ends the partition where the check has said."""
        self.log = self.openLog()
        self.assertEqual(nextOffset, self.partition().nextOffset)

    def test_checkpoint(self) -> None:
        """A damaged checkpoint costs time, and nothing is lost."""
        self.fillAndClose()
        self.damage(self.segments()[-1].with_suffix(".index"), 40)
        report = self.check()
        self.assertEqual([], report.losses)
        (problem,) = report.problems
        self.assertTrue(problem.where.endswith(".index"), problem)

    def test_orphans(self) -> None:
        """Directories of no topic are named, and no loss."""
        self.fillAndClose(1)
        Path(self.path, "partitions", "gone-0.77").mkdir()
        Path(self.path, "partitions", "lost+found").mkdir()
        report = self.check()
        self.assertEqual([], report.losses)
        self.assertEqual(
            ["partitions/gone-0.77", "partitions/lost+found"], sorted(each.where for each in report.problems)
        )


class DocumentTests(CheckTestCase):
    def journal(self) -> Path:
        """The only journal."""
        (path,) = Path(self.path, "documents").glob("*.journal")
        return path

    def test_torn(self) -> None:
        """The torn end of a journal is cut off by a start, and no loss."""
        self.fillAndClose(1)
        with self.journal().open("ab") as file:
            file.write(b"torn")
        report = self.check()
        self.assertEqual([], report.losses)
        self.assertIn("4 bytes at its end", report.problems[0].what)

    def test_damaged(self) -> None:
        """Damage before whole changes is a loss."""
        self.fillAndClose(1)
        self.damage(self.journal(), 60)
        report = self.check()
        self.assertIn("is damaged at byte 32, and whole changes follow", report.losses[0].what)

    def test_topicLost(self) -> None:
        """Where the damage has taken a topic, its records are a loss as well."""
        self.fill()
        self.fillAndClose(2, "others")
        journal = self.journal()
        self.damage(journal, journal.read_bytes().index(b"others"))
        report = self.check()
        lost = {each.where: each.what for each in report.losses}
        (directory,) = (each for each in lost if each.startswith("partitions/others-0."))
        self.assertRegex(lost[directory], "it has [0-9]+ bytes of records, and a start leaves it alone")

    def test_gone(self) -> None:
        """Without documents the partitions are read all the same."""
        self.fillAndClose()
        shutil.rmtree(Path(self.path, "documents"))
        report = self.check()
        self.assertIn("nothing says which topics there were", report.losses[0].what)
        self.assertEqual(20, self.only(report).recordCount)
        self.assertIsNone(report.format)

    def test_newer(self) -> None:
        """A newer format is not taken for damage of the journal."""
        self.fillAndClose(1)
        path = self.journal()
        path.write_bytes(path.read_bytes().replace(b"admission log 2", b"admission log 3", 1))
        self.assertIn("has format 3", self.check().losses[0].what)


class OtherDirectoryTests(CheckTestCase):
    def test_partition(self) -> None:
        """The directory of one partition can be checked, whatever index files Kafka has put there."""
        self.fillAndClose()
        directory = self.segments()[0].parent
        for path in directory.glob("*.index"):
            path.write_bytes(bytes(8))
        self.segments()[0].with_suffix(".timeindex").write_bytes(bytes(12))
        report = checkLog(str(directory))
        self.assertEqual([], report.problems)
        found = report.partitions[0]
        self.assertEqual((20, 0, 20), (found.recordCount, found.startOffset, found.nextOffset))
        self.assertIsNone(report.format)

    def test_partitionDamaged(self) -> None:
        """Damage is found there as well."""
        self.fillAndClose()
        directory = self.segments()[0].parent
        self.damage(self.segments()[0], 100)
        (problem,) = checkLog(str(directory)).losses
        self.assertEqual("00000000000000000000.log", problem.where)

    def test_lastSegmentDamaged(self) -> None:
        """So is damage in its last segment, without saying what a start would do."""
        self.limits = {"retentionSeconds": None}
        self.reopenLog()
        self.fillAndClose()
        self.damage(self.segments()[0], 100)
        (problem,) = checkLog(str(self.segments()[0].parent)).problems
        self.assertIn("the offsets 0 to 1 are lost", problem.what)

    def test_neither(self) -> None:
        """Any other directory is refused."""
        self.close()
        path = self.mktemp()
        os.mkdir(path)
        self.assertIn("neither", str(self.assertRaises(LogFailed, checkLog, path)))

    def test_inUse(self) -> None:
        """A log that a broker uses is refused, and the process named."""
        error = self.assertRaises(LogInUse, checkLog, self.path)
        self.assertEqual(os.getpid(), error.pid)
        self.assertEqual(f"process {os.getpid()}", lockHolder(self.path))
        self.close()
        self.assertEqual("", lockHolder(self.path))
