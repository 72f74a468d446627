# -*- test-case-name: tests.unit.kafka.client.test_fetcher -*-
"""
Fetching records ahead of the application, one request at a time from each
broker, within a bound on what is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..wire.fetch import FetchResponse, PartitionData
from .backoff import Backoff
from .cluster import FETCHES, Cluster
from .consumersettings import ConsumerSettings
from .errors import BrokerRefused, ClientError, RecordsRefused
from .positions import Assigned
from .records import PartitionRecords
from .topicpartition import ConsumerRecord, TopicPartition

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


@define(eq=False)
class _Request:
    """
    A Fetch on its way.

    @ivar wanted: for each partition the offset that is asked for.
    @ivar maxBytes: what it may bring.
    """

    wanted: dict[TopicPartition, tuple[Assigned, int]]
    maxBytes: int


class Fetcher:
    """
    Keeps records ready for all assigned partitions that have a position.

    What is held is bounded by C{prefetch.max.bytes}, and a batch for each
    broker that would not have fit.

    @ivar assigned: the partitions that we read.
    @ivar heldBytes: what is ready to be taken, as it arrived.
    @ivar onReady: called when there may be something to take.
    @ivar onLeaderChanged: called when the metadata are out of date.
    @ivar onOutOfRange: told of a partition whose position is not in the log.
    """

    log = Logger()

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, clock: IReactorTime, backoff: Backoff) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._requests: dict[int, _Request] = {}
        self._brokerFailures: dict[int, int] = {}
        self._ready: deque[tuple[Assigned, PartitionRecords]] = deque()
        self._timer: IDelayedCall | None = None
        self._error: ClientError | None = None
        self._isClosed = False
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.heldBytes = 0
        self.onReady: Callable[[], None] = lambda: None
        self.onLeaderChanged: Callable[[], None] = lambda: None
        self.onOutOfRange: Callable[[Assigned], None] = lambda assigned: None

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """
        Read C{places} and nothing else, those that are new from nowhere yet.
        """
        for place in [place for place in self.assigned if place not in places]:
            self.drop(self.assigned.pop(place))
        for place in places:
            if place not in self.assigned:
                self.assigned[place] = Assigned(place)
        self._error = None

    def drop(self, assigned: Assigned) -> None:
        """
        Forget what was fetched of a partition, because it is not wanted, or
        not from there.
        """
        fetched, assigned.fetched = assigned.fetched, None
        if fetched is not None:
            self._ready.remove((assigned, fetched))
            self.heldBytes -= fetched.sizeBytes

    def take(self, count: int) -> list[ConsumerRecord]:
        """
        The next records, at most C{count}; positions move behind them.

        @raise ClientError: if something is wrong with a partition, and
            nothing else is there to be taken first.
        """
        taken: list[ConsumerRecord] = []
        while self._ready and len(taken) < count:
            assigned, fetched = self._ready[0]
            try:
                taken += fetched.take(count - len(taken))
            except RecordsRefused:
                if taken:
                    break
                self.drop(assigned)
                raise
            assigned.position = fetched.nextOffset
            if fetched.isExhausted:
                self.drop(assigned)
            elif len(taken) < count:
                # What comes next cannot be read; first what could.
                break
        if not taken and self._error is not None:
            error, self._error = self._error, None
            raise error
        return taken

    # Requests

    def fetch(self) -> None:
        """
        Ask every broker that we have something to ask and that has answered.
        """
        if self._isClosed:
            return
        now = self._clock.seconds()
        byLeader: dict[int, list[Assigned]] = {}
        for assigned in self.assigned.values():
            if assigned.position is None or assigned.isPaused or assigned.isFetching or assigned.fetched is not None:
                continue
            if assigned.retrySeconds > now:
                self._wakeIn(assigned.retrySeconds - now)
                continue
            leaderId = self._cluster.leaderOf(*assigned.place)
            if leaderId is None:
                self.onLeaderChanged()
            elif leaderId not in self._requests:
                byLeader.setdefault(leaderId, []).append(assigned)
        for leaderId, wanted in byLeader.items():
            maxBytes = self._roomBytes()
            if maxBytes is None:
                return
            self._send(leaderId, wanted, maxBytes)

    def _roomBytes(self) -> int | None:
        """
        What the next response may bring; L{None} if it is better to wait
        until more has been taken.
        """
        settings = self._settings
        spoken = self.heldBytes + sum(request.maxBytes for request in self._requests.values())
        room = min(settings.prefetchMaxBytes - spoken, settings.fetchMaxBytes)
        isWorthwhile = room >= min(settings.maxPartitionFetchBytes, settings.fetchMaxBytes)
        return max(room, 1) if isWorthwhile or not spoken else None

    def _send(self, leaderId: int, wanted: Sequence[Assigned], maxBytes: int) -> None:
        settings = self._settings
        offsets = {assigned.place: (assigned, assigned.position or 0) for assigned in wanted}
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), (assigned, offset) in offsets.items():
            assigned.isFetching = True
            topics.setdefault(topic, []).append(
                {
                    "partition": partition,
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
        for assigned, _ in request.wanted.values():
            assigned.isFetching = False
        return request

    def _failed(self, failure: Failure, leaderId: int) -> None:
        request = self._ended(leaderId)
        if self._isClosed:
            return
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        error = failure.value
        assert isinstance(error, ClientError)
        if not error.isRetriable:
            self._error = error
        failures = self._brokerFailures[leaderId] = self._brokerFailures.get(leaderId, 0) + 1
        retrySeconds = self._clock.seconds() + self._backoff.delaySeconds(failures)
        for assigned, _ in request.wanted.values():
            assigned.retrySeconds = retrySeconds
        self.onLeaderChanged()
        self.onReady()
        self.fetch()

    def _fetched(self, response: FetchResponse, leaderId: int) -> None:
        request = self._ended(leaderId)
        self._brokerFailures.pop(leaderId, None)
        if self._isClosed:
            return
        for data in response.partitions:
            place = TopicPartition(data.topicName, data.partitionIndex)
            assigned, offset = request.wanted.get(place, (None, 0))
            # The partition may have been revoked, paused or sought in meanwhile, or the broker be confused.
            if (
                assigned is not None
                and self.assigned.get(place) is assigned
                and assigned.position == offset
                and assigned.fetched is None
                and not assigned.isPaused
            ):
                self._received(assigned, data, offset, response.errorCode)
        # Who was asked first this time is asked last the next.
        for place, (assigned, _) in request.wanted.items():
            if self.assigned.get(place) is assigned and assigned.fetched is not None:
                self.assigned[place] = self.assigned.pop(place)
        self.onReady()
        self.fetch()

    def _received(self, assigned: Assigned, data: PartitionData, offset: int, requestError: int) -> None:
        errorCode = data.errorCode or requestError
        if errorCode:
            self._refused(assigned, errorCode)
            return
        assigned.failures = 0
        if data.records:
            fetched = PartitionRecords(assigned.place, data.records, offset, self._settings.receiveMessageMaxBytes)
            assigned.fetched = fetched
            self._ready.append((assigned, fetched))
            self.heldBytes += fetched.sizeBytes

    def _refused(self, assigned: Assigned, errorCode: int) -> None:
        error = BrokerRefused(errorCode, f"fetching {assigned.place} from offset {assigned.position}")
        assigned.failures += 1
        assigned.retrySeconds = self._clock.seconds() + self._backoff.delaySeconds(assigned.failures)
        if error.errorCode == ErrorCode.offset_out_of_range:
            self.onOutOfRange(assigned)
        elif error.errorCode in _LEADER_CHANGED:
            self.onLeaderChanged()
        elif error.errorCode != ErrorCode.unknown_server_error and not error.isRetriable:
            self._error = error

    def _wakeIn(self, delaySeconds: float) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(delaySeconds, self._awake)

    def _awake(self) -> None:
        self._timer = None
        self.fetch()

    def close(self) -> None:
        """
        Fetch nothing more, and forget what was fetched.
        """
        self._isClosed = True
        self.assign(())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
