"""Tests for L{admission.offline.simulate.shards}."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.offline.simulate.arrivals import ARRIVALS
from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.decisions import CLOSED, OPEN
from admission.offline.simulate.runs import LimitChange
from admission.offline.simulate.shards import SHARDED, ReplayPlan, shardKeys
from admission.offline.simulate.trials import Trial, TrialKey, planRecorded, planTrials
from tests.kit.replaymodel import (
    Change,
    Client,
    Recording,
    closedLoop,
    openLoop,
    plansFor,
    population,
    replayedBy,
    rowsOf,
    serve,
    steadySteps,
)
from tests.kit.replaypolicies import candidate

SECOND = 1_000_000


def recorded(clients: Sequence[Client] = tuple(population(3, 2)), seconds: int = 8) -> Recording:
    """Clients that are throttled."""
    return serve({"client-bytes": "client-bytes:produce=500k"}, clients, steadySteps(thinkMs=40), seconds * SECOND)


class SharedReplayTests(SynchronousTestCase):
    """Arrivals that several trials share are decided as if each trial had its own."""

    def trials(self, recording: Recording, *texts: str) -> dict[TrialKey, Trial]:
        """Candidates, and the policy in force."""
        runs = recording.runs()
        return {**planRecorded(runs), **planTrials(resolveCandidates(texts), runs)}

    def sharing(self, plans: Sequence[ReplayPlan]) -> list[tuple[str, list[str]]]:
        """The mode and the candidates of each shared replay."""
        return [(plan.mode, [one.candidate.label for [one] in each.trials]) for plan in plans for each in plan.replays]

    def test_shared(self) -> None:
        """Candidates that group requests alike share arrivals with the policy in force."""
        recording = recorded()
        trials = self.trials(recording, "client-bytes:produce=1M", "less=client-bytes:produce=200k")
        together = ["recorded client-bytes", "client-bytes:produce=1M", "less"]
        self.assertEqual(self.sharing(plansFor(recording, trials)), [(CLOSED, together), (OPEN, together)])

    def test_otherKeys(self) -> None:
        """
        One that groups them in another way has its own, and so has one that
        forgets at another time or takes the place of another policy.
        """
        recording = recorded()
        trials = self.trials(
            recording, "client-bytes:produce=1M:algorithm=bucket", "request-time:percent=5", "connections:perSecond=5"
        )
        found = self.sharing(plansFor(recording, trials, [CLOSED]))
        self.assertEqual(sorted(len(labels) for _, labels in found), [1, 1, 1, 1])

    def test_otherTimes(self) -> None:
        """Trials that have the same keys but not at the same times do not share."""
        recording = recorded()
        [trial] = self.trials(recording).values()
        alice = QuotaEntity(user="user")
        name = "received_byte_rate"
        changes = [LimitChange(number * SECOND, alice, name, value) for number, value in ((1, 5.0), (2, None))]
        kept = [changes[0], evolve(changes[1], value=6.0)]
        trials = {
            (label, *trial.key[1:]): evolve(trial, candidate=evolve(trial.candidate, label=label), changes=each)
            for label, each in (("first", changes), ("second", changes), ("third", kept))
        }
        plans = plansFor(recording, trials, [OPEN])
        self.assertEqual(self.sharing(plans), [(OPEN, ["first", "second"]), (OPEN, ["third"])])

    def test_askedMore(self) -> None:
        """
        Where there was no limit for a while nobody was asked, and candidates
        would have been: they do not share with the policy in force.
        """
        change = Change(2 * SECOND, QuotaEntity(clientId=DEFAULT), "received_byte_rate", 300_000.0)
        recording = serve(
            {"client-bytes": "client-bytes"}, population(3, 2), steadySteps(thinkMs=40), 6 * SECOND, [change]
        )
        trials = self.trials(recording, "client-bytes:produce=200k", "client-bytes:produce=100k")
        plans = plansFor(recording, trials)
        self.assertEqual([len(each.trials) for plan in plans for each in plan.replays], [1, 2, 1, 2])
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(replayedBy(recording, plans)), rowsOf(expected))

    def test_oneForAll(self) -> None:
        """
        Where everybody is in one shard and there are more workers, no trials
        share arrivals; the components are known to all of them.
        """
        recording = recorded([evolve(each, clientId="one") for each in population(3, 2)])
        trials = self.trials(recording, "client-bytes:produce=1M", "less=client-bytes:produce=200k")
        plans = plansFor(recording, trials, workers=4)
        replays = [each for plan in plans for each in plan.replays]
        self.assertEqual([len(each.trials) for each in replays], [1] * 6)
        self.assertEqual([each.number for each in replays], [0, 1, 2, 0, 1, 2])
        together = plansFor(recording, trials, workers=1)
        self.assertEqual([len(each.trials) for plan in together for each in plan.replays], [3, 3])
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(replayedBy(recording, plans)), rowsOf(expected))

    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(20, 400), st.integers(1, 4))
    def test_sameDecisions(self, clients: int, connections: int, partitions: int, maxRows: int, workers: int) -> None:
        """
        However requests are cut into batches and partitions, every trial decides
        what it decides alone, in both modes, also if it follows requests.
        """
        recording = recorded(population(clients, connections), 3)
        following = [candidate(text) for text in ("at-most:1", "at-most-of-client:2", "per-second:60")]
        trials = self.trials(recording, "client-bytes:produce=200k", "request-time:percent=5")
        trials |= planTrials(following, recording.runs())
        plans = plansFor(recording, trials, workers=workers)
        expected = pa.concat_tables([closedLoop(recording, trials), openLoop(recording, trials)])
        self.assertEqual(rowsOf(replayedBy(recording, plans, maxRows, partitions)), rowsOf(expected))

    def test_twoBoots(self) -> None:
        """Runs of servers are apart, even with connections of the same numbers."""
        recording = recorded(population(2, 1), 3)
        rows = [*recording.rows, *({**row, "boot_id": "other"} for row in recording.rows)]
        [run] = recording.runs()
        trials = planTrials(resolveCandidates(["client-bytes:produce=200k"]), [run, evolve(run, bootId="other")])
        both = Recording(recording.horizonUs, rows, recording.limits)
        found = replayedBy(both, plansFor(both, trials))
        alone = replayedBy(recording, plansFor(recording, {key: trials[key] for key in trials if key[2] == "boot"}))
        others = alone.set_column(3, "boot_id", pa.array(["other"] * len(alone)))
        self.assertEqual(rowsOf(found), rowsOf(pa.concat_tables([alone, others])))

    def test_nothing(self) -> None:
        """Without requests there are no arrivals, and without these no decisions."""
        recording = recorded()
        for plan in plansFor(recording, self.trials(recording)):
            self.assertEqual(list(plan.shard([])), [])
            self.assertEqual(list(plan.replay([])), [])
            self.assertEqual(list(plan.replay([pa.RecordBatch.from_pylist([], SHARDED)])), [])

    def test_shardKeys(self) -> None:
        """A key has the same number in every batch and another than others; rows without one have any."""
        rows = [{"seq": number, "replay_key": f"client {number}"} for number in range(500)]
        batch = pa.RecordBatch.from_pylist([*rows, {"seq": 500}], ARRIVALS)
        keys = shardKeys(batch)
        self.assertEqual(len(set(keys.tolist())), 501)
        self.assertEqual(shardKeys(batch.slice(100, 7)).tolist(), keys[100:107].tolist())
