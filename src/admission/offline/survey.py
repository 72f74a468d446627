# -*- test-case-name: tests.offline.test_jobs -*-
"""
What there is in a recording: runs of servers, and with what policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any

from attrs import evolve, frozen
from pyspark.sql import Column, DataFrame, functions as F

from pyspark_admission.options import Range

from .aggregate import BOOT
from .bloomaudit import FilterShape
from .failures import RecordingError
from .recording import Recording
from .syntheticserver import BROKER_ID

_PRODUCERS = "producer-ids"
"""The policy whose filters are audited."""

_CONSTANTS = ("policy_names", "policy_descriptions", "pool_description", "gate_seed")
_NUMBERED = ("broker_id", "boot_id", "seq", "mono_us")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MARGIN_US = 3_600_000_000
"""How much later a request may be recorded than it came."""


@frozen
class Run:
    """
    A run of a server, as far as it was asked for.

    @ivar requests: how many there are.
    @ivar beginUs: when the first one came, in microseconds since the epoch.
    @ivar endUs: when the last one came.
    @ivar policies: the descriptions of the quota policies, by their names.
    @ivar pool: that of the memory pool; L{None} if it is not known.
    @ivar gateSeed: what the order came from in which memory was handed out.
    """

    brokerId: str
    bootId: str
    requests: int
    beginUs: int
    endUs: int
    policies: Mapping[str, str]
    pool: str | None
    gateSeed: int | None

    @property
    def isSynthetic(self) -> bool:
        """
        Whether its clients do not exist.
        """
        return self.brokerId == BROKER_ID

    def asFacts(self) -> dict[str, Any]:
        """
        What L{admission.offline.evaluation} says of it.
        """
        return {
            "brokerId": self.brokerId,
            "bootId": self.bootId,
            "requests": self.requests,
            "begin": isoMoment(self.beginUs),
            "end": isoMoment(self.endUs),
            "policies": list(self.policies.values()),
            "pool": self.pool,
            "gateSeed": self.gateSeed,
        }


def isoMoment(wallUs: int) -> str:
    """
    A moment, in microseconds since the epoch, in ISO 8601.
    """
    return (_EPOCH + timedelta(microseconds=wallUs)).isoformat()


def findRuns(requests: DataFrame) -> list[Run]:
    """
    Find the runs that there are.

    @param requests: clean ones.
    @return: by broker and boot.
    """
    found = requests.groupBy(*BOOT).agg(
        F.count("*").alias("requests"),
        F.unix_micros(F.min("ts")).alias("begin_us"),
        F.unix_micros(F.max("ts")).alias("end_us"),
        *(F.first(name, ignorenulls=True).alias(name) for name in _CONSTANTS),
    )
    return [
        Run(
            row["broker_id"],
            row["boot_id"],
            row["requests"],
            row["begin_us"],
            row["end_us"],
            dict(zip(row["policy_names"] or (), row["policy_descriptions"] or (), strict=False)),
            row["pool_description"],
            row["gate_seed"],
        )
        for row in found.orderBy(*BOOT).collect()
    ]


def filterShapes(runs: Sequence[Run]) -> dict[FilterShape, list[Run]]:
    """
    The filters of producer ids that there were, and in which runs.

    @raise RecordingError: if a description makes no sense.
    """
    shapes: dict[FilterShape, list[Run]] = {}
    for run in runs:
        for name, description in run.policies.items():
            if name == _PRODUCERS:
                shapes.setdefault(_shapeOf(description), []).append(run)
    return shapes


def ofRuns(runs: Sequence[Run]) -> Column:
    """
    Whether a row is of one of some runs.
    """
    each = [(F.col(BOOT[0]) == run.brokerId) & (F.col(BOOT[1]) == run.bootId) for run in runs]
    return reduce(or_, each, F.lit(False))


def limitsFromTheStart(recording: Recording) -> DataFrame:
    """
    The limits table up to the end of what is asked for, since limits hold that
    were set before its beginning.
    """
    return _within(recording, Range(None, recording.options.range.until)).limits()


def numbered(recording: Recording) -> DataFrame:
    """
    The numbers of all events around the time that is asked for, of all clients:
    C{broker_id}, C{boot_id}, C{seq} and C{mono_us}.

    At its edges there are more than asked for, since events are numbered in the
    order in which they ended.
    """
    since, until = recording.options.range.since, recording.options.range.until
    wider = Range(None if since is None else since - _MARGIN_US, None if until is None else until + _MARGIN_US)
    whole = evolve(_within(recording, wider), sample=Fraction(1))
    tables = [whole.requests(), whole.connections(), whole.limits(), whole.sensors()]
    selected = [table.select(*_NUMBERED) for table in tables]
    return reduce(DataFrame.unionByName, selected)


def _shapeOf(description: str) -> FilterShape:
    try:
        return FilterShape.fromDescription(description)
    except ValueError as error:
        raise RecordingError(f"the filter of {description!r} cannot be audited: {error}") from error


def _within(recording: Recording, range: Range) -> Recording:
    return evolve(recording, options=evolve(recording.options, range=range))
