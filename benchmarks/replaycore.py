"""
Replays in one process, without Spark, step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field

from admission.offline.simulate.arrivals import COLUMNS
from admission.offline.simulate.candidates import Candidate
from admission.offline.simulate.keys import CLIENT_REQUESTS, clientsOf
from admission.offline.simulate.pool import replayPools
from admission.offline.simulate.pooltrace import POOL_COLUMNS
from admission.offline.simulate.shards import planReplays
from admission.offline.simulate.totals import addUp, countTimes, mergeTimes
from admission.offline.simulate.trials import Trial, TrialKey

from .measure import cpuSeconds
from .recordings import SyntheticRecording

BATCH_ROWS = 10_000
"""How many rows Spark hands to Python at a time."""

READ = "read"
ARRIVE = "make arrivals"
SORT = "sort"
DECIDE = "decide"
ADD_UP = "add up"

_POOL_ORDER = ("broker_id", "boot_id", "mono_us", "seq")


@define
class Steps:
    """
    What the steps of a replay took.

    @ivar cpuSeconds: of each step.
    @ivar decisions: how many there were.
    """

    cpuSeconds: dict[str, float] = field(factory=dict)
    decisions: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """
        The block is a step.
        """
        started = cpuSeconds()
        yield
        self.cpuSeconds[name] = cpuSeconds() - started


def replayInSteps(recording: SyntheticRecording, trials: Mapping[TrialKey, Trial], mode: str) -> Steps:
    """
    Replay quota policies, each step when the one before it is done for all rows.
    """
    steps = Steps()
    with steps.step(READ):
        requests = list(recording.batches(COLUMNS, BATCH_ROWS))
        clients = _clientsIn(requests)
    with steps.step(ARRIVE):
        [plan] = planReplays(trials, [mode], clientsOf(clients.to_batches(), trials))
        sharded = list(plan.shard(requests))
    del requests
    with steps.step(SORT):
        rows = _sorted(sharded, plan.order)
    del sharded
    with steps.step(DECIDE):
        decisions = list(plan.replay(rows))
    steps.decisions = sum(batch.num_rows for batch in decisions)
    with steps.step(ADD_UP):
        addUp(mergeTimes(list(countTimes(decisions))), ())
    return steps


def replayPoolInSteps(recording: SyntheticRecording, candidate: Candidate) -> Steps:
    """
    Replay a memory pool.
    """
    steps = Steps()
    with steps.step(READ):
        requests = list(recording.batches(POOL_COLUMNS, BATCH_ROWS))
    with steps.step(SORT):
        rows = _sorted(requests, _POOL_ORDER)
    del requests
    with steps.step(DECIDE):
        results = pa.Table.from_batches(replayPools(rows, [candidate]))
    steps.decisions = sum(each["requests"] for each in results["total"].to_pylist() if each is not None)
    return steps


def _clientsIn(requests: Sequence[pa.RecordBatch]) -> pa.Table:
    """
    As L{CLIENT_REQUESTS}.
    """
    names = CLIENT_REQUESTS.names[:-2]
    table = pa.Table.from_batches(requests)
    told = table.select(names).append_column("is_decided", table["decided_mono_us"].is_valid())
    counted = told.group_by([*names, "is_decided"]).aggregate([([], "count_all")])
    return counted.rename_columns(CLIENT_REQUESTS.names)


def _sorted(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).sort_by([(name, "ascending") for name in columns])
    ordered: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    return ordered
