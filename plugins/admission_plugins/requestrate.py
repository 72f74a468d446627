# -*- test-case-name: tests.contracts.test_requestrate -*-
"""
How many requests a second, whatever they are and take.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from zope.interface import implementer

from admission.interfaces import (
    ADMITTED,
    DEFAULT,
    Decision,
    IRequestLifecycle,
    ISensorRegistry,
    Outcome,
    PolicyContext,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from admission.quotas.limits import ADDRESS_KINDS, CLIENT_KINDS, LimitTable
from admission.quotas.metering import MAX_METERS, Bucket, Buckets, Meters, byAddress
from admission.quotas.policy import MeteredPolicy
from admission.units import parseRate

from .clientquotas import isRequestOf, parseCount, parseKinds, parseMeters, parseYes

REQUEST_RATE = "request_rate"

EARLY_SECONDS = 0.001
"""
A client that comes back this much too early is admitted, because timers are not finer; what it takes too early it owes.
A replay, which knows less exactly when a request began, then decides the same.
"""


@implementer(IRequestLifecycle)
class RequestRate(MeteredPolicy):
    """
    Requests per second, by user and client id and by address: a request needs a token of each bucket that has a limit.
    It takes them when the work on it begins, so that any number of requests in progress get no more than there are.
    """

    countsParked = True

    def __init__(
        self,
        burstSeconds: float = 1.0,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
        kinds: Collection[str] = (),
    ) -> None:
        """
        @param burstSeconds: how many seconds' worth of requests may come at once, or one request if that is more.
        @param maxMeters: how many clients have meters of their own, and how many addresses.
        @param kinds: of which kinds requests count; see L{isRequestOf}.
        """
        self._kinds = kinds
        limits = LimitTable((REQUEST_RATE,), (*CLIENT_KINDS, *ADDRESS_KINDS))
        algorithm = Buckets(burstSeconds)
        self._ofClients: Meters[Bucket] = Meters(limits, REQUEST_RATE, algorithm.build, maxMeters)
        self._ofAddresses: Meters[Bucket] = Meters(limits, REQUEST_RATE, algorithm.build, maxMeters, byAddress)
        super().__init__(limits, (self._ofClients, self._ofAddresses), algorithm.horizonSeconds, isShadow)

    def decide(self, request: Request, now: float) -> Decision:
        decision = ADMITTED
        for bucket in self._bucketsOf(request, now) if isRequestOf(self._kinds, request) else ():
            delaySeconds = _delaySeconds(bucket, now)
            if delaySeconds > decision.delaySeconds:
                decision = Decision(False, delaySeconds, f"more than {bucket.rate:g} requests a second")
        return decision

    def begun(self, request: Request, now: float) -> None:
        if not isRequestOf(self._kinds, request):
            return
        if self.isShadow and any(_delaySeconds(bucket, now) for bucket in self._bucketsOf(request, now)):
            # It would have been refused, and would not have begun.
            return
        for meters in self._meters:
            meters.spend(request, 1, now)

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        pass

    def record(self, request: Request, usage: Usage, now: float) -> float:
        # It was counted when it began.
        return 0.0

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return [
            QuotaStatus(
                REQUEST_RATE, bucket.limit.value, bucket.limit.entity, bucket.used(now), _delaySeconds(bucket, now)
            )
            for bucket in self._bucketsOf(request, now)
        ]

    def replayKey(self, request: Request) -> Hashable:
        if not isRequestOf(self._kinds, request):
            return None
        isOfAddress = {entity.ip is not None for entity in self.limits}
        if len(isOfAddress) > 1:
            # Clients share the buckets of addresses, and addresses those of clients.
            return ()
        return (self._ofAddresses if isOfAddress == {True} else self._ofClients).keyOf(request)

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Request.request-rate} and so on for clients, and C{NAME.Address.request-rate} for addresses, see
        L{Meters.addSensors}.
        """
        reads = Buckets.reads("request-rate")
        self._ofClients.addSensors(registry, f"{name}.Request", reads)
        self._ofAddresses.addSensors(registry, f"{name}.Address", reads, ("ip",))

    def _bucketsOf(self, request: Request, now: float) -> Iterator[Bucket]:
        for meters in (self._ofClients, self._ofAddresses):
            bucket = meters.find(request, now)
            if bucket is not None:
                yield bucket


def _delaySeconds(bucket: Bucket, now: float) -> float:
    """
    In how many seconds there is a token.
    """
    delaySeconds = (1.0 - bucket.tokens(now)) / bucket.rate
    return delaySeconds if delaySeconds > EARLY_SECONDS else 0.0


def buildRequestRate(
    context: PolicyContext,
    rate: str | None = None,
    burst: str | None = None,
    meters: str | None = None,
    shadow: str = "no",
    kinds: str | None = None,
) -> RequestRate:
    """
    C{requests[:rate=RATE][:burst=NUMBER][:meters=NUMBER][:shadow=yes][:kinds=KIND+KIND...]}.
    """
    perSecond = None if rate is None else parseRate(rate)
    burstSeconds = 1.0
    if burst is not None:
        if not perSecond:
            raise ValueError(f"burst={burst} is how many requests may come at once at the given rate: give rate, too")
        burstSeconds = parseCount("burst", burst) / perSecond
    policy = RequestRate(burstSeconds, parseMeters(meters), parseYes("shadow", shadow), parseKinds(kinds))
    if perSecond is not None:
        policy.configure(QuotaEntity(clientId=DEFAULT), {REQUEST_RATE: perSecond}, context.clock.seconds())
    return policy
