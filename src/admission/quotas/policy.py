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
    IAccountable,
    IAliasedLimits,
    IQuotaPolicy,
    IReplayable,
    IRequestLifecycle,
    ISensorRegistry,
    Outcome,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from .limits import LimitTable
from .metering import Meters


def limitsByName(policy: IQuotaPolicy) -> dict[str, str]:
    """
    What C{policy} calls each of its limits, by that name and by all aliases.
    """
    aliases = IAliasedLimits(policy).limitAliases if IAliasedLimits.providedBy(policy) else {}
    return {**aliases, **{name: name for name in policy.limitNames}}


def enforceShare(policy: IQuotaPolicy, share: float, now: float) -> None:
    """
    Have a new policy enforce a part of each limit that it was built with: several servers enforce the limit together.

    @raise ValueError: if it refuses one.
    """
    for entity, limits in list(policy.limits.items()):
        policy.configure(entity, {name: limit * share for name, limit in limits.items()}, now)


@implementer(IQuotaPolicy)
class QuotaPolicy(ABC):
    """
    A policy of which L{decide} and L{record} are left to be written.  It limits
    clients from the start, lets a read return anything, remembers nobody and
    publishes nothing.  It has no limits to set; a policy that has some sets
    C{limitNames} and C{limits}, and writes L{configure}.
    """

    limitNames: Sequence[str] = ()
    limits: Mapping[QuotaEntity, Mapping[str, float]] = MappingProxyType({})
    isShadow: bool = False

    @property
    def isLimiting(self) -> bool:
        """
        Whether it has no limits to set, or some are set.
        """
        return not self.limitNames or bool(self.limits)

    @abstractmethod
    def decide(self, request: Request, now: float) -> Decision: ...

    @abstractmethod
    def record(self, request: Request, usage: Usage, now: float) -> float: ...

    def budgetBytes(self, request: Request, now: float) -> int | None:
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        @raise ValueError: for any limit, naming it.
        """
        if limits:
            raise ValueError(f"{type(self).__name__} has no limit {', '.join(sorted(limits))}")

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return ()

    def sweep(self, now: float) -> None:  # noqa: B027
        pass

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:  # noqa: B027
        pass


@implementer(IRequestLifecycle)
class LifecyclePolicy(QuotaPolicy):
    """
    A policy that follows requests and charges nothing for them.  L{decide <QuotaPolicy.decide>},
    L{begun} and L{ended} are left to be written.
    """

    countsParked: bool = True

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0

    @abstractmethod
    def begun(self, request: Request, now: float) -> None: ...

    @abstractmethod
    def ended(self, request: Request, outcome: Outcome, now: float) -> None: ...


@implementer(IReplayable, IAccountable)
class MeteredPolicy(QuotaPolicy):
    """
    A policy that refuses nobody and throttles clients over a limit.  Subclasses
    say what counts: L{record <QuotaPolicy.record>}, and mostly L{replayKey} and L{addSensors}.
    """

    def __init__(
        self,
        limits: LimitTable,
        meters: Sequence[Meters[Any]],
        horizonSeconds: float | None,
        isShadow: bool = False,
    ) -> None:
        """
        @param limits: who has which limit.
        @param meters: what clients take of each.
        @param horizonSeconds: see L{IReplayable}.
        """
        self._limits = limits
        self._meters = meters
        self.limitNames = limits.limitNames
        self.limits = limits.limits
        self.horizonSeconds = horizonSeconds
        self.isShadow = isShadow

    @property
    def isLimiting(self) -> bool:
        return self._limits.isLimiting

    @property
    def sizeBytes(self) -> int:
        return sum(meters.sizeBytes for meters in self._meters)

    def decide(self, request: Request, now: float) -> Decision:
        return ADMITTED

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        self._limits.configure(entity, limits)
        for meters in self._meters:
            meters.refresh(entity, now)

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        statuses = [meters.status(request, now) for meters in self._meters]
        return [status for status in statuses if status is not None]

    def sweep(self, now: float) -> None:
        for meters in self._meters:
            meters.sweep(now)

    def replayKey(self, request: Request) -> Hashable:
        return tuple(meters.keyOf(request) for meters in self._meters)
