"""Imitates clients that are members of no group and fill the memory of all groups with offsets, which are kept."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestOf
from tests.kit.goodclient import HOST
from tests.kit.rawclient import RawClient, joinGroup

PARTITIONS = 8_000
GROUPS = sized(2_000, 10_000)
MEMORY_BYTES = sized(16, 64) * MIB
TEXT_BYTES = 4096
"""As long as they may be."""


class GreedyOffsetsTests(AttackTestCase):
    """One address that commits offsets."""

    settings = (
        "group.initial.rebalance.delay.ms=0",
        f"group.max.bytes={MEMORY_BYTES}",
        f"max.groups.bytes={MEMORY_BYTES}",
        f"max.groups={GROUPS}",
    )

    def setUp(self) -> None:
        super().setUp()
        with self.connect() as client:
            topic = {"name": "wide", "num_partitions": PARTITIONS, "replication_factor": 1}
            client.ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000))

    def commit(self, client: RawClient, group: str, indexes: range, textBytes: int = 0) -> ErrorCode:
        """Commit without being a member."""
        text = "x" * textBytes
        partitions = [
            {"partition_index": index, "committed_offset": 1, "committed_metadata": text} for index in indexes
        ]
        request = requestOf(
            "OffsetCommit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": "wide", "partitions": partitions}],
        )
        return ErrorCode(client.ask(request).topics[0].partitions[0].error_code)

    def serveOthers(self) -> None:
        """A client at another address joins a group and commits to another one."""
        with RawClient(self.broker.port, host=HOST) as honest:
            joinGroup(honest, "joined")
            self.assertEqual(self.commit(honest, "committed", range(1)), ErrorCode.none)

    def test_longTexts(self) -> None:
        """Texts that are as long as they may be."""
        begin = 0
        with self.attack("offsets with long texts"), self.connect() as client:
            # Then shorter ones, to take the rest.
            for count, textBytes in ((200, TEXT_BYTES), (1, TEXT_BYTES), (1, 0)):
                while self.commit(client, "greedy", range(begin, begin + count), textBytes) is ErrorCode.none:
                    begin += count
        self.serveOthers()
        self.assertAffordable()

    def test_manyGroups(self) -> None:
        """As many groups as there may be."""
        with self.attack("groups of one offset each"), self.connect() as client:
            for group in range(GROUPS):
                self.commit(client, f"greedy {group}", range(1))
        self.serveOthers()
        self.assertAffordable()
