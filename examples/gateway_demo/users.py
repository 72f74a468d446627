"""
Two users of a cluster: one that keeps its producer, and one that makes a new producer for each record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from .cluster import PASSWORD, DemoFailed

STEADY, ROGUE = "steady", "rogue"

STEADY_RECORDS_PER_SECOND = 20
ROGUE_THREADS = 4

_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.01


def _settings(address: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "client.id": user,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.timeout.ms": round(_TIMEOUT_SECONDS * 1000),
        "log_level": 0,
    }


class User:
    """
    Somebody who produces, until told to stop, in threads.

    @ivar sent: how many records were sent.
    @ivar results: what became of them: C{"acknowledged"}, or the name of an error.
    @ivar slowestSeconds: how long the slowest record took that was acknowledged.
    """

    def __init__(self, address: str, topic: str, threads: int = 1) -> None:
        self.sent = 0
        self.results: Counter[str] = Counter()
        self.slowestSeconds = 0.0
        self._address = address
        self._topic = topic
        self._isOver = Event()
        # They end with the process if librdkafka does not let them end earlier.
        self._threads = [Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def acknowledged(self) -> int:
        return self.results["acknowledged"]

    def stop(self) -> None:
        """
        Have it stop, and wait until all records are decided.

        @raise DemoFailed: if that does not happen.
        """
        self._isOver.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT_SECONDS)
            if thread.is_alive():
                raise DemoFailed("a producer does not end")

    def _work(self) -> None:
        raise NotImplementedError

    def _sent(self) -> Callable[[Any, Any], None]:
        began = time.monotonic()
        self.sent += 1

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.results["acknowledged"] += 1
                self.slowestSeconds = max(self.slowestSeconds, time.monotonic() - began)
            else:
                self.results[error.name()] += 1

        return delivered


class Steady(User):
    """
    Has one producer, and sends some records each second.
    """

    def _work(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(_settings(self._address, STEADY))
        began = time.monotonic()
        while not self._isOver.is_set():
            if self.sent < (time.monotonic() - began) * STEADY_RECORDS_PER_SECOND:
                producer.produce(self._topic, b"steady", on_delivery=self._sent())
            producer.poll(_POLL_SECONDS)
        producer.flush(_TIMEOUT_SECONDS)


class Rogue(User):
    """
    Has a new producer for each record, in several threads.
    """

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(address, topic, ROGUE_THREADS)

    def _work(self) -> None:
        from confluent_kafka import Producer

        while not self._isOver.is_set():
            producer = Producer(_settings(self._address, ROGUE))
            producer.produce(self._topic, b"rogue", on_delivery=self._sent())
            producer.flush(_TIMEOUT_SECONDS + 1)
