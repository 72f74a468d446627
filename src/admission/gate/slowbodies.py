# -*- test-case-name: tests.unit.test_gate -*-
"""
Bodies that have memory and do not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import IMemoryPool

MIN_BODY_SECONDS = 2.0
"""How long a body has memory at least, however little of it comes."""

MAX_BODY_SECONDS = 20.0
"""A body that would take longer, at its pace, gives way while others wait for memory."""


class PartialBody(Protocol):
    """
    A connection that has memory for a body of which a part has not come.
    """

    def bodySeconds(self, now: float) -> float:
        """
        How long all of it would take, at the pace of what has come; zero if it is not read, or has not had
        L{MIN_BODY_SECONDS} yet.  May be infinite.
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
    A length that is announced is a claim: a body that comes too slowly gives way to those that wait for memory.
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
        Whether more memory than that is claimed for what has not come.
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
            self._timer = self._clock.callLater(MIN_BODY_SECONDS, self._makeWay)

    def close(self) -> None:
        """
        Cancel the timer.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _makeWay(self) -> None:
        """
        Have the slowest bodies give way, as many as it needs.
        """
        self._timer = None
        if self._isAwaited():
            now = self._clock.seconds()
            paces = {body: body.bodySeconds(now) for body in self._bodies}
            for body in sorted(paces, key=lambda each: -paces[each]):
                if self._pool.availableBytes > 0 or paces[body] <= MAX_BODY_SECONDS:
                    break
                self._bodies.pop(body, None)
                body.giveWay()
        self.expect()
