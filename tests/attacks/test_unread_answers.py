"""Imitates who asks for much at many addresses, and waits, or reads next to nothing."""

from __future__ import annotations

import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import batchOf, requestOf
from tests.kit.rawclient import fetchRequest, produceRequest

ADDRESSES = 6
WIDE_CLIENTS = sized(60, 300)
PARTITIONS = sized(3_000, 9_000)
READERS = sized(40, 200)
SECONDS = sized(3.0, 20.0)
RECORDS, RECORD_BYTES = 500, 100_000
FETCH_BYTES = sized(4, 50) * MIB
_BEYOND = 10**9
"""An offset that no partition has."""


class WideAnswersTests(AttackTestCase):
    """Answers about many partitions, beside a client that fetches a record at a time."""

    poolBytes = 64 * MIB
    settings = (f"max.partitions={PARTITIONS + 10}",)

    def test_wide(self) -> None:
        """However many large answers wait for memory, a small one does not wait for them."""
        with self.connect() as client:
            topic = {"name": "wide", "num_partitions": PARTITIONS, "replication_factor": 1}
            (created,) = client.ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000)).topics
            self.assertFalse(created.error_code)
        wanted = [
            {"partition": index, "fetch_offset": _BEYOND, "partition_max_bytes": MIB} for index in range(PARTITIONS)
        ]
        request = requestOf(
            "Fetch",
            12,
            max_wait=60_000,
            min_bytes=1 << 30,
            max_bytes=2**31 - 1,
            topics=[{"topic": "wide", "partitions": wanted}],
        )
        clients = [self.connect(host=f"127.0.0.{3 + number % ADDRESSES}") for number in range(WIDE_CLIENTS)]
        with self.attack(f"{WIDE_CLIENTS} Fetches of {PARTITIONS} partitions from {ADDRESSES} addresses"):
            for client in clients:
                client.send(request)
            time.sleep(SECONDS)
        for client in clients:
            client.close()
        self.assertAffordable()


class SlowReadersTests(AttackTestCase):
    """Answers that hold all memory because nobody reads them."""

    def test_slowReaders(self) -> None:
        """A small answer does not wait for them either."""
        with self.connect() as client:
            client.createTopic("large")
            for _ in range(RECORDS):
                (stored,) = client.ask(produceRequest("large", batchOf(bytes(RECORD_BYTES)))).responses
                self.assertFalse(stored.partition_responses[0].error_code)
        clients = [
            self.connect(host=f"127.0.0.{3 + number % ADDRESSES}", receiveBufferBytes=4096) for number in range(READERS)
        ]
        with self.attack(f"{READERS} Fetches of {FETCH_BYTES // MIB} MiB from {ADDRESSES} addresses, hardly read"):
            for client in clients:
                client.send(fetchRequest("large", 0, maxBytes=FETCH_BYTES))
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(1)
                for client in clients:
                    client.socket.setblocking(False)
                    try:
                        client.socket.recv(1)
                    except OSError:
                        pass
        for client in clients:
            client.close()
        self.assertAffordable()
