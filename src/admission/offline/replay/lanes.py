# -*- test-case-name: tests.unit.offline.test_replay_lanes -*-
"""
Which trials share the way: those that see the same of the same requests, and
group them in the same way, have them brought once and not each for itself.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from .closedloop import replayClosedLoop
from .decisions import CLOSED, OPEN
from .keys import (
    NO_CONNECTIONS,
    Asker,
    Connections,
    Keys,
    componentsIn,
    connectionsOf,
    findComponents,
    findKeys,
    findLinks,
)
from .offers import OPEN_GROUP, makeOffers
from .openloop import replayOpenLoop
from .ordered import Batches, numbersOf
from .parcels import PLACE, Packing, addressed, placesOfKeys, tasksOf, unpack
from .slices import addSlices
from .sortedrows import SortedRows
from .trials import Trial, TrialKey

Step = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Makes something else of batches."""

_ALLOCATIONS = 50_000

_OPEN_ORDER = (PLACE, "slice", "at_us", "seq")
_CLOSED_ORDER = (PLACE, "conn_id", "arrived_us", "seq")


@frozen
class Lane:
    """
    Trials in the same run of a server for which requests are brought once.

    @ivar number: what it is told apart by.
    @ivar mode: of L{admission.offline.replay.decisions}.
    @ivar trials: which.
    @ivar largest: how many requests are together in its largest place.
    """

    number: int
    mode: str
    trials: Sequence[Trial]
    largest: int

    @property
    def leader(self) -> Trial:
        """
        The one that requests are prepared for.
        """
        return self.trials[0]

    @property
    def order(self) -> Sequence[str]:
        """
        What its rows are to be sorted by.
        """
        return _OPEN_ORDER if self.mode == OPEN else _CLOSED_ORDER

    def decide(self, trial: Trial, rows: Batches) -> Iterator[pa.RecordBatch]:
        """
        Replay one of the trials.

        @param rows: sorted.
        @return: of L{admission.offline.replay.decisions.DECISIONS}.
        """
        own = {trial.key: trial}
        if self.mode == OPEN:
            return replayOpenLoop((addressed(batch, trial) for batch in rows), own)
        return replayClosedLoop((addressed(batch, trial, "component") for batch in rows), own)


@frozen
class Routes:
    """
    All lanes, and how requests find their places in them.  It can be pickled.

    @ivar lanes: by number.
    @ivar tasksOfMode: how many tasks each mode has.
    @ivar components: of closed-loop lanes by number, each with its connections
        in order and their components.
    @ivar cuts: of open-loop lanes, by their leaders, of
        L{admission.offline.replay.slices.CUTS}; L{None} for nowhere.
    """

    lanes: Sequence[Lane]
    tasksOfMode: int
    components: Mapping[int, Connections]
    cuts: pa.RecordBatch | None = None

    @property
    def tasks(self) -> int:
        """
        How many there are in all.
        """
        return self.tasksOfMode * max(len(self._modes), 1)

    @property
    def _modes(self) -> Sequence[str]:
        return list(dict.fromkeys(lane.mode for lane in self.lanes))

    def send(self, requests: Batches) -> Iterator[pa.RecordBatch]:
        """
        Prepare requests and put them in parcels.

        @param requests: of L{admission.offline.replay.offers.columnsFor} all
            trials, in any order.
        @return: of L{admission.offline.replay.parcels.PARCELS}.
        """
        ways: dict[TrialKey, list[Lane]] = {}
        for lane in self.lanes:
            ways.setdefault(lane.leader.key, []).append(lane)
        modes = self._modes
        packing = Packing()
        for batch in makeOffers(requests, {key: lanes[0].leader for key, lanes in ways.items()}):
            leader = tuple(batch.column(name)[0].as_py() for name in OPEN_GROUP[:3])
            for lane in ways[leader]:
                rows = batch
                if lane.mode == OPEN:
                    if self.cuts is not None:
                        [rows] = addSlices([batch], self.cuts)
                    places = placesOfKeys(rows)
                else:
                    places = componentsIn(self.components[lane.number], numbersOf(rows.column("conn_id")))
                tasks = tasksOf(lane.number, places, numbersOf(rows.column("slice")), self.tasksOfMode)
                tasks += modes.index(lane.mode) * self.tasksOfMode
                yield from packing.add(lane.number, rows, places, tasks)
        yield from packing.flush()

    def replay(self, parcels: Batches, finish: Step | None = None) -> Iterator[pa.RecordBatch]:
        """
        Replay what is in parcels.

        @param parcels: those of one task or several, all of them, sorted by
            lane.
        @param finish: see L{admission.offline.replay.spark.replay}.
        @return: of L{admission.offline.replay.decisions.DECISIONS}, or what
            C{finish} makes of them.
        """
        with _fewCollections():
            for lane, rows in self.receive(parcels):
                for trial in lane.trials:
                    decisions = lane.decide(trial, rows.batches())
                    yield from decisions if finish is None else finish(decisions)
                rows.close()

    def receive(self, parcels: Batches) -> Iterator[tuple[Lane, SortedRows]]:
        """
        Take what is in parcels out of them.

        @param parcels: see L{replay}.
        @return: for each lane its rows.
        """
        for number, tables in groupby(unpack(parcels), itemgetter(0)):
            lane = self.lanes[number]
            rows = SortedRows(lane.order)
            for _, table in tables:
                rows.add(table)
            yield lane, rows


def planRoutes(
    trials: Mapping[TrialKey, Trial],
    modes: Collection[str],
    askers: Mapping[TrialKey, Sequence[Asker]],
    tasksOfMode: int = 1,
    workers: int = 1,
) -> Routes:
    """
    Find which trials can share the way.  For the driver: it remembers every
    asker, and every connection with every key.

    Where so many requests belong together that some workers would have nothing
    to do, each trial has a lane for itself.

    @param modes: one or two.
    @param askers: see L{admission.offline.replay.keys.askersOf}.
    @param workers: how many tasks may run at a time.
    """
    alike: dict[tuple[Any, ...], list[Trial]] = {}
    keys: dict[TrialKey, Keys] = {}
    for key, trial in trials.items():
        found, digest = findKeys(trial, askers[key])
        view = (key[1:], trial.outlook, trial.horizonSeconds, digest)
        if view not in alike:
            keys[key] = found
        alike.setdefault(view, []).append(trial)
    groups = list(alike.values())
    connections = connectionsOf(findComponents(findLinks(askers, keys).to_batches())) if CLOSED in modes else {}
    demand = sum(len(each) * sum(asker.requests for asker in askers[each[0].key]) for each in groups)
    lanes: list[Lane] = []
    components = {}
    for mode in modes:
        for each in groups:
            leader = each[0]
            known = connections.get(leader.key, NO_CONNECTIONS)
            largest = _largest(askers[leader.key], keys[leader.key], None if mode == OPEN else known)
            isTooMuch = largest * len(each) * workers > demand
            for together in [[trial] for trial in each] if isTooMuch else [each]:
                if mode == CLOSED:
                    components[len(lanes)] = known
                lanes.append(Lane(len(lanes), mode, together, largest))
    return Routes(lanes, tasksOfMode, components)


@contextmanager
def _fewCollections() -> Iterator[None]:
    """
    In the block garbage is collected rarely: a replay makes many objects and
    hardly any cycles, and looking for these takes a tenth of its time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _largest(askers: Sequence[Asker], keys: Keys, connections: Connections | None) -> int:
    """
    How many requests there are in the largest place.

    @param connections: where components are the places, and not keys.
    """
    counts: Counter[Any] = Counter()
    if connections is None:
        for asker in askers:
            counts.update(dict.fromkeys(keys.get(asker.requester, ()), asker.requests))
    else:
        found = componentsIn(connections, np.array([asker.connectionId for asker in askers], np.int64))
        for component, asker in zip(found.tolist(), askers, strict=True):
            counts[component] += asker.requests
    return max(counts.values(), default=0)
