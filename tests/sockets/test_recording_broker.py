"""Tests for C{--export}: a broker that records, a real client, and the files that are left."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from confluent_kafka import Producer
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import CONNECTION
from admission.recording.schema import CONNECTIONS, LIMITS, SENSORS, Table
from admission.recording.segments import Segment, segmentPaths
from admission.recording.tables import REQUESTS
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import BrokerProcess
from tests.kit.rawclient import RawClient

MESSAGES = 5
MESSAGE_BYTES = 4000

QUOTAS = ["client-bytes:produce=1800", "producer-ids:rate=100"]
"""The limit is passed with the last message, so that nobody has to wait in the end."""


def sealedRows(directory: Path, table: Table) -> Iterator[dict[str, Any]]:
    """The rows of a table that have become Parquet."""
    for path in sorted(directory.joinpath(table.name).glob("dt=*/hour=*/*.parquet")):
        yield from pq.ParquetFile(path).read().to_pylist()


def segmentRows(directory: Path, table: Table) -> Iterator[dict[str, Any]]:
    """The rows of a table in segments that nobody has sealed."""
    for path in segmentPaths(directory / "_segments"):
        segment = Segment.load(path)
        if segment is not None:
            yield from segment.rows(table)


def produce(broker: BrokerProcess, clientId: str) -> None:
    """Have messages stored, each in a request of its own, and acknowledged."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "client.id": clientId,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "log_level": 0,
        }
    )
    for _ in range(MESSAGES):
        producer.produce("events", bytes(MESSAGE_BYTES), callback=lambda error, _: error and failures.append(error))
    assert producer.flush(30) == 0, "it was not acknowledged"
    assert not failures, failures


def setLimit(broker: BrokerProcess, clientId: str, value: float) -> None:
    """Change a limit while the broker runs."""
    entity = [{"entity_type": "client-id", "entity_name": clientId}]
    operation = {"key": "producer_byte_rate", "value": value, "remove": False}
    with closing(RawClient(broker.port)) as client:
        client.send(requestOf("AlterClientQuotas", 1, entries=[{"entity": entity, "ops": [operation]}]))
        client.receiveFrame()


class ExportTests(SynchronousTestCase):
    """What is recorded is there when the broker has stopped, and when it was killed."""

    def broker(self, directory: Path) -> BrokerProcess:
        """A broker that records to C{directory}; not started."""
        quotas = [word for description in QUOTAS for word in ("--quota", description)]
        broker = BrokerProcess(*quotas, "--set", "broker.id=7", "--export", f"spark:{directory}")
        self.addCleanup(broker.remove)
        return broker

    def directory(self) -> Path:
        """Where to record to."""
        directory = tempfile.TemporaryDirectory(prefix="admission-recording-")
        self.addCleanup(directory.cleanup)
        return Path(directory.name, "recording")

    def assertProduced(self, rows: list[dict[str, Any]], clientId: str, isThrottled: bool) -> None:
        """The requests of L{produce} are there, each once and with its batch."""
        produced = [row for row in rows if row["kind"] == "Produce" and row["client_id"] == clientId]
        self.assertEqual(len(produced), MESSAGES)
        self.assertEqual(len({row["correlation_id"] for row in produced}), MESSAGES)
        for row in produced:
            self.assertGreater(row["request_bytes"], MESSAGE_BYTES)
            self.assertEqual((row["response_bytes"], row["is_counted"]), (0, True))
            self.assertEqual((row["producer_id_count"], row["producer_epoch"]), (1, 0))
            self.assertLessEqual(row["mono_us"], row["decided_mono_us"])
            self.assertLessEqual(row["decided_mono_us"], row["sent_mono_us"])
        throttled = [row for row in produced if row["decision"] == "throttle"]
        self.assertEqual(bool(throttled), isThrottled)
        for row in throttled:
            self.assertEqual((row["policy"], row["reason"]), ("client-bytes", "over its quota"))
            self.assertGreater(row["policy_delays_us"][0], 0)
            self.assertGreater(row["throttle_ms"], 0)
        self.assertEqual([row["bloom_seen"] for row in produced], [False] + [True] * (MESSAGES - 1))

    def test_stoppedAndKilled(self) -> None:
        """
        A broker that stops leaves Parquet with every request, connection, limit and sensor; what one that is killed
        has recorded is all in its segments.
        """
        directory = self.directory()
        broker = self.broker(directory)
        broker.start()
        setLimit(broker, "fast", 1e9)
        produce(broker, "slow")
        produce(broker, "fast")
        broker.stop()
        self.assertEqual(broker.complaints(), [])
        self.assertEqual(segmentPaths(directory / "_segments"), [])

        requests = list(sealedRows(directory, REQUESTS))
        self.assertProduced(requests, "slow", isThrottled=True)
        self.assertProduced(requests, "fast", isThrottled=False)
        [boot] = {
            (row["broker_id"], row["boot_id"], row["quota_windows"], row["quota_window_us"], row["throttle_max_us"])
            for row in requests
        }
        self.assertEqual((boot[0], boot[2:]), ("7", (11, 1_000_000, 20_000_000)))
        self.assertEqual(requests[0]["policy_names"], ["client-bytes", "producer-ids"])
        self.assertEqual(
            requests[0]["policy_descriptions"],
            ["client-bytes:produce=1800", "producer-ids:rate=100:window=1h:windows=11:cleanup=30s"],
        )
        self.assertTrue(requests[0]["pool_description"].startswith("bounded:"))
        self.assertGreaterEqual(requests[0]["gate_seed"], 0)

        connections = list(sealedRows(directory, CONNECTIONS))
        states = Counter(row["state"] for row in connections)
        self.assertEqual(states["opened"], states["closed"])
        self.assertEqual(sum(row["kind"] == CONNECTION for row in requests), states["opened"])
        self.assertEqual({row["listener"] for row in requests}, {f"tcp:{broker.port}:interface=127.0.0.1"})
        self.assertEqual(
            sum(row["requests"] for row in connections), sum(row["kind"] != CONNECTION for row in requests)
        )

        limits = [
            (row["user"], row["client_id"], row["limit_name"], row["value"], row["changed_by"])
            for row in sealedRows(directory, LIMITS)
        ]
        described = [
            (None, "<default>", "producer_byte_rate", 1800.0, None),
            ("<default>", None, "producer_ids_rate", 100.0, None),
        ]
        self.assertEqual(limits, [*described, (None, "fast", "producer_byte_rate", 1e9, "ANONYMOUS")])
        sensors = list(sealedRows(directory, SENSORS))
        self.assertIn(("ExportDroppedEvents", 0.0), {(row["sensor"], row["value"]) for row in sensors})
        numbers = sorted(
            row["seq"] for rows in (requests, connections, sealedRows(directory, LIMITS), sensors) for row in rows
        )
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

        broker.start()
        produce(broker, "fast")
        broker.kill()
        left = list(segmentRows(directory, REQUESTS))
        self.assertProduced(left, "fast", isThrottled=False)
        self.assertNotEqual(left[0]["boot_id"], boot[1])
        restored = [(row["client_id"], row["value"], row["changed_by"]) for row in segmentRows(directory, LIMITS)]
        self.assertIn(("fast", 1e9, None), restored)

    def test_cannotStart(self) -> None:
        """Where nothing can be recorded the broker does not start, and says so in a sentence."""
        broker = self.broker(Path("/proc/nowhere"))
        error = self.assertRaises(AssertionError, broker.start)
        self.assertIn("cannot record to spark:/proc/nowhere", str(error))
        self.assertIn("--export says where to", str(error))
        self.assertNotIn("Traceback", str(error))
