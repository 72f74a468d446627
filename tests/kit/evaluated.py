"""
Results of the offline jobs as small as possible, without Spark: made by hand,
or by what the jobs themselves are made of.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, parquet

from admission.offline.simulate.decisions import CLOSED, DECISIONS, OPEN
from admission.offline.simulate.fairness import STARVED
from admission.offline.simulate.pool import CLIENTS, STEPS, TOTALS
from admission.offline.simulate.tally import withStarved
from admission.offline.simulate.totals import DELAY_BOUNDS_US, addUp, binsOf, countTimes, mergeTimes
from admission.offline.simulate.trials import BASELINE

FAIRNESS = pa.schema(
    [
        *((name, pa.string()) for name in ("candidate", "mode", "broker_id", "boot_id")),
        ("begin", pa.timestamp("us", "UTC")),
        *((name, pa.int64()) for name in ("clients", "demanded_bytes", "admitted_bytes", "throttle_us")),
        ("jain_bytes", pa.float64()),
    ]
)
"""The columns of C{replay_fairness}."""

BEGIN = datetime(2024, 1, 1, 12, tzinfo=UTC)
"""When the recording begins: with a minute."""

STEP_SECONDS = 60
RECORDED_POLICY = "recorded client-bytes"
STRICT = "client-bytes:produce=1M"
FITTING = "client-bytes:produce=4M"
GENEROUS = "generous=client-bytes:produce=64M"
HOSTILE = "<script>alert('x')</script>\"&\x1b[31m\u202e\n" + "y" * 200
"""A client id that nobody should have to see as it is."""

CLIENTS_THERE = (("alice", "app"), ("mallory", HOSTILE), ("bob", "batch"), ("", ""))
MINUTE_COUNT = 12

Row = dict[str, Any]


def at(minutes: float) -> datetime:
    """So many minutes after L{BEGIN}."""
    return BEGIN + timedelta(minutes=minutes)


def decisionsOf(
    candidate: str,
    delaySeconds: float,
    mode: str = CLOSED,
    exhaustedConnections: int = 0,
    sizeBytes: int = 40_000,
    minutes: int = MINUTE_COUNT,
    broker: str = "1",
) -> list[Row]:
    """
    What became of a few requests of each client in each minute.

    @param delaySeconds: how long they are throttled, about; the first client
        longest, the last not at all.
    @param exhaustedConnections: how many of the connections, of which each
        client has one, ran out of requests.
    """
    random = Random(f"{candidate} {mode}")
    rows: list[Row] = []
    for number, (principal, clientId) in enumerate(CLIENTS_THERE):
        weight = len(CLIENTS_THERE) - 1 - number
        for place in range(minutes * 4):
            delayUs = round(random.uniform(0.1, 2) * delaySeconds * weight * 1e6) if random.random() < 0.6 else 0
            atUs = place * 15_000_000 + number
            rows.append(
                {
                    "candidate": candidate,
                    "mode": mode,
                    "broker_id": broker,
                    "boot_id": "boot",
                    "replay_key": clientId,
                    "seq": len(rows) + 1,
                    "conn_id": number,
                    "principal": principal,
                    "client_id": clientId,
                    "kind": "Produce",
                    "at_us": atUs,
                    "wall_us": round(BEGIN.timestamp() * 1e6) + atUs,
                    "request_bytes": sizeBytes * (1 + number) + random.randrange(100),
                    "response_bytes": 0,
                    "delay_us": delayUs,
                    "held_us": delayUs,
                    "is_refused": False,
                    "is_barred": False,
                    "is_poisoned": False,
                    "is_first": mode == CLOSED and place == 0,
                    "is_exhausted": place == minutes * 4 - 1 and number < exhaustedConnections,
                }
            )
    return rows


def someDecisions() -> list[Row]:
    """
    Decisions of a policy in force, as they were recorded, and of three candidates: one that is good enough, one that is
    stricter than need be, and one of which there is no forecast.
    """
    rows: list[Row] = []
    for candidate, delaySeconds, exhausted, sizeBytes in (
        (BASELINE, 0.5, 0, 40_000),
        (RECORDED_POLICY, 0.5, 0, 40_000),
        (FITTING, 0.4, 0, 40_000),
        (STRICT, 3.0, 0, 10_000),
        (GENEROUS, 0.0, 3, 90_000),
    ):
        rows += decisionsOf(candidate, delaySeconds, CLOSED, exhausted, sizeBytes)
        if candidate != BASELINE:
            rows += decisionsOf(candidate, 20 * delaySeconds, OPEN, 0, sizeBytes)
    return rows


def replayTables(decisions: Sequence[Row], stepSeconds: int = STEP_SECONDS) -> dict[str, pa.Table]:
    """
    The tables of replays that follow from decisions, as the jobs have them.

    @param stepSeconds: the length of the time of a row of C{replay_time} and C{replay_fairness}.
    """
    batch = pa.RecordBatch.from_pylist(list(decisions), DECISIONS)
    times = mergeTimes(countTimes([batch], stepSeconds * 1_000_000))
    bounds = [*DELAY_BOUNDS_US, None]
    histogram: dict[tuple[str, str], Any] = {}
    for row, bins in zip(times.to_pylist(), binsOf(times.column("delay_bins")), strict=True):
        place = (row["candidate"], row["mode"])
        histogram[place] = histogram.get(place, 0) + bins
    counts = [
        {"candidate": label, "mode": mode, "bucket_us": bound, "n": int(n)}
        for (label, mode), bins in sorted(histogram.items())
        for bound, n in zip(bounds, bins, strict=True)
        if n
    ]
    starved = pa.Table.from_pylist(starvedRows(times.to_pylist()), STARVED)
    totals = [withStarved(addUp(times, by), starved, by) for by in ((), ("principal", "client_id"))]
    summary, clients = (each.append_column("is_approximate", pa.array([False] * len(each))) for each in totals)
    return {
        "replay_summary": summary,
        "replay_client": clients,
        "replay_time": pa.Table.from_batches([times]).drop_columns(["delay_bins"]),
        "replay_fairness": pa.Table.from_pylist(fairnessRows(times.to_pylist()), FAIRNESS),
        "replay_delay_hist": pa.Table.from_pylist(
            counts,
            pa.schema(
                [("candidate", pa.string()), ("mode", pa.string()), ("bucket_us", pa.int64()), ("n", pa.int64())]
            ),
        ),
    }


def fairnessRows(times: Iterable[Row]) -> list[Row]:
    """What L{fairnessOf} makes of C{times}."""
    steps: defaultdict[tuple[Any, ...], defaultdict[tuple[str | None, ...], Counter[str]]]
    steps = defaultdict(lambda: defaultdict(Counter))
    for row in times:
        client = steps[tuple(row[name] for name in FAIRNESS.names[:5])][row["principal"], row["client_id"]]
        client.update({name: row[name] for name in ("demanded_bytes", "admitted_bytes", "throttle_us")})
    rows = []
    for place, clients in steps.items():
        admitted = [
            each["admitted_bytes"] for who, each in clients.items() if who != (None, None) and each["demanded_bytes"]
        ]
        squares = sum(each**2 for each in admitted)
        sums = [sum(each[name] for each in clients.values()) for name in FAIRNESS.names[6:9]]
        jain = sum(admitted) ** 2 / len(admitted) / squares if squares else None
        rows.append(dict(zip(FAIRNESS.names, (*place, len(admitted), *sums, jain), strict=True)))
    return rows


def starvedRows(times: Sequence[Row]) -> list[Row]:
    """What L{starvedOf} makes of C{times}."""
    first = min((row["begin"] for row in times), default=BEGIN)
    minutes: Counter[tuple[Any, ...]] = Counter()
    for row in times:
        if row["principal"] is not None:
            minute = (row["begin"] - first) // timedelta(minutes=1)
            place = tuple(row[name] for name in (*STARVED.names[:4], "broker_id", "boot_id"))
            minutes[*place, minute] += row["requests"] - row["refused"]
    starved = Counter(place[:4] for place, served in minutes.items() if not served)
    return [dict(zip(STARVED.names, (*place, count), strict=True)) for place, count in starved.items()]


def fidelityRow(**values: Any) -> Row:
    """How a replay of a policy in force agrees with the recording: perfectly."""
    return {
        "candidate": RECORDED_POLICY,
        "mode": CLOSED,
        "broker_id": "1",
        "boot_id": "boot",
        "compared": 1000,
        "match_share": 1.0,
        "mean_error_ms": 0.0,
        "throttled": 300,
        "refused": 0,
        "seq_gaps": 0,
        "missing": 0,
        **values,
    }


def recordedTables() -> dict[str, pa.Table]:
    """What the recording says, and what the audits say of it."""
    random = Random(5)
    boot = {"broker_id": "1", "boot_id": "boot"}
    clients: list[Row] = []
    fairness: list[Row] = []
    pool: list[Row] = []
    for minute in range(MINUTE_COUNT):
        common = {**boot, "minute": at(minute)}
        for number, (principal, clientId) in enumerate(CLIENTS_THERE):
            clients.append(
                {
                    **common,
                    "principal": principal,
                    "client_id": clientId,
                    "throttle_s": round(random.uniform(0, 3 - number), 3) if number < 3 else 0.0,
                    "throttle_ms_max": random.randrange(100, 2000),
                    "pool_waits": 1,
                    "pool_wait_max_us": random.randrange(10_000),
                }
            )
        fairness.append(
            {
                **common,
                "jain_bytes": round(random.uniform(0.6, 0.9), 6),
                "admitted_bytes": 1_600_000,
                "starved": minute == 3,
                "pool_waits": len(CLIENTS_THERE),
                "pool_wait_p999_us": 8000.0,
                "pool_wait_max_us": 9999,
            }
        )
        pool.append({**common, "used_max": random.randrange(8 << 20, 30 << 20), "depleted_pct": 2.5, "covered_s": 60.0})
    times = [{**boot, "begin": row["minute"], "used_max": row["used_max"]} for row in pool]
    tables = {
        "client_minute": clients,
        "fairness_minute": fairness,
        "pool_minute": pool,
        "pool_time": times,
        **_auditRows(boot),
    }
    return {name: pa.Table.from_pylist(rows) for name, rows in tables.items()}


def poolTables() -> dict[str, pa.Table]:
    """A pool that is good enough, and one of which there is no forecast."""
    random = Random(7)
    totals, minutes, clients = [], [], []
    for label, exhausted, sizeBytes in (("bounded:16MiB", 0, 16 << 20), ("bounded:1GiB", 3, 30 << 20)):
        place = {"candidate": label, "broker_id": "1", "boot_id": "boot"}
        total = dict.fromkeys(TOTALS.names, 0) | {"span_us": 720_000_000, "requests": 192, "waits": 12}
        total |= {"wait_p99_us": 120_000, "wait_max_us": 150_000, "depleted_share": 0.031, "peak_bytes": sizeBytes}
        totals.append({**place, **total, "connections": 4, "exhausted_connections": exhausted})
        for minute in range(MINUTE_COUNT):
            taken = {"begin": at(minute), "used_max_bytes": random.randrange(sizeBytes)}
            minutes.append({**place, **dict.fromkeys(STEPS.names, 0), **taken})
        for principal, clientId in CLIENTS_THERE:
            waits = {"wait_us": 400_000, "wait_max_us": 150_000 if clientId == HOSTILE else 1000}
            named = {"principal": principal, "client_id": clientId}
            clients.append({**place, **dict.fromkeys(CLIENTS.names, 0), **named, **waits})
    tables = {"replay_pool": totals, "replay_pool_time": minutes, "replay_pool_client": clients}
    return {name: pa.Table.from_pylist(rows) for name, rows in tables.items()}


def writeTables(directory: Path, tables: Mapping[str, pa.Table | Iterable[Row]]) -> None:
    """Write results as the jobs do."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        parquet.write_table(table, directory / f"{name}.parquet")
        csv.write_csv(table, directory / f"{name}.csv")


def writeEverything(directory: Path) -> None:
    """Write results of every kind, and what was asked."""
    writeTables(
        directory,
        {
            **recordedTables(),
            **replayTables(someDecisions()),
            **poolTables(),
            "replay_fidelity": [fidelityRow(), fidelityRow(mode=OPEN)],
        },
    )
    facts = {
        "recording": "/srv/recording",
        "since": None,
        "until": None,
        "sample": None,
        "requests": 192,
        "isSynthetic": False,
        "runs": [{"brokerId": "1", "bootId": "boot", "begin": at(0).isoformat(), "end": at(12).isoformat()}],
        "candidates": [{"label": each, "description": each.partition("generous=")[2] or each}
                       for each in (STRICT, FITTING, GENEROUS)],
        "pools": [{"label": "roomy", "description": "bounded:8MiB"}],
        "problems": [],
        "seqGaps": 0,
        "stepSeconds": STEP_SECONDS,
        "notes": ["a note"],
    }  # fmt: skip
    directory.joinpath("evaluation.json").write_text(json.dumps(facts))


def _auditRows(boot: Row) -> dict[str, list[Row]]:
    who = [{"principal": principal, "client_id": clientId} for principal, clientId in CLIENTS_THERE]
    return {
        "top_clients": [
            {"measure": measure, "rank": rank, **each, "value": 1000.0 / rank, "share": 0.4 / rank}
            for measure in ("bytes", "requests", "throttle_s")
            for rank, each in enumerate(who, 1)
        ],
        "throttle_hist": [
            *(
                {"policy": "client-bytes", "bucket_ms": bucket, "n": n, "refused": refused}
                for bucket, n, refused in ((0, 120, 0), (200, 40, 10), (None, 2, 2))
            ),
            # Of a run that had no policy.
            {"policy": None, "bucket_ms": 0, "n": 7, "refused": 0},
        ],
        "broken_rows": [
            {"table": "requests", "rule": "moment", "n": 3, "rows": 195, "words": "it happened at no time"},
            {"table": "requests", "rule": "place", "n": 0, "rows": 195, "words": "it has no place"},
        ],
        "bloom_audit": [
            {"principal": each["principal"], "asked": 50, "exact_new": 20, "slack": 1, "restored": 1, "fp": 1, "fn": 0}
            for each in who[:3]
        ],
        "quota_summary": [
            {
                "limit_name": "producer_byte_rate",
                "user": None,
                "client_id": each["client_id"],
                "ip": None,
                "limit": 4e6,
                "spans": 72,
                "utilization_p99": 1.1,
                "utilization_max": 1.4,
                "overshoot_after_throttle_p99": 0.011,
                "overshoot_after_throttle_max": 0.023,
            }
            for each in who
        ],
        "ledger_summary": [
            {
                **boot,
                "base_bytes": 40 << 20,
                "imports_bytes": 3 << 20,
                "leaked_bytes": 1 << 20,
                "peak_private_bytes": 90 << 20,
                "peak_ledger_bytes": 45 << 20,
                "peak_unexplained_bytes": 5 << 20,
                "peak_unexplained_share": 0.1,
            }
        ],
    }
