# -*- test-case-name: tests.contracts.test_purgatorycontract -*-
"""
The rules on timeouts of parked operations.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from .orderedclock import OrderedClock
from .scriptedoperation import PurgatoryFixture, ScriptedOperation


class ExpiryContract(PurgatoryFixture):
    """
    Operations whose time runs out; a part of
    L{admission.testing.purgatorycontract.PurgatoryContract}.
    """

    toleranceSeconds = 0.001
    """How late a timeout may be on a clock without lag."""

    def test_delayMustBeFinite(self) -> None:
        """
        A delay that is not a finite number is refused and leaves nothing
        behind; the operation may be parked with another.
        """
        for delaySeconds in (float("nan"), float("inf"), float("-inf")):
            operation = ScriptedOperation(delaySeconds)
            self.assertRaises(ValueError, self.purgatory.tryCompleteElseWatch, operation, ["a", "b"])
            self.assertWaiting(0)
            self.assertEqual(self.purgatory.cancelForKey("a"), [])
            operation.delaySeconds = 1.0
            self.park(operation, ["a", "b"])
            self.clock.advance(1.0)
            self.assertEqual(operation.told, ["complete", "expire"])
        self.assertWaiting(0)

    def test_expiry(self) -> None:
        """
        An operation whose time runs out completes, and hears of the timeout
        after that; not before its time, and hardly later.
        """
        operation = self.park(ScriptedOperation(0.25))
        self.clock.advance(0.2499)
        self.assertEqual(operation.told, [])
        self.clock.advance(0.0001 + self.toleranceSeconds)
        self.assertEqual((operation.told, operation.completed), (["complete", "expire"], True))
        self.assertEqual(self.purgatory.expirations, 1)
        self.assertWaiting(0)

    def test_noExpiryAfterCompletion(self) -> None:
        """
        An operation that completed in time never hears of a timeout.
        """
        operation = self.park(ScriptedOperation(0.25))
        operation.forceComplete()
        self.clock.advance(60)
        self.assertEqual((operation.told, self.purgatory.expirations), (["complete"], 0))

    def test_expiryPutOff(self) -> None:
        """
        An operation may find that it has more time, and park again: it is not
        over, and not counted before it is.
        """
        purgatory = self.purgatory

        class Renewed(ScriptedOperation):
            hasTime = True

            def expire(self) -> None:
                if self.hasTime:
                    self.hasTime = False
                    self.cancel()
                    purgatory.tryCompleteElseWatch(self, ["key"])
                else:
                    super().expire()

        operation = self.park(Renewed(1.0))
        self.clock.advance(1.0)
        self.assertEqual((operation.told, purgatory.expirations), (["cancel"], 0))
        self.assertWaiting(1)
        self.clock.advance(1.0)
        self.assertEqual((operation.told, purgatory.expirations), (["cancel", "complete", "expire"], 1))
        self.assertWaiting(0)

    def test_noDelay(self) -> None:
        """
        A delay of zero or less ends in the next turn of the reactor, not within
        the call.
        """
        self.clock.advance(0.0005)
        operations = [self.park(ScriptedOperation(delaySeconds)) for delaySeconds in (0, 0.0, -0.0, -5.0, -1e9)]
        self.assertEqual([each.told for each in operations], [[]] * 5)
        self.clock.advance(0)
        self.assertEqual([each.told for each in operations], [["complete", "expire"]] * 5)
        self.assertWaiting(0)

    def test_expiryInOrder(self) -> None:
        """
        However far the clock jumps, an operation that is due earlier expires earlier.
        """
        expired: list[float] = []
        for delaySeconds in (5.0, 0.01, 700.0, 0.3, 0.02, 86400.0, 31.0, 0.0):
            self.park(ScriptedOperation(delaySeconds, expire=lambda each: expired.append(each.delaySeconds)))
        self.clock.advance(1e6)
        self.assertEqual(expired, [0.0, 0.01, 0.02, 0.3, 5.0, 31.0, 700.0, 86400.0])

    def test_parkedByExpiry(self) -> None:
        """
        An operation that is parked by an expiring one waits from then on, however
        far the clock goes in one step.
        """
        clock = OrderedClock()
        purgatory = self.buildPurgatory(clock)
        ended: list[float] = []

        def again(operation: ScriptedOperation) -> None:
            ended.append(clock.seconds())
            if len(ended) < 3:
                purgatory.tryCompleteElseWatch(ScriptedOperation(1.0, expire=again), ["key"])

        purgatory.tryCompleteElseWatch(ScriptedOperation(1.0, expire=again), ["key"])
        clock.advance(60.0)
        self.assertEqual(len(ended), 3)
        for count, seconds in enumerate(ended, 1):
            self.assertTrue(count <= seconds + 1e-9 <= count * (1.0 + self.toleranceSeconds) + 2e-9, ended)

    def test_waits(self) -> None:
        """
        The time that an operation has waited is recorded, however it ended; not
        for one that never waited.
        """
        self.purgatory.tryCompleteElseWatch(ScriptedOperation(isReady=True), ["key"])
        operations = [self.park(ScriptedOperation(3.0)) for _ in range(3)]
        self.clock.advance(1.0)
        operations[0].forceComplete()
        self.clock.advance(1.0)
        operations[1].cancel()
        self.clock.advance(1.0)
        self.assertEqual((self.purgatory.waits.count, round(self.purgatory.waits.total, 6)), (3, 6.0))
        self.assertEqual([self.purgatory.waits.quantile(share) for share in (0.3, 0.6, 0.9)], [1.0, 2.0, 5.0])
