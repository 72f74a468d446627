# -*- test-case-name: tests.contracts.test_purgatorycontract -*-
"""
The rules for every purgatory.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

from zope.interface.verify import verifyObject

from ..interfaces import IDelayedOperation, IPurgatory
from ..metrics.registry import SensorRegistry
from .expirycontract import ExpiryContract
from .reentrancycontract import ReentrancyContract
from .scriptedoperation import ScriptedOperation, fail


class PurgatoryContract(ReentrancyContract, ExpiryContract):
    """
    The rules for an L{IPurgatory}.  Subclasses say how to build one.
    """

    def test_providesItsInterface(self) -> None:
        """
        The purgatory has all attributes and methods of L{IPurgatory}, and an
        operation those of L{IDelayedOperation}.
        """
        verifyObject(IPurgatory, self.purgatory)
        verifyObject(IDelayedOperation, ScriptedOperation())

    def test_completedAtFirstCheck(self) -> None:
        """
        An operation that can complete at once is never watched.
        """
        operation = ScriptedOperation(isReady=True)
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, ["key"]), True)
        self.assertEqual((operation.checks, operation.told), (1, ["complete"]))
        self.assertWaiting(0)
        self.assertEqual(self.purgatory.checkAndComplete("key"), 0)

    def test_completedAtSecondCheck(self) -> None:
        """
        An operation that can complete once it is watched completes, and nothing of it
        remains.
        """

        def check(operation: ScriptedOperation) -> None:
            operation.isReady = operation.checks == 2

        operation = ScriptedOperation(check=check)
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, ["key"]), True)
        self.assertEqual((operation.checks, operation.told), (2, ["complete"]))
        self.assertWaiting(0)
        self.clock.advance(60)
        self.assertEqual(operation.told, ["complete"])

    def test_watched(self) -> None:
        """
        An operation that cannot complete is checked twice and waits, counted once however
        many keys it has.
        """
        first = self.park(ScriptedOperation(), ["a", "b", "c"])
        self.park(ScriptedOperation(), ["a"])
        self.assertEqual((first.checks, first.told, first.completed), (2, [], False))
        self.assertWaiting(2)

    def test_watcher(self) -> None:
        """
        While an operation waits it knows where, from before its second check;
        once it has left, however that came about, it has back what it lent.
        """
        found: list[tuple[str, bool]] = []

        def look(word: str) -> Callable[[ScriptedOperation], None]:
            return lambda each: found.append((word, each.watcher is self.purgatory))

        words = ("check", "complete", "expire", "cancel")
        operations = [
            self.park(ScriptedOperation(1.0, False, **{word: look(word) for word in words})) for _ in range(3)
        ]
        self.assertEqual(found, [("check", False), ("check", True)] * 3)
        self.assertIs(operations[0].watcher, self.purgatory)
        del found[:]
        operations[0].forceComplete()
        operations[1].cancel()
        self.clock.advance(1.0)
        self.park(operations[1])
        self.purgatory.cancelForKey("key")
        self.assertEqual([word for word, isWatched in found if not isWatched],
                         ["complete", "cancel", "complete", "expire", "check", "cancel"])  # fmt: skip
        self.assertEqual([(each.watcher, each.parking) for each in operations], [(None, None)] * 3)

    def test_anyCollectionOfKeys(self) -> None:
        """
        Keys come as a tuple, a list, a set or a mapping; changing the
        collection afterwards changes nothing, and what comes twice counts once.
        """
        changed = ["a", "b"]
        for keys in (("a", "b"), changed, {"a", "b"}, {"a": 1, "b": 2}, ["a", "b", "a"]):
            with self.subTest(keys=repr(keys)):
                for key in ("a", "b"):
                    operation = self.park(ScriptedOperation(), keys)
                    operation.isReady = True
                    del changed[:]
                    self.assertEqual(self.purgatory.checkAndComplete("c"), 0)
                    self.assertEqual(self.purgatory.checkAndComplete(key), 1)
                    self.assertEqual(operation.told, ["complete"])
                    self.assertWaiting(0)
                    changed += ["a", "b"]

    def test_keysAreNeeded(self) -> None:
        """
        Without a key, or with one that cannot be hashed, the operation is
        refused before it is asked anything.
        """
        operation = ScriptedOperation(isReady=True)
        self.assertRaises(ValueError, self.purgatory.tryCompleteElseWatch, operation, [])
        self.assertRaises(TypeError, self.purgatory.tryCompleteElseWatch, operation, ["a", ["b"]])
        self.assertEqual(operation.checks, 0)
        self.assertWaiting(0)

    def test_completedIsNotWatched(self) -> None:
        """
        An operation that is over already is not watched.
        """
        operation = ScriptedOperation()
        operation.forceComplete()
        self.park(operation)
        self.assertWaiting(0)

    def test_parkedTwice(self) -> None:
        """
        An operation that waits cannot be parked again, here or elsewhere, and
        goes on waiting.
        """
        operation = self.park(ScriptedOperation())
        for purgatory in (self.purgatory, self.buildPurgatory(self.clock)):
            self.assertRaises(RuntimeError, purgatory.tryCompleteElseWatch, operation, ["other"])
        self.assertWaiting(1)
        operation.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertWaiting(0)

    def test_firstCheckRaises(self) -> None:
        """
        What the first check raises goes to the caller; the operation is not
        watched.
        """
        operation = ScriptedOperation(check=fail)
        self.assertRaises(ZeroDivisionError, self.purgatory.tryCompleteElseWatch, operation, ["key"])
        self.assertWaiting(0)

    def test_secondCheckRaises(self) -> None:
        """
        What the second check raises goes to the caller; the operation is
        watched no longer.
        """

        def check(operation: ScriptedOperation) -> None:
            if operation.checks == 2:
                fail(operation)

        operation = ScriptedOperation(check=check)
        self.assertRaises(ZeroDivisionError, self.purgatory.tryCompleteElseWatch, operation, ["a", "b"])
        self.assertWaiting(0)
        self.assertEqual(self.purgatory.cancelForKey("a"), [])

    def test_secondCheckRaisesOnceCompleted(self) -> None:
        """
        The same holds for an exception that an operation raises as it completes in its
        second check.
        """

        def check(operation: ScriptedOperation) -> None:
            operation.isReady = operation.checks == 2

        operation = ScriptedOperation(check=check, complete=fail)
        self.assertRaises(ZeroDivisionError, self.purgatory.tryCompleteElseWatch, operation, ["key"])
        self.assertTrue(operation.completed)
        self.assertWaiting(0)

    def test_unhashable(self) -> None:
        """
        An operation whose class cannot be hashed is refused, and leaves
        nothing behind.
        """

        class Equal(ScriptedOperation):
            __hash__ = None  # type: ignore[assignment]

        self.assertRaises(TypeError, self.purgatory.tryCompleteElseWatch, Equal(), ["a", "b"])
        self.assertWaiting(0)
        self.assertEqual(self.purgatory.cancelForKey("a"), [])

    def test_checkAndComplete(self) -> None:
        """
        A check completes what is ready under its key, says how many, and
        leaves the others as they are.
        """
        ready = [self.park(ScriptedOperation(), keys) for keys in (["a"], ["a", "b"], ["b", "a"])]
        other = self.park(ScriptedOperation(), ["a"])
        elsewhere = self.park(ScriptedOperation(), ["b"])
        for each in (*ready, elsewhere):
            each.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("a"), 3)
        self.assertEqual([each.told for each in (*ready, other, elsewhere)], [["complete"]] * 3 + [[]] * 2)
        self.assertEqual((other.checks, elsewhere.checks), (3, 2))
        self.assertWaiting(2)
        self.assertEqual(self.purgatory.checkAndComplete("a"), 0)
        self.assertEqual(self.purgatory.checkAndComplete("b"), 1)
        self.assertEqual(self.purgatory.checkAndComplete("unknown"), 0)

    def test_completionLeavesEverything(self) -> None:
        """
        However an operation completes, it is not found under any key
        afterwards, and its timeout is gone.
        """
        byCheck, byForce, late = (self.park(ScriptedOperation(1.0), ["a", "b"]) for _ in range(3))
        byCheck.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("a"), 1)
        self.assertWaiting(2)
        self.assertIs(byForce.forceComplete(), True)
        self.assertWaiting(1)
        self.clock.advance(1.0)
        self.assertWaiting(0)
        checks = [each.checks for each in (byCheck, byForce, late)]
        self.assertEqual(self.purgatory.checkAndComplete("b"), 0)
        self.assertEqual(self.purgatory.cancelForKey("b"), [])
        self.assertEqual([each.checks for each in (byCheck, byForce, late)], checks)
        self.assertEqual([each.told for each in (byCheck, byForce, late)],
                         [["complete"], ["complete"], ["complete", "expire"]])  # fmt: skip

    def test_forceComplete(self) -> None:
        """
        The first to complete an operation gets L{True} and all others
        L{False}; C{onComplete} runs once, after the operation has left.
        """
        watched: list[int] = []
        operation = self.park(ScriptedOperation(complete=lambda _: watched.append(self.purgatory.watched)))
        self.assertEqual([operation.forceComplete() for _ in range(3)], [True, False, False])
        self.assertEqual((operation.told, watched, operation.completed), (["complete"], [0], True))
        self.assertWaiting(0)

    def test_cancelForKey(self) -> None:
        """
        Cancelling a key takes its operations out of all their keys and from
        the timer; they hear of it, do not complete and are returned.
        """
        cancelled = [self.park(ScriptedOperation(1.0), keys) for keys in (["a", "b"], ["a"], ["b", "a"])]
        other = self.park(ScriptedOperation(1.0), ["b"])
        self.assertCountEqual(self.purgatory.cancelForKey("a"), cancelled)
        self.assertWaiting(1)
        for each in (*cancelled, other):
            each.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("b"), 1)
        self.clock.advance(60)
        self.assertEqual([each.told for each in cancelled], [["cancel"]] * 3)
        self.assertEqual([each.completed for each in cancelled], [False] * 3)
        self.assertEqual(self.purgatory.cancelForKey("unknown"), [])
        self.assertWaiting(0)

    def test_parkedAgain(self) -> None:
        """
        A cancelled operation may be parked again, under other keys and for
        another time.
        """
        operation = self.park(ScriptedOperation(1.0), ["a", "b"])
        self.purgatory.cancelForKey("a")
        operation.delaySeconds = 5.0
        self.park(operation, ["b", "c"])
        self.clock.advance(4.9)
        self.assertEqual((operation.told, self.purgatory.watched), (["cancel"], 1))
        operation.isReady = True
        self.assertEqual([self.purgatory.checkAndComplete(key) for key in ("a", "c")], [0, 1])
        self.assertWaiting(0)

    def test_cancelOne(self) -> None:
        """
        An operation that cancels itself leaves and hears of it; one that waits
        nowhere does not.
        """
        operation, other = self.park(ScriptedOperation()), self.park(ScriptedOperation())
        self.assertEqual([operation.cancel(), operation.cancel(), ScriptedOperation().cancel()], [True, False, False])
        self.assertEqual((operation.told, operation.completed, other.told), (["cancel"], False, []))
        self.assertWaiting(1)

    def test_shutdown(self) -> None:
        """
        Shutting down cancels everything once, leaves no timer, and may be
        repeated.
        """
        operations = [self.park(ScriptedOperation(1.0), keys) for keys in (["a", "b"], ["b"], ["b", "a"])]
        for _ in range(2):
            self.purgatory.shutdown()
            self.assertWaiting(0)
        self.clock.advance(60)
        self.assertEqual([(each.told, each.completed) for each in operations], [(["cancel"], False)] * 3)
        self.assertEqual([self.purgatory.checkAndComplete("b"), self.purgatory.expirations], [0, 0])

    def test_afterShutdown(self) -> None:
        """
        After the shutdown, an operation that can complete at once does, and any other is
        cancelled at once.
        """
        self.purgatory.shutdown()
        self.assertIs(self.purgatory.tryCompleteElseWatch(ScriptedOperation(isReady=True), ["key"]), True)
        operation = self.park(ScriptedOperation())
        self.assertEqual(operation.told, ["cancel"])
        self.assertWaiting(0)

    def test_sensors(self) -> None:
        """
        The sensors show how many operations wait and how many have expired, and for how long
        operations waited, under the name of the purgatory.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.purgatory.addSensors(registry, "Fetch")
        self.buildPurgatory(self.clock).addSensors(registry, "Produce")
        names = ["FetchPurgatorySize", "FetchNumDelayedOperations", "FetchExpirations"]
        self.assertEqual([registry[name] for name in names], [0, 0, 0])
        self.park(ScriptedOperation(1.0))
        self.park(ScriptedOperation(9.0))
        self.assertEqual([registry[name] for name in names], [2, 2, 0])
        self.clock.advance(1.0)
        self.assertEqual([registry[name] for name in names], [1, 1, 1])
        self.assertEqual(registry.histograms["FetchWaitSeconds"].count, 1)
        self.assertRaises(ValueError, self.purgatory.addSensors, registry, "Fetch")
