"""
A node of Apache Kafka and gateways before it, for benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.apachekafka import ApacheKafka
from tests.kit.gatewayprocess import GatewayProcess

from .measure import MIB

PATIENCE_SECONDS = 60.0

# What is produced is of no use, and should not wait for the disk.
_NODE_PROPERTIES = {
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.segment.bytes": str(128 * MIB),
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
SHORT_LIVED = {"retention.bytes": str(128 * MIB)}


def until(what: str, isSo: Callable[[], bool]) -> None:
    """
    Wait for something.

    @raise RuntimeError: if it does not come.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if isSo():
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain until {what}")
        time.sleep(0.1)


def admin(address: str) -> AdminClient:
    """
    A client of the cluster that begins at an address.
    """
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


@contextmanager
def gateway(upstream: str, *options: str) -> Iterator[GatewayProcess]:
    """
    Run one for the duration of a block.
    """
    process = GatewayProcess(upstream, *options)
    try:
        process.start()
        until("the gateway knows the nodes", lambda: bool(admin(process.address).list_topics(timeout=5).topics))
        yield process
    finally:
        process.remove()


@contextmanager
def node(*topics: NewTopic) -> Iterator[ApacheKafka]:
    """
    Run a node with some topics for the duration of a block.
    """
    kafka = ApacheKafka()
    kafka.properties = {**kafka.properties, **_NODE_PROPERTIES}
    try:
        kafka.start()
        until("Apache Kafka answers", lambda: bool(admin(kafka.address).list_topics(timeout=5).brokers))
        # Kept until it has answered.
        client = admin(kafka.address)
        for made in client.create_topics([*topics]).values():
            made.result(PATIENCE_SECONDS)
        yield kafka
    finally:
        kafka.remove()
