"""
Imitates a disk that is full: a file system of a few MiB in memory, which only the broker's process sees.  It refuses
writes as one on a disk does, and a process may mount it in a namespace of its own, so nothing is left behind.  (A limit
on the size of files would be another error, and would hold for one file only.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.kit.attack import MIB, sized
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, TWISTD, BrokerProcess
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, copiesIn, recent
from tests.kit.rawclient import RawClient, produceRequest

DISK_BYTES = sized(16, 256) * MIB
BATCH_BYTES = 500_000
AGE_MS = sized(5000, 8000)
ROUNDS = sized(1, 10)

_OWN_NAMESPACE = ["unshare", "--mount", "--propagation", "private"]


class SmallDiskBroker(BrokerProcess):
    """A broker whose data directory is a small file system, gone with the process."""

    command = [
        *(*_OWN_NAMESPACE, "sh", "-c"),
        f'mkdir -p data && mount -t tmpfs -o size={DISK_BYTES} none data && exec "$0" "$@"',
        *TWISTD,
    ]


_DOCTOR_ON_FULL_DISK = """
import os, subprocess, sys

os.mkdir("data/log")
with open("data/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
sys.exit(subprocess.call([sys.executable, "-m", "admission", "doctor", "--data", "data/log"]))
"""


class FullDoctorTests(SynchronousTestCase):
    """The doctor where there is no room."""

    def test_doctor(self) -> None:
        """It says that there is no room, and does not die of that."""
        tried = subprocess.run([*_OWN_NAMESPACE, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True)
        if tried.returncode:
            raise SkipTest("only root may mount a small disk")
        directory = os.path.abspath(self.mktemp())
        os.makedirs(os.path.join(directory, "data"))
        mount = 'mount -t tmpfs -o size=1m none data && exec "$0" "$@"'
        done = subprocess.run(
            [*_OWN_NAMESPACE, "sh", "-c", mount, sys.executable, "-c", _DOCTOR_ON_FULL_DISK],
            cwd=directory,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("0 B of 1 MiB free", done.stdout)
        self.assertIn("make room", done.stdout)


class FullDiskTests(FaultTestCase):
    """No room for records."""

    brokerType = SmallDiskBroker
    settings = (
        *("log.segment.bytes=1MiB", "log.retention.check.interval.ms=500"),
        "group.initial.rebalance.delay.ms=0",
    )

    def prepare(self) -> None:
        """See whether we may mount anything."""
        tried = subprocess.run([*_OWN_NAMESPACE, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True)
        if tried.returncode:
            raise SkipTest("only root may mount a small disk")

    def test_full(self) -> None:
        """
        Records are refused with an error that producers retry, and with words; reading goes on, and C{/healthz} tells.
        Deleting a topic and retention make room, and then all goes on without a restart; what was acknowledged is
        there, and what idempotent producers sent is there once.
        """
        raw = self.connect()
        raw.createTopic("once")
        once = EagerProducer(
            self.broker.address, "once", {"enable.idempotence": True, "acks": -1, "retry.backoff.max.ms": 200}
        )
        stoppedSeconds: list[float] = []
        resumedSeconds: list[float] = []
        stored = 0
        with Busy(lambda: once.send(5)):
            for number in range(ROUNDS):
                for makeRoom, configs in ((self.delete, {}), (self.wait, {"retention.ms": str(AGE_MS)})):
                    name = f"{makeRoom.__name__}-{number}"
                    self.create(raw, name, configs)
                    offsets, refusal = self.fill(raw, name)
                    stored += len(offsets)
                    filled = time.monotonic()
                    self.assertEqual(refusal[0], ErrorCode.kafka_storage_error)
                    self.assertIn("the disk is full", refusal[1])
                    (reason,) = self.health()
                    self.assertIn("the disk is full", reason)
                    if makeRoom == self.delete:
                        # The other makes room while it is read.
                        self.assertEqual([each.baseOffset for each, _ in raw.batches(name)], offsets)
                    acknowledged = len(once.acknowledged)
                    makeRoom(raw, name)
                    roomy = time.monotonic()
                    while len(once.acknowledged) < acknowledged + 100:
                        self.assertLess(time.monotonic() - roomy, PATIENCE_SECONDS)
                        time.sleep(0.001)
                    stoppedSeconds.append(roomy - filled)
                    resumedSeconds.append(time.monotonic() - roomy)
                    if makeRoom == self.wait:
                        self.delete(raw, name)
        self.assertEqual((once.flush(), once.errors), (0, []))
        copies = copiesIn(self.broker.port, "once")
        self.tell(
            f"a disk of {DISK_BYTES / MIB:.0f} MiB, full {2 * ROUNDS} times",
            f"{stored} batches of {BATCH_BYTES} bytes accepted, then refused; goes on at most "
            f"{1000 * max(resumedSeconds):.0f} ms after there is room; of {once.sentCount} records of an idempotent "
            f"producer {sum(len(each) > 1 for each in copies.values())} stand twice, "
            f"{sum(b'%d' % number not in copies for number in range(once.sentCount))} are missing",
        )
        self.assertEqual(
            [copies[b"%d" % number][0].offset for number in range(once.sentCount)], list(range(len(copies)))
        )
        self.assertEqual(sum(map(len, copies.values())), once.sentCount)
        if sized(False, True):
            time.sleep(61)
            self.assertEqual(self.health(), [])
        # That it cannot be written to is told, and nothing worse.
        self.assertTrue(all("cannot be written to" in line for line in self.broker.complaints()))

    def create(self, raw: RawClient, name: str, configs: dict[str, str]) -> None:
        """Make a topic, as soon as that is possible."""
        entries = [{"name": each, "value": value} for each, value in configs.items()]
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": entries}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            (created,) = raw.ask(requestOf("CreateTopics", 7, topics=[topic], timeout=10_000)).topics
            if not created.error_code:
                return
            self.assertEqual(created.error_code, ErrorCode.kafka_storage_error)
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)

    def fill(self, raw: RawClient, name: str) -> tuple[list[int], tuple[int, str]]:
        """
        Store batches until one is refused.

        @return: the offsets of those that were not, and the refusal: error and words.
        """
        offsets: list[int] = []
        while True:
            answer = raw.ask(produceRequest(name, recent(bytes(BATCH_BYTES)), acks=1))
            (result,) = answer.responses[0].partition_responses
            if result.error_code:
                return offsets, (int(result.error_code), str(result.error_message))
            offsets.append(int(result.base_offset))

    def delete(self, raw: RawClient, name: str) -> None:
        topics = [{"name": name, "topic_id": None}]
        (deleted,) = raw.ask(requestOf("DeleteTopics", 6, topics=topics, timeout=10_000)).responses
        self.assertEqual(deleted.error_code, ErrorCode.none)

    def wait(self, raw: RawClient, name: str) -> None:
        """Wait until retention has removed the first records."""
        wanted: Any = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -2}]}]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not raw.ask(requestOf("ListOffsets", 7, topics=wanted)).topics[0].partitions[0].offset:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
