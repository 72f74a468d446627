"""
Imitates consumers that wait for very much in thousands of partitions each, while records come to one of them: each
consumer that waits was examined whole each time.
"""

from __future__ import annotations

from tests.kit.attack import AttackTestCase, sized
from tests.kit.brokerfixture import requestOf

PARTITIONS = sized(4000, 10_000)
WATCHERS = sized(10, 100)
WAIT_MS = sized(1500, 12_000)


class WatchedPartitionsTests(AttackTestCase):
    """Fetches of many partitions that wait."""

    settings = (f"max.partitions={PARTITIONS + 1}",)

    def test_recordsOfOne(self) -> None:
        """Records for one partition cost those who watch it the same, however many others they watch."""
        clients = [self.connect() for _ in range(WATCHERS)]
        topic = {"name": "wide", "num_partitions": PARTITIONS, "replication_factor": 1}
        (created,) = clients[0].ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000)).topics
        self.assertEqual(created.error_code, 0)
        wide = [{"partition": index, "partition_max_bytes": 1 << 20} for index in range(PARTITIONS)]
        request = requestOf(
            "Fetch",
            12,
            max_wait=WAIT_MS,
            min_bytes=1 << 30,
            max_bytes=2**31 - 1,
            topics=[
                {"topic": "wide", "partitions": wide},
                # The client of good manners stores its records there.
                {
                    "topic": "good",
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**31 - 1}],
                },
            ],
        )
        with self.attack(f"{WATCHERS} Fetches that wait for records in {PARTITIONS} partitions"):
            self.exchange(clients, request)
        for client in clients:
            client.close()
        self.assertAffordable()
