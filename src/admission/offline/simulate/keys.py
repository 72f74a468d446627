# -*- test-case-name: tests.offline.simulate.test_arrivals -*-
"""
Which requests have to be replayed together.

Open loop, requests that share a key of the policy.  Closed loop, a delay of one request moves all later ones on its
connection, so connections stay whole, and connections that share any key are replayed together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from .live import Requester, requesterOf
from .ordered import Batches, batchOf, distinctRows, numbersOf
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
Which client sent which requests, how many, and whether the policies were asked about them. Rows may repeat.
"""

LINKS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("conn_id", pa.int64()),
        ("replay_key", pa.string()),
    ]
)
"""A connection with a request of that key."""

COMPONENTS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("conn_id", pa.int64()),
        ("component", pa.int64()),
    ]
)
"""The component of each connection; a connection that is missing here is a component of its own."""

Connections = tuple[Any, Any]
"""Arrays: the numbers of connections in order, and the component of each."""

Key = str | None
"""A policy's key as text; L{None} if the policy ignores the request."""

Keys = Mapping[Requester, Sequence[str]]
"""The keys of each requester, at any time."""


class KeyFinder:
    """
    The keys of one trial.

    A key depends on the kind of a request and its sender, not on its size or content.  It may change with the limits,
    for instance when a user's limit takes the place of a client id's.

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
        wanted = list(wanted)
        missing = sorted({each for each in wanted if each not in self._found})
        if missing:
            live = self._trial.begin(min(self.moments, default=0) - 1_000_000)
            for era, requester in missing:
                if era:
                    live.advance(self.moments[era - 1])
                key = live.keyOf(requester)
                self._found[era, requester] = None if key is None else repr(key)
        return [self._found[each] for each in wanted]

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
    The requests of one kind on one connection: their sender and number.
    """

    connectionId: int
    requester: Requester
    requests: int


def findClients(requests: Batches) -> pa.RecordBatch:
    """
    Find the clients of these requests.

    @param requests: of L{admission.offline.simulate.arrivals.COLUMNS}, in any order.
    @return: of L{CLIENT_REQUESTS}, without repetitions.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    for batch in requests:
        columns = [batch.column(name) for name in CLIENT_REQUESTS.names[:-2]]
        found, rows = distinctRows([*columns, batch.column("decided_mono_us").is_valid()])
        for (brokerId, bootId, connectionId, *requester, isDecided), requested in zip(
            found, np.bincount(rows, minlength=len(found)).tolist(), strict=True
        ):
            counts[brokerId, bootId, connectionId, *requesterOf(requester), isDecided] += requested
    return batchOf([(*client, requests) for client, requests in counts.items()], CLIENT_REQUESTS)


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


def findLinks(clients: Mapping[TrialKey, Sequence[Client]], keys: Mapping[TrialKey, Keys]) -> pa.Table:
    """
    Find the keys of connections, at any time.

    @param clients: of each trial, see L{clientsOf}.
    @param keys: of the trials to search, see L{findKeys}.
    @return: of L{LINKS}, without repetitions.
    """
    links = dict.fromkeys(
        (*trialKey, client.connectionId, key)
        for trialKey, keysOf in keys.items()
        for client in clients[trialKey]
        for key in keysOf.get(client.requester, ())
    )
    return pa.Table.from_batches([batchOf(list(links), LINKS)])


def findComponents(links: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """
    Put connections together that share keys, directly or through others.  For the driver: this holds every connection
    and every key in memory.

    @param links: of L{LINKS}.
    @return: of L{COMPONENTS}; a component has the number of its first connection.
    """
    forests: dict[TrialKey, dict[int | str, int | str]] = {}
    for batch in links:
        for label, brokerId, bootId, connectionId, key in zip(
            *(batch.column(name).to_pylist() for name in LINKS.names), strict=True
        ):
            parents = forests.setdefault((label, brokerId, bootId), {})
            parents[_root(parents, key)] = _root(parents, connectionId)
    rows: list[tuple[Any, ...]] = []
    for trialKey, parents in sorted(forests.items()):
        firsts: dict[int | str, int] = {}
        connections = sorted(node for node in parents if isinstance(node, int))
        rows += [(*trialKey, each, firsts.setdefault(_root(parents, each), each)) for each in connections]
    return batchOf(rows, COMPONENTS)


NO_CONNECTIONS: Connections = (np.zeros(0, np.int64), np.zeros(0, np.int64))
"""Each connection is a component of its own."""


def connectionsOf(components: pa.RecordBatch) -> dict[TrialKey, Connections]:
    """
    Each trial's connections in order, and their components.

    @param components: of L{COMPONENTS}.
    """
    known: dict[TrialKey, Connections] = {}
    found, rows = distinctRows([components.column(name) for name in COMPONENTS.names[:3]])
    connections, numbers = (numbersOf(components.column(name)) for name in COMPONENTS.names[3:])
    for index, (label, brokerId, bootId) in enumerate(found):
        here = np.flatnonzero(rows == index)
        here = here[np.argsort(connections[here])]
        known[label, brokerId, bootId] = connections[here], numbers[here]
    return known


def componentsIn(connections: Connections, connectionIds: Any) -> Any:
    known, numbers = connections
    if not len(known):
        return connectionIds
    places = np.minimum(np.searchsorted(known, connectionIds), len(known) - 1)
    return np.where(known[places] == connectionIds, numbers[places], connectionIds)


def _root(parents: dict[int | str, int | str], node: int | str) -> int | str:
    parent = parents.setdefault(node, node)
    while parent != node:
        parents[node] = parents[parent]
        node, parent = parents[node], parents[parents[node]]
    return node
