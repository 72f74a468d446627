# -*- test-case-name: tests.test_replay_spark -*-
"""
Replays of large recordings: the replay as it is, spread over Spark's workers.

What has to be replayed together is brought together and sorted; all candidates
are replayed in one pass, each apart from the others.  So the work can be spread
over runs of servers, candidates, and within a run:

  - closed loop, over components, which are connections that share a limit.
    Everybody that shares one limit makes one task for each candidate,
  - open loop, over what a policy limits by, and for a policy that forgets over
    times, too, between which it has forgotten.

The driver remembers every connection with every key it has, and a task keeps
its component in a file beyond some size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from .boots import BOOT_COLUMNS, BOOTS, GAPS, LIMIT_COLUMNS, Boot, TraceError, bootsOf, findGaps, summarizeBoots
from .closedloop import replayClosedLoop
from .decisions import DECISIONS, OPEN
from .identity import VERDICT_COLUMNS, VERDICTS, findVerdicts
from .keys import COMPONENTS, LINKS, findComponents, findLinks
from .offers import CLOSED_GROUP, CLOSED_ORDER, COLUMNS, OFFERS, OPEN_GROUP, OPEN_ORDER, makeOffers
from .openloop import replayOpenLoop
from .slices import LEAST_REQUESTS, SPANS, addSlices, countSpans, findCuts
from .trials import Trial, TrialKey

MOST_LINKS = 2_000_000
"""How many pairs of a connection and a key the driver remembers, over all candidates, in less than 1 GB."""

ROWS_OF_TASK = 50_000
"""How many requests a task has, about, unless that makes more tasks than Spark's setting for shuffles."""

Batches = Iterable[pa.RecordBatch]
Step = Callable[[Batches], Iterator[pa.RecordBatch]]

_NUMBERED = ("broker_id", "boot_id", "seq", "mono_us")
_PLACE = COMPONENTS.names[:-1]


@frozen
class Scale:
    """
    How much there is, and how finely to cut it.

    @ivar requests: how many there are.
    @ivar partitions: how many tasks to make; L{None} for what seems right.
    @ivar leastRequests: how many a slice of one key has at least.
    """

    requests: int
    partitions: int | None = None
    leastRequests: int = LEAST_REQUESTS

    def tasksOf(self, frame: DataFrame, trials: Mapping[TrialKey, Trial]) -> int:
        """
        How many tasks to make.
        """
        if self.partitions is not None:
            return self.partitions
        most = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        candidates = len({trial.candidate.label for trial in trials.values()})
        return min(max(ceil(self.requests * candidates / ROWS_OF_TASK), 1), most)


def sparkSchema(schema: pa.Schema) -> StructType:
    """
    Columns in Spark's types.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def collected(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """
    All rows, for the driver.
    """
    return frame.select(*schema.names).toArrow().cast(schema)


def findBoots(requests: DataFrame, limits: DataFrame, numbered: DataFrame) -> list[Boot]:
    """
    Find what is known of each run of a server.

    @param requests: those to replay, clean like C{limits}.
    @param limits: all that there were from the servers' start on.
    @param numbered: C{broker_id}, C{boot_id}, C{seq} and C{mono_us} of
        everything that was recorded then, whatever C{requests} leaves out.
    @raise TraceError: if a run cannot be replayed.
    """
    summaries = requests.select(*BOOT_COLUMNS).mapInArrow(summarizeBoots, sparkSchema(BOOTS))
    inOrder = numbered.select(*_NUMBERED).where("seq IS NOT NULL AND mono_us IS NOT NULL")
    inOrder = inOrder.repartition("broker_id", "boot_id").sortWithinPartitions("broker_id", "boot_id", "seq")
    gaps = inOrder.mapInArrow(findGaps, sparkSchema(GAPS))
    return bootsOf(collected(summaries, BOOTS), limits.select(*LIMIT_COLUMNS).toArrow(), collected(gaps, GAPS))


def replay(
    requests: DataFrame,
    trials: Mapping[TrialKey, Trial],
    mode: str,
    scale: Scale,
    finish: Step | None = None,
    schema: pa.Schema = DECISIONS,
) -> DataFrame:
    """
    Replay all requests under all candidates.

    @param requests: clean ones.
    @param mode: L{OPEN <admission.offline.replay.decisions.OPEN>} or
        L{CLOSED <admission.offline.replay.decisions.CLOSED>}.
    @param finish: what to do with the decisions where they are made, so that
        less is passed on.
    @param schema: of what that returns.
    @return: of L{DECISIONS <admission.offline.replay.decisions.DECISIONS>},
        unless there is something to C{finish} them.
    @raise TraceError: if there are too many connections for the driver.
    """
    brought = _forOpenLoop(requests, trials, scale) if mode == OPEN else _forClosedLoop(requests, trials, scale)
    each = replayOpenLoop if mode == OPEN else replayClosedLoop

    def replayed(batches: Batches) -> Iterator[pa.RecordBatch]:
        decisions = each(batches, trials)
        return decisions if finish is None else finish(decisions)

    return brought.mapInArrow(replayed, sparkSchema(schema))


def verdicts(requests: DataFrame, trials: Mapping[TrialKey, Trial]) -> DataFrame:
    """
    What the policies in force said, of
    L{VERDICTS <admission.offline.replay.identity.VERDICTS>}.

    @param requests: clean ones.
    @param trials: of the policies in force.
    """

    def found(batches: Batches) -> Iterator[pa.RecordBatch]:
        return findVerdicts(batches, trials)

    return requests.select(*VERDICT_COLUMNS).mapInArrow(found, sparkSchema(VERDICTS))


def offers(requests: DataFrame, trials: Mapping[TrialKey, Trial], cuts: pa.RecordBatch | None = None) -> DataFrame:
    """
    What each candidate is to see of each request, of
    L{OFFERS <admission.offline.replay.offers.OFFERS>}.

    @param cuts: of L{CUTS <admission.offline.replay.slices.CUTS>}.
    """

    def made(batches: Batches) -> Iterator[pa.RecordBatch]:
        offered = makeOffers(batches, trials)
        return offered if cuts is None else addSlices(offered, cuts)

    return requests.select(*COLUMNS).mapInArrow(made, sparkSchema(OFFERS))


def cutsOf(requests: DataFrame, trials: Mapping[TrialKey, Trial], scale: Scale) -> pa.RecordBatch | None:
    """
    Where to cut the requests of one key, if there is any use in that.
    """
    if scale.requests < 2 * scale.leastRequests or all(trial.horizonSeconds is None for trial in trials.values()):
        return None

    def counted(batches: Batches) -> Iterator[pa.RecordBatch]:
        return countSpans(batches, trials)

    spans = offers(requests, trials).mapInArrow(counted, sparkSchema(SPANS))
    places = [F.col(name) for name in SPANS.names if name != "requests"]
    added = collected(spans.groupBy(*places).agg(F.sum("requests").alias("requests")), SPANS)
    cuts = findCuts(added.to_batches(), trials, scale.leastRequests)
    return cuts if cuts.num_rows else None


def componentsOf(offered: DataFrame, trials: Mapping[TrialKey, Trial], mostLinks: int = MOST_LINKS) -> pa.RecordBatch:
    """
    Which connections are replayed together.

    @param offered: what L{offers} returned.
    @param mostLinks: how many pairs of a connection and a key to accept.
    @return: of L{COMPONENTS <admission.offline.replay.keys.COMPONENTS>}.
    @raise TraceError: if there are more.
    """

    def linked(batches: Batches) -> Iterator[pa.RecordBatch]:
        return findLinks(batches, trials)

    found = offered.mapInArrow(linked, sparkSchema(LINKS)).distinct().limit(mostLinks + 1)
    links = collected(found, LINKS)
    if len(links) > mostLinks:
        raise TraceError(
            f"more than {mostLinks:,} connections are to be replayed together, over all candidates; "
            "take a shorter time, a sample of the clients or fewer candidates"
        )
    return findComponents(links.to_batches(ROWS_OF_TASK))


def _forOpenLoop(requests: DataFrame, trials: Mapping[TrialKey, Trial], scale: Scale) -> DataFrame:
    offered = offers(requests, trials, cutsOf(requests, trials, scale))
    tasks = scale.tasksOf(requests, trials)
    # Of those without a key each may go anywhere, and all to one place would be too many.
    key = F.expr(f"ifnull(replay_key, string(pmod(seq, {tasks})))")
    others = [F.col(name) for name in OPEN_GROUP if name != "replay_key"]
    return offered.repartition(tasks, *others, key).sortWithinPartitions(*OPEN_GROUP, *OPEN_ORDER)


def _forClosedLoop(requests: DataFrame, trials: Mapping[TrialKey, Trial], scale: Scale) -> DataFrame:
    offered = offers(requests, trials)
    components = pa.Table.from_batches([componentsOf(offered, trials)])
    alone: Any = F.col("conn_id")
    if len(components):
        known = requests.sparkSession.createDataFrame(components, sparkSchema(COMPONENTS))
        others = known.where("component <> conn_id").withColumnRenamed("component", "_first")
        offered = offered.join(F.broadcast(others), _PLACE, "left")
        alone = F.coalesce("_first", "conn_id")
    placed = offered.select(*OFFERS.names, alone.alias("component"))
    tasks = scale.tasksOf(requests, trials)
    return placed.repartition(tasks, *CLOSED_GROUP).sortWithinPartitions(*CLOSED_GROUP, *CLOSED_ORDER)
