"""
Imitates many consumers of one partition that all wait at its end: a single
large record wakes them all at once, and is read for each of them.
"""

from __future__ import annotations

import time
from selectors import EVENT_READ, DefaultSelector

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import batchOf
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.rawclient import RawClient, fetchRequest

FETCHES = sized(250, 900)
RECORD_BYTES = 1_000_000
WAIT_MS = 60_000


class WokenFetchesTests(AttackTestCase):
    """Small Fetches that one record ends."""

    poolBytes = sized(32, 64) * MIB

    def setUp(self) -> None:
        super().setUp()
        self.clients = [self.connect() for _ in range(FETCHES)]
        self.clients[0].createTopic("one")
        self.produce(b"warm")
        self.clients[0].ask(fetchRequest("one", 0))

    def produce(self, value: bytes) -> None:
        """Have a record stored."""
        with self.connect() as producer:
            error, _ = producer.produce("one", batchOf(value))
            self.assertFalse(error)

    def wake(self) -> None:
        """Have all of them wait, and then a record come."""
        for client in self.clients:
            client.send(fetchRequest("one", 1, waitMs=WAIT_MS))
        self.waitUntilWaiting(self.clients)
        self.produce(bytes(RECORD_BYTES))

    def end(self) -> None:
        """Hang up, and say what it has cost."""
        for client in self.clients:
            client.close()
        self.assertAffordable()

    def test_unread(self) -> None:
        """The record is read for as many as there is memory for, also if nobody takes it."""
        with self.attack(f"{FETCHES} Fetches get a record of {RECORD_BYTES} bytes and do not read it"):
            self.wake()
            time.sleep(sized(0.2, 5))
        self.end()

    def test_read(self) -> None:
        """If all take it, all get it."""
        with self.attack(f"{FETCHES} Fetches get a record of {RECORD_BYTES} bytes and read it"):
            self.wake()
            received = _receivedBytes(self.clients)
        self.require(min(received) > RECORD_BYTES, "one was closed or got nothing")
        self.end()


def _receivedBytes(clients: list[RawClient]) -> list[int]:
    """Read what comes, until each of C{clients} has a record or is closed."""
    received = [0] * len(clients)
    with DefaultSelector() as selector:
        for index, client in enumerate(clients):
            selector.register(client.socket, EVENT_READ, index)
        while selector.get_map():
            ready = selector.select(PATIENCE_SECONDS)
            assert ready, f"nothing comes any more: {received}"
            for key, _ in ready:
                try:
                    chunk = clients[key.data].socket.recv(MIB)
                except ConnectionError:
                    chunk = b""
                received[key.data] += len(chunk)
                if not chunk or received[key.data] > RECORD_BYTES:
                    selector.unregister(key.fileobj)
    return received
