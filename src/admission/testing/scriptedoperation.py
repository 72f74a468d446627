# -*- test-case-name: tests.contracts.test_purgatorycontract -*-
"""
An operation that does as it is told, and what the tests of a purgatory begin
with.
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
    Completes when it is told, and remembers what became of it.

    @ivar isReady: whether its condition holds; set it at will.
    @ivar checks: how often it was asked.
    @ivar told: what it was told, in order: C{"complete"}, C{"expire"},
        C{"cancel"}.
    @ivar cues: what else to do, see L{__init__}; change it at will.
    """

    def __init__(
        self, delaySeconds: float = 30.0, isReady: bool = False, **cues: Callable[[ScriptedOperation], object]
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
    A cue to raise.
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
