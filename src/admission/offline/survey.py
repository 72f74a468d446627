# -*- test-case-name: tests.spark.test_jobs -*-
"""
The content of a recording: runs of servers, and their policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import reduce
from operator import or_

from attrs import evolve
from pyspark.sql import Column, DataFrame, functions as F

from pyspark_admission.options import Range

from ..recording.schema import SENSORS
from .aggregate import RUN
from .bloomaudit import FilterShape
from .clean import clean
from .failures import RecordingError
from .kinds import TWO_WAY
from .recording import Recording
from .simulate.runs import GAPS, LIMIT_COLUMNS, LONGEST_DELAY_US, Run, findGaps, withHistory
from .simulate.sparkreplay import collected, sparkSchema

_PRODUCERS = "producer-ids"
"""The policy whose filters are audited."""

DROPPED = "ExportDroppedEvents"
"""The counter of events that an exporter dropped."""

_CONSTANTS = (
    "policy_names",
    "policy_descriptions",
    "quota_windows",
    "quota_window_us",
    "throttle_max_us",
    "pool_description",
    "gate_seed",
    "limit_share",
)
_NUMBERED = ("broker_id", "boot_id", "seq", "mono_us")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MARGIN_US = 3_600_000_000
"""How much later than its arrival a request may be recorded."""


def isoMoment(wallUs: int) -> str:
    """
    A moment, in microseconds since the epoch, in ISO 8601.
    """
    return (_EPOCH + timedelta(microseconds=wallUs)).isoformat()


def findRuns(requests: DataFrame) -> list[Run]:
    """
    Find the runs, without their history.

    @param requests: clean ones.
    @return: by broker and run.
    """
    found = requests.groupBy(*RUN).agg(
        F.count("*").alias("requests"),
        F.unix_micros(F.min("ts")).alias("begin_us"),
        F.unix_micros(F.max("ts")).alias("end_us"),
        F.max(F.greatest("mono_us", "decided_mono_us", "sent_mono_us")).alias("horizon_us"),
        F.max(F.expr(f"traits & {TWO_WAY} = {TWO_WAY}")).alias("has_two_way"),
        # What policies saw when they were built: the clock may have been set since.
        F.min_by(F.unix_micros("ts") - F.col("mono_us"), "mono_us").alias("wall_offset_us"),
        *(F.first(name, ignorenulls=True).alias(name) for name in _CONSTANTS),
    )
    return [
        Run(
            row["broker_id"],
            row["boot_id"],
            row["horizon_us"],
            tuple(row["policy_names"] or ()),
            tuple(row["policy_descriptions"] or ()),
            11 if row["quota_windows"] is None else row["quota_windows"],
            1.0 if row["quota_window_us"] is None else row["quota_window_us"] / 1e6,
            LONGEST_DELAY_US if row["throttle_max_us"] is None else row["throttle_max_us"],
            row["wall_offset_us"],
            requests=row["requests"],
            beginUs=row["begin_us"],
            endUs=row["end_us"],
            pool=row["pool_description"],
            gateSeed=row["gate_seed"],
            hasTwoWay=bool(row["has_two_way"]),
            limitShare=1.0 if row["limit_share"] is None else row["limit_share"],
        )
        for row in found.orderBy(*RUN).collect()
    ]


def completeRuns(runs: Sequence[Run], limits: DataFrame, numbered: DataFrame) -> list[Run]:
    """
    Add the history of each run, see L{withHistory}.

    @param limits: all from the servers' start on, clean.
    @param numbered: C{broker_id}, C{boot_id}, C{seq} and C{mono_us} of all events recorded then, including other runs'.
    @raise TraceError: if a run cannot be replayed.
    """
    inOrder = numbered.select(*_NUMBERED).where("seq IS NOT NULL AND mono_us IS NOT NULL")
    inOrder = inOrder.repartition("broker_id", "boot_id").sortWithinPartitions("broker_id", "boot_id", "seq")
    gaps = inOrder.mapInArrow(findGaps, sparkSchema(GAPS))
    return withHistory(runs, limits.select(*LIMIT_COLUMNS).toArrow(), collected(gaps, GAPS))


def filterShapes(runs: Sequence[Run]) -> dict[FilterShape, list[Run]]:
    """
    The shapes of producer-id filters, and the runs of each.

    @raise RecordingError: if a description is invalid.
    """
    shapes: dict[FilterShape, list[Run]] = {}
    for run in runs:
        for name, description in run.policies.items():
            if name == _PRODUCERS:
                shapes.setdefault(_shapeOf(description), []).append(run)
    return shapes


def ofRuns(runs: Sequence[Run]) -> Column:
    """
    Whether a row belongs to one of these runs.
    """
    each = [(F.col(RUN[0]) == run.brokerId) & (F.col(RUN[1]) == run.bootId) for run in runs]
    return reduce(or_, each, F.lit(False))


def limitsFromTheStart(recording: Recording) -> DataFrame:
    """
    The limits table up to the end of the selection, including limits set before its beginning.
    """
    return within(recording, Range(None, recording.options.range.until)).limits()


def numbered(recording: Recording) -> DataFrame:
    """
    The numbers of all events around the selected time, of all clients: C{broker_id}, C{boot_id}, C{seq} and C{mono_us}.

    The margins exceed the selection, since events are numbered in the order in which they ended.
    """
    since, until = recording.options.range.since, recording.options.range.until
    wider = Range(None if since is None else since - _MARGIN_US, None if until is None else until + _MARGIN_US)
    return _ofAllTables(within(recording, wider), _NUMBERED)


def cutRuns(recording: Recording) -> set[tuple[str, str]]:
    """
    The brokers and runs whose first event is not in the selected time, or in none of the files.
    """
    firsts = _ofAllTables(recording, (*RUN, "seq")).groupBy(*RUN).agg(F.min("seq").alias("first"))
    return {(row[0], row[1]) for row in firsts.where("first > 1").collect()}


def within(recording: Recording, range: Range) -> Recording:
    """
    The same recording in another time.
    """
    return evolve(recording, options=evolve(recording.options, range=range))


def countEvents(recording: Recording) -> int:
    """
    How many events of the selected time could be read, of all clients.
    """
    return _ofAllTables(recording, ("seq",)).count()


def countDropped(recording: Recording) -> int | None:
    """
    How many events servers dropped for lack of room in the selected time, by their own counts.

    @return: L{None} if none was recorded.
    """
    counts = clean(recording.sensors(), SENSORS).where(F.col("sensor") == DROPPED).groupBy(*RUN, "entity")
    # A server counts from its start.
    isFromStart = recording.options.range.since is None
    least = F.lit(0.0) if isFromStart else F.min("value")
    rows = counts.agg((F.max("value") - least).alias("dropped")).groupBy(*RUN).agg(F.max("dropped")).collect()
    return round(sum(row[-1] for row in rows)) if rows else None


def _shapeOf(description: str) -> FilterShape:
    try:
        return FilterShape.fromDescription(description)
    except ValueError as error:
        raise RecordingError(f"the filter of {description!r} cannot be audited: {error}") from error


def _ofAllTables(recording: Recording, columns: Sequence[str]) -> DataFrame:
    """
    Columns of all events of the selected time, of all clients.
    """
    whole = evolve(recording, sample=Fraction(1))
    tables = [whole.requests(), whole.connections(), whole.limits(), whole.sensors()]
    return reduce(DataFrame.unionByName, [table.select(*columns) for table in tables])
