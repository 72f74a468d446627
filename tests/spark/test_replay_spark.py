"""
Tests for L{admission.offline.simulate.sparkreplay}, L{admission.offline.simulate.tally}
and L{admission.offline.simulate.sparkreplay}, in Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from pyspark.sql import DataFrame
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IMemoryPoolFactory
from admission.offline.failures import TraceError
from admission.offline.simulate.candidates import resolveCandidate, resolveCandidates
from admission.offline.simulate.decisions import CLOSED, DECISIONS, OPEN
from admission.offline.simulate.disagreement import Disagreement, explain
from admission.offline.simulate.fairness import STARVED, fairnessOf, starvedOf
from admission.offline.simulate.pool import RESULTS, replayPools
from admission.offline.simulate.pooltrace import POOL_COLUMNS
from admission.offline.simulate.runs import LIMIT_COLUMNS
from admission.offline.simulate.sparkreplay import (
    Scale,
    collected,
    countByConnection,
    countClients,
    planPools,
    replay,
    replayPoolTrials,
)
from admission.offline.simulate.tally import (
    addTimes,
    disagreements,
    fidelityTable,
    judgeReplays,
    outcomes,
    pipeliningShares,
    timesIn,
    totalsOf,
)
from admission.offline.simulate.totals import TIMES, addUp, countTimes, mergeTimes
from admission.offline.simulate.trials import Trial, TrialKey, planRecorded, planTrials
from admission.offline.survey import completeRuns, findRuns
from tests.kit.evaluated import FAIRNESS, Row, decisionsOf, fairnessRows, starvedRows
from tests.kit.replaymodel import (
    REQUEST_COLUMNS,
    WALL_OFFSET_US,
    Client,
    Recording,
    Step,
    Steps,
    alikeIn,
    closedLoop,
    openLoop,
    plansFor,
    population,
    replayedBy,
    rowsOf,
    serve,
    steadySteps,
    tableOf,
)
from tests.kit.replaypolicies import candidate
from tests.kit.sharedmodel import serveTogether
from tests.kit.sparksession import sharedSession

SECOND = 1_000_000
NUMBERED = ("broker_id", "boot_id", "seq", "mono_us")

Trials = Mapping[TrialKey, Trial]


@cache
def throttled() -> Recording:
    """Clients that are throttled by a window and share nothing but that."""
    return serve({"client-bytes": "client-bytes:produce=1M"}, population(4, 3), steadySteps(thinkMs=40), 20 * SECOND)


@cache
def framed() -> DataFrame:
    """The same for Spark."""
    return frameOf(throttled().rows)


def frameOf(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = REQUEST_COLUMNS) -> DataFrame:
    """Rows for Spark, in several parts and no order."""
    return sharedSession().createDataFrame(tableOf(rows, columns)).repartition(3, "seq")


def bursts(count: int, pauseSeconds: int) -> Steps:
    """Clients that send so many requests, and then nothing for a while."""

    def steps(client: Client) -> Iterator[Step]:
        while True:
            for _ in range(count):
                yield Step(20_000, 60_000, 300, 500)
            yield Step(pauseSeconds * SECOND, 60_000, 300, 500)

    return steps


class ReplayTests(SynchronousTestCase):
    """A replay in Spark."""

    def test_sameAsAlone(self) -> None:
        """
        Several candidates in one pass, in several tasks, say to every request what the replay says of each of them
        alone, in both modes, also those that follow requests.
        """
        throttling = ("client-bytes:produce=500000", "bucket=client-bytes:produce=1M:algorithm=bucket")
        refusing = ("at-most:1", "at-most-of-client:2", "per-second:60")
        candidates = [*resolveCandidates(throttling), *map(candidate, refusing)]
        trials = planTrials(candidates, throttled().runs())
        expected = pa.concat_tables([core(throttled(), trials) for core in (closedLoop, openLoop)])
        found = collected(replay(framed(), trials, [CLOSED, OPEN], Scale(0, 3)), DECISIONS)
        self.assertEqual(rowsOf(found), rowsOf(expected))
        self.assertGreater(sum(delay > 0 for delay in found["delay_us"].to_pylist()), 100)
        self.assertEqual({row["candidate"] for row in found.to_pylist() if row["is_refused"]}, {*refusing})

    def test_results(self) -> None:
        """
        Totals, minutes and the histogram are what the replay's own counting
        makes of all decisions; the policy in force is trusted, unless nothing
        was recorded of it.
        """
        runs = throttled().runs()
        trials = {**planRecorded(runs), **planTrials(resolveCandidates(["client-bytes:produce=500000"]), runs)}
        modes = (CLOSED, OPEN)
        found = outcomes(framed(), trials, modes, Scale(0, 3)).persist()
        self.addCleanup(found.unpersist)
        decisions = [core(throttled(), trials) for core in (closedLoop, openLoop)]
        counted = mergeTimes(countTimes(pa.concat_tables(decisions).to_batches()))
        totals = totalsOf(found)
        for table, by in ((totals.summary, ()), (totals.clients, ("principal", "client_id"))):
            self.assertEqual(table.drop_columns(["starved_minutes"]).to_pylist(), addUp(counted, by).to_pylist())
            self.assertEqual(set(table["starved_minutes"].to_pylist()), {0})
        names = [name for name in TIMES.names if name != "delay_bins"]
        expected = pa.Table.from_batches([counted]).select(names)
        self.assertEqual(
            rowsOf(addTimes(timesIn(found)).select(*names).toArrow().cast(expected.schema)), rowsOf(expected)
        )
        histogram = totals.histogram.group_by(["candidate", "mode"]).aggregate([("n", "sum")])
        requests = {(row["candidate"], row["mode"]): row["requests"] for row in totals.summary.to_pylist()}
        self.assertEqual({(a, b): n for a, b, n in rowsOf(histogram)}, requests)

        unheard = planRecorded([evolve(run, bootId="unheard") for run in runs])
        judged = judgeReplays(framed(), found, {**trials, **unheard}, modes)
        nothing = [(each.mode, each.compared, each.isTrusted) for each in judged if each.bootId == "unheard"]
        self.assertEqual(nothing, [(CLOSED, 0, False), (OPEN, 0, False)])
        fidelities = [each for each in judged if each.bootId != "unheard"]
        self.assertEqual([each.mode for each in fidelities], [CLOSED, OPEN])
        self.assertTrue(all(each.isTrusted and each.throttled > 100 and not each.missing for each in fidelities))
        self.assertEqual(fidelityTable(fidelities)["is_trusted"].to_pylist(), [True, True])

    def explained(self, recording: Recording, cut: set[tuple[str, str]]) -> Disagreement:
        """Where the replay of a recording's only policy disagrees, which it must."""
        trials = planRecorded(recording.runs())
        requests = frameOf(recording.rows)
        found = outcomes(requests, trials, [CLOSED], Scale(0, 3)).persist()
        self.addCleanup(found.unpersist)
        judged = [each for each in judgeReplays(requests, found, trials, [CLOSED]) if each.isRefuted]
        self.assertEqual(len(judged), 1)
        table = disagreements(requests, found, trials)
        wrong = sum(table["decisions"].to_pylist())
        self.assertEqual(judged[0].compared - wrong, round(judged[0].compared * judged[0].matchShare))
        [explained] = explain(judged, table, trials, cut, pipeliningShares(requests))
        return explained

    def test_disagreements(self) -> None:
        """
        Events that were lost make the replay of a policy disagree from then on, about the client whose they were; the
        same is so at the beginning of a recording that lacks what came before it, until the policy has forgotten.
        """
        recording = serve({"client-bytes": "client-bytes:produce=200k"}, population(3, 1), bursts(60, 15), 120 * SECOND)
        middle = next(
            row["ts"] for row in recording.rows if row["mono_us"] > 40 * SECOND and row["policy_delays_us"][0] > 1000
        )
        rest = evolve(recording, rows=[row for row in recording.rows if row["ts"] > middle])
        found = self.explained(rest, {("1", "boot")})
        self.assertIn("when the server was at work already", found.cause)

        recording = serve(
            {"client-bytes": "client-bytes:produce=300k"}, population(4, 2), steadySteps(thinkMs=150), 120 * SECOND
        )
        of = [row for row in recording.rows if row["client_id"] == "client 2" and row["mono_us"] > 60 * SECOND]
        lost = {row["seq"] for row in of[:3]}
        found = self.explained(evolve(recording, rows=[row for row in recording.rows if row["seq"] not in lost]), set())
        self.assertEqual([each[:2] for each in found.clients], [("user", "client 2")])
        self.assertIn("missing before", found.cause)

    def test_pipeliningShares(self) -> None:
        """Connections pipeline if any of their requests comes before the one before it was answered."""
        rows = [
            {"broker_id": "1", "boot_id": "a", "conn_id": 1, "seq": 1, "mono_us": 10, "sent_mono_us": 20},
            {"broker_id": "1", "boot_id": "a", "conn_id": 1, "seq": 2, "mono_us": 20, "sent_mono_us": 30},
            {"broker_id": "1", "boot_id": "a", "conn_id": 2, "seq": 4, "mono_us": 15, "sent_mono_us": 40},
            {"broker_id": "1", "boot_id": "a", "conn_id": 2, "seq": 3, "mono_us": 10, "sent_mono_us": 20},
            # It was never answered.
            {"broker_id": "1", "boot_id": "b", "conn_id": 1, "seq": 1, "mono_us": 10},
            {"broker_id": "1", "boot_id": "b", "conn_id": 1, "seq": 2, "mono_us": 15, "sent_mono_us": 40},
        ]
        self.assertEqual(pipeliningShares(frameOf(rows)), {("1", "a"): 0.5, ("1", "b"): 0.0})

    def test_runs(self) -> None:
        """What is known of a run is what the core finds, events that are missing included."""
        recording = throttled()
        kept = [row for row in recording.rows if row["seq"] not in (100, 101, 500)]
        # The machine's clock is set back: policies have gone on with what they saw first.
        late = max(row["ts"] for row in kept) - 1_000_000
        kept = [{**row, "ts": row["ts"] - 3_600_000_000 * (row["ts"] > late)} for row in kept]
        numbered = [*kept, *recording.limits]
        limits = frameOf(recording.limits, LIMIT_COLUMNS)
        others = [{**row, "boot_id": "second", "limit_share": 0.5} for row in kept[200:300]]
        runs = findRuns(frameOf([*kept, *others]))
        found = completeRuns(runs, limits, frameOf(numbered, NUMBERED))
        alone = [Recording(recording.horizonUs, kept, recording.limits), Recording(recording.horizonUs, others)]
        self.assertEqual(found, [run for each in alone for run in each.runs()])
        self.assertEqual(found[0].wallOffsetUs, WALL_OFFSET_US)
        self.assertEqual([run.limitShare for run in found], [1.0, 0.5])
        self.assertEqual([(gap.seq, gap.missing) for gap in found[0].gaps], [(102, 2), (501, 1)])

    def test_together(self) -> None:
        """
        Runs that shared limits are found, and replayed together in several tasks as alone: clients get the limit of a
        candidate, and not as many times that as there are servers.
        """
        clients = [[Client(number + 1, "user", "app") for number in range(count)] for count in (2, 3)]
        policies = {"client-bytes": "client-bytes:received=1M:shared=yes"}
        recordings = serveTogether(policies, clients, steadySteps(thinkMs=5, sizeBytes=10_000), 20.0, [0.0, 1.25])
        whole = Recording(
            0, [row for each in recordings for row in each.rows], [row for each in recordings for row in each.limits]
        )
        requests = frameOf(whole.rows)
        numbered = frameOf([*whole.rows, *whole.limits], NUMBERED)
        runs = completeRuns(findRuns(requests), frameOf(whole.limits, LIMIT_COLUMNS), numbered)
        self.assertEqual(runs, [run for each in recordings for run in each.runs()])
        trials = planTrials(resolveCandidates(["half=client-bytes:received=500k:shared=yes"]), runs)
        found = collected(replay(requests, trials, [CLOSED, OPEN], Scale(0, 3)), DECISIONS)
        self.assertEqual(rowsOf(found), rowsOf(replayedBy(whole, plansFor(whole, trials))))
        sizeBytes = sum(
            row["request_bytes"]
            for row in found.to_pylist()
            if row["mode"] == CLOSED and 4 <= (row["wall_us"] - WALL_OFFSET_US) / SECOND < 20
        )
        self.assertTrue(0.98 <= sizeBytes / 8_000_000 <= 1.02, sizeBytes)

    def test_tooManyConnections(self) -> None:
        """More clients or connections than the driver could remember are refused with the remedy."""
        for count in (countClients, countByConnection):
            error = self.assertRaises(TraceError, count, framed(), 3)
            self.assertIn("more than 3 clients, with their addresses", str(error))
        self.assertEqual(len(countClients(framed(), 4)), 4)
        error = self.assertRaises(TraceError, countByConnection, framed(), 4, 7)
        self.assertIn("more than 7 connections", str(error))
        clients, alike = countByConnection(framed(), 4, 8)
        self.assertEqual((len(clients), sum(len(each) for each, _ in alike.values())), (4, 8))

    def test_alike(self) -> None:
        """
        Connections on which the same clients sent the same kinds of requests are counted as the first of them, in
        every run by itself; all others by themselves.
        """
        rows = [
            {**row, "boot_id": boot, "kind": kind, "client_id": clientId}
            for boot in ("a", "b")
            for row in throttled().rows[:200]
            for kind, clientId in (("Produce", row["client_id"]), ("Metadata", f"other {row['conn_id'] % 2}"))
            if boot == "a" or row["conn_id"] % 4
        ]
        rows[0]["decided_mono_us"] = None
        clients, alike = countByConnection(frameOf(rows))
        expected = alikeIn(rows)
        self.assertEqual(
            {run: [each.tolist() for each in arrays] for run, arrays in alike.items()},
            {run: [each.tolist() for each in arrays] for run, arrays in expected.items()},
        )
        self.assertEqual([len(each) > 0 for each, _ in expected.values()], [True, True])
        firsts = {run: dict(zip(*(each.tolist() for each in arrays), strict=True)) for run, arrays in expected.items()}
        counted = Counter(
            (
                *(row[name] for name in ("broker_id", "boot_id")),
                firsts[row["broker_id"], row["boot_id"]].get(row["conn_id"], row["conn_id"]),
                *(row[name] or "" for name in ("kind", "principal", "client_id", "peer")),
                row["traits"],
                row["decided_mono_us"] is not None,
            )
            for row in tableOf(rows).to_pylist()
        )
        self.assertEqual({tuple(row[:-1]): row[-1] for row in rowsOf(clients)}, counted)

    def test_pools(self) -> None:
        """
        Pools in Spark do what they do alone, in every run of a server; the one
        that was there is replayed, too, where it was, unless it is unknown.
        """
        memory = {"gate_seed": 7, "pool_wait_us": 0, "pool_hold_us": 20_000, "pool_used_bytes": 0}
        rows = [{**row, **memory, "boot_id": run} for run in ("a", "b") for row in throttled().rows]
        candidates = [resolveCandidate(f"bounded:{size}", IMemoryPoolFactory) for size in ("60000B", "90000B")]
        recorded = {("1", "a"): "bounded:60000B", ("1", "b"): "vanished:1GiB"}
        trials, notes = planPools(candidates, recorded)
        self.assertEqual(
            [trial.candidate.label for trial in trials], ["bounded:60000B", "bounded:90000B", "recorded bounded"]
        )
        [note] = notes
        self.assertIn("the recorded pool vanished:1GiB is not replayed: ", note)

        found = replayPoolTrials(frameOf(rows, POOL_COLUMNS), trials)
        table = tableOf(sorted(rows, key=lambda row: (row["boot_id"], row["mono_us"], row["seq"])), POOL_COLUMNS)
        alone = pa.Table.from_batches(replayPools(table.to_batches(500), candidates), RESULTS).to_pylist()
        for part, result in (("total", found.totals), ("step", found.steps), ("client", found.clients)):
            expected = [(*list(row.values())[:3], *row[part].values()) for row in alone if row[part]]
            own = [row for row in rowsOf(result) if not row[0].startswith("recorded")]
            self.assertEqual(own, sorted(expected, key=repr))
        waits = {(row["candidate"], row["boot_id"]): row["waits"] for row in found.totals.to_pylist()}
        self.assertGreater(waits["bounded:60000B", "a"], waits["bounded:90000B", "a"])
        self.assertEqual(waits["recorded bounded", "a"], waits["bounded:60000B", "a"])
        self.assertNotIn(("recorded bounded", "b"), waits)


class FairnessTests(SynchronousTestCase):
    """How evenly clients are served, L{fairnessOf}, and whether each is, L{starvedOf}."""

    def timesOf(self, rows: Sequence[Row], stepSeconds: int = 5) -> DataFrame:
        """The outcomes of decisions by time, where each place has several rows."""
        batches = [pa.RecordBatch.from_pylist(list(rows[part::3]), DECISIONS) for part in range(3)]
        counted = [each for batch in batches for each in countTimes([batch], stepSeconds * SECOND)]
        return sharedSession().createDataFrame(pa.Table.from_batches(counted)).repartition(3)

    def starved(self, rows: Sequence[Row]) -> dict[tuple[str, str], int]:
        """The minutes without service of each client, as the model has them, too."""
        times = self.timesOf(rows)
        found = collected(starvedOf(times), STARVED).to_pylist()
        expected = starvedRows(times.toArrow().to_pylist())
        self.assertEqual(sorted(found, key=repr), sorted(expected, key=repr))
        return {(row["candidate"], row["principal"]): row["starved_minutes"] for row in found}

    def test_model(self) -> None:
        """What is admitted, and how evenly, of each candidate, mode and server."""
        rows = [
            row
            for candidate in ("a", "b")
            for mode in (CLOSED, OPEN)
            for broker in ("1", "2")
            for row in decisionsOf(candidate, 0.3, mode, minutes=2, broker=broker)
        ]
        for number, row in enumerate(rows):
            row["is_refused"] = number % 7 == 0
            if number % 11 == 0:
                row.update(principal="ANONYMOUS", kind="SaslAuthenticate")
            # Nobody is admitted anything in the beginning, and in the end nobody wants anything.
            row["is_refused"] |= row["at_us"] < 5 * SECOND
            row["request_bytes"] *= row["at_us"] < 100 * SECOND
        for stepSeconds in (5, 60):
            times = self.timesOf(rows, stepSeconds)
            found = collected(fairnessOf(times), FAIRNESS).to_pylist()
            expected = fairnessRows(times.toArrow().to_pylist())
            for row in (*found, *expected):
                row["jain_bytes"] = None if row["jain_bytes"] is None else round(row["jain_bytes"], 9)
            self.assertEqual(sorted(found, key=repr), sorted(expected, key=repr))
        self.assertEqual({row["clients"] for row in expected}, {0, 3, 4} if stepSeconds == 5 else {4})

    def test_starved(self) -> None:
        """A minute in which a client gets nothing counts, whatever the clock said when it began."""
        for shiftUs in (0, -31 * SECOND, 17 * SECOND):
            rows = decisionsOf("any", 0.0, minutes=4)
            for row in rows:
                row["wall_us"] += shiftUs
                row["is_refused"] = row["principal"] == "bob" and row["at_us"] < 60 * SECOND
            self.assertEqual(self.starved(rows), {("any", "bob"): 1})

    def test_notStarved(self) -> None:
        """A client that is admitted anything in a minute counts for nothing, and connections before a login neither."""
        for shiftUs in (0, 2_500_000, -31 * SECOND, 45 * SECOND):
            rows = decisionsOf("any", 0.0, minutes=4)
            for row in rows:
                row["wall_us"] += shiftUs
                # What else bob wants in the first minute of the recording, and in the second, is admitted.
                isRefused = row["at_us"] < 5 * SECOND or 60 * SECOND <= row["at_us"] < 105 * SECOND
                row["is_refused"] = row["principal"] == "bob" and isRefused
                if row["principal"] == "mallory":
                    row.update(principal="ANONYMOUS", kind="SaslAuthenticate", is_refused=True)
            self.assertEqual(self.starved(rows), {})
