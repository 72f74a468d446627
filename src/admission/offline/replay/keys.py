# -*- test-case-name: tests.test_replay_keys -*-
"""
Which requests have to be replayed together.

Open loop, those that share a key of the policy.  Closed loop, what a policy does
to one request moves all that follow on its connection, so connections stay
whole, and those that share any key are replayed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ...interfaces import Request
from .clock import VirtualClock
from .live import Requester
from .ordered import batchOf, distinctRows
from .trials import Trial, TrialKey

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
"""With whom a connection is replayed; who is not there is replayed alone, as its own number."""

Key = str | None
"""A policy's key in words; L{None} if the policy takes no notice of the request."""


class KeyFinder:
    """
    The keys of one trial.

    A key goes by the kind of a request and by who sent it, not by its size and
    what else is in it.  It may change with the limits: it matters whether it is
    a user's or a client id's limit that holds.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._moments = sorted({change.atUs for change in trial.changes if not change.isStart})
        self._found: dict[tuple[int, Requester], Key] = {}

    def eras(self, atUs: Any) -> Any:
        """
        How often the limits had changed before each of these moments.

        @param atUs: an array.
        """
        return np.searchsorted(np.array(self._moments, np.int64), atUs, side="right")

    def find(self, wanted: Iterable[tuple[int, Requester]]) -> Sequence[Key]:
        """
        The keys of requesters, each in an era.
        """
        wanted = list(wanted)
        missing = sorted({each for each in wanted if each not in self._found})
        if missing:
            clock = VirtualClock()
            clock.rightNow = min(self._moments, default=0) / 1e6 - 1.0
            live = self._trial.begin(round(clock.rightNow * 1e6))
            for era, requester in missing:
                if era:
                    live.advance(self._moments[era - 1])
                key = live.policy.replayKey(Request(*requester, 0))
                self._found[era, requester] = None if key is None else repr(key)
        return [self._found[each] for each in wanted]

    def findAll(self, requesters: Iterable[Requester]) -> Iterator[tuple[Requester, Key]]:
        """
        The keys of requesters in all eras.
        """
        wanted = [(era, requester) for requester in requesters for era in range(len(self._moments) + 1)]
        keys = self.find(wanted)
        yield from dict.fromkeys((requester, key) for (_, requester), key in zip(wanted, keys, strict=True))


def findLinks(batches: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial]) -> Iterator[pa.RecordBatch]:
    """
    Find which keys the connections have, at whatever time.

    @param batches: of L{admission.offline.replay.offers.OFFERS}, in any order.
    @return: of L{LINKS}; each is there once or, from separate tasks, a few times.
    """
    finders = {key: KeyFinder(trial) for key, trial in trials.items()}
    names = ["candidate", "broker_id", "boot_id", "conn_id", "kind", "principal", "client_id", "peer"]
    told: set[tuple[Any, ...]] = set()
    for batch in batches:
        table = pa.table({name: batch.column(name) for name in [*names, "is_asked"]})
        seen = table.filter(table["is_asked"]).group_by(names).aggregate([]).select(names)
        links: list[tuple[Any, ...]] = []
        byTrial: dict[TrialKey, list[tuple[int, Requester]]] = {}
        for label, brokerId, bootId, connectionId, *requester in zip(
            *(column.to_pylist() for column in seen.columns), strict=True
        ):
            byTrial.setdefault((label, brokerId, bootId), []).append((connectionId, tuple(requester)))
        for trialKey, pairs in byTrial.items():
            keys: dict[Requester, list[str]] = {}
            for asker, key in finders[trialKey].findAll({requester for _, requester in pairs}):
                if key is not None:
                    keys.setdefault(asker, []).append(key)
            links += [(*trialKey, connectionId, key) for connectionId, asker in pairs for key in keys.get(asker, ())]
        new = [link for link in dict.fromkeys(links) if link not in told]
        told.update(new)
        if new:
            yield batchOf(new, LINKS)


def findComponents(links: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """
    Put connections together that share keys, directly or through others.  For
    the driver: it remembers every connection and every key.

    @param links: of L{LINKS}.
    @return: of L{COMPONENTS}; a component is called by its first connection.
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


def addComponents(batches: Iterable[pa.RecordBatch], components: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """
    Tell for each row with whom it is replayed.

    @param batches: of L{admission.offline.replay.offers.OFFERS}, in any order.
    @param components: of L{COMPONENTS}, all there are.
    @return: the same with a column C{component}.
    """
    places = [name for name in COMPONENTS.names if name != "component"]
    numbers = {
        tuple(place): component
        for *place, component in zip(*(components.column(name).to_pylist() for name in COMPONENTS.names), strict=True)
    }
    for batch in batches:
        found, rows = distinctRows([batch.column(name) for name in places])
        component = np.array([numbers.get(place, place[-1]) for place in found], np.int64)[rows]
        yield batch.append_column("component", pa.array(component))


def _root(parents: dict[int | str, int | str], node: int | str) -> int | str:
    parent = parents.setdefault(node, node)
    while parent != node:
        parents[node] = parents[parent]
        node, parent = parents[node], parents[parents[node]]
    return node
