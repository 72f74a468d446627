# -*- test-case-name: tests.offline.simulate.test_openloop -*-
"""
Sorted rows and their groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field

Batches = Iterable[pa.RecordBatch]
"""The input and output of a replay."""

Group = tuple[Any, ...]
"""The values that all rows of a group share."""


class OutOfOrder(ValueError):
    """
    Rows did not come in the order that a replay needs.
    """


@define(eq=False)
class Ordered:
    """
    Finds the groups in sorted batches, and refuses unsorted ones.

    @ivar groupBy: the columns whose values identify a group.
    @ivar orderBy: integer columns by which the rows of a group ascend.
    """

    groupBy: Sequence[str]
    orderBy: Sequence[str]
    _last: Group | None = field(default=None, init=False)
    _lastOrder: tuple[int, ...] = field(default=(), init=False)
    _finished: set[int] = field(factory=set, init=False)

    def groups(self, batch: pa.RecordBatch) -> Iterator[tuple[Group, bool, int, int]]:
        """
        The groups in one batch.

        @return: the group, whether it begins here, and its first row and the one after its last in this batch.
        @raise OutOfOrder: if a row is not in order.
        """
        if not batch.num_rows:
            return
        starts = self._starts(batch)
        self._check(batch, starts)
        columns = [batch.column(name) for name in self.groupBy]
        bounds = [*np.flatnonzero(starts).tolist(), batch.num_rows]
        for start, stop in pairwise(bounds):
            group = tuple(column[start].as_py() for column in columns)
            isNew = group != self._last
            if isNew:
                if self._last is not None:
                    self._finished.add(hash(self._last))
                if hash(group) in self._finished:
                    raise OutOfOrder(f"{self._named(group)}: the rows are in two places; {self._remedy()}")
                self._last = group
            elif self._orderAt(batch, start) <= self._lastOrder:
                self._refuse(batch, group, start, self._lastOrder)
            self._lastOrder = self._orderAt(batch, stop - 1)
            yield group, isNew, start, stop

    def _starts(self, batch: pa.RecordBatch) -> Any:
        starts = np.zeros(batch.num_rows, bool)
        starts[0] = True
        for name in self.groupBy:
            codes = codesOf(batch.column(name))[0]
            starts[1:] |= codes[1:] != codes[:-1]
        return starts

    def _check(self, batch: pa.RecordBatch, starts: Any) -> None:
        # From the last column to the first: a column decides only where the ones before it are equal.
        isAscending = np.zeros(batch.num_rows - 1, bool)
        for name in reversed(self.orderBy):
            values = numbersOf(batch.column(name))
            isAscending = (values[1:] > values[:-1]) | ((values[1:] == values[:-1]) & isAscending)
        wrong = np.flatnonzero(~(isAscending | starts[1:]))
        if len(wrong):
            row = int(wrong[0]) + 1
            group = tuple(batch.column(name)[row].as_py() for name in self.groupBy)
            self._refuse(batch, group, row, self._orderAt(batch, row - 1))

    def _refuse(self, batch: pa.RecordBatch, group: Group, row: int, before: tuple[int, ...]) -> None:
        order = self._orderAt(batch, row)
        what = "comes twice" if order == before else f"comes after {self._ordered(before)}"
        raise OutOfOrder(f"{self._named(group)}: the row with {self._ordered(order)} {what}; {self._remedy()}")

    def _orderAt(self, batch: pa.RecordBatch, row: int) -> tuple[int, ...]:
        return tuple(batch.column(name)[row].as_py() for name in self.orderBy)

    def _named(self, group: Group) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in zip(self.groupBy, group, strict=True))

    def _ordered(self, order: tuple[int, ...]) -> str:
        return ", ".join(f"{name} {value}" for name, value in zip(self.orderBy, order, strict=True))

    def _remedy(self) -> str:
        return f"sort by {', '.join((*self.groupBy, *self.orderBy))}"


def codesOf(column: pa.Array) -> tuple[Any, list[Any]]:
    """
    The values of a column as indexes into a list of its distinct values; -1 for null.
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def numbersOf(column: pa.Array, missing: int = 0) -> Any:
    """
    A column of integers or flags as a numpy array.

    @param missing: the value for null.
    """
    if pa.types.is_boolean(column.type):
        return column.fill_null(bool(missing)).to_numpy(zero_copy_only=False)
    return column.fill_null(missing).to_numpy(zero_copy_only=False)


def textsOf(column: pa.Array) -> list[Any]:
    """
    The values of a column, of which equal ones are one object.
    """
    codes, values = codesOf(column)
    return [*map([*values, None].__getitem__, codes.tolist())]


def distinctRows(columns: Sequence[pa.Array]) -> tuple[list[Group], Any]:
    """
    The distinct rows of some columns, and for each row the index of its distinct row.
    """
    codes, values = zip(*map(codesOf, columns), strict=True)
    combined, spread = codes[0].astype(np.int64) + 1, len(values[0]) + 1
    for code, known in zip(codes[1:], values[1:], strict=True):
        if spread * (len(known) + 1) >= 2**62:
            combined = np.unique(combined, return_inverse=True)[1]
            spread = int(combined.max(initial=0)) + 1
        combined = combined * (len(known) + 1) + code + 1
        spread *= len(known) + 1
    _, firsts, rows = np.unique(combined, return_index=True, return_inverse=True)
    found = zip(*(code[firsts].tolist() for code in codes), strict=True)
    return [tuple(map(_valueOf, values, row)) for row in found], rows


def listsOf(column: pa.Array) -> list[tuple[int, ...]]:
    """
    A column of integer lists as Python lists.
    """
    values = column.flatten().to_pylist()
    if not values:
        return [()] * len(column)
    counts = numbersOf(column.value_lengths())
    stops = np.cumsum(counts).tolist()
    return [tuple(values[stop - count : stop]) for stop, count in zip(stops, counts.tolist(), strict=True)]


def _valueOf(values: Sequence[Any], code: int) -> Any:
    return None if code < 0 else values[code]
