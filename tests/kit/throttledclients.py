"""
Real clients that send or receive as much as they can, one in a process.

C{throttledclients.py CLIENT ADDRESS CLIENT-ID TOPIC} reads commands from standard input, one a line, and answers them
with a line of JSON, see L{serve}.  It imports nothing that its one client does not need: many are started at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

VALUE_BYTES = 1000
BATCH_BYTES = 8500
"""Room for eight records: little beside what a quota allows in a second, so that a rate over some seconds is exact."""

LOAD_RECORDS = 2000
RUN_RECORDS = 20_000
"""Far more than a limit allows, but not as many as a client sends that nothing limits."""

SESSION_MS = 5000
"""How long a group waits for a silent member."""

HEARTBEAT_MS = 1000

_MAX_UNANSWERED = 200
"""How many records a producer has underway: always more than a batch."""

_REST_SECONDS = 0.01
_JOIN_SECONDS = 0.5


def valueOf(number: int) -> bytes:
    """The value of the record whose offset is C{number}."""
    return b"%09d\n" % number * (VALUE_BYTES // 10)


class RealClient(ABC):
    """
    A client with one partition to itself.

    @ivar progress: during the last L{work} at what time, on the clock that all processes share, which offset was the
        next to be acknowledged or received.
    @ivar mistakes: what is wrong with the records so far, in words.
    @ivar assignments: what its group has given it and taken from it, in words.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.progress: list[tuple[float, int]] = []
        self.mistakes: list[str] = []
        self.assignments: list[str] = []
        self.nextOffset = 0

    def reached(self, offset: int) -> None:
        """The record at C{offset} has been acknowledged, or received."""
        if offset != self.nextOffset:
            self.mistakes.append(f"offset {offset} where {self.nextOffset} should be")
        self.nextOffset = offset + 1
        self.progress.append((time.monotonic(), self.nextOffset))

    @abstractmethod
    def work(self, count: int, isOver: Callable[[], bool]) -> None:
        """Send or receive C{count} records, or fewer if C{isOver} before."""

    def rest(self) -> None:
        """Stay alive for a moment."""
        time.sleep(_REST_SECONDS)

    def throttles(self) -> Sequence[float] | None:
        """
        The delays that the library tells of, in seconds, or the longest of them; L{None} if it
        keeps them to itself.
        """
        return None


class RealProducer(RealClient):
    """Sends numbered records, with no more than some of them underway."""

    _sentCount = 0

    @abstractmethod
    def send(self, value: bytes) -> None:
        """Send a record; L{reached} is called when it is acknowledged."""

    def work(self, count: int, isOver: Callable[[], bool]) -> None:
        """See L{RealClient.work}.  All are acknowledged when this returns."""
        end = self._sentCount + count
        while self._sentCount < end and not isOver():
            if self._sentCount - self.nextOffset < _MAX_UNANSWERED:
                self.send(valueOf(self._sentCount))
                self._sentCount += 1
            else:
                self.rest()
        while self.nextOffset < self._sentCount and not self.mistakes:
            self.rest()


class RealConsumer(RealClient):
    """Reads numbered records from the first on, as the only member of a group."""

    @abstractmethod
    def rewind(self) -> None:
        """Go to the first record."""

    @abstractmethod
    def receive(self, waitSeconds: float = _REST_SECONDS) -> Iterable[tuple[int, bytes]]:
        """Wait for records, and return their offsets and values."""

    def join(self) -> None:
        """Wait until the group has given us our partition."""
        while not self.assignments:
            # kafka-python forgets an assignment that comes when the time for one call is over.
            list(self.receive(_JOIN_SECONDS))

    def assigned(self, partitions: Sequence[object]) -> None:
        """The group gives us partitions; none, when a client has joined before it knows of any."""
        if partitions:
            self.assignments.append(f"given {len(partitions)}")

    def revoked(self, partitions: Sequence[object]) -> None:
        """The group takes partitions from us."""
        if partitions:
            self.assignments.append(f"lost {len(partitions)}")

    def work(self, count: int, isOver: Callable[[], bool]) -> None:
        """See L{RealClient.work}."""
        self.rewind()
        self.nextOffset = 0
        while self.nextOffset < count and not isOver():
            for offset, value in self.receive():
                self.reached(offset)
                if value != valueOf(offset):
                    self.mistakes.append(f"{value[:20]!r} at offset {offset}")


class ConfluentProducer(RealProducer):
    """librdkafka."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        from confluent_kafka import Producer

        super().__init__(topic)
        self._delays: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "client.id": clientId,
                "acks": 1,
                "batch.size": BATCH_BYTES,
                "log_level": 2,
                "throttle_cb": lambda event: self._delays.append(event.throttle_time),
            }
        )

    def send(self, value: bytes) -> None:
        """See L{RealProducer.send}."""
        self._producer.produce(self.topic, value, partition=0, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.reached(message.offset())
        else:
            self.mistakes.append(str(error))

    def rest(self) -> None:
        """See L{RealClient.rest}."""
        self._producer.poll(_REST_SECONDS)

    def throttles(self) -> Sequence[float]:
        """See L{RealClient.throttles}."""
        return [each for each in self._delays if each > 0]


class ConfluentConsumer(RealConsumer):
    """librdkafka."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        from confluent_kafka import Consumer

        super().__init__(topic)
        self._delays: list[float] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "client.id": clientId,
                "group.id": clientId,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "log_level": 2,
                "throttle_cb": lambda event: self._delays.append(event.throttle_time),
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: self.assigned(partitions),
            on_revoke=lambda _, partitions: self.revoked(partitions),
        )

    def rewind(self) -> None:
        """See L{RealConsumer.rewind}."""
        from confluent_kafka import TopicPartition

        self._consumer.seek(TopicPartition(self.topic, 0, 0))

    def receive(self, waitSeconds: float = _REST_SECONDS) -> Iterator[tuple[int, bytes]]:
        """See L{RealConsumer.receive}."""
        for message in self._consumer.consume(100, waitSeconds):
            offset, value = message.offset(), message.value()
            if message.error() is None and offset is not None and value is not None:
                yield offset, value
            else:
                self.mistakes.append(str(message.error()))

    def throttles(self) -> Sequence[float]:
        """See L{RealClient.throttles}."""
        return [each for each in self._delays if each > 0]


def _longestDelay(metrics: Any, group: str) -> list[float]:
    """What kafka-python's metrics tell of delays."""
    milliseconds = metrics[group]["throttle-time-max"]
    return [milliseconds / 1000] if milliseconds > 0 else []


class KafkaPythonProducer(RealProducer):
    """kafka-python."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        from kafka import KafkaProducer

        super().__init__(topic)
        # What is underway already would be answered in time even if this client and the broker both made it wait.
        self._producer = KafkaProducer(
            bootstrap_servers=address,
            client_id=clientId,
            acks=1,
            enable_idempotence=False,
            batch_size=BATCH_BYTES,
            max_in_flight_requests_per_connection=1,
        )

    def send(self, value: bytes) -> None:
        """See L{RealProducer.send}."""
        future = self._producer.send(self.topic, value, partition=0)
        future.add_callback(lambda metadata: self.reached(metadata.offset))
        future.add_errback(lambda error: self.mistakes.append(repr(error)))

    def throttles(self) -> Sequence[float]:
        """See L{RealClient.throttles}."""
        return _longestDelay(self._producer.metrics(), "producer-metrics")


class KafkaPythonConsumer(RealConsumer):
    """kafka-python."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition

        super().__init__(topic)
        self._partition = TopicPartition(topic, 0)
        self._consumer = KafkaConsumer(
            bootstrap_servers=address,
            client_id=clientId,
            group_id=clientId,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Sequence[object]) -> None:
                client.assigned(assigned)

            def on_partitions_revoked(self, revoked: Sequence[object]) -> None:
                client.revoked(revoked)

        self._consumer.subscribe([topic], listener=Listener())

    def rewind(self) -> None:
        """See L{RealConsumer.rewind}."""
        self._consumer.seek(self._partition, 0)

    def receive(self, waitSeconds: float = _REST_SECONDS) -> Iterator[tuple[int, bytes]]:
        """See L{RealConsumer.receive}."""
        for record in self._consumer.poll(timeout_ms=int(waitSeconds * 1000)).get(self._partition, ()):
            yield record.offset, record.value

    def throttles(self) -> Sequence[float]:
        """See L{RealClient.throttles}."""
        return _longestDelay(self._consumer.metrics(), "consumer-metrics")


class AiokafkaProducer(RealProducer):
    """aiokafka, whose loop runs while we wait for it."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        super().__init__(topic)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(address, clientId))

    async def _start(self, address: str, clientId: str) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(
            bootstrap_servers=address, client_id=clientId, acks=1, max_batch_size=BATCH_BYTES
        )
        await self._producer.start()

    def send(self, value: bytes) -> None:
        """See L{RealProducer.send}."""
        future = self._loop.run_until_complete(self._producer.send(self.topic, value, partition=0))
        future.add_done_callback(self._delivered)

    def _delivered(self, future: asyncio.Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self.reached(future.result().offset)
        else:
            self.mistakes.append(repr(error))

    def rest(self) -> None:
        """See L{RealClient.rest}."""
        self._loop.run_until_complete(asyncio.sleep(_REST_SECONDS))


class AiokafkaConsumer(RealConsumer):
    """aiokafka, whose loop runs while we wait for it."""

    def __init__(self, address: str, clientId: str, topic: str) -> None:
        super().__init__(topic)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(address, clientId))

    async def _start(self, address: str, clientId: str) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Sequence[object]) -> None:
                client.assigned(assigned)

            def on_partitions_revoked(self, revoked: Sequence[object]) -> None:
                client.revoked(revoked)

        self._partition = TopicPartition(self.topic, 0)
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            client_id=clientId,
            group_id=clientId,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe([self.topic], listener=Listener())
        await self._consumer.start()

    def rewind(self) -> None:
        """See L{RealConsumer.rewind}."""
        self._consumer.seek(self._partition, 0)

    def receive(self, waitSeconds: float = _REST_SECONDS) -> Iterator[tuple[int, bytes]]:
        """See L{RealConsumer.receive}."""
        received = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(waitSeconds * 1000)))
        for record in received.get(self._partition, ()):
            yield record.offset, record.value

    def rest(self) -> None:
        """See L{RealClient.rest}."""
        self._loop.run_until_complete(asyncio.sleep(_REST_SECONDS))


CLIENTS: dict[str, Callable[[str, str, str], RealClient]] = {
    "confluent-kafka producer": ConfluentProducer,
    "confluent-kafka consumer": ConfluentConsumer,
    "kafka-python producer": KafkaPythonProducer,
    "kafka-python consumer": KafkaPythonConsumer,
    "aiokafka producer": AiokafkaProducer,
    "aiokafka consumer": AiokafkaConsumer,
}
"""By the library and what they do."""


def hasCommand() -> bool:
    """Whether the next command is there, or the end of them."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def serve(client: RealClient) -> None:
    """
    Do what standard input says, to its end, and report: C{load} is to work on L{LOAD_RECORDS} records, C{run} to work
    until there is another line, whatever it says (or on L{RUN_RECORDS}), and any other word to do nothing.
    """
    if isinstance(client, RealConsumer):
        client.join()
    command = ""
    while True:
        client.progress.clear()
        started = time.monotonic()
        if command == "load":
            client.work(LOAD_RECORDS, lambda: bool(client.mistakes))
        elif command == "run":
            client.work(RUN_RECORDS, hasCommand)
            sys.stdin.readline()
        report = {
            "seconds": time.monotonic() - started,
            "progress": client.progress,
            "mistakes": client.mistakes,
            "assignments": client.assignments,
            "throttles": client.throttles(),
        }
        print(json.dumps(report), flush=True)
        while not hasCommand():
            client.rest()
        command = sys.stdin.readline()
        if not command:
            return
        command = command.strip()


if __name__ == "__main__":
    # kafka-python logs every delay.
    logging.disable(logging.WARNING)
    name, *arguments = sys.argv[1:]
    serve(CLIENTS[name](*arguments))
