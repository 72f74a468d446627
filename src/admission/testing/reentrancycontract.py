# -*- test-case-name: tests.contracts.test_purgatorycontract -*-
"""
The rules for operations that act on their purgatory, and on each other, from within.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from .scriptedoperation import PurgatoryFixture, ScriptedOperation, fail


class ReentrancyContract(PurgatoryFixture):
    """
    Operations that raise, or change the purgatory while it is at work; a part
    of L{admission.testing.purgatorycontract.PurgatoryContract}.
    """

    def test_checkRaises(self) -> None:
        """
        An operation that raises when it is checked is logged and waits on; the
        others under the key are checked all the same.
        """
        failing = self.park(ScriptedOperation())
        failing.cues["check"] = fail
        ready = self.park(ScriptedOperation())
        ready.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual((ready.told, failing.told), (["complete"], []))
        self.assertWaiting(1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_exitWithinCheck(self) -> None:
        """
        An exception that is not an L{Exception} ends a check, but not the purgatory.
        """

        def leave(_: ScriptedOperation) -> None:
            raise SystemExit

        operation, other = self.park(ScriptedOperation()), self.park(ScriptedOperation())
        operation.cues["check"] = leave
        operation.isReady = other.isReady = True
        self.assertRaises(SystemExit, self.purgatory.checkAndComplete, "key")
        self.assertWaiting(2)
        operation.cues.clear()
        self.assertEqual(self.purgatory.checkAndComplete("key"), 2)
        self.assertWaiting(0)

    def test_completionRaises(self) -> None:
        """
        An operation that raises while it completes is logged, counts, and is
        over.
        """
        failing, other = self.park(ScriptedOperation(complete=fail)), self.park(ScriptedOperation())
        failing.isReady = other.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 2)
        self.assertEqual((failing.completed, other.told), (True, ["complete"]))
        self.assertWaiting(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_expiryRaises(self) -> None:
        """
        Operations that raise when their time is up are logged; all others
        expire on time.
        """
        cues: list[dict[str, Any]] = [{"complete": fail}, {"expire": fail}, {}, {}]
        operations = [self.park(ScriptedOperation(1.0 + delay, **each)) for delay in (0.0, 0.5) for each in cues]
        self.clock.advance(1.0)
        self.assertEqual([each.completed for each in operations], [True] * 4 + [False] * 4)
        self.clock.advance(1.0)
        self.assertEqual([each.completed for each in operations], [True] * 8)
        self.assertEqual([each.told for each in operations if not each.cues], [["complete", "expire"]] * 4)
        self.assertEqual(self.purgatory.expirations, 8)
        self.assertWaiting(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 4)

    def test_cancelRaises(self) -> None:
        """
        An operation that raises when it is cancelled is logged; the others are
        cancelled all the same.
        """
        operations = [self.park(ScriptedOperation(cancel=fail)), self.park(ScriptedOperation())]
        self.assertEqual(self.purgatory.cancelForKey("key"), operations)
        self.assertEqual([each.told for each in operations], [["cancel"]] * 2)
        self.assertWaiting(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_parkWhileChecked(self) -> None:
        """
        An operation parked under a key that is being checked stays there.
        """
        added: list[ScriptedOperation] = []
        for cue in ("check", "complete"):
            operation = self.park(ScriptedOperation())
            operation.cues[cue] = lambda _: added.append(self.park(ScriptedOperation()))
            operation.isReady = True
            self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertWaiting(2)
        for each in added:
            each.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 2)

    def test_completeOthersWhileChecked(self) -> None:
        """
        An operation that completes others takes them along: they are not
        checked any more, and not counted.
        """
        others = [ScriptedOperation(), ScriptedOperation()]
        operation = self.park(ScriptedOperation(complete=lambda _: [each.forceComplete() for each in others]))
        for each in others:
            self.park(each)
        operation.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual([(each.checks, each.told) for each in others], [(2, ["complete"])] * 2)
        self.assertWaiting(0)

    def test_cancelWhileChecked(self) -> None:
        """
        Cancelling a key while it is checked cancels the operations that have not
        completed.
        """
        operation = self.park(ScriptedOperation(complete=lambda _: self.purgatory.cancelForKey("key")))
        other = self.park(ScriptedOperation())
        operation.isReady = other.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual((operation.told, other.told), (["complete"], ["cancel"]))
        self.assertWaiting(0)

    def test_cancelItselfWhileParked(self) -> None:
        """
        An operation that is cancelled within its second check is not watched.
        """
        operation = self.park(ScriptedOperation(check=lambda each: each.checks == 2 and each.cancel()))
        self.assertEqual(operation.told, ["cancel"])
        self.assertWaiting(0)

    def test_parkAgainWhenCancelled(self) -> None:
        """
        An operation that another parks again as it is cancelled stays parked, and
        is not told that it was cancelled.
        """
        second = ScriptedOperation()

        def parkBoth(operation: ScriptedOperation) -> None:
            self.park(operation)
            self.park(second)

        first = self.park(ScriptedOperation(cancel=parkBoth))
        self.park(second)
        self.assertEqual(self.purgatory.cancelForKey("key"), [first, second])
        self.assertEqual((first.told, second.told), (["cancel"], []))
        self.assertWaiting(2)

    def test_checkWithinCheck(self) -> None:
        """
        A check asked for within a check, of the same key or another, is done
        before the outer one returns, and counted there.
        """
        nested: list[int] = []

        def complete(_: ScriptedOperation) -> None:
            first.isReady = other.isReady = True
            nested.extend(self.purgatory.checkAndComplete(key) for key in ("key", "other", "unknown"))

        first, other = self.park(ScriptedOperation()), self.park(ScriptedOperation(), ["other"])
        last = self.park(ScriptedOperation(complete=complete))
        last.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 3)
        self.assertEqual([each.told for each in (first, other, last)], [["complete"]] * 3)
        self.assertEqual(nested, [0, 0, 0])
        self.assertWaiting(0)

    def test_longChain(self) -> None:
        """
        Completions that trigger each other may be far more than the stack has
        room for.
        """

        def complete(operation: ScriptedOperation) -> None:
            following = successors.get(operation)
            if following is not None:
                following.isReady = True
            self.purgatory.checkAndComplete("key")

        operations = [self.park(ScriptedOperation(complete=complete)) for _ in range(1200)]
        # The last one is first, so that each pass completes one.
        successors = dict(zip(operations[1:], operations, strict=False))
        operations[-1].isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1200)
        self.assertEqual([each.told for each in operations], [["complete"]] * 1200)
        self.assertWaiting(0)

    def test_checksThatAskForChecks(self) -> None:
        """
        Operations that ask for a check of their key whenever they are checked
        do not keep the purgatory busy for ever.
        """
        operations = [self.park(ScriptedOperation()) for _ in range(3)]
        for each in operations:
            each.cues["check"] = lambda _: self.purgatory.checkAndComplete("key")
        self.assertEqual(self.purgatory.checkAndComplete("key"), 0)
        operations[1].isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertWaiting(2)

    def test_expiryTakesOthersAlong(self) -> None:
        """
        An operation completed or cancelled by another that expires in the same
        turn does not expire.
        """
        completed, cancelled = ScriptedOperation(1.0), ScriptedOperation(1.0)

        def expire(_: ScriptedOperation) -> None:
            completed.forceComplete()
            cancelled.cancel()

        self.park(ScriptedOperation(1.0, expire=expire))
        self.park(completed)
        self.park(cancelled)
        self.clock.advance(1.0)
        self.assertEqual((completed.told, cancelled.told), (["complete"], ["cancel"]))
        self.assertEqual(self.purgatory.expirations, 1)
        self.assertWaiting(0)

    def test_parkWhenExpiring(self) -> None:
        """
        An operation that is parked by an expiring one waits for its own time.
        """
        following = ScriptedOperation(1.0)
        self.park(ScriptedOperation(1.0, complete=lambda _: self.park(following)))
        self.clock.advance(1.5)
        self.assertEqual(following.told, [])
        self.clock.advance(1.0)
        self.assertEqual(following.told, ["complete", "expire"])
        self.assertWaiting(0)

    def test_shutdownFromWithin(self) -> None:
        """
        Any method of an operation may shut the purgatory down; what waits is
        then cancelled, that operation included unless it is over.
        """
        for cue, told in [("check", ["cancel"]), ("complete", ["complete"]), ("expire", ["complete", "expire"])]:
            with self.subTest(cue=cue):
                purgatory = self.purgatory = self.buildPurgatory(self.clock)
                operation, other = self.park(ScriptedOperation(1.0)), self.park(ScriptedOperation(1.0))
                operation.cues[cue] = lambda _: self.purgatory.shutdown()
                operation.isReady = cue == "complete"
                if cue == "expire":
                    self.clock.advance(1.0)
                else:
                    purgatory.checkAndComplete("key")
                self.assertEqual((operation.told, other.told), (told, ["cancel"]))
                self.assertWaiting(0)

    def test_shutdownWhileParking(self) -> None:
        """
        A shutdown within either check of an operation that is being parked
        cancels it.
        """
        for number in (1, 2):
            self.purgatory = self.buildPurgatory(self.clock)

            def shutDown(each: ScriptedOperation, number: int = number) -> None:
                if each.checks == number:
                    self.purgatory.shutdown()

            operation = self.park(ScriptedOperation(check=shutDown))
            self.assertEqual(operation.told, ["cancel"])
            self.assertWaiting(0)
