# -*- test-case-name: tests.unit.offline.simulate.test_slices -*-
"""
Cutting the rows of one key, so that a client with most of the requests does not
keep one worker busy while all others wait.

A policy that remembers for ever is never cut.  One with a horizon is cut where
its key was idle for that long: there it is as new, so the result is the same to
the last decision.  Nowhere else: to let a slice begin early by one horizon and
throw that part away is not exact.  Sampled windows begin with their first
record, so as long as requests keep coming where one window begins depends on
all that came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from .ordered import batchOf, distinctRows, numbersOf
from .trials import Trial, TrialKey

SPANS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("replay_key", pa.string()),
        ("span", pa.int64()),
        ("requests", pa.int64()),
    ]
)
"""How many requests a key has in a span of time; they may be added up."""

CUTS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("replay_key", pa.string()),
        ("at_us", pa.int64()),
    ]
)
"""A moment before which a key has been idle for a horizon."""

MIN_REQUESTS = 100_000
"""How many requests a slice has at least, unless told otherwise."""

_SPANS_IN_HORIZON = 4

_PLACE = ("candidate", "broker_id", "boot_id", "replay_key")


def countSpans(batches: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial]) -> Iterator[pa.RecordBatch]:
    """
    Find when each key had requests, as far as its policy can be cut.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS}, in any order.
    @return: of L{SPANS}.
    """
    lengths = {key: _spanUs(trial) for key, trial in trials.items()}
    for batch in batches:
        table = pa.table({name: batch.column(name) for name in (*_PLACE, "at_us")}).filter(batch.column("is_asked"))
        table = table.filter(table["replay_key"].is_valid()).combine_chunks()
        if not len(table):
            continue
        found, rows = distinctRows([table[name].combine_chunks() for name in _PLACE[:3]])
        spanUs = np.array([lengths[place] or 0 for place in found], np.int64)[rows]
        spans = numbersOf(table["at_us"].combine_chunks()) // np.maximum(spanUs, 1)
        counted = table.append_column("span", pa.array(spans)).filter(pa.array(spanUs > 0))
        counted = counted.group_by([*_PLACE, "span"]).aggregate([("at_us", "count")])
        yield from counted.rename_columns({"at_us_count": "requests"}).select(SPANS.names).cast(SPANS).to_batches()


def findCuts(
    spans: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial], minRequests: int = MIN_REQUESTS
) -> pa.RecordBatch:
    """
    Find where to cut.  For the driver: it remembers every span of every key
    that has requests enough.

    @param spans: of L{SPANS}, in any order.
    @param minRequests: how many a slice is to have.
    @return: of L{CUTS}.
    """
    table = pa.Table.from_batches(spans, SPANS).group_by([*_PLACE, "span"]).aggregate([("requests", "sum")])
    table = table.sort_by([(name, "ascending") for name in (*_PLACE, "span")])
    cuts: list[tuple[Any, ...]] = []
    place: tuple[Any, ...] = ()
    last = gathered = 0
    for *here, span, requests in zip(
        *(table[name].to_pylist() for name in (*_PLACE, "span", "requests_sum")), strict=True
    ):
        if tuple(here) != place:
            place, gathered = tuple(here), 0
        elif gathered >= minRequests and span - last > _SPANS_IN_HORIZON:
            spanUs = _spanUs(trials[place[:3]])
            assert spanUs is not None
            cuts.append((*place, span * spanUs))
            gathered = 0
        last = span
        gathered += requests
    return batchOf(cuts, CUTS)


def addSlices(batches: Iterable[pa.RecordBatch], cuts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """
    Say which slice of its key each row belongs to.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS}, in any order.
    @param cuts: of L{CUTS}, all there are.
    @return: the same rows.
    """
    moments: dict[tuple[Any, ...], list[int]] = {}
    for *place, atUs in zip(*(cuts.column(name).to_pylist() for name in CUTS.names), strict=True):
        moments.setdefault(tuple(place), []).append(atUs)
    for batch in batches:
        found, rows = distinctRows([batch.column(name) for name in _PLACE])
        atUs = numbersOf(batch.column("at_us"))
        slices = np.zeros(batch.num_rows, np.int64)
        for index, each in enumerate(found):
            if each in moments:
                isHere = rows == index
                slices[isHere] = np.searchsorted(np.array(sorted(moments[each])), atUs[isHere], "right")
        yield batch.set_column(batch.schema.get_field_index("slice"), "slice", pa.array(slices))


def _spanUs(trial: Trial) -> int | None:
    horizonSeconds = trial.horizonSeconds
    # Nothing to remember is no reason for a span of no time.
    return None if horizonSeconds is None else max(-(-round(horizonSeconds * 1e6) // _SPANS_IN_HORIZON), 1)
