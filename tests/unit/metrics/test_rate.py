"""L{admission.metrics.rate}."""

from __future__ import annotations

from copy import deepcopy
from math import isnan

from attrs import define
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.rate import SampledMean, SampledTotal, TimeShare


@define
class Sample:
    """One window of L{Windows}."""

    start: int
    last: int
    value: int = 0


class Windows:
    """
    The arithmetic of Kafka's sampled rate in whole seconds, written down as
    its description reads and without regard to cost.
    """

    def __init__(self, samples: int, windowSeconds: int) -> None:
        self.samples = samples
        self.windowSeconds = windowSeconds
        self.ring: list[Sample] = []
        self.current = 0

    def record(self, value: int, now: int) -> None:
        """Count C{value} in the current window, or in the next if that is over."""
        if not self.ring:
            self.ring.append(Sample(now, now))
        elif now - self.ring[self.current].start >= self.windowSeconds:
            self.current = (self.current + 1) % (self.samples + 1)
            if self.current == len(self.ring):
                self.ring.append(Sample(now, now))
            else:
                self.ring[self.current] = Sample(now, now)
        sample = self.ring[self.current]
        sample.value += value
        sample.last = now

    def measure(self, now: int) -> tuple[int, float]:
        """The total and the seconds it covers; forgets what no longer counts."""
        for sample in self.ring:
            if now - sample.last >= self.samples * self.windowSeconds:
                sample.start, sample.last, sample.value = now, now, 0
        elapsed = now - min((sample.start for sample in self.ring), default=now)
        full = elapsed // self.windowSeconds
        if full < self.samples - 1:
            elapsed += (self.samples - 1 - full) * self.windowSeconds
        return sum(sample.value for sample in self.ring), max(elapsed, 0.001)


class SampledTotalTests(SynchronousTestCase):
    """L{SampledTotal}."""

    def test_firstRecordIsNoBurst(self) -> None:
        """
        All whole windows count from the first record on: 20,000 bytes at once
        are 2,000 a second with eleven windows of a second.
        """
        total = SampledTotal(11, 1.0)
        total.record(20_000, 0.0)
        self.assertEqual((total.spanSeconds(0.0), total.rate(0.0)), (10.0, 2000.0))

    def test_nothingRecorded(self) -> None:
        """Before the first record the rate is zero over all whole windows."""
        total = SampledTotal(11, 1.0)
        self.assertEqual((total.total(7.0), total.rate(7.0), total.spanSeconds(7.0)), (0, 0.0, 10.0))

    def test_isEmpty(self) -> None:
        """It is empty before the first record, and when that was so long ago that nothing counts."""
        total = SampledTotal(11, 1.0)
        self.assertTrue(total.isEmpty(0.0))
        total.record(5, 0.0)
        total.record(5, 0.5)
        self.assertEqual([total.isEmpty(at) for at in (0.5, 11.25, 11.5)], [False, False, True])

    def test_noRoundingPilesUp(self) -> None:
        """What has come and gone leaves nothing behind, not even a rounding error."""
        total = SampledTotal(2, 1.0)
        for step in range(1000):
            total.record(0.1, step * 0.3)
        total.record(0.7, 1000.0)
        self.assertEqual(total.total(1000.0), 0.7)

    def test_refusesWhatIsNotPositive(self) -> None:
        """No windows, or windows without length, are a mistake."""
        self.assertRaises(ValueError, SampledTotal, 0, 1.0)
        self.assertRaises(ValueError, SampledTotal, 1, 0.0)

    @given(
        samples=st.integers(1, 5),
        windowSeconds=st.integers(1, 4),
        steps=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 100), st.integers(0, 12)), max_size=40),
    )
    def test_agreesWithTheDescription(
        self, samples: int, windowSeconds: int, steps: list[tuple[int, int, int]]
    ) -> None:
        """
        Whatever is recorded when, total and span are those of the arithmetic
        that Kafka documents, which looks after each record; and looking later
        changes nothing.
        """
        total, windows = SampledTotal(samples, windowSeconds), Windows(samples, windowSeconds)
        now = 0
        for pause, value, later in steps:
            now += pause
            total.record(value, now)
            windows.record(value, now)
            self.assertEqual(total.measure(now), windows.measure(now))
            self.assertEqual(total.measure(now + later), deepcopy(windows).measure(now + later))
            self.assertEqual((total.total(now), total.spanSeconds(now)), total.measure(now))


class SampledMeanTests(SynchronousTestCase):
    """L{SampledMean}."""

    def test_mean(self) -> None:
        """The mean is over what was recorded in the last windows, and no number where that is nothing."""
        mean = SampledMean(2, 30.0)
        self.assertTrue(isnan(mean.mean(0.0)))
        mean.record(100.0, 0.0)
        mean.record(300.0, 40.0)
        self.assertEqual([mean.mean(at) for at in (40.0, 59.0, 60.0, 99.0)], [200.0, 200.0, 300.0, 300.0])
        self.assertTrue(isnan(mean.mean(100.0)))


class TimeShareTests(SynchronousTestCase):
    """L{TimeShare}."""

    def test_visibleWhileItLasts(self) -> None:
        """A spell counts before it is over: half of the first thirty seconds after fifteen."""
        share = TimeShare()
        share.begin(100.0)
        self.assertEqual(share.share(115.0), 0.5)

    def test_allTheTime(self) -> None:
        """What has been so for as long as anybody remembers is 1, however long that is."""
        for lookEvery in (1.0, 45.0, 1000.0):
            share = TimeShare()
            share.begin(0.0)
            shares = [share.share(number * lookEvery) for number in range(1, 200)]
            self.assertEqual(max(shares), 1.0)
            self.assertGreater(min(shares[-50:]), 0.9)

    def test_forgotten(self) -> None:
        """A spell is forgotten two windows after its end."""
        share = TimeShare(2, 30.0)
        share.begin(0.0)
        share.end(20.0)
        self.assertGreater(share.share(79.0), 0.0)
        self.assertEqual(share.share(80.0), 0.0)

    def test_totalIsExact(self) -> None:
        """All spells together are counted for ever, looked at or not."""
        share = TimeShare()
        share.begin(0.0)
        share.share(10.0)
        share.end(20.0)
        share.begin(500.0)
        share.end(1500.0)
        self.assertEqual(share.totalSeconds, 1020.0)

    def test_repetition(self) -> None:
        """A second beginning does not restart the spell, and an end without one is nothing."""
        share = TimeShare()
        share.end(5.0)
        share.begin(10.0)
        share.begin(20.0)
        share.end(30.0)
        share.end(90.0)
        self.assertEqual(share.totalSeconds, 20.0)

    @given(
        samples=st.integers(1, 4),
        windowSeconds=st.sampled_from([0.1, 1.0, 30.0]),
        steps=st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["begin", "end", "look"])), max_size=60),
    )
    def test_fromZeroToOne(self, samples: int, windowSeconds: float, steps: list[tuple[float, str]]) -> None:
        """Whatever happens when, the share is from 0 to 1, and positive during a spell that has lasted."""
        share = TimeShare(samples, windowSeconds)
        now = 0.0
        sinceSeconds: float | None = None
        for pause, step in steps:
            now += pause
            if step == "begin":
                share.begin(now)
                sinceSeconds = now if sinceSeconds is None else sinceSeconds
            elif step == "end":
                share.end(now)
                sinceSeconds = None
            value = share.share(now)
            self.assertTrue(0.0 <= value <= 1.0, value)
            if sinceSeconds is not None and now - sinceSeconds > 1e-6:
                self.assertGreater(value, 0.0)
