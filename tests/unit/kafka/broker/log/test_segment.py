"""Tests for L{admission.kafka.broker.log.segment}."""

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.batchlookup import INDEX_INTERVAL_BYTES
from admission.kafka.broker.log.segment import Segment, segmentName
from tests.kit.logfixture import makeBatch


class SegmentTests(SynchronousTestCase):
    """L{Segment} knows what is in its file."""

    def setUp(self) -> None:
        self.segment = Segment("here", 100, 5.0)

    def add(self, *timestampsMs: int, leaderEpoch: int = 0, valueBytes: int = 0) -> int:
        """
        Note a batch.

        @return: its size.
        """
        _, batch = makeBatch(*timestampsMs, valueBytes=valueBytes)
        self.segment.add(self.segment.nextOffset, batch, leaderEpoch)
        return batch.sizeBytes

    def test_paths(self) -> None:
        """A segment and its checkpoint are named by its first offset, as Kafka names them."""
        self.assertEqual(segmentName(100), "00000000000000000100.log")
        self.assertEqual(self.segment.path, "here/00000000000000000100.log")
        self.assertEqual(self.segment.checkpointPath, "here/00000000000000000100.index")

    def test_add(self) -> None:
        """Each batch adds its size and its records; the largest timestamp counts, wherever it came."""
        first = self.add(5, 90, 7)
        second = self.add(6)
        segment = self.segment
        self.assertEqual((segment.nextOffset, segment.sizeBytes, segment.maxTimestampMs), (104, first + second, 90))
        self.assertEqual((segment.lastPosition, segment.lastCrc), (first, makeBatch(6)[1].crc))

    @given(st.lists(st.tuples(st.integers(0, INDEX_INTERVAL_BYTES), st.integers(-1, 9)), max_size=20))
    def test_index(self, batches: list[tuple[int, int]]) -> None:
        """
        The index has the first batch and then the first one of each interval, each with the
        largest timestamp up to it.
        """
        self.segment = Segment("here", 100, 5.0)
        entries: list[tuple[int, int, int]] = []
        newestMs = -1
        for valueBytes, timestampMs in batches:
            newestMs = max(newestMs, timestampMs)
            position = self.segment.sizeBytes
            if not entries or position - entries[-1][1] >= INDEX_INTERVAL_BYTES:
                entries.append((self.segment.nextOffset, position, newestMs))
            self.add(timestampMs, valueBytes=valueBytes)
        index = self.segment.index
        assert index is not None
        self.assertEqual(list(zip(index.offsets, index.positions, index.timestampsMs, strict=True)), entries)

    def test_checkpoint(self) -> None:
        """A checkpoint is a copy, and another segment can be made what it says."""
        for timestampMs in (7, 9, 8):
            self.add(timestampMs, leaderEpoch=timestampMs, valueBytes=INDEX_INTERVAL_BYTES)
        checkpoint = self.segment.checkpoint({1: b"state"})
        self.assertEqual(checkpoint.producers, {1: b"state"})
        other = Segment("here", 100, 6.0)
        other.restore(checkpoint)
        for name in ("sizeBytes", "nextOffset", "maxTimestampMs", "lastPosition", "lastCrc", "epochs", "index"):
            self.assertEqual(repr(getattr(other, name)), repr(getattr(self.segment, name)), name)
        self.assertEqual(other.checkpointBytes, other.sizeBytes)
        self.add(10, leaderEpoch=10, valueBytes=INDEX_INTERVAL_BYTES)
        self.assertEqual((other.nextOffset, len(other.epochs), len(checkpoint.index.offsets)), (103, 3, 3))

    def test_forgetIndex(self) -> None:
        """What is in the checkpoint can be dropped, and restored."""
        self.add(1)
        checkpoint = self.segment.checkpoint({})
        self.segment.forgetIndex()
        self.assertIsNone(self.segment.index)
        self.segment.restore(checkpoint)
        self.assertEqual((self.segment.epochs, self.segment.nextOffset), ([(0, 100)], 101))

    def test_small(self) -> None:
        """There may be very many segments, so none has a dictionary."""
        self.assertFalse(hasattr(self.segment, "__dict__"))
