"""Nodes and clients come and go, for long."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaException, Producer

from tests.clients.gateway.gatewaycases import IS_DIRECT, Connection, GatewayTestCase
from tests.clients.gateway.gatewayclients import PARTITIONS, ConfluentLoad
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, certificates, freePort, tlsEndpoint
from tests.kit.gatewayprocess import NODES, MeasuredGateway
from tests.kit.longform import longForm

MINUTES = 20
DOWN_SECONDS = 10.0
VISITORS = 4
QUIET_SECONDS = 10.0
PER_SECOND = 100
GROWN_BYTES = 4 << 20
"""What the process may grow by between two quiet moments after the first ones; what the C library keeps varies."""


class Visitors:
    """
    Clients that stay for a moment, some of which leave in the middle of it.

    @ivar acknowledged: the values that are stored.
    """

    def __init__(self, seed: int, topic: str, ways: Mapping[str, Mapping[str, Any]], plainAddress: str) -> None:
        """
        @param seed: of what they do, and of the values.
        @param ways: to the gateway, by name: the settings of a client.
        """
        self.acknowledged: list[bytes] = []
        self.count = 0
        self._topic, self._ways, self._plainAddress = topic, ways, plainAddress
        self._isOver = False
        self._threads = [
            threading.Thread(target=self._run, args=(f"{seed}.{number}",), daemon=True) for number in range(VISITORS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until the last of them has left."""
        self._isOver = True
        for thread in self._threads:
            thread.join(2 * PATIENCE_SECONDS)
            assert not thread.is_alive(), "a visitor does not leave"

    def _run(self, seed: str) -> None:
        chance = random.Random(seed)
        visits = (self._produce, self._consume, self._hangUp)
        while not self._isOver:
            visit = chance.choice(visits)
            # Nodes that were killed take connections along.
            with contextlib.suppress(OSError, KafkaException):
                visit(chance, chance.choice(sorted(self._ways)))
            self.count += 1

    def _produce(self, chance: random.Random, way: str) -> None:
        producer = Producer({**self._ways[way], "enable.idempotence": True, "linger.ms": 0})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append(message.value())

        for _ in range(20):
            value = f"{way}.{chance.getrandbits(128):x}".encode()
            producer.produce(self._topic, value, partition=chance.randrange(PARTITIONS), on_delivery=delivered)
        # Some leave without waiting.
        producer.flush(PATIENCE_SECONDS if chance.random() < 0.7 else 0.01)
        producer.purge()
        producer.flush(1.0)

    def _consume(self, chance: random.Random, way: str) -> None:
        group = f"{self._topic}.{chance.randrange(3)}"
        settings = {"group.id": group, "auto.offset.reset": "latest", "session.timeout.ms": 6000}
        with contextlib.closing(Consumer({**self._ways[way], **settings})) as consumer:
            consumer.subscribe([self._topic])
            end = time.monotonic() + 5 * chance.random()
            while time.monotonic() < end and not self._isOver:
                consumer.consume(100, 0.1)

    def _hangUp(self, chance: random.Random, way: str) -> None:
        for _ in range(10):
            with Connection(self._plainAddress) as connection:
                connection.send(requestOf("Metadata", 9, topics=None))
                if chance.random() < 0.5:
                    connection.socket.sendall(b"\0\1\0\0only the beginning of a request")
                if chance.random() < 0.5:
                    connection.receive()
            time.sleep(0.1)


@longForm
class ChurnTests(GatewayTestCase):
    """Twenty minutes of it."""

    timeout: ClassVar[float] = 60.0 * (MINUTES + 10)

    def makeGateway(self) -> MeasuredGateway:
        """With TLS as well, and all kinds of limits, none of which is reached."""
        self.tlsPort = freePort(count=NODES + 2)
        return MeasuredGateway(
            self.cluster.bootstrap,
            *("--listen", tlsEndpoint(self.tlsPort), "--quota", "client-bytes:produce=1G:fetch=1G"),
            *("--quota", "producer-ids:rate=100000", "--quota", "request-time:percent=100"),
            *("--quota", "connections:perSecond=10000"),
        ).startedFor(self)

    def test_flat(self) -> None:
        """
        While nodes are killed and started again and clients come and go, with TLS and without, nothing that was
        acknowledged is lost, and memory, descriptors and timers do not grow.
        """
        if IS_DIRECT:
            self.skipTest("this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out")
        assert isinstance(self.gateway, MeasuredGateway)
        self.cluster.createTopic(self.topic)
        common = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
        ways = {
            "plain": {**common, "bootstrap.servers": self.address},
            "tls": {
                **common,
                "bootstrap.servers": f"127.0.0.1:{self.tlsPort}",
                "security.protocol": "SSL",
                "ssl.ca.location": str(certificates().authority),
            },
        }
        loads = [
            ConfluentLoad(way["bootstrap.servers"], self.topic, PER_SECOND, f"steady {name}", way)
            for name, way in ways.items()
        ]
        acknowledged: list[bytes] = []
        samples: list[dict[str, Any]] = []
        end = time.monotonic() + 60 * MINUTES
        visits = kills = 0
        try:
            while time.monotonic() < end:
                visitors = Visitors(kills, self.topic, ways, self.address)
                victim = 1 + kills % 3
                time.sleep(DOWN_SECONDS)
                self.cluster.kill(victim)
                time.sleep(DOWN_SECONDS)
                self.cluster.heal()
                time.sleep(DOWN_SECONDS)
                visitors.stop()
                kills += 1
                visits += visitors.count
                acknowledged += visitors.acknowledged
                time.sleep(QUIET_SECONDS)
                samples.append({**self.gateway.report(), "memory": self.gateway.anonymousBytes()})
                self.report(kills=kills, visits=visits, **samples[-1])
        finally:
            for load in loads:
                load.stop()
        self.assertEqual([load.failed for load in loads], [[], []])
        stored = Counter(self.cluster.values(self.topic))
        for load in loads:
            acknowledged += load.acknowledged
        self.assertEqual(dict(Counter(acknowledged) - stored), {}, "lost")
        self.assertEqual([value for value, count in stored.items() if count > 1], [], "stored twice")
        settled = samples[len(samples) // 4 :]
        half = len(settled) // 2
        for name, slack in (("memory", GROWN_BYTES), ("descriptors", 4), ("timers", 4), ("connections", 2)):
            before, after = (min(each[name] for each in part) for part in (settled[:half], settled[half:]))
            self.assertLessEqual(after, before + slack, f"{name} grow: {[each[name] for each in samples]}")
