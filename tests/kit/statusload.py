"""A broker with a status port, and real clients that it throttles."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit.brokerprocess import PATIENCE_SECONDS, ObservedBroker

TOPIC = "events"
GROUP = "reports"
PRODUCERS = ("loader", "nightly", "telemetry")

_OPTIONS = (
    *("--quota", "client-bytes:produce=40k:fetch=60k"),
    *("--quota", "request-time:percent=50"),
    *("--pool", "bounded:32MiB:max=8MiB"),
    *("--export", "spark:recorded"),
    *("--set", "group.initial.rebalance.delay.ms=0"),
)


def loadedBroker() -> ObservedBroker:
    """A broker with limits; not started."""
    return ObservedBroker(*_OPTIONS)


@contextmanager
def clients(address: str, group: str = GROUP) -> Iterator[None]:
    """Have producers send more than they may, and a group read some of it."""
    stopped = threading.Event()
    thread = threading.Thread(target=_work, args=(address, group, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(PATIENCE_SECONDS)


def _work(address: str, group: str, stopped: threading.Event) -> None:
    from confluent_kafka import Consumer, Producer

    common = {"bootstrap.servers": address, "log_level": 0}
    producers = [Producer({**common, "client.id": name, "batch.size": 8500, "acks": 1}) for name in PRODUCERS]
    consumer = Consumer({**common, "client.id": group, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    while not stopped.is_set():
        for number, producer in enumerate(producers):
            if len(producer) < 50:
                producer.produce(TOPIC, b"%9d\n" % number * 100 * (number + 1))
            producer.poll(0)
        message = consumer.poll(0.01)
        if message is not None and message.error() is None and message.offset() % 20 == 0:
            consumer.commit(message, asynchronous=True)
    for producer in producers:
        producer.purge()
    consumer.close()
