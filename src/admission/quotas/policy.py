# -*- test-case-name: tests.unit.test_control -*-
"""
What quota policies have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from zope.interface import implementer

from ..interfaces import (
    ADMITTED,
    Decision,
    IQuotaPolicy,
    IReplayable,
    ISensorRegistry,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from .limits import LimitTable
from .metering import Meters


@implementer(IQuotaPolicy)
class QuotaPolicy(ABC):
    """
    A policy of which L{decide} and L{record} are left to be written.  It limits
    somebody from the start, and has no limits that could be set; whoever has
    some sets C{limitNames}, C{limits} and C{isLimiting}, and writes
    L{configure}.
    """

    limitNames: Sequence[str] = ()
    limits: Mapping[QuotaEntity, Mapping[str, float]] = MappingProxyType({})
    isLimiting: bool = True
    isShadow: bool = False

    @abstractmethod
    def decide(self, request: Request, now: float) -> Decision:
        """
        May C{request} go ahead?  Changes nothing: another policy may refuse.
        """

    @abstractmethod
    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Count what an admitted request took.

        @return: for how many seconds the client should wait; zero or more.
        """

    def budgetBytes(self, request: Request, now: float) -> int | None:
        """
        A read may return anything.
        """
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        There are no limits to set.

        @raise ValueError: for any limit, naming it.
        """
        if limits:
            raise ValueError(f"{type(self).__name__} has no limit {', '.join(sorted(limits))}")

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        There are no limits to tell of.
        """
        return ()

    def sweep(self, now: float) -> None:  # noqa: B027
        """
        Nobody is remembered.
        """

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:  # noqa: B027
        """
        Nothing is measured.
        """


@implementer(IReplayable)
class MeteredPolicy(QuotaPolicy):
    """
    A policy that refuses nobody and throttles who is over a limit.  Subclasses
    say what counts: L{record}, and mostly L{replayKey} and L{addSensors}.
    """

    def __init__(
        self,
        limits: LimitTable,
        metered: Sequence[Meters[Any]],
        horizonSeconds: float | None,
        isShadow: bool = False,
    ) -> None:
        """
        @param limits: whom which limit is for.
        @param metered: what clients take of each.
        @param horizonSeconds: see L{IReplayable}.
        """
        self._limits = limits
        self._metered = metered
        self.limitNames = limits.limitNames
        self.limits = limits.limits
        self.horizonSeconds = horizonSeconds
        self.isLimiting = limits.isLimiting
        self.isShadow = isShadow

    def decide(self, request: Request, now: float) -> Decision:
        """
        Every request may go ahead.
        """
        return ADMITTED

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Set or (with L{None}) remove limits of one entity.  What clients have
        taken stays counted.

        @raise ValueError: see L{LimitTable.configure}.
        """
        self._limits.configure(entity, limits)
        self.isLimiting = self._limits.isLimiting
        for metered in self._metered:
            metered.refresh(entity, now)

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        How whoever sends C{request} stands with each limit that they have.
        """
        statuses = [metered.status(request, now) for metered in self._metered]
        return [status for status in statuses if status is not None]

    def sweep(self, now: float) -> None:
        """
        Forget who has been idle.
        """
        for metered in self._metered:
            metered.sweep(now)

    def replayKey(self, request: Request) -> Hashable:
        """
        Who shares a meter; those who share one for lack of room do not count.
        """
        return tuple(metered.keyOf(request) for metered in self._metered)
