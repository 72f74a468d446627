# -*- test-case-name: tests.contracts.test_requesttime -*-
"""
How much of the server's time each client may take (KIP-124).
"""

from __future__ import annotations

from collections.abc import Hashable

from admission.interfaces import CONNECTION, DEFAULT, ISensorRegistry, PolicyContext, QuotaEntity, Request, Usage
from admission.quotas.limits import LimitTable
from admission.quotas.metering import MAX_METERS, Meters, Windows
from admission.quotas.policy import MeteredPolicy

from .quotaarguments import parseMeters, parseYes

REQUEST_PERCENTAGE = "request_percentage"


class RequestTime(MeteredPolicy):
    """
    Percent of one thread's time, by user and client id, for requests of every
    kind.  A client is throttled for no longer than one window at a time, as
    Kafka does it: who is over its share is slowed down, not shut out.
    """

    def __init__(
        self,
        samples: int,
        windowSeconds: float,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
    ) -> None:
        """
        @param samples: how many windows the share is taken over.
        @param windowSeconds: the length of one.
        @param maxMeters: how many clients are told apart.
        """
        limits = LimitTable((REQUEST_PERCENTAGE,))
        algorithm = Windows(samples, windowSeconds, maxDelaySeconds=windowSeconds)
        self._algorithm = algorithm
        self._used = Meters(limits, REQUEST_PERCENTAGE, algorithm.build, maxMeters)
        super().__init__(limits, (self._used,), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Count the time that was spent on a request.
        """
        if request.kind == CONNECTION:
            return 0.0
        return self._used.spend(request, usage.serviceSeconds * 100, now)

    def budgetBytes(self, request: Request, now: float) -> int | None:
        """
        Nothing for who has had more than its share, else anything.
        """
        return 0 if request.kind != CONNECTION and self._used.delaySeconds(request, now) else None

    def replayKey(self, request: Request) -> Hashable:
        """
        Who shares a meter.
        """
        return None if request.kind == CONNECTION else self._used.keyOf(request)

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Request.request-time} and so on, see
        L{Meters.addSensors}.
        """
        self._used.addSensors(registry, f"{name}.Request", self._algorithm.reads("request-time"))


def buildRequestTime(
    context: PolicyContext, percent: str | None = None, meters: str | None = None, shadow: str = "no"
) -> RequestTime:
    """
    C{request-time[:percent=NUMBER][:meters=NUMBER][:shadow=yes]}.
    """
    policy = RequestTime(
        context.quotaWindows,
        context.quotaWindowSeconds,
        parseMeters(meters),
        parseYes("shadow", shadow),
    )
    if percent is not None:
        try:
            percentage = float(percent)
        except ValueError:
            raise ValueError(f"percent={percent}: write a number; 100 is all of one thread") from None
        policy.configure(QuotaEntity(clientId=DEFAULT), {REQUEST_PERCENTAGE: percentage}, context.clock.seconds())
    return policy
