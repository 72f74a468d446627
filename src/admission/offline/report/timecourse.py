# -*- test-case-name: tests.unit.offline.test_report -*-
"""
Clients over time: how long they are throttled, and whether all are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc
from twisted.web.template import Tag, tags

from ..simulate.decisions import CLOSED
from .elements import Cell, named, section, table
from .lines import RECORDED_LINE, Line, delayLines, fairnessLines, heldLines
from .plots import Plot, figures, timeNote
from .resultfiles import Results, only
from .verdict import Verdict
from .words import count, duration, index, share, shown


def throttlingSection(plots: Sequence[Plot]) -> Tag:
    return section("throttling", "How long, and when", *figures(plots))


def heldPlot(results: Results, verdict: Verdict, minutes: pa.Table | None) -> Plot:
    """
    How long clients are throttled, by minute.
    """
    recorded = results.table("client_minute", ["minute", "throttle_s"])
    lines = heldLines(verdict.forecasts, minutes, recorded)

    def fact(line: Line) -> str:
        return (
            f"{duration(float(line.values.sum() * line.stepMinutes))} in all, at most {duration(line.most)} in a minute"
        )

    return Plot("throttle", "Time throttled, by the minute", "seconds in a minute", lines, fact, note=timeNote(lines))


def delayPlot(results: Results, verdict: Verdict) -> Plot:
    histogram = results.table("replay_delay_hist", ["candidate", "mode", "bucket_us", "n"])
    lines = delayLines(verdict.forecasts, None if histogram is None else only(histogram, mode=CLOSED))

    def fact(line: Line) -> str:
        first = f"{share(float(line.values[0]))} of requests for longer than {duration(float(line.places[0]))}"
        beyond = line.places[line.values == 0]
        if len(beyond):
            return f"{first}, none for longer than {duration(float(beyond[0]))}"
        return f"{first}, {share(float(line.values[-1]))} for longer than {duration(float(line.places[-1]))}"

    return Plot(
        "delays",
        "How long requests are throttled",
        "share of requests",
        lines,
        fact,
        isByDelay=True,
        note="Each line says which share of all requests a candidate asks to be throttled for longer than a time.",
    )


_JAIN = "Jain\N{RIGHT SINGLE QUOTATION MARK}s index"


def fairnessSection(results: Results, verdict: Verdict, plot: Plot) -> Tag:
    """
    Whether all clients are served.

    @param plot: the result of L{fairnessPlot}.
    """
    parts: list[Any] = list(figures([plot]))
    recorded = results.table("fairness_minute", ["starved", "pool_wait_p999_us", "pool_wait_max_us"])
    leasts = {line.label: float(line.known.min()) for line in plot.lines if len(line.known)}
    rows: list[Sequence[Cell]] = []
    if recorded is not None and len(recorded):
        starved, longestSeconds = pc.sum(recorded["starved"]).as_py(), verdict.recorded.longestSeconds
        rows.append((RECORDED_LINE, index(leasts.get(RECORDED_LINE)), count(starved), duration(longestSeconds)))
    for each in verdict.standings or ():
        if each.isForecast:
            starved, longestSeconds = each.starvedMinutes, each.total["most_held_s"]
            name = named(shown(each.label))
            rows.append((name, index(leasts.get(each.label)), count(starved), duration(longestSeconds)))
    if rows:
        heads = ("Candidate", f"Least {_JAIN}", "Minutes of clients without service", "Longest throttled at a time")
        parts.append(table("Fairness and starvation", heads, rows))
    parts.append(
        tags.p(
            "The index is 1 if all clients that want something get as many bytes as each other, and one by their "
            "number if one of them gets all. Who is throttled sends less and so wants less: that is in the time "
            "throttled, not in the index."
        )
    )
    if recorded is not None and len(recorded):
        high, most = (pc.max(recorded[name]).as_py() for name in ("pool_wait_p999_us", "pool_wait_max_us"))
        if most == 0:
            parts.append(tags.p("As recorded, nobody waited for memory."))
        elif most is not None and high is not None:
            parts.append(
                tags.p(
                    f"As recorded, nobody waited for memory longer than {duration(most / 1e6)}; in the worst minute, "
                    f"99.9 % of the requests waited no longer than {duration(high / 1e6)}."
                )
            )
    return section("fairness", "Fairness and starvation", *parts)


def fairnessPlot(results: Results, verdict: Verdict, minutes: pa.Table | None) -> Plot:
    """
    Jain's index, by minute.
    """
    recorded = results.table("fairness_minute", ["minute", "jain_bytes"])

    def fact(line: Line) -> str:
        known = line.known
        if not len(known):
            return "nobody was admitted anything"
        return f"at least {index(float(known.min()))}, mostly about {index(float(np.median(known)))}"

    return Plot(
        "fairness",
        f"{_JAIN} of admitted bytes, by the minute",
        _JAIN,
        lines := fairnessLines(verdict.forecasts, minutes, recorded),
        fact,
        isIndex=True,
        note=timeNote(lines),
    )
