# -*- test-case-name: tests.unit.kafka.broker.api.test_authorization -*-
"""
The answers to requests that only super users may make.

Everything in such a request is refused with Kafka's error code for it.  The
first part of the answer has the reason as well, and the others have not: an
answer must not grow with the length of the reason for each part.  The answers
about groups have no room for a reason at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from admission.kafka.kafkarequest import KafkaRequest
from admission.kafka.wire.codec import Rows

_TOPIC = 2
"""The type of resource in IncrementalAlterConfigs."""

T = TypeVar("T")


def quotasForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to AlterClientQuotas.
    """

    def describe(entry: Any) -> dict[str, Any]:
        entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
        return {"entity": entity, "error_code": ErrorCode.cluster_authorization_failed}

    return {"entries": _explained(request.entity.entries, describe, reason)}


def creationForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreateTopics.
    """
    names = dict.fromkeys(topic.name for topic in request.entity.topics)
    nothing = {"num_partitions": -1, "replication_factor": -1}
    return {"topics": _explained(names, lambda name: {**_topic(name), **nothing}, reason)}


def partitionsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreatePartitions.
    """
    names = dict.fromkeys(topic.name for topic in request.entity.topics)
    return {"results": _explained(names, _topic, reason)}


def deletionForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteTopics.
    """
    entity = request.entity
    if hasattr(entity, "topics"):
        wanted = dict.fromkeys((topic.name, topic.topic_id) for topic in entity.topics)
    else:
        wanted = dict.fromkeys((name, None) for name in entity.topic_names)
    return {"responses": _explained(wanted, lambda topic: {**_topic(topic[0]), "topic_id": topic[1]}, reason)}


def configsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to IncrementalAlterConfigs.
    """

    def describe(resource: tuple[int, str]) -> dict[str, Any]:
        resourceType, name = resource
        isTopic = resourceType == _TOPIC
        errorCode = ErrorCode.topic_authorization_failed if isTopic else ErrorCode.cluster_authorization_failed
        return {"resource_type": resourceType, "resource_name": name, "error_code": errorCode}

    resources = dict.fromkeys((each.resource_type, each.resource_name) for each in request.entity.resources)
    return {"responses": _explained(resources, describe, reason)}


def groupsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteGroups.
    """
    groupIds = list(dict.fromkeys(request.entity.groups_names))
    errorCode = ErrorCode.group_authorization_failed
    return {"results": Rows(groupIds, lambda groupId: {"group_id": groupId, "error_code": errorCode})}


def offsetsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to OffsetDelete.
    """
    return {"error_code": ErrorCode.group_authorization_failed}


def _topic(name: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": ErrorCode.topic_authorization_failed}


def _explained(things: Iterable[T], describe: Callable[[T], dict[str, Any]], reason: str) -> Rows[T]:
    listed = list(things)

    def explained(thing: T) -> dict[str, Any]:
        described = describe(thing)
        if thing is listed[0]:
            described["error_message"] = reason
        return described

    return Rows(listed, explained)
