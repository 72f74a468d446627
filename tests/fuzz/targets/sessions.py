"""
Whole sessions: two clients send frames, and bytes that are none, to the real broker on a disk in memory.  No request
makes it fail; answers are whole, in the order of the requests and of their versions; and when the clients have gone
and some time has passed, no memory is held, nothing is parked and no timer is left.  Another broker starts with what
they have made the first one write.  All the time a third client is served within half a minute.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, Final
from unittest.mock import patch

from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from twisted.cred.portal import Portal
from twisted.internet.address import IPv4Address
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs

from admission.connection.factory import ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.control import AdmissionControl
from admission.kafka.broker.broker import Broker
from admission.kafka.broker.brokerbackend import BrokerBackend
from admission.kafka.broker.brokersettings import Settings, loadSettings
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.scram import HASHES, MIN_ITERATIONS, ScramSecret
from admission.kafka.security.checkers import ScramChecker, makePortal
from admission.kafka.security.passwordfile import PasswordFile, Users, formatUsers
from admission.kafka.serving.session import KafkaSession, SessionFactory
from admission.kafka.wire.batches import HEADER_BYTES
from admission.kafka.wire.headers import parseRequestHeader
from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.produce import parseProduce
from admission.kafka.wire.versions import API_VERSIONS, APIS, JOIN_GROUP, PRODUCE, served
from admission.quotas.metering import Windows
from admission.testing.faketransport import FakeTransport
from admission_plugins.bounded import BoundedPool
from admission_plugins.clientquotas import ClientBytes
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel
from tests.kit.admitted import gateFor
from tests.kit.brokerfixture import batchOf, framed, produceFields, readResponse, requestFrame, requestOf
from tests.kit.simulateddisk import SimulatedDisk

from ..bounds import measured
from ..scratch import scratch
from ..seedmaking import filledMessage, requestHeader

MAX_BYTES = 2048

_WITH_LOGINS, _REPAIRED, _SMALL_POOL = 0x01, 0x02, 0x04
_WITHOUT_LENGTH, _SECOND_CLIENT, _TIME_PASSES, _HANGS_UP = 0x8, 0x4, 0x2, 0x1
_LENGTH_BITS: Final = 12

_POOL_BYTES: Final = 1 << 20
_SMALL_POOL_BYTES: Final = 1 << 14
_WALL_SECONDS: Final = 1e9

_MAX_ANSWER_BYTES: Final = _POOL_BYTES // 4
"""A quarter of the pool is what one answer may have."""

_MAX_USED_BYTES: Final = 1 << 19
"""What so few bytes may make the broker take at a time, with what it keeps: its disk is in memory."""

_PROPERTIES: Final = (
    "queued.max.request.bytes=1GiB",
    "max.partitions=100",
    "num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
)


@cache
def _secrets() -> str:
    """The path of a password file."""
    path = os.path.join(scratch(), "users")
    users = Users(bytes(32))
    users.secretsByName["alice"] = {
        mechanism: ScramSecret.ofPassword(mechanism, b"secret", MIN_ITERATIONS, bytes(16)) for mechanism in HASHES
    }
    with open(path, "w", encoding="utf-8") as file:
        file.write(formatUsers(users))
    return path


@cache
def _settings() -> Settings:
    return loadSettings(None, _PROPERTIES)


def _repaired(piece: bytes) -> bytes:
    """Give the batches in a Produce request the sizes and the checksums that they must have."""
    frame = bytearray(piece)
    try:
        header = parseRequestHeader(piece)
        if header.apiKey == PRODUCE and served(PRODUCE, header.apiVersion):
            for partition in parseProduce(memoryview(frame), header.bodyOffset, header.apiVersion).partitions:
                records = partition.records
                if records is not None and len(records) >= HEADER_BYTES:
                    records[8:12] = (len(records) - 12).to_bytes(4, "big")
                    records[17:21] = crc32c(records[21:]).to_bytes(4, "big")
    except MalformedRequest:
        pass
    return bytes(frame)


class _Connection:
    """@ivar expected: the requests that were sent and not answered yet; L{None} when nobody knows what was sent."""

    def __init__(self, rig: _Rig) -> None:
        protocol = rig.factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 50_000))
        assert isinstance(protocol, KafkaSession)
        self._rig = rig
        self.transport = FakeTransport(rig.clock, protocol)
        self.transport.connect()
        self.expected: deque[tuple[int, int, int]] | None = deque()

    def send(self, piece: bytes, isFramed: bool) -> None:
        if not isFramed:
            self.expected = None
            self.transport.peerSends(piece)
            return
        if self.expected is not None:
            try:
                header = parseRequestHeader(piece)
                self.expected.append((header.correlationId, header.apiKey, header.apiVersion))
            except MalformedRequest:
                # The connection will be closed.
                pass
        self.transport.peerSends(framed(_repaired(piece) if self._rig.isRepairing else piece))

    def read(self) -> None:
        """Check the answers that have come."""
        received = self.transport.received
        while len(received) >= 4:
            (sizeBytes,) = struct.unpack_from(">i", received)
            assert 4 <= sizeBytes <= _MAX_ANSWER_BYTES, sizeBytes
            if len(received) < 4 + sizeBytes:
                break
            body = bytes(received[4 : 4 + sizeBytes])
            del received[: 4 + sizeBytes]
            if self.expected is not None:
                self._check(body)

    def _check(self, body: bytes) -> None:
        assert self.expected is not None
        (correlationId,) = struct.unpack_from(">i", body)
        # Some ask for no answer.
        while self.expected and self.expected[0][0] != correlationId:
            self.expected.popleft()
        assert self.expected, f"nobody asked for the answer {correlationId}"
        _, apiKey, apiVersion = self.expected.popleft()
        if served(apiKey, apiVersion) is None:
            assert apiKey == API_VERSIONS, (apiKey, apiVersion)
            apiVersion = 0
        readResponse(body, load_response_schema(apiKey, apiVersion))

    def hangUp(self) -> None:
        if not self.transport.isLost and self.transport._aborting is None:
            self.transport._lose(ConnectionError())


class _Rig:
    """
    A broker with a topic, and two clients.

    @ivar isRepairing: whether batches get the right checksums before they are sent.
    """

    def __init__(self, flags: int, disk: SimulatedDisk | None = None) -> None:
        """@param disk: that of a former broker; L{None} for a new one."""
        hasLogins, self.isRepairing = bool(flags & _WITH_LOGINS), bool(flags & _REPAIRED)
        self.poolBytes = _SMALL_POOL_BYTES if flags & _SMALL_POOL else _POOL_BYTES
        self.clock = Clock()
        self.pool = BoundedPool(self.poolBytes, self.poolBytes // 2, seconds=self.clock.seconds)
        settings = _settings()
        self.gate = gateFor(self.pool, self.clock, maxRequests=settings.queuedMaxRequests)
        root = os.path.join(scratch(), "sessions")
        self.disk = SimulatedDisk(root, Random(0)) if disk is None else disk
        self.log = SegmentLog(
            root,
            self.clock,
            self._wallSeconds,
            maybeDeferred,
            disk=self.disk,
            maxPartitions=settings.maxPartitions,
            retentionSeconds=None,
        )
        self.purgatory = WheelPurgatory(TimingWheel(self.clock))
        control = AdmissionControl([("client-bytes", ClientBytes(Windows(11, 1.0)))], settings.quotaThrottleMaxSeconds)
        portal: Portal | None = None
        if hasLogins:
            portal = makePortal([ScramChecker(PasswordFile(_secrets()), maybeDeferred)])
        self.broker = Broker(
            settings, self.gate, control, self.clock, self._wallSeconds, self.log, self.purgatory, portal
        )
        self.broker.logins.makeNonce = lambda: "server"
        self.broker.groups.start()
        self.factory = SessionFactory(
            lambda: KafkaSession(self.broker, BrokerBackend),
            self.gate,
            self.clock,
            HangUpWatch(MemoryReactorClock()),
            ConnectionLimits(),
            control,
            self.broker.debts,
        )
        if disk is None:
            self.log.createTopic("events", 2, {})
        self.turn()
        self.connections = [_Connection(self), _Connection(self)]
        self.turn()

    def _wallSeconds(self) -> float:
        return _WALL_SECONDS + self.clock.seconds()

    def turn(self) -> None:
        """Let everything happen that takes no time."""
        for _ in range(1000):
            if not any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
                return
            self.clock.advance(0)
        raise AssertionError("the broker does not come to rest")

    def play(self, data: bytes) -> None:
        at = 0
        while at + 2 <= len(data):
            (mark,) = struct.unpack_from(">H", data, at)
            flags, sizeBytes = mark >> _LENGTH_BITS, mark & ((1 << _LENGTH_BITS) - 1)
            number = bool(flags & _SECOND_CLIENT)
            connection = self.connections[number]
            connection.send(data[at + 2 : at + 2 + sizeBytes], not flags & _WITHOUT_LENGTH)
            at += 2 + sizeBytes
            if flags & _TIME_PASSES:
                self.clock.advance(1.0)
            self.turn()
            for each in self.connections:
                each.read()
            if flags & _HANGS_UP:
                connection.hangUp()
                self.turn()
                self.connections[number] = _Connection(self)
                self.turn()

    def serveAnother(self) -> None:
        """Whatever the two clients do, a third one is served."""
        other = _Connection(self)
        entityType: Any = load_request_schema(API_VERSIONS, 0)
        other.send(requestHeader(entityType, 1), isFramed=True)
        for _ in range(60):
            self.turn()
            other.read()
            if not other.expected:
                break
            self.clock.advance(0.5)
        assert not other.expected, "another client is not served"
        other.hangUp()

    def stop(self) -> None:
        self.serveAnother()
        for connection in self.connections:
            connection.read()
            connection.hangUp()
        self.turn()
        self.broker.groups.stop()
        closed: list[object] = []
        self.log.close().addBoth(closed.append)
        self.clock.advance(1.0)
        assert closed == [None], closed
        self.gate.close()
        held = {purpose: sizeBytes for purpose, sizeBytes in self.pool.usedBytesByPurpose.items() if sizeBytes}
        assert not held, held
        assert self.pool.availableBytes == self.poolBytes
        assert self.pool.reclaimedLeases == 0
        assert (self.purgatory.watched, self.purgatory.delayed) == (0, 0)
        # The wheel's may fire once in vain.
        left = [call for call in self.clock.getDelayedCalls() if not isinstance(call.func.__self__, TimingWheel)]
        assert not left, left
        self.clock.advance(3600.0)
        assert not self.clock.getDelayedCalls(), self.clock.getDelayedCalls()


def _pieces(*requests: bytes, flags: int = 0) -> bytes:
    return b"".join(
        struct.pack(">H", flags << _LENGTH_BITS | len(request)) + request for request in requests if len(request) < 4096
    )


def _request(correlationId: int, name: str, apiVersion: int, **fields: Any) -> bytes:
    return requestFrame(requestOf(name, apiVersion, **fields), correlationId)[4:]


def _joining(memberId: str) -> dict[str, Any]:
    return {
        "group_id": "group",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": memberId,
        "group_instance_id": "instance",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x01\x00\x06events\xff\xff\xff\xff"}],
    }


def _memberId(opening: Sequence[bytes]) -> str:
    """The member id that the first client gets which begins with these requests: the same each time."""
    with patch("os.urandom", Random(0).randbytes):
        rig = _Rig(0)
        try:
            rig.play(_pieces(*opening[:-1]))
            connection = rig.connections[0]
            connection.expected = None
            connection.transport.peerSends(framed(opening[-1]))
            rig.turn()
            _, joined = readResponse(bytes(connection.transport.received[4:]), load_response_schema(JOIN_GROUP, 5))
            connection.transport.received.clear()
        finally:
            rig.stop()
    memberId: str = joined.member_id
    return memberId


def seeds() -> Iterator[bytes]:
    for api in APIS:
        for apiVersion in {api.minVersion, api.maxVersion}:
            entityType: Any = load_request_schema(api.apiKey, apiVersion)
            yield b"\x00" + _pieces(requestHeader(entityType, 1) + filledMessage(entityType), flags=_TIME_PASSES)
    produce = [
        _request(number, "Produce", version, **produceFields("events", batchOf(b"1", b"2"), acks=acks))
        for number, (version, acks) in enumerate(((3, -1), (9, 1), (12, 0), (12, -1)))
    ]
    fetched = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    fetch = {"max_wait": 500, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "events", "partitions": fetched}]}
    fetches = [_request(10 + version, "Fetch", version, **fetch) for version in (4, 11, 12)]
    yield b"\x00" + _pieces(*produce, *fetches)
    yield b"\x00" + _pieces(*fetches) + _pieces(*produce, flags=_SECOND_CLIENT) + _pieces(*fetches, flags=_HANGS_UP)
    yield (
        b"\x00"
        + _pieces(framed(produce[0])[:30], flags=_WITHOUT_LENGTH)
        + _pieces(framed(produce[0])[30:], flags=_WITHOUT_LENGTH | _TIME_PASSES)
    )
    places = [
        _request(20 + timestampMs, "ListOffsets", 7, topics=[{"name": "events", "partitions": [each]}])
        for timestampMs in (-4, -3, -2, -1, 0, 1001)
        for each in [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestampMs}]
    ]
    sequences = [
        _request(
            30 + sequence,
            "Produce",
            9,
            **produceFields("events", batchOf(b"1", b"2", producerId=0, producerEpoch=0, baseSequence=sequence)),
        )
        for sequence in (0, 2, 2, 9)
    ]
    epoch = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    ends = _request(40, "OffsetForLeaderEpoch", 3, topics=[{"topic": "events", "partitions": epoch}])
    yield bytes((_REPAIRED,)) + _pieces(*produce[:2], *places, ends, fetches[0])
    yield bytes((_REPAIRED,)) + _pieces(_request(1, "InitProducerId", 2, transaction_timeout=1000), *sequences, *places)
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}
    opening = [_request(1, "FindCoordinator", 0, key="group"), _request(2, "JoinGroup", 5, **_joining(""))]
    memberId = _memberId(opening)
    member = {"group_id": "group", "generation_id": 1, "member_id": memberId}
    assigned = {"member_id": memberId, "assignment": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"}
    offsets = [{"name": "events", "partitions": [offset]}]
    group = [
        *opening,
        _request(3, "SyncGroup", 3, **member, assignments=[assigned]),
        _request(4, "Heartbeat", 3, **member),
        _request(5, "OffsetCommit", 7, **member, generation_id_or_member_epoch=1, topics=offsets),
        _request(6, "OffsetFetch", 7, group_id="group", topics=None),
        _request(7, "DescribeGroups", 5, groups=("group", "other")),
        _request(8, "JoinGroup", 5, **_joining(memberId)),
        _request(9, "LeaveGroup", 3, group_id="group", members=[{"member_id": memberId}]),
        _request(10, "OffsetCommit", 7, group_id="group", generation_id_or_member_epoch=-1, topics=offsets),
        _request(11, "DeleteGroups", 1, groups_names=("group",)),
    ]
    yield b"\x00" + _pieces(*group)
    yield b"\x00" + _pieces(*group, flags=_TIME_PASSES)
    yield b"\x00" + _pieces(*opening) + _pieces(*group[1:], flags=_SECOND_CLIENT | _TIME_PASSES)
    yield b"\x00" + _pieces(*group[:5]) + _pieces(group[5], flags=_HANGS_UP) + _pieces(*group[1:5])
    topic = {"name": "made", "num_partitions": 3, "replication_factor": 1, "assignments": (), "configs": ()}
    yield b"\x00" + _pieces(
        _request(1, "CreateTopics", 5, topics=[topic], timeout=1000, validate_only=False),
        _request(2, "Metadata", 1, topics=None),
        _request(3, "DeleteTopics", 3, topic_names=("made", "events"), timeout=1000),
        *fetches,
    )
    entity = [{"entity_type": "client-id", "entity_name": None}]
    altered = [{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]}]
    yield b"\x00" + _pieces(
        _request(1, "AlterClientQuotas", 1, entries=altered, validate_only=False), *produce, flags=_TIME_PASSES
    )
    yield bytes((_WITH_LOGINS,)) + _pieces(
        _request(1, "ApiVersions", 3, client_software_name="c", client_software_version="1"),
        _request(2, "SaslHandshake", 1, mechanism="SCRAM-SHA-256"),
        _request(3, "SaslAuthenticate", 2, auth_bytes=b"n,,n=alice,r=client"),
        _request(4, "SaslAuthenticate", 2, auth_bytes=b"c=biws,r=clientserver,p=" + b"A" * 43 + b"="),
    )
    yield bytes((_WITH_LOGINS,)) + _pieces(
        _request(1, "SaslHandshake", 1, mechanism="PLAIN"),
        _request(2, "SaslAuthenticate", 1, auth_bytes=b"\0alice\0secret"),
        *produce,
        *fetches,
        flags=_TIME_PASSES,
    )


def _play(data: bytes, isMeasured: bool) -> int:
    """@return: the most memory that was used at a time beyond what was leased for frames, if that is measured."""
    usedBytes = 0
    with patch("os.urandom", Random(0).randbytes):
        rig = _Rig(data[0])
        try:
            if isMeasured:
                _, usedBytes = measured(lambda: rig.play(data[1:]))
                # Frames are leased whole when they are announced, in buffers of the next power of two.
                usedBytes -= 2 * rig.pool.peakFrameBytes
            else:
                rig.play(data[1:])
        finally:
            rig.stop()
        if len(data) % 4 == 1:
            again = _Rig(0, rig.disk.kill())
            ends, endsAgain = (
                {
                    (topic.name, each.index): (each.logStartOffset, each.highWatermark)
                    for topic in some.log.topics.values()
                    for each in topic.partitions
                }
                for some in (rig, again)
            )
            again.stop()
            assert endsAgain == ends
    return usedBytes


def check(data: bytes) -> None:
    if not data:
        return
    # Measuring takes as long again.
    isMeasured = not len(data) % 4
    with capturedLogs() as logged:
        if _play(data, isMeasured) > _MAX_USED_BYTES:
            # Decoders are made when they are needed first.
            usedBytes = _play(data, isMeasured)
            assert usedBytes <= _MAX_USED_BYTES, usedBytes
    failures = [event for event in logged if "log_failure" in event]
    assert not failures, failures[0]["log_failure"]
