# -*- test-case-name: tests.unit.kafka.client.test_cluster -*-
"""
The brokers of a cluster: metadata, and connections to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, DeferredList, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.metrics.rate import SampledMean

from .clientconnection import ClientConnection, ConnectionSettings, EndpointMaker, connectTo
from .errors import Backoff, ClientError, ConsumerClosed, Disconnected, checkError
from .subscriptionstate import TopicPartition

FETCHES = "fetches"
"""The purpose of a connection for Fetch, whose answers a broker may delay."""

METADATA = "metadata"
"""The purpose of a connection for metadata, which must not wait behind a Fetch."""

GROUP = "group"
"""The purpose of a connection for the group, whose heartbeats must not wait behind a Fetch."""

THROTTLE_WINDOW_SECONDS = 30.0
"""The length of a window; the current one and the one before count, as in Kafka."""

_NO_REPLICA = -1
_EARLIEST_TIME = -2
_LATEST_TIME = -1


class ThrottleTimes:
    """
    The average and the largest C{throttle_time_ms} of the last minute, of
    responses that name one, zero included; zero if there was no response.
    """

    def __init__(self) -> None:
        self._mean = SampledMean(2, THROTTLE_WINDOW_SECONDS)
        self._windowBegan = float("-inf")
        self._largest = (0.0, 0.0)

    def record(self, throttleSeconds: float, now: float) -> None:
        self._mean.record(throttleSeconds, now)
        self._age(now)
        older, current = self._largest
        self._largest = (older, max(current, throttleSeconds))

    def averageSeconds(self, now: float) -> float:
        mean = self._mean.mean(now)
        return 0.0 if math.isnan(mean) else mean

    def largestSeconds(self, now: float) -> float:
        self._age(now)
        return max(self._largest)

    def _age(self, now: float) -> None:
        elapsed = now - self._windowBegan
        if elapsed >= THROTTLE_WINDOW_SECONDS:
            self._largest = (self._largest[1] if elapsed < 2 * THROTTLE_WINDOW_SECONDS else 0.0, 0.0)
            self._windowBegan = now


class SharedCall:
    """
    An operation that runs once at a time, however many wait for its result.
    """

    def __init__(self, call: Callable[[], Deferred[Any]]) -> None:
        """
        @param call: begins the operation.
        """
        self._call = call
        self._running: Deferred[Any] | None = None
        self._waiting: list[Deferred[Any]] = []

    @property
    def isRunning(self) -> bool:
        return self._running is not None

    def wait(self) -> Deferred[Any]:
        """
        Begin the operation unless it is running.

        @return: fires with its result.  Cancelling it ends the wait, not the
            operation.
        """
        waiting: Deferred[Any] = Deferred(self._forget)
        self._waiting.append(waiting)
        if self._running is None:
            self._running = self._call()
            self._running.addBoth(self._ended)
        return waiting

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _forget(self, cancelled: Deferred[Any]) -> None:
        if cancelled in self._waiting:
            self._waiting.remove(cancelled)

    def _ended(self, result: Any) -> None:
        self._running = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            # One of them may cancel another.
            if not each.called:
                each.callback(result)


class Cluster:
    """
    The metadata of some topics, refreshed regularly and when they prove to be
    out of date, and one connection to each broker for each purpose.

    @ivar brokers: host and port by broker id.
    @ivar leaders: for each topic that exists the broker id that leads each of
        its partitions, or -1.
    @ivar errors: for each topic that cannot be used the error code.
    @ivar throttle: how long brokers have throttled us.
    """

    log = Logger()

    def __init__(
        self,
        endpointFor: EndpointMaker,
        clock: IReactorTime,
        settings: ConnectionSettings,
        bootstrapServers: Iterable[tuple[str, int]],
        backoff: Backoff,
        *,
        topics: Callable[[], Collection[str]],
        onRefreshed: Callable[[], None],
        maxAgeSeconds: float,
        allowAutoCreateTopics: bool = True,
    ) -> None:
        """
        @param endpointFor: makes the endpoint for a host and a port.
        @param clock: runs and measures timers; monotonic.
        @param backoff: between refreshes; its random number generator also
            shuffles brokers.
        @param topics: returns the topics to ask about.
        @param onRefreshed: called after each refresh that succeeds.
        @param maxAgeSeconds: between refreshes without a reason.
        """
        self._endpointFor = endpointFor
        self._clock = clock
        self._settings = settings
        self._bootstrapServers = list(bootstrapServers)
        self._backoff = backoff
        self._topics = topics
        self._onRefreshed = onRefreshed
        self._maxAgeSeconds = maxAgeSeconds
        self._allowAutoCreateTopics = allowAutoCreateTopics
        self._connections: dict[tuple[str, int, str], ClientConnection] = {}
        self._connecting: dict[tuple[str, int, str], SharedCall] = {}
        self._refreshing = SharedCall(self._refreshOnce)
        self._refreshTimer: IDelayedCall | None = None
        self._refreshesInARow = 0
        self._isStale = False
        self._isClosed = False
        self.brokers: dict[int, tuple[str, int]] = {}
        self.leaders: dict[str, dict[int, int]] = {}
        self.errors: dict[str, ErrorCode] = {}
        self.throttle = ThrottleTimes()

    # Metadata

    def leaderOf(self, place: TopicPartition) -> int | None:
        """
        The id of the broker that leads a partition, if it is known.
        """
        leaderId = self.leaders.get(place.topic, {}).get(place.partition)
        return leaderId if leaderId in self.brokers else None

    def partitionCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        How many partitions each of the topics has; topics that do not exist
        are left out.
        """
        return {topic: len(self.leaders[topic]) for topic in topics if topic in self.leaders}

    @inlineCallbacks
    def refresh(self) -> Generator[Deferred[Any], Any, None]:
        """
        Refresh now, about the topics wanted at this moment.

        @return: fails with a L{ClientError}; nothing is tried again for the
            caller.
        """
        if self._refreshing.isRunning:
            # The request on its way may not name the topics that are wanted now.
            try:
                yield self._refreshing.wait()
            except ClientError:
                pass
        yield self._refreshing.wait()

    def refreshSoon(self, isUrgent: bool = False) -> None:
        """
        The metadata are out of date: refresh, after a delay and until it
        succeeds.

        @param isUrgent: whether to do without the delay.
        """
        if self._refreshing.isRunning:
            self._isStale = True
        elif isUrgent or not self._isStale:
            self._isStale = True
            self._schedule(0.0 if isUrgent else self._backoff.delaySeconds(max(self._refreshesInARow, 1)))

    def _schedule(self, delaySeconds: float) -> None:
        self._cancelTimer()
        if not self._isClosed:
            self._refreshTimer = self._clock.callLater(delaySeconds, self._timeToRefresh)

    def _cancelTimer(self) -> None:
        timer, self._refreshTimer = self._refreshTimer, None
        if timer is not None:
            timer.cancel()

    def _timeToRefresh(self) -> None:
        self._refreshTimer = None
        if not self._refreshing.isRunning:
            self._refreshing.wait().addErrback(self._couldNotRefresh)

    def _couldNotRefresh(self, failure: Failure) -> None:
        # Errors of brokers were logged, and are tried again.
        if not isinstance(failure.value, ClientError | CancelledError):
            self.log.failure("refreshing metadata went wrong", failure)

    @inlineCallbacks
    def _refreshOnce(self) -> Generator[Deferred[Any], Any, None]:
        self._isStale = False
        self._refreshesInARow += 1
        try:
            response = yield self.askAny(
                "Metadata",
                {
                    "topics": [{"name": topic, "topic_id": None} for topic in sorted(self._topics())],
                    "allow_auto_topic_creation": self._allowAutoCreateTopics,
                },
            )
            if not response.brokers:
                raise Disconnected("a broker knows no brokers, itself included")
        except Exception as error:
            if self._refreshesInARow == 1 and not self._isClosed:
                self.log.warn("no broker answers: {reason}; trying again", reason=error)
            self._isStale = True
            self._schedule(self._backoff.delaySeconds(self._refreshesInARow))
            raise
        self.brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        self.errors = {each.name: each.error_code for each in response.topics if each.error_code}
        self.leaders = {
            each.name: {info.partition_index: info.leader_id for info in each.partitions}
            for each in response.topics
            if not each.error_code
        }
        self._onRefreshed()
        if self._isStale or any(errorCode.retriable for errorCode in self.errors.values()):
            self._isStale = True
            self._schedule(self._backoff.delaySeconds(self._refreshesInARow))
        else:
            self._refreshesInARow = 0
            self._schedule(self._maxAgeSeconds)

    # Requests

    @inlineCallbacks
    def askAny(self, apiName: str, fields: Mapping[str, Any]) -> Generator[Deferred[Any], Any, Any]:
        """
        Ask one broker after the other until one answers, beginning with
        brokers that we are connected to.

        @return: fires with the response; fails with the L{ClientError} of the
            last broker if none answers.
        """
        # The bootstrap servers come last: the brokers may all have moved away from there.
        known = list(dict.fromkeys(self.brokers.values()))
        others = [place for place in self._bootstrapServers if place not in known]
        self._backoff.random.shuffle(known)
        self._backoff.random.shuffle(others)
        known.sort(key=lambda place: self._openConnection((*place, METADATA)) is None)
        error: ClientError = Disconnected("there is no broker to ask")
        for host, port in [*known, *others]:
            try:
                connection = yield self.connectionAt(host, port, METADATA)
                return (yield connection.request(apiName, fields))
            except ClientError as failed:
                error = failed
        raise error

    @inlineCallbacks
    def listOffsets(
        self, places: Collection[TopicPartition], isEarliest: bool
    ) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
        """
        Ask the leaders where the logs of C{places} begin or end.

        @param isEarliest: whether the beginning is asked for, not the end.
        @return: the offsets of all of C{places}; fails with a L{ClientError}
            if a leader is unknown or does not answer, or for a partition with
            an error.
        """
        byLeader: dict[int, list[TopicPartition]] = {}
        for place in places:
            leaderId = self.leaderOf(place)
            if leaderId is None:
                raise Disconnected(f"nobody leads {place}")
            byLeader.setdefault(leaderId, []).append(place)
        timestamp = _EARLIEST_TIME if isEarliest else _LATEST_TIME
        offsets = {}
        for leaderId, led in byLeader.items():
            topics = [
                {"name": place.topic, "partitions": [{"partition_index": place.partition, "timestamp": timestamp}]}
                for place in led
            ]
            connection = yield self.connection(leaderId, FETCHES)
            answer = yield connection.request("ListOffsets", {"replica_id": _NO_REPLICA, "topics": topics})
            for topic in answer.topics:
                for each in topic.partitions:
                    checkError(each.error_code, f"where {topic.name}-{each.partition_index} begins or ends")
                    offsets[TopicPartition(topic.name, each.partition_index)] = each.offset
        for place in places:
            if offsets.get(place, -1) < 0:
                raise Disconnected(f"a broker does not say where {place} begins or ends")
        return offsets

    # Connections

    def connection(self, brokerId: int, purpose: str) -> Deferred[ClientConnection]:
        """
        The connection to a broker, made if there is none.

        @param purpose: L{FETCHES}, L{METADATA} or L{GROUP}.
        @return: fails with a L{ClientError}.
        @raise KeyError: if there is no such broker.
        """
        return self.connectionAt(*self.brokers[brokerId], purpose)

    def connectionAt(self, host: str, port: int, purpose: str) -> Deferred[ClientConnection]:
        """
        The same for a broker that is known by its address.
        """
        key = (host, port, purpose)
        if self._isClosed:
            return fail(ConsumerClosed("the consumer was closed"))
        connection = self._openConnection(key)
        if connection is not None:
            return succeed(connection)
        if key not in self._connecting:
            self._connecting[key] = SharedCall(lambda: self._connect(key))
        return self._connecting[key].wait()

    def _openConnection(self, key: tuple[str, int, str]) -> ClientConnection | None:
        connection = self._connections.get(key)
        return connection if connection is not None and connection.isOpen else None

    @inlineCallbacks
    def _connect(self, key: tuple[str, int, str]) -> Generator[Deferred[Any], Any, ClientConnection]:
        host, port, _ = key
        try:
            endpoint = self._endpointFor(host, port)
        except Exception as error:
            # The broker's own name for itself may be none: IDNA refuses empty and long labels.
            raise Disconnected(f"cannot connect to {host}:{port}: {error}") from error
        try:
            connection: ClientConnection = yield connectTo(endpoint, self._clock, self._settings, f"{host}:{port}")
        except CancelledError:
            raise ConsumerClosed("the consumer was closed") from None
        connection.onThrottle = lambda throttleSeconds: self.throttle.record(throttleSeconds, self._clock.seconds())
        self._connections[key] = connection
        return connection

    def close(self) -> Deferred[Any]:
        """
        Stop refreshing, and close all connections.

        @return: fires once they are gone.
        """
        self._isClosed = True
        self._cancelTimer()
        self._refreshing.cancel()
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        return DeferredList([connection.close() for connection in self._connections.values()])
