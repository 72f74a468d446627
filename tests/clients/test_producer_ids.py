"""A limit on new producer ids, as idempotent producers of librdkafka meet it: L{admission_plugins.producerids}."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cache, partial
from itertools import count

from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import RecordBatch, decodeRecords
from tests.kit.brokerfixture import batchOf
from tests.kit.libraries import Message, Producer, Settings, makeProducer
from tests.kit.limitingbroker import PASSWORD, LimitingBroker

RESTLESS, STEADY = "restless", "steady"

LIMIT, WINDOW = 2, "4s"
"""New ids that each user may bring along; librdkafka takes half a second to get one."""

ERROR = "THROTTLING_QUOTA_EXCEEDED"
MAX_PRODUCERS = 20
MAX_UNDER_WAY = 5
_numbers = count()


@cache
def limitingBroker(mode: str) -> LimitingBroker:
    """A running one for all tests."""
    broker = LimitingBroker(f"rate={LIMIT}:window={WINDOW}:mode={mode}", [RESTLESS, STEADY])
    broker.start()
    return broker


def makeIdempotent(address: str, user: str) -> Producer:
    """A producer with a producer id of its own, which sends each record in a batch of its own."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "enable.idempotence": True,
        "linger.ms": 0,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "batch.num.messages": 1,
        "log_level": 0,
    }
    return makeProducer(Settings("confluent", address, properties))


def send(producer: Producer, topic: str, values: Sequence[bytes]) -> list[int | str]:
    """
    Send records to partition 0 without waiting in between.

    @return: for each its offset, or what the library calls the error.
    """
    results: dict[int, int | str] = {}

    def note(number: int, offset: int, error: object) -> None:
        failure = error.name() if isinstance(error, KafkaError) else type(error).__name__
        results[number] = offset if error is None else failure

    for number, value in enumerate(values):
        producer.send(topic, Message(value, partition=0), partial(note, number))
    assert not producer.flush()
    return [results[number] for number in range(len(values))]


def delaysOf(producer: Producer) -> list[float]:
    """The delays that it knows of."""
    producer.poll(0.01)
    return [*(producer.throttles() or ())]


class ProducerIdTests(SynchronousTestCase):
    """librdkafka gives a refused batch up, and goes on with a new epoch."""

    def begin(self, mode: str) -> None:
        """Have a broker, and as many producers of a steady user as it may have at once."""
        self.broker = limitingBroker(mode)
        self.topic = f"topic.{next(_numbers)}"
        mark = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(mark), []))
        self.steady = [self.producer(STEADY) for _ in range(LIMIT)]
        self.steadyCount = 0
        for producer in self.steady:
            self.broker.waitForToken(STEADY)
            self.sendSteadily([producer])
        self.broker.waitForToken(RESTLESS)

    def producer(self, name: str) -> Producer:
        """A new producer of a user, ended with the test."""
        producer = makeIdempotent(self.broker.address, name)
        self.addCleanup(producer.close)
        return producer

    def sendSteadily(self, producers: Sequence[Producer]) -> None:
        """The steady user sends a record by each of its producers, and notices nothing."""
        for producer in producers:
            self.assertEqual(send(producer, f"{self.topic}.steady", [b"steady"]), [self.steadyCount])
            self.assertEqual(delaysOf(producer), [])
            self.steadyCount += 1

    def restart(self, count: int = 1) -> tuple[Producer, list[list[int | str]]]:
        """
        The restless user starts a producer for every C{count} records until one is throttled; the steady user goes on
        meanwhile.

        @return: the last producer, and what became of the records of each.
        """
        setbacks = self.broker.setbacks()
        results: list[list[int | str]] = []
        while self.broker.setbacks() == setbacks:
            self.assertLess(len(results), MAX_PRODUCERS, f"nobody was throttled: {results}")
            producer = self.producer(RESTLESS)
            results.append(send(producer, self.topic, [b"%d %d" % (len(results), number) for number in range(count)]))
            self.sendSteadily(self.steady)
        self.assertEqual(self.broker.throttledMs(STEADY), 0.0)
        return producer, results

    def batches(self) -> list[tuple[RecordBatch, bytes]]:
        """What the restless user's producers have stored: headers and values."""
        with self.broker.raw(STEADY) as raw:
            found = raw.batches(self.topic)
        return [(batch, record.value or b"") for batch, data in found for record in decodeRecords(data)]

    def test_refused(self) -> None:
        """
        A user who starts a producer for every record is refused before long, with the error that the library makes of
        it, and is let in again as time passes, with the same producer and with new ones; another user's producers never
        notice.
        """
        self.begin("refuse")
        refused, results = self.restart()
        *stored, last = [result for [result] in results]
        self.assertGreaterEqual(len(stored), LIMIT)
        self.assertEqual(stored, list(range(len(stored))))
        self.assertEqual(last, ERROR)
        failures = 0
        while send(refused, self.topic, [b"again"]) == [ERROR]:
            failures += 1
        # What is behind a refused batch is refused, too.
        self.assertLess(failures, MAX_UNDER_WAY)
        self.broker.waitForToken(RESTLESS)
        [offset] = send(self.producer(RESTLESS), self.topic, [b"anew"])
        values = [value for _, value in self.batches()]
        self.assertEqual(values[-2:], [b"again", b"anew"])
        self.assertEqual(offset, len(values) - 1)

    def test_severalUnderWay(self) -> None:
        """
        When a producer that has several batches under way is refused, they are stored once and in order, except those
        that it gives up; what it stores has no gap in its sequence.
        """
        self.begin("refuse")
        count = 4 * MAX_UNDER_WAY
        _, results = self.restart(count)
        failed = [result for result in results[-1] if isinstance(result, str)]
        self.assertEqual(set(failed), {ERROR})
        self.assertLessEqual(len(failed), MAX_UNDER_WAY)
        batches = self.batches()
        self.assertEqual(
            [value for _, value in batches],
            [
                b"%d %d" % (producer, number)
                for producer, each in enumerate(results)
                for number, result in enumerate(each)
                if not isinstance(result, str)
            ],
        )
        sequences = [batch.baseSequence for batch, _ in batches[-(count - len(failed)) :]]
        self.assertEqual(sequences, list(range(sequences[0], sequences[0] + len(sequences))))

    def test_throttled(self) -> None:
        """
        With C{mode=throttle} every record of a user who starts a producer for each is stored, and the producer is
        throttled; another user's never are.
        """
        self.begin("throttle")
        throttled, results = self.restart()
        self.assertEqual([result for [result] in results], list(range(len(results))))
        self.assertEqual(send(throttled, self.topic, [b"again"]), [len(results)])
        self.assertGreater(max(delaysOf(throttled)), 0)


class RestartTests(SynchronousTestCase):
    """The broker is killed while producers are at work."""

    def test_known(self) -> None:
        """
        Producers that were known before the broker was killed are known again and cost nothing: as many new ones as
        the limit allows are let in besides, and the next one is refused.
        """
        broker = LimitingBroker(f"rate={LIMIT}:window=1h", [STEADY]).startedFor(self)
        producers = [makeIdempotent(broker.address, STEADY) for _ in range(LIMIT)]
        for producer in producers:
            self.addCleanup(producer.close)
        for offset, producer in enumerate(producers):
            self.assertEqual(send(producer, "events", [b"before"]), [offset])
        broker.kill()
        broker.start()
        for offset, producer in enumerate(producers, len(producers)):
            self.assertEqual(send(producer, "events", [b"after"]), [offset])
        with closing(broker.raw(STEADY)) as raw:
            errors = []
            for producerId in range(7000, 7001 + LIMIT):
                batch = batchOf(b"new", producerId=producerId, producerEpoch=0, baseSequence=0)
                errors.append(raw.produce("events", batch)[0])
            self.assertEqual(errors, [ErrorCode.none] * LIMIT + [ErrorCode.throttling_quota_exceeded])
        self.assertEqual(broker.complaints(), [])
