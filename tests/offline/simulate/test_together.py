"""Tests for L{admission.offline.simulate.together}: servers that enforced limits together, replayed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.decisions import CLOSED, OPEN
from admission.offline.simulate.runs import Gap, Run
from admission.offline.simulate.trials import planTrials
from tests.kit.identitygate import assertAsRecorded, gate
from tests.kit.replaymodel import (
    WALL_OFFSET_US,
    Client,
    Recording,
    Step,
    closedLoop,
    openLoop,
    plansFor,
    replayedBy,
    rowsOf,
    steadySteps,
)
from tests.kit.sharedmodel import serveTogether

SECOND = 1_000_000
LIMIT_BYTES = 1_000_000
POLICIES = {"client-bytes": "client-bytes:received=1M:shared=yes"}
GREEDY = steadySteps(thinkMs=5, sizeBytes=10_000)


def clients(*connections: int) -> list[list[Client]]:
    """One client, that many of whose connections each server has, and one of its own for each server."""
    return [
        [
            *(Client(number + 1, "user", "app", beginsUs=number * 1000) for number in range(count)),
            Client(count + 1, "user", f"own {server}"),
        ]
        for server, count in enumerate(connections)
    ]


def runsOf(recordings: Sequence[Recording]) -> list[Run]:
    """The run of each."""
    return [run for each in recordings for run in each.runs()]


def allOf(recordings: Sequence[Recording]) -> Recording:
    """What all of them have recorded, in one."""
    return Recording(
        max(each.horizonUs for each in recordings),
        [row for each in recordings for row in each.rows],
        [row for each in recordings for row in each.limits],
    )


def decided(recordings: Sequence[Recording], *texts: str, maxRows: int = 500, partitions: int = 3) -> pa.Table:
    """What candidates decide in all runs."""
    whole, trials = allOf(recordings), planTrials(resolveCandidates(texts), runsOf(recordings))
    return replayedBy(whole, plansFor(whole, trials), maxRows, partitions)


def bytesPerSecond(decisions: pa.Table, label: str, begin: float, end: float, mode: str = CLOSED) -> float:
    """What the client of all servers gets in this time by the calendar, in seconds."""
    return sum(
        row["request_bytes"]
        for row in decisions.to_pylist()
        if (row["candidate"], row["mode"], row["client_id"]) == (label, mode, "app")
        and begin <= (row["wall_us"] - WALL_OFFSET_US) / SECOND < end
    ) / (end - begin)


class TogetherTests(SynchronousTestCase):
    """Two or more runs that shared limits."""

    def test_asRecorded(self) -> None:
        """The policies in force are replayed with what was told, and exactly so, also where nothing came."""
        recordings = serveTogether(POLICIES, clients(2, 3), GREEDY, 20.0, [0.0, 2.5], [8.0, 13.0])
        for each in recordings:
            assertAsRecorded(self, gate(each))
            self.assertGreater(each.throttledUs()[1], 100)

    def test_otherLimit(self) -> None:
        """
        Under another limit the client of both servers gets that limit, and not twice it, though what was told is of
        another; and under the same as much as it got.
        """
        recordings = serveTogether(POLICIES, clients(2, 3), GREEDY, 30.0, [0.0, 1.25])
        found = decided(
            recordings,
            "half=client-bytes:received=500k:shared=yes",
            "same=client-bytes:received=1M:shared=yes",
            "twice=client-bytes:received=2M:shared=yes",
        )
        # With twice the limit there are no more requests after half of the time.
        for label, limit, end in (("half", 0.5, 29.0), ("same", 1.0, 29.0), ("twice", 2.0, 12.0)):
            share = bytesPerSecond(found, label, 4.0, end) / (limit * LIMIT_BYTES)
            self.assertTrue(0.98 <= share <= 1.02, (label, share))

    @settings(max_examples=8, deadline=None)
    @given(
        st.lists(st.integers(1, 4), min_size=2, max_size=4),
        st.integers(0, 12),
        st.integers(300, 900),
    )
    def test_anyServers(self, connections: list[int], began: int, kilobytes: int) -> None:
        """However the client's connections are spread, and whenever servers begin, it gets the candidate's limit."""
        beginning = [0.0, *(began * 0.25 * number for number in range(1, len(connections)))]
        recordings = serveTogether(POLICIES, clients(*connections), GREEDY, 24.0, beginning)
        found = decided(recordings, f"less=client-bytes:received={kilobytes}k:shared=yes")
        begin = max(beginning) + 3.0
        share = bytesPerSecond(found, "less", begin, 24.0) / (kilobytes * 1000)
        # Requests of up to a few seconds of its limit are on their way when the time begins and ends.
        slack = 0.02 + 100_000 / (kilobytes * 1000 * (24.0 - begin))
        self.assertTrue(1 - slack <= share <= 1 + slack, share)

    def test_lost(self) -> None:
        """While servers did not hear each other each enforces its part of the candidate's limit, as it did."""
        recordings = serveTogether(POLICIES, clients(3, 3), GREEDY, 30.0, (), [6.0, 26.0])
        found = decided(recordings, "half=client-bytes:received=500k:shared=yes")
        share = bytesPerSecond(found, "half", 10.0, 26.0) / 500_000
        self.assertTrue(0.98 <= share <= 1.02, share)
        rows = found.to_pylist()
        for boot in ("boot 0", "boot 1"):
            own = [row for row in rows if (row["boot_id"], row["mode"], row["client_id"]) == (boot, CLOSED, "app")]
            sizeBytes = sum(row["request_bytes"] for row in own if 10 <= row["at_us"] / SECOND < 26)
            self.assertTrue(0.98 <= sizeBytes / 4_000_000 <= 1.02, sizeBytes)

    def test_wrongClock(self) -> None:
        """If a clock is wrong by a second, the client gets the limit all the same, but for a second of it at first."""
        recordings = serveTogether(POLICIES, clients(2, 3), GREEDY, 30.0, (), (), {1: 1.0})
        found = decided(recordings, "half=client-bytes:received=500k:shared=yes")
        share = bytesPerSecond(found, "half", 4.0, 29.0) / 500_000
        self.assertTrue(0.96 <= share <= 1.04, share)

    def test_everyRequest(self) -> None:
        """
        Each request is decided once, as one of its own run, however requests are cut into batches and partitions; open
        loop when it was decided.
        """
        recordings = serveTogether(POLICIES, clients(2, 1, 2), GREEDY, 6.0, [0.0, 1.25, 0.5])
        half = "client-bytes:received=500k:shared=yes"
        found = decided(recordings, half)
        for maxRows, partitions in ((7, 1), (100_000, 2)):
            self.assertEqual(rowsOf(decided(recordings, half, maxRows=maxRows, partitions=partitions)), rowsOf(found))
        rows = [row for row in found.to_pylist() if row["mode"] == OPEN]
        names = ("boot_id", "seq", "conn_id", "client_id", "request_bytes", "at_us")
        expected = [
            (*(row[name] for name in names[:-1]), row["decided_mono_us"]) for each in recordings for row in each.rows
        ]
        self.assertEqual(sorted(tuple(row[name] for name in names) for row in rows), sorted(expected))
        offsetsUs = {run.bootId: run.wallOffsetUs for run in runsOf(recordings)}
        self.assertTrue(all(row["wall_us"] - row["at_us"] == offsetsUs[row["boot_id"]] for row in found.to_pylist()))
        self.assertGreater(sum(row["delay_us"] > 0 for row in rows), 100)

    def test_openLoop(self) -> None:
        """Open loop what clients take at one server delays them at the others, too."""
        recordings = serveTogether(POLICIES, clients(1, 1), GREEDY, 10.0)
        half = "client-bytes:received=500k:shared=yes"
        whole, trials = allOf(recordings), planTrials(resolveCandidates([half]), runsOf(recordings))
        alone = {key: evolve(each, together=()) for key, each in trials.items()}
        delays = [
            sum(
                row["delay_us"]
                for row in replayedBy(whole, plansFor(whole, each, [OPEN])).to_pylist()
                if row["client_id"] == "app"
            )
            for each in (trials, alone)
        ]
        self.assertGreater(delays[0], 1.5 * delays[1])

    def test_notShared(self) -> None:
        """A candidate whose limits each server enforces alone is replayed with each run alone."""
        recordings = serveTogether(POLICIES, clients(2, 2), GREEDY, 6.0)
        candidate = "client-bytes:received=500k:algorithm=bucket"
        expected = []
        for each in recordings:
            trials = planTrials(resolveCandidates([candidate]), each.runs())
            expected += [closedLoop(each, trials), openLoop(each, trials)]
        self.assertEqual(rowsOf(decided(recordings, candidate)), rowsOf(pa.concat_tables(expected)))

    def test_producers(self) -> None:
        """Producer ids that one server lets in are known to the others, and take the candidate's tokens there."""
        policies = {"producer-ids": "producer-ids:rate=40:window=1h:shared=yes"}

        def steps(client: Client) -> Iterator[Step]:
            for number, step in enumerate(GREEDY(client)):
                identity = client.number * 1000 + number // 20 % 40
                yield evolve(step, thinkUs=step.thinkUs * 10, identities=(identity,))

        recordings = serveTogether(policies, [[Client(1, "user", "a")], [Client(2, "user", "b")]], steps, 60.0)
        found = decided(recordings, "less=producer-ids:rate=10:window=1h:shared=yes", maxRows=200)
        identities = {(row["boot_id"], row["seq"]): row["producer_ids"][0] for each in recordings for row in each.rows}
        known = {
            identities[row["boot_id"], row["seq"]]
            for row in found.to_pylist()
            if row["mode"] == OPEN and not row["is_refused"]
        }
        # Ten at once, and one more in each six minutes; each server may take one before it hears of the other's.
        self.assertTrue(10 <= len(known) <= 12, known)

    def test_incomplete(self) -> None:
        """A run is replayed alone, with what was recorded, where the servers are not just those of the recording."""
        recordings = serveTogether(POLICIES, clients(1, 1, 1), GREEDY, 6.0)[:2]
        trials = planTrials(resolveCandidates(["client-bytes:received=500k:shared=yes"]), runsOf(recordings))
        for trial in trials.values():
            self.assertEqual(trial.together, ())
            self.assertTrue(any(each.name.startswith("taken elsewhere") for each in trial.run.elsewhere))

    def test_gapElsewhere(self) -> None:
        """Where events of one run are missing, what another decides later may be wrong, too."""
        recordings = serveTogether(POLICIES, clients(1, 1), GREEDY, 6.0, [0.0, 1.0])
        first, second = runsOf(recordings)
        runs = [first, evolve(second, gaps=[Gap(10**6, 2 * SECOND)])]
        whole = allOf(recordings)
        trials = planTrials(resolveCandidates(["client-bytes:received=500k:shared=yes"]), runs)
        rows = replayedBy(whole, plansFor(whole, trials)).to_pylist()
        own = [row for row in rows if row["boot_id"] == "boot 0"]
        self.assertEqual({row["is_poisoned"] for row in own if row["at_us"] < 3 * SECOND}, {False})
        self.assertEqual({row["is_poisoned"] for row in own if row["at_us"] >= 3 * SECOND}, {True})
