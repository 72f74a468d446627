"""A body that has memory and does not come ends its request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.bodywatch import BodyWatch
from admission.connection.factory import ConnectionLimits
from admission.gate.slowbodies import BODY_GRACE_SECONDS, SlowBodies


class BodyWatchTests(SynchronousTestCase):
    """Of one body after another, without a framer."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.isAwaited = False
        pool: Any = SimpleNamespace(availableBytes=0)
        self.bodies = SlowBodies(pool, self.clock, lambda: self.isAwaited)
        self.link: Any = SimpleNamespace(
            pauses=SimpleNamespace(isApplied=False), resumedSeconds=0.0, lastActiveSeconds=0.0
        )
        self.reasons: list[str] = []
        limits = ConnectionLimits(receiveSeconds=30)
        self.watch = BodyWatch(self.bodies, self.clock, limits, self.link, self.tooSlow)
        self.addCleanup(self.bodies.close)
        self.addCleanup(self.watch.close)

    def tooSlow(self, reason: str) -> None:
        self.reasons.append(reason)
        self.watch.stop()

    def pass_(self, seconds: float, filledBytes: int | None = None) -> None:
        self.clock.advance(seconds)
        if filledBytes is not None:
            self.link.lastActiveSeconds = self.clock.seconds()
            self.watch.filled(filledBytes)

    def test_sixteenth(self) -> None:
        """A sixteenth in each timeout is enough; less is not."""
        self.watch.start(1600)
        for filledBytes in (100, 200, 300):
            self.pass_(29, filledBytes)
        self.pass_(29, 399)
        self.assertEqual(self.reasons, [])
        self.pass_(1)
        [reason] = self.reasons
        self.assertIn("399 of the 1600 bytes", reason)
        self.assertIn("receiveSeconds", reason)
        self.assertEqual(self.bodies.count, 0)

    def test_notRead(self) -> None:
        """While it is not read nothing can come, and afterwards it has all of its time."""
        self.watch.start(1600)
        self.link.pauses.isApplied = True
        self.assertEqual(self.watch.idleSeconds(20.0), 0.0)
        self.pass_(40)
        self.link.pauses.isApplied = False
        self.link.resumedSeconds = self.clock.seconds()
        self.pass_(29)
        self.assertEqual(self.reasons, [])
        self.pass_(1)
        self.assertEqual(len(self.reasons), 1)

    def test_givesWay(self) -> None:
        """While others wait for memory it has two seconds."""
        self.watch.start(1600, 400)
        self.assertTrue(self.bodies.claimMoreThan(1199))
        self.isAwaited = True
        self.bodies.expect()
        self.pass_(BODY_GRACE_SECONDS)
        [reason] = self.reasons
        self.assertIn("1200 bytes of its request have not come", reason)

    def test_over(self) -> None:
        """Once it has come nothing happens any more, until there is another."""
        self.watch.start(1600)
        self.watch.stop()
        self.pass_(100)
        self.assertEqual((self.reasons, self.watch.missingBytes(), self.bodies.count), ([], 0, 0))
        self.watch.start(16)
        self.pass_(30)
        self.assertEqual(len(self.reasons), 1)
