# -*- test-case-name: tests.test_wrap -*-
"""
One direction of a connection, held to the quotas.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from ..connection.deadline import Deadline
from ..interfaces import NOTHING, Request, Usage
from ..quotas import Quotas


class Throttle:
    """
    Holds back who is over a quota for as long as the policies say, and asks
    them again before it lets go: what is owed may be more than the longest
    delay, or less since a limit was changed.
    """

    __slots__ = ("_asked", "_deadline", "_holds", "_isClosed", "_isHolding", "_quotas")

    def __init__(
        self,
        quotas: Quotas,
        clock: IReactorTime,
        asked: Callable[[int], Request],
        holds: Callable[[bool], None],
    ) -> None:
        """
        @param asked: what to ask the policies about, given a number of bytes.
        @param holds: called with L{True} when the client is to be held back,
            and with L{False} when it no longer is.
        """
        self._quotas = quotas
        self._asked = asked
        self._holds = holds
        self._isHolding = False
        self._isClosed = False
        self._deadline = Deadline(clock, self.ask)

    def count(self, sizeBytes: int, usage: Usage) -> None:
        """
        So much was taken.  It is counted after L{close}, too.
        """
        if self._quotas.isLimiting:
            self._follow(self._quotas.record(self._asked(sizeBytes), usage).delaySeconds)
        elif self._isHolding:
            self._follow(0.0)

    def ask(self) -> None:
        """
        Do as the policies say now, without having taken anything.
        """
        self.count(0, NOTHING)

    def close(self) -> None:
        """
        Hold nobody back any more.
        """
        self._isClosed = True
        self._deadline.close()

    def _follow(self, delaySeconds: float) -> None:
        if self._isClosed:
            return
        if delaySeconds > 0:
            self._deadline.start(delaySeconds)
        else:
            self._deadline.stop()
        isHolding = delaySeconds > 0
        if isHolding != self._isHolding:
            self._isHolding = isHolding
            self._holds(isHolding)
