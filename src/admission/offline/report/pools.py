# -*- test-case-name: tests.offline.test_report -*-
"""
How full the memory pool was, and how full candidates would have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen
from pyarrow import compute as pc  # type: ignore[import-untyped]
from twisted.web.template import Tag, tags

from ..simulate.pool import TOTALS
from ..simulate.totals import MAX_EXHAUSTED_SHARE
from ..simulate.trials import BASELINE, RECORDED
from .elements import absent, beside, bullets, named, section, table
from .lines import Line, coveredBy, poolLines
from .plots import Plot, figures, scaled, timeNote
from .resultfiles import Results, Row, grouped, only
from .words import NOTHING, client, count, duration, share, shown, size

_POOL = ("candidate", "broker_id", "boot_id")


@frozen
class PoolTotal:
    """
    A pool, over all runs of servers.

    @ivar label: of the candidate.
    @ivar total: the columns of L{TOTALS}, added up where possible, else the worst of all runs.
    """

    label: str
    total: Row

    @property
    def exhaustedShare(self) -> float:
        return float(self.total["exhausted_connections"] / max(self.total["connections"], 1))

    @property
    def isForecast(self) -> bool:
        """
        Whether the numbers may be read as what would have happened.
        """
        return self.exhaustedShare <= MAX_EXHAUSTED_SHARE


POOL_HEADS = (
    "Pool",
    "Most taken",
    "Time without memory",
    "Requests",
    "Requests that waited",
    "99 % of waits up to",
    "Longest wait",
    "Still waiting at the end",
    "Too large for it",
    "Connections that ran out",
)
"""The columns of L{poolRows}."""


def poolRows(results: Results) -> list[Sequence[str]]:
    """
    The recorded pool and each that was replayed.
    """
    return [*_recordedPool(results), *map(_poolRow, _pools(results))]


def poolSection(results: Results) -> Tag:
    recorded = results.table("pool_time", ["begin", "used_max"])
    pools = _pools(results)
    replays = results.table("replay_pool_time", ["candidate", "begin", "used_max_bytes"])
    forecasts = [each.label for each in pools if each.isForecast]
    lines, unit, unitBytes = scaled(
        poolLines(forecasts, replays, recorded, results.says("stepSeconds", int) or 60, coveredBy(results))
    )

    def fact(line: Line) -> str:
        return f"at most {size(line.most * unitBytes)}"

    plot = Plot("pool", "The most memory taken, by time", unit, lines, fact, note=timeNote(lines))
    parts: list[Any] = []
    rows = poolRows(results)
    if rows:
        cells = ((named(name), *others) for name, *others in rows)
        parts.append(table("The pool as recorded, and others in its place", POOL_HEADS, cells))
    if not pools:
        parts.append(absent("No other pool was replayed."))
    if any(each.label.startswith(RECORDED) for each in pools):
        parts.append(
            tags.p(
                f"What is called {RECORDED.strip()} NAME is the pool that was there, replayed: how far that is from "
                "the pool as recorded tells how far to believe the others."
            )
        )
    parts += [bullets(notes)] if (notes := list(_poolNotes(results, pools))) else []
    return section("pool", "How full the memory pool is", beside(list(figures([plot])), parts))


def _pools(results: Results) -> list[PoolTotal]:
    rows = results.rows("replay_pool", [*_POOL, *TOTALS.names])
    labels = sorted({row["candidate"] for row in rows or ()})
    found = []
    for label in labels:
        own = [row for row in rows or () if row["candidate"] == label]
        spanUs = max(sum(row["span_us"] for row in own), 1)
        total: Row = {
            name: sum(row[name] for row in own)
            for name in ("requests", "waits", "unserved", "oversized", "connections", "exhausted_connections")
        }
        for name in ("wait_p99_us", "wait_max_us", "peak_bytes"):
            total[name] = max((row[name] for row in own if row[name] is not None), default=None)
        total["depleted_share"] = sum(row["depleted_share"] * row["span_us"] for row in own) / spanUs
        found.append(PoolTotal(label, total))
    return found


def _recordedPool(results: Results) -> Iterator[Sequence[str]]:
    minutes = results.table("pool_minute", ["used_max", "depleted_pct", "covered_s"])
    if minutes is None or not len(minutes):
        return
    rows = [row for row in minutes.to_pylist() if row["depleted_pct"] is not None and row["covered_s"]]
    coveredSeconds = sum(row["covered_s"] for row in rows)
    depleted = sum(row["depleted_pct"] * row["covered_s"] for row in rows) / 100 / coveredSeconds if rows else None
    waited = results.table("fairness_minute", ["pool_waits", "pool_wait_max_us"])
    longestUs, waits = None, None
    if waited is not None and len(waited):
        longestUs, waits = pc.max(waited["pool_wait_max_us"]).as_py(), pc.sum(waited["pool_waits"]).as_py()
    yield (
        BASELINE,
        size(pc.max(minutes["used_max"]).as_py()),
        share(depleted),
        count(results.says("requests", int)),
        count(waits),
        NOTHING,
        duration(None if longestUs is None else longestUs / 1e6),
        *[NOTHING] * 2,
        share(0),
    )


def _poolRow(pool: PoolTotal) -> Sequence[str]:
    total = pool.total
    label = shown(pool.label)
    if not pool.isForecast:
        return label, "no point estimate", *[NOTHING] * 7, share(pool.exhaustedShare)
    return (
        label,
        size(total["peak_bytes"]),
        share(total["depleted_share"]),
        count(total["requests"]),
        count(total["waits"]),
        *(duration(None if total[name] is None else total[name] / 1e6) for name in ("wait_p99_us", "wait_max_us")),
        count(total["unserved"]),
        count(total["oversized"]),
        share(pool.exhaustedShare),
    )


def _poolNotes(results: Results, pools: Sequence[PoolTotal]) -> Iterator[Any]:
    clients = results.table("replay_pool_client", ["candidate", "principal", "client_id", "wait_us", "wait_max_us"])
    for pool in pools:
        if not pool.isForecast:
            yield (
                tags.strong(named(shown(pool.label))),
                f": no point estimate, since {share(pool.exhaustedShare)} of its connections ran out of recorded "
                "requests; its waits are too few rather than too many.",
            )
        elif clients is not None:
            order = [("wait_max_us", "descending"), ("principal", "ascending"), ("client_id", "ascending")]
            own = grouped(
                only(clients, candidate=pool.label), ("principal", "client_id"), ("wait_us",), ("wait_max_us",)
            ).sort_by(order)
            [worst] = own.slice(0, 1).to_pylist() or [None]
            if worst is not None and worst["wait_max_us"]:
                yield (
                    tags.strong(named(shown(pool.label))),
                    ": the longest wait is that of ",
                    named(client(worst["principal"], worst["client_id"])),
                    f", {duration(worst['wait_max_us'] / 1e6)}, of {duration(worst['wait_us'] / 1e6)} in all.",
                )
