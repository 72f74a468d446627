"""
The client libraries that users have, each as a producer and a member of a group with the same methods.

It imports no library before a client of it is made: many processes are started at once, with one client each.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from attrs import asdict, evolve, frozen

LIBRARIES = ("confluent", "kafka-python", "aiokafka")
"""The libraries that produce and consume."""

_PATIENCE_SECONDS = 300.0
_LONG_POLL_SECONDS = 10.0

Delivered = Callable[[int, object], None]
"""Is called with the offset of a record and L{None}, or with -1 and why the record was given up."""


@frozen
class Settings:
    """
    What a client is told.

    @ivar library: one of L{LIBRARIES}, or C{ours} for a consumer.
    @ivar address: of a broker.
    @ivar properties: further settings, as Kafka names them.
    @ivar authority: the path of the certificate that signed the broker's; empty without TLS.
    @ivar certificate: the path of the client's own; empty if it has none.
    @ivar certificateKey: the path of its key.
    """

    library: str
    address: str
    properties: Mapping[str, Any] = {}
    clientId: str = "tests"
    authority: str = ""
    certificate: str = ""
    certificateKey: str = ""

    def asText(self) -> str:
        """For the command line of a process."""
        return json.dumps(asdict(self))


@frozen
class Message:
    """
    A record as clients have it.

    @ivar partition: L{None} lets a producer choose.
    @ivar offset: where it was found.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestampMs: int | None = None
    partition: int | None = None
    offset: int = -1


class Trouble(Exception):
    """A consumer could not poll, or could not commit."""


class Listener:
    """Hears of a consumer, maybe in a thread of the library's; the partitions do not change while it does."""

    def assigned(self, partitions: list[int]) -> None:
        """All partitions that the consumer has are these."""

    def revoked(self, partitions: list[int]) -> None:
        """The consumer has these no longer."""

    def received(self, messages: list[Message]) -> list[Message]:
        """What a poll is to return for these."""
        return messages

    def mayCommit(self, offsets: Mapping[int, int]) -> bool:
        """Whether these partitions have been the consumer's since it has read that far."""
        return True


class Producer(Protocol):
    """All callbacks come within C{poll} and C{flush}, in the thread that calls them."""

    def send(self, topic: str, message: Message, delivered: Delivered) -> None:
        """Send a record without waiting for its acknowledgement."""

    def poll(self, seconds: float) -> None:
        """Wait for acknowledgements."""

    def flush(self, seconds: float = _PATIENCE_SECONDS) -> int:
        """Wait for all acknowledgements, and return how many are missing then."""

    def throttles(self) -> Sequence[float] | None:
        """The delays in seconds that the library tells of, or the longest of them; L{None} if it tells of none."""

    def close(self) -> None:
        """Let it go."""


class Consumer(Protocol):
    """A member of a group that reads one topic."""

    def poll(self, seconds: float, count: int = 500) -> list[Message]:
        """
        Wait for up to C{count} records.

        @raise Trouble: if the library has an error for its application.
        """

    def commit(self, offsets: Mapping[int, int]) -> None:
        """
        Commit offsets of partitions, and wait for the answer.

        @raise Trouble: if it is refused.
        """

    def seek(self, partition: int, offset: int) -> None:
        """Read on from there."""

    def throttles(self) -> Sequence[float] | None:
        """See L{Producer.throttles}."""

    def close(self) -> None:
        """Leave the group."""


class _Outcomes:
    """
    Takes what a thread of a library tells to the thread of its user.

    @ivar missing: how many callbacks are still to be called.
    """

    def __init__(self) -> None:
        self.missing = 0
        self._told: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def tell(self, delivered: Delivered, offset: int, error: object) -> None:
        self._told.put(partial(delivered, offset, error))

    def poll(self, seconds: float) -> None:
        with suppress(Empty):
            self._call(self._told.get(timeout=seconds))
            while True:
                self._call(self._told.get_nowait())

    def flush(self, seconds: float = _PATIENCE_SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while self.missing and (remaining := deadline - time.monotonic()) > 0:
            self.poll(remaining)
        return self.missing

    def _call(self, outcome: Callable[[], None]) -> None:
        self.missing -= 1
        outcome()


def confluentArguments(settings: Settings) -> dict[str, Any]:
    """What librdkafka is to be made with."""
    common: dict[str, Any] = {"bootstrap.servers": settings.address, "client.id": settings.clientId, "log_level": 2}
    if settings.authority:
        common |= {"security.protocol": "SSL", "ssl.ca.location": settings.authority}
    if settings.certificate:
        common |= {"ssl.certificate.location": settings.certificate, "ssl.key.location": settings.certificateKey}
    return common | {**settings.properties}


class _Confluent:
    """librdkafka, which tells of its delays."""

    def __init__(self, settings: Settings) -> None:
        self._delays: list[float] = []
        told = {"throttle_cb": lambda event: self._delays.append(event.throttle_time)}
        self._arguments = confluentArguments(settings) | told

    def throttles(self) -> Sequence[float]:
        return [each for each in self._delays if each > 0]


class ConfluentProducer(_Confluent):
    """librdkafka."""

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Producer as Made

        super().__init__(settings)
        self._producer = Made(self._arguments)

    def send(self, topic: str, message: Message, delivered: Delivered) -> None:
        def tell(error: Any, stored: Any) -> None:
            delivered(-1 if error else stored.offset(), error)

        self._producer.produce(
            topic,
            message.value,
            message.key,
            -1 if message.partition is None else message.partition,
            on_delivery=tell,
            timestamp=message.timestampMs or 0,
            headers=list(message.headers),
        )

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self, seconds: float = _PATIENCE_SECONDS) -> int:
        return int(self._producer.flush(seconds))

    def close(self) -> None:
        del self._producer


class ConfluentConsumer(_Confluent):
    """librdkafka."""

    def __init__(self, settings: Settings, topic: str, listener: Listener) -> None:
        from confluent_kafka import Consumer as Made, TopicPartition

        super().__init__(settings)
        self._place, self._listener = partial(TopicPartition, topic), listener
        self._errors: list[str] = []
        self._consumer = Made(self._arguments | {"enable.auto.commit": False})
        self._consumer.subscribe(
            [topic],
            # With KIP-848 it is told only what is new.
            on_assign=lambda _, places: listener.assigned(_partitions([*places, *self._consumer.assignment()])),
            on_revoke=lambda _, places: listener.revoked(_partitions(places)),
        )

    def poll(self, seconds: float, count: int = 500) -> list[Message]:
        messages = []
        for each in self._consumer.consume(count, seconds):
            if each.error() is None:
                headers, (_, timestampMs) = tuple(each.headers() or ()), each.timestamp()
                messages.append(
                    Message(each.value(), each.key(), headers, timestampMs, each.partition(), each.offset() or 0)
                )
            else:
                self._errors.append(str(each.error()))
        if self._errors and not messages:
            raise Trouble(self._errors.pop(0))
        return self._listener.received(messages)

    def commit(self, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import KafkaException

        try:
            places = [self._place(*each) for each in offsets.items()]
            committed = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise Trouble(str(error)) from error
        refused = [each.error for each in committed or () if each.error is not None]
        if refused:
            raise Trouble(str(refused))

    def seek(self, partition: int, offset: int) -> None:
        from confluent_kafka import KafkaError, KafkaException

        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._consumer.seek(self._place(partition, offset))
            except KafkaException as error:
                # It has the partition, and does not know yet which offset was committed.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def close(self) -> None:
        self._consumer.close()


def _kafkaPythonArguments(settings: Settings) -> dict[str, Any]:
    common: dict[str, Any] = {"bootstrap_servers": settings.address, "client_id": settings.clientId}
    if settings.authority:
        common |= {"security_protocol": "SSL", "ssl_cafile": settings.authority}
    if settings.certificate:
        common |= {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.certificateKey}
    return common | _underscored(settings.properties, _PLAIN)


def _longestDelay(metrics: Any, group: str) -> list[float]:
    milliseconds = metrics[group]["throttle-time-max"]
    return [milliseconds / 1000] if milliseconds > 0 else []


class KafkaPythonProducer(_Outcomes):
    """kafka-python, whose thread calls back."""

    def __init__(self, settings: Settings) -> None:
        from kafka import KafkaProducer

        super().__init__()
        self._producer = KafkaProducer(**_kafkaPythonArguments(settings))

    def send(self, topic: str, message: Message, delivered: Delivered) -> None:
        from kafka.errors import KafkaError

        self.missing += 1
        try:
            future = self._producer.send(
                topic, message.value, message.key, list(message.headers), message.partition, message.timestampMs
            )
        except KafkaError as error:
            self.tell(delivered, -1, error)
        else:
            future.add_callback(lambda metadata: self.tell(delivered, metadata.offset, None))
            future.add_errback(lambda error: self.tell(delivered, -1, error))

    def throttles(self) -> Sequence[float]:
        return _longestDelay(self._producer.metrics(), "producer-metrics")

    def close(self) -> None:
        self._producer.close()


class KafkaPythonConsumer:
    """kafka-python."""

    def __init__(self, settings: Settings, topic: str, listener: Listener) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        self._place, self._listener = partial(TopicPartition, topic), listener
        self._consumer = KafkaConsumer(
            **_kafkaPythonArguments(settings),
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        self._consumer.subscribe([topic], listener=_heard(listener, ConsumerRebalanceListener))

    def poll(self, seconds: float, count: int = 500) -> list[Message]:
        from kafka.errors import KafkaError

        try:
            polled = self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=count)
        except KafkaError as error:
            raise Trouble(repr(error)) from error
        return self._listener.received(_messages(polled))

    def commit(self, offsets: Mapping[int, int]) -> None:
        from kafka.errors import KafkaError
        from kafka.structs import OffsetAndMetadata

        try:
            self._consumer.commit({self._place(each): OffsetAndMetadata(offset) for each, offset in offsets.items()})
        except KafkaError as error:
            raise Trouble(repr(error)) from error

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._place(partition), offset)

    def throttles(self) -> Sequence[float]:
        return _longestDelay(self._consumer.metrics(), "consumer-metrics")

    def close(self) -> None:
        self._consumer.close()


# aiokafka, whose loop runs in a thread, so that it goes on while its user works


def _aiokafkaArguments(settings: Settings) -> dict[str, Any]:
    common: dict[str, Any] = {"bootstrap_servers": settings.address, "client_id": settings.clientId}
    if settings.authority:
        context = ssl.create_default_context(cafile=settings.authority)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.certificateKey)
        common |= {"security_protocol": "SSL", "ssl_context": context}
    return common | _underscored(_withoutBackoff(settings), {**_PLAIN, "batch.size": "max_batch_size"})


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class AiokafkaProducer(_Outcomes):
    """aiokafka."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._loop = _Loop()
        self._loop.run(self._start(settings))

    async def _start(self, settings: Settings) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(**_aiokafkaArguments(settings))
        await self._producer.start()

    def send(self, topic: str, message: Message, delivered: Delivered) -> None:
        self.missing += 1
        self._loop.run(self._send(topic, message, delivered))

    async def _send(self, topic: str, message: Message, delivered: Delivered) -> None:
        from aiokafka.errors import KafkaError

        def tell(future: Any) -> None:
            error = "cancelled" if future.cancelled() else future.exception()
            # Nothing is known of what is not to be acknowledged.
            offset = -1 if error or future.result() is None else future.result().offset
            self.tell(delivered, offset, error)

        try:
            future = await self._producer.send(
                topic, message.value, message.key, message.partition, message.timestampMs, list(message.headers)
            )
        except KafkaError as error:
            self.tell(delivered, -1, error)
        else:
            future.add_done_callback(tell)

    def throttles(self) -> None:
        return None

    def close(self) -> None:
        self._loop.run(self._producer.stop())
        self._loop.end()


class AiokafkaConsumer:
    """aiokafka."""

    def __init__(self, settings: Settings, topic: str, listener: Listener) -> None:
        from aiokafka import TopicPartition

        self._place, self._listener = partial(TopicPartition, topic), listener
        self._loop = _Loop()
        self._loop.run(self._start(settings, topic))

    async def _start(self, settings: Settings, topic: str) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        arguments = _aiokafkaArguments(settings)
        self._consumer = AIOKafkaConsumer(
            **arguments,
            # Left to itself, it tells the group to wait for it for no longer than a session.
            rebalance_timeout_ms=arguments.get("max_poll_interval_ms"),
            enable_auto_commit=False,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        self._consumer.subscribe([topic], listener=_heard(self._listener, ConsumerRebalanceListener))
        await self._consumer.start()

    def poll(self, seconds: float, count: int = 500) -> list[Message]:
        messages: list[Message] = self._loop.run(self._poll(seconds, count))
        return messages

    async def _poll(self, seconds: float, count: int) -> list[Message]:
        from aiokafka.errors import KafkaError

        try:
            polled = await self._consumer.getmany(timeout_ms=int(seconds * 1000), max_records=count)
        except KafkaError as error:
            raise Trouble(repr(error)) from error
        return self._listener.received(_messages(polled))

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._loop.run(self._commit(offsets))

    async def _commit(self, offsets: Mapping[int, int]) -> None:
        from aiokafka.errors import KafkaError

        if not self._listener.mayCommit(offsets):
            raise Trouble("the partitions have changed hands")
        try:
            await self._consumer.commit({self._place(partition): offset for partition, offset in offsets.items()})
        except KafkaError as error:
            raise Trouble(repr(error)) from error

    def seek(self, partition: int, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(self._place(partition), offset)

        self._loop.run(seek())

    def throttles(self) -> None:
        return None

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.end()


# Ours, which needs a process of its own, since its reactor runs in a thread and only once


class OurConsumer:
    """L{admission.kafka.client}, one record at a time."""

    def __init__(self, settings: Settings, topic: str, listener: Listener) -> None:
        from twisted.internet import reactor

        from admission.kafka.client.subscriptionstate import TopicPartition

        self._place, self._listener = partial(TopicPartition, topic), listener
        self._reactor: Any = reactor
        running = threading.Thread(target=self._reactor.run, kwargs={"installSignalHandlers": False}, daemon=True)
        running.start()
        self._run(self._start, settings, topic)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from twisted.internet.threads import blockingCallFromThread

        from admission.kafka.client.errors import ClientError

        try:
            return blockingCallFromThread(self._reactor, function, *arguments)
        except ClientError as error:
            raise Trouble(str(error)) from error

    def _start(self, settings: Settings, topic: str) -> None:
        from admission.kafka.client.consumer import makeConsumer
        from admission.kafka.client.consumersettings import consumerSettings

        properties: dict[str, Any] = {
            "bootstrap.servers": settings.address,
            "client.id": settings.clientId,
            "enable.auto.commit": "false",
            "partition.assignment.strategy": "range",
            "max.poll.records": "1",
            **_withoutBackoff(settings),
        }
        self._consumer = makeConsumer(
            self._reactor, consumerSettings({name: str(value) for name, value in properties.items()})
        )
        self._consumer.subscribe(
            [topic],
            onAssigned=lambda places: self._listener.assigned(_partitions(places)),
            onRevoked=lambda places: self._listener.revoked(_partitions(places)),
        )

    def poll(self, seconds: float, count: int = 1) -> list[Message]:
        messages: list[Message] = self._run(lambda: self._consumer.poll(seconds).addCallback(self._polled))
        return messages

    def _polled(self, records: Sequence[Any]) -> list[Message]:
        return self._listener.received(
            [Message(each.value, each.key, partition=each.partition, offset=each.offset) for each in records]
        )

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._run(self._commit, offsets)

    def _commit(self, offsets: Mapping[int, int]) -> Any:
        if not self._listener.mayCommit(offsets):
            raise Trouble("the partitions have changed hands")
        return self._consumer.commit({self._place(partition): offset for partition, offset in offsets.items()})

    def seek(self, partition: int, offset: int) -> None:
        self._run(self._consumer.seek, self._place(partition), offset)

    def throttles(self) -> None:
        return None

    def close(self) -> None:
        self._run(self._consumer.close)


_PLAIN = {"sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password"}


def _withoutBackoff(settings: Settings) -> dict[str, Any]:
    """The properties for a library that reconnects as it likes."""
    return {name: value for name, value in settings.properties.items() if not name.startswith("reconnect.")}


def _underscored(properties: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    return {renamed.get(name, name.replace(".", "_")): value for name, value in properties.items()}


def _partitions(places: Iterable[Any]) -> list[int]:
    return sorted(place.partition for place in places)


def _messages(polled: Mapping[Any, Sequence[Any]]) -> list[Message]:
    return [
        Message(each.value, each.key, tuple(each.headers), each.timestamp, each.partition, each.offset)
        for each in chain(*polled.values())
    ]


def _heard(listener: Listener, base: Any) -> Any:
    """What the two libraries in Python call: they want a subclass of their own."""

    class Rebalances(base):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            listener.assigned(_partitions(assigned))

        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            listener.revoked(_partitions(revoked))

    return Rebalances()


_PRODUCERS: Mapping[str, Callable[[Settings], Producer]] = {
    "confluent": ConfluentProducer,
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AiokafkaProducer,
}
_CONSUMERS: Mapping[str, Callable[[Settings, str, Listener], Consumer]] = {
    "confluent": ConfluentConsumer,
    "kafka-python": KafkaPythonConsumer,
    "aiokafka": AiokafkaConsumer,
    "ours": OurConsumer,
}

MEMBERS = tuple(_CONSUMERS)
"""The libraries that consume."""


def makeProducer(settings: Settings) -> Producer:
    """A producer of the library that the settings name."""
    return _PRODUCERS[settings.library](settings)


def makeConsumer(settings: Settings, topic: str, listener: Listener | None = None) -> Consumer:
    """A member of a group, which joins; its settings have C{group.id}."""
    return _CONSUMERS[settings.library](settings, topic, listener or Listener())


def produceAll(settings: Settings, topic: str, messages: Sequence[Message]) -> list[int]:
    """
    Send all messages without waiting in between, then wait.

    @return: their offsets.
    @raise AssertionError: if one is not acknowledged.
    """
    offsets = [-1] * len(messages)
    errors = []

    def note(index: int, offset: int, error: object) -> None:
        offsets[index] = offset
        if error is not None:
            errors.append(error)

    with closing(makeProducer(settings)) as producer:
        for index, message in enumerate(messages):
            producer.send(topic, message, partial(note, index))
        missing = producer.flush()
    assert not missing and not errors, (missing, errors[:3])
    return offsets


class _Collector(Listener):
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def assigned(self, partitions: list[int]) -> None:
        # Nothing is committed, so everything comes again.
        self.messages.clear()

    def received(self, messages: list[Message]) -> list[Message]:
        self.messages += messages
        return messages


def consumeAll(settings: Settings, topic: str, count: int) -> list[Message]:
    """
    Read at least that many messages, from the earliest ones on, as the only member of a group named like the topic.

    @raise AssertionError: if they do not come.
    """
    properties = {"group.id": topic, "auto.offset.reset": "earliest", **settings.properties}
    read = _Collector()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with closing(makeConsumer(evolve(settings, properties=properties), topic, read)) as consumer:
        while len(read.messages) < count:
            assert time.monotonic() < deadline, f"{len(read.messages)} of {count} have come"
            # kafka-python forgets an assignment that comes when the time for one call is over.
            consumer.poll(_LONG_POLL_SECONDS, count - len(read.messages))
    return read.messages
