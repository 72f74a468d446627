"""A node that does nothing any more, and clients that send to it all the same, much or little."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from confluent_kafka import Producer

from tests.clients.gateway.gatewaycases import IS_DIRECT, Connection, GatewayTestCase
from tests.clients.gateway.gatewayclients import PARTITIONS, ConfluentLoad, waitForEach
from tests.kit.attack import sized
from tests.kit.brokerfixture import batchOf, requestFrame, requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, endpoint, freePort, until
from tests.kit.gatewayprocess import SMALL_POOL, GatewayProcess
from tests.kit.longform import longForm

FROZEN = 2
FLOODS = 12
RECORD_BYTES = 1_000_000
LARGEST_FLOOD_BYTES = 64 << 20
"""What one connection sends at most, so that the test ends whatever happens."""

SAMPLES = sized(200, 2000)

GONE_SECONDS = 10.0
"""After so long, the gateway lets go of connections that their node takes nothing from."""

SLACK_SECONDS = 5.0
QUIET_SECONDS = 0.05
"""Twice as long as before may be a matter of chance below that."""


class Flood:
    """
    A connection that sends large batches to a node for as long as something takes them.

    @ivar sentBytes: so far.
    @ivar lastSeconds: when something was taken for the last time.
    @ivar closedSeconds: when the other side has hung up, if it has.
    """

    def __init__(self, address: str, topic: str) -> None:
        self.sentBytes = 0
        self.lastSeconds = time.monotonic()
        self.closedSeconds: float | None = None
        batch = batchOf(bytes(RECORD_BYTES), timestampMs=int(time.time() * 1000))
        data = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
        request = requestOf("Produce", 9, acks=1, timeout=30_000, topic_data=[data])
        self._frame = memoryview(requestFrame(request, 1))
        self._isOver = False
        self._connection = Connection(address, 1.0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hang up."""
        self._isOver = True
        self._thread.join(PATIENCE_SECONDS)
        self._connection.__exit__()

    def _run(self) -> None:
        rest = self._frame
        while not self._isOver and self.sentBytes < LARGEST_FLOOD_BYTES:
            try:
                count = self._connection.socket.send(rest)
            except TimeoutError:
                continue
            except ConnectionError:
                self.closedSeconds = time.monotonic()
                return
            self.sentBytes += count
            self.lastSeconds = time.monotonic()
            rest = rest[count:] or self._frame
        while not self._isOver:
            try:
                if not self._connection.socket.recv(1 << 16):
                    raise ConnectionError
            except TimeoutError:
                continue
            except ConnectionError:
                self.closedSeconds = time.monotonic()
                return


class SilentNodeTests(GatewayTestCase):
    """One node is stopped by SIGSTOP, and hears of its clients now and then."""

    if IS_DIRECT:
        skip = "this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out"

    def makeGateway(self) -> GatewayProcess:
        """One that tells how it is."""
        self.statusPort = freePort()
        return GatewayProcess(self.cluster.bootstrap, "--status", endpoint(self.statusPort)).startedFor(self)

    def test_visible(self) -> None:
        """The page shows it within five seconds, soon the gateway is not healthy, and it is when the node goes on."""
        self.cluster.createTopic(self.topic, replicas=[[1], [FROZEN], [3]], min_insync_replicas=1)
        load = ConfluentLoad(
            self.address, self.topic, 3 * PARTITIONS, settings={"enable.idempotence": False, "acks": 1}
        )
        try:
            waitForEach([load], PARTITIONS)
            until(lambda: self.health() == "")
            begin = time.monotonic()
            self.cluster.freeze(FROZEN)
            until(lambda: self.unansweredSeconds()[FROZEN] > 1)
            owed = self.unansweredSeconds()
            seenSeconds = time.monotonic() - begin
            # The node may be the one that is asked about the cluster, too, and on a busy machine others may be late.
            until(lambda: f'"node {FROZEN} has not answered for ' in self.health())
            unhealthySeconds = time.monotonic() - begin
        finally:
            self.cluster.thaw(FROZEN)
        begin = time.monotonic()
        until(lambda: self.health() == "")
        wellSeconds = time.monotonic() - begin
        self.report(seenSeconds=seenSeconds, unhealthySeconds=unhealthySeconds, wellSeconds=wellSeconds)
        self.assertEqual(max(owed, key=owed.__getitem__), FROZEN, owed)
        # By the gateway's clock, since it may be the machine that answers late.
        self.assertLess(seenSeconds - owed[FROZEN], 5.0)
        load.stop()
        self.assertStored(load)

    def unansweredSeconds(self) -> dict[int | None, float]:
        """How long each node has owed an answer, as the page shows; of C{None}, the bootstrap servers."""
        nodes = json.loads(self.read("status.json"))["nodes"]
        return {each["nodeId"]: each["unansweredSeconds"] for each in nodes}

    def health(self) -> str:
        """Why the gateway is not healthy, in JSON; empty if it is."""
        try:
            self.read("healthz")
        except HTTPError as error:
            return error.read().decode().strip()
        return ""

    def read(self, page: str) -> Any:
        """A page of the gateway."""
        time.sleep(0.1)
        with urlopen(f"http://127.0.0.1:{self.statusPort}/{page}", timeout=PATIENCE_SECONDS) as response:
            return response.read()


@longForm
class FrozenNodeTests(GatewayTestCase):
    """One node is stopped by SIGSTOP and flooded."""

    gatewayOptions = SMALL_POOL

    def test_others(self) -> None:
        """Producers to the other nodes hardly notice, and producers to the frozen one are let go in time."""
        far = f"{self.topic}.far"
        # One replica each, so that no leader waits for the frozen node.
        self.cluster.createTopic(self.topic, replicas=[[1], [3]], min_insync_replicas=1)
        self.cluster.createTopic(far, replicas=[[FROZEN]], min_insync_replicas=1)
        producer = Producer({"bootstrap.servers": self.address, "acks": 1, "linger.ms": 0, "log_level": 0})
        before = self.p99Seconds(producer)
        self.cluster.freeze(FROZEN)
        floods = [Flood(self.nodeAddress(FROZEN), far) for _ in range(FLOODS)]
        try:
            begin = time.monotonic()
            during = self.p99Seconds(producer)
            while time.monotonic() < begin + GONE_SECONDS + SLACK_SECONDS and not all(
                flood.closedSeconds for flood in floods
            ):
                # No longer than needed, and without a gateway nobody is let go.
                if IS_DIRECT:
                    break
                during = max(during, self.p99Seconds(producer))
        finally:
            self.cluster.thaw(FROZEN)
            for flood in floods:
                flood.stop()
        self.report(beforeMs=round(before * 1000, 1), duringMs=round(during * 1000, 1))
        self.assertLess(during, max(2 * before, QUIET_SECONDS))
        if not IS_DIRECT:
            for flood in floods:
                self.assertIsNotNone(flood.closedSeconds, f"{flood.sentBytes} bytes were taken, and then nothing")

    def p99Seconds(self, producer: Producer) -> float:
        """How long records take, sent one after the other to both nodes that work."""
        taken = []
        for number in range(SAMPLES):
            begin = time.monotonic()
            producer.produce(self.topic, b"value", partition=number % 2)
            self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
            taken.append(time.monotonic() - begin)
        return sorted(taken)[int(0.99 * SAMPLES)]
