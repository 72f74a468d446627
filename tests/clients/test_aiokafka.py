"""Tests for L{admission.kafka.broker} with aiokafka."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.clientcases import (
    EARLIEST,
    LATEST,
    ClientCases,
    Message,
    NoConnection,
    Place,
    ProduceFailed,
    ProducerSettings,
)


def configuration(place: Place, **settings: Any) -> dict[str, Any]:
    """The settings that producers and consumers share, and C{settings}."""
    common: dict[str, Any] = {"bootstrap_servers": place.address, "retry_backoff_ms": 10}
    if place.authority is not None:
        common |= {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=place.authority)}
    return common | settings


class AiokafkaTests(ClientCases, SynchronousTestCase):
    """aiokafka produces to and consumes from the broker."""

    unknownTopicError = "UnknownTopicOrPartitionError"

    def produce(self, place: Place, topic: str, messages: Sequence[Message], settings: ProducerSettings) -> list[int]:
        """See L{ClientCases.produce}."""

        async def produce() -> list[int]:
            producer = AIOKafkaProducer(
                **configuration(
                    place,
                    acks="all" if settings.acks == -1 else settings.acks,
                    compression_type=settings.compression,
                    enable_idempotence=settings.isIdempotent,
                    max_batch_size=settings.batchBytes,
                    max_request_size=2_000_000,
                    linger_ms=20,
                )
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic,
                        message.value,
                        message.key,
                        message.partition,
                        message.timestampMs,
                        list(message.headers),
                    )
                    for message in messages
                ]
                results = await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_SECONDS)
            # Unacknowledged, they have none.
            return [-1 if result is None else result.offset for result in results]

        try:
            return asyncio.run(produce())
        except KafkaError as error:
            raise ProduceFailed(error.errno, str(error)) from error

    def consume(
        self,
        place: Place,
        topic: str,
        partition: int,
        start: int,
        count: int,
        *,
        reset: str = "error",
        waitMs: int = 500,
    ) -> list[Message]:
        """See L{ClientCases.consume}."""
        assigned = TopicPartition(topic, partition)

        async def consume() -> list[Message]:
            consumer = AIOKafkaConsumer(
                **configuration(
                    place,
                    auto_offset_reset={"error": "none"}.get(reset, reset),
                    fetch_max_wait_ms=waitMs,
                    request_timeout_ms=max(60_000, 2 * waitMs),
                )
            )
            async with consumer:
                consumer.assign([assigned])
                if start == EARLIEST:
                    await consumer.seek_to_beginning(assigned)
                elif start == LATEST:
                    await consumer.seek_to_end(assigned)
                else:
                    consumer.seek(assigned, start)
                records = [await consumer.getone() for _ in range(count)]
            return [
                Message(
                    record.value, record.key, tuple(record.headers), record.timestamp, record.partition, record.offset
                )
                for record in records
            ]

        return asyncio.run(asyncio.wait_for(consume(), PATIENCE_SECONDS))

    def offsetForTime(self, place: Place, topic: str, timestampMs: int) -> int | None:
        """See L{ClientCases.offsetForTime}."""
        partition = TopicPartition(topic, 0)

        async def find() -> int | None:
            async with AIOKafkaConsumer(**configuration(place)) as consumer:
                found = (await consumer.offsets_for_times({partition: timestampMs}))[partition]
            return None if found is None else int(found.offset)

        return asyncio.run(find())

    def connect(self, place: Place) -> None:
        """See L{ClientCases.connect}."""

        async def connect() -> None:
            async with AIOKafkaProducer(**configuration(place)):
                pass

        try:
            asyncio.run(connect())
        except KafkaConnectionError as error:
            raise NoConnection(str(error)) from error

    def produceToUnknown(self, place: Place, topic: str) -> str:
        """See L{ClientCases.produceToUnknown}."""

        async def produce() -> None:
            async with AIOKafkaProducer(**configuration(place, request_timeout_ms=2000)) as producer:
                await producer.send_and_wait(topic, b"value")

        error = self.assertRaises(KafkaError, lambda: asyncio.run(produce()))
        return type(error).__name__
