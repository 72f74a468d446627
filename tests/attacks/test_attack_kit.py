"""
What the tests of attacks measure and conclude.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.attack import (
    ALLOWANCE_BYTES,
    EXPLAINED_FROM_BYTES,
    LATENCY_FLOOR_SECONDS,
    MIB,
    STALL_SECONDS,
    AttackTestCase,
    Figures,
    excessesIn,
)
from tests.kit.goodclient import Noticed

POOL_BYTES = 32 * MIB


def latencies(seconds: float) -> Noticed:
    """
    Of a hundred requests, two with C{seconds} each.
    """
    return Noticed([0.001] * 98 + [seconds] * 2, [])


LIMITS = Figures(
    growthBytes=POOL_BYTES + ALLOWANCE_BYTES,
    ledgerBytes=POOL_BYTES + ALLOWANCE_BYTES,
    leastAvailableBytes=0,
    stallSeconds=STALL_SECONDS,
    calmStallSeconds=0.0,
    before=latencies(0.001),
    during=latencies(LATENCY_FLOOR_SECONDS),
)
"""All as much as it may be."""


class ExcessesTests(SynchronousTestCase):
    """
    What is too much.
    """

    def assertExcess(self, words: str, **changes: object) -> None:
        """
        With C{changes} one thing is too much.
        """
        (excess,) = excessesIn(evolve(LIMITS, **changes), POOL_BYTES)
        self.assertIn(words, excess)

    def test_limits(self) -> None:
        """
        What is allowed is allowed.
        """
        self.assertEqual(list(excessesIn(LIMITS, POOL_BYTES)), [])

    def test_excesses(self) -> None:
        """
        More of anything is not.
        """
        moreBytes = LIMITS.growthBytes + MIB
        self.assertExcess("65 MiB, and 64 are allowed", growthBytes=moreBytes)
        self.assertExcess("grew by 64 MiB, and the ledger knows of 54", ledgerBytes=54 * MIB)
        self.assertExcess("the reactor stood still for", stallSeconds=STALL_SECONDS + 0.001)
        self.assertExcess("99th percentile", during=latencies(LATENCY_FLOOR_SECONDS + 0.001))
        self.assertExcess("got TimeoutError", during=Noticed([0.001], ["TimeoutError: timed out"]))

    def test_unexplained(self) -> None:
        """
        The ledger need not know of a small growth.
        """
        small = evolve(LIMITS, growthBytes=EXPLAINED_FROM_BYTES - 1, ledgerBytes=0)
        self.assertEqual(list(excessesIn(small, POOL_BYTES)), [])

    def test_slow(self) -> None:
        """
        Where stalls and latencies were long before, they may be twice as long.
        """
        slow = evolve(LIMITS, stallSeconds=0.4, calmStallSeconds=0.2, before=latencies(0.2), during=latencies(0.4))
        self.assertEqual(list(excessesIn(slow, POOL_BYTES)), [])


class NothingTests(AttackTestCase):
    """
    A broker that nobody attacks.
    """

    def test_nothing(self) -> None:
        """
        Nothing costs too much, and the client of good manners has sent its requests.
        """
        with self.attack("nothing"):
            pass
        assert self._calm is not None
        _, before = self._calm
        self.assertGreater(len(before.latencies), 10)
        self.assertAffordable()
