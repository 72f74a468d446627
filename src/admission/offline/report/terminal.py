# -*- test-case-name: tests.offline.test_report -*-
"""
The verdict for a terminal: a part of the page, with the same numbers under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...plaintext import printable, table
from .answers import CANDIDATE_HEADS, OPEN_LOOP_HEADS, SUMMED, candidateRows, openLoopRows
from .differences import HEADS, differencesOf
from .explanation import DISAGREES, reasonsOf, remediesOf
from .pools import POOL_HEADS, poolRows
from .resultfiles import Results
from .samplewords import sampleOf
from .sharingwords import sharingOf
from .verdict import Verdict

MAX_CLIENTS = 5
MAX_CANDIDATES = 3
"""Of how many candidates the clients that gain and lose are listed, and how many of these."""

_SHOWN = (
    "Candidate",
    "Throttled for",
    "Requests",
    "Requests throttled",
    "Requests refused",
    "Most let through",
    "Forecast",
)
_SHOWN_OF_POOL = ("Pool", "Most taken", "Time without memory", "Requests", "Requests that waited", "Longest wait")


def summaryOf(results: Results, verdict: Verdict) -> str:
    """
    The verdict, what to set, and the tables that say why; the page has more.
    """
    parts = [f"{printable(verdict.gate.sentence)}\n{printable(verdict.advice)}\n"]
    reasons = reasonsOf(results)
    if reasons:
        remedies = [f"{words}\n{f'  {command}{chr(10)}' if command else ''}" for words, command in remediesOf(results)]
        parts.append("".join([f"{DISAGREES}\n", *(f"- {each}\n" for each in reasons), *remedies]))
    parts += [f"{each}\n" for each in (*sharingOf(results), *sampleOf(results))]
    if verdict.standings:
        parts.append(f"{_columns(CANDIDATE_HEADS, candidateRows(verdict), _SHOWN)}{SUMMED}\n")
    for standing in [each for each in verdict.standings or () if each.hasEstimate][:MAX_CANDIDATES]:
        differences = differencesOf(results, standing.label)
        if differences is not None and differences.changed:
            clients = [each.cells() for each in differences.changed[:MAX_CLIENTS]]
            more = differences.beyond(MAX_CLIENTS)
            parts.append(
                f"Under {standing.title} {differences.inWords()}\n"
                + table([HEADS, *clients], "<>>>>>>")
                + (f"{differences.ranOut}\n" if differences.ranOut else "")
                + (f"{more}\n" if more else "")
            )
    openLoop = list(openLoopRows(results))
    if openLoop:
        parts.append(
            "The same offered arrivals, which is no forecast\n" + table([OPEN_LOOP_HEADS, *openLoop], "<>>>>>")
        )
    pools = poolRows(results)
    if len(pools) > 1:
        parts.append(_columns(POOL_HEADS, pools, _SHOWN_OF_POOL))
    return "\n".join(parts)


def _columns(heads: Sequence[str], rows: Iterable[Sequence[str]], wanted: Sequence[str]) -> str:
    places = [heads.index(name) for name in wanted]
    return table([[row[place] for place in places] for row in (heads, *rows)], "<" + ">" * (len(wanted) - 1))
