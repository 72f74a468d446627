# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
Every object of the process, counted by its class: pympler's summary, made in
steps.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from .groups import Grouping
from .referents import flatBytes, nameOf, referentsOf

MAX_OBJECTS = 500_000
"""Of more containers one in two is looked at, or one in three, and so on."""

MAX_MEMBERS = 1_000
"""How many objects of a group are kept for a closer look."""

PARTS_PER_STEP = 1_000

_PROBE = [object()]

# What a list, and looking through it as below, adds to the references to an object in it.
((_, _OWN_REFERENCES),) = zip(_PROBE, map(sys.getrefcount, _PROBE), strict=True)

Row = list[Any]
"""What pympler calls a row: the name of a class, how many objects it has, and their size in bytes."""


class Census:
    """
    Counts.

    @ivar members: some objects of each group, chosen at random.
    @ivar stride: each container that was looked at stands for so many.
    """

    def __init__(
        self,
        grouping: Grouping,
        random: Random,
        objects: Callable[[], list[Any]] = gc.get_objects,
        maxObjects: int = MAX_OBJECTS,
    ) -> None:
        """
        @param objects: returns all containers that the garbage collector knows.
        """
        self._grouping = grouping
        self._random = random
        self._objects = objects
        self._maxObjects = maxObjects
        self._tally: dict[type, list[float]] = {}
        self._pending: list[tuple[list[Any], float]] = []
        self.stride = 1
        self._seen = [0] * len(grouping.groups)
        self.members: list[list[Any]] = [[] for _ in grouping.groups]

    def steps(self) -> Iterator[None]:
        """
        Count, a step at each turn.  The first asks Python for all containers,
        which cannot be divided.
        """
        objects = self._objects()
        yield
        self.stride = stride = max(-(-len(objects) // self._maxObjects), 1)
        random, pending = self._random.random, self._pending
        # From the end, so that nothing is kept alive for longer than it needs.  Which one of several is looked at is
        # left to chance, because programs make objects in patterns.
        while objects or pending:
            looked = 0
            while looked < PARTS_PER_STEP and (objects or pending):
                if pending:
                    looked += self._countParts(*pending.pop())
                else:
                    self._count(objects[-1 - int(random() * min(stride, len(objects)))])
                    del objects[-stride:]
            yield

    @property
    def counts(self) -> list[int]:
        """
        How many objects there are of each group.
        """
        return [seen * self.stride for seen in self._seen]

    @property
    def rows(self) -> list[Row]:
        """
        The summary, in no order.
        """
        rows: dict[str, Row] = {}
        for kind, (count, sizeBytes) in self._tally.items():
            row = rows.setdefault(nameOf(kind), [nameOf(kind), 0, 0])
            row[1] += round(count * self.stride)
            row[2] += round(sizeBytes * self.stride)
        return list(rows.values())

    def _count(self, each: Any) -> None:
        kind = type(each)
        referents = referentsOf(each)
        self._add(kind, flatBytes(each, referents), 1.0)
        place = self._grouping.placeOf(kind)
        if place >= 0:
            self._keep(place, each)
        self._pending.append(referents)

    def _countParts(self, parts: list[Any], weight: float) -> int:
        """
        Count those that hold no other container: the garbage collector does
        not know them, only who refers to them.  Each of these stands for its
        share, which needs no memory for what has been seen.

        @return: how many were looked at, and at least 1.
        """
        for part, references in zip(parts, map(sys.getrefcount, parts), strict=True):
            if not gc.is_tracked(part):
                share = weight / max(references - _OWN_REFERENCES, 1)
                kind = type(part)
                self._add(kind, (sys.getsizeof(part) + 15) & -16, share)
                if kind is dict or kind is tuple or kind is frozenset:
                    # One of numbers and strings, which Python need not track.
                    inner = referentsOf(part)
                    self._pending.append((inner.objects, share * inner.weight))
        return len(parts) + 1

    def _add(self, kind: type, sizeBytes: int, weight: float) -> None:
        entry = self._tally.get(kind)
        if entry is None:
            self._tally[kind] = [weight, sizeBytes * weight]
        else:
            entry[0] += weight
            entry[1] += sizeBytes * weight

    def _keep(self, place: int, each: Any) -> None:
        self._seen[place] += 1
        members = self.members[place]
        if len(members) < MAX_MEMBERS:
            members.append(each)
        else:
            chosen = int(self._random.random() * self._seen[place])
            if chosen < MAX_MEMBERS:
                members[chosen] = each
