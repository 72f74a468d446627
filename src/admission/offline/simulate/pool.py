# -*- test-case-name: tests.offline.simulate.test_pool -*-
"""
What other memory pools would have done with a recording.

The candidate is the real pool class behind the real gate (L{admission.gate.gate.Gate}), in virtual time: a connection
that finds no memory waits, newcomers do not overtake, and memory is allocated in the default order, which is random.
What this can tell, and what not:

  - A wait delays everything that comes after it on the connection, and nothing else does: service times, quota delays
    and think times stay as recorded, as do the times for which requests hold their memory.
  - The gate draws from the recorded seed, but the result of a draw depends on which connections wait at that moment.  A
    recording that is exact to the microsecond, as of a synthetic server, is reproduced; with one of a real server the
    waits may fall to other connections, so look at their number and lengths.
  - Other charges to the pool, such as connections and unsent responses, are known as one figure per second only.  They
    stay as recorded, and count as nothing where the recorded pool was unbounded.
  - The requests that clients would have sent besides are unknown.  With a pool larger than the recorded one connections
    finish early, and results say how many: their waits are underestimated rather than overestimated.
  - A request that is larger than the pool's largest lease is counted, and passes.  A server would close its connection.

Everything in a pool affects everything else, so a run of a server (C{broker_id} and C{boot_id}) is replayed in one
piece; runs, and candidates, can be distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from admission.gate.gate import DEFAULT_ORDER
from admission.interfaces import IWaitOrderFactory

from .candidates import Candidate, resolveCandidate
from .ordered import Ordered
from .poolrun import PoolRun
from .pooltrace import PoolTrace
from .totals import MINUTE_US

ROWS_OF_BATCH = 10_000

_ORDER = ("mono_us", "seq")
_GROUP = ("broker_id", "boot_id")

STEPS = pa.schema(
    [
        ("begin", pa.timestamp("us", "UTC")),
        ("span_us", pa.int64()),
        ("used_max_bytes", pa.int64()),
        ("available_min_bytes", pa.int64()),
        ("depleted_share", pa.float64()),
        ("muted_us", pa.int64()),
        ("waiting_max", pa.int64()),
    ]
)
"""
One row per step of wall time, by default a minute: how much of it was replayed (C{span_us}), the maximum allocated and
the minimum available, the share of the time with no memory available, and the total time and maximum number of waiting
connections.
"""

TOTALS = pa.schema(
    [
        ("span_us", pa.int64()),
        ("requests", pa.int64()),
        ("waits", pa.int64()),
        ("unserved", pa.int64()),
        ("wait_p50_us", pa.int64()),
        ("wait_p99_us", pa.int64()),
        ("wait_max_us", pa.int64()),
        ("muted_us", pa.int64()),
        ("depleted_share", pa.float64()),
        ("peak_bytes", pa.int64()),
        ("oversized", pa.int64()),
        ("connections", pa.int64()),
        ("exhausted_connections", pa.int64()),
        ("unreleased_bytes", pa.int64()),
    ]
)
"""
One row per candidate: C{waits} counts the requests that waited, C{unserved} how many still waited at the end, and
percentiles are over the waits; null if there were none. For the others see L{PoolRun}.
"""

CLIENTS = pa.schema(
    [
        ("principal", pa.string()),
        ("client_id", pa.string()),
        ("requests", pa.int64()),
        ("request_bytes", pa.int64()),
        ("waits", pa.int64()),
        ("wait_us", pa.int64()),
        ("wait_max_us", pa.int64()),
    ]
)
"""
One row per client with, above all, its longest wait; see L{ClientWaits
<admission.offline.simulate.poolrun.ClientWaits>}.
"""

RESULTS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("step", pa.struct(list(STEPS))),
        ("total", pa.struct(list(TOTALS))),
        ("client", pa.struct(list(CLIENTS))),
    ]
)
"""All three in one; each row has one of the last three columns."""


def defaultOrder() -> Candidate:
    """
    The default order in which servers serve waiters; can be pickled, for use where no plug-ins are installed.
    """
    return resolveCandidate(DEFAULT_ORDER, IWaitOrderFactory)


def replayPools(
    batches: Iterable[pa.RecordBatch],
    candidates: Sequence[Candidate],
    horizons: Mapping[tuple[str, str], int] | None = None,
    order: Candidate | None = None,
    stepUs: int = MINUTE_US,
) -> Iterator[pa.RecordBatch]:
    """
    Replay each run of a server with each pool.

    A run takes 64 bytes of a temporary file for each request, and memory only for connections, clients and waits.

    @param batches: rows with L{POOL_COLUMNS <admission.offline.simulate.pooltrace.POOL_COLUMNS>}, sorted by
        C{broker_id}, C{boot_id}, C{mono_us} and C{seq}.
    @param candidates: pools, as L{resolveCandidate} finds them for an L{IMemoryPoolFactory
        <admission.interfaces.IMemoryPoolFactory>}.
    @param horizons: the end of each run, by broker and run, in microseconds of the monotonic clock; the last moment in
        the rows unless given.
    @param order: the order in which waiters are served; the default, for which plug-ins must be installed here, unless
        given.
    @param stepUs: the length of the steps of time, in microseconds.
    @return: rows of L{RESULTS}.
    @raise OutOfOrder: if rows are not sorted this way.
    """
    ordered = Ordered(_GROUP, _ORDER)
    trace: PoolTrace | None = None
    group: Any = None
    try:
        for batch in batches:
            for found, isNew, start, stop in ordered.groups(batch):
                if isNew:
                    if trace is not None:
                        yield from _replay(trace, group, candidates, horizons, order or defaultOrder(), stepUs)
                        trace.close()
                    trace, group = PoolTrace(), found
                assert trace is not None
                trace.add(batch.slice(start, stop - start))
        if trace is not None:
            yield from _replay(trace, group, candidates, horizons, order or defaultOrder(), stepUs)
    finally:
        if trace is not None:
            trace.close()


def _replay(
    trace: PoolTrace,
    group: tuple[str, str],
    candidates: Sequence[Candidate],
    horizons: Mapping[tuple[str, str], int] | None,
    order: Candidate,
    stepUs: int,
) -> Iterator[pa.RecordBatch]:
    trace.finish()
    horizonUs = (horizons or {}).get(group, trace.lastUs)
    for candidate in candidates:
        run = PoolRun(
            trace, candidate.build, horizonUs, lambda clock, random: order.build(clock, random=random), stepUs
        )
        run.run()
        rows = _rows(trace, run)
        for first in range(0, len(rows), ROWS_OF_BATCH):
            same = {"candidate": candidate.label, "broker_id": group[0], "boot_id": group[1]}
            some = [{**same, **row} for row in rows[first : first + ROWS_OF_BATCH]]
            yield pa.RecordBatch.from_pylist(some, schema=RESULTS)


def _rows(trace: PoolTrace, run: PoolRun) -> list[dict[str, Any]]:
    steps = [
        {
            "begin": each.beginUs,
            "span_us": each.spanUs,
            "used_max_bytes": each.usedMaxBytes,
            "available_min_bytes": each.availableMinBytes,
            "depleted_share": _share(each.depletedUs, each.spanUs),
            "muted_us": each.mutedUs,
            "waiting_max": each.waitingMax,
        }
        for each in run.watch.steps
    ]
    clients = [
        {
            "principal": principal,
            "client_id": clientId,
            "requests": each.requests,
            "request_bytes": each.requestBytes,
            "waits": each.waits,
            "wait_us": each.waitUs,
            "wait_max_us": each.waitMaxUs,
        }
        for (principal, clientId), each in zip(trace.clients, run.clients, strict=True)
    ]
    return [
        {"total": _total(trace, run)},
        *({"step": each} for each in steps),
        *({"client": each} for each in clients),
    ]


def _total(trace: PoolTrace, run: PoolRun) -> dict[str, Any]:
    waitsUs = np.sort(np.frombuffer(run.waitsUs, np.int64))
    p50Us, p99Us, maxUs = (_quantile(waitsUs, share) for share in (0.5, 0.99, 1.0))
    spanUs = sum(each.spanUs for each in run.watch.steps)
    return {
        "span_us": spanUs,
        "requests": run.requests,
        "waits": len(waitsUs),
        "unserved": run.unserved,
        "wait_p50_us": p50Us,
        "wait_p99_us": p99Us,
        "wait_max_us": maxUs,
        "muted_us": sum(each.mutedUs for each in run.watch.steps),
        "depleted_share": _share(sum(each.depletedUs for each in run.watch.steps), spanUs),
        "peak_bytes": run.watch.peakBytes,
        "oversized": run.oversized,
        "connections": len(trace.firstRows),
        "exhausted_connections": run.exhausted,
        "unreleased_bytes": run.unreleasedBytes,
    }


def _quantile(ascending: Any, share: float) -> int | None:
    """
    The smallest value that at least C{share} of all do not exceed; L{None} if there are no values.
    """
    count = len(ascending)
    return int(ascending[ceil(count * share) - 1]) if count else None


def _share(partUs: int, wholeUs: int) -> float:
    return round(partUs / wholeUs, 9) if wholeUs else 0.0
