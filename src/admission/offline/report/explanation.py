# -*- test-case-name: tests.offline.test_report -*-
"""
Why replays cannot be trusted: where they disagree with the recording, and what to do about it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...plaintext import printable
from ..missing import Missing
from ..simulate.trials import RECORDED
from .resultfiles import Results
from .words import client, count, enumerated, plural, shown

MAX_REASONS = 5
"""Of how many policies and runs is told, those with the most disagreements."""

DISAGREES = "Where the replay disagrees with the recording"
"""The title of L{reasonsOf}."""

_LONGEST_CAUSE = 500


def reasonsOf(results: Results) -> list[str]:
    """
    Where each policy in force disagrees, and the likely cause, in sentences.
    """
    found = results.objects("disagreements")
    more = len(found) - MAX_REASONS
    rest = [f"{plural(more, 'more policy and run', 'more policies and runs')} of a server: see evaluation.json."]
    return [_reason(each) for each in found[:MAX_REASONS]] + (rest if more > 0 else [])


def remediesOf(results: Results) -> Iterator[tuple[str, str]]:
    """
    What to do, each as a sentence and a command, which may be empty.
    """
    untrusted, narrower = results.says("untrusted", list), results.says("narrower", dict)
    if not untrusted or not results.says("disagreements", list) or Missing.of(results.evaluation).isTooMuch:
        return
    if narrower is not None:
        yield (
            "Evaluate the part without these disagreements: that was tried, and the replay agrees with it.",
            _command(results, narrower, ()),
        )
    else:
        yield "No part before or after these disagreements was found with which the replay agrees.", ""
    others = [each for each in results.objects("candidates") if each.get("label") not in untrusted]
    if others:
        given = {name: results.says(name, str) for name in ("since", "until")}
        yield (
            f"Or leave out {enumerated(untrusted)}: no other answer depends on what disagrees.",
            _command(results, given, untrusted),
        )


def _reason(each: Mapping[str, Any]) -> str:
    policy = shown(str(each.get("policy")).removeprefix(RECORDED))
    decisions, compared = _number(each, "decisions"), _number(each, "compared")
    words = [
        f"{policy}, boot {shown(each.get('bootId'))} of broker {shown(each.get('brokerId'))}: the replay disagrees in "
        f"{count(decisions)} of {plural(compared, 'decision')}"
    ]
    if _number(each, "missing"):
        words.append(f" and does not come to {plural(_number(each, 'missing'), 'recorded one')}")
    if each.get("first"):
        clients = [f"{count(n)} of {client(*who)}" for *who, n in _lists(each.get("clients"), 3)]
        minutes = [f"{count(n)} in {shown(minute)}" for minute, n in _lists(each.get("minutes"), 2)]
        words.append(
            f", about requests from {shown(each.get('first'))} to {shown(each.get('after'))}. "
            f"By minute: {_some(minutes, _number(each, 'minuteCount'))}. "
            f"By client: {_some(clients, _number(each, 'clientCount'))}"
        )
    cause = each.get("cause")
    words.append(f". Likely cause: {shown(cause, _LONGEST_CAUSE)}." if cause else ". Why is not known.")
    return "".join(words)


def _command(results: Results, part: Mapping[str, Any], without: Sequence[Any]) -> str:
    """
    The command that asks the same of a part of the recording, or leaves out candidates.
    """
    # Only an evaluation sums up the recording as well.
    isWhole = results.directory.joinpath("client_minute.parquet").exists()
    words = ["admission", "evaluate" if isWhole else "replay", results.says("recording", str) or "DIRECTORY"]
    words += ["--out", f"{results.name or results.directory}-part"]
    for option, name in (("--candidate", "candidates"), ("--pool", "pools")):
        for each in results.objects(name):
            label, description = str(each.get("label")), str(each.get("description"))
            if label not in without:
                words += [option, description if label == description else f"{label}={description}"]
    modes = results.says("modes", list)
    given = {
        "--mode": ",".join(map(str, modes)) if modes and modes != ["closed"] else None,
        "--sample": results.says("sample", str),
        "--from": part.get("since"),
        "--to": part.get("until"),
    }
    words += [word for option, value in given.items() if value for word in (option, str(value))]
    return printable(shlex.join(words))


def _some(told: Sequence[str], total: int) -> str:
    more = total - len(told)
    return ", ".join(told) + (f", and {count(more)} more" if more > 0 else "")


def _number(each: Mapping[str, Any], name: str) -> int:
    value = each.get(name)
    return value if isinstance(value, int) else 0


def _lists(values: Any, length: int) -> list[list[Any]]:
    """
    The lists of that length, each with a number at its end.
    """
    lists = values if isinstance(values, list) else []
    return [each for each in lists if isinstance(each, list) and len(each) == length and isinstance(each[-1], int)]
