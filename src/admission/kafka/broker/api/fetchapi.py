# -*- test-case-name: tests.unit.kafka.broker.api.test_fetchapi -*-
"""
Fetch, ListOffsets and OffsetForLeaderEpoch: reading records, and finding offsets to read from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from attrs import define, evolve, field
from kio.schema.errors import ErrorCode
from twisted.internet.defer import TimeoutError
from twisted.python.failure import Failure

from admission.clock import wholeMicroseconds
from admission.gate.answerroom import SMALL_ANSWER_BYTES
from admission.interfaces import NOTHING, RESPONSES, ILease
from admission.kafka.serving.kafkarequest import KafkaRequest
from admission.kafka.serving.refusals import Refused, repeated
from admission.kafka.storage.itable import LogRefusal
from admission.kafka.wire.fetch import FetchedPartition, FetchedTopic, encodeFetchResponse
from admission.operations import waitFor
from admission.timeslices import Steps

from ..broker import DRAINED, Answer, Body, Broker, GoOver, Waiting
from ..log.interface import Partition, Topic
from .timelookup import maxTimestampOffset, offsetForTimestamp
from .topicapi import partitionIn, topicById

_NO_SESSION = 0
_NO_ID = UUID(int=0)

_FIRST_VERSION_THAT_BACKS_OFF = 8
"""From this version on clients wait for C{throttle_time_ms} by themselves (KIP-219)."""

_FIRST_VERSION_WITH_ERROR = 7

_MIN_READ_BYTES = 1 << 20
"""How much a fetch may read even if memory is short; otherwise producers would starve consumers."""

_CHARGED_BYTES = SMALL_ANSWER_BYTES
"""How much may be read before it is charged."""

_PARTITION_BYTES = 256
"""The memory that a partition without records takes in a response."""

_MANY_PARTITIONS = 100
"""From this number of partitions on, the memory of a Fetch that waits is worth freeing."""

_BACK_OFF_SECONDS = 0.5
"""How long a client is told to wait, at most, if memory is too short to let it wait for records."""

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_FIRST_VERSIONS = {_LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
"""The versions from which on negative times have a meaning of their own."""
_NO_VERSION = 1 << 15


@define(eq=False)
class Wanted:
    """
    One partition of a Fetch request.

    @ivar partition: L{None} if it cannot be read; C{errorCode} says why.
    @ivar behindBytes: the size of all batches before C{offset} when the partition began at C{countedFrom}.
    @ivar countedBytes: how much of it was counted as available.
    """

    partitionIndex: int
    partition: Partition | None
    errorCode: int
    offset: int
    maxBytes: int
    behindBytes: int = 0
    countedFrom: int = -1
    countedBytes: int = 0


@define(eq=False)
class PartitionsFetch:
    """
    A Fetch request whose topics have been looked up.

    @ivar wanted: the partitions that can be read.
    @ivar topics: all its partitions by topics, for the response.
    """

    broker: Broker
    request: KafkaRequest
    minBytes: int
    maxBytes: int
    wanted: Mapping[Partition, Wanted]
    topics: Sequence[tuple[str, UUID, Sequence[Wanted]]]
    isWatched: bool = field(init=False, default=False)
    _availableBytes: int = field(init=False, default=0)
    _hasFailed: bool = field(init=False, default=False)
    _isGivenUp: bool = field(init=False, default=False)

    def countAll(self) -> Steps[None]:
        """
        Count the available records of one partition after another, until there are enough.
        """
        for partition, wanted in self.wanted.items():
            if self._isEnough:
                return
            self._count(partition, wanted)
            yield None

    def isSatisfied(self) -> bool:
        """
        Whether there are enough records, or an error to report, or the broker
        is draining.  A client may watch thousands of partitions, so only those that have changed are examined; and one
        record may wake thousands of clients, so not all go on in the same turn.
        """
        changed = self.broker.changed if self.isWatched else None
        if changed is not None and changed in self.wanted:
            self._count(changed, self.wanted[changed])
            return self._isEnough and self.broker.mayWake(changed)
        if not self._isEnough:
            for partition, wanted in self.wanted.items():
                self._count(partition, wanted)
        return self._isEnough

    @property
    def _isEnough(self) -> bool:
        isOver = self.broker.isDraining or self._isGivenUp
        return self._availableBytes >= self.minBytes or self._hasFailed or isOver

    def _count(self, partition: Partition, wanted: Wanted) -> None:
        if wanted.countedFrom != partition.logStartOffset or partition.deleted:
            try:
                availableBytes = self.broker.log.bytesAvailable(partition, wanted.offset)
            except LogRefusal:
                self._hasFailed = True
                return
            wanted.behindBytes = partition.sizeBytes - availableBytes
            wanted.countedFrom = partition.logStartOffset
        # The number of bytes before the offset stays the same, so no file is read again, however many clients wait.
        partitionBytes = max(min(partition.sizeBytes - wanted.behindBytes, wanted.maxBytes), 0)
        self._availableBytes += partitionBytes - wanted.countedBytes
        wanted.countedBytes = partitionBytes

    def over(self, result: Any) -> Any:
        """
        The wait is over.
        """
        self.broker.waitingFetches.pop(self.giveUp, None)
        return result

    def giveUp(self) -> None:
        """
        Wait no longer, and read nothing; no effect on a request that does not wait.
        """
        self._isGivenUp = True
        self.broker.purgatory.checkAndComplete(self)

    def readLate(self) -> Steps[Body]:
        """
        The response after a wait.  The client may have used up its quota elsewhere
        meanwhile.
        """
        budgetBytes = _budgetOf(self.broker, self.request)
        if self._isGivenUp:
            return _memoryIsShort(self.request, _BACK_OFF_SECONDS)
        if budgetBytes == 0:
            return _empty(self.request)
        return (yield from self.read(budgetBytes))

    def read(self, budgetBytes: int | None) -> Steps[Body]:
        """
        The response, with as many records as the request, the memory and the client's quota allow.  The first batch is
        whole however large it is; otherwise a consumer could be stuck before it for ever.  While memory is short,
        responses that are not small are read one after another.

        @param budgetBytes: the result of L{_budgetOf}; not zero.
        """
        pool, answers = self.broker.gate.pool, self.broker.gate.answers
        if answers.isShort:
            expectedBytes = yield from self._expect()
            room = answers.whenRoom(self.request.connection.holder, expectedBytes, self.request.decodedBytes)
            if room is not None:
                yield room
        remainingBytes = min(self.maxBytes, max(pool.availableBytes, _MIN_READ_BYTES))
        if budgetBytes is not None:
            remainingBytes = min(remainingBytes, budgetBytes)
        readBytes = 0
        charge: ILease | None = None
        topics = []
        try:
            for name, topicId, each in self.topics:
                partitions = []
                for wanted in each:
                    fetched = self._readPartition(wanted, remainingBytes - readBytes, isFirst=readBytes == 0)
                    readBytes += sum(map(len, fetched.records))
                    partitions.append(fetched)
                    if readBytes - (0 if charge is None else charge.sizeBytes) > _CHARGED_BYTES:
                        if charge is not None:
                            charge.release()
                        charge = pool.charge(readBytes, RESPONSES)
                    yield None
                topics.append(FetchedTopic(name, topicId, partitions))
        finally:
            if charge is not None:
                charge.release()
        return _body(self.request, 0, topics)

    def _expect(self) -> Steps[int]:
        """
        How large the response may become; counting ends once it is not small.
        """
        expectedBytes = _PARTITION_BYTES * sum(len(each) for _, _, each in self.topics)
        for partition, wanted in self.wanted.items():
            if expectedBytes > SMALL_ANSWER_BYTES:
                break
            self._count(partition, wanted)
            # The first batch is whole, whatever is wanted.
            expectedBytes += max(partition.sizeBytes - wanted.behindBytes, 0)
            yield None
        return expectedBytes

    def _readPartition(self, wanted: Wanted, remainingBytes: int, isFirst: bool) -> FetchedPartition:
        partition = wanted.partition
        if partition is None:
            return FetchedPartition(wanted.partitionIndex, wanted.errorCode)
        try:
            records = self.broker.log.read(
                partition, wanted.offset, max(min(wanted.maxBytes, remainingBytes), 0), firstWhole=isFirst
            )
        except LogRefusal as refusal:
            return FetchedPartition(wanted.partitionIndex, refusal.errorCode)
        return FetchedPartition(
            wanted.partitionIndex,
            0,
            partition.highWatermark,
            partition.highWatermark,
            partition.logStartOffset,
            [records] if records else [],
        )


def fetch(broker: Broker, request: KafkaRequest) -> Steps[Answer | Waiting]:
    """
    Fetch: read records.  If there are fewer than the client wants, wait for
    up to its C{max_wait}.  Fetch sessions are declined.

    A client over its quota gets an empty answer that tells it to wait; the
    answer to an older client, which would not wait, is delayed.
    """
    budgetBytes = _budgetOf(broker, request)
    if budgetBytes != 0:
        return (yield from _fetch(broker, request, budgetBytes))
    if request.apiVersion >= _FIRST_VERSION_THAT_BACKS_OFF:
        return _empty(request)
    assert request.view is not None
    now = wholeMicroseconds(broker.clock.seconds())
    delaySeconds = broker.control.charge(request.view, NOTHING, now).delaySeconds
    waiting = waitFor(broker.purgatory, (DRAINED,), lambda: broker.isDraining, delaySeconds)
    waiting.addErrback(_timeIsUp)
    # The client has waited long enough, so it does not wait for more records.
    return waiting.addCallback(lambda _: partial(_readLate, broker, request))


def _readLate(broker: Broker, request: KafkaRequest) -> Steps[Body]:
    partitionsFetch = yield from _partitionsFetch(broker, request, None)
    return (yield from partitionsFetch.readLate())


def _budgetOf(broker: Broker, request: KafkaRequest) -> int | None:
    """
    How many bytes the client may read now; L{None} for no limit.
    """
    if request.view is None:
        return None
    return broker.control.budgetBytes(request.view, wholeMicroseconds(broker.clock.seconds()))


def _empty(request: KafkaRequest) -> Body:
    return _body(request, 0, (), isCounted=False)


def _memoryIsShort(request: KafkaRequest, waitSeconds: float) -> Body:
    """
    The answer to a client that has to wait for records, and cannot because memory is short.  It tells the client to
    wait before it asks again: otherwise clients that find no memory would ask again at once, for ever.
    """
    return evolve(_empty(request), backOffSeconds=min(waitSeconds, _BACK_OFF_SECONDS))


def refused(request: KafkaRequest) -> Body:
    """
    The answer to a client that a policy has refused.
    """
    if request.apiVersion >= _FIRST_VERSION_WITH_ERROR:
        return _body(request, ErrorCode.throttling_quota_exceeded.value, (), isCounted=False)
    topics = [
        FetchedTopic(
            topic.topic,
            _NO_ID,
            [FetchedPartition(each.partition, ErrorCode.throttling_quota_exceeded.value) for each in topic.partitions],
        )
        for topic in request.entity.topics
    ]
    return _body(request, 0, topics, isCounted=False)


def _body(request: KafkaRequest, errorCode: int, topics: Sequence[FetchedTopic], isCounted: bool = True) -> Body:
    return Body(
        lambda throttleTimeMs: encodeFetchResponse(request.apiVersion, throttleTimeMs, errorCode, _NO_SESSION, topics),
        isCounted,
    )


def _fetch(broker: Broker, request: KafkaRequest, budgetBytes: int | None) -> Steps[Answer | Waiting]:
    entity = request.entity
    if getattr(entity, "session_id", _NO_SESSION) != _NO_SESSION:
        return _body(request, ErrorCode.fetch_session_id_not_found.value, ())
    waitSeconds = min(entity.max_wait.total_seconds(), broker.settings.fetchMaxWaitSeconds)
    partitionsFetch = yield from _partitionsFetch(broker, request, budgetBytes)
    if waitSeconds <= 0:
        return (yield from partitionsFetch.read(budgetBytes))
    yield from partitionsFetch.countAll()
    if partitionsFetch.isSatisfied():
        return (yield from partitionsFetch.read(budgetBytes))
    if broker.gate.pool.isOutOfMemory():
        # Waiting takes memory, too.
        return _memoryIsShort(request, waitSeconds)
    wanted = partitionsFetch.wanted
    keys = (partitionsFetch, *(wanted or (DRAINED,)))
    waiting = waitFor(broker.purgatory, keys, partitionsFetch.isSatisfied, waitSeconds)
    if len(wanted) >= _MANY_PARTITIONS:
        broker.waitingFetches[partitionsFetch.giveUp] = len(wanted)
    partitionsFetch.isWatched = True
    waiting.addBoth(partitionsFetch.over)
    waiting.addErrback(_timeIsUp)
    return waiting.addCallback(lambda _: partitionsFetch.readLate)


def _partitionsFetch(broker: Broker, request: KafkaRequest, budgetBytes: int | None) -> Steps[PartitionsFetch]:
    entity, request.entity = request.entity, None
    wanted: dict[Partition, Wanted] = {}
    topics = []
    for topic in entity.topics:
        topics.append((yield from _lookUp(broker, topic, wanted)))
    hasErrors = len(wanted) < sum(len(each) for _, _, each in topics)
    limitBytes = broker.largestResponseBytes
    if budgetBytes is not None:
        limitBytes = min(limitBytes, budgetBytes)
    return PartitionsFetch(
        broker,
        request,
        0 if hasErrors else min(entity.min_bytes, limitBytes),
        min(entity.max_bytes, broker.largestResponseBytes),
        wanted,
        topics,
    )


def _timeIsUp(failure: Failure) -> Failure | None:
    """
    A timeout is not an error: the answer has fewer records.
    """
    return None if isinstance(failure.value, TimeoutError) else failure


def _lookUp(broker: Broker, topic: Any, wanted: dict[Partition, Wanted]) -> Steps[tuple[str, UUID, list[Wanted]]]:
    """
    Add the partitions of one topic to C{wanted}.

    @return: the name, the id and all partitions of the topic, for the response.
    """
    found: Topic | None = None
    errorCode = 0
    name, topicId = getattr(topic, "topic", ""), getattr(topic, "topic_id", None)
    try:
        found = topicById(broker, topicId) if hasattr(topic, "topic_id") else broker.log.topic(name)
    except LogRefusal as refusal:
        errorCode = refusal.errorCode
    asked = []
    for each in topic.partitions:
        partition = None
        partitionError = errorCode
        if found is not None:
            if not 0 <= each.partition < len(found.partitions):
                partitionError = ErrorCode.unknown_topic_or_partition.value
            elif found.partitions[each.partition] in wanted:
                partitionError = ErrorCode.invalid_request.value
            else:
                partitionError = epochError(broker, each)
                partition = None if partitionError else found.partitions[each.partition]
        asked.append(Wanted(each.partition, partition, partitionError, each.fetch_offset, each.partition_max_bytes))
        if partition is not None:
            wanted[partition] = asked[-1]
        yield None
    return name, topicId or _NO_ID, asked


def epochError(broker: Broker, asked: Any) -> int:
    """
    The error for a client that knows another leader epoch.  A client that knows an older one has to find out first
    whether the records that it has read are still there.
    """
    known = getattr(asked, "current_leader_epoch", -1)
    if known < 0 or known == broker.log.leaderEpoch:
        return 0
    return (ErrorCode.fenced_leader_epoch if known < broker.log.leaderEpoch else ErrorCode.unknown_leader_epoch).value


def listOffsets(broker: Broker, request: KafkaRequest) -> Steps[Answer]:
    """
    ListOffsets: the first offset, the last, or the first at or after a time.
    """
    duplicates = repeated(
        (topic.name, each.partition_index) for topic in request.entity.topics for each in topic.partitions
    )
    goOver = partial(broker.goOver, request)
    topics = []
    for topic in request.entity.topics:
        partitions = []
        for each in topic.partitions:
            yield None
            answer: dict[str, Any] = {"partition_index": each.partition_index, "timestamp": -1, "offset": -1}
            partitions.append(answer)
            try:
                if (topic.name, each.partition_index) in duplicates:
                    raise Refused(ErrorCode.invalid_request, "the request names the partition twice")
                if each.timestamp < 0 and request.apiVersion < _FIRST_VERSIONS.get(each.timestamp, _NO_VERSION):
                    raise Refused(ErrorCode.unsupported_version, "nothing is meant by that time in this version")
                partition = partitionIn(broker.log.topic(topic.name), each.partition_index)
                answer["error_code"] = epochError(broker, each)
                if answer["error_code"]:
                    continue
                offset, timestampMs = yield from _offsetFor(broker, partition, each.timestamp, goOver)
                answer |= {"offset": offset, "timestamp": timestampMs}
                answer["leader_epoch"] = broker.log.leaderEpoch if offset >= 0 else -1
            except LogRefusal as refusal:
                answer["error_code"] = refusal.errorCode
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def offsetForLeaderEpoch(broker: Broker, request: KafkaRequest) -> Steps[Answer]:
    """
    OffsetForLeaderEpoch: where the records of a leader epoch end, for consumers that want to know whether records that
    they have read were lost (KIP-320).
    """
    duplicates = repeated((topic.topic, each.partition) for topic in request.entity.topics for each in topic.partitions)
    topics = []
    for topic in request.entity.topics:
        partitions = []
        for each in topic.partitions:
            yield None
            answer: dict[str, Any] = {
                "partition": each.partition,
                "error_code": 0,
                "leader_epoch": -1,
                "end_offset": -1,
            }
            partitions.append(answer)
            try:
                if (topic.topic, each.partition) in duplicates:
                    raise Refused(ErrorCode.invalid_request, "the request names the partition twice")
                partition = partitionIn(broker.log.topic(topic.topic), each.partition)
                answer["error_code"] = epochError(broker, each)
                if not answer["error_code"]:
                    answer["leader_epoch"], answer["end_offset"] = broker.log.endOfEpoch(partition, each.leader_epoch)
            except LogRefusal as refusal:
                answer["error_code"] = refusal.errorCode
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _offsetFor(broker: Broker, partition: Partition, timestampMs: int, goOver: GoOver) -> Steps[tuple[int, int]]:
    if timestampMs == _LATEST:
        return partition.highWatermark, -1
    if timestampMs in (_EARLIEST, _EARLIEST_LOCAL):
        return partition.logStartOffset, -1
    if timestampMs == _LATEST_TIERED:
        return -1, -1
    if timestampMs == _MAX_TIMESTAMP:
        found = yield from maxTimestampOffset(broker.log, partition, goOver)
    else:
        found = yield from offsetForTimestamp(broker.log, partition, timestampMs, goOver)
    return (-1, -1) if found is None else found
