# -*- test-case-name: tests.offline.test_report -*-
"""
The lines of plots: values by time and by length of delay, from the results unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from ..simulate.decisions import CLOSED
from ..simulate.trials import BASELINE
from .resultfiles import Results, grouped, only

MAX_POINTS = 240
"""Longer recordings are shown in longer steps."""

SHORT_SECONDS = 180.0
"""Recordings that are shorter are compared as a whole, and not by their busiest minute."""

_STEPS_SECONDS = (5, 60, *(minutes * 60 for minutes in (2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)))

_TIMES = pa.schema(
    [
        ("candidate", pa.string()),
        ("mode", pa.string()),
        ("broker_id", pa.string()),
        ("begin", pa.timestamp("us", "UTC")),
        ("admitted_bytes", pa.int64()),
        ("throttle_us", pa.int64()),
        ("jain_bytes", pa.float64()),
    ]
)


@frozen(eq=False)
class Line:
    """
    One line of a plot.

    @ivar label: its name.
    @ivar places: the x values.
    @ivar values: the y values; not a number where unknown.
    @ivar isPartial: for each place whether the recording has only a part of its time; none if places are no moments.
    """

    label: str
    places: Any
    values: Any
    isPartial: Any = None

    @property
    def isRecorded(self) -> bool:
        """
        Whether it shows the recording, not a candidate.
        """
        return self.label == BASELINE

    @property
    def known(self) -> Any:
        """
        The values without unknown ones.
        """
        return self.values[~np.isnan(self.values)]

    @property
    def whole(self) -> Any:
        """
        The known values of steps that the recording has all of; all known ones if there are none of these.
        """
        if self.isPartial is None:
            return self.known
        whole = self.values[~self.isPartial & ~np.isnan(self.values)]
        return whole if len(whole) else self.known

    @property
    def most(self) -> float:
        """
        The largest known value, or zero.
        """
        return float(self.known.max(initial=0))

    @property
    def stepSeconds(self) -> int:
        """
        How much time makes a point, if places are moments.
        """
        return int((self.places[1] - self.places[0]) // np.timedelta64(1, "s")) if len(self.places) > 1 else 60


@frozen(eq=False)
class Timeline:
    """
    The common steps of the lines of a plot.

    @ivar firstSecond: since 1970.
    @ivar stepSeconds: how many make a point.
    @ivar points: the number of points.
    @ivar covered: the first and the last second of the recording; L{None} if unknown.
    """

    firstSecond: int
    stepSeconds: int
    points: int
    covered: tuple[float, float] | None = None

    @classmethod
    def over(
        cls, tables: Sequence[pa.Table | None], leastSeconds: int = 60, covered: tuple[float, float] | None = None
    ) -> Timeline | None:
        """
        The time of some tables with a column C{begin}; L{None} if they have none.

        @param leastSeconds: the length of the time of a row.
        """
        seconds = [_secondsOf(table) for table in tables if table is not None and len(table)]
        if not seconds:
            return None
        first, last = (int(each) for each in (min(each.min() for each in seconds), max(each.max() for each in seconds)))
        lengthSeconds = last - first + leastSeconds
        steps = [each for each in _STEPS_SECONDS if each % leastSeconds == 0]
        step = next((each for each in steps if lengthSeconds <= each * MAX_POINTS), 0)
        step = step or ceil(lengthSeconds / MAX_POINTS / steps[-1]) * steps[-1]
        return cls(first // step * step, step, (last - first // step * step) // step + 1, covered)

    @property
    def moments(self) -> Any:
        return (self.firstSecond + np.arange(self.points) * self.stepSeconds).astype("datetime64[s]")

    @property
    def isPartial(self) -> Any:
        """
        For each point whether the recording begins or ends within it.
        """
        if self.covered is None:
            return np.zeros(self.points, bool)
        begins = self.firstSecond + np.arange(self.points) * self.stepSeconds
        # A recording ends with a request: a step that it all but fills is whole.
        slack = 0.1 * self.stepSeconds
        return (begins < self.covered[0] - slack) | (begins + self.stepSeconds > self.covered[1] + slack)

    def line(self, label: str, values: Any) -> Line:
        return Line(label, self.moments, values, self.isPartial)

    def values(self, table: pa.Table, column: str, add: np.ufunc, nothing: float = np.nan) -> Any:
        """
        The values of a column at each point.

        @param add: brings two together, such as C{np.fmax}.
        @param nothing: the value where there are no rows.
        """
        values = np.full(self.points, nothing)
        points = (_secondsOf(table) - self.firstSecond) // self.stepSeconds
        add.at(values, points, _floats(table[column]))
        return values


@frozen(eq=False)
class Times:
    """
    The closed-loop replays and the recording, by time and run of a server.

    @ivar table: the rows of C{replay_fairness}; empty if there are none.
    @ivar stepSeconds: the length of the time of a row.
    @ivar covered: the first and the last second of the recording; L{None} if unknown.
    """

    table: pa.Table
    stepSeconds: int
    covered: tuple[float, float] | None

    @property
    def isShort(self) -> bool:
        """
        Whether it has few minutes.
        """
        return self.covered is not None and self.covered[1] - self.covered[0] < SHORT_SECONDS

    @classmethod
    def of(cls, results: Results) -> Times:
        table = results.table("replay_fairness", _TIMES.names)
        table = _TIMES.empty_table() if table is None else table
        return cls(only(table, mode=CLOSED), results.says("stepSeconds", int) or 60, coveredBy(results))


def coveredBy(results: Results) -> tuple[float, float] | None:
    """
    The first and the last second of the recording, since 1970; L{None} if that is unknown.
    """
    runs = results.objects("runs")
    try:
        begins, ends = (
            [datetime.fromisoformat(str(each[key])).timestamp() for each in runs] for key in ("begin", "end")
        )
    except (KeyError, ValueError):
        return None
    return (min(begins), max(ends)) if runs else None


def throttleLines(labels: Sequence[str], times: Times) -> list[Line]:
    """
    For how many seconds clients were throttled in each step.

    @param labels: the candidates to show, beside the recording.
    """
    return _lines(labels, times, lambda timeline, table: timeline.values(table, "throttle_us", np.add, 0.0) / 1e6)


def fairnessLines(labels: Sequence[str], times: Times) -> list[Line]:
    """
    Jain's index of the clients' admitted bytes, of the least fair server and time of each step.

    @param labels: the candidates to show, beside the recording.
    """
    return _lines(labels, times, lambda timeline, table: timeline.values(table, "jain_bytes", np.fmin))


def _lines(labels: Sequence[str], times: Times, valuesOf: Callable[[Timeline, pa.Table], Any]) -> list[Line]:
    timeline = Timeline.over([times.table], times.stepSeconds, times.covered)
    if timeline is None:
        return []
    tables = [(label, only(times.table, candidate=label)) for label in (BASELINE, *labels)]
    return [timeline.line(label, valuesOf(timeline, table)) for label, table in tables if len(table)]


def poolLines(
    labels: Sequence[str],
    replays: pa.Table | None,
    recorded: pa.Table | None,
    stepSeconds: int = 60,
    covered: tuple[float, float] | None = None,
) -> list[Line]:
    """
    The most memory allocated, in bytes, by time, from the first request to the last.

    @param replays: C{candidate}, C{begin} and C{used_max_bytes} of C{replay_pool_time}.
    @param recorded: C{begin} and C{used_max} of C{pool_time}.
    @param stepSeconds: the length of the time of a row.
    """
    if recorded is not None and covered is not None:
        # A server measures its pool also while nobody asks anything of it.
        begins = _secondsOf(recorded)
        recorded = recorded.filter(pa.array((begins + stepSeconds > covered[0]) & (begins <= covered[1])))
    timeline = Timeline.over([replays, recorded], stepSeconds, covered)
    lines: list[Line] = []
    if timeline is None:
        return lines
    if recorded is not None:
        lines.append(timeline.line(BASELINE, timeline.values(recorded, "used_max", np.fmax)))
    if replays is not None:
        for label in labels:
            lines.append(
                timeline.line(label, timeline.values(only(replays, candidate=label), "used_max_bytes", np.fmax))
            )
    return lines


def delayLines(labels: Sequence[str], histogram: pa.Table | None) -> list[Line]:
    """
    The share of the requests that a candidate throttles for longer than each delay.

    @param histogram: C{candidate}, C{bucket_us} and C{n} of C{replay_delay_hist}.
    """
    lines: list[Line] = []
    if histogram is None:
        return lines
    bounds = np.unique(pc.drop_null(histogram["bucket_us"]).to_numpy())
    # A delay of zero has no place on a logarithmic scale.
    shown = bounds[bounds > 0]
    for label in labels:
        own = only(histogram, candidate=label)
        counts, total = own["n"].to_numpy(), pc.sum(own["n"]).as_py()
        if total and len(shown):
            upTo = own["bucket_us"].fill_null(np.iinfo(np.int64).max).to_numpy()
            longer = np.array([counts[upTo > bound].sum() for bound in shown])
            lines.append(Line(label, shown / 1e6, longer / total))
    return lines


def busiestBytes(times: Times, isOfAll: bool = False) -> dict[str, int]:
    """
    The bytes that the recording and each candidate admit in the busiest minute of any server, whenever it begins.  Of a
    recording with few minutes it is all bytes: which requests are in one of them is chance.

    @param isOfAll: whether to add up those of all servers: how limits that they enforce together are divided is chance.
    """
    table = times.table
    if isOfAll:
        place = table.schema.get_field_index("broker_id")
        table = table.set_column(place, "broker_id", pa.repeat(pa.scalar("", pa.string()), len(table)))
    steps = grouped(table, ("candidate", "broker_id", "begin"), ("admitted_bytes",))
    window = max(60 // times.stepSeconds, 1)
    most: dict[str, int] = {}
    for label, broker in dict.fromkeys(
        zip(steps["candidate"].to_pylist(), steps["broker_id"].to_pylist(), strict=True)
    ):
        own = only(steps, candidate=label, broker_id=broker)
        seconds, admitted = _secondsOf(own), own["admitted_bytes"].to_numpy()
        places = (seconds - seconds.min()) // times.stepSeconds
        byStep = np.zeros(int(places.max()) + window, np.int64)
        np.add.at(byStep, places, admitted)
        sums = np.concatenate([[0], np.cumsum(byStep)])
        bytes_ = int(sums[-1] if times.isShort else (sums[window:] - sums[:-window]).max())
        most[label] = max(most.get(label, 0), bytes_)
    return most


def _secondsOf(table: pa.Table) -> Any:
    return table["begin"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1_000_000


def _floats(column: Any) -> Any:
    return column.cast(pa.float64()).fill_null(np.nan).to_numpy()
