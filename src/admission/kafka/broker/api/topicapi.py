# -*- test-case-name: tests.unit.kafka.broker.api.test_topicapi -*-
"""
CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import Refused, errorOf, repeated
from admission.kafka.storage.holdings import Holdings
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..log.interface import Partition, Topic, UnknownTopic
from .configvalues import topicValues
from .onceflushed import onceFlushed
from .topicconfigs import TOPIC_CONFIGS, TopicConfig, checkConfigs

_BROKER_DEFAULT = -1

_TO_THE_END = -1
"""The offset in DeleteRecords that stands for the end of a partition."""

_DESCRIBED_AT_ONCE = 1_000
"""
For how many new topics an answer has the settings: those of one topic take more than a kilobyte, and what was created
has to be answered.
"""


def createTopic(
    broker: Broker,
    name: str,
    partitionCount: int,
    configs: Mapping[str, str],
    validateOnly: bool = False,
    holder: str = "",
) -> Topic:
    """
    Create a topic, if the broker's limits allow it.

    @param validateOnly: whether to change nothing.
    @param holder: the principal, or the address, that gets it by asking about it.
    @raise LogRefusal: if the limits do not allow it, or the log refuses.
    """
    _checkRoom(broker)
    if holder:
        _checkShare(broker, "max.topics", broker.settings.maxTopics, holder, broker.log.topicHoldings, 1)
        partitions = broker.log.partitionHoldings
        # The first topic may have more partitions than a share.
        if partitions.of(holder):
            _checkShare(broker, "max.partitions", broker.settings.maxPartitions, holder, partitions, partitionCount)
    return broker.log.createTopic(name, partitionCount, configs, validateOnly, holder)


def topicById(broker: Broker, topicId: UUID | None) -> Topic:
    """
    @param topicId: L{None} stands for the id of all zeros, which no topic has.
    @raise Refused: if there is no such topic, with the error that clients expect
        for an id.
    """
    try:
        if topicId is not None:
            return broker.log.topicById(topicId)
    except UnknownTopic:
        pass
    raise Refused(ErrorCode.unknown_topic_id, f"there is no topic with id {topicId}")


def partitionIn(topic: Topic, index: int) -> Partition:
    """
    @raise UnknownTopic: if there is no such partition.
    """
    partitions = topic.partitions
    if not 0 <= index < len(partitions):
        raise UnknownTopic(f"topic {topic.name!r} has {len(partitions)} partitions, and no {index}")
    return partitions[index]


def createTopics(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    CreateTopics: create topics, independently of each other.  The answer has their settings if few are created.
    """
    entity = request.entity
    duplicates = repeated(topic.name for topic in entity.topics)
    isDescribed = len(entity.topics) <= _DESCRIBED_AT_ONCE
    create = partial(_created, broker, duplicates, entity.validate_only, isDescribed)
    if entity.validate_only:
        return {"topics": Rows(entity.topics, create)}
    answers: list[dict[str, Any]] = []
    for topic in entity.topics:
        yield None
        answers.append(create(topic))
    changed = [answer for answer in answers if "topic_id" in answer]
    return onceFlushed(broker, request, changed, {"topics": answers})


def _created(broker: Broker, duplicates: Set[str], validateOnly: bool, isDescribed: bool, topic: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"name": topic.name, "num_partitions": -1, "replication_factor": -1}
    try:
        if topic.name in duplicates:
            raise Refused(ErrorCode.invalid_request, "the request names the topic twice")
        partitionCount = _partitionCount(broker, topic)
        configs = checkConfigs({config.name: config.value for config in topic.configs})
        created = createTopic(broker, topic.name, partitionCount, configs, validateOnly)
        if not validateOnly:
            answer["topic_id"] = created.topicId
        answer |= {"num_partitions": partitionCount, "replication_factor": 1, "error_message": None}
        if isDescribed:
            answer["configs"] = _effective(broker, configs)
        else:
            answer |= {"configs": None, "topic_config_error_code": ErrorCode.policy_violation}
    except LogRefusal as refusal:
        answer |= errorOf(refusal)
    return answer


def deleteTopics(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    DeleteTopics: remove topics, by name or by id.
    """
    entity = request.entity
    if hasattr(entity, "topics"):
        wanted = [(topic.name, topic.topic_id) for topic in entity.topics]
    else:
        wanted = [(name, None) for name in entity.topic_names]
    duplicates = repeated(wanted)
    answers: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for name, topicId in wanted:
        yield None
        answer: dict[str, Any] = {"name": name, "topic_id": topicId}
        try:
            if (name, topicId) in duplicates:
                raise Refused(ErrorCode.invalid_request, "the request names the topic twice")
            if (name is None) == (topicId is None):
                raise Refused(ErrorCode.invalid_request, "give either the name of a topic or its id")
            topic = broker.log.topic(name) if name is not None else topicById(broker, topicId)
            broker.log.deleteTopic(topic.name)
            changed.append(answer)
            answer |= {"name": topic.name, "topic_id": topic.topicId}
        except LogRefusal as refusal:
            answer |= errorOf(refusal)
        answers.append(answer)
    return onceFlushed(broker, request, changed, {"responses": answers})


def createPartitions(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    CreatePartitions: give topics more partitions.
    """
    entity = request.entity
    duplicates = repeated(topic.name for topic in entity.topics)
    answers: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for topic in entity.topics:
        yield None
        answer: dict[str, Any] = {"name": topic.name}
        try:
            if topic.name in duplicates:
                raise Refused(ErrorCode.invalid_request, "the request names the topic twice")
            broker.log.addPartitions(topic.name, topic.count, validateOnly=True)
            if topic.assignments is not None:
                _checkAssignments(broker, topic)
            if not entity.validate_only:
                broker.log.addPartitions(topic.name, topic.count)
                changed.append(answer)
        except LogRefusal as refusal:
            answer |= errorOf(refusal)
        answers.append(answer)
    return onceFlushed(broker, request, changed, {"results": answers})


def deleteRecords(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    DeleteRecords: let partitions begin at later offsets.
    """
    topics: dict[str, dict[int, dict[str, Any]]] = {}
    changed: list[dict[str, Any]] = []
    for each in request.entity.topics:
        answers = topics.setdefault(each.name, {})
        for wanted in each.partitions:
            yield None
            index = wanted.partition_index
            answer: dict[str, Any] = {"partition_index": index, "low_watermark": -1}
            try:
                if index in answers:
                    raise Refused(ErrorCode.invalid_request, "the request names the partition twice")
                partition = partitionIn(broker.log.topic(each.name), index)
                end = partition.highWatermark if wanted.offset == _TO_THE_END else wanted.offset
                broker.log.deleteRecords(partition, end)
                answer["low_watermark"] = partition.logStartOffset
                changed.append(answer)
            except LogRefusal as refusal:
                answer["error_code"] = refusal.errorCode
            answers[index] = answer
    described = [{"name": name, "partitions": list(answers.values())} for name, answers in topics.items()]
    return onceFlushed(broker, request, changed, {"topics": described})


def _partitionCount(broker: Broker, topic: Any) -> int:
    if topic.assignments:
        if topic.num_partitions != _BROKER_DEFAULT or topic.replication_factor != _BROKER_DEFAULT:
            raise Refused(
                ErrorCode.invalid_request, "give either replica assignments or numbers of partitions and replicas"
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            raise Refused(ErrorCode.invalid_replica_assignment, "partitions must be numbered from 0 without gaps")
        for assignment in topic.assignments:
            _checkReplicas(broker, assignment.broker_ids)
        return len(indexes)
    if topic.replication_factor not in (1, _BROKER_DEFAULT):
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"there is one broker, so the replication factor can be 1 and not {topic.replication_factor}",
        )
    if topic.num_partitions == _BROKER_DEFAULT:
        return broker.settings.numPartitions
    return int(topic.num_partitions)


def _checkAssignments(broker: Broker, topic: Any) -> None:
    added = topic.count - len(broker.log.topic(topic.name).partitions)
    if len(topic.assignments) != added:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"there are {len(topic.assignments)} replica assignments for {added} more partitions",
        )
    for assignment in topic.assignments:
        _checkReplicas(broker, assignment.broker_ids)


def _checkReplicas(broker: Broker, brokerIds: Iterable[int]) -> None:
    if list(brokerIds) != [broker.nodeId]:
        raise Refused(ErrorCode.invalid_replica_assignment, f"replicas can be on the one broker, {broker.nodeId}, only")


def _checkRoom(broker: Broker) -> None:
    count = len(broker.log.topics)
    if count >= broker.settings.maxTopics:
        raise Refused(ErrorCode.policy_violation, f"there are {count} topics already (max.topics)")


def _checkShare(broker: Broker, limitName: str, capacity: int, holder: str, holdings: Holdings, amount: int) -> None:
    if holdings.total + amount <= capacity and not holdings.allow(holder, amount, capacity):
        broker.refusedShares.note(limitName, capacity, holder, holdings, broker.clock.seconds())
        reason = f"{holder!r:.300} has its share, {holdings.of(holder)} of {capacity} ({limitName})"
        raise Refused(ErrorCode.policy_violation, reason)


def _effective(broker: Broker, own: Mapping[str, str]) -> Rows[TopicConfig]:
    def described(config: TopicConfig) -> dict[str, Any]:
        inForce = topicValues(broker.settings, config, own)[0]
        return {"name": config.name, "value": inForce.value, "config_source": inForce.source}

    return Rows(tuple(TOPIC_CONFIGS.values()), described)
