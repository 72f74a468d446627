# -*- test-case-name: tests.contracts.test_bloom -*-
"""
Remembers the members seen within a window of time, in a few bytes for each: a Bloom filter in layers that expire.

A single filter is rbloom's; the layers are ours.  Members are added to the newest layer only.  A new layer begins every
C{windowSeconds / layers}, and expires a window after it was replaced.  A member that is found in an older layer is
added to the newest, so that a member that returns within a window stays known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, expm1, inf, log, log1p, log2
from secrets import randbits

from attrs import define, field
from rbloom import Bloom

MIN_CAPACITY = 64
"""The fill of smaller filters varies so much that they err more often than they should."""

MAX_LAYERS = 100
"""How many turns there may be in a window."""

MIN_FALSE_POSITIVES = 1e-9
"""The lowest bound on errors that a filter accepts."""

MAX_LAYERS_PER_TURN = 4
"""How many layers there may be, on average, for each one that expiry by time alone would leave."""

KEY_BITS = 61
"""The length of keys: that of the hash of an integer."""

# The share of a turn's remaining errors that its first layer may use up, and the share for each further one.
_FIRST_SHARE = 0.9
_FURTHER_SHARE = 0.5
# Layers beyond this are practically free of errors; improving them would only take memory.
_MIN_SHARE = 1e-6

EXACT_MEMBERS = 64
"""Up to this many members a layer is a set, if that is smaller than its filter."""

# The most memory that a set takes for each integer, and the memory of the objects around a filter.
_EXACT_MEMBER_BYTES = 150
_LAYER_BYTES = 400

_FILTER_BYTES_PER_NAT = 1 / (8 * log(2) ** 2)


def capacityIn(sizeBytes: float, falsePositives: float) -> float:
    """
    How many members a layer of C{sizeBytes} may have.
    """
    return (sizeBytes - _LAYER_BYTES) / (-log(falsePositives) * _FILTER_BYTES_PER_NAT)


@define(eq=False)
class Layer:
    """
    Members that were added while this layer was the newest.

    They have to be integers from 0 to 2^61 - 2 without a pattern.  To save a call, L{LayeredBloom} adds to C{members}
    and counts by itself.

    @ivar capacity: how many members the filter is made for.
    @ivar falsePositives: its share of errors with that many members.
    @ivar expiresSeconds: when it expires.
    @ivar members: the filter, or a set that is smaller.
    @ivar count: the number of members.
    @ivar limit: the count at which the set becomes a filter, or another layer begins.
    @ivar sizeBytes: about how much memory it takes.
    """

    capacity: int
    falsePositives: float
    expiresSeconds: float
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
        Whether it is still a set, and never errs.
        """
        return isinstance(self.members, set)

    @property
    def growthBytes(self) -> int:
        """
        The growth of C{sizeBytes} in L{becomeFilter}.
        """
        return _LAYER_BYTES + self._filterBytes - self.sizeBytes

    @property
    def _filterBytes(self) -> int:
        return ceil(self.capacity * -log(self.falsePositives) * _FILTER_BYTES_PER_NAT)

    def becomeFilter(self) -> None:
        bloom = Bloom(self.capacity, self.falsePositives)
        bloom.update(self.members)
        self.sizeBytes += self.growthBytes
        self.members = bloom
        self.limit = self.capacity

    def estimateFalsePositives(self) -> float:
        """
        Its current share of errors.
        """
        members = self.members
        if isinstance(members, set):
            return 0.0
        # As rbloom chooses it.
        probes = max(1, int(-log2(self.falsePositives)))
        return float((1.0 - exp(-probes * self.count / members.size_in_bits)) ** probes)


@define(eq=False)
class FilterMemory:
    """
    Memory that several filters share.  When there is not enough, the filter that holds most drops its oldest layer,
    repeatedly: a growing filter does not take memory from many others that do not grow.

    @ivar maxBytes: the size of the memory.
    @ivar usedBytes: the allocated part of it.
    @ivar droppedLayers: how many layers were dropped before they expired, because memory was short or their filter had
        too many.
    """

    maxBytes: float = inf
    usedBytes: int = field(default=0, init=False)
    droppedLayers: int = field(default=0, init=False)
    _heldBytes: dict[LayeredBloom, int] = field(factory=dict, init=False)

    def heldBytes(self, holder: LayeredBloom) -> int:
        return self._heldBytes.get(holder, 0)

    def take(self, holder: LayeredBloom, sizeBytes: int) -> None:
        """
        Allocate memory for a layer.  Any filter, also C{holder}, may lose layers by that.  If there is not enough, this
        looks at every filter.
        """
        while self._heldBytes and self.usedBytes + sizeBytes > self.maxBytes:
            max(self._heldBytes, key=self._heldBytes.__getitem__).dropOldest()
        self.usedBytes += sizeBytes
        self._heldBytes[holder] = self.heldBytes(holder) + sizeBytes

    def give(self, holder: LayeredBloom, sizeBytes: int) -> None:
        self.usedBytes -= sizeBytes
        self._heldBytes[holder] -= sizeBytes
        if not self._heldBytes[holder]:
            del self._heldBytes[holder]


class LayeredBloom:
    """
    Members that were seen within the last C{windowSeconds}.

    There are no false negatives: a member stays known for a window, and up to C{windowSeconds / layers} longer.  Of
    members that were not seen, at most the share C{falsePositives} is taken for seen.  That bound is for all layers
    together: the C{layers + 1} remembered turns share it evenly, and within a turn the first layer may err nine tenths
    of the turn's share, and each layer begun because the one before was full half of the rest.

    A layer that follows a full one has twice its capacity, and after a turn with more than C{capacity} members the next
    begins with room for a quarter more than these.  So where more members come regularly, filters grow, not their
    number.

    There are limits: C{memory}, of which a layer takes no more than its part, and L{MAX_LAYERS_PER_TURN}.  Beyond them
    the oldest layer is dropped early, and members that are in no younger one look new.

    Times are those of a monotonic clock and never decrease.  Members are first mixed with a secret key: rbloom takes
    integers as they are, and would confuse integers that follow each other, or differ in few bits.

    @ivar capacity: the smallest capacity of a layer, from the next layer on.
    @ivar windowSeconds: how long a member stays known.
    @ivar layers: how many turns there are in a window.
    @ivar falsePositives: the bound on errors.
    @ivar key: mixed with members; from 0 to 2^61 - 1.
    """

    def __init__(
        self,
        capacity: int,
        windowSeconds: float,
        layers: int = 4,
        falsePositives: float = 0.01,
        *,
        memory: FilterMemory | None = None,
        key: int | None = None,
    ) -> None:
        """
        @param memory: the memory to use. It refers to this filter as long as there are layers: see L{clear}.
        @param key: random unless given.
        @raise ValueError: if an argument is out of range.
        """
        if not (capacity > 0 and 0 < windowSeconds < inf):
            raise ValueError(f"a filter needs a capacity and a window, not {capacity} and {windowSeconds} s")
        if not 1 <= layers <= MAX_LAYERS:
            raise ValueError(f"a filter has 1 to {MAX_LAYERS} layers, not {layers}")
        if not MIN_FALSE_POSITIVES <= falsePositives < 1:
            raise ValueError(f"false positives may be from {MIN_FALSE_POSITIVES} to less than 1, not {falsePositives}")
        self.capacity = capacity
        self.windowSeconds = windowSeconds
        self.layers = layers
        self.falsePositives = falsePositives
        self.key = randbits(KEY_BITS) if key is None else key
        self._memory = FilterMemory() if memory is None else memory
        self._layers: list[Layer] = []
        self._turnEndsSeconds = 0.0
        self._errorsLeft = 0.0
        self._arrange()

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory the layers take.
        """
        return self._memory.heldBytes(self)

    def layersAt(self, now: float) -> Sequence[Layer]:
        """
        The layers that are valid, oldest first; none if no member was seen lately. A live view.
        """
        if now >= self._expirySeconds:
            self._expire(now)
        return self._layers

    def isFresh(self, member: int, now: float) -> bool:
        """
        Whether to L{track} it would change nothing, because it was seen only just now.
        """
        if now >= self._changeSeconds:
            self._change(now)
        keyed = member + self.key
        return hash(keyed * keyed) in self._newest

    def track(self, member: int, now: float) -> bool:
        """
        Add C{member}.

        @return: whether it is new.  Never if it was seen within the window; if it was not, L{False} in at most the
            share C{falsePositives} of cases.
        """
        if now >= self._changeSeconds:
            self._change(now)
        # Squares modulo 2^61 - 1, which Python documents its hash of an integer to be: no pattern of ids was found
        # that survives, where hashing (key, member) or multiplying leaves up to 1.6 times the errors.
        keyed = member + self.key
        mixed = hash(keyed * keyed)
        if mixed in self._newest:
            return False
        isNew = True
        for older in self._older:
            if mixed in older:
                isNew = False
                break
        layer = self._layers[-1]
        if layer.count >= layer.limit:
            layer = self._outgrow(layer, now)
        layer.count += 1
        layer.members.add(mixed)
        return isNew

    def contains(self, member: int, now: float) -> bool:
        """
        Whether C{member} was seen.  This does not count as seeing it.
        """
        if now >= self._expirySeconds:
            self._expire(now)
        # Inlined from track; a call takes a sixth longer, by python -m benchmarks.bloom.
        keyed = member + self.key
        mixed = hash(keyed * keyed)
        if mixed in self._newest:
            return True
        # A generator would take longer than the filters.
        for older in self._older:  # noqa: SIM110
            if mixed in older:
                return True
        return False

    def estimateFalsePositives(self, now: float) -> float:
        """
        The share of unseen members that is taken for seen, with the layers as they are.
        """
        right = 1.0
        for layer in self.layersAt(now):
            right *= 1.0 - layer.estimateFalsePositives()
        return 1.0 - right

    def dropOldest(self) -> None:
        """
        Drop the oldest layer before it expires.

        @raise IndexError: if there is none.
        """
        if not self._layers:
            raise IndexError("there are no layers")
        self._memory.droppedLayers += 1
        self._drop(1)

    def clear(self) -> None:
        """
        Forget all members, and release all memory.
        """
        self._drop(len(self._layers))

    def _change(self, now: float) -> None:
        """
        A layer has expired, or the turn is over, or there is no layer.
        """
        self._expire(now)
        if not self._layers or now >= self._turnEndsSeconds:
            # Layers of one turn expire together.
            held = sum(layer.count for layer in self._layers if layer.expiresSeconds == self._layers[-1].expiresSeconds)
            self._turnEndsSeconds = now + self.windowSeconds / self.layers
            self._errorsLeft = -expm1(log1p(-self.falsePositives) / (self.layers + 1))
            self._open(held + held // 4 if held > self.capacity else self.capacity, _FIRST_SHARE)

    def _outgrow(self, layer: Layer, now: float) -> Layer:
        """
        Make room for one more member.

        @param layer: the newest, which is at its limit.
        @return: the newest from now on.
        """
        if not layer.isExact:
            self._open(max(2 * layer.capacity, self.capacity), _FURTHER_SHARE)
            return self._layers[-1]
        growthBytes = layer.growthBytes
        self._memory.take(self, growthBytes)
        if self._layers:
            layer.becomeFilter()
            self._arrange()
            return layer
        # This layer was dropped to make room for its own growth.
        self._memory.give(self, growthBytes)
        self._change(now)
        return self._layers[-1]

    def _open(self, wanted: int, share: float) -> None:
        errors = self._errorsLeft * share
        self._errorsLeft = max(self._errorsLeft - errors, self.falsePositives * _MIN_SHARE)
        most = capacityIn(self._memory.maxBytes / (self.layers + 2), errors)
        capacity = max(min(wanted, most), MIN_CAPACITY)
        expiresSeconds = self._turnEndsSeconds + self.windowSeconds
        self._append(Layer(int(capacity), errors, expiresSeconds))

    def _append(self, layer: Layer) -> None:
        if len(self._layers) >= MAX_LAYERS_PER_TURN * (self.layers + 1):
            self.dropOldest()
        self._memory.take(self, layer.sizeBytes)
        self._layers.append(layer)
        self._arrange()

    def _expire(self, now: float) -> None:
        self._drop(sum(now >= layer.expiresSeconds for layer in self._layers))

    def _drop(self, count: int) -> None:
        for layer in self._layers[:count]:
            self._memory.give(self, layer.sizeBytes)
        del self._layers[:count]
        self._arrange()

    def _arrange(self) -> None:
        """
        Prepare the data of L{track} and L{contains}: filters, the newest first, and the time of the next change.
        """
        layers = self._layers
        self._newest: set[int] | Bloom = layers[-1].members if layers else set()
        self._older = [layer.members for layer in reversed(layers[:-1])]
        self._expirySeconds = layers[0].expiresSeconds if layers else inf
        self._changeSeconds = min(self._turnEndsSeconds, self._expirySeconds) if layers else -inf
