# -*- test-case-name: tests.contracts.test_purgatorycontract -*-
"""
A scripted operation, and the fixture for the tests of a purgatory.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from twisted.internet.task import Clock

from ..interfaces import IPurgatory
from ..operations import DelayedOperation
from .contract import Contract


class ScriptedOperation(DelayedOperation):
    """
    Completes when the test says so, and records its calls.

    @ivar isReady: whether its condition holds; set it at will.
    @ivar checks: how often it was checked.
    @ivar told: the calls, in order: C{"complete"}, C{"expire"},
        C{"cancel"}.
    @ivar cues: further actions, see L{__init__}; change it at will.
    """

    def __init__(
        self, delaySeconds: float = 30.0, isReady: bool = False, **cues: Callable[[ScriptedOperation], object]
    ) -> None:
        """
        @param cues: further actions: C{check} at each check, before looking at
            L{isReady}, and C{complete}, C{expire} or C{cancel} at that call.
            Their exceptions go to the purgatory.
        """
        super().__init__(delaySeconds)
        self.isReady = isReady
        self.checks = 0
        self.told: list[str] = []
        self.cues = cues

    def tryComplete(self) -> bool:
        self.checks += 1
        self._act("check")
        return self.isReady and self.forceComplete()

    def onComplete(self) -> None:
        self._hear("complete")

    def onExpiration(self) -> None:
        self._hear("expire")

    def onCancel(self) -> None:
        self._hear("cancel")

    def _hear(self, word: str) -> None:
        self.told.append(word)
        self._act(word)

    def _act(self, cue: str) -> None:
        if cue in self.cues:
            self.cues[cue](self)


def fail(operation: ScriptedOperation) -> None:
    """
    A cue that raises.
    """
    raise ZeroDivisionError("as scripted")


class PurgatoryFixture(Contract):
    """
    A purgatory on a clock.
    """

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

    def park(self, operation: ScriptedOperation, keys: Collection[Hashable] = ("key",)) -> ScriptedOperation:
        """
        Park an operation that does not complete.
        """
        self.assertIs(self.purgatory.tryCompleteElseWatch(operation, keys), False)
        return operation

    def assertWaiting(self, count: int) -> None:
        """
        Check that C{count} operations wait, and if that is none, that there is no timer.
        """
        self.assertEqual((self.purgatory.watched, self.purgatory.delayed), (count, count))
        if not count:
            self.assertEqual(list(self.clock.getDelayedCalls()), [])
