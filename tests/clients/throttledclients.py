"""
Real clients that send or receive as much as they can, one in a process.

C{python -m tests.clients.throttledclients ROLE SETTINGS TOPIC} reads commands from standard input, one a line, and
answers each with what it has done, see L{serve}.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from attrs import evolve

from tests.kit.libraries import Listener, Message, Settings, makeConsumer, makeProducer
from tests.kit.lines import hasLine, nextLine, say

PRODUCER, CONSUMER = "producer", "consumer"

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

REST_SECONDS = 0.01
_JOIN_SECONDS = 0.5


def valueOf(number: int) -> bytes:
    """The value of the record whose offset is C{number}."""
    return b"%09d\n" % number * (VALUE_BYTES // 10)


class Progress:
    """
    How far a client is.

    @ivar reached: at what time, on the clock that all processes share, which offset was the next to be acknowledged or
        received.
    @ivar mistakes: what is wrong with the records so far.
    """

    def __init__(self) -> None:
        self.reached: list[tuple[float, int]] = []
        self.mistakes: list[str] = []
        self.nextOffset = 0

    def note(self, offset: int, error: object = None) -> None:
        """The record at C{offset} has been acknowledged, or received, unless there is an error."""
        if error is not None:
            self.mistakes.append(str(error))
            return
        if offset != self.nextOffset:
            self.mistakes.append(f"offset {offset} where {self.nextOffset} should be")
        self.nextOffset = offset + 1
        self.reached.append((time.monotonic(), self.nextOffset))


class Sender:
    """
    Sends numbered records, with no more than some of them underway.

    @ivar client: of the library.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        properties: dict[str, Any] = {"acks": 1, "batch.size": BATCH_BYTES}
        if settings.library == "kafka-python":
            # What is underway would be answered in time even if this client and the broker both made it wait.
            properties |= {"enable.idempotence": False, "max.in.flight.requests.per.connection": 1}
        self.client = makeProducer(evolve(settings, properties=properties))
        self.progress = Progress()
        self.assignments: list[str] = []
        self.sentCount = 0
        self._topic = topic

    def send(self) -> None:
        """Send the next record."""
        message = Message(valueOf(self.sentCount), partition=0)
        self.client.send(self._topic, message, self.progress.note)
        self.sentCount += 1

    def work(self, count: int, isOver: Callable[[], bool]) -> None:
        """Send C{count} records, or fewer if C{isOver} before.  All are acknowledged when this returns."""
        end = self.sentCount + count
        while self.sentCount < end and not isOver():
            if self.sentCount - self.progress.nextOffset < _MAX_UNANSWERED:
                self.send()
                self.client.poll(0)
            else:
                self.client.poll(REST_SECONDS)
        while self.progress.nextOffset < self.sentCount and not self.progress.mistakes:
            self.client.poll(REST_SECONDS)


class Receiver(Listener):
    """
    Reads numbered records from the first on, as the only member of a group; properties of the settings are the
    consumer's.

    @ivar client: of the library.
    @ivar assignments: what the group has given it and taken from it.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self.progress = Progress()
        self.assignments: list[str] = []
        properties = {
            "group.id": settings.clientId,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            **settings.properties,
        }
        self.client = makeConsumer(evolve(settings, properties=properties), topic, self)

    def assigned(self, partitions: list[int]) -> None:
        # None, when a client has joined before it knows of any.
        if partitions:
            self.assignments.append(f"given {len(partitions)}")

    def revoked(self, partitions: list[int]) -> None:
        if partitions:
            self.assignments.append(f"lost {len(partitions)}")

    def join(self) -> None:
        """Wait until the group has given us our partition."""
        while not self.assignments:
            # kafka-python forgets an assignment that comes when the time for one call is over.
            self.client.poll(_JOIN_SECONDS)

    def receive(self) -> None:
        """Wait a moment for records."""
        for message in self.client.poll(REST_SECONDS, 100):
            self.progress.note(message.offset)
            if message.value != valueOf(message.offset):
                self.progress.mistakes.append(f"{(message.value or b'')[:20]!r} at offset {message.offset}")

    def work(self, count: int, isOver: Callable[[], bool]) -> None:
        """Receive C{count} records, or fewer if C{isOver} before."""
        self.client.seek(0, 0)
        self.progress.nextOffset = 0
        while self.progress.nextOffset < count and not isOver():
            self.receive()


def serve(client: Sender | Receiver) -> None:
    """
    Do what standard input says, to its end, and report: C{load} is to work on L{LOAD_RECORDS} records, C{run} to work
    until there is another line, whatever it says, and any other word to do nothing.
    """
    command: str | None = "begin"
    while command:
        client.progress.reached.clear()
        started = time.monotonic()
        if command == "load":
            client.work(LOAD_RECORDS, lambda: bool(client.progress.mistakes))
        elif command == "run":
            client.work(RUN_RECORDS, hasLine)
            nextLine()
        say(
            "done",
            {
                "seconds": time.monotonic() - started,
                "progress": client.progress.reached,
                "mistakes": client.progress.mistakes,
                "assignments": client.assignments,
                "throttles": client.client.throttles(),
            },
        )
        command = nextLine()


if __name__ == "__main__":
    # kafka-python logs every delay.
    logging.disable(logging.WARNING)
    role, settings, topic = sys.argv[1], Settings(**json.loads(sys.argv[2])), sys.argv[3]
    if role == PRODUCER:
        serve(Sender(settings, topic))
    else:
        receiver = Receiver(settings, topic)
        receiver.join()
        serve(receiver)
