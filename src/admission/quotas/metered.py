# -*- test-case-name: tests.unit.quotas.test_metered -*-
"""
One limit, and a meter for each client that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from ..interfaces import DEFAULT, ISensorRegistry, QuotaEntity, QuotaStatus, Request
from ..metrics.meters import MAX_METERS, MeterTable
from ..metrics.rate import SampledMean
from .limits import Limit, LimitTable
from .meters import Algorithm, LimitMeter

OVERFLOW = "<overflow>"
"""The label, in place of a name, of those who share a meter for lack of room."""

_Key = tuple[str | None, ...]
"""A user and a client id, L{None} for what does not matter, or an address alone."""


class MeteredLimit:
    """
    What clients take of one limit.

    The most specific limit that exists for a client decides who shares its
    meter, as it does in Kafka: with a user's limit all client ids of that user
    share one, with a client id's limit all users of that client id do, and under
    a default each has one of its own.  So clients without an id, whose limit is
    the default's, share one.

    Whoever has a limit by name has a meter, however many there are; of all
    others no more than C{maxMeters}, see L{MeterTable}.  Those who share one for
    lack of room share one for each default.

    @ivar limitName: which limit.
    """

    labelNames: Sequence[str] = ("user", "client-id")

    def __init__(
        self,
        limits: LimitTable,
        limitName: str,
        algorithm: Algorithm,
        maxMeters: int = MAX_METERS,
    ) -> None:
        """
        @param limits: the limits in force; call L{refresh} when they have changed.
        @param algorithm: makes the meters.
        @raise ValueError: if C{maxMeters} is not positive.
        """
        self.limitName = limitName
        self._limits = limits
        self._algorithm = algorithm
        self._table: MeterTable[_Key, LimitMeter] = MeterTable(maxMeters)
        # What was found for clients lately, by principal and client id, L{None} for no limit; forgotten whole when any
        # of it may be wrong.
        self._found: dict[str, dict[str, LimitMeter | None]] = {}
        self._foundCount = 0

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
            meter = self._found[request.principal][request.clientId]
        except KeyError:
            meter = self._remember(request, now)
        if meter is None:
            return 0.0
        delaySeconds = meter.spend(amount, now)
        if delaySeconds:
            _note(meter, delaySeconds, now)
        return delaySeconds

    def delaySeconds(self, request: Request, now: float) -> float:
        """
        For how many seconds whoever sends C{request} has to wait as things are.
        Changes nothing, like the methods below.
        """
        meter = self._find(request)
        return 0.0 if meter is None else meter.delaySeconds(now)

    def budget(self, request: Request, now: float) -> int | None:
        """
        How much may be taken without going over the limit: zero for who is over
        it, at least one for all others, L{None} for no limit.
        """
        meter = self._find(request)
        if meter is None:
            limit = self.limitOf(request)
            if limit is None:
                return None
            meter = self._algorithm.build(limit, now)
        room = meter.room(now)
        # Less than nothing may be a rounding error, for which nobody has to wait.
        return 0 if room < 0 and meter.delaySeconds(now) else max(int(room), 1)

    def status(self, request: Request, now: float) -> QuotaStatus | None:
        """
        How whoever sends C{request} stands; L{None} without a limit.
        """
        limit = self.limitOf(request)
        if limit is None:
            return None
        meter = self._find(request)
        if meter is None:
            return QuotaStatus(self.limitName, limit.value, limit.entity, 0.0, 0.0)
        usedNow, delaySeconds = meter.used(now), meter.delaySeconds(now)
        return QuotaStatus(self.limitName, limit.value, limit.entity, usedNow, delaySeconds)

    def limitOf(self, request: Request) -> Limit | None:
        """
        The limit of whoever sends C{request}.
        """
        return self._limits.resolve(request.principal, request.clientId, self.limitName)

    def keyOf(self, request: Request) -> Hashable:
        """
        Who shares a meter has the same key; overflow is left out of account.
        """
        return self._key(request, self.limitOf(request))

    def refresh(self, entity: QuotaEntity, now: float) -> None:
        """
        The limits of C{entity} have changed: have every meter go by the one
        that now holds for it, and drop those for whom there is none.
        """
        table, name = self._table, _name(entity)
        self._forget()
        # A name can be somebody's only meter; a default is looked for in all of them.
        keys = [name] if DEFAULT not in name else [key for key, _ in table.items() if _isOf(key, name)]
        for key in keys:
            meter = table.find(key)
            limit = next(filter(None, map(self._limitNamed, _namesFor(key))), None)
            if meter is not None and limit is not None:
                meter.setLimit(limit, now)
            else:
                table.discard(key)
        shared, limit = table.shared.get(name), self._limitNamed(name)
        if shared is not None and limit is not None:
            shared.setLimit(limit, now)
        else:
            table.discardShared(name)

    def sweep(self, now: float) -> None:
        """
        Drop the meters that hold no information any more.
        """
        self._table.sweep(now)
        self._forget()

    def __len__(self) -> int:
        """
        How many meters there are.
        """
        return len(self._table) + len(self._table.shared)

    def addSensors(self, registry: ISensorRegistry, name: str, rateName: str) -> None:
        """
        Publish families labelled with whom each meter is for: C{NAME.RATENAME}
        (what is taken each second) and what else the algorithm knows,
        C{NAME.throttle-time} (the mean of the last minute's delays, in
        milliseconds) and C{NAME.utilization} (the fraction of the limit that is
        used); and how many meters there are, and how often one was shared for
        lack of room.

        @raise ValueError: if there are sensors of these names.
        """
        reads = {**self._algorithm.reads(rateName), "throttle-time": _meanDelayMs, "utilization": _utilization}
        for metric, read in reads.items():
            registry.addFamily(f"{name}.{metric}", self.labelNames, partial(self._samples, read))
        registry.addGauge(f"{name}.meters", lambda now: len(self))
        registry.addCounter(f"{name}.overflows", lambda now: self._table.overflows)

    def _samples(self, read: Callable[[Any, float], float], now: float) -> Iterator[tuple[Sequence[str], float]]:
        meters = {
            tuple(OVERFLOW if label == DEFAULT else label or "" for label in name): meter
            for name, meter in self._table.shared.items()
        }
        # Clients may call themselves by our words; then the labels are ours, and none come twice.
        for key, meter in self._table.items():
            meters.setdefault(tuple(label or "" for label in key), meter)
        for labels, meter in meters.items():
            yield labels, read(meter, now)

    def _limitNamed(self, name: _Key) -> Limit | None:
        return self._limits.find(QuotaEntity(*name), self.limitName)

    def _key(self, request: Request, limit: Limit | None) -> _Key:
        if limit is None:
            return (request.principal, request.clientId)
        entity = limit.entity
        return (
            None if entity.user is None else request.principal,
            None if entity.clientId is None else request.clientId,
        )

    def _find(self, request: Request) -> LimitMeter | None:
        try:
            return self._found[request.principal][request.clientId]
        except KeyError:
            limit = self.limitOf(request)
            return None if limit is None else self._table.find(self._key(request, limit), _sharedBy(limit))

    def _obtain(self, request: Request, now: float) -> tuple[LimitMeter | None, bool]:
        """
        Find or make the meter of whoever sends C{request}.

        @return: the meter, and whether it will be the same the next time.
        """
        table, limit = self._table, self.limitOf(request)
        if limit is None:
            return None, True
        sweeps, overflows = table.sweeps, table.overflows
        meter = table.obtain(self._key(request, limit), partial(self._algorithm.build, limit), now, _sharedBy(limit))
        if table.sweeps != sweeps:
            self._forget()
        return meter, table.overflows == overflows

    def _remember(self, request: Request, now: float) -> LimitMeter | None:
        meter, isSettled = self._obtain(request, now)
        if isSettled:
            if self._foundCount >= 2 * self._table.maxMeters:
                self._forget()
            self._found.setdefault(request.principal, {})[request.clientId] = meter
            self._foundCount += 1
        return meter

    def _forget(self) -> None:
        self._found.clear()
        self._foundCount = 0


class MeteredAddressLimit(MeteredLimit):
    """
    What addresses take of one limit: each has a meter of its own.
    """

    labelNames = ("ip",)

    def spend(self, request: Request, amount: float, now: float) -> float:
        if amount <= 0:
            return self.delaySeconds(request, now)
        meter, _ = self._obtain(request, now)
        if meter is None:
            return 0.0
        delaySeconds = meter.spend(amount, now)
        if delaySeconds:
            _note(meter, delaySeconds, now)
        return delaySeconds

    def limitOf(self, request: Request) -> Limit | None:
        """
        The limit of the address that C{request} comes from.
        """
        return self._limits.resolveAddress(request.peer, self.limitName)

    def _limitNamed(self, name: _Key) -> Limit | None:
        return self._limits.find(QuotaEntity(ip=name[0]), self.limitName)

    def _key(self, request: Request, limit: Limit | None) -> _Key:
        return (request.peer,)


def _name(entity: QuotaEntity) -> _Key:
    return (entity.user, entity.clientId) if entity.ip is None else (entity.ip,)


def _namesFor(key: _Key) -> Iterator[_Key]:
    """
    Whose limit may hold for the meter of C{key}, the most specific first.
    """
    return product(*((None,) if each is None else (each, DEFAULT) for each in key))


def _isOf(key: _Key, name: _Key) -> bool:
    """
    Whether the limit of C{name} may hold for the meter of C{key}.
    """
    return all(mine == each or (each == DEFAULT and mine is not None) for mine, each in zip(key, name, strict=True))


def _sharedBy(limit: Limit) -> _Key | None:
    """
    The key of the meter for those who come late, if C{limit} may be for anybody.
    """
    return None if limit.isNamed else _name(limit.entity)


def _note(meter: LimitMeter, delaySeconds: float, now: float) -> None:
    if meter.delays is None:
        meter.delays = SampledMean()
    meter.delays.record(delaySeconds, now)


def _meanDelayMs(meter: LimitMeter, now: float) -> float:
    return float("nan") if meter.delays is None else meter.delays.mean(now) * 1000


def _utilization(meter: LimitMeter, now: float) -> float:
    return meter.used(now) / meter.limit.value
