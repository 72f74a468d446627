# -*- test-case-name: tests.unit.kafka.client.test_cluster -*-
"""
The brokers of a cluster: which there are, which partitions they lead, and
connections to them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from random import Random
from typing import Any

from attrs import define, field, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, DeferredList, fail, inlineCallbacks, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from .clientconnection import ClientConnection
from .connecting import ConnectionSettings, EndpointMaker, connectTo
from .errors import BrokerRefused, ClientError, ConsumerClosed, Disconnected
from .throttle import ThrottleTimes

FETCHES = "fetches"
"""What a connection is for: records, for which a broker may be made to wait."""

METADATA = "metadata"
"""What a connection is for: what any broker knows, without waiting behind a fetch."""

GROUP = "group"
"""What a connection is for: the group, whose heartbeats must not wait behind a fetch."""


@frozen
class PartitionInfo:
    """
    @ivar leaderId: the broker that leads the partition, or -1.
    """

    leaderId: int


@define(eq=False)
class _Link:
    """
    A connection to one broker for one purpose, made when it is first needed.
    """

    connection: ClientConnection | None = None
    connecting: Deferred[ClientConnection] | None = None
    waiting: list[Deferred[ClientConnection]] = field(factory=list)


class Cluster:
    """
    What is known of the cluster, as of the last L{refresh}.

    @ivar brokers: host and port by broker id.
    @ivar topics: for each topic that exists its partitions, by index.
    @ivar errors: for each topic that cannot be used the error code.
    @ivar throttle: for how long the brokers have asked us to be quiet.
    """

    def __init__(
        self,
        endpointFor: EndpointMaker,
        clock: IReactorTime,
        settings: ConnectionSettings,
        bootstrapServers: Iterable[tuple[str, int]],
        random: Random,
        *,
        allowAutoCreateTopics: bool = True,
    ) -> None:
        """
        @param endpointFor: makes the endpoint for a host and a port.
        @param clock: measures timeouts; monotonic.
        @param random: in which order brokers are tried.
        """
        self._endpointFor = endpointFor
        self._clock = clock
        self._settings = settings
        self._bootstrapServers = list(bootstrapServers)
        self._random = random
        self._allowAutoCreateTopics = allowAutoCreateTopics
        self._links: dict[tuple[str, int, str], _Link] = {}
        self._isClosed = False
        self.brokers: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, dict[int, PartitionInfo]] = {}
        self.errors: dict[str, ErrorCode] = {}
        self.throttle = ThrottleTimes()

    # What is known

    def leaderOf(self, topic: str, partition: int) -> int | None:
        """
        The id of the broker that leads a partition, if it is known.
        """
        info = self.topics.get(topic, {}).get(partition)
        return info.leaderId if info is not None and info.leaderId in self.brokers else None

    def partitionCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        How many partitions each of the topics has, as far as they exist.
        """
        return {topic: len(self.topics[topic]) for topic in topics if topic in self.topics}

    @inlineCallbacks
    def refresh(self, topics: Collection[str]) -> Generator[Deferred[Any], Any, None]:
        """
        Ask any broker about C{topics}, and forget all others.

        @return: fails with a L{ClientError} if no broker answers, that of the
            last one.
        """
        response = yield self.askAny(
            "Metadata",
            {
                "topics": [{"name": topic, "topic_id": None} for topic in sorted(topics)],
                "allow_auto_topic_creation": self._allowAutoCreateTopics,
            },
        )
        if not response.brokers:
            raise Disconnected("a broker knows no brokers, itself included")
        self.brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        self.errors = {each.name: each.error_code for each in response.topics if each.error_code}
        self.topics = {
            each.name: {info.partition_index: PartitionInfo(info.leader_id) for info in each.partitions}
            for each in response.topics
            if not each.error_code
        }

    # Connections

    @inlineCallbacks
    def askAny(self, apiName: str, fields: Mapping[str, Any]) -> Generator[Deferred[Any], Any, Any]:
        """
        Ask whichever broker answers, those first that we are connected to.

        @return: fires with the response; fails with a L{ClientError} if no
            broker answers, that of the last one.
        """
        # Those that we started from are tried last: they may be the only ones that moved to where they are.
        known = list(dict.fromkeys(self.brokers.values()))
        others = [place for place in self._bootstrapServers if place not in known]
        self._random.shuffle(known)
        self._random.shuffle(others)
        known.sort(key=lambda place: not self._isConnected(place))
        error: ClientError = Disconnected("there is no broker to ask")
        for place in [*known, *others]:
            try:
                connection = yield self._connectionTo(place, METADATA)
                return (yield connection.request(apiName, fields))
            except ClientError as failed:
                error = failed
        raise error

    def connection(self, brokerId: int, purpose: str) -> Deferred[ClientConnection]:
        """
        The connection to a broker, made if there is none.

        @param purpose: L{FETCHES} or L{GROUP}.
        @return: fails with a L{ClientError}.
        @raise KeyError: if there is no such broker.
        """
        return self._connectionTo(self.brokers[brokerId], purpose)

    def connectionAt(self, host: str, port: int, purpose: str) -> Deferred[ClientConnection]:
        """
        The same for a broker that is known by its address.
        """
        return self._connectionTo((host, port), purpose)

    def _isConnected(self, place: tuple[str, int]) -> bool:
        link = self._links.get((*place, METADATA))
        return link is not None and link.connection is not None and link.connection.isOpen

    def _connectionTo(self, place: tuple[str, int], purpose: str) -> Deferred[ClientConnection]:
        if self._isClosed:
            return fail(ConsumerClosed("the consumer was closed"))
        link = self._links.setdefault((*place, purpose), _Link())
        if link.connection is not None and link.connection.isOpen:
            return succeed(link.connection)
        waiting: Deferred[ClientConnection] = Deferred(lambda cancelled: link.waiting.remove(cancelled))
        link.waiting.append(waiting)
        if link.connecting is None:
            host, port = place
            link.connecting = connectTo(self._endpointFor(host, port), self._clock, self._settings, f"{host}:{port}")
            link.connecting.addBoth(self._connected, link)
        return waiting

    def _connected(self, result: Any, link: _Link) -> None:
        link.connecting = None
        if isinstance(result, ClientConnection):
            link.connection = result
            result.onThrottle = self._throttled
        elif result.check(CancelledError):
            result = Failure(ConsumerClosed("the consumer was closed"))  # type: ignore[no-untyped-call]
        waiting, link.waiting = link.waiting, []
        for each in waiting:
            each.callback(result)

    def _throttled(self, throttleSeconds: float) -> None:
        self.throttle.record(throttleSeconds, self._clock.seconds())

    def close(self) -> Deferred[Any]:
        """
        Close all connections.

        @return: fires once they are gone.
        """
        self._isClosed = True
        closing: list[Deferred[None]] = []
        for link in list(self._links.values()):
            if link.connecting is not None:
                link.connecting.cancel()
            if link.connection is not None:
                closing.append(link.connection.close())
        return DeferredList(closing)


def checkError(errorCode: int, request: str, message: str | None = None) -> None:
    """
    @raise BrokerRefused: unless C{errorCode} is zero.
    """
    if errorCode:
        raise BrokerRefused(errorCode, request, message)
