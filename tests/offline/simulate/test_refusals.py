"""Replays of requests that can be refused in different ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import Refusal
from admission.offline.simulate.trials import Trial, TrialKey, planTrials
from tests.kit.identitygate import gate
from tests.kit.replaymodel import Client, Recording, Step, closedLoop, population, serve
from tests.kit.replaypolicies import candidate, install

SECOND = 1_000_000

REFUSALS = {"Produce": Refusal.ERROR, "JoinGroup": Refusal.DELAY, "Heartbeat": Refusal.NEVER}

Row = dict[str, Any]


def steps(client: Client, kinds: Sequence[str] = tuple(REFUSALS)) -> Iterator[Step]:
    """Requests of all three kinds, or of some."""
    random = Random(client.number)
    while True:
        kind = random.choice(kinds)
        yield Step(random.randrange(1, 200_000), 100, random.randrange(200, 900), 100, kind)


def served(description: str, horizonUs: int = 20 * SECOND) -> Recording:
    """Clients of a server with one policy."""
    return serve({"per-second": description}, population(2, 3), steps, horizonUs, refusals=REFUSALS)


def decided(recording: Recording) -> set[tuple[Any, ...]]:
    """What was decided when."""
    return {
        (row["conn_id"], row["decided_mono_us"], row["kind"], row["policy_delays_us"][0], row["decision"] == "reject")
        for row in recording.rows
    }


def replayed(decisions: pa.Table) -> set[tuple[Any, ...]]:
    """The same of a replay."""
    names = ("conn_id", "at_us", "kind", "delay_us", "is_refused")
    return {tuple(row[name] for name in names) for row in decisions.to_pylist()}


class RefusalTests(SynchronousTestCase):
    """A policy that refuses whatever comes too often, whether or not it can be told."""

    def setUp(self) -> None:
        """Let there be one."""
        install(self)

    def trials(self, recording: Recording, description: str) -> dict[TrialKey, Trial]:
        """One candidate."""
        return planTrials([candidate(description)], recording.runs())

    def test_stricter(self) -> None:
        """Closed loop a refusal that becomes a delay moves all that follows, as it does on a server."""
        recording = served("per-second:12")
        [run] = recording.runs()
        truth = served("per-second:9", run.horizonUs)
        closed = closedLoop(recording, self.trials(recording, "per-second:9"))
        self.assertEqual(replayed(closed), decided(truth))
        delayed = [row for row in closed.to_pylist() if row["kind"] == "JoinGroup" and row["delay_us"]]
        self.assertGreater(len(delayed), 50)
        for row in delayed:
            self.assertEqual((row["held_us"], row["is_refused"]), (row["delay_us"], False))

    def test_gate(self) -> None:
        """
        The identity gate compares refusals that became delays, too, of one
        policy and of several that refuse the same requests.
        """
        both = {"per-second": "per-second:12", "per-second-#2": "per-second:11"}
        joining = partial(steps, kinds=["JoinGroup"])
        together = serve(both, population(2, 3), joining, 20 * SECOND, refusals=REFUSALS)
        for recording in (served("per-second:12"), together):
            for fidelity in gate(recording):
                self.assertTrue(fidelity.isTrusted, fidelity.inWords())
                self.assertEqual((fidelity.matchShare, fidelity.missing), (1.0, 0))
                self.assertGreater(fidelity.throttled, 50)
