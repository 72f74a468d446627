# -*- test-case-name: tests.unit.offline.test_replay_sortedrows -*-
"""
Many rows in the order of some numbers, in little memory.

Spark would sort them, too, but takes each row apart and puts it together again
on the way there and back, which takes several times as long as the sorting.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from .ordered import numbersOf
from .packed import MAX_ROWS_IN_MEMORY

BLOCK_ROWS = 4096
"""How many rows of each file are in memory at a time, while files are merged."""

_BATCH_ROWS = 16_384


class SortedRows:
    """
    Rows that are added in any order and then read sorted, as often as wanted.
    Beyond a number of them they are in temporary files that have no names, and
    go with the process.
    """

    def __init__(self, by: Sequence[str], maxInMemory: int = MAX_ROWS_IN_MEMORY) -> None:
        """
        @param by: columns of whole numbers without nulls.
        @param maxInMemory: how many rows to hold.
        """
        self._by = by
        self._maxInMemory = maxInMemory
        self._held: list[pa.Table] = []
        self._heldRows = 0
        self._files: list[_SortedFile] = []
        self._sorted: pa.Table | None = None

    def add(self, table: pa.Table) -> None:
        """
        Add rows; texts in dictionaries need not be in the same ones.
        """
        self._held.append(table)
        self._heldRows += len(table)
        self._sorted = None
        if self._heldRows > self._maxInMemory:
            self._files.append(_SortedFile(self._inOrder(self._held)))
            self._held, self._heldRows = [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        All rows, sorted.  Nothing may be added meanwhile.
        """
        if self._files:
            yield from self._merged()
        elif self._held:
            if self._sorted is None:
                self._sorted = self._inOrder(self._held)
                self._held = [self._sorted]
            yield from self._sorted.to_batches(_BATCH_ROWS)

    def close(self) -> None:
        """
        Let go of everything.
        """
        for each in self._files:
            each.close()
        self._files, self._held, self._sorted = [], [], None

    def _merged(self) -> Iterator[pa.RecordBatch]:
        cursors = [_Cursor(each, self._by) for each in self._files]
        rest = self._inOrder(self._held) if self._held else None
        if rest is not None and len(rest):
            cursors.append(_Cursor(_Blocks(rest), self._by))
        while cursors:
            # Nothing that is still to come belongs before the least of the blocks' ends.
            bound = min(cursor.last for cursor in cursors)
            parts = [part for cursor in cursors if (part := cursor.takeThrough(bound)).num_rows]
            yield from self._inOrder([pa.Table.from_batches([part]) for part in parts]).to_batches(_BATCH_ROWS)
            cursors = [cursor for cursor in cursors if not cursor.isAtEnd]

    def _inOrder(self, tables: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        keys = [numbersOf(table[name].combine_chunks()) for name in self._by] if len(table) else []
        return table.take(pa.array(np.lexsort(keys[::-1]))).combine_chunks() if keys else table


class _Blocks:
    """
    Sorted rows in blocks.
    """

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches(BLOCK_ROWS)

    def __len__(self) -> int:
        return len(self._batches)

    def block(self, index: int) -> pa.RecordBatch:
        """
        One of them.
        """
        return self._batches[index]


class _SortedFile:
    """
    Sorted rows in the blocks of a file.  They are read and not mapped: what is
    mapped counts as the process's memory as soon as it has been looked at.
    """

    def __init__(self, table: pa.Table) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="admission-replay-")  # noqa: SIM115
        with pa.ipc.new_file(self._file, table.schema) as writer:
            writer.write_table(table, BLOCK_ROWS)
        self._file.flush()
        self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def block(self, index: int) -> pa.RecordBatch:
        """
        One of them.
        """
        return self._reader.get_batch(index)

    def close(self) -> None:
        """
        Remove the file.
        """
        self._file.close()


class _Cursor:
    """
    How far some sorted rows have been taken.

    @ivar last: where the block that is being taken ends.
    @ivar isAtEnd: whether all are taken.
    """

    def __init__(self, blocks: _Blocks | _SortedFile, by: Sequence[str]) -> None:
        self._blocks = blocks
        self._by = by
        self._next = self._start = 0
        self.isAtEnd = False
        self._load()

    def takeThrough(self, bound: tuple[int, ...]) -> pa.RecordBatch:
        """
        The rows of the block that are not after C{bound}.
        """
        start, size = self._start, self._block.num_rows
        stop = bisect_right(range(size), bound, lo=start, key=self._at)
        part = self._block.slice(start, stop - start)
        self._start = stop
        if stop == size:
            self._load()
        return part

    def _load(self) -> None:
        if self._next == len(self._blocks):
            self.isAtEnd = True
            return
        self._block = self._blocks.block(self._next)
        self._next += 1
        self._start = 0
        self._keys: list[Any] = [numbersOf(self._block.column(name)) for name in self._by]
        self.last = self._at(self._block.num_rows - 1)

    def _at(self, row: int) -> tuple[int, ...]:
        return tuple(int(key[row]) for key in self._keys)
