"""
Imitates who sends as many requests as it can, on as many connections as one
address may have: each of them is honest, together they want all there is.
"""

from __future__ import annotations

import os
import time
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import batchOf, requestFrame, requestOf
from tests.kit.rawclient import RawClient, produceRequest

SECONDS = sized(1.5, 20.0)
CONNECTIONS = 900
PIPELINED = 20
LARGE_CONNECTIONS = sized(150, 300)


class _Flood:
    """A connection that is always sent the next requests when it has taken the former."""

    def __init__(self, client: RawClient, frames: bytes) -> None:
        self.socket = client.socket
        self.socket.setblocking(False)
        self._frames = memoryview(frames)
        self._sent = 0

    def ready(self, events: int) -> None:
        """@raise OSError: if it is closed."""
        if events & EVENT_READ and not self.socket.recv(MIB):
            raise ConnectionError("the broker has closed it")
        if events & EVENT_WRITE:
            self._sent += self.socket.send(self._frames[self._sent :])
            self._sent %= len(self._frames)


class FloodTests(AttackTestCase):
    """Requests without end, beside a client with small ones."""

    settings = ("max.connections.per.ip=1000",)

    def flood(self, name: str, connections: int, frames: bytes) -> None:
        """Send C{frames} again and again on many connections for some time."""
        clients = [self.connect() for _ in range(connections)]
        with self.attack(f"{connections} connections send {name}"), DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, EVENT_READ | EVENT_WRITE, _Flood(client, frames))
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for key, events in selector.select(SECONDS):
                    try:
                        key.data.ready(events)
                    except BlockingIOError:
                        pass
                    except OSError:
                        selector.unregister(key.fileobj)
            for client in clients:
                client.close()

    def produced(self, sizeBytes: int) -> Any:
        """A request to store so much, with the acknowledgement that does not wait for the disk."""
        return produceRequest("flood", batchOf(os.urandom(sizeBytes)), acks=1)

    def setUp(self) -> None:
        """Its records are removed soon, or the disk would fill."""
        super().setUp()
        configs = [{"name": "segment.bytes", "value": str(64 * MIB)}, {"name": "retention.bytes", "value": "0"}]
        topic = {"name": "flood", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
        with self.connect() as client:
            created = client.ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000))
        self.assertEqual(created.topics[0].error_code, 0)

    def test_large(self) -> None:
        """Of the memory for requests, somebody else has a share."""
        self.flood("Produce of 1 MB", LARGE_CONNECTIONS, requestFrame(self.produced(1_000_000), 1))
        self.assertAffordable()

    def test_produce(self) -> None:
        """So it is with the time."""
        self.flood("Produce of 1 KiB", CONNECTIONS, requestFrame(self.produced(1024), 1) * PIPELINED)
        self.assertAffordable()

    def test_small(self) -> None:
        """Also where there is less to do."""
        request = requestOf("Metadata", 12, topics=[{"topic_id": None, "name": "flood"}])
        self.flood("Metadata of a topic", CONNECTIONS, requestFrame(request, 1) * PIPELINED)
        self.assertAffordable()
