# -*- test-case-name: tests.contracts.test_clientquotas -*-
"""
Quotas of clients as Kafka has them: bytes (KIP-13), request time (KIP-124) and
connections (KIP-612).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from zope.interface import alsoProvides, implementer

from admission.interfaces import (
    DEFAULT,
    IAliasedLimits,
    ICountsRequests,
    ISensorRegistry,
    IShared,
    PolicyContext,
    QuotaEntity,
    Request,
    Usage,
)
from admission.quotas.limits import ADDRESS_KINDS, LimitTable
from admission.quotas.metering import (
    MAX_METERS,
    Algorithm,
    Buckets,
    Meters,
    SharedBuckets,
    Windows,
    byAddress,
)
from admission.quotas.policy import MeteredPolicy
from admission.quotas.sharedmeters import SharedMeters
from admission.units import parseRate, parseSeconds

SENSOR_NAMES = ("Received", "Sent")
ALIASED_SENSOR_NAMES = ("Produce", "Fetch")

RECEIVED_BYTE_RATE = "received_byte_rate"
SENT_BYTE_RATE = "sent_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONNECTION_CREATION_RATE = "connection_creation_rate"


@implementer(IAliasedLimits)
class ClientBytes(MeteredPolicy):
    """
    Bytes per second, by user and client id: those received and those sent, of requests whose L{Traits} say that they
    count.
    """

    limitAliases = {"producer_byte_rate": RECEIVED_BYTE_RATE, "consumer_byte_rate": SENT_BYTE_RATE}

    def __init__(
        self,
        algorithm: Algorithm,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
        sensorNames: tuple[str, str] = SENSOR_NAMES,
    ) -> None:
        """
        @param algorithm: makes the meters.
        @param maxMeters: how many clients have meters of their own, for each of the two.
        @param sensorNames: what the sensors call the bytes of each.
        """
        limits = LimitTable((RECEIVED_BYTE_RATE, SENT_BYTE_RATE))
        self._algorithm = algorithm
        self._sensorNames = sensorNames
        self._received, self._sent = (
            Meters[Any](limits, name, algorithm.build, maxMeters, meterBytes=algorithm.meterBytes)
            for name in limits.limitNames
        )
        super().__init__(limits, (self._received, self._sent), algorithm.horizonSeconds, isShadow)
        if isinstance(algorithm, SharedBuckets):
            shared = SharedMeters(algorithm, (self._received, self._sent))
            self.taken, self.takenElsewhere, self.share = shared.taken, shared.takenElsewhere, shared.share
            alsoProvides(self, IShared)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        traits = request.traits
        delaySeconds = self._received.spend(request, usage.requestBytes, now) if traits.countsReceived else 0.0
        if traits.countsSent:
            delaySeconds = max(delaySeconds, self._sent.spend(request, usage.responseBytes, now))
        return delaySeconds

    def budgetBytes(self, request: Request, now: float) -> int | None:
        return self._sent.budget(request, now) if request.traits.countsSent else None

    def replayKey(self, request: Request) -> Hashable:
        traits = request.traits
        if traits.countsReceived and traits.countsSent:
            # Clients that share a meter of one direction may have others of the other, and when limits change only one
            # of them may: whatever key there was, some would be replayed apart from what they depend on.
            return ()
        if traits.countsReceived:
            return (RECEIVED_BYTE_RATE, self._received.keyOf(request))
        return (SENT_BYTE_RATE, self._sent.keyOf(request)) if traits.countsSent else None

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish C{NAME.Received.byte-rate} and so on, see L{Meters.addSensors}.
        """
        reads = self._algorithm.reads("byte-rate")
        for meters, what in zip((self._received, self._sent), self._sensorNames, strict=True):
            meters.addSensors(registry, f"{name}.{what}", reads)


@implementer(ICountsRequests)
class RequestTime(MeteredPolicy):
    """
    Percent of one thread's time, by user and client id, for requests of every
    kind or of some.  A client is throttled for no longer than one window at a time, as in
    Kafka: a client over its share is slowed down, not shut out.
    """

    def __init__(
        self,
        samples: int,
        windowSeconds: float,
        maxMeters: int = MAX_METERS,
        isShadow: bool = False,
        kinds: Collection[str] = (),
    ) -> None:
        """
        @param samples: how many windows the share is averaged over.
        @param windowSeconds: the length of one.
        @param maxMeters: how many clients have meters of their own.
        @param kinds: see L{isRequestOf}.
        """
        self._kinds = kinds
        limits = LimitTable((REQUEST_PERCENTAGE,))
        algorithm = Windows(samples, windowSeconds, maxDelaySeconds=windowSeconds)
        self._used = Meters(limits, REQUEST_PERCENTAGE, algorithm.build, maxMeters)
        super().__init__(limits, (self._used,), algorithm.horizonSeconds, isShadow)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        if not isRequestOf(self._kinds, request):
            return 0.0
        return self._used.spend(request, usage.serviceSeconds * 100, now)

    def budgetBytes(self, request: Request, now: float) -> int | None:
        # The time that a byte costs is unknown.
        return 0 if isRequestOf(self._kinds, request) and self._used.delaySeconds(request, now) else None

    def replayKey(self, request: Request) -> Hashable:
        return self._used.keyOf(request) if isRequestOf(self._kinds, request) else None

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


def isRequestOf(kinds: Collection[str], request: Request) -> bool:
    """
    Whether C{request} is a request, and no connection or bytes, and of one of C{kinds}; of any if there are none.
    """
    return request.traits.isRequest and (not kinds or request.kind in kinds)


def parseKinds(text: str | None) -> Collection[str]:
    """
    Read kinds of requests with plus signs between them.

    @param text: L{None} for all kinds, which are none here.
    @raise ValueError: if one is empty.
    """
    return parseNames("kinds", text, "kinds of requests", "put+get")


def parseNames(name: str, text: str | None, what: str, example: str) -> Collection[str]:
    """
    Read names with plus signs between them.

    @param text: L{None} for none.
    @raise ValueError: if one is empty.
    """
    if text is None:
        return ()
    names = frozenset(each.strip() for each in text.split("+"))
    if "" in names:
        raise ValueError(f"{name}={text}: write {what} with + between them, as in {name}={example}")
    return names


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
    received: str | None = None,
    sent: str | None = None,
    algorithm: str | None = None,
    burst: str | None = None,
    windows: str | None = None,
    window: str | None = None,
    meters: str | None = None,
    shadow: str = "no",
    produce: str | None = None,
    fetch: str | None = None,
    shared: str = "no",
) -> ClientBytes:
    """
    C{client-bytes[:received=RATE][:sent=RATE][:algorithm=window|bucket][:burst=TIME][:windows=NUMBER][:window=TIME]
    [:meters=NUMBER][:shadow=yes][:shared=yes]}; C{produce} and C{fetch} are other names of the two rates.
    """
    policy = ClientBytes(
        _algorithm(context, algorithm, burst, windows, window, parseYes("shared", shared)),
        parseMeters(meters),
        parseYes("shadow", shadow),
        SENSOR_NAMES if set(ClientBytes.limitAliases).isdisjoint(context.shownAliases) else ALIASED_SENSOR_NAMES,
    )
    for limitName, name, rate, alias, same in (
        (RECEIVED_BYTE_RATE, "received", received, "produce", produce),
        (SENT_BYTE_RATE, "sent", sent, "fetch", fetch),
    ):
        if rate is not None and same is not None:
            raise ValueError(f"{name} and {alias} are the same limit: give one of them")
        rate = same if rate is None else rate
        if rate is not None:
            policy.configure(QuotaEntity(clientId=DEFAULT), {limitName: parseRate(rate)}, context.clock.seconds())
    return policy


def _algorithm(
    context: PolicyContext,
    algorithm: str | None,
    burst: str | None,
    windows: str | None,
    window: str | None,
    isShared: bool,
) -> Algorithm:
    if algorithm is None:
        algorithm = "bucket" if isShared else "window"
    if algorithm == "window":
        if isShared:
            raise ValueError(
                "algorithm=window forgets what was taken too early for a limit that is shared; leave it out, or write "
                "algorithm=bucket"
            )
        if burst is not None:
            raise ValueError(f"burst={burst} goes with algorithm=bucket only")
        return Windows(
            context.quotaWindows if windows is None else parseCount("windows", windows),
            context.quotaWindowSeconds if window is None else parseDuration("window", window),
        )
    if algorithm == "bucket":
        if windows is not None or window is not None:
            raise ValueError("windows and window go with algorithm=window only")
        return (SharedBuckets if isShared else Buckets)(1.0 if burst is None else parseDuration("burst", burst))
    raise ValueError(f"algorithm={algorithm}: say window or bucket")


def buildRequestTime(
    context: PolicyContext,
    percent: str | None = None,
    meters: str | None = None,
    shadow: str = "no",
    kinds: str | None = None,
) -> RequestTime:
    """
    C{request-time[:percent=NUMBER][:meters=NUMBER][:shadow=yes][:kinds=KIND+KIND...]}.
    """
    policy = RequestTime(
        context.quotaWindows,
        context.quotaWindowSeconds,
        parseMeters(meters),
        parseYes("shadow", shadow),
        parseKinds(kinds),
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
