"""
Hand-written code for Produce: records stay where they were received, and no objects
are built only to be written out again.

Versions 3 to 12 are served.  What older clients send is understood as far as it takes to refuse it.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from attrs import define
from kio.schema.errors import ErrorCode

from .batches import producerIdOf
from .primitives import CLASSIC, FLEXIBLE, NO_TAGS, PAST_THE_END, Dialect, MalformedRequest, readUnsignedVarint
from .versions import BY_KEY, PRODUCE

_API: Final = BY_KEY[PRODUCE]
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_RESULT_WITHOUT_TIME: Final = struct.Struct(">ihq")
_RESULT: Final = struct.Struct(">ihqq")
_RESULT_WITH_LOG_START: Final = struct.Struct(">ihqqq")

# The bytes before the name of the one topic, and before the records of its one partition, in a usual request.
_USUAL_CLASSIC: Final = struct.Struct(">hhiih")
_USUAL_CLASSIC_PARTITION: Final = struct.Struct(">iii")
_USUAL_FLEXIBLE: Final = struct.Struct(">BhiBB")
_USUAL_FLEXIBLE_PARTITION: Final = struct.Struct(">BiB")

# One topic and one partition.
_USUAL_ELEMENTS: Final = 2

# No tagged fields of the partition, of the topic, or of the request.
_NO_TAGS_AT_ALL: Final = 3 * NO_TAGS

_FIRST_VERSION_WITH_THROTTLE_TIME: Final = 1
_FIRST_VERSION_WITH_TIME: Final = 2
_FIRST_VERSION_WITH_TRANSACTIONS: Final = 3
_FIRST_VERSION_WITH_LOG_START: Final = 5
_FIRST_VERSION_WITH_MESSAGE: Final = 8

_KEPT_NAMES: Final = 1000


class ProducedPartition(NamedTuple):
    """
    Records that a request wants appended to one partition.

    @ivar topicName: the topic.
    @ivar partitionIndex: the partition of that topic.
    @ivar records: the record batch, a slice of the request's own buffer and
        writable if that is; L{None} if the client sent none.
    """

    topicName: str
    partitionIndex: int
    records: memoryview | None


@define
class ProduceRequest:
    """
    A Produce request.

    @ivar transactionalId: the transaction's name, if there is one.
    @ivar acks: 0 for no response at all, 1 for the leader, -1 for all replicas.
    @ivar timeoutMs: how long the client is willing to wait for replicas.
    @ivar partitions: in the request's order; a partition may occur twice.
    @ivar elementCount: how many topics and partitions were decoded.
    """

    transactionalId: str | None
    acks: int
    timeoutMs: int
    partitions: list[ProducedPartition]
    elementCount: int


class PartitionResult(NamedTuple):
    """
    The outcome of a Produce request for one partition.

    @ivar topicName: the topic.
    @ivar partitionIndex: the partition of that topic.
    @ivar errorCode: 0 if the records were appended.
    @ivar baseOffset: the offset of the first record, or -1.
    @ivar logAppendTimeMs: the broker's time in the records, or -1 if the
        client's was kept.
    @ivar logStartOffset: the first offset that can still be read, or -1.
    @ivar errorMessage: an explanation; sent from version 8 on.
    """

    topicName: str
    partitionIndex: int
    errorCode: int = 0
    baseOffset: int = -1
    logAppendTimeMs: int = -1
    logStartOffset: int = -1
    errorMessage: str | None = None


def parseProduce(view: memoryview, offset: int, version: int, maxElements: int = _API.maxElements) -> ProduceRequest:
    """
    Read a Produce request without copying its records.

    @param view: the frame, as bytes; it must not change while the
        slices of it that are returned are used.
    @param offset: where the body begins.
    @param version: 0 to 12.
    @param maxElements: how many topics and partitions there may be in all.
    @raise MalformedRequest: if a length does not fit into the frame, a required
        field is null, a name is not UTF-8, there are too many
        elements, or bytes are left over.
    """
    isFlexible = version >= _API.firstFlexibleVersion
    try:
        if maxElements >= _USUAL_ELEMENTS and version >= _FIRST_VERSION_WITH_TRANSACTIONS:
            usual = _parseUsualFlexible(view, offset) if isFlexible else _parseUsualClassic(view, offset)
            if usual is not None:
                return usual
    except (*PAST_THE_END, ValueError):
        # Whatever it is, it is not usual.
        pass
    try:
        return _parse(view, offset, version, FLEXIBLE if isFlexible else CLASSIC, maxElements)
    except PAST_THE_END:
        raise MalformedRequest("a Produce request ends before its fields do") from None
    except UnicodeDecodeError:
        raise MalformedRequest("a name in a Produce request is not UTF-8") from None


def _parseUsualClassic(view: memoryview, offset: int) -> ProduceRequest | None:
    """
    Read the usual request of producers, which has one batch and no transaction;
    return L{None} for any other.
    """
    idBytes, acks, timeoutMs, topicCount, nameBytes = _USUAL_CLASSIC.unpack_from(view, offset)
    if idBytes != -1 or topicCount != 1 or nameBytes < 0:
        return None
    nameAt = offset + _USUAL_CLASSIC.size
    partitionAt = nameAt + nameBytes
    partitionCount, partitionIndex, sizeBytes = _USUAL_CLASSIC_PARTITION.unpack_from(view, partitionAt)
    recordsAt = partitionAt + _USUAL_CLASSIC_PARTITION.size
    if partitionCount != 1 or recordsAt + sizeBytes != len(view) or sizeBytes < 0:
        return None
    produced = ProducedPartition(str(view[nameAt:partitionAt], "utf-8"), partitionIndex, view[recordsAt:])
    return ProduceRequest(None, acks, timeoutMs, [produced], _USUAL_ELEMENTS)


def _parseUsualFlexible(view: memoryview, offset: int) -> ProduceRequest | None:
    """
    The same for the flexible versions.
    """
    idBytes, acks, timeoutMs, topicCount, nameBytes = _USUAL_FLEXIBLE.unpack_from(view, offset)
    if idBytes or topicCount != 2 or not 0 < nameBytes < 128:
        return None
    nameAt = offset + _USUAL_FLEXIBLE.size
    partitionAt = nameAt + nameBytes - 1
    partitionCount, partitionIndex, sizeBytes = _USUAL_FLEXIBLE_PARTITION.unpack_from(view, partitionAt)
    recordsAt = partitionAt + _USUAL_FLEXIBLE_PARTITION.size
    if sizeBytes > 127:
        sizeBytes, recordsAt = readUnsignedVarint(view, recordsAt - 1)
    end = recordsAt + sizeBytes - 1
    if partitionCount != 2 or not sizeBytes or view[end:] != _NO_TAGS_AT_ALL:
        return None
    produced = ProducedPartition(str(view[nameAt:partitionAt], "utf-8"), partitionIndex, view[recordsAt:end])
    return ProduceRequest(None, acks, timeoutMs, [produced], _USUAL_ELEMENTS)


def _parse(view: memoryview, offset: int, version: int, dialect: Dialect, maxElements: int) -> ProduceRequest:
    transactionalId = None
    if version >= _FIRST_VERSION_WITH_TRANSACTIONS:
        transactionalId, offset = _readString(dialect, view, offset)
    acks, timeoutMs = _ACKS_AND_TIMEOUT.unpack_from(view, offset)
    topicCount, offset = _readCount(dialect, view, offset + _ACKS_AND_TIMEOUT.size, maxElements)
    elementCount = topicCount
    partitions: list[ProducedPartition] = []
    for _ in range(topicCount):
        topicName, offset = _readString(dialect, view, offset)
        if topicName is None:
            raise MalformedRequest("a topic in a Produce request has no name")
        partitionCount, offset = _readCount(dialect, view, offset, maxElements - elementCount)
        elementCount += partitionCount
        for _ in range(partitionCount):
            (partitionIndex,) = _INT32.unpack_from(view, offset)
            sizeBytes, offset = dialect.readLength(view, offset + _INT32.size)
            records = None
            if sizeBytes >= 0:
                records = view[offset : offset + sizeBytes]
                offset += sizeBytes
            elif sizeBytes < -1:
                raise MalformedRequest(f"a Produce request says that its records have {sizeBytes} bytes")
            offset = _endStructure(dialect, view, offset)
            partitions.append(ProducedPartition(topicName, partitionIndex, records))
        offset = _endStructure(dialect, view, offset)
    offset = _endStructure(dialect, view, offset)
    # A slice beyond the end is short rather than an error, so it is checked here.
    if offset > len(view):
        raise MalformedRequest("a Produce request ends before its fields do")
    if offset < len(view):
        raise MalformedRequest(f"{len(view) - offset} bytes are left over behind a Produce request")
    return ProduceRequest(transactionalId, acks, timeoutMs, partitions, elementCount)


def _endStructure(dialect: Dialect, view: memoryview, offset: int) -> int:
    """
    Go over the end of a structure, which has no tagged fields: Produce knows none, and the guard of all other requests
    refuses those that are not known, too.
    """
    if not dialect.tags:
        return offset
    if view[offset]:
        raise MalformedRequest("a Produce request has tagged fields, and none is known")
    return offset + 1


def _readString(dialect: Dialect, view: memoryview, offset: int) -> tuple[str | None, int]:
    sizeBytes, offset = dialect.readStringLength(view, offset)
    if sizeBytes < -1:
        raise MalformedRequest(f"a Produce request says that a name has {sizeBytes} bytes")
    if sizeBytes < 0:
        return None, offset
    return str(view[offset : offset + sizeBytes], "utf-8"), offset + sizeBytes


def _readCount(dialect: Dialect, view: memoryview, offset: int, atMost: int) -> tuple[int, int]:
    count, offset = dialect.readLength(view, offset)
    if count < 0:
        raise MalformedRequest("an array in a Produce request is null")
    if count > atMost:
        raise MalformedRequest(f"a Produce request has {count} topics or partitions where {atMost} more are allowed")
    return count, offset


def producerIds(request: ProduceRequest) -> list[int]:
    """
    The producer ids in a request; batches that are too short to have one are
    skipped.
    """
    found = [producerIdOf(each.records) for each in request.partitions if each.records]
    return [producerId for producerId in found if producerId >= 0]


def refuseAll(request: ProduceRequest, errorCode: ErrorCode, message: str) -> list[PartitionResult]:
    """
    The results of a request that is refused as a whole.
    """
    return [
        PartitionResult(each.topicName, each.partitionIndex, errorCode.value, errorMessage=message)
        for each in request.partitions
    ]


def encodeProduceResponse(version: int, results: Sequence[PartitionResult], throttleTimeMs: int = 0) -> bytes:
    """
    The body of a Produce response.

    @param version: 0 to 12, that of the request.
    @param results: one for each partition; topics are sent in the order in which
        each occurs first.
    @param throttleTimeMs: how long the client must wait.
    """
    if len(results) == 1 and not throttleTimeMs:
        topicName, index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, errorMessage = results[0]
        # Names in errors need not be those of topics, and there are as many as clients like.
        if not errorCode and errorMessage is None and version >= _FIRST_VERSION_WITH_TRANSACTIONS:
            before, behind = _aroundOne(version, topicName)
            if version >= _FIRST_VERSION_WITH_LOG_START:
                fixed = _RESULT_WITH_LOG_START.pack(index, 0, baseOffset, logAppendTimeMs, logStartOffset)
            else:
                fixed = _RESULT.pack(index, 0, baseOffset, logAppendTimeMs)
            return before + fixed + behind
    return _encode(version, results, throttleTimeMs)


@lru_cache(maxsize=_KEPT_NAMES)
def _aroundOne(version: int, topicName: str) -> tuple[bytes, bytes]:
    """
    What stands before and behind the numbers in the usual response: one partition, and nothing went wrong.
    """
    body = _encode(version, [PartitionResult(topicName, 0)], 0)
    dialect = FLEXIBLE if version >= _API.firstFlexibleVersion else CLASSIC
    begin = 2 * len(dialect.length(1)) + len(dialect.string(topicName))
    fixed = _RESULT_WITH_LOG_START if version >= _FIRST_VERSION_WITH_LOG_START else _RESULT
    return body[:begin], body[begin + fixed.size :]


def _encode(version: int, results: Sequence[PartitionResult], throttleTimeMs: int) -> bytes:
    dialect = FLEXIBLE if version >= _API.firstFlexibleVersion else CLASSIC
    noRecordErrors = dialect.length(0)
    byTopic: dict[str, list[PartitionResult]] = {}
    for result in results:
        byTopic.setdefault(result.topicName, []).append(result)
    parts = [dialect.length(len(byTopic))]
    for topicName, partitions in byTopic.items():
        parts += dialect.string(topicName), dialect.length(len(partitions))
        for _, index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, errorMessage in partitions:
            if version >= _FIRST_VERSION_WITH_LOG_START:
                fixed = _RESULT_WITH_LOG_START.pack(index, errorCode, baseOffset, logAppendTimeMs, logStartOffset)
            elif version >= _FIRST_VERSION_WITH_TIME:
                fixed = _RESULT.pack(index, errorCode, baseOffset, logAppendTimeMs)
            else:
                fixed = _RESULT_WITHOUT_TIME.pack(index, errorCode, baseOffset)
            parts.append(fixed)
            if version >= _FIRST_VERSION_WITH_MESSAGE:
                parts += noRecordErrors, dialect.string(errorMessage)
            parts.append(dialect.tags)
        parts.append(dialect.tags)
    if version >= _FIRST_VERSION_WITH_THROTTLE_TIME:
        parts += _INT32.pack(throttleTimeMs), dialect.tags
    return b"".join(parts)
