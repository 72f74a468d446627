# -*- test-case-name: tests.unit.connection.test_debts -*-
"""
For how long clients were told to wait, and whose requests were refused.
"""

from __future__ import annotations

from collections import OrderedDict
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

    @ivar untilSeconds: when it need wait no longer.
    @ivar heldUntilSeconds: until when the first request of a new connection is held back.
    @ivar ip: the address at which it was told so last.
    @ivar policy: the name of the policy that asked for the delay; L{None} if it is not known.
    """

    untilSeconds: float
    heldUntilSeconds: float
    ip: str
    policy: str | None = None


REFUSING_SECONDS = 10.0
"""Requests that are refused with less time between them are counted together."""


@define(eq=False)
class Refusals:
    """
    Requests of a client that were refused one soon after the other, on whatever connections.

    @ivar count: how many.
    @ivar lastSeconds: when the last one was.
    @ivar ip: at which address.
    @ivar policy: the name of the policy that refused it.
    """

    count: int
    lastSeconds: float
    ip: str
    policy: str


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
    The clients that were told to wait, by principal and client id, and likewise those of which requests were refused:
    the last L{MAX_DEBTS} of each.

    @ivar throttled: those that wait on open connections.
    @ivar refusals: those of which requests were refused, the latest last.
    """

    def __init__(self) -> None:
        self.throttled: set[Throttled] = set()
        # In the order in which clients were told, the latest last.  A dict would have to search for its first key.
        self._debts: OrderedDict[tuple[str, str], Debt] = OrderedDict()
        self.refusals: OrderedDict[tuple[str, str], Refusals] = OrderedDict()

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
        A client was told to wait.  Of two delays the one that ends later holds.

        @param policy: the name of the policy that asked for it.
        @param isHeldBack: whether it waits with new connections, too.
        """
        debts = self._debts
        heldUntilSeconds = untilSeconds if isHeldBack else -inf
        before = debts.pop((principal, clientId), None)
        if before is not None:
            heldUntilSeconds = max(heldUntilSeconds, before.heldUntilSeconds)
            if untilSeconds < before.untilSeconds:
                untilSeconds, policy = before.untilSeconds, before.policy
        debts[principal, clientId] = Debt(untilSeconds, heldUntilSeconds, ip, policy)
        if len(debts) > MAX_DEBTS:
            debts.popitem(last=False)

    def refused(self, principal: str, clientId: str, ip: str, now: float, policy: str) -> None:
        """
        A request of a client was refused, for what that client did.

        @param policy: the name of the policy that refused it.
        """
        refusals = self.refusals
        before = refusals.pop((principal, clientId), None)
        count = 1 if before is None or now - before.lastSeconds >= REFUSING_SECONDS else before.count + 1
        refusals[principal, clientId] = Refusals(count, now, ip, policy)
        if len(refusals) > MAX_DEBTS:
            refusals.popitem(last=False)

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
