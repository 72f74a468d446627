"""Imitates members that say they read very many topics, and then ask what makes the broker look that up."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestFrame, requestOf
from tests.kit.subscriptions import subscription

MEMBERS = 100
TOPICS = 10_000
SESSION_MS = 60_000
TIMES = sized(5, 40)


class LongSubscriptionsTests(AttackTestCase):
    """One group, whose members have metadata of 300 KB each, and all that a group may take."""

    poolBytes = 64 * MIB
    settings = ("group.max.bytes=64MiB", "max.groups.bytes=128MiB", "group.initial.rebalance.delay.ms=0")

    def test_deleteOffsets(self) -> None:
        """Forty bytes that are about such a group cost no more than others."""
        metadata = subscription(*(f"a-topic-of-{number:017}" for number in range(TOPICS)))
        join = requestOf(
            "JoinGroup",
            3,
            group_id="long",
            session_timeout=SESSION_MS,
            rebalance_timeout=SESSION_MS,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": metadata}],
        )
        clients = [self.connect() for _ in range(MEMBERS)]
        with self.attack("JoinGroup that names many topics"):
            for client in clients:
                client.sendBytes(requestFrame(join, 1))
            self.waitUntilWaiting(clients)
        topics = [{"name": "good", "partitions": [{"partition_index": 0}]}]
        with self.attack("OffsetDelete of their group"), self.connect() as client:
            for _ in range(TIMES):
                answer = client.ask(requestOf("OffsetDelete", 0, group_id="long", topics=topics))
                self.assertEqual(answer.error_code, ErrorCode.none)
        for each in clients:
            each.close()
        self.assertAffordable()
