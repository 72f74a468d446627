# -*- test-case-name: tests.test_purgatory -*-
"""
An operation that does as it is told, and what every purgatory must do with it.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any

from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from ..interfaces import IDelayedOperation, IPurgatory
from ..metrics.registry import SensorRegistry
from ..operations import DelayedOperation, KeySet

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase as _TestCase
else:
    _TestCase = object


class CuedOperation(DelayedOperation):
    """
    Completes when it is told, and remembers what became of it.

    @ivar isReady: whether its condition holds; set it at will.
    @ivar checks: how often it was asked.
    @ivar told: what it was told, in order: C{"complete"}, C{"expire"},
        C{"cancel"}.
    """

    def __init__(
        self, delaySeconds: float = 30.0, isReady: bool = False, **cues: Callable[[CuedOperation], object]
    ) -> None:
        """
        @param cues: what else to do: C{check} at each check, before looking at
            L{isReady}, and C{complete}, C{expire} or C{cancel} when told so.
            Whatever it raises goes to the purgatory.
        """
        super().__init__(delaySeconds)
        self.isReady = isReady
        self.checks = 0
        self.told: list[str] = []
        self._cues = cues

    def tryComplete(self) -> bool:
        """
        Complete if ready.
        """
        self.checks += 1
        self._act("check")
        return self.isReady and self.forceComplete()

    def onComplete(self) -> None:
        """
        Remember.
        """
        self._hear("complete")

    def onExpiration(self) -> None:
        """
        Remember.
        """
        self._hear("expire")

    def onCancel(self) -> None:
        """
        Remember.
        """
        self._hear("cancel")

    def _hear(self, word: str) -> None:
        self.told.append(word)
        self._act(word)

    def _act(self, cue: str) -> None:
        if cue in self._cues:
            self._cues[cue](self)


def _fail(operation: CuedOperation) -> None:
    """
    A cue to raise.
    """
    raise ZeroDivisionError("as cued")


class PurgatoryContract(_TestCase):
    """
    What an L{IPurgatory} must do.
    """

    toleranceSeconds = 0.001
    """How late a timeout may be on a clock without lag."""

    clock: Clock
    purgatory: IPurgatory

    def buildPurgatory(self, clock: Clock) -> IPurgatory:
        """
        Make an empty purgatory that takes its time from C{clock}.
        """
        raise NotImplementedError

    def setUp(self) -> None:
        """
        Make a purgatory.
        """
        self.clock = Clock()
        self.purgatory = self.buildPurgatory(self.clock)

    def park(self, operation: CuedOperation, keys: Collection[Hashable] = ("key",)) -> CuedOperation:
        """
        Park what does not complete.
        """
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, keys), False)
        return operation

    def assertWaiting(self, count: int) -> None:
        """
        C{count} operations wait, and if that is none, there is no timer.
        """
        self.assertEqual((self.purgatory.watched, self.purgatory.delayed), (count, count))
        if not count:
            self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_providesItsInterface(self) -> None:
        """
        The purgatory has all attributes and methods of L{IPurgatory}, and an
        operation those of L{IDelayedOperation}.
        """
        verifyObject(IPurgatory, self.purgatory)
        verifyObject(IDelayedOperation, CuedOperation())

    def test_completedAtFirstCheck(self) -> None:
        """
        What can complete at once is never watched.
        """
        operation = CuedOperation(isReady=True)
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, ["key"]), True)
        self.assertEqual((operation.checks, operation.told), (1, ["complete"]))
        self.assertWaiting(0)
        self.assertEqual(self.purgatory.checkAndComplete("key"), 0)

    def test_completedAtSecondCheck(self) -> None:
        """
        What can complete once it is watched completes, and leaves nothing
        behind.
        """

        def check(operation: CuedOperation) -> None:
            operation.isReady = operation.checks == 2

        operation = CuedOperation(check=check)
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, ["key"]), True)
        self.assertEqual((operation.checks, operation.told), (2, ["complete"]))
        self.assertWaiting(0)
        self.clock.advance(60)
        self.assertEqual(operation.told, ["complete"])

    def test_watched(self) -> None:
        """
        What cannot complete is checked twice and waits, counted once however
        many keys it has.
        """
        first = self.park(CuedOperation(), ["a", "b", "c"])
        self.park(CuedOperation(), ["a"])
        self.assertEqual((first.checks, first.told, first.completed), (2, [], False))
        self.assertWaiting(2)

    def test_anyCollectionOfKeys(self) -> None:
        """
        Keys come as a tuple, a list, a set or a L{KeySet}; changing the
        collection afterwards changes nothing, and what comes twice counts once.
        """
        changed = ["a", "b"]
        for keys in (("a", "b"), changed, {"a", "b"}, KeySet(["a", "b"]), ["a", "b", "a"], KeySet(["a", "b", "a"])):
            with self.subTest(keys=repr(keys)):
                for key in ("a", "b"):
                    operation = self.park(CuedOperation(), keys)
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
        operation = CuedOperation(isReady=True)
        self.assertRaises(ValueError, self.purgatory.tryCompleteElseWatch, operation, [])
        self.assertRaises(TypeError, self.purgatory.tryCompleteElseWatch, operation, ["a", ["b"]])
        self.assertEqual(operation.checks, 0)
        self.assertWaiting(0)

    def test_delayMustBeFinite(self) -> None:
        """
        A delay that is not a finite number is refused and leaves nothing
        behind; the operation may be parked with another.
        """
        for delaySeconds in (float("nan"), float("inf"), float("-inf")):
            for keys in (["a", "b"], KeySet(["a", "b"])):
                operation = CuedOperation(delaySeconds)
                self.assertRaises(ValueError, self.purgatory.tryCompleteElseWatch, operation, keys)
                self.assertWaiting(0)
                self.assertEqual(self.purgatory.cancelForKey("a"), [])
                operation.delaySeconds = 1.0
                self.park(operation, keys)
                self.clock.advance(1.0)
                self.assertEqual(operation.told, ["complete", "expire"])
        self.assertWaiting(0)

    def test_completedIsNotWatched(self) -> None:
        """
        An operation that is over already is not watched.
        """
        operation = CuedOperation()
        operation.forceComplete()
        self.park(operation)
        self.assertWaiting(0)

    def test_parkedTwice(self) -> None:
        """
        An operation that waits cannot be parked again, here or elsewhere, and
        goes on waiting.
        """
        operation = self.park(CuedOperation())
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
        operation = CuedOperation(check=_fail)
        self.assertRaises(ZeroDivisionError, self.purgatory.tryCompleteElseWatch, operation, ["key"])
        self.assertWaiting(0)

    def test_secondCheckRaises(self) -> None:
        """
        What the second check raises goes to the caller; the operation is
        watched no longer.
        """

        def check(operation: CuedOperation) -> None:
            if operation.checks == 2:
                _fail(operation)

        for keys in (["a", "b"], KeySet(["a", "b"])):
            operation = CuedOperation(check=check)
            self.assertRaises(ZeroDivisionError, self.purgatory.tryCompleteElseWatch, operation, keys)
            self.assertWaiting(0)
            self.assertEqual(self.purgatory.cancelForKey("a"), [])

    def test_checkAndComplete(self) -> None:
        """
        A check completes what is ready under its key, says how many, and
        leaves the others as they were.
        """
        ready = [self.park(CuedOperation(), keys) for keys in (["a"], ["a", "b"], KeySet(["b", "a"]))]
        other = self.park(CuedOperation(), ["a"])
        elsewhere = self.park(CuedOperation(), ["b"])
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
        for keys in (["a", "b"], KeySet(["a", "b"])):
            byCheck, byForce, late = (self.park(CuedOperation(1.0), keys) for _ in range(3))
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
        operation = self.park(CuedOperation(complete=lambda _: watched.append(self.purgatory.watched)))
        self.assertEqual([operation.forceComplete() for _ in range(3)], [True, False, False])
        self.assertEqual((operation.told, watched, operation.completed), (["complete"], [0], True))

    def test_expiry(self) -> None:
        """
        An operation whose time runs out completes, and hears of the timeout
        after that; not before its time, and hardly later.
        """
        operation = self.park(CuedOperation(0.25))
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
        operation = self.park(CuedOperation(0.25))
        operation.forceComplete()
        self.clock.advance(60)
        self.assertEqual((operation.told, self.purgatory.expirations), (["complete"], 0))

    def test_noDelay(self) -> None:
        """
        A delay of zero or less ends in the next turn of the reactor, not within
        the call.
        """
        self.clock.advance(0.0005)
        operations = [self.park(CuedOperation(delaySeconds)) for delaySeconds in (0, 0.0, -0.0, -5.0, -1e9)]
        self.assertEqual([each.told for each in operations], [[]] * 5)
        self.clock.advance(0)
        self.assertEqual([each.told for each in operations], [["complete", "expire"]] * 5)
        self.assertWaiting(0)

    def test_expiryInOrder(self) -> None:
        """
        However far the clock jumps, what is due earlier expires earlier.
        """
        expired: list[float] = []
        for delaySeconds in (5.0, 0.01, 700.0, 0.3, 0.02, 86400.0, 31.0, 0.0):
            self.park(CuedOperation(delaySeconds, expire=lambda each: expired.append(each.delaySeconds)))
        self.clock.advance(1e6)
        self.assertEqual(expired, [0.0, 0.01, 0.02, 0.3, 5.0, 31.0, 700.0, 86400.0])

    def test_cancelForKey(self) -> None:
        """
        Cancelling a key takes its operations out of all their keys and from
        the timer; they hear of it, do not complete and are returned.
        """
        cancelled = [self.park(CuedOperation(1.0), keys) for keys in (["a", "b"], ["a"], KeySet(["a", "b"]))]
        other = self.park(CuedOperation(1.0), ["b"])
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
        operation = self.park(CuedOperation(1.0), ["a", "b"])
        self.purgatory.cancelForKey("a")
        operation.delaySeconds = 5.0
        self.park(operation, KeySet(["b", "c"]))
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
        operation, other = self.park(CuedOperation()), self.park(CuedOperation())
        self.assertEqual([operation.cancel(), operation.cancel(), CuedOperation().cancel()], [True, False, False])
        self.assertEqual((operation.told, operation.completed, other.told), (["cancel"], False, []))
        self.assertWaiting(1)

    def test_checkRaises(self) -> None:
        """
        An operation that raises when it is checked is logged and waits on; the
        others under the key are checked all the same.
        """
        failing = self.park(CuedOperation())
        failing._cues["check"] = _fail
        ready = self.park(CuedOperation())
        ready.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual((ready.told, failing.told), (["complete"], []))
        self.assertWaiting(1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_completionRaises(self) -> None:
        """
        An operation that raises while it completes is logged, counts, and is
        over.
        """
        failing, other = self.park(CuedOperation(complete=_fail)), self.park(CuedOperation())
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
        cues: list[dict[str, Any]] = [{"complete": _fail}, {"expire": _fail}, {}, {}]
        operations = [self.park(CuedOperation(1.0 + delay, **each)) for delay in (0.0, 0.5) for each in cues]
        self.clock.advance(1.0)
        self.assertEqual([each.completed for each in operations], [True] * 4 + [False] * 4)
        self.clock.advance(1.0)
        self.assertEqual([each.completed for each in operations], [True] * 8)
        self.assertEqual([each.told for each in operations if not each._cues], [["complete", "expire"]] * 4)
        self.assertEqual(self.purgatory.expirations, 8)
        self.assertWaiting(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 4)

    def test_cancelRaises(self) -> None:
        """
        An operation that raises when it is cancelled is logged; the others are
        cancelled all the same.
        """
        operations = [self.park(CuedOperation(cancel=_fail)), self.park(CuedOperation())]
        self.assertEqual(self.purgatory.cancelForKey("key"), operations)
        self.assertEqual([each.told for each in operations], [["cancel"]] * 2)
        self.assertWaiting(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_parkWhileChecked(self) -> None:
        """
        What is parked under a key while it is being checked stays there.
        """
        added: list[CuedOperation] = []
        for cue in ("check", "complete"):
            operation = self.park(CuedOperation())
            operation._cues[cue] = lambda _: added.append(self.park(CuedOperation()))
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
        others = [CuedOperation(), CuedOperation()]
        operation = self.park(CuedOperation(complete=lambda _: [each.forceComplete() for each in others]))
        for each in others:
            self.park(each)
        operation.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual([(each.checks, each.told) for each in others], [(2, ["complete"])] * 2)
        self.assertWaiting(0)

    def test_cancelWhileChecked(self) -> None:
        """
        Cancelling a key while it is checked cancels what has not completed.
        """
        operation = self.park(CuedOperation(complete=lambda _: self.purgatory.cancelForKey("key")))
        other = self.park(CuedOperation())
        operation.isReady = other.isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertEqual((operation.told, other.told), (["complete"], ["cancel"]))
        self.assertWaiting(0)

    def test_cancelItselfWhileParked(self) -> None:
        """
        An operation that is cancelled within its second check is not watched.
        """
        operation = self.park(CuedOperation(check=lambda each: each.checks == 2 and each.cancel()))
        self.assertEqual(operation.told, ["cancel"])
        self.assertWaiting(0)

    def test_parkAgainWhenCancelled(self) -> None:
        """
        What one operation parks again as it is cancelled stays parked, and
        is not told that it was cancelled.
        """
        second = CuedOperation()

        def parkBoth(operation: CuedOperation) -> None:
            self.park(operation)
            self.park(second)

        first = self.park(CuedOperation(cancel=parkBoth))
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

        def complete(_: CuedOperation) -> None:
            first.isReady = other.isReady = True
            nested.extend(self.purgatory.checkAndComplete(key) for key in ("key", "other", "unknown"))

        first, other = self.park(CuedOperation()), self.park(CuedOperation(), ["other"])
        last = self.park(CuedOperation(complete=complete))
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

        def complete(operation: CuedOperation) -> None:
            following = successors.get(operation)
            if following is not None:
                following.isReady = True
            self.purgatory.checkAndComplete("key")

        operations = [self.park(CuedOperation(complete=complete)) for _ in range(1200)]
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
        operations = [self.park(CuedOperation()) for _ in range(3)]
        for each in operations:
            each._cues["check"] = lambda _: self.purgatory.checkAndComplete("key")
        self.assertEqual(self.purgatory.checkAndComplete("key"), 0)
        operations[1].isReady = True
        self.assertEqual(self.purgatory.checkAndComplete("key"), 1)
        self.assertWaiting(2)

    def test_expiryTakesOthersAlong(self) -> None:
        """
        An operation completed or cancelled by another that expires in the same
        turn does not expire.
        """
        completed, cancelled = CuedOperation(1.0), CuedOperation(1.0)

        def expire(_: CuedOperation) -> None:
            completed.forceComplete()
            cancelled.cancel()

        self.park(CuedOperation(1.0, expire=expire))
        self.park(completed)
        self.park(cancelled)
        self.clock.advance(1.0)
        self.assertEqual((completed.told, cancelled.told), (["complete"], ["cancel"]))
        self.assertEqual(self.purgatory.expirations, 1)
        self.assertWaiting(0)

    def test_parkWhenExpiring(self) -> None:
        """
        What an expiring operation parks waits for its own time.
        """
        following = CuedOperation(1.0)
        self.park(CuedOperation(1.0, complete=lambda _: self.park(following)))
        self.clock.advance(1.5)
        self.assertEqual(following.told, [])
        self.clock.advance(1.0)
        self.assertEqual(following.told, ["complete", "expire"])
        self.assertWaiting(0)

    def test_shutdown(self) -> None:
        """
        Shutting down cancels everything once, leaves no timer, and may be
        repeated.
        """
        operations = [self.park(CuedOperation(1.0), keys) for keys in (["a", "b"], ["b"], KeySet(["a", "b"]))]
        for _ in range(2):
            self.purgatory.shutdown()
            self.assertWaiting(0)
        self.clock.advance(60)
        self.assertEqual([(each.told, each.completed) for each in operations], [(["cancel"], False)] * 3)
        self.assertEqual([self.purgatory.checkAndComplete("b"), self.purgatory.expirations], [0, 0])

    def test_afterShutdown(self) -> None:
        """
        After the shutdown what can complete at once does, and what cannot is
        cancelled at once.
        """
        self.purgatory.shutdown()
        self.assertIs(self.purgatory.tryCompleteElseWatch(CuedOperation(isReady=True), ["key"]), True)
        operation = self.park(CuedOperation())
        self.assertEqual(operation.told, ["cancel"])
        self.assertWaiting(0)

    def test_shutdownFromWithin(self) -> None:
        """
        Any method of an operation may shut the purgatory down; what waits is
        then cancelled, that operation included unless it is over.
        """
        for cue, told in [("check", ["cancel"]), ("complete", ["complete"]), ("expire", ["complete", "expire"])]:
            with self.subTest(cue=cue):
                purgatory = self.purgatory = self.buildPurgatory(self.clock)
                operation, other = self.park(CuedOperation(1.0)), self.park(CuedOperation(1.0))
                operation._cues[cue] = lambda _: self.purgatory.shutdown()
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

            def shutDown(each: CuedOperation, number: int = number) -> None:
                if each.checks == number:
                    self.purgatory.shutdown()

            operation = self.park(CuedOperation(check=shutDown))
            self.assertEqual(operation.told, ["cancel"])
            self.assertWaiting(0)

    def test_clock(self) -> None:
        """
        The purgatory's clock serves delays of other kinds, and the shutdown
        leaves them alone.
        """
        called: list[float] = []
        self.purgatory.clock.callLater(1.0, lambda: called.append(self.purgatory.clock.seconds()))
        self.purgatory.shutdown()
        self.clock.advance(1.0)
        self.assertEqual(called, [1.0])

    def test_waits(self) -> None:
        """
        The time that an operation has waited is recorded, however it ended; not
        for one that never did.
        """
        self.purgatory.tryCompleteElseWatch(CuedOperation(isReady=True), ["key"])
        operations = [self.park(CuedOperation(3.0)) for _ in range(3)]
        self.clock.advance(1.0)
        operations[0].forceComplete()
        self.clock.advance(1.0)
        operations[1].cancel()
        self.clock.advance(1.0)
        self.assertEqual((self.purgatory.waits.count, round(self.purgatory.waits.total, 6)), (3, 6.0))
        self.assertEqual([self.purgatory.waits.quantile(share) for share in (0.3, 0.6, 0.9)], [1.0, 2.0, 5.0])

    def test_sensors(self) -> None:
        """
        The sensors show what waits, what has expired and for how long
        operations waited, under the name of the purgatory.
        """
        registry = SensorRegistry()
        self.purgatory.addSensors(registry, "Fetch")
        self.buildPurgatory(self.clock).addSensors(registry, "Produce")
        names = ["FetchPurgatorySize", "FetchNumDelayedOperations", "FetchExpirations"]
        self.assertEqual([registry[name] for name in names], [0, 0, 0])
        self.park(CuedOperation(1.0))
        self.park(CuedOperation(9.0))
        self.assertEqual([registry[name] for name in names], [2, 2, 0])
        self.clock.advance(1.0)
        self.assertEqual([registry[name] for name in names], [1, 1, 1])
        self.assertEqual(registry.histograms["FetchWaitSeconds"].count, 1)
        self.assertRaises(ValueError, self.purgatory.addSensors, registry, "Fetch")
