# -*- test-case-name: tests.offline.simulate.test_arrivals -*-
"""
Which requests have to be replayed together.

Open loop, requests that share a key of the policy.  Closed loop, a delay of one request moves all later ones on its
connection, so connections stay whole, and connections that share any key are replayed together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from ..kinds import TWO_WAY
from .live import Requester, requesterOf
from .ordered import Batches
from .trials import Trial, TrialKey

CLIENT_REQUESTS = pa.schema(
    [
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("conn_id", pa.int64()),
        ("kind", pa.string()),
        ("principal", pa.string()),
        ("client_id", pa.string()),
        ("peer", pa.string()),
        ("traits", pa.int64()),
        ("is_decided", pa.bool_()),
        ("requests", pa.int64()),
    ]
)
"""
Which client sent which requests, how many, and whether the policies were asked about them. Rows may repeat.  Of
connections that are L{Alike} the first stands for all.
"""

Connections = tuple[Any, Any]
"""
Arrays: the numbers of connections in order, and the component of each.  A connection that is missing is a component of
its own.
"""

Alike = tuple[Any, Any]
"""
Arrays: the numbers of connections in order, and for each of them the first one that the same clients sent requests of
the same kinds on.  A connection that is missing is the first itself.
"""

Key = str | None
"""A policy's key as text; L{None} if the policy ignores the request."""

Keys = Mapping[Requester, Sequence[str]]
"""The keys of each requester, at any time."""


class KeyFinder:
    """
    The keys of one trial.

    A key depends on the kind of a request and its sender, not on its size or content.  It may change with the limits,
    for instance when a user's limit takes the place of a client id's.  Where there are requests that count in both
    directions, those that count in one may share a meter with them, and have the keys that they would have.

    @ivar moments: when the limits changed.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.moments: Sequence[int] = sorted({change.atUs for change in trial.changes if not change.isStart})
        self._found: dict[tuple[int, Requester], Key] = {}

    def eras(self, atUs: Any) -> Any:
        """
        How often the limits had changed before each of these moments.

        @param atUs: an array.
        """
        return np.searchsorted(np.array(self.moments, np.int64), atUs, side="right")

    def find(self, wanted: Iterable[tuple[int, Requester]]) -> Sequence[Key]:
        """
        The keys of requesters, each in an era.
        """
        wanted = [(era, self._asAsked(requester)) for era, requester in wanted]
        missing = sorted({each for each in wanted if each not in self._found})
        if missing:
            live = self._trial.begin(min(self.moments, default=0) - 1_000_000)
            for era, requester in missing:
                if era:
                    live.advance(self.moments[era - 1])
                key = live.keyOf(requester)
                self._found[era, requester] = None if key is None else repr(key)
        return [self._found[each] for each in wanted]

    def _asAsked(self, requester: Requester) -> Requester:
        *names, code = requester
        if self._trial.run.hasTwoWay and code & TWO_WAY:
            return requesterOf((*names, code | TWO_WAY))
        return requester

    def findAll(self, requesters: Collection[Requester]) -> tuple[Keys, bytes]:
        """
        The keys of requesters in all eras.

        @return: for each requester with any keys these keys, and a digest, which is equal if all requesters have the
            same keys in every era.
        """
        keys: dict[Requester, dict[str, None]] = {}
        digest = blake2b(repr(self.moments).encode())
        wanted = [(era, requester) for era in range(len(self.moments) + 1) for requester in requesters]
        for (era, requester), key in zip(wanted, self.find(wanted), strict=True):
            digest.update(repr((era, requester, key)).encode())
            if key is not None:
                keys.setdefault(requester, {})[key] = None
        return {requester: list(found) for requester, found in keys.items()}, digest.digest()


@frozen
class Client:
    """
    The requests of one kind on a connection and on those L{Alike}: their sender and number.
    """

    connectionId: int
    requester: Requester
    requests: int


def clientsOf(batches: Batches, trials: Mapping[TrialKey, Trial]) -> dict[TrialKey, list[Client]]:
    """
    The clients whose requests each trial may be asked about.

    @param batches: of L{CLIENT_REQUESTS}.
    """
    decided: dict[tuple[str, ...], list[Client]] = {}
    others: dict[tuple[str, ...], list[Client]] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in CLIENT_REQUESTS.names)
        for brokerId, bootId, connectionId, *requester, isDecided, requests in zip(*columns, strict=True):
            client = Client(connectionId, requesterOf(requester), requests)
            (decided if isDecided else others).setdefault((brokerId, bootId), []).append(client)
    return {
        key: decided.get(key[1:], []) + (others.get(key[1:], []) if trial.mayBeAskedMore else [])
        for key, trial in trials.items()
    }


def findKeys(trial: Trial, clients: Iterable[Client]) -> tuple[Keys, bytes]:
    """
    The keys of each requester, see L{KeyFinder.findAll}.
    """
    return KeyFinder(trial).findAll(sorted({client.requester for client in clients}))


def findComponents(clients: Iterable[Client], keys: Keys) -> Connections:
    """
    Put connections together that share keys at any time, directly or through others.  For the driver: this holds every
    key in memory, and one of the connections that are L{Alike}.

    @param clients: of a trial, see L{clientsOf}.
    @param keys: of the same, see L{findKeys}.
    @return: the connections with any keys; a component has the number of its first connection.
    """
    parents: dict[int | str, int | str] = {}
    for client in clients:
        for key in keys.get(client.requester, ()):
            parents[_root(parents, key)] = _root(parents, client.connectionId)
    firsts: dict[int | str, int] = {}
    connections = sorted(node for node in parents if isinstance(node, int))
    components = [firsts.setdefault(_root(parents, each), each) for each in connections]
    return np.array(connections, np.int64), np.array(components, np.int64)


def firstsOf(alike: Alike | None, connectionIds: Any) -> Any:
    """
    For each connection the first of those that are alike.
    """
    return connectionIds if alike is None else _found(alike, connectionIds, connectionIds)


def componentsIn(connections: Connections, firsts: Any, otherwise: Any) -> Any:
    """
    The components of connections.

    @param firsts: see L{firstsOf}.
    @param otherwise: the numbers of those without keys.
    """
    return _found(connections, firsts, otherwise)


def _found(mapping: tuple[Any, Any], numbers: Any, otherwise: Any) -> Any:
    known, values = mapping
    if not len(known):
        return otherwise
    places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[places] == numbers, values[places], otherwise)


def _root(parents: dict[int | str, int | str], node: int | str) -> int | str:
    parent = parents.setdefault(node, node)
    while parent != node:
        parents[node] = parents[parent]
        node, parent = parents[node], parents[parents[node]]
    return node
