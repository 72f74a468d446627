"""Tests for L{admission.kafka.broker.api.timelookup}."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from admission.interfaces import PARKED
from admission.kafka.wire.batches import readHeader
from tests.kit.brokerfixture import BrokerTestCase
from tests.kit.hostilebatches import batch, gzipped, hostileBatches, record
from tests.kit.logfixture import LogTestCase

T = 1_000_000
_APPEND_TIME = 8
_GZIP = 1


def batchOfTimes(*timesMs: int, attributes: int = 0, maxMs: int | None = None) -> bytearray:
    """A batch of one record for each time."""
    payload = b"".join(record(number, timeMs - timesMs[0]) for number, timeMs in enumerate(timesMs))
    packed = gzipped(payload) if attributes & _GZIP else payload
    largestMs = max(timesMs) if maxMs is None else maxMs
    header = {"count": len(timesMs), "attributes": attributes, "baseMs": timesMs[0], "maxMs": largestMs}
    return bytearray(batch(packed, 0, **header))


class LookupTests(LogTestCase):
    """What is found is a record, whatever it is stored in."""

    # A segment for every small batch or two.
    limits = {**LogTestCase.limits, "segmentBytes": 160}

    def append(self, *timesMs: int, **header: int) -> None:  # type: ignore[override]
        """Append a batch to the one partition, and commit it."""
        stored = batchOfTimes(*timesMs, **header)
        self.log.append(self.partition(), stored, readHeader(stored))
        self.clock.turn()

    def assertFound(self, timestampMs: int, *expected: int) -> None:
        """That record is the first which is not older."""
        self.assertEqual(self.offsetForTimestamp(self.partition(), timestampMs), expected or None)

    def test_anyBatch(self) -> None:
        """In a compressed batch, and in a large one, it is the first record of the time, with its own."""
        times = [T, T + 3000, T + 1000]
        self.append(*times)
        self.append(*[each + 10_000 for each in times], attributes=_GZIP)
        self.append(*range(T + 20_000, T + 30_000, 10))
        for first, at in ((0, T), (3, T + 10_000)):
            self.assertFound(at, first, at)
            for asked in (1, 1001, 3000):
                self.assertFound(at + asked, first + 1, at + 3000)
        for asked, number in ((1, 1), (5000, 500), (9985, 999)):
            self.assertFound(T + 20_000 + asked, 6 + number, T + 20_000 + number * 10)
        self.assertFound(T + 30_000)
        self.assertEqual(self.maxTimestampOffset(self.partition()), (1005, T + 29_990))

    def test_appendTime(self) -> None:
        """Records that have the time of their arrival all have it."""
        self.append(T, T + 1, attributes=_APPEND_TIME, maxMs=T + 50)
        self.append(T, T + 1, attributes=_APPEND_TIME | _GZIP, maxMs=T + 60)
        self.assertFound(T + 2, 0, T + 50)
        self.assertFound(T + 51, 2, T + 60)
        self.assertEqual(self.maxTimestampOffset(self.partition()), (2, T + 60))

    def test_noTime(self) -> None:
        """Records without a time are older than any, and the first of them is the newest if there are no others."""
        self.append(-1, -1, attributes=_GZIP)
        self.append(-1)
        self.assertFound(0)
        self.assertEqual(self.maxTimestampOffset(self.partition()), (0, -1))
        self.append(T)
        self.assertFound(0, 3, T)
        self.assertIsNone(self.maxTimestampOffset(self.partition("empty")))

    def test_deleted(self) -> None:
        """Records before the start of the partition are not found, also in the midst of a batch."""
        self.append(T, T + 3000, T + 1000, attributes=_GZIP)
        events = self.partition()
        self.log.deleteRecords(events, 2)
        self.assertFound(T, 2, T + 1000)
        self.assertFound(T + 1001)
        self.assertEqual(self.maxTimestampOffset(events), (2, T + 3000))
        self.append(T + 2000)
        self.assertFound(T + 1001, 3, T + 2000)
        self.log.deleteRecords(events, 4)
        self.assertIsNone(self.maxTimestampOffset(events))

    def test_contradiction(self) -> None:
        """Where the records contradict their batch, the batch is all there is to go by, or the next one."""
        for number, (payload, count) in enumerate([(b"garbage", 1), (record(1000, 1), 1), (record(0, 10), 1)]):
            self.partition(f"bad{number}")
            stored = bytearray(batch(payload, T, count=count, maxMs=T + 5))
            self.log.append(self.partition(f"bad{number}"), stored, readHeader(stored))
            self.clock.turn()
            self.assertEqual(self.offsetForTimestamp(self.partition(f"bad{number}"), T + 1), (0, T + 5))
        self.append(T, maxMs=T + 5)
        self.append(T + 1)
        self.assertFound(T + 1, 1, T + 1)

    def test_hostileLog(self) -> None:
        """A log with batches that are refused by now opens, serves them, and answers when it is asked for times."""
        batches = hostileBatches(T)
        for number, each in enumerate(batches.values()):
            stored = bytearray(each.batch)
            header = readHeader(stored)
            if header.count <= 3 and header.producerId < 0:
                self.log.append(self.partition(f"topic{number}"), stored, header)
        self.clock.turn()
        self.reopenLog()
        self.assertGreater(len(self.log.topics), 30)
        for number, (name, each) in enumerate(batches.items()):
            if f"topic{number}" not in self.log.topics:
                continue
            partition = self.partition(f"topic{number}")
            (content,) = self.read(partition, 0)
            self.assertEqual(content[16:], each.batch[16:], name)
            for timestampMs in (0, T, T + 2):
                found = self.offsetForTimestamp(partition, timestampMs)
                if found is not None:
                    self.assertIn(found.offset, range(partition.highWatermark), name)
            self.maxTimestampOffset(partition)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.lists(st.integers(-1, 20), min_size=1, max_size=4), st.booleans()), max_size=8),
        st.booleans(),
    )
    def test_model(self, batches: list[tuple[list[int], bool]], isReopened: bool) -> None:
        """
        Whatever the order of times, and however they are spread over batches of both kinds and over segments; also
        after a restart.  Of the newest records it is the first.
        """
        for timesMs, isCompressed in batches:
            self.append(*timesMs, attributes=_GZIP if isCompressed else 0)
        if isReopened:
            self.reopenLog()
        events = self.partition()
        records = list(enumerate(timeMs for timesMs, _ in batches for timeMs in timesMs))
        newest = max(records, key=lambda each: (each[1], -each[0]), default=None)
        self.assertEqual(self.maxTimestampOffset(events), newest)
        for start in (0, len(records) // 2):
            self.log.deleteRecords(events, start)
            for wantedMs in range(22):
                expected = next((each for each in records[start:] if each[1] >= wantedMs), None)
                self.assertEqual(self.offsetForTimestamp(events, wantedMs), expected)
        self.log.deleteTopic("events")
        self.clock.turn()


class ListOffsetsTests(BrokerTestCase):
    """ListOffsets looks into batches in slices."""

    def test_slices(self) -> None:
        """While it is at a large batch others are served, and the memory for that is charged."""
        topic = self.topic("events")
        client = self.connect()
        payload = b"".join(record(number, number) for number in range(20_000))
        nowMs = int(self.wallSeconds * 1000)
        sent = batch(gzipped(payload), nowMs - 30_000, count=20_000, attributes=_GZIP, maxMs=nowMs - 10_001)
        self.assertEqual(client.produce("events", sent).error_code, 0)
        self.patch(self.broker.timeSlices, "_creditSeconds", -1e9)
        wanted = {"partition_index": 0, "timestamp": nowMs - 10_001}
        client.deliver("ListOffsets", 7, topics=[{"name": topic.name, "partitions": [wanted]}])
        self.assertEqual((client.waiting(), self.gate.turns.runningRequests), (0, 0))
        self.clock.advance(0)
        (found,) = client.receive().topics[0].partitions
        self.assertEqual((found.error_code, found.offset), (0, 19_999))
        self.assertEqual(self.pool.usedBytesByPurpose.get(PARKED, 0), 0)
