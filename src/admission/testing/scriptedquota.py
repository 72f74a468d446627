# -*- test-case-name: tests.contracts.test_quotacontract -*-
"""
A quota policy that answers as a test says.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from attrs import define, field
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


@implementer(IQuotaPolicy, IReplayable)
@define(eq=False)
class ScriptedQuota:
    """
    Answers as the test says, and records its calls.

    @ivar decision: its decision for every request.
    @ivar budget: how much any client may read.
    @ivar delaySeconds: the delay for every client.
    @ivar failing: the methods that raise L{ZeroDivisionError}.
    @ivar recorded: the requests that were recorded, with their usage.
    @ivar sweeps: how often it was swept.
    @ivar moments: when it was told of requests, swept and configured.
    """

    limitNames: Sequence[str] = ("scripted_rate",)
    isShadow: bool = False
    decision: Decision = ADMITTED
    budget: int | None = None
    delaySeconds: float = 0.0
    failing: frozenset[str] = frozenset()
    recorded: list[tuple[Request, Usage]] = field(factory=list)
    sweeps: int = 0
    moments: list[float] = field(factory=list)
    limits: dict[QuotaEntity, dict[str, float]] = field(factory=dict)
    horizonSeconds: float | None = 0.0

    @property
    def isLimiting(self) -> bool:
        """
        Whether it has been given a limit; its answers do not depend on it.
        """
        return bool(self.limits)

    def decide(self, request: Request, now: float) -> Decision:
        self._fail("decide")
        return self.decision

    def budgetBytes(self, request: Request, now: float) -> int | None:
        self._fail("budgetBytes")
        return self.budget

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Record the request, and return C{delaySeconds}.
        """
        self._fail("record")
        self.moments.append(now)
        self.recorded.append((request, usage))
        return self.delaySeconds

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Store limits of more than zero.

        @raise ValueError: for others.
        """
        self._fail("configure")
        for name, value in limits.items():
            if name not in self.limitNames or (value is not None and not value > 0):
                raise ValueError(f"{name} cannot be {value}")
        self.moments.append(now)
        merged = {**self.limits.pop(entity, {}), **limits}
        left = {name: value for name, value in merged.items() if value is not None}
        if left:
            self.limits[entity] = left

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        All its limits, each half used.
        """
        self._fail("explain")
        return [
            QuotaStatus(name, value, entity, value / 2, self.delaySeconds)
            for entity, values in self.limits.items()
            for name, value in values.items()
        ]

    def sweep(self, now: float) -> None:
        self._fail("sweep")
        self.moments.append(now)
        self.sweeps += 1

    def replayKey(self, request: Request) -> Hashable:
        """
        A different key for each client.
        """
        return (request.principal, request.clientId, request.peer)

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        registry.addGauge(f"{name}.sweeps", lambda now: self.sweeps)

    def _fail(self, method: str) -> None:
        if method in self.failing:
            raise ZeroDivisionError("as scripted")
