# -*- test-case-name: tests.unit.connection.test_deadline -*-
"""
A timeout that is moved far more often than it expires.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Deadline:
    """
    At most one timer, which stays when the deadline moves or goes away, and looks
    when it fires.  Starting and stopping cost a clock reading, not a timer.
    """

    __slots__ = ("_call", "_clock", "_expired", "_firesSeconds", "dueSeconds")

    def __init__(self, clock: IReactorTime, expired: Callable[[], None]) -> None:
        """
        @param expired: called when the deadline passes.
        """
        self._clock = clock
        self._expired = expired
        self._call: IDelayedCall | None = None
        self._firesSeconds = 0.0
        self.dueSeconds: float | None = None

    def start(self, delaySeconds: float) -> None:
        """
        Expire after C{delaySeconds}, in place of any earlier deadline.
        """
        due = self.dueSeconds = self._clock.seconds() + delaySeconds
        if self._call is not None:
            if self._firesSeconds <= due:
                return
            self._call.cancel()
        self._arm(delaySeconds, due)

    def stop(self) -> None:
        """
        Do not expire.
        """
        self.dueSeconds = None

    def close(self) -> None:
        """
        Do not expire, and cancel the timer.
        """
        self.dueSeconds = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _fired(self) -> None:
        self._call = None
        due = self.dueSeconds
        if due is None:
            return
        remaining = due - self._clock.seconds()
        if remaining > 0:
            self._arm(remaining, due)
            return
        self.dueSeconds = None
        self._expired()

    def _arm(self, delaySeconds: float, dueSeconds: float) -> None:
        # The call's own getTime may be on another clock than ours.
        self._firesSeconds = dueSeconds
        self._call = self._clock.callLater(delaySeconds, self._fired)
