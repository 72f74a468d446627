# -*- test-case-name: tests.unit.offline.test_report -*-
"""
The lines of plots: values by minute and by length of delay, from the results unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from ..simulate.decisions import CLOSED
from .resultfiles import Results, grouped, only

RECORDED_LINE = "as recorded"

MAX_POINTS = 240
"""Longer recordings are shown in steps of several minutes."""

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)

_RUN = ("broker_id", "boot_id")
_CLIENT = ("principal", "client_id")

_MINUTE_COLUMNS = (
    "candidate",
    "mode",
    *_RUN,
    *_CLIENT,
    "minute",
    "requests",
    "refused",
    "barred",
    "demanded_bytes",
    "admitted_bytes",
    "held_us",
)


@frozen(eq=False)
class Line:
    """
    One line of a plot.

    @ivar label: its name.
    @ivar places: the x values.
    @ivar values: the y values; not a number where unknown.
    @ivar isRecorded: whether it shows the recording, not a candidate.
    """

    label: str
    places: Any
    values: Any
    isRecorded: bool = False

    @property
    def known(self) -> Any:
        """
        The values without unknown ones.
        """
        return self.values[~np.isnan(self.values)]

    @property
    def most(self) -> float:
        """
        The largest known value, or zero.
        """
        return float(self.known.max(initial=0))

    @property
    def stepMinutes(self) -> int:
        """
        How many minutes make a point, if places are moments.
        """
        return int((self.places[1] - self.places[0]) // np.timedelta64(1, "m")) if len(self.places) > 1 else 1


@frozen(eq=False)
class Timeline:
    """
    The common minutes of plots.

    @ivar firstMinute: since 1970.
    @ivar stepMinutes: how many make a point.
    @ivar points: the number of points.
    """

    firstMinute: int
    stepMinutes: int
    points: int

    @classmethod
    def over(cls, tables: Sequence[pa.Table | None]) -> Timeline | None:
        """
        The minutes of some tables with a column C{minute}; L{None} if they
        have none.
        """
        minutes = [_minutesOf(table) for table in tables if table is not None and len(table)]
        if not minutes:
            return None
        first, last = min(each.min() for each in minutes), max(each.max() for each in minutes)
        count = int(last - first) + 1
        step = next((each for each in _STEPS if count <= each * MAX_POINTS), ceil(count / MAX_POINTS))
        return cls(int(first) // step * step, step, int(last - int(first) // step * step) // step + 1)

    @property
    def moments(self) -> Any:
        return (self.firstMinute + np.arange(self.points) * self.stepMinutes).astype("datetime64[m]")

    def mean(self, table: pa.Table, column: str) -> Any:
        """
        The sums of a column, per minute; zero where there are no rows.
        """
        values = np.zeros(self.points)
        np.add.at(values, self._points(table), _floats(table[column]))
        return values / self.stepMinutes

    def most(self, table: pa.Table, column: str) -> Any:
        """
        The largest values of a column; none where there are no rows.
        """
        values = np.full(self.points, np.nan)
        np.fmax.at(values, self._points(table), _floats(table[column]))
        return values

    def least(self, table: pa.Table, column: str) -> Any:
        """
        The smallest values of a column; none where there are no rows.
        """
        values = np.full(self.points, np.nan)
        np.fmin.at(values, self._points(table), _floats(table[column]))
        return values

    def _points(self, table: pa.Table) -> Any:
        return (_minutesOf(table) - self.firstMinute) // self.stepMinutes


def replayMinutes(results: Results) -> pa.Table | None:
    """
    The closed-loop replays by minute and client; L{None} if there are none.
    """
    table = results.table("replay_minute", _MINUTE_COLUMNS)
    return None if table is None else only(table, mode=CLOSED)


def heldLines(labels: Sequence[str], replays: pa.Table | None, recorded: pa.Table | None) -> list[Line]:
    """
    For how many seconds clients were throttled in each minute.

    @param labels: the candidates to show.
    @param replays: the result of L{replayMinutes}.
    @param recorded: C{minute} and C{throttle_s} of C{client_minute}.
    """
    timeline = Timeline.over([replays, recorded])
    lines: list[Line] = []
    if timeline is None:
        return lines
    if recorded is not None:
        lines.append(Line(RECORDED_LINE, timeline.moments, timeline.mean(recorded, "throttle_s"), isRecorded=True))
    if replays is not None:
        for label in labels:
            held = timeline.mean(only(replays, candidate=label), "held_us") / 1e6
            lines.append(Line(label, timeline.moments, held))
    return lines


def fairnessLines(labels: Sequence[str], replays: pa.Table | None, recorded: pa.Table | None) -> list[Line]:
    """
    Jain's index of the clients' admitted bytes, of the least fair server and minute of each point.

    @param recorded: C{minute} and C{jain_bytes} of C{fairness_minute}.
    """
    timeline = Timeline.over([replays, recorded])
    lines: list[Line] = []
    if timeline is None:
        return lines
    if recorded is not None:
        lines.append(Line(RECORDED_LINE, timeline.moments, timeline.least(recorded, "jain_bytes"), isRecorded=True))
    if replays is not None:
        for label in labels:
            indexed = jainMinutes(only(replays, candidate=label))
            lines.append(Line(label, timeline.moments, timeline.least(indexed, "jain")))
    return lines


def poolLines(labels: Sequence[str], replays: pa.Table | None, recorded: pa.Table | None) -> list[Line]:
    """
    The most memory allocated, in bytes.

    @param replays: C{candidate}, C{minute} and C{used_max_bytes} of
        C{replay_pool_minute}.
    @param recorded: C{minute} and C{used_max} of C{pool_minute}.
    """
    timeline = Timeline.over([replays, recorded])
    lines: list[Line] = []
    if timeline is None:
        return lines
    if recorded is not None:
        lines.append(Line(RECORDED_LINE, timeline.moments, timeline.most(recorded, "used_max"), isRecorded=True))
    if replays is not None:
        for label in labels:
            used = timeline.most(only(replays, candidate=label), "used_max_bytes")
            lines.append(Line(label, timeline.moments, used))
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


def jainMinutes(replays: pa.Table) -> pa.Table:
    """
    Jain's index of the bytes admitted to each client with any demand, by server and minute, as
    L{admission.offline.aggregate} computes it.

    @return: C{minute} and C{jain}, null if no client was admitted anything.
    """
    place = (*_RUN, "minute")
    clients = grouped(replays, (*place, *_CLIENT), ("demanded_bytes", "admitted_bytes"))
    clients = clients.filter(pc.greater(clients["demanded_bytes"], 0))
    admitted = clients["admitted_bytes"].cast(pa.float64())
    clients = clients.append_column("squared", pc.multiply(admitted, admitted))
    clients = clients.append_column("one", pa.array(np.ones(len(clients))))
    minutes = grouped(clients, place, ("admitted_bytes", "squared", "one"))
    total, squared, number = (_floats(minutes[name]) for name in ("admitted_bytes", "squared", "one"))
    jain = np.divide(total * total, number * squared, out=np.zeros(len(minutes)), where=squared > 0)
    return pa.table({"minute": minutes["minute"], "jain": pa.array(jain, mask=squared == 0)})


def busiestBytes(replays: pa.Table) -> dict[str, int]:
    """
    The bytes that each candidate admits in the busiest minute of any server.
    """
    minutes = grouped(replays, ("candidate", "broker_id", "minute"), ("admitted_bytes",))
    most = grouped(minutes, ("candidate",), (), ("admitted_bytes",))
    return dict(zip(most["candidate"].to_pylist(), most["admitted_bytes"].to_pylist(), strict=True))


def starvedMinutes(replays: pa.Table) -> dict[str, int]:
    """
    The number of minutes, added up over clients, in which each candidate admits nothing to a client with a demand.
    """
    clients = grouped(replays, ("candidate", *_RUN, "minute", *_CLIENT), ("requests", "refused", "barred"))
    isStarved = pc.equal(clients["requests"], pc.add(clients["refused"], clients["barred"]))
    clients = clients.append_column("starved", isStarved.cast(pa.int64()))
    starved = grouped(clients, ("candidate",), ("starved",))
    return dict(zip(starved["candidate"].to_pylist(), starved["starved"].to_pylist(), strict=True))


def _minutesOf(table: pa.Table) -> Any:
    return table["minute"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 60_000_000


def _floats(column: Any) -> Any:
    return column.cast(pa.float64()).fill_null(np.nan).to_numpy()
