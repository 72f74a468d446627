"""
L{admission.quotas.meters}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import QuotaEntity
from admission.metrics.rate import SampledTotal
from admission.quotas.limits import Limit
from admission.quotas.meters import BucketMeter, Buckets, LimitMeter, WindowMeter, Windows

Taken = list[tuple[float, float]]
"""When something was taken, and how much."""


def limitOf(value: float) -> Limit:
    """
    A limit of somebody.
    """
    return Limit("rate", value, QuotaEntity("alice"))


def obey(meter: LimitMeter, steps: Sequence[tuple[float, float]], startSeconds: float = 0.0) -> Taken:
    """
    Take one amount after the other, each after a pause and whatever the meter
    has asked to wait.
    """
    now = startSeconds
    taken = []
    for pauseSeconds, amount in steps:
        now += pauseSeconds
        taken.append((now, amount))
        now += meter.spend(amount, now)
    return taken


def excess(taken: Taken, limit: float, longestSeconds: float = float("inf")) -> float:
    """
    By how much any stretch of time that is no longer than C{longestSeconds}
    went beyond the limit, its last amount excepted.
    """
    worst = 0.0
    sums = [0.0, *accumulate(amount for _, amount in taken)]
    for last, (end, _) in enumerate(taken):
        for first in range(last, -1, -1):
            seconds = end - taken[first][0]
            if seconds > longestSeconds:
                break
            worst = max(worst, sums[last] - sums[first] - limit * seconds)
    return worst


class WindowMeterTests(SynchronousTestCase):
    """
    L{WindowMeter}: the arithmetic of Kafka's quotas.
    """

    def build(self, limit: float, samples: int = 11, windowSeconds: float = 1.0) -> WindowMeter:
        """
        Make a meter.
        """
        return Windows(samples, windowSeconds).build(limitOf(limit), 0.0)

    def test_example(self) -> None:
        """
        With a limit of 1000 a second and a rate of 1200 over ten seconds, the
        delay is (1200 - 1000) / 1000 * 10 = 2 seconds.
        """
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(12_000, 0.0), 2.0)
        self.assertEqual((meter.used(0.0), meter.delaySeconds(0.0), meter.room(0.0)), (1200.0, 2.0, -2000.0))

    def test_equalIsAllowed(self) -> None:
        """
        Who takes exactly the limit is not throttled; one more, and they are.
        """
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(10_000, 0.0), 0.0)
        self.assertEqual((meter.used(0.0), meter.room(0.0)), (1000.0, 0.0))
        self.assertAlmostEqual(meter.spend(1, 0.0), 0.001)

    def test_elapsedPartCounts(self) -> None:
        """
        The window in progress counts as far as it has come: at half a second
        the delay is taken over 10.5 seconds.
        """
        meter = self.build(1000.0)
        meter.spend(10_000, 0.0)
        self.assertAlmostEqual(meter.spend(2_600, 0.5), (1200.0 - 1000.0) / 1000.0 * 10.5)

    def test_microsecondBack(self) -> None:
        """
        Those who round the time may be a microsecond behind those who do not:
        for the windows that is the same moment, also at a first record.
        """
        meter = self.build(1000.0)
        for now in (100.0, 100.5, 250.0):
            meter.spend(11_000.0, now)
            earlier, present = meter.measure(now - 1e-6), meter.measure(now)
            self.assertEqual(earlier[0], present[0])
            self.assertAlmostEqual(earlier[1], present[1], places=5)
            self.assertAlmostEqual(meter.spend(0.0, now - 1e-6), meter.delaySeconds(now), places=5)
            self.assertFalse(meter.isIdle(now - 1e-6))

    def test_hugeDelays(self) -> None:
        """
        3,000,000 bytes at 1 byte a second are 2,999,990 seconds and never
        negative.
        """
        meter = self.build(1.0)
        self.assertEqual(meter.spend(3_000_000, 0.0), 2_999_990.0)
        self.assertEqual(meter.spend(2**62, 0.5), (3_000_000 + 2**62) - 10.5)

    def test_waitingMayNotBeEnough(self) -> None:
        """
        After the delay the windows may hold the same as before: 20,000 bytes at
        1000 a second mean 10 seconds, then as many again, until they are
        forgotten all at once after 11.
        """
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(20_000, 0.0), 10.0)
        self.assertEqual([meter.used(at) for at in (10.0, 11.0)], [2000.0, 0.0])
        self.assertEqual([meter.delaySeconds(at) for at in (10.0, 10.75, 11.0)], [10.0, 9.25, 0.0])

    def test_oneWindow(self) -> None:
        """
        With a single window the first amount counts as if it took a millisecond.
        """
        meter = self.build(1000.0, samples=1)
        self.assertEqual(meter.spend(1, 5.0), 0.0)
        self.assertAlmostEqual(meter.spend(1, 5.0), 0.001)

    def test_cap(self) -> None:
        """
        It asks for no longer delay than it is to.
        """
        meter = Windows(11, 1.0, maxDelaySeconds=1.0).build(limitOf(100.0), 0.0)
        self.assertEqual(meter.spend(1050, 0.0), 0.5)
        self.assertEqual(meter.spend(1e6, 0.0), 1.0)

    def test_setLimit(self) -> None:
        """
        Another limit holds at once, for what was counted before too.
        """
        meter = self.build(1000.0)
        meter.spend(20_000, 0.0)
        meter.setLimit(limitOf(4000.0), 0.0)
        self.assertEqual((meter.delaySeconds(0.0), meter.room(0.0)), (0.0, 20_000.0))
        self.assertEqual(meter.spend(21_000, 0.0), 0.25)
        meter.setLimit(limitOf(1000.0), 0.0)
        self.assertEqual(meter.delaySeconds(0.0), 31.0)

    def test_isIdle(self) -> None:
        """
        It is idle once nothing counts.
        """
        meter = self.build(1000.0)
        self.assertTrue(meter.isIdle(0.0))
        meter.spend(1, 0.0)
        self.assertEqual([meter.isIdle(at) for at in (10.9, 11.0)], [False, True])

    @given(
        samples=st.integers(1, 5),
        windowSeconds=st.integers(1, 4),
        limit=st.integers(1, 50),
        steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 100)), max_size=40),
    )
    def test_sameAsTheSampledTotal(
        self, samples: int, windowSeconds: int, limit: int, steps: list[tuple[int, int]]
    ) -> None:
        """
        Its short cuts do not show: the delay is always that of the sampled
        total and its span.
        """
        meter, sampled = self.build(limit, samples, windowSeconds), SampledTotal(samples, windowSeconds)
        now = 0
        for pause, amount in steps:
            now += pause
            sampled.record(amount, now)
            total, spanSeconds = sampled.measure(now)
            delaySeconds = max(total / limit - spanSeconds, 0.0)
            self.assertEqual(meter.spend(amount, now), delaySeconds)
            self.assertEqual(meter.delaySeconds(now), delaySeconds)

    @settings(deadline=None)
    @given(
        limit=st.sampled_from([1000.0, 12.5, 1e9]),
        steps=st.lists(
            st.tuples(st.sampled_from([0.0, 0.001, 0.1, 0.999, 1.0, 3.0, 11.0]), st.floats(0.001, 1)), max_size=60
        ),
    )
    def test_neverFarOver(self, limit: float, steps: list[tuple[float, float]]) -> None:
        """
        Requests of up to what the limit allows in one window: over any stretch
        of time somebody who waits as told takes no more than the limit, plus
        what all windows together hold, plus one request.
        """
        taken = obey(self.build(limit), [(pause, share * limit) for pause, share in steps])
        self.assertLessEqual(excess(taken, limit), limit * 11 * (1 + 1e-9))

    @settings(deadline=None)
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from([0.0, 0.1, 1.0, 3.0, 11.0]), st.sampled_from([1, 999, 10_001, 21_000, 500_000])),
            max_size=60,
        )
    )
    def test_largeRequests(self, steps: list[tuple[float, float]]) -> None:
        """
        With requests of any size the same is true of stretches that are no
        longer than what the windows cover.
        """
        taken = obey(self.build(1000.0), steps)
        self.assertLessEqual(excess(taken, 1000.0, longestSeconds=10.0), 12_000 * (1 + 1e-9))

    @settings(deadline=None)
    @given(
        pauses=st.lists(st.floats(0.001, 1.0), min_size=5, max_size=40),
        shares=st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
    )
    def test_conformingIsFree(self, pauses: list[float], shares: list[float]) -> None:
        """
        Who takes up to ten elevenths of the limit at least once a window is
        never throttled.
        """
        meter = self.build(1000.0)
        now = 0.0
        for pause, share in zip(pauses, shares, strict=False):
            now += pause
            self.assertEqual(meter.spend(share * pause * 1000.0 * 10 / 11, now), 0.0)


class BucketMeterTests(SynchronousTestCase):
    """
    L{BucketMeter}.
    """

    def build(self, limit: float, burstSeconds: float = 1.0) -> BucketMeter:
        """
        Make a meter.
        """
        return Buckets(burstSeconds).build(limitOf(limit), 0.0)

    def test_debtIsPaid(self) -> None:
        """
        20,000 bytes at 1000 a second with a burst of one second owe 19 seconds,
        and then nothing.
        """
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(20_000, 0.0), 19.0)
        self.assertEqual([meter.delaySeconds(at) for at in (10.0, 18.0, 19.0)], [9.0, 1.0, 0.0])

    def test_used(self) -> None:
        """
        A full bucket is not used at all, an empty one wholly, one that owes more.
        """
        meter = self.build(1000.0)
        used = [meter.used(0.0)]
        for amount in (500, 500, 1000):
            meter.spend(amount, 0.0)
            used.append(meter.used(0.0))
        self.assertEqual(used, [0.0, 500.0, 1000.0, 2000.0])
        self.assertEqual((meter.room(0.0), meter.room(1.5)), (-1000.0, 500.0))

    def test_rate(self) -> None:
        """
        It can tell what was taken each second lately, whatever that owes.
        """
        meter = self.build(1000.0)
        for atSeconds in range(10):
            meter.spend(3000, float(atSeconds))
        self.assertEqual(Buckets(1.0).reads("byte-rate")["byte-rate"](meter, 10.0), 3000.0)

    def test_setLimit(self) -> None:
        """
        Another limit is the rate from that moment on; what is owed stays owed.
        """
        meter = self.build(1000.0)
        meter.spend(3000, 0.0)
        meter.setLimit(limitOf(100.0), 1.0)
        self.assertEqual((meter.delaySeconds(1.0), meter.limit.value, meter.used(1.0)), (10.0, 100.0, 1100.0))

    def test_isIdle(self) -> None:
        """
        It is idle once it is full.
        """
        meter = self.build(1000.0)
        meter.spend(2000, 0.0)
        self.assertEqual([meter.isIdle(at) for at in (1.9, 2.0)], [False, True])

    @settings(deadline=None)
    @given(
        limit=st.sampled_from([1000.0, 12.5, 1e9]),
        burstSeconds=st.sampled_from([0.1, 1.0, 11.0]),
        steps=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.1, 1.0, 3.0]), st.floats(0.0001, 50)), max_size=60),
    )
    def test_neverOver(self, limit: float, burstSeconds: float, steps: list[tuple[float, float]]) -> None:
        """
        Over any stretch of time somebody who waits as told takes no more than
        the limit, plus the burst, plus one request, whatever its size.
        """
        taken = obey(self.build(limit, burstSeconds), [(pause, share * limit) for pause, share in steps])
        self.assertLessEqual(excess(taken, limit), max(limit * burstSeconds, 1.0) + limit * 1e-3)

    @settings(deadline=None)
    @given(
        steps=st.lists(st.tuples(st.floats(0.001, 30.0), st.floats(0.0, 1.0)), min_size=5, max_size=40),
    )
    def test_conformingIsFree(self, steps: list[tuple[float, float]]) -> None:
        """
        Who takes no more than the limit allows in each pause, and no more than
        the burst at once, is never throttled.
        """
        meter = self.build(1000.0)
        now = 0.0
        for pause, share in steps:
            now += pause
            self.assertEqual(meter.spend(share * min(pause, 1.0) * 1000.0, now), 0.0)

    def test_exactOverTenSeconds(self) -> None:
        """
        Once the burst is spent, any ten seconds bring the limit within 2 % or
        one request: to a steady client, a bursty one, and one that has ten
        times as much, whatever the size of its requests.
        """
        limit = 1000.0
        for amount in (1.0, 37.0, 1000.0, 4000.0, 9999.0, 30_000.0):
            requestSeconds = amount / limit
            # More than the burst has room for, twice as often as the limit allows.
            together = max(2, int(4 / requestSeconds))
            for name, arrival in {
                "steady": lambda number: number * 0.9,
                "tenfold": lambda number: number * 0.1,
                "bursty": lambda number: number // together * together * 0.5,  # noqa: B023
            }.items():
                meter, readySeconds, spent, taken = self.build(limit), 0.0, 0, []
                for number in range(int(60 / requestSeconds) + 10):
                    now = max(arrival(number) * requestSeconds, readySeconds)
                    taken.append((now, amount))
                    readySeconds = now + meter.spend(amount, now)
                    if not spent and readySeconds > now:
                        spent = len(taken)
                sizes = list(self.sizesOfTenSeconds(taken[spent:]))
                self.assertTrue(sizes)
                for size in sizes:
                    tolerated = max(0.02 * 10 * limit, amount) * (1 + 1e-9)
                    self.assertLessEqual(abs(size - 10 * limit), tolerated, (name, amount))

    def sizesOfTenSeconds(self, taken: Taken) -> Iterator[float]:
        """
        How much was taken in the ten seconds from each request on.
        """
        end, total = 0, 0.0
        for start, amount in taken:
            while end < len(taken) and taken[end][0] < start + 10.0:
                total += taken[end][1]
                end += 1
            if end == len(taken):
                return
            yield total
            total -= amount


class AlgorithmTests(SynchronousTestCase):
    """
    L{Windows} and L{Buckets}.
    """

    def test_horizons(self) -> None:
        """
        Windows are forgotten, debts are not.
        """
        self.assertEqual((Windows(11, 2.0).horizonSeconds, Buckets(1.0).horizonSeconds), (24.0, None))

    def test_refusesWhatIsNotPositive(self) -> None:
        """
        No windows, windows without length, and no burst are mistakes.
        """
        builders: list[Callable[[], object]] = [lambda: Windows(0, 1.0), lambda: Windows(11, 0.0), lambda: Buckets(0.0)]
        for build in builders:
            self.assertRaises(ValueError, build)
