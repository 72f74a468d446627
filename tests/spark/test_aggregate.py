"""
L{admission.offline.clean}, L{admission.offline.aggregate},
L{admission.offline.aggregate}, L{admission.offline.aggregate},
L{admission.offline.aggregate} and L{admission.offline.outputs}.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from pyarrow import parquet
from pyspark.sql import Observation, functions as F
from twisted.trial.unittest import SynchronousTestCase

from admission.offline import outputs
from admission.offline.aggregate import (
    BOUNDS_MS,
    DEPLETED,
    bucketMs,
    clientDemand,
    clientMinutes,
    fairnessMinutes,
    poolMinutes,
    poolTimes,
    starvedMinutes,
    throttleHistogram,
    throttleMinutes,
    topClients,
)
from admission.offline.clean import RULES, brokenRows, clean
from admission.offline.failures import OutputError, ReportError
from admission.offline.outputs import writeResult
from admission.offline.report.resultfiles import Results
from admission.recording.schema import CONNECTIONS, LIMITS, SENSORS, Table
from admission.recording.tables import REQUESTS
from tests.kit.recordings import noisy
from tests.kit.sparksession import sharedSession
from tests.offline.offlinerows import SECOND_US, Row, at, frameOf, limitRow, requestRow, rowsOf, sensorRow


def randomRequests(seed: int, count: int) -> list[Row]:
    """Requests of a few clients within a few minutes, of two runs of a server."""
    random = Random(seed)
    decisions = ("admit", "throttle", "reject", "mute", "expire")
    rows = []
    for _ in range(count):
        seconds = random.randrange(300_000) / 1000
        decision = random.choices(decisions, (5, 3, 1, 1, 1))[0]
        throttleMs = round(10 ** random.uniform(0, 6)) if decision == "throttle" else 0
        waitUs = random.choice((0, 0, random.randrange(100 * SECOND_US)))
        arrivedUs = round(seconds * SECOND_US)
        rows.append(
            requestRow(
                seconds,
                boot_id=random.choice(("one", "two")),
                client_id=random.choice("abc"),
                kind=random.choice(("Produce", "Fetch", "Produce", "connection")),
                request_bytes=random.randrange(1000),
                response_bytes=random.choice((None, random.randrange(1000))),
                decision=decision,
                throttle_ms=throttleMs,
                pool_wait_us=waitUs,
                queue_us=0,
                sent_mono_us=arrivedUs + waitUs + random.randrange(SECOND_US),
                policy_names=["bytes", "time"],
                policy_delays_us=random.choice(([], [throttleMs * 1000, 0], [0, random.randrange(2000)])),
            )
        )
    return rows


class CleanTests(SynchronousTestCase):
    """L{clean} and L{brokenRows}."""

    def check(self, table: Table, good: Row, broken: list[tuple[str, Row]]) -> None:
        """
        Rows of C{broken} break the rule they are named with, which are all
        rules of C{table}, and no other rows are left out.
        """
        frame = frameOf(table, [good, *({**good, **row} for _, row in broken)])
        expected = Counter(rule for rule, _ in broken)
        counted = {row["rule"]: (row["n"], row["rows"]) for row in rowsOf(brokenRows(frame, table))}
        self.assertEqual(counted, {rule: (n, len(broken) + 1) for rule, n in expected.items()})
        self.assertEqual(set(counted), {rule.name for rule in RULES[table.name]})
        self.assertEqual(clean(frame, table).count(), 1)

    def test_requests(self) -> None:
        """Each rule about requests leaves out what breaks it, and counts it."""
        self.check(
            REQUESTS,
            requestRow(is_counted=True, decided_mono_us=0, sent_mono_us=0, pool_wait_us=0, producer_id_count=0),
            [
                ("origin", {"boot_id": None}),
                ("moment", {"ts": None}),
                ("place", {"seq": 0}),
                ("decision", {"decision": "perhaps"}),
                ("size", {"request_bytes": -1}),
                ("size", {"response_bytes": -1}),
                ("throttle", {"throttle_ms": None}),
                ("delays", {"policy_delays_us": [0, -1]}),
                ("waits", {"queue_us": -1}),
                ("decided", {"decided_mono_us": -1}),
                ("sent", {"sent_mono_us": -1}),
                ("counted", {"decided_mono_us": None}),
                ("refusal", {"refusal": "politely"}),
                ("traits", {"traits": 32}),
                ("identities", {"producer_ids": [1]}),
            ],
        )

    def test_otherTables(self) -> None:
        """So do the rules about connections, limits and sensors."""
        common: list[tuple[str, Row]] = [
            ("origin", {"broker_id": None}),
            ("moment", {"mono_us": None}),
            ("place", {"seq": None}),
        ]
        opened = {**limitRow(0, "", None), "state": "opened", "requests": 0}
        self.check(
            CONNECTIONS,
            opened,
            [*common, ("state", {"state": "half"}), ("requests", {"requests": -1}), ("waits", {"open_us": -1})],
        )
        self.check(
            LIMITS,
            limitRow(0, "rate", 1.0, user="alice"),
            [
                *common,
                ("name", {"limit_name": None}),
                ("entity", {"user": None}),
                ("entity", {"ip": "::1"}),
                ("entity", {"client_id": ""}),
                ("value", {"value": 0.0}),
                ("value", {"value": float("inf")}),
            ],
        )
        self.check(
            SENSORS,
            sensorRow(0, "Used", None, "counter"),
            [*common, ("sensor", {"sensor": None}), ("kind", {"kind": "guess"}), ("counter", {"value": -1.0})],
        )

    def test_types(self) -> None:
        """
        What cannot be cast is null, as is a column that is missing; a name
        that is missing is empty; columns of the reader's own stay.
        """
        texts = frameOf(REQUESTS, [requestRow(client_id=None)]).select(
            *(F.col(name).cast("string") for name in ("broker_id", "boot_id", "seq", "ts", "mono_us", "decision")),
            F.lit("12").alias("request_bytes"),
            F.lit("many").alias("response_bytes"),
            F.lit("0").alias("throttle_ms"),
            F.lit("2023-11-14").alias("dt"),
        )
        cleaned = clean(texts, REQUESTS)
        self.assertEqual(cleaned.columns, [*(column.name for column in REQUESTS.columns), "dt"])
        [row] = rowsOf(cleaned)
        found = {name: row[name] for name in ("ts", "request_bytes", "response_bytes", "client_id", "is_counted", "dt")}
        self.assertEqual(
            found,
            {
                "ts": at(0),
                "request_bytes": 12,
                "response_bytes": None,
                "client_id": "",
                "is_counted": None,
                "dt": "2023-11-14",
            },
        )

    def test_observation(self) -> None:
        """What is left out can be counted on the way."""
        observation = Observation("requests")
        rows = [requestRow(), requestRow(seq=-1), requestRow(decision=None)]
        self.assertEqual(clean(frameOf(REQUESTS, rows), REQUESTS, observation).count(), 1)
        counted = {name: n for name, n in observation.get.items() if n}
        self.assertEqual(counted, {"rows": 3, "place": 1, "decision": 1})


class ClientMinutesTests(SynchronousTestCase):
    """L{clientMinutes} and L{topClients}."""

    def test_beforeLogin(self) -> None:
        """
        What comes before a login makes no client, is not starved, and is none of those that share; without a login the
        same principal is a client by its other requests.
        """
        nobody = {"principal": "ANONYMOUS", "client_id": "app", "request_bytes": 10, "response_bytes": 10}
        rows = [
            requestRow(0.0, request_bytes=100),
            requestRow(1.0, **nobody, kind="ApiVersions"),
            requestRow(2.0, **nobody, kind="SaslHandshake"),
            requestRow(3.0, **nobody, kind="SaslAuthenticate", decision="reject"),
        ]
        frame = frameOf(REQUESTS, rows)
        self.assertEqual([row["principal"] for row in rowsOf(clientMinutes(frame))], ["alice"])
        [fairness] = rowsOf(fairnessMinutes(frame))
        self.assertEqual([fairness[name] for name in ("clients", "starved", "jain_bytes")], [1, 0, 1.0])
        served = frameOf(REQUESTS, [*rows, requestRow(4.0, **nobody, kind="Produce")])
        found = [(row["principal"], row["requests"]) for row in rowsOf(clientMinutes(served))]
        self.assertEqual(sorted(found), [("ANONYMOUS", 1), ("alice", 1)])

    def test_random(self) -> None:
        """
        A plain reading of some hundred rows comes to the same, with exact
        percentiles and with those of a histogram.
        """
        rows = randomRequests(7, 400)
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            if row["kind"] != "connection":
                groups[row["boot_id"], row["ts"].replace(second=0, microsecond=0), row["client_id"]].append(row)

        def expected(group: list[Row]) -> Row:
            delays = sorted(row["throttle_ms"] for row in group)
            decisions = Counter(row["decision"] for row in group)
            return {
                "requests": len(group),
                "bytes_in": sum(row["request_bytes"] for row in group),
                "bytes_out": sum(row["response_bytes"] or 0 for row in group),
                "throttled": decisions["throttle"],
                "rejected": decisions["reject"],
                "expired": decisions["expire"],
                "throttle_ms_p50": float(np.percentile(delays, 50)),
                "throttle_ms_p99": round(float(np.percentile(delays, 99)), 9),
                "throttle_ms_max": delays[-1],
                "throttle_s": round(sum(delays) / 1000, 9),
                "pool_waits": sum(row["pool_wait_us"] > 0 for row in group),
                "pool_wait_max_us": max(row["pool_wait_us"] for row in group),
                "muted_s": round(sum(row["pool_wait_us"] for row in group) / 1e6, 9),
            }

        def quantile(group: list[Row], share: float) -> float:
            delays = sorted(row["throttle_ms"] for row in group)
            value = delays[ceil(share * len(delays)) - 1]
            return float(min([delays[-1], *(bound for bound in BOUNDS_MS if bound >= value)]))

        frame = frameOf(REQUESTS, rows)
        found, guessed = (
            {(row["boot_id"], row["minute"], row["client_id"]): row for row in rowsOf(clientMinutes(frame, isExact))}
            for isExact in (True, False)
        )
        self.assertEqual(found.keys(), groups.keys())
        self.assertEqual(guessed.keys(), groups.keys())
        for key, group in groups.items():
            right = expected(group)
            self.assertEqual({name: found[key][name] for name in right}, right, key)
            right |= {"throttle_ms_p50": quantile(group, 0.5), "throttle_ms_p99": quantile(group, 0.99)}
            self.assertEqual({name: guessed[key][name] for name in right}, right, key)

    def test_top(self) -> None:
        """
        Of each measure those with the most are named in order, of equals the
        first by name, and nobody who has nothing.
        """
        rows = [
            requestRow(0, client_id="b", request_bytes=40),
            requestRow(60, client_id="b", response_bytes=10),
            requestRow(0, client_id="a", request_bytes=25, throttle_ms=1500),
            requestRow(0, client_id="c", request_bytes=25, boot_id="other"),
        ]
        top = rowsOf(topClients(clientMinutes(frameOf(REQUESTS, rows)), 2))
        found = [(row["measure"], row["rank"], row["client_id"], row["value"], row["share"]) for row in top]
        self.assertEqual(
            found,
            [
                ("bytes", 1, "b", 50.0, 0.5),
                ("bytes", 2, "a", 25.0, 0.25),
                ("requests", 1, "b", 2.0, 0.5),
                ("requests", 2, "a", 1.0, 0.25),
                ("throttle_s", 1, "a", 1.5, 1.0),
            ],
        )


class ThrottlingTests(SynchronousTestCase):
    """L{bucketMs}, L{throttleMinutes} and L{throttleHistogram}."""

    def test_buckets(self) -> None:
        """Bounds belong to their range, and what exceeds all has none."""
        delays = [(-1, 0), (0, 0), (1, 1), (1000, 1), (1001, 2), (5000, 5), (500_000_000, 500_000), (500_000_001, None)]
        frame = sharedSession().createDataFrame([(delay,) for delay, _ in delays], "delay_us bigint")
        found = frame.select("delay_us", bucketMs(F.col("delay_us")).alias("bucket")).collect()
        self.assertEqual([tuple(row) for row in found], delays)

    def test_policies(self) -> None:
        """
        Each policy's delays are counted by minute, those that were not asked left out, and how many of them are of
        requests that it refused; all minutes add up.
        """
        names = ["bytes", "ids"]
        rows = [
            requestRow(0, policy_names=names, policy_delays_us=[1500, 0]),
            requestRow(1, policy_names=names, policy_delays_us=[0, 0], kind="connection"),
            requestRow(2, policy_names=names, policy_delays_us=[]),
            requestRow(3),
            requestRow(60, policy_names=names, policy_delays_us=[1900, 0]),
            requestRow(61, policy_names=names, policy_delays_us=[1900, 0], policy="bytes", is_counted=None),
            requestRow(62, policy_names=names, policy_delays_us=[1900, 0], policy="bytes", is_counted=True),
        ]
        minutes = throttleMinutes(frameOf(REQUESTS, rows))
        columns = ("minute", "policy", "bucket_ms", "n", "refused")
        expected = [
            (at(0), "bytes", 0, 1, 0),
            (at(0), "bytes", 2, 1, 0),
            (at(0), "ids", 0, 2, 0),
            (at(1), "bytes", 2, 3, 1),
            (at(1), "ids", 0, 3, 0),
        ]
        self.assertEqual([tuple(row[name] for name in columns) for row in rowsOf(minutes)], expected)
        merged = [tuple(row[name] for name in columns[1:]) for row in rowsOf(throttleHistogram(minutes))]
        self.assertEqual(merged, [("bytes", 0, 1, 0), ("bytes", 2, 4, 1), ("ids", 0, 5, 0)])


class FairnessTests(SynchronousTestCase):
    """L{fairnessMinutes}, L{clientDemand} and L{starvedMinutes}."""

    def test_jain(self) -> None:
        """
        Jain's index of three clients, one of which gets half and one nothing,
        by share and by bytes, and of a minute in which nobody gets anything.
        """
        rows = [
            requestRow(1, client_id="a", request_bytes=100),
            requestRow(2, client_id="b", request_bytes=100),
            requestRow(3, client_id="b", request_bytes=100, decision="reject"),
            requestRow(4, client_id="c", request_bytes=10, decision="expire", pool_wait_us=4000),
            requestRow(61, client_id="a", request_bytes=10, decision="reject"),
        ]
        first, second = rowsOf(fairnessMinutes(frameOf(REQUESTS, rows)))
        self.assertEqual(
            first,
            {
                "broker_id": "0",
                "boot_id": "boot",
                "minute": at(0),
                "clients": 3,
                "demanded_bytes": 310,
                "admitted_bytes": 200,
                "jain_share": 0.6,
                "jain_bytes": round(200**2 / (3 * 2 * 100**2), 9),
                "starved": 1,
                "pool_waits": 1,
                "pool_wait_p999_us": 3988.0,
                "pool_wait_max_us": 4000,
            },
        )
        self.assertEqual((second["jain_share"], second["jain_bytes"], second["starved"]), (None, None, 1))

    def test_starvation(self) -> None:
        """
        A client that is refused and not served, or waits for memory all minute, is starved; one that is answered in the
        next minute, or parked until there is something to say, is not.
        """
        minuteUs = 60 * SECOND_US
        rows = [
            requestRow(30, client_id="waits", pool_wait_us=3 * minuteUs, sent_mono_us=30 * SECOND_US + 3 * minuteUs),
            requestRow(59, client_id="late", sent_mono_us=61 * SECOND_US),
            requestRow(0, client_id="parked", purgatory_wait_us=3 * minuteUs, sent_mono_us=3 * minuteUs),
            requestRow(1, client_id="refused", decision="reject"),
            requestRow(2, client_id="refused", decision="reject"),
            requestRow(62, client_id="refused"),
            requestRow(63, client_id="refused", decision="reject"),
            requestRow(0, client_id="exactly", queue_us=minuteUs, sent_mono_us=minuteUs),
        ]
        found = [(row["minute"], row["client_id"]) for row in rowsOf(starvedMinutes(frameOf(REQUESTS, rows)))]
        expected = [(at(0), "exactly"), (at(0), "refused"), (at(1), "waits"), (at(2), "waits")]
        self.assertEqual(found, expected)

    def test_random(self) -> None:
        """A plain reading of some hundred rows finds the same demand."""
        rows = randomRequests(11, 300)
        expected: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
        for row in rows:
            if row["kind"] == "connection":
                continue

            def of(us: int, row: Row = row) -> Counter[str]:
                return expected[row["boot_id"], at(us // (60 * SECOND_US)), row["client_id"]]

            sizeBytes = row["request_bytes"] + (row["response_bytes"] or 0)
            isServed = row["decision"] not in ("reject", "expire")
            of(row["mono_us"]).update(demanded_bytes=sizeBytes, admitted_bytes=sizeBytes * isServed)
            of(row["sent_mono_us"]).update(served=int(isServed), unserved=int(not isServed))
            for minute in range(10):
                beginUs = minute * 60 * SECOND_US
                endUs = beginUs + 60 * SECOND_US
                if row["mono_us"] <= beginUs and row["mono_us"] + row["pool_wait_us"] >= endUs:
                    of(beginUs).update(waited=1)
        found = {
            (row["boot_id"], row["minute"], row["client_id"]): row
            for row in rowsOf(clientDemand(frameOf(REQUESTS, rows)))
        }
        self.assertEqual(found.keys(), expected.keys())
        self.assertTrue(any(row["waited"] for row in found.values()))
        for key, right in expected.items():
            names = ("demanded_bytes", "admitted_bytes", "served", "unserved", "waited")
            self.assertEqual({name: found[key][name] for name in names}, {name: right[name] for name in names}, key)
            isStarved = not right["served"] and bool(right["unserved"] or right["waited"])
            self.assertEqual(found[key]["is_starved"], isStarved)


class PoolMinutesTests(SynchronousTestCase):
    """L{poolMinutes} and L{poolTimes}."""

    def test_depletion(self) -> None:
        """
        What the counter grew by is spread over the minutes between two
        samples, each boot counts for itself, and of a counter that falls
        nothing is known.
        """
        sensors = [
            sensorRow(0, DEPLETED, 5e6, "counter"),
            sensorRow(30, DEPLETED, 5e6, "counter"),
            # Six of sixty seconds without memory, half of the sixty in each of two minutes.
            sensorRow(90, DEPLETED, 11e6, "counter"),
            sensorRow(100, DEPLETED, 12e6, "counter", boot_id="next"),
            sensorRow(110, DEPLETED, 17e6, "counter", boot_id="next"),
            sensorRow(115, DEPLETED, 1e6, "counter", boot_id="next"),
            sensorRow(95, DEPLETED, None, "counter"),
            sensorRow(96, "MemoryPoolAvgDepletedPercent", 1.0),
        ]
        rows = rowsOf(poolMinutes(frameOf(REQUESTS, []), frameOf(SENSORS, sensors)))
        found = [(row["boot_id"], row["minute"], row["depleted_pct"], row["covered_s"]) for row in rows]
        expected = [("boot", at(0), 5.0, 60.0), ("boot", at(1), 10.0, 30.0), ("next", at(1), 50.0, 10.0)]
        self.assertEqual(found, expected)

    def test_levels(self) -> None:
        """
        The highest and lowest levels are those that sensors or requests have
        seen, a wait counts in the minutes it fell into, and without the
        counter nothing is said of depletion.
        """
        requests = [
            requestRow(59, pool_used_bytes=10, pool_available_bytes=-5, pool_wait_us=62 * SECOND_US),
            requestRow(58, pool_used_bytes=20, pool_available_bytes=80, pool_wait_us=SECOND_US),
        ]
        sensors = [sensorRow(1, "MemoryPoolUsed", 30.0), sensorRow(61, "MemoryPoolAvailable", 7.0)]
        rows = rowsOf(poolMinutes(frameOf(REQUESTS, requests), frameOf(SENSORS, sensors)))
        found = [tuple(row.values())[2:] for row in rows]
        expected = [
            (at(0), 30, -5, None, 0.0, 2.0),
            (at(1), None, 7, None, 0.0, 60.0),
            (at(2), None, None, None, 0.0, 1.0),
        ]
        self.assertEqual(found, expected)

    def test_steps(self) -> None:
        """In each step of time the most that sensors or requests have seen counts."""
        requests = [requestRow(59, pool_used_bytes=10), requestRow(58, pool_used_bytes=20)]
        sensors = [sensorRow(1, "MemoryPoolUsed", 30.0), sensorRow(57, "MemoryPoolUsed", 15.0)]
        rows = rowsOf(poolTimes(frameOf(REQUESTS, requests), frameOf(SENSORS, sensors), 5_000_000))
        found = [(row["begin"], row["used_max"]) for row in rows]
        self.assertEqual(found, [(at(0), 30), (at(55 / 60), 20)])


class OutputTests(SynchronousTestCase):
    """L{writeResult}."""

    def test_sameBytes(self) -> None:
        """The same rows in another order make the same two files, in order, rounded, readable, and nothing else."""
        session = sharedSession()
        rows = [(at(1), "b", 1 / 3), (at(0), 'say "a"', None), (at(0), None, 2.0)]
        written = []
        for directory, order in ((Path("one"), rows), (Path("two"), rows[::-1])):
            frame = session.createDataFrame(order, "minute timestamp, client_id string, share double")
            writeResult(frame, directory, "shares")
            paths = sorted(directory.iterdir())
            self.assertEqual([path.name for path in paths], ["shares.csv", "shares.parquet"])
            written.append([path.read_bytes() for path in paths])
        self.assertEqual(written[0], written[1])
        table = parquet.read_table(Path("one", "shares.parquet")).to_pylist()
        self.assertEqual([row["share"] for row in table], [2.0, None, 0.333333333])
        self.assertEqual(
            written[0][0].decode(),
            '"minute","client_id","share"\n'
            "2023-11-14 22:13:00.000000Z,,2\n"
            '2023-11-14 22:13:00.000000Z,"say ""a""",\n'
            '2023-11-14 22:14:00.000000Z,"b",0.333333333\n',
        )

    def test_groups(self) -> None:
        """However many rows come at a time, and however many a group has, all are there, in the same bytes."""
        session = sharedSession()
        rows = [(number, f"client-{number % 7}") for number in range(95)]
        for groupRows in (1, 10, 19, 1000):
            self.patch(outputs, "GROUP_ROWS", groupRows)
            written = []
            for partitions in (1, 3):
                self.addCleanup(session.conf.set, "spark.sql.shuffle.partitions", "2")
                session.conf.set("spark.sql.shuffle.partitions", str(partitions))
                session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(8 * partitions))
                directory = Path(self.mktemp())
                writeResult(session.createDataFrame(rows, "n bigint, client_id string"), directory, "all")
                written.append([directory.joinpath(f"all.{suffix}").read_bytes() for suffix in ("csv", "parquet")])
            session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
            self.assertEqual(written[0], written[1])
            file = parquet.ParquetFile(directory / "all.parquet")
            self.assertEqual(file.num_row_groups, -(-95 // groupRows))
            self.assertEqual([tuple(row.values()) for row in file.read().to_pylist()], rows)

    def test_noise(self) -> None:
        """Noise in a column of a result is a reason not to report it, rather than other numbers."""
        random = Random(1)
        frame = sharedSession().createDataFrame([(random.getrandbits(62),) for _ in range(3000)], "n bigint")
        directory = Path(self.mktemp())
        writeResult(frame, directory, "noisy")
        noisy(directory / "noisy.parquet", "n")
        error = self.assertRaises(ReportError, Results(directory).table, "noisy", ["n"])
        self.assertIn("CRC", str(error))

    def test_noRows(self) -> None:
        """A result without rows has its columns all the same."""
        frame = sharedSession().createDataFrame([], "client_id string, n bigint")
        directory = Path(self.mktemp())
        writeResult(frame, directory, "none")
        self.assertEqual(directory.joinpath("none.csv").read_text(), '"client_id","n"\n')

    def test_notADirectory(self) -> None:
        """If it cannot be written, the operator is told where to and what to do."""
        path = self.mktemp()
        Path(path).write_text("in the way")
        frame = sharedSession().createDataFrame([(1,)], "n bigint")
        error = self.assertRaises(OutputError, writeResult, frame, path, "n")
        self.assertIn(path, str(error))
        self.assertIn("name another directory", str(error))
