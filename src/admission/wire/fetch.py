"""
The Fetch response by hand, versions 4 to 17: stored record batches go out as
they are, neither copied nor joined.
"""

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from attrs import frozen

from .primitives import CLASSIC, FLEXIBLE, sizeOf
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


@frozen
class FetchedPartition:
    """
    What a consumer gets of one partition.

    @ivar partitionIndex: the partition.
    @ivar errorCode: 0 if the other fields can be relied on.
    @ivar highWatermark: the offset behind the last record to be read, or -1.
    @ivar lastStableOffset: the same for those who read committed records only.
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

    @ivar topicName: the topic; goes out before version 13.
    @ivar topicId: the topic; goes out from version 13 on.
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
    @param throttleTimeMs: for how long the client is asked to be quiet.
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
