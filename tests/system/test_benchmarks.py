"""The benchmarks run, and say what their documentation promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.measure import inTurns, ratio
from tests.kit.apachekafka import classPath
from tests.kit.checkout import ROOT
from tests.kit.longform import longForm


class BenchmarkTests(SynchronousTestCase):
    """Each benchmark as a person starts it, in its short form."""

    def results(self, name: str, patienceSeconds: float = 120) -> Any:
        """What C{python -m benchmarks.NAME --quick --json} prints."""
        path = os.pathsep.join(str(ROOT / root) for root in ("src", "plugins", "."))
        result = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=patienceSeconds,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        results = json.loads(result.stdout)
        self.assertEqual(set(results["machine"]), {"python", "cpuCount", "loadAverage"})
        self.assertIs(results["quick"], True)
        return results

    def check(self, rows: Any, /, **competitors: set[str]) -> None:
        """All rows have the same keys, and positive figures, and the competitors are all there."""
        for row in rows:
            self.assertEqual(set(row), set(rows[0]))
            for key, value in row.items():
                if key == "spreadPercent":
                    self.assertGreaterEqual(value, 0, row)
                elif isinstance(value, float):
                    self.assertGreater(value, 0, f"{key} in {row}")
        for key, names in competitors.items():
            self.assertEqual({row[key] for row in rows}, names)

    @longForm
    def test_framing(self) -> None:
        """All receivers are measured in process and through sockets, at the same sizes."""
        results = self.results("framing")
        self.check(
            results["inProcess"],
            receiver={"preallocated", "Framer", "AdmittedProtocol", "Int32StringReceiver", "counting"},
        )
        self.check(results["sockets"], receiver={"admission", "preallocated", "counting", "Int32StringReceiver"})
        sizes = {1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 23}
        for table in ("inProcess", "sockets"):
            self.assertEqual({row["frameBytes"] for row in results[table]}, sizes)

    @longForm
    def test_broker(self) -> None:
        """
        The broker and its peers are measured at the same sizes, and the broker
        alone for Fetch and under a real client.
        """
        results = self.results("broker")
        self.check(
            results["produce"],
            server={"admission", "bare", "bareOneAtATime", "floor"},
            batchBytes={1 << 10, 1 << 14, 1 << 20},
        )
        self.check(results["fetch"], batchBytes={1 << 14, 1 << 20})
        self.check(results["confluentKafka"], producer={"plain", "idempotent"})

    @longForm
    def test_kafka(self) -> None:
        """The broker is measured beside Apache Kafka, with and without waiting for the disk."""
        classPath()
        results = self.results("kafka", patienceSeconds=400)
        servers = {"Apache Kafka", "admission", "admission, write.caching"}
        self.check(results["throughput"], server=servers)
        self.check(results["latency"], server=servers, what={"acks=all", "acks=1"})

    @longForm
    def test_gateway(self) -> None:
        """The gateway is measured with and without limits, beside a relay and Apache Kafka itself."""
        classPath()
        results = self.results("gateway", patienceSeconds=400)
        relayed = {"relay", "gateway", "gateway, limits"}
        # Where Maven has it.
        if any(row["server"] == "Kroxylicious" for row in results["latency"]):
            relayed.add("Kroxylicious")
        self.check(
            results["requests"],
            what={"produce", "produce, idempotent", "fetch"},
            sizeBytes={1 << 10, 1 << 14, 1 << 20},
            inFlight={1, 4, 5, 16},
            server=relayed,
        )
        for row in results["latency"]:
            # Where the machine is noisy, it may be negative.
            row.pop("addedMilliseconds")
        self.check(results["latency"], server=relayed | {"direct"})
        for row in results["slowReaders"]:
            self.assertGreaterEqual(row.pop("growthMegabytes"), 0)
        self.check(results["slowReaders"], readers={4, 20}, server=relayed)
        for row in results["stuckNode"]:
            self.assertGreaterEqual(row.pop("growthMegabytes"), 0)
        self.check(results["stuckNode"], when={"before", "during"}, server={"node 1", "node 2", "node 1, direct"})

    @longForm
    def test_pool(self) -> None:
        """Leases are measured beside bytearrays, and the broker with a bound beside the broker without."""
        results = self.results("pool")
        self.check(
            results["leases"],
            pattern={"warm", "burst"},
            pool={"bytearray", "BoundedPool", "UnboundedPool"},
            leaseBytes={100, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 23},
        )
        self.check(
            results["throughput"], role={"producers", "consumers"}, pool={"unbounded", "bounded:256MiB", "bounded:4MiB"}
        )

    @longForm
    def test_log(self) -> None:
        """The log is measured beside a bare file, writing beside flushes, and starts after a kill."""
        results = self.results("log")
        self.check(results["engines"], batchBytes={1 << 10, 1 << 14, 1 << 20}, engine={"log", "bare file"})
        self.check(results["flushes"], partitions={1, 16, 256}, writer={"reactor", "ordered thread"})
        self.check(results["starts"], what={"killed", "empty", "used once"})

    @longForm
    def test_purgatory(self) -> None:
        """
        Every way to wait is measured at saturation and at a steady rate, and nothing is left of operations that have
        completed.
        """
        results = self.results("purgatory")
        workloads = {"light", "heavy"}
        purgatories = {"WheelPurgatory", "CallLaterPurgatory"}
        peers = {"callLater", "addTimeout", "asyncio"}
        self.check(results["saturation"], workload=workloads, way=peers | purgatories)
        self.check(results["harness"], workload=workloads)
        self.check(results["steady"], offeredPerSecond={25_000, 105_000}, way=peers | purgatories)
        for row in results["memory"]:
            self.assertLess(abs(row["leftPercent"]), 1.0, row)
        self.assertEqual(len(results["memory"]), 1)

    @longForm
    def test_web(self) -> None:
        """A protected site is measured beside the same as it is, wrapped as bytes, and limited by a decorator."""
        results = self.results("web")
        sites = {"plain", "wrapped as bytes", "protected", "protected, three policies", "protected, refused"}
        if "notInstalled" not in results:
            sites |= {"limits", "limits, refused"}
        self.check(results["requests"], what={"GET", "POST 10 kB"}, together={1, 16}, site=sites)

    @longForm
    def test_goodput(self) -> None:
        """
        A protected site that is asked for too much is measured beside the same as it is, and every request either was
        answered in time, or was refused, or was given up.
        """
        rows = self.results("goodput")["goodput"]
        self.check(rows, site={"plain", "plain, looks for hang-ups", "protected"})
        for row in rows:
            self.assertEqual(row["asked"], row["inTime"] + row["refused"] + row["gaveUp"], row)

    def test_bloom(self) -> None:
        """
        Known and new ids are tracked in filters and in sets, single filters are
        measured beside rbloom alone, and no pattern of ids makes a filter err
        more often than it may and half as much again.
        """
        results = self.results("bloom")
        seen = {"LayeredBloom", "sets in layers"}
        self.check(results["track"], case={"known, newest", "known, oldest", "new"}, seen=seen)
        self.check(results["memory"], seen=seen)
        self.check(results["requests"], case={"known id", "new id", "refused"})
        filters = results["filters"]
        self.check(filters, case={"add", "hit", "miss"})
        measured = {row["filter"] for row in filters} | {row["module"] for row in results.get("notInstalled", [])}
        self.assertEqual(
            measured, {"set", "rbloom", "LayeredBloom of one layer", "fastbloom_rs", "pybloom_live", "bloom_filter2"}
        )
        errors = {row["pattern"]: row["layeredBloom"] for row in results["falsePositives"]}
        self.assertLess({"stride 1", "stride 65536", "blocks", "high bits", "upper half", "random"}, set(errors))
        self.assertEqual({pattern: rate for pattern, rate in errors.items() if not 0.3 < rate < 1.5}, {})

    def test_quotas(self) -> None:
        """
        Our meters are measured beside those of others, with few clients and
        many; a flood of clients leaves no more meters than agreed; and the
        policies are measured together.
        """
        results = self.results("quotas")
        missing = {row["limiter"] for row in results.get("notInstalled", [])}
        ours = {"window", "bucket"}
        peers = {"htb", "limits, fixed window", "limits, sliding window", "limits, moving window", "pyrate-limiter"}
        self.check(
            results["record"], limiter=(ours | peers | {"harness", "ThrottlingFactory"}) - missing, clients={1, 1000}
        )
        self.check(results["memory"], limiter=(ours | peers) - missing)
        self.check(results["flood"], algorithm=ours)
        self.assertLessEqual({row["meters"] for row in results["flood"]}, {10_000, 10_001})
        self.check(
            results["requests"],
            kind={"Produce", "Fetch", "connection"},
            policies={"no limits", "client-bytes", "all", "all, everybody over"},
        )

    @longForm
    def test_fairness(self) -> None:
        """
        A client is measured alone, beside a flood and beside one that has a
        limit; requests with and without limits.
        """
        results = self.results("fairness")
        self.check(results["fairness"], beside={"alone", "flood", "limited flood"})
        self.check(results["costs"], kind={"Produce", "Fetch"}, inFlight={1, 16}, limits={"none", "not reached"})

    @longForm
    def test_groups(self) -> None:
        """Heartbeats are measured beside bare Twisted, sessions beside timers, and rebalances of several sizes."""
        results = self.results("groups")
        self.check(results["heartbeats"], server={"admission", "floor"}, inFlight={1, 16})
        self.check(results["sessions"], way={"Groups", "timer each"})
        self.check(results["rebalances"], members={10, 100})

    @longForm
    def test_rogue(self) -> None:
        """
        Beside each rogue the steady user is never refused, whatever is remembered stays under its cap, and every id
        that was to be sent was.
        """
        results = self.results("rogue")
        rogues = {"waits", "reconnects", "unlimited"}
        self.check(results["latency"], rogue=rogues, steady={"alone", "beside"})
        self.assertEqual({row["refusals"] for row in results["latency"]}, {0})
        sent = {row["rogue"]: (row["sentIds"], row["admittedIds"], row["refusedIds"]) for row in results["rogue"]}
        self.assertEqual(set(sent), rogues)
        self.assertEqual(sent["reconnects"], (5000, 0, 5000))
        self.assertEqual(sent["unlimited"], (5000, 5000, 0))
        for row in results["memory"]:
            self.assertLessEqual(row["peakKibibytes"], row["capKibibytes"], row)
        self.assertEqual({row["purpose"] for row in results["memory"]}, {"producers", "filters"})

    @longForm
    def test_timers(self) -> None:
        """
        The wheel and its peers set, cancel and expire the same timers, with
        and without the garbage collector, and each one's memory is known.
        """
        results = self.results("timers")
        timers = {"reactor.callLater", "asyncio", "heapq", "TimingWheel"}
        self.check(
            results["times"],
            operation={"insert+cancel", "insert+expire"},
            outstanding={10_000, 100_000},
            garbageCollector={"on", "off"},
            timers=timers,
        )
        self.check(results["memory"], timers=timers)

    @longForm
    def test_offline(self) -> None:
        """
        Every job is measured on a recording and on copies of it, with what its
        workers take, and every replay without Spark as well.
        """
        results = self.results("offline", 300)
        one, copied = results["recordings"]
        self.assertEqual([copied["copies"], copied["rows"]], [2, 2 * one["rows"]])
        jobs = {"read, Parquet", "read, data source", "clients by minute", "runs, gaps"}
        replays = {"replay, open loop", "replay, closed loop", "replay, pool"}
        several = {"replay, open loop, 4 candidates", "replay, closed loop, 4 candidates"}
        for row in results["jobs"]:
            # Counted in hundredths of a second, of which so few rows may take none.
            self.assertGreaterEqual(row.pop("pythonMicroseconds"), 0, row)
            decisionsPerSecond = row.pop("decisionsPerSecond")
            if row["job"] in several:
                self.assertAlmostEqual(decisionsPerSecond, 4 * row["rowsPerSecond"])
            if row["job"] in replays | several:
                self.assertGreater(row["workerMebibytes"], 0, row)
        self.check(results["jobs"], job=jobs | replays | several, rows={one["rows"], copied["rows"]})
        self.check(results["oneProcess"], replay=replays, step={"read", "make arrivals", "sort", "decide", "add up"})
        self.check(results["comparison"], replay=replays)


class MeasureTests(SynchronousTestCase):
    """The arithmetic that the figures rest on."""

    def test_inTurns(self) -> None:
        """Every competitor is measured once in each round, and no one always comes first."""
        order: list[str] = []

        def measure(name: str) -> int:
            order.append(name)
            return len(order)

        self.assertEqual(inTurns(["a", "b"], 3, measure, "letters"), {"a": [1, 4, 5], "b": [2, 3, 6]})
        self.assertEqual(order, ["a", "b", "b", "a", "a", "b"])

    def test_ratio(self) -> None:
        """Figures are compared round by round, so a round in which the machine was slow for both counts for neither."""
        self.assertEqual(ratio([2.0, 40.0, 2.0], [1.0, 20.0, 1.0]), 2.0)
        self.assertEqual(ratio([3.0, 8.0, 300.0], [1.0, 2.0, 100.0]), 3.0)
