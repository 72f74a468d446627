# -*- test-case-name: tests.contracts.test_connectionrate -*-
"""
How many connections each address may open (KIP-612).
"""

from __future__ import annotations

from collections.abc import Hashable

from admission.interfaces import CONNECTION, DEFAULT, ISensorRegistry, PolicyContext, QuotaEntity, Request, Usage
from admission.quotas.limits import ADDRESS_KINDS, LimitTable
from admission.quotas.metering import MAX_METERS, Buckets, Meters, byAddress
from admission.quotas.policy import MeteredPolicy
from admission.units import parseRate

from .quotaarguments import parseDuration, parseMeters, parseYes

CONNECTION_CREATION_RATE = "connection_creation_rate"


class ConnectionRate(MeteredPolicy):
    """
    Connections per second, by address.  Those beyond the limit are to be throttled, and count all the same.
    """

    def __init__(
        self,
        burstSeconds: float,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
    ) -> None:
        """
        @param burstSeconds: how many seconds' worth of connections may come at
            once, or one connection if that is more.
        @param maxMeters: how many addresses are told apart.
        """
        limits = LimitTable((CONNECTION_CREATION_RATE,), ADDRESS_KINDS)
        algorithm = Buckets(burstSeconds)
        self._algorithm = algorithm
        self._opened = Meters(limits, CONNECTION_CREATION_RATE, algorithm.build, maxMeters, byAddress)
        super().__init__(limits, (self._opened,), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Count a connection that was opened.
        """
        return self._opened.spend(request, usage.connections, now) if request.kind == CONNECTION else 0.0

    def replayKey(self, request: Request) -> Hashable:
        """
        The address.
        """
        return self._opened.keyOf(request) if request.kind == CONNECTION else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Connection.connection-creation-rate} and so on, see
        L{Meters.addSensors}.
        """
        self._opened.addSensors(
            registry, f"{name}.Connection", self._algorithm.reads("connection-creation-rate"), ("ip",)
        )


def buildConnectionRate(
    context: PolicyContext,
    perSecond: str | None = None,
    burst: str = "1s",
    meters: str | None = None,
    shadow: str = "no",
) -> ConnectionRate:
    """
    C{connections[:perSecond=RATE][:burst=TIME][:meters=NUMBER][:shadow=yes]}.
    """
    policy = ConnectionRate(parseDuration("burst", burst), parseMeters(meters), parseYes("shadow", shadow))
    if perSecond is not None:
        policy.configure(
            QuotaEntity(ip=DEFAULT), {CONNECTION_CREATION_RATE: parseRate(perSecond)}, context.clock.seconds()
        )
    return policy
