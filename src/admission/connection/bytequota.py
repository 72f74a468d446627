# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
The quota of one direction of a connection whose requests are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from twisted.internet.interfaces import IReactorTime

from ..clock import wholeMicroseconds
from ..control import AdmissionControl, Charge
from ..interfaces import NOTHING, Request, Usage
from .deadline import Deadline
from .debts import Debts


class ByteQuota:
    """
    Throttles a client over a quota for as long as the policies say, and asks
    them again before it resumes: the debt may be more than the longest delay, or
    less since a limit was changed.

    @ivar untilSeconds: when the last delay ends or ended.
    @ivar policy: the name of the policy that asked for it.
    """

    __slots__ = (
        "_asked",
        "_control",
        "_deadline",
        "_debts",
        "_holds",
        "_isClosed",
        "_isHolding",
        "_seconds",
        "policy",
        "untilSeconds",
    )

    def __init__(
        self,
        control: AdmissionControl,
        clock: IReactorTime,
        asked: Callable[[int], Request],
        holds: Callable[[bool], None],
        debts: Debts,
    ) -> None:
        """
        @param asked: makes the policies' view of a number of bytes.
        @param holds: called with L{True} when the client is to be throttled,
            and with L{False} when it no longer is.
        @param debts: the clients that wait, which are told when limits change.
        """
        self._control = control
        self._debts = debts
        self._seconds = clock.seconds
        self._asked = asked
        self._holds = holds
        self.untilSeconds = -inf
        self.policy: str | None = None
        self._isHolding = False
        self._isClosed = False
        self._deadline = Deadline(clock, self.ask)

    def count(self, sizeBytes: int, usage: Usage) -> None:
        """
        Count C{sizeBytes}, after L{close}, too.
        """
        if self._control.isLimiting or self._isHolding:
            now = wholeMicroseconds(self._seconds())
            self._follow(self._control.charge(self._asked(sizeBytes), usage, now))

    def ask(self) -> None:
        """
        Do as the policies say now, without counting anything.
        """
        self.count(0, NOTHING)

    def askAgain(self) -> None:
        """
        The same as L{ask}, if the client was throttled before on this connection.
        """
        if self.untilSeconds > -inf:
            self.ask()

    def limitsChanged(self, now: float) -> None:
        """
        The same as L{askAgain}, because other limits hold.
        """
        self.ask()

    def close(self) -> None:
        """
        Throttle nobody any more.
        """
        self._isClosed = True
        self._debts.throttled.discard(self)
        self._deadline.close()

    def _follow(self, charge: Charge) -> None:
        if self._isClosed:
            return
        delaySeconds = charge.delaySeconds
        isHolding = delaySeconds > 0
        if isHolding or self._isHolding:
            self.untilSeconds = self._seconds() + delaySeconds
        if isHolding:
            self.policy = self._control.strictest(charge)
            self._deadline.start(delaySeconds)
        else:
            self._deadline.stop()
        if isHolding != self._isHolding:
            self._isHolding = isHolding
            (self._debts.throttled.add if isHolding else self._debts.throttled.discard)(self)
            self._holds(isHolding)
