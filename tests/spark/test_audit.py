"""
L{admission.offline.bloomaudit}, L{admission.offline.quotaaudit},
L{admission.offline.quotaaudit} and L{admission.offline.ledgeraudit}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.offline.bloomaudit import FilterShape, bloomAudit, bloomVerdicts
from admission.offline.ledgeraudit import LEDGER, MODULES, PRIVATE, ledgerAudit, ledgerSummary
from admission.offline.quotaaudit import limitsInForce, quotaSpans, quotaSummary
from admission.quotas.limits import LimitTable
from admission.recording.schema import LIMITS, SENSORS
from admission.recording.tables import REQUESTS
from admission_plugins.bloom import LayeredBloom
from tests.offline.offlinerows import SECOND_US, Row, at, frameOf, limitRow, requestRow, rowsOf, sensorRow

RATE = "producer_byte_rate"

BY_USER = {"user": "alice"}
ANY_CLIENT = {"client_id": DEFAULT}


def idRow(seconds: float, producerId: int, isSeen: bool | None, **values: Any) -> Row:
    """A request with one producer that was counted, after its filter had said whether it knew it."""
    sent: Row = {
        "producer_id": producerId,
        "producer_ids": [producerId],
        "producer_id_count": 1,
        "bloom_seen": isSeen,
        "is_counted": True,
        "decided_mono_us": round(seconds * SECOND_US),
    }
    return requestRow(seconds, **{**sent, **values})


def sizeRow(seconds: float, sizeBytes: int, **values: Any) -> Row:
    """A Produce that was counted at once."""
    counted = {"request_bytes": sizeBytes, "is_counted": True, "decided_mono_us": round(seconds * SECOND_US)}
    return requestRow(seconds, **{**counted, **values})


class FilterShapeTests(SynchronousTestCase):
    """L{FilterShape}."""

    def test_description(self) -> None:
        """A description tells, by words or by places, and leaves the rest as the policy does."""
        for description, expected in [
            ("producer-ids", (3600.0, 4)),
            ("producer-ids:rate=10:window=90s:layers=3", (90.0, 3)),
            ("producer-ids:10:2m:11:5", (120.0, 5)),
        ]:
            shape = FilterShape.fromDescription(description)
            self.assertEqual((shape.windowSeconds, shape.layers), expected)

    def test_nonsense(self) -> None:
        """What makes no sense is refused in words."""
        for description, complaint in [
            ("producer-ids:layers=many", "layers=many; write a whole number"),
            ("producer-ids:window=long", "'long' is not a duration"),
            ("producer-ids:layers=0", "must be >= 1"),
        ]:
            error = self.assertRaises(ValueError, FilterShape.fromDescription, description)
            self.assertIn(complaint, str(error))


class BloomAuditTests(SynchronousTestCase):
    """L{bloomVerdicts} and L{bloomAudit}, mostly for a window of 100 seconds that is forgotten within another 25."""

    shape = FilterShape(100.0, 4)

    def verdicts(self, rows: list[Row]) -> list[str]:
        """What is said of each request that is said anything of, in their order."""
        judged = sorted(rowsOf(bloomVerdicts(frameOf(REQUESTS, rows), self.shape)), key=lambda row: row["seq"])
        return [
            " ".join(name.partition("_")[2] for name, value in row.items() if value is True and name != "bloom_seen")
            for row in judged
        ]

    def test_verdicts(self) -> None:
        """
        New is who was not seen within the window; either answer is right within
        the slack; a wrong answer is one way or the other.
        """
        rows = [
            idRow(0, 1, False),
            idRow(100, 1, True),
            idRow(190, 1, False),
            idRow(290.000001, 1, True),
            idRow(415.000001, 1, False),
            idRow(540.000002, 1, True),
            idRow(541, 2, True),
            idRow(542, 3, False),
        ]
        found = self.verdicts(rows)
        self.assertEqual(found, ["new", "", "fn", "new slack", "new slack", "new fp", "new fp", "new"])

    def test_whatCountsAsSent(self) -> None:
        """
        An id is known from requests that were counted, whichever place it had
        in them, and of the same principal; the filter is judged by the first
        id, where it was asked.
        """
        both = {"producer_ids": [1, 2], "producer_id_count": 2}
        rows = [
            idRow(0, 1, False, is_counted=False),
            idRow(1, 1, False, **both),
            idRow(2, 2, True),
            idRow(3, 2, True, principal="bob"),
            idRow(4, 3, None),
            idRow(5, 3, True),
            requestRow(6),
        ]
        self.assertEqual(self.verdicts(rows), ["new", "new", "", "new fp", ""])

    def test_restart(self) -> None:
        """An id that another run of the same server has seen may be known to this one or not."""
        rows = [
            idRow(0, 1, False),
            idRow(500, 1, True, boot_id="next"),
            idRow(500, 1, True, boot_id="next", broker_id="other"),
            idRow(501, 1, False, boot_id="next"),
        ]
        self.assertEqual(self.verdicts(rows), ["new", "new restored", "new fp", "fn"])

    def test_counts(self) -> None:
        """
        Errors are counted for each principal and window of time, and their rate
        is that of the ids that are certainly new.
        """
        rows = [
            idRow(0, 1, False),
            idRow(1, 2, True),
            idRow(2, 3, False),
            idRow(3, 4, False),
            idRow(4, 4, False),
            idRow(103.5, 4, True, principal="bob"),
        ]
        [first, second] = rowsOf(bloomAudit(frameOf(REQUESTS, rows), FilterShape(60.0, 4)))
        self.assertEqual(
            first,
            {
                "broker_id": "0",
                "boot_id": "boot",
                "principal": "alice",
                "window_start": at(0),
                "asked": 5,
                "exact_new": 4,
                "bloom_new": 4,
                "slack": 0,
                "restored": 0,
                "fp": 1,
                "fn": 1,
                "fp_rate": 0.25,
            },
        )
        self.assertEqual((second["principal"], second["window_start"], second["fp_rate"]), ("bob", at(1), 1.0))

    def test_realFilter(self) -> None:
        """
        Nothing is wrong with a real filter that is small enough not to err, and a member that comes back within its
        slack is known at one time and not at another.
        """
        random = Random(3)
        known = LayeredBloom(1000, self.shape.windowSeconds, self.shape.layers, key=5)
        rows, seconds = [], 0.0
        for _ in range(400):
            seconds += random.uniform(0, 25)
            member = random.randrange(12)
            isSeen = known.contains(member, seconds)
            known.track(member, seconds)
            rows.append(idRow(seconds, member, isSeen))
        audited = rowsOf(bloomVerdicts(frameOf(REQUESTS, rows), self.shape))
        self.assertEqual([row for row in audited if row["is_fp"] or row["is_fn"]], [])
        self.assertEqual({row["bloom_seen"] for row in audited if row["is_slack"]}, {True, False})
        self.assertEqual({row["exact_new"] for row in audited}, {True, False})


class LimitsInForceTests(SynchronousTestCase):
    """L{limitsInForce}."""

    def test_random(self) -> None:
        """
        At any time the limit of a client is the one that the server's own table
        resolves, of two runs with limits that come and go, so that each kind of
        limit is the most specific at times.
        """
        random = Random(5)
        runSeconds = 120
        users, clientIds = ("alice", "bob"), ("app", "web", "")
        entities = [
            {"user": user, "client_id": clientId}
            for user in (*users, DEFAULT, None)
            for clientId in ("app", "web", DEFAULT, None)
            if user or clientId
        ]
        changes = [
            limitRow(second, RATE, random.choice((None, None, second + 1.0)), boot_id=boot, **random.choice(entities))
            for boot in ("one", "two")
            for second in range(runSeconds)
        ]
        requests = [
            requestRow(principal=user, client_id=clientId, boot_id=boot)
            for user in users
            for clientId in clientIds
            for boot in ("one", "two")
        ]
        spans = rowsOf(limitsInForce(frameOf(REQUESTS, requests), frameOf(LIMITS, changes)))
        found: dict[tuple[Any, ...], Any] = {}
        for row in spans:
            untilUs = runSeconds * SECOND_US if row["until_us"] is None else row["until_us"]
            for second in range(row["since_us"] // SECOND_US, untilUs // SECOND_US):
                key = (row["boot_id"], second, row["principal"], row["client_id"])
                self.assertNotIn(key, found)
                found[key] = (row["value"], row["meter_user"], row["meter_client_id"], row["meter_ip"])
        expected: dict[tuple[Any, ...], Any] = {}
        kinds = set()
        for boot in ("one", "two"):
            table = LimitTable([RATE])
            for change in (change for change in changes if change["boot_id"] == boot):
                entity = QuotaEntity(change.get("user"), change.get("client_id"))
                table.configure(entity, {RATE: change["value"]})
                for user in users:
                    for clientId in clientIds:
                        limit = table.resolve(user, clientId, RATE)
                        if limit is not None:
                            named = (limit.entity.user, limit.entity.clientId)
                            kinds.add(tuple(name if name in (DEFAULT, None) else "name" for name in named))
                            meterUser = None if limit.entity.user is None else user
                            meterClient = None if limit.entity.clientId is None else clientId
                            key = (boot, change["mono_us"] // SECOND_US, user, clientId)
                            expected[key] = (limit.value, meterUser, meterClient, None)
        self.assertEqual(len(kinds), 8)
        self.assertEqual(found, expected)


class QuotaSpansTests(SynchronousTestCase):
    """L{quotaSpans} and L{quotaSummary}."""

    def spans(self, requests: list[Row], limits: list[Row]) -> list[Row]:
        """The spans of these rows."""
        return rowsOf(quotaSpans(frameOf(REQUESTS, requests), frameOf(LIMITS, limits)))

    def test_span(self) -> None:
        """
        A span tells the rate, how much of the limit that is, and what is left
        of the excess once those who were throttled have waited.
        """
        rows = [
            sizeRow(0, 700),
            sizeRow(9, 800, decision="throttle", throttle_ms=6000),
            sizeRow(9.5, 500, is_counted=False),
            sizeRow(20, 100),
            sizeRow(5, 3000, client_id="slow", throttle_ms=10_000),
        ]
        first, second, slow = self.spans(rows, [limitRow(0, RATE, 100.0, **ANY_CLIENT)])
        self.assertEqual(
            first,
            {
                "broker_id": "0",
                "boot_id": "boot",
                "limit_name": RATE,
                "user": None,
                "client_id": "app",
                "ip": None,
                "span_start": at(0),
                "requests": 2,
                "amount": 1500.0,
                "rate": 150.0,
                "limit": 100.0,
                "is_steady": True,
                "utilization": 1.5,
                "throttled": 1,
                "throttle_max_s": 6.0,
                "overshoot": 0.5,
                "overshoot_after_throttle": 0.0,
            },
        )
        self.assertEqual((second["span_start"], second["utilization"], second["overshoot"]), (at(1 / 3), 0.1, 0.0))
        # It was not throttled for long enough.
        self.assertEqual((slow["overshoot"], slow["overshoot_after_throttle"]), (2.0, 1.0))

    def test_limits(self) -> None:
        """
        Each limit counts what its policy counts, on the meter of those who
        share it, from when it was set until it was removed.
        """
        rows = [
            sizeRow(0, 10, client_id="early"),
            sizeRow(2, 20, response_bytes=999),
            sizeRow(3, 30, client_id="web"),
            sizeRow(4, 999, kind="Fetch", response_bytes=40, service_us=SECOND_US),
            sizeRow(5, 0, kind="connection", principal="", peer="::2", policy_delays_us=[500_000, 0]),
            sizeRow(5, 0, kind="connection", principal="", peer="::2"),
            sizeRow(12, 50),
            sizeRow(21, 60),
        ]
        limits = [
            limitRow(1, RATE, 5.0, **BY_USER),
            limitRow(11, RATE, 10.0, **BY_USER),
            limitRow(20, RATE, None, **BY_USER),
            limitRow(0, "consumer_byte_rate", 4.0, user="alice", client_id=DEFAULT),
            limitRow(0, "request_percentage", 50.0, user=DEFAULT),
            limitRow(0, "connection_creation_rate", 1.0, ip=DEFAULT),
            limitRow(0, "producer_ids_rate", 1.0, user=DEFAULT),
        ]
        columns = ("limit_name", "user", "client_id", "ip", "span_start", "amount", "limit", "throttle_max_s")
        found = [tuple(row[name] for name in columns) for row in self.spans(rows, limits)]
        expected = [
            ("connection_creation_rate", None, None, "::2", at(0), 2.0, 1.0, 0.5),
            ("consumer_byte_rate", "alice", "app", None, at(0), 40.0, 4.0, 0.0),
            (RATE, "alice", None, None, at(0), 50.0, 5.0, 0.0),
            (RATE, "alice", None, None, at(1 / 6), 50.0, 10.0, 0.0),
            ("request_percentage", "alice", None, None, at(0), 100.0, 50.0, 0.0),
        ]
        self.assertEqual(found, expected)

    def test_summary(self) -> None:
        """
        The summary is over spans in which the limit did not change; what is
        left after throttling, over those with any.
        """
        rows = [
            sizeRow(0, 500),
            sizeRow(10, 3000, throttle_ms=15_000),
            sizeRow(20, 1000),
            sizeRow(30, 1000),
            sizeRow(35, 1000),
        ]
        limits = [limitRow(0, RATE, 100.0, **BY_USER), limitRow(32, RATE, 200.0, **BY_USER)]
        spans = quotaSpans(frameOf(REQUESTS, rows), frameOf(LIMITS, limits))
        [summary] = rowsOf(quotaSummary(spans))
        found = dict(list(summary.items())[6:])
        self.assertEqual(
            found,
            {
                "limit": 100.0,
                "spans": 3,
                "throttled_spans": 1,
                "utilization_p50": 1.0,
                "utilization_p99": 2.96,
                "utilization_max": 3.0,
                "overshoot_after_throttle_p99": 1.0,
                "overshoot_after_throttle_max": 1.0,
            },
        )


class LedgerAuditTests(SynchronousTestCase):
    """L{ledgerAudit} and L{ledgerSummary}."""

    def sampled(self, seconds: float, private: float, *held: float, modules: int = 100, **values: Any) -> list[Row]:
        """
        The samples of a moment.

        @param held: what the ledger has, by purpose.
        """
        ledger = [sensorRow(seconds, LEDGER, each, entity=f"purpose={each}", **values) for each in held]
        others = [(PRIVATE, private), (MODULES, float(modules))]
        return [*(sensorRow(seconds, *each, **values) for each in others), *ledger]

    def test_growth(self) -> None:
        """
        What the process takes beyond its base and the largest ledger so far is unexplained, for each run by itself;
        moments with only one of the two tell nothing.
        """
        rows = [
            *self.sampled(0, 100.0, 10.0, 5.0),
            *self.sampled(10, 180.0, 50.0, 25.0),
            *self.sampled(20, 190.0, 10.0, 5.0),
            *self.sampled(30, 90.0, 5.0),
            *self.sampled(40, 500.0),
            *self.sampled(50, 1000.0, 1.0, boot_id="next"),
        ]
        samples = ledgerAudit(frameOf(SENSORS, rows))
        found = [tuple(row.values())[1:] for row in rowsOf(samples)]
        expected = [
            ("boot", at(0), 100, 15, 85, 0, 0, 0, None),
            ("boot", at(1 / 6), 180, 75, 85, 0, 20, 80, 0.25),
            ("boot", at(1 / 3), 190, 15, 85, 0, 30, 90, 0.333333333),
            ("boot", at(0.5), 90, 5, 85, 0, -70, -10, None),
            ("next", at(5 / 6), 1000, 1, 999, 0, 0, 0, None),
        ]
        self.assertEqual(found, expected)
        summary = [tuple(row.values())[1:] for row in rowsOf(ledgerSummary(samples))]
        self.assertEqual(
            summary, [("boot", 4, 85, 0, 30, 10, 190, 15, 30, 0.333333333), ("next", 1, 999, 0, 0, 0, 1000, 1, 0, None)]
        )

    def test_leaks(self) -> None:
        """
        What the process takes to import modules is no leak, whenever it does, nor is what it takes once and keeps; what
        it takes again and again besides is.
        """
        always = (100,) * 6
        runs = {
            "importing": ((100, 100, 100, 180, 180, 180), (50, 50, 50, 90, 90, 90), (80, 0, 0)),
            "leaking": ((100, 190, 200, 210, 220, 230), (50, 90, 90, 90, 90, 90), (90, 40, 30)),
            "once": ((100, 150, 150, 150, 150, 150), always, (0, 50, 0)),
        }
        rows = [
            row
            for boot, (privates, modules, _) in runs.items()
            for place, (private, count) in enumerate(zip(privates, modules, strict=True))
            for row in self.sampled(10 * place, float(private), 0.0, modules=count, boot_id=boot)
        ]
        names = ("imports_bytes", "unexplained_max_bytes", "leaked_bytes")
        found = {
            row["boot_id"]: tuple(row[name] for name in names)
            for row in rowsOf(ledgerSummary(ledgerAudit(frameOf(SENSORS, rows))))
        }
        self.assertEqual(found, {boot: expected for boot, (*_, expected) in runs.items()})
