"""Imitates who asks what CreateTopics would do, for as many topics as a request may name, and creates none of them."""

from __future__ import annotations

from tests.kit.attack import AttackTestCase, largest, sized
from tests.kit.costlyrequests import validating


class ValidateOnlyTests(AttackTestCase):
    """CreateTopics with C{validate_only}."""

    def test_manyTopics(self) -> None:
        """A large request that changes nothing is answered in turns, and its answer is charged, or it is refused."""
        topics = [{"name": f"t{number:06d}", "num_partitions": 1, "replication_factor": 1} for number in range(100_000)]
        clients = [self.connect() for _ in range(sized(1, 4))]
        clients[0].ask(validating(topics[:10]))
        count, request = largest(validating, topics)
        with self.attack(f"{len(clients)} CreateTopics of {count} topics, validate_only"):
            answers = self.exchange(clients, request)
        self.require(None not in answers, "a connection is closed")
        for client in clients:
            client.close()
        self.assertAffordable()
