# -*- test-case-name: tests.unit.quotas.test_limits -*-
"""
Who has which limit, and whose limit holds for a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import TypeVar

from attrs import frozen

from ..interfaces import DEFAULT, QuotaEntity

_K = TypeVar("_K")
_V = TypeVar("_V")


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
"""What limits can be set for that hold before anybody has said who they are."""


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


@frozen
class Limit:
    """
    A limit in force.

    @ivar name: such as C{"producer_byte_rate"}.
    @ivar value: in the unit of the limit; finite and positive.
    @ivar entity: whom it was set for.
    """

    name: str
    value: float
    entity: QuotaEntity

    @property
    def isNamed(self) -> bool:
        """
        Whether it is somebody's own, so that there are no more who have it
        than limits that have been set.
        """
        return DEFAULT not in (self.entity.user, self.entity.clientId, self.entity.ip)


class LimitTable:
    """
    The limits of one policy.

    @ivar limitNames: the limits it knows.
    @ivar kinds: what they can be set for.
    @ivar limits: all that are set, by entity; a live view.
    """

    def __init__(self, limitNames: Sequence[str], kinds: Collection[EntityKind] = CLIENT_KINDS) -> None:
        self.limitNames = tuple(limitNames)
        self.kinds = frozenset(kinds)
        self._limits: dict[QuotaEntity, dict[str, float]] = {}
        self.limits: Mapping[QuotaEntity, Mapping[str, float]] = self._limits
        self._ofClients: dict[str, dict[tuple[str | None, str | None], Limit]] = {name: {} for name in limitNames}
        self._ofAddresses: dict[str, dict[str, Limit]] = {name: {} for name in limitNames}

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
        for name, value in limits.items():
            if name not in self.limitNames:
                raise ValueError(f"no limit is called {name!r}; known: {', '.join(self.limitNames)}")
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"{name} must be finite and more than zero, not {value}")

        for name, value in limits.items():
            self._set(entity, name, value)

    def of(self, limitName: str) -> Iterator[Limit]:
        """
        Everybody's limits of that name.

        @raise KeyError: if there is no limit of that name.
        """
        yield from self._ofClients[limitName].values()
        yield from self._ofAddresses[limitName].values()

    def find(self, entity: QuotaEntity, limitName: str) -> Limit | None:
        """
        The limit that is set for exactly C{entity}.

        @raise KeyError: if there is no limit of that name.
        """
        if entity.ip is not None:
            return self._ofAddresses[limitName].get(entity.ip)
        return self._ofClients[limitName].get((entity.user, entity.clientId))

    def resolve(self, principal: str, clientId: str, limitName: str) -> Limit | None:
        """
        Find the limit that holds for a client: the most specific one there is,
        a user's before a client id's, a named one before a default, as Kafka
        resolves them.  An empty client id has the default's.

        @raise KeyError: if there is no limit of that name.
        """
        limits = self._ofClients[limitName]
        for key in (
            (principal, clientId),
            (principal, DEFAULT),
            (principal, None),
            (DEFAULT, clientId),
            (DEFAULT, DEFAULT),
            (DEFAULT, None),
            (None, clientId),
            (None, DEFAULT),
        ):
            limit = limits.get(key)
            if limit is not None:
                return limit
        return None

    def resolveAddress(self, ip: str, limitName: str) -> Limit | None:
        """
        Find the limit that holds for an address: its own, or the default.

        @raise KeyError: if there is no limit of that name.
        """
        limits = self._ofAddresses[limitName]
        return limits.get(ip) or limits.get(DEFAULT)

    def _set(self, entity: QuotaEntity, name: str, value: float | None) -> None:
        limit = None if value is None else Limit(name, value, entity)
        if entity.ip is not None:
            _put(self._ofAddresses[name], entity.ip, limit)
        else:
            _put(self._ofClients[name], (entity.user, entity.clientId), limit)
        values = self._limits.setdefault(entity, {})
        _put(values, name, value)
        if not values:
            del self._limits[entity]


def _put(table: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
