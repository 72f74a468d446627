"""Tests for L{admission.offline.simulate.openloop} and L{admission.offline.simulate.ordered}."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.openloop import replayOpenLoop
from admission.offline.simulate.ordered import Ordered, OutOfOrder
from admission.offline.simulate.runs import Gap
from admission.offline.simulate.trials import Trial, TrialKey, planRecorded, planTrials
from tests.kit.replaymodel import Recording, alone, arrivalsOf, openLoop, population, serve, steadySteps, summed

SECOND = 1_000_000
IN_FORCE = {"client-bytes": "client-bytes:produce=100k"}


def trialsOf(recording: Recording, *texts: str) -> dict[TrialKey, Trial]:
    """Candidates on what was recorded."""
    return planTrials(resolveCandidates(texts), recording.runs())


def recorded(seconds: int = 30) -> Recording:
    """A few clients that are throttled."""
    return serve(IN_FORCE, population(3, 2), steadySteps(thinkMs=100, sizeBytes=12_000), seconds * SECOND)


class OpenLoopTests(SynchronousTestCase):
    """L{replayOpenLoop} puts requests to candidates when they came."""

    def test_held(self) -> None:
        """
        A client is throttled for as long as the strictest of the candidate and the policies that stay asks for; what a
        shadow policy asks for does not count.
        """
        shadow = {"client-bytes-#2": "client-bytes:produce=50k:shadow=yes"}
        policies = {**IN_FORCE, "request-time": "request-time:percent=0.4", **shadow}
        recording = serve(policies, population(2, 2), steadySteps(thinkMs=100, sizeBytes=12_000), 20 * SECOND)
        decisions = openLoop(recording, trialsOf(recording, "client-bytes:produce=90k"))
        recorded = {row["seq"]: row["policy_delays_us"] for row in recording.rows}
        whose = set()
        for row in decisions.to_pylist():
            retained = recorded[row["seq"]][1]
            self.assertEqual(row["held_us"], max(row["delay_us"], retained))
            whose.add((row["delay_us"] > retained, retained > row["delay_us"]))
        self.assertEqual(whose, {(True, False), (False, True), (False, False)})
        [trial] = [each for each in planRecorded(recording.runs()).values() if not each.hasSay]
        for row in openLoop(recording, {trial.key: trial}).to_pylist():
            self.assertEqual(row["held_us"], max(recorded[row["seq"]][:2]))

    def test_barred(self) -> None:
        """What another policy refused stays refused, and costs the candidate's client nothing."""
        recording = recorded(5)
        for row in recording.rows:
            row.update(policy_delays_us=[], decision="reject", policy="producer-ids", throttle_ms=7, is_counted=None)
        decisions = openLoop(recording, trialsOf(recording, "client-bytes:produce=1"))
        self.assertEqual(set(decisions["is_barred"].to_pylist()), {True})
        self.assertEqual(summed(decisions), (len(recording.rows), 0, 0))
        self.assertEqual(set(decisions["held_us"].to_pylist()), {7000})

    def test_unnoticed(self) -> None:
        """Requests that the candidate takes no notice of are let through, in whatever order they come."""
        recording = recorded(3)
        for row in recording.rows:
            row["kind"] = "Metadata"
        trials = trialsOf(recording, "client-bytes:produce=1")
        decisions = pa.Table.from_batches(replayOpenLoop(reversed(arrivalsOf(recording, trials, 10)), alone(trials)))
        self.assertEqual(summed(decisions), (len(recording.rows), 0, 0))

    def test_gaps(self) -> None:
        """What comes after missing events is marked, for as long as the policy remembers."""
        recording = recorded(30)
        [run] = recording.runs()
        middle = recording.rows[len(recording.rows) // 3]
        gap = Gap(middle["seq"], middle["mono_us"])
        candidates = resolveCandidates(["w=client-bytes:produce=50k", "b=client-bytes:produce=50k:algorithm=bucket"])
        trials = planTrials(candidates, [evolve(run, gaps=[gap])])
        marked = {
            (row["candidate"], row["seq"]) for row in openLoop(recording, trials).to_pylist() if row["is_poisoned"]
        }
        after = [row for row in recording.rows if row["seq"] >= gap.seq]
        self.assertEqual({seq for label, seq in marked if label == "b"}, {row["seq"] for row in after})
        self.assertEqual(
            {seq for label, seq in marked if label == "w"},
            {row["seq"] for row in after if row["decided_mono_us"] - gap.atUs < 12 * SECOND},
        )


class OrderedTests(SynchronousTestCase):
    """L{Ordered} finds groups and refuses disorder."""

    def feed(self, rows: list[tuple[str | None, int, int]], cut: int) -> list[tuple[str | None, bool, int]]:
        """The group, whether it was new, and the size of each run."""
        ordered = Ordered(["group"], ["at", "seq"])
        found = []
        for begin in range(0, len(rows), cut):
            part = rows[begin : begin + cut]
            names = ("group", "at", "seq")
            batch = pa.record_batch(
                {name: pa.array([row[index] for row in part]) for index, name in enumerate(names)},
                schema=pa.schema([("group", pa.string()), ("at", pa.int64()), ("seq", pa.int64())]),
            )
            found += [(group[0], isNew, stop - start) for group, isNew, start, stop in ordered.groups(batch)]
        return found

    def test_refused(self) -> None:
        """Rows out of order, rows that come twice and groups in two places are refused, within a batch and across."""
        for rows, complaint in [
            ([("a", 1, 2), ("a", 1, 1)], "group 'a': the row with at 1, seq 1 comes after at 1, seq 2"),
            ([("a", 2, 1), ("a", 1, 9)], "the row with at 1, seq 9 comes after at 2, seq 1"),
            ([("a", 1, 1), ("a", 1, 1)], "the row with at 1, seq 1 comes twice"),
            ([("a", 1, 1), ("b", 1, 1), ("a", 2, 1)], "group 'a': the rows are in two places"),
        ]:
            for cut in (1, 2, 9):
                error = self.assertRaises(OutOfOrder, self.feed, rows, cut)
                self.assertIn(complaint, str(error))
                self.assertTrue(str(error).endswith("sort by group, at, seq"), str(error))

    @given(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)), max_size=12), st.integers(1, 5)
    )
    def test_anyRows(self, rows: list[tuple[str | None, int, int]], cut: int) -> None:
        """Sorted rows pass, all others do not."""
        order = list(dict.fromkeys(group for group, _, _ in rows))
        if rows == sorted(set(rows), key=lambda row: (order.index(row[0]), *row[1:])):
            runs = self.feed(rows, cut)
            self.assertEqual([group for group, isNew, _ in runs if isNew], order)
            self.assertEqual(sum(size for _, _, size in runs), len(rows))
        else:
            self.assertRaises(OutOfOrder, self.feed, rows, cut)
