"""Tests for L{admission.kafka.serving.memoryuse}, against brokers in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from admission.commands.memorycommand import MemoryOptions, run
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, BrokerProcess, freePort
from tests.kit.rawclient import RawClient, fetchRequest


class ImportTests(SynchronousTestCase):
    """What a broker loads that nobody profiles."""

    def test_off(self) -> None:
        """Pympler is not imported with the broker."""
        program = "import sys; import admission.kafka.broker.service; sys.exit('pympler' in sys.modules)"
        subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=True, timeout=PATIENCE_SECONDS)


class BrokerTests(SynchronousTestCase):
    """A broker that is profiled every second, and can be asked as well."""

    def setUp(self) -> None:
        self.statusPort = freePort()
        self.status = f"http://127.0.0.1:{self.statusPort}"
        self.directory = Path(self.mktemp()).absolute()
        self.broker = BrokerProcess(
            "--status", f"tcp:{self.statusPort}:interface=127.0.0.1", "--profile-memory", f"1s:{self.directory}"
        ).startedFor(self)

    def ask(self) -> dict[str, Any]:
        with urlopen(f"{self.status}/memory", timeout=PATIENCE_SECONDS) as response:
            document: dict[str, Any] = json.load(response)
        return document

    def test_groups(self) -> None:
        """
        Connections and parked requests are found, the ledger's share beside
        what they take; files are written; the command shows it; and the
        broker ends as ever.
        """
        with RawClient(self.broker.port) as first, RawClient(self.broker.port) as second:
            first.createTopic("memory")
            second.send(fetchRequest("memory", 0, waitMs=60_000))
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                document = self.ask()
                groups = {each["name"]: each for each in document["groups"]}
                # Earlier the first client's request may have been found, which waited until its topic was on the disk;
                # and the ledger is read before objects are, which takes a while on a busy machine.
                isWhole = groups["connections"]["objects"] == 2 and groups["connections"]["claimedBytes"]
                if isWhole and groups["parked operations"]["measuredBytes"] > 500:
                    break
                self.assertLess(time.monotonic(), deadline, json.dumps(document["groups"]))
                time.sleep(0.2)
        connections = groups["connections"]
        self.assertEqual(connections["claimedBytes"], 2 * 8192)
        self.assertTrue(1000 < connections["measuredBytes"] < 100_000, connections)
        self.assertLess(groups["parked operations"]["measuredBytes"], 50_000)
        self.assertEqual(groups["log tables"]["objects"], 1)
        self.assertEqual(groups["sensors"]["isCut"], False)
        self.assertTrue(500 < groups["quota policies and filters"]["measuredBytes"] < 500_000, groups)

        written = StringIO()
        options = MemoryOptions()
        page = self.directory / "asked.html"
        options.parseOptions(["--status", self.status])
        run(options, StringIO(), written)
        self.assertIn("parked operations", written.getvalue())
        options.parseOptions(["--status", self.status, "--html", str(page)])
        run(options, StringIO(), written)
        self.assertIn("parked operations", page.read_text("utf-8"))

        # The second one has something to compare, however fast everything else was.
        while len(texts := sorted(self.directory.glob("memory-*-00000?.txt"))) < 2:
            self.assertLess(time.monotonic(), deadline, texts)
            time.sleep(0.1)
        self.broker.stop()
        self.assertIn("Server Shut Down", self.broker.log())
        self.assertEqual(self.broker.complaints(), [])
        texts = sorted(self.directory.glob("memory-*-00000?.txt"))
        self.assertIn("Changed most since snapshot 1", texts[1].read_text("utf-8"))
        self.assertTrue(texts[0].with_suffix(".html").exists())
        self.assertIn("memory, snapshot 1: ", self.broker.log())


class DirectoryTests(SynchronousTestCase):
    """A directory that cannot be."""

    def test_refused(self) -> None:
        """The broker does not start, and says in a sentence which option is wrong."""
        broker = BrokerProcess("--profile-memory", f"30s:{__file__}")
        self.addCleanup(broker.remove)
        error = self.assertRaises(AssertionError, broker.start)
        self.assertIn(f"admission: cannot write to {__file__}: File exists; --profile-memory says where to", str(error))
        self.assertNotIn("Traceback", str(error))


class CycleTests(SynchronousTestCase):
    """A server that leaves cycles behind."""

    def test_apart(self) -> None:
        """What it leaves is garbage in cycles, in no group and not unexplained; when it has been shown it is freed."""
        program = """
import gc, json
from admission.profiling.objectgroups import Group, Grouping, subclassOf
from admission.profiling.profiler import Profiler
from admission.testing.orderedclock import OrderedClock

class Connection:
    def __init__(self):
        self.read, self.ended = bytearray(4_000), self.end
    def end(self):
        pass

gc.disable()
clock = OrderedClock()
profiler = Profiler(Grouping([Group("connections", subclassOf(Connection))]), dict, clock, clock.seconds, "boot")
def take():
    taken = profiler.take()
    clock.advance(60)
    document, = [taken.result]
    return document
take()
alive = [Connection() for _ in range(100)]
for _ in range(5_000):
    Connection()
print(json.dumps([take(), gc.collect()]))
"""
        output = subprocess.run(
            [sys.executable, "-c", program], env=ENVIRONMENT, check=True, timeout=PATIENCE_SECONDS, capture_output=True
        ).stdout
        document, leftContainers = json.loads(output)
        self.assertLess(leftContainers, 1_000)
        [connections] = document["groups"]
        self.assertEqual(connections["objects"], 100)
        [since] = document["since"]
        self.assertApproximates(since["garbageBytes"], 21e6, 1e6)
        self.assertApproximates(since["unclaimedBytes"], 4e5, 1e5)
        self.assertLess(abs(since["unknownBytes"]), 3e6, since)


class LeakTests(SynchronousTestCase):
    """C{examples/find_a_leak.py}."""

    def test_found(self) -> None:
        """
        The difference of two snapshots names the class that leaks, with the
        number of requests, and what it holds.
        """
        output = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "find_a_leak.py")],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=ENVIRONMENT,
            check=True,
        ).stdout
        changed = output.partition("Changed most since snapshot 1:")[2].partition("Largest of")[0]
        rows = [[cell.strip() for cell in line.split("|")] for line in changed.splitlines() if "|" in line]
        self.assertEqual(rows[2][0], "bytes")
        self.assertTrue(2900 < int(rows[2][1]) < 3100, rows)
        (leaked,) = (row for row in rows if row[0] == "__main__.RememberedLine")
        self.assertEqual(leaked[1], "3000")
        self.assertIn(leaked, rows[2:7])
