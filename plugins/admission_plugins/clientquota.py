# -*- test-case-name: tests.contracts.test_clientquota -*-
"""
How many bytes a second each client may send and receive (KIP-13).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from admission.interfaces import DEFAULT, RECEIVED, SENT, ISensorRegistry, PolicyContext, QuotaEntity, Request, Usage
from admission.quotas.limits import LimitTable
from admission.quotas.metering import MAX_METERS, Algorithm, Buckets, Meters, Windows
from admission.quotas.policy import MeteredPolicy
from admission.units import parseRate

from .quotaarguments import parseCount, parseDuration, parseMeters, parseYes

PRODUCE = "Produce"
FETCH = "Fetch"

_PRODUCING = (PRODUCE, RECEIVED)
_FETCHING = (FETCH, SENT)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"


class ClientBytes(MeteredPolicy):
    """
    Bytes per second, by user and client id: of Produce requests those that
    were received, of Fetch requests those that were sent.  Of connections
    without requests, which are L{RECEIVED} and L{SENT}, all that were received
    count with the former and all that were sent with the latter.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
    ) -> None:
        """
        @param algorithm: makes the meters.
        @param maxMeters: how many clients are told apart, for each of the two.
        """
        limits = LimitTable((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE))
        self._algorithm = algorithm
        self._produced: Meters[Any] = Meters(limits, PRODUCER_BYTE_RATE, algorithm.build, maxMeters)
        self._fetched: Meters[Any] = Meters(limits, CONSUMER_BYTE_RATE, algorithm.build, maxMeters)
        super().__init__(limits, (self._produced, self._fetched), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Count the bytes of a Produce or a Fetch, or those that count as such.
        """
        if request.kind in _PRODUCING:
            return self._produced.spend(request, usage.requestBytes, now)
        if request.kind in _FETCHING:
            return self._fetched.spend(request, usage.responseBytes, now)
        return 0.0

    def budgetBytes(self, request: Request, now: float) -> int | None:
        """
        What a Fetch may return without going over the limit.
        """
        return self._fetched.budget(request, now) if request.kind == FETCH else None

    def replayKey(self, request: Request) -> Hashable:
        """
        Who shares a meter, for Produce and Fetch apart.
        """
        if request.kind in _PRODUCING:
            return (PRODUCE, self._produced.keyOf(request))
        return (FETCH, self._fetched.keyOf(request)) if request.kind in _FETCHING else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Produce.byte-rate} and so on, see L{Meters.addSensors}.
        """
        reads = self._algorithm.reads("byte-rate")
        self._produced.addSensors(registry, f"{name}.{PRODUCE}", reads)
        self._fetched.addSensors(registry, f"{name}.{FETCH}", reads)


def buildClientBytes(
    context: PolicyContext,
    produce: str | None = None,
    fetch: str | None = None,
    algorithm: str = "window",
    burst: str | None = None,
    windows: str | None = None,
    window: str | None = None,
    meters: str | None = None,
    shadow: str = "no",
) -> ClientBytes:
    """
    C{client-bytes[:produce=RATE][:fetch=RATE][:algorithm=window|bucket][:burst=TIME][:windows=NUMBER][:window=TIME]
    [:meters=NUMBER][:shadow=yes]}.
    """
    policy = ClientBytes(
        _algorithm(context, algorithm, burst, windows, window),
        parseMeters(meters),
        parseYes("shadow", shadow),
    )
    for limitName, rate in ((PRODUCER_BYTE_RATE, produce), (CONSUMER_BYTE_RATE, fetch)):
        if rate is not None:
            policy.configure(QuotaEntity(clientId=DEFAULT), {limitName: parseRate(rate)}, context.clock.seconds())
    return policy


def _algorithm(
    context: PolicyContext, algorithm: str, burst: str | None, windows: str | None, window: str | None
) -> Algorithm:
    if algorithm == "window":
        if burst is not None:
            raise ValueError(f"burst={burst} goes with algorithm=bucket only")
        return Windows(
            context.quotaWindows if windows is None else parseCount("windows", windows),
            context.quotaWindowSeconds if window is None else parseDuration("window", window),
        )
    if algorithm == "bucket":
        if windows is not None or window is not None:
            raise ValueError("windows and window go with algorithm=window only")
        return Buckets(1.0 if burst is None else parseDuration("burst", burst))
    raise ValueError(f"algorithm={algorithm}: say window or bucket")
