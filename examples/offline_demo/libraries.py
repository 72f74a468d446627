"""
Real clients that send records at a rate, or as fast as they are let, until they have sent all that they have.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

from attrs import frozen

TOPIC = "events"
PASSWORD = "secret"
VALUE = bytes(1000)

_TURN_SECONDS = 0.05
_MAX_UNANSWERED = 24
_BATCH_BYTES = 8500
_PATIENCE_SECONDS = 30.0


@frozen
class RealClient:
    """
    A producer, and how eager it is.

    @ivar library: one of L{LIBRARIES}.
    @ivar clientId: what it calls itself; it logs in under the name of its library.
    @ivar recordsPerSecond: how many it would send, of 1000 bytes each.
    @ivar records: how many it has to send in all.
    """

    library: str
    clientId: str
    recordsPerSecond: int
    records: int = sys.maxsize

    def work(self, address: str, isOver: Event) -> int:
        """
        Send records until C{isOver}; blocking.

        @return: how many were sent.
        """
        return LIBRARIES[self.library](self, address, isOver)

    def amounts(self, isOver: Event) -> Iterator[int]:
        """
        How many records are due, from turn to turn.
        """
        began, sent = time.monotonic(), 0
        while not isOver.wait(_TURN_SECONDS):
            due = int((time.monotonic() - began) * self.recordsPerSecond)
            yield due - sent
            sent = due


def _confluent(client: RealClient, address: str, isOver: Event) -> int:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "client.id": client.clientId,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": client.library,
            "sasl.password": PASSWORD,
            "acks": 1,
            "batch.size": _BATCH_BYTES,
            "log_level": 2,
        }
    )
    sent = 0
    for count in client.amounts(isOver):
        for _ in range(min(count, client.records - sent)):
            if len(producer) >= _MAX_UNANSWERED:
                break
            producer.produce(TOPIC, VALUE)
            sent += 1
        producer.poll(0)
    if unanswered := producer.flush(_PATIENCE_SECONDS):
        raise TimeoutError(f"{unanswered} records are not answered")
    return sent


def _kafkaPython(client: RealClient, address: str, isOver: Event) -> int:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    producer = KafkaProducer(
        bootstrap_servers=address,
        client_id=client.clientId,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=client.library,
        sasl_plain_password=PASSWORD,
        acks=1,
        enable_idempotence=False,
        batch_size=_BATCH_BYTES,
        max_in_flight_requests_per_connection=1,
    )
    sent = 0
    unanswered: list[Any] = []
    for count in client.amounts(isOver):
        unanswered = [future for future in unanswered if not future.is_done]
        for _ in range(min(count, client.records - sent, _MAX_UNANSWERED - len(unanswered))):
            unanswered.append(producer.send(TOPIC, VALUE))
            sent += 1
    producer.close(timeout=_PATIENCE_SECONDS)
    return sent


def _aiokafka(client: RealClient, address: str, isOver: Event) -> int:
    return asyncio.run(_aiokafkaWork(client, address, isOver))


async def _aiokafkaWork(client: RealClient, address: str, isOver: Event) -> int:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

    producer = AIOKafkaProducer(
        bootstrap_servers=address,
        client_id=client.clientId,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=client.library,
        sasl_plain_password=PASSWORD,
        acks=1,
        max_batch_size=_BATCH_BYTES,
    )
    await producer.start()
    sent = 0
    unanswered: set[asyncio.Future[Any]] = set()
    amounts = client.amounts(isOver)
    while (count := await asyncio.to_thread(next, amounts, None)) is not None:
        for _ in range(min(count, client.records - sent, _MAX_UNANSWERED - len(unanswered))):
            future = await producer.send(TOPIC, VALUE)
            unanswered.add(future)
            future.add_done_callback(unanswered.discard)
            sent += 1
    await asyncio.wait_for(producer.stop(), _PATIENCE_SECONDS)
    return sent


LIBRARIES: dict[str, Callable[[RealClient, str, Event], int]] = {
    "confluent-kafka": _confluent,
    "kafka-python": _kafkaPython,
    "aiokafka": _aiokafka,
}
"""What sends the records of a client, by the library's name."""
