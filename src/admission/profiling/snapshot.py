# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
Where the memory of a process is, held against what the process really has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from .census import Row
from .groups import Group
from .reading import Reading

MAX_ROWS = 30
"""How many classes are shown."""


@frozen
class GroupSize:
    """
    What the objects of a group take.

    @ivar name: what they are.
    @ivar objects: how many there are; L{None} for memory that only the books know.
    @ivar measuredBytes: what they take with all that is theirs.
    @ivar claimedBytes: what the books say; L{None} if they say nothing of them.
    @ivar isSampled: whether some were measured in place of all.
    @ivar isCut: whether they were too large to be measured whole.
    """

    name: str
    objects: int | None
    measuredBytes: int
    claimedBytes: int | None
    isSampled: bool = False
    isCut: bool = False

    @property
    def countedBytes(self) -> int:
        """
        What the group explains: the larger of the two.  The books know of
        memory in C that nobody can measure, and what was measured is there.
        """
        return max(self.measuredBytes, self.claimedBytes or 0)


@frozen
class Cost:
    """
    What it took to look.

    @ivar seconds: from the first look to the last.
    @ivar workSeconds: the part of it in which the reactor did nothing else.
    @ivar longestTurnSeconds: the longest time at a stretch.
    """

    seconds: float
    workSeconds: float
    longestTurnSeconds: float


@frozen
class Snapshot:
    """
    One look.

    @ivar boot: the process that was looked at.
    @ivar number: which look of this process it is; the first is 1.
    @ivar atSeconds: when, in seconds since the epoch.
    @ivar start: before the server had built anything.
    @ivar now: when the look began.
    @ivar sizes: what each group takes, and each purpose of the books that is no group's.
    @ivar rows: pympler's summary of all objects.
    @ivar stride: each object that was counted stands for so many.
    """

    boot: str
    number: int
    atSeconds: float
    start: Reading
    now: Reading
    sizes: Sequence[GroupSize]
    rows: Sequence[Row] = field(repr=False)
    stride: int
    cost: Cost

    @property
    def grownBytes(self) -> int:
        """
        By how much private memory has grown since the start.
        """
        return self.now.privateBytes - self.start.privateBytes

    @property
    def explainedBytes(self) -> int:
        """
        How much of it is known.
        """
        return sum(size.countedBytes for size in self.sizes) - sum(self.start.claims.values())

    @property
    def unexplainedBytes(self) -> int:
        """
        The rest.  Negative if the books claim more than there is: what was
        promised and has not arrived yet, for one.
        """
        return self.grownBytes - self.explainedBytes

    @property
    def heapBytes(self) -> int:
        """
        What all objects of Python take.
        """
        return sum(row[2] for row in self.rows)

    def ungroupedBytes(self) -> int:
        """
        What those take that are in no group.
        """
        return self.heapBytes - sum(size.measuredBytes for size in self.sizes)


def sizesOf(groups: Sequence[Group], measured: Sequence[GroupSize], claims: Mapping[str, int]) -> list[GroupSize]:
    """
    The measured groups, and after them whatever the books know besides.
    """
    taken = {purpose for group in groups for purpose in group.purposes}
    others = [GroupSize(purpose, None, 0, held) for purpose, held in claims.items() if purpose not in taken and held]
    return [*measured, *others]


def documentOf(snapshot: Snapshot, first: Snapshot | None = None, previous: Snapshot | None = None) -> dict[str, Any]:
    """
    A snapshot as JSON, for reports and for whoever asks from afar.

    @param first: the first of the process, unless this is it.
    @param previous: the one before.
    """
    now = snapshot.now
    grown = snapshot.grownBytes
    return {
        "boot": snapshot.boot,
        "number": snapshot.number,
        "atSeconds": snapshot.atSeconds,
        "process": {
            "residentBytes": now.residentBytes,
            "privateBytes": now.privateBytes,
            "fileBytes": now.fileBytes,
            "startPrivateBytes": snapshot.start.privateBytes,
        },
        "groups": [{**asdict(size), "countedBytes": size.countedBytes} for size in snapshot.sizes],
        "growth": {
            "bytes": grown,
            "explainedBytes": snapshot.explainedBytes,
            "unexplainedBytes": snapshot.unexplainedBytes,
            "unexplainedFraction": snapshot.unexplainedBytes / grown if grown > 0 else None,
        },
        "remainder": list(_remainder(snapshot, first)),
        "heap": {
            "bytes": snapshot.heapBytes,
            "objects": sum(row[1] for row in snapshot.rows),
            "stride": snapshot.stride,
            "largest": sorted(snapshot.rows, key=lambda row: -row[2])[:MAX_ROWS],
        },
        "since": [_difference(snapshot, each) for each in _distinct(previous, first)],
        "cost": asdict(snapshot.cost),
    }


def _distinct(previous: Snapshot | None, first: Snapshot | None) -> Iterator[Snapshot]:
    if previous is not None:
        yield previous
    if first is not None and first is not previous:
        yield first


def _remainder(snapshot: Snapshot, first: Snapshot | None) -> Iterator[dict[str, Any]]:
    """
    Where what is not explained may be.
    """
    start, now = snapshot.start, snapshot.now
    known = 0
    if first is not None:
        ungrouped = snapshot.ungroupedBytes() - first.ungroupedBytes()
        known += ungrouped
        yield {"name": f"objects of no group, more than in snapshot {first.number}", "bytes": ungrouped}
    if start.freedBytes is not None and now.freedBytes is not None:
        known += now.freedBytes - start.freedBytes
        yield {"name": "freed, and kept by the C library", "bytes": now.freedBytes - start.freedBytes}
    modules = now.modules - start.modules
    threads = now.threads - start.threads
    yield {
        "name": f"C libraries such as OpenSSL, stacks ({threads:+} threads), code ({modules:+} modules), "
        "and room in Python's arenas",
        "bytes": snapshot.unexplainedBytes - known,
    }


def _difference(snapshot: Snapshot, before: Snapshot) -> dict[str, Any]:
    from pympler import summary

    differences = summary.get_diff(before.rows, snapshot.rows)  # type: ignore[no-untyped-call]
    rows = [row for row in differences if row[1] or row[2]]
    grown = snapshot.now.privateBytes - before.now.privateBytes
    unexplained = snapshot.unexplainedBytes - before.unexplainedBytes
    return {
        "number": before.number,
        "seconds": snapshot.atSeconds - before.atSeconds,
        "bytes": grown,
        "explainedBytes": grown - unexplained,
        "unexplainedBytes": unexplained,
        "unexplainedFraction": unexplained / grown if grown > 0 else None,
        "heapBytes": snapshot.heapBytes - before.heapBytes,
        "groups": _groupDifferences(snapshot, before),
        "most": sorted(rows, key=lambda row: -abs(row[2]))[:MAX_ROWS],
    }


def _groupDifferences(snapshot: Snapshot, before: Snapshot) -> list[dict[str, Any]]:
    then = {size.name: size.countedBytes for size in before.sizes}
    now = {size.name: size.countedBytes for size in snapshot.sizes}
    changes = {name: now.get(name, 0) - then.get(name, 0) for name in {**then, **now}}
    return [{"name": name, "bytes": change} for name, change in changes.items() if change]
