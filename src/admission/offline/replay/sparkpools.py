# -*- test-case-name: tests.offline.test_replay_spark -*-
"""
Memory pools on large recordings, in Spark.

Everything in a pool concerns everything else, so each run of a server is one
task for each pool, whatever Spark could spread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyspark.sql import Column, DataFrame, functions as F

from ...interfaces import IMemoryPoolFactory
from ...plugins import PolicyError
from .candidates import Candidate, resolveCandidate
from .ordered import Batches
from .pool import CLIENTS, MINUTES, RESULTS, TOTALS, defaultOrder, replayPools
from .pooltrace import POOL_COLUMNS
from .spark import collected, sparkSchema
from .trials import RECORDED

Runs = Collection[tuple[str, str]]
"""Brokers and boots."""

_GROUP = ("broker_id", "boot_id")
_ORDER = (*_GROUP, "mono_us", "seq")


@frozen
class PoolTrial:
    """
    A pool, and where to try it.

    @ivar candidate: which pool.
    @ivar runs: the runs of servers.
    """

    candidate: Candidate
    runs: Runs


@frozen
class PoolTotals:
    """
    What came of pools: tables with C{candidate}, C{broker_id} and C{boot_id},
    and of each what L{admission.offline.replay.pool} says.

    @ivar totals: see C{TOTALS} there.
    @ivar minutes: see C{MINUTES}.
    @ivar clients: see C{CLIENTS}.
    """

    totals: pa.Table
    minutes: pa.Table
    clients: pa.Table


def planPools(
    candidates: Sequence[Candidate], descriptions: Mapping[tuple[str, str], str | None]
) -> tuple[list[PoolTrial], list[str]]:
    """
    Every pool in every run, and the pools that were there, to see how far a
    replay can be trusted.

    @param candidates: pools.
    @param descriptions: what the pool of each run was.
    @return: and why recorded pools are left out, in sentences.
    """
    runs = sorted(descriptions)
    trials = [PoolTrial(candidate, runs) for candidate in candidates]
    notes = []
    for description in sorted({each for each in descriptions.values() if each is not None}):
        where = [run for run in runs if descriptions[run] == description]
        try:
            found = resolveCandidate(f"{RECORDED}{description.partition(':')[0]}={description}", IMemoryPoolFactory)
        except PolicyError as error:
            notes.append(f"the recorded pool {description} is not replayed: {error}")
            continue
        trials.append(PoolTrial(found, where))
    return trials, notes


def replayPoolTrials(requests: DataFrame, trials: Sequence[PoolTrial]) -> PoolTotals:
    """
    Put each run of a server before pools.

    @param requests: clean ones.
    @param trials: which; at least one.
    """
    runs = {run for trial in trials for run in trial.runs}
    ordered = requests.select(*POOL_COLUMNS).repartition(len(runs), *_GROUP).sortWithinPartitions(*_ORDER)
    results: DataFrame | None = None
    # Each is a part of its own that reads what was sorted once, so that pools share a cluster like runs.
    order = defaultOrder()
    for trial in trials:
        part = _replayed(ordered, trial, order)
        results = part if results is None else results.unionByName(part)
    assert results is not None
    table = collected(results, RESULTS)
    return PoolTotals(*(_part(table, name, schema) for name, schema in _PARTS.items()))


def _replayed(ordered: DataFrame, trial: PoolTrial, order: Candidate) -> DataFrame:
    def replayed(batches: Batches) -> Iterator[pa.RecordBatch]:
        return replayPools(batches, [trial.candidate], order=order)

    return ordered.where(_among(trial.runs)).mapInArrow(replayed, sparkSchema(RESULTS))


def _among(runs: Runs) -> Column:
    return F.concat_ws("\n", *_GROUP).isin(["\n".join(run) for run in runs])


_PARTS = {"total": TOTALS, "minute": MINUTES, "client": CLIENTS}


def _part(results: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    rows = results.filter(results[name].is_valid())
    chunks = rows[name].combine_chunks()
    values = chunks.flatten() if len(rows) else [pa.array([], field.type) for field in schema]
    columns = [*(rows[key] for key in ("candidate", *_GROUP)), *values]
    names = ["candidate", *_GROUP, *schema.names]
    order = [(each, "ascending") for each in names[: 5 if name == "client" else 4 if name == "minute" else 3]]
    return pa.table(columns, names).sort_by(order)
