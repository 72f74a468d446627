# -*- test-case-name: tests.unit.kafka.broker.api.test_authorization -*-
"""
What clients may do (DescribeAcls), and the answers to requests that only super users may make.

Everything in such a request is refused with Kafka's error code for it.  Only the first part of the answer has the
reason as well, so that the answer does not grow by the reason's length with each part.  The answers about groups have
no room for a reason at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import refusedEach
from admission.kafka.wire.codec import Rows

from ..broker import Broker

_TOPIC = 2
"""The type of resource in IncrementalAlterConfigs."""

_FIRST_DIRECTORIES_WITH_ERROR = 3

T = TypeVar("T")


class Operations(NamedTuple):
    """
    What may be done with a kind of resource, as bits: the numbers of operations in Kafka's access control lists.
    """

    everybody: int
    superUsers: int


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)

CLUSTER_OPERATIONS: Final = Operations(
    _bits(_DESCRIBE, _DESCRIBE_CONFIGS, _IDEMPOTENT_WRITE),
    _bits(_CREATE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE),
)
TOPIC_OPERATIONS: Final = Operations(
    _bits(_READ, _WRITE, _DESCRIBE, _DESCRIBE_CONFIGS),
    _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
)
GROUP_OPERATIONS: Final = Operations(_bits(_READ, _DESCRIBE), _bits(_READ, _DELETE, _DESCRIBE))


def authorizedOperations(broker: Broker, request: KafkaRequest, operations: Operations) -> int:
    """
    What the client may do with resources of a kind.
    """
    isRefused = broker.superUsers.refusal(request.principal or "") is not None
    return operations.everybody if isRefused else operations.superUsers


def describeAcls(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    DescribeAcls: there are none, which tools tell apart from an empty list.
    """
    return {
        "error_code": ErrorCode.security_disabled,
        "error_message": "this broker has no access control lists; its super.users say who may change things",
        "resources": [],
    }


def creationForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreateTopics.
    """
    names = dict.fromkeys(topic.name for topic in request.entity.topics)
    nothing = {"num_partitions": -1, "replication_factor": -1}
    return {"topics": refusedEach(names, lambda name: {**_topic(name), **nothing}, reason)}


def partitionsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to CreatePartitions.
    """
    names = dict.fromkeys(topic.name for topic in request.entity.topics)
    return {"results": refusedEach(names, _topic, reason)}


def deletionForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteTopics.
    """
    entity = request.entity
    if hasattr(entity, "topics"):
        wanted = dict.fromkeys((topic.name, topic.topic_id) for topic in entity.topics)
    else:
        wanted = dict.fromkeys((name, None) for name in entity.topic_names)
    return {"responses": refusedEach(wanted, lambda topic: {**_topic(topic[0]), "topic_id": topic[1]}, reason)}


def configsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to IncrementalAlterConfigs and AlterConfigs.
    """

    def describe(resource: tuple[int, str]) -> dict[str, Any]:
        resourceType, name = resource
        isTopic = resourceType == _TOPIC
        errorCode = ErrorCode.topic_authorization_failed if isTopic else ErrorCode.cluster_authorization_failed
        return {"resource_type": resourceType, "resource_name": name, "error_code": errorCode}

    resources = dict.fromkeys((each.resource_type, each.resource_name) for each in request.entity.resources)
    return {"responses": refusedEach(resources, describe, reason)}


def recordsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DeleteRecords, which has no room for the reason.
    """
    errorCode = ErrorCode.topic_authorization_failed
    wanted = {
        each.name: dict.fromkeys(every.partition_index for every in each.partitions) for each in request.entity.topics
    }

    def refused(index: int) -> Mapping[str, Any]:
        return {"partition_index": index, "low_watermark": -1, "error_code": errorCode}

    return {"topics": Rows(list(wanted), lambda name: {"name": name, "partitions": Rows(list(wanted[name]), refused)})}


def directoriesForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DescribeLogDirs, which has no room for the reason.
    """
    errorCode = ErrorCode.cluster_authorization_failed
    if request.apiVersion < _FIRST_DIRECTORIES_WITH_ERROR:
        return {"results": [{"error_code": errorCode, "log_dir": ""}]}
    return {"error_code": errorCode, "results": []}


def credentialsHidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to DescribeUserScramCredentials.
    """
    return {"error_code": ErrorCode.cluster_authorization_failed, "error_message": reason, "results": []}


def credentialsForbidden(request: KafkaRequest, reason: str) -> Mapping[str, Any]:
    """
    The answer to AlterUserScramCredentials.
    """
    names = dict.fromkeys(each.name for each in (*request.entity.deletions, *request.entity.upsertions))
    errorCode = ErrorCode.cluster_authorization_failed
    return {"results": refusedEach(names, lambda name: {"user": name, "error_code": errorCode}, reason)}


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
