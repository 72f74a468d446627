"""A limit on new producer ids, as idempotent producers of real libraries meet it: L{admission_plugins.producerids}."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import RecordBatch, decodeRecords
from tests.kit.brokerfixture import batchOf
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.limitingbroker import PASSWORD, LimitingBroker

RESTLESS, STEADY = "restless", "steady"

LIMIT, WINDOW = 2, "4s"
"""New ids that each user may bring along; librdkafka takes half a second to get one."""

MAX_PRODUCERS = 20
MAX_UNDER_WAY = 5
USERS = [
    f"{name}-{library}" for library in ("confluent-kafka", "kafka-python", "aiokafka") for name in (RESTLESS, STEADY)
]
"""Two for each library, so that tests need not care for each other."""

_numbers = count()


@cache
def limitingBroker(mode: str) -> LimitingBroker:
    """A running one for all tests."""
    broker = LimitingBroker(f"rate={LIMIT}:window={WINDOW}:mode={mode}", USERS)
    broker.start()
    return broker


class IdempotentProducer(ABC):
    """A producer of some library, with a producer id of its own."""

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes]) -> list[int | str]:
        """
        Send records to partition 0, each in a batch of its own and without waiting in between.

        @return: for each its offset, or what the library calls the error.
        """

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def delays(self) -> Sequence[float]:
        """The delays that it knows of."""
        return []


class ConfluentProducer(IdempotentProducer):
    """librdkafka."""

    def __init__(self, address: str, user: str) -> None:
        self._delays: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": PASSWORD,
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
                "throttle_cb": lambda event: self._delays.append(event.throttle_time),
            }
        )

    def send(self, topic: str, values: Sequence[bytes]) -> list[int | str]:
        """See L{IdempotentProducer.send}."""
        results: dict[int, int | str] = {}

        def delivered(number: int) -> Callable[[Any, Any], None]:
            return lambda error, message: results.update({number: message.offset() if error is None else error.name()})

        for number, value in enumerate(values):
            self._producer.produce(topic, value, partition=0, on_delivery=delivered(number))
        assert not self._producer.flush(PATIENCE_SECONDS)
        return [results[number] for number in range(len(values))]

    def close(self) -> None:
        """See L{IdempotentProducer.close}."""
        del self._producer

    def delays(self) -> Sequence[float]:
        """See L{IdempotentProducer.delays}."""
        self._producer.poll(0.01)
        return [each for each in self._delays if each > 0]


class KafkaPythonProducer(IdempotentProducer):
    """kafka-python."""

    def __init__(self, address: str, user: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username=user,
            sasl_plain_password=PASSWORD,
            enable_idempotence=True,
            batch_size=1,
            linger_ms=0,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=50,
            retry_backoff_ms=10,
        )

    def send(self, topic: str, values: Sequence[bytes]) -> list[int | str]:
        """See L{IdempotentProducer.send}."""
        return [self._result(sent) for sent in [self._producer.send(topic, value, partition=0) for value in values]]

    def _result(self, sent: Any) -> int | str:
        try:
            offset: int = sent.get(PATIENCE_SECONDS).offset
        except KafkaPythonError as error:
            return type(error).__name__
        return offset

    def close(self) -> None:
        """See L{IdempotentProducer.close}."""
        self._producer.close()

    def delays(self) -> Sequence[float]:
        """See L{IdempotentProducer.delays}."""
        milliseconds = self._producer.metrics()["producer-metrics"]["throttle-time-max"]
        return [milliseconds / 1000] if milliseconds > 0 else []


class AiokafkaProducer(IdempotentProducer):
    """aiokafka, which tells of no delays."""

    def __init__(self, address: str, user: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(address, user))

    async def _start(self, address: str, user: str) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username=user,
            sasl_plain_password=PASSWORD,
            enable_idempotence=True,
            max_batch_size=1,
            retry_backoff_ms=10,
        )
        await self._producer.start()

    def send(self, topic: str, values: Sequence[bytes]) -> list[int | str]:
        """See L{IdempotentProducer.send}."""
        sending = asyncio.wait_for(self._send(topic, values), PATIENCE_SECONDS)
        return self._loop.run_until_complete(sending)

    async def _send(self, topic: str, values: Sequence[bytes]) -> list[int | str]:
        sent = [await self._producer.send(topic, value, partition=0) for value in values]
        return [await self._result(each) for each in sent]

    async def _result(self, sent: Any) -> int | str:
        try:
            offset: int = (await sent).offset
        except AiokafkaError as error:
            return type(error).__name__
        return offset

    def close(self) -> None:
        """See L{IdempotentProducer.close}."""
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


# Only a mixin at run time, or the tests of this class would be run without a client.
if TYPE_CHECKING:
    _Base = SynchronousTestCase
else:
    _Base = object


class ProducerIdCases(_Base):
    """
    The tests.

    @cvar library: its name.
    @cvar start: makes a producer that sends to an address on behalf of a user.
    @cvar error: what the library says of a batch that was refused; L{None} if it sends it again instead.
    """

    library: ClassVar[str]
    start: ClassVar[Callable[[str, str], IdempotentProducer]]
    error: ClassVar[str | None]

    def begin(self, mode: str) -> None:
        """Have a broker, and as many producers of a steady user as it may have at once."""
        self.broker = limitingBroker(mode)
        self.topic = f"{self.library}.{next(_numbers)}"
        mark = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(mark), []))
        self.steady = [self.producer(STEADY) for _ in range(LIMIT)]
        self.steadyCount = 0
        for producer in self.steady:
            self.broker.waitForToken(self.user(STEADY))
            self.sendSteadily([producer])
        self.broker.waitForToken(self.user(RESTLESS))

    def user(self, name: str) -> str:
        """The user of that name who has this library."""
        return f"{name}-{self.library}"

    def producer(self, name: str) -> IdempotentProducer:
        """A new producer of a user, ended with the test."""
        producer = type(self).start(self.broker.address, self.user(name))
        self.addCleanup(producer.close)
        return producer

    def sendSteadily(self, producers: Sequence[IdempotentProducer]) -> None:
        """The steady user sends a record by each of its producers, and notices nothing."""
        for producer in producers:
            self.assertEqual(producer.send(f"{self.topic}.steady", [b"steady"]), [self.steadyCount])
            self.assertEqual(list(producer.delays()), [])
            self.steadyCount += 1

    def restart(self, count: int = 1) -> tuple[IdempotentProducer, list[list[int | str]]]:
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
            results.append(producer.send(self.topic, [b"%d %d" % (len(results), number) for number in range(count)]))
            self.sendSteadily(self.steady)
        self.assertEqual(self.broker.throttledMs(self.user(STEADY)), 0.0)
        return producer, results

    def batches(self) -> list[tuple[RecordBatch, bytes]]:
        """What the restless user's producers have stored: headers and values."""
        with self.broker.raw(self.user(STEADY)) as raw:
            found = raw.batches(self.topic)
        return [(batch, record.value or b"") for batch, data in found for record in decodeRecords(data)]

    def test_refused(self) -> None:
        """
        Whoever starts a producer for every record is refused before long, with the error that the library makes of
        it, and is let in again as time passes, by the same producer and by new ones; another user's producers never
        notice.
        """
        self.begin("refuse")
        refused, results = self.restart()
        *stored, last = [result for [result] in results]
        self.assertGreaterEqual(len(stored), LIMIT)
        self.assertEqual(stored, list(range(len(stored))))
        self.assertEqual(last, len(stored) if self.error is None else self.error)
        failures = 0
        while refused.send(self.topic, [b"again"]) == [self.error]:
            failures += 1
        # What is behind a refused batch is refused, too.
        self.assertLess(failures, MAX_UNDER_WAY)
        self.broker.waitForToken(self.user(RESTLESS))
        [offset] = self.producer(RESTLESS).send(self.topic, [b"anew"])
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
        self.assertEqual(set(failed), set() if self.error is None else {self.error})
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
        With C{mode=throttle} every record of whoever starts a producer for each is stored, and the producer is
        throttled; another user's never are.
        """
        self.begin("throttle")
        throttled, results = self.restart()
        self.assertEqual([result for [result] in results], list(range(len(results))))
        self.assertEqual(throttled.send(self.topic, [b"again"]), [len(results)])
        if self.library != "aiokafka":
            self.assertGreater(max(throttled.delays()), 0)


class ConfluentTests(ProducerIdCases, SynchronousTestCase):
    """confluent-kafka gives a refused batch up, and goes on with a new epoch."""

    library = "confluent-kafka"
    start = ConfluentProducer
    error = "THROTTLING_QUOTA_EXCEEDED"


class KafkaPythonTests(ProducerIdCases, SynchronousTestCase):
    """kafka-python sends a refused batch again."""

    library = "kafka-python"
    start = KafkaPythonProducer
    error = None


class AiokafkaTests(ProducerIdCases, SynchronousTestCase):
    """aiokafka does not know the error, and gives the batch up."""

    library = "aiokafka"
    start = AiokafkaProducer
    error = "UnknownError"


class RestartTests(SynchronousTestCase):
    """The broker is killed while producers are at work."""

    def test_known(self) -> None:
        """
        Producers that were known before the broker was killed are known again and cost nothing: as many new ones as
        the limit allows are let in besides, and the next one is refused.
        """
        starts = (ConfluentProducer, KafkaPythonProducer, AiokafkaProducer)
        broker = LimitingBroker(f"rate={len(starts)}:window=1h", [STEADY])
        self.addCleanup(broker.remove)
        broker.start()
        producers = [start(broker.address, STEADY) for start in starts]
        for producer in producers:
            self.addCleanup(producer.close)
        for offset, producer in enumerate(producers):
            self.assertEqual(producer.send("events", [b"before"]), [offset])
        broker.kill()
        broker.start()
        for offset, producer in enumerate(producers, len(producers)):
            self.assertEqual(producer.send("events", [b"after"]), [offset])
        with closing(broker.raw(STEADY)) as raw:
            errors = []
            for producerId in range(7000, 7001 + len(starts)):
                batch = batchOf(b"new", producerId=producerId, producerEpoch=0, baseSequence=0)
                errors.append(raw.produce("events", batch)[0])
            self.assertEqual(errors, [ErrorCode.none] * len(starts) + [ErrorCode.throttling_quota_exceeded])
        self.assertEqual(broker.complaints(), [])
