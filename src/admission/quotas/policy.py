# -*- test-case-name: tests.test_clientquota -*-
"""
What policies with metered limits have in common.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ..interfaces import ADMITTED, Decision, QuotaEntity, QuotaStatus, Request
from .limits import LimitTable
from .metered import MeteredLimit


class MeteredPolicy:
    """
    Most of an L{admission.interfaces.IQuotaPolicy} that refuses nobody and holds
    back who is over a limit.  Subclasses say what counts: C{record}, C{replayKey}
    and C{addSensors}.

    @ivar limitNames: see L{admission.interfaces.IQuotaPolicy}, like all that follow.
    """

    def __init__(
        self,
        limits: LimitTable,
        metered: Sequence[MeteredLimit],
        horizonSeconds: float | None,
        isShadow: bool = False,
    ) -> None:
        """
        @param limits: whom which limit is for.
        @param metered: what clients take of each.
        """
        self._limits = limits
        self._metered = metered
        self.limitNames: Sequence[str] = limits.limitNames
        self.limits: Mapping[QuotaEntity, Mapping[str, float]] = limits.limits
        self.horizonSeconds = horizonSeconds
        self.isShadow = isShadow

    @property
    def isLimiting(self) -> bool:
        """
        Whether it limits anybody.
        """
        return bool(self.limits)

    def decide(self, request: Request) -> Decision:
        """
        Every request may go ahead.
        """
        return ADMITTED

    def budgetBytes(self, request: Request) -> int | None:
        """
        A read may return anything.
        """
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None]) -> None:
        """
        Set or (with L{None}) remove limits of one entity.  What clients have
        taken stays counted.

        @raise ValueError: see L{LimitTable.configure}.
        """
        self._limits.configure(entity, limits)
        for metered in self._metered:
            metered.refresh(entity)

    def explain(self, request: Request) -> Sequence[QuotaStatus]:
        """
        How whoever sends C{request} stands with each limit that they have.
        """
        statuses = [metered.status(request) for metered in self._metered]
        return [status for status in statuses if status is not None]

    def sweep(self) -> None:
        """
        Forget who has been idle.
        """
        for metered in self._metered:
            metered.sweep()

    def replayKey(self, request: Request) -> Hashable:
        """
        Who shares a meter; those who share one for lack of room do not count.
        """
        return tuple(metered.keyOf(request) for metered in self._metered)
