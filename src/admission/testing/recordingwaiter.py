# -*- test-case-name: tests.contracts.test_recordingwaiter -*-
"""
A waiter at a gate that records what it was granted.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from ..interfaces import ILease, IWaiter


@implementer(IWaiter)
class RecordingWaiter:
    """
    Stands in for a connection at an L{admission.gate.gate.Gate}.

    @ivar wantedBytes: how much it waits for.
    @ivar holder: who it is.
    @ivar hasBoundedAnswers: whether something else bounds its answers.
    @ivar leases: the leases it was granted, oldest first; the test releases them.
    @ivar turns: how many turns it was granted.
    """

    def __init__(
        self,
        wantedBytes: int = 1,
        granted: Callable[[RecordingWaiter], None] | None = None,
        holder: str = "",
        hasBoundedAnswers: bool = True,
    ) -> None:
        """
        @param granted: called with the waiter after each grant; its exceptions
            go to the gate.
        """
        self.wantedBytes = wantedBytes
        self.holder = holder
        self.hasBoundedAnswers = hasBoundedAnswers
        self.leases: list[ILease] = []
        self.turns = 0
        self._granted = granted

    def leaseGranted(self, lease: ILease) -> None:
        self.leases.append(lease)
        self._tell()

    def turnGranted(self) -> None:
        self.turns += 1
        self._tell()

    def _tell(self) -> None:
        if self._granted is not None:
            self._granted(self)
