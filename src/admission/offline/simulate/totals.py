# -*- test-case-name: tests.offline.simulate.test_totals -*-
"""
Sums of decisions: by time and client, in rows that can be added up, and in total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc

from admission.interfaces import CONNECTION

from .decisions import CLOSED, LOGIN_KINDS, NOBODY
from .ordered import distinctRows, numbersOf

DELAY_BOUNDS_US: Sequence[int] = (0, *(round(10 ** (3 + step / 16)) for step in range(16 * 6 + 1)))
"""The upper bounds of delay bins: zero, and 1 ms to 1000 s, sixteen for each power of ten."""

MAX_EXHAUSTED_SHARE = 0.05
"""With a larger share of exhausted connections there is no forecast."""

MINUTE_US = 60_000_000

_BINS = len(DELAY_BOUNDS_US) + 1
_MAX_ROWS = 50_000

PLACE: Sequence[str] = (
    "candidate",
    "mode",
    "broker_id",
    "boot_id",
    "replay_key",
    "principal",
    "client_id",
    "begin",
)
"""The columns that identify a row: C{begin} is when its time begins."""

_SUMS: Sequence[str] = (
    "requests",
    "throttled",
    "refused",
    "poisoned",
    "demanded_bytes",
    "admitted_bytes",
    "delay_us",
    "throttle_us",
    "connections",
    "exhausted",
)
_NEVER = 2**62

TIMES = pa.schema(
    [
        *((name, pa.string()) for name in PLACE[:-1]),
        ("begin", pa.timestamp("us", "UTC")),
        *((name, pa.int64()) for name in _SUMS),
        ("most_delay_us", pa.int64()),
        ("most_throttle_us", pa.int64()),
        ("exhausted_from_us", pa.int64()),
        ("delay_bins", pa.list_(pa.int64())),
    ]
)
"""
The outcomes of a client's requests in a minute, or in a part of one.  Several rows may be of the same place;
L{mergeTimes} adds them up.

C{principal} and C{client_id} are null for connections before a login. C{throttle_us} is for how long clients were
throttled, C{throttled} counts requests for which they were, and C{refused} requests that were refused, by whatever
policy. C{delay_us} is the delay that the candidate asked for. How long refused clients wait is in neither time.
C{delay_bins} counts requests by how long they are throttled, by whatever policy, see L{DELAY_BOUNDS_US}, with longer
times in the last bin; trailing zeros are left out, since most requests are not throttled. C{exhausted_from_us} is when
the first connection was exhausted, on the clock of the run.
"""

TOTAL_COLUMNS: Sequence[tuple[str, pa.DataType]] = (
    *((name, pa.int64()) for name in _SUMS[:4]),
    ("demanded_bytes", pa.int64()),
    ("admitted_bytes", pa.int64()),
    ("delay_s", pa.float64()),
    ("throttle_s", pa.float64()),
    ("most_delay_s", pa.float64()),
    ("most_throttle_s", pa.float64()),
    ("p50_throttle_s", pa.float64()),
    ("p99_throttle_s", pa.float64()),
    ("connections", pa.int64()),
    ("exhausted", pa.int64()),
    ("exhausted_share", pa.float64()),
    ("exhausted_from_us", pa.int64()),
    ("ran_out_share", pa.float64()),
    ("is_forecast", pa.bool_()),
)
"""
The columns of L{addUp} after the grouping columns.  Percentiles are over all requests, including requests that were not
throttled, and no less than the exact ones.

The number of exhausted connections is that of the whole candidate and mode, whatever the grouping: the absence of these
connections affects all others. C{ran_out_share} is of the group: the share of its bytes, or of its time throttled if
that is more, of clients whose connections are exhausted; of a client with several connections, as many in a hundred as
are. A few connections may matter more than all others. C{is_forecast} is again that of the whole: whether the numbers
may be read as what would have happened; open loop they may not. The jobs add C{is_approximate}, see
L{admission.offline.simulate.tally.labelled}.
"""


def countTimes(decisions: Iterable[pa.RecordBatch], stepUs: int = MINUTE_US) -> Iterator[pa.RecordBatch]:
    """
    Count decisions by time and client.

    @param decisions: of L{admission.offline.simulate.decisions.DECISIONS}.
    @param stepUs: the length of a row's time, in microseconds; a minute is a multiple of it.
    @return: of L{TIMES}.
    """
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in decisions:
        if batch.num_rows:
            gathered.append(_counted(batch, stepUs))
            rows += gathered[-1].num_rows
        if rows >= _MAX_ROWS:
            merged = mergeTimes(gathered)
            gathered, rows = [merged], merged.num_rows
            if rows >= _MAX_ROWS // 2:
                yield merged
                gathered, rows = [], 0
    if gathered:
        yield mergeTimes(gathered) if len(gathered) > 1 else gathered[0]


def mergeTimes(times: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """
    Add up rows of the same place.

    @param times: of L{TIMES}.
    @return: the same, each place once.
    """
    table = pa.Table.from_batches(times, TIMES).combine_chunks()
    if not len(table):
        return pa.RecordBatch.from_pylist([], TIMES)
    [batch] = table.to_batches()
    found, places = distinctRows([batch.column(name) for name in PLACE])
    columns = _merged(batch, places, len(found))
    for index, name in enumerate(PLACE):
        columns[name] = pa.array([place[index] for place in found], TIMES.field(name).type)
    return _batch(columns)


def binsOf(delayBins: pa.Array) -> Any:
    """
    The column C{delay_bins} of L{TIMES} as a matrix.
    """
    bins = np.zeros((len(delayBins), _BINS), np.int64)
    counts = numbersOf(pc.list_value_length(delayBins))
    bins[np.arange(_BINS) < counts[:, None]] = numbersOf(delayBins.flatten())
    return bins


def addUp(times: pa.RecordBatch, by: Sequence[str], maxExhaustedShare: float = MAX_EXHAUSTED_SHARE) -> pa.Table:
    """
    The totals.

    @param times: of L{TIMES}.
    @param by: what to group by besides C{candidate} and C{mode}: other names of L{PLACE}.
    @param maxExhaustedShare: with a larger share of exhausted connections, or of what is of their clients, there is no
        forecast.
    @return: a row for each group, sorted, with L{TOTAL_COLUMNS} after it.
    """
    names = list(dict.fromkeys(("candidate", "mode", *by)))
    found, places = distinctRows([times.column(name) for name in names])
    merged = _merged(times, places, len(found))
    overall, overalls = distinctRows([times.column(name) for name in names[:2]])
    ends = _merged(times, overalls, len(overall))
    whole = [overall.index(place[:2]) for place in found]
    connections, exhausted = ends["connections"][whole], ends["exhausted"][whole]
    share = exhausted / np.maximum(connections, 1)
    fromUs = ends["exhausted_from_us"][whole]
    ranOut = _ranOutShares(times, places, len(found))
    ranOutInAll = _ranOutShares(times, overalls, len(overall))[whole]
    isClosed = np.array([place[1] == CLOSED for place in found], bool)
    bins = merged["bins"]
    columns: dict[str, Any] = {
        **{name: merged[name] for name in _SUMS[:6]},
        **{f"{name}_s": np.round(merged[f"{name}_us"] / 1e6, 9) for name in ("delay", "throttle")},
        **{f"{name}_s": merged[f"{name}_us"] / 1e6 for name in ("most_delay", "most_throttle")},
        "p50_throttle_s": _quantiles(bins, 0.5, merged["most_throttle_us"]),
        "p99_throttle_s": _quantiles(bins, 0.99, merged["most_throttle_us"]),
        "connections": connections,
        "exhausted": exhausted,
        "exhausted_share": np.round(share, 9),
        "exhausted_from_us": pa.array(fromUs, mask=fromUs == _NEVER),
        "ran_out_share": np.round(ranOut, 9),
        "is_forecast": isClosed & (share <= maxExhaustedShare) & (ranOutInAll <= maxExhaustedShare),
    }
    fields = [(name, TIMES.field(name).type) for name in names]
    arrays = [pa.array([place[index] for place in found], type) for index, (_, type) in enumerate(fields)]
    arrays += [pa.array(columns[name]).cast(type) for name, type in TOTAL_COLUMNS]
    table = pa.table(arrays, pa.schema([*fields, *TOTAL_COLUMNS]))
    return table.sort_by([(name, "ascending") for name in names])


def _ranOutShares(times: pa.RecordBatch, places: Any, count: int) -> Any:
    """
    For each group, how much of it is of clients whose connections are exhausted.
    """
    clients, ofClient = distinctRows([times.column(name) for name in ("candidate", "mode", "principal", "client_id")])
    connections, exhausted = (
        _summed(numbersOf(times.column(name)), ofClient, len(clients)) for name in ("connections", "exhausted")
    )
    ranOut = np.minimum(exhausted / np.maximum(connections, 1), 1.0)[ofClient]
    shares = []
    for name in ("demanded_bytes", "throttle_us"):
        amounts = numbersOf(times.column(name))
        whole, part = np.zeros(count), np.zeros(count)
        np.add.at(whole, places, amounts)
        np.add.at(part, places, amounts * ranOut)
        shares.append(part / np.maximum(whole, 1))
    return np.maximum(*shares)


def _counted(batch: pa.RecordBatch, stepUs: int) -> pa.RecordBatch:
    beginUs = numbersOf(batch.column("wall_us")) // stepUs * stepUs
    named = {name: batch.column(name) for name in PLACE[:-1]}
    kinds = batch.column("kind")
    isLogin = pc.and_(pc.equal(named["principal"], NOBODY), pc.is_in(kinds, value_set=pa.array(LOGIN_KINDS)))
    isNobodys = pc.or_(isLogin, pc.equal(kinds, CONNECTION)).fill_null(False)
    for name in ("principal", "client_id"):
        named[name] = pc.if_else(isNobodys, pa.scalar(None, pa.string()), named[name])
    named["begin"] = pa.array(beginUs).cast(pa.timestamp("us", "UTC"))
    found, places = distinctRows(list(named.values()))
    isRefused, isBarred, isExhausted = (
        numbersOf(batch.column(name)) for name in ("is_refused", "is_barred", "is_exhausted")
    )
    delayUs, heldUs = numbersOf(batch.column("delay_us")), numbersOf(batch.column("held_us"))
    sizeBytes = numbersOf(batch.column("request_bytes")) + numbersOf(batch.column("response_bytes"))
    isAdmitted = ~(isRefused | isBarred)
    # A client that is refused waits, too, before it asks again: that is not what is called throttled.
    throttledUs, askedUs = heldUs * isAdmitted, delayUs * isAdmitted
    each = {
        "requests": np.ones(batch.num_rows, np.int64),
        "throttled": throttledUs > 0,
        "refused": ~isAdmitted,
        "poisoned": numbersOf(batch.column("is_poisoned")),
        "demanded_bytes": sizeBytes,
        "admitted_bytes": sizeBytes * isAdmitted,
        "delay_us": askedUs,
        "throttle_us": throttledUs,
        "connections": numbersOf(batch.column("is_first")),
        "exhausted": isExhausted,
    }
    columns: dict[str, Any] = {name: _summed(values, places, len(found)) for name, values in each.items()}
    columns["most_delay_us"] = _most(askedUs, places, len(found))
    columns["most_throttle_us"] = _most(throttledUs, places, len(found))
    atUs = np.where(isExhausted, numbersOf(batch.column("at_us")), _NEVER)
    columns["exhausted_from_us"] = -_most(-atUs, places, len(found))
    bins = np.searchsorted(np.array(DELAY_BOUNDS_US), throttledUs)
    columns["bins"] = np.bincount(places * _BINS + bins, minlength=len(found) * _BINS).reshape(-1, _BINS)
    for index, (name, array) in enumerate(named.items()):
        columns[name] = pa.array([place[index] for place in found], array.type)
    return _batch(columns)


def _merged(batch: pa.RecordBatch, places: Any, count: int) -> dict[str, Any]:
    columns = {name: _summed(numbersOf(batch.column(name)), places, count) for name in _SUMS}
    for name in ("most_delay_us", "most_throttle_us"):
        columns[name] = _most(numbersOf(batch.column(name)), places, count)
    columns["exhausted_from_us"] = -_most(-numbersOf(batch.column("exhausted_from_us"), _NEVER), places, count)
    columns["bins"] = np.zeros((count, _BINS), np.int64)
    np.add.at(columns["bins"], places, binsOf(batch.column("delay_bins")))
    return columns


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    fromUs, bins = columns["exhausted_from_us"], columns["bins"]
    columns["exhausted_from_us"] = pa.array(fromUs, mask=fromUs == _NEVER)
    counts = (np.arange(1, _BINS + 1) * (bins > 0)).max(axis=1, initial=0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    kept = bins[np.arange(_BINS) < counts[:, None]].astype(np.int64)
    columns["delay_bins"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(kept))
    return pa.record_batch([pa.array(columns[name]) for name in TIMES.names], TIMES)


def _summed(values: Any, places: Any, count: int) -> Any:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, places, values)
    return sums


def _most(values: Any, places: Any, count: int) -> Any:
    most = np.full(count, -_NEVER, np.int64)
    np.maximum.at(most, places, values)
    return most


def _quantiles(bins: Any, share: float, maxUs: Any) -> Any:
    """
    For each row of counts the upper bound of the bin with the value at C{share}, or the largest value if that is less.
    """
    reached = np.cumsum(bins, axis=1) >= share * bins.sum(axis=1, keepdims=True)
    bounds = np.array([*DELAY_BOUNDS_US, _NEVER])
    return np.minimum(bounds[reached.argmax(axis=1)], maxUs) / 1e6
