"""L{admission.testing.recordingwaiter}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import FRAMES
from admission.testing.recordingwaiter import RecordingWaiter
from admission.testing.scriptedpool import ScriptedPool


class RecordingWaiterTests(SynchronousTestCase):
    """L{RecordingWaiter}."""

    def test_records(self) -> None:
        """It keeps what it was granted and tells its observer."""
        told: list[RecordingWaiter] = []
        waiter = RecordingWaiter(5, told.append)
        lease = ScriptedPool().charge(5, FRAMES)
        waiter.leaseGranted(lease)
        waiter.turnGranted()
        self.assertEqual(RecordingWaiter(holder="alice").holder, "alice")
        self.assertEqual((waiter.wantedBytes, waiter.leases, waiter.turns, told), (5, [lease], 1, [waiter, waiter]))
