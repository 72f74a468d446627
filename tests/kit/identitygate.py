"""The identity gate without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.identity import DECIDED, VERDICTS, Fidelity, countMatches, findVerdicts, judge
from admission.offline.simulate.runs import Run
from admission.offline.simulate.trials import planRecorded

from .replaymodel import Recording, closedLoop, openLoop, tableOf

_ON = DECIDED.names


def readRecording(directory: str) -> Recording:
    """What a server that has ended has exported, all of one run."""
    (recording,) = readRecordings(directory)
    return recording


def readRecordings(directory: str) -> list[Recording]:
    """What servers that have ended have exported, by runs; those in which nothing was asked are left out."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in ("requests", "limits"):
        for path in sorted(Path(directory, name).rglob("*.parquet")):
            for row in _rowsOf(path):
                runs.setdefault(row["boot_id"], {"requests": [], "limits": []})[name].append(row)
    return [
        Recording(max(row["mono_us"] for row in rows["requests"]), rows["requests"], rows["limits"])
        for rows in runs.values()
        if rows["requests"]
    ]


def gate(recording: Recording, alter: Callable[[Run], Run] = lambda run: run) -> list[Fidelity]:
    """
    Put what was recorded to the test, open and closed loop.

    @param alter: what is known of the run instead.
    """
    trials = planRecorded([alter(run) for run in recording.runs()])
    verdicts = pa.Table.from_batches(findVerdicts(tableOf(recording.rows).to_batches(500), trials), VERDICTS)
    counted = verdicts.group_by(VERDICTS.names[:3]).aggregate([("seq", "count")]).to_pylist()
    counts = {(row["candidate"], row["broker_id"], row["boot_id"]): row["seq_count"] for row in counted}
    fidelity: list[pa.RecordBatch] = []
    for decisions in (openLoop(recording, trials), closedLoop(recording, trials)):
        wanted = decisions.select([*_ON, "mode", "delay_us", "is_refused"])
        fidelity += countMatches(wanted.join(verdicts, _ON, join_type="inner").to_batches(700))
    return judge(fidelity, counts, trials)


def delaysUnder(
    recording: Recording, clientId: str, limitName: str, kind: str | None = None
) -> list[tuple[float | None, list[int]]]:
    """
    What became of a client's limit, and the delays that the first policy asked for while it was so, which are not zero.

    @param kind: of the requests that count; all of them by default.
    """
    limits = sorted(
        (row["mono_us"], row["value"])
        for row in recording.limits
        if (row["client_id"], row["limit_name"]) == (clientId, limitName)
    )
    asked = [
        (row["decided_mono_us"], row["policy_delays_us"][0])
        for row in recording.rows
        if row["client_id"] == clientId and kind in (None, row["kind"]) and any(row["policy_delays_us"][:1])
    ]
    return [
        (value, [delayUs for atUs, delayUs in asked if beginUs <= atUs < endUs])
        for (beginUs, value), (endUs, _) in pairwise([*limits, (inf, None)])
    ]


def assertAsRecorded(case: SynchronousTestCase, judged: Iterable[Fidelity]) -> None:
    """The replays say what was recorded, of every request."""
    for each in judged:
        case.assertEqual((each.matchShare, each.missing), (1.0, 0), each.inWords())


def _rowsOf(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(path, partitioning=None).to_pylist()
    return rows
