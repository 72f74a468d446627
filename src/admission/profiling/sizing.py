# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
How much memory objects take with everything that is theirs: pympler's
C{asizeof}, in steps and with a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .groups import Grouping
from .referents import flatBytes, referentsOf

MAX_VISITS = 100_000
"""How many objects of a group are looked at."""

MAX_SIBLINGS = 1_000
"""Of more objects in one container so many are followed, and stand for the others."""

VISITS_PER_STEP = 100


class Sizing:
    """
    Adds up what is reached from the members of a group: what one of them
    refers to, what that refers to, and so on, each object once, up to other
    members of any group and to what is shared.

    @ivar sizeBytes: what was found.
    @ivar isCut: whether there was more than may be looked at, so that the
        members are larger than that.
    """

    def __init__(
        self,
        grouping: Grouping,
        opaque: Mapping[type, Callable[[Any], int]] | None = None,
        maxVisits: int = MAX_VISITS,
    ) -> None:
        """
        @param opaque: for classes that hold memory of which Python knows
            nothing, what tells how much.
        """
        self._grouping = grouping
        self._opaque = opaque or {}
        self._maxVisits = maxVisits
        self._bytes = 0.0
        self._sizedMembers = 0
        self._memberCount = 0
        self.isCut = False

    @property
    def sizeBytes(self) -> int:
        """
        What all members take, going by those that were looked at.
        """
        return round(self._bytes * self._memberCount / self._sizedMembers) if self._sizedMembers else 0

    def steps(self, members: list[Any], memberCount: int) -> Iterator[None]:
        """
        Add up, a step at each turn.

        @param members: some of the group; let go of one by one.
        @param memberCount: how many there are in all.
        """
        self._memberCount = memberCount
        isBoundary, opaque = self._grouping.isBoundary, self._opaque
        seen = {id(member) for member in members}
        # What has been seen stays where it is while it is counted, or another object might get its place.
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
                if type(each) in opaque:
                    sizeBytes += opaque[type(each)](each)
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
