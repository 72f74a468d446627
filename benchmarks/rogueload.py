"""
Two users of a broker that limits new producer ids: one that has its producers, and a rogue.  To be run in processes of
their own, see L{benchmarks.load.Loader}.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from attrs import frozen
from crc32c import crc32c

from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.requests import clientApi, decodeResponse, encodeRequest

from .load import PATIENCE_SECONDS

STEADY, ROGUE, PASSWORD = "steady", "rogue", "secret"
TOPIC = "events"

PRODUCERS = 4
"""How many producers the steady user has."""

REQUESTS_PER_SECOND = 100
"""How many requests they send, all together."""

IDS_EACH = 250
"""How many ids the rogue has in one request."""

IDS_PER_SECOND = 25_000

PATIENT_CONNECTIONS = 50
MAX_UNANSWERED = 200
"""How many requests the rogue sends on one of them."""

_PRODUCE_VERSION = 9

_CRC_AT = 17
_CHECKED_FROM = 21
_PRODUCER_ID_AT = 43
_SEQUENCE_AT = 53
_CRC = struct.Struct(">I")
_ID = struct.Struct(">q")
_NUMBER = struct.Struct(">i")


class ProduceTemplate:
    """
    A Produce request with a batch for each of the first partitions of a topic, and with producers that are exchanged.
    """

    def __init__(self, topic: str, partitionCount: int, acks: int) -> None:
        # Records of now, since retention would remove older ones.
        batch = encodeBatch(
            [Record(value=b"rogue", timestampMs=int(time.time() * 1000))],
            producerId=0,
            producerEpoch=0,
            baseSequence=0,
        )
        partitions = [{"index": index, "records": batch} for index in range(partitionCount)]
        fields = {"acks": acks, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": partitions}]}
        self._frame = bytearray(b"".join(encodeRequest(clientApi("Produce"), _PRODUCE_VERSION, 1, "rogue", fields)))
        view = memoryview(self._frame)
        self._batches = []
        at = self._frame.find(batch)
        while at >= 0:
            self._batches.append(view[at : at + len(batch)])
            at = self._frame.find(batch, at + len(batch))
        assert len(self._batches) == partitionCount

    def withIds(self, firstId: int, sequence: int = 0) -> bytes:
        """
        The request, its length included, with ids that follow each other.
        """
        for producerId, batch in enumerate(self._batches, firstId):
            _ID.pack_into(batch, _PRODUCER_ID_AT, producerId)
            _NUMBER.pack_into(batch, _SEQUENCE_AT, sequence)
            _CRC.pack_into(batch, _CRC_AT, crc32c(batch[_CHECKED_FROM:]))
        return bytes(self._frame)


class Connection:
    """
    One that has logged in; blocking.
    """

    def __init__(self, port: int, user: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
        answer = self.ask("SaslAuthenticate", 1, {"auth_bytes": f"\0{user}\0{PASSWORD}".encode()})
        assert not answer.error_code, answer

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, name: str, version: int, fields: Mapping[str, Any]) -> Any:
        """
        Send a request and decode its response.
        """
        self.socket.sendall(b"".join(encodeRequest(clientApi(name), version, 1, "benchmark", fields)))
        return decodeResponse(clientApi(name), version, self.receive())

    def receive(self) -> bytes:
        """
        The next response without its length.
        """
        (sizeBytes,) = _NUMBER.unpack(self._exactly(_NUMBER.size))
        return self._exactly(sizeBytes)

    def produce(self, request: bytes) -> tuple[int, int, int]:
        """
        Send a Produce request.

        @return: how many of its partitions have an error, of how many, and the delay in milliseconds.
        """
        self.socket.sendall(request)
        return self.result()

    def result(self) -> tuple[int, int, int]:
        """
        The next response, to Produce: as L{produce} returns it.
        """
        answer = decodeResponse(clientApi("Produce"), _PRODUCE_VERSION, self.receive())
        results = [each for topic in answer.responses for each in topic.partition_responses]
        delayMs = int(answer.throttle_time.total_seconds() * 1000)
        return sum(bool(each.error_code) for each in results), len(results), delayMs

    def _exactly(self, sizeBytes: int) -> bytes:
        received = bytearray()
        while len(received) < sizeBytes:
            chunk = self.socket.recv(sizeBytes - len(received))
            if not chunk:
                raise ConnectionError("the broker has closed the connection")
            received += chunk
        return bytes(received)


@frozen
class Steady:
    """
    What the steady user has seen.

    @ivar latencies: from each request to its answer, in seconds.
    @ivar sequence: the sequence number that its producers go on with.
    @ivar refusals: how many requests were refused, or answered with a delay.
    """

    latencies: Sequence[float]
    sequence: int
    refusals: int


@frozen
class Rogue:
    """
    What the rogue has done.

    @ivar seconds: how long it took.
    @ivar sentIds: how many ids it has sent.
    @ivar admittedIds: how many were let in.
    @ivar refusedIds: how many were refused; the others were not looked at.
    """

    seconds: float
    sentIds: int
    admittedIds: int
    refusedIds: int


def produceSteadily(port: int, seconds: float, sequence: int) -> Steady:
    """
    Each producer in its turn sends a batch that is to survive the loss of power, as idempotent ones do.  Time runs from
    when it was due: a client that waits for the answer before has to wait, too.
    """
    latencies: list[float] = []
    refusals = 0
    template = ProduceTemplate(TOPIC, 1, acks=-1)
    with ExitStack() as stack:
        connections = [stack.enter_context(Connection(port, STEADY)) for _ in range(PRODUCERS)]
        began = time.monotonic()
        # As many of each, so that all go on with the same sequence number.
        turns = max(round(seconds * REQUESTS_PER_SECOND / PRODUCERS), 2)
        for number in range(turns * PRODUCERS):
            due = began + number / REQUESTS_PER_SECOND
            time.sleep(max(due - time.monotonic(), 0.0))
            turn, producerId = divmod(number, PRODUCERS)
            errors, _, delayMs = connections[producerId].produce(template.withIds(producerId, sequence + turn))
            latencies.append(time.monotonic() - due)
            refusals += bool(errors or delayMs)
    return Steady(latencies, sequence + turns, refusals)


def reconnect(port: int, firstId: int, count: int) -> Rogue:
    """
    Send ids, as many in a second as agreed or as can be, each request on a connection of its own.
    """
    _standBack()
    template = ProduceTemplate(TOPIC, IDS_EACH, acks=1)
    admitted = refused = 0
    began = time.monotonic()
    for first in range(firstId, firstId + count, IDS_EACH):
        time.sleep(max(began + (first - firstId) / IDS_PER_SECOND - time.monotonic(), 0.0))
        with Connection(port, ROGUE) as connection:
            errors, total, _ = connection.produce(template.withIds(first))
        refused += errors
        admitted += total - errors
    return Rogue(time.monotonic() - began, count, admitted, refused)


def wait(port: int, firstId: int, count: int) -> Rogue:
    """
    Send as many ids, each in a request of its own, on a few connections that stay, and wait for answers for as long as
    L{reconnect} would take at its best.
    """
    _standBack()
    template = ProduceTemplate(TOPIC, 1, acks=1)
    admitted = refused = 0
    began = time.monotonic()
    ends = began + count / IDS_PER_SECOND
    each = min(-(-count // PATIENT_CONNECTIONS), MAX_UNANSWERED)
    with ExitStack() as stack, DefaultSelector() as selector:
        for first in range(firstId, firstId + PATIENT_CONNECTIONS * each, each):
            connection = stack.enter_context(Connection(port, ROGUE))
            connection.socket.sendall(b"".join(template.withIds(first + number) for number in range(each)))
            # Hanging up without a farewell, so that the broker does not look at the rest.
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            selector.register(connection.socket, EVENT_READ, connection)
        while (remaining := ends - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                errors, total, _ = key.data.result()
                refused += errors
                admitted += total - errors
    return Rogue(time.monotonic() - began, PATIENT_CONNECTIONS * each, admitted, refused)


def _standBack() -> None:
    """
    Were this another machine, it would not take from the broker's processors.
    """
    os.setpriority(os.PRIO_PROCESS, 0, 10)
