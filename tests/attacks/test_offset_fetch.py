"""Imitates a tool that asks for all offsets of a group that has very many: 30 bytes ask for megabytes."""

from __future__ import annotations

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestOf

OFFSETS = sized(20_000, 100_000)
COMMITTED_AT_A_TIME = 10_000
GROUP = "attacked"


class OffsetFetchTests(AttackTestCase):
    """OffsetFetch of everything."""

    settings = (
        f"max.partitions={OFFSETS + 1}",
        f"group.max.bytes={128 * MIB}",
        f"max.groups.bytes={128 * MIB}",
    )

    def test_everything(self) -> None:
        """The answer is made in turns, and charged, or the request is refused."""
        clients = [self.connect() for _ in range(sized(4, 8))]
        topic = {"name": "wide", "num_partitions": OFFSETS, "replication_factor": 1}
        (created,) = clients[0].ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000)).topics
        self.assertEqual(created.error_code, 0)
        for begin in range(0, OFFSETS, COMMITTED_AT_A_TIME):
            partitions = [
                {"partition_index": index, "committed_offset": 1, "committed_metadata": ""}
                for index in range(begin, begin + COMMITTED_AT_A_TIME)
            ]
            answer = clients[0].ask(
                requestOf(
                    "OffsetCommit",
                    8,
                    group_id=GROUP,
                    generation_id_or_member_epoch=-1,
                    topics=[{"name": "wide", "partitions": partitions}],
                )
            )
            self.assertEqual({each.error_code for each in answer.topics[0].partitions}, {0})
        warm, request = (
            requestOf("OffsetFetch", 8, groups=[{"group_id": group, "topics": None}]) for group in ("another", GROUP)
        )
        clients[0].ask(warm)
        with self.attack(f"{len(clients)} OffsetFetch of {OFFSETS} offsets"):
            self.exchange(clients, request)
        for client in clients:
            client.close()
        self.assertAffordable()
