"""Tests for L{admission.offline.simulate.arrivals} and L{admission.offline.simulate.keys}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Traits
from admission.offline.simulate.arrivals import ARRIVALS, makeArrivals
from admission.offline.simulate.candidates import resolveCandidate
from admission.offline.simulate.keys import Client, findComponents
from admission.offline.simulate.runs import LimitChange, Run
from admission.offline.simulate.trials import Trial, TrialKey, planRecorded, planTrials
from admission.recording.arrow import arrowSchema
from admission.recording.tables import REQUESTS
from tests.kit.replaymodel import REQUEST_COLUMNS, addComponents, componentsOf, tableOf
from tests.kit.replaypolicies import candidate

CLIENTS = QuotaEntity(clientId=DEFAULT)
RATE = "received_byte_rate"
LIMITED = [LimitChange(0, CLIENTS, RATE, 1e6, isStart=True)]

ROW: Mapping[str, Any] = {
    "broker_id": "1",
    "boot_id": "boot",
    "seq": 1,
    "mono_us": 1000,
    "conn_id": 3,
    "peer": "192.0.2.1",
    "principal": "alice",
    "client_id": "app",
    "kind": "Produce",
    "request_bytes": 100,
    "response_bytes": 0,
    "producer_ids": [4, 5],
    "decision": "throttle",
    "policy": "client-bytes",
    "policy_delays_us": [7000, 9000],
    "decided_mono_us": 1500,
    "is_counted": True,
    "throttle_ms": 9,
    "service_us": 400,
    "sent_mono_us": 1700,
}

REFUSED: Mapping[str, Any] = {"decision": "reject", "throttle_ms": 41, "is_counted": None}


def runWith(*descriptions: str, changes: Sequence[LimitChange] = LIMITED) -> Run:
    """A run with these policies in force."""
    names = [description.partition(":")[0] for description in descriptions]
    return Run("1", "boot", 10**9, names, descriptions, changes=changes)


TWO = runWith("client-bytes:produce=1M", "request-time:percent=1")


class OffersTestCase(SynchronousTestCase):
    """Makes arrivals of a few rows."""

    def arrivals(self, trials: Mapping[TrialKey, Trial], *changes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What candidates see of L{ROW}, changed so."""
        table = tableOf([{**ROW, **each} for each in changes])
        arrivals = pa.Table.from_batches(makeArrivals(table.to_batches(), trials), ARRIVALS)
        rows: list[dict[str, Any]] = arrivals.to_pylist()
        return rows

    def arrival(self, run: Run, description: str = "client-bytes:produce=4M", **changes: Any) -> dict[str, Any]:
        """What one candidate sees of one row."""
        [row] = self.arrivals(planTrials([resolveCandidate(description)], [run]), changes)
        return row


class ArrivalsTests(OffersTestCase):
    """L{makeArrivals} shows candidates what they may see."""

    def test_asked(self) -> None:
        """
        A request is put to the candidate when it was put to the policies, with
        the delays of those that stay, and with when its client was free again.
        """
        row = self.arrival(TWO)
        self.assertEqual(
            {name: row[name] for name in row if row[name] != ROW.get(name)},
            {
                "candidate": "client-bytes:produce=4M",
                "replay_key": "('received_byte_rate', (None, 'app'))",
                "traits": Traits(countsSent=False).code,
                "at_us": 1500,
                "is_asked": True,
                "is_barred": False,
                "is_known": False,
                "refusal": 0,
                "lag_us": 0,
                "pool_free_share": 1.0,
                "retained_us": 9000,
                "longest_us": 2**62,
                "arrived_us": 1000,
                "sent_us": 1700,
                "released_us": 10_500,
            },
        )

    def test_pressure(self) -> None:
        """It sees how late the server was, and which part of the pool was free."""
        row = self.arrival(TWO, lag_us=250_000, pool_used_bytes=750, pool_available_bytes=250)
        self.assertEqual((row["lag_us"], row["pool_free_share"]), (250_000, 0.25))

    def test_noDecision(self) -> None:
        """
        What the replaced policy decided is not among the columns, and what the
        candidate is told is the same whatever that was.
        """
        self.assertEqual({"policy_delays_us", "throttle_ms", "decision", "policy"} & set(ARRIVALS.names), set())
        changed = {"policy_delays_us": [0, 9000], "throttle_ms": 0, "decision": "admit", "policy": None}
        self.assertEqual(self.arrival(TWO, **changed), self.arrival(TWO))

    def test_think(self) -> None:
        """
        A client is free again when its answer was sent or its delay was over, whichever is later, whichever policy
        asked for the delay.
        """
        self.assertEqual(self.arrival(TWO, sent_mono_us=99_000)["released_us"], 99_000)
        self.assertEqual(self.arrival(TWO, policy_delays_us=[11_000, 0])["released_us"], 12_500)
        self.assertEqual(self.arrival(TWO, policy_delays_us=[0, 0])["released_us"], 1700)
        self.assertEqual(self.arrival(TWO, policy_delays_us=[0, 0], sent_mono_us=None)["released_us"], 1500)

    def test_told(self) -> None:
        """Where not every policy's delay is recorded, what the client was told says for how long it was throttled."""
        self.assertEqual(self.arrival(runWith(), policy_delays_us=None)["released_us"], 10_500)
        self.assertEqual(self.arrival(TWO, policy_delays_us=[7000])["released_us"], 10_500)
        self.assertEqual(self.arrival(TWO, policy_delays_us=None)["released_us"], 10_500)

    def test_shadow(self) -> None:
        """What a shadow policy asked for throttled nobody."""
        run = runWith("client-bytes:produce=1M", "request-time:percent=1:shadow=yes")
        row = self.arrival(run, policy_delays_us=[0, 9000])
        self.assertEqual((row["retained_us"], row["released_us"]), (0, 1700))

    def test_refused(self) -> None:
        """What another policy refused stays refused, and the candidate is not asked; it is if it takes the place."""
        run = runWith("client-bytes:produce=1M", "producer-ids:rate=1")
        refused = {**REFUSED, "policy": "producer-ids", "policy_delays_us": [0, 40_000]}
        names = ("is_asked", "is_barred", "retained_us", "released_us")
        for description, expected in (
            ("client-bytes:produce=4M", (False, True, 40_000, 41_500)),
            ("producer-ids:rate=9", (True, False, 0, 41_500)),
        ):
            row = self.arrival(run, description, **refused)
            self.assertEqual(tuple(row[name] for name in names), expected)

    def test_neverAsked(self) -> None:
        """
        A request that was put to no policy though there were limits is put to
        no candidate, and takes its time on its connection.
        """
        row = self.arrival(TWO, decided_mono_us=None, policy_delays_us=[], throttle_ms=0)
        self.assertEqual((row["is_asked"], row["at_us"], row["arrived_us"], row["sent_us"]), (False, 1000, 1000, 1700))

    def test_gone(self) -> None:
        """A client that has left before it heard of a refusal was refused."""
        run = runWith("client-bytes:produce=1M", "producer-ids:rate=1")
        refused = {**REFUSED, "policy": "producer-ids", "policy_delays_us": [0, 40_000], "decision": "expire"}
        self.assertTrue(self.arrival(run, **refused)["is_barred"])
        self.assertTrue(self.arrival(run, "producer-ids:rate=9", **refused)["is_asked"])

    def test_gaveUp(self) -> None:
        """A request that counted is put to candidates though its client did not hear of it."""
        self.assertTrue(self.arrival(TWO, decision="expire", throttle_ms=0)["is_asked"])

    def test_noLimits(self) -> None:
        """
        While there were no limits no policy was asked, so candidates are, when
        the request came; not about those that were given up or never read.
        """
        run = runWith("client-bytes", changes=[LimitChange(2000, CLIENTS, RATE, 1e6)])
        unasked = {"decided_mono_us": None, "policy_delays_us": [], "is_counted": None, "throttle_ms": 0}
        row = self.arrival(run, **unasked)
        self.assertEqual((row["is_asked"], row["at_us"], row["is_counted"]), (True, 1000, True))
        self.assertFalse(self.arrival(run, **unasked, mono_us=2000)["is_asked"])
        for decision in ("expire", "reject"):
            self.assertFalse(self.arrival(run, **unasked, decision=decision)["is_asked"])
        self.assertFalse(self.arrival(run, **unasked, kind=None)["is_asked"])
        [recorded] = self.arrivals(planRecorded([run]), unasked)
        self.assertFalse(recorded["is_asked"])

    def test_refusal(self) -> None:
        """
        How a request can be refused is as recorded; where that is not, three
        kinds can be told so and no policy is asked about others.
        """
        for refusal, kind, expected in (
            ("error", "Metadata", 0),
            ("delay", "Produce", 1),
            ("never", "Produce", 2),
            (None, "Produce", 0),
            (None, "Fetch", 0),
            (None, "InitProducerId", 0),
            (None, "Metadata", 2),
            (None, "connection", 2),
        ):
            self.assertEqual(self.arrival(TWO, refusal=refusal, kind=kind)["refusal"], expected)

    def test_imposed(self) -> None:
        """
        Of a refusal that became a delay the server may have imposed less than
        the policy asked for: what the client was told.
        """
        delayed = {"refusal": "delay", "policy_delays_us": [0, 90_000], "throttle_ms": 30}
        row = self.arrival(TWO, **delayed)
        self.assertEqual((row["is_asked"], row["retained_us"], row["released_us"]), (True, 30_000, 31_500))

    def test_begun(self) -> None:
        """
        A candidate that follows requests is asked when the work on them began: their service, and the time that they
        were parked before they were decided, but not what came afterwards, and not before they arrived.  For refused
        requests, the candidate is asked when that was decided.
        """
        served = {"mono_us": 1000, "decided_mono_us": 9000, "service_us": 400}
        refused = {"is_counted": None, "policy": "client-bytes"}
        for parkedUs, sentUs, became, expected in (
            (0, 9000, {}, 8600),
            (5000, 9000, {}, 3600),
            (5000, 9100, {}, 3600),
            (5000, 14_000, {}, 8600),
            (5001, 14_000, {}, 8600),
            (9000, 9000, {}, 1000),
            (0, 9400, refused, 9000),
        ):
            [row] = self.arrivals(
                planTrials([candidate("at-most:1")], [TWO]),
                {**served, **became, "purgatory_wait_us": parkedUs, "sent_mono_us": sentUs},
            )
            self.assertEqual((row["at_us"], row["sent_us"]), (expected, sentUs))

    def test_unnoticed(self) -> None:
        """A request that the candidate takes no notice of has no key."""
        self.assertIsNone(self.arrival(TWO, kind="Metadata")["replay_key"])

    def test_keyGoesByLimits(self) -> None:
        """The key is that of the limits in force when the request was decided."""
        changes = [*LIMITED, LimitChange(1500, QuotaEntity(user="alice"), RATE, 1e6)]
        run = runWith("client-bytes:produce=1M", changes=changes)
        before = self.arrival(run, decided_mono_us=1499)["replay_key"]
        self.assertEqual(before, "('received_byte_rate', (None, 'app'))")
        self.assertEqual(self.arrival(run)["replay_key"], "('received_byte_rate', ('alice', None))")

    def test_asRecorded(self) -> None:
        """Rows with the types of recorded files do as well as Spark's."""
        trials = planTrials([resolveCandidate("client-bytes:produce=4M")], [TWO])
        plain = tableOf([ROW, {**ROW, "seq": 2, "client_id": None, "producer_ids": None}])
        schema = arrowSchema(REQUESTS)
        recorded = pa.table({name: plain[name].cast(schema.field(name).type) for name in REQUEST_COLUMNS})
        made = [pa.Table.from_batches(makeArrivals(each.to_batches(), trials)) for each in (plain, recorded)]
        self.assertEqual(made[0], made[1])
        self.assertEqual(made[0]["client_id"].to_pylist(), ["app", ""])


class ComponentTests(OffersTestCase):
    """Which connections are replayed together."""

    def components(self, trials: Mapping[TrialKey, Trial], *changes: Mapping[str, Any]) -> dict[int, int]:
        """The component of each connection."""
        table = tableOf([{**ROW, "seq": seq, **each} for seq, each in enumerate(changes)])
        arrivals = list(makeArrivals(table.to_batches(2), trials))
        components = componentsOf(table.to_pylist(), trials)
        rows = pa.Table.from_batches(addComponents(arrivals, components)).to_pylist()
        return {row["conn_id"]: row["component"] for row in rows}

    def trials(self, *changes: LimitChange) -> dict[TrialKey, Trial]:
        """A candidate that limits each client id."""
        run = runWith("client-bytes:produce=1M", changes=[*LIMITED, *changes])
        return planTrials([resolveCandidate("client-bytes:produce=4M")], [run])

    def test_shared(self) -> None:
        """Connections of one client are together, others are not."""
        found = self.components(
            self.trials(), {"conn_id": 5}, {"conn_id": 3}, {"conn_id": 4, "client_id": "b"}, {"conn_id": 9}
        )
        self.assertEqual(found, {3: 3, 5: 3, 9: 3, 4: 4})

    def test_unnoticed(self) -> None:
        """
        Requests that the policy takes no notice of bring nobody together, nor
        do those that it is not asked about.
        """
        found = self.components(
            self.trials(),
            {"conn_id": 1, "kind": "Metadata"},
            {"conn_id": 2, "kind": "Metadata"},
            {"conn_id": 3},
            {"conn_id": 4, "decided_mono_us": None},
        )
        self.assertEqual(found, {1: 1, 2: 2, 3: 3, 4: 4})

    def test_otherTimes(self) -> None:
        """Clients that would be together at any time are together, since a replay moves requests to other times."""
        change = LimitChange(10**8, QuotaEntity(user="alice"), RATE, 5.0)
        rows = {"conn_id": 1}, {"conn_id": 2, "client_id": "b"}
        self.assertEqual(self.components(self.trials(), *rows), {1: 1, 2: 2})
        self.assertEqual(self.components(self.trials(change), *rows), {1: 1, 2: 1})

    @given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from("abcdefgh")), min_size=1, max_size=25))
    def test_partition(self, pairs: list[tuple[int, str]]) -> None:
        """
        Two connections are in one component if and only if a chain of keys
        leads from one to the other; it is called by the smallest.
        """
        requesters = {key: ("Produce", "", key, "", 0) for _, key in pairs}
        clients = [Client(connection, requesters[key], 1) for connection, key in pairs]
        connections, components = findComponents(clients, {requesters[key]: [key] for key in requesters})
        found = dict(zip(connections.tolist(), components.tolist(), strict=True))
        groups: list[tuple[set[int], set[str]]] = []
        for connection, key in pairs:
            joined = [group for group in groups if connection in group[0] or key in group[1]]
            groups = [group for group in groups if group not in joined]
            groups.append(
                ({connection}.union(*(group[0] for group in joined)), {key}.union(*(group[1] for group in joined)))
            )
        self.assertEqual(found, {each: min(group) for group, _ in groups for each in group})
