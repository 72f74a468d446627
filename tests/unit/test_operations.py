"""L{admission.operations}."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation, waitFor
from admission.testing.scriptedoperation import ScriptedOperation
from admission_plugins.purgatory import CallLaterPurgatory, WheelPurgatory
from admission_plugins.wheel import TimingWheel
from tests.kit.listpurgatory import ListPurgatory


class DelayedOperationTests(SynchronousTestCase):
    """L{DelayedOperation} in no purgatory."""

    def test_defaults(self) -> None:
        """The base class never completes by itself, and its events do nothing."""
        operation = DelayedOperation(1.5)
        self.assertEqual((operation.delaySeconds, operation.completed), (1.5, False))
        self.assertEqual((operation.watcher, operation.parking), (None, None))
        self.assertIs(operation.tryComplete(), False)
        operation.onCancel()
        operation.onExpiration()
        self.assertIs(operation.completed, False)
        self.assertIs(operation.forceComplete(), True)
        self.assertIs(operation.completed, True)

    def test_completesOnce(self) -> None:
        """Only the first call completes it."""
        operation = ScriptedOperation(isReady=True)
        self.assertEqual([operation.tryComplete(), operation.tryComplete(), operation.forceComplete()],
                         [True, False, False])  # fmt: skip
        self.assertEqual(operation.told, ["complete"])

    def test_completesOnceFromWithin(self) -> None:
        """Completing it while it completes does nothing."""
        nested: list[bool] = []
        operation = ScriptedOperation(complete=lambda each: nested.append(each.forceComplete()))
        self.assertEqual((operation.forceComplete(), nested, operation.told), (True, [False], ["complete"]))

    def test_expire(self) -> None:
        """An operation that is over does not expire."""
        operation, completed = ScriptedOperation(), ScriptedOperation()
        operation.expire()
        completed.forceComplete()
        completed.expire()
        self.assertEqual((operation.told, completed.told), (["complete", "expire"], ["complete"]))

    def test_failedCompletion(self) -> None:
        """What C{onComplete} raises goes to the caller, and the operation is over all the same."""
        operation = ScriptedOperation(complete=lambda _: 1 // 0)
        self.assertRaises(ZeroDivisionError, operation.forceComplete)
        self.assertEqual((operation.completed, operation.forceComplete()), (True, False))

    def test_slots(self) -> None:
        """A subclass with slots has no dictionary: there may be millions."""

        class Bare(DelayedOperation):
            __slots__ = ()

        self.assertFalse(hasattr(Bare(1.0), "__dict__"))


class WaitForTests(SynchronousTestCase):
    """L{waitFor}, in a purgatory on a wheel."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.purgatory = self.buildPurgatory()
        self.isTrue = False
        self.asked = 0

    def buildPurgatory(self) -> IPurgatory:
        return WheelPurgatory(TimingWheel(self.clock))

    def condition(self) -> bool:
        """What is waited for."""
        self.asked += 1
        return self.isTrue

    def wait(self, *keys: str, condition: Callable[[], bool] | None = None) -> Deferred[None]:
        """Wait for 5 seconds at most."""
        return waitFor(self.purgatory, keys or ("key",), condition or self.condition, 5.0)

    def assertNothingLeft(self) -> None:
        """Nobody waits, and there is no timer."""
        self.assertEqual((self.purgatory.watched, self.purgatory.delayed), (0, 0))
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_trueAtOnce(self) -> None:
        """What is true need not be waited for."""
        self.isTrue = True
        self.assertIs(self.successResultOf(self.wait()), None)
        self.assertEqual(self.asked, 1)
        self.assertNothingLeft()

    def test_becomesTrue(self) -> None:
        """It fires in the check that finds the condition true, be it of any key."""
        deferred = self.wait("a", "b")
        self.assertEqual(self.purgatory.checkAndComplete("a"), 0)
        self.assertNoResult(deferred)
        self.isTrue = True
        self.assertNoResult(deferred)
        self.assertEqual(self.purgatory.checkAndComplete("b"), 1)
        self.assertIs(self.successResultOf(deferred), None)
        self.assertNothingLeft()

    def test_timeout(self) -> None:
        """It fails when the time is up, although the condition may have become true unnoticed."""
        deferred = self.wait()
        self.clock.advance(4.99)
        self.assertNoResult(deferred)
        self.isTrue = True
        self.clock.advance(0.02)
        self.assertEqual(self.failureResultOf(deferred, TimeoutError).value.args[0], 5.0)
        self.assertEqual(self.purgatory.expirations, 1)
        self.assertNothingLeft()

    def test_conditionRaises(self) -> None:
        """What the condition raises, now or later, is what it fails with."""

        def condition() -> bool:
            if self.isTrue:
                raise ZeroDivisionError
            return False

        later, other = self.wait(condition=condition), self.wait(condition=lambda: self.isTrue)
        self.isTrue = True
        self.failureResultOf(self.wait(condition=condition), ZeroDivisionError)
        self.assertEqual(self.purgatory.checkAndComplete("key"), 2)
        self.failureResultOf(later, ZeroDivisionError)
        self.successResultOf(other)
        self.assertNothingLeft()

    def test_cancel(self) -> None:
        """Cancelling takes the operation out: the condition is not asked any more."""
        deferred = self.wait("a", "b")
        deferred.cancel()
        self.failureResultOf(deferred, CancelledError)
        self.assertNothingLeft()
        asked = self.asked
        self.purgatory.checkAndComplete("a")
        self.assertEqual((self.asked, self.purgatory.expirations), (asked, 0))

    def test_cancelledForKey(self) -> None:
        """It fails when its operation is cancelled, under all its keys."""
        deferred = self.wait("a", "b")
        self.assertEqual(len(self.purgatory.cancelForKey("a")), 1)
        self.failureResultOf(deferred, CancelledError)
        self.assertEqual(self.purgatory.cancelForKey("b"), [])
        self.assertNothingLeft()

    def test_shutdown(self) -> None:
        """It fails when the purgatory is shut down, or has been: nobody waits for ever."""
        before = self.wait()
        self.purgatory.shutdown()
        after = self.wait()
        for deferred in (before, after):
            self.failureResultOf(deferred, CancelledError)
        self.assertNothingLeft()

    def test_parkedAgain(self) -> None:
        """A caller that parks a cancelled operation again gets nothing out of it."""
        deferred = self.wait()
        [operation] = self.purgatory.cancelForKey("key")
        self.failureResultOf(deferred, CancelledError)
        self.purgatory.tryCompleteElseWatch(operation, ["key"])
        self.isTrue = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertNothingLeft()

    def test_wrongArguments(self) -> None:
        """Without a key, or with a timeout that is not a finite number, it raises at once."""
        self.assertRaises(ValueError, waitFor, self.purgatory, [], self.condition, 5.0)
        self.assertRaises(ValueError, waitFor, self.purgatory, ["key"], self.condition, float("nan"))
        self.assertNothingLeft()

    def test_waitAgain(self) -> None:
        """A callback may wait for the next time within the check."""
        times: list[Any] = []

        def again(_: object) -> None:
            times.append(None)
            self.isTrue = False
            self.wait().addCallback(again)

        self.wait().addCallback(again)
        for _ in range(3):
            self.isTrue = True
            self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual((len(times), self.purgatory.watched), (3, 1))

    def test_noCycle(self) -> None:
        """Once it has fired, however that came about, nothing is left for the garbage collector to find."""

        class Condition:
            answer: Callable[[], bool] = bool

            def __call__(self) -> bool:
                return self.answer()

        def fail() -> bool:
            raise ZeroDivisionError

        gc.disable()
        self.addCleanup(gc.enable)
        ends: list[tuple[Callable[[], bool], Callable[[Deferred[None]], object]]] = [
            (lambda: True, lambda _: self.purgatory.checkAndComplete("key")),
            (fail, lambda _: self.purgatory.checkAndComplete("key")),
            (bool, lambda deferred: deferred.cancel()),
            (bool, lambda _: self.clock.advance(6.0)),
        ]
        for answer, end in ends:
            condition = Condition()
            reference = weakref.ref(condition)
            deferred = self.wait(condition=condition)
            condition.answer = answer
            end(deferred)
            self.assertTrue(deferred.called)
            deferred.addErrback(lambda _: None)
            del condition, deferred
            self.assertIs(reference(), None)


class PlainWaitForTests(WaitForTests):
    """L{waitFor}, in a plain purgatory."""

    def buildPurgatory(self) -> IPurgatory:
        return CallLaterPurgatory(self.clock)


class ListWaitForTests(WaitForTests):
    """L{waitFor}, in a purgatory that knows of operations what the contract says."""

    def buildPurgatory(self) -> IPurgatory:
        return ListPurgatory(self.clock)
