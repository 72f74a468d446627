"""Tests for L{admission.kafka.broker.log.retention}, through the log."""

import errno
import os

from twisted.logger import LogLevel, capturedLogs

from admission.kafka.broker.log.interface import OffsetOutOfRange, Partition
from admission.kafka.broker.log.partitionlog import PartitionLog
from admission.kafka.storage.documents import SPARE_BYTES
from admission.kafka.storage.itable import LogFailed
from tests.kit.logfixture import FailingFile, LogTestCase, makeBatch, storageError

NOW_MS = 1_000_000_000
BATCH_BYTES = len(makeBatch(0)[0])


class RetentionTestCase(LogTestCase):
    """A test of what remains, with a segment for each commit."""

    limits = {**LogTestCase.limits, "segmentBytes": 1}

    def setUp(self) -> None:
        """Note what is told."""
        super().setUp()
        self.told: list[Exception | None] = []

    def fill(self, partition: Partition, *timestampsMs: int, **header: int) -> None:
        """Append and commit batches of one record, one by one."""
        for timestampMs in timestampsMs:
            self.append(partition, timestampMs, **header)
            self.clock.turn()

    def filled(self, configs: dict[str, str], *timestampsMs: int) -> Partition:
        """The partition of a topic with settings of its own, filled."""
        events = self.partition()
        self.log.setTopicConfigs("events", configs)
        self.fill(events, *timestampsMs)
        return events

    def extent(self, partition: Partition) -> tuple[int, int, int]:
        """Where a partition starts and ends, and its size."""
        return partition.logStartOffset, partition.nextOffset, partition.sizeBytes

    def files(self, partition: Partition) -> list[str]:
        """The files of a partition."""
        assert isinstance(partition, PartitionLog)
        return sorted(self.disk.list(partition.directory))

    def bases(self, partition: Partition) -> list[int]:
        """The first offsets of its segments on the disk."""
        return [int(name[:20]) for name in self.files(partition) if name.endswith(".log")]


class RetentionTests(RetentionTestCase):
    """The log deletes from the start of partitions what they need not keep."""

    def test_deletedRecords(self) -> None:
        """
        A partition begins where its records were deleted to, at once and after a restart, and segments that it does not
        need any more go.
        """
        events = self.partition()
        self.fill(events, 5, 6, 7, 8)
        self.log.deleteRecords(events, 3)
        self.assertEqual(self.offsetForTimestamp(events, 0), (3, 8))
        self.assertEqual(self.maxTimestampOffset(events), (3, 8))
        self.assertRaises(OffsetOutOfRange, self.log.read, events, 2, 1000)
        for left in ([0, 1, 2, 3], [3]):
            self.assertEqual(self.bases(events), left)
            self.sweep()
        self.assertEqual(self.extent(events), (3, 4, BATCH_BYTES))
        self.log.deleteRecords(events, 2)
        self.log.deleteRecords(events, 4)
        for offset in (-1, 5):
            self.assertRaises(OffsetOutOfRange, self.log.deleteRecords, events, offset)
        self.clock.turn()
        self.reopenLog()
        events = self.partition()
        self.assertEqual((events.logStartOffset, events.nextOffset), (4, 4))
        self.assertIsNone(self.offsetForTimestamp(events, 0))
        self.assertEqual(self.append(events, 1).baseOffset, 4)

    def test_deletedInside(self) -> None:
        """A partition may begin inside a segment, and even inside a batch, also after a restart."""
        events = self.partition()
        self.append(events, 7, 7, 7)
        self.clock.turn()
        self.log.deleteRecords(events, 1)
        self.clock.turn()
        for _ in range(2):
            self.sweep()
            self.assertEqual((events.logStartOffset, events.highWatermark), (1, 3))
            self.assertEqual(len(self.read(events, 1)), 1)
            self.assertEqual(self.offsetForTimestamp(events, 0), (1, 7))
            self.reopenLog()
            events = self.partition()

    def test_defaults(self) -> None:
        """The limits of the log hold for topics that have none of their own."""
        self.reopenLog(retentionBytes=BATCH_BYTES, retentionSeconds=1.0)
        small, young, all_ = map(self.partition, ("small", "young", "all"))
        self.log.setTopicConfigs("young", {"retention.bytes": "-1"})
        self.log.setTopicConfigs("all", {"retention.bytes": "-1", "retention.ms": "-1"})
        for partition in (small, young, all_):
            self.fill(partition, NOW_MS - 2000, NOW_MS, NOW_MS)
        self.sweep()
        self.assertEqual([partition.logStartOffset for partition in (small, young, all_)], [2, 1, 0])

    def test_noTime(self) -> None:
        """Records without a time are as old as their file, also after a restart; others are not."""
        self.reopenLog(retentionSeconds=60.0)
        events, others = self.partition(), self.partition("others")
        self.fill(events, -1, -1)
        self.fill(others, NOW_MS)
        for stored in (events, others):
            assert isinstance(stored, PartitionLog)
            for segment in stored.segments:
                os.utime(segment.path, (self.wallSeconds - 30, self.wallSeconds - 30))
        self.sweep()
        self.assertEqual(self.extent(events)[:2], (0, 2))
        self.reopenLog(retentionSeconds=20.0)
        self.sweep()
        events, others = self.partition(), self.partition("others")
        self.assertEqual((self.extent(events), self.files(events)), ((2, 2, 0), []))
        self.assertEqual(self.extent(others)[:2], (0, 1))

    def test_everything(self) -> None:
        """A partition that has lost all its batches goes on where it was, also after a restart."""
        events = self.filled({"retention.ms": "0"}, 5, 6, 7)
        self.sweep()
        self.assertEqual((self.extent(events), self.files(events)), ((3, 3, 0), []))
        for offset in (3, 4):
            self.reopenLog()
            events = self.partition()
            self.assertEqual(self.extent(events), (offset, offset, 0))
            self.assertEqual(self.read(events, offset), [])
            self.assertEqual(self.append(events, 1).baseOffset, offset)
            self.clock.turn()
            self.assertEqual(self.extent(events), (offset, offset + 1, BATCH_BYTES))
            self.assertEqual(self.offsetForTimestamp(events, 0), (offset, 1))
            self.sweep()

    def test_slices(self) -> None:
        """A turn looks at 64 partitions at most, and the log can be used in between."""
        partitions = self.log.createTopic("events", 150, {"retention.ms": "0"}).partitions
        for partition in partitions:
            self.append(partition, 1)
        self.settle()
        self.clock.advance(30.0)
        counts = [0]
        while counts[-1] < 150:
            self.clock.turn()
            counts.append(sum(partition.logStartOffset for partition in partitions))
        self.assertEqual(list(dict.fromkeys(counts)), [0, 64, 128, 150])

    def test_reading(self) -> None:
        """A segment that is removed is closed: the disk gets its space back."""
        events = self.filled({"retention.bytes": "0"}, 1, 2, 3)
        for offset in range(3):
            self.read(events, offset)
        self.clock.advance(1.0)
        self.sweep()
        own = os.path.realpath(self.path)
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        opened = [os.readlink(link) for link in links if os.path.lexists(link)]
        self.assertEqual([path for path in opened if path.startswith(own) and path.endswith("(deleted)")], [])

    def test_failure(self) -> None:
        """
        If the disk does not take where a partition starts, no file goes; that is repeated after the interval, so that
        a full disk gets room.
        """
        events = self.filled({"retention.bytes": "0"}, 0, 0, 0)
        self.failCommits(storageError(errno.ENOSPC))
        for _ in range(2):
            self.sweep()
            self.assertEqual(self.bases(events), [0, 1, 2])
        self.failCommits(None)
        self.sweep()
        self.assertEqual((self.extent(events), self.bases(events)), ((2, 3, BATCH_BYTES), [2]))

    def test_fullDisk(self) -> None:
        """
        On a full disk the log writes where a partition starts into room that it has kept for that, and keeps some for
        the next time.  Records get none of it.
        """
        events = self.filled({"retention.bytes": str(BATCH_BYTES)}, 0, 0, 0)
        spare = self.fillDisk()
        self.append(events)
        self.log.whenCommitted(self.told.append)
        self.settle()
        self.assertIsInstance(self.told.pop(), LogFailed)
        self.assertTrue(os.path.exists(spare))
        self.sweep()
        self.assertEqual((self.extent(events), self.bases(events)), ((2, 3, BATCH_BYTES), [2, 3]))
        self.assertFalse(os.path.exists(spare))
        self.sweep()
        self.assertGreaterEqual(os.stat(spare).st_blocks * 512, SPARE_BYTES)
        self.reopenLog()
        self.assertEqual(self.partition().logStartOffset, 2)

    def test_deletedOnFullDisk(self) -> None:
        """So a topic can be deleted."""
        events = self.partition()
        self.fill(events, 0)
        self.fillDisk()
        self.log.deleteTopic("events")
        self.settle()
        self.assertEqual(self.files(events), [])

    def fillDisk(self) -> str:
        """
        Have the disk refuse to write until the spare room is given back.

        @return: the path of that.
        """
        self.settle()
        self.failCommits(storageError(errno.ENOSPC))
        spare = os.path.join(self.path, "documents", "spare")
        remove = self.disk.remove

        def removed(path: str) -> None:
            remove(path)
            if path == spare:
                self.failCommits(None)

        self.patch(self.disk, "remove", removed)
        return spare

    def test_failureInTurn(self) -> None:
        """So it is if the sweep comes by in a turn in which something was lost."""
        events = self.filled({"retention.bytes": "0"}, 0, 0, 0)
        self.settle()
        self.clock.advance(30.0)
        other = self.partition("other")
        self.failCommits(storageError(errno.ENOSPC))
        self.assertRaises(LogFailed, self.append, other, valueBytes=100_000)
        self.settle()
        self.failCommits(None)
        self.sweep()
        self.assertEqual(self.bases(events), [2])

    def test_deletedAfterFailure(self) -> None:
        """If the topic is deleted after such a failure, everything goes."""
        events = self.filled({"retention.bytes": "0"}, 0, 0, 0)
        self.failCommits(storageError(errno.ENOSPC))
        self.sweep()
        self.failCommits(None)
        self.log.deleteTopic("events")
        self.sweep()
        self.assertEqual(self.files(events), [])
        self.assertEqual(self.log._sweep._untold, {})

    def test_killedBeforeRemoval(self) -> None:
        """Files that were to be removed when the process ended are removed by the next start."""
        events = self.filled({"retention.bytes": "0"}, 0, 0, 0)
        patch = self.patch(self.disk, "remove", lambda path: None)
        self.sweep()
        patch.restore()
        self.assertEqual(self.bases(events), [0, 1, 2])
        self.reopenLog()
        events = self.partition()
        self.assertEqual((self.extent(events), self.bases(events)), ((2, 3, BATCH_BYTES), [2]))

    def test_bug(self) -> None:
        """An error nobody thought of is logged and does not end sweeping."""
        events = self.filled({"retention.ms": "0"}, 0)
        self.settle()
        patch = self.patch(self.log._sweep, "_topics", None)
        self.sweep()
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)
        patch.restore()
        self.sweep()
        self.assertEqual(events.logStartOffset, 1)

    def test_unreadable(self) -> None:
        """
        A segment that cannot be read keeps its partition from being swept beyond it, and no other
        one; that is logged.
        """
        partitions = [self.partition(name) for name in ("events", "other", "third")]
        for partition in partitions:
            self.fill(partition, 1, 2, 3)
        self.reopenLog(retentionSeconds=1.0)
        partitions = [self.partition(name) for name in ("events", "other", "third")]
        open_ = self.disk.open

        def refuse(path: str, create: bool = False) -> FailingFile:
            if path.endswith(("events-0.0/00000000000000000001.log", "other-0.1/00000000000000000000.log")):
                raise storageError(errno.EIO)
            return open_(path, create)

        patch = self.patch(self.disk, "open", refuse)
        for _ in range(2):
            with capturedLogs() as events:
                self.sweep()
            self.assertEqual([partition.logStartOffset for partition in partitions], [1, 0, 3])
            self.assertEqual({event["log_level"] for event in events}, {LogLevel.error})
        patch.restore()
        self.sweep()
        self.assertEqual([partition.logStartOffset for partition in partitions], [3, 3, 3])
        self.assertEqual([self.files(partition) for partition in partitions], [[], [], []])


class ProducerExpiryTests(RetentionTestCase):
    """Producers that have not appended for long are forgotten."""

    limits = {**RetentionTestCase.limits, "producerExpirySeconds": 100.0}

    def send(self, producerId: int) -> None:
        """Append and commit a first batch."""
        self.append(self.partition(), 0, producerId=producerId, producerEpoch=0, baseSequence=0)
        self.clock.turn()

    def test_expiry(self) -> None:
        """The idle go, the others stay, and a restart makes no difference."""
        self.send(1)
        self.wallSeconds += 60.0
        self.send(2)
        self.wallSeconds += 40.0
        self.sweep()
        self.assertEqual(len(self.log._producers), 1)
        self.reopenLog()
        self.wallSeconds += 59.0
        self.sweep()
        self.assertEqual(len(self.log._producers), 1)
        self.wallSeconds += 1.0
        self.sweep()
        self.assertEqual(len(self.log._producers), 0)
