# -*- test-case-name: tests.unit.profiling.test_census -*-
"""
Looks at the heap in steps and with a bound: L{Census} counts all objects by their class, as pympler's summary does, and
L{Sizing} measures some with everything that they own, as pympler's C{asizeof} does.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random
from typing import Any

from .objectgroups import Grouping, flatBytes, nameOf, referentsOf

MAX_OBJECTS = 500_000
"""With more containers, every second one is counted, or every third, and so on."""

MAX_MEMBERS = 1_000
"""How many objects of a group are kept for a closer look."""

PARTS_PER_STEP = 1_000

_PROBE = [object()]

# The references that a list, and the loop below, add to an object in it.
((_, _OWN_REFERENCES),) = zip(_PROBE, map(sys.getrefcount, _PROBE), strict=True)

MAX_VISITS = 100_000
"""How many objects of a group are looked at."""

MAX_SIBLINGS = 1_000
"""Of more objects in one container this many are followed, and stand for the others."""

VISITS_PER_STEP = 100

Row = list[Any]
"""A row in pympler's sense: the name of a class, how many objects it has, and their size in bytes."""


def containers() -> list[Any]:
    """
    All containers that the garbage collector knows.  Those that were frozen (C{gc.freeze}) are not from then on, since
    there is no other way to see them.
    """
    gc.unfreeze()
    return gc.get_objects()


def cyclicGarbage(maxObjects: int) -> list[Any] | None:
    """
    All containers that nothing can reach and that only the garbage collector frees, since they refer to each other.
    Their finalizers run.  They stay in memory while the result is referred to, and until the collector looks again.

    @return: L{None} if there are more than C{maxObjects} containers, as this looks at all of them in one go.
    """
    if len(containers()) > maxObjects:
        return None
    known, flags = len(gc.garbage), gc.get_debug()
    gc.set_debug(flags | gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(flags)
    found = gc.garbage[known:]
    del gc.garbage[known:]
    return found


class Census:
    """
    Counts all objects by their class.

    @ivar members: some objects of each group, chosen at random.
    @ivar stride: how many containers each counted one stands for.
    """

    def __init__(
        self,
        grouping: Grouping,
        random: Random,
        objects: Callable[[], list[Any]] = containers,
        maxObjects: int = MAX_OBJECTS,
        leftOut: Collection[int] = (),
    ) -> None:
        """
        @param objects: returns all containers that the garbage collector knows.
        @param leftOut: the ids of containers that are not counted.
        """
        self._leftOut = leftOut
        self._grouping = grouping
        self._random = random
        self._objects = objects
        self._maxObjects = maxObjects
        # By the id of the class: the class, the number of its objects, and their size.
        self._tally: dict[int, tuple[type, list[float]]] = {}
        self._pending: list[tuple[list[Any], float]] = []
        self.stride = 1
        self._seen = [0] * len(grouping.groups)
        self.members: list[list[Any]] = [[] for _ in grouping.groups]

    def steps(self) -> Iterator[None]:
        """
        Count, a step at each turn.  The first step asks Python for all
        containers, which cannot be divided.
        """
        objects = self._objects()
        yield
        self.stride = stride = max(-(-len(objects) // self._maxObjects), 1)
        random, pending = self._random.random, self._pending
        # Backwards, so that nothing is kept alive for longer than needed.  Which one of several is counted is random,
        # because programs make objects in patterns.
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
        return [seen * self.stride for seen in self._seen]

    @property
    def rows(self) -> list[Row]:
        """
        The summary, in no order.
        """
        rows: dict[str, Row] = {}
        for kind, (count, sizeBytes) in self._tally.values():
            name = nameOf(kind)
            row = rows.setdefault(name, [name, 0, 0])
            row[1] += round(count * self.stride)
            row[2] += round(sizeBytes * self.stride)
        return list(rows.values())

    def _count(self, each: Any) -> None:
        if id(each) in self._leftOut:
            return
        kind = type(each)
        referents = referentsOf(each)
        self._add(kind, flatBytes(each, referents), 1.0)
        place = self._grouping.placeOf(kind)
        if place >= 0:
            self._keep(place, each)
        self._pending.append(referents)

    def _countParts(self, parts: list[Any], weight: float) -> int:
        """
        Count the objects that the garbage collector does not track, which are found only through others.  An object
        with n references counts 1/n for each, so no set of visited objects is needed.

        @return: how many were looked at, and at least 1.
        """
        for part, references in zip(parts, map(sys.getrefcount, parts), strict=True):
            if not gc.is_tracked(part):
                share = weight / max(references - _OWN_REFERENCES, 1)
                kind = type(part)
                self._add(kind, flatBytes(part), share)
                if kind is dict or kind is tuple or kind is frozenset:
                    # Only numbers and strings, which Python need not track.
                    inner = referentsOf(part)
                    self._pending.append((inner.objects, share * inner.weight))
        return len(parts) + 1

    def _add(self, kind: type, sizeBytes: int, weight: float) -> None:
        found = self._tally.get(id(kind))
        if found is None:
            self._tally[id(kind)] = kind, [weight, sizeBytes * weight]
        else:
            _, entry = found
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


class Sizing:
    """
    Adds up the memory reached from the members of a group: the objects that a member refers to, what these refer to,
    and so on, each object once, up to other members of any group and to shared objects.

    @ivar isCut: whether there was more than C{maxVisits}, so that the members are larger than L{sizeBytes}.
    """

    def __init__(
        self,
        grouping: Grouping,
        opaque: Mapping[type, Callable[[Any], int]] | None = None,
        maxVisits: int = MAX_VISITS,
    ) -> None:
        """
        @param opaque: for classes with memory unknown to Python, a function that returns an instance's number of bytes.
        @param maxVisits: how many objects are looked at.
        """
        self._grouping = grouping
        self._opaque = {id(kind): sized for kind, sized in (opaque or {}).items()}
        self._maxVisits = maxVisits
        self._bytes = 0.0
        self._sizedMembers = 0
        self._memberCount = 0
        self.isCut = False

    @property
    def sizeBytes(self) -> int:
        """
        The size of all members, extrapolated from the measured ones.
        """
        return round(self._bytes * self._memberCount / self._sizedMembers) if self._sizedMembers else 0

    def steps(self, members: list[Any], memberCount: int) -> Iterator[None]:
        """
        Add up, a step at each turn.

        @param members: some members of the group; the list is emptied one by one.
        @param memberCount: the number of all members.
        """
        self._memberCount = memberCount
        isBoundary, opaque = self._grouping.isBoundary, self._opaque
        seen = {id(member) for member in members}
        # An object that is freed meanwhile could leave its id to another one.
        alive: list[Any] = []
        visits = 0
        while members and not self.isCut:
            pending = [(members.pop(), 1.0)]
            while pending:
                each, weight = pending.pop()
                alive.append(each)
                visits += 1
                if visits % VISITS_PER_STEP == 0:
                    yield
                if visits > self._maxVisits:
                    self.isCut = True
                    break
                referents = referentsOf(each)
                sizeBytes = flatBytes(each, referents)
                if id(type(each)) in opaque:
                    sizeBytes += opaque[id(type(each))](each)
                self._bytes += sizeBytes * weight
                parts, partWeight = referents.objects, weight * referents.weight
                if len(parts) > MAX_SIBLINGS:
                    stride = -(-len(parts) // MAX_SIBLINGS)
                    # Keys and values take turns in a dictionary, so an even stride would see half of them.
                    stride += 1 - stride % 2
                    sample = parts[::stride]
                    parts, partWeight = sample, partWeight * len(parts) / len(sample)
                for part in parts:
                    if id(part) not in seen and not isBoundary(type(part)):
                        seen.add(id(part))
                        pending.append((part, partWeight))
            self._sizedMembers += 1
        members.clear()
        alive.clear()
        yield
