"""
Loads for the servers, to be run in a process of its own: see L{Loader}.
"""

from __future__ import annotations

import pickle
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import Any, TypeVar, cast

from attrs import frozen
from crc32c import crc32c

from admission.kafka.wire.batches import HEADER_BYTES, Record, encodeBatch
from admission.kafka.wire.primitives import FLEXIBLE, NO_TAGS

from .measure import cpuSecondsOf, wallSeconds

PATIENCE_SECONDS = 120.0

_LENGTH = Struct(">i")
_HEADER = Struct(">hhi")
_ACKS_AND_TIMEOUT = Struct(">hi")
_FETCH_BEGIN = Struct(">iiiibii")
_FETCH_PARTITION = Struct(">iiqiqi")
_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CLIENT = b"\x00\x09benchmark"
_PRODUCE_VERSION = 9
_FETCH_VERSION = 12

T = TypeVar("T")


@frozen
class Cost:
    """
    What some work took.

    @ivar cpuSeconds: of the server.
    @ivar wallSeconds: from the first byte sent to the last one received.
    """

    cpuSeconds: float
    wallSeconds: float


def batchOf(sizeBytes: int, producerId: int = -1) -> bytes:
    """
    A record batch of exactly C{sizeBytes}, with one record.

    @param producerId: of an idempotent producer, whose first batch it is.
    """
    number = 0 if producerId >= 0 else -1
    # Records of now, since retention would remove older ones in the middle of a measurement.
    timestampMs = int(time.time() * 1000)

    def batchWith(valueBytes: int) -> bytes:
        records = [Record(value=bytes(valueBytes), timestampMs=timestampMs)]
        return encodeBatch(records, producerId=producerId, producerEpoch=number, baseSequence=number)

    valueBytes = sizeBytes - 80
    batch = batchWith(valueBytes + sizeBytes - len(batchWith(valueBytes)))
    assert len(batch) == sizeBytes, f"a batch of {sizeBytes} bytes came out with {len(batch)}"
    return batch


def compressedWith(codec: int, compress: Callable[[bytes], bytes], batch: bytes) -> bytes:
    """
    A batch with its records compressed.
    """
    changed = bytearray(batch[:HEADER_BYTES] + compress(batch[HEADER_BYTES:]))
    changed[22] |= codec
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def produceRequest(topic: str, partition: int, records: bytes) -> bytes:
    """
    A Produce request with one batch, its length prefix included.  It wants to be answered when the batch is committed;
    waiting for the disk would measure the disk.
    """
    body = b"".join(
        [
            _HEADER.pack(0, _PRODUCE_VERSION, 1),
            _CLIENT,
            NO_TAGS,
            FLEXIBLE.string(None),
            _ACKS_AND_TIMEOUT.pack(1, 30_000),
            FLEXIBLE.length(1),
            FLEXIBLE.string(topic),
            FLEXIBLE.length(1),
            _LENGTH.pack(partition),
            FLEXIBLE.length(len(records)),
            records,
            NO_TAGS * 3,
        ]
    )
    return _LENGTH.pack(len(body)) + body


def fetchRequest(topic: str, partition: int, offset: int, maxBytes: int) -> bytes:
    """
    A Fetch request that does not wait, its length prefix included.
    """
    body = b"".join(
        [
            _HEADER.pack(1, _FETCH_VERSION, 1),
            _CLIENT,
            NO_TAGS,
            _FETCH_BEGIN.pack(-1, 0, 1, maxBytes, 0, 0, -1),
            FLEXIBLE.length(1),
            FLEXIBLE.string(topic),
            FLEXIBLE.length(1),
            _FETCH_PARTITION.pack(partition, -1, offset, -1, -1, maxBytes),
            NO_TAGS * 2,
            FLEXIBLE.length(0),
            FLEXIBLE.string(""),
            NO_TAGS,
        ]
    )
    return _LENGTH.pack(len(body)) + body


def ask(port: int, request: bytes) -> bytes:
    """
    The response to one request, without its length prefix.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(request)
        stream = connection.makefile("rb")
        (sizeBytes,) = _LENGTH.unpack(stream.read(4))
        return stream.read(sizeBytes)


class Client:
    """
    One connection that sends the same request again and again, or one after another.

    @ivar unsent: what the kernel has not taken yet.
    """

    def __init__(self, port: int, request: bytes | Iterator[bytes], responseBytes: int) -> None:
        """
        @param request: the request, or requests as many as will be sent.
        @param responseBytes: how long every response must be, without its length prefix.
        """
        requests = repeat(request) if isinstance(request, bytes) else request
        self._requests = (memoryview(each) for each in requests)
        self._prefix = _LENGTH.pack(responseBytes)
        self._frameBytes = 4 + responseBytes
        self._received = bytearray()
        self._due = 0
        self.unsent = memoryview(b"")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    def send(self, count: int = 0) -> bool:
        """
        Send C{count} more requests, behind those that are due already.

        @return: whether the kernel has taken all of them.
        """
        self._due += count
        while self.unsent or self._due:
            if not self.unsent:
                self._due -= 1
                self.unsent = next(self._requests)
            try:
                sentBytes = self.socket.send(self.unsent)
            except BlockingIOError:
                return False
            self.unsent = self.unsent[sentBytes:]
        return True

    def receive(self) -> int:
        """
        Read what has come.

        @return: how many responses that completes.
        @raise ConnectionError: if the connection is closed, or a response is not what it must be.
        """
        received, count = self._received, 0
        received += self.read()
        while len(received) >= 4:
            if not received.startswith(self._prefix):
                raise ConnectionError(f"a response is not as long as it must be: {bytes(received[:80])!r}")
            if len(received) < self._frameBytes:
                break
            del received[: self._frameBytes]
            count += 1
        return count

    def read(self) -> bytes:
        """
        @return: what has come, if anything has.
        @raise ConnectionError: if the connection is closed.
        """
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionError("the server has closed the connection")
        return data


class Visitor(Client):
    """
    One connection that speaks HTTP/1.1.
    """

    def __init__(self, port: int, request: bytes, answers: int, status: int) -> None:
        """
        @param request: one request, or several that are sent together.
        @param answers: how many.
        @param status: of every answer.
        """
        super().__init__(port, request, 0)
        self._answers = answers
        self._status = b"HTTP/1.1 %d " % status
        self._answered = 0

    def receive(self) -> int:
        received = bytes(self._received) + self.read()
        while True:
            head, separator, rest = received.partition(b"\r\n\r\n")
            if not head.startswith(self._status[: len(head)]):
                raise ConnectionError(f"an answer is not {self._status!r}: {head!r}")
            length = _CONTENT_LENGTH.search(head)
            if not separator or length is None or len(rest) < int(length[1]):
                break
            received = rest[int(length[1]) :]
            self._answered += 1
        self._received = bytearray(received)
        completed, self._answered = divmod(self._answered, self._answers)
        return completed


def exchange(
    pid: int, port: int, requests: Sequence[bytes | Iterator[bytes]], responseBytes: int, depth: int, count: int
) -> Cost:
    """
    Send requests, each connection its own, and await all responses.

    @param pid: the process whose CPU time counts.
    @param requests: for each connection what L{Client} sends.
    @param responseBytes: how long every response must be, without its length prefix.
    @param depth: how many requests each connection keeps in flight.
    @param count: how many requests to send in all, not counting the first one of each connection.
    """
    return _measured(pid, [Client(port, each, responseBytes) for each in requests], depth, count)


def visit(pid: int, port: int, request: bytes, together: int, status: int, connections: int, count: int) -> Cost:
    """
    Send an HTTP request again and again, some on one connection together, and await their answers before the next.

    @param pid: the process whose CPU time counts.
    @param together: how many requests are sent together.
    @param status: of every answer.
    @param count: how many requests to send in all, not counting the first ones of each connection.
    """
    visitors = [Visitor(port, request * together, together, status) for _ in range(connections)]
    return _measured(pid, visitors, 1, count // together)


def _measured(pid: int, connections: Sequence[Client], depth: int, count: int) -> Cost:
    clients = {client.socket.fileno(): client for client in connections}
    try:
        # The first request of a connection pays for making it.
        _exchange(clients, 1, len(clients))
        cpu, started = cpuSecondsOf(pid), wallSeconds()
        _exchange(clients, depth, count)
        elapsed = wallSeconds() - started
        return Cost(cpuSecondsOf(pid) - cpu, elapsed)
    finally:
        for client in clients.values():
            client.socket.close()


def _exchange(clients: dict[int, Client], depth: int, count: int) -> None:
    unsent = count
    awaited = count
    with select.epoll() as epoll:
        for fileno, client in clients.items():
            epoll.register(fileno, select.EPOLLIN)
            first = min(depth, unsent)
            unsent -= first
            if not client.send(first):
                epoll.modify(fileno, select.EPOLLIN | select.EPOLLOUT)
        while awaited:
            events = epoll.poll(PATIENCE_SECONDS)
            if not events:
                raise TimeoutError(f"{awaited} responses are missing")
            for fileno, event in events:
                client = clients[fileno]
                completed = client.receive() if event & ~select.EPOLLOUT else 0
                awaited -= completed
                again = min(completed, unsent)
                unsent -= again
                wasBlocked = bool(client.unsent)
                isBlocked = not client.send(again)
                if isBlocked != wasBlocked:
                    epoll.modify(fileno, select.EPOLLIN | (select.EPOLLOUT if isBlocked else 0))


def stream(pid: int, port: int, frame: bytes, count: int) -> Cost:
    """
    Send a frame many times on one connection, and wait until the server has closed it.
    """
    together = frame * max(1, min(count, (1 << 20) // len(frame)))
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        cpu, started = cpuSecondsOf(pid), wallSeconds()
        for _ in range(count * len(frame) // len(together)):
            connection.sendall(together)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1):
            raise ConnectionError("nothing was asked, and something was answered")
        elapsed = wallSeconds() - started
        return Cost(cpuSecondsOf(pid) - cpu, elapsed)


def confluentProduce(pid: int, port: int, topic: str, sizeBytes: int, count: int, isIdempotent: bool) -> Cost:
    """
    Have librdkafka send messages, each in a request of its own; idempotent ones wait for the disk.
    """
    from confluent_kafka import Producer

    failures: list[str] = []

    def delivered(error: Any, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "enable.idempotence": isIdempotent,
            "acks": "all" if isIdempotent else 1,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "message.max.bytes": 2 << 20,
        }
    )

    def send(messages: int) -> None:
        for number in range(messages):
            producer.produce(topic, bytes(sizeBytes), partition=number % 8, on_delivery=delivered)
        unsent = producer.flush(PATIENCE_SECONDS)
        if unsent or failures:
            raise ConnectionError(f"{unsent} messages were not delivered; {failures[:1]}")

    send(8)
    cpu, started = cpuSecondsOf(pid), wallSeconds()
    send(count)
    elapsed = wallSeconds() - started
    return Cost(cpuSecondsOf(pid) - cpu, elapsed)


class Loader:
    """
    Runs loads, one after another, in a process of its own, for the duration of a block.
    """

    def __enter__(self) -> Loader:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def run(self, load: Callable[..., T], *arguments: object) -> T:
        """
        @param load: one of this module's functions.
        @return: what it returns; raises what it raises.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        pickle.dump((load, arguments), stdin)
        stdin.flush()
        result = pickle.load(stdout)
        if isinstance(result, Exception):
            raise result
        return cast(T, result)


def serve() -> None:
    """
    The other process of a L{Loader}: ends with its standard input.
    """
    while True:
        try:
            load, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = load(*arguments)
        except Exception as error:
            result = error
        pickle.dump(result, sys.stdout.buffer)
        sys.stdout.flush()
