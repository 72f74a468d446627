"""
Imitates consumers that name as many partitions as a request may, and wait for
records for as long as the protocol can say, which is 24.8 days.
"""

from __future__ import annotations

import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestOf
from tests.kit.rawclient import fetchRequest

WAIT_MS = 2**31 - 1
FETCHES = sized(30, 100)
PARTITIONS = 16_000
"""Such a request has 560 KB."""


class FetchesForeverTests(AttackTestCase):
    """Large Fetches that wait."""

    poolBytes = sized(32, 64) * MIB
    settings = (f"max.partitions={PARTITIONS + 1}",)

    def test_forever(self) -> None:
        """
        What waits is charged with what it holds, and only as many wait as there is memory for; the
        others are answered.
        """
        clients = [self.connect() for _ in range(FETCHES)]
        topic = {"name": "wide", "num_partitions": PARTITIONS, "replication_factor": 1}
        (created,) = clients[0].ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000)).topics
        self.assertFalse(created.error_code)
        clients[0].ask(fetchRequest("wide", 0))
        partitions = [{"partition": index, "partition_max_bytes": MIB} for index in range(PARTITIONS)]
        request = requestOf(
            "Fetch",
            12,
            max_wait=WAIT_MS,
            min_bytes=1,
            max_bytes=2**31 - 1,
            topics=[{"topic": "wide", "partitions": partitions}],
        )
        with self.attack(f"{FETCHES} Fetches of {PARTITIONS} partitions that wait for ever"):
            for client in clients:
                client.send(request)
            self.waitUntilWaiting(clients)
            time.sleep(sized(0.2, 1))
        for client in clients:
            client.close()
        self.assertAffordable()
