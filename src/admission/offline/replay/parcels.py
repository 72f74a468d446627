# -*- test-case-name: tests.unit.offline.test_replay_lanes -*-
"""
Requests on their way from where they are read to where they are replayed: many
of them in a row, since a row costs Spark the same whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field

from .offers import OFFERS
from .ordered import codesOf, numbersOf
from .trials import Trial

PARCELS = pa.schema([("task", pa.int32()), ("lane", pa.int32()), ("offers", pa.binary())])
"""Rows of one lane for one task, see L{pack}."""

MAX_ROWS_WAITING = 100_000
"""How many rows are gathered, so that parcels are large."""

PLACE = "place"
"""The column of numbers by which rows belong together, besides their lane."""

_OF_THE_TRIAL = ("candidate", "broker_id", "boot_id")
_SHIPPED = [name for name in OFFERS.names if name not in _OF_THE_TRIAL]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def placesOfKeys(batch: pa.RecordBatch) -> Any:
    """
    A number for each row's key, the same everywhere; rows without a key have
    any.

    @param batch: of L{OFFERS}.
    """
    codes, keys = codesOf(batch.column("replay_key"))
    # Should two keys ever have one number, the replay refuses their rows as out of order.
    numbers = [int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), signed=True) for key in keys]
    return np.where(codes < 0, numbersOf(batch.column("seq")), np.array([*numbers, 0], np.int64)[codes])


def tasksOf(lane: int, places: Any, slices: Any, tasks: int) -> Any:
    """
    Which task rows go to: the same for those that belong together, and for all
    others as it comes.

    @param places: a number for each row.
    @param slices: likewise.
    @param tasks: how many there are.
    """
    mixed = places.astype(np.uint64)
    for each in (slices.astype(np.uint64), np.uint64(lane)):
        # Fibonacci hashing: the upper bits of the product depend on all bits.
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN + each
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN
    return ((mixed >> np.uint64(33)) % np.uint64(tasks)).astype(np.int32)


@define(eq=False)
class Packing:
    """
    Gathers rows, and packs those that go to the same task.

    @ivar maxRows: how many to gather.
    """

    maxRows: int = MAX_ROWS_WAITING
    _waiting: dict[int, list[tuple[pa.RecordBatch, Any]]] = field(factory=dict, init=False)
    _rows: int = field(default=0, init=False)

    def add(self, lane: int, batch: pa.RecordBatch, places: Any, tasks: Any) -> Iterator[pa.RecordBatch]:
        """
        Take rows of a lane.

        @param batch: of L{OFFERS}.
        @param places: for each row its place.
        @param tasks: and its task.
        @return: parcels that are complete, of L{PARCELS}.
        """
        rows = batch.select(_SHIPPED).append_column(PLACE, pa.array(places))
        self._waiting.setdefault(lane, []).append((rows, tasks))
        self._rows += batch.num_rows
        if self._rows >= self.maxRows:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """
        The parcels that have not come out yet.
        """
        for lane, parts in self._waiting.items():
            rows = pa.Table.from_batches([batch for batch, _ in parts]).combine_chunks()
            tasks = np.concatenate([tasks for _, tasks in parts])
            order = np.argsort(tasks, kind="stable")
            rows, tasks = rows.take(pa.array(order)), tasks[order]
            bounds = np.flatnonzero(np.diff(tasks)) + 1
            starts, stops = [0, *bounds.tolist()], [*bounds.tolist(), len(tasks)]
            yield pa.record_batch(
                [
                    pa.array(tasks[starts]),
                    pa.array(np.full(len(starts), lane, np.int32)),
                    pa.array([_sealed(rows[start:stop]) for start, stop in zip(starts, stops, strict=True)]),
                ],
                PARCELS,
            )
        self._waiting, self._rows = {}, 0


def unpack(parcels: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """
    What is in parcels.

    @param parcels: of L{PARCELS}.
    @return: for each its lane, and rows with the columns of L{OFFERS} but for
        what L{addressed} adds, and L{PLACE}.
    """
    for batch in parcels:
        for lane, offers in zip(batch.column("lane").to_pylist(), batch.column("offers"), strict=True):
            yield lane, pa.ipc.open_stream(offers.as_buffer()).read_all()


def addressed(batch: pa.RecordBatch, trial: Trial, placeName: str | None = None) -> pa.RecordBatch:
    """
    Unpacked rows as one trial takes them.

    @param placeName: what to call L{PLACE}; L{None} to leave it out.
    """
    values = dict(zip(batch.schema.names, batch.columns, strict=True))
    place = values.pop(PLACE)
    for name, text in zip(_OF_THE_TRIAL, trial.key, strict=True):
        codes = pa.array(np.zeros(batch.num_rows, np.int32))
        values[name] = pa.DictionaryArray.from_arrays(codes, pa.array([text]))
    if placeName is not None:
        values[placeName] = place
    return pa.RecordBatch.from_arrays(list(values.values()), list(values))


def _sealed(rows: pa.Table) -> bytes:
    columns: Sequence[Any] = [
        # Anew for each parcel, or it would take along the texts of all others.
        column.combine_chunks().dictionary_encode() if pa.types.is_string(column.type) else column
        for column in rows.columns
    ]
    rows = pa.table(columns, rows.column_names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
