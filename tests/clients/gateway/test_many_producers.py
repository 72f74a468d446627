"""More producers of large records than there is memory for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from tests.clients.gateway.gatewaycases import IS_DIRECT, GatewayTestCase
from tests.kit.attack import sized
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.gatewayprocess import SMALL_POOL, SMALL_POOL_BYTES, GatewayProcess

PRODUCERS = sized(50, 200)
RECORD_BYTES = 1 << 20
MARGIN_BYTES = 8 << 20
"""What the gateway may take besides its pool."""


class ManyProducersTests(GatewayTestCase):
    """All of them send at once."""

    gatewayOptions = SMALL_POOL

    def test_memory(self) -> None:
        """All records arrive, though they are many times what the gateway has memory for."""
        self.cluster.createTopic(self.topic, max_message_bytes=2 * RECORD_BYTES)
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)

        settings = {"bootstrap.servers": self.address, "message.max.bytes": 2 * RECORD_BYTES, "log_level": 0}
        producers = [Producer(settings) for _ in range(PRODUCERS)]
        for producer in producers:
            # Connected, so that all send at once.
            producer.list_topics(self.topic, PATIENCE_SECONDS)
        values = [b"%06d" % number + bytes(RECORD_BYTES - 6) for number in range(PRODUCERS)]
        with self.growth() as growth:
            for value, producer in zip(values, producers, strict=True):
                producer.produce(self.topic, value, on_delivery=delivered)
            for producer in producers:
                self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        self.assertEqual(errors, [])
        self.assertEqual(sorted(value[:6] for value in self.cluster.values(self.topic)), [v[:6] for v in values])
        if not IS_DIRECT:
            self.report(growthBytes=growth[0])
            self.assertLess(growth[0], SMALL_POOL_BYTES + MARGIN_BYTES)

    @contextmanager
    def growth(self) -> Iterator[list[int]]:
        """How much more memory the gateway has had than at the beginning, while the block runs."""
        peak = [0]
        if IS_DIRECT:
            yield peak
            return
        gateway, isOver = self.gateway, threading.Event()
        base = gateway.anonymousBytes()

        def watch() -> None:
            while not isOver.wait(0.005):
                peak[0] = max(peak[0], gateway.anonymousBytes() - base)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield peak
        finally:
            isOver.set()
            watching.join()

    def makeGateway(self) -> GatewayProcess:
        """One of its own, which has not taken memory for others."""
        return GatewayProcess(self.cluster.bootstrap, *self.gatewayOptions).startedFor(self)
