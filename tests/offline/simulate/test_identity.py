"""Tests for L{admission.offline.simulate.identity}."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from itertools import count
from random import Random

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import CONNECTION, QuotaEntity
from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.identity import DECIDED, FIDELITY, Fidelity, countMatches, doubts, findDisagreements
from admission.offline.simulate.runs import Gap, Run
from admission.offline.simulate.trials import planRecorded, planTrials
from tests.kit.identitygate import assertAsRecorded, gate
from tests.kit.replaymodel import Change, Client, Recording, Step, population, serve, steadySteps

SECOND = 1_000_000


@cache
def throttled() -> Recording:
    """Clients of which more than a thousand requests are throttled."""
    return serve(
        {"client-bytes": "client-bytes:produce=1M"},
        population(4, 4),
        steadySteps(thinkMs=15, sizeBytes=20_000),
        60 * SECOND,
        [Change(20 * SECOND, QuotaEntity(clientId="client 1"), "producer_byte_rate", 600_000.0)],
    )


class GateTests(SynchronousTestCase):
    """Whether answers can be trusted."""

    def test_same(self) -> None:
        """
        The policy that was in force says what it said, open and closed loop, in
        more than a thousand decisions that throttled somebody.
        """
        opened, closed = sorted(gate(throttled()), key=lambda each: each.mode == "closed")
        for each in (opened, closed):
            self.assertGreater(each.throttled, 1000)
            self.assertGreaterEqual(each.matchShare, 0.999)
            self.assertEqual((each.missing, each.seqGaps), (0, 0))
            self.assertTrue(each.isTrusted)
            self.assertIn("agrees with the recording in 100.000%", each.inWords())
            self.assertNotIn("cannot be trusted", each.inWords())

    def test_restored(self) -> None:
        """Identities that the policy was told of when the server started are known to the replay, and no others."""

        def steps(client: Client) -> Iterator[Step]:
            random = Random(client.number)
            for number in count():
                # The first two are from before; then there is a new one now and then.
                identity = random.randrange(2 + number // 8) + 1000 * client.number
                yield Step(random.randrange(1, 300_000), 1000, 500, 500, identities=(identity,))

        clients = [Client(number, f"user {number}", "app") for number in range(1, 5)]
        established = [(each.principal, 1000 * each.number + index) for each in clients for index in range(2)]
        for description in ("producer-ids:rate=2:window=4s", "producer-ids:rate=2:window=4s:mode=throttle"):
            judged = gate(serve({"ids": description}, clients, steps, 40 * SECOND, established=established))
            for each in judged:
                self.assertGreater(each.refused + each.throttled, 20)
            assertAsRecorded(self, judged)

    def test_otherWindows(self) -> None:
        """
        One window less than the server had, and nothing can be trusted; nor can it where a limit that was set while the
        server ran is not known.
        """
        for each in gate(throttled(), lambda run: evolve(run, quotaWindows=10)):
            self.assertGreater(each.throttled, 1000)
            self.assertLess(each.matchShare, 0.999)
            self.assertFalse(each.isTrusted)
            self.assertIn("answers cannot be trusted: the replay agrees with", each.inWords())
            self.assertIn("99.9% are needed", each.inWords())
        for each in gate(throttled(), lambda run: evolve(run, changes=[])):
            self.assertFalse(each.isTrusted)

    def test_inputOnly(self) -> None:
        """
        A replay does not know what was decided: if the recording says something
        else, it is found out, and not repeated.
        """
        rows = [
            {**row, "policy_delays_us": [delay + 5000 if delay else 0 for delay in row["policy_delays_us"]]}
            for row in throttled().rows
        ]
        opened = next(each for each in gate(evolve(throttled(), rows=rows)) if each.mode == "open")
        self.assertFalse(opened.isTrusted)
        self.assertAlmostEqual(opened.meanErrorMs, 5 * opened.throttled / opened.compared, places=6)

    def test_everyPolicy(self) -> None:
        """
        Each policy says exactly what it said, be it about requests or connections, whether it throttles, refuses or is
        a shadow, under limits that change, and each is judged for itself.
        """

        def steps(client: Client) -> Iterator[Step]:
            random = Random(client.number)
            yield Step(1, 0, 0, 0, CONNECTION)
            while True:
                identity = random.randrange(10**18)
                for _ in range(8):
                    sizes = random.randrange(1, 24_000), random.randrange(200, 900)
                    yield Step(random.randrange(1, 200_000), *sizes, 500, identities=(identity,))

        policies = {
            "client-bytes": "client-bytes:produce=60k",
            "client-bytes-#2": "client-bytes:produce=50k:algorithm=bucket:shadow=yes",
            "connections": "connections:perSecond=2",
            "producer-ids": "producer-ids:rate=4:window=1s",
            "request-time": "request-time:percent=0.3",
        }
        user = QuotaEntity(user="user")
        changes = [
            Change(10 * SECOND, user, "producer_byte_rate", 250_000.0),
            Change(20 * SECOND, user, "producer_byte_rate", None),
            Change(22 * SECOND, QuotaEntity(clientId="client 1"), "request_percentage", 0.05),
        ]
        recording = serve(policies, population(5, 6), steps, 40 * SECOND, changes)
        with warnings.catch_warnings():
            # Ids must be Python's own integers, or filters mix them with an overflow.
            warnings.simplefilter("error")
            judged = gate(recording)
        places = [(f"recorded {name}", mode) for name in policies for mode in ("closed", "open")]
        self.assertEqual([(each.candidate, each.mode) for each in judged], places)
        for each in judged:
            self.assertEqual((each.matchShare, each.meanErrorMs, each.missing), (1.0, 0.0, 0), each.inWords())
            self.assertGreater(each.throttled + each.refused, 20, each.inWords())

    def test_share(self) -> None:
        """
        Policies that enforced a share of their limits say exactly what they said, each with limits of its own, and so
        does one in a recording that lacks the share: it has what was in force.
        """
        policies = {"client-bytes": "client-bytes:produce=1M"}
        changes = [Change(5 * SECOND, QuotaEntity(clientId="client 1"), "producer_byte_rate", 700_000.0)]
        steps = steadySteps(thinkMs=15, sizeBytes=20_000)
        alone = serve(policies, population(4, 4), steps, 10 * SECOND, changes, share=0.5)
        policies["client-bytes-#2"] = "client-bytes:produce=1500k:algorithm=bucket:shadow=yes"
        two = serve(policies, population(4, 4), steps, 10 * SECOND, changes, share=0.5)
        for judged in (gate(two), gate(alone), gate(alone, lambda run: evolve(run, limitShare=1.0))):
            assertAsRecorded(self, judged)
            for each in judged:
                self.assertGreater(each.throttled, 50, each.inWords())

    def test_gaps(self) -> None:
        """The verdict tells of missing events."""
        for each in gate(throttled(), lambda run: evolve(run, gaps=[Gap(5, 1), Gap(9, 2)])):
            self.assertIn("events are missing in 2 places", each.inWords())

    def test_missing(self) -> None:
        """Requests that the replay did not come to count against it."""
        complete = Fidelity("a", "closed", "1", "boot", 1000, 1.0, 0.0, 10, 0, 0, 0)
        self.assertTrue(complete.isTrusted)
        self.assertTrue(evolve(complete, missing=1).isTrusted)
        partial = evolve(complete, missing=2)
        self.assertFalse(partial.isTrusted)
        self.assertIn("2 recorded requests did not come up in the replay", partial.inWords())

    def test_idle(self) -> None:
        """Where nobody was throttled or refused, agreement proves little."""
        idle = Fidelity("a", "closed", "1", "boot", 1000, 1.0, 0.0, 0, 0, 0, 0)
        self.assertTrue(idle.isTrusted)
        self.assertTrue(idle.inWords().endswith("with nobody throttled that proves little"), idle.inWords())

    def test_nothing(self) -> None:
        """Where nothing can be compared nothing can be trusted."""
        nothing = Fidelity("a", "open", "1", "boot", 0, 0.0, 0.0, 0, 0, 0, 0)
        self.assertFalse(nothing.isTrusted)
        self.assertFalse(nothing.isRefuted)
        self.assertTrue(evolve(nothing, missing=1).isRefuted)
        self.assertIn("told of no request that could be compared", nothing.inWords())

    def test_tolerance(self) -> None:
        """A millisecond is the same, more is not; nor is being throttled by a microsecond the same as not at all."""
        table = pa.table(
            {
                "candidate": ["a"] * 5,
                "mode": ["open"] * 5,
                "broker_id": ["1"] * 5,
                "boot_id": ["boot"] * 5,
                "seq": [1, 2, 3, 4, 5],
                "delay_us": [5000, 5000, 1, 0, 7],
                "recorded_delay_us": [6000, 6001, 0, 0, 7],
                "is_refused": [False] * 4 + [True],
                "was_refused": [False] * 5,
            }
        )
        for size in (1, 3, 5):
            counted = pa.Table.from_batches(countMatches(table.to_batches(size)), FIDELITY)
            summed = {name: sum(counted[name].to_pylist()) for name in FIDELITY.names[4:]}
            self.assertEqual(summed, {"compared": 5, "matching": 2, "throttled": 3, "refused": 1, "error_us": 2002})
            wrong = pa.Table.from_batches(findDisagreements(table.to_batches(size)), DECIDED)
            self.assertEqual(wrong["seq"].to_pylist(), [2, 3, 5])

    def test_doubts(self) -> None:
        """
        A candidate depends on the policies in force that it replaces, in each run; one that replaces none depends on
        all of them. Shadow policies are replaced by none.
        """
        run = Run(
            "1",
            "a",
            SECOND,
            ("client-bytes", "client-bytes-#2", "request-time"),
            ("client-bytes:produce=1M", "client-bytes:produce=9M:shadow=yes", "request-time:percent=50"),
        )
        runs = [run, evolve(run, bootId="b")]
        candidates = resolveCandidates(["client-bytes:produce=2M", "request-time:percent=9", "connections:perSecond=1"])
        trials = {**planRecorded(runs), **planTrials(candidates, runs)}
        for policy, boot, expected in (
            ("client-bytes", "a", [True, False, True]),
            ("client-bytes-#2", "a", [False, False, True]),
            ("request-time", "b", [False, True, True]),
            ("request-time", "c", [False, False, False]),
        ):
            judged = Fidelity(f"recorded {policy}", "closed", "1", boot, 9, 0.5, 0.0, 9, 0, 0, 0)
            agreeing = evolve(judged, candidate="recorded client-bytes", bootId="b", matchShare=1.0)
            found = doubts([judged, agreeing], trials.values(), "closed")
            self.assertEqual([bool(found[each.label]) for each in candidates], expected, policy)
            self.assertFalse(any(doubts([judged], trials.values(), "open").values()))
