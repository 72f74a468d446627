"""Tests for L{admission.kafka.broker} with confluent-kafka, which is librdkafka."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import closing
from time import monotonic
from typing import Any

from attrs import evolve
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, RecordBatch, encodeBatch
from admission.kafka.wire.versions import PRODUCE
from tests.kit.brokerprocess import (
    PATIENCE_SECONDS,
    BrokerProcess,
    certificates,
    sharedBroker,
    until,
)
from tests.kit.libraries import ConfluentProducer, Message, Settings, confluentArguments, produceAll
from tests.kit.rawclient import RawClient, tlsContext
from tests.kit.recordingproxy import RecordingProxy

PARTITIONS = 3
LARGEST_BATCH_BYTES = 1048588
LONG_POLL_MS = 120_000

COMPRESSIONS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""By the number that batches have of them."""

_numbers = itertools.count()


class LosingNetwork(RecordingProxy):
    """
    Loses every seventh response to Produce, and its connection with it.

    @ivar lostCount: how many there were.
    """

    def __init__(self, address: str) -> None:
        super().__init__([address], [])
        self.lostCount = self._count = 0

    def altered(self, apiKey: int, apiVersion: int, frame: bytes) -> bytes:
        """See L{RecordingProxy.altered}."""
        if apiKey == PRODUCE:
            self._count += 1
            if self._count % 7 == 0:
                self.lostCount += 1
                raise ConnectionResetError("lost")
        return frame


def settingsOf(broker: BrokerProcess, isTLS: bool = False, **properties: Any) -> Settings:
    """How to reach a broker, and properties with underscores for dots."""
    common = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}
    named = {name.replace("_", "."): value for name, value in properties.items()}
    authority = str(certificates().authority) if isTLS else ""
    return Settings("confluent", broker.tlsAddress if isTLS else broker.address, common | named, authority=authority)


def consume(
    settings: Settings, topic: str, count: int, start: int = OFFSET_BEGINNING, reset: str = "error"
) -> list[tuple[int, bytes]]:
    """
    Read at least C{count} records of partition 0, which is assigned by hand.

    @param reset: what to do if there is nothing at C{start}: C{error}, C{earliest} or C{latest}.
    @return: their offsets and values.
    """
    arguments = {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": reset}
    received: list[tuple[int, bytes]] = []

    def receive() -> bool:
        for message in consumer.consume(count, 0.1):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            received.append((message.offset(), message.value()))
        return len(received) >= count

    with closing(Consumer(confluentArguments(settings) | arguments)) as consumer:
        consumer.assign([TopicPartition(topic, 0, start)])
        until(receive)
    return received


class ConfluentTests(SynchronousTestCase):
    """confluent-kafka produces to and consumes from the broker."""

    def setUp(self) -> None:
        """A topic of its own for each test, in a broker that all share."""
        self.broker = sharedBroker("--set", f"num.partitions={PARTITIONS}")
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        begin = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(begin), []))

    def produce(self, settings: Settings, values: Iterable[bytes], topic: str = "") -> list[int]:
        """Send values to partition 0, and return their offsets."""
        properties = {"linger.ms": 20, **settings.properties}
        messages = [Message(value, partition=0) for value in values]
        return produceAll(evolve(settings, properties=properties), topic or self.topic, messages)

    def failure(self, settings: Settings, value: bytes) -> Any:
        """Send a value, and return what the client says about it."""
        errors: list[Any] = []
        producer = ConfluentProducer(settings)
        producer.send(self.topic, Message(value, partition=0), lambda _, error: errors.append(error))
        self.assertEqual(producer.flush(), 0)
        [error] = errors
        return error

    def batches(self) -> list[RecordBatch]:
        """What is stored in the topic."""
        with RawClient(self.broker.port) as raw:
            return [batch for batch, _ in raw.batches(self.topic)]

    def test_acks(self) -> None:
        """Records arrive, in order, whatever acknowledgement their producer wants."""
        for acks in (0, 1, -1):
            topic = f"{self.topic}.{acks}"
            values = [b"%d" % number for number in range(100)]
            self.produce(settingsOf(self.broker, acks=acks), values, topic)
            received = consume(settingsOf(self.broker), topic, len(values))
            self.assertEqual([value for _, value in received], values)

    def test_compression(self) -> None:
        """Batches compressed with any codec are stored as they are, and read again."""
        values = [b"%d" % number * 500 for number in range(50)]
        sent = self.topic
        for name, number in COMPRESSIONS.items():
            self.topic = f"{sent}.{name}"
            self.produce(settingsOf(self.broker, compression_type=name), values)
            received = consume(settingsOf(self.broker), self.topic, len(values))
            self.assertEqual([value for _, value in received], values)
            batches = self.batches()
            self.assertEqual({batch.compression for batch in batches}, {number})
            self.assertLess(sum(batch.sizeBytes for batch in batches), 25_000)

    def test_lostResponses(self) -> None:
        """
        When the network loses every seventh response, an idempotent producer still stores each message exactly once
        and in order; one that is not stores some twice.
        """
        network = LosingNetwork(self.broker.address)
        self.addCleanup(network.stop)
        settings = evolve(settingsOf(self.broker, batch_size=1000), address=network.of(self.broker.address))
        idempotent = evolve(settings, properties={**settings.properties, "enable.idempotence": True})
        values = [b"%04d" % number * 20 for number in range(500)]
        once, again = f"{self.topic}.once", f"{self.topic}.again"
        self.produce(idempotent, values, once)
        self.assertGreater(network.lostCount, 3)
        self.assertEqual([value for _, value in consume(settings, once, len(values))], values)
        self.produce(settings, values, again)
        with RawClient(self.broker.port) as raw:
            self.assertEqual(raw.endOffset(once), len(values))
            self.assertGreater(raw.endOffset(again), len(values))

    def test_largestBatch(self) -> None:
        """
        A batch of exactly C{message.max.bytes} is stored; one byte more is refused with the error that says so, and
        what follows is stored again.
        """
        overheadBytes = len(encodeBatch([Record(value=bytes(1_000_000))])) - 1_000_000
        largest = bytes(LARGEST_BATCH_BYTES - overheadBytes)
        sent = self.topic
        for isTLS in (False, True):
            self.topic = f"{sent}.{isTLS}"
            settings = settingsOf(self.broker, isTLS, message_max_bytes=2_000_000)
            self.assertEqual(self.produce(settings, [largest]), [0])
            self.assertEqual(self.failure(settings, largest + b"x").code(), ErrorCode.message_too_large)
            self.assertEqual(self.produce(settings, [b"small"]), [1])
            self.assertEqual(consume(settings, self.topic, 2), [(0, largest), (1, b"small")])
            self.assertEqual(self.batches()[0].sizeBytes, LARGEST_BATCH_BYTES)

    def test_offsetsForTimes(self) -> None:
        """Offsets are found by time."""
        settings = settingsOf(self.broker)
        messages = [
            Message(b"%d" % number, timestampMs=1_700_000_000_000 + 100 * number, partition=0) for number in range(20)
        ]
        produceAll(settings, self.topic, messages)
        with closing(Consumer(confluentArguments(settings) | {"group.id": "none"})) as consumer:
            for timestampMs, offset in (
                (1_600_000_000_000, 0),
                (1_700_000_000_000, 0),
                (1_700_000_000_001, 1),
                (1_700_000_001_000, 10),
                (1_700_000_001_900, 19),
                (1_700_000_001_901, OFFSET_END),
            ):
                asked = [TopicPartition(self.topic, 0, timestampMs)]
                (found,) = consumer.offsets_for_times(asked, PATIENCE_SECONDS)
                self.assertEqual((found.error, found.offset), (None, offset))

    def test_advertisedAddresses(self) -> None:
        """With two listeners each client is told the address that goes with its own, and finds its way back."""
        broker = BrokerProcess(advertisedHost="localhost").startedFor(self)
        values = [b"%d" % number for number in range(100)]
        for isTLS, port, tls in ((False, broker.port, None), (True, broker.tlsPort, tlsContext())):
            with RawClient(port, tls) as raw:
                self.assertEqual(raw.brokers(), [("localhost", port)])
            topic = f"{self.topic}.{isTLS}"
            self.produce(settingsOf(broker, isTLS), values, topic)
            received = consume(settingsOf(broker, isTLS), topic, len(values))
            self.assertEqual([value for _, value in received], values)
        self.assertEqual(broker.complaints(), [])

    def test_listTopics(self) -> None:
        """
        The broker tells all its topics to a client that asks for no particular ones, which librdkafka does with three
        bytes too many.
        """
        producer = Producer(confluentArguments(settingsOf(self.broker)))
        producer.list_topics(self.topic, timeout=PATIENCE_SECONDS)
        described = producer.list_topics(timeout=PATIENCE_SECONDS).topics[self.topic]
        self.assertEqual(sorted(described.partitions), list(range(PARTITIONS)))

    def test_noTransactions(self) -> None:
        """A producer that wants transactions is told at once that there are none, and does not go on asking."""
        producer = Producer(confluentArguments(settingsOf(self.broker, transactional_id="t")))
        began = monotonic()
        refused = self.assertRaises(KafkaException, producer.init_transactions, 10 * PATIENCE_SECONDS)
        self.assertLess(monotonic() - began, PATIENCE_SECONDS)
        self.assertEqual(refused.args[0].name(), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
