"""
Tests for L{admission.offline.replay.sortedrows}.
"""

from __future__ import annotations

from random import Random
from unittest import mock

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.replay import sortedrows
from admission.offline.replay.sortedrows import SortedRows

Row = tuple[int, int, str | None]


def tableOf(rows: list[Row]) -> pa.Table:
    """
    Rows as they come, each table with its own dictionary.
    """
    numbers, seconds, texts = zip(*rows, strict=True) if rows else ((), (), ())
    text = pa.array(texts, pa.string()).dictionary_encode()
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": pa.array(seconds, pa.int64()), "text": text})


def readFrom(rows: SortedRows) -> list[Row]:
    """
    All rows, as they are read.
    """
    found = []
    for batch in rows.batches():
        found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


_ROWS = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(-(2**62), 2**62), st.sampled_from(["x", "y", None])), max_size=40
)


class SortedRowsTests(SynchronousTestCase):
    """
    Rows come out sorted, in memory and in files.
    """

    def held(self, maxInMemory: int, blockRows: int = 3) -> SortedRows:
        """
        Sorted by two columns, with files of small blocks.
        """
        patch = mock.patch.object(sortedrows, "BLOCK_ROWS", blockRows)
        patch.start()
        self.addCleanup(patch.stop)
        rows = SortedRows(["a", "b"], maxInMemory)
        self.addCleanup(rows.close)
        return rows

    @given(st.lists(_ROWS, max_size=8), st.integers(0, 60), st.integers(1, 7))
    def test_sorted(self, tables: list[list[Row]], maxInMemory: int, blockRows: int) -> None:
        """
        Whatever is held and however large the blocks of files are, all rows
        come, in order, each with its text; and as often as wanted.
        """
        rows = self.held(maxInMemory, blockRows)
        for each in tables:
            rows.add(tableOf(each))
        expected = sorted((row for each in tables for row in each), key=lambda row: (row[0], row[1], repr(row[2])))
        for _ in range(2):
            found = readFrom(rows)
            self.assertEqual([row[:2] for row in found], [row[:2] for row in expected])
            self.assertEqual(sorted(found, key=repr), sorted(expected, key=repr))
        rows.close()

    def test_addedLater(self) -> None:
        """
        More may be added after some were read.
        """
        rows = self.held(100)
        rows.add(tableOf([(2, 0, "x")]))
        self.assertEqual(readFrom(rows), [(2, 0, "x")])
        rows.add(tableOf([(1, 0, "y")]))
        self.assertEqual(readFrom(rows), [(1, 0, "y"), (2, 0, "x")])

    def test_blocks(self) -> None:
        """
        No more than a block of each file is read before it is needed.
        """
        rows = self.held(100, 10)
        numbers = list(range(1000))
        Random(1).shuffle(numbers)
        for start in range(0, 1000, 50):
            rows.add(tableOf([(number, 0, "x") for number in numbers[start : start + 50]]))
        sizes = [batch.num_rows for batch in rows.batches()]
        self.assertEqual(sum(sizes), 1000)
        # Seven files of 150 rows, of which no batch has more than a block each.
        self.assertLessEqual(max(sizes), 70)
