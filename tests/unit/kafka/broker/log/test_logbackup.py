"""Tests for L{admission.kafka.broker.log.logbackup}."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from admission.kafka.broker.log.logbackup import LogBackup, copiedBytes, copyLog, markUnclean, refuseOccupied
from admission.kafka.broker.log.logcheck import LogReport, checkLog, logBytes
from admission.kafka.storage.itable import LogFailed, LogInUse
from tests.kit.logfixture import ShortSegmentsTestCase


class BackupTestCase(ShortSegmentsTestCase):
    """A log that is backed up while it is used."""

    def backUp(self, meanwhile: Callable[[], object] = lambda: None) -> LogReport:
        """
        Back up the log, and check the copy.

        @param meanwhile: called once, when all that is there has been copied and the documents have not.
        """
        self.backup = self.mktemp()
        os.mkdir(self.backup)
        calls = [meanwhile]

        class Interrupted(LogBackup):
            def _copyDocuments(self) -> None:
                if calls:
                    calls.pop()()
                super()._copyDocuments()

        Interrupted(self.path, self.backup, lambda sizeBytes: None).run()
        return checkLog(self.backup)

    def restore(self) -> None:
        """Go on with the backup as the log."""
        self.successResultOf(self.log.close())
        self.path = self.mktemp()
        copyLog(self.backup, self.path, lambda sizeBytes: None)
        markUnclean(self.path)
        self.log = self.openLog()


class LogBackupTests(BackupTestCase):
    def test_running(self) -> None:
        """The backup of a log in use has all that is committed, and can be used as a log."""
        self.fill()
        self.log.table("groups").put(b"key", b"value")
        self.settle()
        expected = self.read(self.partition(), 0)
        report = self.backUp()
        self.assertEqual([], report.problems)
        self.assertEqual(20, report.partitions[0].nextOffset)
        topicId = self.log.topic("events").topicId
        self.restore()
        self.assertEqual(topicId, self.log.topic("events").topicId)
        self.assertEqual(b"value", self.log.table("groups").get(b"key"))
        self.assertEqual(expected, self.read(self.partition(), 0))
        self.assertEqual(20, self.append(self.partition()).baseOffset)

    def test_neverAhead(self) -> None:
        """
        What the documents say of offsets holds for the records, also of the records that came while
        it was copied.
        """
        self.fill()

        def meanwhile() -> None:
            self.fill(3)
            self.log.table("offsets").put(b"key", b"26")
            self.settle()

        report = self.backUp(meanwhile)
        self.assertEqual([], report.problems)
        self.assertEqual(b"26", report.documents["offsets"][b"key"])
        self.assertEqual(26, report.partitions[0].nextOffset)

    def test_takenBack(self) -> None:
        """What was copied, and then cut off and written anew, is copied again."""
        self.fill(1)
        last = max(Path(self.path, "partitions").rglob("*.log"))
        committedBytes = last.stat().st_size
        whole = last.read_bytes()
        last.write_bytes(whole + b"\x01" * committedBytes)

        def meanwhile() -> None:
            os.truncate(last, committedBytes)
            self.fill(2)

        self.assertEqual([], self.backUp(meanwhile).problems)
        self.assertEqual(6, checkLog(self.backup).partitions[0].nextOffset)

    def test_retention(self) -> None:
        """Segments that retention removes while it is copied are no error, and missing from the copy."""
        self.fill()
        first = min(Path(self.path, "partitions").rglob("*.log"))

        def meanwhile() -> None:
            self.log.setTopicConfigs("events", {"retention.bytes": "100"})
            self.sweep()
            self.assertFalse(first.exists())

        report = self.backUp(meanwhile)
        self.assertEqual([], report.problems)
        self.assertEqual(self.partition().logStartOffset, report.partitions[0].startOffset)
        self.assertGreater(report.partitions[0].startOffset, 0)

    def test_removedBehindDocuments(self) -> None:
        """If they go after the documents were copied, the documents are copied again."""
        self.fill()
        log = self

        class Sweeping(LogBackup):
            hasSwept = False

            def _copyDocuments(self) -> None:
                super()._copyDocuments()
                if not self.hasSwept:
                    self.hasSwept = True
                    log.log.setTopicConfigs("events", {"retention.ms": "1"})
                    log.sweep()

        self.backup = self.mktemp()
        os.mkdir(self.backup)
        Sweeping(self.path, self.backup, lambda sizeBytes: None).run()
        report = checkLog(self.backup)
        self.assertEqual([], report.problems)
        self.assertEqual((20, 20), (report.partitions[0].startOffset, report.partitions[0].nextOffset))

    def test_deletedTopic(self) -> None:
        """A topic that is deleted while it is copied is not in the copy."""
        self.fill()
        self.fill(2, "others")

        def meanwhile() -> None:
            self.log.deleteTopic("others")
            self.settle()

        report = self.backUp(meanwhile)
        self.assertEqual([], report.problems)
        self.assertEqual(["events"], list(report.topics))
        self.assertEqual(1, len(os.listdir(os.path.join(self.backup, "partitions"))))

    def test_newTopic(self) -> None:
        """A topic that is made while it is copied is in the copy with its records."""
        self.fill()
        report = self.backUp(lambda: self.fill(2, "others"))
        self.assertEqual([], report.problems)
        self.assertEqual([20, 4], [each.nextOffset for each in report.partitions])

    def test_snapshot(self) -> None:
        """A snapshot that takes the place of the journal while it is copied changes nothing."""
        self.fill(1)
        table = self.log.table("groups")

        def meanwhile() -> None:
            for number in range(40):
                table.put(b"key%d" % number, bytes(64 << 10))
                self.settle()
            self.clock.advance(1.0)
            self.settle()

        report = self.backUp(meanwhile)
        self.assertEqual([], report.problems)
        self.assertEqual(40, len(report.documents["groups"]))
        self.assertGreater(report.generation, 0)

    def test_noLinks(self) -> None:
        """The copy shares nothing with the original."""
        self.fill()
        self.backUp()
        for path in Path(self.backup).rglob("*.log"):
            self.assertEqual(1, path.stat().st_nlink)

    def test_progress(self) -> None:
        """The caller is told how much has been copied."""
        self.fill()
        self.successResultOf(self.log.close())
        self.backup = self.mktemp()
        os.mkdir(self.backup)
        told: list[int] = []
        LogBackup(self.path, self.backup, told.append).run()
        indexes = sum(path.stat().st_size for path in Path(self.path).rglob("*.index"))
        self.assertEqual(logBytes(self.path) + indexes, sum(told))


class RestoreTests(BackupTestCase):
    def test_leaderEpoch(self) -> None:
        """The leader epoch is raised even if the log was closed well: consumers may have read further."""
        self.fill(1)
        self.successResultOf(self.log.close())
        self.backUp()
        self.restore()
        self.assertEqual(1, self.log.leaderEpoch)

    def test_producers(self) -> None:
        """Idempotent producers go on where they were."""
        partition = self.partition()
        self.append(partition, 0, 0, producerId=7, producerEpoch=0, baseSequence=0)
        self.settle()
        self.successResultOf(self.log.close())
        self.backUp()
        self.restore()
        again = self.append(self.partition(), 0, 0, producerId=7, producerEpoch=0, baseSequence=0)
        self.assertEqual((0, True), again)

    def test_copiedBytes(self) -> None:
        """What is copied is counted beforehand."""
        self.fill()
        self.backUp()
        told: list[int] = []
        copyLog(self.backup, self.mktemp(), told.append)
        self.assertEqual(copiedBytes(self.backup), sum(told))

    def test_inUse(self) -> None:
        """Nothing is changed in a directory that a broker uses."""
        self.assertRaises(LogInUse, markUnclean, self.path)


class OccupiedTests(BackupTestCase):
    def test_refused(self) -> None:
        """Files and directories with contents are refused, and new and empty ones are not."""
        path = self.mktemp()
        refuseOccupied(path)
        os.mkdir(path)
        refuseOccupied(path)
        Path(path, "file").write_bytes(b"")
        self.assertIn("is not empty", str(self.assertRaises(LogFailed, refuseOccupied, path)))
        self.assertIn("is a file", str(self.assertRaises(LogFailed, refuseOccupied, os.path.join(path, "file"))))
        shutil.rmtree(path)
        self.assertRaises(LogInUse, refuseOccupied, self.path)
