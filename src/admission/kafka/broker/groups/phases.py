# -*- test-case-name: tests.unit.kafka.broker.groups.test_rebalancer -*-
"""
What a group waits for in a purgatory: that its members join, that they ask
for their assignments.
"""

from __future__ import annotations

from collections.abc import Callable

from admission.operations import DelayedOperation

from .groupstate import Group


class JoinPhase(DelayedOperation):
    """
    Waits until all members have joined, or as long as the slowest may take.
    """

    __slots__ = ("_group", "_over")

    def __init__(self, group: Group, delaySeconds: float, over: Callable[[], object]) -> None:
        """
        @param over: called at the end, either way.
        """
        super().__init__(delaySeconds)
        self._group = group
        self._over = over

    def tryComplete(self) -> bool:
        """
        See L{DelayedOperation.tryComplete}.
        """
        return self._group.hasEverybodyJoined() and self.forceComplete()

    def onComplete(self) -> None:
        """
        The time to join is over.
        """
        self._over()


class InitialDelay(JoinPhase):
    """
    Waits for more members than the first one of an empty group: never less
    than its time, and once more if somebody came and C{remainingSeconds} allow
    it.
    """

    __slots__ = ("remainingSeconds",)

    def __init__(self, group: Group, delaySeconds: float, remainingSeconds: float, over: Callable[[], object]) -> None:
        """
        @param remainingSeconds: how much longer members may be waited for after
            this.
        """
        super().__init__(group, delaySeconds, over)
        self.remainingSeconds = remainingSeconds

    def tryComplete(self) -> bool:
        """
        See L{DelayedOperation.tryComplete}.
        """
        return False


class SyncPhase(DelayedOperation):
    """
    Waits until all members have asked for their assignments.  Those of them
    who ask in time are answered when the leader has said what they are; this
    is about those who do not ask.
    """

    __slots__ = ("_group", "_overdue")

    def __init__(self, group: Group, delaySeconds: float, overdue: Callable[[], object]) -> None:
        """
        @param overdue: called if some did not.
        """
        super().__init__(delaySeconds)
        self._group = group
        self._overdue = overdue

    def tryComplete(self) -> bool:
        """
        See L{DelayedOperation.tryComplete}.
        """
        return not self._group.unsynced and self.forceComplete()

    def onComplete(self) -> None:
        """
        Nobody has to be waited for any more.
        """
        if self._group.phase is self:
            self._group.phase = None

    def onExpiration(self) -> None:
        """
        Some have not asked.
        """
        self._overdue()
