# -*- test-case-name: tests.offline.test_report -*-
"""
What a sample of the clients says of all clients, in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..simulate.estimates import MAX_ERROR, MAX_LEFT_OUT, STANDARD_ERRORS
from .resultfiles import Results
from .words import count, duration, share, shown

MAX_CANDIDATES = 10
"""Of how many candidates it is told."""


def sampleOf(results: Results) -> list[str]:
    """
    The estimates for all clients; nothing if all were taken.
    """
    sample, found = results.says("sample", str), results.objects("estimates")
    if sample is None or not found:
        return []
    ofWhat = f"All numbers are of a sample, {shown(sample)} of the clients."
    left = results.says("largestLeftOut", float) or 0.0
    if left > MAX_LEFT_OUT:
        return [
            f"{ofWhat} They say nothing of all clients, since one that is left out sent {share(left)} of the requests."
        ]
    labels = dict.fromkeys(str(each.get("candidate")) for each in found)
    lines = [f"{ofWhat} Of all clients they say this, within {STANDARD_ERRORS:g} standard errors:"]
    for label in [*labels][:MAX_CANDIDATES]:
        columns = {each.get("column"): each for each in found if each.get("candidate") == label}
        lines.append(f"All clients, {shown(label)}: {', '.join(_parts(columns))}.")
    return lines


def _parts(columns: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    for column, words, form in (
        ("throttle_s", "throttled for", duration),
        ("throttled", "requests throttled:", count),
        ("refused", "requests refused:", count),
    ):
        each = columns.get(column, {})
        error = each.get("error")
        if error is None:
            yield f"{words} none in the sample"
        elif error > MAX_ERROR:
            yield f"{words} not known, since the sample is too small (± {share(error)})"
        else:
            yield f"{words} {form(each.get('total'))} ± {share(error)}"
