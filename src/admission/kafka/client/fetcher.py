# -*- test-case-name: tests.unit.kafka.client.test_fetcher -*-
"""
Finding where to begin, and fetching records ahead of the application.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

from attrs import frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..wire.fetch import FetchResponse, PartitionData
from .cluster import FETCHES, Cluster
from .errors import Backoff, BrokerRefused, ClientError, NoOffset, RecordsRefused
from .recordsets import ConsumerRecord, PartitionRecords
from .settings import EARLIEST, NONE, ConsumerSettings
from .subscriptionstate import PartitionState, SubscriptionState, TopicPartition

_NO_SESSION = 0
_NO_EPOCH = -1
_NO_REPLICA = -1

_LEADER_CHANGED = frozenset(
    (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
    )
)

#: Returns which of the partitions the group has committed an offset for, and which offset.
CommittedOffsets = Callable[[Collection[TopicPartition]], Deferred[dict[TopicPartition, int]]]


@frozen(eq=False)
class _Request:
    """
    A Fetch on its way.

    @ivar wanted: for each partition the offset that is asked for.
    @ivar maxBytes: the largest response.
    """

    wanted: dict[TopicPartition, tuple[PartitionState, int]]
    maxBytes: int


class Fetcher:
    """
    Keeps records ready for all assigned partitions that are not paused.

    A partition without a position gets the offset that the group has committed,
    else the one that C{auto.offset.reset} says; that is tried until it
    succeeds.  Each broker has at most one Fetch at a time.  What is buffered is
    bounded by C{prefetch.max.bytes}, and a batch for each broker that would not
    have fit.

    @ivar bufferedBytes: the size of the records that are ready, as they arrived.
    """

    log = Logger()

    def __init__(
        self,
        subscription: SubscriptionState,
        cluster: Cluster,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
        committed: CommittedOffsets | None,
        onReady: Callable[[], None],
    ) -> None:
        """
        @param clock: runs and measures timers; monotonic.
        @param committed: says where the group is; L{None} without a group.
        @param onReady: called when L{take} may return or raise something new,
            or L{advance} may do something.
        """
        self._subscription = subscription
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._committed = committed
        self._onReady = onReady
        self._requests: dict[int, _Request] = {}
        self._brokerFailures: dict[int, int] = {}
        self._buffered: dict[PartitionState, PartitionRecords] = {}
        self._fetchTimer: IDelayedCall | None = None
        self._fetchError: ClientError | None = None
        self._finding: Deferred[None] | None = None
        self._findTimer: IDelayedCall | None = None
        self._findFailures = 0
        self._positionError: ClientError | None = None
        self._topicErrors: dict[str, BrokerRefused] = {}
        self._isClosed = False
        self.bufferedBytes = 0

    # What others change

    def subscriptionChanged(self) -> None:
        """
        Drop buffered records of partitions that were revoked, paused or sought
        in, and see again whether what was wrong is so still.
        """
        for partition, records in list(self._buffered.items()):
            # Paused partitions would take the room of others.
            if (
                not self._subscription.holds(partition)
                or partition.isPaused
                or partition.position != records.nextOffset
            ):
                self._drop(partition)
        self._fetchError = self._positionError = None
        if any(place.topic not in self._cluster.leaders for place in self._subscription.partitions):
            self._cluster.refreshSoon(isUrgent=True)

    def metadataRefreshed(self) -> None:
        topics = self._subscription.ownTopics
        self._topicErrors = {
            topic: BrokerRefused(errorCode.value, f"looking for topic {topic!r}")
            for topic, errorCode in self._cluster.errors.items()
            if not errorCode.retriable and topic in topics
        }

    # What the application takes

    def take(self, count: int) -> list[ConsumerRecord]:
        """
        The next records, at most C{count}; positions move behind them.

        @raise ClientError: for what trying again does not cure; if that is a
            Fetch or a batch, only when there is nothing else to return first.
        """
        error, self._positionError = self._positionError, None
        if error is None and self._topicErrors:
            error = self._topicErrors.pop(min(self._topicErrors))
        if error is not None:
            raise error
        taken: list[ConsumerRecord] = []
        while self._buffered and len(taken) < count:
            partition, records = next(iter(self._buffered.items()))
            try:
                taken += records.take(count - len(taken))
            except RecordsRefused:
                if taken:
                    break
                self._drop(partition)
                raise
            partition.position = records.nextOffset
            if records.isExhausted:
                self._drop(partition)
            elif len(taken) < count:
                # The next batch cannot be read: first return the records before it.
                break
        if not taken and self._fetchError is not None:
            error, self._fetchError = self._fetchError, None
            raise error
        return taken

    def advance(self) -> None:
        """
        Find positions that are missing, and send a Fetch to every broker that
        has answered the last one.
        """
        self._findPositions()
        self._fetch()

    def _drop(self, partition: PartitionState) -> None:
        self.bufferedBytes -= self._buffered.pop(partition).sizeBytes

    # Positions

    def _findPositions(self) -> None:
        isBusy = self._finding is not None or self._findTimer is not None
        if isBusy or self._positionError is not None or self._isClosed:
            return
        missing = [each for each in self._subscription.partitions.values() if each.position is None]
        askable = [
            each for each in missing if self._mayBeCommitted(each) or self._cluster.leaderOf(each.place) is not None
        ]
        if len(askable) < len(missing):
            self._cluster.refreshSoon()
        if askable:
            self._finding = finding = self._find(askable)
            finding.addCallbacks(self._found, self._notFound)
            finding.addErrback(lambda failure: self.log.failure("finding positions went wrong", failure))

    def _mayBeCommitted(self, partition: PartitionState) -> bool:
        return self._committed is not None and not partition.isUncommitted

    @inlineCallbacks
    def _find(self, missing: Sequence[PartitionState]) -> Generator[Deferred[Any], Any, None]:
        if self._committed is not None:
            unasked = {each.place: each for each in missing if not each.isUncommitted}
            offsets = yield self._committed(unasked)
            for place, each in unasked.items():
                # The application may have sought meanwhile.
                if each.position is None:
                    each.position = offsets.get(place)
                    each.isUncommitted = each.position is None
        unset = {each.place: each for each in missing if each.position is None}
        if not unset:
            return
        reset = self._settings.autoOffsetReset
        if reset == NONE:
            raise NoOffset(f"there is no offset to begin at for {', '.join(map(str, unset))}")
        led = [place for place in unset if self._cluster.leaderOf(place) is not None]
        offsets = yield self._cluster.listOffsets(led, isEarliest=reset == EARLIEST)
        for place, each in unset.items():
            if each.position is None:
                each.position = offsets.get(place)

    def _found(self, _: object) -> None:
        self._finding = None
        self._findFailures = 0
        self._onReady()

    def _notFound(self, failure: Failure) -> None:
        self._finding = None
        if self._isClosed:
            return
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        error = failure.value
        assert isinstance(error, ClientError)
        if error.isRetriable:
            self._findFailures += 1
            delaySeconds = self._backoff.delaySeconds(self._findFailures)
            self._findTimer = self._clock.callLater(delaySeconds, self._timeToFind)
            self._cluster.refreshSoon()
        else:
            self._positionError = error
            self._onReady()

    def _timeToFind(self) -> None:
        self._findTimer = None
        self._onReady()

    # Requests

    def _fetch(self) -> None:
        if self._isClosed:
            return
        now = self._clock.seconds()
        byLeader: dict[int, list[PartitionState]] = {}
        for partition in self._subscription.partitions.values():
            isWanted = partition.position is not None and not partition.isPaused
            if not isWanted or partition.isFetching or partition in self._buffered:
                continue
            if partition.retrySeconds > now:
                self._fetchIn(partition.retrySeconds - now)
                continue
            leaderId = self._cluster.leaderOf(partition.place)
            if leaderId is None:
                self._cluster.refreshSoon()
            elif leaderId not in self._requests:
                byLeader.setdefault(leaderId, []).append(partition)
        for leaderId, wanted in byLeader.items():
            maxBytes = self._roomBytes()
            if maxBytes is None:
                return
            self._send(leaderId, wanted, maxBytes)

    def _roomBytes(self) -> int | None:
        """
        The largest response to ask for; L{None} if it is better to wait until
        more records have been taken.
        """
        settings = self._settings
        spokenFor = self.bufferedBytes + sum(request.maxBytes for request in self._requests.values())
        room = min(settings.prefetchMaxBytes - spokenFor, settings.fetchMaxBytes)
        isWorthwhile = room >= min(settings.maxPartitionFetchBytes, settings.fetchMaxBytes)
        return max(room, 1) if isWorthwhile or not spokenFor else None

    def _send(self, leaderId: int, wanted: Sequence[PartitionState], maxBytes: int) -> None:
        settings = self._settings
        offsets = {each.place: (each, each.position or 0) for each in wanted}
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), (partition, offset) in offsets.items():
            partition.isFetching = True
            topics.setdefault(topic, []).append(
                {
                    "partition": index,
                    "current_leader_epoch": _NO_EPOCH,
                    "fetch_offset": offset,
                    "last_fetched_epoch": _NO_EPOCH,
                    "log_start_offset": -1,
                    "partition_max_bytes": settings.maxPartitionFetchBytes,
                }
            )
        fields = {
            "replica_id": _NO_REPLICA,
            "max_wait_ms": round(settings.fetchMaxWaitSeconds * 1000),
            "min_bytes": settings.fetchMinBytes,
            "max_bytes": maxBytes,
            "session_id": _NO_SESSION,
            "session_epoch": _NO_EPOCH,
            "rack_id": "",
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }
        timeoutSeconds = settings.requestTimeoutSeconds + settings.fetchMaxWaitSeconds
        self._requests[leaderId] = _Request(offsets, maxBytes)
        connected: Deferred[Any] = self._cluster.connection(leaderId, FETCHES)
        answer = connected.addCallback(lambda connection: connection.request("Fetch", fields, timeoutSeconds))
        answer.addCallbacks(self._fetched, self._failed, callbackArgs=(leaderId,), errbackArgs=(leaderId,))
        answer.addErrback(lambda failure: self.log.failure("a fetch went wrong", failure))

    def _ended(self, leaderId: int) -> _Request:
        request = self._requests.pop(leaderId)
        for partition, _ in request.wanted.values():
            partition.isFetching = False
        return request

    def _failed(self, failure: Failure, leaderId: int) -> None:
        request = self._ended(leaderId)
        if self._isClosed:
            return
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        error = failure.value
        assert isinstance(error, ClientError)
        if not error.isRetriable:
            self._fetchError = error
        failures = self._brokerFailures[leaderId] = self._brokerFailures.get(leaderId, 0) + 1
        retrySeconds = self._clock.seconds() + self._backoff.delaySeconds(failures)
        for partition, _ in request.wanted.values():
            partition.retrySeconds = retrySeconds
        self._cluster.refreshSoon()
        self._onReady()
        self._fetch()

    def _fetched(self, response: FetchResponse, leaderId: int) -> None:
        request = self._ended(leaderId)
        self._brokerFailures.pop(leaderId, None)
        if self._isClosed:
            return
        for data in response.partitions:
            partition, offset = request.wanted.get(TopicPartition(data.topicName, data.partitionIndex), (None, 0))
            # The partition may have been revoked, paused or sought in meanwhile, or the broker be confused.
            if (
                partition is not None
                and self._subscription.holds(partition)
                and partition.position == offset
                and partition not in self._buffered
                and not partition.isPaused
            ):
                self._received(partition, data, offset, response.errorCode)
        # Partitions that have got records are asked for last the next time.
        for partition, _ in request.wanted.values():
            if partition in self._buffered:
                self._subscription.moveToEnd(partition)
        self._onReady()
        self._fetch()

    def _received(self, partition: PartitionState, data: PartitionData, offset: int, requestError: int) -> None:
        errorCode = data.errorCode or requestError
        if errorCode:
            self._refused(partition, errorCode)
            return
        partition.failures = 0
        if data.records:
            maxBatchBytes = self._settings.receiveMessageMaxBytes
            self._buffered[partition] = PartitionRecords(partition.place, data.records, offset, maxBatchBytes)
            self.bufferedBytes += len(data.records)

    def _refused(self, partition: PartitionState, errorCode: int) -> None:
        error = BrokerRefused(errorCode, f"fetching {partition.place} from offset {partition.position}")
        partition.failures += 1
        partition.retrySeconds = self._clock.seconds() + self._backoff.delaySeconds(partition.failures)
        if error.errorCode == ErrorCode.offset_out_of_range:
            self.log.warn(
                "{partition} has no offset {offset}: not any more, or not yet; going where auto.offset.reset says",
                partition=partition.place,
                offset=partition.position,
            )
            partition.position = None
            partition.isUncommitted = True
        elif error.errorCode in _LEADER_CHANGED:
            self._cluster.refreshSoon()
        elif error.errorCode != ErrorCode.unknown_server_error and not error.isRetriable:
            self._fetchError = error

    def _fetchIn(self, delaySeconds: float) -> None:
        if self._fetchTimer is None:
            self._fetchTimer = self._clock.callLater(delaySeconds, self._timeToFetch)

    def _timeToFetch(self) -> None:
        self._fetchTimer = None
        self._fetch()

    def close(self) -> None:
        self._isClosed = True
        for timer in (self._fetchTimer, self._findTimer):
            if timer is not None:
                timer.cancel()
        self._fetchTimer = self._findTimer = None
        if self._finding is not None:
            self._finding.cancel()
