"""A policy by calendar, C{examples/daily_budget.py}."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import PolicyContext, Request
from admission.offline.simulate import trials
from admission.offline.simulate.candidates import Candidate
from admission.recording.events import KEPT
from examples.daily_budget import DailyBudget
from tests.kit import replaymodel
from tests.kit.checkout import ROOT
from tests.kit.documentation import blocksOf
from tests.kit.identitygate import assertAsRecorded, gate

TEXT = "daily-budget:1000000:zone=Europe/Berlin"

FOUND = Candidate(
    "daily-budget",
    "daily-budget",
    TEXT,
    "examples.daily_budget.buildDailyBudget",
    ["1000000"],
    {"zone": "Europe/Berlin"},
)


class ManualTests(SynchronousTestCase):
    """The manual's page about it."""

    def test_shown(self) -> None:
        """The manual shows the example as it is."""
        page = ROOT.joinpath("docs", "daily-budget.md").read_text(encoding="utf-8")
        [shown] = [block.text for block in blocksOf(page) if block.word == "file=daily_budget.py"]
        self.assertEqual(shown, ROOT.joinpath("examples", "daily_budget.py").read_text(encoding="utf-8"))


class ReplayedTests(SynchronousTestCase):
    """A replay has the days that were recorded."""

    def test_midnight(self) -> None:
        """What was refused before midnight, and admitted after it, is so in the replay."""
        policy = DailyBudget(1, ZoneInfo("Europe/Berlin"), replaymodel.WALL_OFFSET_US / 1e6)
        policy.sweep(0.0)
        midnightUs = round(policy._midnight * 1e6)

        def build(interface: Any, description: str, context: PolicyContext) -> Any:
            return FOUND.build(context.clock, wallOffsetSeconds=context.wallSeconds() - context.clock.seconds())

        self.patch(replaymodel, "buildPolicy", build)
        self.patch(trials, "resolveCandidate", lambda text: FOUND)
        clients = [replaymodel.evolve(each, beginsUs=midnightUs - 20_000_000) for each in replaymodel.population(3, 2)]
        recording = replaymodel.serve(
            {"daily-budget": TEXT}, clients, replaymodel.steadySteps(), midnightUs + 5_000_000
        )
        refused = [row["mono_us"] < midnightUs for row in recording.rows if row["decision"] == "reject"]
        self.assertIn(True, refused)
        self.assertTrue(any(row["mono_us"] > midnightUs and row["decision"] == "admit" for row in recording.rows))
        assertAsRecorded(self, gate(recording))

    def test_restart(self) -> None:
        """What was used before a restart is used in the replay of the run after it, if the recording says so."""
        kept: dict[str, float] = {}

        def build(interface: Any, description: str, context: PolicyContext) -> Any:
            policy = FOUND.build(context.clock, wallOffsetSeconds=context.wallSeconds() - context.clock.seconds())
            policy.sweep(0.0)
            kept.update({f"{policy._day} user": 700_000.0, "2000-01-01 user": 5e6})
            policy.resume(kept, 0.0)
            return policy

        self.patch(replaymodel, "buildPolicy", build)
        self.patch(trials, "resolveCandidate", lambda text: FOUND)
        recording = replaymodel.serve(
            {"daily-budget": TEXT}, replaymodel.population(3, 2), replaymodel.steadySteps(), 20_000_000
        )
        for each in gate(recording):
            self.assertLess(each.matchShare, 0.9)
        first = recording.rows[0]
        for seq, (key, number) in enumerate(kept.items(), -len(kept)):
            row = {name: first[name] for name in ("broker_id", "boot_id")}
            row |= {"seq": seq, "mono_us": 0, "user": key, "limit_name": f"{KEPT}daily-budget", "value": number}
            recording.limits.append(row)
        assertAsRecorded(self, gate(recording))
        [run] = recording.runs()
        [tried] = trials.planTrials([evolve(FOUND, label="the same")], [run]).values()
        [status] = tried.begin(0).policy.explain(Request("Produce", "user", "", "", 0), 1.0)
        self.assertEqual(status.used, 700_000.0)
