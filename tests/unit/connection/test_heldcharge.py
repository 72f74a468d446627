"""L{admission.connection.heldcharge}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.connection.heldcharge import HeldCharge
from admission.testing.scriptedpool import ScriptedPool


class HeldChargeTests(SynchronousTestCase):
    """L{HeldCharge}."""

    def test_hold(self) -> None:
        """There is one charge for what is held, none for nothing, and never less while one takes another's place."""
        pool = ScriptedPool()
        held = HeldCharge(pool, "elsewhere")
        least: list[int] = []
        pool.subscribe(lambda: least.append(sum(lease.sizeBytes for lease in pool.leases)))
        for sizeBytes in (100, 300, 300, 200, 0, 0):
            held.hold(sizeBytes)
            self.assertEqual(held.sizeBytes, sizeBytes)
            self.assertEqual(
                [(each.sizeBytes, each.purpose) for each in pool.leases], [(sizeBytes, "elsewhere")] * bool(sizeBytes)
            )
        self.assertEqual(least, [300, 200, 0])
