"""
Tests for L{admission.offline.replay.lanes} and
L{admission.offline.replay.parcels}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.offline.replay.boots import LimitChange
from admission.offline.replay.candidates import resolveCandidates
from admission.offline.replay.decisions import CLOSED, DECISIONS, OPEN
from admission.offline.replay.lanes import Routes, planRoutes
from admission.offline.replay.offers import COLUMNS, OFFERS
from admission.offline.replay.parcels import PARCELS, Packing, placesOfKeys, tasksOf, unpack
from admission.offline.replay.trials import Trial, TrialKey, planRecorded, planTrials
from tests.kit.replaymodel import (
    Change,
    Client,
    Recording,
    askersIn,
    closedLoop,
    openLoop,
    population,
    rowsOf,
    serve,
    steadySteps,
    tableOf,
)

SECOND = 1_000_000
MODES = (CLOSED, OPEN)

Trials = Mapping[TrialKey, Trial]


def recorded(clients: Sequence[Client] = tuple(population(3, 2)), seconds: int = 8) -> Recording:
    """
    Clients that are throttled.
    """
    return serve({"client-bytes": "client-bytes:produce=500k"}, clients, steadySteps(thinkMs=40), seconds * SECOND)


def routesFor(recording: Recording, trials: Trials, modes: Sequence[str] = MODES, **more: int) -> Routes:
    """
    How requests get to their trials.
    """
    return planRoutes(trials, modes, askersIn(recording.rows, trials), **more)


def travelled(recording: Recording, routes: Routes, maxRows: int = 500) -> pa.Table:
    """
    Decisions about requests that came in parcels, from tasks one by one.
    """
    rows = list(recording.rows)
    Random(1).shuffle(rows)
    parcels = pa.Table.from_batches(routes.send(tableOf(rows, COLUMNS).to_batches(maxRows)), PARCELS)
    decisions = []
    for task in sorted(set(parcels["task"].to_pylist())):
        mine = parcels.filter(pa.compute.equal(parcels["task"], task)).sort_by("lane")
        decisions += list(routes.replay(mine.to_batches(3)))
    return pa.Table.from_batches(decisions, DECISIONS)


class LanesTests(SynchronousTestCase):
    """
    Requests that are brought once for several trials are decided as if they
    had been brought for each.
    """

    def trials(self, recording: Recording, *texts: str) -> dict[TrialKey, Trial]:
        """
        Candidates, and the policy in force.
        """
        boots = recording.boots()
        return {**planRecorded(boots), **planTrials(resolveCandidates(texts), boots)}

    def lanesOf(self, routes: Routes) -> list[tuple[str, list[str]]]:
        """
        The mode and the candidates of each lane.
        """
        return [(lane.mode, [trial.candidate.label for trial in lane.trials]) for lane in routes.lanes]

    def test_shared(self) -> None:
        """
        Candidates that group requests alike share a lane with the policy in
        force.
        """
        recording = recorded()
        trials = self.trials(recording, "client-bytes:produce=1M", "less=client-bytes:produce=200k")
        together = ["recorded client-bytes", "client-bytes:produce=1M", "less"]
        self.assertEqual(self.lanesOf(routesFor(recording, trials)), [(CLOSED, together), (OPEN, together)])

    def test_otherKeys(self) -> None:
        """
        One that groups them in another way has its own, and so has one that
        forgets at another time or takes the place of another policy.
        """
        recording = recorded()
        trials = self.trials(
            recording, "client-bytes:produce=1M:algorithm=bucket", "request-time:percent=5", "connections:perSecond=5"
        )
        found = self.lanesOf(routesFor(recording, trials, [CLOSED]))
        self.assertEqual(sorted(len(labels) for _, labels in found), [1, 1, 1, 1])

    def test_otherTimes(self) -> None:
        """
        Trials that have the same keys but not at the same times do not share.
        """
        recording = recorded()
        [trial] = self.trials(recording).values()
        alice = QuotaEntity(user="user")
        name = "producer_byte_rate"
        changes = [LimitChange(number * SECOND, alice, name, value) for number, value in ((1, 5.0), (2, None))]
        kept = [changes[0], evolve(changes[1], value=6.0)]
        trials = {
            (label, *trial.key[1:]): evolve(trial, candidate=evolve(trial.candidate, label=label), changes=each)
            for label, each in (("first", changes), ("second", changes), ("third", kept))
        }
        routes = routesFor(recording, trials, [OPEN])
        self.assertEqual(self.lanesOf(routes), [(OPEN, ["first", "second"]), (OPEN, ["third"])])

    def test_askedMore(self) -> None:
        """
        Where there was no limit for a while nobody was asked, and candidates
        would have been: they do not share with the policy in force.
        """
        change = Change(2 * SECOND, QuotaEntity(clientId=DEFAULT), "producer_byte_rate", 300_000.0)
        recording = serve(
            {"client-bytes": "client-bytes"}, population(3, 2), steadySteps(thinkMs=40), 6 * SECOND, [change]
        )
        trials = self.trials(recording, "client-bytes:produce=200k", "client-bytes:produce=100k")
        routes = routesFor(recording, trials)
        self.assertEqual([len(lane.trials) for lane in routes.lanes], [1, 2, 1, 2])
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(travelled(recording, routes)), rowsOf(expected))

    def test_oneForAll(self) -> None:
        """
        Where everybody is in one place and there are more workers, each trial
        has its own lane; the components are known in all of them.
        """
        recording = recorded([evolve(each, clientId="one") for each in population(3, 2)])
        trials = self.trials(recording, "client-bytes:produce=1M", "less=client-bytes:produce=200k")
        routes = routesFor(recording, trials, workers=4)
        self.assertEqual([len(lane.trials) for lane in routes.lanes], [1] * 6)
        self.assertEqual([lane.number for lane in routes.lanes], [0, 1, 2, 3, 4, 5])
        self.assertEqual({lane.largest for lane in routes.lanes}, {len(recording.rows)})
        self.assertEqual([len(lane.trials) for lane in routesFor(recording, trials, workers=1).lanes], [3, 3])
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(travelled(recording, routes)), rowsOf(expected))

    def test_tasks(self) -> None:
        """
        Each mode has its own tasks, and all of them have something to do.
        """
        recording = recorded(population(20, 2), 4)
        trials = self.trials(recording, "client-bytes:produce=1M")
        routes = routesFor(recording, trials, tasksOfMode=3)
        self.assertEqual(routes.tasks, 6)
        parcels = pa.Table.from_batches(routes.send(tableOf(recording.rows, COLUMNS).to_batches()), PARCELS)
        tasks: dict[int, set[str]] = {}
        for task, lane in zip(parcels["task"].to_pylist(), parcels["lane"].to_pylist(), strict=True):
            tasks.setdefault(task, set()).add(routes.lanes[lane].mode)
        self.assertEqual(tasks, {0: {CLOSED}, 1: {CLOSED}, 2: {CLOSED}, 3: {OPEN}, 4: {OPEN}, 5: {OPEN}})

    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(20, 400), st.integers(1, 4))
    def test_sameDecisions(self, clients: int, connections: int, tasks: int, maxRows: int, workers: int) -> None:
        """
        However requests are cut into batches and tasks, every trial decides
        what it decides alone, in both modes.
        """
        recording = recorded(population(clients, connections), 3)
        trials = self.trials(recording, "client-bytes:produce=200k", "request-time:percent=5")
        routes = routesFor(recording, trials, tasksOfMode=tasks, workers=workers)
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(travelled(recording, routes, maxRows)), rowsOf(expected))

    def test_twoBoots(self) -> None:
        """
        Runs of servers are apart, even with connections of the same numbers.
        """
        recording = recorded(population(2, 1), 3)
        rows = [*recording.rows, *({**row, "boot_id": "other"} for row in recording.rows)]
        [boot] = recording.boots()
        trials = planTrials(resolveCandidates(["client-bytes:produce=200k"]), [boot, evolve(boot, bootId="other")])
        both = Recording(recording.horizonUs, rows, recording.limits)
        found = travelled(both, routesFor(both, trials))
        alone = travelled(recording, routesFor(recording, {key: trials[key] for key in trials if key[2] == "boot"}))
        others = alone.set_column(3, "boot_id", pa.array(["other"] * len(alone)))
        self.assertEqual(rowsOf(found), rowsOf(pa.concat_tables([alone, others])))

    def test_nothing(self) -> None:
        """
        Without requests there are no parcels, and without these no decisions.
        """
        recording = recorded()
        routes = routesFor(recording, self.trials(recording))
        self.assertEqual(list(routes.send([])), [])
        self.assertEqual(list(routes.replay([])), [])


class ParcelTests(SynchronousTestCase):
    """
    Rows of one place are for one task, and parcels have no more in them than
    that.
    """

    def offers(self, clients: int) -> pa.RecordBatch:
        """
        A request of each of so many clients, and one of no key.
        """
        names = [f"client {number}" for number in range(clients)]
        rows = [
            {"seq": number, "conn_id": number, "client_id": name, "replay_key": name, "slice": 0}
            for number, name in enumerate(names)
        ]
        return pa.RecordBatch.from_pylist([*rows, {"seq": clients, "slice": 0}], OFFERS)

    def test_places(self) -> None:
        """
        A key has the same place in every batch and another than others; rows
        without one have any.
        """
        batch = self.offers(500)
        places = placesOfKeys(batch)
        self.assertEqual(len(set(places.tolist())), 501)
        self.assertEqual(placesOfKeys(batch.slice(100, 7)).tolist(), places[100:107].tolist())

    def test_spread(self) -> None:
        """
        Places are spread over all tasks, whether they are numbers in a row or
        not, and differently for each lane.
        """
        for places in (np.arange(8000), np.arange(8000) * 4096, placesOfKeys(self.offers(7999))):
            tasks = [tasksOf(lane, places, np.zeros(8000, np.int64), 8) for lane in (0, 1)]
            for each in tasks:
                self.assertGreater(min(np.bincount(each, minlength=8)), 800)
            self.assertGreater(np.count_nonzero(tasks[0] != tasks[1]), 4000)

    def test_slices(self) -> None:
        """
        Slices of one place are spread as well.
        """
        tasks = tasksOf(0, np.full(8000, 7), np.arange(8000), 8)
        self.assertGreater(min(np.bincount(tasks, minlength=8)), 800)

    def test_size(self) -> None:
        """
        A parcel has no texts of rows in other parcels.
        """
        packing = Packing(10_000)
        batch = self.offers(5000)
        self.assertEqual(list(packing.add(0, batch, np.arange(5001), np.arange(5001, dtype=np.int32))), [])
        [parcels] = packing.flush()
        sizes = [len(each) for each in parcels.column("offers").to_pylist()]
        self.assertEqual(len(sizes), 5001)
        self.assertLess(max(sizes), 6000)
        rows = [row for _, table in unpack([parcels]) for row in table.to_pylist()]
        self.assertEqual(
            [(row["seq"], row["client_id"]) for row in rows],
            list(zip(range(5001), batch.column("client_id").to_pylist(), strict=True)),
        )

    def test_full(self) -> None:
        """
        Parcels come when there are rows enough, of all lanes together.
        """
        packing = Packing(12)
        batch = self.offers(4)
        tasks = np.zeros(5, np.int32)
        self.assertEqual(list(packing.add(0, batch, tasks, tasks)), [])
        self.assertEqual(list(packing.add(1, batch, tasks, tasks)), [])
        found = pa.Table.from_batches(packing.add(1, batch, tasks, tasks))
        self.assertEqual(found["lane"].to_pylist(), [0, 1])
        self.assertEqual([len(table) for _, table in unpack(found.to_batches())], [5, 10])
        self.assertEqual(list(packing.flush()), [])
