"""
Tests for L{admission.kafka.broker.log.retention}, through the log.
"""

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import InvalidTopicConfig, LogFailed, OffsetOutOfRange, Partition
from admission.kafka.broker.log.retention import RetentionLimits
from tests.kit.logfixture import LogTestCase, makeBatch, storageError

NOW_MS = 1_000_000_000
BATCH_BYTES = len(makeBatch(0)[0])


class LimitsTests(SynchronousTestCase):
    """
    L{RetentionLimits} of a topic.
    """

    def test_override(self) -> None:
        """
        A topic's own settings hold before the defaults, -1 is no limit, and
        what is not given stays.
        """
        default = RetentionLimits(100, 2000)
        self.assertEqual(default.overriddenBy({}), default)
        self.assertEqual(default.overriddenBy({"retention.bytes": "7"}), RetentionLimits(7, 2000))
        self.assertEqual(default.overriddenBy({"retention.ms": "-1"}), RetentionLimits(100, None))
        self.assertEqual(RetentionLimits(None, None).overriddenBy({"retention.ms": "0"}), RetentionLimits(None, 0))

    def test_invalid(self) -> None:
        """
        What is no limit is refused, naming the setting and the value.
        """
        for text in ("", "ten", "-2", "1.0"):
            refused = self.assertRaises(
                InvalidTopicConfig, RetentionLimits(None, None).overriddenBy, {"retention.ms": text}
            )
            self.assertIn("retention.ms", str(refused))
            self.assertIn(repr(text), str(refused))


class RetentionTestCase(LogTestCase):
    """
    A test of what remains.
    """

    def fill(self, partition: Partition, *timestampsMs: int, **header: int) -> None:
        """
        Append and commit a batch of one record for each timestamp.
        """
        for timestampMs in timestampsMs:
            self.append(partition, timestampMs, **header)
        self.clock.turn()

    def extent(self, partition: Partition) -> tuple[int, int, int]:
        """
        Where a partition starts and ends, and its size.
        """
        return partition.logStartOffset, partition.nextOffset, partition.sizeBytes

    def stored(self, table: str) -> int:
        """
        How much there is in a table of the storage.
        """
        with self.log._storage.cursor(getattr(self.log._storage, table)) as cursor:
            return len(list(cursor.iternext(values=False)))


class RetentionTests(RetentionTestCase):
    """
    The log deletes from the start of partitions what they need not keep.
    """

    def test_bytes(self) -> None:
        """
        The oldest batches go while at least the limit is left without them.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": str(3 * BATCH_BYTES - 1)})
        self.fill(events, *[0] * 3)
        self.sweep()
        self.assertEqual(self.extent(events), (0, 3, 3 * BATCH_BYTES))
        self.fill(events, *[0] * 2)
        self.sweep()
        self.assertEqual(self.extent(events), (2, 5, 3 * BATCH_BYTES))
        self.assertEqual(self.stored("batches"), 3)
        self.assertRaises(OffsetOutOfRange, self.log.read, events, 1, 1000)
        self.assertEqual(len(self.log.read(events, 2, 10_000)), 3)
        self.assertEqual(self.log.bytesAvailable(events, 2), 3 * BATCH_BYTES)

    def test_age(self) -> None:
        """
        Batches go from the oldest on while their newest record is too old.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.ms": "1000"})
        self.fill(events, NOW_MS - 3000, NOW_MS - 1001, NOW_MS - 1000, NOW_MS - 2000, NOW_MS)
        self.sweep()
        self.assertEqual(events.logStartOffset, 2)
        self.wallSeconds += 0.001
        self.sweep()
        self.assertEqual(events.logStartOffset, 4)

    def test_defaults(self) -> None:
        """
        The limits of the log hold for topics that have none of their own.
        """
        self.reopenLog(retentionBytes=BATCH_BYTES, retentionSeconds=1.0)
        small, young, all_ = map(self.partition, ("small", "young", "all"))
        self.log.setTopicConfigs("young", {"retention.bytes": "-1"})
        self.log.setTopicConfigs("all", {"retention.bytes": "-1", "retention.ms": "-1"})
        for partition in (small, young, all_):
            self.fill(partition, NOW_MS - 2000, NOW_MS, NOW_MS)
        self.sweep()
        self.assertEqual([partition.logStartOffset for partition in (small, young, all_)], [2, 1, 0])

    def test_withoutTimestamps(self) -> None:
        """
        A batch without timestamps is of no age, so it stays.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.ms": "0"})
        self.fill(events, -1)
        self.sweep()
        self.assertEqual(events.logStartOffset, 0)

    def test_everything(self) -> None:
        """
        A partition that has lost all its batches goes on where it was, also
        after a restart.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, 5, 6, 7)
        self.sweep()
        self.assertEqual((self.extent(events), events.committedMaxTimestampMs), ((3, 3, 0), -1))
        self.assertEqual(self.stored("batches"), 0)
        for offset in (3, 4):
            self.reopenLog()
            events = self.partition()
            self.assertEqual(self.extent(events), (offset, offset, 0))
            self.assertEqual(self.log.read(events, offset, 1000), [])
            self.assertEqual(self.append(events, 1).baseOffset, offset)
            self.clock.turn()
            self.assertEqual(self.extent(events), (offset, offset + 1, BATCH_BYTES))
            self.assertEqual(self.log.offsetForTimestamp(events, 0), (offset, 1))
            self.sweep()

    def test_restart(self) -> None:
        """
        Where a partition starts, and how large it is, is known after a restart.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": str(2 * BATCH_BYTES)})
        self.fill(events, *[0] * 5)
        self.sweep()
        self.fill(events, 0)
        self.reopenLog()
        self.assertEqual(self.extent(self.partition()), (3, 6, 3 * BATCH_BYTES))

    def test_slices(self) -> None:
        """
        A turn deletes at most 64 batches, and the log can be used in between.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, *[0] * 150)
        self.settle()
        self.clock.advance(30.0)
        starts = [events.logStartOffset]
        while starts[-1] < 150:
            self.clock.turn()
            starts.append(events.logStartOffset)
        self.assertEqual(list(dict.fromkeys(starts)), [0, 64, 128, 150])

    def test_largeSlices(self) -> None:
        """
        A turn deletes no more batches once it has come upon 16 MiB.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, *[0] * 4, valueBytes=9 << 20)
        self.settle()
        self.clock.advance(30.0)
        starts = [events.logStartOffset]
        while starts[-1] < 4:
            self.clock.turn()
            starts.append(events.logStartOffset)
        self.assertEqual(list(dict.fromkeys(starts)), [0, 2, 4])

    def test_pendingAppends(self) -> None:
        """
        What is appended and not committed yet when a sweep comes by survives it.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": str(BATCH_BYTES)})
        self.fill(events, 0, 0)
        self.settle()
        self.clock.advance(30.0)
        told: list[Exception | None] = []
        self.append(events)
        self.log.whenCommitted(told.append)
        self.settle()
        self.assertEqual((self.extent(events), told), ((2, 3, BATCH_BYTES), [None]))
        self.assertEqual(len(self.log.read(events, 2, 1000)), 1)

    def test_spaceIsUsedAgain(self) -> None:
        """
        With retention a small map takes any amount of records.
        """
        self.reopenLog(mapSizeBytes=1 << 20, retentionBytes=100_000)
        events = self.partition()
        for _ in range(20):
            self.fill(events, *[0] * 3, valueBytes=50_000)
            self.sweep()
        self.assertEqual(events.nextOffset, 60)

    def test_fullToTheBrim(self) -> None:
        """
        A map without a single page left, which removing needs as well, is made
        larger by a sweep, so that it can do its work.
        """
        self.reopenLog(mapSizeBytes=1 << 18)
        events = self.partition()
        told: list[Exception | None] = []
        while len(told) - told.count(None) < 30:
            try:
                self.append(events)
            except LogFailed:
                pass
            self.log.whenCommitted(told.append)
            self.clock.turn()
        self.reopenLog(mapSizeBytes=1 << 18, retentionBytes=1000)
        self.sweep()
        events = self.partition()
        self.assertEqual(events.sizeBytes, 15 * BATCH_BYTES)
        end = events.highWatermark
        self.append(events)
        self.clock.turn()
        self.assertEqual(events.highWatermark, end + 1)
        self.assertLess(os.path.getsize(os.path.join(self.path, "data.mdb")), 1 << 19)

    def test_failure(self) -> None:
        """
        A sweep that fails changes nothing and is repeated after the interval.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, 0)
        self.failCommits(storageError(errno.ENOSPC))
        self.sweep()
        self.assertEqual((self.extent(events), self.stored("batches")), ((0, 1, BATCH_BYTES), 1))
        self.failCommits(None)
        self.sweep()
        self.assertEqual((self.extent(events), self.stored("batches")), ((1, 1, 0), 0))

    def test_bug(self) -> None:
        """
        An error nobody thought of is logged and does not end sweeping.
        """
        events = self.partition()
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, 0)
        self.settle()
        patch = self.patch(self.log._sweep, "_topics", None)
        self.sweep()
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)
        patch.restore()
        self.sweep()
        self.assertEqual(events.logStartOffset, 1)


class BurialTests(RetentionTestCase):
    """
    What deleted topics leave behind is removed.
    """

    TABLES = ("topics", "batches", "producers", "partitions", "tombstones")

    def leave(self) -> Partition:
        """
        Delete a topic that has 150 batches, a producer, and a start, and
        return the partition of another one that has a batch and a producer.
        """
        events, other = self.partition("events"), self.partition("other")
        self.log.setTopicConfigs("events", {"retention.bytes": str(150 * BATCH_BYTES)})
        for partition in (events, other):
            self.append(partition, 0, producerId=1, producerEpoch=0, baseSequence=0)
        self.fill(events, *[0] * 150)
        self.sweep()
        self.assertEqual([self.stored(table) for table in self.TABLES], [2, 151, 2, 1, 0])
        self.log.deleteTopic("events")
        return other

    def test_removal(self) -> None:
        """
        Everything goes, at most 64 batches a turn, and nothing of others.
        """
        other = self.leave()
        self.assertEqual(self.stored("batches"), 151)
        counts = [151]
        while counts[-1] > 1:
            self.clock.turn()
            counts.append(self.stored("batches"))
        self.assertEqual(list(dict.fromkeys(counts)), [151, 87, 23, 1])
        self.settle()
        self.assertEqual([self.stored(table) for table in self.TABLES], [1, 1, 1, 0, 0])
        self.assertEqual(len(self.log.read(other, 0, 1000)), 1)

    def test_restart(self) -> None:
        """
        A removal that was interrupted goes on after a restart, and nothing
        of the deleted topic's producers is remembered meanwhile.
        """
        self.leave()
        for _ in range(2):
            self.reopenLog()
            self.assertEqual((self.stored("tombstones"), len(self.log._producers)), (1, 1))
        self.settle()
        self.assertEqual([self.stored(table) for table in self.TABLES], [1, 1, 1, 0, 0])

    def test_duringSweep(self) -> None:
        """
        A topic that is deleted while a sweep is going on is removed right
        after it.
        """
        events, other = self.partition("events"), self.partition("other")
        self.log.setTopicConfigs("events", {"retention.bytes": "0"})
        self.fill(events, *[0] * 150)
        self.fill(other, 0)
        self.settle()
        self.clock.advance(30.0)
        self.clock.turn()
        self.assertEqual(self.stored("batches"), 151 - 64)
        self.log.deleteTopic("events")
        self.log.deleteTopic("other")
        self.settle()
        self.assertEqual([self.stored(table) for table in self.TABLES], [0] * 5)

    def test_closeDuringSweep(self) -> None:
        """
        A sweep ends when the log is closed.
        """
        self.leave()
        self.clock.turn()
        self.successResultOf(self.log.close())
        self.assertEqual(self.clock.getDelayedCalls(), [])


class ProducerExpiryTests(RetentionTestCase):
    """
    Producers that have not appended for long are forgotten.
    """

    limits = {**RetentionTestCase.limits, "producerExpirySeconds": 100.0}

    def send(self, producerId: int) -> None:
        """
        Append and commit a first batch.
        """
        self.append(self.partition(), 0, producerId=producerId, producerEpoch=0, baseSequence=0)
        self.clock.turn()

    def test_expiry(self) -> None:
        """
        The idle go, the others stay, and a restart makes no difference.
        """
        self.send(1)
        self.wallSeconds += 60.0
        self.send(2)
        self.wallSeconds += 40.0
        self.sweep()
        self.assertEqual((len(self.log._producers), self.stored("producers")), (1, 1))
        self.reopenLog()
        self.wallSeconds += 59.0
        self.sweep()
        self.assertEqual(len(self.log._producers), 1)
        self.wallSeconds += 1.0
        self.sweep()
        self.assertEqual((len(self.log._producers), self.stored("producers")), (0, 0))

    def test_limit(self) -> None:
        """
        The least recently used go when there are too many, from the disk as well.
        """
        self.reopenLog(maxProducers=2)
        self.send(1)
        self.send(2)
        self.append(self.partition(), 0, producerId=1, producerEpoch=0, baseSequence=1)
        self.send(3)
        self.assertEqual((len(self.log._producers), self.stored("producers")), (2, 2))
        number = self.partition().number
        self.assertIsNone(self.log._producers.get((number, 2)))
        self.reopenLog(maxProducers=2)
        state = self.log._producers.get((number, 1))
        assert state is not None
        self.assertEqual(len(state.batches), 2)
