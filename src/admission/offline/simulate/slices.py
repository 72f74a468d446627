# -*- test-case-name: tests.offline.simulate.test_slices -*-
"""
Cutting the rows of one key into slices, so that a client with most of the requests does not keep one worker busy while
the others wait.

The key of a policy without a horizon is never cut.  With a horizon, a key is cut where it was idle for that long: there
the policy's state is as new, so the result is identical to the last decision.  It is cut nowhere else: letting a slice
begin one horizon early and discarding that part is not exact.  Sampled windows begin with their first record, so as
long as requests keep coming the beginning of a window depends on everything before it.
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
"""The number of a key's requests in a span of time; rows may be added up."""

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
"""The smallest number of requests in a slice, by default."""

_SPANS_IN_HORIZON = 4

_PLACE = ("candidate", "broker_id", "boot_id", "replay_key")


def countSpans(batches: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial]) -> Iterator[pa.RecordBatch]:
    """
    Find when each key had requests, if its policy can be cut.

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
    Find where to cut.  For the driver: this holds every span of every key with enough requests in memory.

    @param spans: of L{SPANS}, in any order.
    @param minRequests: the smallest number of requests in a slice.
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
    Set each row's slice of its key.

    @param batches: of L{admission.offline.simulate.arrivals.ARRIVALS}, in any order.
    @param cuts: of L{CUTS}, complete.
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
    # A policy may have a horizon of zero, but spans need a length.
    return None if horizonSeconds is None else max(-(-round(horizonSeconds * 1e6) // _SPANS_IN_HORIZON), 1)
