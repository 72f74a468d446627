# -*- test-case-name: tests.unit.test_gate -*-
"""
Bodies that have memory and do not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import IMemoryPool

BODY_GRACE_SECONDS = 2.0
"""A body of which no fair part has come for that long gives way while others wait for memory."""


class PartialBody(Protocol):
    """
    A connection that has memory for a body of which a part has not come.
    """

    def idleSeconds(self, now: float) -> float:
        """
        For how long no fair part of it, such as a sixteenth, has come.  The time in which it is not read does not
        count.
        """

    def missingBytes(self) -> int:
        """
        How much of it has not come.
        """

    def giveWay(self) -> None:
        """
        Close the connection, and release that memory.
        """


class SlowBodies:
    """
    Bodies that have memory and come too slowly.  They give way to connections that wait for memory: the announced
    length is only a claim.
    """

    def __init__(self, pool: IMemoryPool, clock: IReactorTime, isAwaited: Callable[[], bool]) -> None:
        """
        @param isAwaited: whether a connection waits for memory.
        """
        self._pool = pool
        self._clock = clock
        self._isAwaited = isAwaited
        self._bodies: dict[PartialBody, None] = {}
        self._timer: IDelayedCall | None = None

    @property
    def count(self) -> int:
        """
        How many bodies have not come as a whole.
        """
        return len(self._bodies)

    def started(self, body: PartialBody) -> None:
        """
        C{body} has memory, and not all of it has come.
        """
        self._bodies[body] = None
        self.expect()

    def over(self, body: PartialBody) -> None:
        """
        All of C{body} has come, or it never will.
        """
        self._bodies.pop(body, None)

    def claimMoreThan(self, sizeBytes: int) -> bool:
        """
        Whether more than C{sizeBytes} of memory is claimed for what has not come.
        """
        for body in self._bodies:
            if sizeBytes < 0:
                break
            sizeBytes -= body.missingBytes()
        return sizeBytes < 0

    def expect(self) -> None:
        """
        Look at the bodies in a while, if anybody waits by then.
        """
        if self._timer is None and self._bodies and self._isAwaited():
            self._timer = self._clock.callLater(BODY_GRACE_SECONDS, self._makeWay)

    def close(self) -> None:
        """
        Cancel the timer.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _makeWay(self) -> None:
        """
        Have the bodies give way of which nothing has come for longest, as many as it takes.
        """
        self._timer = None
        if self._isAwaited():
            now = self._clock.seconds()
            idleSeconds = {body: body.idleSeconds(now) for body in self._bodies}
            for body in sorted(idleSeconds, key=lambda each: -idleSeconds[each]):
                if self._pool.availableBytes > 0 or idleSeconds[body] < BODY_GRACE_SECONDS:
                    break
                self._bodies.pop(body, None)
                body.giveWay()
        self.expect()
