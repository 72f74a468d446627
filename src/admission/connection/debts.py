# -*- test-case-name: tests.unit.connection.test_debts -*-
"""
For how long clients were told to wait.
"""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from math import inf
from typing import Protocol

from attrs import define

from ..interfaces import QuotaEntity

MAX_DEBTS = 10_000
"""How many of the clients that were told to wait are remembered."""


@define(eq=False)
class Debt:
    """
    What a client was told to wait, on whatever connection, also if it has left since.

    @ivar untilSeconds: the end of its last delay.
    @ivar heldUntilSeconds: until when the first request of a new connection is held back.
    @ivar ip: the address at which it was told so last.
    @ivar policy: the name of the policy that asked for the delay; L{None} if it is not known.
    """

    untilSeconds: float
    heldUntilSeconds: float
    ip: str
    policy: str | None = None


class Throttled(Protocol):
    """
    The connection of a client that waits.
    """

    def limitsChanged(self, now: float) -> None:
        """
        Shorten its delay to what the limits that now hold ask for.
        """


class Debts:
    """
    The clients that were told to wait, by principal and client id: the last L{MAX_DEBTS} of them.

    @ivar throttled: those that wait on open connections.
    """

    def __init__(self) -> None:
        self.throttled: set[Throttled] = set()
        # In the order in which clients were told, the latest last.
        self._debts: dict[tuple[str, str], Debt] = {}

    def owes(
        self,
        principal: str,
        clientId: str,
        ip: str,
        untilSeconds: float,
        policy: str | None = None,
        isHeldBack: bool = False,
    ) -> None:
        """
        A client was told to wait.

        @param policy: the name of the policy that asked for it.
        @param isHeldBack: whether it waits with new connections, too.
        """
        debts = self._debts
        before = debts.pop((principal, clientId), None)
        heldUntilSeconds = untilSeconds if isHeldBack else -inf if before is None else before.heldUntilSeconds
        debts[principal, clientId] = Debt(untilSeconds, heldUntilSeconds, ip, policy)
        if len(debts) > MAX_DEBTS:
            del debts[next(iter(debts))]

    def heldSeconds(self, principal: str, clientId: str, now: float) -> float:
        """
        For how long a new connection of a client is held back; not positive if it is not.
        """
        debt = self._debts.get((principal, clientId))
        return 0.0 if debt is None else debt.heldUntilSeconds - now

    def policyOf(self, principal: str, clientId: str) -> str | None:
        """
        The name of the policy for which a client was last told to wait, if that is known.
        """
        debt = self._debts.get((principal, clientId))
        return None if debt is None else debt.policy

    def configured(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Called by the control, see L{AdmissionControl.whenConfigured}.
        """
        self.limitsChanged(now)

    def limitsChanged(self, now: float) -> None:
        """
        Other limits hold: clients wait no longer than these ask for, and what they owed by the former limits is
        forgotten.

        @param now: in whole microseconds.
        """
        self._debts.clear()
        for each in list(self.throttled):
            each.limitsChanged(now)

    def items(self) -> ItemsView[tuple[str, str], Debt]:
        """
        The debts by principal and client id, paid ones included.
        """
        return self._debts.items()
