"""Tests for L{admission.kafka.broker.log.partitionlog}."""

import errno
import os
from collections.abc import Mapping

from attrs import evolve
from hypothesis import given, settings, strategies as st
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log import partitionlog
from admission.kafka.broker.log.checkpoint import checkpointName, readCheckpoint
from admission.kafka.broker.log.partitionlog import DirtyFiles, PartitionLog, SegmentFiles
from admission.kafka.broker.log.recovery import PartitionRecovery
from admission.kafka.broker.log.retentionlimits import NO_LIMITS
from admission.kafka.broker.log.segment import segmentName
from admission.kafka.storage.itable import LogFailed
from admission.kafka.storage.openfiles import OpenFiles
from admission.kafka.wire.batches import assignOffset, readBatch, readHeader
from tests.kit.logfixture import FailingDisk, batchesIn, finish, makeBatch, storageError

BATCH_BYTES = len(makeBatch(0)[0])


class PartitionTestCase(SynchronousTestCase):
    """A test with a partition whose segments hold two small batches."""

    maxFiles = 10

    def setUp(self) -> None:
        self.disk = FailingDisk()
        self.root = self.mktemp()
        os.mkdir(self.root)
        self.openFiles = OpenFiles(self.disk, self.maxFiles)
        self.addCleanup(self.openFiles.closeAll)
        self.files = SegmentFiles(self.disk, self.openFiles)
        self.nowSeconds = 100.0
        self.producers: Mapping[int, bytes] = {}
        self.partition = self.build()

    def build(self, name: str = "events-0.7") -> PartitionLog:
        """A partition that nothing is known of."""
        limits = evolve(NO_LIMITS, maxSegmentBytes=2 * BATCH_BYTES)
        return PartitionLog("events", 0, 7, directory=os.path.join(self.root, name), limits=limits)

    def add(self, *timestampsMs: int, leaderEpoch: int = 0, partition: PartitionLog | None = None) -> None:
        """Append a batch without writing it."""
        partition = partition or self.partition
        buffer, batch = makeBatch(*(timestampsMs or (0,)))
        if not partition.hasPending:
            partition.prepare(self.files, len(buffer), self.nowSeconds, lambda: self.producers)
        assignOffset(buffer, partition.nextOffset, leaderEpoch)
        partition.append(buffer, batch)

    def commit(self, leaderEpoch: int = 0) -> None:
        """Write what was appended."""
        self.partition.write(self.files, self.nowSeconds)
        self.partition.settle(leaderEpoch)

    def fill(self, *timestampsMs: int) -> None:
        """Append and commit batches of one record, one by one."""
        for timestampMs in timestampsMs:
            self.add(timestampMs)
            self.commit()

    def failToWrite(self) -> None:
        """Have the disk take a part of what was appended, and revert it."""
        self.disk.writeError = storageError(errno.ENOSPC)
        self.assertRaises(OSError, self.partition.write, self.files, self.nowSeconds)
        self.partition.revert(self.files)
        self.disk.writeError = None

    def flush(self, isClosing: bool = False) -> DirtyFiles:
        """Flush what is dirty, and write the checkpoints."""
        dirty = self.partition.takeDirty(lambda: self.producers)
        for segment in dirty.segments:
            self.openFiles.beginFlush(segment).flush()
        self.openFiles.endFlush(dirty.segments)
        if isClosing and not self.partition.hasPending:
            dirty.checkpoints.extend(self.partition.lastCheckpoint(lambda: self.producers))
        for segment, checkpoint in dirty.checkpoints:
            checkpoint.write(self.disk, segment.checkpointPath)
            self.files.indexed(segment)
        return dirty

    def names(self) -> dict[str, int]:
        """The segments on the disk, and their sizes."""
        directory = self.partition.directory
        names = [name for name in sorted(self.disk.list(directory)) if name.endswith(".log")]
        return {name: os.path.getsize(os.path.join(directory, name)) for name in names}

    def read(self, offset: int = 0) -> list[int]:
        """The offsets of all batches from one on."""
        offsets: list[int] = []
        while offset < self.partition.highWatermark:
            batches = batchesIn(self.partition.read(self.files, offset, 1 << 20, True))
            offsets += [readBatch(batch).baseOffset for batch in batches]
            offset = readBatch(batches[-1]).lastOffset + 1
        return offsets

    def restarted(self) -> PartitionLog:
        """The partition as a start finds it."""
        partition = self.build()
        recovery = PartitionRecovery(self.disk, partition.directory, "events-0", 0, self.nowSeconds)
        partition.recovered(recovery.run())
        return partition


class AppendTests(PartitionTestCase):
    """Writing to the last segment."""

    def test_nothing(self) -> None:
        """A partition that nothing was appended to has no directory."""
        self.assertEqual(os.listdir(self.root), [])
        self.assertEqual(self.partition.read(self.files, 0, 100, True), b"")

    def test_rolling(self) -> None:
        """A segment takes what fits; the next is named by its first offset."""
        self.fill(*range(5))
        self.assertEqual(
            self.names(),
            {segmentName(0): 2 * BATCH_BYTES, segmentName(2): 2 * BATCH_BYTES, segmentName(4): BATCH_BYTES},
        )
        self.assertEqual((self.read(), self.read(3)), ([0, 1, 2, 3, 4], [3, 4]))
        self.assertEqual(self.partition.sizeBytes, 5 * BATCH_BYTES)

    def test_commitIsWhole(self) -> None:
        """A commit is never spread over two segments, however large it is."""
        self.fill(0)
        for _ in range(4):
            self.add()
        self.commit()
        self.assertEqual(self.names(), {segmentName(0): 5 * BATCH_BYTES})
        self.fill(0)
        self.assertEqual(list(self.names()), [segmentName(0), segmentName(5)])

    def test_rolledByAge(self) -> None:
        """A segment is appended to for a limited time; an empty one does not count."""
        self.partition.limits = evolve(self.partition.limits, maxSegmentMs=1000)
        self.add()
        self.failToWrite()
        self.nowSeconds += 1.0
        self.fill(0)
        self.nowSeconds += 0.999
        self.assertEqual(list(self.names()), [segmentName(0)])
        self.nowSeconds += 0.001
        self.fill(0)
        self.assertEqual(list(self.names()), [segmentName(0), segmentName(1)])

    def test_revertUnwritten(self) -> None:
        """What was never written is reverted without the disk."""
        self.add()
        self.disk.writeError = storageError(errno.EIO)
        self.partition.revert(self.files)
        self.assertEqual((self.partition.nextOffset, os.listdir(self.root)), (0, []))

    def test_leftover(self) -> None:
        """What stands in the place of a new segment is not part of it."""
        os.mkdir(self.partition.directory)
        with open(os.path.join(self.partition.directory, segmentName(0)), "wb") as file:
            file.write(bytes(10_000))
        self.fill(1)
        self.assertEqual(self.names(), {segmentName(0): BATCH_BYTES})

    def test_indexStaysDuringAppend(self) -> None:
        """While a batch awaits its commit, its segment's index is not dropped, however little memory there is."""
        self.fill(1)
        self.flush(isClosing=True)
        self.partition = self.restarted()
        self.files = SegmentFiles(self.disk, self.openFiles, maxIndexBytes=1)
        self.add(2)
        other = self.build("events-1.8")
        self.add(partition=other)
        other.write(self.files, 0.0)
        other.settle(0)
        self.files.indexed(other.segments[0])
        self.commit()
        self.assertEqual(self.read(), [0, 1])


class FlushTests(PartitionTestCase):
    """What a flush comprises."""

    def test_reverted(self) -> None:
        """A file of which something was cut off is flushed like any other, so that it may be closed."""
        self.add()
        self.failToWrite()
        self.assertTrue(self.partition.isDirty)
        self.flush()
        self.assertFalse(self.partition.segments[0].isDirty)

    def checkpoint(self, baseOffset: int) -> tuple[int, Mapping[int, bytes] | None] | None:
        """The position and the producers of a segment's checkpoint."""
        path = os.path.join(self.partition.directory, checkpointName(baseOffset))
        checkpoint = readCheckpoint(self.disk, path)
        return None if checkpoint is None else (checkpoint.position, checkpoint.producers)

    def test_sealed(self) -> None:
        """
        A full segment gets a checkpoint at its end, with the producers of that moment, whether its last bytes
        are flushed together with the next segment's or were before.  Where segments are small, only some have them.
        """
        self.fill(0, 0, 0)
        self.flush()
        self.assertEqual(self.checkpoint(0), (2 * BATCH_BYTES, None))
        for isFlushed in (False, True):
            self.partition = self.build(f"events-0.{7 + isFlushed}")
            self.fill(0, 0)
            if isFlushed:
                self.flush()
            patch = self.patch(partitionlog, "CHECKPOINT_BYTES", 2 * BATCH_BYTES)
            self.producers = {1: b"two"}
            self.add()
            self.producers = {1: b"three"}
            self.commit()
            self.flush()
            patch.restore()
            self.assertEqual(self.checkpoint(0), (2 * BATCH_BYTES, {1: b"two"}))
            self.assertIsNone(self.checkpoint(2))

    def test_interval(self) -> None:
        """
        The last segment gets a checkpoint when enough was added to it, and not while batches await
        their commit, which the producers have already.
        """
        self.patch(partitionlog, "CHECKPOINT_BYTES", 3 * BATCH_BYTES)
        self.partition.limits = NO_LIMITS
        self.fill(0, 0)
        self.flush()
        self.assertIsNone(self.checkpoint(0))
        self.fill(0)
        self.add()
        self.flush()
        self.assertIsNone(self.checkpoint(0))
        self.commit()
        self.producers = {1: b"four"}
        self.flush()
        self.assertEqual(self.checkpoint(0), (4 * BATCH_BYTES, {1: b"four"}))
        self.fill(0)
        self.flush()
        self.assertEqual(self.checkpoint(0), (4 * BATCH_BYTES, {1: b"four"}))

    def test_closing(self) -> None:
        """
        When the log is closed, the last segment gets a checkpoint at its end, also if it was flushed before,
        and then a start reads nothing.
        """
        for isFlushed in (False, True):
            self.fill(0)
            if isFlushed:
                self.flush()
            self.flush(isClosing=True)
            self.assertEqual(self.flush(isClosing=True).checkpoints, [])
            partition = self.build()
            found = PartitionRecovery(self.disk, partition.directory, "events-0", 0, 0.0).run()
            self.assertEqual((found.readBytes, found.segments[-1].nextOffset), (0, self.partition.nextOffset))

    def test_tail(self) -> None:
        """
        Segments that a start had to read get checkpoints with the next flush, also if the last one is empty, so that
        the next start reads nothing.
        """
        for isEmpty in (False, True):
            self.partition = self.build(f"events-0.{7 + isEmpty}")
            self.fill(*range(6))
            if isEmpty:
                self.add()
                self.failToWrite()
            self.flush()
            for name in self.disk.list(self.partition.directory):
                if name.endswith(".index"):
                    os.unlink(os.path.join(self.partition.directory, name))
            directory = self.partition.directory
            for expected in (6 * BATCH_BYTES, 0):
                self.partition = self.build(os.path.basename(directory))
                found = PartitionRecovery(self.disk, directory, "events-0", 0, 0.0).run()
                self.partition.recovered(found)
                self.assertEqual((found.readBytes, self.read()), (expected, list(range(6))))
                self.flush(isClosing=True)


class ReadTests(PartitionTestCase):
    """Reading over several segments."""

    def test_epochs(self) -> None:
        """
        An epoch ends where the next one begins, the last one at the high watermark; for an epoch without
        records the largest one below it is named.
        """
        for leaderEpoch in (2, 2, 2, 4, 4, 5):
            self.add(leaderEpoch=leaderEpoch)
            self.commit(leaderEpoch)
        self.flush(isClosing=True)
        for partition in (self.partition, self.restarted()):
            expected = [(0, 0), (1, 0), (2, 3), (2, 3), (4, 5), (5, 6), (5, 6)]
            self.assertEqual([partition.endOfEpoch(self.files, epoch) for epoch in range(7)], expected)

    def test_readingFails(self) -> None:
        """An error of the disk while reading is a refusal that names the file and what to do."""
        self.fill(1, 2, 3)
        self.openFiles.closeAll()
        os.unlink(self.partition.segments[0].path)
        refused = self.assertRaises(LogFailed, self.partition.read, self.files, 0, 100, True)
        self.assertIn(segmentName(0), str(refused))
        self.assertRaises(LogFailed, self.partition.bytesFrom, self.files, 0)
        self.assertRaises(LogFailed, finish, self.partition.findBatch(self.files, 0, 0))
        self.assertEqual(self.read(2), [2])

    def test_damaged(self) -> None:
        """
        Where something else than a batch has come to stand, looking something up is refused and says where; reading
        goes on behind it, and says which offsets are lost.
        """
        self.fill(1, 2, 3)
        with open(self.partition.segments[0].path, "r+b") as file:
            file.write(bytes(BATCH_BYTES))
        with capturedLogs() as events:
            self.assertEqual(self.read(1), [2])
        (text,) = map(formatEvent, events)
        self.assertIn("the offsets from 1 to 1 are lost", text)
        for use in (
            lambda: self.partition.bytesFrom(self.files, 1),
            lambda: finish(self.partition.findBatch(self.files, 1, 0)),
        ):
            self.assertIn("damaged at byte 0", str(self.assertRaises(LogFailed, use)))
        self.assertEqual(self.read(2), [2])

    def test_droppedIndexes(self) -> None:
        """Indexes beyond the limit are dropped and read again; what is found is the same."""
        self.files = SegmentFiles(self.disk, self.openFiles, maxIndexBytes=1000)
        for timestampMs in range(40):
            self.fill(timestampMs)
            self.flush(isClosing=True)
        for partition in (self.partition, self.restarted()):
            self.partition = partition
            for offset in (0, 17, 39, 3):
                self.assertEqual(self.read(offset), list(range(offset, 40)))
                found = finish(partition.findBatch(self.files, offset, 0))
                assert found is not None
                self.assertEqual(readHeader(found).baseOffset, offset)
            self.assertLessEqual(self.files.indexBytes, 1000)
            self.assertLessEqual(sum(segment.index is not None for segment in partition.segments), 2)
        self.files.close(self.partition.segments)
        self.assertLessEqual(len(self.openFiles), self.maxFiles)


class TrimTests(PartitionTestCase):
    """Taking out what need not be kept."""

    def trim(self, nowMs: int = 0, **limits: int) -> list[int]:
        """The first offsets of the segments that go."""
        self.partition.limits = evolve(self.partition.limits, **limits)
        return [segment.baseOffset for segment in self.partition.trim(self.files, nowMs)]

    def test_bytes(self) -> None:
        """The oldest segments go while at least the limit remains without them; the last one stays."""
        self.fill(*range(5))
        self.assertEqual(self.trim(maxBytes=3 * BATCH_BYTES + 1), [])
        self.assertEqual(self.trim(maxBytes=3 * BATCH_BYTES), [0])
        self.assertEqual((self.partition.logStartOffset, self.partition.sizeBytes), (2, 3 * BATCH_BYTES))
        self.assertEqual(self.trim(maxBytes=0), [2])
        self.assertEqual((self.partition.logStartOffset, self.partition.sizeBytes), (4, BATCH_BYTES))
        self.assertEqual(self.read(4), [4])

    def test_age(self) -> None:
        """Segments go, oldest first, while their newest record is too old, even the last one."""
        self.fill(90, 50, 60, 70, 100)
        self.assertEqual(self.trim(nowMs=100, maxAgeMs=10), [])
        self.assertEqual(self.trim(nowMs=101), [0, 2])
        self.assertEqual(self.trim(nowMs=111), [4])
        partition = self.partition
        self.assertEqual((partition.logStartOffset, partition.nextOffset, partition.sizeBytes), (5, 5, 0))
        self.fill(7)
        self.assertEqual((self.read(5), list(self.names())[-1]), ([5], segmentName(5)))

    def test_withoutTimestamps(self) -> None:
        """A segment without timestamps has no age, and keeps those behind it."""
        self.fill(-1, -1, 5, 5)
        self.assertEqual(self.trim(nowMs=1000, maxAgeMs=0), [])

    def test_pending(self) -> None:
        """While batches await their commit nothing is taken out."""
        self.fill(1, 1)
        self.add(1)
        self.assertEqual(self.trim(nowMs=1000, maxAgeMs=0), [])
        self.commit()
        self.assertEqual(self.trim(nowMs=1000, maxAgeMs=0), [0, 2])

    def test_empty(self) -> None:
        """The last segment stays if it is empty."""
        self.fill(1, 1)
        self.add(1)
        self.failToWrite()
        self.assertEqual(self.trim(nowMs=1000, maxAgeMs=0, maxBytes=0), [0])

    def test_damaged(self) -> None:
        """A segment of which nothing can be read does not keep those behind it from being removed."""
        self.fill(1, 2, 3, 4, 5)
        self.flush(isClosing=True)
        directory = self.partition.directory
        os.unlink(os.path.join(directory, checkpointName(0)))
        with open(os.path.join(directory, segmentName(0)), "r+b") as file:
            file.write(bytes(BATCH_BYTES))
        self.partition = self.restarted()
        self.assertEqual(self.trim(maxBytes=0), [0, 2])

    def test_notFlushed(self) -> None:
        """What was taken out gets no checkpoint, and is flushed with the rest."""
        self.fill(*range(3))
        self.trim(maxBytes=0)
        dirty = self.flush()
        self.assertEqual(([segment.baseOffset for segment in dirty.segments], dirty.checkpoints), ([0, 2], []))

    def test_closed(self) -> None:
        """When the disk knows that it is not needed, it is not flushed any more."""
        self.fill(*range(3))
        self.partition.limits = evolve(self.partition.limits, maxBytes=0)
        self.partition.closeTrimmed(self.files, self.partition.trim(self.files, 0))
        self.assertEqual([segment.baseOffset for segment in self.flush().segments], [2])


class HistoryTests(PartitionTestCase):
    """A partition against a list."""

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(st.sampled_from(["append", "commit", "fail", "flush", "checkpoint", "restart", "trim"]), max_size=40)
    )
    def test_any(self, steps: list[str]) -> None:
        """
        Whatever happens in whatever order, and with whatever checkpoints: the committed batches that were not
        taken out are read, and a start finds them.
        """
        self.root = self.mktemp()
        os.mkdir(self.root)
        self.partition = self.build()
        committed: list[int] = []
        pending: list[int] = []
        for step in steps:
            partition = self.partition
            if step == "append":
                pending.append(partition.nextOffset)
                self.add(0, 0)
            elif step in ("commit", "fail") and pending:
                if step == "commit":
                    self.commit()
                    committed += pending
                else:
                    self.failToWrite()
                pending.clear()
            elif step in ("flush", "checkpoint") and not pending:
                self.flush(isClosing=step == "checkpoint")
            elif step == "restart" and not pending:
                start = partition.logStartOffset
                self.openFiles.closeAll()
                self.partition = self.build()
                found = PartitionRecovery(self.disk, partition.directory, "events-0", start, 0.0).run()
                self.partition.logStartOffset = start
                self.partition.recovered(found)
                self.assertEqual(found.cutBytes, 0)
            elif step == "trim":
                partition.limits = evolve(partition.limits, maxBytes=300)
                removed = partition.trim(self.files, 0)
                self.files.close(removed)
                for segment in removed:
                    self.disk.remove(segment.checkpointPath)
                    self.disk.remove(segment.path)
                committed = [offset for offset in committed if offset >= partition.logStartOffset]
            partition = self.partition
            self.assertEqual(self.read(partition.logStartOffset), committed)
            self.assertEqual(partition.nextOffset, partition.highWatermark + 2 * len(pending))
            self.assertEqual(partition.sizeBytes, sum(self.names().values()))
        self.openFiles.closeAll()
