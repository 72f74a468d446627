# -*- test-case-name: tests.offline.simulate.test_shards -*-
"""
How arrivals are sharded: which trials share them, and which rows have to be in one partition.

The arrivals of trials with the same view of the same requests and the same grouping are shuffled once, not for each
trial.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from .arrivals import ARRIVALS, makeArrivals
from .closedloop import replayClosedLoop
from .decisions import CLOSED, OPEN
from .keys import Client, Connections, Keys, componentsIn, findComponents, findKeys
from .openloop import replayOpenLoop
from .ordered import Batches, codesOf, numbersOf
from .trials import Trial, TrialKey

Step = Callable[[Batches], Iterator[pa.RecordBatch]]
"""A transformation of batches."""

_TRIAL = ("candidate", "broker_id", "boot_id")
_SHIPPED = [field for field in ARRIVALS if field.name not in _TRIAL]

SHARDED = pa.schema([("replay", pa.int32()), ("shard_key", pa.int64()), *_SHIPPED])
"""Arrivals of one shared replay; C{shard_key} numbers the policy's key, or closed loop the component."""

SHARD: Sequence[str] = ("replay", "shard_key")
"""All rows with the same values of these must be in one partition."""

_ORDERS: Mapping[str, Sequence[str]] = {
    OPEN: (*SHARD, "at_us", "seq"),
    CLOSED: (*SHARD, "conn_id", "arrived_us", "seq"),
}

_ALLOCATIONS = 50_000


@frozen
class SharedReplay:
    """
    Trials in the same run of a server that share their arrivals.

    @ivar number: its index in L{ReplayPlan.replays}.
    @ivar trials: at least one.
    """

    number: int
    trials: Sequence[Trial]

    @property
    def leader(self) -> Trial:
        """
        The trial that arrivals are made for.
        """
        return self.trials[0]


@frozen
class ReplayPlan:
    """
    All shared replays of one mode, and how their arrivals are sharded.  It can
    be pickled.

    @ivar mode: of L{admission.offline.simulate.decisions}.
    @ivar replays: by number.
    @ivar components: closed loop, for each leader its connections in order and
        their components.
    """

    mode: str
    replays: Sequence[SharedReplay]
    components: Mapping[TrialKey, Connections]

    @property
    def order(self) -> Sequence[str]:
        """
        The sort columns of each partition.
        """
        return _ORDERS[self.mode]

    def shard(self, requests: Batches) -> Iterator[pa.RecordBatch]:
        """
        Make arrivals, with their shard columns.

        @param requests: of L{admission.offline.simulate.arrivals.columnsFor} all trials, in any order.
        @return: of L{SHARDED}.
        """
        byLeader = {each.leader.key: each for each in self.replays}
        for batch in makeArrivals(requests, {key: each.leader for key, each in byLeader.items()}):
            leader = tuple(batch.column(name)[0].as_py() for name in _TRIAL)
            if self.mode == CLOSED:
                keys = componentsIn(self.components[leader], numbersOf(batch.column("conn_id")))
            else:
                keys = shardKeys(batch)
            number = np.full(batch.num_rows, byLeader[leader].number, np.int32)
            columns = [pa.array(number), pa.array(keys), *(batch.column(field.name) for field in _SHIPPED)]
            yield pa.record_batch(columns, SHARDED)

    def replay(self, rows: Batches, finish: Step | None = None) -> Iterator[pa.RecordBatch]:
        """
        Replay the rows of a partition.

        @param rows: of L{SHARDED}, sorted by L{order}.
        @param finish: see L{admission.offline.simulate.sparkreplay.replay}.
        @return: of L{admission.offline.simulate.decisions.DECISIONS}, or the result of C{finish}.
        @raise OutOfOrder: if they are not sorted this way.
        """
        shared = {each.leader.key: each.trials for each in self.replays}
        arrivals = self._addressed(rows)
        decisions = (replayOpenLoop if self.mode == OPEN else replayClosedLoop)(arrivals, shared)
        with _fewCollections():
            yield from decisions if finish is None else finish(decisions)

    def _addressed(self, rows: Batches) -> Iterator[pa.RecordBatch]:
        """
        The same rows with the leader's columns in place of the shared replay's number.
        """
        for batch in rows:
            numbers = numbersOf(batch.column("replay"))
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for start, stop in pairwise(bounds if len(numbers) else ()):
                part = batch.slice(start, stop - start)
                values = dict(zip(part.schema.names, part.columns, strict=True))
                leader = self.replays[numbers[start]].leader
                for name, text in zip(_TRIAL, leader.key, strict=True):
                    codes = pa.array(np.zeros(stop - start, np.int32))
                    values[name] = pa.DictionaryArray.from_arrays(codes, pa.array([text]))
                values["component"] = values["shard_key"]
                yield pa.RecordBatch.from_arrays(list(values.values()), list(values))


def planReplays(
    trials: Mapping[TrialKey, Trial],
    modes: Collection[str],
    clients: Mapping[TrialKey, Sequence[Client]],
    workers: int = 1,
) -> list[ReplayPlan]:
    """
    Find which trials can share their arrivals.  For the driver: this holds every client, and every connection with
    every key, in memory.

    Where one shard is so large that some workers would be idle, each trial has its own arrivals.

    @param modes: one or two.
    @param clients: see L{admission.offline.simulate.keys.clientsOf}.
    @param workers: how many tasks may run at a time.
    @return: a plan for each mode.
    """
    alike: dict[tuple[Any, ...], list[Trial]] = {}
    keys: dict[TrialKey, Keys] = {}
    for key, trial in trials.items():
        found, digest = findKeys(trial, clients[key])
        view = (key[1:], trial.view, trial.horizonSeconds, digest)
        if view not in alike:
            keys[key] = found
        alike.setdefault(view, []).append(trial)
    groups = list(alike.values())
    demand = sum(len(each) * sum(client.requests for client in clients[each[0].key]) for each in groups)
    plans = []
    for mode in modes:
        replays: list[SharedReplay] = []
        components = {}
        for each in groups:
            leader = each[0].key
            known = findComponents(clients[leader], keys[leader]) if mode == CLOSED else None
            largest = _largest(clients[leader], keys[leader], known)
            isTooMuch = largest * len(each) * workers > demand
            for together in [[trial] for trial in each] if isTooMuch else [each]:
                if known is not None:
                    components[together[0].key] = known
                replays.append(SharedReplay(len(replays), together))
        plans.append(ReplayPlan(mode, replays, components))
    return plans


def shardKeys(batch: pa.RecordBatch) -> Any:
    """
    A number for each row's key, the same on every worker; rows without a key have any.

    @param batch: of L{ARRIVALS}.
    """
    codes, keys = codesOf(batch.column("replay_key"))
    # If two keys ever get the same number, the replay refuses their rows as out of order.
    numbers = [int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), signed=True) for key in keys]
    return np.where(codes < 0, numbersOf(batch.column("seq")), np.array([*numbers, 0], np.int64)[codes])


@contextmanager
def _fewCollections() -> Iterator[None]:
    """
    A context in which garbage is collected rarely: a replay makes many objects and hardly any cycles, and looking for
    these takes a tenth of its time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _largest(clients: Sequence[Client], keys: Keys, connections: Connections | None) -> int:
    """
    The number of requests in the largest shard.

    @param connections: if given, shards are components, not keys.
    """
    counts: Counter[Any] = Counter()
    if connections is None:
        for client in clients:
            counts.update(dict.fromkeys(keys.get(client.requester, ()), client.requests))
    else:
        found = componentsIn(connections, np.array([client.connectionId for client in clients], np.int64))
        for component, client in zip(found.tolist(), clients, strict=True):
            counts[component] += client.requests
    return max(counts.values(), default=0)
