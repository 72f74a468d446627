# -*- test-case-name: tests.spark.test_replay_spark -*-
"""
Replays of large recordings: the same replay, distributed over Spark's workers.

Requests that have to be replayed together are grouped and sorted, once for all candidates that group requests in the
same way; then each group is replayed apart from the others.  So the work is distributed over runs of servers, and
within a run:

  - closed loop, over components, which are connections that share a limit,
  - open loop, over the policy's keys.

Where all clients share one limit, the work is distributed over candidates.

The driver holds every connection with every kind of its requests, and a task keeps a large replay in files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from math import ceil

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from admission.interfaces import IMemoryPoolFactory
from admission.plugins import PolicyError

from ..failures import TraceError
from .arrivals import columnsFor
from .candidates import Candidate, resolveCandidate
from .decisions import CLOSED, DECISIONS
from .identity import VERDICT_COLUMNS, VERDICTS, findVerdicts
from .keys import CLIENT_REQUESTS, Alike, clientsOf
from .live import REQUESTER, Requester, requesterOf
from .ordered import Batches
from .pool import CLIENTS, RESULTS, STEPS, TOTALS, defaultOrder, replayPools
from .pooltrace import POOL_COLUMNS
from .shards import SHARD, SHARDED, ReplayPlan, Step, planReplays
from .totals import MINUTE_US
from .trials import RECORDED, Trial, TrialKey

MAX_CLIENTS = 2_000_000
"""How many clients, with their addresses and the kinds of their requests, the driver holds, in less than 1 GB."""

MAX_CONNECTIONS = 20_000_000
"""How many numbers of connections it holds, in 16 bytes each, and three times as much while it sorts them."""

DECISIONS_OF_TASK = 100_000
"""About how many decisions a task makes, unless that makes more tasks than Spark's setting for shuffles."""


@frozen
class Scale:
    """
    The size of a replay, and how finely to cut it.

    @ivar requests: how many there are.
    @ivar partitions: how many tasks to make; chosen here if L{None}.
    """

    requests: int
    partitions: int | None = None

    def tasksOf(self, frame: DataFrame, trials: Mapping[TrialKey, Trial]) -> int:
        if self.partitions is not None:
            return self.partitions
        most = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        candidates = len({trial.candidate.label for trial in trials.values()})
        return min(max(ceil(self.requests * candidates / DECISIONS_OF_TASK), 1), most)


def sparkSchema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def collected(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    return frame.select(*schema.names).toArrow().cast(schema)


def replay(
    requests: DataFrame,
    trials: Mapping[TrialKey, Trial],
    modes: Collection[str],
    scale: Scale,
    finish: Step | None = None,
    schema: pa.Schema = DECISIONS,
) -> DataFrame:
    """
    Replay all requests under all candidates.

    @param requests: clean ones.
    @param modes: one or two of L{admission.offline.simulate.decisions}.
    @param finish: applied to the decisions on the workers, so that less is passed on.
    @param schema: of its result.
    @return: of L{DECISIONS <admission.offline.simulate.decisions.DECISIONS>}, or the result of C{finish}.
    @raise TraceError: if there are too many clients or connections for the driver.
    """
    parts = []
    counts, alike = countByConnection(requests) if CLOSED in modes else (countClients(requests), {})
    clients = clientsOf(counts.to_batches(), trials)
    for plan in planReplays(trials, modes, clients, _workers(requests.sparkSession), alike):

        def replayed(rows: Batches, plan: ReplayPlan = plan) -> Iterator[pa.RecordBatch]:
            return plan.replay(rows, finish)

        rows = requests.select(*columnsFor(trials.values())).mapInArrow(plan.shard, sparkSchema(SHARDED))
        sharded = rows.repartition(scale.tasksOf(requests, trials), *SHARD).sortWithinPartitions(*plan.order)
        parts.append(sharded.mapInArrow(replayed, sparkSchema(schema)))
    return reduce(DataFrame.unionByName, parts)


def countClients(requests: DataFrame, most: int = MAX_CLIENTS) -> pa.Table:
    """
    Count requests by client, as L{CLIENT_REQUESTS <admission.offline.simulate.keys.CLIENT_REQUESTS>}; the number of all
    connections is 0.

    @param requests: clean ones.
    @param most: how many rows to accept.
    @raise TraceError: if there are more.
    """
    names = CLIENT_REQUESTS.names[:-1]
    told = _told(requests).withColumn("conn_id", F.lit(0))
    return _notTooMany(told.groupBy(*names).agg(F.count(F.lit(1)).alias("requests")), most)


def countByConnection(
    requests: DataFrame, most: int = MAX_CLIENTS, mostConnections: int = MAX_CONNECTIONS
) -> tuple[pa.Table, Mapping[tuple[str, ...], Alike]]:
    """
    Count requests by client and connection, where the first of connections that are alike stands for all.

    @param requests: clean ones.
    @param most: how many rows to accept.
    @param mostConnections: how many connections.
    @return: as L{CLIENT_REQUESTS <admission.offline.simulate.keys.CLIENT_REQUESTS>}; also the connections that are
        alike, by broker and run.
    @raise TraceError: if there are more.
    """
    names = CLIENT_REQUESTS.names[:-1]
    senders = [name for name in names if name not in (*_GROUP, "conn_id")]
    counted = _told(requests).groupBy(*names).agg(F.count(F.lit(1)).alias("requests"))
    connections = counted.groupBy(*_GROUP, "conn_id").agg(
        F.sha2(F.to_json(F.array_sort(F.collect_list(F.struct(*senders)))), 256).alias("senders"),
        F.collect_list(F.struct(*senders, "requests")).alias("sent"),
    )
    # All that follows is made of these, and would read the requests anew each time.
    connections = connections.persist(StorageLevel.DISK_ONLY)
    firsts = connections.groupBy(*_GROUP, "senders").agg(F.min("conn_id").alias("first"))
    known = connections.join(firsts.hint("merge"), [*_GROUP, "senders"])
    try:
        sent = known.select(*_GROUP, F.col("first").alias("conn_id"), F.inline("sent"))
        clients = _notTooMany(sent.groupBy(*names).agg(F.sum("requests").alias("requests")), most)
        return clients, _alike(known.where("conn_id <> first"), clients, mostConnections)
    finally:
        connections.unpersist()


def _told(requests: DataFrame) -> DataFrame:
    """
    The columns of L{CLIENT_REQUESTS} but the last.
    """
    columns = {
        **{name: F.ifnull(F.col(name), F.lit("")) for name in ("kind", "principal", "client_id", "peer")},
        "is_decided": F.col("decided_mono_us").isNotNull(),
    }
    return requests.select(*(columns.get(name, F.col(name)).alias(name) for name in CLIENT_REQUESTS.names[:-1]))


def _notTooMany(clients: DataFrame, most: int) -> pa.Table:
    found = collected(clients.limit(most + 1), CLIENT_REQUESTS)
    if len(found) > most:
        raise TraceError(
            f"there are more than {most:,} clients, with their addresses and the kinds of their requests, too many for "
            "the driver; take a shorter time or a sample of the clients"
        )
    return found


def _alike(connections: DataFrame, clients: pa.Table, most: int) -> Mapping[tuple[str, ...], Alike]:
    """
    @param connections: by broker and run, C{conn_id} and C{first}.
    @param clients: with all brokers and runs.
    """
    runs = sorted(set(zip(*(clients[name].to_pylist() for name in _GROUP), strict=True)))
    if not runs:
        return {}
    # The names of runs would take several times as much as the numbers of their connections.
    number = F.array_position(F.array(*(F.lit("\n".join(run)) for run in runs)), F.concat_ws("\n", *_GROUP))
    numbered = connections.select(number.cast("int").alias("run"), "conn_id", "first").limit(most + 1)
    found = numbered.toArrow()
    if len(found) > most:
        raise TraceError(f"there are more than {most:,} connections, too many for the driver; take a shorter time")
    numbers, connectionIds, firsts = (each.to_numpy() for each in found.columns)
    order = np.lexsort((connectionIds, numbers))
    bounds = np.searchsorted(numbers[order], np.arange(len(runs) + 1) + 1)
    return {
        run: (connectionIds[order[begin:end]], firsts[order[begin:end]])
        for run, (begin, end) in zip(runs, pairwise(bounds.tolist()), strict=True)
        if begin < end
    }


def requestersIn(requests: DataFrame) -> dict[tuple[str, ...], dict[Requester, int]]:
    """
    How many requests each requester sent, by broker and run.

    @param requests: clean ones.
    @raise TraceError: if there are too many for the driver.
    """
    found: dict[tuple[str, ...], dict[Requester, int]] = {}
    for row in countClients(requests).to_pylist():
        ofRun = found.setdefault((row["broker_id"], row["boot_id"]), {})
        requester = requesterOf([row[name] for name in REQUESTER])
        ofRun[requester] = ofRun.get(requester, 0) + row["requests"]
    return found


def verdicts(requests: DataFrame, trials: Mapping[TrialKey, Trial]) -> DataFrame:
    """
    The recorded decisions of the policies in force, of L{VERDICTS <admission.offline.simulate.identity.VERDICTS>}.

    @param requests: clean ones.
    @param trials: of the policies in force.
    """

    def found(batches: Batches) -> Iterator[pa.RecordBatch]:
        return findVerdicts(batches, trials)

    return requests.select(*VERDICT_COLUMNS).mapInArrow(found, sparkSchema(VERDICTS))


def _workers(session: SparkSession) -> int:
    """
    How many tasks run at a time, by the partitions that Spark gives a trivial frame: no other way works with Connect,
    too.
    """
    return session.range(2**20).select(F.spark_partition_id()).distinct().count()


Runs = Collection[tuple[str, str]]
"""Brokers and runs."""

_GROUP = ("broker_id", "boot_id")
_ORDER = (*_GROUP, "mono_us", "seq")


@frozen
class PoolTrial:
    """
    A pool, and the runs to replay with it.

    @ivar candidate: the pool.
    @ivar runs: the runs of servers.
    """

    candidate: Candidate
    runs: Runs


@frozen
class PoolTotals:
    """
    The results of pools: tables with C{candidate}, C{broker_id} and C{boot_id}, and the columns of
    L{admission.offline.simulate.pool}.

    @ivar totals: see C{TOTALS} there.
    @ivar steps: see C{STEPS}.
    @ivar clients: see C{CLIENTS}.
    """

    totals: pa.Table
    steps: pa.Table
    clients: pa.Table


def planPools(
    candidates: Sequence[Candidate], descriptions: Mapping[tuple[str, str], str | None]
) -> tuple[list[PoolTrial], list[str]]:
    """
    Plan every pool in every run, and the recorded pools, to judge how far a replay can be trusted.

    @param candidates: pools.
    @param descriptions: the description of each run's pool.
    @return: also why recorded pools are left out, in sentences.
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


def replayPoolTrials(requests: DataFrame, trials: Sequence[PoolTrial], stepUs: int = MINUTE_US) -> PoolTotals:
    """
    Replay each run of a server with pools.

    @param requests: clean ones.
    @param trials: at least one.
    @param stepUs: see L{replayPools}.
    """
    runs = {run for trial in trials for run in trial.runs}
    ordered = requests.select(*POOL_COLUMNS).repartition(len(runs), *_GROUP).sortWithinPartitions(*_ORDER)
    results: DataFrame | None = None
    # Each trial reads the same sorted rows as a partition of its own, so that pools share a cluster like runs.
    order = defaultOrder()
    for trial in trials:
        part = _replayed(ordered, trial, order, stepUs)
        results = part if results is None else results.unionByName(part)
    assert results is not None
    table = collected(results, RESULTS)
    return PoolTotals(*(_part(table, name, schema) for name, schema in _PARTS.items()))


def _replayed(ordered: DataFrame, trial: PoolTrial, order: Candidate, stepUs: int) -> DataFrame:
    def replayed(batches: Batches) -> Iterator[pa.RecordBatch]:
        return replayPools(batches, [trial.candidate], order=order, stepUs=stepUs)

    return ordered.where(_among(trial.runs)).mapInArrow(replayed, sparkSchema(RESULTS))


def _among(runs: Runs) -> Column:
    return F.concat_ws("\n", *_GROUP).isin(["\n".join(run) for run in runs])


_PARTS = {"total": TOTALS, "step": STEPS, "client": CLIENTS}


def _part(results: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    rows = results.filter(results[name].is_valid())
    chunks = rows[name].combine_chunks()
    values = chunks.flatten() if len(rows) else [pa.array([], field.type) for field in schema]
    columns = [*(rows[key] for key in ("candidate", *_GROUP)), *values]
    names = ["candidate", *_GROUP, *schema.names]
    order = [(each, "ascending") for each in names[: 5 if name == "client" else 4 if name == "step" else 3]]
    return pa.table(columns, names).sort_by(order)
