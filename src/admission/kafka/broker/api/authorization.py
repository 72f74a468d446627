# -*- test-case-name: tests.unit.kafka.broker.api.test_authorization -*-
"""
The answers to requests that only super users may make.

Everything in such a request is refused with Kafka's error code for it.  The
first part of the answer has the reason as well, and the others have not: an
answer must not grow with the length of the reason for each part.  The answers
about groups have no room for a reason at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.kafkarequest import KafkaRequest

_TOPIC = 2
"""The type of resource in IncrementalAlterConfigs."""


def quotasForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to AlterClientQuotas.
    """
    entries = (
        {
            "entity": [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity],
            "error_code": ErrorCode.cluster_authorization_failed,
        }
        for entry in request.entity.entries
    )
    return {"entries": _explained(entries, reason)}


def creationForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreateTopics.
    """
    topics = (
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "error_code": ErrorCode.topic_authorization_failed,
        }
        for name in dict.fromkeys(topic.name for topic in request.entity.topics)
    )
    return {"topics": _explained(topics, reason)}


def partitionsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreatePartitions.
    """
    names = dict.fromkeys(topic.name for topic in request.entity.topics)
    results = ({"name": name, "error_code": ErrorCode.topic_authorization_failed} for name in names)
    return {"results": _explained(results, reason)}


def deletionForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteTopics.
    """
    entity = request.entity
    if hasattr(entity, "topics"):
        wanted = dict.fromkeys((topic.name, topic.topic_id) for topic in entity.topics)
    else:
        wanted = dict.fromkeys((name, None) for name in entity.topic_names)
    responses = (
        {"name": name, "topic_id": topicId, "error_code": ErrorCode.topic_authorization_failed}
        for name, topicId in wanted
    )
    return {"responses": _explained(responses, reason)}


def configsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to IncrementalAlterConfigs.
    """
    responses = (
        {
            "resource_type": resourceType,
            "resource_name": name,
            "error_code": ErrorCode.topic_authorization_failed
            if resourceType == _TOPIC
            else ErrorCode.cluster_authorization_failed,
        }
        for resourceType, name in dict.fromkeys(
            (resource.resource_type, resource.resource_name) for resource in request.entity.resources
        )
    )
    return {"responses": _explained(responses, reason)}


def groupsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteGroups.
    """
    return {
        "results": [
            {"group_id": groupId, "error_code": ErrorCode.group_authorization_failed}
            for groupId in dict.fromkeys(request.entity.groups_names)
        ]
    }


def offsetsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to OffsetDelete.
    """
    return {"error_code": ErrorCode.group_authorization_failed}


def _explained(parts: Iterable[dict[str, Any]], reason: str) -> list[dict[str, Any]]:
    explained = list(parts)
    for first in explained[:1]:
        first["error_message"] = reason
    return explained
