# -*- test-case-name: tests.unit.metrics.test_bucket -*-
"""
A bucket of tokens that may go into debt.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

NEGLIGIBLE_SECONDS = 1e-6
"""A shorter wait counts as none: it comes from rounding, and no timer is that fine."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenBucket:
    """
    A bucket that fills at a rate up to a burst, and is emptied by spending; it
    may go into debt without limit.

    The rule is that of KIP-599: refill and spend, whatever the amount; a client
    in debt waits until nothing is owed.  So over any period the
    spending of a client that waits stays below the rate, plus the burst, plus
    the one amount that went below zero.  Unlike Kafka's, a bucket is full at
    first.

    @ivar rate: tokens per second.
    @ivar burst: the most it holds: the tokens of C{burstSeconds}, and at least
        one token, or nothing would ever fit.
    @ivar burstSeconds: see C{burst}.
    @ivar spentTotal: all tokens that were ever taken.
    """

    __slots__ = ("_atSeconds", "_tokens", "burst", "burstSeconds", "rate", "spentTotal")

    def __init__(self, rate: float, burstSeconds: float, now: float) -> None:
        """
        @param rate: tokens per second; positive.
        @param burstSeconds: the size of the bucket, in seconds of the rate; positive.
        @param now: the time, on a clock that does not go back.
        @raise ValueError: if C{rate} or C{burstSeconds} is not positive.
        """
        if not (rate > 0 and burstSeconds > 0):
            raise ValueError(f"rate and burstSeconds must be positive, not {rate} and {burstSeconds}")
        self.rate = rate
        self.burstSeconds = burstSeconds
        self.burst = max(rate * burstSeconds, 1.0)
        self.spentTotal = 0.0
        self._tokens = self.burst
        self._atSeconds = now

    def tokens(self, now: float) -> float:
        """
        The tokens that it holds; negative for a debt.
        """
        return min(self._tokens + (now - self._atSeconds) * self.rate, self.burst)

    def spend(self, amount: float, now: float) -> float:
        """
        Take C{amount} tokens, going into debt for missing ones.

        @return: how many seconds to wait until nothing is owed.
        """
        # Like tokens and delaySeconds, without their calls: with them a record takes up to half as long again, by
        # python -m benchmarks.quotas.
        tokens = self._tokens + (now - self._atSeconds) * self.rate
        if tokens > self.burst:
            tokens = self.burst
        self._tokens = tokens = tokens - amount
        self.spentTotal += amount
        self._atSeconds = now
        if tokens >= 0.0:
            return 0.0
        delaySeconds = -tokens / self.rate
        return delaySeconds if delaySeconds >= NEGLIGIBLE_SECONDS else 0.0

    def delaySeconds(self, now: float) -> float:
        """
        How many seconds to wait until nothing is owed.
        """
        delaySeconds = -self.tokens(now) / self.rate
        return delaySeconds if delaySeconds >= NEGLIGIBLE_SECONDS else 0.0

    def isFull(self, now: float) -> bool:
        """
        Whether the bucket is like a new one.
        """
        return self.tokens(now) >= self.burst

    def setRate(self, rate: float, now: float, burstSeconds: float | None = None) -> None:
        """
        Fill at another rate from now on.  The tokens or the debt stay, up to the new
        burst; a full bucket stays full, so that it is like a new one also then.

        @param burstSeconds: the size of the bucket from now on, in seconds of the rate; as before, unless given.
        @raise ValueError: if C{rate} is not positive.
        """
        if not rate > 0:
            raise ValueError(f"rate must be positive, not {rate}")
        burstSeconds = self.burstSeconds if burstSeconds is None else burstSeconds
        if rate == self.rate and burstSeconds == self.burstSeconds:
            # To fill it up now would only round its tokens once more, and a replay knows of no such moment.
            return
        tokens, isFull = self.tokens(now), self.isFull(now)
        self.rate, self.burstSeconds = rate, burstSeconds
        self.burst = max(rate * burstSeconds, 1.0)
        self._tokens = self.burst if isFull else min(tokens, self.burst)
        self._atSeconds = now
