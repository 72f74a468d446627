# -*- test-case-name: tests.offline.test_parquetexporter -*-
"""
Recorded segments as Arrow tables.  Not for a server's process: pyarrow alone
takes more memory than a small server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from .recordlayout import NO_TEXT_CODE, Layout
from .schema import OVERFLOW, Column, ColumnType, Table
from .segments import Segment

_MAX_SECONDS = 9e12

_TEXT = pa.dictionary(pa.int32(), pa.string())

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    ColumnType.INTEGER: pa.int64(),
    ColumnType.IDENTITY: pa.int64(),
    ColumnType.SECONDS: pa.int64(),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
    ColumnType.NUMBER: pa.float64(),
    ColumnType.FLAG: pa.bool_(),
    ColumnType.TEXT: _TEXT,
    ColumnType.FOREIGN_TEXT: _TEXT,
    ColumnType.TEXTS: pa.list_(pa.string()),
    ColumnType.INTEGERS: pa.list_(pa.int64()),
    ColumnType.DURATIONS: pa.list_(pa.int64()),
}
"""The Arrow and Parquet types of columns."""


def arrowTable(segment: Segment, table: Table) -> pa.Table | None:
    """
    The records of one table in a segment, in order.

    @return: L{None} if there are none.
    """
    slots = np.frombuffer(segment.slots, np.uint8).reshape(-1, segment.header.slotBytes)
    found: list[pa.Table] = []
    places: list[Any] = []
    for layout in segment.header.layouts:
        chosen = np.flatnonzero(slots[:, -1] == layout.number) if layout.name == table.name else ()
        if len(chosen):
            records = slots[chosen].view(_dtype(layout, segment.header.slotBytes)).reshape(-1)
            columns = _Columns(segment, records, len(chosen))
            found.append(pa.table([columns.array(column) for column in table.columns], schema=arrowSchema(table)))
            places.append(chosen)
    if len(found) <= 1:
        return found[0] if found else None
    # Of several drivers of one process.
    return pa.concat_tables(found).unify_dictionaries().take(np.argsort(np.concatenate(places)))


def arrowSchema(table: Table) -> pa.Schema:
    """
    The columns of a table as Parquet files have them.
    """
    return pa.schema([(column.name, ARROW_TYPES[column.type]) for column in table.columns])


@frozen
class _Columns:
    segment: Segment
    records: Any
    count: int

    def array(self, column: Column) -> pa.Array:
        """
        One column; nulls if the segment lacks it.
        """
        constants = self.segment.header.constants()
        if column.type is ColumnType.TIMESTAMP:
            moments = self._microseconds(self.records["mono_us"])
            return pc.add(moments, self.segment.header.wallOffsetMicroseconds()).cast(pa.timestamp("us", "UTC"))
        if column.name in self.records.dtype.names:
            values = self.records[column.name]
            return self._lists(column, values) if column.type.isList else self._values(column.type, values)
        if constants.get(column.name) is not None:
            value = constants[column.name]
            plain = pa.string() if column.type.isText else ARROW_TYPES[column.type]
            repeated = pa.repeat(pa.scalar(value, plain), self.count)
            return repeated.dictionary_encode() if column.type.isText else repeated
        return pa.nulls(self.count, ARROW_TYPES[column.type])

    def _values(self, type: ColumnType, values: Any) -> pa.Array:
        if type.isText:
            return self._texts(values)
        if type is ColumnType.SECONDS:
            return self._microseconds(values)
        if type is ColumnType.NUMBER:
            return pa.array(values, mask=np.isnan(values))
        if type is ColumnType.IDENTITY:
            return pa.array(values.astype(np.int64), mask=values == -1)
        if type is ColumnType.FLAG:
            return pa.array(values > 0, mask=values < 0)
        return pa.array(values.astype(np.int64))

    def _texts(self, codes: Any) -> pa.Array:
        known = sorted(self.segment.texts)
        # Codes without a text take the last place, which says so.
        places = np.full(1 << 16, len(known), np.int32)
        places[known] = np.arange(len(known), dtype=np.int32)
        texts = pa.array([*(self.segment.texts[code] for code in known), OVERFLOW], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(places[codes], mask=codes == NO_TEXT_CODE), texts)

    def _lists(self, column: Column, values: Any) -> pa.Array:
        counts = np.minimum(self.records[_countName(column.name)], values.shape[1])
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        flat = values[np.arange(values.shape[1]) < counts[:, None]]
        items = self._microseconds(flat) if column.type is ColumnType.DURATIONS else pa.array(flat.astype(np.int64))
        return pa.ListArray.from_arrays(pa.array(offsets), items)

    def _microseconds(self, seconds: Any) -> pa.Array:
        seconds = seconds.astype(np.float64, copy=False)
        isKnown = np.abs(seconds) < _MAX_SECONDS
        return pa.array(np.rint(np.where(isKnown, seconds, 0.0) * 1e6).astype(np.int64), mask=~isKnown)


def _countName(name: str) -> str:
    return f"{name} count"


def _dtype(layout: Layout, slotBytes: int) -> np.dtype[Any]:
    names: list[str] = []
    formats: list[Any] = []
    offsets: list[int] = []
    for each in layout.fields:
        offset = each.offset
        if each.type.isList:
            names.append(_countName(each.name))
            formats.append("u1")
            offsets.append(offset)
            offset += 1
        names.append(each.name)
        formats.append(("<" + each.code, (each.capacity,)) if each.type.isList else "<" + each.code)
        offsets.append(offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": slotBytes})
