# -*- test-case-name: tests.spark.test_replay_spark -*-
"""
The results of replays in Spark: totals by client and time, and whether they can be trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import asdict, evolve, frozen
from pyarrow import compute as pc
from pyspark.sql import DataFrame, Window, functions as F

from .arrivals import COLUMNS, recordedDecisions
from .decisions import CLOSED, DECISIONS
from .disagreement import DISAGREEMENTS
from .fairness import STARVED, starvedOf
from .identity import DECIDED, FIDELITIES, FIDELITY, VERDICTS, Fidelity, countMatches, findDisagreements, judge
from .ordered import Batches
from .sparkreplay import Scale, collected, replay, sparkSchema, verdicts
from .totals import DELAY_BOUNDS_US, MINUTE_US, PLACE, TIMES, addUp, binsOf, countTimes, mergeTimes
from .trials import BASELINE, RECORDED, Trial, TrialKey

JUDGED = pa.schema([DECISIONS.field(name) for name in (*VERDICTS.names[:4], "mode", "delay_us", "is_refused")])
"""The columns kept of a decision of a policy in force, for comparison with the recording."""

OUTCOMES = pa.schema([("time", pa.struct(list(TIMES))), ("decision", pa.struct(list(JUDGED)))])
"""Both in one; each row has one of them."""

HISTOGRAM = pa.schema([("candidate", pa.string()), ("mode", pa.string()), ("bucket_us", pa.int64()), ("n", pa.int64())])
"""
The number of requests that are throttled, by whatever policy, for up to C{bucket_us} and above the previous bound, see
L{DELAY_BOUNDS_US}; null above all.  Refused requests are not throttled.
"""

_MAX_ROWS = 20_000
_MOST = ("most_delay_us", "most_throttle_us")
_FIRST = "exhausted_from_us"
_BINS = "delay_bins"


@frozen
class Totals:
    """
    The results of replays, small enough for the driver: about 1 KB for each
    client, candidate and mode.

    @ivar summary: by candidate and mode, with
        L{TOTAL_COLUMNS <admission.offline.simulate.totals.TOTAL_COLUMNS>}.
    @ivar clients: likewise, by principal and client id as well.
    @ivar histogram: of L{HISTOGRAM}.

    The first two also have C{starved_minutes}, see L{STARVED}, and once L{labelled} C{is_approximate}.
    """

    summary: pa.Table
    clients: pa.Table
    histogram: pa.Table


def outcomes(
    requests: DataFrame,
    trials: Mapping[TrialKey, Trial],
    modes: Collection[str],
    scale: Scale,
    baseline: Mapping[tuple[str, str], Trial] | None = None,
    stepUs: int = MINUTE_US,
) -> DataFrame:
    """
    Replay all trials in every mode: of L{OUTCOMES}.

    A caller that uses the result more than once should have Spark cache it, or it is computed again.

    @param requests: clean ones.
    @param trials: of candidates and of policies in force.
    @param modes: one or two.
    @param baseline: of L{planBaseline <admission.offline.simulate.trials.planBaseline>}, to count what was recorded
        like a candidate, too.
    @param stepUs: see L{countTimes}.
    @raise TraceError: see L{replay}.
    """

    def counted(decisions: Batches) -> Iterator[pa.RecordBatch]:
        return toOutcomes(decisions, stepUs)

    replayed = replay(requests, trials, modes, scale, counted, OUTCOMES)
    if not baseline:
        return replayed

    def recorded(batches: Batches) -> Iterator[pa.RecordBatch]:
        return toOutcomes(recordedDecisions(batches, baseline), stepUs)

    return replayed.unionByName(requests.select(*COLUMNS).mapInArrow(recorded, sparkSchema(OUTCOMES)))


def toOutcomes(decisions: Batches, stepUs: int = MINUTE_US) -> Iterator[pa.RecordBatch]:
    """
    Count decisions, and also keep the decisions of policies in force.

    @param decisions: of L{DECISIONS}, each candidate's apart.
    @param stepUs: see L{countTimes}.
    @return: of L{OUTCOMES}.
    """
    for batch in decisions:
        if not batch.num_rows:
            continue
        if batch.column("candidate")[0].as_py().startswith(RECORDED):
            yield _outcome("decision", batch.select(JUDGED.names))
        for times in countTimes([batch], stepUs):
            yield _outcome("time", times)


def timesIn(outcomes: DataFrame) -> DataFrame:
    """
    The outcomes of clients' requests by time, of L{TIMES}; several rows may be of the same place.

    @param outcomes: of L{OUTCOMES}.
    """
    return outcomes.where("time IS NOT NULL").select("time.*")


def addTimes(times: DataFrame) -> DataFrame:
    """
    The columns of L{TIMES} without the histogram, each place once.

    @param times: see L{timesIn}.
    """
    added = [name for name in TIMES.names if name not in (*PLACE, *_MOST, _FIRST, _BINS)]
    return times.groupBy(*PLACE).agg(
        *(F.sum(name).alias(name) for name in added),
        *(F.max(name).alias(name) for name in _MOST),
        F.min(_FIRST).alias(_FIRST),
    )


def totalsOf(outcomes: DataFrame) -> Totals:
    """
    Add up the totals.

    @param outcomes: of L{OUTCOMES}.
    """
    kept = ("candidate", "mode", "principal", "client_id")
    blank = {field.name: F.lit("") for field in TIMES if field.name in PLACE and field.name not in kept}
    blank["begin"] = F.timestamp_micros(F.lit(0))
    times = timesIn(outcomes)
    merged = times.withColumns(blank).repartition(*kept).mapInArrow(_merged, sparkSchema(TIMES))
    batch = mergeTimes(collected(merged, TIMES).to_batches())
    starved = collected(starvedOf(times), STARVED)
    summary, clients = (withStarved(addUp(batch, by), starved, by) for by in ((), kept[2:]))
    return Totals(summary, clients, _histogram(batch))


def withStarved(totals: pa.Table, starved: pa.Table, by: Sequence[str]) -> pa.Table:
    """
    Totals with a column C{starved_minutes}.

    @param totals: the result of L{addUp}, grouped by C{by}.
    @param starved: of L{STARVED}.
    """
    names = ("candidate", "mode", *by)
    minutes: Counter[tuple[str, ...]] = Counter()
    for *place, count in zip(*(starved[name].to_pylist() for name in (*names, "starved_minutes")), strict=True):
        minutes[tuple(place)] += count
    places = zip(*(totals[name].to_pylist() for name in names), strict=True)
    return totals.append_column("starved_minutes", pa.array([minutes[each] for each in places], pa.int64()))


def approximate(trials: Mapping[TrialKey, Trial]) -> list[str]:
    """
    The labels of candidates whose decisions are approximate because they follow requests: see L{LivePolicy
    <admission.offline.simulate.live.LivePolicy>}.
    """
    return sorted({trial.candidate.label for trial in trials.values() if trial.isFollowing})


def refusingLess(totals: Totals) -> list[str]:
    """
    The labels of candidates that refuse fewer requests than were refused as recorded.  Clients that are refused less
    may send more, on connections that nobody has recorded.
    """
    rows = totals.summary.select(["candidate", "mode", "refused"]).to_pylist()
    refused = {each["candidate"]: each["refused"] for each in rows if each["mode"] == CLOSED}
    recorded = refused.get(BASELINE, 0)
    return [label for label, each in refused.items() if each < recorded and not label.startswith(RECORDED)]


def labelled(totals: Totals, trials: Mapping[TrialKey, Trial], doubted: Collection[str] = ()) -> Totals:
    """
    The same totals with a column C{is_approximate}, see L{approximate}.

    @param doubted: the labels of candidates that are no forecast, for other reasons than clients that ran out: answers
        about them cannot be trusted, or clients may send more, see L{refusingLess}.
    """
    labels, others = (pa.array(sorted(each), pa.string()) for each in (approximate(trials), doubted))

    def told(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("is_forecast")
        isDoubted = pc.is_in(table["candidate"], value_set=others)
        isForecast = pc.and_(table["is_forecast"], pc.invert(isDoubted))
        table = table.set_column(place, table.schema.field(place), isForecast)
        return table.append_column("is_approximate", pc.is_in(table["candidate"], value_set=labels))

    return evolve(totals, summary=told(totals.summary), clients=told(totals.clients))


def judgeReplays(
    requests: DataFrame, outcomes: DataFrame, trials: Mapping[TrialKey, Trial], modes: Collection[str]
) -> list[Fidelity]:
    """
    Compare the replays of the policies in force with the recording.

    @param requests: clean ones.
    @param outcomes: of L{OUTCOMES}.
    @param trials: of policies in force; there may be others.
    @return: for each of them and each mode, by label, mode, broker and run.
    """
    recorded = {key: trial for key, trial in trials.items() if trial.isRecorded}
    if not recorded:
        return []
    said = verdicts(requests, recorded)
    counted = said.groupBy(*VERDICTS.names[:3]).count().collect()
    counts: dict[TrialKey, int] = {(row[0], row[1], row[2]): row["count"] for row in counted}
    decisions = outcomes.where("decision IS NOT NULL").select("decision.*")
    # Spark takes each side for as small as its columns are in Parquet, and would broadcast millions of rows.
    compared = decisions.join(said.hint("merge"), list(VERDICTS.names[:4]))
    matches = collected(compared.mapInArrow(countMatches, sparkSchema(FIDELITY)), FIDELITY)
    # Without any recorded decision there is nothing to compare, which is no reason to trust the replay.
    nothing = pa.Table.from_pylist(
        [
            {**dict.fromkeys(FIDELITY.names, 0), **dict(zip(VERDICTS.names[:3], key, strict=True)), "mode": mode}
            for key in recorded
            for mode in modes
        ],
        FIDELITY,
    )
    return judge(pa.concat_tables([matches, nothing]).to_batches(), counts, recorded)


def disagreements(requests: DataFrame, outcomes: DataFrame, trials: Mapping[TrialKey, Trial]) -> pa.Table:
    """
    Find where replays of policies in force, closed loop, disagree with the recording.

    @param requests: clean ones.
    @param outcomes: of L{OUTCOMES}.
    @param trials: of policies in force; those that agree may be left out.
    @return: of L{DISAGREEMENTS <admission.offline.simulate.disagreement.DISAGREEMENTS>}.
    """
    decisions = outcomes.where("decision IS NOT NULL").select("decision.*").where(F.col("mode") == CLOSED)
    compared = decisions.join(verdicts(requests, trials).hint("merge"), DECIDED.names)
    wrong = compared.mapInArrow(findDisagreements, sparkSchema(DECIDED))
    of = ("broker_id", "boot_id")
    sent = _pipelined(requests).select(*of, "seq", "ts", "decided_mono_us", "principal", "client_id", "is_pipelined")
    places = ("candidate", *of, "principal", "client_id", "begin")
    found = wrong.join(sent.hint("merge"), [*of, "seq"]).withColumn("begin", F.date_trunc("minute", "ts"))
    counted = found.groupBy(*places).agg(
        F.count(F.lit(1)).alias("decisions"),
        F.sum("is_pipelined").alias("pipelined"),
        F.unix_micros(F.min("ts")).alias("first_us"),
        F.unix_micros(F.max("ts")).alias("last_us"),
        F.min("decided_mono_us").alias("first_decided_us"),
    )
    return collected(counted, DISAGREEMENTS)


def pipeliningShares(requests: DataFrame) -> dict[tuple[str, str], float]:
    """
    By broker and run, the share of the requests on connections on which any request came before the last one was
    answered.

    @param requests: clean ones.
    """
    rows = _pipelined(requests).groupBy("broker_id", "boot_id").agg(F.avg("is_pipelined")).collect()
    return {(row[0], row[1]): row[2] for row in rows}


def fidelityTable(fidelities: Iterable[Fidelity]) -> pa.Table:
    rows = [(*asdict(each).values(), each.isTrusted, each.inWords()) for each in fidelities]
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(FIDELITIES)
    return pa.table([pa.array(each, type) for each, type in zip(columns, FIDELITIES.types, strict=True)], FIDELITIES)


def _pipelined(requests: DataFrame) -> DataFrame:
    """
    The requests with a column C{is_pipelined}, 0 or 1.
    """
    connection = Window.partitionBy("broker_id", "boot_id", "conn_id")
    isEarly = F.col("mono_us") < F.lag("sent_mono_us").over(connection.orderBy("mono_us", "seq"))
    early = requests.withColumn("is_early", F.ifnull(isEarly.cast("int"), F.lit(0)))
    return early.withColumn("is_pipelined", F.max("is_early").over(connection))


def _outcome(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    size = batch.num_rows
    values = pa.StructArray.from_arrays(batch.columns, fields=list(OUTCOMES.field(name).type))
    arrays = [values if field.name == name else pa.nulls(size, field.type) for field in OUTCOMES]
    return pa.record_batch(arrays, OUTCOMES)


def _merged(batches: Batches) -> Iterator[pa.RecordBatch]:
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(pa.Table.from_batches([batch]).cast(TIMES).combine_chunks().to_batches()[0])
        rows += batch.num_rows
        if rows >= _MAX_ROWS:
            gathered = [mergeTimes(gathered)]
            rows = 0
    if gathered:
        yield mergeTimes(gathered)


def _histogram(times: pa.RecordBatch) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    bounds = [*DELAY_BOUNDS_US, None]
    sums: dict[tuple[str, str], Any] = {}
    labels, modes = (times.column(name).to_pylist() for name in ("candidate", "mode"))
    for label, mode, counts in zip(labels, modes, binsOf(times.column(_BINS)), strict=True):
        sums[label, mode] = sums.get((label, mode), 0) + counts
    for place in sorted(sums):
        rows += [(*place, bounds[index], int(sums[place][index])) for index in np.flatnonzero(sums[place]).tolist()]
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(HISTOGRAM)
    return pa.table([pa.array(each, type) for each, type in zip(columns, HISTOGRAM.types, strict=True)], HISTOGRAM)
