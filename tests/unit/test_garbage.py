"""Tests for L{admission.garbage}."""

from __future__ import annotations

import gc
from itertools import pairwise

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.garbage import CHEAP_SECONDS, GONE_CONNECTIONS, GROWTH_BLOCKS, GarbageCollection


class GarbageCollectionTests(SynchronousTestCase):
    """L{GarbageCollection} looks at old objects at times when nobody waits."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.isBusy = True
        self.cpuSeconds = 0.0
        self.collected: list[float] = []
        self.oldCount = 1
        self.blocks = self.usedBlocks = 300_000
        self.goneConnections = 0
        self.collectingSeconds = 0.0
        self.frozen: list[str] = []
        thresholds = gc.get_threshold()
        self.patch(gc, "collect", self.collect)
        self.patch(gc, "freeze", lambda: self.frozen.append("freeze"))
        self.patch(gc, "unfreeze", lambda: self.frozen.append("unfreeze"))
        self.patch(gc, "get_count", lambda: (0, 0, self.oldCount))
        self.garbage = GarbageCollection(
            self.clock, lambda: self.cpuSeconds, lambda: self.blocks, lambda: self.goneConnections
        )
        self.garbage.start()

        def stop() -> None:
            self.garbage.stop()
            self.assertEqual((gc.get_threshold(), self.clock.getDelayedCalls()), (thresholds, []))
            self.assertEqual(self.frozen, ["freeze", "unfreeze"])

        self.addCleanup(stop)

    def collect(self) -> None:
        """Stand in for C{gc.collect}, which takes its time and leaves what is used."""
        self.collected.append(self.clock.seconds())
        self.blocks = self.usedBlocks
        # Not by advance, from within which this is called.
        self.clock.rightNow += self.collectingSeconds

    def pass_(self, seconds: int) -> None:
        for _ in range(seconds):
            self.cpuSeconds += 0.5 if self.isBusy else 0.05
            self.clock.advance(1)

    def test_busy(self) -> None:
        """A busy process does so every ten minutes."""
        self.pass_(1300)
        self.assertEqual(self.collected, [600.0, 1200.0])

    def test_idle(self) -> None:
        """One that has become idle does so at once, and each minute after that."""
        self.pass_(100)
        self.isBusy = False
        self.pass_(130)
        self.assertEqual(self.collected, [101.0, 161.0, 221.0])

    def test_nothingNew(self) -> None:
        """If nothing has become old there is nothing to look at."""
        self.isBusy = False
        self.oldCount = 0
        self.pass_(200)
        self.assertEqual(self.collected, [])

    def test_notOtherwise(self) -> None:
        """Python itself does not."""
        self.assertGreater(gc.get_threshold()[2], 1_000_000)

    def test_garbageGrows(self) -> None:
        """A busy process does so as soon as there may be much garbage."""
        self.pass_(10)
        self.blocks += GROWTH_BLOCKS
        self.pass_(10)
        self.blocks += 1
        self.pass_(10)
        self.assertEqual(self.collected, [23.0])

    def test_largeRequest(self) -> None:
        """What is there for a moment is no garbage."""
        for _ in range(20):
            self.blocks += 5 * GROWTH_BLOCKS
            self.pass_(2)
            self.blocks -= 5 * GROWTH_BLOCKS
            self.pass_(1)
        self.assertEqual(self.collected, [])

    def test_muchIsUsed(self) -> None:
        """The more is used the more must have come, and what was given back counts no longer."""
        self.blocks = self.usedBlocks = 1_000_000
        self.pass_(5)
        self.assertEqual(self.collected, [3.0])
        self.blocks += 250_000
        self.pass_(10)
        self.assertEqual(self.collected, [3.0])
        self.blocks = self.usedBlocks = 300_000
        self.pass_(1)
        self.blocks += GROWTH_BLOCKS + 1
        self.pass_(10)
        self.assertEqual(self.collected, [3.0, 19.0])

    def test_connectionsGone(self) -> None:
        """Connections that are gone are garbage which does not show as growth."""
        self.pass_(5)
        self.goneConnections += GONE_CONNECTIONS - 1
        self.pass_(5)
        self.goneConnections += 1
        self.pass_(5)
        self.assertEqual(self.collected, [11.0])

    def test_takesLong(self) -> None:
        """The longer it takes the longer is the pause after it."""
        self.collectingSeconds = 0.5
        for _ in range(60):
            self.blocks += 100 * GROWTH_BLOCKS
            self.pass_(1)
        self.assertEqual(len(self.collected), 3)
        for before, after in pairwise(self.collected):
            self.assertGreaterEqual(after - before, 0.5 / 0.02)

    def test_isWorthIt(self) -> None:
        """The longer it takes the more garbage has to be suspected."""
        self.collectingSeconds = 5 * CHEAP_SECONDS
        self.blocks += GROWTH_BLOCKS + 1
        self.pass_(10)
        self.assertEqual(len(self.collected), 1)
        self.blocks += 5 * GROWTH_BLOCKS
        self.goneConnections += 5 * GONE_CONNECTIONS - 1
        self.pass_(20)
        self.assertEqual(len(self.collected), 1)
        self.blocks += 1
        self.pass_(20)
        self.assertEqual(len(self.collected), 2)
