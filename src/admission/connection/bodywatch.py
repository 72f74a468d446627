# -*- test-case-name: tests.unit.connection.test_bodywatch -*-
"""
A body that has memory, and of which something has to come.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from ..gate.slowbodies import SlowBodies
from .deadline import Deadline
from .factory import ConnectionLimits
from .link import Link

_SHARE = 16
"""The fraction of a body that has to come within C{receiveSeconds}."""


class BodyWatch:
    """
    Ends a request if less than a sixteenth of its body comes in C{receiveSeconds}, so that neither silence nor a
    trickle can hold memory for long; and much earlier if others wait for that memory.  It watches one body after
    another.

    It is the L{PartialBody <admission.gate.slowbodies.PartialBody>} of the gate.

    @ivar tooSlow: called with the reason if too little comes.
    """

    __slots__ = (
        "_bodies",
        "_clock",
        "_deadline",
        "_filledBytes",
        "_limits",
        "_link",
        "_markBytes",
        "_markSeconds",
        "_sizeBytes",
        "tooSlow",
    )

    def __init__(
        self,
        bodies: SlowBodies,
        clock: IReactorTime,
        limits: ConnectionLimits,
        link: Link,
        tooSlow: Callable[[str], None],
    ) -> None:
        """
        @param link: where it comes from; while that is not read nothing can come.
        """
        self._bodies = bodies
        self._clock = clock
        self._limits = limits
        self._link = link
        self.tooSlow = tooSlow
        self._deadline = Deadline(clock, self._expired)
        self._sizeBytes = self._filledBytes = self._markBytes = 0
        self._markSeconds = 0.0

    def start(self, sizeBytes: int, filledBytes: int = 0) -> None:
        """
        There is memory for C{sizeBytes}, more than none, of which C{filledBytes} have come.
        """
        self._sizeBytes = sizeBytes
        self._filledBytes = filledBytes
        self._mark()
        self._bodies.started(self)

    def filled(self, filledBytes: int) -> None:
        """
        C{filledBytes} of the body have come.
        """
        self._filledBytes = filledBytes
        if filledBytes - self._markBytes >= self._sizeBytes // _SHARE:
            self._mark()

    def stop(self) -> None:
        """
        All of it has come, or it never will; no effect if nothing is watched.
        """
        if self._sizeBytes:
            self._sizeBytes = 0
            self._deadline.stop()
            self._bodies.over(self)

    def close(self) -> None:
        """
        Watch nothing any more, for good.
        """
        self.stop()
        self._deadline.close()

    # What the gate calls

    def idleSeconds(self, now: float) -> float:
        if self._link.pauses.isApplied or not self._sizeBytes:
            return 0.0
        return now - max(self._markSeconds, self._link.resumedSeconds)

    def missingBytes(self) -> int:
        return self._sizeBytes - self._filledBytes if self._sizeBytes else 0

    def giveWay(self) -> None:
        self.tooSlow(
            f"{self.missingBytes()} bytes of its request have not come, and others wait for the memory that it has for"
            " them"
        )

    def _mark(self) -> None:
        self._markBytes = self._filledBytes
        self._markSeconds = self._link.lastActiveSeconds
        self._deadline.start(self._limits.receiveSeconds)

    def _expired(self) -> None:
        if not self._sizeBytes:
            return
        receiveSeconds = self._limits.receiveSeconds
        if self._link.pauses.isApplied:
            self._deadline.start(receiveSeconds)
            return
        # While it was not read nothing could arrive.
        remainingSeconds = self._link.resumedSeconds + receiveSeconds - self._clock.seconds()
        if remainingSeconds > 0:
            self._deadline.start(remainingSeconds)
            return
        self.tooSlow(
            f"{self._filledBytes} of the {self._sizeBytes} bytes of its request have come, and for "
            f"{receiveSeconds:g} s hardly any ({self._limits.settingOf('receiveSeconds')})"
        )
