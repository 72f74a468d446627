# -*- test-case-name: tests.offline.test_report -*-
"""
Whether the recording and the policies were right: the identity gate, what is missing, and the audits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc
from twisted.web.template import Tag, tags

from ...metrics.histogram import SECONDS_BOUNDS
from ..missing import Missing
from ..simulate.identity import MIN_MATCHING
from .elements import Cell, absent, beside, bullets, named, section, table
from .resultfiles import Results, Row, grouped
from .verdict import GateOutcome
from .words import NOTHING, client, count, duration, plural, share, shown, size

MAX_ROWS = 20

_METER = ("user", "client_id", "ip")
_MEASURES = {"bytes": ("bytes", size), "requests": ("requests", count), "throttle_s": ("throttle time told", duration)}


def recordedSection(results: Results) -> Tag:
    """
    The most active clients, and how often policies asked for delays.
    """
    title = "What was recorded"
    top = results.rows("top_clients", ["measure", "rank", "principal", "client_id", "value", "share"])
    histogram = results.table("throttle_hist", ["policy", "bucket_ms", "n", "refused"])
    parts: list[Any] = []
    for measure, (words, written) in _MEASURES.items():
        rows = sorted((row for row in top or () if row["measure"] == measure), key=lambda row: row["rank"])
        if rows:
            heads = ("Client", words.capitalize(), "Of all")
            cells = ((_client(row), written(row["value"]), share(row["share"])) for row in rows)
            parts.append([table(f"Clients with the most {words}", heads, cells)])
    if histogram is not None and len(histogram):
        columns = ("Policy", "Asked about", "Asked for a delay", "Refused", "Longest delay")
        parts.append([table("What each policy said, shadow policies included", columns, _policyRows(histogram))])
    return section("recorded", title, beside(*parts) if parts else absent("The recording was not summed up."))


def gateSection(gate: GateOutcome) -> Tag:
    """
    How far replays of the policies in force agree with the recording.
    """
    parts: list[Any] = [
        tags.p(
            "Each policy that was in force is replayed as if it were a candidate. Where that does not say what was "
            f"recorded in {share(MIN_MATCHING)} of the decisions, each delay to a millisecond, "
            "nothing that a replay says of candidates in its place is to be believed."
        )
    ]
    if gate.fidelities:
        columns = (
            "Policy",
            "Run of a server",
            "Believed",
            "Agreement",
            "Compared",
            "Throttled",
            "Refused",
            "Off by",
            "Gaps",
            "Missing",
        )
        shownOnes = gate.fidelities[:MAX_ROWS]
        rows = (
            (
                named(shown(each.candidate)),
                _run(each.brokerId, each.bootId),
                "yes" if each.isTrusted else "no",
                f"{each.matchShare * 100:.3f} %",
                count(each.compared),
                count(each.throttled),
                count(each.refused),
                f"{each.meanErrorMs:.3f} ms",
                count(each.seqGaps),
                count(each.missing),
            )
            for each in shownOnes
        )
        parts.append(table("The identity gate, closed loop: the worst first", columns, rows, words=3))
        parts += _more(len(gate.fidelities) - len(shownOnes))
    else:
        parts.append(absent(gate.sentence))
    return section("gate", "The identity gate", *parts)


def missingSection(results: Results, gate: GateOutcome) -> Tag:
    """
    What is missing or invalid in the recording.
    """
    broken = results.rows("broken_rows", ["table", "n", "rows", "words"])
    notes: list[Any] = [*_lossNotes(results, gate)]
    notes += [
        (
            f"{count(row['n'])} of {plural(row['rows'], 'row')} of ",
            named(shown(row["table"])),
            f" left out: {shown(row['words'])}.",
        )
        for row in broken or ()
        if row["n"]
    ]
    title = "What is missing"
    if notes:
        return section("missing", title, bullets(notes))
    if broken is None:
        return section("missing", title, absent("Nobody has looked for rows that cannot be."))
    return section("missing", title, tags.p("Nothing: no gaps, and no rows that cannot be."))


def auditSection(results: Results) -> Tag:
    """
    The audits of the producer-id filter, the quotas and the ledger.
    """
    return section(
        "audit",
        "Audits",
        beside(
            [tags.h3("The filter of producer ids"), *_bloomParts(results)],
            [tags.h3("Quotas"), *_quotaParts(results)],
            [tags.h3("The ledger of memory"), *_ledgerParts(results)],
        ),
    )


def _lossNotes(results: Results, gate: GateOutcome) -> Iterator[str]:
    missing = Missing.of(results.evaluation)
    if missing.share:
        yield f"{missing.inWords().capitalize()}."
    yield from missing.causes()
    gaps = results.says("seqGaps", int) or max((each.seqGaps for each in gate.fidelities), default=0)
    if gaps:
        yield (
            f"Events are missing in {plural(gaps, 'place')}. What policies would have made of them is not known, nor "
            "what that would have changed later."
        )
    totals = results.rows("replay_summary", ["requests", "poisoned"]) or ()
    afterGap = max((row["poisoned"] / row["requests"] for row in totals if row["requests"]), default=0.0)
    if afterGap:
        yield f"Up to {share(afterGap)} of a candidate's requests come after missing events that may matter to it."


def _bloomParts(results: Results) -> Iterator[Tag]:
    counted = ("asked", "exact_new", "slack", "restored", "fp", "fn")
    audited = results.table("bloom_audit", ["principal", *counted])
    if audited is None:
        yield absent("The filter was not audited.")
        return
    if not len(audited):
        yield absent("No filter was asked about anybody.")
        return
    users = grouped(audited, ("principal",), counted).sort_by([("fp", "descending"), ("principal", "ascending")])
    asked, new, slack, restored, fp, fn = (pc.sum(users[name]).as_py() for name in counted)
    certain = new - slack - restored
    yield tags.p(
        f"Asked {plural(asked, 'time')}, the filter took {count(fp)} of {count(certain)} new producers for known "
        f"({share(fp / certain) if certain else NOTHING}) and {count(fn)} known ones for new"
        f"{', which it never should' if fn else ''}."
    )
    yield table(
        "Users with the most mistakes",
        ("User", "Asked about", "New", "Taken for known", "Known, taken for new"),
        (
            (named(shown(row["principal"])), *(count(row[name]) for name in ("asked", "exact_new", "fp", "fn")))
            for row in users.slice(0, MAX_ROWS).to_pylist()
        ),
    )
    yield from _more(len(users) - MAX_ROWS)


def _quotaParts(results: Results) -> Iterator[Tag]:
    after = ("overshoot_after_throttle_p99", "overshoot_after_throttle_max")
    columns = ("limit_name", *_METER, "limit", "spans", "utilization_p99", "utilization_max", *after)
    meters = results.table("quota_summary", columns)
    if meters is None:
        yield absent("Quotas were not audited.")
        return
    if not len(meters):
        yield absent("Nobody had a limit.")
        return
    worst = pc.max(meters["overshoot_after_throttle_max"]).as_py()
    yield tags.p(
        f"Once their delays have had their effect, quotas are exceeded by {share(worst)} at most."
        if worst is not None
        else "Nobody was throttled for a quota."
    )
    order = [(after[1], "descending"), ("utilization_max", "descending"), ("limit_name", "ascending"),
             *((name, "ascending") for name in _METER)]  # fmt: skip
    heads = (
        "Whose",
        "Limit",
        "Value",
        "Spans of time",
        "Use, 99 % up to",
        "Most",
        "Excess after delays, 99 % up to",
        "Most",
    )
    rows = (
        (
            named(_meter(row)),
            shown(row["limit_name"]),
            f"{row['limit']:,.10g}",
            count(row["spans"]),
            *(share(row[name]) for name in ("utilization_p99", "utilization_max", *after)),
        )
        for row in meters.sort_by(order).slice(0, MAX_ROWS).to_pylist()
    )
    yield table("Limits by what was exceeded", heads, rows, words=2)
    yield from _more(len(meters) - MAX_ROWS)


def _ledgerParts(results: Results) -> Iterator[Tag]:
    columns = ("base_bytes", "peak_private_bytes", "peak_ledger_bytes", "imports_bytes", "peak_unexplained_bytes")
    runs = results.table("ledger_summary", ["broker_id", "boot_id", *columns, "leaked_bytes"])
    if runs is None:
        yield absent("The ledger was not audited.")
        return
    if not len(runs):
        yield absent("Nobody has sampled the memory of the process.")
        return
    yield tags.p(
        "What the process takes at its largest, without mapped files. Beyond what it took in the beginning, the ledger "
        "and modules that Python imported explain it; each module is imported once. The rest is unexplained. A leak "
        "goes on growing: then more is unexplained in the second half of the time than in the first."
    )
    heads = (
        "Run of a server",
        "In the beginning",
        "At its largest",
        "In the ledger",
        "Imports",
        "Unexplained",
        "Still growing",
    )
    order = [(name, "descending") for name in ("leaked_bytes", "peak_unexplained_bytes")]
    rows = (
        (_run(row["broker_id"], row["boot_id"]), *(size(row[name]) for name in (*columns, "leaked_bytes")))
        for row in runs.sort_by(order).slice(0, MAX_ROWS).to_pylist()
    )
    yield table("Memory of each run", heads, rows)
    yield from _more(len(runs) - MAX_ROWS)


def _policyRows(histogram: pa.Table) -> Iterator[Sequence[Cell]]:
    # Of runs without policies there is a row without one.
    for policy in sorted(filter(None, set(histogram["policy"].to_pylist()))):
        own = histogram.filter(pc.equal(histogram["policy"], policy)).to_pylist()
        asked, refused = (sum(row[name] for row in own) for name in ("n", "refused"))
        delayed = {row["bucket_ms"]: row["n"] - row["refused"] for row in own if row["bucket_ms"] != 0}
        yield (
            named(shown(policy)),
            count(asked),
            *(f"{count(n)} ({share(n / asked) if asked else NOTHING})" for n in (sum(delayed.values()), refused)),
            _longest([bound for bound, n in delayed.items() if n]),
        )


def _longest(boundsMs: Sequence[int | None]) -> str:
    """
    Between which bounds the longest delay is: only that was counted.
    """
    if not boundsMs:
        return NOTHING
    most = min((bound for bound in SECONDS_BOUNDS if all(ms and ms <= bound * 1000 for ms in boundsMs)), default=None)
    if most is None:
        return f"more than {duration(SECONDS_BOUNDS[-1])}"
    return f"{duration(max((bound for bound in SECONDS_BOUNDS if bound < most), default=0))} to {duration(most)}"


def _client(row: Row) -> Tag:
    return named(client(row["principal"], row["client_id"]))


def _meter(row: Row) -> str:
    words = {"user": "user", "client_id": "client id", "ip": "address"}
    return ", ".join(f"{words[name]} {shown(row[name]) or 'none'}" for name in _METER if row[name] is not None)


def _run(brokerId: str, bootId: str) -> Tag:
    return named(f"{shown(bootId)} of broker {shown(brokerId)}")


def _more(number: int) -> list[Tag]:
    return [absent(f"{plural(number, 'more is', 'more are')} in the files.")] if number > 0 else []
