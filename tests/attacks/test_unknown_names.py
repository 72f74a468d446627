"""
Imitates who asks about, or wants removed, as many things that do not exist as
a request may name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.kit.attack import AttackTestCase, largest, sized
from tests.kit.brokerfixture import requestOf

CONNECTIONS = sized(1, 8)

_TOPIC = 2


def _partitioned(count: int, **partition: int) -> list[dict[str, int]]:
    key = "partition_index" if "timestamp" in partition else "partition"
    return [{key: index, **partition} for index in range(count)]


REQUESTS: Mapping[str, Callable[[Sequence[str]], Any]] = {
    "Metadata": lambda names: requestOf(
        "Metadata", 12, topics=[{"topic_id": None, "name": name} for name in names], allow_auto_topic_creation=False
    ),
    "DescribeGroups": lambda names: requestOf("DescribeGroups", 6, groups=names),
    "DeleteGroups": lambda names: requestOf("DeleteGroups", 2, groups_names=names),
    "DeleteTopics": lambda names: requestOf("DeleteTopics", 5, topic_names=names, timeout=30_000),
    "CreatePartitions": lambda names: requestOf(
        "CreatePartitions",
        3,
        topics=[{"name": name, "count": 2, "assignments": None} for name in names],
        timeout=30_000,
    ),
    "DescribeConfigs": lambda names: requestOf(
        "DescribeConfigs", 4, resources=[{"resource_type": _TOPIC, "resource_name": name} for name in names]
    ),
    "IncrementalAlterConfigs": lambda names: requestOf(
        "IncrementalAlterConfigs", 1, resources=[{"resource_type": _TOPIC, "resource_name": name} for name in names]
    ),
    "FindCoordinator": lambda names: requestOf("FindCoordinator", 6, key_type=0, coordinator_keys=names),
    "ListOffsets": lambda names: requestOf(
        "ListOffsets",
        7,
        replica_id=-1,
        topics=[{"name": "t", "partitions": _partitioned(len(names), timestamp=-1)}],
    ),
    "OffsetForLeaderEpoch": lambda names: requestOf(
        "OffsetForLeaderEpoch",
        4,
        replica_id=-1,
        topics=[{"topic": "t", "partitions": _partitioned(len(names), leader_epoch=0)}],
    ),
    "OffsetFetch": lambda names: requestOf(
        "OffsetFetch",
        8,
        groups=[{"group_id": "g", "topics": [{"name": "t", "partition_indexes": range(len(names))}]}],
    ),
    "OffsetCommit": lambda names: requestOf(
        "OffsetCommit",
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[{"name": "t", "partitions": [{"partition_index": each} for each in range(len(names))]}],
    ),
    "OffsetDelete": lambda names: requestOf(
        "OffsetDelete",
        0,
        group_id="g",
        topics=[{"name": "t", "partitions": [{"partition_index": each} for each in range(len(names))]}],
    ),
    "LeaveGroup": lambda names: requestOf(
        "LeaveGroup", 5, group_id="g", members=[{"member_id": name} for name in names]
    ),
    "Fetch": lambda names: requestOf(
        "Fetch",
        12,
        max_wait=100,
        max_bytes=2**31 - 1,
        topics=[{"topic": "t", "partitions": _partitioned(len(names), fetch_offset=0)}],
    ),
    "Produce": lambda names: requestOf(
        "Produce",
        9,
        acks=-1,
        timeout=1000,
        topic_data=[{"name": "t", "partition_data": [{"index": index, "records": b""} for index in range(len(names))]}],
    ),
}
"""For each API that names things, the request for some."""


class UnknownNamesTests(AttackTestCase):
    """
    Large requests about nothing.
    """

    def test_unknown(self) -> None:
        """
        Each is answered in turns, and its answer is charged, or it is refused.
        """
        names = [f"u{number:08d}" for number in range(100_000)]
        for api, requestFor in REQUESTS.items():
            clients = [self.connect() for _ in range(CONNECTIONS)]
            self.assertNotEqual(self.exchange(clients[:1], requestFor(names[:1])), [None], api)
            count, request = largest(requestFor, names)
            with self.attack(f"{CONNECTIONS} {api} of {count} unknown names"):
                answers = self.exchange(clients, request)
            self.require(None not in answers, f"{api} of {count} names closes the connection")
            for client in clients:
                client.close()
        self.assertAffordable()
