"""Tests for L{admission.recording.eventof} and L{admission.kafka.serving.kafkaevents}."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable
from copy import copy
from itertools import count
from math import isnan
from typing import Any

from attrs import define, field
from hypothesis import given, settings, strategies as st
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.connection.driver import FAILED
from admission.connection.factory import ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.connection.pauses import Pause
from admission.control import AdmissionControl
from admission.interfaces import (
    ADMITTED,
    CONNECTION,
    DEFAULT,
    NOTHING,
    PARKED,
    Decision,
    ILease,
    IQuotaPolicy,
    IRequestLifecycle,
    Outcome,
    QuotaEntity,
    Request,
    Traits,
    Usage,
)
from admission.kafka.broker.brokerbackend import LOGIN_FAILED, BrokerBackend
from admission.kafka.broker.produceresponses import NOT_ON_DISK
from admission.kafka.security.checkers import makePortal
from admission.kafka.security.login import Logins
from admission.kafka.serving.kafkaevents import LOGIN_GRAIN_BYTES, kafkaEventOf, principalAtFirst
from admission.kafka.serving.kafkarequest import groupOf
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.kafka.serving.server import ANONYMOUS
from admission.kafka.serving.session import BEHIND, KafkaSession, SessionFactory
from admission.kafka.wire.batches import HEADER_BYTES
from admission.metrics.registry import SensorRegistry
from admission.recording.eventof import NO_MEMORY, OVER_QUOTA, withoutNumbers
from admission.recording.events import (
    ADMIT,
    CLOSED,
    EXPIRE,
    MUTE,
    OPENED,
    REJECT,
    THROTTLE,
    UNKNOWN,
    ConnectionEvent,
    Origin,
)
from admission.recording.recorder import EventRecorder
from admission.recording.requestrecording import BROKE, RequestRecording
from admission.recording.tables import TABLES
from admission.request import HUNG_UP
from admission.testing.faketransport import FakeTLSTransport
from admission_plugins.producerids import ProducerIds
from tests.kit.brokerfixture import (
    POOL_BYTES,
    BrokerTestCase,
    Client,
    batchOf,
    fetchFields,
    framed,
    produceFields,
    requestFrame,
    requestOf,
)
from tests.kit.checkout import ROOT
from tests.unit.kafka.broker.test_throttling import ScriptedPolicy
from tests.unit.recording.test_recorder import MemoryExporter

LISTENER = "tcp:9092"
WORK_SECONDS = 0.25
"""How long appending takes where a test says that it takes time."""


@implementer(IRequestLifecycle)
@define(eq=False)
class Strict(ScriptedPolicy):
    """
    Calls the test whenever it is asked or told.

    @ivar called: what to call.
    @ivar underWay: the requests that have begun and not ended.
    @ivar outcomes: how those ended that have.
    """

    called: Callable[[], object] = field(default=lambda: None)
    countsParked: bool = True
    underWay: list[Request] = field(factory=list)
    outcomes: list[tuple[str, Outcome]] = field(factory=list)

    def begun(self, request: Request, now: float) -> None:
        """Keep it."""
        self.called()
        self.underWay.append(request)

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        """Keep how it ended."""
        self.called()
        self.underWay.remove(request)
        self.outcomes.append((request.kind, outcome))

    def decide(self, request: Request, now: float) -> Decision:
        """Answer as it was told to."""
        self.called()
        return self.decision

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Keep it."""
        self.called()
        return super().record(request, usage, now)


class CallingExporter(MemoryExporter):
    """
    Calls the test before it keeps an event, as it is at that moment: nobody may change it afterwards.

    @ivar called: what to call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: Callable[[], object] = lambda: None

    def exportEvent(self, event: Any) -> None:
        """Call, and keep it."""
        self.called()
        super().exportEvent(copy(event))


class RecordedTestCase(BrokerTestCase):
    """
    A broker that records, and one policy that does what the test says.

    @ivar exporter: has what was recorded.
    @ivar policy: the policy; not in force before L{limit}.
    """

    def setUp(self) -> None:
        super().setUp()
        self.exporter = CallingExporter()
        self.recorder = EventRecorder([("memory", self.exporter)], self.clock, SensorRegistry(self.clock.seconds))
        self.recorder.start(Origin("0", "boot"), lambda function, *args: succeed(function(*args)))
        self.addCleanup(self._stopRecording)
        self.factory = SessionFactory(
            self.makeConnection,
            self.gate,
            self.clock,
            HangUpWatch(MemoryReactorClock()),
            ConnectionLimits(),
            self.control,
            self.broker.debts,
        )
        self.factory.observers = (RequestRecording(self.recorder, kafkaEventOf, principalAtFirst),)
        self.enforce()
        self.policy = Strict()
        self.taken: list[ILease] = []

    def _stopRecording(self) -> None:
        self.recorder.stop()

    def makeConnection(self) -> KafkaSession:
        """As the service does it."""
        connection = KafkaSession(self.broker, BrokerBackend)
        connection.listener = LISTENER
        return connection

    def limit(self) -> None:
        """Put the policy in force, beside a shadow that throttles everybody."""
        trial = ScriptedPolicy(isShadow=True, delays={"Produce": 9.0, "Fetch": 9.0})
        self.enforce(("trial", trial), ("strict", self.policy))

    def enforce(self, *policies: tuple[str, IQuotaPolicy]) -> None:
        """Put policies in force, and have requests observed."""
        self.takeControl(AdmissionControl(policies, 20.0, isObserved=True))

    def requests(self) -> list[KafkaRequestEvent]:
        """What was recorded of requests."""
        return [event for event in self.exporter.events if isinstance(event, KafkaRequestEvent)]

    def request(self, kind: str | None = None) -> KafkaRequestEvent:
        """The one request that was recorded, apart from the opening of connections."""
        [event] = [event for event in self.requests() if event.kind != CONNECTION]
        if kind is not None:
            self.assertEqual(event.kind, kind)
        return event

    def connections(self) -> list[ConnectionEvent]:
        """What was recorded of connections."""
        return [event for event in self.exporter.events if isinstance(event, ConnectionEvent)]

    def produceBytes(self, client: Client, value: bytes = b"a", apiVersion: int = 9, **others: Any) -> bytes:
        """The bytes of a Produce request."""
        return client.frame(requestOf("Produce", apiVersion, **produceFields("events", batchOf(value), **others)))

    def takeMemory(self) -> None:
        """Leave nothing in the pool: a request holds some of it, and others the rest."""
        self.exhaustReserve()
        for lease in (self.pool.tryAllocate(1), self.pool.charge(max(self.pool.availableBytes, 0), PARKED)):
            if lease is not None:
                self.taken.append(lease)

    def returnMemory(self) -> None:
        """Give back what was taken, and let it be handed out."""
        while self.taken:
            self.taken.pop().release()
        self.clock.pump([0, 0])

    def takeTime(self) -> None:
        """Let appending take its time from now on."""
        append = self.log.append

        def slow(*arguments: Any) -> Any:
            self.clock.rightNow += WORK_SECONDS
            return append(*arguments)

        self.log.append = slow  # type: ignore[method-assign]

    def assertDecision(
        self, event: KafkaRequestEvent, decision: str, reason: str | None, policy: str | None = None
    ) -> None:
        """What became of a request, why, and who decided it."""
        self.assertEqual((event.decision, event.reason, event.policy), (decision, reason, policy))


class WordsTests(SynchronousTestCase):
    """What goes into events is made fit for it."""

    def test_numbers(self) -> None:
        """Reasons that differ in their numbers are one."""
        self.assertEqual(withoutNumbers("7 of the 80 bytes, for 30.5 s (v2)"), "N of the N bytes, for N s (vN)")
        self.assertEqual(withoutNumbers("it was idle"), "it was idle")

    def test_group(self) -> None:
        """A request is about the group that it names, if that is one."""
        for name, apiVersion, fields, groupId in [
            ("JoinGroup", 5, {"group_id": "a"}, "a"),
            ("OffsetFetch", 7, {"group_id": "a"}, "a"),
            ("OffsetFetch", 9, {"groups": [{"group_id": "a"}]}, "a"),
            ("OffsetFetch", 9, {"groups": [{"group_id": "a"}, {"group_id": "b"}]}, None),
            ("DescribeGroups", 5, {"groups": ["a"]}, "a"),
            ("DeleteGroups", 2, {"groups_names": ["a"]}, "a"),
            ("DeleteGroups", 2, {"groups_names": []}, None),
            ("Metadata", 9, {}, None),
        ]:
            self.assertEqual(groupOf(requestOf(name, apiVersion, **fields)), groupId, name)


class ServedTests(RecordedTestCase):
    """Requests that are answered."""

    def test_produce(self) -> None:
        """An event says what a request was, what it took and when; nobody was asked about this one."""
        self.topic()
        self.takeTime()
        client = self.connect()
        self.clock.advance(5.0)
        batch = batchOf(b"x", producerId=7, producerEpoch=3, baseSequence=0)
        frame = client.frame(requestOf("Produce", 9, **produceFields("events", batch)))
        openBytes = POOL_BYTES - self.pool.availableBytes
        client.sendBytes(frame)
        client.receive()
        event = self.request("Produce")
        self.assertEqual((event.connectionId, event.listener, event.peer), (1, LISTENER, "192.0.2.1"))
        self.assertEqual((event.principal, event.clientId), (ANONYMOUS, "test"))
        self.assertEqual((event.apiKey, event.apiVersion, event.correlationId), (0, 9, 1))
        self.assertEqual((event.requestBytes, event.responseBytes), (len(frame) - 4, 0))
        self.assertEqual((event.firstIdentity, event.producerEpoch, event.identityCount), (7, 3, 1))
        self.assertEqual((event.inFlight, event.throttleTimeMs, event.groupId), (1, 0, None))
        self.assertEqual((event.isCounted, event.isKnown, event.policyDelaysSeconds), (UNKNOWN, UNKNOWN, ()))
        self.assertTrue(isnan(event.decidedSeconds))
        self.assertEqual((event.arrivedSeconds, event.sentSeconds), (5.0, 5.0 + WORK_SECONDS))
        self.assertEqual((event.serviceSeconds, event.poolHoldSeconds), (WORK_SECONDS, WORK_SECONDS))
        self.assertEqual((event.queueSeconds, event.poolWaitSeconds, event.purgatoryWaitSeconds), (0.0, 0.0, 0.0))
        self.assertEqual((event.poolUsedBytes, event.poolAvailableBytes), (openBytes, POOL_BYTES - openBytes))
        self.assertDecision(event, ADMIT, None)

    def test_whatThePoliciesWereTold(self) -> None:
        """
        Sizes and times are exactly those of the usage that the policies were told of, at the moment
        that is recorded.
        """
        events = self.topic()
        self.takeTime()
        self.limit()
        client = self.connect()
        self.policy.recorded.clear()
        client.produce("events", batchOf(b"a"))
        client.fetch(events, 0)
        client.ask("Metadata", 9, topics=[{"name": "events"}])
        client.send("Produce", 9, answered=False, **produceFields("events", batchOf(b"b"), acks=0))
        recorded = [event for event in self.requests() if event.kind != CONNECTION]
        self.assertEqual(
            [
                (each.kind, each.requestBytes, Usage(each.requestBytes, each.responseBytes, each.serviceSeconds))
                for each in recorded
            ],
            [(request.kind, request.sizeBytes, usage) for request, usage in self.policy.recorded],
        )
        self.assertEqual([event.serviceSeconds for event in recorded], [WORK_SECONDS, 0.0, 0.0, WORK_SECONDS])
        self.assertEqual([event.decidedSeconds for event in recorded], [0.25, 0.25, 0.25, 0.5])
        self.assertEqual({event.isCounted for event in recorded}, {True})

    def test_unasked(self) -> None:
        """Where nobody limits anybody the same is recorded."""
        events = self.topic()
        client = self.connect()
        client.fetch(events, 0)
        recorded = self.request("Fetch").responseBytes
        self.exporter.events.clear()
        self.limit()
        client.fetch(events, 0)
        self.assertEqual(self.request("Fetch").responseBytes, recorded)
        self.assertGreater(recorded, 0)

    def test_throttled(self) -> None:
        """The delay that wins is that of a policy with a say; what each asks for is there in their order."""
        self.topic()
        self.limit()
        self.policy.delays["Produce"] = 2.5
        self.connect().produce("events", batchOf(b"a"))
        event = self.request()
        self.assertDecision(event, THROTTLE, OVER_QUOTA, "strict")
        self.assertEqual((event.policyDelaysSeconds, event.throttleTimeMs), ((9.0, 2.5), 2500))

    def test_toldNothing(self) -> None:
        """An answer that is not held against the client is marked as such."""
        events = self.topic()
        self.limit()
        self.policy.budgets["Fetch"] = 0
        self.policy.delays["Fetch"] = 1.0
        self.connect().ask("Fetch", 12, **fetchFields(events, 0))
        self.assertEqual(self.policy.recorded[-1][1], NOTHING)
        event = self.request("Fetch")
        self.assertDecision(event, THROTTLE, OVER_QUOTA, "strict")
        self.assertEqual((event.isCounted, event.throttleTimeMs, event.decidedSeconds), (False, 1000, 0.0))
        self.assertGreater(event.responseBytes, 0)

    def test_noResponse(self) -> None:
        """With C{acks=0} nobody is told anything, and the request has not expired."""
        self.topic()
        self.limit()
        self.policy.delays["Produce"] = 1.0
        self.connect().send("Produce", 9, answered=False, **produceFields("events", batchOf(b"a"), acks=0))
        event = self.request()
        self.assertDecision(event, THROTTLE, OVER_QUOTA, "strict")
        self.assertEqual((event.throttleTimeMs, event.responseBytes), (0, 0))

    def test_lateResponse(self) -> None:
        """The response to an older client, which is throttled itself, is sent when it is sent."""
        self.topic()
        self.limit()
        self.policy.delays["Produce"] = 2.0
        self.connect().send("Produce", 5, **produceFields("events", batchOf(b"a")))
        self.assertEqual(self.requests()[1:], [])
        self.clock.advance(2.5)
        event = self.request()
        self.assertEqual((event.decidedSeconds, event.sentSeconds, event.purgatoryWaitSeconds), (0.0, 2.5, 2.5))

    def test_parked(self) -> None:
        """Waiting in the purgatory is neither work nor holding memory."""
        events = self.topic()
        self.connect().send("Fetch", 12, **fetchFields(events, 0, maxWaitMs=5000))
        self.clock.advance(3.0)
        self.assertEqual(self.requests(), [])
        self.store(events.partitions[0], b"a")
        event = self.request("Fetch")
        self.assertDecision(event, ADMIT, None)
        self.assertEqual((event.purgatoryWaitSeconds, event.serviceSeconds, event.poolHoldSeconds), (3.0, 0.0, 0.0))
        self.assertEqual(event.sentSeconds, 3.0)

    def test_putOff(self) -> None:
        """A request that waits, whole, for those before it is queued, and holds its memory."""
        self.topic()
        client = self.connect()
        client.protocol.dataReceived(
            self.produceBytes(client) + client.frame(requestOf("ListGroups", 3)) + self.produceBytes(client, b"b")
        )
        self.clock.advance(0.5)
        [first, second, third] = self.requests()
        self.assertEqual([each.kind for each in (first, second, third)], ["Produce", "ListGroups", "Produce"])
        self.assertEqual((first.purgatoryWaitSeconds, first.queueSeconds), (0.5, 0.0))
        self.assertEqual((second.queueSeconds, second.poolHoldSeconds, second.serviceSeconds), (0.5, 0.5, 0.0))
        self.assertEqual((second.inFlight, third.inFlight), (2, 1))

    def test_waitsForItsTurn(self) -> None:
        """So is one that comes when as many as may be are worked on."""
        client = self.connect()
        busy = self.gate.turns.maxRequests
        self.gate.turns.runningRequests += busy
        client.sendBytes(client.frame(requestOf("ApiVersions", 0)))
        self.clock.advance(2.0)
        self.gate.turns.runningRequests -= busy - 1
        self.gate.turns.end()
        self.clock.advance(0)
        client.receive()
        event = self.request("ApiVersions")
        self.assertEqual((event.queueSeconds, event.poolHoldSeconds, event.serviceSeconds), (2.0, 2.0, 0.0))

    def test_waitsForMemory(self) -> None:
        """A request that has waited for memory was muted, if nothing else came of it; the wait is there in any case."""
        self.topic()
        self.limit()
        client = self.connect()
        for delaySeconds, decision, reason in ((0.0, MUTE, NO_MEMORY), (1.0, THROTTLE, OVER_QUOTA)):
            self.policy.delays["Produce"] = delaySeconds
            self.exporter.events.clear()
            self.takeMemory()
            client.sendBytes(self.produceBytes(client))
            self.clock.advance(1.5)
            self.returnMemory()
            client.receive()
            event = self.request()
            self.assertEqual((event.decision, event.reason, event.poolWaitSeconds), (decision, reason, 1.5))
            self.assertEqual((event.poolAvailableBytes, event.poolHoldSeconds, event.queueSeconds), (0, 0.0, 0.0))

    def test_headLate(self) -> None:
        """A request arrives with its length, and asks for memory when it is known what it is."""
        client = self.connect()
        frame = client.frame(requestOf("ApiVersions", 0))
        client.sendBytes(frame[:4])
        self.clock.advance(1.0)
        client.sendBytes(frame[4:8])
        self.clock.advance(1.0)
        client.sendBytes(frame[8:])
        event = self.request("ApiVersions")
        self.assertEqual((event.arrivedSeconds, event.sentSeconds, event.poolHoldSeconds), (0.0, 2.0, 1.0))

    def test_tooNew(self) -> None:
        """ApiVersions in a version to come is answered like any other."""
        client = self.connect()
        frame = requestFrame(requestOf("ApiVersions", 4), 1)
        client.sendBytes(frame[:6] + struct.pack(">h", 99) + frame[8:])
        event = self.request("ApiVersions")
        self.assertDecision(event, ADMIT, None)
        self.assertEqual(event.apiVersion, 99)
        self.assertGreater(event.responseBytes, 100)

    def test_group(self) -> None:
        """The group that a request is about is recorded."""
        self.connect().ask("Heartbeat", 4, group_id="readers", member_id="m")
        self.assertEqual(self.request("Heartbeat").groupId, "readers")

    def test_shortBatch(self) -> None:
        """What is no batch has no producer, and is answered."""
        self.topic()
        self.connect().produce("events", batchOf(b"a", producerId=5)[: HEADER_BYTES - 1])
        event = self.request()
        self.assertEqual((event.identityCount, event.producerEpoch, event.decision), (0, UNKNOWN, ADMIT))

    def test_notRecording(self) -> None:
        """Of requests that nobody observes nothing is kept."""
        self.topic()
        self.factory.observers = ()
        client = self.connect()
        client.produce("events", batchOf(b"a"))
        self.assertEqual((client.protocol.request, client.protocol.driver.openRequests), (None, 0))
        self.assertEqual(self.exporter.events, [])


class RefusedTests(RecordedTestCase):
    """Requests of which nothing is done."""

    properties = {"socket.request.max.bytes": "2MiB"}

    def test_frames(self) -> None:
        """A frame that is not read is recorded once, in words without numbers."""
        announced = "a Metadata request of N bytes was announced, and N are allowed"
        tooLarge = "a request of N bytes was announced, and N are allowed (socket.request.max.bytes)"
        for pieces, kind, apiKey, requestBytes, reason in [
            ([struct.pack(">i", 3 << 20)], None, UNKNOWN, 3 << 20, tooLarge),
            ([struct.pack(">ih", 2 << 20, 3)], "Metadata", 3, 2 << 20, announced),
            ([struct.pack(">i", 2 << 20), b"\0", b"\3"], "Metadata", 3, 2 << 20, announced),
            ([struct.pack(">ih", 100, 9999)], None, 9999, 100, "it sent a request with API key N, which is not served"),
            ([struct.pack(">i", -5)], None, UNKNOWN, 0, "a frame of -N bytes was announced"),
        ]:
            self.exporter.events.clear()
            client = self.connect()
            for piece in pieces:
                client.sendBytes(piece)
            self.assertTrue(client.isClosed)
            event = self.request()
            self.assertDecision(event, REJECT, reason)
            self.assertEqual((event.kind, event.apiKey, event.requestBytes), (kind, apiKey, requestBytes))
            self.assertEqual((event.poolHoldSeconds, event.serviceSeconds, event.isCounted), (0.0, 0.0, UNKNOWN))
            self.assertEqual(event.traits == UNKNOWN, kind is None)
            closing = self.connections()[-1]
            self.assertEqual((closing.state, closing.reason, closing.requestCount), (CLOSED, reason, 1))
        # Not a byte has ever been taken for a frame.
        self.assertEqual(self.pool.peakFrameBytes, 0)

    def test_malformed(self) -> None:
        """So is a request that makes no sense, or is of a version that is not served."""
        metadata = requestFrame(requestOf("Metadata", 1, topics=[{"name": "x"}]), 1)[4:]
        produce = requestFrame(requestOf("Produce", 9, **produceFields("x", batchOf(b"1"))), 1)[4:]
        unreadable = "it sent a request that cannot be read: "
        for body, kind, words in [
            (b"", None, "a request of N bytes ends within its header"),
            (metadata[:9], "Metadata", "a request of N bytes ends within its header"),
            (metadata[:-1], "Metadata", "Metadata vN ends before its fields do"),
            (produce[:-1], "Produce", "a Produce request ends before its fields do"),
            (produce + b"\0", "Produce", "N bytes are left over behind a Produce request"),
        ]:
            self.exporter.events.clear()
            client = self.connect()
            client.sendBytes(framed(body))
            self.assertTrue(client.isClosed)
            event = self.request()
            self.assertDecision(event, REJECT, unreadable + words)
            self.assertEqual((event.kind, event.requestBytes), (kind, len(body)))
        self.exporter.events.clear()
        self.connect().sendBytes(framed(struct.pack(">hhihB", 3, 99, 1, -1, 0)))
        self.assertDecision(self.request("Metadata"), REJECT, "it sent Metadata in version N, which is not served")

    def test_byPolicy(self) -> None:
        """The refusal of a policy is its delay and its reason, and nobody is told of any usage."""
        events = self.topic()
        self.limit()
        client = self.connect()
        self.policy.decision = Decision(False, 1.5, "17 too many")
        self.exporter.events.clear()
        self.clock.advance(1.0)
        for name, apiVersion, fields in [
            ("Produce", 9, produceFields("events", batchOf(b"a"))),
            ("Fetch", 12, fetchFields(events, 0)),
            ("InitProducerId", 4, {}),
        ]:
            client.ask(name, apiVersion, **fields)
            event = self.request(name)
            self.assertDecision(event, REJECT, "N too many", "strict")
            self.assertEqual((event.policyDelaysSeconds, event.throttleTimeMs), ((0.0, 1.5), 1500))
            self.assertEqual((event.decidedSeconds, event.isCounted), (self.clock.seconds(), UNKNOWN))
            self.exporter.events.clear()
            self.clock.advance(2.0)

    def test_behind(self) -> None:
        """What is refused because of what was refused before is not laid at the door of a policy."""
        self.topic()
        self.limit()
        client = self.connect()
        self.exporter.events.clear()
        batches = [batchOf(b"a", producerId=7, producerEpoch=0, baseSequence=number) for number in range(2)]
        self.policy.decision = Decision(False, 0.0, "no")
        client.produce("events", batches[0])
        self.policy.decision = ADMITTED
        client.produce("events", batches[1])
        [refused, behind] = self.requests()
        self.assertDecision(refused, REJECT, "no", "strict")
        self.assertDecision(behind, REJECT, BEHIND.reason)
        self.assertEqual((isnan(behind.decidedSeconds), behind.isCounted), (True, UNKNOWN))

    def test_failed(self) -> None:
        """A request that the broker fails to answer is given up."""

        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError

        self.topic()
        self.log.append = fail  # type: ignore[method-assign,assignment]
        client = self.connect()
        client.sendBytes(self.produceBytes(client))
        self.assertDecision(self.request("Produce"), EXPIRE, FAILED)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class AbandonedTests(RecordedTestCase):
    """Requests whose clients leave before they are answered."""

    def test_everywhere(self) -> None:
        """Wherever a request is when its connection is lost, it is recorded then, with the waits that it has had."""
        events = self.topic()
        for name, send, pick in [
            ("its head", lambda client: client.sendBytes(b"\0\0\0\x20"), None),
            ("its body", lambda client: client.sendBytes(b"\0\0\0\x20\0\x03"), "poolHoldSeconds"),
            ("memory", self._waitForMemory, "poolWaitSeconds"),
            ("its turn", self._waitForTurn, "queueSeconds"),
            (
                "records",
                lambda client: client.send("Fetch", 12, **fetchFields(events, 0, maxWaitMs=60_000)),
                "purgatoryWaitSeconds",
            ),
        ]:
            self.exporter.events.clear()
            client = self.connect()
            send(client)
            self.clock.advance(2.0)
            self.assertEqual(self.requests(), [], name)
            client.disconnect()
            event = self.request()
            self.assertDecision(event, EXPIRE, HUNG_UP)
            self.assertEqual(event.sentSeconds - event.arrivedSeconds, 2.0, name)
            if pick is not None:
                self.assertEqual(getattr(event, pick), 2.0, name)
            self.assertEqual((event.responseBytes, event.throttleTimeMs, event.principal), (0, 0, ANONYMOUS))
            waits = event.poolWaitSeconds + event.queueSeconds + event.purgatoryWaitSeconds + event.serviceSeconds
            self.assertEqual(waits, 0.0 if pick in (None, "poolHoldSeconds") else 2.0, name)
            self._undo()

    def _waitForMemory(self, client: Client) -> None:
        self.takeMemory()
        self._undo = self.returnMemory
        client.sendBytes(client.frame(requestOf("ListGroups", 3)))

    def _waitForTurn(self, client: Client) -> None:
        busy = self.gate.turns.maxRequests
        self.gate.turns.runningRequests += busy

        def undo() -> None:
            self.gate.turns.runningRequests -= busy

        self._undo = undo
        client.sendBytes(client.frame(requestOf("ListGroups", 3)))

    def _undo(self) -> None:
        """Whatever a test has done to the broker."""

    def test_uncommitted(self) -> None:
        """Requests that wait for a commit, and requests behind them, are recorded before the end of the connection."""
        self.topic()
        self.limit()
        self.policy.delays["Produce"] = 1.0
        client = self.connect()
        client.protocol.dataReceived(self.produceBytes(client))
        client.protocol.driver.throttleLess(0.0)
        client.protocol.throttleOver()
        client.protocol.resume(Pause.THROTTLED)
        client.protocol.dataReceived(client.frame(requestOf("ListGroups", 3)))
        client.transport._lose(ConnectionError())
        kinds = [type(each).__name__ for each in self.exporter.events]
        self.assertEqual(kinds.index("ConnectionEvent", 1), len(kinds) - 1)
        produce, put = [each for each in self.requests() if each.kind != CONNECTION]
        self.assertDecision(produce, EXPIRE, HUNG_UP, "strict")
        self.assertEqual(
            (produce.isCounted, produce.policyDelaysSeconds, produce.throttleTimeMs), (True, (9.0, 1.0), 0)
        )
        self.assertDecision(put, EXPIRE, HUNG_UP)
        self.clock.advance(0)
        self.assertEqual(len(self.requests()), 3)

    def test_peerGone(self) -> None:
        """A client that has left although there is more to read of it does not hear of what was parked."""
        events = self.topic()
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(events, 0, maxWaitMs=60_000))
        client.protocol.hasPeerGone = True
        client.protocol.peerGone()
        self.assertDecision(self.request("Fetch"), EXPIRE, HUNG_UP)

    def test_answeredWhileClosing(self) -> None:
        """An answer that comes when the connection is closing is not sent, so the request has expired."""
        events = self.topic()
        client = self.connect(FakeTLSTransport)
        assert isinstance(client.transport, FakeTLSTransport)
        client.transport.answersClose = False
        client.transport.peerFinishesHandshake()
        client.send("Fetch", 12, **fetchFields(events, 0, maxWaitMs=60_000))
        client.protocol.close("a whim")
        self.store(events.partitions[0], b"a")
        self.assertDecision(self.request("Fetch"), EXPIRE, "a whim")

    def test_lostAtWork(self) -> None:
        """A request that is worked on when the connection is lost is recorded once all that comes of it is known."""
        self.topic()
        self.limit()
        client = self.connect()
        self.policy.called = lambda: client.transport.isLost or client.transport._lose(ConnectionError())
        client.sendBytes(self.produceBytes(client))
        event = self.request("Produce")
        self.assertDecision(event, EXPIRE, HUNG_UP)
        self.assertEqual((event.isCounted, event.policyDelaysSeconds), (True, (9.0, 0.0)))
        self.clock.advance(0)
        self.request("Produce")

    def test_lostWhenItsWaitIsOver(self) -> None:
        """So is one that was parked, if the connection is lost while its answer is made."""
        events = self.topic()
        self.limit()
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(events, 0, maxWaitMs=60_000))
        self.policy.called = lambda: client.transport.isLost or client.transport._lose(ConnectionError())
        self.clock.advance(2.0)
        self.store(events.partitions[0], b"a")
        event = self.request("Fetch")
        self.assertDecision(event, EXPIRE, HUNG_UP)
        self.assertEqual((event.isCounted, event.decidedSeconds, event.purgatoryWaitSeconds), (True, 2.0, 2.0))


class LifecycleTests(RecordedTestCase):
    """Policies that follow requests are told of each twice."""

    def test_parked(self) -> None:
        """A request that is parked is under way or over, as the policy has it; how long it was parked is told."""
        events = self.topic()
        for countsParked, underWay, outcome in ((True, 1, Outcome(True, 0.0, 3.0)), (False, 0, Outcome())):
            self.limit()
            self.policy.countsParked = countsParked
            self.policy.outcomes.clear()
            client = self.connect()
            client.send("Fetch", 12, **fetchFields(events, events.partitions[0].highWatermark, maxWaitMs=60_000))
            self.clock.advance(3.0)
            self.assertEqual(len(self.policy.underWay), underWay)
            self.store(events.partitions[0], b"a")
            self.assertEqual((self.policy.underWay, self.policy.outcomes), ([], [("Fetch", outcome)]))


class SyncTests(RecordedTestCase):
    """Requests that wait for the disk."""

    def setUp(self) -> None:
        """The disk is as slow as the test wants it."""
        super().setUp()
        self.topic()
        self.clock.advance(2)
        self.isHolding = True
        self.addCleanup(self.finishFlushes)

    def test_waits(self) -> None:
        """Waiting for the disk is like any other wait."""
        client = self.connect()
        client.sendBytes(self.produceBytes(client))
        self.clock.advance(0.5)
        self.assertEqual(self.requests(), [])
        self.finishFlushes()
        event = self.request()
        self.assertDecision(event, ADMIT, None)
        self.assertEqual((event.purgatoryWaitSeconds, client.waiting()), (0.5, 1))

    def test_timeOut(self) -> None:
        """A request that is answered that the disk has not confirmed it has expired."""
        client = self.connect()
        client.sendBytes(self.produceBytes(client))
        self.clock.advance(1.01)
        self.assertDecision(self.request(), EXPIRE, NOT_ON_DISK)
        self.assertEqual(client.waiting(), 1)


class LoginTests(RecordedTestCase):
    """Clients that log in."""

    NAME, PASSWORD = "alice", "open sesame"

    def setUp(self) -> None:
        """Everybody has to."""
        super().setUp()
        checker = InMemoryUsernamePasswordDatabaseDontUse(**{self.NAME: self.PASSWORD.encode()})  # type: ignore[no-untyped-call]
        self.broker.logins = Logins(makePortal([checker]), self.clock, 0.1, 4096)

    def logIn(self, name: str, password: str) -> Client:
        """Log in by PLAIN, however it ends."""
        client = self.connect()
        client.ask("SaslHandshake", 1, mechanism="PLAIN")
        client.send("SaslAuthenticate", 2, auth_bytes=f"\0{name}\0{password}".encode())
        self.clock.pump([0.2, 0, 0])
        return client

    def assertNowhere(self, *secrets: str) -> None:
        """Nothing that was recorded has any of these words in it."""
        for event in self.exporter.events:
            for secret in secrets:
                self.assertNotIn(secret, repr(event))

    def test_loggedIn(self) -> None:
        """
        A login is recorded as that of somebody unknown, and what follows under the client's name; how long the
        password is does not show, and to policies it is nothing that counts.
        """
        client = self.logIn(self.NAME, self.PASSWORD)
        client.ask("ListGroups", 3)
        client.disconnect()
        self.assertEqual(
            [(event.kind, event.principal, event.decision) for event in self.requests()],
            [
                ("SaslHandshake", ANONYMOUS, ADMIT),
                ("SaslAuthenticate", ANONYMOUS, ADMIT),
                ("ListGroups", self.NAME, ADMIT),
            ],
        )
        self.assertEqual(self.requests()[1].requestBytes, LOGIN_GRAIN_BYTES)
        uncounted = Traits(countsReceived=False, countsSent=False)
        self.assertEqual({event.traits for event in self.requests()}, {uncounted.code})
        opened, closed = self.connections()
        self.assertEqual((opened.principal, closed.principal), (None, self.NAME))
        self.assertNowhere(self.PASSWORD)

    def test_failed(self) -> None:
        """
        A login that fails is refused, late, and what the client has sent for a name is not told, since it may be
        something else.
        """
        self.logIn("hunter2", "wrong password")
        event = self.requests()[-1]
        self.assertEqual(event.kind, "SaslAuthenticate")
        self.assertDecision(event, REJECT, LOGIN_FAILED)
        self.assertEqual(round(event.purgatoryWaitSeconds, 3), 0.2)
        self.assertGreater(event.responseBytes, 0)
        self.assertEqual(self.connections()[-1].reason, LOGIN_FAILED)
        self.assertNowhere("hunter", "wrong password")

    def test_abandoned(self) -> None:
        """A client that leaves before its login has failed has left."""
        client = self.connect()
        client.ask("SaslHandshake", 1, mechanism="PLAIN")
        client.send("SaslAuthenticate", 2, auth_bytes=b"\0bob\0secret")
        client.disconnect()
        event = self.requests()[-1]
        self.assertDecision(event, EXPIRE, HUNG_UP)
        self.assertEqual(event.requestBytes, LOGIN_GRAIN_BYTES)
        self.assertEqual(self.connections()[-1].reason, BROKE)


class ConnectionTests(RecordedTestCase):
    """Connections that are opened and closed."""

    def test_openedAndClosed(self) -> None:
        """Each is told of twice, with all that is known by then."""
        clients = [self.connect(), self.connect()]
        clients[1].ask("ListGroups", 3)
        clients[1].ask("ListGroups", 3)
        self.clock.advance(3.0)
        clients[1].transport.peerCloses()
        self.clock.advance(0)
        first, second, closed = self.connections()
        self.assertEqual([each.connectionId for each in (first, second, closed)], [1, 2, 2])
        self.assertEqual([each.state for each in (first, second, closed)], [OPENED, OPENED, CLOSED])
        self.assertEqual((first.listener, first.peer, first.principal), (LISTENER, "192.0.2.1", ANONYMOUS))
        self.assertEqual((closed.reason, closed.requestCount, closed.openSeconds), (HUNG_UP, 2, 3.0))
        self.assertEqual((closed.listener, closed.peer, closed.principal), (LISTENER, "192.0.2.1", ANONYMOUS))

    def test_reasons(self) -> None:
        """Why a connection was closed is told in words: ours, or who else it was."""
        for end, reason in [
            (lambda client: client.disconnect(), BROKE),
            (lambda client: client.transport.abortConnection(), HUNG_UP),
            (lambda client: client.protocol.cutOff("it holds 30 bytes"), "it holds N bytes"),
            (lambda client: self.factory.closeAll(), "the server stops"),
            (lambda client: self._idle(), "it was idle for too long"),
        ]:
            client = self.connect()
            end(client)
            self.clock.pump([0, 0])
            self.assertTrue(client.isClosed)
            self.assertEqual(self.connections()[-1].reason, reason)

    def _idle(self) -> None:
        self.clock.advance(self.factory.limits.idleSeconds + 1)
        self.factory._sweep()

    def test_putToThePolicies(self) -> None:
        """
        The opening of a connection that policies are asked about is an event among those of requests, and counts as
        none.
        """
        # Those that follow requests are not asked.
        self.policy = ScriptedPolicy()  # type: ignore[assignment]
        self.limit()
        self.clock.advance(1.0)
        for decision, delaySeconds, words in [
            (ADMITTED, 0.0, (ADMIT, None, None)),
            (ADMITTED, 2.0, (THROTTLE, OVER_QUOTA, "strict")),
            (Decision(False, 4.0, "too many"), 0.0, (REJECT, "too many", "strict")),
        ]:
            self.exporter.events.clear()
            self.policy.decision, self.policy.delays[CONNECTION] = decision, delaySeconds
            self.connect().disconnect()
            opened, event, closed = self.exporter.events
            self.assertEqual((opened.state, event.kind, closed.state), (OPENED, CONNECTION, CLOSED))
            self.assertEqual((event.connectionId, event.principal), (opened.connectionId, ANONYMOUS))
            self.assertDecision(event, *words)
            isAdmitted = decision is ADMITTED
            self.assertEqual((event.decidedSeconds, event.isCounted), (1.0, True if isAdmitted else UNKNOWN))
            self.assertEqual(list(event.policyDelaysSeconds), [0.0, delaySeconds or decision.delaySeconds])
            self.assertEqual((event.requestBytes, event.serviceSeconds, event.poolHoldSeconds), (0, 0.0, 0.0))
            self.assertEqual((event.apiKey, closed.requestCount), (UNKNOWN, 0))
        self.assertEqual(event.throttleTimeMs, 0)


class KnownProducerTests(RecordedTestCase):
    """Whether a request's first producer was known is recorded for the audit of the filter."""

    def test_seen(self) -> None:
        """What counts is what was known before the request."""
        self.topic()
        policy = ProducerIds(isRefusing=False)
        self.enforce(("strict", self.policy), ("producer-ids", policy))
        client = self.connect()

        def send(**producer: int) -> int:
            client.produce("events", batchOf(b"a", **producer))
            return self.requests()[-1].isKnown

        producer = {"producerId": 7, "producerEpoch": 0}
        self.assertEqual(send(**producer, baseSequence=0), UNKNOWN)
        self.broker.control.configure(QuotaEntity(user=DEFAULT), {"producer_ids_rate": 100.0}, self.clock.seconds())
        self.assertEqual(send(**producer, baseSequence=1), False)
        self.assertEqual(send(**producer, baseSequence=2), True)
        self.assertEqual(send(producerId=8, producerEpoch=0, baseSequence=0), False)
        self.assertEqual(send(), UNKNOWN)

    def test_policy(self) -> None:
        """The policy says nothing of what it does not look at, and asking changes nothing."""
        policy = ProducerIds()
        policy.configure(QuotaEntity(user="alice"), {"new_identity_rate": 1.0}, self.clock.seconds())

        def ask(principal: str = "alice", identities: tuple[int, ...] = (5,)) -> bool | None:
            return policy.isKnown(Request("Produce", principal, "", "192.0.2.1", 10, identities), self.clock.seconds())

        for answer in (ask("bob"), ask(identities=()), ask(identities=(-1,))):
            self.assertIs(answer, None)
        self.assertEqual([ask(), ask()], [False, False])
        policy.restore("alice", [5], self.clock.seconds())
        self.assertIs(ask(), True)
        self.assertIs(ask(identities=(6, 5)), False)


SENDING = (
    "produce",
    "produce for an older client",
    "produce without response",
    "produce half",
    "fetch and wait",
    "fetch and wait",
    "fetch",
    "list",
    "malformed",
    "refused frame",
)
"""What a client may send."""

OTHERS = ("a turn", "a while", "records", "records", "no memory", "memory", "the peer leaves", "disconnect", "close")
"""What else may happen."""


@define(eq=False)
class Timed(ScriptedPolicy):
    """
    Keeps the moments that it is given.

    @ivar moments: when it was asked and told.
    """

    moments: list[float] = field(factory=list)

    def decide(self, request: Request, now: float) -> Decision:
        """Keep it."""
        self.moments.append(now)
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Keep it."""
        self.moments.append(now)
        return 0.0


class MomentTests(RecordedTestCase):
    """What policies are told of the time, by a clock that goes on with each look."""

    def setUp(self) -> None:
        super().setUp()
        self.timed = Timed()
        self.enforce(("timed", self.timed))
        seconds, ticks = self.clock.seconds, count(1)
        self.patch(self.clock, "seconds", lambda: seconds() + next(ticks) * 10.37e-6)

    def test_doesNotGoBack(self) -> None:
        """It does not go back, from when a connection is opened."""
        self.connect().ask("ListGroups", 3)
        self.assertEqual(self.timed.moments, sorted(self.timed.moments))
        self.assertGreaterEqual(len(self.timed.moments), 4)


class ExactlyOnceTests(RecordedTestCase):
    """There is one event for each request, whatever becomes of it."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic()
        self.limit()
        self.calls = 0
        self.losesAt: frozenset[int] = frozenset()
        self.client: Client | None = None
        self.policy.called = self.step
        self.exporter.called = self.step
        for name in ("append", "read"):
            self.interrupt(self.log, name)

    def interrupt(self, owner: Any, name: str) -> None:
        """Have a method lose the connection before it does its work, when its time has come."""
        method = getattr(owner, name)

        def interrupted(*arguments: Any, **keywords: Any) -> Any:
            self.step()
            return method(*arguments, **keywords)

        self.patch(owner, name, interrupted)

    def step(self) -> None:
        """One of the things happens that the broker may lose a connection in the middle of."""
        self.calls += 1
        client = self.client
        if self.calls in self.losesAt and client is not None and not client.transport.isLost:
            client.transport._lose(ConnectionError())

    def act(self, client: Client, action: str) -> None:
        """Do one thing."""
        if self.rest and action in SENDING:
            rest, self.rest = self.rest, b""
            client.protocol.dataReceived(rest)
        if action == "produce":
            client.deliver("Produce", 9, **produceFields("events", batchOf(b"a")))
        elif action == "produce for an older client":
            client.deliver("Produce", 5, **produceFields("events", batchOf(b"a")))
        elif action == "produce without response":
            client.deliver("Produce", 9, answered=False, **produceFields("events", batchOf(b"a"), acks=0))
        elif action == "produce half":
            frame = self.produceBytes(client)
            self.rest = frame[len(frame) // 2 :]
            client.protocol.dataReceived(frame[: len(frame) // 2])
        elif action == "fetch and wait":
            end = self.events.partitions[0].highWatermark
            client.deliver("Fetch", 12, **fetchFields(self.events, end, maxWaitMs=5_000))
        elif action == "fetch":
            client.deliver("Fetch", 12, **fetchFields(self.events, 0))
        elif action == "list":
            client.deliver("ListGroups", 3)
        elif action == "malformed":
            client.protocol.dataReceived(framed(struct.pack(">hhih", 3, 1, 1, 50)))
        elif action == "refused frame":
            client.protocol.dataReceived(struct.pack(">ih", 2 << 20, 3))
        elif action == "a turn":
            self.clock.advance(0)
        elif action == "a while":
            self.clock.advance(1.5)
        elif action == "records":
            self.store(self.events.partitions[0], b"a")
        elif action == "no memory":
            self.takeMemory()
        elif action == "memory":
            self.returnMemory()
        elif action == "the peer leaves":
            client.protocol.hasPeerGone = True
            client.protocol.peerGone()
        elif action == "close":
            client.protocol.close("a whim")
        elif action == "disconnect" and not client.transport.isLost:
            client.transport._lose(ConnectionError())

    @settings(max_examples=150, deadline=None)
    @given(
        actions=st.lists(st.sampled_from([*SENDING, *OTHERS]), max_size=12),
        losesAt=st.frozensets(st.integers(1, 20), max_size=2),
        delaySeconds=st.sampled_from([0.0, 1.0]),
        decision=st.sampled_from([ADMITTED, ADMITTED, ADMITTED, Decision(False, 0.5, "no")]),
        countsParked=st.booleans(),
    )
    def check(
        self, actions: list[str], losesAt: frozenset[int], delaySeconds: float, decision: Decision, countsParked: bool
    ) -> None:
        """
        Do things with one connection and then hang up; it is lost earlier, wherever the broker is then, after
        C{losesAt} calls of something.
        """
        self.exporter.events.clear()
        self.policy.recorded.clear()
        self.policy.outcomes.clear()
        self.policy.countsParked = countsParked
        self.calls, self.losesAt, self.client = 0, frozenset(), None
        self.policy.delays = {"Produce": delaySeconds, "Fetch": delaySeconds}
        self.policy.decision = ADMITTED
        self.client = client = self.connect()
        protocol = client.protocol
        self.calls, self.losesAt, self.policy.decision = 0, losesAt, decision
        self.rest = b""
        announced: list[int] = []
        refuseFrame = protocol.framer._refuse

        def counted(sizeBytes: int, head: bytes) -> str | None:
            announced.append(sizeBytes)
            return refuseFrame(sizeBytes, head)

        protocol.framer._refuse = counted
        for action in actions:
            if client.transport.isLost:
                break
            self.act(client, action)
        self.returnMemory()
        client.disconnect()
        self.clock.pump([0, 10.0, 0])
        self.clients.remove(client)

        requests = [event for event in self.requests() if event.kind != CONNECTION]
        # No client here sends a length without what follows it, so each is looked at once.
        self.assertEqual(Counter(event.requestBytes for event in requests), Counter(announced))
        self.assertEqual(protocol.driver.openRequests, 0)
        self.assertIs(protocol.request, None)
        self.assertEqual(len({id(event) for event in requests}), len(requests))
        correlated = [event.correlationId for event in requests if event.correlationId > 1]
        self.assertEqual(len(set(correlated)), len(correlated))
        for event in requests:
            for seconds in (
                event.poolWaitSeconds,
                event.poolHoldSeconds,
                event.queueSeconds,
                event.serviceSeconds,
                event.purgatoryWaitSeconds,
                event.sentSeconds - event.arrivedSeconds,
            ):
                self.assertGreaterEqual(seconds, 0.0)
            if event.decision == REJECT:
                self.assertIsNot(event.reason, None)
        self.assertEqual(self.policy.underWay, [])
        asked = [request.kind for request, usage in self.policy.recorded if request.kind != CONNECTION]
        told = [event.kind for event in requests if not isnan(event.decidedSeconds) and event.isCounted != UNKNOWN]
        self.assertEqual(Counter(told), Counter(asked))
        [closed] = [event for event in self.connections() if event.state == CLOSED]
        self.assertEqual(closed.requestCount, len(requests))

    def test_once(self) -> None:
        """
        A connection may be lost at any time, in the middle of whatever calls us, and each of its requests is recorded
        once, and told of with what the policies were told.
        """
        self.check()


class DocumentTests(SynchronousTestCase):
    """The manual says what is recorded."""

    def test_columns(self) -> None:
        """Every column of every table is in it, and no other."""
        manual = ROOT.joinpath("docs", "recording.md").read_text(encoding="utf-8")
        for table in TABLES:
            _, _, section = manual.partition(f"\n## {table.name.capitalize()}\n")
            rows = section.partition("\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
            named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
            self.assertEqual(sorted(named), sorted(column.name for column in table.columns), table.name)
