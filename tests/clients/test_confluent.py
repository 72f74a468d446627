"""Tests for L{admission.kafka.broker} with confluent-kafka, which is librdkafka."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.clientcases import (
    EARLIEST,
    LATEST,
    PARTITIONS,
    ClientCases,
    Message,
    NoConnection,
    Place,
    ProduceFailed,
    ProducerSettings,
    plain,
    until,
)

_STARTS = {EARLIEST: OFFSET_BEGINNING, LATEST: OFFSET_END}


def configuration(place: Place, **settings: Any) -> dict[str, Any]:
    """The settings that producers and consumers share, and C{settings} with dots for underscores."""
    common: dict[str, Any] = {
        "bootstrap.servers": place.address,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "log_level": 2,
    }
    if place.authority is not None:
        common |= {"security.protocol": "SSL", "ssl.ca.location": place.authority}
    return common | {name.replace("_", "."): value for name, value in settings.items()}


def _received(message: Any) -> Message:
    return Message(
        message.value(),
        message.key(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
        message.partition(),
        message.offset(),
    )


class ConfluentTests(ClientCases, SynchronousTestCase):
    """confluent-kafka produces to and consumes from the broker."""

    unknownTopicError = "UNKNOWN_TOPIC_OR_PART"

    def produce(self, place: Place, topic: str, messages: Sequence[Message], settings: ProducerSettings) -> list[int]:
        """See L{ClientCases.produce}."""
        producer = Producer(
            configuration(
                place,
                acks=settings.acks,
                compression_type=settings.compression or "none",
                enable_idempotence=settings.isIdempotent,
                batch_size=settings.batchBytes,
                message_max_bytes=2_000_000,
                linger_ms=20,
                retry_backoff_ms=10,
            )
        )
        offsets = [-1] * len(messages)
        errors: list[KafkaError] = []

        def delivered(index: int, error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets[index] = message.offset()
            else:
                errors.append(error)

        for index, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=partial(delivered, index),
                timestamp=message.timestampMs,
                headers=list(message.headers),
            )
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        if errors:
            raise ProduceFailed(errors[0].code(), errors[0].name())
        return offsets

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
        settings = configuration(
            place,
            group_id="none",
            enable_auto_commit=False,
            auto_offset_reset=reset,
            fetch_wait_max_ms=waitMs,
            socket_timeout_ms=max(60_000, 2 * waitMs),
        )
        received: list[Message] = []

        def receive() -> bool:
            for message in consumer.consume(count, 0.1):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                received.append(_received(message))
            return len(received) >= count

        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(topic, partition, _STARTS.get(start, start))])
            until(receive)
        return received

    def offsetForTime(self, place: Place, topic: str, timestampMs: int) -> int | None:
        """See L{ClientCases.offsetForTime}."""
        with closing(Consumer(configuration(place, group_id="none"))) as consumer:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestampMs)], PATIENCE_SECONDS)
        assert found.error is None
        return None if found.offset == OFFSET_END else found.offset

    def connect(self, place: Place) -> None:
        """See L{ClientCases.connect}."""
        errors: list[KafkaError] = []
        producer = Producer(configuration(place) | {"error_cb": errors.append})

        def hasMetadata() -> bool:
            try:
                producer.list_topics(self.topic, timeout=1.0)
            except KafkaException as exception:
                producer.poll(0)
                if any(error.code() == KafkaError._SSL for error in errors):
                    raise NoConnection(str(errors)) from exception
                return False
            return True

        until(hasMetadata)

    def produceToUnknown(self, place: Place, topic: str) -> str:
        """See L{ClientCases.produceToUnknown}."""
        errors: list[Any] = []
        producer = Producer(configuration(place, topic_metadata_propagation_max_ms=1, message_timeout_ms=30_000))
        producer.produce(topic, b"value", on_delivery=lambda error, message: errors.append(error))
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        return str(errors[0].name())

    def test_listTopics(self) -> None:
        """
        The broker tells all its topics to who asks for no particular ones,
        which librdkafka does with three bytes too many.
        """
        producer = Producer(configuration(plain(self.broker)))
        producer.list_topics(self.topic, timeout=PATIENCE_SECONDS)
        described = producer.list_topics(timeout=PATIENCE_SECONDS).topics[self.topic]
        self.assertEqual(sorted(described.partitions), list(range(PARTITIONS)))

    def test_noTransactions(self) -> None:
        """Who wants transactions is told at once that there are none, and does not ask again until its time is up."""
        producer = Producer(configuration(plain(self.broker), transactional_id="t"))
        began = monotonic()
        refused = self.assertRaises(KafkaException, producer.init_transactions, 10 * PATIENCE_SECONDS)
        self.assertLess(monotonic() - began, PATIENCE_SECONDS)
        self.assertEqual(refused.args[0].name(), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
