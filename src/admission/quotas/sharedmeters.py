# -*- test-case-name: tests.unit.shares.test_limitsharing -*-
"""
Meters of limits that several servers enforce together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Final

from ..interfaces import QuotaEntity, Taken
from .limits import EntityKey
from .metering import Meters, SharedBucket, SharedBuckets

UNTOLD_SECONDS: Final = 2.0
"""An entity of which others have not been told what the limit allows in this time gets a part of it alone."""

FOUND_SECONDS: Final = 0.5
"""How often at most all meters are looked through while some of those found before are still to be told."""


class SharedMeters:
    """
    L{IShared <admission.interfaces.IShared>} for a policy whose limits have meters.
    """

    def __init__(self, algorithm: SharedBuckets, meters: Sequence[Meters[SharedBucket]]) -> None:
        """
        @param algorithm: that of all of C{meters}.
        """
        self._algorithm = algorithm
        self._meters = {each.limitName: each for each in meters}
        self._untold: deque[tuple[str, EntityKey, SharedBucket]] = deque()
        self._foundSeconds = -inf
        self._toldCount = 0

    def taken(self, leastSeconds: float, now: float) -> Iterator[Taken]:
        # Where more is to be told than can be, all meters are looked through now and then only.
        if not self._untold or now - self._foundSeconds >= FOUND_SECONDS:
            self._foundSeconds = now
            found = [*self._find(leastSeconds, now)]
            # Where others were told last of those before it.
            begin = self._toldCount % len(found) if found else 0
            self._untold = deque((*found[begin:], *found[:begin]))
        untold = self._untold
        while untold:
            name, key, meter = untold.popleft()
            amount = meter.tell(now)
            if amount:
                self._toldCount += 1
                yield Taken(name, _entityOf(key), amount)

    def _find(self, leastSeconds: float, now: float) -> Iterator[tuple[str, EntityKey, SharedBucket]]:
        for name, meters in self._meters.items():
            for key, meter in meters.items():
                amount, limit = meter.untold, meter.limit.value
                if (amount > limit * UNTOLD_SECONDS) is not meter.isAlone:
                    meter.isAlone = not meter.isAlone
                    meter.shared(now)
                if amount and amount >= limit * leastSeconds:
                    yield name, key, meter

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        if not isOld:
            meter = self._meters[taken.limitName].obtainFor(keyOfTaken(taken), now)
            if meter is not None:
                meter.spendElsewhere(taken.amount, now)

    def share(self, fraction: float, count: int, now: float) -> None:
        self._algorithm.fraction, self._algorithm.count = fraction, count
        for meters in self._meters.values():
            meters.changed(partial(_shared, now))


def keyOfTaken(taken: Taken) -> EntityKey:
    """
    The key of the meter that C{taken} is about.
    """
    entity = taken.entity
    return (entity.user, entity.clientId) if entity.ip is None else (entity.ip,)


def _entityOf(key: EntityKey) -> QuotaEntity:
    return QuotaEntity(*key) if len(key) == 2 else QuotaEntity(ip=key[0])


def _shared(now: float, meter: SharedBucket) -> None:
    meter.shared(now)
