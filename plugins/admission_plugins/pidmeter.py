# -*- test-case-name: tests.contracts.test_pidquota -*-
"""
What one user has brought along of producer ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil

from attrs import define, field

from admission.interfaces import DEFAULT
from admission.metrics.bucket import NEGLIGIBLE_SECONDS, TokenBucket
from admission.metrics.meters import MeterTable
from admission.metrics.rate import SampledMean, SampledTotal
from admission.quotas.limits import Limit, LimitTable
from admission.quotas.metered import OVERFLOW

from .bloom import LayeredBloom

PRODUCER_IDS_RATE = "producer_ids_rate"
"""New producer ids of one user in each window."""

UNLIMITED = 2147483647.0
"""What stands for no limit, for a user whom the default is not to hold for."""


def capacityFor(limit: Limit) -> int:
    """
    How many new ids may come within any window: a full bucket, and what flows
    into it meanwhile.
    """
    return 2 * ceil(limit.value)


@define(eq=False)
class ProducerIdMeter:
    """
    The tokens and the known ids of one user.

    @ivar limit: how many new ids there may be in a window.
    @ivar bucket: the tokens that are left.
    @ivar known: the ids that were seen within the window.
    @ivar arrivals: how many were new lately; for a sensor, like C{delays}.
    """

    limit: Limit
    bucket: TokenBucket
    known: LayeredBloom
    arrivals: SampledTotal
    delays: SampledMean = field(factory=SampledMean, init=False)

    def countNew(self, identities: Sequence[int], now: float) -> int:
        """
        How many of C{identities} are not known, each counted once.  What is
        negative stands for no producer.
        """
        contains = self.known.contains
        # Most requests have one id, which is known: that needs no set.
        new: set[int] | None = None
        for identity in identities:
            if identity >= 0 and not contains(identity, now):
                if new is None:
                    new = set()
                new.add(identity)
        return len(new) if new else 0

    def waitSeconds(self, new: int, now: float) -> float:
        """
        For how long until there are tokens for so many new ids, or would be if
        the bucket were larger.
        """
        if not new:
            return 0.0
        waitSeconds = (new - self.bucket.tokens(now)) / self.bucket.rate
        return waitSeconds if waitSeconds >= NEGLIGIBLE_SECONDS else 0.0

    def remember(self, identities: Sequence[int], now: float) -> int:
        """
        Have C{identities} known from now on.

        @return: how many were not.
        """
        track, new = self.known.track, 0
        for identity in identities:
            if identity >= 0 and track(identity, now):
                new += 1
        return new

    def setLimit(self, limit: Limit, now: float) -> None:
        """
        Go by C{limit} from now on; what is known and spent stays so.
        """
        self.limit = limit
        self.bucket.setRate(limit.value / self.known.windowSeconds, now)
        self.known.capacity = capacityFor(limit)

    def isIdle(self, now: float) -> bool:
        """
        Whether nothing is known, and nothing spent.
        """
        return not self.known.layersAt(now) and self.bucket.isFull(now)


class ProducerIdMeters:
    """
    A meter for each user who has a limit, made when it is first needed.

    @ivar overflows: how often a meter was shared for lack of room.
    """

    def __init__(
        self,
        limits: LimitTable,
        build: Callable[[Limit, float], ProducerIdMeter],
        maxMeters: int,
    ) -> None:
        """
        @param limits: the limits in force; call L{refresh} when they have changed.
        @param build: makes a meter that nothing is in yet.
        @param maxMeters: how many users have a meter of their own, besides
            those whose limit is.
        @raise ValueError: if C{maxMeters} is not positive.
        """
        self._limits = limits
        self._build = build
        self._table: MeterTable[str, ProducerIdMeter] = MeterTable(maxMeters)

    @property
    def overflows(self) -> int:
        """
        See the class.
        """
        return self._table.overflows

    def __len__(self) -> int:
        """
        How many meters there are.
        """
        return len(self._table) + len(self._table.shared)

    def find(self, principal: str, now: float) -> ProducerIdMeter | None:
        """
        What L{obtain} would return, without keeping it.
        """
        meter = self._table.find(principal)
        if meter is None:
            limit = self._limitOf(principal)
            if limit is not None:
                meter = self._table.find(principal, _sharedBy(limit)) or self._build(limit, now)
        return meter

    def obtain(self, principal: str, now: float) -> ProducerIdMeter | None:
        """
        The meter of a user; L{None} if the user has no limit.
        """
        meter = self._table.find(principal)
        if meter is None:
            limit = self._limitOf(principal)
            if limit is not None:
                meter = self._table.obtain(principal, partial(self._build, limit), now, _sharedBy(limit))
        return meter

    def refresh(self, now: float) -> None:
        """
        The limits have changed: have every meter go by the one that now holds
        for it, and drop those for whom there is none.
        """
        table = self._table
        for principal, meter in list(table.items()):
            if not self._adjust(principal, meter, now):
                table.discard(principal)
        for name, meter in list(table.shared.items()):
            if not self._adjust(name, meter, now):
                table.discardShared(name)

    def sweep(self, now: float) -> None:
        """
        Drop the meters that hold no information any more.
        """
        self._table.sweep(now)

    def labelled(self) -> Iterator[tuple[str, ProducerIdMeter]]:
        """
        Every meter, and whose it is for people to read.
        """
        yield from list(self._table.items())
        for meter in list(self._table.shared.values()):
            yield OVERFLOW, meter

    def _limitOf(self, principal: str) -> Limit | None:
        limit = self._limits.resolve(principal, "", PRODUCER_IDS_RATE)
        return None if limit is None or limit.value >= UNLIMITED else limit

    def _adjust(self, principal: str, meter: ProducerIdMeter, now: float) -> bool:
        limit = self._limitOf(principal)
        if limit is None:
            meter.known.clear()
            return False
        meter.setLimit(limit, now)
        return True


def _sharedBy(limit: Limit) -> str | None:
    """
    The key of the meter for those who come late, if C{limit} may be for anybody.
    """
    return None if limit.isNamed else DEFAULT
