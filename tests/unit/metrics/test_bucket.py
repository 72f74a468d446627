"""L{admission.metrics.bucket}."""

from __future__ import annotations

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.bucket import TokenBucket


class TokenBucketTests(SynchronousTestCase):
    """L{TokenBucket}."""

    def test_fullAtFirst(self) -> None:
        """A bucket begins with its burst, whatever the clock says."""
        for now in (0.0, 1e6):
            bucket = TokenBucket(5.0, 11.0, now)
            self.assertEqual((bucket.tokens(now), bucket.isFull(now)), (55.0, True))

    def test_refill(self) -> None:
        """It fills at its rate, and no further than its burst."""
        bucket = TokenBucket(5.0, 2.0, 0.0)
        self.assertEqual(bucket.spend(10.0, 0.0), 0.0)
        self.assertEqual([bucket.tokens(at) for at in (0.0, 0.5, 2.0, 100.0)], [0.0, 2.5, 10.0, 10.0])
        self.assertEqual([bucket.isFull(at) for at in (1.9, 2.0)], [False, True])

    def test_debt(self) -> None:
        """What it does not hold is owed, and takes C{-tokens / rate} seconds to pay; nothing limits the debt."""
        bucket = TokenBucket(5.0, 2.0, 0.0)
        self.assertEqual(bucket.spend(30.0, 0.0), 4.0)
        self.assertEqual(bucket.spend(1e9, 1.0), 3.0 + 2e8)
        self.assertEqual(bucket.tokens(1.0), -15.0 - 1e9)
        self.assertEqual(bucket.delaySeconds(2.0), 2.0 + 2e8)

    def test_givingBack(self) -> None:
        """A negative amount gives back, up to the burst."""
        bucket = TokenBucket(5.0, 2.0, 0.0)
        bucket.spend(8.0, 0.0)
        bucket.spend(-3.0, 0.0)
        self.assertEqual(bucket.tokens(0.0), 5.0)
        bucket.spend(-30.0, 0.0)
        self.assertEqual(bucket.tokens(0.0), 10.0)

    def test_setRate(self) -> None:
        """A new rate holds from that moment, what is owed stays owed, and the burst follows the rate."""
        bucket = TokenBucket(10.0, 1.0, 0.0)
        bucket.spend(30.0, 0.0)
        bucket.setRate(1.0, 1.0)
        self.assertEqual((bucket.rate, bucket.tokens(1.0), bucket.delaySeconds(1.0)), (1.0, -10.0, 10.0))
        bucket.setRate(100.0, 2.0)
        self.assertEqual((bucket.tokens(3.0), bucket.tokens(9.0)), (91.0, 100.0))
        bucket.setRate(10.0, 9.0)
        self.assertEqual(bucket.tokens(9.0), 10.0)

    def test_fullStaysFull(self) -> None:
        """A full bucket is like a new one also when its rate has changed, so that it may be forgotten before."""
        bucket = TokenBucket(10.0, 1.0, 0.0)
        bucket.spend(5.0, 0.0)
        bucket.setRate(100.0, 1.0)
        self.assertEqual(bucket.tokens(1.0), 100.0)

    def test_sameRate(self) -> None:
        """To set the rate that it has changes nothing, not even how tokens are rounded."""
        told, other = TokenBucket(10_000.0, 1.0, 0.0), TokenBucket(10_000.0, 1.0, 0.0)
        for bucket in (told, other):
            bucket.spend(47_728.0, 0.174816)
        told.setRate(10_000.0, 0.3333333)
        self.assertEqual(told.tokens(0.9), other.tokens(0.9))

    def test_slowRates(self) -> None:
        """However slow it is, it has room for one."""
        bucket = TokenBucket(0.1, 1.0, 0.0)
        self.assertEqual([bucket.spend(1.0, 0.0), bucket.spend(1.0, 0.0)], [0.0, 10.0])
        bucket.setRate(0.2, 0.0)
        self.assertEqual(bucket.burst, 1.0)

    def test_refusesWhatIsNotPositive(self) -> None:
        """A rate or a burst of nothing is a mistake, and so is none at all."""
        for rate, burstSeconds in ((0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)):
            self.assertRaises(ValueError, TokenBucket, rate, burstSeconds, 0.0)
        self.assertRaises(ValueError, TokenBucket(1.0, 1.0, 0.0).setRate, 0.0, 0.0)

    @given(
        rate=st.floats(1e-3, 1e9),
        burstSeconds=st.floats(0.01, 1e4),
        begin=st.floats(0, 1e7),
        steps=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=40),
    )
    def test_waitingPays(
        self, rate: float, burstSeconds: float, begin: float, steps: list[tuple[float, float]]
    ) -> None:
        """A client that waits as told owes nothing afterwards, and is told to wait only if it owes something."""
        bucket = TokenBucket(rate, burstSeconds, begin)
        now = begin
        for pauseSeconds, bursts in steps:
            now += pauseSeconds
            delaySeconds = bucket.spend(bursts * bucket.burst, now)
            self.assertEqual(delaySeconds, bucket.delaySeconds(now))
            self.assertTrue(delaySeconds == 0.0 or bucket.tokens(now) < 0)
            now += delaySeconds
            self.assertEqual(bucket.delaySeconds(now), 0.0)

    def test_microsecondBack(self) -> None:
        """
        Callers that round the time may be a microsecond behind those that do not: that moves a balance by what comes in
        a microsecond, and for no longer than that.
        """
        rate = 1e6
        for amount in (0.0, 400.0, 5e6):
            bucket, straight = TokenBucket(rate, 1.0, 10.0), TokenBucket(rate, 1.0, 10.0)
            for each, now in ((bucket, 11.0 - 1e-6), (straight, 11.0)):
                each.spend(amount, 11.0)
                each.spend(amount, now)
                each.setRate(rate, now)
            self.assertLess(abs(bucket.tokens(11.0 - 1e-6) - straight.tokens(11.0)), 1.01)
            self.assertAlmostEqual(bucket.delaySeconds(11.0 - 1e-6), straight.delaySeconds(11.0), places=5)
            self.assertLess(abs(bucket.tokens(11.5) - straight.tokens(11.5)), 1.01)
