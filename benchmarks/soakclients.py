"""
Clients of the soak, one in a process, with the libraries that users have.

C{python -m benchmarks.soakclients SETTINGS} is one client, until its standard input is closed: then it leaves as
clients do.  It says C{acked}, C{done}, C{failed}, C{error}, C{refused} and C{left}.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from random import Random

from attrs import asdict, frozen

from tests.kit.libraries import Message, Settings, makeConsumer, makeProducer
from tests.kit.lines import hasEnded, say

TELL_SECONDS = 1.0
"""How often a client says what it has done."""

POLL_SECONDS = 0.25

MAX_UNACKNOWLEDGED = 200
"""How many records a producer has under way; then it makes no more."""

FLUSH_SECONDS = 60.0

PRODUCER, CONSUMER = "producer", "consumer"


@frozen
class ClientSettings:
    """
    What a client is and does.

    @ivar name: one for each client, which its records have.
    @ivar role: L{PRODUCER} or L{CONSUMER}.
    @ivar library: what the library is told.
    @ivar topic: what it writes or reads.
    @ivar recordsPerSecond: how many a producer makes.
    @ivar recordBytes: how large they are.
    """

    name: str
    role: str
    library: Settings
    topic: str = ""
    recordsPerSecond: float = 0.0
    recordBytes: int = 0

    @property
    def kind(self) -> str:
        """
        The library and the role.
        """
        return f"{self.library.library} {self.role}"

    def asText(self) -> str:
        """
        For the command line of a process.
        """
        return json.dumps(asdict(self))


def keyOf(name: str, number: int) -> bytes:
    """
    The key of a record, which says who made it and which one it is.
    """
    return f"{name}:{number}".encode()


def readKey(key: bytes) -> tuple[str, int]:
    """
    The name of the producer of a record, and the record's number.
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

    def due(self) -> Iterator[tuple[int, Message]]:
        """
        The records that are to be sent now, with their numbers.
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
            yield number, Message(self._value, keyOf(self._settings.name, number))

    def delivered(self, number: int, offset: int, error: object) -> None:
        """
        A record has been stored, or its client has given it up.
        """
        self._unacknowledged -= 1
        if error is None:
            self._acked.append(number)
        else:
            say("failed", str(error))

    def tell(self, isOver: bool = False) -> None:
        """
        Say what has been stored, if it is time to.
        """
        now = time.monotonic()
        if self._acked and (isOver or now - self._toldSeconds >= TELL_SECONDS):
            say("acked", spansOf(self._acked))
            self._acked.clear()
            self._toldSeconds = now


def produce(settings: ClientSettings) -> None:
    """
    Send records at a steady rate.
    """
    producer = makeProducer(settings.library)
    production = Production(settings)
    while not hasEnded():
        for number, message in production.due():
            producer.send(settings.topic, message, partial(production.delivered, number))
        producer.poll(0.05)
        production.tell()
    unsent = producer.flush(FLUSH_SECONDS)
    production.tell(isOver=True)
    producer.close()
    say("left", unsent)


def consume(settings: ClientSettings) -> None:
    """
    Read as a member of a group: say what was read, then commit it.  A consumer that is killed between the two leaves
    records that are read again, and none that nobody has read.
    """
    consumer = makeConsumer(settings.library, settings.topic)
    while not hasEnded():
        try:
            found = consumer.poll(POLL_SECONDS)
        except Exception as error:
            say("error", f"poll: {error!r}")
            time.sleep(POLL_SECONDS)
            continue
        offsets: dict[int, list[int]] = {}
        for message in found:
            assert message.partition is not None
            offsets.setdefault(message.partition, []).append(message.offset)
        if not offsets:
            continue
        say("done", [[partition, *span] for partition, each in offsets.items() for span in spansOf(each)])
        try:
            consumer.commit({partition: each[-1] + 1 for partition, each in offsets.items()})
        except Exception as error:
            say("refused", repr(error))
    consumer.close()
    say("left", 0)


def main(text: str) -> None:
    """
    Be a client.
    """
    # On another machine it would not take from the broker's processors.
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    logging.disable(logging.CRITICAL)
    fields = json.loads(text)
    settings = ClientSettings(**{**fields, "library": Settings(**fields["library"])})
    if settings.role == PRODUCER:
        produce(settings)
    else:
        consume(settings)


if __name__ == "__main__":
    main(sys.argv[1])
