"""
Hand-written code for the Fetch response, versions 4 to 17: stored record batches are
sent as they are, neither copied nor joined, and a client finds them as views.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from attrs import frozen

from .primitives import CLASSIC, FLEXIBLE, PAST_THE_END, Buffer, MalformedRequest, sizeOf
from .versions import BY_KEY, FETCH

_API: Final = BY_KEY[FETCH]
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_ERROR_AND_SESSION: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">ihqq")

_FIRST_VERSION_WITH_LOG_START: Final = 5
_FIRST_VERSION_WITH_SESSION: Final = 7
_FIRST_VERSION_WITH_PREFERRED_REPLICA: Final = 11
_FIRST_VERSION_WITH_TOPIC_ID: Final = 13

_NO_PREFERRED_REPLICA: Final = _INT32.pack(-1)
_NO_TOPIC_ID: Final = UUID(int=0)
_NULL: Final = -1
_TOPIC_ID_BYTES: Final = 16
_ABORTED_TRANSACTION_BYTES: Final = 16


@frozen
class FetchedPartition:
    """
    The records of one partition for a consumer.

    @ivar partitionIndex: the partition.
    @ivar errorCode: 0 if the other fields are valid.
    @ivar highWatermark: the offset after the last readable record, or -1.
    @ivar lastStableOffset: the same for clients that read committed records only.
    @ivar logStartOffset: the first offset that can still be read, or -1.
    @ivar records: stored batches, in the order of their offsets.
    """

    partitionIndex: int
    errorCode: int = 0
    highWatermark: int = -1
    lastStableOffset: int = -1
    logStartOffset: int = -1
    records: Sequence[bytes] = ()


@frozen
class FetchedTopic:
    """
    The partitions of one topic in a Fetch response.

    @ivar topicName: the topic; sent before version 13.
    @ivar topicId: the topic; sent from version 13 on.
    @ivar partitions: in the order of the response.
    """

    topicName: str
    topicId: UUID
    partitions: Sequence[FetchedPartition]


def encodeFetchResponse(
    version: int, throttleTimeMs: int, errorCode: int, sessionId: int, topics: Sequence[FetchedTopic]
) -> list[bytes]:
    """
    The body of a Fetch response, as parts to be written one after another.

    Aborted transactions are null and there is no preferred read replica.

    @param version: 4 to 17, that of the request.
    @param throttleTimeMs: how long the client must wait.
    @param errorCode: for the request as a whole, known to version 7 and later.
    @param sessionId: 0 declines a fetch session, known to version 7 and later.
    @param topics: in the order of the response.
    """
    dialect = FLEXIBLE if _API.isFlexible(version) else CLASSIC
    beforeRecords = dialect.length(-1)
    if version >= _FIRST_VERSION_WITH_PREFERRED_REPLICA:
        beforeRecords += _NO_PREFERRED_REPLICA
    parts: list[bytes] = []
    between = bytearray(_INT32.pack(throttleTimeMs))
    if version >= _FIRST_VERSION_WITH_SESSION:
        between += _ERROR_AND_SESSION.pack(errorCode, sessionId)
    between += dialect.length(len(topics))
    for topic in topics:
        between += topic.topicId.bytes if version >= _FIRST_VERSION_WITH_TOPIC_ID else dialect.string(topic.topicName)
        between += dialect.length(len(topic.partitions))
        for partition in topic.partitions:
            between += _PARTITION.pack(
                partition.partitionIndex, partition.errorCode, partition.highWatermark, partition.lastStableOffset
            )
            if version >= _FIRST_VERSION_WITH_LOG_START:
                between += _INT64.pack(partition.logStartOffset)
            between += beforeRecords
            between += dialect.length(sizeOf(partition.records))
            if partition.records:
                parts.append(bytes(between))
                parts += partition.records
                between.clear()
            between += dialect.tags
        between += dialect.tags
    between += dialect.tags
    parts.append(bytes(between))
    return parts


class PartitionData(NamedTuple):
    """
    One partition in a response.

    @ivar topicName: the topic; empty from version 13 on.
    @ivar topicId: the topic; all zeros before version 13.
    @ivar partitionIndex: the partition.
    @ivar errorCode: 0 if the other fields are valid.
    @ivar highWatermark: the offset after the last readable record, or -1.
    @ivar logStartOffset: the first offset that can still be read, or -1.
    @ivar records: batches, the last of which may be cut off; a view of the response.
    """

    topicName: str
    topicId: UUID
    partitionIndex: int
    errorCode: int
    highWatermark: int
    logStartOffset: int
    records: memoryview


@frozen
class FetchResponse:
    """
    A Fetch response as a client sees it.

    @ivar throttleTimeMs: how long the client must wait.
    @ivar errorCode: for the request as a whole.
    @ivar sessionId: the fetch session, 0 if there is none.
    @ivar partitions: in the order of the response.
    """

    throttleTimeMs: int
    errorCode: int
    sessionId: int
    partitions: Sequence[PartitionData]


def decodeFetchResponse(version: int, body: Buffer, maxElements: int) -> FetchResponse:
    """
    Decode the body of a Fetch response without copying its records.

    Aborted transactions, preferred read replicas and tagged fields are skipped.

    @param version: 4 to 17, that of the request.
    @param maxElements: how many topics, partitions and aborted transactions
        to allow in all.
    @raise MalformedRequest: if a count or a length makes no sense, or the
        fields end before or after the end of the body.
    """
    view = memoryview(body).toreadonly()
    try:
        return _FetchReader(version, view, maxElements).read()
    except PAST_THE_END:
        raise MalformedRequest("a Fetch response ends before its fields do") from None
    except UnicodeDecodeError:
        raise MalformedRequest("the name of a topic in a Fetch response is not UTF-8") from None


class _FetchReader:
    """
    Walks one response.
    """

    def __init__(self, version: int, view: memoryview, maxElements: int) -> None:
        self._version = version
        self._view = view
        self._elementsLeft = maxElements
        self._dialect = FLEXIBLE if _API.isFlexible(version) else CLASSIC
        self._offset = 0

    def read(self) -> FetchResponse:
        (throttleTimeMs,) = self._unpack(_INT32)
        errorCode = sessionId = 0
        if self._version >= _FIRST_VERSION_WITH_SESSION:
            errorCode, sessionId = self._unpack(_ERROR_AND_SESSION)
        partitions: list[PartitionData] = []
        for _ in range(self._count("topics")):
            topicName, topicId = "", _NO_TOPIC_ID
            if self._version >= _FIRST_VERSION_WITH_TOPIC_ID:
                topicId = UUID(bytes=bytes(self._take(_TOPIC_ID_BYTES)))
            else:
                nameBytes, self._offset = self._dialect.readStringLength(self._view, self._offset)
                topicName = str(self._take(nameBytes), "utf-8")
            for _ in range(self._count("partitions")):
                partitions.append(self._partition(topicName, topicId))
            self._skipTags()
        self._skipTags()
        if self._offset != len(self._view):
            raise MalformedRequest(f"{len(self._view) - self._offset} bytes are left over behind a Fetch response")
        return FetchResponse(throttleTimeMs, errorCode, sessionId, partitions)

    def _partition(self, topicName: str, topicId: UUID) -> PartitionData:
        partitionIndex, errorCode, highWatermark, _ = self._unpack(_PARTITION)
        logStartOffset = -1
        if self._version >= _FIRST_VERSION_WITH_LOG_START:
            (logStartOffset,) = self._unpack(_INT64)
        for _ in range(self._count("aborted transactions")):
            self._take(_ABORTED_TRANSACTION_BYTES)
            self._skipTags()
        if self._version >= _FIRST_VERSION_WITH_PREFERRED_REPLICA:
            self._take(_INT32.size)
        sizeBytes, self._offset = self._dialect.readLength(self._view, self._offset)
        records = self._take(0 if sizeBytes == _NULL else sizeBytes)
        self._skipTags()
        return PartitionData(topicName, topicId, partitionIndex, errorCode, highWatermark, logStartOffset, records)

    def _unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        values = fields.unpack_from(self._view, self._offset)
        self._offset += fields.size
        return values

    def _take(self, sizeBytes: int) -> memoryview:
        end = self._offset + sizeBytes
        if sizeBytes < 0 or end > len(self._view):
            raise MalformedRequest(
                f"a Fetch response announces {sizeBytes} bytes with {len(self._view) - self._offset} left"
            )
        taken = self._view[self._offset : end]
        self._offset = end
        return taken

    def _count(self, what: str) -> int:
        count, self._offset = self._dialect.readLength(self._view, self._offset)
        if count == _NULL:
            return 0
        # Each of them takes a byte or more.
        if not 0 <= count <= min(self._elementsLeft, len(self._view) - self._offset):
            raise MalformedRequest(
                f"a Fetch response announces {count} {what} with {len(self._view) - self._offset} bytes left"
                f" and {self._elementsLeft} elements allowed"
            )
        self._elementsLeft -= count
        return count

    def _skipTags(self) -> None:
        self._offset = self._dialect.skipTags(self._view, self._offset)
