# -*- test-case-name: tests.offline.test_report -*-
"""
Which runs of servers that enforced limits together were replayed together, in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..simulate.together import INTERVAL_US
from .resultfiles import Results
from .words import duration, enumerated, plural, shown

MAX_GROUPS = 5
"""How many groups of such runs are told of."""

SHARING_ASSUMPTION = (
    "Servers that enforced limits together are told what clients have taken at the others every "
    f"{INTERVAL_US / 1e6:g} s, and at once. How many they are, and when they did not hear each other, stays as "
    "recorded. Their clocks are believed: if one is wrong by a second, what clients took there counts at the others a "
    "second too early or too late, which shifts what they get by no more than a limit allows in that second, once."
)
"""What a replay of such runs takes for granted."""


def sharingOf(results: Results) -> list[str]:
    """
    What became of runs that enforced limits together; nothing if no candidate's limits can be enforced so, and none
    take the place of such limits.
    """
    labels = results.says("shared", list) or []
    groups = results.objects("sharedRuns")[:MAX_GROUPS] if labels else []
    return [
        *(words for each in groups for words in _groupInWords(each, enumerated(labels))),
        *(
            f"Under {shown(each)} each server enforces all of every limit alone, where they enforced limits together: "
            "its description lacks shared=yes, which gateways that share limits add."
            for each in results.says("alone", list) or ()
        ),
    ]


def isAnyTogether(results: Results) -> bool:
    """
    Whether runs were replayed together.
    """
    return bool(results.says("shared", list)) and any(
        each.get("isComplete") is True for each in results.objects("sharedRuns")
    )


def lackServers(results: Results) -> list[Any]:
    """
    The labels of candidates whose limits would be enforced by servers, too, that the recording lacks.
    """
    isComplete = all(each.get("isComplete") is True for each in results.objects("sharedRuns"))
    return [] if isComplete else results.says("shared", list) or []


def _groupInWords(group: Mapping[str, Any], labels: str) -> Iterator[str]:
    runs, counted = (int(group.get(name) or 0) for name in ("runs", "counted"))
    if group.get("isComplete") is not True:
        yield (
            f"Servers enforced limits together and counted {counted}, and the recording has "
            f"{plural(runs, 'run')} of them, so it is not of just these servers. Each run is replayed alone, with what "
            f"was taken elsewhere as recorded; for {labels} that is no forecast. Evaluate the recordings of all of "
            "them in one directory."
        )
        return
    seconds = group.get("clocksDifferBySeconds")
    clocks = (
        "How far their clocks differ is not known, since no limit was set while they ran."
        if seconds is None
        else f"By their clocks the same limit was set at all of them within {duration(float(seconds))}."
    )
    yield f"Under {labels} {plural(runs, 'run')} that enforced limits together were replayed together. {clocks}"
