# -*- test-case-name: tests.contracts.test_bloom -*-
"""
One layer of a L{admission_plugins.bloom.LayeredBloom}.
"""

from __future__ import annotations

from math import ceil, exp, log, log2
from operator import index
from struct import Struct, pack, unpack_from

from attrs import define, field
from rbloom import Bloom

EXACT_MEMBERS = 64
"""Up to so many members a layer is a set, if that is smaller than its filter."""

# What a set takes for each integer in it at worst, and what the objects around a filter take.
_EXACT_MEMBER_BYTES = 150
_LAYER_BYTES = 400

_FILTER_BYTES_PER_NAT = 1 / (8 * log(2) ** 2)

_STORED = Struct("<QQddBQ")


def capacityIn(sizeBytes: float, falsePositives: float) -> float:
    """
    How many members there may be in a layer of C{sizeBytes}.
    """
    return (sizeBytes - _LAYER_BYTES) / (-log(falsePositives) * _FILTER_BYTES_PER_NAT)


@define(eq=False)
class Layer:
    """
    Members that were added while this layer was the newest.

    They have to be integers from 0 to 2^61 - 2 without a pattern.  To save a
    call, whoever adds one adds it to C{members} and counts it.

    @ivar capacity: how many members the filter is made for.
    @ivar falsePositives: how often it errs once it holds so many.
    @ivar expiresSeconds: when it is to go.
    @ivar isStorable: whether L{toBytes} may be called.
    @ivar members: the filter, or a set that is smaller.
    @ivar count: how many there are.
    @ivar limit: at how many something has to be done: the set become a filter,
        or another layer begin.
    @ivar sizeBytes: about how much memory it takes.
    """

    capacity: int
    falsePositives: float
    expiresSeconds: float
    isStorable: bool
    members: set[int] | Bloom = field(factory=set, init=False)
    count: int = field(default=0, init=False)
    limit: int = field(init=False)
    sizeBytes: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = min(EXACT_MEMBERS, self._filterBytes // _EXACT_MEMBER_BYTES)
        self.sizeBytes = _LAYER_BYTES + self.limit * _EXACT_MEMBER_BYTES

    @property
    def isExact(self) -> bool:
        """
        Whether it is a set still, and never errs.
        """
        return isinstance(self.members, set)

    @property
    def growthBytes(self) -> int:
        """
        What L{becomeFilter} adds to C{sizeBytes}.
        """
        return _LAYER_BYTES + self._filterBytes - self.sizeBytes

    @property
    def _filterBytes(self) -> int:
        return ceil(self.capacity * -log(self.falsePositives) * _FILTER_BYTES_PER_NAT)

    def becomeFilter(self) -> None:
        """
        Keep the members in a filter from now on.
        """
        # rbloom does not store a filter without a function of its own, and is half as fast with one.
        function = (index,) if self.isStorable else ()
        bloom = Bloom(self.capacity, self.falsePositives, *function)
        bloom.update(self.members)
        self._adopt(bloom)

    def estimateFalsePositives(self) -> float:
        """
        How often it errs as full as it is.
        """
        members = self.members
        if isinstance(members, set):
            return 0.0
        # As rbloom chooses it.
        probes = max(1, int(-log2(self.falsePositives)))
        return float((1.0 - exp(-probes * self.count / members.size_in_bits)) ** probes)

    def toBytes(self, now: float) -> bytes:
        """
        Everything, the time as seconds from C{now}.
        """
        members = self.members
        stored = pack(f"<{self.count}Q", *sorted(members)) if isinstance(members, set) else members.save_bytes()
        remainingSeconds = self.expiresSeconds - now
        header = _STORED.pack(
            self.capacity, self.count, self.falsePositives, remainingSeconds, self.isExact, len(stored)
        )
        return header + stored

    @classmethod
    def fromBytes(cls, data: bytes, offset: int, now: float) -> tuple[Layer, int]:
        """
        Read what L{toBytes} wrote.

        @return: the layer, and where it ends.
        """
        capacity, count, falsePositives, remainingSeconds, isExact, storedBytes = _STORED.unpack_from(data, offset)
        begin = offset + _STORED.size
        end = begin + storedBytes
        layer = cls(capacity, falsePositives, now + remainingSeconds, isStorable=True)
        layer.count = count
        if isExact:
            layer.members = set(unpack_from(f"<{count}Q", data, begin))
        else:
            layer._adopt(Bloom.load_bytes(data[begin:end], index))
        return layer, end

    def _adopt(self, bloom: Bloom) -> None:
        self.sizeBytes += self.growthBytes
        self.members = bloom
        self.limit = self.capacity
