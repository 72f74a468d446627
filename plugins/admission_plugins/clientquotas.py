# -*- test-case-name: tests.contracts.test_clientquotas -*-
"""
Kafka's quotas of clients: bytes (KIP-13), request time (KIP-124) and
connections (KIP-612).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from zope.interface import implementer

from admission.interfaces import (
    DEFAULT,
    ICountsRequests,
    ISensorRegistry,
    PolicyContext,
    QuotaEntity,
    Request,
    Usage,
)
from admission.quotas.limits import ADDRESS_KINDS, LimitTable
from admission.quotas.metering import MAX_METERS, Algorithm, Buckets, Meters, Windows, byAddress
from admission.quotas.policy import MeteredPolicy
from admission.units import parseRate, parseSeconds

PRODUCE = "Produce"
FETCH = "Fetch"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONNECTION_CREATION_RATE = "connection_creation_rate"


class ClientBytes(MeteredPolicy):
    """
    Bytes per second, by user and client id: the bytes received as produced, and
    those sent as fetched, of requests whose L{Traits} say that they count.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
    ) -> None:
        """
        @param algorithm: makes the meters.
        @param maxMeters: how many clients have meters of their own, for each of the two.
        """
        limits = LimitTable((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE))
        self._algorithm = algorithm
        self._produced: Meters[Any] = Meters(limits, PRODUCER_BYTE_RATE, algorithm.build, maxMeters)
        self._fetched: Meters[Any] = Meters(limits, CONSUMER_BYTE_RATE, algorithm.build, maxMeters)
        super().__init__(limits, (self._produced, self._fetched), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        traits = request.traits
        delaySeconds = self._produced.spend(request, usage.requestBytes, now) if traits.countsReceived else 0.0
        if traits.countsSent:
            delaySeconds = max(delaySeconds, self._fetched.spend(request, usage.responseBytes, now))
        return delaySeconds

    def budgetBytes(self, request: Request, now: float) -> int | None:
        return self._fetched.budget(request, now) if request.traits.countsSent else None

    def replayKey(self, request: Request) -> Hashable:
        limited = {name for limits in self.limits.values() for name in limits}
        keys: list[Hashable] = [
            (name, meters.keyOf(request))
            for name, meters, counts in (
                (PRODUCER_BYTE_RATE, self._produced, request.traits.countsReceived),
                (CONSUMER_BYTE_RATE, self._fetched, request.traits.countsSent),
            )
            if counts and name in limited
        ]
        if len(keys) < 2:
            return keys[0] if keys else None
        # Clients that share a meter of one direction may have others of the other, unless the same have both limits.
        return keys[0] if all(len(limits) == len(limited) for limits in self.limits.values()) else ()

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Produce.byte-rate} and so on, see L{Meters.addSensors}.
        """
        reads = self._algorithm.reads("byte-rate")
        self._produced.addSensors(registry, f"{name}.{PRODUCE}", reads)
        self._fetched.addSensors(registry, f"{name}.{FETCH}", reads)


@implementer(ICountsRequests)
class RequestTime(MeteredPolicy):
    """
    Percent of one thread's time, by user and client id, for requests of every
    kind.  A client is throttled for no longer than one window at a time, as in
    Kafka: a client over its share is slowed down, not shut out.
    """

    def __init__(
        self,
        samples: int,
        windowSeconds: float,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
    ) -> None:
        """
        @param samples: how many windows the share is averaged over.
        @param windowSeconds: the length of one.
        @param maxMeters: how many clients have meters of their own.
        """
        limits = LimitTable((REQUEST_PERCENTAGE,))
        algorithm = Windows(samples, windowSeconds, maxDelaySeconds=windowSeconds)
        self._used = Meters(limits, REQUEST_PERCENTAGE, algorithm.build, maxMeters)
        super().__init__(limits, (self._used,), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        if not request.traits.isRequest:
            return 0.0
        return self._used.spend(request, usage.serviceSeconds * 100, now)

    def budgetBytes(self, request: Request, now: float) -> int | None:
        # The time that a byte costs is unknown.
        return 0 if request.traits.isRequest and self._used.delaySeconds(request, now) else None

    def replayKey(self, request: Request) -> Hashable:
        return self._used.keyOf(request) if request.traits.isRequest else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Request.request-time} and so on, see
        L{Meters.addSensors}.
        """
        self._used.addSensors(registry, f"{name}.Request", Windows.reads("request-time"))


class ConnectionRate(MeteredPolicy):
    """
    Connections per second, by address.  Connections beyond the limit are
    throttled, and count all the same.
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
        @param maxMeters: how many addresses have meters of their own.
        """
        limits = LimitTable((CONNECTION_CREATION_RATE,), ADDRESS_KINDS)
        algorithm = Buckets(burstSeconds)
        self._opened = Meters(limits, CONNECTION_CREATION_RATE, algorithm.build, maxMeters, byAddress)
        super().__init__(limits, (self._opened,), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return self._opened.spend(request, usage.connections, now) if request.traits.isConnection else 0.0

    def replayKey(self, request: Request) -> Hashable:
        return self._opened.keyOf(request) if request.traits.isConnection else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Connection.connection-creation-rate} and so on, see
        L{Meters.addSensors}.
        """
        self._opened.addSensors(registry, f"{name}.Connection", Buckets.reads("connection-creation-rate"), ("ip",))


def parseYes(name: str, text: str) -> bool:
    """
    Read C{yes} or C{no}.

    @raise ValueError: for anything else.
    """
    if text not in ("yes", "no"):
        raise ValueError(f"{name}={text}: say yes or no")
    return text == "yes"


def parseCount(name: str, text: str) -> int:
    """
    Read a positive integer.

    @raise ValueError: for anything else.
    """
    if not (text.isdecimal() and int(text)):
        raise ValueError(f"{name}={text}: write a whole number, 1 or more")
    return int(text)


def parseDuration(name: str, text: str) -> float:
    """
    Read a duration that is not zero.

    @return: seconds.
    @raise ValueError: for anything else.
    """
    seconds = parseSeconds(text)
    if not seconds:
        raise ValueError(f"{name}={text}: write a time of more than nothing")
    return seconds


def parseMeters(text: str | None) -> int:
    """
    Read how many clients have meters of their own.

    @param text: L{None} for the default.
    @raise ValueError: for anything else than a positive integer.
    """
    return MAX_METERS if text is None else parseCount("meters", text)


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
