"""What the bounded pool promises, held against a real broker's real memory."""

import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, decodeRecords, encodeBatch
from tests.kit.brokerfixture import requestFrame
from tests.kit.brokerprocess import PATIENCE_SECONDS, SampledBroker, freePort
from tests.kit.longform import longForm
from tests.kit.rawclient import RawClient, produceRequest, tlsContext

MIB = 1 << 20
POOL_BYTES = 32 * MIB
LARGEST_BYTES = 8 * MIB
PRODUCERS = 64
REQUESTS = 4 * PRODUCERS
TOPIC = "memory"
PARTITIONS = 8
PER_CONNECTION_BYTES = 160 << 10


class Producer(threading.Thread):
    """Sends one request after the other, of 1 to 8 MiB each, until all producers together have sent enough."""

    def __init__(
        self,
        number: int,
        connect: Callable[[], RawClient],
        allConnected: threading.Barrier,
        mayGoOn: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._allConnected = allConnected
        self.acknowledged: list[bytes] = []
        self.error: BaseException | None = None
        self._number = number
        self._connect = connect
        self._mayGoOn = mayGoOn
        self._random = Random(number)
        self._block = self._random.randbytes(LARGEST_BYTES)

    def run(self) -> None:
        """Produce; keep what went wrong for the test."""
        try:
            with self._connect() as client:
                self._allConnected.wait(PATIENCE_SECONDS)
                while self._mayGoOn():
                    self._send(client)
        except BaseException as error:
            self.error = error

    def _send(self, client: RawClient) -> None:
        key = b"%d-%d" % (self._number, len(self.acknowledged))
        sizeBytes = int(MIB * math.exp(self._random.uniform(0.0, math.log(LARGEST_BYTES / MIB)))) - 256
        batch = encodeBatch([Record(key, self._block[:sizeBytes], int(time.time() * 1000))])
        errorCode, _ = client.produce(TOPIC, batch, partition=self._number % PARTITIONS)
        assert not errorCode, f"the broker answered {errorCode}"
        self.acknowledged.append(key)


class MemoryTests(SynchronousTestCase):
    """A broker with 32 MiB for requests of up to 8 MiB, under more than it can hold."""

    @contextmanager
    def running(self, *settings: str, options: Sequence[str] = ()) -> Iterator[SampledBroker]:
        """
        A running broker with a plain port and a TLS port.

        @param options: what it is told besides settings.
        """
        limits = (
            f"queued.max.request.bytes={POOL_BYTES}",
            f"socket.request.max.bytes={LARGEST_BYTES}",
            f"message.max.bytes={LARGEST_BYTES}",
            f"num.partitions={PARTITIONS}",
        )
        given = dict(each.split("=", 1) for each in (*limits, *settings))
        self.broker = SampledBroker(*(f"--set={name}={value}" for name, value in given.items()), *options)
        self.broker.start()
        try:
            yield self.broker
        finally:
            self.broker.stop()
            self.broker.remove()

    def connectPlain(self) -> RawClient:
        return RawClient(self.broker.port)

    def connectTLS(self) -> RawClient:
        return RawClient(self.broker.tlsPort, tls=tlsContext())

    def createTopic(self) -> None:
        """Have the topic created, and the broker warmed up by small batches."""
        for connect in (self.connectPlain, self.connectTLS):
            with connect() as client:
                client.createTopic(TOPIC)
                batch = encodeBatch([Record(b"warm", b"x" * 1000, int(time.time() * 1000))])
                self.assertEqual(client.produce(TOPIC, batch, partition=PARTITIONS - 1)[0], 0)

    def readBack(self) -> list[bytes]:
        """The keys of all records in the log, each batch's checksum checked."""
        with self.connectPlain() as client:
            return [
                record.key or b""
                for partition in range(PARTITIONS)
                for _, content in client.batches(TOPIC, partition=partition)
                for record in decodeRecords(content)
            ]

    def load(self, broker: SampledBroker) -> tuple[list[Producer], int]:
        """
        Let the producers loose.

        @return: the producers and how far resident anonymous memory grew.
        """
        sent = 0
        lock = threading.Lock()

        def mayGoOn() -> bool:
            nonlocal sent
            with lock:
                sent += 1
                return sent <= REQUESTS

        self.createTopic()
        before = broker.anonymousBytes()
        broker.peakAnonymousBytes = 0
        allConnected = threading.Barrier(PRODUCERS)
        producers = [
            Producer(number, self.connectTLS if number % 2 else self.connectPlain, allConnected, mayGoOn)
            for number in range(PRODUCERS)
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
        errors = [producer.error for producer in producers if producer.error is not None]
        self.assertEqual(errors, [], broker.log())
        return producers, broker.peakAnonymousBytes - before

    def test_bounded(self) -> None:
        """
        Frames never hold more than the pool and one request less a byte,
        resident memory grows by that, one request and 160 KiB a connection at
        most, all data arrives, and nobody starves.
        """
        with self.running() as broker:
            producers, growthBytes = self.load(broker)
            report = broker.report()
            counts = [len(producer.acknowledged) for producer in producers]
            bound = POOL_BYTES + LARGEST_BYTES - 1
            print(
                f"frames held {report['peakFrameBytes'] / MIB:.1f} MiB at most (bound {bound / MIB:.1f}), anonymous "
                f"memory grew by {growthBytes / MIB:.1f} MiB, requests for each producer {min(counts)} to {max(counts)}"
            )
            self.assertGreater(report["peakFrameBytes"], POOL_BYTES, "the load must press")
            self.assertLessEqual(report["peakFrameBytes"], bound)
            self.assertLessEqual(growthBytes, bound + LARGEST_BYTES + PRODUCERS * PER_CONNECTION_BYTES)
            self.assertGreaterEqual(min(counts), statistics.median(counts) / 4)
            expected = [key for producer in producers for key in producer.acknowledged]
            self.assertEqual(sorted(self.readBack()), sorted([*expected, b"warm", b"warm"]))
            broker.waitUntil(lambda report: report["availableBytes"] == POOL_BYTES)
            self.assertEqual(broker.report()["reclaimedLeases"], 0)

    @longForm
    def test_withoutPool(self) -> None:
        """The same load without the pool takes more than the bound, or the test of the bound would prove nothing."""
        with self.running("queued.max.request.bytes=-1") as broker:
            _, growthBytes = self.load(broker)
            peakBytes = broker.report()["peakFrameBytes"]
            print(f"without the pool frames held {peakBytes / MIB:.1f} MiB, and memory grew by {growthBytes / MIB:.1f}")
            self.assertGreater(peakBytes, POOL_BYTES + LARGEST_BYTES)
            self.assertGreater(growthBytes, POOL_BYTES + 2 * LARGEST_BYTES + PRODUCERS * PER_CONNECTION_BYTES)

    @longForm
    def test_explained(self) -> None:
        """
        Of what resident memory grows by, when requests arrive and connections
        are opened, less than 15 % is not explained.
        """
        statusPort = freePort()
        reports = self.mktemp()
        options = (f"--status=tcp:{statusPort}:interface=127.0.0.1", f"--profile-memory=1s:{os.path.abspath(reports)}")
        sizeBytes = MIB // 2

        def snapshot() -> Any:
            with urlopen(f"http://127.0.0.1:{statusPort}/memory", timeout=PATIENCE_SECONDS) as response:
                return json.load(response)

        def snapshotAfter(number: int) -> Any:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                document = snapshot()
                if document["number"] > number:
                    return document
                self.assertLess(time.monotonic(), deadline, f"{document}\n{self.broker.log()}")
                time.sleep(0.1)

        with self.running("queued.max.request.bytes=64MiB", options=options), ExitStack() as opened:
            self.createTopic()
            # The second one is taken when all that the first has made for itself is there.
            before = snapshotAfter(1)
            for _ in range(100):
                opened.enter_context(self.connectPlain())
            frame = requestFrame(produceRequest(TOPIC, bytes(sizeBytes)), 1)
            for number in range(PRODUCERS):
                client = opened.enter_context(self.connectTLS() if number % 2 else self.connectPlain())
                client.sendBytes(frame[:-1])
            self.broker.waitUntil(lambda report: report["ledger"]["frames"] >= PRODUCERS * sizeBytes)
            begun = snapshot()["number"]
            # The second one after that begins when the last bytes have arrived.
            after = snapshotAfter(begun + 1)
            growthBytes = after["growth"]["bytes"] - before["growth"]["bytes"]
            unknownBytes = after["growth"]["unknownBytes"] - before["growth"]["unknownBytes"]
            print(
                f"private memory grew by {growthBytes / MIB:.1f} MiB, {unknownBytes / MIB:.2f} MiB of them "
                f"({unknownBytes / growthBytes:.1%}) neither in the ledger nor measured"
            )
            self.assertGreater(growthBytes, PRODUCERS * sizeBytes * 0.9)
            self.assertLess(abs(unknownBytes), 0.15 * growthBytes, json.dumps(after, indent=1))
