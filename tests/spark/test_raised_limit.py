"""A limit that is raised while a real client waits, from the broker that records it to C{admission replay}."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from io import StringIO
from pathlib import Path

from confluent_kafka import Producer
from pyarrow import parquet  # type: ignore[import-untyped]
from twisted.trial.unittest import SynchronousTestCase

from admission.cli import main
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, BrokerProcess
from tests.kit.sparksession import sharedSession

MESSAGE_BYTES = 300_000
MESSAGE_SECONDS = 0.25
SECONDS, RAISED_SECONDS = 10.0, 2.0
_COMMAND = "import sys; from admission.cli import main; sys.exit(main())"


class RaisedLimitTests(SynchronousTestCase):
    """The delay that the raised limit ended is one for the replay, too."""

    def record(self, directory: Path) -> None:
        """Have a client send more than it may, and give it more while it waits."""
        broker = BrokerProcess("--quota", "client-bytes:produce=100k", "--export", f"spark:{directory}")
        self.addCleanup(broker.remove)
        broker.start()
        job = Producer({"bootstrap.servers": broker.address, "client.id": "job", "linger.ms": 0, "log_level": 0})
        begin, isRaised = time.monotonic(), False
        while (since := time.monotonic() - begin) < SECONDS:
            if since >= RAISED_SECONDS and not isRaised:
                isRaised = True
                # In a process of its own: a reactor that has run does not run again.
                raised = [
                    sys.executable,
                    "-c",
                    "import sys; from admission.cli import main; sys.exit(main())",
                    "quotas",
                    "set",
                ]
                options = ("--broker", broker.address, "--client-id", "job", "producer_byte_rate=300k")
                subprocess.run([*raised, *options], check=True, timeout=PATIENCE_SECONDS, env=ENVIRONMENT)
            job.produce("job", bytes(MESSAGE_BYTES))
            job.poll(MESSAGE_SECONDS)
        self.assertEqual(job.flush(60), 0)
        broker.stop()

    def command(self, *words: str) -> str:
        """What a command writes."""
        stdout, stderr = StringIO(), StringIO()
        with closing(stdout), closing(stderr):
            self.patch(sys, "stdout", stdout)
            self.patch(sys, "stderr", stderr)
            self.assertEqual(main(list(words)), 0, stdout.getvalue() + stderr.getvalue())
            return stdout.getvalue()

    def test_trusted(self) -> None:
        """Every decision is reproduced, of the time before and after, so that answers can be trusted."""
        recording = Path(self.mktemp()).absolute()
        self.record(recording)
        [raised] = [
            row["mono_us"]
            for row in parquet.read_table(recording / "limits").to_pylist()
            if row["changed_by"] is not None
        ]
        throttled = [row for row in parquet.read_table(recording / "requests").to_pylist() if row["throttle_ms"]]
        ends = [row["decided_mono_us"] + row["throttle_ms"] * 1000 for row in throttled if row["mono_us"] < raised]
        self.assertGreater(max(ends), raised)
        self.assertGreater(max(row["mono_us"] for row in throttled), raised)
        sharedSession()
        said = self.command(
            *("replay", str(recording), "--out", self.mktemp(), "--candidate", "client-bytes:produce=200k")
        )
        self.assertTrue(said.startswith("These answers can be trusted. "), said)
        self.assertRegex(said, rf"agrees with the recording in 100 % of [0-9]+ decisions, {len(throttled)} of which")
