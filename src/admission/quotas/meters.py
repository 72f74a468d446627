# -*- test-case-name: tests.unit.quotas.test_meters -*-
"""
What one client takes, held against its limit: over sampled windows, or with a
bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol

from attrs import frozen

from ..metrics.bucket import NEGLIGIBLE_SECONDS, TokenBucket
from ..metrics.rate import RecentRate, SampledMean, SampledTotal
from .limits import Limit


class LimitMeter(Protocol):
    """
    A meter with a limit.  Only L{spend} and L{setLimit} change it.

    @ivar limit: the limit that it goes by; see L{setLimit}.
    @ivar delays: the delays it has asked for lately; L{None} if it never has.
    """

    limit: Limit
    delays: SampledMean | None

    def spend(self, amount: float, now: float) -> float:
        """
        Count C{amount}, whether or not there is room for it.

        @return: for how many seconds the client has to wait.
        """
        ...

    def delaySeconds(self, now: float) -> float:
        """
        For how many seconds the client has to wait as things are.
        """
        ...

    def room(self, now: float) -> float:
        """
        How much may be taken before the client is over its limit; negative if
        it is.
        """
        ...

    def used(self, now: float) -> float:
        """
        How much of the limit is used, in its unit.
        """
        ...

    def setLimit(self, limit: Limit, now: float) -> None:
        """
        Go by C{limit} from now on; what was counted stays.
        """
        ...

    def isIdle(self, now: float) -> bool:
        """
        Whether a fresh meter would be the same.
        """
        ...


class Algorithm(Protocol):
    """
    What makes meters.
    """

    @property
    def horizonSeconds(self) -> float | None:
        """
        How long a meter remembers; L{None} for ever.
        """
        ...

    def build(self, limit: Limit, now: float) -> LimitMeter:
        """
        Make a meter that goes by C{limit}.
        """
        ...

    def reads(self, rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        """
        What a meter can tell besides how much of its limit is used: by name,
        what reads it from a meter.

        @param rateName: what to call the rate.
        """
        ...


class WindowMeter(SampledTotal):
    """
    Kafka's own quota (KIP-13): who has taken more than the limit over the
    sampled windows is throttled until the mean since the oldest window is the
    limit again.

    With I{total} taken over I{span} seconds the delay is
    C{total / limit - span}, which is Kafka's C{(O - T) / T * W}.  What windows
    hold from before the delay is counted again after it; see the manual for
    how far that is from exact.
    """

    __slots__ = ("_freeTotal", "_maxDelaySeconds", "delays", "limit")

    def __init__(self, limit: Limit, samples: int, windowSeconds: float, maxDelaySeconds: float = inf) -> None:
        """
        @param maxDelaySeconds: the longest delay to ask for.
        @raise ValueError: see L{SampledTotal}.
        """
        super().__init__(samples, windowSeconds)
        self._maxDelaySeconds = maxDelaySeconds
        self.delays: SampledMean | None = None
        self.setLimit(limit, 0.0)

    def spend(self, amount: float, now: float) -> float:
        # As record, without its call: this runs for every request.
        if now - self._start >= self.windowSeconds:
            self._advance(now)
        value = self._value = self._value + amount
        self._last = now
        if value + self._olderTotal <= self._freeTotal:
            return 0.0
        return self.delaySeconds(now)

    def delaySeconds(self, now: float) -> float:
        # Some of the older ones may no longer count; then there is only more room.
        if self._value + self._olderTotal <= self._freeTotal:
            return 0.0
        total, spanSeconds = self.measure(now)
        delaySeconds = total / self.limit.value - spanSeconds
        return min(delaySeconds, self._maxDelaySeconds) if delaySeconds >= NEGLIGIBLE_SECONDS else 0.0

    def room(self, now: float) -> float:
        total, spanSeconds = self.measure(now)
        return self.limit.value * spanSeconds - total

    def used(self, now: float) -> float:
        """
        The rate over the windows.
        """
        return self.rate(now)

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        # The span is never shorter, so up to here there is nothing to compute.
        self._freeTotal = limit.value * (self.samples - 1) * self.windowSeconds

    def isIdle(self, now: float) -> bool:
        return self.isEmpty(now)


@frozen
class Windows:
    """
    Makes meters with sampled windows.

    @ivar samples: how many windows count; positive.
    @ivar windowSeconds: the length of one; positive.
    @ivar maxDelaySeconds: the longest delay a meter asks for.
    """

    samples: int
    windowSeconds: float
    maxDelaySeconds: float = inf

    def __attrs_post_init__(self) -> None:
        SampledTotal(self.samples, self.windowSeconds)

    @property
    def horizonSeconds(self) -> float:
        """
        What opens a window lasts as long as what is recorded in it last.
        """
        return (self.samples + 1) * self.windowSeconds

    def build(self, limit: Limit, now: float) -> WindowMeter:
        """
        Make a meter that goes by C{limit}.
        """
        return WindowMeter(limit, self.samples, self.windowSeconds, self.maxDelaySeconds)

    def reads(self, rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        """
        The rate over the windows.
        """
        return {rateName: WindowMeter.rate}


class BucketMeter(TokenBucket):
    """
    A bucket that fills at the limit: exact after its burst, and debts are paid
    in full.
    """

    __slots__ = ("_recent", "delays", "limit")

    def __init__(self, limit: Limit, burstSeconds: float, now: float) -> None:
        """
        @raise ValueError: see L{TokenBucket}.
        """
        super().__init__(limit.value, burstSeconds, now)
        self.limit = limit
        self.delays: SampledMean | None = None
        self._recent = RecentRate(now)

    def recentRate(self, now: float) -> float:
        """
        What was taken each second lately, see L{RecentRate}.
        """
        return self._recent.rate(self.spentTotal, now)

    def room(self, now: float) -> float:
        """
        The tokens in the bucket.
        """
        return self.tokens(now)

    def used(self, now: float) -> float:
        """
        The part of the burst that is used, times the limit: an empty bucket
        uses all of it, and one that owes uses more.
        """
        return (1.0 - self.tokens(now) / self.burst) * self.rate

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self.setRate(limit.value, now)

    def isIdle(self, now: float) -> bool:
        return self.isFull(now)


@frozen
class Buckets:
    """
    Makes meters with a bucket.

    @ivar burstSeconds: for how many seconds of the limit there is room; positive.
    """

    burstSeconds: float

    def __attrs_post_init__(self) -> None:
        TokenBucket(1.0, self.burstSeconds, 0.0)

    @property
    def horizonSeconds(self) -> None:
        """
        Debts may be of any size, so they may last for ever.
        """
        return None

    def build(self, limit: Limit, now: float) -> BucketMeter:
        """
        Make a meter that goes by C{limit}.
        """
        return BucketMeter(limit, self.burstSeconds, now)

    def reads(self, rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        """
        The rate lately, and what is in the bucket.
        """
        return {rateName: BucketMeter.recentRate, "tokens": BucketMeter.tokens}
