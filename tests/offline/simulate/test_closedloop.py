"""
Tests for L{admission.offline.simulate.closedloop}, held against a model of server
and clients that knows nothing of replays.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import assume, given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import CONNECTION, QuotaEntity
from admission.offline.simulate import closedloop
from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.runs import Gap
from admission.offline.simulate.trials import Trial, TrialKey, planTrials
from tests.kit.replaymodel import (
    Change,
    Client,
    Recording,
    Step,
    Steps,
    closedLoop,
    openLoop,
    population,
    serve,
    steadySteps,
    summed,
)

SECOND = 1_000_000
IN_FORCE = {"client-bytes": "client-bytes:produce=1M"}
LIMITED = QuotaEntity(clientId="client 1")


def trialsOf(recording: Recording, *texts: str) -> dict[TrialKey, Trial]:
    """Candidates on what was recorded."""
    return planTrials(resolveCandidates(texts), recording.runs())


class CounterfactualTests(SynchronousTestCase):
    """What clients would have got under another policy, and what they do get when they are served under it."""

    clients = population(4, 4)
    steps = staticmethod(steadySteps(thinkMs=15, sizeBytes=20_000))

    def experiment(self, candidate: str, seconds: int = 40) -> tuple[tuple[int, int, int], pa.Table, pa.Table]:
        """
        Record under one policy, replay with another, and let the same clients
        be served under that.

        @return: how many requests there really are, how many throttled and for
            how long; the replays, open and closed loop.
        """
        recording = serve(IN_FORCE, self.clients, self.steps, seconds * SECOND)
        trials = trialsOf(recording, f"other={candidate}")
        [run] = recording.runs()
        truth = serve({"client-bytes": candidate}, self.clients, self.steps, run.horizonUs)
        return truth.throttledUs(), openLoop(recording, trials), closedLoop(recording, trials)

    def test_stricter(self) -> None:
        """
        Half the rate: closed loop is exact to the microsecond, open loop is
        wrong by more than an order of magnitude.
        """
        truth, opened, closed = self.experiment("client-bytes:produce=500k")
        self.assertEqual(summed(closed), truth)
        self.assertNotIn(True, closed["is_exhausted"].to_pylist())
        self.assertGreater(summed(opened)[2], 20 * truth[2])

    def test_laxer(self) -> None:
        """
        Twice the rate: most connections run out of requests, and say so; open
        loop nobody would be throttled at all, which is wrong.
        """
        truth, opened, closed = self.experiment("client-bytes:produce=2M")
        self.assertGreater(truth[1], 1000)
        self.assertEqual(summed(opened)[1:], (0, 0))
        self.assertGreater(sum(closed["is_exhausted"].to_pylist()), 0.8 * len(self.clients))
        self.assertLess(summed(closed)[2], truth[2])

    def test_share(self) -> None:
        """
        A server that enforced half of its limits is replayed with half of a candidate's: the description in force says
        what was recorded, and a stricter one what clients would have got there.
        """
        described, changes = IN_FORCE["client-bytes"], [Change(3 * SECOND, LIMITED, "received_byte_rate", 300_000.0)]
        recording = serve(IN_FORCE, self.clients, self.steps, 10 * SECOND, changes, share=0.5)
        self.assertGreater(recording.throttledUs()[1], 100)
        for replay in (openLoop, closedLoop):
            self.assertEqual(summed(replay(recording, trialsOf(recording, described))), recording.throttledUs())
        stricter = f"{described}:algorithm=bucket".replace("1M", "500k")
        [run] = recording.runs()
        truth = serve({"client-bytes": stricter}, self.clients, self.steps, run.horizonUs, changes, share=0.5)
        self.assertEqual(summed(closedLoop(recording, trialsOf(recording, stricter))), truth.throttledUs())

    @settings(max_examples=15, deadline=None)
    @given(
        st.integers(0, 10**6),
        st.sampled_from([20.0, 100.0, 400.0]),
        st.sampled_from([0.2, 0.6, 0.95]),
        st.sampled_from(["", ":algorithm=bucket", ":windows=3:window=2s"]),
        st.integers(1, 300),
    )
    def test_anyPopulation(self, seed: int, thinkMs: float, share: float, algorithm: str, batchRows: int) -> None:
        """
        Whatever the clients do, as long as no connection runs out of requests, the replay says to each of them, request
        by request, what the server does, however rows are cut into batches.
        """
        clients, steps = population(3, 2), steadySteps(seed, thinkMs, 30_000)
        recording = serve(IN_FORCE, clients, steps, 8 * SECOND)
        candidate = f"client-bytes:produce={round(1_000_000 * share)}{algorithm}"
        trials = trialsOf(recording, candidate)
        [run] = recording.runs()
        truth = serve({"client-bytes": candidate}, clients, steps, run.horizonUs)
        closed = closedLoop(recording, trials, batchRows).to_pylist()
        assume(not any(row["is_exhausted"] for row in closed))
        self.assertEqual(
            sorted((row["conn_id"], row["at_us"], row["request_bytes"], row["delay_us"]) for row in closed),
            sorted(
                (row["conn_id"], row["decided_mono_us"], row["request_bytes"], row["policy_delays_us"][0])
                for row in truth.rows
            ),
        )


class ClosedLoopTests(SynchronousTestCase):
    """The rules of L{replayClosedLoop}."""

    def decisions(self, rows: list[dict[str, int]], candidate: str, horizonUs: int = 10**9) -> list[dict[str, int]]:
        """
        Replay requests of connections.

        @param rows: what each has besides, and other than, the usual: nobody was
            throttled, work takes 100 us and an answer 50.
        """
        recording = Recording(horizonUs)
        limit = {"broker_id": "1", "boot_id": "boot", "seq": 1, "mono_us": 0, "ip": "192.0.2.9", "value": 5.0}
        recording.limits.append({**limit, "limit_name": "connection_creation_rate"})
        for seq, row in enumerate(rows, 2):
            delayUs = row.get("delayUs", 0)
            atUs = row["mono_us"] + 100
            recording.rows.append(
                {
                    "broker_id": "1",
                    "boot_id": "boot",
                    "policy_names": ["client-bytes"],
                    "policy_descriptions": ["client-bytes"],
                    "throttle_max_us": 10**12,
                    "seq": seq,
                    "ts": row["mono_us"],
                    "conn_id": 1,
                    "peer": "p",
                    "principal": "u",
                    "client_id": "app",
                    "kind": "Produce",
                    "request_bytes": 100,
                    "response_bytes": 0,
                    "service_us": 100,
                    "decided_mono_us": atUs,
                    "is_counted": True,
                    "decision": "admit",
                    "policy_delays_us": [delayUs],
                    "throttle_ms": delayUs // 1000,
                    "sent_mono_us": atUs + 50,
                    **row,
                }
            )
        [run] = recording.runs()
        trials = planTrials(resolveCandidates([candidate]), [evolve(run, horizonUs=horizonUs)])
        found: list[dict[str, int]] = closedLoop(recording, trials).to_pylist()
        return found

    def times(self, rows: list[dict[str, int]], candidate: str, horizonUs: int = 10**9) -> list[tuple[int, int]]:
        """When each is decided, and for how long throttled."""
        return [(row["at_us"], row["held_us"]) for row in self.decisions(rows, candidate, horizonUs)]

    def test_thinking(self) -> None:
        """The next request comes its own thinking after the answer, or after the delay if that is over later."""
        rows = [{"mono_us": 1000}, {"mono_us": 3000}, {"mono_us": 4000}]
        self.assertEqual(self.times(rows, "client-bytes:produce=1T"), [(1100, 0), (3100, 0), (4100, 0)])
        # A bucket of 100 bytes, and then 1000 a second: 0.1 s each; thinking takes 1850 us and 850 us.
        candidate = "client-bytes:produce=1000:algorithm=bucket:burst=100ms"
        first, second, third = self.times(rows, candidate)
        self.assertEqual(first, (1100, 0))
        self.assertEqual(second, (3100, 98_000))
        self.assertEqual(third[0], 3100 + 98_000 + 850 + 100)

    def test_ahead(self) -> None:
        """
        What was sent before the last answer keeps its distance to the request
        before, and waits for as long as the connection is not read.
        """
        rows = [
            {"mono_us": 10_000, "decided_mono_us": 10_100, "sent_mono_us": 90_000},
            {"mono_us": 15_000, "sent_mono_us": 90_050},
            {"mono_us": 20_000},
        ]
        self.assertEqual(self.times(rows, "client-bytes:produce=1T"), [(10_100, 0), (15_100, 0), (20_100, 0)])
        candidate = "client-bytes:produce=10k:algorithm=bucket:burst=10ms"
        found = self.times(rows, candidate)
        self.assertEqual(found[:2], [(10_100, 0), (15_100, 5000)])
        self.assertEqual(found[2][0], 15_100 + 5000 + 100)

    def test_earlyTimer(self) -> None:
        """A request that was read a little before its delay was over was not sent ahead."""
        rows = [{"mono_us": 1000, "delayUs": 50_000}, {"mono_us": 51_090}]
        self.assertEqual(self.times(rows, "client-bytes:produce=1T"), [(1100, 0), (1150 - 10 + 100, 0)])

    def test_earlyTogether(self) -> None:
        """The requests behind it do not wait for the rest of that delay either, which other policies have imposed."""
        moments = (1000, 50_400, 50_400, 50_400, 90_000)
        rows = [{"mono_us": each, "decided_mono_us": each, "sent_mono_us": each} for each in moments]
        rows[0]["delayUs"] = 50_000
        found = self.times(rows, "connections:perSecond=1000")
        self.assertEqual(found, [(1000, 50_000), *((each, 0) for each in moments[1:])])

    def test_pipelined(self) -> None:
        """
        A request may be decided before the one before it, if the server works on several at a time.  A delay holds back
        what arrives after it was decided, and not what has arrived before.
        """
        rows = [
            {"mono_us": 1000, "decided_mono_us": 90_000, "sent_mono_us": 90_100, "delayUs": 50_000},
            {"mono_us": 1500},
            {"mono_us": 2500, "decided_mono_us": 91_000, "sent_mono_us": 91_100},
            {"mono_us": 140_000},
        ]
        free = self.times(rows, "other=client-bytes:produce=1T")
        self.assertEqual(free, [(1600, 0), (90_000, 0), (91_000, 0), (140_100, 0)])
        rows[0]["request_bytes"], rows[3]["mono_us"] = 10**9, 91_500
        held = self.decisions(rows, "client-bytes:produce=10M")
        [_, (_, delayUs), *_] = [(row["at_us"], row["held_us"]) for row in held]
        self.assertEqual([row["at_us"] for row in held[:3]], [1600, 90_000, 91_000])
        self.assertGreater(delayUs, 50_000)
        self.assertGreaterEqual(held[3]["at_us"], 90_000 + delayUs)

    def test_milder(self) -> None:
        """Where the server has imposed less than its policy asked for, so does the replay."""
        rows = [
            {"mono_us": 1000, "refusal": "never", "request_bytes": 10**9, "delayUs": 50_000, "throttle_ms": 20},
            {"mono_us": 21_200},
        ]
        [first, second] = self.decisions(rows, "client-bytes:produce=10M")
        self.assertGreater(first["delay_us"], 50_000)
        self.assertEqual((first["held_us"], second["at_us"]), (20_000, 21_300))

    def test_horizon(self) -> None:
        """What would come after the recording is not counted."""
        rows = [{"mono_us": 1000}, {"mono_us": 3000}, {"mono_us": 4000}]
        candidate = "client-bytes:produce=1000:algorithm=bucket:burst=100ms"
        self.assertEqual(len(self.times(rows, candidate, 102_049)), 2)
        self.assertEqual(len(self.times(rows, candidate, 102_050)), 3)

    def test_exhausted(self) -> None:
        """A connection is exhausted by its last request if it is free earlier than it was."""
        rows = [{"mono_us": 1000, "delayUs": 50_000}, {"mono_us": 53_000}, {"mono_us": 54_000}]
        others = [{"mono_us": 1000, "conn_id": 2}, {"mono_us": 60_000, "conn_id": 2}]
        found = self.decisions([*rows, *others], "client-bytes:produce=1T")
        self.assertEqual(
            [(row["conn_id"], row["at_us"]) for row in found if row["is_exhausted"]], [(1, 1150 + 1900 + 100 + 1000)]
        )
        self.assertEqual(sum(row["is_first"] for row in found), 2)

    def test_exhaustedWhileHeld(self) -> None:
        """
        So is one that was throttled to the end, and would not have been: its
        client would have sent something that nobody knows.
        """
        rows = [{"mono_us": 1000, "delayUs": 50_000}]
        others = [{"mono_us": 1000, "conn_id": 2}, {"mono_us": 60_000, "conn_id": 2}]
        found = self.decisions([*rows, *others], "client-bytes:produce=1T")
        self.assertEqual([row["conn_id"] for row in found if row["is_exhausted"]], [1])
        same = self.decisions([*rows, *others], "client-bytes:produce=100:algorithm=bucket:burst=1ms")
        self.assertNotIn(True, [row["is_exhausted"] for row in same])

    def test_untold(self) -> None:
        """
        Requests that no policy is asked about take their time, are no decisions,
        and leave no connection exhausted.
        """
        unasked = {"decided_mono_us": None, "policy_delays_us": None}
        rows = [
            {"mono_us": 500, **unasked},
            {"mono_us": 1000, "delayUs": 50_000},
            {"mono_us": 53_000, **unasked},
            {"mono_us": 60_000},
            {"mono_us": 65_000, **unasked},
        ]
        found = self.decisions(rows, "client-bytes:produce=1T")  # type: ignore[arg-type]
        self.assertEqual([row["seq"] for row in found], [3, 5])
        self.assertEqual([row["is_first"] for row in found], [True, False])
        self.assertEqual([row["is_exhausted"] for row in found], [False, True])

    def test_retained(self) -> None:
        """The delays of policies that stay hold the client back as they did."""
        recording = serve(
            {"client-bytes": "client-bytes:produce=1M", "request-time": "request-time:percent=2"},
            population(2, 2),
            steadySteps(thinkMs=15, sizeBytes=20_000),
            10 * SECOND,
        )
        held = {row["seq"]: row["policy_delays_us"][1] for row in recording.rows}
        self.assertGreater(sum(each > 0 for each in held.values()), 20)
        for row in closedLoop(recording, trialsOf(recording, "client-bytes:produce=500k")).to_pylist():
            self.assertEqual(row["held_us"], max(row["delay_us"], held[row["seq"]]))

    def test_connections(self) -> None:
        """A connection that is throttled sends its first request so much later."""

        def steps(client: Client) -> Iterator[Step]:
            yield Step(1, 0, 0, 0, CONNECTION)
            while True:
                yield Step(200_000, 100, 100, 100)

        clients = [Client(number, "user", "app", beginsUs=number * 10_000) for number in range(1, 11)]
        recording = serve({"connections": "connections:perSecond=5"}, clients, steps, 5 * SECOND)
        candidate = "connections:perSecond=2"
        [run] = recording.runs()
        truth = serve({"connections": candidate}, clients, steps, run.horizonUs)
        closed = closedLoop(recording, trialsOf(recording, candidate)).to_pylist()
        self.assertEqual(
            sorted((row["conn_id"], row["at_us"], row["delay_us"]) for row in closed),
            sorted((row["conn_id"], row["decided_mono_us"], row["policy_delays_us"][0]) for row in truth.rows),
        )

    def test_gaps(self) -> None:
        """Everything after a missing event is marked."""
        recording = serve(IN_FORCE, population(2, 2), self.steps(), 5 * SECOND)
        [run] = recording.runs()
        middle = recording.rows[50]
        trials = planTrials(
            resolveCandidates(["client-bytes:produce=900k"]),
            [evolve(run, gaps=[Gap(middle["seq"], middle["mono_us"])])],
        )
        for row in closedLoop(recording, trials).to_pylist():
            self.assertEqual(row["is_poisoned"], row["seq"] >= middle["seq"])

    def test_spilled(self) -> None:
        """A component that does not fit into memory is replayed from a file, with the same decisions."""
        recording = serve(IN_FORCE, population(2, 2), self.steps(), 5 * SECOND)
        trials = trialsOf(recording, "a=client-bytes:produce=500k", "b=producer-ids:rate=5")
        inMemory = closedLoop(recording, trials, 64)
        self.patch(closedloop, "MAX_ROWS_IN_MEMORY", 100)
        self.assertEqual(closedLoop(recording, trials, 64), inMemory)

    def steps(self) -> Steps:
        """What most clients of these tests do."""
        return steadySteps(thinkMs=15, sizeBytes=20_000)
