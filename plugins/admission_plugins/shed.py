# -*- test-case-name: tests.contracts.test_shed -*-
"""
Refuses what can wait first, while the server has too much to do.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from math import inf

from zope.interface import implementer

from admission.interfaces import (
    ADMITTED,
    Decision,
    IReplayable,
    ISensorRegistry,
    Outcome,
    PolicyContext,
    QuotaEntity,
    QuotaStatus,
    Request,
)
from admission.quotas.policy import LifecyclePolicy

from .clientquotas import parseCount, parseDuration, parseKinds, parseNames, parseYes
from .concurrency import CONCURRENT_REQUESTS, FORGET_SECONDS, MAX_REQUESTS, START, AdaptiveLimit

LAG_SECONDS = 0.1
"""How late a request may be, unless told otherwise."""

FREE_SHARE = 0.2
"""Which part of the memory pool is to be free, unless told otherwise."""

RETRY_SECONDS = 1.0
"""After which time what was refused may come again."""

LAG = "lag_seconds"
POOL_USED = "pool_used_share"


@implementer(IReplayable)
class Shedding(LifecyclePolicy):
    """
    Refuses requests of some kinds, and of some clients, that come late, or while the memory pool is short, or more
    requests are in progress than keep them fast.  All others go on.
    """

    horizonSeconds: float | None = None

    def __init__(
        self,
        kinds: Collection[str] = (),
        clients: Collection[str] = (),
        maxLagSeconds: float = inf,
        minFreeShare: float = -inf,
        adaptive: AdaptiveLimit | None = None,
        isShadow: bool = False,
    ) -> None:
        """
        @param kinds: the kinds of requests that can wait.
        @param clients: the users and client ids of which all requests can.
        @param maxLagSeconds: how late they may be, see L{Request}, before they have to.
        @param minFreeShare: how much of the memory pool is to be free, or they have to.
        @param adaptive: how many requests of all kinds may be in progress, or they have to.
        """
        self.isShadow = isShadow
        self._kinds = kinds
        self._clients = clients
        self._maxLagSeconds = maxLagSeconds
        self._minFreeShare = minFreeShare
        self._adaptive = adaptive
        self._running = 0
        # The last request that it was asked about, for explanations.
        self._lagSeconds, self._freeShare = 0.0, 1.0

    def canWait(self, request: Request) -> bool:
        """
        Whether C{request} may be refused.
        """
        return request.traits.isRequest and (
            request.kind in self._kinds or request.clientId in self._clients or request.principal in self._clients
        )

    def decide(self, request: Request, now: float) -> Decision:
        self._lagSeconds, self._freeShare = request.lagSeconds, request.poolFreeShare
        if self.canWait(request):
            for status, reason in self._statuses(now):
                if status.delaySeconds:
                    return Decision(False, RETRY_SECONDS, reason, isForAll=True)
        return ADMITTED

    def begun(self, request: Request, now: float) -> None:
        if self._counts(request):
            self._running += 1

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        if self._counts(request):
            if self._adaptive is not None:
                tookSeconds = outcome.serviceSeconds + outcome.parkedSeconds
                self._adaptive.requestEnded(tookSeconds, self._running, now)
            self._running -= 1

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return [status for status, _ in self._statuses(now)]

    def replayKey(self, request: Request) -> Hashable:
        if self._adaptive is not None:
            # Whatever is in progress counts.
            return () if request.traits.isRequest else None
        return (request.kind, request.principal, request.clientId) if self.canWait(request) else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.running} and C{NAME.limit} where it is adaptive: how many requests are in progress, and may be.
        """
        if self._adaptive is not None:
            registry.addGauge(f"{name}.running", lambda now: self._running)
            registry.addGauge(f"{name}.limit", self._limit)

    def _counts(self, request: Request) -> bool:
        return request.traits.isRequest and not request.traits.waitsForOthers

    def _limit(self, now: float) -> float:
        adaptive = self._adaptive
        assert adaptive is not None
        return adaptive.limit if now - adaptive.usedSeconds < FORGET_SECONDS else float(START)

    def _statuses(self, now: float) -> Iterator[tuple[QuotaStatus, str]]:
        """
        What it goes by, and why a request that can wait is refused for it.
        """
        everybody = QuotaEntity()
        if self._maxLagSeconds < inf:
            lagSeconds, mostSeconds = self._lagSeconds, self._maxLagSeconds
            delaySeconds = RETRY_SECONDS if lagSeconds > mostSeconds else 0.0
            reason = f"it is {lagSeconds:.3f} s late, and what can wait is refused beyond {mostSeconds:g} s"
            yield QuotaStatus(LAG, mostSeconds, everybody, lagSeconds, delaySeconds), reason
        if self._minFreeShare > -inf:
            delaySeconds = RETRY_SECONDS if self._freeShare < self._minFreeShare else 0.0
            free, least = self._freeShare * 100, self._minFreeShare * 100
            reason = f"{free:.0f} % of the memory pool is free, and what can wait is refused below {least:g} %"
            status = QuotaStatus(POOL_USED, 1 - self._minFreeShare, everybody, 1 - self._freeShare, delaySeconds)
            yield status, reason
        if self._adaptive is not None:
            limit = self._limit(now)
            delaySeconds = RETRY_SECONDS if self._running >= limit else 0.0
            reason = f"{self._running} requests are in progress, and what can wait is refused at {limit:.0f}"
            yield QuotaStatus(CONCURRENT_REQUESTS, limit, everybody, float(self._running), delaySeconds), reason


def buildShedding(
    context: PolicyContext,
    kinds: str | None = None,
    clients: str | None = None,
    lag: str | None = None,
    free: str | None = None,
    target: str | None = None,
    max: str | None = None,
    shadow: str = "no",
) -> Shedding:
    """
    C{shed:kinds=KIND+KIND...|clients=NAME+NAME...[:lag=TIME][:free=PERCENT][:target=TIME[:max=NUMBER]][:shadow=yes]}.
    """
    whichKinds = parseKinds(kinds)
    whichClients = parseNames("clients", clients, "users and client ids", "crawler+backup")
    if not (whichKinds or whichClients):
        raise ValueError("say what can wait: kinds=report+export, or clients=crawler, or both")
    if max is not None and target is None:
        raise ValueError(f"max={max} goes with target only, which says how fast requests are to be")
    isUsual = lag is None and free is None and target is None
    maxLagSeconds = LAG_SECONDS if isUsual else inf if lag is None else parseDuration("lag", lag)
    minFreeShare = FREE_SHARE if isUsual else -inf if free is None else _parseShare("free", free)
    adaptive = None
    if target is not None:
        maxRequests = MAX_REQUESTS if max is None else parseCount("max", max)
        adaptive = AdaptiveLimit(parseDuration("target", target), maxRequests)
    return Shedding(whichKinds, whichClients, maxLagSeconds, minFreeShare, adaptive, parseYes("shadow", shadow))


def _parseShare(name: str, text: str) -> float:
    percent = parseCount(name, text.removesuffix("%"))
    if percent >= 100:
        raise ValueError(f"{name}={text}: write a part of the memory pool below all of it, as in {name}=20%")
    return percent / 100
