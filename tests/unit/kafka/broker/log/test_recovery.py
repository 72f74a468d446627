"""Tests for L{admission.kafka.broker.log.recovery}."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings, strategies as st
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.checkpoint import checkpointName
from admission.kafka.broker.log.partitionlog import PartitionLog, SegmentFiles
from admission.kafka.broker.log.producers import ProducerState, decodeState, encodedAfter, lastSequenceOf
from admission.kafka.broker.log.recovery import PartitionRecovery, Recovered
from admission.kafka.broker.log.segment import Segment, segmentName
from admission.kafka.storage.openfiles import OpenFiles
from admission.kafka.wire.batches import assignOffset, readHeader
from tests.kit.logfixture import FailingDisk, makeBatch, storageError

NOW_SECONDS = 500.0


class RecoveryTestCase(SynchronousTestCase):
    """A test with the directory of a partition."""

    def setUp(self) -> None:
        self.disk = FailingDisk()
        self.directory = self.mktemp()
        os.mkdir(self.directory)

    def path(self, name: str) -> str:
        """A path in the directory."""
        return os.path.join(self.directory, name)

    def build(
        self, *batchCounts: int, checkpoints: Sequence[int] = (), firstOffset: int = 0, leaderEpoch: int = 0
    ) -> list[bytes]:
        """
        Write segments with batches of two records each, of producer 7.

        @param checkpoints: the numbers of the segments that get a checkpoint at their end, with the producers
            up to there.
        @return: the batches.
        """
        batches: list[bytes] = []
        offset = firstOffset
        state: bytes | None = None
        for number, batchCount in enumerate(batchCounts):
            segment = Segment(self.directory, offset, 0.0)
            with open(segment.path, "wb") as file:
                for _ in range(batchCount):
                    sequence = offset - firstOffset
                    buffer, batch = makeBatch(offset, offset + 1, producerId=7, producerEpoch=1, baseSequence=sequence)
                    assignOffset(buffer, offset, leaderEpoch)
                    batch = readHeader(buffer)
                    file.write(buffer)
                    batches.append(bytes(buffer))
                    segment.add(offset, batch, leaderEpoch)
                    state = encodedAfter(state, 1, (sequence, lastSequenceOf(sequence, 1), offset), 100.0)
                    offset += 2
            if number in checkpoints:
                segment.checkpoint({7: state} if state else {}).write(self.disk, segment.checkpointPath)
        return batches

    def recover(self, logStartOffset: int = 0) -> Recovered:
        """Start with the directory."""
        return PartitionRecovery(self.disk, self.directory, "events-0", logStartOffset, NOW_SECONDS).run()

    def names(self) -> list[str]:
        """What is in the directory."""
        return sorted(os.listdir(self.directory))

    def extents(self, recovered: Recovered) -> list[tuple[int, int, int]]:
        """The first and the next offset of each segment, and its size."""
        return [(each.baseOffset, each.nextOffset, each.sizeBytes) for each in recovered.segments]

    def truncate(self, name: str, sizeBytes: int) -> None:
        """Cut a file off; from the end if the size is negative."""
        path = self.path(name)
        os.truncate(path, sizeBytes if sizeBytes >= 0 else os.path.getsize(path) + sizeBytes)

    def damage(self, name: str, position: int) -> None:
        """Change a byte of a file."""
        with open(self.path(name), "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x10]))


class CleanTests(RecoveryTestCase):
    """What was closed well is not read."""

    def test_empty(self) -> None:
        """In an empty directory there is nothing, and so there is in none."""
        for _ in range(2):
            self.assertEqual(self.recover(), Recovered())
            os.rmdir(self.directory)
            self.directory += "x"
            os.mkdir(self.directory)
        os.rmdir(self.directory)
        self.assertEqual(self.recover(), Recovered())

    def test_clean(self) -> None:
        """With checkpoints at the ends nothing is read, and the last one's producers are known."""
        batches = self.build(2, 3, 1, checkpoints=(0, 1, 2))
        found = self.recover()
        sizeBytes = len(batches[0])
        self.assertEqual(self.extents(found), [(0, 4, 2 * sizeBytes), (4, 10, 3 * sizeBytes), (10, 12, sizeBytes)])
        self.assertEqual((found.readBytes, found.cutBytes), (0, 0))
        self.assertEqual([(4, 5, 4), (6, 7, 6), (8, 9, 8), (10, 11, 10)], list(self.state(found).batches)[1:])
        for segment in found.segments:
            self.assertEqual((segment.index, segment.maxTimestampMs), (None, None))
            self.assertEqual(segment.createdSeconds, NOW_SECONDS)

    def state(self, found: Recovered) -> ProducerState:
        """The state of the only producer."""
        (state,) = found.producers.values()
        return decodeState(state)

    def test_onlyLast(self) -> None:
        """
        The checkpoint of the last segment is enough; a missing index of another one is made anew, without the producers
        of that time, and not again at the next start.
        """
        self.build(2, 2, checkpoints=(1,))
        found = self.recover()
        self.assertEqual((len(found.segments), found.readBytes), (2, 0))
        self.assertEqual(self.state(found).batches[-1], (6, 7, 6))
        self.assertIn(checkpointName(0), self.names())
        before = os.stat(self.path(checkpointName(0))).st_mtime_ns
        self.recover()
        self.assertEqual(os.stat(self.path(checkpointName(0))).st_mtime_ns, before)

    def test_madeAnewIsNoEnd(self) -> None:
        """An index that was made anew knows no producers, so the tail does not begin behind it."""
        self.build(2, 2, checkpoints=(1,))
        self.recover()
        os.unlink(self.path(checkpointName(2 * 2)))
        found = self.recover()
        self.assertEqual(self.state(found).batches, ((0, 1, 0), (2, 3, 2), (4, 5, 4), (6, 7, 6)))
        self.assertGreater(found.readBytes, 0)

    def test_fullDisk(self) -> None:
        """A disk that has no room for an index does not keep the log from starting."""
        self.build(2, 2, checkpoints=(1,))
        self.disk.writeError = storageError(errno.ENOSPC)
        with capturedLogs() as events:
            self.assertEqual(len(self.recover().segments), 2)
        self.assertEqual([event["log_level"] for event in events], [LogLevel.warn])


class TailTests(RecoveryTestCase):
    """What has no checkpoint at its end is read, and cut off where it is not whole."""

    def test_whole(self) -> None:
        """A tail that is whole stays as it is; its producers, its epochs and its index are known."""
        batches = self.build(2, 2, leaderEpoch=3)
        found = self.recover()
        self.assertEqual((found.readBytes, found.cutBytes), (sum(map(len, batches)), 0))
        self.assertEqual([segment.epochs for segment in found.segments], [[(3, 0)], [(3, 4)]])
        self.assertEqual([segment.maxTimestampMs for segment in found.segments], [3, 7])
        expected = ProducerState(1, ((0, 1, 0), (2, 3, 2), (4, 5, 4), (6, 7, 6)), NOW_SECONDS)
        self.assertEqual({each: decodeState(state) for each, state in found.producers.items()}, {7: expected})

    def test_fromCheckpoint(self) -> None:
        """A tail is read from its last checkpoint on."""
        self.build(2, checkpoints=(0,))
        contents = Path(self.path(segmentName(0))).read_bytes()
        batches = self.build(4)
        with open(self.path(segmentName(0)), "rb") as file:
            self.assertTrue(file.read().startswith(contents))
        found = self.recover()
        self.assertEqual((found.readBytes, found.cutBytes), (len(batches[2]) + len(batches[3]), 0))
        self.assertEqual(decodeState(found.producers[7]).batches[0], (0, 1, 0))
        self.assertEqual(found.segments[0].nextOffset, 8)

    def test_torn(self) -> None:
        """
        Wherever a tail is torn, it is cut off behind the last batch that is whole, and again finds
        nothing to cut.
        """
        batches = self.build(3)
        ends = [sum(map(len, batches[:count])) for count in range(4)]
        for sizeBytes in range(ends[3]):
            self.build(3)
            self.truncate(segmentName(0), sizeBytes)
            count = sum(end <= sizeBytes for end in ends) - 1
            found = self.recover()
            self.assertEqual(self.extents(found), [(0, 2 * count, ends[count])])
            self.assertEqual(
                (found.cutBytes, os.path.getsize(self.path(segmentName(0)))), (sizeBytes - ends[count], ends[count])
            )
            self.assertEqual(self.recover().cutBytes, 0)

    def test_garbage(self) -> None:
        """Zeros or anything else behind the last batch are cut off, and that is said with the partition's name."""
        for rest in (bytes(5000), b"\xff" * 5000, b"\x00" * 7 + b"\x09" + b"\x7f" * 100):
            self.build(2)
            with open(self.path(segmentName(0)), "ab") as file:
                file.write(rest)
            with capturedLogs() as events:
                self.assertEqual(self.recover().cutBytes, len(rest))
            (event,) = events
            self.assertEqual((event["log_level"], event["partition"], event["offset"]), (LogLevel.warn, "events-0", 4))

    def test_severalSegments(self) -> None:
        """A tail may have several segments; where one is cut off, those behind it go, with their checkpoints."""
        self.build(2, 2, 2, 2, checkpoints=(0,))
        self.truncate(segmentName(8), -1)
        # Its checkpoint is one of the time before the loss.
        with open(self.path(checkpointName(12)), "wb") as file:
            file.write(b"nonsense")
        found = self.recover()
        self.assertEqual([extent[:2] for extent in self.extents(found)], [(0, 4), (4, 8), (8, 10)])
        self.assertEqual(self.names(), sorted([checkpointName(0), segmentName(0), segmentName(4), segmentName(8)]))
        self.assertEqual(decodeState(found.producers[7]).batches[-1], (8, 9, 8))
        self.assertEqual(self.recover().cutBytes, 0)

    def test_gap(self) -> None:
        """
        If a whole segment of the tail is missing, those behind it go: behind another one of the tail, and behind
        one with a checkpoint.
        """
        for checkpoints in ((), (0,)):
            self.build(2, 2, 2, checkpoints=checkpoints)
            os.unlink(self.path(segmentName(4)))
            found = self.recover()
            self.assertEqual([extent[:2] for extent in self.extents(found)], [(0, 4)], checkpoints)
            self.assertEqual([name for name in self.names() if name.endswith(".log")], [segmentName(0)])
            self.assertGreater(found.cutBytes, 0)

    def test_cutBehindCheckpoint(self) -> None:
        """A checkpoint behind the end of its segment is not believed, and goes."""
        self.build(3, checkpoints=(0,))
        self.truncate(segmentName(0), -1)
        found = self.recover()
        self.assertEqual([extent[:2] for extent in self.extents(found)], [(0, 4)])
        self.assertEqual(self.names(), [segmentName(0)])
        self.assertEqual(decodeState(found.producers[7]).batches, ((0, 1, 0), (2, 3, 2)))

    def test_damagedCheckpoint(self) -> None:
        """Whatever stands in the place of the checkpoint, the segment is read and found."""
        self.build(2, checkpoints=(0,))
        for position in range(os.path.getsize(self.path(checkpointName(0)))):
            self.build(2, checkpoints=(0,))
            self.damage(checkpointName(0), position)
            found = self.recover()
            self.assertEqual([extent[:2] for extent in self.extents(found)], [(0, 4)])
            self.assertGreater(found.readBytes, 0)

    def test_asksTheDisk(self) -> None:
        """The tail is read from the disk, not from what a failed flush may have left in memory."""
        asked: list[object] = []
        self.build(2, 2, checkpoints=(0,))
        kind = type(self.disk.open(self.path(segmentName(0))))
        self.patch(kind, "distrust", lambda file: asked.append(file))
        self.recover()
        self.assertEqual(len(asked), 1)

    def test_diskFails(self) -> None:
        """An error of the disk is no damage: nothing is cut off, and the start fails."""
        self.build(2)
        self.truncate(segmentName(0), -1)
        sizeBytes = os.path.getsize(self.path(segmentName(0)))
        kind = type(self.disk.open(self.path(segmentName(0))))

        def fail(*_: object) -> None:
            raise storageError(errno.EIO)

        patch = self.patch(kind, "read", fail)
        self.assertRaises(OSError, self.recover)
        patch.restore()
        self.assertEqual(os.path.getsize(self.path(segmentName(0))), sizeBytes)


class StartTests(RecoveryTestCase):
    """What ends before the start of the log has been removed."""

    def test_leftoverSegments(self) -> None:
        """Segments that end before the start are removed even if they are still there."""
        self.build(2, 2, 2, checkpoints=(0, 1, 2))
        found = self.recover(8)
        self.assertEqual([extent[:2] for extent in self.extents(found)], [(8, 12)])
        self.assertEqual(self.names(), [checkpointName(8), segmentName(8)])

    def test_damagedLeftover(self) -> None:
        """Nothing of them matters, not even whether they are whole."""
        self.build(2, 2, 2)
        self.damage(segmentName(0), 70)
        found = self.recover(4)
        self.assertEqual(([extent[:2] for extent in self.extents(found)], found.cutBytes), ([(4, 8), (8, 12)], 0))

    def test_strangeNames(self) -> None:
        """A file that is named by an offset that no partition comes to is none of the log's."""
        self.build(2)
        stranger = "99999999999999999999.log"
        Path(self.path(stranger)).touch()
        found = self.recover()
        self.assertEqual([extent[:2] for extent in self.extents(found)], [(0, 4)])
        self.assertIn(stranger, self.names())

    def test_everything(self) -> None:
        """
        If all records have been removed, or the tail ends before the start, no segment is left: the next batch
        would not follow its last one.
        """
        for logStartOffset, cutBytes in ((8, 0), (8, 1), (100, 0)):
            self.build(2, 2)
            self.truncate(segmentName(4), -cutBytes or os.path.getsize(self.path(segmentName(4))))
            found = self.recover(logStartOffset)
            self.assertEqual((found.segments, self.names()), ([], []))

    def test_new(self) -> None:
        """An empty segment at the start stays."""
        self.build(0, firstOffset=8)
        self.assertEqual(self.extents(self.recover(8)), [(8, 8, 0)])

    def test_leftoverCheckpoints(self) -> None:
        """Checkpoints without a segment and unfinished ones are removed; files of others are not."""
        self.build(1, checkpoints=(0,))
        kept = [checkpointName(0), segmentName(0), "notes.txt", "5.index"]
        for name in (*kept[2:], checkpointName(2), checkpointName(0) + ".tmp", checkpointName(4) + ".tmp"):
            with open(self.path(name), "wb") as file:
                file.write(b"something")
        self.recover()
        self.assertEqual(self.names(), sorted(kept))


class DamageTests(RecoveryTestCase):
    """Damage in segments that were flushed long ago."""

    def load(self) -> PartitionLog:
        """The partition as a start finds it."""
        partition = PartitionLog("events", 0, 7, directory=self.directory)
        partition.recovered(self.recover())
        openFiles = OpenFiles(self.disk, 10)
        self.addCleanup(openFiles.closeAll)
        self.files = SegmentFiles(self.disk, openFiles)
        return partition

    def test_lostOffsets(self) -> None:
        """
        If its index has to be made anew, a damaged segment says which offsets are lost, and the partition goes on
        behind them.
        """
        batches = self.build(3, 2, checkpoints=(1,))
        self.damage(segmentName(0), len(batches[0]) + 70)
        with capturedLogs() as events:
            partition = self.load()
        # What is behind the damage may be of use to somebody.
        self.assertEqual(os.path.getsize(self.path(segmentName(0))), sum(map(len, batches[:3])))
        (event,) = events
        self.assertEqual((event["log_level"], event["first"], event["last"]), (LogLevel.error, 2, 5))
        self.assertIn(segmentName(0), event["path"])
        for _ in range(2):
            self.assertEqual(partition.read(self.files, 0, 1 << 20, True), batches[0])
            for offset in (2, 5, 6):
                self.assertEqual(partition.read(self.files, offset, 1 << 20, True), batches[3] + batches[4])
                self.assertEqual(partition.bytesFrom(self.files, offset), len(batches[3] + batches[4]))
            self.assertEqual(partition.nextOffset, 10)
            with capturedLogs():
                partition = self.load()

    def test_firstBatch(self) -> None:
        """The whole segment may be lost."""
        batches = self.build(2, 2, checkpoints=(1,))
        self.damage(segmentName(0), 0)
        with capturedLogs() as events:
            partition = self.load()
        self.assertEqual([(event["first"], event["last"]) for event in events], [(0, 3)])
        self.assertEqual(partition.read(self.files, 0, 1 << 20, True), batches[2] + batches[3])


class HistoryTests(RecoveryTestCase):
    """Recovery against a list."""

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(st.integers(0, 3), min_size=1, max_size=4),
        st.sets(st.integers(0, 3)),
        st.integers(0, 3),
        st.integers(0, 400),
        st.booleans(),
    )
    def test_any(
        self, batchCounts: list[int], checkpoints: set[int], torn: int, sizeBytes: int, isDamaged: bool
    ) -> None:
        """
        However segments and checkpoints are, and wherever the tail is damaged or torn: what is found is a
        beginning of what was written, with all that is before the tail, and a second start changes nothing.
        """
        # Only the last segment may be empty.
        batchCounts = [count or 1 for count in batchCounts[:-1]] + batchCounts[-1:]
        for name in self.names():
            os.unlink(self.path(name))
        batches = self.build(*batchCounts, checkpoints=sorted(checkpoints))
        bases = [2 * sum(batchCounts[:number]) for number in range(len(batchCounts))]
        sealed = max([number + 1 for number in checkpoints if number < len(batchCounts)], default=0)
        torn = max(torn, sealed)
        if torn < len(batchCounts):
            name = segmentName(bases[torn])
            length = os.path.getsize(self.path(name))
            if isDamaged and sizeBytes < length:
                self.damage(name, sizeBytes)
            else:
                self.truncate(name, min(sizeBytes, length))
        found = self.recover()
        contents = b"".join(Path(segment.path).read_bytes() for segment in found.segments)
        everything = b"".join(batches)
        if not isDamaged:
            self.assertTrue(everything.startswith(contents))
        nextOffset = found.segments[-1].nextOffset
        self.assertGreaterEqual(nextOffset, 2 * sum(batchCounts[:torn]))
        self.assertEqual(len(contents), nextOffset // 2 * len(batches[0]) if batches else 0)
        state = found.producers.get(7)
        self.assertEqual(state is not None, nextOffset > 0)
        if state is not None:
            self.assertEqual(decodeState(state).batches[-1][2], nextOffset - 2)
        again = self.recover()
        self.assertEqual((again.cutBytes, again.segments[-1].nextOffset), (0, nextOffset))
