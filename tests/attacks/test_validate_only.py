"""
Imitates who asks what CreateTopics would do, for as many topics as a request
may name, and creates none of them.
"""

from __future__ import annotations

from tests.kit.attack import AttackTestCase, sized
from tests.kit.brokerfixture import requestOf

REQUEST_BYTES = 700_000
TOPIC_BYTES = 16
"""What one takes in the request."""


class ValidateOnlyTests(AttackTestCase):
    """
    CreateTopics with C{validate_only}.
    """

    def test_manyTopics(self) -> None:
        """
        A request of 700 KB that changes nothing is answered in turns, and its answer is charged, or it is refused.
        """
        topics = [
            {"name": f"t{number:06d}", "num_partitions": 1, "replication_factor": 1}
            for number in range(REQUEST_BYTES // TOPIC_BYTES)
        ]
        warm, request = (
            requestOf("CreateTopics", 7, topics=each, validate_only=True, timeout=30_000)
            for each in (topics[:10], topics)
        )
        clients = [self.connect() for _ in range(sized(1, 4))]
        clients[0].ask(warm)
        with self.attack(f"{len(clients)} CreateTopics of {len(topics)} topics, validate_only"):
            self.exchange(clients, request)
        for client in clients:
            client.close()
        self.assertAffordable()
