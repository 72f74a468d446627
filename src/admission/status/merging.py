# -*- test-case-name: tests.unit.status.test_merging -*-
"""
One answer of several processes that are one server together.

Values are merged by their names, which say what they count: numbers are added, of seconds the largest is shown, and
rows that are of the same thing become one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

from .clients import MAX_CLIENTS
from .document import MAX_CONNECTIONS
from .requesttimes import MAX_KINDS

Fields = dict[str, Any]


def mergedStatus(documents: Mapping[int, Mapping[str, Any]]) -> Fields:
    """
    The documents of processes as one.

    @param documents: by the number of the process; one at least.
    """
    merged = _mergedFields(documents.values())
    merged["connections"]["largest"] = nlargest(
        MAX_CONNECTIONS,
        (
            {"process": process, **row}
            for process, document in documents.items()
            for row in document["connections"]["largest"]
        ),
        key=lambda row: row["heldBytes"],
    )
    throttled = _mergedClients([each["throttled"] for each in documents.values()], "count")
    # Which of those that several processes count are the same is known only of the listed ones.
    throttledCount = min(merged["throttled"]["throttledCount"], throttled["count"])
    merged["throttled"] = {**throttled, "throttledCount": throttledCount}
    return merged


def mergedExplanation(explanations: Sequence[Mapping[str, Any]]) -> Fields:
    """
    What processes say of a client, or of those that match a question, as one answer.

    @param explanations: one at least.
    """
    clients = _mergedClients(explanations, "clientCount")
    isOne = clients["clientCount"] == 1
    # A process that does not know the client has taken another for what was asked.
    about = next((each for each in explanations if (each["clientCount"] == 1) == isOne), explanations[0])
    same = [each for each in explanations if (each["user"], each["clientId"]) == (about["user"], about["clientId"])]
    numbers = ("connections", "delaySeconds", "delayEndsAtSeconds", "limitShare")
    return {
        **about,
        **_mergedFields([{name: each[name] for name in numbers} for each in explanations]),
        **clients,
        "limits": [_divided(row) for row in _mergedRows("limits", [row for each in same for row in each["limits"]])],
    }


def _divided(limit: Fields) -> Fields:
    """
    What is used of a limit here and elsewhere, where here is any of the processes.
    """
    used, elsewhere = limit["used"], limit["usedElsewhere"]
    if elsewhere is None or used is None:
        return {**limit, "usedHere": used}
    here = min(limit["usedHere"], used)
    return {**limit, "usedHere": here, "usedElsewhere": used - here}


def mergedReasons(reasons: Mapping[int, Iterable[str]]) -> Iterator[str]:
    """
    Why processes are not healthy, each sentence once, with whose it is unless it is that of all.

    @param reasons: by the number of the process, also for those that are healthy.
    """
    sayers: dict[str, list[int]] = {}
    for process, sentences in reasons.items():
        for sentence in sentences:
            sayers.setdefault(sentence, []).append(process)
    for sentence, processes in sayers.items():
        if len(processes) == len(reasons):
            yield sentence
        else:
            which = "process" if len(processes) == 1 else "processes"
            yield f"{which} {', '.join(map(str, processes))}: {sentence}"


def _mergedFields(documents: Iterable[Mapping[str, Any]]) -> Fields:
    values: dict[str, list[Any]] = {}
    for document in documents:
        for name, value in document.items():
            values.setdefault(name, []).append(value)
    return {name: _merged(name, some) for name, some in values.items()}


def _merged(name: str, values: Sequence[Any]) -> Any:
    rule = _RULES.get(name)
    if rule is not None:
        return rule(values)
    known = [each for each in values if each is not None]
    if not known:
        return None
    if isinstance(known[0], Mapping):
        return _mergedFields(known)
    if isinstance(known[0], list):
        return _mergedRows(name, [row for each in known for row in each])
    if isinstance(known[0], str):
        return known[0]
    if isinstance(known[0], bool):
        return any(known)
    return max(known) if name.endswith("Seconds") else sum(known)


def _mergedRows(name: str, rows: Sequence[Any]) -> list[Any]:
    """
    Rows that are of the same thing as one; texts each once.
    """
    identity = _IDENTITIES.get(name)
    if identity is None:
        return list({json.dumps(row): row for row in rows}.values())
    same: dict[str, list[Any]] = {}
    for row in rows:
        same.setdefault(json.dumps([row[each] for each in identity]), []).append(row)
    merged = [{**_mergedFields(some), **{each: some[0][each] for each in identity}} for some in same.values()]
    size = _SIZES.get(name)
    return merged if size is None else nlargest(MAX_KINDS, merged, key=size)


def _mergedClients(parts: Sequence[Mapping[str, Any]], countName: str) -> Fields:
    """
    The clients of several processes, and how many they are as far as it can be told: one that several processes have
    is known as the same only if they list it.  A client is shown as by the process where it waits longest.
    """
    clients: dict[tuple[str, str], Fields] = {}
    listed = [row for part in parts for row in part["clients"]]
    for row in sorted(listed, key=_wait, reverse=True):
        client = clients.setdefault((row["user"], row["clientId"]), {**row, "connections": 0, "refused": 0})
        client["connections"] += row["connections"]
        client["refused"] += row["refused"]
    count = sum(part[countName] for part in parts) - len(listed) + len(clients)
    return {countName: count, "clients": list(clients.values())[:MAX_CLIENTS]}


def _wait(client: Mapping[str, Any]) -> tuple[float, float]:
    return client["delaySeconds"], client["usedFraction"] or 0.0


def _largest(values: Iterable[Any]) -> Any:
    return max((each for each in values if each is not None), default=None)


def _smallest(values: Iterable[Any]) -> Any:
    return min((each for each in values if each is not None), default=None)


def _sumOrUnknown(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)


def _largestOrUnknown(values: Sequence[Any]) -> Any:
    return None if None in values else max(values)


_RULES: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "cpuSeconds": sum,
    # No bound.
    "sizeBytes": _sumOrUnknown,
    "maxDescriptors": lambda values: -1 if min(values) < 0 else sum(values),
    # Longer than can be told.
    "medianSeconds": _largestOrUnknown,
    "percentile99Seconds": _largestOrUnknown,
    # Limits are those of the whole, each process enforces the same part of them, and is told what the others took.
    "limitShare": _largest,
    "limit": _largest,
    "used": _largest,
    "usedFraction": _largest,
    # How the sharing of limits stands, which is bad if it is so for one.
    "servers": _largest,
    "isLive": all,
    "fraction": _smallest,
}
"""What is not merged as its name and type would say."""

_IDENTITIES: Mapping[str, Sequence[str]] = {
    "nodes": ("nodeId",),
    "latency": ("kind",),
    "kinds": ("kind",),
    "limits": ("policy", "limitName", "entity", "isShadow"),
}
"""What the rows of lists are of."""

_SIZES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "latency": lambda row: row["count"],
    "kinds": lambda row: sum(value for name, value in row.items() if name != "kind"),
}
"""Of lists that have the largest rows first, how large a row is."""
