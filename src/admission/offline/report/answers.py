# -*- test-case-name: tests.offline.test_report -*-
"""
The answers: what to set, and who gains and who loses under each candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from twisted.web.template import Tag, tags

from ..simulate.decisions import OPEN
from ..simulate.totals import TOTAL_COLUMNS
from ..simulate.trials import RECORDED
from .differences import HEADS, Differences, differencesOf, signed
from .elements import absent, beside, bullets, named, section, table
from .explanation import DISAGREES, reasonsOf, remediesOf
from .resultfiles import Results
from .samplewords import sampleOf
from .sharingwords import sharingOf
from .verdict import Standing, Verdict
from .words import NOTHING, count, duration, share, shown, size

MAX_CLIENTS = 20
"""The number of clients listed for each candidate."""

CANDIDATE_HEADS = (
    "Candidate",
    "Throttled for",
    "Difference",
    "Longest at a time",
    "99 % throttled up to",
    "Requests",
    "Requests throttled",
    "Requests refused",
    "Most let through",
    "Connections that ran out",
    "Forecast",
)
"""The columns of L{candidateRows}."""


SUMMED = "Times are summed over connections, so that they may be longer than the recording."
"""What to know of the column C{Throttled for}."""

OPEN_LOOP_HEADS = (
    "Candidate",
    "Throttled for",
    "Longest at a time",
    "Requests",
    "Requests throttled",
    "Requests refused",
)
"""The columns of L{openLoopRows}."""


def verdictSection(results: Results, verdict: Verdict) -> Tag:
    gate = verdict.gate
    trust = "partly" if gate.untrusted else gate.trust.value
    words = [tags.p(gate.sentence, class_=f"trust {trust}"), tags.p(verdict.advice, class_="answer")]
    reasons = reasonsOf(results)
    if reasons:
        words += [tags.h3(DISAGREES), bullets(map(named, reasons))]
    for remedy, command in remediesOf(results):
        words += [tags.p(named(remedy)), *([tags.pre(named(command))] if command else [])]
    words += [tags.p(named(each)) for each in (*sharingOf(results), *sampleOf(results))]
    tables = []
    if verdict.standings:
        rows = ((named(name), *cells) for name, *cells in candidateRows(verdict))
        tables += [table("Candidates and what was recorded, closed loop", CANDIDATE_HEADS, rows), tags.p(SUMMED)]
        objections = [
            (tags.strong(named(shown(each.label))), f": {objection}.")
            for each in verdict.standings
            for objection in each.objections
        ]
        if objections:
            words += [tags.h3("What speaks against candidates"), bullets(objections)]
    return section("verdict", "What to set", beside(words, tables))


def clientsSection(results: Results, verdict: Verdict) -> Tag:
    title = "Who gains and who loses"
    if not verdict.standings:
        return section("clients", title, absent("No candidate was replayed closed loop."))
    parts: list[list[Any]] = []
    for standing in verdict.standings:
        part: list[Any] = [tags.h3(named(standing.title))]
        differences = differencesOf(results, standing.label) if standing.hasEstimate else None
        if differences is not None:
            part += _differenceParts(standing.label, differences)
        elif not standing.hasEstimate:
            part.append(absent(f"{standing.objections[0].capitalize()}."))
        parts.append(part)
    return section("clients", title, beside(*parts))


def openLoopSection(results: Results) -> Tag:
    """
    The candidates' decisions about the recorded arrivals.
    """
    title = "The same offered arrivals"
    rows = list(openLoopRows(results))
    if not rows:
        return section("open-loop", title, absent("No candidate was replayed open loop."))
    return section(
        "open-loop",
        title,
        tags.p(
            "This is no forecast. Every request is put to the candidate when it was sent in the recording, as if a "
            "client that is throttled went on sending all the same. Clients do not, so that these figures may be wrong "
            "by a factor of a hundred and more. They say how a candidate would take just these arrivals.",
            class_="same",
        ),
        table(
            "Candidates for the same offered arrivals",
            OPEN_LOOP_HEADS,
            ((named(name), *cells) for name, *cells in rows),
        ),
    )


def candidateRows(verdict: Verdict) -> Iterator[Sequence[str]]:
    """
    The recording and each candidate, in the columns L{CANDIDATE_HEADS}.
    """
    recorded = verdict.recorded
    if recorded is not None:
        yield _candidateRow(recorded, recorded, NOTHING)
    for each in verdict.standings or ():
        forecast = "for the same requests" if each.isForSameRequests and each.hasEstimate else "no"
        if each.isForecast and not each.isForSameRequests:
            forecast = "approximate" if each.total["is_approximate"] else "yes"
        if each.isUntrusted:
            forecast = "untrusted"
        if each.hasEstimate:
            yield _candidateRow(each, recorded, forecast)
        else:
            ranOut = share(each.total["exhausted_share"])
            yield shown(each.label), "no point estimate", *[NOTHING] * 7, ranOut, forecast


def openLoopRows(results: Results) -> Iterator[Sequence[str]]:
    """
    The candidates' decisions about the recorded arrivals, in the columns L{OPEN_LOOP_HEADS}.
    """
    columns = ["candidate", "mode", *(name for name, _ in TOTAL_COLUMNS)]
    for row in results.rows("replay_summary", columns, mode=OPEN) or ():
        if not row["candidate"].startswith(RECORDED):
            yield (
                shown(row["candidate"]),
                duration(row["throttle_s"]),
                duration(row["most_throttle_s"]),
                count(row["requests"]),
                count(row["throttled"]),
                count(row["refused"]),
            )


def _candidateRow(standing: Standing, recorded: Standing | None, forecast: str) -> Sequence[str]:
    total = standing.total
    return (
        shown(standing.label),
        duration(standing.throttleSeconds),
        signed(None if recorded is None else standing.throttleSeconds - recorded.throttleSeconds),
        duration(total["most_throttle_s"]),
        duration(total["p99_throttle_s"]),
        count(total["requests"]),
        _part(total["throttled"], total["requests"]),
        _part(total["refused"], total["requests"]),
        size(standing.busiestBytes),
        share(total["exhausted_share"]),
        forecast,
    )


def _differenceParts(label: str, differences: Differences) -> Iterator[Tag]:
    words = differences.inWords()
    yield tags.p(f"{words[0].upper()}{words[1:]}")
    if differences.changed:
        rows = ((named(name), *cells) for name, *cells in (each.cells() for each in differences.changed[:MAX_CLIENTS]))
        yield table(f"Clients that gain or lose under {shown(label)}: the largest difference first", HEADS, rows)
        if differences.ranOut:
            yield absent(differences.ranOut)
    more = differences.beyond(MAX_CLIENTS)
    if more:
        yield absent(more)


def _part(number: int, whole: int) -> str:
    return f"{count(number)} ({share(number / whole)})" if whole else count(number)
