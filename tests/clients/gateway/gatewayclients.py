"""
Real clients of a cluster: what they produce and consume at once, what they produce steadily while something happens,
and members of groups.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from tests.kit import groupclients
from tests.kit.apachekafka import java
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.libraries import LIBRARIES, Message, Settings, consumeAll, makeProducer, produceAll
from tests.kit.lineprocess import Event, LineProcess, moduleCommand

JAVA = "Java"
CLIENTS = (JAVA, *LIBRARIES)
"""The clients that can L{produce} and L{consume}."""

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


def produce(client: str, address: str, topic: str, values: Sequence[bytes]) -> None:
    """Send records, and wait until all are acknowledged; keys spread them over all partitions."""
    if client == JAVA:
        _javaProduce(address, topic, values)
        return
    properties = {"acks": "all", "enable.idempotence": True, "linger.ms": 5}
    messages = [Message(value, b"%d" % (number % 100)) for number, value in enumerate(values)]
    produceAll(Settings(client, address, properties), topic, messages)


def consume(client: str, address: str, topic: str, count: int) -> list[bytes]:
    """Read that many values, as the only member of a group."""
    if client == JAVA:
        return _javaConsume(address, topic, count)
    return [message.value or b"" for message in consumeAll(Settings(client, address), topic, count)]


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
        properties = {
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **settings,
        }
        self._producer = makeProducer(Settings("confluent", address, properties))
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
                message = Message(f"{self._name}.{number}".encode(), partition=number % PARTITIONS)
                self._producer.send(self._topic, message, partial(self._delivered, message))
                number += 1
            self._producer.poll(0.005)

    def _delivered(self, message: Message, offset: int, error: object) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(message.value or b"")
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
        self._process.terminate()
        self._settings.close()

    def _told(self, event: Any) -> None:
        if event["name"] == "producer_send_success":
            self.acknowledged.append(event["value"].encode())
            self._times.append(event["timestamp"] / 1000)
        elif event["name"] == "producer_send_error":
            self.failed.append(f"{event['exception']}: {event['message']}")


# Groups


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
        self._process.terminate()

    def _told(self, event: Any) -> None:
        if event["name"] == "partitions_assigned":
            self.owned |= {place["partition"] for place in event["partitions"]}
        elif event["name"] == "partitions_revoked":
            self.owned -= {place["partition"] for place in event["partitions"]}


class LibraryMember(Member):
    """A client of L{tests.kit.groupclients}."""

    def __init__(self, properties: Mapping[str, object], address: str, topic: str, group: str) -> None:
        super().__init__()
        everyones = {"group.id": group, "auto.offset.reset": "earliest", **properties}
        settings = Settings("confluent", address, everyones)
        self._process = LineProcess(moduleCommand(groupclients.__name__, settings.asText(), topic), self._told)

    def leave(self) -> None:
        """See L{Member.leave}."""
        self._process.tell(groupclients.LEAVE)
        self._process.wait()

    def _told(self, line: Any) -> None:
        event = Event(*line)
        if event.word == "assigned":
            self.owned = {*event.values[0]}
        elif event.word == "revoked":
            self.owned -= {*event.values[0]}


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
        self._process.terminate()

    def _told(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "offsets_acknowledged" and event["success"]:
            self.acknowledged += [
                (place["partition"], offset) for place in event["partitions"] for offset in place["offsets"]
            ]


GROUPS: dict[str, Callable[[str, str, str], Member]] = {
    "classic, Java": JavaMember,
    "classic, confluent": partial(LibraryMember, {"session.timeout.ms": _SESSION_MS}),
    "consumer, Java": partial(JavaMember, protocol="consumer"),
    "consumer, confluent": partial(LibraryMember, {"group.protocol": "consumer"}),
}
"""By protocol (the other is KIP-848's) and client: what makes a member from an address, a topic and a group."""
