# -*- test-case-name: tests.contracts.test_bloom -*-
"""
Which members were seen within a window of time, in a few bytes for each: a
Bloom filter in layers, which time replaces.

A single filter is rbloom's; the layers are ours.  Members are added to the
newest layer only.  Another takes its place every C{windowSeconds / layers}, and
it goes a window later.  A member that is found in an older layer is added to
the newest, so that whoever comes back within a window stays known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import expm1, inf, log1p
from secrets import randbits
from struct import Struct
from zlib import crc32

from rbloom import Bloom

from .bloomlayer import Layer, capacityIn
from .filtermemory import FilterMemory

MIN_CAPACITY = 64
"""Smaller filters vary so much in how full they are that they err more often than they should."""

MAX_LAYERS = 100
"""How many turns there may be in a window."""

MIN_FALSE_POSITIVES = 1e-9
"""What a filter may be asked for."""

MAX_LAYERS_PER_TURN = 4
"""How many layers there may be for each one that time alone would leave, on average."""

KEY_BITS = 61
"""How long keys are: as long as the hash of an integer."""

# In a turn the first layer may use up so much of what errors are left, and each further one so much of the rest.
_FIRST_SHARE = 0.9
_FURTHER_SHARE = 0.5
# Layers beyond this are as good as free of errors; making them better would only take memory.
_MIN_SHARE = 1e-6

_STORED = Struct("<4sQQQQddddI")
_MAGIC = b"LBF1"
_CHECKSUM = Struct("<I")


class LayeredBloom:
    """
    Who was seen within the last C{windowSeconds}.

    There are no false negatives: a member stays known for a window, and up to
    C{windowSeconds / layers} longer.  Of those that were not seen, at most
    C{falsePositives} are taken for seen.  That bound is for all layers
    together: the C{layers + 1} turns that are remembered share it evenly, and
    within a turn the first layer may err nine tenths of the turn's share, and
    each that follows because the one before was full half of what is left.

    What follows a full layer has twice its capacity, and after a turn that held
    more than C{capacity} the next begins with room for as many and a quarter
    more.  So where more members come regularly, filters grow, not their number.

    There are limits: C{memory}, of which a layer takes no more than its part,
    and L{MAX_LAYERS_PER_TURN}.  Beyond them the oldest layer goes early, and
    who was in no younger one looks new.

    Times are those of a monotonic clock and never decrease.  Members are mixed
    with a secret key first: rbloom takes integers as they are, and would take
    those that follow each other, or differ in few bits, for each other.

    @ivar capacity: for how many members a layer is made at least, from the next
        layer on.
    @ivar windowSeconds: how long a member stays known.
    @ivar layers: how many turns there are in a window.
    @ivar falsePositives: the bound on errors.
    @ivar key: what members are mixed with, from 0 to 2^61 - 1.
    @ivar isStorable: whether L{toBytes} may be called.
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
        isStorable: bool = False,
    ) -> None:
        """
        @param memory: where to take memory from.  It knows this filter for as
            long as there are layers: see L{clear}.
        @param key: random unless given.
        @param isStorable: makes the filter half as fast, since rbloom has to
            call back for each member then.
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
        self.isStorable = isStorable
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
        The layers that count, oldest first; none if nobody was seen lately.  A
        live view.
        """
        if now >= self._expirySeconds:
            self._expire(now)
        return self._layers

    def track(self, member: int, now: float) -> bool:
        """
        C{member} is seen.

        @return: whether it is new.  Never if it was seen within the window;
            if it was not, then C{falsePositives} of the time not either.
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
        Whether C{member} was seen; it is not by asking.
        """
        if now >= self._expirySeconds:
            self._expire(now)
        # As in track.
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
        How many of those that were not seen are taken for seen, as full as the
        layers are.
        """
        right = 1.0
        for layer in self.layersAt(now):
            right *= 1.0 - layer.estimateFalsePositives()
        return 1.0 - right

    def dropOldest(self) -> None:
        """
        Let the oldest layer go before its time.

        @raise IndexError: if there is none.
        """
        if not self._layers:
            raise IndexError("there are no layers")
        self._memory.droppedLayers += 1
        self._drop(1)

    def clear(self) -> None:
        """
        Forget everybody, and give all memory back.
        """
        self._drop(len(self._layers))

    def toBytes(self, now: float) -> bytes:
        """
        Everything, to be kept somewhere; see L{fromBytes}.  Whoever can read it
        knows the key.

        @raise ValueError: if the filter is not C{isStorable}.
        """
        if not self.isStorable:
            raise ValueError("a filter can be stored if it was made so: isStorable=True")
        layers = [layer.toBytes(now) for layer in self.layersAt(now)]
        header = _STORED.pack(
            _MAGIC,
            sys.hash_info.modulus,
            self.key,
            self.capacity,
            self.layers,
            self.windowSeconds,
            self.falsePositives,
            self._turnEndsSeconds - now,
            self._errorsLeft,
            len(layers),
        )
        body = b"".join([header, *layers])
        return body + _CHECKSUM.pack(crc32(body))

    @classmethod
    def fromBytes(cls, data: bytes, now: float, memory: FilterMemory | None = None) -> LayeredBloom:
        """
        Make a filter of what L{toBytes} returned, in this process or another.

        @param now: when it was stored, by the clock that it will see:
            the present, less what it has been lying for.
        @raise ValueError: if C{data} is damaged, or was stored by a Python
            that hashes integers in another way.
        """
        body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
        if len(body) < _STORED.size or body[:4] != _MAGIC or _CHECKSUM.pack(crc32(body)) != checksum:
            raise ValueError("this is no stored filter, or it is damaged")
        (_, modulus, key, capacity, layers, windowSeconds, falsePositives, turnSeconds, errorsLeft, count) = (
            _STORED.unpack_from(body)
        )
        if modulus != sys.hash_info.modulus:
            raise ValueError(f"this filter was stored where integers are hashed modulo {modulus}")
        self = cls(capacity, windowSeconds, layers, falsePositives, memory=memory, key=key, isStorable=True)
        self._turnEndsSeconds = now + turnSeconds
        self._errorsLeft = errorsLeft
        offset = _STORED.size
        for _ in range(count):
            layer, offset = Layer.fromBytes(body, offset, now)
            self._append(layer)
        return self

    def _change(self, now: float) -> None:
        """
        Something has expired, or the turn is over, or there is no layer.
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
        # It was dropped to make room for itself.
        self._memory.give(self, growthBytes)
        self._change(now)
        return self._layers[-1]

    def _open(self, wanted: int, share: float) -> None:
        errors = self._errorsLeft * share
        self._errorsLeft = max(self._errorsLeft - errors, self.falsePositives * _MIN_SHARE)
        most = capacityIn(self._memory.maxBytes / (self.layers + 2), errors)
        capacity = max(min(wanted, most), MIN_CAPACITY)
        expiresSeconds = self._turnEndsSeconds + self.windowSeconds
        self._append(Layer(int(capacity), errors, expiresSeconds, self.isStorable))

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
        Lay out for L{track} and L{contains} what they need: filters, the newest
        first, and the next time that something changes.
        """
        layers = self._layers
        self._newest: set[int] | Bloom = layers[-1].members if layers else set()
        self._older = [layer.members for layer in reversed(layers[:-1])]
        self._expirySeconds = layers[0].expiresSeconds if layers else inf
        self._changeSeconds = min(self._turnEndsSeconds, self._expirySeconds) if layers else -inf
