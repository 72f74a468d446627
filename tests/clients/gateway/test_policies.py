"""Policies in front of a cluster: what real clients of it notice, and what the cluster never sees."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer
from kio.schema.errors import ErrorCode

from tests.clients.gateway.gatewaycases import IS_DIRECT, Connection, GatewayTestCase
from tests.kit.brokerfixture import batchOf, requestOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, endpoint, freePort
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.identitygate import gate, readRecording

RATE = 10
BYTES_PER_SECOND = 200_000
TRIED_SECONDS = 5
TRIED_BYTES_PER_SECOND = 100_000


class PolicyTestCase(GatewayTestCase):
    """A gateway with limits of its own, and a port for its status."""

    if IS_DIRECT:
        skip = "this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out"

    def makeGateway(self) -> GatewayProcess:
        """One for each test, since meters remember."""
        self.statusPort = freePort()
        self.directory = tempfile.mkdtemp(prefix="admission-recording-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        return GatewayProcess(
            self.cluster.bootstrap,
            *self.gatewayOptions,
            *("--status", endpoint(self.statusPort), "--export", f"spark:{self.directory}"),
        ).startedFor(self)

    def status(self) -> Any:
        """What the page shows."""
        with urlopen(f"http://127.0.0.1:{self.statusPort}/status.json", timeout=PATIENCE_SECONDS) as response:
            return json.load(response)

    def throttledBy(self, whom: str) -> int:
        """How many responses told clients to wait because C{"ours"} or C{"theirs"} was the longer delay."""
        return sum(each["throttled"][whom] for each in self.status()["nodes"])

    def admission(self, *arguments: str) -> None:
        """Run the command."""
        command = [sys.executable, "-m", "admission", *arguments]
        ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)


class ProducerIdTests(PolicyTestCase):
    """A limit on new producer ids."""

    gatewayOptions = ("--quota", f"producer-ids:rate={RATE}")

    def test_limit(self) -> None:
        """
        As many new producers as the limit says get their records stored; one more is refused, and the cluster sees
        nothing of it.
        """
        self.cluster.createTopic(self.topic, 1)
        first = 5000
        codes = self.produce(range(first, first + RATE + 1), 0)
        self.assertEqual(codes, [*[ErrorCode.none] * RATE, ErrorCode.throttling_quota_exceeded])
        stored = sorted(self.cluster.values(self.topic))
        self.assertEqual(stored, [str(each).encode() for each in range(first, first + RATE)])
        # They are known after a restart; or half of the limit would be used up by them.
        self.gateway.stop()
        self.gateway.start()
        codes = self.produce(range(first, first + RATE), 1)
        codes += self.produce(range(first + 2 * RATE, first + 3 * RATE + 1), 0)
        self.assertEqual(codes, [*[ErrorCode.none] * 2 * RATE, ErrorCode.throttling_quota_exceeded])

    def produce(self, producerIds: Iterable[int], sequence: int) -> list[ErrorCode]:
        """Have each of some producers send a record."""
        codes = []
        with Connection(self.nodeAddress(self.cluster.leaders(self.topic)[0])) as connection:
            for producerId in producerIds:
                batch = batchOf(
                    str(producerId).encode(),
                    producerId=producerId,
                    producerEpoch=0,
                    baseSequence=sequence,
                    timestampMs=int(time.time() * 1000),
                )
                data = [{"name": self.topic, "partition_data": [{"index": 0, "records": batch}]}]
                _, answer = connection.ask(requestOf("Produce", 9, acks=-1, timeout=30_000, topic_data=data))
                codes.append(answer.responses[0].partition_responses[0].error_code)
        return codes


class ShadowTests(PolicyTestCase):
    """A policy is tried, put in force, and replayed."""

    gatewayOptions = (
        *("--set=super.users=User:ANONYMOUS", "--share", "1/2", "--quota", "client-bytes", "--quota", "request-time"),
        *("--quota", f"client-bytes:produce={TRIED_BYTES_PER_SECOND}:fetch={TRIED_BYTES_PER_SECOND}:shadow=yes"),
    )

    def test_inForce(self) -> None:
        """
        A shadow policy throttles nobody, also at a gateway that enforces half of each limit.  The same limits hold
        without a restart.  Replays of all policies reproduce what they said, to the microsecond, to clients that have
        several requests on their way.
        """
        self.cluster.createTopic(self.topic, 3)
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": self.topic, "auto.offset.reset": "earliest", "log_level": 0}
        )
        self.addCleanup(consumer.close)
        consumer.subscribe([self.topic])
        producers = [
            Producer({"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 2, "log_level": 0})
            for _ in range(2)
        ]

        def work() -> None:
            sent = 0
            end = time.monotonic() + TRIED_SECONDS
            while time.monotonic() < end:
                for producer in producers:
                    sent += 1
                    with contextlib.suppress(BufferError):
                        producer.produce(self.topic, bytes(1000 + sent % 1000), partition=sent % 3)
                    producer.poll(0)
                consumer.consume(100, 0.002)

        work()
        self.assertEqual(self.throttledBy("ours"), 0)
        self.admission(
            *("quotas", "set", "--broker", self.address, "--client-id-default"),
            *(f"{name}={TRIED_BYTES_PER_SECOND}" for name in ("producer_byte_rate", "consumer_byte_rate")),
        )
        work()
        self.assertGreater(self.throttledBy("ours"), 0)
        for producer in producers:
            producer.purge()
        # Without the gateway it would wait for its session to end.
        consumer.close()
        self.gateway.stop()
        recording = readRecording(self.directory)
        self.assertEqual({run.limitShare for run in recording.runs()}, {0.5})
        judged = gate(recording)
        self.report(gates=[each.inWords() for each in judged])
        self.assertEqual(len(judged), 2 * 3)
        for each in judged:
            self.assertEqual((each.matchShare, each.missing, each.isTrusted), (1.0, 0, True), each.inWords())
            self.assertEqual(each.meanErrorMs, 0.0)
        throttling = {each.candidate for each in judged if each.throttled > 10}
        self.assertLessEqual({"recorded client-bytes", "recorded client-bytes-#2"}, throttling)
