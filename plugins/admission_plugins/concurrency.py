# -*- test-case-name: tests.contracts.test_concurrency -*-
"""
How many requests may be in progress at a time: a fixed number, or as many as keep them fast.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from math import inf
from sys import getsizeof

from zope.interface import implementer

from admission.interfaces import (
    ADMITTED,
    DEFAULT,
    Decision,
    IAccountable,
    IReplayable,
    ISensorRegistry,
    Outcome,
    Places,
    PolicyContext,
    QuotaEntity,
    QuotaStatus,
    Request,
)
from admission.quotas.limits import EntityKey, LimitTable
from admission.quotas.policy import LifecyclePolicy

from .clientquotas import isRequestOf, parseCount, parseDuration, parseKinds, parseYes

CONCURRENT_REQUESTS = "concurrent_requests"

RETRY_SECONDS = 0.1
"""After which time a refused client may ask again."""

EVERYBODY: EntityKey = ()
"""The key under which all requests in progress are counted."""

START = 20
"""An adaptive limit before anything is known."""

WAIT_SECONDS = 2.0
"""How long a request may wait in a queue, unless told otherwise."""

TARGET_SECONDS = 0.1
"""How long a request may take under an adaptive limit, unless told otherwise."""

MAX_REQUESTS = 1000
"""What an adaptive limit grows to at most, unless told otherwise."""

DECREASE = 0.9
"""What remains of an adaptive limit when requests are slow."""

FORGET_SECONDS = 60.0
"""After this time without a request what an adaptive limit has learnt may be wrong, and it begins anew."""

MAX_CLIENTS = 10_000
"""How many clients have adaptive limits of their own; a client that comes back after as many others begins anew."""

_CLIENT_BYTES = 350
"""About what a client takes with its place in a table, without its names."""


@implementer(IReplayable, IAccountable)
class ConcurrencyPolicy(LifecyclePolicy):
    """
    Refuses requests while too many are in progress.  Those that wait for a disk or for another server are in progress;
    those that wait for other clients are not.
    """

    horizonSeconds: float | None = None

    def __init__(self, isShadow: bool = False, places: Places | None = None, kinds: Collection[str] = ()) -> None:
        """
        @param places: how requests may wait for others to end, if they may.
        @param kinds: of which kinds requests count; see L{isRequestOf}.
        """
        self.isShadow = isShadow
        self.places = places
        self._kinds = kinds
        # How many by key, from their beginning to their end.
        self._running: dict[EntityKey, int] = {}

    @property
    def sizeBytes(self) -> int:
        return len(self._running) * _CLIENT_BYTES

    def counts(self, request: Request) -> bool:
        """
        Whether a request counts while it is in progress.
        """
        return isRequestOf(self._kinds, request) and not request.traits.waitsForOthers

    @abstractmethod
    def keysOf(self, request: Request) -> Sequence[EntityKey]:
        """
        The keys under which a request counts, whatever limits are in force.
        """

    @abstractmethod
    def limitsOf(self, request: Request, now: float) -> Iterator[tuple[EntityKey, float, QuotaEntity]]:
        """
        The limits that hold for a request, the widest first: under which key it counts, how many there may be, and for
        whom that was set.
        """

    def decide(self, request: Request, now: float) -> Decision:
        if self.counts(request):
            for key, limit, _ in self.limitsOf(request, now):
                running = self._running.get(key, 0)
                if running >= limit:
                    isForAll = key == EVERYBODY
                    whose = "all clients" if isForAll else "this client"
                    reason = f"{running} requests of {whose} are in progress, and {limit:.0f} may be"
                    return Decision(False, RETRY_SECONDS, reason, places=self.places, isForAll=isForAll)
        return ADMITTED

    def begun(self, request: Request, now: float) -> None:
        if self.counts(request):
            running = self._running
            for key in self.keysOf(request):
                running[key] = running.get(key, 0) + 1

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        if self.counts(request):
            running = self._running
            for key in self.keysOf(request):
                running[key] -= 1
                if not running[key]:
                    del running[key]

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return [
            QuotaStatus(
                CONCURRENT_REQUESTS,
                limit,
                entity,
                float(self._running.get(key, 0)),
                RETRY_SECONDS if self._running.get(key, 0) >= limit else 0.0,
            )
            for key, limit, entity in self.limitsOf(request, now)
        ]

    def replayKey(self, request: Request) -> Hashable:
        # Which limits hold does not depend on the time, only what they are.
        keys = [key for key, _, _ in self.limitsOf(request, 0.0)]
        return keys[0] if keys and self.counts(request) else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.running}: how many requests are in progress.
        """
        registry.addGauge(f"{name}.running", lambda now: self._running.get(EVERYBODY, 0))


class FixedConcurrency(ConcurrencyPolicy):
    """
    A fixed number of requests for each client, and one for all together.
    """

    def __init__(
        self,
        total: int | None = None,
        isShadow: bool = False,
        places: Places | None = None,
        kinds: Collection[str] = (),
    ) -> None:
        """
        @param total: how many requests of all clients may be in progress; L{None} for any number.
        @param places: how others may wait, if they may.
        """
        super().__init__(isShadow, places, kinds)
        self._total = total
        self._limits = LimitTable((CONCURRENT_REQUESTS,))
        self.limitNames = self._limits.limitNames
        self.limits = self._limits.limits

    @property
    def isLimiting(self) -> bool:
        return self._total is not None or self._limits.isLimiting

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        self._limits.configure(entity, limits)

    def keysOf(self, request: Request) -> Sequence[EntityKey]:
        user, clientId = request.principal, request.clientId
        return EVERYBODY, (user, None), (None, clientId), (user, clientId)

    def limitsOf(self, request: Request, now: float) -> Iterator[tuple[EntityKey, float, QuotaEntity]]:
        if self._total is not None:
            yield EVERYBODY, self._total, QuotaEntity()
        limit = self._limits.resolve(request.principal, request.clientId, CONCURRENT_REQUESTS)
        if limit is not None:
            user = None if limit.entity.user is None else request.principal
            clientId = None if limit.entity.clientId is None else request.clientId
            yield (user, clientId), limit.value, limit.entity


class AdaptiveLimit:
    """
    Additive increase and multiplicative decrease (Chiu and Jain, Analysis of the increase and decrease algorithms for
    congestion avoidance, 1989): a little more while requests are fast and the limit is in use, a tenth less when one is
    slow.

    @ivar limit: how many requests may be in progress.
    @ivar usedSeconds: when a request last ended.
    """

    __slots__ = ("_cutSeconds", "_maxRequests", "_targetSeconds", "limit", "usedSeconds")

    def __init__(self, targetSeconds: float, maxRequests: int) -> None:
        self.limit = float(START)
        self.usedSeconds = self._cutSeconds = -inf
        self._targetSeconds = targetSeconds
        self._maxRequests = maxRequests

    def requestEnded(self, tookSeconds: float, running: int, now: float) -> None:
        """
        @param running: how many were in progress, with this one.
        """
        self.usedSeconds = now
        if tookSeconds > self._targetSeconds:
            # Those that began before a cut tell nothing about it.
            if now - tookSeconds >= self._cutSeconds:
                self._cutSeconds = now
                self.limit = max(self.limit * DECREASE, 1.0)
        elif running >= self.limit / 2:
            self.limit = min(self.limit + 1 / self.limit, self._maxRequests)


class AdaptiveConcurrency(ConcurrencyPolicy):
    """
    As many requests as keep them faster than a target, in all or of each client.
    """

    def __init__(
        self,
        targetSeconds: float = TARGET_SECONDS,
        maxRequests: int = MAX_REQUESTS,
        isByClient: bool = False,
        isShadow: bool = False,
        places: Places | None = None,
        kinds: Collection[str] = (),
    ) -> None:
        """
        @param targetSeconds: how long a request may take, from its beginning to its answer.
        @param maxRequests: the most that the limit grows to.
        @param isByClient: whether each user with each client id has a limit of its own.
        @param places: how others may wait, if they may.
        """
        super().__init__(isShadow, places, kinds)
        self._targetSeconds = targetSeconds
        self._maxRequests = maxRequests
        self._isByClient = isByClient
        # The client whose last request ended longest ago comes first.
        self._adaptive: OrderedDict[EntityKey, AdaptiveLimit] = OrderedDict()
        self._nameBytes = 0

    @property
    def sizeBytes(self) -> int:
        return super().sizeBytes + len(self._adaptive) * _CLIENT_BYTES + self._nameBytes

    def keysOf(self, request: Request) -> Sequence[EntityKey]:
        return (EVERYBODY, (request.principal, request.clientId)) if self._isByClient else (EVERYBODY,)

    def limitsOf(self, request: Request, now: float) -> Iterator[tuple[EntityKey, float, QuotaEntity]]:
        key = self.keysOf(request)[-1]
        adaptive = self._adaptive.get(key)
        limit = float(START)
        if adaptive is not None and now - adaptive.usedSeconds < FORGET_SECONDS:
            limit = adaptive.limit
        yield key, limit, QuotaEntity(user=DEFAULT, clientId=DEFAULT) if self._isByClient else QuotaEntity()

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        if not self.counts(request):
            return
        self.sweep(now)
        key = self.keysOf(request)[-1]
        adaptive = self._adaptive.get(key)
        if adaptive is None:
            if len(self._adaptive) >= MAX_CLIENTS:
                self._forgetFirst()
            adaptive = self._adaptive[key] = AdaptiveLimit(self._targetSeconds, self._maxRequests)
            self._nameBytes += sum(map(getsizeof, key))
        self._adaptive.move_to_end(key)
        tookSeconds = outcome.serviceSeconds + outcome.parkedSeconds
        adaptive.requestEnded(tookSeconds, self._running[key], now)
        super().ended(request, outcome, now)

    def sweep(self, now: float) -> None:
        while self._adaptive and now - next(iter(self._adaptive.values())).usedSeconds >= FORGET_SECONDS:
            self._forgetFirst()

    def _forgetFirst(self) -> None:
        key, _ = self._adaptive.popitem(last=False)
        self._nameBytes -= sum(map(getsizeof, key))

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.limit}, too: the limit, or the lowest of all clients.
        """
        super().addSensors(registry, name)
        registry.addGauge(
            f"{name}.limit", lambda now: min((each.limit for each in self._adaptive.values()), default=float(START))
        )


def buildConcurrency(
    context: PolicyContext,
    mode: str = "fixed",
    limit: str | None = None,
    total: str | None = None,
    target: str | None = None,
    by: str | None = None,
    max: str | None = None,
    queue: str | None = None,
    wait: str | None = None,
    shadow: str = "no",
    kinds: str | None = None,
) -> ConcurrencyPolicy:
    """
    C{concurrency[:limit=NUMBER][:total=NUMBER][:queue=NUMBER[:wait=TIME]][:shadow=yes][:kinds=KIND+KIND...]} or
    C{concurrency:adaptive[:target=TIME][:by=all|client][:max=NUMBER][:queue=NUMBER[:wait=TIME]][:shadow=yes]
    [:kinds=KIND+KIND...]}.
    """
    given = {"limit": limit, "total": total, "target": target, "by": by, "max": max}
    isShadow = parseYes("shadow", shadow)
    places, counted = _places(queue, wait, isShadow), parseKinds(kinds)
    if mode == "adaptive":
        _refuse(given, ("limit", "total"), "does not go with adaptive, whose limit is max at most")
        if by not in (None, "all", "client"):
            raise ValueError(f"by={by}: say all or client")
        return AdaptiveConcurrency(
            TARGET_SECONDS if target is None else parseDuration("target", target),
            MAX_REQUESTS if max is None else parseCount("max", max),
            by == "client",
            isShadow,
            places,
            counted,
        )
    if mode != "fixed":
        raise ValueError(f"{mode}: say adaptive, or give a limit, as in limit=100")
    _refuse(given, ("target", "by", "max"), "goes with adaptive only")
    policy = FixedConcurrency(None if total is None else parseCount("total", total), isShadow, places, counted)
    if limit is not None:
        amount = float(parseCount("limit", limit))
        policy.configure(QuotaEntity(clientId=DEFAULT), {CONCURRENT_REQUESTS: amount}, context.clock.seconds())
    return policy


def _places(queue: str | None, wait: str | None, isShadow: bool) -> Places | None:
    if queue is None:
        if wait is not None:
            raise ValueError(f"wait={wait} goes with queue only, which says how many may wait")
        return None
    if isShadow:
        raise ValueError(f"queue={queue} does not go with shadow=yes, which lets nobody wait")
    waitSeconds = WAIT_SECONDS if wait is None else parseDuration("wait", wait)
    return Places(parseCount("queue", queue), waitSeconds)


def _refuse(given: Mapping[str, str | None], names: Sequence[str], why: str) -> None:
    for name in names:
        if given[name] is not None:
            raise ValueError(f"{name}={given[name]} {why}")
