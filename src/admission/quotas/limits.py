# -*- test-case-name: tests.unit.quotas.test_limits -*-
"""
Which client has which limit, and which limit holds for a request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from itertools import product
from math import isfinite
from typing import Any, Final, TypeVar

from attrs import frozen

from ..interfaces import DEFAULT, QuotaEntity
from ..names import boundedName

_K = TypeVar("_K")
_V = TypeVar("_V")

UNLIMITED: Final = float(2**63)
"""Kafka's limit that is none: its largest whole number, 2^63 - 1, as the nearest double."""

EntityKey = tuple[str | None, ...]
"""A user and a client id, L{None} for what does not matter, or an address alone."""


class EntityKind(Enum):
    """
    What a L{QuotaEntity} is about; the values are its name in messages.
    """

    USER = "a user"
    CLIENT = "a client id"
    USER_CLIENT = "a client id of one user"
    IP = "an address"


CLIENT_KINDS = (EntityKind.USER, EntityKind.CLIENT, EntityKind.USER_CLIENT)
"""What most limits can be set for."""

ADDRESS_KINDS = (EntityKind.IP,)
"""What limits can be set for that hold before the client has authenticated."""


def kindOf(entity: QuotaEntity) -> EntityKind:
    """
    What C{entity} is about.

    @raise ValueError: if it is about nothing, about an address and something
        else, or has an empty name.
    """
    if "" in (entity.user, entity.clientId, entity.ip):
        raise ValueError("a limit needs a name to be for; an empty one shares the default")
    if entity.ip is not None:
        if entity.user is not None or entity.clientId is not None:
            raise ValueError("a limit is for an address or for a user and client id, not for both")
        return EntityKind.IP
    if entity.user is not None:
        return EntityKind.USER if entity.clientId is None else EntityKind.USER_CLIENT
    if entity.clientId is None:
        raise ValueError("a limit is for somebody: a user, a client id, both, or an address")
    return EntityKind.CLIENT


def keyOf(entity: QuotaEntity) -> EntityKey:
    """
    The names of an entity as requests have them.
    """
    return (_bounded(entity.user), _bounded(entity.clientId)) if entity.ip is None else (entity.ip,)


def _bounded(name: str | None) -> str | None:
    return None if name is None else boundedName(name)


@frozen
class Limit:
    """
    A limit in force.

    @ivar name: such as C{"received_byte_rate"}.
    @ivar value: in the unit of the limit; finite and positive.
    @ivar entity: whom it was set for.
    """

    name: str
    value: float
    entity: QuotaEntity

    @property
    def isNamed(self) -> bool:
        """
        Whether it was set by name and is no default, so that no more clients
        have it than limits were set.
        """
        return DEFAULT not in (self.entity.user, self.entity.clientId, self.entity.ip)


class LimitTable:
    """
    The limits of one policy.

    @ivar limitNames: the limits it knows.
    @ivar kinds: what they can be set for.
    @ivar limits: all that are set, by entity; a live view.
    @ivar unlimited: a limit of that value or more is none, and exempts a client
        from a default.
    """

    def __init__(
        self, limitNames: Sequence[str], kinds: Collection[EntityKind] = CLIENT_KINDS, unlimited: float = UNLIMITED
    ) -> None:
        self.limitNames = tuple(limitNames)
        self.kinds = frozenset(kinds)
        self.unlimited = unlimited
        self._limits: dict[QuotaEntity, dict[str, float]] = {}
        self.limits: Mapping[QuotaEntity, Mapping[str, float]] = self._limits
        self._byName: dict[str, dict[EntityKey, Limit]] = {name: {} for name in limitNames}

    @property
    def isLimiting(self) -> bool:
        """
        Whether any client may have a limit.
        """
        return any(value < self.unlimited for values in self._limits.values() for value in values.values())

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None]) -> None:
        """
        Set or (with L{None}) remove limits of one entity.

        @raise ValueError: for an unknown limit, one that is not finite and
            positive, or an entity that none can be set for; nothing is changed then.
        """
        kind = kindOf(entity)
        if kind not in self.kinds:
            allowed = " or ".join(each.value for each in EntityKind if each in self.kinds)
            raise ValueError(f"{', '.join(limits) or 'a limit'} can be set for {allowed}, not for {kind.value}")
        # Compiled code would refuse them in words of its own.
        given: Mapping[str, Any] = limits
        for name, value in given.items():
            if name not in self.limitNames:
                raise ValueError(f"no limit is called {name!r}; known: {', '.join(self.limitNames)}")
            if value is not None and not (isinstance(value, int | float) and isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number, finite and more than zero, not {value!r}")

        for name, value in limits.items():
            _put(self._byName[name], keyOf(entity), None if value is None else Limit(name, value, entity))
            values = self._limits.setdefault(entity, {})
            _put(values, name, value)
            if not values:
                del self._limits[entity]

    def find(self, entity: QuotaEntity, limitName: str) -> Limit | None:
        """
        The limit that is set for exactly C{entity}.

        @raise KeyError: if there is no limit of that name.
        """
        return self._effective(self._byName[limitName].get(keyOf(entity)))

    def resolve(self, principal: str, clientId: str, limitName: str) -> Limit | None:
        """
        Find the limit that holds for a client: the most specific one, a user's
        before a client id's, a named one before a default, as Kafka resolves
        them.  An empty client id has the default's.

        @raise KeyError: if there is no limit of that name.
        """
        limits = self._byName[limitName]
        return self._effective(
            limits.get((principal, clientId))
            or limits.get((principal, DEFAULT))
            or limits.get((principal, None))
            or limits.get((DEFAULT, clientId))
            or limits.get((DEFAULT, DEFAULT))
            or limits.get((DEFAULT, None))
            or limits.get((None, clientId))
            or limits.get((None, DEFAULT))
        )

    def resolveAddress(self, ip: str, limitName: str) -> Limit | None:
        """
        Find the limit that holds for an address: its own, or the default.

        @raise KeyError: if there is no limit of that name.
        """
        limits = self._byName[limitName]
        return self._effective(limits.get((ip,)) or limits.get((DEFAULT,)))

    def resolveKey(self, key: EntityKey, limitName: str) -> Limit | None:
        """
        Find the limit that holds for clients that share a meter.

        @raise KeyError: if there is no limit of that name.
        """
        limits = self._byName[limitName]
        candidates = product(*((None,) if each is None else (each, DEFAULT) for each in key))
        return self._effective(next(filter(None, map(limits.get, candidates)), None))

    def _effective(self, limit: Limit | None) -> Limit | None:
        return None if limit is None or limit.value >= self.unlimited else limit


def _put(table: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
