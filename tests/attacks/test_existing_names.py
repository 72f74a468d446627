"""
Imitates a tool that does something with thousands of topics or groups in one
request: each is a small part of the request, and real work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.kit.attack import AttackTestCase, largest, sized
from tests.kit.brokerfixture import batchOf, requestFrame, requestOf

NAMES = sized(5000, 9000)
LIMITED = 300
"""Entities with limits of their own; a request may alter about as many."""

_TOPIC = 2
_SET = 0
_TIMESTAMP_MS = 1


def _topics(names: Sequence[str], key: str, **partition: Any) -> list[dict[str, Any]]:
    return [{key: name, "partitions": [partition]} for name in names]


def _committed(group: str, names: Sequence[str]) -> Any:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return requestOf(
        "OffsetCommit",
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{"name": name, "partitions": [partition]} for name in names],
    )


TOPIC_REQUESTS: Mapping[str, Callable[[Sequence[str]], Any]] = {
    "CreateTopics": lambda names: requestOf(
        "CreateTopics",
        7,
        topics=[{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names],
        timeout=30_000,
    ),
    "Metadata": lambda names: requestOf("Metadata", 12, topics=[{"topic_id": None, "name": name} for name in names]),
    "IncrementalAlterConfigs": lambda names: requestOf(
        "IncrementalAlterConfigs",
        1,
        resources=[
            {
                "resource_type": _TOPIC,
                "resource_name": name,
                "configs": [{"name": "retention.ms", "config_operation": _SET, "value": "86400000"}],
            }
            for name in names
        ],
    ),
    "Produce": lambda names: requestOf(
        "Produce",
        9,
        acks=1,
        timeout=1000,
        topic_data=[{"name": name, "partition_data": [{"index": 0, "records": batchOf(b"v")}]} for name in names],
    ),
    "Produce again": lambda names: TOPIC_REQUESTS["Produce"](names),
    "Fetch": lambda names: requestOf(
        "Fetch", 12, max_bytes=2**31 - 1, topics=_topics(names, "topic", partition=0, partition_max_bytes=1 << 20)
    ),
    "ListOffsets": lambda names: requestOf(
        "ListOffsets", 7, replica_id=-1, topics=_topics(names, "name", partition_index=0, timestamp=_TIMESTAMP_MS)
    ),
    "OffsetForLeaderEpoch": lambda names: requestOf(
        "OffsetForLeaderEpoch", 4, replica_id=-1, topics=_topics(names, "topic", partition=0, current_leader_epoch=-1)
    ),
    "OffsetCommit": lambda names: _committed("many", names),
    "OffsetFetch": lambda names: requestOf(
        "OffsetFetch",
        8,
        groups=[{"group_id": "many", "topics": [{"name": name, "partition_indexes": [0]} for name in names]}],
    ),
    "OffsetDelete": lambda names: requestOf(
        "OffsetDelete", 0, group_id="many", topics=_topics(names, "name", partition_index=0)
    ),
    "CreatePartitions": lambda names: requestOf(
        "CreatePartitions",
        3,
        topics=[{"name": name, "count": 2, "assignments": None} for name in names],
        timeout=30_000,
    ),
    "DeleteTopics": lambda names: requestOf("DeleteTopics", 5, topic_names=names, timeout=30_000),
    "Metadata that creates": lambda names: requestOf(
        "Metadata",
        12,
        topics=[{"topic_id": None, "name": name} for name in names],
        allow_auto_topic_creation=True,
    ),
}
"""In this order, since each needs what those before it have made."""

GROUP_REQUESTS: Mapping[str, Callable[[Sequence[str]], Any]] = {
    "ListGroups": lambda names: requestOf("ListGroups", 4),
    "DescribeGroups": lambda names: requestOf("DescribeGroups", 5, groups=names),
    "DeleteGroups": lambda names: requestOf("DeleteGroups", 2, groups_names=names),
}


class ExistingNamesTests(AttackTestCase):
    """Large requests about what there is."""

    settings = ("max.topics=20000", "max.partitions=40000")

    def askEach(self, requests: Mapping[str, Callable[[Sequence[str]], Any]], names: Sequence[str]) -> None:
        """Send one of each with all C{names}; the first of them has been used before."""
        for api, requestFor in requests.items():
            count, request = largest(requestFor, names) if api in TOPIC_REQUESTS else (len(names), requestFor(names))
            with self.attack(f"{api} of {count} names"):
                with self.connect() as client:
                    (answer,) = self.exchange([client], request)
            self.require(answer is not None, f"{api} closes the connection")
        self.assertAffordable()

    def test_topics(self) -> None:
        """What is done with thousands of topics is done in turns."""
        with self.connect() as client:
            for requestFor in TOPIC_REQUESTS.values():
                self.exchange([client], requestFor(["warm"]))
        self.askEach(TOPIC_REQUESTS, [f"t{number:05d}" for number in range(NAMES)])

    def test_groups(self) -> None:
        """So is what is done with groups."""
        names = [f"g{number:05d}" for number in range(NAMES)]
        with self.connect() as client:
            client.createTopic("one")
            for begin in range(0, NAMES, 100):
                client.sendBytes(
                    b"".join(requestFrame(_committed(name, ["one"]), 1) for name in names[begin : begin + 100])
                )
                for _ in range(100):
                    client.receiveFrame()
            for requestFor in GROUP_REQUESTS.values():
                self.exchange([client], requestFor(["warm"]))
        self.askEach(GROUP_REQUESTS, names)

    def test_limits(self) -> None:
        """So is what is done with the limits of many clients."""
        operation = {"key": "producer_byte_rate", "value": 1e6, "remove": False}
        self.askEach(
            {
                "AlterClientQuotas": lambda names: requestOf(
                    "AlterClientQuotas",
                    1,
                    entries=[
                        {"entity": [{"entity_type": "client-id", "entity_name": name}], "ops": [operation]}
                        for name in names
                    ],
                    validate_only=False,
                ),
                "DescribeClientQuotas": lambda names: requestOf("DescribeClientQuotas", 1, components=[]),
            },
            [f"c{number:05d}" for number in range(LIMITED)],
        )
