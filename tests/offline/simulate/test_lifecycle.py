"""Replays of policies that want to know which requests are under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import CONNECTION, Outcome, QuotaEntity, Request, Usage
from admission.offline.kinds import traitsOfKind
from admission.offline.simulate.candidates import resolveCandidate
from admission.offline.simulate.live import EVERYTHING, LivePolicy
from admission.offline.simulate.runs import LimitChange
from admission.offline.simulate.shards import planReplays
from admission.offline.simulate.tally import Totals, labelled, refusingLess
from admission.offline.simulate.totals import addUp, countTimes, mergeTimes
from admission.offline.simulate.trials import BASELINE, RECORDED, Trial, TrialKey, planTrials
from tests.kit.replaymodel import Client, Recording, Step, clientsIn, closedLoop, openLoop, population, serve
from tests.kit.replaypolicies import AtMost, Following, candidate, install

SECOND = 1_000_000
ALICE = QuotaEntity(user="alice")

DELAY_US = 50_000
"""What L{AtMost} asks of those that it refuses."""

CLIENTS = population(2, 4)


def steps(client: Client) -> Iterator[Step]:
    """Requests that take their time."""
    random = Random(client.number)
    while True:
        yield Step(random.randrange(1, 20_000), 100, random.randrange(100, 9000), random.randrange(100, 9000))


def recorded(horizonUs: int = 5 * SECOND) -> Recording:
    """Clients whom nobody throttles."""
    return serve({"per-second": "per-second:1000000"}, CLIENTS, steps, horizonUs)


def openTruth(recording: Recording, most: int) -> set[tuple[int, bool]]:
    """Which of the recorded requests would have been too many."""
    said = set()
    ends: dict[str, list[int]] = defaultdict(list)
    for row in sorted(recording.rows, key=lambda row: (row["mono_us"], row["seq"])):
        underWay = ends[row["client_id"]] = [endUs for endUs in ends[row["client_id"]] if endUs > row["mono_us"]]
        isRefused = len(underWay) >= most
        said.add((row["seq"], isRefused))
        if not isRefused:
            underWay.append(row["sent_mono_us"])
    return said


def closedTruth(recording: Recording, most: int, horizonUs: int) -> set[tuple[int, int, bool]]:
    """What becomes of the clients where so many requests are allowed at a time; they have no more than was recorded."""
    counts: dict[int, int] = defaultdict(int)
    for row in recording.rows:
        counts[row["conn_id"]] += 1
    said = set()
    ends: dict[str, list[int]] = defaultdict(list)
    heap: list[Any] = []
    for client in CLIENTS:
        each = steps(client)
        step = next(each)
        heap.append((client.beginsUs + step.thinkUs, client.number, client, step, each))
    heapify(heap)
    while heap and heap[0][0] <= horizonUs:
        atUs, _, client, step, each = heappop(heap)
        underWay = ends[client.clientId] = [endUs for endUs in ends[client.clientId] if endUs > atUs]
        isRefused = len(underWay) >= most
        said.add((client.number, atUs, isRefused))
        sentUs = atUs + step.workUs + step.answerUs
        if not isRefused:
            underWay.append(sentUs)
        counts[client.number] -= 1
        step = next(each)
        if counts[client.number]:
            nextUs = max(sentUs, atUs + DELAY_US * isRefused) + step.thinkUs
            heappush(heap, (nextUs, client.number, client, step, each))
    return said


class LifecycleTests(SynchronousTestCase):
    """A limit of how many requests each client may have under way."""

    def setUp(self) -> None:
        """Let there be one."""
        install(self)

    def trials(self, recording: Recording, *descriptions: str) -> dict[TrialKey, Trial]:
        """Candidates."""
        return planTrials([candidate(each) for each in descriptions], recording.runs())

    def check(self, policy: AtMost, admitted: int) -> None:
        """It was told of all that it admitted, in order, and of their ends once."""
        moments = [now for _, _, now, _ in policy.told]
        self.assertEqual(moments, sorted(moments))
        self.assertEqual(sum(hasBegun for hasBegun, _, _, _ in policy.told), admitted)
        self.assertEqual(len(policy.told), 2 * admitted)
        self.assertEqual(set(policy.underWay.values()), {0})

    def replayed(self) -> AtMost:
        """Of all that were made for one thing or another, the one that was replayed."""
        [policy] = [each for each in AtMost.made if each.told]
        AtMost.made.clear()
        return policy

    def test_counted(self) -> None:
        """
        Open loop it counts the requests that were under way when each began; closed loop those that are refused come
        later, and others meet them.
        """
        recording = recorded()
        [run] = recording.runs()
        for most in (1, 2, 3):
            for replay, names, truth in (
                (openLoop, ("seq", "is_refused"), openTruth(recording, most)),
                (closedLoop, ("conn_id", "at_us", "is_refused"), closedTruth(recording, most, run.horizonUs)),
            ):
                decisions = replay(recording, self.trials(recording, f"at-most:{most}")).to_pylist()
                self.assertEqual({tuple(row[name] for name in names) for row in decisions}, truth)
                admitted = sum(not row["is_refused"] for row in decisions)
                self.assertGreater(len(decisions) - admitted, 20)
                self.check(self.replayed(), admitted)

    def test_parked(self) -> None:
        """A policy that does not count parked requests is told that one has ended when the work on it was done."""
        recording = recorded(SECOND)
        rows = {row["seq"]: row for row in recording.rows}
        for parked, moment in (("yes", "sent_mono_us"), ("no", "decided_mono_us")):
            trials = self.trials(recording, f"at-most:99:parked={parked}")
            openLoop(recording, trials)
            policy = self.replayed()
            self.check(policy, len(rows))
            expected = sorted(row[moment] / 1e6 for row in rows.values())
            self.assertEqual([now for hasBegun, _, now, _ in policy.told if not hasBegun], expected)

    def test_shared(self) -> None:
        """
        All requests are in one place, unless the policy says who influences
        whom; it is never cut by time, since requests may last longer.
        """
        recording = recorded()
        trials = self.trials(recording, "at-most:2", "at-most-of-client:2")
        decisions = openLoop(recording, trials).to_pylist()
        one, spread = ([row for row in decisions if row["candidate"] == label] for label, _, _ in trials)
        self.assertEqual({row["replay_key"] for row in one}, {repr(EVERYTHING)})
        self.assertEqual({row["replay_key"] for row in spread}, {"'client 0'", "'client 1'"})
        self.assertEqual(
            {(row["seq"], row["is_refused"]) for row in one}, {(row["seq"], row["is_refused"]) for row in spread}
        )
        for policy in AtMost.made:
            self.assertEqual(policy.underWay.total(), 0)
        for trial in trials.values():
            self.assertTrue(trial.isFollowing)
            self.assertIsNone(trial.horizonSeconds)

    def test_shipped(self) -> None:
        """The limit that comes with us is replayed as this one is, in one place or by client; one that adapts, too."""
        recording = recorded()
        for description, key in (("concurrency:limit=2", "(None, 'client 0')"), ("concurrency:limit=2:total=99", "()")):
            trials = planTrials([resolveCandidate(description)], recording.runs())
            decisions = openLoop(recording, trials).to_pylist()
            self.assertEqual({(row["seq"], row["is_refused"]) for row in decisions}, openTruth(recording, 2))
            self.assertIn(key, {row["replay_key"] for row in decisions})
        for description, isRefusing in (
            ("concurrency:adaptive:target=1ms", True),
            ("concurrency:adaptive:target=1m", False),
        ):
            trials = planTrials([resolveCandidate(description)], recording.runs())
            decisions = openLoop(recording, trials).to_pylist()
            self.assertEqual(any(row["is_refused"] for row in decisions), isRefusing)

    def test_sharing(self) -> None:
        """A policy that follows requests sees other moments than others do, so they do not share arrivals."""
        recording = recorded(SECOND)
        trials = self.trials(recording, "at-most:2", "at-most:3", "per-second:5")
        [plan] = planReplays(trials, ["open"], clientsIn(recording.rows, trials))
        self.assertEqual(
            sorted([trial.candidate.label for [trial] in each.trials] for each in plan.replays),
            [["at-most:2", "at-most:3"], ["per-second:5"]],
        )

    def test_refusingLess(self) -> None:
        """Of candidates those are found that refuse fewer requests than were refused as recorded."""
        rows = [(BASELINE, 3), ("more", 4), ("same", 3), ("less", 2), (f"{RECORDED}policy", 0)]
        summary = pa.Table.from_pylist(
            [{"candidate": each, "mode": "closed", "refused": count} for each, count in rows]
        )
        self.assertEqual(refusingLess(Totals(summary, summary, summary)), ["less"])

    def test_labelled(self) -> None:
        """Results say which of them are approximate."""
        recording = recorded(SECOND)
        trials = self.trials(recording, "at-most:2", "per-second:5")
        minutes = mergeTimes(countTimes(openLoop(recording, trials).to_batches()))
        totals = labelled(Totals(addUp(minutes, ()), addUp(minutes, ("client_id",)), pa.table({})), trials)
        expected = {("at-most:2", True), ("per-second:5", False)}
        for table in (totals.summary, totals.clients):
            said = {(row["candidate"], row["is_approximate"]) for row in table.to_pylist()}
            self.assertEqual(said, expected)


class LiveTests(SynchronousTestCase):
    """L{LivePolicy} tells a policy what begins and ends."""

    def live(self, policy: Following, *changes: LimitChange) -> LivePolicy:
        """Put one to work."""
        policy.configure(ALICE, {"scripted_rate": 1.0}, 0.0)
        return LivePolicy(policy, 0, changes, 10**9)

    def ask(self, live: LivePolicy, atUs: int, answerUs: int, kind: str = "Produce") -> None:
        """Put one request to it."""
        request, usage = Request(kind, "alice", "app", "peer", 100, (), traitsOfKind(kind)), Usage(100, 20, 0.0015)
        live.answer(atUs, 1, request, usage, 0, False, 1500, answerUs)

    def test_outcome(self) -> None:
        """It is told of service, and takes the rest for being parked."""
        for countsParked, expected in (
            (True, [(0.001, Outcome(True, 0.0015, 0.0)), (0.004, Outcome(True, 0.0015, 0.0025))]),
            (False, [(0.001, Outcome(True, 0.0015, 0.0)), (0.0015, Outcome(True, 0.0015, 0.0))]),
        ):
            policy = Following(countsParked)
            live = self.live(policy)
            self.ask(live, 0, 4000)
            self.ask(live, 0, 1000)
            live.finish()
            self.assertEqual(policy.endedAt, expected)
            live.finish()
            self.assertEqual(len(policy.endedAt), 2)

    def test_order(self) -> None:
        """What ends at the moment of a decision has ended before it; what ends later has not."""
        policy = Following(True)
        live = self.live(policy)
        for atUs, answerUs, ended in ((0, 5000, 0), (4999, 10, 0), (5000, 9, 1), (5009, 100, 3)):
            self.ask(live, atUs, answerUs)
            self.assertEqual(len(policy.endedAt), ended)

    def test_unanswered(self) -> None:
        """It is not told of connections."""
        policy = Following(True)
        self.ask(self.live(policy), 0, 10, CONNECTION)
        self.assertEqual(policy.begunAt, [])

    def test_unlimited(self) -> None:
        """
        What has begun ends although nobody is limited any more, and before
        limits change that change later; nothing begins then.
        """
        policy = Following(True)
        live = self.live(policy, LimitChange(3000, ALICE, "scripted_rate", None))
        self.ask(live, 0, 2000)
        self.ask(live, 1000, 9000)
        live.advance(3000)
        self.assertEqual(len(policy.endedAt), 1)
        self.ask(live, 4000, 1)
        live.finish()
        self.assertEqual(policy.begunAt, [0.0, 0.001])
        self.assertEqual([now for now, _ in policy.endedAt], [0.002, 0.01])

    def test_shadow(self) -> None:
        """A shadow policy that is judged as if it had a say follows requests, too."""
        policy = Following(True)
        policy.isShadow = True
        live = self.live(policy)
        self.ask(live, 0, 10)
        live.finish()
        self.assertEqual((len(policy.begunAt), len(policy.endedAt)), (1, 1))
