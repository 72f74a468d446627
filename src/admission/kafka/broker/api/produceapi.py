# -*- test-case-name: tests.unit.kafka.broker.api.test_produceapi -*-
"""
Produce and InitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from kio.schema.errors import ErrorCode

from admission.kafka.kafkarequest import KafkaRequest
from admission.kafka.wire.batches import BatchRefused, RecordBatch, readBatch, stampBatch
from admission.kafka.wire.produce import PartitionResult, ProducedPartition, ProduceRequest, refuseAll
from admission.timeslices import Steps

from ..broker import Broker
from ..log.interface import LogRefusal, Topic
from .refusals import NO_TRANSACTIONS, reasonOf
from .topicapi import partitionIn
from .topicconfigs import hasAppendTime, isCached, maxMessageBytes, timestampAfterMaxSeconds

ALL = -1
"""The value of C{acks} if records must survive more than the broker's death."""

_ACKS = (0, 1, ALL)

MANY_PARTITIONS = 64
"""A request to more of them is worked on in steps."""

_PARTITIONS_AT_ONCE = 4

_MAX_WAIT_SECONDS = 30.0
"""How long a request waits at most for files to be flushed, whatever its client would wait: a disk may hang."""


def wantsFlush(broker: Broker, request: ProduceRequest) -> bool:
    """
    Whether the disk must have the records before the request is answered: with C{acks=all}, unless all its topics have
    C{write.caching}.
    """
    if request.acks != ALL:
        return False
    topics = broker.log.topics
    for each in request.partitions:
        topic = topics.get(each.topicName)
        if topic is not None and not isCached(broker, topic):
            return True
    return False


def append(
    broker: Broker, request: ProduceRequest, principal: str, holder: str, isUrgent: bool
) -> list[PartitionResult]:
    """
    Produce: append the batches that can be appended, on behalf of
    C{principal}.  Acknowledge them only when the log has committed them.

    @param holder: the principal, or the address.
    @param isUrgent: whether the request will wait for the disk.
    """
    if request.acks not in _ACKS:
        return refuseAll(
            request, ErrorCode.invalid_required_acks, f"acks is {request.acks}; it may be 0, 1 or -1 (all)"
        )
    if request.transactionalId is not None:
        return refuseAll(request, ErrorCode.invalid_request, "this broker has no transactions")
    return [_appendOne(broker, produced, principal, holder, isUrgent) for produced in request.partitions]


def appendInSteps(
    broker: Broker, request: ProduceRequest, principal: str, holder: str, isUrgent: bool
) -> Steps[list[PartitionResult]]:
    """
    The same for a request to many partitions: each step appends to some and commits that, since the first batch of a
    partition needs a directory and a file.  While there is memory, it waits until its client may have more files
    unflushed.  C{request} is not changed by others meanwhile.
    """
    results: list[PartitionResult] = []
    seconds = broker.clock.seconds
    deadlineSeconds = seconds() + min(request.timeoutMs / 1000, _MAX_WAIT_SECONDS)
    for begin in range(0, len(request.partitions), _PARTITIONS_AT_ONCE):
        some = evolve(request, partitions=request.partitions[begin : begin + _PARTITIONS_AT_ONCE])
        leftSeconds = deadlineSeconds - seconds()
        if leftSeconds > 0 and not broker.gate.pool.isOutOfMemory():
            room = broker.log.whenRoom(holder, len(some.partitions), leftSeconds)
            if room is not None:
                yield room
        appended = append(broker, some, principal, holder, isUrgent)
        try:
            broker.log.commit()
        except LogRefusal as refusal:
            appended = failed(appended, refusal)
        results += appended
        yield None
    return results


def failed(results: Sequence[PartitionResult], error: Exception) -> list[PartitionResult]:
    """
    The results of a request whose commit has failed.
    """
    code = error.errorCode if isinstance(error, LogRefusal) else ErrorCode.kafka_storage_error.value
    reason = reasonOf(error)
    return [
        result
        if result.errorCode
        else PartitionResult(result.topicName, result.partitionIndex, code, errorMessage=reason)
        for result in results
    ]


def timedOut(results: Sequence[PartitionResult]) -> list[PartitionResult]:
    """
    The results of a request whose records the disk has not confirmed in time.
    The log has them nevertheless; an idempotent producer may send them again.
    """
    return [
        result
        if result.errorCode
        else PartitionResult(
            result.topicName,
            result.partitionIndex,
            ErrorCode.request_timed_out.value,
            errorMessage="the records are stored, and the disk has not confirmed it in time",
        )
        for result in results
    ]


def initProducerId(broker: Broker, request: KafkaRequest) -> Mapping[str, Any]:
    """
    InitProducerId: a producer id that was never assigned before.
    """
    if request.entity.transactional_id is not None:
        return {"error_code": NO_TRANSACTIONS.value, "producer_id": -1, "producer_epoch": -1}
    try:
        producerId = broker.log.allocateProducerId()
    except LogRefusal as refusal:
        return {"error_code": refusal.errorCode, "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": producerId, "producer_epoch": 0}


def refusedProducerId(request: KafkaRequest) -> Mapping[str, Any]:
    """
    The answer to InitProducerId that a policy has refused.
    """
    return {"error_code": ErrorCode.throttling_quota_exceeded.value, "producer_id": -1, "producer_epoch": -1}


def _appendOne(
    broker: Broker, produced: ProducedPartition, principal: str, holder: str, isUrgent: bool
) -> PartitionResult:
    topicName, index, records = produced
    try:
        topic = broker.log.topic(topicName)
        partition = partitionIn(topic, index)
        if not records:
            raise BatchRefused(ErrorCode.invalid_record, "there are no records")
        limitBytes = maxMessageBytes(broker, topic)
        if len(records) > limitBytes:
            raise BatchRefused(
                ErrorCode.message_too_large,
                f"the batch has {len(records)} bytes, and {limitBytes} are allowed (max.message.bytes)",
            )
        batch = readBatch(records)
        if batch.isControl or batch.isTransactional:
            raise BatchRefused(ErrorCode.invalid_record, "this broker has no transactions")
        appendTimeMs = -1
        if hasAppendTime(broker, topic):
            appendTimeMs = int(broker.wallSeconds() * 1000)
            batch = stampBatch(records, appendTimeMs)
        else:
            _checkTimestamp(broker, topic, batch)
        result = broker.log.append(partition, records, batch, principal, isUrgent, holder)
    except BatchRefused as refusal:
        return PartitionResult(topicName, index, refusal.errorCode.value, errorMessage=refusal.reason)
    except LogRefusal as refusal:
        return PartitionResult(topicName, index, refusal.errorCode, errorMessage=reasonOf(refusal))
    return PartitionResult(topicName, index, 0, result.baseOffset, appendTimeMs, partition.logStartOffset)


def _checkTimestamp(broker: Broker, topic: Topic, batch: RecordBatch) -> None:
    aheadSeconds = batch.maxTimestampMs / 1000 - broker.wallSeconds()
    if aheadSeconds > timestampAfterMaxSeconds(broker, topic):
        raise BatchRefused(
            ErrorCode.invalid_timestamp,
            f"a timestamp is {aheadSeconds:.0f} s ahead of the broker's clock (message.timestamp.after.max.ms)",
        )
