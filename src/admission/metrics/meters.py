# -*- test-case-name: tests.unit.metrics.test_meters -*-
"""
A meter for each client, for a bounded number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

MAX_METERS = 10_000
"""How many meters a table has, unless told otherwise."""


class Forgettable(Protocol):
    """
    What a table holds.
    """

    def isIdle(self, now: float) -> bool:
        """
        Whether it holds no information any more, so that a fresh one would be
        the same.
        """
        ...


Key = TypeVar("Key", bound=Hashable)
Meter = TypeVar("Meter", bound=Forgettable)


class MeterTable(Generic[Key, Meter]):
    """
    Meters by key, made when they are first needed and dropped when they are
    idle.

    Clients choose their keys, so there may be any number.  Once there are
    C{maxMeters}, whoever is new shares a meter with all others that are new,
    until idle meters have made room.  Those who need not share come on top.

    @ivar maxMeters: how many meters there may be before newcomers share one;
        change it at will.
    @ivar overflows: how often a meter was shared for lack of room.
    @ivar sweeps: how often idle meters were dropped; whoever remembers meters
        must forget them when this changes.
    @ivar shared: the meters that newcomers share; a live view.
    """

    def __init__(self, maxMeters: int = MAX_METERS) -> None:
        """
        @raise ValueError: if C{maxMeters} is not positive.
        """
        if maxMeters < 1:
            raise ValueError(f"maxMeters must be positive, not {maxMeters}")
        self.maxMeters = maxMeters
        self.overflows = 0
        self.sweeps = 0
        self._meters: dict[Key, Meter] = {}
        self._unbounded: set[Key] = set()
        self._shared: dict[Key, Meter] = {}
        self.shared: Mapping[Key, Meter] = self._shared
        self._overflowsToSweep = 0

    def __len__(self) -> int:
        """
        How many meters there are, shared ones not counted.
        """
        return len(self._meters)

    def items(self) -> Iterator[tuple[Key, Meter]]:
        """
        Every key and its meter, shared ones excepted.
        """
        return iter(self._meters.items())

    def find(self, key: Key, sharedKey: Key | None = None) -> Meter | None:
        """
        What L{obtain} would return, if it is there already.  Changes nothing.
        """
        meter = self._meters.get(key)
        if meter is None and sharedKey is not None and self._isFull():
            return self._shared.get(sharedKey)
        return meter

    def obtain(self, key: Key, build: Callable[[float], Meter], now: float, sharedKey: Key | None = None) -> Meter:
        """
        The meter of C{key}, which is made if need be.

        @param build: makes a meter, told what time it is.
        @param sharedKey: which meter to share if there is no room for another;
            L{None} to make one all the same.  There must be few of these keys.
        """
        meter = self._meters.get(key)
        if meter is None:
            if sharedKey is not None and not self._hasRoom(now):
                self.overflows += 1
                shared = self._shared.get(sharedKey)
                if shared is None:
                    shared = self._shared[sharedKey] = build(now)
                return shared
            meter = self._meters[key] = build(now)
            if sharedKey is None:
                self._unbounded.add(key)
        return meter

    def discard(self, key: Key) -> None:
        """
        Drop the meter of C{key}, idle or not.
        """
        self._meters.pop(key, None)
        self._unbounded.discard(key)

    def discardShared(self, sharedKey: Key) -> None:
        """
        Drop the meter that is shared under C{sharedKey}, idle or not.
        """
        self._shared.pop(sharedKey, None)

    def sweep(self, now: float) -> None:
        """
        Drop all meters that are idle.
        """
        self.sweeps += 1
        for meters in (self._meters, self._shared):
            for key in [key for key, meter in meters.items() if meter.isIdle(now)]:
                del meters[key]
        self._unbounded.intersection_update(self._meters)

    def _isFull(self) -> bool:
        return len(self._meters) - len(self._unbounded) >= self.maxMeters

    def _hasRoom(self, now: float) -> bool:
        if not self._isFull():
            return True
        # Sweeping looks at every meter; so that a flood of new keys does not pay that for each, it pays once for many.
        self._overflowsToSweep -= 1
        if self._overflowsToSweep <= 0:
            self.sweep(now)
            self._overflowsToSweep = len(self._meters)
        return not self._isFull()
