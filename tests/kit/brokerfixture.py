"""
A broker without sockets: the real log, pool, gate, factory and connections on
one L{Clock}, and clients whose requests are encoded and whose responses are
decoded by kio.
"""

from __future__ import annotations

import datetime
import io
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import _introspect as introspect, entity_reader, entity_writer
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.control import AdmissionControl
from admission.interfaces import FRAMES
from admission.kafka.broker.broker import Broker
from admission.kafka.broker.brokerbackend import BrokerBackend
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.broker.log.interface import Partition, Topic
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.serving.session import KafkaSession, SessionFactory
from admission.kafka.wire.batches import Record, encodeBatch, readBatch
from admission.kafka.wire.versions import APIS
from admission.testing.faketransport import FakeTransport
from admission_plugins.bounded import BoundedPool
from admission_plugins.wheel import TimingWheel
from tests.kit.admitted import gateFor
from tests.kit.logfixture import FailingDisk
from tests.kit.patchable import PatchablePurgatory

POOL_BYTES = 8 << 20
LARGEST_BYTES = 4 << 20

API_KEYS = {api.name: api.apiKey for api in APIS}

_ZEROS: Mapping[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None, "float64": 0.0}


def build(entityType: Any, values: Mapping[str, Any]) -> Any:
    """
    Make a kio entity.  What C{values} do not say is kio's default, or else
    zero, empty or null; what this version of the entity lacks is left out.
    Durations are in milliseconds.
    """
    arguments = {}
    for member in fields(entityType):
        if member.name in values:
            arguments[member.name] = _valueOf(member, values[member.name])
        elif member.default is MISSING:
            arguments[member.name] = _zeroOf(member)
    return entityType(**arguments)


def _valueOf(member: Field[Any], value: Any) -> Any:
    kind = introspect.classify_field(member)
    if value is None:
        return None
    if isinstance(kind, introspect.EntityTupleField):
        return tuple(build(kind.type_, each) for each in value)
    if isinstance(kind, introspect.EntityField):
        return build(kind.type_, value)
    if isinstance(kind, introspect.PrimitiveTupleField):
        return tuple(value)
    if introspect.get_schema_field_type(member).startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    return value


def _zeroOf(member: Field[Any]) -> Any:
    if introspect.is_optional(member):
        return None
    if introspect.classify_field(member).is_array:
        return ()
    kafkaType = introspect.get_schema_field_type(member)
    return datetime.timedelta() if kafkaType.startswith("timedelta") else _ZEROS.get(kafkaType, 0)


@cache
def _writer(entityType: Any) -> Any:
    return entity_writer(entityType)


@cache
def _reader(entityType: Any) -> Any:
    return entity_reader(entityType)


def encode(entity: Any) -> bytes:
    """The bytes of a kio entity."""
    buffer = io.BytesIO()
    entityType: Any = type(entity)
    _writer(entityType)(buffer, entity)
    return buffer.getvalue()


def framed(body: bytes) -> bytes:
    """C{body} behind its length."""
    return struct.pack(">i", len(body)) + body


def requestFrame(entity: Any, correlationId: int, clientId: str = "test") -> bytes:
    """A frame of header and body, as a client sends it."""
    header = build(
        entity.__header_schema__,
        {
            "request_api_key": entity.__api_key__,
            "request_api_version": entity.__version__,
            "correlation_id": correlationId,
            "client_id": clientId,
        },
    )
    return framed(encode(header) + encode(entity))


def readResponse(body: bytes, responseType: Any) -> tuple[int, Any]:
    """
    Decode a response without its length.

    @return: its correlation id, and kio's entity.
    """
    header, offset = _reader(responseType.__header_schema__)(body, 0)
    entity, sizeBytes = _reader(responseType)(body[offset:], 0)
    assert sizeBytes == len(body) - offset, "bytes are left over behind the response"
    return header.correlation_id, entity


def requestOf(name: str, apiVersion: int, **values: Any) -> Any:
    """The request of an API by its name, as a kio entity."""
    return build(load_request_schema(API_KEYS[name], apiVersion), values)


def batchOf(*values: bytes, timestampMs: int = 1000, **header: int) -> bytes:
    """A record batch with a record for each value."""
    return encodeBatch([Record(value=value, timestampMs=timestampMs) for value in values], **header)


def produceFields(
    topicName: str, records: bytes | None, partition: int = 0, acks: int = -1, transactionalId: str | None = None
) -> dict[str, Any]:
    """The fields of a Produce request for one partition."""
    return {
        "transactional_id": transactionalId,
        "acks": acks,
        "timeout": 1000,
        "topic_data": [{"name": topicName, "partition_data": [{"index": partition, "records": records}]}],
    }


def fetchFields(
    topic: Topic,
    *offsets: int,
    maxWaitMs: int = 0,
    minBytes: int = 1,
    maxBytes: int = 1 << 20,
    partitionMaxBytes: int = 1 << 20,
) -> dict[str, Any]:
    """The fields of a Fetch request, for all versions: one topic, an offset for each of its partitions from 0 on."""
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partitionMaxBytes}
        for index, offset in enumerate(offsets)
    ]
    return {
        "max_wait": maxWaitMs,
        "min_bytes": minBytes,
        "max_bytes": maxBytes,
        "topics": [{"topic": topic.name, "topic_id": topic.topicId, "partitions": partitions}],
    }


class Client:
    """
    One connection to a L{BrokerTestCase}'s broker.

    @ivar transport: the broker's end of it.
    @ivar protocol: the broker's connection.
    @ivar clientId: what it calls itself in L{frame}.
    """

    clientId = "test"

    def __init__(self, case: BrokerTestCase, transportType: type[FakeTransport] = FakeTransport) -> None:
        self._case = case
        self._expected: deque[tuple[int, Any]] = deque()
        self._lastCorrelationId = 0
        protocol = self._buildProtocol()
        self.protocol = protocol
        self.transport = transportType(case.clock, protocol)
        self.transport.connect()
        case.clock.advance(0)

    def _buildProtocol(self) -> KafkaSession:
        protocol = self._case.factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 50_000))
        assert isinstance(protocol, KafkaSession)
        return protocol

    def frame(self, entity: Any, answered: bool = True) -> bytes:
        """
        The bytes of a request, whose response L{receive} then expects.

        @param answered: whether there is to be a response.
        """
        self._lastCorrelationId += 1
        if answered:
            responseType = load_response_schema(entity.__api_key__, entity.__version__)
            self._expected.append((self._lastCorrelationId, responseType))
        return requestFrame(entity, self._lastCorrelationId, self.clientId)

    def send(self, name: str, apiVersion: int, /, *, answered: bool = True, **values: Any) -> None:
        """Send a request and let the broker's turns pass."""
        self.sendBytes(self.frame(requestOf(name, apiVersion, **values), answered))

    def sendBytes(self, data: bytes) -> None:
        """Send anything and let the broker's turns pass."""
        self.transport.peerSends(data)
        self._case.clock.advance(0)

    def deliver(self, name: str, apiVersion: int, /, *, answered: bool = True, **values: Any) -> None:
        """Have a request received without letting any turn pass."""
        self.protocol.dataReceived(self.frame(requestOf(name, apiVersion, **values), answered))

    def ask(self, name: str, apiVersion: int, /, **values: Any) -> Any:
        """
        Send a request.

        @return: its response, a kio entity.
        """
        self.send(name, apiVersion, **values)
        return self.receive()

    def receive(self, responseType: Any = None) -> Any:
        """
        Take the next response, which must be that of the next request.

        @param responseType: kio's entity, where it is not that of the request's version.
        @return: a kio entity.
        """
        received = self.transport.received
        assert self.waiting(), f"there is no whole response; closed: {self.isClosed}"
        (sizeBytes,) = struct.unpack_from(">i", received)
        body = bytes(received[4 : 4 + sizeBytes])
        del received[: 4 + sizeBytes]
        correlationId, expectedType = self._expected.popleft()
        responseType = expectedType if responseType is None else responseType
        actualId, entity = readResponse(body, responseType)
        assert actualId == correlationId, f"response {actualId}, not {correlationId}"
        return entity

    def waiting(self) -> int:
        """How many whole responses have come and were not taken."""
        received, offset, count = self.transport.received, 0, 0
        while len(received) >= offset + 4:
            offset += 4 + int(struct.unpack_from(">i", received, offset)[0])
            count += len(received) >= offset
        return count

    def expecting(self) -> int:
        """How many requests have not been answered, as far as L{receive} knows."""
        return len(self._expected)

    def disconnect(self) -> None:
        """Hang up, whatever the broker is doing."""
        if not self.transport.isLost and self.transport._aborting is None:
            self.transport._lose(ConnectionError())
        self._case.clock.advance(0)

    @property
    def isClosed(self) -> bool:
        """Whether the broker has closed the connection."""
        return self.transport.isLost

    # What is asked often

    def produce(self, topicName: str, records: bytes | None, *, apiVersion: int = 9, **others: Any) -> Any:
        """
        Produce one batch.

        @return: the partition's part of the response.
        """
        answer = self.ask("Produce", apiVersion, **produceFields(topicName, records, **others))
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: Topic, *offsets: int, apiVersion: int = 12, **others: int) -> Any:
        """
        Fetch, and expect the answer at once.

        @return: the partitions' parts of the response.
        """
        return self.ask("Fetch", apiVersion, **fetchFields(topic, *offsets, **others)).responses[0].partitions


class BrokerTestCase(SynchronousTestCase):
    """
    A test with a broker.  When it ends, clients hang up, and then not a byte
    of the pool may be missing and not a timer be left.

    @cvar properties: settings that differ from the defaults.
    @ivar wallSeconds: what the broker takes for the time.
    """

    properties: Mapping[str, str] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.wallSeconds = 1_000_000.0
        self.clients: list[Client] = []
        self.logged = self._captureLog()
        self.pool = BoundedPool(POOL_BYTES, LARGEST_BYTES, seconds=self.clock.seconds)
        assignments = [f"{name}={value}" for name, value in self.properties.items()]
        settings = loadSettings(None, ["queued.max.request.bytes=1GiB", *assignments])
        self.gate = gateFor(self.pool, self.clock, maxRequests=settings.queuedMaxRequests)
        self.disk = FailingDisk()
        self.isHolding = False
        self.flushes: list[tuple[Deferred[Any], Callable[[], Any]]] = []
        self.log = SegmentLog(
            self.mktemp(),
            self.clock,
            lambda: self.wallSeconds,
            self.deferToThread,
            disk=self.disk,
            maxPartitions=settings.maxPartitions,
            retentionSeconds=None,
        )
        self.purgatory = PatchablePurgatory(TimingWheel(self.clock))
        self.control = AdmissionControl([], settings.quotaThrottleMaxSeconds)
        self.broker = Broker(
            settings, self.gate, self.control, self.clock, lambda: self.wallSeconds, self.log, self.purgatory
        )
        self.broker.groups.start()
        self.factory = SessionFactory(
            lambda: KafkaSession(self.broker, BrokerBackend),
            self.gate,
            self.clock,
            HangUpWatch(MemoryReactorClock()),
            ConnectionLimits(),
            self.control,
            debts=self.broker.debts,
        )
        self.clock.advance(0)
        self.addCleanup(self._stop)

    def takeControl(self, control: AdmissionControl) -> None:
        """Have other policies admit requests from now on."""
        self.broker.control = self.factory.control = control
        control.whenConfigured.append(self.broker.debts.configured)

    def deferToThread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """What the log hands to a thread runs at once, or when the test says so."""
        if not self.isHolding:
            return maybeDeferred(function, *arguments)
        done: Deferred[Any] = Deferred()
        self.flushes.append((done, partial(function, *arguments)))
        return done

    def finishFlush(self) -> None:
        """The disk has everything that was written when it was asked for the longest-held flush."""
        done, function = self.flushes.pop(0)
        maybeDeferred(function).chainDeferred(done)
        self.clock.advance(0)

    def finishFlushes(self) -> None:
        """Hold no flush back any more."""
        self.isHolding = False
        while self.flushes:
            self.finishFlush()

    def _captureLog(self) -> Any:
        capturing = capturedLogs()
        self.addCleanup(capturing.__exit__, None, None, None)
        return capturing.__enter__()

    def _stop(self) -> None:
        for client in self.clients:
            client.disconnect()
        self.clock.advance(0)
        self.broker.groups.stop()
        self.successResultOf(self.log.close())
        self.gate.close()
        self.assertPoolWhole()
        self.assertEqual((self.purgatory.watched, self.purgatory.delayed), (0, 0))
        # The timer of the wheel may fire once in vain.
        self.clock.advance(3600)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def connect(self, transportType: type[FakeTransport] = FakeTransport) -> Client:
        """A client; it hangs up when the test ends."""
        client = Client(self, transportType)
        self.clients.append(client)
        return client

    def topic(self, name: str = "events", partitionCount: int = 1, configs: Mapping[str, str] | None = None) -> Topic:
        """Make a topic."""
        return self.log.createTopic(name, partitionCount, configs or {})

    def store(self, partition: Partition, *values: bytes, **header: int) -> bytes:
        """
        Append and commit a batch without a client.

        @return: the batch as it is stored.
        """
        buffer = bytearray(batchOf(*values, **header))
        self.log.append(partition, buffer, readBatch(buffer))
        self.clock.advance(0)
        return bytes(buffer)

    def failCommits(self, error: OSError | None) -> None:
        """Have the disk refuse to write from now on, or write again."""
        self.disk.writeError = error

    @property
    def frameBytes(self) -> int:
        """How much memory requests hold as they arrived."""
        return self.pool.usedBytesByPurpose[FRAMES]

    def exhaustReserve(self) -> None:
        """Have others hold all that there is for small frames beyond the pool, until the test is over."""
        self.gate.memory._reserve.freeBytes = 0

    def assertPoolWhole(self) -> None:
        """Nobody holds memory, and no lease was lost."""
        held = {purpose: count for purpose, count in self.pool.usedBytesByPurpose.items() if count}
        self.assertEqual(held, {})
        self.assertEqual(self.pool.availableBytes, POOL_BYTES)
        self.assertEqual(self.pool.reclaimedLeases, 0)

    def assertRefused(self, client: Client, *words: str) -> None:
        """The connection is closed, no memory is held on its behalf, and the log says why."""
        self.assertTrue(client.isClosed)
        self.assertEqual(client.waiting(), 0)
        self.assertEqual(self.frameBytes, 0)
        messages = [formatEvent(event) for event in self.logged if event["log_level"] is LogLevel.warn]
        for word in words:
            self.assertIn(word, " | ".join(messages))


def codes(results: Sequence[Any]) -> list[ErrorCode]:
    """The error codes of some results."""
    return [result.error_code for result in results]
