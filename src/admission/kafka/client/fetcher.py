# -*- test-case-name: tests.unit.kafka.client.test_fetcher -*-
"""
Finding where to begin, and fetching records ahead of the application.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..wire.fetch import FetchResponse, PartitionData
from .cluster import FETCHES, Cluster
from .consumersettings import EARLIEST, NONE, ConsumerSettings
from .errors import Backoff, BrokerRefused, ClientError, NoOffset, RecordsRefused
from .recordsets import ConsumerRecord, PartitionRecords
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

#: For each partition of a Fetch the offset that is asked for.
_Wanted = Mapping[TopicPartition, tuple[PartitionState, int]]

#: Returns which of the partitions the group has committed an offset for, and which offset.
CommittedOffsets = Callable[[Collection[TopicPartition]], Deferred[dict[TopicPartition, int]]]


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
        # By the id of the broker, the size of the response that it may send.
        self._requests: dict[int, int] = {}
        self._brokerFailures: dict[int, int] = {}
        self._buffered: dict[PartitionState, PartitionRecords] = {}
        self._fetchTimer: IDelayedCall | None = None
        self._fetchError: ClientError | None = None
        self._finding: Deferred[None] | None = None
        self._findFailures = 0
        self._positionError: ClientError | None = None
        self._topicErrors: dict[str, BrokerRefused] = {}
        self._hasChanged = False
        # As of the last look at the subscription.
        self._assigned: frozenset[PartitionState] = frozenset()
        self._isClosed = False
        self.bufferedBytes = 0

    # What others change

    def subscriptionChanged(self) -> None:
        """
        Look at the subscription before anything else is done; cheap, so that an
        application may seek in many partitions one after the other.
        """
        self._hasChanged = True

    def applyChange(self) -> None:
        """
        Drop the records that are not wanted any more, if the subscription has changed.
        """
        if self._hasChanged:
            self._applyChange()

    def _applyChange(self) -> None:
        self._hasChanged = False
        for partition, records in list(self._buffered.items()):
            # Paused partitions would take the room of others.
            if (
                not self._subscription.holds(partition)
                or partition.isPaused
                or partition.position != records.nextOffset
            ):
                self._drop(partition)
        assigned = frozenset(self._subscription.partitions.values())
        if assigned != self._assigned:
            self._assigned = assigned
            # What was wrong may be over.
            self._fetchError = self._positionError = None
            if any(each.place.topic not in self._cluster.leaders for each in assigned):
                self._cluster.refreshSoon(isUrgent=True)
        elif all(each.position is not None for each in assigned):
            # The application has sought where there was no offset.
            self._positionError = None

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
        if self._hasChanged:
            self._applyChange()
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
        if self._hasChanged:
            self._applyChange()
        self._findPositions()
        self._fetch()

    def _drop(self, partition: PartitionState) -> None:
        self.bufferedBytes -= self._buffered.pop(partition).sizeBytes

    # Positions

    def _findPositions(self) -> None:
        if self._finding is not None or self._positionError is not None or self._isClosed:
            return
        missing = [each for each in self._subscription.partitions.values() if each.position is None]
        askable = [
            each for each in missing if self._mayBeCommitted(each) or self._cluster.leaderOf(each.place) is not None
        ]
        if len(askable) < len(missing):
            self._cluster.refreshSoon()
        if askable:
            self._finding = self._find(askable)
            self._finding.addBoth(self._findEnded)

    def _mayBeCommitted(self, partition: PartitionState) -> bool:
        return self._committed is not None and not partition.isUncommitted

    @inlineCallbacks
    def _find(self, missing: Sequence[PartitionState]) -> Generator[Deferred[Any], Any, None]:
        try:
            yield self._lookUp(missing)
            self._findFailures = 0
        except ClientError as error:
            if error.isRetriable:
                self._findFailures += 1
                self._cluster.refreshSoon()
                yield deferLater(self._clock, self._backoff.delaySeconds(self._findFailures))
            else:
                self._positionError = error

    @inlineCallbacks
    def _lookUp(self, missing: Sequence[PartitionState]) -> Generator[Deferred[Any], Any, None]:
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

    def _findEnded(self, result: Any) -> None:
        self._finding = None
        if not self._isClosed:
            if isinstance(result, Failure):
                self.log.failure("finding positions went wrong", result)
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
            self._requests[leaderId] = maxBytes
            fetching = self._fetchFrom(leaderId, {each.place: (each, each.position or 0) for each in wanted})
            fetching.addErrback(lambda failure: self.log.failure("a fetch went wrong", failure))

    def _roomBytes(self) -> int | None:
        """
        The largest response to ask for; L{None} if it is better to wait until
        more records have been taken.
        """
        settings = self._settings
        spokenFor = self.bufferedBytes + sum(self._requests.values())
        room = min(settings.prefetchMaxBytes - spokenFor, settings.fetchMaxBytes)
        isWorthwhile = room >= min(settings.maxPartitionFetchBytes, settings.fetchMaxBytes)
        return max(room, 1) if isWorthwhile or not spokenFor else None

    @inlineCallbacks
    def _fetchFrom(self, leaderId: int, wanted: _Wanted) -> Generator[Deferred[Any], Any, None]:
        """
        Send one Fetch, and the next one when it has ended.

        @param wanted: for each partition the offset to ask for.
        """
        response: FetchResponse | None = None
        error: ClientError | None = None
        for partition, _ in wanted.values():
            partition.isFetching = True
        try:
            timeoutSeconds = self._settings.requestTimeoutSeconds + self._settings.fetchMaxWaitSeconds
            connection = yield self._cluster.connection(leaderId, FETCHES)
            response = yield connection.request("Fetch", self._fieldsOf(leaderId, wanted), timeoutSeconds)
        except ClientError as failed:
            error = failed
        finally:
            del self._requests[leaderId]
            for partition, _ in wanted.values():
                partition.isFetching = False
        if self._isClosed:
            return
        if error is not None:
            self._failed(error, leaderId, wanted)
        elif response is not None:
            self._fetched(response, leaderId, wanted)
        self._onReady()
        self._fetch()

    def _fieldsOf(self, leaderId: int, wanted: _Wanted) -> Mapping[str, Any]:
        settings = self._settings
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), (_, offset) in wanted.items():
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
        return {
            "replica_id": _NO_REPLICA,
            "max_wait_ms": round(settings.fetchMaxWaitSeconds * 1000),
            "min_bytes": settings.fetchMinBytes,
            "max_bytes": self._requests[leaderId],
            "session_id": _NO_SESSION,
            "session_epoch": _NO_EPOCH,
            "rack_id": "",
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }

    def _failed(self, error: ClientError, leaderId: int, wanted: _Wanted) -> None:
        if not error.isRetriable:
            self._fetchError = error
        failures = self._brokerFailures[leaderId] = self._brokerFailures.get(leaderId, 0) + 1
        retrySeconds = self._clock.seconds() + self._backoff.delaySeconds(failures)
        for partition, _ in wanted.values():
            partition.retrySeconds = retrySeconds
        self._cluster.refreshSoon()

    def _fetched(self, response: FetchResponse, leaderId: int, wanted: _Wanted) -> None:
        self._brokerFailures.pop(leaderId, None)
        for data in response.partitions:
            partition, offset = wanted.get(TopicPartition(data.topicName, data.partitionIndex), (None, 0))
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
        for partition, _ in wanted.values():
            if partition in self._buffered:
                self._subscription.moveToEnd(partition)

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
        self._applyChange()
        if self._fetchTimer is not None:
            self._fetchTimer.cancel()
            self._fetchTimer = None
        if self._finding is not None:
            self._finding.cancel()
