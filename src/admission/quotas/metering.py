# -*- test-case-name: tests.unit.quotas.test_metering -*-
"""
How much of a limit clients use: a meter for each, over sampled windows or with
a bucket of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from sys import getsizeof
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import define, evolve, frozen

from ..interfaces import DEFAULT, ISensorRegistry, QuotaEntity, QuotaStatus, Request
from ..metrics.bucket import NEGLIGIBLE_SECONDS, TokenBucket
from ..metrics.rate import SampledMean, SampledTotal
from .limits import EntityKey, Limit, LimitTable, keyOf

MAX_METERS = 10_000
"""How many meters a limit has, unless told otherwise."""

OVERFLOW = "<overflow>"
"""The label, in place of a name, of a meter that clients share for lack of room."""

_ADDRESSES_PART: Final = 10

METER_BYTES: Final = 250
"""About what a meter takes with its place in the table, without its names; a mean of L{Windows} and L{Buckets}."""

_SHARED_METER_BYTES: Final = 310
"""The same of one that several servers share."""

_FOUND_BYTES: Final = 60
"""About what a place among what was found lately takes."""

_RECENT_SECONDS = 10.0
_MIN_SPAN_SECONDS = 0.001
_LEAST_RATE = 1e-9


class Meter(Protocol):
    """
    What one client takes, held against its limit.  Only L{spend} and
    L{setLimit} change it.

    @ivar limit: the limit that it goes by; see L{setLimit}.
    @ivar delays: the delays it has asked for lately; L{None} if it never has.
    """

    limit: Limit
    delays: SampledMean | None

    def spend(self, amount: float, now: float) -> float:
        """
        Count C{amount}, whether or not there is room for it.

        @return: for how many seconds the client has to wait.
        """
        ...

    def delaySeconds(self, now: float) -> float:
        """
        For how many seconds the client has to wait as things are.
        """
        ...

    def room(self, now: float) -> float:
        """
        How much may be taken before the client is over its limit; negative if
        it is.
        """
        ...

    def used(self, now: float) -> float:
        """
        How much of the limit is used, in its unit.
        """
        ...

    def setLimit(self, limit: Limit, now: float) -> None:
        """
        Go by C{limit} from now on; what was counted stays.
        """
        ...

    def isIdle(self, now: float) -> bool:
        """
        Whether a fresh meter would be the same.
        """
        ...


M = TypeVar("M", bound=Meter)


class Window(SampledTotal):
    """
    Kafka's own quota (KIP-13): a client that has taken more than the limit over
    the sampled windows is throttled until the mean since the oldest window is
    the limit again.

    With I{total} taken over I{span} seconds the delay is
    C{total / limit - span}, which is Kafka's C{(O - T) / T * W}.  What windows
    hold from before the delay is counted again after it; see the manual for
    how far that is from exact.

    It is a L{SampledTotal} and does not have one, like L{Bucket} a
    L{TokenBucket}: with another object for each client a record takes an eighth
    longer, and a fifth among 10,000 clients, by C{python -m benchmarks.quotas}.
    """

    __slots__ = ("_freeTotal", "_maxDelaySeconds", "delays", "limit")

    def __init__(self, limit: Limit, samples: int, windowSeconds: float, maxDelaySeconds: float) -> None:
        super().__init__(samples, windowSeconds)
        self.delays: SampledMean | None = None
        self._maxDelaySeconds = maxDelaySeconds
        self.setLimit(limit, 0.0)

    def spend(self, amount: float, now: float) -> float:
        # As record, without its call, for the same benchmark.
        if now - self._start >= self.windowSeconds:
            self._advance(now)
        value = self._value = self._value + amount
        self._last = now
        if value + self._olderTotal <= self._freeTotal:
            return 0.0
        return self.delaySeconds(now)

    def delaySeconds(self, now: float) -> float:
        # Some of the older windows may no longer count; then there is only more room.
        if self._value + self._olderTotal <= self._freeTotal:
            return 0.0
        total, spanSeconds = self.measure(now)
        delaySeconds = total / self.limit.value - spanSeconds
        return min(delaySeconds, self._maxDelaySeconds) if delaySeconds >= NEGLIGIBLE_SECONDS else 0.0

    def room(self, now: float) -> float:
        total, spanSeconds = self.measure(now)
        return self.limit.value * spanSeconds - total

    def used(self, now: float) -> float:
        return self.rate(now)

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        # The span is never shorter, so up to here there is nothing to compute.
        self._freeTotal = limit.value * (self.samples - 1) * self.windowSeconds

    def isIdle(self, now: float) -> bool:
        return self.isEmpty(now)


@frozen
class Windows:
    """
    Makes meters with sampled windows.

    @ivar samples: how many windows count; positive.
    @ivar windowSeconds: the length of one; positive.
    @ivar maxDelaySeconds: the longest delay a meter asks for.
    """

    samples: int
    windowSeconds: float
    maxDelaySeconds: float = inf
    meterBytes = METER_BYTES

    def __attrs_post_init__(self) -> None:
        SampledTotal(self.samples, self.windowSeconds)

    @property
    def horizonSeconds(self) -> float:
        """
        How long a meter remembers: what opens a window lasts as long as what is
        recorded in it last.
        """
        return (self.samples + 1) * self.windowSeconds

    def build(self, limit: Limit, now: float) -> Window:
        return Window(limit, self.samples, self.windowSeconds, self.maxDelaySeconds)

    @staticmethod
    def reads(rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        """
        What to publish of a meter: by name, what reads it.

        @param rateName: what to call the rate.
        """
        return {rateName: Window.rate, "utilization": _utilization}


class Bucket(TokenBucket):
    """
    A bucket of tokens that fills at the limit: exact after its burst, and debts
    are paid in full.
    """

    __slots__ = ("_before", "_last", "delays", "limit")

    def __init__(self, limit: Limit, burstSeconds: float, now: float) -> None:
        super().__init__(limit.value, burstSeconds, now)
        self.limit = limit
        self.delays: SampledMean | None = None
        # Two readings of spentTotal, and when.
        self._before = self._last = (now, 0.0)

    def room(self, now: float) -> float:
        return self.tokens(now)

    def used(self, now: float) -> float:
        """
        The part of the burst that is used, times the limit: an empty bucket
        uses all of it, and one that owes uses more.
        """
        return (1.0 - self.tokens(now) / self.burst) * self.rate

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self.setRate(limit.value, now)

    def isIdle(self, now: float) -> bool:
        return self.isFull(now)

    def recentRate(self, now: float) -> float:
        """
        What was taken each second since a reading ten seconds ago or longer.
        So taking needs no clock, and a sensor that is read now and then
        shows what was taken in between.
        """
        if now - self._last[0] >= _RECENT_SECONDS:
            self._before, self._last = self._last, (now, self.spentTotal)
        sinceSeconds, before = self._before
        return (self.spentTotal - before) / max(now - sinceSeconds, _MIN_SPAN_SECONDS)


@frozen
class Buckets:
    """
    Makes meters with a bucket.

    @ivar burstSeconds: for how many seconds of the limit there is room; positive.
    @ivar horizonSeconds: a meter remembers for ever, since debts may be of any size.
    """

    burstSeconds: float
    horizonSeconds = None
    meterBytes = METER_BYTES

    def __attrs_post_init__(self) -> None:
        TokenBucket(1.0, self.burstSeconds, 0.0)

    def build(self, limit: Limit, now: float) -> Bucket:
        return Bucket(limit, self.burstSeconds, now)

    @staticmethod
    def reads(rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        return {rateName: Bucket.recentRate, "tokens": Bucket.tokens, "utilization": _utilization}


class SharedBucket(Bucket):
    """
    A bucket of a limit that several servers enforce together: what the others take is taken from it as well.

    @ivar untold: what was taken here and the others have not been told.
    @ivar elsewhereTotal: all that the others have told.
    @ivar isAlone: whether the others are told nothing of it, so that it enforces this server's part alone.
    """

    # Of the tokens that are missing, and that others have been told of, the part that was taken elsewhere.  It changes
    # when something is told: to count each request would make spend longer by a sixth.
    __slots__ = ("_algorithm", "_elsewherePart", "elsewhereTotal", "isAlone", "untold")

    def __init__(self, limit: Limit, algorithm: SharedBuckets, now: float) -> None:
        self._algorithm = algorithm
        self.isAlone = False
        self.untold = self.elsewhereTotal = self._elsewherePart = 0.0
        super().__init__(limit, algorithm.burstSeconds, now)
        self.shared(now)

    def spend(self, amount: float, now: float) -> float:
        self.untold += amount
        return super().spend(amount, now)

    def spendElsewhere(self, amount: float, now: float) -> None:
        """
        Others have taken C{amount}.
        """
        self.elsewhereTotal += amount
        super().spend(amount, now)
        told = self.burst - self.tokens(now) - self.untold
        self._elsewherePart = elsewherePart(self._elsewherePart, amount, True, told)

    def tell(self, now: float) -> float:
        """
        What was taken here and the others have not been told; they are told now.
        """
        amount, self.untold = self.untold, 0.0
        self._elsewherePart = elsewherePart(self._elsewherePart, amount, False, self.burst - self.tokens(now))
        return amount

    def used(self, now: float) -> float:
        """
        The part of the burst that is used, times the limit, as of a bucket that is not shared.  The bucket has only
        this server's part of the burst, and is empty when that is used.  What it owes then is compared with the whole
        burst: in parts of its own, the same debt would look larger the more servers there are.
        """
        missing = self.burst - self.tokens(now)
        owed = max(missing - self.burst, 0.0)
        return (missing - owed + owed / self._algorithm.count) / self.burst * self.rate

    def usedElsewhere(self, now: float) -> float:
        """
        Which part of L{used} others have taken.  What flows into the bucket pays for them and for this server alike,
        and last for what the others have not been told.
        """
        missing = self.burst - self.tokens(now)
        # What is negligible is not used.
        if missing <= self.untold:
            return 0.0
        return self._elsewherePart * (1.0 - self.untold / missing) * self.used(now)

    @property
    def fraction(self) -> float:
        """
        How much of the limit this server enforces.
        """
        algorithm = self._algorithm
        return min(algorithm.fraction, 1 / algorithm.count) if self.isAlone else algorithm.fraction

    def setLimit(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self.shared(now)

    def shared(self, now: float) -> None:
        """
        Enforce as much of the limit as is this server's to enforce.
        """
        algorithm = self._algorithm
        rate = max(self.limit.value * self.fraction, _LEAST_RATE)
        self.setRate(rate, now, algorithm.burstSeconds / algorithm.count)

    def recentRate(self, now: float) -> float:
        """
        What was taken here each second, see L{Bucket.recentRate}.
        """
        if now - self._last[0] >= _RECENT_SECONDS:
            self._before, self._last = self._last, (now, self.spentTotal - self.elsewhereTotal)
        sinceSeconds, before = self._before
        return (self.spentTotal - self.elsewhereTotal - before) / max(now - sinceSeconds, _MIN_SPAN_SECONDS)


@define
class SharedBuckets:
    """
    Makes meters with a bucket for a limit that several servers enforce together.

    @ivar burstSeconds: for how many seconds of the limit there is room at all of them together; positive.
    @ivar fraction: how much of each limit this server enforces; all of it as long as it is told what others take.
    @ivar count: how many servers there are; each has that part of the burst.
    """

    burstSeconds: float
    fraction: float = 1.0
    count: int = 1
    horizonSeconds = None
    meterBytes = _SHARED_METER_BYTES

    def __attrs_post_init__(self) -> None:
        TokenBucket(1.0, self.burstSeconds, 0.0)

    def build(self, limit: Limit, now: float) -> SharedBucket:
        return SharedBucket(limit, self, now)

    @staticmethod
    def reads(rateName: str) -> Mapping[str, Callable[[Any, float], float]]:
        return {
            rateName: SharedBucket.recentRate,
            "tokens": SharedBucket.tokens,
            "elsewhere-total": lambda meter, now: meter.elsewhereTotal,
            "utilization": lambda meter, now: meter.used(now) / meter.rate,
        }


Algorithm = Windows | Buckets | SharedBuckets


def byClient(request: Request) -> tuple[str, str]:
    """
    A limit for users and client ids.
    """
    return request.principal, request.clientId


def byUser(request: Request) -> tuple[str, str]:
    """
    A limit for users, which ignores client ids.
    """
    return request.principal, ""


def byAddress(request: Request) -> tuple[str, None]:
    """
    A limit for addresses.
    """
    return request.peer, None


class Meters(Generic[M]):
    """
    What clients take of one limit: a meter for each, made when it is first
    needed and dropped when it is idle.

    The most specific limit that exists for a client decides who shares its
    meter, as it does in Kafka: with a user's limit all client ids of that user
    share one, with a client id's limit all users of that client id do, and under
    a default each has one of its own.  So clients without an id, whose limit is
    the default's, share one.

    Clients choose their names, so there may be any number.  Clients that have a
    limit by name have a meter in any case; once all others have C{maxMeters},
    new ones share one meter for each default and address until idle meters have
    made room; a tenth as many addresses have such a meter, and the others share.

    @ivar limitName: which limit.
    @ivar overflows: how often a meter was shared for lack of room.
    """

    def __init__(
        self,
        limits: LimitTable,
        limitName: str,
        build: Callable[[Limit, float], M],
        maxMeters: int = MAX_METERS,
        by: Callable[[Request], tuple[str, str | None]] = byClient,
        meterBytes: int = METER_BYTES,
    ) -> None:
        """
        @param limits: the limits in force; call L{refresh} when they have changed.
        @param build: makes a meter, told what time it is: L{Windows.build},
            L{Buckets.build} or another.
        @param by: whose meter counts a request: L{byClient}, L{byUser} or
            L{byAddress}.
        @param meterBytes: about what a meter takes, for L{sizeBytes}.
        @raise ValueError: if C{maxMeters} is not positive.
        """
        if maxMeters < 1:
            raise ValueError(f"maxMeters must be positive, not {maxMeters}")
        self.limitName = limitName
        self.overflows = 0
        self._limits = limits
        self._build = build
        self._maxMeters = maxMeters
        self._by = by
        self._meterBytes = meterBytes
        self._meters: dict[EntityKey, M] = {}
        self._named: set[EntityKey] = set()
        # By the default and the address of those that share; the address is empty once there are too many.
        self._shared: dict[tuple[EntityKey, str], M] = {}
        self._overflowsToSweep = 0
        # What was found lately by principal and client id, L{None} for no limit, unless it goes by address; forgotten
        # whole when any of it may be wrong.
        self._found: dict[str, dict[str, M | None]] = {}
        self._foundCount = 0
        self._nameBytes = self._foundNameBytes = 0

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory this takes, names included.
        """
        return len(self) * self._meterBytes + self._nameBytes + self._foundCount * _FOUND_BYTES + self._foundNameBytes

    def __len__(self) -> int:
        """
        How many meters there are.
        """
        return len(self._meters) + len(self._shared)

    def spend(self, request: Request, amount: float, now: float) -> float:
        """
        Count what a request took.

        @param amount: in the unit of the limit; finite.  With nothing this is
            L{delaySeconds}.
        @return: for how many seconds the client has to wait.
        """
        if amount <= 0:
            return self.delaySeconds(request, now)
        try:
            # As obtain, without its call: see python -m benchmarks.quotas.
            meter = self._found[request.principal][request.clientId]
        except KeyError:
            meter = self._obtain(request, now)
        if meter is None:
            return 0.0
        delaySeconds = meter.spend(amount, now)
        if delaySeconds:
            noteDelay(meter, delaySeconds, now)
        return delaySeconds

    def delaySeconds(self, request: Request, now: float) -> float:
        """
        For how many seconds the client has to wait as things are.  Changes
        nothing, like L{budget} and L{status}.
        """
        meter, _ = self._kept(request)
        # One that has to be made asks for no delay.
        return 0.0 if meter is None else meter.delaySeconds(now)

    def budget(self, request: Request, now: float) -> int | None:
        """
        How much may be taken without going over the limit: zero for a client
        that is over it, at least one for all others, L{None} for no limit.
        """
        meter = self.find(request, now)
        if meter is None:
            return None
        room = meter.room(now)
        # Less than nothing may be a rounding error, for which no client has to wait.
        return 0 if room < 0 and meter.delaySeconds(now) else max(int(room), 1)

    def status(self, request: Request, now: float) -> QuotaStatus | None:
        """
        How the client stands; L{None} without a limit.
        """
        meter = self.find(request, now)
        if meter is None:
            return None
        limit = meter.limit
        status = QuotaStatus(self.limitName, limit.value, limit.entity, meter.used(now), meter.delaySeconds(now))
        if isinstance(meter, SharedBucket):
            return evolve(status, usedElsewhere=meter.usedElsewhere(now), fraction=meter.fraction)
        return status

    def keyOf(self, request: Request) -> Hashable:
        """
        The same for clients that share a meter other than for lack of room.
        """
        first, second = self._by(request)
        return self._key(first, second, self._resolve(first, second))

    def find(self, request: Request, now: float) -> M | None:
        """
        What L{obtain} would return.  Changes nothing: a meter that has to be
        made is not kept.
        """
        meter, limit = self._kept(request)
        return self._build(limit, now) if meter is None and limit is not None else meter

    def obtain(self, request: Request, now: float) -> M | None:
        """
        The meter of the client that sends C{request}; L{None} without a limit.
        """
        try:
            return self._found[request.principal][request.clientId]
        except KeyError:
            return self._obtain(request, now)

    def refresh(self, entity: QuotaEntity, now: float) -> list[M]:
        """
        The limits of C{entity} have changed: have every meter go by the one
        that now holds for it.

        @return: the meters that were dropped, as no limit holds for them.
        """
        self._forget()
        changed, dropped = keyOf(entity), []
        # A name can be of one meter only; a default is looked for in all of them.
        keys = [changed] if DEFAULT not in changed else [key for key in self._meters if _isOf(key, changed)]
        for key in keys:
            meter = self._meters.get(key)
            if meter is not None:
                limit = self._limits.resolveKey(key, self.limitName)
                if limit is not None:
                    meter.setLimit(limit, now)
                    continue
                dropped.append(self._meters.pop(key))
                self._nameBytes -= _sizeOfNames(key)
            self._named.discard(key)
        limit = self._limits.find(entity, self.limitName)
        for sharedKey in [each for each in self._shared if each[0] == changed]:
            if limit is not None:
                self._shared[sharedKey].setLimit(limit, now)
            else:
                dropped.append(self._shared.pop(sharedKey))
        return dropped

    def items(self) -> Iterator[tuple[EntityKey, M]]:
        """
        All meters that are of one entity each, with whom they are for.
        """
        return iter(self._meters.items())

    def obtainFor(self, key: EntityKey, now: float) -> M | None:
        """
        The meter of an entity, of which others have told; L{None} if it has no limit, or for lack of room no meter of
        its own.
        """
        meter = self._meters.get(key)
        if meter is None:
            limit = self._limits.resolveKey(key, self.limitName)
            if limit is None or not (limit.isNamed or self._hasRoom(now)):
                return None
            meter = self._meters[key] = self._build(limit, now)
            self._nameBytes += _sizeOfNames(key)
            if limit.isNamed:
                self._named.add(key)
            # What was found for some of its clients may have been no meter, or one that is shared.
            self._forget()
        return meter

    def changed(self, change: Callable[[M], object]) -> None:
        """
        Have C{change} called with all meters, shared ones included.
        """
        for meter in [*self._meters.values(), *self._shared.values()]:
            change(meter)

    def sweep(self, now: float) -> None:
        """
        Drop all meters that are idle.
        """
        self._forget()
        for key in [key for key, meter in self._meters.items() if meter.isIdle(now)]:
            del self._meters[key]
        for sharedKey in [sharedKey for sharedKey, meter in self._shared.items() if meter.isIdle(now)]:
            del self._shared[sharedKey]
        self._named.intersection_update(self._meters)
        self._nameBytes = sum(map(_sizeOfNames, self._meters))

    def addSensors(
        self,
        registry: ISensorRegistry,
        name: str,
        reads: Mapping[str, Callable[[M, float], float]],
        labelNames: Sequence[str] = ("user", "client-id"),
    ) -> None:
        """
        Publish families labelled with whom each meter is for: what C{reads}
        names, and C{NAME.throttle-time} (the mean of the last minute's delays,
        in milliseconds); and how many meters there are, and how often one was
        shared for lack of room.

        @param reads: by name, what reads it from a meter; see L{Windows.reads}.
        @raise ValueError: if there are sensors of these names.
        """
        for metric, read in {**reads, "throttle-time": _meanDelayMs}.items():
            registry.addFamily(f"{name}.{metric}", labelNames, partial(self._samples, read, len(labelNames)))
        registry.addGauge(f"{name}.meters", lambda now: len(self))
        registry.addCounter(f"{name}.overflows", lambda now: self.overflows)

    def _samples(
        self, read: Callable[[M, float], float], labelCount: int, now: float
    ) -> Iterator[tuple[Sequence[str], float]]:
        meters = {
            tuple(OVERFLOW if label == DEFAULT else label or "" for label in key): meter
            # Of those with the same labels the one whose clients wait longest.
            for (key, _), meter in sorted(self._shared.items(), key=lambda item: item[1].delaySeconds(now))
        }
        # Clients may call themselves by our words; then the labels are ours, and none come twice.
        for key, meter in self._meters.items():
            meters.setdefault(tuple(label or "" for label in key), meter)
        for labels, meter in meters.items():
            yield labels[:labelCount], read(meter, now)

    def _resolve(self, first: str, second: str | None) -> Limit | None:
        if second is None:
            return self._limits.resolveAddress(first, self.limitName)
        return self._limits.resolve(first, second, self.limitName)

    def _key(self, first: str, second: str | None, limit: Limit | None) -> EntityKey:
        if second is None:
            return (first,)
        if limit is None:
            return (first, second)
        entity = limit.entity
        return (None if entity.user is None else first, None if entity.clientId is None else second)

    def _kept(self, request: Request) -> tuple[M | None, Limit | None]:
        """
        The meter of a client, if there is one, and the limit for which one would have to be made otherwise.
        """
        try:
            return self._found[request.principal][request.clientId], None
        except KeyError:
            first, second = self._by(request)
        limit = self._resolve(first, second)
        if limit is None:
            return None, None
        meter = self._meters.get(self._key(first, second, limit))
        if meter is None and self._isFull() and not limit.isNamed:
            meter = self._shared.get(self._sharedKey(limit, request))
        return meter, limit

    def _obtain(self, request: Request, now: float) -> M | None:
        first, second = self._by(request)
        limit, meter = self._resolve(first, second), None
        isNew = False
        if limit is not None:
            key = self._key(first, second, limit)
            meter = self._meters.get(key)
            if meter is None:
                if not limit.isNamed and not self._hasRoom(now):
                    # Not to be found again: there may be room the next time.
                    return self._share(limit, request, now)
                meter = self._meters[key] = self._build(limit, now)
                self._nameBytes += _sizeOfNames(key)
                isNew = True
                if limit.isNamed:
                    self._named.add(key)
        if second is not None:
            if self._foundCount >= 2 * self._maxMeters:
                self._forget()
            names = self._found.get(request.principal)
            if names is None:
                names = self._found[request.principal] = {}
                self._foundNameBytes += getsizeof(request.principal) + getsizeof(names)
            names[request.clientId] = meter
            self._foundCount += 1
            if not isNew:
                # Otherwise it is the name that the meter has.
                self._foundNameBytes += getsizeof(request.clientId)
        return meter

    def _sharedKey(self, limit: Limit, request: Request) -> tuple[EntityKey, str]:
        # So a flood of names from one address harms only those that are new there.
        key = (keyOf(limit.entity), request.peer)
        isKept = key in self._shared or len(self._shared) < self._maxMeters // _ADDRESSES_PART
        return key if isKept else (key[0], "")

    def _share(self, limit: Limit, request: Request, now: float) -> M:
        self.overflows += 1
        key = self._sharedKey(limit, request)
        meter = self._shared.get(key)
        if meter is None:
            meter = self._shared[key] = self._build(limit, now)
            if isinstance(meter, SharedBucket):
                meter.isAlone = True
                meter.shared(now)
        return meter

    def _forget(self) -> None:
        self._found.clear()
        self._foundCount = self._foundNameBytes = 0

    def _isFull(self) -> bool:
        return len(self._meters) - len(self._named) >= self._maxMeters

    def _hasRoom(self, now: float) -> bool:
        if not self._isFull():
            return True
        # Sweeping looks at every meter; so that a flood of new names does not pay that for each, it pays once for many.
        self._overflowsToSweep -= 1
        if self._overflowsToSweep <= 0:
            self.sweep(now)
            self._overflowsToSweep = len(self._meters)
        return not self._isFull()


def noteDelay(meter: Meter, delaySeconds: float, now: float) -> None:
    """
    Have a sensor show a delay.
    """
    if meter.delays is None:
        meter.delays = SampledMean()
    meter.delays.record(delaySeconds, now)


def elsewherePart(before: float, amount: float, isElsewhere: bool, missing: float) -> float:
    """
    Which part of the tokens that a bucket is short of was taken elsewhere.

    @param before: which part it was before C{amount} was taken.
    @param isElsewhere: whether that was elsewhere.
    @param missing: how many tokens are missing, C{amount} included.
    """
    if amount <= 0:
        return before
    weight = amount / max(missing, amount)
    return weight * isElsewhere + (1.0 - weight) * before


def _sizeOfNames(key: EntityKey) -> int:
    return sum(getsizeof(name) for name in key if name is not None)


def _isOf(key: EntityKey, name: EntityKey) -> bool:
    """
    Whether the limit of C{name} may hold for the meter of C{key}.
    """
    # A table may have limits of addresses, too, whose keys are shorter.
    return len(key) == len(name) and all(
        mine == each or (each == DEFAULT and mine is not None) for mine, each in zip(key, name, strict=True)
    )


def _meanDelayMs(meter: Meter, now: float) -> float:
    return float("nan") if meter.delays is None else meter.delays.mean(now) * 1000


def _utilization(meter: Meter, now: float) -> float:
    return meter.used(now) / meter.limit.value
