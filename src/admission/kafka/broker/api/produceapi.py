# -*- test-case-name: tests.unit.kafka.broker.api.test_produceapi -*-
"""
Produce and InitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import reasonOf
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.batches import HEADER_BYTES, BatchRefused, RecordBatch, readBatch, stampBatch
from admission.kafka.wire.compression import CHUNK_BYTES, LZ4, decompressed, decompressionBytes, hasLinkedBlocks
from admission.kafka.wire.produce import PartitionResult, ProducedPartition, ProduceRequest, refuseAll
from admission.kafka.wire.recordwalk import ANY_TIME, RECORDS_AT_ONCE, RecordWalk, usualRecords
from admission.timeslices import Steps

from ..broker import Broker, GoOver
from ..log.interface import Partition
from .onceflushed import NO_TRANSACTIONS
from .topicapi import partitionIn
from .topicconfigs import hasAppendTime, isCached, maxMessageBytes, timestampAfterMaxSeconds

ALL = -1
"""The value of C{acks} if records must survive more than the broker's death."""

_ACKS = (0, 1, ALL)

MANY_PARTITIONS = 64
"""A request to more partitions than this is worked on in steps."""

_PARTITIONS_AT_ONCE = 4

_RECORDS_OF_A_BATCH = 20
"""The number of records whose check takes as long as all other checks of a batch."""

_INT64_MAX = 2**63 - 1

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
    broker: Broker, request: ProduceRequest, principal: str, holder: str, isUrgent: bool, goOver: GoOver
) -> Steps[list[PartitionResult]]:
    """
    Produce: check the batches, and append those that can be appended in the step that returns, on behalf of
    C{principal}.  Acknowledge them only when the log has committed them.

    Batches to many partitions are appended and committed some at a time, since the first batch of a partition needs a
    directory and a file.  While there is memory, the request waits until its client may have more files unflushed.
    C{request} is not changed by others meanwhile.

    @param holder: the principal, or the address.
    @param isUrgent: whether the request will wait for the disk.
    @param goOver: goes over the records that take long.
    """
    if request.acks not in _ACKS:
        return refuseAll(
            request, ErrorCode.invalid_required_acks, f"acks is {request.acks}; it may be 0, 1 or -1 (all)"
        )
    if request.transactionalId is not None:
        return refuseAll(request, ErrorCode.invalid_request, "this broker has no transactions")
    partitions = request.partitions
    if not isLarge(request):
        checked = yield from _checkAll(broker, partitions, goOver)
        return [_append(broker, each, principal, holder, isUrgent) for each in checked]
    results: list[PartitionResult] = []
    seconds = broker.clock.seconds
    deadlineSeconds = seconds() + min(request.timeoutMs / 1000, _MAX_WAIT_SECONDS)
    for begin in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        checked = yield from _checkAll(broker, partitions[begin : begin + _PARTITIONS_AT_ONCE], goOver)
        leftSeconds = deadlineSeconds - seconds()
        if leftSeconds > 0 and not broker.gate.pool.isOutOfMemory():
            room = broker.log.whenRoom(holder, len(checked), leftSeconds)
            if room is not None:
                yield room
        appended = [_append(broker, each, principal, holder, isUrgent) for each in checked]
        try:
            broker.log.commit()
        except LogRefusal as refusal:
            appended = failed(appended, refusal)
        results += appended
        yield None
    return results


def isLarge(request: ProduceRequest) -> bool:
    """
    Whether a request is committed as it is appended, because it has many partitions.
    """
    return len(request.partitions) > MANY_PARTITIONS


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


class _Checked(NamedTuple):
    """
    A batch that may be appended.

    @ivar appendTimeMs: the time of its arrival, or -1 if its records keep theirs.
    """

    partition: Partition
    records: memoryview
    batch: RecordBatch
    appendTimeMs: int


def _checkAll(
    broker: Broker, partitions: Sequence[ProducedPartition], goOver: GoOver
) -> Steps[list[_Checked | PartitionResult]]:
    """
    The batches to append, and the results of the others.
    """
    checked: list[_Checked | PartitionResult] = []
    records = 0
    for produced in partitions:
        if records >= RECORDS_AT_ONCE:
            records = 0
            yield None
        try:
            one = yield from _check(broker, produced, goOver)
        except BatchRefused as refusal:
            checked.append(_refused(produced, refusal.errorCode.value, refusal.reason))
        except LogRefusal as refusal:
            checked.append(_refused(produced, refusal.errorCode, reasonOf(refusal)))
        else:
            checked.append(one)
            records += one.batch.count
        records += _RECORDS_OF_A_BATCH
    return checked


def _check(broker: Broker, produced: ProducedPartition, goOver: GoOver) -> Steps[_Checked]:
    """
    @raise BatchRefused: if Apache Kafka would not store it, either.
    """
    topicName, index, records = produced
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
    if batch.baseOffset:
        raise BatchRefused(
            ErrorCode.invalid_record, f"the batch begins with offset {batch.baseOffset}, and producers count from 0"
        )
    if batch.producerId >= 0 and batch.baseSequence < 0:
        raise BatchRefused(ErrorCode.invalid_record, f"the batch of producer {batch.producerId} has no sequence number")
    isStamped = hasAppendTime(broker, topic)
    nowMs = broker.wallSeconds() * 1000
    if isStamped:
        if batch.hasAppendTime:
            raise BatchRefused(ErrorCode.invalid_timestamp, "only the broker may say when records have arrived")
        times = ANY_TIME
    else:
        times = int(nowMs) - _INT64_MAX, int(nowMs + timestampAfterMaxSeconds(broker, topic) * 1000) + 1
    if broker.settings.produceBatchValidation:
        largestMs = None
        if not batch.compression and len(records) <= CHUNK_BYTES:
            largestMs = usualRecords(batch, bytes(records[HEADER_BYTES:]), *times)
        maxMs = (yield from _goOver(broker, batch, records, times, goOver)) if largestMs is None else largestMs
    else:
        maxMs = batch.maxTimestampMs
        if not times[0] <= maxMs < times[1]:
            raise _untimely(broker, maxMs)
    if isStamped:
        appendTimeMs = int(broker.wallSeconds() * 1000)
        return _Checked(partition, records, stampBatch(records, appendTimeMs), appendTimeMs)
    if batch.maxTimestampMs != maxMs or batch.hasAppendTime:
        # Lookups by time go by the timestamp in the header of the batch.
        batch = stampBatch(records, maxMs, isAppendTime=False)
    return _Checked(partition, records, batch, -1)


def _untimely(broker: Broker, timestampMs: int) -> BatchRefused:
    return BatchRefused(
        ErrorCode.invalid_timestamp,
        f"a timestamp is {timestampMs / 1000 - broker.wallSeconds():.0f} s ahead of the broker's clock"
        " (message.timestamp.after.max.ms)",
    )


def _goOver(
    broker: Broker, batch: RecordBatch, records: memoryview, times: tuple[int, int], goOver: GoOver
) -> Steps[int]:
    """
    Go over the records of a batch.

    @return: the largest timestamp.
    """
    payload = records[HEADER_BYTES:]
    walk = RecordWalk(batch, decompressed(batch.compression, payload))
    try:
        if not batch.compression:
            found = yield from walk.findOutside(*times)
        elif batch.compression == LZ4 and hasLinkedBlocks(payload):
            raise BatchRefused(
                ErrorCode.invalid_record, "blocks of lz4 that refer to others cannot be read by Java's clients"
            )
        else:
            memoryBytes = decompressionBytes(batch.compression, payload)
            found = yield from goOver(walk, times, memoryBytes)
    except BatchRefused as refusal:
        if refusal.errorCode == ErrorCode.corrupt_message:
            # The checksum was right, so a retry would not help.
            raise BatchRefused(ErrorCode.invalid_record, refusal.reason) from None
        raise
    if found is not None:
        raise _untimely(broker, found.timestampMs)
    if batch.compression and not walk.isInOrder:
        # Apache Kafka would number and compress them anew; it stores them if they are not compressed.
        raise BatchRefused(ErrorCode.invalid_record, "the offsets of its compressed records do not count from 0")
    return walk.maxTimestampMs


def _append(
    broker: Broker, checked: _Checked | PartitionResult, principal: str, holder: str, isUrgent: bool
) -> PartitionResult:
    if isinstance(checked, PartitionResult):
        return checked
    partition, records, batch, appendTimeMs = checked
    try:
        result = broker.log.append(partition, records, batch, principal, isUrgent, holder)
    except LogRefusal as refusal:
        return PartitionResult(partition.topicName, partition.index, refusal.errorCode, errorMessage=reasonOf(refusal))
    return PartitionResult(
        partition.topicName, partition.index, 0, result.baseOffset, appendTimeMs, partition.logStartOffset
    )


def _refused(produced: ProducedPartition, errorCode: int, reason: str) -> PartitionResult:
    return PartitionResult(produced.topicName, produced.partitionIndex, errorCode, errorMessage=reason)
