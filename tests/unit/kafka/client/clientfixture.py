"""Brokers for our client: they speak real bytes over transports in memory, and answer what a test has them answer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.kafka.client.consumer import Consumer, ignore
from admission.kafka.client.consumersettings import ConsumerSettings
from admission.kafka.client.subscriptionstate import TopicPartition
from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.requests import clientApi
from admission.testing.faketransport import FakeTransport

HOST = "broker.example.org"
GROUP = "readers"

API_NAMES = {
    clientApi(name).apiKey: name
    for name in (
        *("ApiVersions", "Fetch", "FindCoordinator", "Heartbeat", "JoinGroup", "LeaveGroup", "ListOffsets"),
        *("Metadata", "OffsetCommit", "OffsetFetch", "SaslAuthenticate", "SaslHandshake", "SyncGroup"),
    )
}
"""What the brokers speak, unless told otherwise."""

Answer = Callable[[Any], Any]
"""Given a request, returns the fields of the response, a Deferred of them, or None for no answer at all."""


@cache
def _reader(entityType: Any) -> Any:
    return entity_reader(entityType)


class BrokerTransport(FakeTransport):
    """
    The client's end of a connection, which tells the broker what it sends.

    @ivar isAnswering: whether the broker is busy with a request; it reads the
        next one after that.
    """

    def __init__(self, broker: FakeBroker, protocol: Any) -> None:
        super().__init__(broker.clock, protocol)
        self._broker = broker
        self.isAnswering = False

    def _send(self) -> None:
        super()._send()
        self._broker.received(self)


@implementer(IStreamClientEndpoint)
class FakeEndpoint:
    """The way to a broker."""

    def __init__(self, broker: FakeBroker | None) -> None:
        self._broker = broker

    def connect(self, factory: Any) -> Deferred[Any]:
        """Connect, unless the broker is down."""
        if self._broker is None or self._broker.isDown:
            return fail(ConnectionRefusedError())
        protocol = factory.buildProtocol(None)
        transport = BrokerTransport(self._broker, protocol)
        self._broker.transports.append(transport)
        transport.connect()
        return succeed(protocol)


class Asked:
    """
    A request that a broker has got.

    @ivar seconds: when.
    @ivar name: the API.
    @ivar request: kio's entity.
    """

    def __init__(self, seconds: float, name: str, request: Any) -> None:
        self.seconds = seconds
        self.name = name
        self.request = request


class FakeBroker:
    """
    One broker.

    @ivar answers: what it answers, by the name of the API.
    @ivar asked: what it was asked, in order.
    @ivar versions: the oldest and the newest version of what it speaks.
    @ivar transports: the clients' ends of all connections there ever were.
    @ivar isDown: whether connecting is refused.
    @ivar isMute: whether it answers nothing any more.
    @ivar failures: what went wrong in C{answers}.
    """

    def __init__(self, clock: Clock, nodeId: int = 1) -> None:
        self.clock = clock
        self.nodeId = nodeId
        self.port = 9091 + nodeId
        self.answers: dict[str, Answer] = {"ApiVersions": self._apiVersions}
        self.asked: list[Asked] = []
        self.versions = {name: (clientApi(name).minVersion, clientApi(name).maxVersion) for name in API_NAMES.values()}
        self.transports: list[BrokerTransport] = []
        self.isDown = False
        self.isMute = False
        self.failures: list[Any] = []

    def received(self, transport: BrokerTransport) -> None:
        """Take what a client has sent."""
        data = transport.received
        while len(data) >= 4 and not transport.isAnswering:
            (sizeBytes,) = struct.unpack_from(">i", data)
            if len(data) < 4 + sizeBytes:
                return
            frame = bytes(data[4 : 4 + sizeBytes])
            del data[: 4 + sizeBytes]
            self._requestReceived(transport, frame)

    def _requestReceived(self, transport: BrokerTransport, frame: bytes) -> None:
        apiKey, apiVersion, correlationId = struct.unpack_from(">hhi", frame)
        name = API_NAMES[apiKey]
        requestType = load_request_schema(apiKey, apiVersion)
        _, offset = _reader(requestType.__header_schema__)(frame, 0)
        request, sizeBytes = _reader(requestType)(frame[offset:], 0)
        assert sizeBytes == len(frame) - offset, f"bytes are left over behind {name}"
        self.asked.append(Asked(self.clock.seconds(), name, request))
        transport.isAnswering = True
        if self.isMute:
            return
        oldest, newest = self.versions[name]
        if name != "ApiVersions":
            assert oldest <= apiVersion <= newest, f"{name} was asked in version {apiVersion}"
        elif apiVersion > newest:
            self._respond(
                {**self._apiVersions(request), "error_code": ErrorCode.unsupported_version},
                transport,
                apiKey,
                apiVersion,
                correlationId,
            )
            return
        answer = maybeDeferred(self.answers[name], request)
        answer.addCallback(self._respond, transport, apiKey, apiVersion, correlationId)
        answer.addErrback(self.failures.append)

    def _respond(
        self, fields: Any, transport: BrokerTransport, apiKey: int, apiVersion: int, correlationId: int
    ) -> None:
        if fields is None or transport.isLost:
            return
        if API_NAMES[apiKey] == "ApiVersions" and fields.get("error_code") == ErrorCode.unsupported_version:
            # So that every client can read it (KIP-511).
            apiVersion = 0
        responseType = load_response_schema(apiKey, apiVersion)
        isTagged = responseType.__flexible__ and API_NAMES[apiKey] != "ApiVersions"
        header = struct.pack(">i", correlationId) + (b"\x00" if isTagged else b"")
        body = header + b"".join(encodeEntity(responseType, fields))
        transport.peerSends(struct.pack(">i", len(body)) + body)
        transport.isAnswering = False
        self.received(transport)

    def _apiVersions(self, request: Any) -> Mapping[str, Any]:
        return {
            "api_keys": [
                {"api_key": clientApi(name).apiKey, "min_version": oldest, "max_version": newest}
                for name, (oldest, newest) in self.versions.items()
            ]
        }

    # What tests ask

    def requests(self, name: str) -> list[Any]:
        """What it was asked of one API."""
        return [each.request for each in self.asked if each.name == name]

    def times(self, name: str) -> list[float]:
        """When it was asked that."""
        return [each.seconds for each in self.asked if each.name == name]

    @property
    def openTransports(self) -> list[BrokerTransport]:
        """The connections that there are."""
        return [each for each in self.transports if not each.isLost]

    def dropConnections(self) -> None:
        """Close all connections."""
        for transport in self.openTransports:
            transport.peerCloses()


class FakeCluster:
    """
    Brokers with topics and a group, which behave unless a test has them do
    something else.

    @ivar logs: the batches of each partition, and the offset behind them.
    @ivar leaders: the broker id that leads each partition, 1 by default.
    @ivar committed: the offsets of the group.
    @ivar generation: of the group.
    """

    def __init__(self, clock: Clock, brokerCount: int = 1) -> None:
        self.clock = clock
        self.brokers = {nodeId: FakeBroker(clock, nodeId) for nodeId in range(1, brokerCount + 1)}
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.topicErrors: dict[str, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.generation = 0
        self.throttleMs = 0
        for broker in self.brokers.values():
            broker.answers |= {
                "Metadata": self.metadata,
                "FindCoordinator": self.findCoordinator,
                "JoinGroup": self.joinGroup,
                "SyncGroup": self.syncGroup,
                "Heartbeat": lambda request: {},
                "LeaveGroup": lambda request: {"members": []},
                "OffsetCommit": self.offsetCommit,
                "OffsetFetch": self.offsetFetch,
                "ListOffsets": self.listOffsets,
                "Fetch": self.fetch,
            }

    @property
    def broker(self) -> FakeBroker:
        """The first one, which coordinates the group."""
        return self.brokers[1]

    def endpointFor(self, host: str, port: int) -> FakeEndpoint:
        """The way to the broker of a port."""
        return FakeEndpoint(next((broker for broker in self.brokers.values() if broker.port == port), None))

    def topic(self, name: str, partitionCount: int = 1) -> None:
        """Make a topic, or more partitions of it."""
        for index in range(partitionCount):
            self.logs.setdefault(TopicPartition(name, index), [])
            self.ends.setdefault(TopicPartition(name, index), 0)

    def produce(self, name: str, *values: bytes, partition: int = 0) -> None:
        """Append a batch to a partition."""
        records = [Record(value=value, timestampMs=1000) for value in values]
        self.append(name, encodeBatch(records, baseOffset=self.ends[TopicPartition(name, partition)]), len(values))
        if partition:
            place = TopicPartition(name, partition)
            self.logs[place].append(self.logs[TopicPartition(name, 0)].pop())
            self.ends[place] += len(values)
            self.ends[TopicPartition(name, 0)] -= len(values)

    def append(self, name: str, batch: bytes, count: int) -> None:
        """Append what is meant to be a batch to the first partition."""
        self.logs[TopicPartition(name, 0)].append(batch)
        self.ends[TopicPartition(name, 0)] += count

    # What they answer

    def metadata(self, request: Any) -> Mapping[str, Any]:
        """The brokers and the topics."""
        topics = []
        for each in request.topics:
            partitions = [place.partition for place in self.logs if place.topic == each.name]
            missing = ErrorCode.unknown_topic_or_partition if not partitions else ErrorCode.none
            topics.append(
                {
                    "name": each.name,
                    "error_code": self.topicErrors.get(each.name, missing),
                    "partitions": [
                        {"partition_index": index, "leader_id": self.leaders.get(TopicPartition(each.name, index), 1)}
                        for index in partitions
                    ],
                }
            )
        brokers = [{"node_id": each.nodeId, "host": HOST, "port": each.port} for each in self.brokers.values()]
        return {"brokers": brokers, "topics": topics, "controller_id": 1}

    def findCoordinator(self, request: Any) -> Mapping[str, Any]:
        """The first broker."""
        found = {"node_id": 1, "host": HOST, "port": self.broker.port, "key": GROUP}
        return {**found, "coordinators": [found]}

    def joinGroup(self, request: Any) -> Mapping[str, Any]:
        """The one who asks is the only member."""
        if not request.member_id and request.__version__ >= 4 and getattr(request, "group_instance_id", None) is None:
            return {"error_code": ErrorCode.member_id_required, "member_id": "member-1", "generation_id": -1}
        self.generation += 1
        memberId = request.member_id or "member-1"
        (protocol, *_) = request.protocols
        return {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": protocol.name,
            "leader": memberId,
            "member_id": memberId,
            "members": [{"member_id": memberId, "metadata": protocol.metadata}],
        }

    def syncGroup(self, request: Any) -> Mapping[str, Any]:
        """What the leader has decided."""
        mine = [each.assignment for each in request.assignments if each.member_id == request.member_id]
        return {"assignment": mine[0] if mine else b""}

    def offsetCommit(self, request: Any) -> Mapping[str, Any]:
        """All is kept."""
        for topic in request.topics:
            for each in topic.partitions:
                self.committed[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
        kept = [
            {"name": topic.name, "partitions": [{"partition_index": each.partition_index} for each in topic.partitions]}
            for topic in request.topics
        ]
        return {"topics": kept}

    def offsetFetch(self, request: Any) -> Mapping[str, Any]:
        """What was kept."""
        asked = request.groups[0].topics if hasattr(request, "groups") else request.topics
        topics = []
        for topic in asked:
            offsets = [self.committed.get(TopicPartition(topic.name, index), -1) for index in topic.partition_indexes]
            partitions = [
                {"partition_index": index, "committed_offset": offset, "metadata": ""}
                for index, offset in zip(topic.partition_indexes, offsets, strict=True)
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics, "groups": [{"group_id": GROUP, "topics": topics}]}

    def listOffsets(self, request: Any) -> Mapping[str, Any]:
        """Logs begin at zero."""
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                end = self.ends[TopicPartition(topic.name, each.partition_index)] if each.timestamp == -1 else 0
                partitions.append({"partition_index": each.partition_index, "offset": end})
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def fetch(self, request: Any) -> Any:
        """All batches from the offset on, or nothing once the time is over."""
        fields, count = self._fetched(request)
        if count:
            return fields
        later: Deferred[Any] = Deferred()
        self.clock.callLater(request.max_wait.total_seconds(), lambda: later.callback(self._fetched(request)[0]))
        return later

    def _fetched(self, request: Any) -> tuple[Mapping[str, Any], int]:
        count, responses = 0, []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                place = TopicPartition(topic.topic, each.partition)
                end = self.ends[place]
                if each.fetch_offset > end:
                    partitions.append(
                        {"partition_index": each.partition, "error_code": ErrorCode.offset_out_of_range, "records": b""}
                    )
                    count += 1
                    continue
                batches = [batch for batch in self.logs[place] if _lastOffset(batch) >= each.fetch_offset]
                count += len(batches)
                partitions.append(
                    {"partition_index": each.partition, "high_watermark": end, "records": b"".join(batches)}
                )
            responses.append({"topic": topic.topic, "partitions": partitions})
        return {"responses": responses, "throttle_time_ms": self.throttleMs}, count


def _lastOffset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")


def errorAnswer(errorCode: ErrorCode, **fields: Any) -> Answer:
    """An answer that is an error."""
    return lambda request: {"error_code": errorCode, **fields}


class ClientTestCase(SynchronousTestCase):
    """
    A test with a cluster, on a virtual clock.  When it ends, the consumers are
    closed, and then no connection may be open and no timer be left.
    """

    brokerCount = 1

    def setUp(self) -> None:
        self.clock = Clock()
        self.cluster = FakeCluster(self.clock, self.brokerCount)
        self.broker = self.cluster.broker
        self.consumers: list[Consumer] = []
        capturing = capturedLogs()
        self.addCleanup(capturing.__exit__, None, None, None)
        self.logged = capturing.__enter__()
        self.addCleanup(self._stop)

    def _stop(self) -> None:
        for consumer in self.consumers:
            self.result(consumer.close(), 60)
        for broker in self.cluster.brokers.values():
            self.assertEqual(broker.openTransports, [])
            self.assertEqual(broker.failures, [])
        # Brokers may have parked a fetch.
        self.runFor(60)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual([formatEvent(event) for event in self.logged if "log_failure" in event], [])

    def runFor(self, seconds: float) -> None:
        """Let time pass, stopping whenever something is due."""
        end = self.clock.seconds() + seconds
        while True:
            due = min((call.getTime() for call in self.clock.getDelayedCalls()), default=end)
            if due > end:
                break
            self.clock.advance(max(due - self.clock.seconds(), 0))
            if due == end and not any(call.getTime() <= end for call in self.clock.getDelayedCalls()):
                break
        self.clock.advance(max(end - self.clock.seconds(), 0))

    def after(self, seconds: float, begun: Deferred[Any]) -> Deferred[Any]:
        """What was begun, when some time has passed."""
        self.runFor(seconds)
        return begun

    def result(self, begun: Deferred[Any], withinSeconds: float = 0) -> Any:
        """What comes of what was begun, in that time."""
        return self.successResultOf(self.after(withinSeconds, begun))

    def failure(self, begun: Deferred[Any], withinSeconds: float, *kinds: type[Exception]) -> Any:
        """What it fails with."""
        return self.failureResultOf(self.after(withinSeconds, begun), *kinds).value

    def settings(self, **changes: Any) -> ConsumerSettings:
        """Settings for the cluster."""
        values: dict[str, Any] = {
            "bootstrapServers": ((HOST, self.broker.port),),
            "groupId": GROUP,
            "autoOffsetReset": "earliest",
            "autoCommit": False,
        }
        return ConsumerSettings(**values | changes)

    def consumer(self, **changes: Any) -> Consumer:
        """A consumer, which is closed when the test ends."""
        consumer = Consumer(self.settings(**changes), self.cluster.endpointFor, self.clock, Random(0))
        self.consumers.append(consumer)
        return consumer

    def subscribed(self, onRevoked: Any = ignore, onAssigned: Any = ignore, **changes: Any) -> Consumer:
        """A consumer that is to read the topic C{events} as a member of the group."""
        consumer = self.consumer(**changes)
        consumer.subscribe(["events"], onRevoked, onAssigned)
        return consumer

    def assigned(self, *places: TopicPartition, **changes: Any) -> Consumer:
        """A consumer that is to read C{places}."""
        consumer = self.consumer(**changes)
        consumer.assign(places)
        return consumer

    def poll(self, consumer: Consumer, withinSeconds: float = 5) -> list[bytes | None]:
        """
        Poll until there is something.

        @return: the values.
        """
        return [record.value for record in self.result(consumer.poll(withinSeconds), withinSeconds)]
