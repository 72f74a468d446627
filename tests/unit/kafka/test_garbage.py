"""
Tests for L{admission.kafka.garbage}.
"""

from __future__ import annotations

import gc

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.garbage import GarbageCollection


class GarbageCollectionTests(SynchronousTestCase):
    """
    L{GarbageCollection} looks at old objects at times when nobody waits.
    """

    def setUp(self) -> None:
        """
        Start it in a process that is busy, and count.
        """
        self.clock = Clock()
        self.isBusy = True
        self.cpuSeconds = 0.0
        self.collected: list[float] = []
        self.oldCount = 1
        thresholds = gc.get_threshold()
        self.patch(gc, "collect", lambda: self.collected.append(self.clock.seconds()))
        self.patch(gc, "get_count", lambda: (0, 0, self.oldCount))
        self.garbage = GarbageCollection(self.clock, lambda: self.cpuSeconds)
        self.garbage.start()

        def stop() -> None:
            self.garbage.stop()
            self.assertEqual((gc.get_threshold(), self.clock.getDelayedCalls()), (thresholds, []))

        self.addCleanup(stop)

    def pass_(self, seconds: int) -> None:
        """
        Let time pass.
        """
        for _ in range(seconds):
            self.cpuSeconds += 0.5 if self.isBusy else 0.05
            self.clock.advance(1)

    def test_busy(self) -> None:
        """
        A busy process does so every ten minutes.
        """
        self.pass_(1300)
        self.assertEqual(self.collected, [600.0, 1200.0])

    def test_idle(self) -> None:
        """
        One that has become idle does so at once, and each minute after that.
        """
        self.pass_(100)
        self.isBusy = False
        self.pass_(130)
        self.assertEqual(self.collected, [101.0, 161.0, 221.0])

    def test_nothingNew(self) -> None:
        """
        If nothing has become old there is nothing to look at.
        """
        self.isBusy = False
        self.oldCount = 0
        self.pass_(200)
        self.assertEqual(self.collected, [])

    def test_notOtherwise(self) -> None:
        """
        Python itself does not.
        """
        self.assertGreater(gc.get_threshold()[2], 1_000_000)
