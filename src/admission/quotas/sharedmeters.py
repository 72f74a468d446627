# -*- test-case-name: tests.unit.quotas.test_sharedmeters -*-
"""
Meters of limits that several servers enforce together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ..interfaces import QuotaEntity, Taken
from .limits import EntityKey
from .metering import Meters, SharedBucket, SharedBuckets


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

    def taken(self, leastSeconds: float) -> Iterator[Taken]:
        for name, meters in self._meters.items():
            for key, meter in meters.items():
                amount = meter.untold
                if amount and amount >= meter.limit.value * leastSeconds:
                    meter.untold = 0.0
                    yield Taken(name, _entityOf(key), amount)

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
    Whose meter it is.
    """
    entity = taken.entity
    return (entity.user, entity.clientId) if entity.ip is None else (entity.ip,)


def _entityOf(key: EntityKey) -> QuotaEntity:
    return QuotaEntity(*key) if len(key) == 2 else QuotaEntity(ip=key[0])


def _shared(now: float, meter: SharedBucket) -> None:
    meter.shared(now)
