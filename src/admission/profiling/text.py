# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
A snapshot as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..plaintext import table
from ..units import roundedBytes, roundedSeconds

Document = Mapping[str, Any]
"""What L{admission.profiling.snapshot.documentOf} makes."""

TITLES = ("", "objects", "measured", "in the ledger", "counted")


def textOf(document: Document) -> str:
    """
    All of it.

    @raise LookupError: if it is no such document; C{TypeError} and
        C{ValueError} likewise.
    """
    return "".join(f"{line}\n" for line in _lines(document))


def sentencesOf(document: Document) -> list[str]:
    """
    What matters, in a few sentences.
    """
    process, growth = document["process"], document["growth"]
    sentences = [
        f"{roundedBytes(process['residentBytes'])} resident: {roundedBytes(process['privateBytes'])} private, "
        f"{roundedBytes(process['fileBytes'])} of mapped files",
        f"at the start {roundedBytes(process['startPrivateBytes'])} private, since then {signed(growth['bytes'])}; "
        f"{_accounted(growth)}",
    ]
    for since in document["since"]:
        sentences.append(
            f"in {roundedSeconds(since['seconds'])} since snapshot {since['number']} {signed(since['bytes'])}; "
            f"{_accounted(since)}; objects of Python {signed(since['heapBytes'])}"
        )
    return sentences


def titleOf(document: Document) -> str:
    """
    Which snapshot it is, and when it was taken.
    """
    taken = datetime.fromtimestamp(document["atSeconds"], UTC)
    return f"Memory, snapshot {document['number']} of {document['boot']}, {taken:%Y-%m-%d %H:%M:%S} UTC"


def notesOf(document: Document) -> list[str]:
    """
    What the snapshot cost, and where it is an estimate.
    """
    cost, heap = document["cost"], document["heap"]
    notes = [
        f"it took {roundedSeconds(cost['seconds'])}, of which the server stood still for "
        f"{roundedSeconds(cost['workSeconds'])} in turns of {roundedSeconds(cost['longestTurnSeconds'])} at most"
    ]
    if heap["stride"] > 1:
        notes.append(f"one container in {heap['stride']} was looked at, so all numbers of objects are estimates")
    sampled = [each["name"] for each in document["groups"] if each["isSampled"]]
    if sampled:
        notes.append(f"measured by a sample of the objects: {', '.join(sampled)}")
    cut = [each["name"] for each in document["groups"] if each["isCut"]]
    if cut:
        notes.append(f"too large to be measured whole, so they take more than that: {', '.join(cut)}")
    return notes


def groupRowsOf(document: Document) -> list[Sequence[str]]:
    """
    A row for each group, in the order of L{TITLES}.
    """
    return [
        (
            each["name"],
            "" if each["objects"] is None else f"{each['objects']:,}",
            "" if each["objects"] is None else roundedBytes(each["measuredBytes"]),
            "" if each["claimedBytes"] is None else roundedBytes(each["claimedBytes"]),
            roundedBytes(each["countedBytes"]),
        )
        for each in document["groups"]
    ]


def signed(sizeBytes: float) -> str:
    """
    A change of size.
    """
    return f"{'+' if sizeBytes >= 0 else ''}{roundedBytes(sizeBytes)}"


def _accounted(growth: Mapping[str, Any]) -> str:
    fraction = growth["unexplainedFraction"]
    part = "" if fraction is None else f" ({fraction:.0%})"
    return f"explained {signed(growth['explainedBytes'])}, unexplained {signed(growth['unexplainedBytes'])}{part}"


def _lines(document: Document) -> Iterator[str]:
    yield titleOf(document)
    yield ""
    yield from sentencesOf(document)
    yield ""
    yield from table([TITLES, *groupRowsOf(document)], "<>>>>", indent="  ").splitlines()
    yield ""
    yield "Where the unexplained may be:"
    remainder = [(signed(each["bytes"]), each["name"]) for each in document["remainder"]]
    yield from table(remainder, "><", indent="  ").splitlines()
    for since in document["since"]:
        yield ""
        yield f"Changed most since snapshot {since['number']}:"
        yield from _summary(since["most"])
    yield ""
    heap = document["heap"]
    yield f"Largest of {heap['objects']:,} objects, {roundedBytes(heap['bytes'])}:"
    yield from _summary(heap["largest"])
    yield ""
    yield from (f"Note: {note}." for note in notesOf(document))


def _summary(rows: Sequence[list[Any]]) -> Iterator[str]:
    from pympler import summary

    for line in summary.format_(rows, limit=len(rows)):  # type: ignore[no-untyped-call]
        yield f"  {line}"
