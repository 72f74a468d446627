# -*- test-case-name: tests.unit.offline.test_report -*-
"""
How long clients are throttled, and when.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from twisted.web.template import Tag

from ..replay.decisions import CLOSED
from .elements import section
from .lines import Line, delayLines, heldLines
from .plots import Plot, figures, timeNote
from .results import Results, only
from .verdict import Verdict
from .words import duration, share


def throttlingSection(plots: Sequence[Plot]) -> Tag:
    """
    How clients are throttled in the course of time.
    """
    return section("throttling", "How long, and when", *figures(plots))


def heldPlot(results: Results, verdict: Verdict, minutes: pa.Table | None) -> Plot:
    """
    For how long clients are throttled, by the minute.
    """
    recorded = results.table("client_minute", ["minute", "throttle_s"])
    lines = heldLines(verdict.forecasts, minutes, recorded)

    def fact(line: Line) -> str:
        return (
            f"{duration(float(line.values.sum() * line.stepMinutes))} in all, at most {duration(line.most)} in a minute"
        )

    return Plot("throttle", "Time throttled, by the minute", "seconds in a minute", lines, fact, note=timeNote(lines))


def delayPlot(results: Results, verdict: Verdict) -> Plot:
    """
    How long delays are.
    """
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
