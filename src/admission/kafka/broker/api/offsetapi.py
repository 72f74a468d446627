# -*- test-case-name: tests.unit.kafka.broker.api.test_groupapi -*-
"""
The offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.codec import Rows
from admission.timeslices import Steps

from ..broker import Answer, Broker, Waiting
from ..groups.groupstate import Group, Offset
from ..groups.subscriptions import CONSUMER_PROTOCOL_TYPE
from ..log.interface import Partition
from .groupapi import memberRequest, refusalOf
from .topicapi import partitionIn

_FIRST_FETCH_OF_SEVERAL_GROUPS = 8

_NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": ErrorCode.none}


def offsetCommit(broker: Broker, request: KafkaRequest) -> Steps[Waiting]:
    """
    OffsetCommit: answered when the offsets are committed to the log.
    """
    entity = request.entity
    offsets: dict[Partition, Offset] = {}
    verdicts: list[tuple[str, list[tuple[int, ErrorCode | None]]]] = []
    for topic in entity.topics:
        verdicts.append((topic.name, []))
        for each in topic.partitions:
            yield None
            errorCode = None
            try:
                partition = partitionIn(broker.log.topic(topic.name), each.partition_index)
            except LogRefusal as refusal:
                errorCode = ErrorCode(refusal.errorCode)
            else:
                metadata = each.committed_metadata or ""
                if len(metadata.encode()) > broker.settings.offsetMetadataMaxBytes:
                    errorCode = ErrorCode.offset_metadata_too_large
                else:
                    leaderEpoch = getattr(each, "committed_leader_epoch", -1)
                    offsets[partition] = Offset(
                        each.committed_offset, leaderEpoch, metadata, broker.wallSeconds(), request.connection.holder
                    )
            verdicts[-1][1].append((each.partition_index, errorCode))

    def answered(errorCode: ErrorCode) -> Answer:
        def described(verdict: tuple[int, ErrorCode | None]) -> Mapping[str, Any]:
            index, refused = verdict
            return {"partition_index": index, "error_code": errorCode if refused is None else refused}

        return {"topics": [{"name": name, "partitions": Rows(each, described)} for name, each in verdicts]}

    committer = memberRequest(request, entity.generation_id_or_member_epoch)
    # Topics may have been deleted meanwhile.
    present = {partition: offset for partition, offset in offsets.items() if not partition.deleted}
    committing = maybeDeferred(broker.groups.commit, committer, present)
    return committing.addCallbacks(
        lambda _: answered(ErrorCode.none), lambda failure: answered(refusalOf(failure).errorCode)
    )


def offsetFetch(broker: Broker, request: KafkaRequest) -> Steps[Answer]:
    """
    OffsetFetch: the committed offsets.  There are no transactions, so every
    offset is stable.
    """
    entity = request.entity
    if request.apiVersion < _FIRST_FETCH_OF_SEVERAL_GROUPS:
        return {"topics": (yield from _committed(broker, entity.group_id, entity.topics))}
    # Each group and each partition is answered once, since answers are larger than questions.
    wanted = {each.group_id: each.topics for each in entity.groups}
    groups = []
    for groupId, topics in wanted.items():
        groups.append({"group_id": groupId, "topics": (yield from _committed(broker, groupId, topics))})
        yield None
    return {"groups": groups}


def offsetDelete(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    OffsetDelete: remove offsets of topics that no member of the group reads.
    """
    entity = request.entity
    group = broker.groups.get(entity.group_id)
    if group is None:
        return {"error_code": ErrorCode.group_id_not_found}
    if group.members and group.protocolType != CONSUMER_PROTOCOL_TYPE:
        return {"error_code": ErrorCode.non_empty_group}
    topics = []
    partitions = []
    for topic in entity.topics:
        answers = []
        yield None
        isRead = group.isRead(topic.name)
        for each in topic.partitions:
            yield None
            errorCode = ErrorCode.none
            try:
                partition = partitionIn(broker.log.topic(topic.name), each.partition_index)
            except LogRefusal as refusal:
                errorCode = ErrorCode(refusal.errorCode)
            else:
                if isRead:
                    errorCode = ErrorCode.group_subscribed_to_topic
                elif partition in group.offsets:
                    partitions.append(partition)
            answers.append({"partition_index": each.partition_index, "error_code": errorCode})
        topics.append({"name": topic.name, "partitions": answers})
    deleting = broker.groups.deleteOffsets(group, partitions)
    return deleting.addCallbacks(
        lambda _: {"error_code": ErrorCode.none, "topics": topics},
        lambda failure: {"error_code": refusalOf(failure).errorCode},
    )


def _committed(broker: Broker, groupId: str, topics: Iterable[Any] | None) -> Steps[list[dict[str, Any]]]:
    group = broker.groups.get(groupId)
    if topics is None:
        return [] if group is None else (yield from _everything(group))
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        yield None
    return [{"name": name, "partitions": _offsetsOf(broker, group, name, each)} for name, each in wanted.items()]


def _offsetsOf(broker: Broker, group: Group | None, topicName: str, indexes: Iterable[int]) -> Rows[int]:
    topic = broker.log.topics.get(topicName)

    def described(index: int) -> Mapping[str, Any]:
        offset = None
        if group is not None and topic is not None and 0 <= index < len(topic.partitions):
            offset = group.offsets.get(topic.partitions[index])
        return _answerOf(index, offset)

    return Rows(list(indexes), described)


def _everything(group: Group) -> Steps[list[dict[str, Any]]]:
    # The offsets are looked up when the answer is written, so that each partition takes eight bytes until then.
    found: dict[str, list[Partition]] = {}
    for partition in list(group.offsets):
        yield None
        if not partition.deleted:
            found.setdefault(partition.topicName, []).append(partition)

    def described(partition: Partition) -> Mapping[str, Any]:
        return _answerOf(partition.index, group.offsets.get(partition))

    return [{"name": name, "partitions": Rows(partitions, described)} for name, partitions in found.items()]


def _answerOf(index: int, offset: Offset | None) -> dict[str, Any]:
    if offset is None:
        return {**_NO_OFFSET, "partition_index": index}
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leaderEpoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }
