"""What the tests of attacks measure and conclude."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.attack import (
    ALLOWANCE_BYTES,
    EXPLAINED_FROM_BYTES,
    LATENCY_FLOOR_SECONDS,
    MIB,
    STALL_SECONDS,
    WAIT_SECONDS,
    WORK_SECONDS,
    AttackTestCase,
    Figures,
    excessesIn,
)
from tests.kit.goodclient import Noticed

POOL_BYTES = 32 * MIB


def noticed(seconds: float, workedSeconds: float) -> Noticed:
    """Of a hundred requests, two that took C{seconds} each, of which the broker has computed C{workedSeconds}."""
    return Noticed([0.001] * 98 + [seconds] * 2, [0.001] * 98 + [workedSeconds] * 2, [])


LIMITS = {
    True: Figures(
        growthBytes=POOL_BYTES + ALLOWANCE_BYTES,
        ledgerBytes=POOL_BYTES + ALLOWANCE_BYTES,
        leastAvailableBytes=0,
        stallSeconds=STALL_SECONDS,
        stallCpuSeconds=STALL_SECONDS,
        calmStallSeconds=0.0,
        before=noticed(0.001, 0.001),
        during=noticed(LATENCY_FLOOR_SECONDS, LATENCY_FLOOR_SECONDS),
    ),
    False: Figures(
        growthBytes=POOL_BYTES + ALLOWANCE_BYTES,
        ledgerBytes=POOL_BYTES + ALLOWANCE_BYTES,
        leastAvailableBytes=0,
        stallSeconds=60.0,
        stallCpuSeconds=WORK_SECONDS,
        calmStallSeconds=0.0,
        before=noticed(0.001, 0.001),
        during=noticed(WAIT_SECONDS, WORK_SECONDS),
    ),
}
"""All as much as it may be, in the long form and in the short one."""


class ExcessesTests(SynchronousTestCase):
    """What is too much."""

    def assertExcess(self, words: str, forms: Iterable[bool] = (True, False), **changes: object) -> None:
        """With C{changes} one thing is too much, in each of C{forms}."""
        for isLong in forms:
            (excess,) = excessesIn(evolve(LIMITS[isLong], **changes), POOL_BYTES, isLong)
            self.assertIn(words, excess)

    def test_limits(self) -> None:
        """What is allowed is allowed."""
        for isLong, figures in LIMITS.items():
            self.assertEqual(list(excessesIn(figures, POOL_BYTES, isLong)), [])

    def test_excesses(self) -> None:
        """More of anything is not."""
        moreBytes = POOL_BYTES + ALLOWANCE_BYTES + MIB
        self.assertExcess("65 MiB, and 64 are allowed", growthBytes=moreBytes)
        self.assertExcess("grew by 64 MiB, and the ledger knows of 50", ledgerBytes=50 * MIB)
        self.assertExcess("got TimeoutError", during=Noticed([0.001], [0.001], ["TimeoutError: timed out"]))

    def test_slowness(self) -> None:
        """In the long form a stall is too much, and a latency, whatever the reason."""
        self.assertExcess("the reactor stood still for", (True,), stallSeconds=STALL_SECONDS + 0.001)
        self.assertExcess("99th percentile", (True,), during=noticed(LATENCY_FLOOR_SECONDS + 0.001, 0.0))

    def test_work(self) -> None:
        """In the short form it is what was computed, or that somebody waits for very long."""
        self.assertExcess("computed for", (False,), stallCpuSeconds=WORK_SECONDS + 0.001)
        self.assertExcess("were computed", (False,), during=noticed(1.0, WORK_SECONDS + 0.001))
        self.assertExcess("the good client waited", (False,), during=noticed(WAIT_SECONDS + 0.001, 0.0))

    def test_unexplained(self) -> None:
        """The ledger need not know of a small growth."""
        for isLong, figures in LIMITS.items():
            small = evolve(figures, growthBytes=EXPLAINED_FROM_BYTES - 1, ledgerBytes=0)
            self.assertEqual(list(excessesIn(small, POOL_BYTES, isLong)), [])

    def test_slow(self) -> None:
        """Where stalls and latencies were long before, they may be twice as long."""
        slow = evolve(
            LIMITS[True],
            stallSeconds=0.4,
            calmStallSeconds=0.2,
            before=noticed(0.2, 0.0),
            during=noticed(0.4, 0.0),
        )
        self.assertEqual(list(excessesIn(slow, POOL_BYTES, True)), [])


class NothingTests(AttackTestCase):
    """A broker that nobody attacks."""

    def test_nothing(self) -> None:
        """Nothing costs too much, and the client of good manners has sent its requests."""
        with self.attack("nothing"):
            pass
        assert self._calm is not None
        _, before = self._calm
        self.assertGreater(len(before.latencies), 10)
        self.assertEqual(len(before.worked), len(before.latencies))
        self.assertGreater(sum(before.worked), 0)
        self.assertLess(sum(before.worked), sum(before.latencies))
        self.assertAffordable()
