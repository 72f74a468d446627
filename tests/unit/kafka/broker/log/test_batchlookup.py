"""Tests for L{admission.kafka.broker.log.batchlookup}."""

import os
from collections.abc import Sequence

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.batchlookup import (
    BATCHES_AT_ONCE,
    INDEX_INTERVAL_BYTES,
    BatchPlace,
    Damaged,
    SparseIndex,
    findOffset,
    findTimestamp,
    headers,
    readBatches,
    wholeBatches,
)
from admission.kafka.broker.log.interface import OffsetOutOfRange
from admission.kafka.broker.log.segment import Segment
from admission.kafka.storage.disk import LocalDisk, LocalFile
from admission.kafka.wire.batches import HEADER_BYTES, assignOffset, decodeRecords, readHeader
from tests.kit.logfixture import LogTestCase, makeBatch

_GZIP = 1
_LOG_APPEND_TIME = 8

SMALLEST_BYTES = len(makeBatch(0)[0])
EDGES = (0, HEADER_BYTES, INDEX_INTERVAL_BYTES, INDEX_INTERVAL_BYTES + HEADER_BYTES, 2 * INDEX_INTERVAL_BYTES)
SIZES = st.one_of(
    st.integers(SMALLEST_BYTES, 400),
    st.integers(4000, 6000),
    # A batch, or a batch and a small one before it, that ends near an entry of the index or the end of a window.
    st.builds(
        lambda edge, delta: max(edge + delta, SMALLEST_BYTES),
        st.sampled_from(EDGES),
        st.one_of(st.integers(-200, 80), st.sampled_from([-62, -61, -60, -12, -11, -1, 0, 1, 11, 12, 13, 60, 61, 62])),
    ),
)
BATCHES = st.lists(st.tuples(SIZES, st.integers(1, 3)), min_size=1, max_size=14)


class MemoryFile(LocalFile):
    """A file that is only read."""

    def __init__(self, contents: bytes) -> None:
        super().__init__(-1)
        self.contents = contents

    def read(self, position: int, sizeBytes: int) -> bytes:
        """As a file does."""
        assert sizeBytes >= 0
        return self.contents[position : position + sizeBytes]


def sizedBatch(baseOffset: int, sizeBytes: int, *timestampsMs: int) -> bytes:
    """A batch of a size, if that is large enough for its records."""
    buffer, _ = makeBatch(*timestampsMs)
    valueBytes = max(sizeBytes - len(buffer), 0) // len(timestampsMs)
    while valueBytes:
        buffer, _ = makeBatch(*timestampsMs, valueBytes=valueBytes)
        if len(buffer) <= sizeBytes:
            break
        valueBytes -= 1
    assignOffset(buffer, baseOffset, 0)
    return bytes(buffer)


class Built:
    """
    A segment in memory.

    @ivar batches: the place and the bytes of each batch.
    """

    def __init__(self, batches: Sequence[tuple[int, Sequence[int]]], rest: bytes = b"") -> None:
        """
        @param batches: the size, and the timestamps of each.
        @param rest: what stands behind the end of the segment, not committed.
        """
        segment = Segment("here", 0, 0.0)
        self.batches: list[tuple[BatchPlace, bytes]] = []
        for sizeBytes, timestampsMs in batches:
            encoded = sizedBatch(segment.nextOffset, sizeBytes, *timestampsMs)
            batch = readHeader(encoded)
            self.batches.append((BatchPlace(segment.sizeBytes, batch), encoded))
            segment.add(batch.baseOffset, batch, 0)
        self.segment = segment
        assert segment.index is not None
        self.index = segment.index
        self.sizeBytes = segment.sizeBytes
        self.file = MemoryFile(b"".join(encoded for _, encoded in self.batches) + rest)

    def read(self, offset: int, maxBytes: int, firstWhole: bool = True) -> bytes | None:
        """Read from it."""
        return readBatches(self.file, self.index, self.sizeBytes, offset, maxBytes, firstWhole)

    def expected(self, offset: int, maxBytes: int, firstWhole: bool) -> bytes | None:
        """What should be read."""
        encoded = [encoded for place, encoded in self.batches if place.batch.lastOffset >= offset]
        if not encoded:
            return None
        found = b""
        for batch in encoded:
            if len(found) + len(batch) > maxBytes and (found or not firstWhole):
                break
            found += batch
        return found


class ReadBatchesTests(SynchronousTestCase):
    """L{readBatches} and L{findOffset} against a list."""

    @settings(deadline=None, max_examples=300)
    @given(BATCHES, st.data())
    def test_any(self, batches: list[tuple[int, int]], data: st.DataObject) -> None:
        """
        Whatever the sizes of batches around the interval of the index, what is read are whole
        batches from the right one on, as many as fit, whatever stands behind the end.
        """
        rest = data.draw(st.sampled_from([b"", b"\xff" * 100, bytes(100_000), sizedBatch(0, 500, 1)[:300]]))
        built = Built([(sizeBytes, [0] * count) for sizeBytes, count in batches], rest)
        ends = [place.end - start.position for start, _ in built.batches for place, _ in built.batches]
        for _ in range(10):
            offset = data.draw(st.integers(0, built.segment.nextOffset))
            edge = data.draw(st.sampled_from([*[end for end in ends if end > 0], 0, 1 << 30]))
            maxBytes = max(edge + data.draw(st.sampled_from([-12, -1, 0, 1, 12, 61])), 0)
            firstWhole = data.draw(st.booleans())
            expected = built.expected(offset, maxBytes, firstWhole)
            self.assertEqual(built.read(offset, maxBytes, firstWhole), expected, (offset, maxBytes))

    def test_edges(self) -> None:
        """
        The same holds for each place around the end of an interval at which a batch can end, first
        or in the middle.
        """
        for delta in range(-70, 70, 3):
            edge = INDEX_INTERVAL_BYTES + delta
            for sizes in ((edge, 90, 90, 40_000, 90), (90, edge - 90, 90, 40_000), (40_000, edge, 90, 90, 40_000)):
                built = Built([(sizeBytes, [0, 0]) for sizeBytes in sizes])
                positions = [place.position for place, _ in built.batches] + [built.sizeBytes]
                for offset in range(2 * len(sizes)):
                    for end in positions:
                        for maxBytes in (end - positions[offset // 2] - 1, end - positions[offset // 2]):
                            if maxBytes >= 0:
                                expected = built.expected(offset, maxBytes, True)
                                self.assertEqual(built.read(offset, maxBytes), expected, (sizes, offset, maxBytes))

    @settings(deadline=None, max_examples=100)
    @given(BATCHES)
    def test_findOffset(self, batches: list[tuple[int, int]]) -> None:
        """Each offset is found in its batch, and the one behind the last is not."""
        built = Built([(sizeBytes, [0] * count) for sizeBytes, count in batches])
        for place, _ in built.batches:
            for offset in range(place.batch.baseOffset, place.batch.lastOffset + 1):
                self.assertEqual(findOffset(built.file, built.index, built.sizeBytes, offset), place)
        end = built.segment.nextOffset
        self.assertIsNone(findOffset(built.file, built.index, built.sizeBytes, end))

    def test_gap(self) -> None:
        """For an offset that no batch has, the first batch behind it is read."""
        first, second = sizedBatch(0, 100, 1), sizedBatch(7, 20_000, 1)
        index = SparseIndex()
        index.add(0, 0, 1)
        file = MemoryFile(first + second)
        for offset in range(1, 8):
            found = readBatches(file, index, len(file.contents), offset, 1 << 20, True)
            self.assertEqual(found, second)

    def test_damaged(self) -> None:
        """Where something else than a batch stands, that is said instead of reading for ever or returning it."""
        built = Built([(100, [0]), (INDEX_INTERVAL_BYTES * 2, [0]), (100, [0]), (100, [0])])
        for number, (place, _) in enumerate(built.batches):
            for length in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x30"):
                contents = bytearray(built.file.contents)
                contents[place.position + 8 : place.position + 12] = length
                file = MemoryFile(bytes(contents))
                error = self.assertRaises(Damaged, readBatches, file, built.index, built.sizeBytes, number, 1, True)
                self.assertEqual(error.position, place.position)


class HeadersTests(SynchronousTestCase):
    """L{headers} and L{wholeBatches} read a segment from one end to the other."""

    @settings(deadline=None, max_examples=100)
    @given(BATCHES, st.integers(0, 100))
    def test_all(self, batches: list[tuple[int, int]], begin: int) -> None:
        """From any batch on they find all."""
        built = Built([(sizeBytes, [0] * count) for sizeBytes, count in batches], b"\xff" * 99)
        places = [place for place, _ in built.batches][begin % len(batches) :]
        first = places[0]
        self.assertEqual(list(headers(built.file, first.position, built.sizeBytes)), places)
        found = wholeBatches(built.file, first.position, len(built.file.contents), first.batch.baseOffset)
        self.assertEqual(list(found), places)

    def test_torn(self) -> None:
        """L{wholeBatches} ends with the last batch that is there wholly."""
        built = Built([(sizeBytes, [0]) for sizeBytes in (100, 70, 300)])
        ends = [place.end for place, _ in built.batches]
        for sizeBytes in range(built.sizeBytes + 1):
            file = MemoryFile(built.file.contents[:sizeBytes])
            count = sum(end <= sizeBytes for end in ends)
            self.assertEqual(len(list(wholeBatches(file, 0, sizeBytes, 0))), count)

    def test_flipped(self) -> None:
        """
        L{wholeBatches} ends before a batch with a wrong bit, except in its leader epoch, which no
        checksum covers.
        """
        built = Built([(sizeBytes, [0]) for sizeBytes in (100, 70, 90)])
        place = built.batches[1][0]
        for bit in range(8 * place.batch.sizeBytes):
            contents = bytearray(built.file.contents)
            contents[place.position + bit // 8] ^= 1 << bit % 8
            found = list(wholeBatches(MemoryFile(bytes(contents)), 0, len(contents), 0))
            self.assertEqual(len(found), 3 if 12 <= bit // 8 < 16 else 1, bit)

    def test_offsets(self) -> None:
        """L{wholeBatches} ends where offsets do not follow one another, as where an older batch has come to light."""
        contents = sizedBatch(5, 100, 0, 0) + sizedBatch(7, 100, 0) + sizedBatch(7, 100, 0) + sizedBatch(8, 100, 0)
        file = MemoryFile(contents)
        self.assertEqual(len(list(wholeBatches(file, 0, len(contents), 5))), 2)
        self.assertEqual(list(wholeBatches(file, 0, len(contents), 4)), [])

    def test_largerThanReads(self) -> None:
        """Batches larger than what is read at once are found, and those that lie across two reads."""
        path = self.mktemp()
        file = LocalDisk().open(path, create=True)
        self.addCleanup(file.close)
        batches = [sizedBatch(number, 3 << 20, 1) for number in range(3)] + [sizedBatch(3, 9 << 20, 1)]
        batches += [sizedBatch(4, 100, 1)]
        file.write(batches, 0)
        places = list(wholeBatches(file, 0, file.size(), 0))
        self.assertEqual([place.batch.baseOffset for place in places], [0, 1, 2, 3, 4])
        self.assertEqual(places[-1].end, os.path.getsize(path))
        file.truncate(file.size() - 101)
        self.assertEqual(len(list(wholeBatches(file, 0, file.size(), 0))), 3)


class FindTimestampTests(SynchronousTestCase):
    """L{findTimestamp} against a list."""

    @settings(deadline=None, max_examples=150)
    @given(st.lists(st.tuples(SIZES, st.lists(st.integers(-1, 20), min_size=1, max_size=3)), min_size=1, max_size=12))
    def test_any(self, batches: list[tuple[int, list[int]]]) -> None:
        """Whatever the order of timestamps, the first batch with one that is not older is found, from any offset."""
        built = Built(batches)
        records = list(enumerate(timestampMs for _, timestampsMs in batches for timestampMs in timestampsMs))
        lasts = [sum(len(each) for _, each in batches[: number + 1]) - 1 for number in range(len(batches))]
        for offset in (0, len(records) // 2):
            for wantedMs in range(22):
                expected = next(
                    (
                        last
                        for last, (_, timestampsMs) in zip(lasts, batches, strict=True)
                        if last >= offset and max(timestampsMs) >= wantedMs
                    ),
                    None,
                )
                place, position = findTimestamp(built.file, built.index, built.sizeBytes, wantedMs, offset, 0)
                self.assertEqual(None if place is None else place.batch.lastOffset, expected)
                self.assertEqual(position == built.sizeBytes, place is None)

    def test_steps(self) -> None:
        """Many headers are looked at in several goes."""
        built = Built([(0, [20]), *[(0, [1])] * (2 * BATCHES_AT_ONCE)])
        place, position = None, 0
        for _ in range(3):
            self.assertLess(position, built.sizeBytes)
            place, position = findTimestamp(built.file, built.index, built.sizeBytes, 20, 1, position)
        self.assertEqual((place, position), (None, built.sizeBytes))


class ReadTests(LogTestCase):
    """Reading by offset through the log."""

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
        """The offsets of all records in some batches."""
        return [record.offset for batch in batches for record in decodeRecords(batch)]

    def test_outOfRange(self) -> None:
        """Other offsets are refused, naming what there is."""
        for offset in (-1, 7, 2**62):
            refused = self.assertRaises(OffsetOutOfRange, self.log.read, self.events, offset, 10_000)
            self.assertIn("from 0 to 6", str(refused))
            self.assertRaises(OffsetOutOfRange, self.log.bytesAvailable, self.events, offset)

    def test_uncommitted(self) -> None:
        """What is not committed cannot be read."""
        available = self.log.bytesAvailable(self.events, 0)
        self.append(self.events)
        self.assertEqual(self.offsets(self.read(self.events, 4, 10_000)), [4, 5])
        self.assertEqual(self.read(self.events, 6, 10_000), [])
        self.assertEqual(self.log.bytesAvailable(self.events, 0), available)
        self.clock.turn()
        self.assertEqual(self.offsets(self.read(self.events, 6, 10_000)), [6])


class TimestampTests(LogTestCase):
    """Finding records by time through the log."""

    def test_nonsense(self) -> None:
        """Records that contradict their batch's header are not believed."""
        for number, damage in enumerate(((61, b"\xff" * 9), (63, b"\x80\x80\x01"), (64, b"\x7f"))):
            events = self.partition(f"events{number}")
            buffer, batch = makeBatch(10, 20)
            buffer[damage[0] : damage[0] + len(damage[1])] = damage[1]
            self.log.append(events, buffer, batch)
            self.clock.turn()
            self.assertEqual(self.offsetForTimestamp(events, 10), (0, 20))
            self.assertIsNone(self.offsetForTimestamp(events, 21))
