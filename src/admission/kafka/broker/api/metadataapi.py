# -*- test-case-name: tests.unit.kafka.broker.api.test_metadataapi -*-
"""
The broker, its APIs and its topics: ApiVersions, Metadata, DescribeCluster,
FindCoordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.kafkarequest import KafkaRequest
from admission.kafka.wire.versions import advertised

from ..broker import Answer, Broker, Work
from ..log.interface import LogRefusal, Topic, UnknownTopic
from .refusals import onceFlushed
from .topicapi import createTopic, topicById

_GROUP = 0
_BROKERS = 1
_CONTROLLERS = 2

_FIRST_VERSION_WITHOUT_NAME = 12


def apiVersions(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    return {"api_keys": advertised()}


def metadata(broker: Broker, request: KafkaRequest) -> Answer | Deferred[Answer | Work]:
    """
    Metadata: the broker and its topics.  Requested topics that do not exist
    are created if the settings and the client allow it.
    """
    entity = request.entity
    wanted = entity.topics
    created: list[dict[str, Any]] = []
    if wanted is None or (request.apiVersion == 0 and not wanted):
        topics = [_described(broker, topic) for topic in broker.log.topics.values()]
    else:
        # Each once, or a small request could ask for a huge response.
        asked = dict.fromkeys((each.name, None if each.name is not None else each.topic_id) for each in wanted)
        topics = [_lookUp(broker, request, name, topicId, created) for name, topicId in asked]
    response = {
        "brokers": [_brokerAt(broker, request)],
        "cluster_id": broker.log.clusterId,
        "controller_id": broker.nodeId,
        "topics": topics,
    }
    return onceFlushed(broker.log, created, response)


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
    }


def findCoordinator(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    FindCoordinator: this broker coordinates all groups.
    """
    entity = request.entity
    keys = entity.coordinator_keys if hasattr(entity, "coordinator_keys") else [entity.key]
    if getattr(entity, "key_type", _GROUP) == _GROUP:
        found = {**_brokerAt(broker, request), "error_code": 0, "error_message": None}
    else:
        found = {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": ErrorCode.invalid_request.value,
            "error_message": "this broker coordinates groups only; it has no transactions",
        }
    return {**found, "coordinators": [{**found, "key": key} for key in keys]}


def _brokerAt(broker: Broker, request: KafkaRequest) -> dict[str, Any]:
    return {"node_id": broker.nodeId, "host": request.advertised.host, "port": request.advertised.port, "rack": None}


def _lookUp(
    broker: Broker, request: KafkaRequest, name: str | None, topicId: UUID | None, created: list[dict[str, Any]]
) -> dict[str, Any]:
    missing: dict[str, Any] = {"name": name, "topic_id": topicId, "partitions": []}
    try:
        if name is None:
            if request.apiVersion < _FIRST_VERSION_WITHOUT_NAME:
                missing["name"] = ""
            return _described(broker, topicById(broker, topicId))
        try:
            return _described(broker, broker.log.topic(name))
        except UnknownTopic:
            if not _mayCreate(broker, request):
                raise
        created.append(_described(broker, createTopic(broker, name, broker.settings.numPartitions, {})))
        return created[-1]
    except LogRefusal as refusal:
        return {**missing, "error_code": refusal.errorCode}


def _mayCreate(broker: Broker, request: KafkaRequest) -> bool:
    return broker.settings.autoCreateTopicsEnable and getattr(request.entity, "allow_auto_topic_creation", True)


def _described(broker: Broker, topic: Topic) -> dict[str, Any]:
    replicas = [broker.nodeId]
    return {
        "name": topic.name,
        "topic_id": topic.topicId,
        "partitions": [
            {
                "partition_index": partition.index,
                "leader_id": broker.nodeId,
                "leader_epoch": broker.log.leaderEpoch,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
            }
            for partition in topic.partitions
        ],
    }
