"""
Clients of the soak, one in a process, with the libraries that users have.

C{python -m benchmarks.soakclients SETTINGS} is one client, until its standard input is closed: then it leaves as
clients do.  What it has done it writes as lines of JSON, see L{say}.  It imports nothing that its library does not
need, since many are started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import ssl
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, cast

from attrs import asdict, frozen

TELL_SECONDS = 1.0
"""How often a client says what it has done."""

POLL_SECONDS = 0.25
SESSION_MS = 6_000
HEARTBEAT_MS = 2_000

MAX_UNACKNOWLEDGED = 200
"""How many records a producer has under way; then it makes no more."""

FLUSH_SECONDS = 60.0

PRODUCER, CONSUMER = "producer", "consumer"

ALL = -1


@frozen
class ClientSettings:
    """
    What a client is and does.

    @ivar name: one for each client, which its records have.
    @ivar role: L{PRODUCER} or L{CONSUMER}.
    @ivar library: one of L{PRODUCERS} or L{CONSUMERS}.
    @ivar address: where to find the broker.
    @ivar authority: the path of the certificate that signed the broker's; empty without TLS.
    @ivar topic: what it writes or reads.
    @ivar clientId: what it calls itself; quotas go by that.
    @ivar recordsPerSecond: how many a producer makes.
    @ivar recordBytes: how large they are.
    @ivar acks: 1 or L{ALL}.
    @ivar compression: C{none} or the name of a codec.
    @ivar isIdempotent: whether a producer has an id.
    @ivar group: of a consumer.
    """

    name: str
    role: str
    library: str
    address: str
    authority: str = ""
    topic: str = ""
    clientId: str = ""
    recordsPerSecond: float = 0.0
    recordBytes: int = 0
    acks: int = ALL
    compression: str = "none"
    isIdempotent: bool = False
    group: str = ""


def commandOf(settings: ClientSettings) -> list[str]:
    """
    How to run the client.
    """
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


def say(**what: Any) -> None:
    """
    Write a line: C{acked}, C{done}, C{failed}, C{error} or C{left}.
    """
    print(json.dumps(what), flush=True)


def hasToLeave(seconds: float = 0.0) -> bool:
    """
    Whether standard input has ended, which may take C{seconds}.
    """
    return bool(select.select([sys.stdin], [], [], seconds)[0]) and not sys.stdin.readline()


def keyOf(name: str, number: int) -> bytes:
    """
    The key of a record, which says who made it and which one it is.
    """
    return f"{name}:{number}".encode()


def readKey(key: bytes) -> tuple[str, int]:
    """
    The name of who made a record, and its number.
    """
    name, _, number = key.decode().rpartition(":")
    return name, int(number)


def spansOf(numbers: Iterable[int]) -> list[list[int]]:
    """
    Numbers as the first and the last of each run of them.
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


class Production:
    """
    What a producer has sent, and what has become of it.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._numbers = iter(range(1 << 62))
        # Half of it can be compressed.
        noise = Random(settings.name).randbytes(settings.recordBytes // 2)
        self._value = noise + bytes(settings.recordBytes - len(noise))
        self._acked: list[int] = []
        self._unacknowledged = 0
        self._toldSeconds = time.monotonic()
        self._begunSeconds = time.monotonic()
        self._made = 0

    def due(self) -> Iterator[tuple[int, bytes, bytes]]:
        """
        The records that are to be sent now: number, key and value.
        """
        dueCount = int((time.monotonic() - self._begunSeconds) * self._settings.recordsPerSecond) - self._made
        if dueCount > MAX_UNACKNOWLEDGED:
            # It was held up, and does not make up for that.
            self._made += dueCount - MAX_UNACKNOWLEDGED
            dueCount = MAX_UNACKNOWLEDGED
        for _ in range(min(dueCount, MAX_UNACKNOWLEDGED - self._unacknowledged)):
            self._made += 1
            self._unacknowledged += 1
            number = next(self._numbers)
            yield number, keyOf(self._settings.name, number), self._value

    def delivered(self, number: int, error: object = None) -> None:
        """
        A record has been stored, or its client has given it up.
        """
        self._unacknowledged -= 1
        if error is None:
            self._acked.append(number)
        else:
            say(failed=number, error=str(error))

    def tell(self, isOver: bool = False) -> None:
        """
        Say what has been stored, if it is time to.
        """
        now = time.monotonic()
        if self._acked and (isOver or now - self._toldSeconds >= TELL_SECONDS):
            say(acked=spansOf(self._acked))
            self._acked.clear()
            self._toldSeconds = now


def produceWithConfluent(settings: ClientSettings) -> None:
    """
    librdkafka.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            **confluentSettings(settings),
            "acks": "all" if settings.acks == ALL else settings.acks,
            "compression.type": settings.compression,
            "enable.idempotence": settings.isIdempotent,
            "linger.ms": 20,
        }
    )
    production = Production(settings)

    def callback(number: int) -> Callable[..., None]:
        return lambda error, message: production.delivered(number, error)

    while not hasToLeave():
        for number, key, value in production.due():
            producer.produce(settings.topic, value, key, on_delivery=callback(number))
        producer.poll(0.05)
        production.tell()
    unsent = producer.flush(FLUSH_SECONDS)
    production.tell(isOver=True)
    say(left=True, unsent=unsent)


def confluentSettings(settings: ClientSettings) -> dict[str, Any]:
    """
    What all clients of librdkafka have.
    """
    common: dict[str, Any] = {
        "bootstrap.servers": settings.address,
        "client.id": settings.clientId,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
    }
    if settings.authority:
        common |= {"security.protocol": "SSL", "ssl.ca.location": settings.authority}
    return common


def kafkaPythonSettings(settings: ClientSettings) -> dict[str, Any]:
    """
    What all clients of kafka-python have.
    """
    common: dict[str, Any] = {"bootstrap_servers": settings.address, "client_id": settings.clientId}
    if settings.authority:
        common |= {"security_protocol": "SSL", "ssl_cafile": settings.authority}
    return common


def aiokafkaSettings(settings: ClientSettings) -> dict[str, Any]:
    """
    What all clients of aiokafka have.
    """
    common: dict[str, Any] = {"bootstrap_servers": settings.address, "client_id": settings.clientId}
    if settings.authority:
        context = ssl.create_default_context(cafile=settings.authority)
        common |= {"security_protocol": "SSL", "ssl_context": context}
    return common


def produceWithKafkaPython(settings: ClientSettings) -> None:
    """
    kafka-python.
    """
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(
        **kafkaPythonSettings(settings),
        acks="all" if settings.acks == ALL else settings.acks,
        compression_type=None if settings.compression == "none" else settings.compression,
        enable_idempotence=settings.isIdempotent,
        linger_ms=20,
    )
    production = Production(settings)
    under: dict[int, Any] = {}

    def settle() -> None:
        # Not in its callbacks, which another thread calls.
        for number in [number for number, future in under.items() if future.is_done]:
            production.delivered(number, under.pop(number).exception)

    while not hasToLeave(0.05):
        for number, key, value in production.due():
            try:
                under[number] = producer.send(settings.topic, value, key)
            except KafkaError as error:
                production.delivered(number, error)
        settle()
        production.tell()
    producer.close(FLUSH_SECONDS)
    settle()
    production.tell(isOver=True)
    say(left=True, unsent=len(under))


def produceWithAiokafka(settings: ClientSettings) -> None:
    """
    aiokafka.
    """
    asyncio.run(_produceWithAiokafka(settings))


async def _produceWithAiokafka(settings: ClientSettings) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        **aiokafkaSettings(settings),
        acks="all" if settings.acks == ALL else settings.acks,
        compression_type=None if settings.compression == "none" else settings.compression,
        enable_idempotence=settings.isIdempotent,
        linger_ms=20,
    )
    production = Production(settings)
    unsent = 0

    def callback(number: int) -> Callable[..., None]:
        def done(future: Any) -> None:
            nonlocal unsent
            unsent -= 1
            production.delivered(number, "cancelled" if future.cancelled() else future.exception())

        return done

    async with producer:
        while not hasToLeave():
            for number, key, value in production.due():
                unsent += 1
                future = await producer.send(settings.topic, value, key)
                future.add_done_callback(callback(number))
            await asyncio.sleep(0.05)
            production.tell()
    await asyncio.sleep(0)
    production.tell(isOver=True)
    say(left=True, unsent=unsent)


class GroupConsumer(ABC):
    """
    A member of a group.
    """

    @abstractmethod
    def poll(self) -> list[tuple[int, int]]:
        """
        Wait a moment for records, and return the partition and the offset of each.
        """

    @abstractmethod
    def commit(self) -> None:
        """
        Commit all that has been polled.

        @raise Exception: if the group does not want it, because the partitions have changed hands.
        """

    @abstractmethod
    def close(self) -> None:
        """
        Leave the group.
        """


class ConfluentConsumer(GroupConsumer):
    """
    librdkafka.
    """

    def __init__(self, settings: ClientSettings) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                **confluentSettings(settings),
                "group.id": settings.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        self._consumer.subscribe([settings.topic])

    def poll(self) -> list[tuple[int, int]]:
        found = []
        for message in self._consumer.consume(500, POLL_SECONDS):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            found.append((cast(int, message.partition()), cast(int, message.offset())))
        return found

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonConsumer(GroupConsumer):
    """
    kafka-python.
    """

    def __init__(self, settings: ClientSettings) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        self._consumer = KafkaConsumer(
            settings.topic,
            **kafkaPythonSettings(settings),
            group_id=settings.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def poll(self) -> list[tuple[int, int]]:
        polled = self._consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
        return [(each.partition, each.offset) for some in polled.values() for each in some]

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class AiokafkaConsumer(GroupConsumer):
    """
    aiokafka.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(settings))

    async def _start(self, settings: ClientSettings) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        self._consumer = AIOKafkaConsumer(
            settings.topic,
            **aiokafkaSettings(settings),
            group_id=settings.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await self._consumer.start()

    def poll(self) -> list[tuple[int, int]]:
        polled = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000)))
        return [(each.partition, each.offset) for some in polled.values() for each in some]

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())


PRODUCERS: Mapping[str, Callable[[ClientSettings], None]] = {
    "confluent": produceWithConfluent,
    "kafka-python": produceWithKafkaPython,
    "aiokafka": produceWithAiokafka,
}

CONSUMERS: Mapping[str, Callable[[ClientSettings], GroupConsumer]] = {
    "confluent": ConfluentConsumer,
    "kafka-python": KafkaPythonConsumer,
    "aiokafka": AiokafkaConsumer,
}


def consume(settings: ClientSettings) -> None:
    """
    Read as a member of a group: say what was read, then commit it.  Who is killed between the two leaves records that
    are read again, and none that nobody has read.
    """
    consumer = CONSUMERS[settings.library](settings)
    while not hasToLeave():
        try:
            found = consumer.poll()
        except Exception as error:
            say(error=f"poll: {error!r}")
            time.sleep(POLL_SECONDS)
            continue
        if not found:
            continue
        partitions = sorted({partition for partition, _ in found})
        say(
            done=[
                [partition, *span]
                for partition in partitions
                for span in spansOf(offset for each, offset in found if each == partition)
            ]
        )
        try:
            consumer.commit()
        except Exception as error:
            say(refused=repr(error))
    consumer.close()
    say(left=True)


def main(text: str) -> None:
    """
    Be a client.
    """
    # On another machine it would not take from the broker's processors.
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    logging.disable(logging.CRITICAL)
    settings = ClientSettings(**json.loads(text))
    if settings.role == PRODUCER:
        PRODUCERS[settings.library](settings)
    else:
        consume(settings)


if __name__ == "__main__":
    main(sys.argv[1])
