"""Requests that are small or cheap to make and large or costly to answer, for those that imitate attackers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from admission.kafka.wire.versions import METADATA, PRODUCE
from tests.kit.brokerfixture import framed, requestOf

_TOPIC = 2


def _partitioned(count: int, **partition: int) -> list[dict[str, int]]:
    key = "partition_index" if "timestamp" in partition else "partition"
    return [{key: index, **partition} for index in range(count)]


def _indexed(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": "t", "partitions": [{"partition_index": each} for each in range(len(names))]}]


def _resources(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"resource_type": _TOPIC, "resource_name": name} for name in names]


UNKNOWN: Mapping[str, Callable[[Sequence[str]], Any]] = {
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
    "DescribeConfigs": lambda names: requestOf("DescribeConfigs", 4, resources=_resources(names)),
    "IncrementalAlterConfigs": lambda names: requestOf("IncrementalAlterConfigs", 1, resources=_resources(names)),
    "FindCoordinator": lambda names: requestOf("FindCoordinator", 6, key_type=0, coordinator_keys=names),
    "ListOffsets": lambda names: requestOf(
        "ListOffsets", 7, replica_id=-1, topics=[{"name": "t", "partitions": _partitioned(len(names), timestamp=-1)}]
    ),
    "OffsetForLeaderEpoch": lambda names: requestOf(
        "OffsetForLeaderEpoch",
        4,
        replica_id=-1,
        topics=[{"topic": "t", "partitions": _partitioned(len(names), leader_epoch=0)}],
    ),
    "OffsetFetch": lambda names: requestOf(
        "OffsetFetch", 8, groups=[{"group_id": "g", "topics": [{"name": "t", "partition_indexes": range(len(names))}]}]
    ),
    "OffsetCommit": lambda names: requestOf(
        "OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, topics=_indexed(names)
    ),
    "OffsetDelete": lambda names: requestOf("OffsetDelete", 0, group_id="g", topics=_indexed(names)),
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
"""For each API that names things, the request for some that do not exist."""


def validating(topics: Sequence[dict[str, Any]]) -> Any:
    """What would CreateTopics do?"""
    return requestOf("CreateTopics", 7, topics=topics, validate_only=True, timeout=30_000)


def joining(
    group: str, version: int, protocols: Sequence[str], sessionMs: int, rebalanceMs: int, memberId: str = ""
) -> Any:
    """Join a group, with protocols that have names and no more."""
    return requestOf(
        "JoinGroup",
        version,
        group_id=group,
        session_timeout=sessionMs,
        rebalance_timeout=rebalanceMs,
        member_id=memberId,
        protocol_type="consumer",
        protocols=[{"name": name, "metadata": b""} for name in protocols],
    )


def protocolNames(count: int) -> list[str]:
    """As many short names."""
    return [f"{number:03x}"[-3:] for number in range(count)]


def metadataAs(clientId: bytes) -> bytes:
    """The frame of a Metadata request about nothing, by a client that calls itself C{clientId}."""
    return framed(struct.pack(">hhih", METADATA, 1, 1, len(clientId)) + clientId + struct.pack(">i", 0))


def announcing(sizeBytes: int) -> bytes:
    """The beginning of a Produce request of some size, of which nothing else follows."""
    return struct.pack(">ihhih", sizeBytes, PRODUCE, 9, 1, -1)
