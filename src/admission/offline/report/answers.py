# -*- test-case-name: tests.unit.offline.test_report -*-
"""
The answers: which candidate to prefer, and how long each would have throttled each client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc
from twisted.web.template import Tag, tags

from ..simulate.decisions import CLOSED, OPEN
from ..simulate.totals import TOTAL_COLUMNS
from ..simulate.trials import RECORDED
from .elements import Cell, absent, bullets, named, section, table
from .resultfiles import Results, grouped, only
from .verdict import Standing, Verdict
from .words import NOTHING, client, count, duration, plural, share, shown, size

MAX_CLIENTS = 10
"""The number of clients listed under each candidate."""

MAX_NAMED = 3
"""The number of clients named in the verdict."""

_CLIENT = ("principal", "client_id")
_CLIENT_COLUMNS = ("candidate", "mode", *_CLIENT, "requests", "throttled", "refused", "held_s", "most_held_s")


def verdictSection(results: Results, verdict: Verdict) -> Tag:
    gate = verdict.gate
    parts = [tags.p(gate.sentence, class_=f"trust {gate.trust.value}"), tags.p(verdict.sentence, class_="answer")]
    if verdict.best is not None:
        parts += _whom(results, verdict.best)
    if verdict.standings:
        parts.append(_candidateTable(verdict))
        objections = [
            (tags.strong(named(shown(each.label))), f": {objection}.")
            for each in verdict.standings
            for objection in each.objections
        ]
        if objections:
            parts += [tags.h3("What speaks against candidates"), bullets(objections)]
    return section("verdict", "What to make of it", *parts)


def clientsSection(results: Results, verdict: Verdict) -> Tag:
    title = "Who would have been throttled"
    clients = _replayed(results)
    if clients is None or not verdict.standings:
        return section("clients", title, absent("No candidate was replayed closed loop."))
    recorded = _recordedSeconds(results)
    parts: list[Any] = []
    for standing in verdict.standings:
        parts.append(tags.h3(named(shown(standing.label))))
        if standing.isForecast:
            parts += _clientParts(standing, only(clients, candidate=standing.label), recorded)
        else:
            parts.append(absent(f"{standing.objections[0].capitalize()}."))
    return section("clients", title, *parts)


def openLoopSection(results: Results) -> Tag:
    """
    The candidates' decisions about the recorded arrivals.
    """
    title = "The same offered arrivals"
    columns = ["candidate", "mode", *(name for name, _ in TOTAL_COLUMNS)]
    totals = results.rows("replay_summary", columns, mode=OPEN)
    if not totals:
        return section("open-loop", title, absent("No candidate was replayed open loop."))
    rows = [
        (
            named(shown(row["candidate"])),
            duration(row["throttle_s"]),
            duration(row["most_delay_s"]),
            _part(row["throttled"], row["requests"]),
            count(row["refused"]),
        )
        for row in totals
        if not row["candidate"].startswith(RECORDED)
    ]
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
            "Delays for the same offered arrivals",
            ("Candidate", "Delays in all", "Longest delay", "Requests throttled", "Refused"),
            rows,
        ),
    )


def _candidateTable(verdict: Verdict) -> Tag:
    recorded = verdict.recorded
    rows: list[Sequence[Cell]] = []
    if recorded.heldSeconds is not None or recorded.busiestBytes is not None:
        rows.append(
            (
                "as recorded",
                duration(recorded.heldSeconds),
                NOTHING,
                duration(recorded.longestSeconds),
                *[NOTHING] * 3,
                size(recorded.busiestBytes),
                NOTHING,
            )
        )
    rows += [_candidateRow(each, recorded.heldSeconds) for each in verdict.standings or ()]
    return table(
        "The candidates, closed loop: the cheapest first",
        (
            "Candidate",
            "Clients throttled in all",
            "Against recorded",
            "Longest at a time",
            "99 % of its delays up to",
            "Requests it throttles",
            "Requests it refuses",
            "Busiest minute lets through",
            "Connections that ran out of requests",
        ),
        rows,
    )


def _candidateRow(standing: Standing, recordedSeconds: float | None) -> Sequence[Cell]:
    total = standing.total
    label = named(shown(standing.label))
    exhausted = share(total["exhausted_share"])
    if not standing.isForecast:
        return label, "no point estimate", *[NOTHING] * 6, exhausted
    difference = None if recordedSeconds is None else standing.heldSeconds - recordedSeconds
    return (
        label,
        duration(standing.heldSeconds),
        duration(difference) if difference is None or difference <= 0 else f"+{duration(difference)}",
        duration(total["most_held_s"]),
        duration(total["p99_delay_s"]),
        _part(total["throttled"], total["requests"]),
        count(total["refused"]),
        size(standing.busiestBytes),
        exhausted,
    )


def _clientParts(
    standing: Standing, clients: pa.Table, recorded: Mapping[tuple[str, str], float] | None
) -> Iterator[Tag]:
    held = _longest(clients)
    total = pc.sum(held["held_s"]).as_py() or 0.0
    yield tags.p(
        f"{plural(len(held), 'client')} of {count(len(clients))} throttled, for {duration(total)} all together."
    )
    if not len(held):
        return
    rows = [
        (
            named(client(row["principal"], row["client_id"])),
            duration(row["held_s"]),
            share(row["held_s"] / total),
            duration(row["most_held_s"]),
            _part(row["throttled"] + row["refused"], row["requests"]),
            duration(None if recorded is None else recorded.get((row["principal"], row["client_id"]), 0.0)),
        )
        for row in held.slice(0, MAX_CLIENTS).to_pylist()
    ]
    yield table(
        f"Clients that {shown(standing.label)} throttles longest",
        ("Client", "Throttled", "Of all", "Longest at a time", "Of its requests", "As recorded"),
        rows,
    )


def _whom(results: Results, best: Standing) -> Iterator[Tag]:
    clients = _replayed(results)
    if clients is None:
        return
    held = _longest(only(clients, candidate=best.label))
    worst: list[Any] = []
    for row in held.slice(0, MAX_NAMED).to_pylist():
        worst += [
            "; " if worst else "",
            named(client(row["principal"], row["client_id"])),
            f": {duration(row['held_s'])}",
        ]
    if worst:
        yield tags.p("It would have throttled longest ", worst, ".")


def _replayed(results: Results) -> pa.Table | None:
    clients = results.table("replay_client", _CLIENT_COLUMNS)
    return None if clients is None else only(clients, mode=CLOSED)


def _longest(clients: pa.Table) -> pa.Table:
    order = [("held_s", "descending"), *((name, "ascending") for name in _CLIENT)]
    return clients.filter(pc.greater(clients["held_s"], 0)).sort_by(order)


def _recordedSeconds(results: Results) -> dict[tuple[str, str], float] | None:
    minutes = results.table("client_minute", [*_CLIENT, "throttle_s"])
    if minutes is None:
        return None
    clients = grouped(minutes, _CLIENT, ("throttle_s",))
    return {(row["principal"], row["client_id"]): row["throttle_s"] for row in clients.to_pylist()}


def _part(number: int, whole: int) -> str:
    return f"{count(number)} ({share(number / whole)})" if whole else count(number)
