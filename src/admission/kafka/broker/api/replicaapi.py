# -*- test-case-name: tests.unit.kafka.broker.api.test_replicaapi -*-
"""
What tools ask about replicas, of which each partition has one: ElectLeaders, ListPartitionReassignments,
DescribeLogDirs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import errorOf
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows

from ..broker import Broker
from ..log.interface import Partition
from .topicapi import partitionIn


def electLeaders(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    ElectLeaders: every partition has its leader already, and a client that asks for all of them is told of none, as in
    Kafka.
    """
    wanted: dict[str, dict[int, None]] = {}
    for each in request.entity.topic_partitions or ():
        wanted.setdefault(each.topic, {}).update(dict.fromkeys(each.partitions))

    def described(topicName: str) -> Mapping[str, Any]:
        def elected(index: int) -> Mapping[str, Any]:
            try:
                partitionIn(broker.log.topic(topicName), index)
            except LogRefusal as refusal:
                return {"partition_id": index, **errorOf(refusal)}
            # Clients know what it means.
            return {"partition_id": index, "error_code": ErrorCode.election_not_needed}

        return {"topic": topicName, "partition_result": Rows(list(wanted[topicName]), elected)}

    return {"error_code": ErrorCode.none, "replica_election_results": Rows(list(wanted), described)}


def listPartitionReassignments(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    ListPartitionReassignments: there is no other broker that a partition could move to.
    """
    return {"error_code": ErrorCode.none, "topics": []}


def describeLogDirs(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeLogDirs: the directory of the log, and how much of it each partition takes.
    """
    wanted = request.entity.topics
    partitions: dict[str, list[Partition]] = {}
    if wanted is None:
        partitions = {topic.name: list(topic.partitions) for topic in broker.log.topics.values()}
    else:
        # Each is answered once; what is not there is left out, as in Kafka.
        for each in wanted:
            topic = broker.log.topics.get(each.topic)
            if topic is not None:
                indexes = {index for index in each.partitions if 0 <= index < len(topic.partitions)}
                partitions[each.topic] = [topic.partitions[index] for index in sorted(indexes)]

    def described(topicName: str) -> Mapping[str, Any]:
        return {"name": topicName, "partitions": Rows(partitions[topicName], _sized)}

    path = os.path.abspath(broker.log.path)
    directory: dict[str, Any] = {"log_dir": path, "topics": Rows(list(partitions), described)}
    try:
        room = shutil.disk_usage(path)
    except OSError:
        directory["error_code"] = ErrorCode.kafka_storage_error
    else:
        directory |= {"total_bytes": room.total, "usable_bytes": room.free}
    return {"error_code": ErrorCode.none, "results": [directory]}


def _sized(partition: Partition) -> Mapping[str, Any]:
    return {"partition_index": partition.index, "partition_size": partition.sizeBytes}
