# -*- test-case-name: tests.offline.test_report -*-
"""
Clients over time: how long they are throttled, and whether all are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyarrow import compute as pc  # type: ignore[import-untyped]
from twisted.web.template import Tag, tags

from ..simulate.decisions import CLOSED
from ..simulate.trials import BASELINE
from .elements import Cell, beside, named, section, table
from .lines import Line, Times, delayLines, fairnessLines, throttleLines
from .plots import Plot, figures, timeNote
from .resultfiles import Results, only
from .verdict import Verdict
from .words import count, duration, index, share, shown


def throttlingSection(plots: Sequence[Plot]) -> Tag:
    return section("throttling", "How long, and when", *figures(plots))


def throttlePlot(verdict: Verdict, times: Times) -> Plot:
    """
    How long clients are throttled, by time.
    """
    lines = throttleLines(verdict.estimates, times)
    step = duration(max((line.stepSeconds for line in lines), default=60))

    def fact(line: Line) -> str:
        return f"throttled for {duration(float(line.values.sum()))} in all, at most {duration(line.most)} in {step}"

    title = "Throttled for, summed over connections, by time"
    return Plot("throttle", title, f"seconds in {step}", lines, fact, note=timeNote(lines))


def delayPlot(results: Results, verdict: Verdict) -> Plot:
    histogram = results.table("replay_delay_hist", ["candidate", "mode", "bucket_us", "n"])
    lines = delayLines([BASELINE, *verdict.estimates], None if histogram is None else only(histogram, mode=CLOSED))
    known = [each for each in (verdict.recorded, *(verdict.standings or ())) if each is not None]
    longest = {each.label: each.total["most_throttle_s"] for each in known}

    def fact(line: Line) -> str:
        first = f"{share(float(line.values[0]))} of requests for longer than {duration(float(line.places[0]))}"
        return f"{first}, the longest for {duration(longest[line.label])}" if line.label in longest else first

    return Plot(
        "delays",
        "How long requests are throttled",
        "share of requests",
        lines,
        fact,
        isByDelay=True,
        note="Each line is the share of all requests that are throttled for longer than a time.",
    )


_JAIN = "(Jain\N{RIGHT SINGLE QUOTATION MARK}s index)"


def fairnessSection(results: Results, verdict: Verdict, plot: Plot) -> Tag:
    """
    Whether all clients are served.

    @param plot: the result of L{fairnessPlot}.
    """
    parts: list[Any] = []
    recorded = results.table("fairness_minute", ["pool_wait_p999_us", "pool_wait_max_us"])
    leasts = {line.label: float(line.whole.min()) for line in plot.lines if len(line.known)}
    estimates = [each for each in verdict.standings or () if each.hasEstimate]
    rows: list[Sequence[Cell]] = [
        (
            named(shown(each.label)),
            index(leasts.get(each.label)),
            count(each.starvedMinutes),
            duration(each.total["most_throttle_s"]),
        )
        for each in [*([] if verdict.recorded is None else [verdict.recorded]), *estimates]
    ]
    if rows:
        heads = ("Candidate", f"Least evenness {_JAIN}", "Minutes of clients without service", "Longest at a time")
        parts.append(table("Fairness and starvation", heads, rows))
    parts.append(
        tags.p(
            "Evenness is 1 if all clients that want something get the same number of bytes, and 1/n if one of n "
            "clients gets all. The least is that of steps of which the recording has all. A client that is throttled "
            "sends less and so wants less: that is in the time throttled, not in the index."
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
    return section("fairness", "Fairness and starvation", beside(list(figures([plot])), parts))


def fairnessPlot(verdict: Verdict, times: Times) -> Plot:
    """
    Evenness, by time.
    """
    lines = fairnessLines(verdict.estimates, times)

    def fact(line: Line) -> str:
        if not len(line.known):
            return "nobody was admitted anything"
        return f"at least {index(float(line.whole.min()))}, median {index(float(np.median(line.whole)))}"

    return Plot(
        "fairness",
        f"Evenness {_JAIN} of admitted bytes, by time",
        f"evenness {_JAIN}",
        lines,
        fact,
        isIndex=True,
        note=timeNote(lines),
    )
