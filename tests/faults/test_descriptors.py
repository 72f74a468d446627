"""
Imitates a process that may open few files (C{ulimit -n}), and more clients and partitions than that is enough for; then
one that has none left at all.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from kio.schema.errors import ErrorCode

from tests.kit.attack import sized
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, TWISTD, BrokerProcess
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, milliseconds, recent
from tests.kit.rawclient import RawClient, produceRequest

MAX_FILES = 400
LOG_FILES = MAX_FILES // 4
PARTITIONS = sized(300, 2000)
CROWD = sized(600, 3000)
WATCHED_SECONDS = sized(1.0, 20.0)
BUSY_SHARE = 0.3
"""How much of a processor a broker may use that has nothing to do but to refuse."""


class SmallProcess(BrokerProcess):
    """A broker that may open C{MAX_FILES} files."""

    command = ["prlimit", f"--nofile={MAX_FILES}:{MAX_FILES}", *TWISTD]

    def openFiles(self, within: str = "") -> int:
        """How many files it has open, or how many of them are in its directory C{within}."""
        found = 0
        directory = Path("/proc", str(self.process.pid), "fd")
        for name in os.listdir(directory):
            try:
                found += os.readlink(directory / name).startswith(within)
            except OSError:
                # It was closed just now.
                pass
        return found

    def cpuSeconds(self) -> float:
        fields = Path("/proc", str(self.process.pid), "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class DescriptorTests(FaultTestCase):
    """Few files, or none."""

    brokerType = SmallProcess
    settings = ("log.max.open.files=4000", "num.partitions=1")
    broker: SmallProcess

    def test_crowd(self) -> None:
        """
        Those beyond what the files are enough for are closed at once, without a busy loop; a client that is served
        already goes on being served, C{/healthz} tells, and when the crowd has left newcomers are served.
        """
        good = EagerProducer(self.broker.address, "good", {"enable.idempotence": True, "acks": -1})
        latencies: list[float] = []
        client = self.connect()
        client.createTopic("raw")

        def serve() -> None:
            good.send(2)
            begun = time.monotonic()
            client.ask(produceRequest("raw", recent(b"record"), acks=1))
            latencies.append(time.monotonic() - begun)

        with Busy(serve):
            while len(good.acknowledged) < 50:
                time.sleep(0.01)
            crowd: list[RawClient] = []
            served = 0
            for _ in range(CROWD):
                crowd.append(self.connect())
                crowd[-1].socket.settimeout(5)
                # At once: one that has asked for nothing would give way to the next.
                served += isServed(crowd[-1])
            openFiles, reasons = self.broker.openFiles(), self.health()
            begun, cpuFrom = time.monotonic(), self.broker.cpuSeconds()
            time.sleep(WATCHED_SECONDS)
            share = (self.broker.cpuSeconds() - cpuFrom) / (time.monotonic() - begun)
            acknowledged = len(good.acknowledged)
            while len(good.acknowledged) == acknowledged:
                self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS)
                time.sleep(0.01)
            for each in crowd:
                each.close()
            begun = time.monotonic()
            self.waitUntilServed()
            afterSeconds = time.monotonic() - begun
        self.assertEqual((good.flush(), good.errors), (0, []))
        self.tell(
            f"{CROWD} connections, {MAX_FILES} files",
            f"{served} served, the others closed; {openFiles} files open; others waited {milliseconds(latencies)}; "
            f"{100 * share:.0f} % of a processor, with two clients that produce; newcomers served"
            f" {1000 * afterSeconds:.0f} ms after the crowd has left",
        )
        self.assertTrue(0 < served < MAX_FILES)
        self.assertLess(openFiles, MAX_FILES)
        self.assertTrue(any("newcomers are refused" in each for each in reasons), reasons)
        self.assertNoComplaints()

    def test_partitions(self) -> None:
        """
        However many partitions are written to and read, the log has no more than a fourth of all files open; a record
        that is refused meanwhile is accepted when it is sent again.
        """
        raw = self.connect()
        topic = {
            "name": "many",
            "num_partitions": PARTITIONS,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        self.assertEqual(raw.ask(requestOf("CreateTopics", 7, topics=[topic])).topics[0].error_code, 0)
        largest = refused = 0
        for acks in (1, -1):
            for partition in range(PARTITIONS):
                while True:
                    answer = raw.ask(produceRequest("many", recent(b"record"), partition=partition, acks=acks))
                    error = answer.responses[0].partition_responses[0].error_code
                    if not error:
                        break
                    self.assertEqual(error, ErrorCode.kafka_storage_error)
                    refused += 1
                    time.sleep(0.01)
                if partition % 10 == 0:
                    largest = max(largest, self.broker.openFiles(self.broker.dataPath))
        ends = {raw.endOffset("many", partition=partition) for partition in range(PARTITIONS)}
        self.assertTrue(all(len(raw.batches("many", partition=each)) == 2 for each in range(PARTITIONS)))
        largest = max(largest, self.broker.openFiles(self.broker.dataPath))
        self.tell(
            f"{PARTITIONS} partitions, {LOG_FILES} files of the log",
            f"{largest} open at most, {refused} records refused and accepted later",
        )
        self.assertEqual(ends, {2})
        # And the lock, the journal and its predecessor.
        self.assertLess(largest, LOG_FILES + 10)
        self.assertEqual(self.health(), [])
        self.assertNoComplaints()

    def test_noneLeft(self) -> None:
        """
        A process that may suddenly open nothing more goes on serving those that it serves, and does not loop; what
        needs a new file is refused or not confirmed, with errors that producers retry.  When it may open files again,
        everybody is served.
        """
        client = self.connect()
        for name in ("raw", "new", "unflushed"):
            client.createTopic(name)

        def produce(name: str, acks: int = -1) -> ErrorCode:
            answer = client.ask(produceRequest(name, recent(b"record"), acks=acks, timeoutMs=1000))
            return ErrorCode(answer.responses[0].partition_responses[0].error_code)

        self.assertEqual(produce("raw"), ErrorCode.none)
        # The directory of this one is flushed with the next request for it.
        self.assertEqual(produce("unflushed", 1), ErrorCode.none)
        pid, hard = self.broker.process.pid, MAX_FILES
        # The lowest number that is free would be the next one.
        lowest = next(each for each in range(hard) if not os.path.exists(f"/proc/{pid}/fd/{each}"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))
        mark = self.broker.mark()
        crowd = [self.connect() for _ in range(CROWD // 10)]
        unflushed = produce("unflushed")
        begun, cpuFrom = time.monotonic(), self.broker.cpuSeconds()
        latencies: list[float] = []
        while time.monotonic() - begun < WATCHED_SECONDS:
            asked = time.monotonic()
            self.assertEqual(produce("raw", 1), ErrorCode.none)
            latencies.append(time.monotonic() - asked)
            time.sleep(0.05)
        share = (self.broker.cpuSeconds() - cpuFrom) / (time.monotonic() - begun)
        lines = self.broker.mark() - mark
        # Its file and the directories of that cannot be opened.
        refused = produce("new")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        for each in crowd:
            each.close()
        begun = time.monotonic()
        self.waitUntilServed()
        self.tell(
            f"no file left for {CROWD // 10} newcomers",
            f"{100 * share:.0f} % of a processor, {lines} lines in the log; others wait {milliseconds(latencies)}; "
            f"newcomers served {1000 * (time.monotonic() - begun):.0f} ms after there are files again",
        )
        self.assertEqual((refused, produce("new")), (ErrorCode.kafka_storage_error, ErrorCode.none))
        # Before, there was no descriptor for the connection that asks.
        reasons = self.health()
        self.assertTrue(any("too many files are open" in each for each in reasons), reasons)
        # Unless the interval was over just before.
        self.assertIn(unflushed, (ErrorCode.request_timed_out, ErrorCode.none))
        self.assertEqual([produce(each) for each in ("unflushed", "raw")], [ErrorCode.none] * 2)
        self.assertLess(share, BUSY_SHARE)
        self.assertLess(lines, 3 * CROWD)
        # That it could not be written to is told, and nothing worse.
        self.assertTrue(all("too many files" in line for line in self.broker.complaints()))

    def waitUntilServed(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self.connect() as newcomer:
                if isServed(newcomer):
                    return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


def isServed(client: RawClient) -> bool:
    """Whether the answer to a request comes."""
    try:
        client.send(requestOf("ApiVersions", 0))
        return bool(client.receiveFrame())
    except OSError:
        return False
