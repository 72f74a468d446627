# -*- test-case-name: tests.contracts.test_bloom -*-
"""
A bound on the memory of many filters together.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from attrs import define, field


class Droppable(Protocol):
    """
    What holds L{FilterMemory}: a filter with layers.
    """

    def dropOldest(self) -> None:
        """
        Give back the memory of the oldest layer, there being one.
        """


@define(eq=False)
class FilterMemory:
    """
    Memory that several filters share.  When there is not enough, whichever
    holds most gives up its oldest layer, again and again: one that grows does
    not take from many that do not.

    @ivar maxBytes: how much there is.
    @ivar usedBytes: how much of it is taken.
    @ivar droppedLayers: how many layers have gone before their time, for
        want of memory or because their filter had too many.
    """

    maxBytes: float = inf
    usedBytes: int = field(default=0, init=False)
    droppedLayers: int = field(default=0, init=False)
    _heldBytes: dict[Droppable, int] = field(factory=dict, init=False)

    def heldBytes(self, holder: Droppable) -> int:
        """
        How much of it C{holder} has.
        """
        return self._heldBytes.get(holder, 0)

    def take(self, holder: Droppable, sizeBytes: int) -> None:
        """
        Take memory for a layer.  Any filter may lose layers by that, also
        C{holder}.  If there is not enough, this looks at every filter.
        """
        while self._heldBytes and self.usedBytes + sizeBytes > self.maxBytes:
            max(self._heldBytes, key=self._heldBytes.__getitem__).dropOldest()
        self.usedBytes += sizeBytes
        self._heldBytes[holder] = self.heldBytes(holder) + sizeBytes

    def give(self, holder: Droppable, sizeBytes: int) -> None:
        """
        Give back what was taken.
        """
        self.usedBytes -= sizeBytes
        self._heldBytes[holder] -= sizeBytes
        if not self._heldBytes[holder]:
            del self._heldBytes[holder]
