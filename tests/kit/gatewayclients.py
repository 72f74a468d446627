"""
Real clients of a cluster: what they produce and consume at once, what they produce steadily while something happens,
and members of groups.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from attrs import frozen
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.kit import groupclients
from tests.kit.apachekafka import java
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.clientcases import until

PARTITIONS = 3
"""How many partitions records are spread over."""

_TOOLS = "org.apache.kafka.tools"
_POLL_SECONDS = 0.1
_SESSION_MS = 10_000


def tool(name: str, *arguments: str, seconds: float = PATIENCE_SECONDS) -> str:
    """
    Run one of Kafka's tools.

    @return: what it has printed.
    @raise AssertionError: if it fails.
    """
    ran = subprocess.run(java(f"{_TOOLS}.{name}", *arguments), capture_output=True, text=True, timeout=seconds)
    assert ran.returncode == 0, f"{name} has failed:\n{ran.stdout[-1000:]}\n{ran.stderr[-1000:]}"
    return ran.stdout


# At once


@frozen
class ClientFamily:
    """
    A library, and how it is used.

    @ivar produce: sends records to an address and a topic, and waits until all are acknowledged.  Keys spread them over
        all partitions.
    @ivar consume: as the only member of a group, reads that many records from an address and a topic.
    """

    produce: Callable[[str, str, Sequence[bytes]], None]
    consume: Callable[[str, str, int], list[bytes]]


def _javaProduce(address: str, topic: str, values: Sequence[bytes]) -> None:
    prefix, _, _ = values[0].decode().rpartition(".")
    told = tool(
        "VerifiableProducer",
        *("--bootstrap-server", address, "--topic", topic, "--max-messages", str(len(values))),
        *("--value-prefix", prefix, "--repeating-keys", "100"),
    )
    acknowledged = sum('"producer_send_success"' in line for line in told.splitlines())
    assert acknowledged == len(values), f"{acknowledged} were acknowledged:\n{told[-1000:]}"


def _javaConsume(address: str, topic: str, count: int) -> list[bytes]:
    told = tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", address, "--topic", topic, "--group", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(int(PATIENCE_SECONDS * 1000))),
        seconds=2 * PATIENCE_SECONDS,
    )
    return [line.encode() for line in told.splitlines()]


def _confluentProduce(address: str, topic: str, values: Sequence[bytes]) -> None:
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"%d" % (number % 100), on_delivery=delivered)
    remaining = producer.flush(PATIENCE_SECONDS)
    assert not remaining and not errors, (remaining, errors[:3])


def _confluentConsume(address: str, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    values: list[bytes] = []

    def receive() -> bool:
        polled = consumer.consume(1000, _POLL_SECONDS)
        values.extend(each.value() or b"" for each in polled if each.error() is None)
        return len(values) >= count

    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        until(receive)
    return values


def _kafkaPythonProduce(address: str, topic: str, values: Sequence[bytes]) -> None:
    with closing(KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5)) as producer:
        sent = [producer.send(topic, value, b"%d" % (number % 100)) for number, value in enumerate(values)]
        for each in sent:
            each.get(PATIENCE_SECONDS)


def _kafkaPythonConsume(address: str, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []

    def receive() -> bool:
        polled = consumer.poll(timeout_ms=int(_POLL_SECONDS * 1000))
        values.extend(record.value for records in polled.values() for record in records)
        return len(values) >= count

    settings = {"bootstrap_servers": address, "group_id": topic, "auto_offset_reset": "earliest"}
    with closing(KafkaConsumer(topic, **settings)) as consumer:
        until(receive)
    return values


def _aiokafkaProduce(address: str, topic: str, values: Sequence[bytes]) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=5) as producer:
            sent = [await producer.send(topic, value, b"%d" % (number % 100)) for number, value in enumerate(values)]
            await asyncio.gather(*sent)

    asyncio.run(asyncio.wait_for(produce(), PATIENCE_SECONDS))


def _aiokafkaConsume(address: str, topic: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        settings = {"bootstrap_servers": address, "group_id": topic, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(topic, **settings) as consumer:
            return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(asyncio.wait_for(consume(), PATIENCE_SECONDS))


FAMILIES = {
    "Java": ClientFamily(_javaProduce, _javaConsume),
    "confluent-kafka": ClientFamily(_confluentProduce, _confluentConsume),
    "kafka-python": ClientFamily(_kafkaPythonProduce, _kafkaPythonConsume),
    "aiokafka": ClientFamily(_aiokafkaProduce, _aiokafkaConsume),
}
"""By name."""


# Steadily


class Load(ABC):
    """
    An idempotent producer of different values, at a steady rate, which waits for all replicas, for as long as it takes.

    @ivar acknowledged: the values that are stored.
    @ivar failed: what was given up, and why.
    """

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self._times: list[float] = []

    @property
    def longestPauseSeconds(self) -> float:
        """The longest time without an acknowledgement, after the first one."""
        return max((after - before for before, after in pairwise(sorted(self._times))), default=0.0)

    @abstractmethod
    def stop(self) -> None:
        """Produce no more, and wait until each value is acknowledged or given up."""


def waitForEach(loads: Iterable[Load], count: int) -> None:
    """Wait until so many more values of each are acknowledged."""
    goals = [(load, len(load.acknowledged) + count) for load in loads]

    def isThere() -> bool:
        time.sleep(_POLL_SECONDS)
        return all(len(load.acknowledged) >= goal for load, goal in goals)

    until(isThere)


class ConfluentLoad(Load):
    """With librdkafka."""

    def __init__(
        self, address: str, topic: str, perSecond: int, name: str = "confluent", settings: Mapping[str, object] = {}
    ) -> None:
        """
        @param name: what makes the values different from those of others.
        @param settings: further ones of librdkafka.
        """
        super().__init__()
        self._topic, self._perSecond, self._name = topic, perSecond, name
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self._isOver = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See L{Load.stop}."""
        self._isOver.set()
        self._thread.join(PATIENCE_SECONDS)
        remaining = self._producer.flush(2 * PATIENCE_SECONDS)
        if remaining:
            self.failed.append(f"{remaining} are still on their way")

    def _run(self) -> None:
        begin, number = time.monotonic(), 0
        while not self._isOver.is_set():
            while number < (time.monotonic() - begin) * self._perSecond:
                value = f"{self._name}.{number}".encode()
                self._producer.produce(self._topic, value, on_delivery=self._delivered, partition=number % PARTITIONS)
                number += 1
            self._producer.poll(0.005)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(message.value())
            self._times.append(time.monotonic())


class JavaLoad(Load):
    """With Kafka's own producer."""

    def __init__(self, address: str, topic: str, perSecond: int) -> None:
        super().__init__()
        # Left to itself, the tool does not retry.
        settings = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115
        settings.write("retries=2147483647\nenable.idempotence=true\nlinger.ms=5\n")
        settings.flush()
        self._settings = settings
        self._process = LineProcess(
            java(
                f"{_TOOLS}.VerifiableProducer",
                *("--bootstrap-server", address, "--topic", topic, "--throughput", str(perSecond)),
                *("--producer.config", settings.name),
                # A number, so that it cannot be mistaken for another's.
                *("--value-prefix", "7", "--repeating-keys", "100"),
            ),
            self._told,
        )

    def stop(self) -> None:
        """See L{Load.stop}."""
        self._process.end()
        self._settings.close()

    def _told(self, event: Any) -> None:
        if event["name"] == "producer_send_success":
            self.acknowledged.append(event["value"].encode())
            self._times.append(event["timestamp"] / 1000)
        elif event["name"] == "producer_send_error":
            self.failed.append(f"{event['exception']}: {event['message']}")


# Groups


class LineProcess:
    """A process that tells what happens as lines of JSON."""

    def __init__(self, command: Sequence[str], told: Callable[[Any], None], **environment: str) -> None:
        """@param told: called in a thread of its own with each line."""
        self._told = told
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=ENVIRONMENT | environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Ask it to end, and wait until it has, and all it told is known."""
        self._process.send_signal(signal.SIGTERM)
        self.wait()

    def tell(self, line: str) -> None:
        """Write a line to it, unless it has gone."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def wait(self) -> None:
        """
        Wait until it has ended, and all it told is known.

        @raise AssertionError: if it does not end, with its errors.
        """
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            raise AssertionError(f"it does not end:\n{self._errors.read()[-2000:].decode()}") from None
        finally:
            self._reader.join(PATIENCE_SECONDS)
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                # Some write other lines, too.
                if line.startswith(("{", "[")):
                    self._told(json.loads(line))


class Member(ABC):
    """
    A member of a group that reads one topic and commits what it has read.

    @ivar owned: the partitions that it has.
    """

    def __init__(self) -> None:
        self.owned: set[int] = set()

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, and wait until that is done."""


class JavaMember(Member):
    """Kafka's own consumer."""

    def __init__(self, address: str, topic: str, group: str, protocol: str = "classic") -> None:
        super().__init__()
        self._process = LineProcess(
            java(
                f"{_TOOLS}.VerifiableConsumer",
                *("--bootstrap-server", address, "--topic", topic, "--group-id", group),
                *("--group-protocol", protocol),
                *(("--session-timeout", str(_SESSION_MS)) if protocol == "classic" else ()),
            ),
            self._told,
        )

    def leave(self) -> None:
        """See L{Member.leave}."""
        self._process.end()

    def _told(self, event: Any) -> None:
        if event["name"] == "partitions_assigned":
            self.owned |= {place["partition"] for place in event["partitions"]}
        elif event["name"] == "partitions_revoked":
            self.owned -= {place["partition"] for place in event["partitions"]}


class LibraryMember(Member):
    """A client of L{tests.kit.groupclients}, all of which speak the classic protocol."""

    def __init__(self, kind: str, address: str, topic: str, group: str) -> None:
        super().__init__()
        settings = json.dumps({"sessionMs": _SESSION_MS, "heartbeatMs": 500, "maxPollMs": 60_000})
        self._process = LineProcess(
            [*DYING_WITH_US, sys.executable, groupclients.__file__, kind, address, kind, group, topic, settings],
            self._told,
        )

    def leave(self) -> None:
        """See L{Member.leave}."""
        self._process.tell(groupclients.LEAVE)
        self._process.wait()

    def _told(self, event: Any) -> None:
        _, word, *values = event
        if word == "assigned":
            self.owned = {*values[0]}
        elif word == "revoked":
            self.owned -= {*values[0]}


class NextGenerationMember(Member):
    """librdkafka with the consumer protocol of KIP-848."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        super().__init__()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(
            [topic], on_assign=partial(self._changed, True), on_revoke=partial(self._changed, False)
        )
        self._isOver = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """See L{Member.leave}."""
        self._isOver.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "it does not leave"

    def _changed(self, isAssigned: bool, _: Any, places: Iterable[Any]) -> None:
        partitions = {place.partition for place in places}
        self.owned = self.owned | partitions if isAssigned else self.owned - partitions

    def _run(self) -> None:
        while not self._isOver.is_set():
            message = self._consumer.poll(_POLL_SECONDS)
            if message is not None and message.error() is None:
                self._consumer.commit(message=message, asynchronous=False)
        self._consumer.close()


class ShareMember:
    """
    A member of a share group, with Kafka's own consumer.

    @ivar acknowledged: the offsets that it has acknowledged, as partition and offset.
    """

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self._process = LineProcess(
            java(
                f"{_TOOLS}.VerifiableShareConsumer",
                *("--bootstrap-server", address, "--topic", topic, "--group-id", group),
                *("--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest"),
            ),
            self._told,
        )

    def leave(self) -> None:
        """Leave the group, and wait until that is done."""
        self._process.end()

    def _told(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "offsets_acknowledged" and event["success"]:
            self.acknowledged += [
                (place["partition"], offset) for place in event["partitions"] for offset in place["offsets"]
            ]


GROUPS: dict[str, Callable[[str, str, str], Member]] = {
    "classic, Java": JavaMember,
    "classic, confluent-kafka": partial(LibraryMember, "confluent"),
    "classic, kafka-python": partial(LibraryMember, "kafka-python"),
    "classic, aiokafka": partial(LibraryMember, "aiokafka"),
    "consumer, Java": partial(JavaMember, protocol="consumer"),
    "consumer, confluent-kafka": NextGenerationMember,
}
"""By protocol and client: what makes a member from an address, a topic and a group."""
