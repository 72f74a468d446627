"""
Imitates who asks a server of one's own for much and reads nothing, or sends it more than it can work on, and is
followed by others that do the same.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.attacks.wrappedserver import LARGE, PIECES, SMALL, WORK
from tests.kit.attack import LATENCY_FLOOR_SECONDS, MIB, WAIT_SECONDS, sized
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.goodclient import HOST, quantile
from tests.kit.longform import isLongForm

POOL_BYTES = 32 * MIB
ANSWER_BYTES = 24 * MIB
BEYOND_BYTES = 64 * MIB
"""How much may be in memory beside the pool and the largest write."""

CLIENTS = sized(20, 60)
SECONDS = sized(2.0, 20.0)
PROMISED_SECONDS = 0.1
_SAMPLED_EVERY_SECONDS = 0.005
_FLOODERS = 8


class WrappedPlacesTests(SynchronousTestCase):
    """A wrapped server, and a client that asks for a byte at a time."""

    def start(self, *quota: str) -> None:
        """Start the server."""
        arguments = (str(POOL_BYTES), str(ANSWER_BYTES), *quota)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.wrappedserver", *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.process.communicate)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def connect(self, host: str) -> socket.socket:
        """A client from an address, closed when the test ends at the latest."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS, (host, 0))
        self.addCleanup(client.close)
        return client

    def anonymousBytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))

    @contextmanager
    def watched(self, name: str, promisedSeconds: float = PROMISED_SECONDS) -> Iterator[list[float]]:
        """
        Watch the memory and the client of good manners during what happens inside; then judge both.

        @return: the latencies so far.
        """
        before = peak = self.anonymousBytes()
        isOver = threading.Event()
        latencies: list[float] = []

        def sample() -> None:
            nonlocal peak
            while not isOver.wait(_SAMPLED_EVERY_SECONDS):
                peak = max(peak, self.anonymousBytes())

        def ask() -> None:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS, (HOST, 0)) as good:
                while not isOver.wait(_SAMPLED_EVERY_SECONDS):
                    begun = time.monotonic()
                    good.sendall(SMALL)
                    assert good.recv(1) == SMALL
                    latencies.append(time.monotonic() - begun)

        threads = [threading.Thread(target=each) for each in (sample, ask)]
        for thread in threads:
            thread.start()
            self.addCleanup(thread.join)
        self.addCleanup(isOver.set)
        yield latencies
        isOver.set()
        for thread in threads:
            thread.join()
        growthBytes = peak - before
        p50, p99, most = (quantile(latencies, each) for each in (0.5, 0.99, 1.0))
        print(
            f"\n{name}: grew {growthBytes / MIB:.1f} MiB; good client p50 p99 max: "
            f"{1000 * p50:.1f} {1000 * p99:.1f} {1000 * most:.1f} ms, {len(latencies)} answers"
        )
        self.assertLess(growthBytes, POOL_BYTES + BEYOND_BYTES + ANSWER_BYTES)
        self.assertGreater(len(latencies), 1)
        self.assertLess(p99, promisedSeconds if isLongForm() else WAIT_SECONDS)

    def unread(self, name: str, asked: bytes, addresses: int = 1, promisedSeconds: float = PROMISED_SECONDS) -> None:
        """
        Have many ask for much and read nothing, and come again when they are cut off.

        @param asked: what each sends.
        @param addresses: from how many addresses they come.
        @param promisedSeconds: the 99th percentile of the client of good manners.
        """
        self.start()
        greedy: list[socket.socket | None] = [None] * CLIENTS
        name = f"{CLIENTS} clients at {addresses} addresses ask a wrapped server for {name}, read nothing"
        with self.watched(name, promisedSeconds):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for number, client in enumerate(greedy):
                    if client is None:
                        client = greedy[number] = self.connect(f"127.0.0.{3 + number % addresses}")
                        client.sendall(asked)
                    elif self.isGone(client):
                        client.close()
                        greedy[number] = None
                time.sleep(LATENCY_FLOOR_SECONDS)

    def isGone(self, client: socket.socket) -> bool:
        """Whether the server has cut a client off: the kernel tells, although nothing is read."""
        return bool(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or not _isEstablished(client)

    def test_unread(self) -> None:
        """
        However many there are, the server has no more in memory than it may, and a client that asks for little is
        answered.
        """
        self.unread("24 MiB", LARGE)

    def test_pipelined(self) -> None:
        """The same if each asks several times at once."""
        # The server makes all of them before it could be told that the peer is gone.
        self.unread("5 times 24 MiB", 5 * LARGE, promisedSeconds=WAIT_SECONDS)

    def test_addresses(self) -> None:
        """The same if they come from many addresses."""
        self.unread("24 MiB", LARGE, addresses=30)

    def test_pieces(self) -> None:
        """The same if what they get is written later, a piece at a time."""
        self.unread("24 MiB in pieces", PIECES)

    def test_flood(self) -> None:
        """A client that sends more than the quota allows does not make the server work on it in long turns."""
        self.start("client-bytes:produce=100k")
        flood = memoryview(WORK * 30_000)
        clients = [self.connect("127.0.0.3") for _ in range(_FLOODERS)]
        sent = [0] * _FLOODERS
        with self.watched(f"{_FLOODERS} connections of a client send a wrapped server more than its quota"):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for number, client in enumerate(clients):
                    client.setblocking(False)
                    try:
                        sent[number] = (sent[number] + client.send(flood[sent[number] :])) % len(flood)
                    except BlockingIOError:
                        pass
                time.sleep(LATENCY_FLOOR_SECONDS)


def _isEstablished(client: socket.socket) -> bool:
    """What the kernel says in C{TCP_INFO} of a connection's state."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1
