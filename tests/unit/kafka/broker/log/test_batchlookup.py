"""
Tests for L{admission.kafka.broker.log.batchlookup}, through the log.
"""

from hypothesis import given, settings, strategies as st

from admission.kafka.broker.log import batchlookup
from admission.kafka.broker.log.interface import OffsetOutOfRange, Partition, TimestampedOffset
from admission.kafka.wire.batches import decodeRecords
from tests.kit.logfixture import LogTestCase, makeBatch

_GZIP = 1
_LOG_APPEND_TIME = 8


class ReadTests(LogTestCase):
    """
    Reading by offset.
    """

    def setUp(self) -> None:
        """
        Have a partition of three batches with offsets 0-2, 3 and 4-5, between
        two partitions with records of their own.
        """
        super().setUp()
        topic = self.log.createTopic("events", 3, {})
        self.events = topic.partitions[1]
        self.append(topic.partitions[0], 1, 2, 3, 4)
        self.append(topic.partitions[2], 1, 2, 3, 4)
        for timestampsMs in ((1, 2, 3), (4,), (5, 6)):
            self.append(self.events, *timestampsMs)
        self.clock.turn()

    def offsets(self, batches: list[bytes]) -> list[int]:
        """
        The offsets of all records in some batches.
        """
        return [record.offset for batch in batches for record in decodeRecords(batch)]

    def test_containing(self) -> None:
        """
        Reading begins with the batch that contains the offset.
        """
        for offset, first in ((0, 0), (1, 0), (2, 0), (3, 3), (4, 4), (5, 4)):
            self.assertEqual(self.offsets(self.log.read(self.events, offset, 10_000)), list(range(first, 6)))

    def test_end(self) -> None:
        """
        At the high watermark there is nothing to read.
        """
        self.assertEqual(self.log.read(self.events, 6, 10_000), [])
        self.assertEqual(self.log.bytesAvailable(self.events, 6), 0)

    def test_outOfRange(self) -> None:
        """
        Other offsets are refused, naming what there is.
        """
        for offset in (-1, 7, 2**62):
            refused = self.assertRaises(OffsetOutOfRange, self.log.read, self.events, offset, 10_000)
            self.assertIn("from 0 to 6", str(refused))
            self.assertRaises(OffsetOutOfRange, self.log.bytesAvailable, self.events, offset)

    def test_limit(self) -> None:
        """
        Batches are read whole as far as they fit, the first one in any case
        if that is wanted.
        """
        sizes = [len(batch) for batch in self.log.read(self.events, 0, 10_000)]
        cases = [(0, 1), (sizes[0] - 1, 1), (sizes[0] + sizes[1] - 1, 1), (sizes[0] + sizes[1], 2), (sum(sizes), 3)]
        for maxBytes, count in cases:
            self.assertEqual(len(self.log.read(self.events, 0, maxBytes)), count)
        self.assertEqual(self.log.read(self.events, 0, sizes[0] - 1, firstWhole=False), [])
        self.assertEqual(len(self.log.read(self.events, 0, sizes[0], firstWhole=False)), 1)

    def test_bytesAvailable(self) -> None:
        """
        What could be read from an offset is known without reading it.
        """
        for offset in range(7):
            expected = sum(map(len, self.log.read(self.events, offset, 10_000)))
            self.assertEqual(self.log.bytesAvailable(self.events, offset), expected)
        self.assertEqual(self.events.sizeBytes, self.log.bytesAvailable(self.events, 0))

    def test_uncommitted(self) -> None:
        """
        What is not committed cannot be read.
        """
        available = self.log.bytesAvailable(self.events, 0)
        self.append(self.events)
        self.assertEqual(self.offsets(self.log.read(self.events, 4, 10_000)), [4, 5])
        self.assertEqual(self.log.read(self.events, 6, 10_000), [])
        self.assertEqual(self.log.bytesAvailable(self.events, 0), available)
        self.clock.turn()
        self.assertEqual(self.offsets(self.log.read(self.events, 6, 10_000)), [6])

    def test_copies(self) -> None:
        """
        What was read stays as it is when the log is closed.
        """
        (batch,) = self.log.read(self.events, 4, 10_000)
        self.successResultOf(self.log.close())
        self.assertEqual(self.offsets([batch]), [4, 5])


class TimestampTests(LogTestCase):
    """
    Finding records by time.
    """

    def fill(self, partition: Partition, *batches: tuple[int, ...]) -> None:
        """
        Append and commit some batches.
        """
        for timestampsMs in batches:
            self.append(partition, *timestampsMs)
        self.clock.turn()

    def keep(self, partition: Partition, count: int) -> None:
        """
        Delete all batches but the last ones.
        """
        batches = self.log.read(partition, partition.logStartOffset, 1 << 30)
        keptBytes = sum(map(len, batches[len(batches) - count :]))
        self.log.setTopicConfigs(partition.topicName, {"retention.bytes": str(keptBytes)})
        self.sweep()
        self.assertEqual(partition.sizeBytes, keptBytes)

    def test_monotone(self) -> None:
        """
        The first record that is not older is found, between batches and inside
        one.
        """
        events = self.partition()
        self.fill(events, (10, 20, 30), (40, 50), (60,))
        for timestampMs, offset, foundMs in (
            (0, 0, 10),
            (10, 0, 10),
            (11, 1, 20),
            (31, 3, 40),
            (50, 4, 50),
            (51, 5, 60),
        ):
            self.assertEqual(
                self.log.offsetForTimestamp(events, timestampMs), TimestampedOffset(offset, foundMs), timestampMs
            )
        self.assertIsNone(self.log.offsetForTimestamp(events, 61))
        self.assertEqual(self.log.maxTimestampOffset(events), (5, 60))

    def test_empty(self) -> None:
        """
        In an empty partition nothing is found.
        """
        events = self.partition()
        self.assertIsNone(self.log.offsetForTimestamp(events, 0))
        self.assertIsNone(self.log.maxTimestampOffset(events))

    def test_withoutTimestamps(self) -> None:
        """
        Records without timestamps are older than any time.
        """
        events = self.partition()
        self.fill(events, (-1,), (-1, -1))
        self.assertIsNone(self.log.offsetForTimestamp(events, 0))

    def test_neighbours(self) -> None:
        """
        The times of other partitions do not matter.
        """
        topic = self.log.createTopic("events", 3, {})
        for partition, timestampMs in zip(topic.partitions, (100, 50, 100), strict=True):
            self.fill(partition, (timestampMs,))
        self.assertIsNone(self.log.offsetForTimestamp(topic.partitions[1], 51))
        self.assertEqual(self.log.offsetForTimestamp(topic.partitions[1], 50), (0, 50))

    def test_compressed(self) -> None:
        """
        In a compressed batch the answer is the batch: its first offset and its
        largest timestamp.
        """
        events = self.partition()
        self.append(events, 1)
        self.append(events, 10, 20, 30, attributes=_GZIP)
        self.clock.turn()
        self.assertEqual(self.log.offsetForTimestamp(events, 20), (1, 30))

    def test_logAppendTime(self) -> None:
        """
        In a batch that carries the time of its arrival every record has it.
        """
        events = self.partition()
        self.append(events, 10, 20, 30, attributes=_LOG_APPEND_TIME)
        self.clock.turn()
        self.assertEqual(self.log.offsetForTimestamp(events, 20), (0, 30))

    def test_large(self) -> None:
        """
        A batch of very many records is not searched.
        """
        events = self.partition()
        self.append(events, *range(1001))
        self.clock.turn()
        self.assertEqual(self.log.offsetForTimestamp(events, 500), (0, 1000))

    def test_nonsense(self) -> None:
        """
        Records that contradict their batch's header are not believed.
        """
        events = self.partition()
        for damage in ((61, b"\xff" * 9), (63, b"\x80\x80\x01"), (64, b"\x7f")):
            buffer, batch = makeBatch(10, 20)
            buffer[damage[0] : damage[0] + len(damage[1])] = damage[1]
            self.log.append(events, buffer, batch)
        self.clock.turn()
        for first in (0, 2, 4):
            self.assertEqual(self.log.offsetForTimestamp(events, 10), (first, 20))
            self.keep(events, 2 - first // 2)
        self.assertIsNone(self.log.offsetForTimestamp(events, 10))

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=12),
        st.integers(0, 12),
    )
    def test_model(self, batches: list[list[int]], kept: int) -> None:
        """
        Whatever the order of timestamps, and whatever has been deleted, the
        first record that is not older is found, and the first of the newest.
        """
        kept = min(kept, len(batches))
        events = self.partition()
        start = events.nextOffset
        self.fill(events, *map(tuple, batches))
        self.keep(events, kept)
        numbered = list(enumerate((timestampMs for batch in batches for timestampMs in batch), start))
        records = numbered[len(numbered) - sum(map(len, batches[len(batches) - kept :])) :]
        for timestampMs in range(22):
            expected = next((record for record in records if record[1] >= timestampMs), None)
            self.assertEqual(self.log.offsetForTimestamp(events, timestampMs), expected)
        newest = max((timestampMs for _, timestampMs in records), default=None)
        expected = next((record for record in records if record[1] == newest), None)
        self.assertEqual(self.log.maxTimestampOffset(events), expected)
        self.log.deleteTopic("events")
        self.clock.turn()

    def test_longSearch(self) -> None:
        """
        Where keys are of no help not all batches are searched; the answer is
        then an older record, never a newer one.
        """
        self.patch(batchlookup, "_MAX_BATCHES", 3)
        events = self.partition()
        self.fill(events, (100,), *[(1,)] * 5, (50,), (2,), (3,))
        self.keep(events, 8)
        self.assertEqual(self.log.offsetForTimestamp(events, 50), (4, 1))
        self.assertEqual(self.log.maxTimestampOffset(events), (6, 50))
