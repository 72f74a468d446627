# -*- test-case-name: tests.unit.kafka.broker.api.test_metadataapi -*-
"""
The broker, its APIs and its topics: ApiVersions, Metadata, DescribeCluster,
DescribeTopicPartitions, FindCoordinator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows
from admission.kafka.wire.versions import advertised
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..log.interface import Partition, Topic
from .authorization import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, authorizedOperations
from .onceflushed import NO_TRANSACTIONS, onceFlushed
from .topicapi import createTopic, topicById

_GROUP = 0
_TRANSACTION = 1
_BROKERS = 1
_CONTROLLERS = 2

_FIRST_VERSION_WITHOUT_NAME = 12

_PARTITIONS_IN_PAGE = 2000
"""As in Kafka: how many partitions DescribeTopicPartitions tells of at once, whatever the client would take."""


def apiVersions(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    return {"api_keys": advertised()}


def metadata(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    Metadata: the broker and its topics.  Requested topics that do not exist
    are created if the settings and the client allow it.
    """
    entity = request.entity
    wanted = entity.topics
    created: list[dict[str, Any]] = []
    topics: Rows[Any]
    if wanted is None or (request.apiVersion == 0 and not wanted):
        topics = Rows(list(broker.log.topics.values()), partial(_described, broker, request))
    else:
        # Each is answered once, or a small request could ask for a huge response.
        asked = list(dict.fromkeys(_nameOrId(each) for each in wanted))
        errors: dict[str | None, dict[str, Any]] = {}
        if _mayCreate(broker, request):
            for name, _ in asked:
                yield None
                if name is not None and name not in broker.log.topics:
                    _create(broker, request, name, created, errors)
        topics = Rows(asked, partial(_lookUp, broker, request, errors))
    response = {
        "brokers": [_brokerAt(broker, request)],
        "cluster_id": broker.log.clusterId,
        "controller_id": broker.nodeId,
        "topics": topics,
        **_clusterOperations(broker, request),
    }
    # Clients ask again at once after this error; after others they might not.
    return onceFlushed(broker, request, created, response, ErrorCode.leader_not_available)


def describeCluster(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeCluster: the cluster, which is this broker.
    """
    endpointType = getattr(request.entity, "endpoint_type", _BROKERS)
    if endpointType != _BROKERS:
        isKnown = endpointType == _CONTROLLERS
        errorCode = ErrorCode.mismatched_endpoint_type if isKnown else ErrorCode.unsupported_endpoint_type
        return {
            "error_code": errorCode.value,
            "error_message": "there are no controllers to describe, only this broker",
            "endpoint_type": endpointType,
            "cluster_id": "",
            "controller_id": -1,
            "brokers": [],
        }
    address = _brokerAt(broker, request)
    return {
        "endpoint_type": _BROKERS,
        "cluster_id": broker.log.clusterId,
        "controller_id": broker.nodeId,
        "brokers": [{**address, "broker_id": broker.nodeId}],
        **_clusterOperations(broker, request),
    }


def describeTopicPartitions(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeTopicPartitions: topics by name, page by page.
    """
    entity = request.entity
    names = sorted({each.name for each in entity.topics} or broker.log.topics)
    first = 0
    cursor = entity.cursor
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
        if names and names[0] == cursor.topic_name:
            first = max(cursor.partition_index, 0)
    room = max(1, min(entity.response_partition_limit, _PARTITIONS_IN_PAGE))
    operations = authorizedOperations(broker, request, TOPIC_OPERATIONS)
    topics: list[dict[str, Any]] = []
    following = None
    for name in names:
        if not room:
            following = (name, 0)
            break
        topic = broker.log.topics.get(name)
        if topic is None:
            topics.append({"name": name, "error_code": ErrorCode.unknown_topic_or_partition, "partitions": []})
            continue
        page = topic.partitions[first : first + room]
        partitions = Rows(page, partial(_partitionDescribed, broker))
        topics.append(
            {
                "name": name,
                "topic_id": topic.topicId,
                "partitions": partitions,
                "topic_authorized_operations": operations,
            }
        )
        room -= len(page)
        if first + len(page) < len(topic.partitions):
            following = (name, first + len(page))
            break
        first = 0
    nextCursor = following and {"topic_name": following[0], "partition_index": following[1]}
    return {"topics": topics, "next_cursor": nextCursor}


def findCoordinator(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    FindCoordinator: this broker coordinates all groups.
    """
    entity = request.entity
    keys = entity.coordinator_keys if hasattr(entity, "coordinator_keys") else [entity.key]
    keyType = getattr(entity, "key_type", _GROUP)
    if keyType == _GROUP:
        found = {**_brokerAt(broker, request), "error_code": 0, "error_message": None}
    else:
        found = {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": (NO_TRANSACTIONS if keyType == _TRANSACTION else ErrorCode.invalid_request).value,
            "error_message": "this broker coordinates groups only; it has no transactions",
        }
    return {**found, "coordinators": [{**found, "key": key} for key in keys]}


def _brokerAt(broker: Broker, request: KafkaRequest) -> dict[str, Any]:
    return {"node_id": broker.nodeId, "host": request.advertised.host, "port": request.advertised.port, "rack": None}


def _create(
    broker: Broker,
    request: KafkaRequest,
    name: str,
    created: list[dict[str, Any]],
    errors: dict[str | None, dict[str, Any]],
) -> None:
    """
    Create a topic that a client asked about.

    @param created: gets what becomes an error if the disk does not get the topic; it is in C{errors}, too.
    @param errors: gets why there is no such topic.
    """
    errors[name] = {}
    try:
        createTopic(broker, name, broker.settings.numPartitions, {}, holder=request.connection.holder)
        created.append(errors[name])
    except LogRefusal as refusal:
        errors[name]["error_code"] = refusal.errorCode


def _nameOrId(asked: Any) -> tuple[str | None, UUID | None]:
    """
    The name or else the id that is asked for; older versions have no ids.  Java's clients send an empty name with an
    id.
    """
    topicId = getattr(asked, "topic_id", None)
    if asked.name is None or (not asked.name and topicId is not None):
        return None, topicId
    return asked.name, None


def _lookUp(
    broker: Broker,
    request: KafkaRequest,
    errors: Mapping[str | None, Mapping[str, Any]],
    asked: tuple[str | None, UUID | None],
) -> Mapping[str, Any]:
    name, topicId = asked
    missing: dict[str, Any] = {"name": name, "topic_id": topicId, "partitions": []}
    try:
        if name is None:
            if request.apiVersion < _FIRST_VERSION_WITHOUT_NAME:
                missing["name"] = ""
            return _described(broker, request, topicById(broker, topicId))
        if errors.get(name):
            return {**missing, **errors[name]}
        return _described(broker, request, broker.log.topic(name))
    except LogRefusal as refusal:
        return {**missing, "error_code": refusal.errorCode}


def _mayCreate(broker: Broker, request: KafkaRequest) -> bool:
    return broker.settings.autoCreateTopicsEnable and getattr(request.entity, "allow_auto_topic_creation", True)


def _clusterOperations(broker: Broker, request: KafkaRequest) -> dict[str, int]:
    if not getattr(request.entity, "include_cluster_authorized_operations", False):
        return {}
    return {"cluster_authorized_operations": authorizedOperations(broker, request, CLUSTER_OPERATIONS)}


def _described(broker: Broker, request: KafkaRequest, topic: Topic) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": topic.name,
        "topic_id": topic.topicId,
        "partitions": Rows(topic.partitions, partial(_partitionDescribed, broker)),
    }
    if getattr(request.entity, "include_topic_authorized_operations", False):
        described["topic_authorized_operations"] = authorizedOperations(broker, request, TOPIC_OPERATIONS)
    return described


def _partitionDescribed(broker: Broker, partition: Partition) -> Mapping[str, Any]:
    replicas = [broker.nodeId]
    # Java's clients take no null for the last two.
    return {
        "partition_index": partition.index,
        "leader_id": broker.nodeId,
        "leader_epoch": broker.log.leaderEpoch,
        "replica_nodes": replicas,
        "isr_nodes": replicas,
        "eligible_leader_replicas": [],
        "last_known_elr": [],
    }
