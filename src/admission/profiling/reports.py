# -*- test-case-name: tests.unit.profiling.test_reports -*-
"""
A snapshot as a text and as a page, and a service that writes both regularly as files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..plaintext import table
from ..units import roundedBytes, roundedSeconds
from .profiler import Profiler, ProfilerStopped

MAX_SNAPSHOTS = 100
"""How many snapshots are kept in a directory; the oldest are removed."""

_PREFIX = "memory-"

Document = Mapping[str, Any]
"""The result of L{admission.profiling.memorysnapshot.documentOf}."""

_TITLES = ("", "objects", "measured", "in the ledger", "in no ledger")

_GROWTH_TITLES = ("", "in the ledger", "in no ledger")

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>$title</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1d2430; background: #fff; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; border-bottom: 1px solid #d9dee7; }
td:not(.name), th:not(.name) { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.name { text-align: left; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.4rem; margin: 1rem 0; background: #e6eaf1; }
.known { background: #2f6fb2; } .unclaimed { background: #c9a227; }
.garbage { background: #7d6aa8; } .unknown { background: #c2571a; }
@media (prefers-color-scheme: dark) { body { color: #dde3ec; background: #161b22; }
  td, th { border-color: #313a48; } .bar { background: #2a3240; } }
</style>
<h1>$title</h1>
$sentences
<div class="bar">
<span class="start" style="width: $startPercent%" title="start"></span>
<span class="known" style="width: $knownPercent%" title="in the ledger"></span>
<span class="unclaimed" style="width: $unclaimedPercent%" title="measured, and in no ledger"></span>
<span class="garbage" style="width: $garbagePercent%" title="garbage in cycles"></span>
<span class="unknown" style="width: $unknownPercent%" title="neither"></span>
</div>
<h2>What is in the ledger or was measured</h2>
$groups
$garbage
<h2>Where the rest may be</h2>
$remainder
$changes
<h2>$heap</h2>
$largest
$notes
""")


def textOf(document: Document) -> str:
    """
    A snapshot as a text.

    @raise LookupError: if C{document} is something else; L{TypeError} and
        L{ValueError} likewise.
    """
    remainder = [(_signed(each["bytes"]), each["name"]) for each in document["remainder"]]
    parts = [
        f"{_title(document)}\n",
        "".join(f"{each}\n" for each in _sentences(document)),
        table([_TITLES, *_groupRows(document)], "<>>>>", indent="  "),
        *(f"{_garbageTitle(document)}:\n{_summary(rows)}" for rows in _garbageRows(document)),
        f"Where the rest may be:\n{table(remainder, '><', indent='  ')}",
        *(
            f"Grown since snapshot {since['number']}:\n"
            f"{table([_GROWTH_TITLES, *_growthRows(since)], '<>>', indent='  ')}"
            for since in document["since"]
            if since["groups"]
        ),
        *(f"Changed most since snapshot {since['number']}:\n{_summary(since['most'])}" for since in document["since"]),
        f"{_heapTitle(document)}:\n{_summary(document['heap']['largest'])}",
        "".join(f"Note: {each}.\n" for each in _notes(document)),
    ]
    return "\n".join(parts)


def htmlOf(document: Document) -> str:
    """
    A snapshot as a page that needs no other file.

    @raise LookupError: as L{textOf} does.
    """
    growth, process = document["growth"], document["process"]
    startPercent, knownPercent, unclaimedPercent, garbagePercent, unknownPercent = (
        f"{100 * max(held, 0) / max(process['privateBytes'], 1):.1f}"
        for held in (
            process["startPrivateBytes"],
            growth["ledgerBytes"],
            growth["unclaimedBytes"],
            growth["garbageBytes"],
            growth["unknownBytes"],
        )
    )
    remainder = [(each["name"], _signed(each["bytes"])) for each in document["remainder"]]
    classTitles = ("class", "objects", "size")
    changes = [
        f"<h2>Grown since snapshot {since['number']}</h2>\n{_htmlTable(_GROWTH_TITLES, _growthRows(since))}"
        for since in document["since"]
        if since["groups"]
    ] + [
        f"<h2>Changed most since snapshot {since['number']}</h2>\n"
        + _htmlTable(classTitles, ((name, f"{count:+,}", _signed(held)) for name, count, held in since["most"]))
        for since in document["since"]
    ]
    return _PAGE.substitute(
        title=escape(_title(document)),
        sentences="\n".join(f"<p>{escape(each)}.</p>" for each in _sentences(document)),
        startPercent=startPercent,
        knownPercent=knownPercent,
        unclaimedPercent=unclaimedPercent,
        garbagePercent=garbagePercent,
        unknownPercent=unknownPercent,
        groups=_htmlTable(_TITLES, _groupRows(document)),
        garbage="\n".join(
            f"<h2>{escape(_garbageTitle(document))}</h2>\n{_htmlTable(classTitles, _sizeRows(rows))}"
            for rows in _garbageRows(document)
        ),
        remainder=_htmlTable(("", "since the start"), remainder),
        changes="\n".join(changes),
        heap=escape(_heapTitle(document)),
        largest=_htmlTable(classTitles, _sizeRows(document["heap"]["largest"])),
        notes="\n".join(f"<p>Note: {escape(each)}.</p>" for each in _notes(document)),
    )


class MemoryReports:
    """
    Writes a page and a text for each snapshot, C{memory-BOOT-NUMBER.html} and C{.txt}.  The first one is taken at once,
    as a baseline for the others.
    """

    log = Logger()

    def __init__(
        self,
        profiler: Profiler,
        directory: Path,
        intervalSeconds: float,
        clock: IReactorTime,
        deferToThread: Callable[..., Deferred[Any]],
        maxSnapshots: int = MAX_SNAPSHOTS,
    ) -> None:
        """
        @param intervalSeconds: from one snapshot to the next.
        @param deferToThread: to wait for the disk.
        """
        self._profiler = profiler
        self._directory = directory
        self._intervalSeconds = intervalSeconds
        self._deferToThread = deferToThread
        self._maxSnapshots = maxSnapshots
        self._taking = LoopingCall(self._take)
        self._taking.clock = clock

    def start(self) -> None:
        """
        Take the first snapshot now, and others regularly.

        @raise OSError: if the directory cannot be made.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._taking.start(self._intervalSeconds)

    def stop(self) -> None:
        """
        Take no more snapshots, and abandon the current one.
        """
        if self._taking.running:
            self._taking.stop()
        self._profiler.stop()

    def _take(self) -> Deferred[None]:
        return self._profiler.take().addCallback(self._put).addErrback(self._failed)

    def _put(self, document: dict[str, Any]) -> Deferred[None]:
        name = f"{_PREFIX}{document['boot']}-{document['number']:06}"
        path = self._directory / f"{name}.html"
        self.log.info(
            "memory, snapshot {number}: {sentences}; more in {path}",
            number=document["number"],
            sentences="; ".join(_sentences(document)),
            path=path,
        )
        return self._deferToThread(self._write, name, document)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        """
        Runs in a thread.
        """
        for suffix, text in ((".html", htmlOf(document)), (".txt", textOf(document))):
            self._directory.joinpath(name + suffix).write_text(text, encoding="utf-8")
        kept = sorted({each.stem for each in self._directory.glob(f"{_PREFIX}*.html")})
        for stem in kept[: -self._maxSnapshots]:
            for suffix in (".html", ".txt"):
                self._directory.joinpath(stem + suffix).unlink(missing_ok=True)

    def _failed(self, failure: Failure) -> None:
        # An error from here would end the loop.
        if isinstance(failure.value, OSError):
            self.log.warn(
                "a memory snapshot cannot be written to {directory}, and the next one is tried all the same: {reason}",
                directory=self._directory,
                reason=failure.getErrorMessage(),
            )
        elif not isinstance(failure.value, ProfilerStopped):
            self.log.failure("there is no memory snapshot this time", failure)


def _title(document: Document) -> str:
    taken = datetime.fromtimestamp(document["atSeconds"], UTC)
    return f"Memory, snapshot {document['number']} of {document['boot']}, {taken:%Y-%m-%d %H:%M:%S} UTC"


def _heapTitle(document: Document) -> str:
    heap = document["heap"]
    return f"Largest of {heap['objects']:,} objects, {roundedBytes(heap['bytes'])}"


def _garbageTitle(document: Document) -> str:
    return f"Largest of {document['garbage']['objects']:,} containers of garbage in cycles"


def _garbageRows(document: Document) -> list[Sequence[Any]]:
    """
    The one summary of garbage, if there is any.
    """
    garbage = document["garbage"]
    return [garbage["largest"]] if garbage is not None and garbage["largest"] else []


def _sizeRows(summary: Iterable[Sequence[Any]]) -> Iterable[Sequence[str]]:
    return ((name, f"{count:,}", roundedBytes(held)) for name, count, held in summary)


def _sentences(document: Document) -> list[str]:
    process, growth = document["process"], document["growth"]
    sentences = [
        f"{roundedBytes(process['residentBytes'])} resident: {roundedBytes(process['privateBytes'])} private, "
        f"{roundedBytes(process['fileBytes'])} of mapped files",
        f"at the start {roundedBytes(process['startPrivateBytes'])} private, since then {_signed(growth['bytes'])}; "
        f"{_accounted(growth)}",
    ]
    for since in document["since"]:
        sentences.append(
            f"in {roundedSeconds(since['seconds'])} since snapshot {since['number']} {_signed(since['bytes'])}; "
            f"{_accounted(since)}; objects of Python {_signed(since['heapBytes'])}"
        )
    return sentences


def _accounted(growth: Mapping[str, Any]) -> str:
    fraction = growth["unknownFraction"]
    part = "" if fraction is None else f" ({fraction:.0%})"
    return (
        f"in the ledger {_signed(growth['ledgerBytes'])}, "
        f"measured and in no ledger {_signed(growth['unclaimedBytes'])}, "
        f"garbage in cycles {_signed(growth['garbageBytes'])}, "
        f"neither {_signed(growth['unknownBytes'])}{part}"
    )


def _growthRows(since: Mapping[str, Any]) -> list[Sequence[str]]:
    """
    A row for each group that has changed, in the order of C{_GROWTH_TITLES}: what nobody bounds first.
    """
    grown = sorted(since["groups"], key=lambda each: (-each["unclaimedBytes"], -each["ledgerBytes"]))
    return [(each["name"], _signed(each["ledgerBytes"]), _signed(each["unclaimedBytes"])) for each in grown]


def _groupRows(document: Document) -> list[Sequence[str]]:
    """
    A row for each group, in the order of C{_TITLES}.
    """
    return [
        (
            each["name"],
            "" if each["objects"] is None else f"{each['objects']:,}",
            "" if each["objects"] is None else roundedBytes(each["measuredBytes"]),
            "" if each["claimedBytes"] is None else roundedBytes(each["claimedBytes"]),
            "" if each["objects"] is None else roundedBytes(each["unclaimedBytes"]),
        )
        for each in document["groups"]
    ]


def _notes(document: Document) -> list[str]:
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
    if document["garbage"] is None:
        notes.append("garbage in cycles was not looked for: there are too many objects to look at all of them at once")
    sampled = [each["name"] for each in document["groups"] if each["isSampled"]]
    if sampled:
        notes.append(f"measured by a sample of the objects: {', '.join(sampled)}")
    cut = [each["name"] for each in document["groups"] if each["isCut"]]
    if cut:
        notes.append(f"too large to be measured whole, so they take more than that: {', '.join(cut)}")
    return notes


def _signed(sizeBytes: float) -> str:
    return f"{'+' if sizeBytes >= 0 else ''}{roundedBytes(sizeBytes)}"


def _summary(rows: Sequence[list[Any]]) -> str:
    from pympler import summary

    return "".join(f"  {line}\n" for line in summary.format_(rows, limit=len(rows)))  # type: ignore[no-untyped-call]


def _htmlTable(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_htmlRow("th", titles), *(_htmlRow("td", row) for row in rows)]
    return f"<table>\n{''.join(lines)}</table>"


def _htmlRow(tag: str, cells: Iterable[str]) -> str:
    name, *numbers = map(escape, cells)
    return f'<tr><{tag} class="name">{name}</{tag}>{"".join(f"<{tag}>{each}</{tag}>" for each in numbers)}</tr>\n'
