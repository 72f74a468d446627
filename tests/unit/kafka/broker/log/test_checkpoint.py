"""Tests for L{admission.kafka.broker.log.checkpoint}."""

import os
from array import array

from attrs import evolve
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.batchlookup import SparseIndex
from admission.kafka.broker.log.checkpoint import Checkpoint, checkpointName, holds, readCheckpoint
from admission.kafka.storage.disk import LocalDisk
from admission.kafka.wire.batches import readHeader
from tests.kit.logfixture import makeBatch

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
COLUMNS = st.integers(0, 4).flatmap(
    lambda count: st.tuples(*[st.lists(INT64, min_size=count, max_size=count) for _ in range(3)])
)
CHECKPOINTS = st.builds(
    Checkpoint,
    INT64,
    INT64,
    INT64,
    INT64,
    UINT32,
    COLUMNS.map(lambda columns: SparseIndex(*[array("q", column) for column in columns])),
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), INT64), max_size=3),
    st.none() | st.dictionaries(INT64, st.binary(max_size=40), max_size=4),
)

SMALL = Checkpoint(
    200,
    7,
    1234,
    100,
    99,
    SparseIndex(array("q", [0, 4]), array("q", [0, 100]), array("q", [5, 6])),
    [(0, 0), (2, 4)],
    {5: b"abc"},
)


def plain(checkpoint: Checkpoint) -> object:
    """A checkpoint with its index as lists, which can be compared."""
    index = checkpoint.index
    columns = [list(column) for column in (index.offsets, index.positions, index.timestampsMs)]
    return evolve(checkpoint, index=None), columns  # type: ignore[arg-type]


class CheckpointTestCase(SynchronousTestCase):
    """A test with a place for a checkpoint."""

    def setUp(self) -> None:
        self.disk = LocalDisk()
        self.directory = self.mktemp()
        os.mkdir(self.directory)
        self.path = os.path.join(self.directory, checkpointName(17))

    def put(self, contents: bytes | bytearray) -> None:
        """Have something in the place of the checkpoint."""
        with open(self.path, "wb") as file:
            file.write(contents)


class FileTests(CheckpointTestCase):
    """L{Checkpoint} in a file."""

    def test_name(self) -> None:
        """The file is named like Kafka's index of the segment."""
        self.assertEqual(checkpointName(17), "00000000000000000017.index")

    @given(CHECKPOINTS)
    def test_roundTrip(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is read as it was written, and replaces the one before."""
        checkpoint.write(self.disk, self.path)
        read = readCheckpoint(self.disk, self.path)
        assert read is not None
        self.assertEqual(plain(read), plain(checkpoint))
        self.assertEqual(os.listdir(self.directory), [checkpointName(17)])

    def test_none(self) -> None:
        """No file is none, nor one with a part missing, with more behind it, or with the zeros of a loss of power."""
        encoded = SMALL.encode()
        self.assertIsNone(readCheckpoint(self.disk, self.path))
        for contents in (*(encoded[:length] for length in range(len(encoded))), encoded + b"\0", bytes(len(encoded))):
            self.put(contents)
            self.assertIsNone(readCheckpoint(self.disk, self.path), contents)

    def test_sparse(self) -> None:
        """A file that is larger than any is not read: it may have terabytes that nobody has written."""
        self.put(SMALL.encode())
        os.truncate(self.path, 1 << 42)
        self.assertIsNone(readCheckpoint(self.disk, self.path))

    def test_flipped(self) -> None:
        """One with a single wrong bit is none."""
        encoded = SMALL.encode()
        for bit in range(8 * len(encoded)):
            damaged = bytearray(encoded)
            damaged[bit // 8] ^= 1 << bit % 8
            self.put(damaged)
            self.assertIsNone(readCheckpoint(self.disk, self.path), bit)

    def test_leftover(self) -> None:
        """What an interrupted attempt has left, however long, does no harm."""
        with open(self.path + ".tmp", "wb") as file:
            file.write(bytes(10_000))
        SMALL.write(self.disk, self.path)
        self.assertIsNotNone(readCheckpoint(self.disk, self.path))


class HoldsTests(CheckpointTestCase):
    """L{holds} says whether a checkpoint is that of a segment."""

    def setUp(self) -> None:
        super().setUp()
        self.batches = [bytes(makeBatch(*[number] * (number + 1))[0]) for number in range(3)]
        self.file = self.disk.open(os.path.join(self.directory, "segment"), create=True)
        self.addCleanup(self.file.close)
        self.file.write(self.batches, 0)
        lastPosition = len(self.batches[0])
        self.checkpoint = evolve(
            SMALL,
            position=lastPosition + len(self.batches[1]),
            lastPosition=lastPosition,
            lastCrc=readHeader(self.batches[1]).crc,
        )

    def test_same(self) -> None:
        """It is while the segment has that batch in that place, whatever follows."""
        self.assertTrue(holds(self.checkpoint, self.file, self.file.size()))
        self.assertTrue(holds(self.checkpoint, self.file, self.checkpoint.position))

    def test_shorter(self) -> None:
        """It is not if the segment ends before."""
        for sizeBytes in range(self.checkpoint.position):
            self.file.truncate(sizeBytes)
            self.assertFalse(holds(self.checkpoint, self.file, sizeBytes))

    def test_other(self) -> None:
        """It is not if another batch is there: of another size, or with other contents."""
        for other in (makeBatch(1), makeBatch(1, 2), makeBatch(1, 1, valueBytes=1)):
            self.file.write([self.batches[0], other[0], self.batches[2]], 0)
            self.assertFalse(holds(self.checkpoint, self.file, self.file.size()))

    def test_otherPlace(self) -> None:
        """It is not if the batch is somewhere else."""
        for delta in (-1, 1):
            moved = evolve(self.checkpoint, lastPosition=self.checkpoint.lastPosition + delta)
            self.assertFalse(holds(moved, self.file, self.file.size()))

    def test_beginning(self) -> None:
        """A checkpoint of nothing is that of any segment."""
        self.assertTrue(holds(evolve(self.checkpoint, position=0), self.file, self.file.size()))
        self.assertTrue(holds(evolve(self.checkpoint, position=0), self.file, 0))
