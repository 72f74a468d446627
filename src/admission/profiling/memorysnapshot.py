# -*- test-case-name: tests.unit.profiling.test_memorysnapshot -*-
"""
The memory of a process by purpose, compared with its real size.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from ..metrics.process import ProcessUsage
from .census import Row
from .objectgroups import Group

MAX_ROWS = 30
"""How many classes are shown."""

MAX_GARBAGE_ROWS = 10
"""The same of garbage."""


class _Information(ctypes.Structure):
    """
    C{struct mallinfo2}; see mallinfo(3).
    """

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def freeBytes() -> int | None:
    """
    The memory that was freed and not returned to the system; L{None} where the C library does not tell.  It does not
    include Python's own arenas.
    """
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    tell.restype = _Information
    return int(tell().fordblks)


@frozen
class ProcessMemory:
    """
    The memory of the process as the kernel, the C library and the server's ledger know it.

    @ivar residentBytes: physical memory.
    @ivar privateBytes: the part of it that is not mapped from files, which is to be explained.
    @ivar freedBytes: the free part of it that the C library keeps; L{None} if unknown.
    @ivar claims: the server's ledger, bytes by purpose.
    @ivar modules: the number of imported modules.
    @ivar threads: the number of Python's threads.
    """

    residentBytes: int
    privateBytes: int
    freedBytes: int | None
    claims: Mapping[str, int]
    modules: int
    threads: int

    @property
    def fileBytes(self) -> int:
        """
        Pages of mapped files and shared memory, such as the log.
        """
        return self.residentBytes - self.privateBytes


def readProcess(usage: ProcessUsage, claims: Mapping[str, int]) -> ProcessMemory:
    return ProcessMemory(
        usage.residentBytes,
        usage.privateBytes,
        freeBytes(),
        dict(claims),
        len(sys.modules),
        threading.active_count(),
    )


@frozen
class GroupSize:
    """
    The memory of a group of objects.

    @ivar name: the name of the group.
    @ivar objects: their number; L{None} for memory that only the ledger knows.
    @ivar measuredBytes: their size with everything that they own.
    @ivar claimedBytes: the ledger's figure; L{None} if it does not count them.
    @ivar isSampled: whether only some were measured.
    @ivar isCut: whether they were too large to be measured whole.
    """

    name: str
    objects: int | None
    measuredBytes: int
    claimedBytes: int | None
    isSampled: bool = False
    isCut: bool = False

    @property
    def unclaimedBytes(self) -> int:
        """
        What was measured beyond the ledger's figure: nothing bounds it, so it may be a leak.
        """
        return max(self.measuredBytes - (self.claimedBytes or 0), 0)


@frozen
class Garbage:
    """
    What nothing can reach and only the garbage collector frees, because it is in cycles or cycles refer to it.

    @ivar objects: the number of containers.
    @ivar rows: a summary, as pympler has it.
    """

    objects: int
    rows: Sequence[Row] = field(repr=False)

    @property
    def sizeBytes(self) -> int:
        return sum(row[2] for row in self.rows)


@frozen
class Cost:
    """
    The cost of a snapshot.

    @ivar seconds: from beginning to end.
    @ivar workSeconds: the part of it in which the reactor did nothing else.
    @ivar longestTurnSeconds: the longest time for which the reactor did nothing else.
    """

    seconds: float
    workSeconds: float
    longestTurnSeconds: float


@frozen
class Snapshot:
    """
    The memory of a process at one moment.

    @ivar boot: the name of the process.
    @ivar number: counts the snapshots of the process; the first is 1.
    @ivar atSeconds: when it was taken, in seconds since the epoch.
    @ivar start: the process before the server had built anything.
    @ivar now: the process when the snapshot began.
    @ivar sizes: of each group, and of each purpose of the ledger that belongs to no group.
    @ivar rows: a summary of all objects but garbage, as pympler has it.
    @ivar stride: how many objects each counted one stands for.
    @ivar garbage: L{None} if it was not looked for.
    """

    boot: str
    number: int
    atSeconds: float
    start: ProcessMemory
    now: ProcessMemory
    sizes: Sequence[GroupSize]
    rows: Sequence[Row] = field(repr=False)
    stride: int
    garbage: Garbage | None
    cost: Cost

    @property
    def grownBytes(self) -> int:
        """
        The growth of private memory since the start.
        """
        return self.now.privateBytes - self.start.privateBytes

    @property
    def ledgerBytes(self) -> int:
        """
        The part of the growth that the ledger knows of, memory in C that cannot be measured included.
        """
        return sum(size.claimedBytes or 0 for size in self.sizes) - sum(self.start.claims.values())

    @property
    def unclaimedBytes(self) -> int:
        """
        What was measured and is in no ledger.
        """
        return sum(size.unclaimedBytes for size in self.sizes)

    @property
    def unknownBytes(self) -> int:
        """
        The rest of the growth.  Negative if the ledger claims too much, for instance for a request whose bytes have not
        arrived.
        """
        return self.grownBytes - self.ledgerBytes - self.unclaimedBytes - self.garbageBytes

    @property
    def garbageBytes(self) -> int:
        """
        What is garbage in cycles; zero if it was not looked for.
        """
        return 0 if self.garbage is None else self.garbage.sizeBytes

    @property
    def heapBytes(self) -> int:
        """
        The size of all Python objects but garbage.
        """
        return sum(row[2] for row in self.rows)

    def ungroupedBytes(self) -> int:
        """
        The size of all objects in no group.
        """
        return self.heapBytes - sum(size.measuredBytes for size in self.sizes)


def sizesOf(groups: Sequence[Group], measured: Sequence[GroupSize], claims: Mapping[str, int]) -> list[GroupSize]:
    """
    The measured groups, followed by the purposes of the ledger that belong to no group.
    """
    taken = {purpose for group in groups for purpose in group.purposes}
    others = [GroupSize(purpose, None, 0, held) for purpose, held in claims.items() if purpose not in taken and held]
    return [*measured, *others]


def documentOf(snapshot: Snapshot, first: Snapshot | None = None, previous: Snapshot | None = None) -> dict[str, Any]:
    """
    A snapshot as JSON, for reports and for the status port.

    @param first: the first snapshot of the process, unless this is it.
    @param previous: the snapshot before this one.
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
        "groups": [{**asdict(size), "unclaimedBytes": size.unclaimedBytes} for size in snapshot.sizes],
        "growth": {
            "bytes": grown,
            "ledgerBytes": snapshot.ledgerBytes,
            "unclaimedBytes": snapshot.unclaimedBytes,
            "garbageBytes": snapshot.garbageBytes,
            "unknownBytes": snapshot.unknownBytes,
            "unknownFraction": snapshot.unknownBytes / grown if grown > 0 else None,
        },
        "garbage": None
        if snapshot.garbage is None
        else {"objects": snapshot.garbage.objects, "largest": _largest(snapshot.garbage.rows, MAX_GARBAGE_ROWS)},
        "remainder": list(_remainder(snapshot, first)),
        "heap": {
            "bytes": snapshot.heapBytes,
            "objects": sum(row[1] for row in snapshot.rows),
            "stride": snapshot.stride,
            "largest": _largest(snapshot.rows, MAX_ROWS),
        },
        "since": [_difference(snapshot, each) for each in _distinct(previous, first)],
        "cost": asdict(snapshot.cost),
    }


def _largest(rows: Sequence[Row], count: int) -> list[Row]:
    return sorted(rows, key=lambda row: -row[2])[:count]


def _distinct(previous: Snapshot | None, first: Snapshot | None) -> Iterator[Snapshot]:
    if previous is not None:
        yield previous
    if first is not None and first is not previous:
        yield first


def _remainder(snapshot: Snapshot, first: Snapshot | None) -> Iterator[dict[str, Any]]:
    """
    Where the memory may be that is neither in the ledger, nor in a group, nor garbage.
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
        "bytes": snapshot.unknownBytes - known,
    }


def _difference(snapshot: Snapshot, before: Snapshot) -> dict[str, Any]:
    from pympler import summary

    differences = summary.get_diff(before.rows, snapshot.rows)  # type: ignore[no-untyped-call]
    rows = [row for row in differences if row[1] or row[2]]
    grown = snapshot.now.privateBytes - before.now.privateBytes
    unknown = snapshot.unknownBytes - before.unknownBytes
    return {
        "number": before.number,
        "seconds": snapshot.atSeconds - before.atSeconds,
        "bytes": grown,
        "ledgerBytes": snapshot.ledgerBytes - before.ledgerBytes,
        "unclaimedBytes": snapshot.unclaimedBytes - before.unclaimedBytes,
        "garbageBytes": snapshot.garbageBytes - before.garbageBytes,
        "unknownBytes": unknown,
        "unknownFraction": unknown / grown if grown > 0 else None,
        "heapBytes": snapshot.heapBytes - before.heapBytes,
        "groups": _groupDifferences(snapshot, before),
        "most": sorted(rows, key=lambda row: -abs(row[2]))[:MAX_ROWS],
    }


def _groupDifferences(snapshot: Snapshot, before: Snapshot) -> list[dict[str, Any]]:
    then, now = ({size.name: size for size in each.sizes} for each in (before, snapshot))
    differences = []
    for name in {**then, **now}:
        nothing = GroupSize(name, None, 0, None)
        earlier, later = then.get(name, nothing), now.get(name, nothing)
        ledgerBytes = (later.claimedBytes or 0) - (earlier.claimedBytes or 0)
        unclaimedBytes = later.unclaimedBytes - earlier.unclaimedBytes
        if ledgerBytes or unclaimedBytes:
            differences.append({"name": name, "ledgerBytes": ledgerBytes, "unclaimedBytes": unclaimedBytes})
    return differences
