"""
Clients beside each other: one that floods the broker, one that waits for each answer, and producers with ids.

C{python -m benchmarks.crowd PORT CLIENT-ID} floods until its standard input is closed.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import randrange

from attrs import frozen

from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.requests import clientApi, encodeRequest

from .broker import produceResponseBytes
from .load import PATIENCE_SECONDS, Client, Cost, batchOf, exchange, produceRequest
from .measure import KIB, wallSeconds
from .servers import PARTITIONS, TOPIC

FLOODERS = 4
FLOODED_BYTES = 16 * KIB
FLOOD_DEPTH = 8
"""How many requests each of the flooding connections keeps in flight."""

FLOOD_ANSWERS = 16
"""After so many it has begun: what a limit lets pass at once has passed."""

_PRODUCE_VERSION = 9
_OVERHEAD_BYTES = 80
_MAX_PRODUCER_IDS = 1 << 62


@frozen
class Timing:
    """
    What a client saw that sends a request when the one before is answered.

    @ivar wallSeconds: from the first request to the last answer.
    @ivar latencySeconds: of each request.
    """

    wallSeconds: float
    latencySeconds: list[float]


def converse(port: int, request: bytes, responseBytes: int, seconds: float) -> Timing:
    """
    Send one request after another on one connection, for some time.
    """
    client = Client(port, request, responseBytes)
    with client.socket as connection:
        connection.settimeout(PATIENCE_SECONDS)
        latencySeconds: list[float] = []
        started = before = wallSeconds()
        while before - started < seconds:
            client.send(1)
            while not client.receive():
                pass
            after = wallSeconds()
            latencySeconds.append(after - before)
            before = after
    return Timing(before - started, latencySeconds)


def produceInSequence(pid: int, port: int, batchBytes: int, responseBytes: int, depth: int, requestCount: int) -> Cost:
    """
    Produce with an id, a new one for each connection, and to each partition by a connection of its own.

    @param requestCount: how many requests to send in all, not counting the first one of each connection.
    """
    requests = [sequence(partition, batchBytes) for partition in range(PARTITIONS)]
    return exchange(pid, port, requests, responseBytes, depth, requestCount)


def sequence(partition: int, batchBytes: int) -> Iterator[bytes]:
    """
    The requests of a producer with an id: no two are the same.
    """
    producerId = randrange(_MAX_PRODUCER_IDS)
    record = Record(value=bytes(batchBytes - _OVERHEAD_BYTES), timestampMs=int(time.time() * 1000))
    for number in count():
        batch = encodeBatch([record], producerId=producerId, producerEpoch=0, baseSequence=number)
        yield produceRequest(TOPIC, partition, batch)


@contextmanager
def flooded(port: int, clientId: str) -> Iterator[None]:
    """
    Have the broker flooded for the duration of a block.

    @raise RuntimeError: if that came to an end before.
    """
    command = [sys.executable, "-m", __name__, str(port), clientId]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        # Either it has begun, or it has ended.
        process.stdout.readline()
        yield
        process.stdin.close()
        if process.wait(PATIENCE_SECONDS):
            raise RuntimeError(f"the flood of {clientId} has failed")


def flood(port: int, clientId: str) -> None:
    """
    Produce on some connections as fast as the broker reads, until standard input ends.
    """
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batchOf(FLOODED_BYTES)}]}
    fields = {"acks": 1, "timeout_ms": 30_000, "topic_data": [data]}
    request = b"".join(encodeRequest(clientApi("Produce"), _PRODUCE_VERSION, 1, clientId, fields))
    made = (Client(port, request, produceResponseBytes()) for _ in range(FLOODERS))
    clients = {client.socket.fileno(): client for client in made}
    answeredCount = 0
    hasBegun = False
    with select.epoll() as epoll:
        epoll.register(sys.stdin, select.EPOLLIN)
        for fileno, client in clients.items():
            client.send(FLOOD_DEPTH)
            epoll.register(fileno, select.EPOLLIN | select.EPOLLOUT)
        while True:
            for fileno, event in epoll.poll(PATIENCE_SECONDS):
                if fileno not in clients:
                    return
                client = clients[fileno]
                again = client.receive() if event & ~select.EPOLLOUT else 0
                answeredCount += again
                isBlocked = not client.send(again)
                epoll.modify(fileno, select.EPOLLIN | (select.EPOLLOUT if isBlocked else 0))
            if answeredCount >= FLOOD_ANSWERS and not hasBegun:
                hasBegun = True
                print("begun", flush=True)


if __name__ == "__main__":
    flood(int(sys.argv[1]), sys.argv[2])
