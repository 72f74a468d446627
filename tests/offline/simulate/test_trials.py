"""
Tests for L{admission.offline.simulate.runs}, L{admission.offline.simulate.trials}
and L{admission.offline.simulate.live}.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import ADMITTED, DEFAULT, NOTHING, Decision, QuotaEntity, Refusal, Request, Usage
from admission.offline.failures import TraceError
from admission.offline.simulate.candidates import Candidate, resolveCandidate
from admission.offline.simulate.live import EVERYTHING, REFUSALS, LivePolicy
from admission.offline.simulate.runs import GAPS, LIMIT_COLUMNS, Gap, LimitChange, Run, findGaps, withHistory
from admission.offline.simulate.trials import Trial, planRecorded, planTrials
from admission.plugins import PolicyError
from admission.quotas.policy import QuotaPolicy
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit.replaymodel import tableOf

CLIENTS = QuotaEntity(clientId=DEFAULT)
ALICE = QuotaEntity(user="alice")
RATE = "received_byte_rate"
FETCHED = "sent_byte_rate"


def runWith(*descriptions: str, changes: Sequence[LimitChange] = (), names: Sequence[str] | None = None) -> Run:
    """A run with these policies in force."""
    if names is None:
        names = [description.partition(":")[0] for description in descriptions]
    return Run("1", "boot", 10**9, names, descriptions, changes=changes)


def trialOf(description: str, run: Run) -> Trial:
    """One candidate in one run."""
    [trial] = planTrials([resolveCandidate(description)], [run]).values()
    return trial


def limitsAt(trial: Trial, atUs: int) -> dict[QuotaEntity, dict[str, float]]:
    """The limits in force at some moment of a trial."""
    live = trial.begin(0)
    live.advance(atUs)
    return {entity: dict(values) for entity, values in live.policy.limits.items()}


def start(value: float, entity: QuotaEntity = CLIENTS, name: str = RATE) -> LimitChange:
    """A limit that the server was started with."""
    return LimitChange(0, entity, name, value, isStart=True)


class RunTests(SynchronousTestCase):
    """What is known of runs."""

    def test_limits(self) -> None:
        """Limits come in the order of their events, those of the start marked."""
        rows = [
            {"mono_us": 9, "seq": 5, "user": "alice", "limit_name": RATE, "value": None, "changed_by": "admin"},
            {"mono_us": 9, "seq": 4, "user": "alice", "limit_name": RATE, "value": 2.0, "changed_by": "admin"},
            {"mono_us": 1, "seq": 1, "client_id": DEFAULT, "limit_name": RATE, "value": 1.0},
        ]
        limits = tableOf([{"broker_id": "1", "boot_id": "a", **row} for row in rows], LIMIT_COLUMNS)
        [run] = withHistory([Run("1", "a", 10)], limits, tableOf([], GAPS.names))
        self.assertEqual(
            run.changes,
            [
                LimitChange(1, CLIENTS, RATE, 1.0, isStart=True, seq=1),
                LimitChange(9, ALICE, RATE, 2.0, seq=4),
                LimitChange(9, ALICE, RATE, None, seq=5),
            ],
        )

    def test_gaps(self) -> None:
        """Missing numbers are found within a run, across batches too, and its beginning is none."""
        numbers = [("a", 5), ("a", 6), ("a", 9), ("a", 10), ("b", 3), ("b", 4), ("b", 6)]
        table = pa.table(
            {
                "broker_id": ["1"] * len(numbers),
                "boot_id": [run for run, _ in numbers],
                "seq": [seq for _, seq in numbers],
                "mono_us": [seq * 10 for _, seq in numbers],
            }
        )
        for size in (1, 2, 3, 10):
            gaps = pa.Table.from_batches(findGaps(table.to_batches(size)), GAPS)
            found = [tuple(row.values()) for row in gaps.to_pylist()]
            self.assertEqual(found, [("1", "a", 9, 90, 2), ("1", "b", 6, 60, 1)])
        [run] = withHistory([Run("1", "a", 10)], tableOf([], LIMIT_COLUMNS), gaps)
        self.assertEqual(run.gaps, [Gap(9, 90, 2)])

    def test_otherVersion(self) -> None:
        """Policies without descriptions are refused in words."""
        run = runWith(names=["client-bytes"])
        limits, gaps = tableOf([], LIMIT_COLUMNS), tableOf([], GAPS.names)
        error = self.assertRaises(TraceError, withHistory, [run], limits, gaps)
        self.assertIn("boot boot of broker 1 names 1 policies and describes 0", str(error))


class LimitTests(SynchronousTestCase):
    """Which limits hold for a candidate."""

    def test_descriptionWins(self) -> None:
        """What the candidate's description sets stays, whatever was recorded."""
        changes = [start(1e6), LimitChange(5, CLIENTS, RATE, 7e6), LimitChange(9, CLIENTS, RATE, None)]
        trial = trialOf("client-bytes:produce=4M", runWith("client-bytes:produce=1M", changes=changes))
        for atUs in (0, 5, 9):
            self.assertEqual(limitsAt(trial, atUs), {CLIENTS: {RATE: 4e6}})

    def test_othersHold(self) -> None:
        """All other limits hold when they did."""
        changes = [start(1e6), start(2e6, ALICE), LimitChange(5, ALICE, RATE, 7e6), LimitChange(9, ALICE, RATE, None)]
        trial = trialOf("client-bytes:produce=4M", runWith("client-bytes:produce=1M", changes=changes))
        self.assertEqual(limitsAt(trial, 4), {CLIENTS: {RATE: 4e6}, ALICE: {RATE: 2e6}})
        self.assertEqual(limitsAt(trial, 8), {CLIENTS: {RATE: 4e6}, ALICE: {RATE: 7e6}})
        self.assertEqual(limitsAt(trial, 9), {CLIENTS: {RATE: 4e6}})

    def test_replacedDescription(self) -> None:
        """
        What only the replaced description sets is gone with it, also after
        something that was set over it was taken back.
        """
        changes = [start(1e6), LimitChange(5, CLIENTS, RATE, 7e6), LimitChange(9, CLIENTS, RATE, 1e6)]
        trial = trialOf("client-bytes:fetch=4M", runWith("client-bytes:produce=1M", changes=changes))
        self.assertEqual(limitsAt(trial, 4), {CLIENTS: {FETCHED: 4e6}})
        self.assertEqual(limitsAt(trial, 8), {CLIENTS: {FETCHED: 4e6, RATE: 7e6}})
        self.assertEqual(limitsAt(trial, 9), {CLIENTS: {FETCHED: 4e6}})

    def test_share(self) -> None:
        """
        Of its description a candidate enforces the server's share; what was recorded was in force, and is no share of
        anything.
        """
        changes = [start(5e5), start(1e6, ALICE)]
        changes += [LimitChange(5, CLIENTS, RATE, 3e6), LimitChange(9, CLIENTS, RATE, 5e5)]
        run = evolve(runWith("client-bytes:produce=1M", changes=changes), limitShare=0.5)
        trial = trialOf("client-bytes:produce=4M", run)
        self.assertEqual(limitsAt(trial, 9), {CLIENTS: {RATE: 2e6}, ALICE: {RATE: 1e6}})
        trial = trialOf("client-bytes:fetch=4M", run)
        self.assertEqual(limitsAt(trial, 8), {CLIENTS: {FETCHED: 2e6, RATE: 3e6}, ALICE: {RATE: 1e6}})
        self.assertEqual(limitsAt(trial, 9), {CLIENTS: {FETCHED: 2e6}, ALICE: {RATE: 1e6}})

    def test_unknown(self) -> None:
        """Limits that the candidate does not know do not concern it."""
        changes = [start(50.0, ALICE, "request_percentage")]
        trial = trialOf("client-bytes:produce=4M", runWith("request-time", changes=changes))
        self.assertEqual(limitsAt(trial, 0), {CLIENTS: {RATE: 4e6}})

    def test_recorded(self) -> None:
        """The policy in force is rebuilt with its description and all limits, by whatever name these were recorded."""
        for name in (RATE, "producer_byte_rate"):
            changes = [start(1e6, name=name), start(2e6, ALICE, name), LimitChange(5, CLIENTS, name, 7e6)]
            [trial] = planRecorded([runWith("client-bytes:produce=1M", changes=changes)]).values()
            self.assertEqual(trial.candidate.label, "recorded client-bytes")
            self.assertEqual(limitsAt(trial, 4), {CLIENTS: {RATE: 1e6}, ALICE: {RATE: 2e6}})
            self.assertEqual(limitsAt(trial, 5), {CLIENTS: {RATE: 7e6}, ALICE: {RATE: 2e6}})

    def test_recordedShadow(self) -> None:
        """
        Where descriptions differ each policy in force has its own limit, since
        what is told of the start is but the first.
        """
        run = runWith(
            "client-bytes:produce=1M",
            "client-bytes:produce=3M:shadow=yes",
            names=["client-bytes", "client-bytes-#2"],
            changes=[start(1e6)],
        )
        inForce, shadow = planRecorded([run]).values()
        self.assertEqual(limitsAt(inForce, 0), {CLIENTS: {RATE: 1e6}})
        self.assertEqual(limitsAt(shadow, 0), {CLIENTS: {RATE: 3e6}})

    def test_refusedLimit(self) -> None:
        """A recorded limit that a candidate does not take is refused before anything is replayed."""
        changes = [start(5.0, QuotaEntity(clientId="app"), "producer_ids_rate")]
        error = self.assertRaises(PolicyError, trialOf, "producer-ids:rate=5", runWith(changes=changes))
        self.assertIn("'producer-ids:rate=5' does not take a limit of boot boot of broker 1", str(error))

    def test_notInstalled(self) -> None:
        """A policy in force that is not installed is told of in words."""
        error = self.assertRaises(PolicyError, trialOf, "client-bytes", runWith("foreign:1"))
        self.assertIn("a policy that was in force cannot be built again", str(error))
        self.assertIn("no quota policy is called 'foreign'", str(error))


class PlaceTests(SynchronousTestCase):
    """The policy whose place a candidate takes."""

    def test_replaced(self) -> None:
        """It replaces the policy that has its name and a say; other policies with a say stay."""
        run = runWith(
            "request-time:percent=10",
            "client-bytes:produce=1M",
            "client-bytes:produce=2M:shadow=yes",
            "connections:shadow=yes",
            names=["request-time", "client-bytes", "client-bytes-#2", "connections"],
        )
        trial = trialOf("client-bytes:produce=4M", run)
        self.assertEqual((trial.replaced, trial.retained, trial.decisive), ([1], [0], [0, 1]))
        new = trialOf("producer-ids:rate=4", run)
        self.assertEqual((new.replaced, new.retained), ([], [0, 1]))
        self.assertTrue(trialOf("client-bytes:shadow=yes", run).hasSay)

    def test_recorded(self) -> None:
        """A policy in force replaces itself alone; as a shadow it has no say."""
        run = runWith("client-bytes", "client-bytes:shadow=yes", names=["client-bytes", "client-bytes-#2"])
        inForce, shadow = planRecorded([run]).values()
        self.assertEqual((inForce.replaced, inForce.retained, inForce.hasSay), ([0], [], True))
        self.assertEqual((shadow.replaced, shadow.retained, shadow.hasSay), ([1], [0], False))
        self.assertEqual(shadow.decisive, [0])

    def test_horizon(self) -> None:
        """A trial says how long its policy remembers."""
        self.assertEqual(trialOf("client-bytes:windows=5:window=2s", runWith()).horizonSeconds, 12.0)
        self.assertIsNone(trialOf("client-bytes:algorithm=bucket", runWith()).horizonSeconds)

    @given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=12), st.booleans())
    def test_unlimited(self, events: list[tuple[str, bool]], hasStart: bool) -> None:
        """Nobody was asked anything while there was no limit at all."""
        changes = [start(1.0, QuotaEntity(user="a"))] if hasStart else []
        present = {"a"} if hasStart else set[str]()
        expected = {0: not present}
        for atUs, (user, isSet) in enumerate(events, 1):
            changes.append(LimitChange(atUs, QuotaEntity(user=user), RATE, 1.0 if isSet else None))
            (present.add if isSet else present.discard)(user)
            expected[atUs] = not present
        moments = Trial(Candidate("a", "a", "a", "a.b"), runWith(changes=changes), [], [], []).unlimited()
        self.assertEqual({at: sum(moment <= at for moment in moments) % 2 == 1 for at in expected}, expected)


class Plain(QuotaPolicy):
    """Says nothing of replays."""

    def decide(self, request: Request, now: float) -> Decision:
        """Admit everything."""
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Take no notice."""
        return 0.0


class LiveTests(SynchronousTestCase):
    """L{LivePolicy} asks as a server does."""

    def setUp(self) -> None:
        self.policy = ScriptedQuota()
        self.policy.configure(ALICE, {"scripted_rate": 1.0}, 0.0)
        self.policy.moments.clear()

    def live(self, changes: Sequence[LimitChange] = (), maxDelayUs: int = 10**9) -> LivePolicy:
        """Put it to work."""
        return LivePolicy(self.policy, 0, changes, maxDelayUs)

    def ask(
        self,
        live: LivePolicy,
        atUs: int = 5,
        kind: str = "Produce",
        isCounted: bool = True,
        refusal: Refusal = Refusal.ERROR,
    ) -> tuple[int, bool]:
        """Put one request to it."""
        usage = Usage(100, 20, 0.0015) if isCounted else NOTHING
        request = Request(kind, "alice", "app", "peer", 100, (7,))
        return live.answer(atUs, 1, request, usage, REFUSALS.index(refusal), False, 1500, 2500)

    def test_record(self) -> None:
        """The policy is told what the server told it, at that time."""
        self.policy.delaySeconds = 0.25
        self.assertEqual(self.ask(self.live()), (250_000, False))
        [(request, usage)] = self.policy.recorded
        self.assertEqual(request, Request("Produce", "alice", "app", "peer", 100, (7,)))
        self.assertEqual(usage, Usage(100, 20, 0.0015))
        self.assertEqual(self.policy.moments, [5e-6])

    def test_nothing(self) -> None:
        """Where the policies were told of nothing, it is told of nothing."""
        self.ask(self.live(), isCounted=False)
        self.assertEqual(self.policy.recorded[0][1], NOTHING)

    def test_refused(self) -> None:
        """A refused request is not recorded."""
        self.policy.decision = Decision(False, 0.0123)
        self.assertEqual(self.ask(self.live()), (12_300, True))
        self.assertEqual(self.policy.recorded, [])

    def test_notLimiting(self) -> None:
        """While nobody has a limit the policy is not asked; a change lets it be."""
        self.policy.configure(ALICE, {"scripted_rate": None}, 0.0)
        live = self.live([LimitChange(10, ALICE, "scripted_rate", 2.0), LimitChange(20, ALICE, "scripted_rate", None)])
        for atUs, asked in [(9, 0), (10, 1), (19, 2), (20, 2)]:
            self.ask(live, atUs)
            self.assertEqual(len(self.policy.recorded), asked)

    def test_swept(self) -> None:
        """It is swept now and then, and not for every request."""
        live = self.live()
        for second in range(0, 100, 4):
            self.ask(live, second * 10**6)
        self.assertEqual(self.policy.sweeps, 8)

    def test_shadow(self) -> None:
        """
        A shadow is judged as if it had a say; if it is to have none, what it
        would have asked for is told, and it refuses nobody.
        """
        self.policy.isShadow = True
        self.policy.delaySeconds = 0.25
        self.assertEqual(self.ask(self.live()), (250_000, False))
        without = LivePolicy(self.policy, 0, (), 10**9, hasSay=False)
        self.policy.decision = Decision(False, 1.0)
        self.assertEqual(self.ask(self.live()), (1_000_000, True))
        self.assertEqual(self.ask(without), (250_000, False))

    def test_times(self) -> None:
        """Limits change and sweeps happen at their own moments."""
        live = self.live([LimitChange(7_000_000, ALICE, "scripted_rate", 2.0)])
        self.ask(live, 12_000_000)
        self.assertEqual(self.policy.moments, [7.0, 12.0, 12.0])

    def test_keys(self) -> None:
        """A policy that does not say who influences whom has one key for everything."""
        requesters = [(kind, user, "app", "peer", 9) for kind in ("Produce", "connection") for user in ("alice", "bob")]
        self.assertEqual(len({self.live().keyOf(each) for each in requesters}), 2)
        live = LivePolicy(Plain(), 0, (), 10**9)
        self.assertEqual({live.keyOf(each) for each in requesters}, {EVERYTHING})
