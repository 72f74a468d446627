# -*- test-case-name: tests.contracts.test_producerids -*-
"""
Limits how many new producer ids a user may introduce (KIP-936).

A server has state for every producer id, so a client that takes a new one for each record fills its memory.  Ids that
are seen again are free; ids that were not seen within the window take a token each from their user's bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import ceil, inf
from secrets import randbits

from attrs import define, field
from zope.interface import alsoProvides, implementer

from admission.interfaces import (
    ADMITTED,
    DEFAULT,
    Decision,
    IAccountable,
    IAliasedLimits,
    IIdentityAudit,
    IReplayable,
    IRestorable,
    ISensorRegistry,
    IShared,
    PolicyContext,
    QuotaEntity,
    QuotaStatus,
    Request,
    Taken,
    Usage,
)
from admission.metrics.bucket import NEGLIGIBLE_SECONDS, TokenBucket
from admission.metrics.rate import SampledMean, SampledTotal
from admission.quotas.limits import EntityKind, Limit, LimitTable
from admission.quotas.metering import MAX_METERS, Meters, byUser, elsewherePart, noteDelay
from admission.quotas.policy import QuotaPolicy
from admission.units import formatBytes, formatSeconds, parseBytes

from .bloom import KEY_BITS, FilterMemory, LayeredBloom
from .clientquotas import parseCount, parseDuration, parseMeters, parseYes

PRODUCE = "Produce"
"""The kind of request that is limited."""

NEW_IDENTITY_RATE = "new_identity_rate"
"""New producer ids of one user in each window."""

UNLIMITED = 2147483647.0
"""The value that means no limit, for a user that is exempt from the default."""

TOLD_AT_ONCE = 1000
"""How many ids other servers are told in one piece."""

MAX_BYTES = 64 << 20
"""How much memory the filters of all users take together, by default."""

MIN_MAX_BYTES = 64 << 10
"""With less, filters would forget ids within the window."""


def capacityFor(limit: Limit) -> int:
    """
    How many new ids may come within any window: a full bucket, and the tokens that flow into it meanwhile.
    """
    return 2 * ceil(limit.value)


@define(eq=False)
class ProducerIdMeter:
    """
    The tokens and the known ids of one user.

    @ivar limit: how many new ids there may be in a window.
    @ivar bucket: the tokens that are left.
    @ivar known: the ids that were seen within the window.
    @ivar arrivals: the rate of new ids; for a sensor, like C{delays}.
    @ivar elsewherePart: which part of the tokens that are missing was taken at other servers.
    """

    limit: Limit
    bucket: TokenBucket
    known: LayeredBloom
    arrivals: SampledTotal
    elsewherePart: float = field(default=0.0, init=False)
    delays: SampledMean | None = field(default=None, init=False)

    def countNew(self, identities: Sequence[int], now: float) -> int:
        """
        How many of C{identities} are unknown, each counted once.  Negative ones stand for no producer.
        """
        contains = self.known.contains
        # Most requests have one known id: that needs no set.
        new: set[int] | None = None
        for identity in identities:
            if identity >= 0 and not contains(identity, now):
                if new is None:
                    new = set()
                new.add(identity)
        return len(new) if new else 0

    def waitSeconds(self, new: int, now: float) -> float:
        """
        The seconds until there are tokens for this many new ids, or would be if the bucket were larger.
        """
        if not new:
            return 0.0
        waitSeconds = (new - self.bucket.tokens(now)) / self.bucket.rate
        return waitSeconds if waitSeconds >= NEGLIGIBLE_SECONDS else 0.0

    def remember(self, identities: Sequence[int], now: float) -> int:
        """
        Add C{identities} to the known ids.

        @return: how many were new.
        """
        track, new = self.known.track, 0
        for identity in identities:
            if identity >= 0 and track(identity, now):
                new += 1
        return new

    def spend(self, amount: float, now: float, isElsewhere: bool = False) -> float:
        self.arrivals.record(amount, now)
        delaySeconds = self.bucket.spend(amount, now)
        missing = self.bucket.burst - self.bucket.tokens(now)
        self.elsewherePart = elsewherePart(self.elsewherePart, amount, isElsewhere, missing)
        return delaySeconds

    def delaySeconds(self, now: float) -> float:
        return self.bucket.delaySeconds(now)

    def room(self, now: float) -> float:
        return self.bucket.tokens(now)

    def used(self, now: float) -> float:
        return (1.0 - self.bucket.tokens(now) / self.bucket.burst) * self.limit.value

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self.bucket.setRate(limit.value / self.known.windowSeconds, now)
        self.known.capacity = capacityFor(limit)

    def isIdle(self, now: float) -> bool:
        return not self.known.layersAt(now) and self.bucket.isFull(now)


@implementer(IAliasedLimits, IReplayable, IRestorable, IIdentityAudit, IAccountable)
class ProducerIds(QuotaPolicy):
    """
    Tokens and known ids for each user who has a limit.

    A user's bucket holds as many tokens as the limit allows ids, and fills once in a window. A request is refused
    unless there is a token for each of its unknown ids; none of its ids is remembered then, so a retry finds them as
    new. Known ids pass, even with an empty bucket.

    If it is not C{isRefusing}, it admits every id and throttles users that introduce new ones and owe tokens. So it
    does with requests that the protocol cannot refuse.

    As a shadow policy it remembers and counts the ids that it would have admitted.

    @ivar horizonSeconds: none: an id that keeps coming stays known.
    @ivar isRefusing: whether it refuses, or only throttles.
    @ivar memory: the memory that the filters of all users share.
    """

    limitNames = (NEW_IDENTITY_RATE,)
    limitAliases = {"producer_ids_rate": NEW_IDENTITY_RATE}
    horizonSeconds: float | None = None

    def __init__(
        self,
        windowSeconds: float = 3600.0,
        *,
        windows: int = 11,
        layers: int = 4,
        falsePositives: float = 0.01,
        maxBytes: int = MAX_BYTES,
        isRefusing: bool = True,
        isShadow: bool = False,
        cleanupSeconds: float = 10.0,
        maxMeters: int = MAX_METERS,
        key: int | None = None,
        isShared: bool = False,
    ) -> None:
        """
        @param windowSeconds: the window of the limit, and how long an id stays known.
        @param windows: the number of windows of the rate's sensor; no decision depends on it.
        @param layers: see L{LayeredBloom}, like C{falsePositives}.
        @param maxBytes: how much memory the filters of all users take at most.
        @param cleanupSeconds: how often, at most, L{sweep} does anything.
        @param maxMeters: how many users have meters of their own, besides users with limits of their own; the others
            share tokens and filter.
        @param key: the key of the filters, see L{LayeredBloom}; random unless given.
        @param isShared: whether it is an L{IShared}: ids that were let in here are known to other servers, and have
            taken their tokens there, too.
        @raise ValueError: if an argument is out of range.
        """
        if maxBytes < MIN_MAX_BYTES:
            raise ValueError(f"filters need {formatBytes(MIN_MAX_BYTES)}, so maxBytes={maxBytes} is too little")
        # Validates the arguments.
        LayeredBloom(1, windowSeconds, layers, falsePositives)
        self._key = randbits(KEY_BITS) if key is None else key
        self.windowSeconds = windowSeconds
        self._window = formatSeconds(windowSeconds)
        self.isRefusing = isRefusing
        self.isShadow = isShadow
        self.memory = FilterMemory(maxBytes)
        self._windows = windows
        self._layers = layers
        self._falsePositives = falsePositives
        self._cleanupSeconds = cleanupSeconds
        self._nextCleanupSeconds = -inf
        self._limits = LimitTable(self.limitNames, [EntityKind.USER], UNLIMITED)
        self.limits = self._limits.limits
        self._meters = Meters(self._limits, NEW_IDENTITY_RATE, self._build, maxMeters, byUser)
        self._untold: dict[str, list[int]] | None = None
        self._fraction, self._count = 1.0, 1
        if isShared:
            self._untold = {}
            alsoProvides(self, IShared)

    @property
    def sizeBytes(self) -> int:
        return self.memory.usedBytes + self._meters.sizeBytes

    def decide(self, request: Request, now: float) -> Decision:
        identities = request.identities
        if not identities or not self.isRefusing:
            return ADMITTED
        meter = self._meters.find(request, now)
        if meter is None:
            return ADMITTED
        new = meter.countNew(identities, now)
        delaySeconds = meter.waitSeconds(new, now) if new else 0.0
        if not delaySeconds:
            return ADMITTED
        # A sensor; no decision depends on it.
        noteDelay(meter, delaySeconds, now)
        ids = "1 new producer id" if new == 1 else f"{new} new producer ids"
        allowed = f"{meter.limit.value:g} in {self._window}"
        if new > meter.bucket.burst:
            reason = f"{ids} in one request can never be let in, the limit being {allowed}"
        else:
            reason = f"{ids}, with {max(int(meter.room(now)), 0)} left of {allowed}"
        return Decision(False, delaySeconds, reason)

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """
        Add the ids to the known ones, and take a token for each new one.

        @return: the seconds for which the user owes tokens; zero if no id is new, unless the usage is empty.
        """
        identities = request.identities
        if not identities:
            return 0.0
        if not (usage.requestBytes or usage.responseBytes or usage.serviceSeconds or usage.connections):
            asked = self._meters.find(request, now)
            return 0.0 if asked is None else asked.delaySeconds(now)
        meter = self._meters.obtain(request, now)
        if meter is None:
            return 0.0
        if self.isShadow and self.isRefusing and meter.waitSeconds(meter.countNew(identities, now), now):
            return 0.0
        if self._untold is not None:
            # Those that are known are told again before others forget them.
            told = [each for each in identities if each >= 0 and not meter.known.isFresh(each, now)]
            if told:
                self._untold.setdefault(request.principal, []).extend(told)
        new = meter.remember(identities, now)
        if not new:
            return 0.0
        delaySeconds = meter.spend(new, now)
        if delaySeconds:
            noteDelay(meter, delaySeconds, now)
        return delaySeconds

    def isKnown(self, request: Request, now: float) -> bool | None:
        identities = request.identities
        if not identities or identities[0] < 0:
            return None
        meter = self._meters.find(request, now)
        return None if meter is None else meter.known.contains(identities[0], now)

    # Where several servers share the limits

    def taken(self, leastSeconds: float, now: float) -> Iterator[Taken]:
        """
        See L{IShared}; every id is told, whatever C{leastSeconds}, since others take one that they do not know for new.
        """
        untold = self._untold
        while untold:
            # The first comes last again if there is more of it.
            principal = next(iter(untold))
            identities = untold.pop(principal)
            told, rest = identities[:TOLD_AT_ONCE], identities[TOLD_AT_ONCE:]
            if rest:
                untold[principal] = rest
            yield Taken(NEW_IDENTITY_RATE, QuotaEntity(user=principal), len(told), tuple(told))

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        """
        See L{IShared}; ids that are known here already take no token again.
        """
        user = taken.entity.user
        meter = None if user is None else self._meters.obtain(Request(PRODUCE, user, "", "", 0), now)
        if meter is not None:
            new = meter.remember(taken.identities, now)
            if new and not isOld:
                meter.spend(new, now, isElsewhere=True)

    def share(self, fraction: float, count: int, now: float) -> None:
        """
        See L{IShared}; a bucket holds all of the limit as long as servers hear from each other.
        """
        self._fraction, self._count = fraction, count
        self._meters.changed(lambda meter: self._fill(meter, now))

    def restore(self, principal: str, identities: Sequence[int], now: float) -> None:
        """
        Add C{identities} as known without taking tokens.  Configure limits first: nothing is remembered of users
        without one.
        """
        meter = self._meters.obtain(Request(PRODUCE, principal, "", "", 0), now)
        if meter is not None:
            meter.remember(identities, now)

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        L{UNLIMITED} or more is no limit.  Known ids and spent tokens stay, and are forgotten where no limit is left.
        """
        self._limits.configure(entity, limits)
        for meter in self._meters.refresh(entity, now):
            # Releases memory that all filters share.
            meter.known.clear()
        if self._untold is not None:
            self._meters.changed(lambda meter: self._fill(meter, now))

    @property
    def isLimiting(self) -> bool:
        return self._limits.isLimiting

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        How much of the bucket is used, and for how long another new id would be refused or throttled.
        """
        meter = self._meters.find(request, now)
        if meter is None:
            return []
        limit = meter.limit
        delaySeconds = meter.waitSeconds(1, now) if self.isRefusing else meter.delaySeconds(now)
        used = meter.used(now) * self._fraction
        usedElsewhere = None if self._untold is None else used * meter.elsewherePart
        return [
            QuotaStatus(NEW_IDENTITY_RATE, limit.value, limit.entity, used, delaySeconds, usedElsewhere, self._fraction)
        ]

    def sweep(self, now: float) -> None:
        if now >= self._nextCleanupSeconds:
            self._nextCleanupSeconds = now + self._cleanupSeconds
            self._meters.sweep(now)

    def replayKey(self, request: Request) -> Hashable:
        return request.principal

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """
        Publish for each user C{NAME.rate} (new ids in a window), C{NAME.tokens}, C{NAME.filter-bytes},
        C{NAME.filter-layers} and C{NAME.false-positives} (estimated), and the sensors of L{Meters.addSensors}; and for
        all users together C{NAME.memory-bytes} and C{NAME.dropped-layers} (see L{FilterMemory}).

        @raise ValueError: if there are sensors of these names.
        """
        reads: dict[str, Callable[[ProducerIdMeter, float], float]] = {
            "rate": lambda meter, now: meter.arrivals.rate(now) * self.windowSeconds,
            "tokens": ProducerIdMeter.room,
            "filter-bytes": lambda meter, now: meter.known.sizeBytes,
            "filter-layers": lambda meter, now: len(meter.known.layersAt(now)),
            "false-positives": lambda meter, now: meter.known.estimateFalsePositives(now),
        }
        self._meters.addSensors(registry, name, reads, ("user",))
        registry.addGauge(f"{name}.memory-bytes", lambda now: self.memory.usedBytes)
        registry.addCounter(f"{name}.dropped-layers", lambda now: self.memory.droppedLayers)

    def _fill(self, meter: ProducerIdMeter, now: float) -> None:
        meter.bucket.setRate(meter.limit.value * self._fraction / self.windowSeconds, now)

    def _build(self, limit: Limit, now: float) -> ProducerIdMeter:
        windowSeconds, windows = self.windowSeconds, self._windows
        return ProducerIdMeter(
            limit,
            TokenBucket(limit.value * self._fraction / windowSeconds, windowSeconds, now),
            LayeredBloom(
                capacityFor(limit),
                windowSeconds,
                self._layers,
                self._falsePositives,
                memory=self.memory,
                key=self._key,
            ),
            SampledTotal(windows, windowSeconds / windows),
        )


def _parseNumber(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text}: write a number") from None


def buildProducerIds(
    context: PolicyContext,
    rate: str | None = None,
    window: str = "1h",
    windows: str | None = None,
    layers: str = "4",
    falsePositives: str = "0.01",
    maxBytes: str = formatBytes(MAX_BYTES),
    mode: str = "refuse",
    shadow: str = "no",
    cleanup: str = "10s",
    meters: str | None = None,
    shared: str = "no",
) -> ProducerIds:
    """
    C{producer-ids[:rate=NUMBER][:window=1h][:mode=refuse|throttle][:shadow=yes|no][:shared=yes|no]}
    and, to tune it, C{[:layers=4][:falsePositives=0.01][:maxBytes=64MiB][:windows=11][:cleanup=10s][:meters=10000]}.
    """
    if mode not in ("refuse", "throttle"):
        raise ValueError(f"mode={mode}: say refuse or throttle")
    policy = ProducerIds(
        parseDuration("window", window),
        windows=context.quotaWindows if windows is None else parseCount("windows", windows),
        layers=parseCount("layers", layers),
        falsePositives=_parseNumber("falsePositives", falsePositives),
        maxBytes=parseBytes(maxBytes),
        isRefusing=mode == "refuse",
        isShadow=parseYes("shadow", shadow),
        cleanupSeconds=parseDuration("cleanup", cleanup),
        maxMeters=parseMeters(meters),
        isShared=parseYes("shared", shared),
    )
    if rate is not None:
        policy.configure(
            QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: _parseNumber("rate", rate)}, context.clock.seconds()
        )
    return policy
