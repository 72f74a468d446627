# -*- test-case-name: tests.offline.simulate.test_shards -*-
"""
How arrivals are sharded: which trials share them, and which rows have to be in one partition.

The arrivals of trials with the same view of the same requests and the same grouping are shuffled once, not for each
trial.  Those of runs that are replayed together are sharded as if they were of one run.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve, field, frozen

from .arrivals import ARRIVALS, CLOSED_ORDER, OPEN_ORDER, makeArrivals
from .closedloop import replayClosedLoop
from .decisions import CLOSED, OPEN
from .keys import Alike, Client, Connections, Keys, componentsIn, findComponents, findKeys, firstsOf
from .live import Requester
from .openloop import replayOpenLoop
from .ordered import Batches, codesOf, numbersOf
from .together import Together, onCalendar, sharedNumber
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
    OPEN: (*SHARD, *OPEN_ORDER),
    CLOSED: (*SHARD, *CLOSED_ORDER),
}

_ALLOCATIONS = 50_000


@frozen
class SharedReplay:
    """
    Trials in the same run of a server, or in the same runs together, that share their arrivals.

    @ivar number: its index in L{ReplayPlan.replays}.
    @ivar trials: those of each candidate; at least one.
    """

    number: int
    trials: Sequence[Together]

    @property
    def leaders(self) -> Together:
        """
        The trials that arrivals are made for.
        """
        return self.trials[0]

    @property
    def key(self) -> TrialKey:
        """
        The key of all its arrivals.
        """
        return self.leaders[0].key


@frozen
class ReplayPlan:
    """
    All shared replays of one mode, and how their arrivals are sharded.  It can
    be pickled.

    @ivar mode: of L{admission.offline.simulate.decisions}.
    @ivar replays: by number.
    @ivar components: closed loop, by L{SharedReplay.key}.
    @ivar alike: closed loop, by broker and run.
    """

    mode: str
    replays: Sequence[SharedReplay]
    components: Mapping[TrialKey, Connections]
    alike: Mapping[tuple[str, ...], Alike] = field(factory=dict)

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
        places = {trial.key: (each, place) for each in self.replays for place, trial in enumerate(each.leaders)}
        leaders = {trial.key: trial for each in self.replays for trial in each.leaders}
        for arrivals in makeArrivals(requests, leaders):
            replay, place = places[tuple(arrivals.column(name)[0].as_py() for name in _TRIAL)]
            batch = onCalendar(arrivals, replay.leaders, place)
            if self.mode == CLOSED:
                run = replay.leaders[place].key[1:]
                firsts = firstsOf(self.alike.get(run), numbersOf(arrivals.column("conn_id")))
                if len(replay.leaders) > 1:
                    firsts = sharedNumber(firsts, replay.leaders, place)
                keys = componentsIn(self.components[replay.key], firsts, numbersOf(batch.column("conn_id")))
            else:
                keys = shardKeys(batch)
            number = np.full(batch.num_rows, replay.number, np.int32)
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
        shared = {each.key: each.trials for each in self.replays}
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
                replay = self.replays[numbers[start]]
                for name, text in zip(_TRIAL, replay.key, strict=True):
                    codes = pa.array(np.zeros(stop - start, np.int32))
                    values[name] = pa.DictionaryArray.from_arrays(codes, pa.array([text]))
                values["component"] = values["shard_key"]
                yield pa.RecordBatch.from_arrays(list(values.values()), list(values))


def planReplays(
    trials: Mapping[TrialKey, Trial],
    modes: Collection[str],
    clients: Mapping[TrialKey, Sequence[Client]],
    workers: int = 1,
    alike: Mapping[tuple[str, ...], Alike] | None = None,
) -> list[ReplayPlan]:
    """
    Find which trials can share their arrivals.  For the driver: this holds every client with every key in memory, and
    the number of every connection.

    Where one shard is so large that some workers would be idle, each trial has its own arrivals.

    @param modes: one or two.
    @param clients: see L{admission.offline.simulate.keys.clientsOf}.
    @param workers: how many tasks may run at a time.
    @param alike: by broker and run, the connections of which others stand for in C{clients}.
    @return: a plan for each mode.
    """
    sharing: dict[tuple[Any, ...], list[Together]] = {}
    found: dict[TrialKey, tuple[Sequence[Client], Keys]] = {}
    for together in _together(trials.values()):
        keys, digests = zip(*(findKeys(trial, clients[trial.key]) for trial in together), strict=True)
        view = tuple(
            (trial.key[1:], trial.view, trial.horizonSeconds, digest)
            for trial, digest in zip(together, digests, strict=True)
        )
        if view not in sharing:
            found[together[0].key] = _merged(together, clients, keys)
        sharing.setdefault(view, []).append(together)
    groups = list(sharing.values())
    demand = sum(len(each) * sum(client.requests for client in found[each[0][0].key][0]) for each in groups)
    plans = []
    for mode in modes:
        replays: list[SharedReplay] = []
        components = {}
        for each in groups:
            ofGroup, keysOfGroup = found[each[0][0].key]
            known = findComponents(ofGroup, keysOfGroup) if mode == CLOSED else None
            largest = _largest(ofGroup, keysOfGroup, known)
            isTooMuch = largest * len(each) * workers > demand
            for some in [[one] for one in each] if isTooMuch else [each]:
                replay = SharedReplay(len(replays), some)
                if known is not None:
                    components[replay.key] = known
                replays.append(replay)
        plans.append(ReplayPlan(mode, replays, components, (alike or {}) if mode == CLOSED else {}))
    return plans


def _together(trials: Iterable[Trial]) -> list[Together]:
    """
    The trials of each candidate that are replayed together, in the order of their runs.
    """
    found: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        found.setdefault((trial.candidate.label, trial.together or (trial.key[1:],)), []).append(trial)
    return [sorted(each, key=lambda trial: trial.key[1:]) for each in found.values()]


def _merged(
    together: Together, clients: Mapping[TrialKey, Sequence[Client]], keys: Sequence[Keys]
) -> tuple[Sequence[Client], Keys]:
    """
    The clients of all trials, with the numbers that their connections have among those of all runs, and their keys in
    any of these.
    """
    if len(together) == 1:
        return clients[together[0].key], keys[0]
    numbered = [
        evolve(client, connectionId=sharedNumber(client.connectionId, together, place))
        for place, trial in enumerate(together)
        for client in clients[trial.key]
    ]
    merged: dict[Requester, dict[str, None]] = {}
    for each in keys:
        for requester, found in each.items():
            merged.setdefault(requester, {}).update(dict.fromkeys(found))
    return numbered, {requester: list(found) for requester, found in merged.items()}


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
    The number of requests in the largest shard of those with any keys.

    @param connections: if given, shards are components, not keys.
    """
    counts: Counter[Any] = Counter()
    if connections is None:
        for client in clients:
            counts.update(dict.fromkeys(keys.get(client.requester, ()), client.requests))
    else:
        firsts = np.array([client.connectionId for client in clients], np.int64)
        for component, client in zip(
            componentsIn(connections, firsts, np.full(len(clients), -1)), clients, strict=True
        ):
            counts[int(component)] += client.requests
        counts.pop(-1, None)
    return max(counts.values(), default=0)
