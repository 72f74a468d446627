"""Tests for L{admission.kafka.testing.takenmemory}."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.gate.reserve import RESERVED_SHARE, SMALL_FRAME_BYTES
from admission.kafka.testing.takenmemory import TakenMemory
from admission.testing.recordingwaiter import RecordingWaiter
from admission_plugins.bounded import BoundedPool, FairPool, UnboundedPool
from tests.kit.admitted import gateFor

SIZE_BYTES = 10_000_000
"""Neither this nor what is reserved beside it is a multiple of a small frame."""


class TakenMemoryTests(SynchronousTestCase):
    """A gate whose memory is taken on purpose."""

    def begin(self, pool: BoundedPool | UnboundedPool) -> None:
        self.clock = Clock()
        self.pool = pool
        self.gate = gateFor(pool, self.clock)
        self.taken = TakenMemory(self.gate)

    def test_all(self) -> None:
        """A request of a single byte has to wait, whichever client sends it, with any pool."""
        for pool in (
            BoundedPool(SIZE_BYTES),
            BoundedPool(SIZE_BYTES, strict=True),
            BoundedPool(SIZE_BYTES, SMALL_FRAME_BYTES // 3),
            FairPool(SIZE_BYTES),
            BoundedPool(1000),
        ):
            self.begin(pool)
            self.taken.take()
            waiter = RecordingWaiter(1, holder="alice")
            self.assertIs(self.gate.memory.tryAllocate(waiter, 1), None, str(pool))
            self.clock.advance(1)
            self.assertEqual(waiter.leases, [], str(pool))
            self.taken.release()
            self.clock.advance(0)
            self.assertEqual([each.sizeBytes for each in waiter.leases], [1], str(pool))

    def test_givenBack(self) -> None:
        """In the end all of it is there again, the reserve included, and memory is not short any more."""
        self.begin(BoundedPool(SIZE_BYTES))
        for _ in range(2):
            self.taken.take()
            self.assertEqual(self.pool.availableBytes, -SIZE_BYTES // RESERVED_SHARE)
            self.assertTrue(self.gate.pressure.isOn)
            self.taken.release()
            self.clock.advance(0)
            self.assertEqual(self.pool.availableBytes, SIZE_BYTES)
            self.assertFalse(self.gate.pressure.isOn)
            self.assertEqual(self.gate.memory.waiting, 0)

    def test_releasedMeanwhile(self) -> None:
        """What others release is taken, too, before those that wait can have it."""
        self.begin(BoundedPool(SIZE_BYTES))
        lease = self.gate.memory.tryAllocate(RecordingWaiter(), 1000)
        assert lease is not None
        self.taken.take()
        waiter = RecordingWaiter(1)
        self.gate.memory.tryAllocate(waiter, 1)
        lease.release()
        self.clock.advance(0)
        self.assertEqual(waiter.leases, [])

    def test_noBound(self) -> None:
        """A pool without a bound is never full; that is said, and nothing is taken of it."""
        self.begin(UnboundedPool())
        error = self.assertRaises(ValueError, self.taken.take)
        self.assertIn("no bound", str(error))
        self.assertEqual(sum(self.pool.usedBytesByPurpose.values()), 0)
