"""Tests for L{admission.kafka.broker} with kafka-python."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.errors import KafkaError, KafkaTimeoutError
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
    until,
)


def configuration(place: Place, **settings: Any) -> dict[str, Any]:
    """The settings that producers and consumers share, and C{settings}."""
    common: dict[str, Any] = {
        "bootstrap_servers": place.address,
        "reconnect_backoff_ms": 10,
        "reconnect_backoff_max_ms": 50,
        "retry_backoff_ms": 10,
    }
    if place.authority is not None:
        common |= {"security_protocol": "SSL", "ssl_cafile": place.authority}
    return common | settings


class KafkaPythonTests(ClientCases, SynchronousTestCase):
    """kafka-python produces to and consumes from the broker."""

    missingLibraries = {
        compression: library
        for compression, library, isThere in (
            ("snappy", "python-snappy", has_snappy()),
            ("lz4", "lz4", has_lz4()),
            ("zstd", "zstandard", has_zstd()),
        )
        if not isThere
    }
    unknownTopicError = "KafkaTimeoutError"

    def produce(self, place: Place, topic: str, messages: Sequence[Message], settings: ProducerSettings) -> list[int]:
        """See L{ClientCases.produce}."""
        producer = KafkaProducer(
            **configuration(
                place,
                acks="all" if settings.acks == -1 else settings.acks,
                compression_type=settings.compression,
                enable_idempotence=settings.isIdempotent,
                batch_size=settings.batchBytes,
                max_request_size=2_000_000,
                linger_ms=20,
            )
        )
        with closing(producer):
            sent = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    message.partition,
                    message.timestampMs,
                )
                for message in messages
            ]
            try:
                return [future.get(PATIENCE_SECONDS).offset for future in sent]
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
        settings = configuration(
            place,
            auto_offset_reset={"error": "none"}.get(reset, reset),
            fetch_max_wait_ms=waitMs,
            request_timeout_ms=max(60_000, 2 * waitMs),
            connections_max_idle_ms=600_000,
        )
        received: list[Message] = []

        def receive() -> bool:
            for record in consumer.poll(timeout_ms=100).get(assigned, ()):
                received.append(
                    Message(
                        record.value,
                        record.key,
                        tuple(record.headers),
                        record.timestamp,
                        record.partition,
                        record.offset,
                    )
                )
            return len(received) >= count

        with closing(KafkaConsumer(**settings)) as consumer:
            consumer.assign([assigned])
            if start == EARLIEST:
                consumer.seek_to_beginning(assigned)
            elif start == LATEST:
                consumer.seek_to_end(assigned)
            else:
                consumer.seek(assigned, start)
            until(receive)
        return received

    def offsetForTime(self, place: Place, topic: str, timestampMs: int) -> int | None:
        """See L{ClientCases.offsetForTime}."""
        partition = TopicPartition(topic, 0)
        with closing(KafkaConsumer(**configuration(place))) as consumer:
            found = consumer.offsets_for_times({partition: timestampMs})[partition]
        return None if found is None else int(found.offset)

    def connect(self, place: Place) -> None:
        """See L{ClientCases.connect}."""
        try:
            KafkaConsumer(**configuration(place, bootstrap_timeout_ms=2000)).close()
        except KafkaTimeoutError as error:
            raise NoConnection(str(error)) from error

    def produceToUnknown(self, place: Place, topic: str) -> str:
        """See L{ClientCases.produceToUnknown}."""
        with closing(KafkaProducer(**configuration(place, max_block_ms=1000))) as producer:
            error = self.assertRaises(KafkaTimeoutError, producer.send, topic, b"value")
        return type(error).__name__
