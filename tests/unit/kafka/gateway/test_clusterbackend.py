"""Tests for L{admission.kafka.gateway.clusterbackend} and L{admission.kafka.gateway.gateway}."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import inf
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import given, settings, strategies as st
from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred

from admission.connection.pauses import UNANSWERED, Pause
from admission.interfaces import ADMITTED, FRAMES, Decision
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.gateway import clusterbackend
from admission.kafka.gateway.clusterbackend import COLLECTED_BYTES, LARGEST_COLLECTED_BYTES, UNANSWERED_BYTES
from admission.kafka.serving.kafkaevents import kafkaEventOf
from admission.kafka.serving.kafkarequest import Address, KafkaRequest
from admission.kafka.serving.quotalimits import QuotaLimits
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.kafka.serving.server import ANONYMOUS
from admission.kafka.serving.session import KafkaSession
from admission.kafka.wire.addresses import metadataHead
from admission.kafka.wire.headers import parseRequestHeader
from admission.kafka.wire.relayedapis import RELAYED_FLEXIBLE_FROM
from tests.kit.brokerfixture import batchOf, framed, produceFields, requestFrame
from tests.unit.kafka.gateway.gatewayfixture import (
    API_KEYS,
    BASE_PORT,
    REACHED_HOST,
    UPSTREAM,
    GatewayClient,
    GatewayTestCase,
    PlayedNode,
    addressOf,
    requestOf,
    responseFrame,
)

REFUSED = Decision(False, 2.0, "too much")
BROKERS = [
    {"node_id": 1, "host": "k1.example", "port": 9092},
    {"node_id": 2, "host": "k2.example", "port": 9093},
]


def producing(acks: int = -1, sizeBytes: int = 10, **header: int) -> dict[str, Any]:
    """The fields of a Produce request with one batch of about C{sizeBytes}."""
    return produceFields("events", batchOf(b"v" * sizeBytes, **header), acks=acks)


PRODUCED = {"responses": [{"name": "events", "partition_responses": [{"index": 0}]}]}


class Recorded:
    """
    An observer of requests.

    @ivar events: what is recorded of them.
    """

    def __init__(self) -> None:
        self.events: list[KafkaRequestEvent] = []

    def requestOver(self, request: KafkaRequest) -> None:
        """See L{admission.connection.factory.AdmittedFactory}."""
        self.events.append(kafkaEventOf(request))


class RelayTestCase(GatewayTestCase):
    """
    A gateway whose clients talk to node 1, which is known.

    @ivar client: one client of node 1.
    """

    def setUp(self) -> None:
        super().setUp()
        self.learn(1)
        self.client = self.connect(1)

    @property
    def node(self) -> Any:
        """What the gateway counts for node 1."""
        return self.nodes.of(1)

    def sent(self, name: str, apiVersion: int, **fields: Any) -> Any:
        """Have the client send a request, and give what arrives at the node."""
        self.client.send(name, apiVersion, **fields)
        (sent,) = self.played.arrived()
        return sent

    def exchange(self, name: str, apiVersion: int, *, answer: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        """Have the client send a request and the node answer it, and give what the client receives."""
        self.client.send(name, apiVersion, **fields)
        self.played.answer(**(answer or {}))
        return self.client.receive()

    def assertClosed(self, words: str, client: GatewayClient | None = None) -> None:
        """A client's connection is closed for a reason that has these words in it."""
        client = client or self.client
        self.assertTrue(client.isClosed)
        self.assertIn(words, client.closeReason)

    def linked(self, client: GatewayClient | None = None) -> PlayedNode:
        """Have a client's link be made by a Heartbeat that is answered."""
        client = self.client if client is None else client
        client.send("Heartbeat", 4)
        self.played.answer()
        client.receive()
        return self.played


class OwnTopicsTests(RelayTestCase):
    """Topics by which gateways tell each other what clients take."""

    def setUp(self) -> None:
        super().setUp()
        self.gateway.ownTopics = frozenset(("events", "other"))

    def test_write(self) -> None:
        """Nobody writes to them, and what else is sent arrives."""
        self.exchange("Produce", 9, answer=PRODUCED, **produceFields("mine", batchOf(b"v"), acks=-1))
        self.client.send("Produce", 9, **producing())
        (partition,) = self.client.receive().responses[0].partition_responses
        self.assertEqual(partition.error_code, ErrorCode.topic_authorization_failed)
        self.assertEqual(self.played.arrived(), [])

    def test_writeWithoutAnswer(self) -> None:
        """Where there is no answer, the connection is closed."""
        self.client.send("Produce", 9, **producing(acks=0))
        self.assertClosed("gateways tell each other there")

    def test_change(self) -> None:
        """Nobody deletes or changes them."""
        self.client.send("DeleteTopics", 5, topic_names=["mine"])
        self.played.answer()
        self.client.receive()
        self.client.send("DeleteTopics", 5, topic_names=["mine", "other"])
        self.assertClosed("it sent DeleteTopics about a topic by which gateways")

    def test_byId(self) -> None:
        """They cannot be deleted by ids either, which are not told from those of others; clients are told so."""
        rows = [{"api_key": 20, "min_version": 1, "max_version": 6}]
        told = self.exchange("ApiVersions", 3, answer={"api_keys": rows})
        self.assertEqual([each.max_version for each in told.api_keys], [5])
        self.client.send("DeleteTopics", 6, topics=[{"name": None, "topic_id": UUID(int=7)}])
        self.assertClosed("it sent DeleteTopics in version 6, which may name topics by ids")


class PassingTests(RelayTestCase):
    """Requests go up and responses come down."""

    def test_bytes(self) -> None:
        """A request reaches the node byte for byte, and the response its client."""
        for name, apiVersion in (("Heartbeat", 4), ("OffsetFetch", 1), ("ListGroups", 3), ("Produce", 9)):
            fields = producing() if name == "Produce" else {}
            data = self.client.frame(requestOf(name, apiVersion, **fields))
            self.client.sendBytes(data)
            (sent,) = self.played.arrived()
            self.assertEqual(framed(sent.frame), data)
            response = self.played.responseTo(sent, {"throttle_time_ms": 7})
            self.played.send(response)
            self.assertEqual(bytes(self.client.transport.received), response)
            self.client.receive()

    def test_oneLink(self) -> None:
        """All requests of a client go by one link, those of another by another, to the node of their port."""
        self.learn(2)
        self.linked()
        self.linked()
        self.assertEqual(self.attempts, [addressOf(1)])
        self.linked(self.connect(2))
        self.linked(self.connect())
        self.linked(self.connect(1))
        self.assertEqual(self.attempts, [addressOf(1), addressOf(2), UPSTREAM[0], addressOf(1)])
        self.assertEqual([node.linkCount for node in self.nodes], [2, 1])

    def test_recorded(self) -> None:
        """A recording has the node, how long it took until its response was whole, and for how long it throttles."""
        recorded = Recorded()
        self.patch(self.factory, "observers", (*self.factory.observers, recorded))
        self.client.send("Heartbeat", 3)
        self.clock.advance(1.5)
        self.played.answer(throttle_time_ms=7)
        [event] = recorded.events
        self.assertEqual((event.nodeId, event.upstreamSeconds, event.upstreamThrottleMs), (1, 1.5, 7))

    def test_pipelined(self) -> None:
        """Requests are passed on before those ahead of them are answered, and until they are the node owes answers."""
        for _ in range(3):
            self.client.send("Heartbeat", 3)
        self.assertEqual(len(self.played.arrived()), 3)
        self.assertEqual(self.node.unanswered, 3)
        for left in (2, 1, 0):
            self.played.answer(throttle_time_ms=left)
            self.assertEqual(self.node.unanswered, left)
            self.assertEqual(self.client.receive().throttle_time.total_seconds() * 1000, left)

    def test_memory(self) -> None:
        """A request holds memory until the node has taken it, and no longer."""
        node = self.linked()
        node.take(False)
        self.client.send("Produce", 9, **producing(sizeBytes=200_000))
        self.assertGreater(self.pool.usedBytesByPurpose[FRAMES], 200_000)
        self.assertGreater(self.node.heldBytes, 200_000)
        node.take(True)
        self.assertEqual((self.pool.usedBytesByPurpose[FRAMES], self.node.heldBytes), (0, 0))
        self.assertEqual(self.node.unanswered, 1)

    def test_mostUnanswered(self) -> None:
        """So many requests are passed on that are not answered, and then the client is not read until one is."""
        node = self.linked()
        for _ in range(KafkaSession.maxInFlight + 1):
            self.client.send("Heartbeat", 4)
        self.assertIn(UNANSWERED, self.client.protocol.pauses.reasons)
        self.assertEqual(len(node.arrived()), KafkaSession.maxInFlight)
        node.answer()
        self.assertEqual(len(node.arrived()), 1)


class OwingTests(RelayTestCase):
    """From when on the node owes an answer."""

    def owedAfter(self, name: str, apiVersion: int, **fields: Any) -> float:
        """After how many seconds the answer to a request is late; not a finite number if it never is."""
        client = self.connect(1)
        client.send(name, apiVersion, **fields)
        (since,) = self.node.owingLinks.values() or [inf]
        client.disconnect()
        self.clock.advance(0)
        return round(since - self.clock.seconds(), 6) if since < inf else inf

    def test_requests(self) -> None:
        """
        It is late at once if the node needs nobody else for it, and after the time that its client allows it to wait
        for records or replicas; otherwise nobody can say when it is late.
        """
        for name, apiVersion, fields, seconds in (
            ("Metadata", 12, {}, 0.0),
            ("Fetch", 12, {"max_wait": 500}, 0.5),
            ("Fetch", 17, {"max_wait": 500}, 0.5),
            ("ShareFetch", 1, {"max_wait": 700}, 0.7),
            ("Produce", 9, producing(acks=1), 0.0),
            ("Produce", 9, producing(acks=-1), 1.0),
            ("JoinGroup", 6, {}, inf),
            ("ConsumerGroupHeartbeat", 1, {}, inf),
            ("CreateTopics", 7, {}, inf),
        ):
            self.assertEqual(self.owedAfter(name, apiVersion, **fields), seconds, name)

    def test_throttled(self) -> None:
        """A node that has told the client to wait owes it nothing meanwhile."""
        self.exchange("Metadata", 12, answer={"throttle_time_ms": 7000})
        self.client.send("Metadata", 12)
        self.clock.advance(8.0)
        self.assertEqual(self.node.unansweredSeconds(self.clock.seconds()), 1.0)

    def test_malformed(self) -> None:
        """A Fetch that ends before it says how long it may wait is not passed on."""
        whole = self.client.frame(requestOf("Fetch", 4))
        header = parseRequestHeader(whole, 4, RELAYED_FLEXIBLE_FROM)
        self.client.sendBytes(framed(whole[4 : header.bodyOffset + 7]))
        self.assertClosed("a Fetch request ends before its fields do")
        self.assertEqual(self.links, [])


class NotLimitedTests(RelayTestCase):
    """A gateway without limits."""

    isLimited = False

    def test_notAsked(self) -> None:
        """Its policies are not asked."""
        self.quota.failing = frozenset(("decide", "record"))
        self.linked()
        self.exchange("Produce", 9, **producing(), answer=PRODUCED)


class AddressTests(RelayTestCase):
    """Clients are told the gateway's addresses in place of the nodes'."""

    def test_metadata(self) -> None:
        """Metadata names the gateway's ports, in all versions, and the nodes are learnt from it."""
        for apiVersion in (0, 1, 5, 8, 9, 12, 13):
            answer = self.exchange("Metadata", apiVersion, answer={"brokers": BROKERS})
            self.assertEqual(
                [(broker.node_id, broker.host, broker.port) for broker in answer.brokers],
                [(1, REACHED_HOST, BASE_PORT + 2), (2, REACHED_HOST, BASE_PORT + 3)],
            )
        self.assertEqual(self.nodes.addresses, {1: Address("k1.example", 9092), 2: Address("k2.example", 9093)})

    def test_coordinator(self) -> None:
        """So does FindCoordinator, with one coordinator or several; where there is none, there is none."""
        answer = self.exchange("FindCoordinator", 2, answer=BROKERS[1])
        self.assertEqual((answer.host, answer.port), (REACHED_HOST, BASE_PORT + 3))
        self.client.send("FindCoordinator", 4)
        self.played.answer(coordinators=[*BROKERS, {"node_id": -1, "host": "", "port": -1}])
        found = [(each.host, each.port) for each in self.client.receive().coordinators]
        self.assertEqual(found, [(REACHED_HOST, BASE_PORT + 2), (REACHED_HOST, BASE_PORT + 3), ("", -1)])

    def test_fetchAndProduce(self) -> None:
        """So do the hints where a partition has moved in answers to Produce and Fetch."""
        for name, apiVersion, fields in (("Produce", 10, producing()), ("Fetch", 16, {})):
            answer = self.exchange(name, apiVersion, **fields, answer={"node_endpoints": BROKERS})
            self.assertEqual(
                [(each.host, each.port) for each in answer.node_endpoints],
                [(REACHED_HOST, BASE_PORT + 2), (REACHED_HOST, BASE_PORT + 3)],
            )

    def test_noPort(self) -> None:
        """A node without a port here is told as port 0, and logged."""
        self.client.send("Metadata", 9)
        self.played.answer(brokers=[{"node_id": 99, "host": "k99.example", "port": 9092}])
        self.assertEqual(self.client.receive().brokers[0].port, 0)
        self.assertIn("node 99 of the cluster has no port here", self.messages())

    def test_malformed(self) -> None:
        """A response that cannot be read closes both ends."""
        sent = self.sent("Metadata", 9)
        self.played.send(framed(struct.pack(">i", sent.correlationId) + bytes(3)))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(self.played.isClosed)
        self.assertIn("ends before its fields do", self.client.closeReason)


class AdvertisedTests(RelayTestCase):
    """With C{--advertise} clients are told other addresses."""

    advertised = Address("kafka.example", 19092)

    def test_metadata(self) -> None:
        """The advertised host, and ports counted from the advertised one."""
        self.client.send("Metadata", 9)
        self.played.answer(brokers=BROKERS)
        self.assertEqual(
            [(broker.host, broker.port) for broker in self.client.receive().brokers],
            [("kafka.example", 19094), ("kafka.example", 19095)],
        )


class OrderTests(RelayTestCase):
    """Responses come in the order of requests."""

    def test_ownWaits(self) -> None:
        """A refusal waits for the answers to requests before it, and those behind it for it."""
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, **producing())
        self.assertEqual(len(self.played.arrived()), 1)
        self.assertEqual(self.client.waiting(), 0)
        self.assertEqual(self.node.unanswered, 1)
        self.played.answer()
        self.assertEqual(self.client.waiting(), 2)
        self.client.receive()
        result = self.client.receive().responses[0].partition_responses[0]
        self.assertEqual(result.error_code, ErrorCode.throttling_quota_exceeded)
        self.assertEqual(self.node.unanswered, 0)

    def test_ownBetween(self) -> None:
        """A refusal that is the first leaves at once, although the node has to answer others."""
        node = self.linked()
        self.quota.decision = Decision(False, 0.0, "too much")
        self.client.send("Produce", 9, **producing())
        self.quota.decision = ADMITTED
        self.client.send("Heartbeat", 4)
        self.assertEqual(self.client.waiting(), 1)
        node.answer()
        self.client.receive()
        self.client.receive()

    def test_wrongNumber(self) -> None:
        """A response with another number than that of the first request closes both ends."""
        sent = self.sent("Heartbeat", 4)
        self.played.send(responseFrame(sent.apiKey, 4, sent.correlationId + 1, {}))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(self.played.isClosed)
        self.assertEqual(self.client.waiting(), 0)
        self.assertIn("which is not the next", self.client.closeReason)
        self.assertIn("which is not the next", self.node.lastError)

    def test_unasked(self) -> None:
        """So does a response that nobody has asked for."""
        node = self.linked()
        node.send(responseFrame(API_KEYS["Heartbeat"], 4, 1, {}))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(node.isClosed)

    def test_responseToRefused(self) -> None:
        """A node cannot answer what was answered here."""
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        sent = self.sent("Produce", 9, **producing())
        answers = self.played.responseTo(sent, {}) + responseFrame(0, 9, sent.correlationId + 1, PRODUCED)
        self.played.send(answers)
        self.client.receive()
        self.assertEqual(
            self.client.receive().responses[0].partition_responses[0].error_code, ErrorCode.throttling_quota_exceeded
        )
        self.assertTrue(self.client.isClosed)

    def test_tooShort(self) -> None:
        """A response that is shorter than its own number closes both ends."""
        self.client.send("Heartbeat", 4)
        self.played.send(struct.pack(">ii", 3, 1))
        self.assertClosed("a response of 3 bytes")


class ProduceTests(RelayTestCase):
    """What quotas do to Produce."""

    def test_withoutAcks(self) -> None:
        """A request without acknowledgement makes no entry, and what comes behind it stays in step."""
        for _ in range(5):
            self.client.send("Produce", 9, answered=False, **producing(acks=0))
        self.assertEqual(len(self.played.arrived()), 5)
        self.played.unanswered.clear()
        self.assertEqual(self.node.unanswered, 0)
        self.client.send("Produce", 9, **producing(acks=1))
        self.assertEqual(self.node.unanswered, 1)
        self.played.answer(**PRODUCED)
        self.client.receive()

    def test_refused(self) -> None:
        """A refused request is answered with error 89, the reason and the delay, and the node never sees it."""
        node = self.linked()
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, **producing())
        answer = self.client.receive()
        result = answer.responses[0].partition_responses[0]
        self.assertEqual(result.error_code, ErrorCode.throttling_quota_exceeded)
        self.assertIn("too much", result.error_message)
        self.assertEqual(answer.throttle_time.total_seconds(), 2.0)
        self.assertEqual((node.arrived(), self.node.heldBytes), ([], 0))
        self.quota.decision = ADMITTED
        self.client.send("Heartbeat", 4)
        self.assertEqual(node.arrived(), [])
        self.clock.advance(2.0)
        self.assertEqual(len(node.arrived()), 1)

    def test_refusedWithoutAcks(self) -> None:
        """A refused request without acknowledgement closes the connection, behind what the node still answers."""
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, answered=False, **producing(acks=0))
        self.assertFalse(self.client.isClosed)
        self.assertEqual(self.node.heldBytes, 0)
        self.played.answer()
        self.client.receive()
        self.assertClosed("it wants no response: scripted: too much")

    def test_delay(self) -> None:
        """A delay is told in the response, less the time that the node took, and the client is not read meanwhile."""
        self.quota.delaySeconds = 3.0
        self.client.send("Produce", 9, **producing())
        self.assertIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)
        self.clock.advance(1.0)
        self.played.answer(**PRODUCED, throttle_time_ms=500)
        self.assertEqual(self.client.receive().throttle_time.total_seconds(), 2.0)
        self.clock.advance(2.0)
        self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)

    def test_charged(self) -> None:
        """Each request is charged once."""
        self.client.send("Produce", 9, **producing())
        self.played.answer(**PRODUCED)
        self.assertEqual([request.kind for request, _ in self.quota.recorded if request.kind == "Produce"], ["Produce"])

    def test_malformed(self) -> None:
        """A request whose batches cannot be read is rejected, and its memory is free again."""
        data = requestFrame(requestOf("Produce", 9, **producing()), 1)
        self.client.sendBytes(framed(data[4:-40]))
        self.assertTrue(self.client.isClosed)
        self.assertEqual((self.links, self.node.heldBytes), ([], 0))


class ApiTests(RelayTestCase):
    """What is done to single APIs."""

    def test_initProducerId(self) -> None:
        """InitProducerId may be refused."""
        node = self.linked()
        self.quota.decision = REFUSED
        answer = self.client.ask("InitProducerId", 4)
        self.assertEqual((answer.error_code, answer.producer_id), (ErrorCode.throttling_quota_exceeded, -1))
        self.assertEqual(answer.throttle_time.total_seconds(), 2.0)
        self.assertEqual(node.arrived(), [])

    def test_neverRefused(self) -> None:
        """Nothing else is refused: it is passed on, and some of it is delayed instead."""
        node = self.linked()
        self.quota.decision = REFUSED
        for name, apiVersion, delaySeconds in (
            ("Metadata", 9, 2.0),
            ("Fetch", 12, 2.0),
            ("OffsetCommit", 8, 2.0),
            ("LeaveGroup", 4, 0.0),
            ("AddPartitionsToTxn", 3, 0.0),
            ("EndTxn", 3, 0.0),
            ("ApiVersions", 3, 0.0),
        ):
            self.client.send(name, apiVersion)
            self.assertEqual(len(node.arrived()), 1, name)
            node.answer()
            self.assertEqual(self.client.receive().throttle_time.total_seconds(), delaySeconds, name)
            self.clock.advance(10.0)

    def test_throttleTimes(self) -> None:
        """Of the node's delay and ours, clients are told the longer; and they are not read during ours."""
        self.quota.delaySeconds = 1.0
        for theirsMs, expected in ((400, 1.0), (4000, 4.0)):
            self.client.send("ListGroups", 3)
            self.played.answer(throttle_time_ms=theirsMs)
            self.assertEqual(self.client.receive().throttle_time.total_seconds(), expected)
            self.assertIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)
            self.clock.advance(1.0)
            self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)

    def test_sessionTimeout(self) -> None:
        """The members of a group are delayed for no longer than a third of their session timeout."""
        self.quota.delaySeconds = 100.0
        self.client.send("JoinGroup", 5, session_timeout=6000, rebalance_timeout=60_000)
        self.played.answer()
        self.assertEqual(self.client.receive().throttle_time.total_seconds(), 2.0)
        self.clock.advance(2.0)
        self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)
        # Also those that produce on the same connection.
        self.client.send("Produce", 9, **producing())
        self.played.answer(**PRODUCED)
        self.clock.advance(2.0)
        self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)

    def test_memberOfNewGroup(self) -> None:
        """Where the coordinator sets the session timeout, it is taken for the default."""
        self.quota.delaySeconds = 100.0
        self.assertEqual(self.exchange("ConsumerGroupHeartbeat", 0).throttle_time.total_seconds(), 15.0)

    def test_refusedMember(self) -> None:
        """A refusal that becomes a delay is no longer than that either."""
        self.exchange("JoinGroup", 5, session_timeout=3000, rebalance_timeout=60_000)
        self.quota.decision = Decision(False, 50.0, "too much")
        self.assertEqual(self.exchange("Heartbeat", 4).throttle_time.total_seconds(), 1.0)

    def test_apiVersions(self) -> None:
        """Clients are told of no API and version that the gateway does not understand."""
        self.client.send("ApiVersions", 3)
        ranges = [
            {"api_key": API_KEYS["Produce"], "min_version": 0, "max_version": 13},
            {"api_key": API_KEYS["Heartbeat"], "min_version": 0, "max_version": 3},
            {"api_key": 4, "min_version": 0, "max_version": 7},
        ]
        self.played.answer(api_keys=ranges)
        found = [(each.api_key, each.min_version, each.max_version) for each in self.client.receive().api_keys]
        self.assertEqual(found, [(API_KEYS["Produce"], 0, 12), (API_KEYS["Heartbeat"], 0, 3)])

    def test_newApiVersions(self) -> None:
        """
        ApiVersions in a version that is too new is answered here with error 35 and the versions
        that are understood.
        """
        request = requestFrame(requestOf("ApiVersions", 4), 1)
        self.client.sendBytes(request[:6] + struct.pack(">h", 99) + request[8:])
        received = bytes(self.client.transport.received)
        self.assertEqual(struct.unpack_from(">iih", received)[1:], (1, 35))
        self.assertEqual(struct.unpack_from(">ihhh", received, 10), (1, API_KEYS["ApiVersions"], 0, 4))
        self.assertEqual(self.attempts, [])
        self.client.transport.received.clear()
        self.client._lastCorrelationId = 1
        self.linked()

    def test_nodeIsOlder(self) -> None:
        """A node that does not know the version of ApiVersions itself says so in version 0, and that is passed on."""
        sent = self.sent("ApiVersions", 4)
        ranges = [{"api_key": API_KEYS["ApiVersions"], "min_version": 0, "max_version": 2}]
        values = {"error_code": 35, "api_keys": ranges}
        self.played.send(responseFrame(sent.apiKey, 0, sent.correlationId, values))
        received = bytes(self.client.transport.received)
        self.assertEqual(struct.unpack_from(">iihihhh", received)[1:], (1, 35, 1, API_KEYS["ApiVersions"], 0, 2))

    def test_unknown(self) -> None:
        """An API or a version that is not known is rejected with a sentence, and the node never sees it."""
        for apiKey, apiVersion, words in (
            (4, 0, "it sent a request with API key 4, which is not served"),
            (0, 13, "it sent Produce in version 13, which the gateway does not know"),
            (17, 0, "it sent SaslHandshake in version 0, which the gateway does not know"),
        ):
            client = self.connect(1)
            client.sendBytes(framed(struct.pack(">hhih", apiKey, apiVersion, 1, -1) + bytes(20)))
            self.assertClosed(words, client)
        self.assertEqual(self.attempts, [])


def fetched(sizeBytes: int, **others: Any) -> dict[str, Any]:
    """The fields of an answer to Fetch with so many bytes of records."""
    partition = {"partition_index": 0, "records": b"r" * sizeBytes, "high_watermark": 1}
    return {"responses": [{"partitions": [partition]}], **others}


class LargeTests(RelayTestCase):
    """Large responses are passed on as they come."""

    def feed(self, node: PlayedNode, data: bytes, random: Random) -> None:
        """Have the gateway receive C{data} in random pieces."""
        while data:
            size = random.choice((1, 2, 3, 5, 8, 13, 100, 1000, 20_000, 60_000))
            node.send(data[:size])
            data = data[size:]

    def test_fetch(self) -> None:
        """Of a large Fetch only the throttle time and the addresses are changed, which are erased."""
        for seed in range(30):
            self.quota.delaySeconds = 0.0
            client = self.connect(1)
            self.quota.delaySeconds = 1.5
            client.send("Fetch", 16)
            (sent,) = self.played.arrived()
            response = self.played.responseTo(sent, fetched(100_000 + seed, node_endpoints=BROKERS))
            self.feed(self.played, response, Random(seed))
            received = bytes(client.transport.received)
            self.assertEqual(len(received), len(response))
            # Length, number and tags come before the throttle time, and node ids and addresses last.
            self.assertEqual(received[:9] + received[13:-60], response[:9] + response[13:-60])
            self.assertEqual(struct.unpack_from(">i", received, 9), (1500,))
            self.assertNotIn(b"example", received)
            self.assertFalse(client.isClosed)
            client.disconnect()

    def test_pieces(self) -> None:
        """Its pieces leave before it has come whole, and it is not charged for."""
        sent = self.sent("Fetch", 12)
        response = self.played.responseTo(sent, fetched(3_000_000))
        available = self.pool.availableBytes
        self.played.send(response[:50_000])
        self.assertEqual(bytes(self.client.transport.received), response[:50_000])
        self.assertEqual(self.node.unanswered, 1)
        self.played.send(response[50_000:-1])
        self.assertEqual(self.pool.availableBytes, available)
        self.assertEqual(self.client.waiting(), 0)
        self.played.send(response[-1:])
        self.assertEqual(self.node.unanswered, 0)
        self.client.receive()

    def test_metadata(self) -> None:
        """A large Metadata has the gateway's addresses, and the length that it has with these."""
        topics = [{"name": f"topic-{index:05}"} for index in range(5000)]
        brokers = [{"node_id": index, "host": "a-very-long-name" * 5, "port": 9092} for index in range(16)]
        for seed, apiVersion in enumerate((0, 5, 9, 12, 13)):
            self.quota.delaySeconds = 0.0
            client = self.connect(1)
            self.quota.delaySeconds = 1.0 if seed % 2 else 0.0
            client.send("Metadata", apiVersion)
            (sent,) = self.played.arrived()
            response = self.played.responseTo(sent, {"brokers": brokers, "topics": topics})
            self.assertGreater(len(response), COLLECTED_BYTES)
            self.feed(self.played, response, Random(seed))
            answer = client.receive()
            self.assertEqual({(broker.host) for broker in answer.brokers}, {REACHED_HOST})
            self.assertEqual([broker.port for broker in answer.brokers], [BASE_PORT + 1 + each for each in range(16)])
            self.assertEqual([topic.name for topic in answer.topics], [topic["name"] for topic in topics])
            client.disconnect()
            self.clock.advance(1.0)

    def test_metadataOfManyNodes(self) -> None:
        """While the nodes of a large Metadata come, what has come is charged, and not looked through for each piece."""
        looks: list[int] = []

        def lookedAt(apiVersion: int, prefix: bytes, readdress: Any) -> Any:
            looks.append(len(prefix))
            return metadataHead(apiVersion, prefix, readdress)

        self.patch(clusterbackend, "metadataHead", lookedAt)
        sent = self.sent("Metadata", 9)
        brokers = [{"node_id": each % 16, "host": "h" * 500, "port": 9092} for each in range(1000)]
        response = self.played.responseTo(sent, {"brokers": brokers})
        available = self.pool.availableBytes
        for begin in range(0, 400_000, 1000):
            self.played.send(response[begin : begin + 1000])
        self.assertLess(self.pool.availableBytes, available - 400_000)
        self.played.send(response[400_000:])
        self.assertLess(sum(looks), 3 * len(response))
        self.assertEqual(self.pool.availableBytes, available + UNANSWERED_BYTES)
        self.assertEqual(len(self.client.receive().brokers), 1000)

    def test_metadataWithoutEnd(self) -> None:
        """A large Metadata that ends within its nodes closes both ends: it cannot be answered."""
        sent = self.sent("Metadata", 9)
        brokers = [{"node_id": 1, "host": "h" * 30_000, "port": 9092}] * 8
        body = self.played.responseTo(sent, {"brokers": brokers})[4:-60_000]
        self.assertGreater(len(body), COLLECTED_BYTES)
        self.played.send(framed(body))
        self.assertTrue(self.client.isClosed)
        self.assertEqual(len(self.client.transport.received), 0)

    def test_collected(self) -> None:
        """What has to be understood whole is collected up to a size, and charged for meanwhile."""
        sent = self.sent("DescribeCluster", 0)
        brokers = [{"broker_id": 1, "host": "h" * 500, "port": 9092}] * 200
        response = self.played.responseTo(sent, {"brokers": brokers})
        available = self.pool.availableBytes
        self.played.send(response[:-1])
        self.assertLess(self.pool.availableBytes, available - 90_000)
        self.assertEqual(len(self.client.transport.received), 0)
        self.played.send(response[-1:])
        self.assertEqual({broker.host for broker in self.client.receive().brokers}, {REACHED_HOST})

    def test_smallAndSlow(self) -> None:
        """A small response that does not come at once is charged while it is kept, too."""
        sent = self.sent("DescribeCluster", 0)
        response = self.played.responseTo(sent, {"brokers": [{"broker_id": 1, "host": "h" * 500, "port": 9092}] * 100})
        self.assertLess(len(response), COLLECTED_BYTES)
        available = self.pool.availableBytes
        self.played.send(response[:-1])
        self.assertLess(self.pool.availableBytes, available - 50_000)
        self.played.send(response[-1:])
        self.client.receive()

    def test_tooLarge(self) -> None:
        """Beyond that both ends are closed."""
        sent = self.sent("DescribeCluster", 0)
        self.played.send(struct.pack(">ii", LARGEST_COLLECTED_BYTES + 5, sent.correlationId))
        self.assertClosed("the gateway can collect")

    def test_others(self) -> None:
        """Other large responses are passed on as they are."""
        sent = self.sent("DescribeConfigs", 4)
        configs = [{"name": "n" * 100, "value": "v" * 100}] * 1000
        response = self.played.responseTo(sent, {"results": [{"configs": configs}]})
        self.feed(self.played, response, Random(1))
        self.assertEqual(bytes(self.client.transport.received), response)
        self.client.receive()


class BackpressureTests(RelayTestCase):
    """A peer that does not take bytes is not sent more of them."""

    def test_client(self) -> None:
        """While the client takes nothing, the node is not read and the client is not either; then both go on."""
        node = self.linked()
        self.client.send("Fetch", 12)
        (sent,) = node.arrived()
        response = node.responseTo(sent, fetched(2_000_000))
        self.client.transport.isTaking = False
        node.send(response)
        self.assertFalse(node.transport.isReading)
        self.assertGreater(len(node.transport.unread), 1_500_000)
        self.assertIn(Pause.UNSENT, self.client.protocol.pauses.reasons)
        self.assertFalse(self.client.transport.isReading)
        self.client.send("Heartbeat", 4)
        self.assertEqual(node.arrived(), [])
        self.client.transport.isTaking = True
        self.client.transport.wake()
        self.clock.advance(0)
        self.assertTrue(node.transport.isReading)
        self.assertEqual(len(self.client.receive().responses[0].partitions[0].records), 2_000_000)
        self.assertEqual(len(node.arrived()), 1)

    def test_node(self) -> None:
        """A node that takes nothing for C{upstream.send.timeout} loses its link, and its client is closed."""
        node = self.linked()
        node.take(False)
        self.client.send("Produce", 9, **producing(sizeBytes=500_000))
        self.assertEqual(list(self.node.stalledLinks.values()), [0.0])
        self.clock.advance(9.9)
        self.assertFalse(self.client.isClosed)
        self.clock.advance(0.1)
        self.assertTrue(self.client.isClosed)
        self.assertTrue(node.isClosed)
        self.assertIn("it has taken nothing for 10 s (upstream.send.timeout)", self.client.closeReason)
        self.assertEqual((self.node.heldBytes, self.node.unanswered, self.node.linkCount), (0, 0, 0))

    def test_nodeGoesOn(self) -> None:
        """One that takes something in time keeps it."""
        node = self.linked()
        for _ in range(3):
            node.take(False)
            self.client.send("Produce", 9, **producing(sizeBytes=500_000))
            self.clock.advance(9.0)
            node.take(True)
            node.answer(**PRODUCED)
            self.client.receive()
        self.assertEqual(self.node.stalledLinks, {})


class ShareTests(RelayTestCase):
    """Requests for one node hold no more than its share of the pool."""

    sharePercent = 10
    """Of 8 MiB: room for two of the requests here."""

    def produced(self, client: GatewayClient) -> None:
        """Send a request of more than a third of the share."""
        client.send("Produce", 9, **producing(sizeBytes=350_000))

    def test_usedUp(self) -> None:
        """
        When it is used up, clients of the node wait, those of others do not, and all go on in the order in which they
        came.
        """
        self.stuck.add(addressOf(1))
        self.learn(2)
        clients = [self.connect(1) for _ in range(5)]
        for client in clients:
            self.produced(client)
        waiting = [Pause.UPSTREAM in client.protocol.pauses.reasons for client in clients]
        self.assertEqual(waiting, [False, False, True, True, True])
        self.assertLessEqual(self.node.heldBytes, self.node.shareBytes)
        other = self.connect(2)
        self.produced(other)
        self.played.answer(**PRODUCED)
        other.receive()
        self.stuck.clear()
        for played in self.links[:2]:
            played.take(True)
        arrivals = [played.link._user for played in self.links if played.address == addressOf(1)]
        self.assertEqual(arrivals, [client.protocol.backend for client in clients])
        for client in clients:
            self.assertNotIn(Pause.UPSTREAM, client.protocol.pauses.reasons)
        self.assertEqual(self.node.heldBytes, 0)

    def test_beingReceived(self) -> None:
        """Requests that have not come whole count."""
        clients = [self.connect(1) for _ in range(3)]
        frames = [client.frame(requestOf("Produce", 9, **producing(sizeBytes=350_000))) for client in clients]
        for client, data in zip(clients, frames, strict=True):
            client.sendBytes(data[:100])
        self.assertIn(Pause.UPSTREAM, clients[2].protocol.pauses.reasons)
        self.assertGreater(self.node.heldBytes, 700_000)
        clients[0].disconnect()
        self.assertNotIn(Pause.UPSTREAM, clients[2].protocol.pauses.reasons)
        for client, data in zip(clients[1:], frames[1:], strict=True):
            client.sendBytes(data[100:])
        self.assertEqual(sum(len(played.arrived()) for played in self.links), 2)

    def test_stalled(self) -> None:
        """
        Clients that wait go on when stuck links are given up, if the node takes anything at all; otherwise they are
        closed as well.
        """
        for takesOthers in (True, False):
            other = self.connect(1)
            self.linked(other)
            self.stuck.add(addressOf(1))
            clients = [self.connect(1) for _ in range(3)]
            for client in clients:
                self.produced(client)
            self.stuck.clear()
            self.clock.advance(6.0)
            if takesOthers:
                other.send("Heartbeat", 4)
            self.clock.advance(4.0)
            self.assertEqual([client.isClosed for client in clients], [True, True, not takesOthers])
            if takesOthers:
                self.played.answer(**PRODUCED)
                clients[2].receive()
            else:
                self.assertIn("has taken nothing for 10 s (upstream.send.timeout)", clients[2].closeReason)
            self.clock.advance(60.0)


class ConnectingTests(RelayTestCase):
    """Nodes are connected to when the first request comes."""

    def test_unknown(self) -> None:
        """Requests for a node that is not known wait until it is; the counters are those of one node all the time."""
        client = self.connect(3)
        for _ in range(2):
            client.send("Heartbeat", 4)
        self.assertEqual(self.attempts, [])
        node = self.nodes.of(3)
        self.assertEqual((node.unanswered, node.linkCount), (2, 1))
        self.assertGreater(node.heldBytes, 0)
        self.learn(3)
        self.clock.advance(0)
        self.assertIs(self.nodes.of(3), node)
        for _ in range(2):
            self.played.answer()
            client.receive()
        self.assertEqual((node.unanswered, node.linkCount, node.heldBytes), (0, 1, 0))

    def test_neverKnown(self) -> None:
        """After C{upstream.connect.timeout} the client is closed."""
        client = self.connect(3)
        client.send("Heartbeat", 4)
        self.clock.advance(10.0)
        self.assertTrue(client.isClosed)
        self.assertEqual(client.closeReason, "node 3 cannot be reached: not within 10 s (upstream.connect.timeout)")

    def test_refused(self) -> None:
        """A client whose node refuses the connection is closed, with a reason."""
        self.refusing.add(addressOf(1))
        self.client.send("Heartbeat", 4)
        self.assertClosed("node 1 (k1.example:9092) cannot be reached: Connection was refused")
        self.assertIn("cannot be reached", self.node.lastError)

    def test_silent(self) -> None:
        """So is one whose node does not answer."""
        self.silent.add(addressOf(1))
        self.client.send("Heartbeat", 4)
        self.clock.advance(9.9)
        self.assertFalse(self.client.isClosed)
        self.clock.advance(0.1)
        self.assertClosed("not within 10 s (upstream.connect.timeout)")
        self.assertEqual(self.cancelled, [addressOf(1)])

    def test_noEndpoint(self) -> None:
        """So is one for whose node there cannot even be an endpoint."""
        self.raising[addressOf(1)] = UnicodeError("label empty or too long")
        for acks in (0, 1):
            client = self.connect(1)
            client.send("Produce", 9, answered=False, **producing(acks=acks))
            self.assertClosed("label empty or too long", client)
            self.assertEqual((self.node.heldBytes, self.node.unanswered, self.node.linkCount), (0, 0, 0))

    def test_nextServer(self) -> None:
        """Of the servers to begin with the next is tried if one refuses, and then it is the first to be tried."""
        self.refusing.add(UPSTREAM[0])
        for _ in range(2):
            self.linked(self.connect())
        self.assertEqual(self.attempts, [UPSTREAM[0], UPSTREAM[1], UPSTREAM[1]])

    def test_allRefuse(self) -> None:
        """If all do, the client is closed."""
        self.refusing.update(UPSTREAM)
        client = self.connect()
        client.send("Metadata", 9)
        self.assertClosed("the bootstrap servers cannot be reached", client)
        self.assertEqual(self.attempts, list(UPSTREAM))

    def test_silentServer(self) -> None:
        """One that does not answer costs a client its connection, and the next one begins with another server."""
        self.silent.add(UPSTREAM[0])
        client = self.connect()
        client.send("Metadata", 9)
        self.clock.advance(10.0)
        self.assertTrue(client.isClosed)
        self.assertEqual(self.attempts, [UPSTREAM[0]])
        self.linked(self.connect())
        self.assertEqual(self.attempts, list(UPSTREAM))

    def test_clientLeaves(self) -> None:
        """When the client leaves meanwhile, connecting ends, and nothing is said against the node."""
        self.silent.update((addressOf(1), *UPSTREAM))
        for nodeId in (1, None):
            client = self.connect(nodeId)
            client.send("Heartbeat", 4)
            client.disconnect()
        self.assertEqual(self.cancelled, [addressOf(1), UPSTREAM[0]])
        self.assertEqual(self.attempts, [addressOf(1), UPSTREAM[0]])
        self.assertEqual((self.node.lastError, self.gateway.bootstrap.lastError), (None, None))
        self.assertEqual((self.node.linkCount, self.node.heldBytes), (0, 0))


class EndingTests(RelayTestCase):
    """When one end goes, the other one does."""

    def test_unsentWithoutAcks(self) -> None:
        """Requests without acknowledgement are written before the link is closed, for some time."""
        for isTaken in (True, False):
            client = self.connect(1)
            node = self.linked(client)
            node.take(False)
            for _ in range(2):
                client.send("Produce", 9, answered=False, **producing(acks=0, sizeBytes=150_000))
            client.disconnect()
            self.assertFalse(node.isClosed)
            self.clock.advance(5.0)
            if isTaken:
                node.take(True)
                self.assertEqual(len(node.arrived()), 2)
            else:
                self.clock.advance(5.0)
            self.assertTrue(node.isClosed)
            self.assertEqual(self.node.heldBytes, 0)

    def test_nodeLeaves(self) -> None:
        """When the node goes, the client gets what has been received, and is closed."""
        for _ in range(3):
            self.client.send("Heartbeat", 4)
        node = self.played
        first, second, _ = node.arrived()
        node.transport.peerSends(node.responseTo(first, {}) + node.responseTo(second, {})[:7])
        node.close()
        self.assertTrue(self.client.isClosed)
        self.assertEqual(self.client.waiting(), 1)
        self.assertEqual(self.client.closeReason, "node 1 (k1.example:9092): it has closed the connection")
        self.assertEqual((self.node.unanswered, self.node.linkCount), (0, 0))
        self.assertIn("it has closed the connection", self.node.lastError)

    def test_nodeLeavesIdle(self) -> None:
        """A node that closes an idle connection has done nothing wrong; the client is closed."""
        self.linked().close()
        self.assertTrue(self.client.isClosed)
        self.assertIsNone(self.node.lastError)

    def test_drain(self) -> None:
        """Draining waits for the answers to what was passed on, and reads nothing more."""
        for _ in range(2):
            self.client.send("Heartbeat", 4)
        self.client.protocol.drain()
        self.client.send("Heartbeat", 4, answered=False)
        self.assertEqual(len(self.played.arrived()), 2)
        for _ in range(2):
            self.assertFalse(self.client.isClosed)
            self.played.answer()
            self.client.receive()
        self.assertTrue(self.client.isClosed)
        self.assertTrue(self.played.isClosed)

    def test_drainIdle(self) -> None:
        """A client that waits for nothing is closed at once."""
        node = self.linked()
        self.client.protocol.drain()
        self.clock.advance(0)
        self.assertTrue(self.client.isClosed)
        self.assertTrue(node.isClosed)

    def test_drainUnsent(self) -> None:
        """Draining waits for requests without acknowledgement to be sent."""
        node = self.linked()
        node.take(False)
        self.client.send("Produce", 9, answered=False, **producing(acks=0, sizeBytes=300_000))
        self.client.protocol.drain()
        self.clock.advance(0)
        node.take(True)
        self.assertEqual(len(node.arrived()), 1)
        self.assertTrue(node.isClosed)


class LoginTestCase(RelayTestCase):
    """A test with logins."""

    def begin(self, mechanism: str = "PLAIN", client: GatewayClient | None = None) -> None:
        """Have a mechanism be chosen, which the node knows."""
        client = self.client if client is None else client
        client.send("SaslHandshake", 1, mechanism=mechanism)
        self.played.answer(mechanisms=[mechanism])
        self.assertEqual(client.receive().error_code, ErrorCode.none)

    def authenticate(self, message: bytes, errorCode: int = 0) -> Any:
        """
        Send a message of the mechanism, which the node answers.

        @return: the response.
        """
        self.client.send("SaslAuthenticate", 2, auth_bytes=message)
        self.played.answer(error_code=errorCode, auth_bytes=b"reply", error_message="no" if errorCode else None)
        return self.client.receive()

    @property
    def principal(self) -> str:
        """The principal that the client is taken for."""
        return str(self.client.protocol.principal)


class LoginTests(LoginTestCase):
    """Logins are passed on, and looked at."""

    def test_plain(self) -> None:
        """The user is known once the node has accepted the password, not before; then policies see it."""
        self.begin()
        sent = self.sent("SaslAuthenticate", 2, auth_bytes=b"\0alice\0secret")
        self.assertIn(b"\0alice\0secret", sent.frame)
        self.assertEqual(self.principal, ANONYMOUS)
        self.played.answer()
        self.client.receive()
        self.assertEqual((self.principal, self.client.protocol.holder), ("alice", "alice"))
        self.linked()
        self.assertEqual(self.quota.recorded[-1][0].principal, "alice")
        self.assertNotIn("alice", [each.principal for each, _ in self.quota.recorded[:-1]])

    def test_pipelined(self) -> None:
        """A message that comes before the last one is answered is rejected."""
        for name in ("SaslAuthenticate", "SaslHandshake"):
            client = self.connect(1)
            self.begin(client=client)
            client.send("SaslAuthenticate", 2, auth_bytes=b"\0alice\0secret")
            client.send(name, 1, answered=False)
            self.assertEqual(len(self.played.arrived()), 1)
            self.played.answer()
            client.receive()
            self.assertClosed("went on with its login before it was answered", client)

    def test_hidden(self) -> None:
        """A mechanism that does not show a name is refused with error 33, and others may be tried."""
        answer = self.client.ask("SaslHandshake", 1, mechanism="GSSAPI")
        self.assertEqual(answer.error_code, ErrorCode.unsupported_sasl_mechanism)
        self.assertEqual(answer.mechanisms, ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
        self.assertEqual(self.attempts, [])
        self.assertIn("'GSSAPI', which does not show", self.messages())
        self.begin()
        self.authenticate(b"\0alice\0secret")
        self.assertEqual(self.principal, "alice")

    def test_nonsense(self) -> None:
        """A message that does not say who it is is rejected, and not logged."""
        self.begin()
        self.client.send("SaslAuthenticate", 2, auth_bytes=b"secret", answered=False)
        self.assertClosed("its login by PLAIN cannot be understood")
        self.assertNotIn("secret", self.messages())

    def test_neverRefused(self) -> None:
        """Logins are neither refused nor delayed."""
        self.quota.decision = REFUSED
        self.begin()
        self.authenticate(b"\0alice\0secret")
        self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)


class HiddenTests(LoginTestCase):
    """With C{--hidden-users} any mechanism may be used."""

    gatewayFlags = {"mayHide": True}

    def test_passed(self) -> None:
        """It is passed on, and a client that logs in by it stays anonymous."""
        self.begin("GSSAPI")
        for _ in range(3):
            self.authenticate(b"\0opaque")
        self.assertEqual(self.principal, ANONYMOUS)
        self.linked()


class RequiredTests(LoginTestCase):
    """With C{--require-login} nothing but a login is passed on first."""

    gatewayFlags = {"requiresLogin": True}

    def test_refused(self) -> None:
        """Anything else closes the connection, also after a login that failed."""
        for isTried in (False, True):
            self.client = self.connect(1)
            if isTried:
                self.begin()
                self.authenticate(b"\0alice\0wrong", errorCode=58)
            self.client.send("Metadata", 9, answered=False)
            self.assertClosed("it sent Metadata before it had logged in (--require-login)")

    def test_passed(self) -> None:
        """ApiVersions and the login are passed on, and after it everything is."""
        self.exchange("ApiVersions", 3)
        self.begin()
        self.authenticate(b"\0alice\0secret")
        self.linked()


class LimitsTestCase(LoginTestCase):
    """A gateway with limits that can be set."""

    properties = {"super.users": "User:admin"}

    def setUp(self) -> None:
        super().setUp()
        store = SegmentLog(self.mktemp(), self.clock, lambda: 1.0, maybeDeferred)
        self.gateway.limits = QuotaLimits(store, self.control, {}, self.clock.seconds)
        # Before the pool is looked at.
        self.addCleanup(lambda: self.successResultOf(store.close()))

    def alter(self, version: int = 1) -> Any:
        """Ask for a limit to be set, and give the error for it."""
        entry = {
            "entity": [{"entity_type": "user", "entity_name": "bob"}],
            "ops": [{"key": "scripted_rate", "value": 5.0, "remove": False}],
        }
        self.client.send("AlterClientQuotas", version, entries=[entry], validate_only=False)
        self.clock.advance(1.0)
        return self.client.receive().entries[0]


class LimitsTests(LimitsTestCase):
    """Limits of clients are the gateway's own."""

    def test_describe(self) -> None:
        """DescribeClientQuotas is answered here."""
        self.client.send("DescribeClientQuotas", 1)
        self.assertEqual(self.client.receive().error_code, ErrorCode.none)
        self.assertEqual(self.attempts, [])

    def test_alter(self) -> None:
        """A super user may set limits."""
        self.begin()
        self.authenticate(b"\0admin\0secret")
        self.assertEqual(self.alter().error_code, ErrorCode.none)
        self.assertEqual(self.played.arrived(), [])
        self.assertIn({"scripted_rate": 5.0}, list(self.quota.limits.values()))

    def test_forbidden(self) -> None:
        """Nobody else may."""
        entry = self.alter()
        self.assertEqual(entry.error_code, ErrorCode.cluster_authorization_failed)
        self.assertNotIn({"scripted_rate": 5.0}, list(self.quota.limits.values()))
        self.assertEqual(self.attempts, [])


class TheirLimitsTests(LimitsTestCase):
    """With C{--limits upstream} they are those of the cluster."""

    gatewayFlags = {"hasLimits": False}

    def test_passed(self) -> None:
        """Both requests are passed on."""
        for name in ("DescribeClientQuotas", "AlterClientQuotas"):
            self.client.send(name, 1)
            self.assertEqual(len(self.played.arrived()), 1)
            self.played.answer()
            self.client.receive()


class AnyOrderTests(GatewayTestCase):
    """
    Whatever clients and nodes do, in any order.

    What must hold: responses come in the order of their requests, each once; an open client with a node that answers
    gets them all; and in the end nobody holds anything, see L{GatewayTestCase}.
    """

    sharePercent = 15

    def play(self, random: Random, stepCount: int) -> None:
        """Have random things happen."""
        self.random = random
        self.unsent: dict[GatewayClient, bytes] = {}
        self.coming: dict[PlayedNode, bytes] = {}
        self.expected: dict[GatewayClient, list[int]] = {}
        self.learn(1)
        actions: list[Any] = [
            (self.opens, 3),
            (self.sends, 12),
            (self.goesOn, 8),
            (self.nodeAnswers, 12),
            (self.nodeSends, 8),
            (self.nodeTakes, 4),
            (self.clientTakes, 3),
            (self.clientLeaves, 1),
            (self.nodeLeaves, 1),
            (self.decides, 3),
            (self.timePasses, 4),
            (self.reaches, 2),
            (self.drains, 1),
            (self.lies, 1),
        ]
        functions, weights = zip(*actions, strict=True)
        for action in random.choices(functions, weights, k=stepCount):
            action()
            self.clock.advance(0)
            self.check()
        self.settle()
        self.flushLoggedErrors(ZeroDivisionError)

    def openClients(self) -> list[GatewayClient]:
        return [client for client in self.clients if not client.isClosed]

    def openLinks(self) -> list[PlayedNode]:
        return [played for played in self.links if not played.isClosed]

    def opens(self) -> None:
        if len(self.openClients()) < 5:
            client = self.connect(self.random.choice((None, 1, 1, 2)))
            self.unsent[client], self.expected[client] = b"", []

    def sends(self) -> None:
        clients = self.openClients()
        if not clients:
            return
        client = self.random.choice(clients)
        name, apiVersion, fields, isAnswered = self.random.choice(
            [
                ("Heartbeat", 4, {}, True),
                ("Fetch", 16, {}, True),
                ("Fetch", 11, {}, True),
                ("Metadata", 9, {}, True),
                ("FindCoordinator", 4, {}, True),
                ("InitProducerId", 4, {}, True),
                ("ApiVersions", 3, {}, True),
                ("DescribeConfigs", 4, {}, True),
                ("JoinGroup", 5, {"session_timeout": 6000}, True),
                ("Produce", 10, producing(1, self.random.choice((10, 70_000, 400_000, 1_500_000))), True),
                ("Produce", 9, producing(0, self.random.choice((10, 70_000, 400_000))), False),
            ]
        )
        self.unsent[client] += client.frame(requestOf(name, apiVersion, **fields), isAnswered)
        if isAnswered:
            self.expected[client].append(client._lastCorrelationId)
        if self.random.random() < 0.7:
            self.push(client)

    def push(self, client: GatewayClient, sizeBytes: int = 1 << 30) -> None:
        data = self.unsent[client]
        if data and not client.isClosed:
            self.unsent[client] = data[sizeBytes:]
            client.transport.peerSends(data[:sizeBytes])

    def goesOn(self) -> None:
        for client in self.openClients():
            self.push(client, self.random.choice((1, 3, 10, 1000, 100_000)))

    def nodeAnswers(self) -> None:
        for played in self.openLinks():
            played.arrived()
            if played.unanswered and self.random.random() < 0.6:
                sent = played.unanswered.popleft()
                if sent.apiKey != 0 or sent.apiVersion == 10:
                    self.coming[played] = self.coming.get(played, b"") + self.responseFor(played, sent)
                if self.random.random() < 0.5:
                    self.pull(played)

    def responseFor(self, played: PlayedNode, sent: Any) -> bytes:
        size = self.random.choice((10, 70_000, 300_000))
        values: dict[str, Any] = {"throttle_time_ms": self.random.choice((0, 100))}
        if sent.apiKey == API_KEYS["Fetch"]:
            values |= fetched(size, node_endpoints=self.random.choice(([], BROKERS)))
        elif sent.apiKey == API_KEYS["Metadata"]:
            values |= {"brokers": BROKERS[:1], "topics": [{"name": "t" * 100}] * (size // 100)}
        elif sent.apiKey == API_KEYS["DescribeConfigs"]:
            values |= {"results": [{"configs": [{"name": "n" * 100}] * (size // 100)}]}
        return played.responseTo(sent, values)

    def pull(self, played: PlayedNode, sizeBytes: int = 1 << 30) -> None:
        data = self.coming.get(played, b"")
        if data and not played.isClosed:
            self.coming[played] = data[sizeBytes:]
            played.transport.peerSends(data[:sizeBytes])

    def nodeSends(self) -> None:
        for played in self.openLinks():
            self.pull(played, self.random.choice((1, 4, 9, 1000, 100_000)))

    def nodeTakes(self) -> None:
        for played in self.openLinks():
            played.transport.isTaking = self.random.random() < 0.6
            played.transport.wake()

    def clientTakes(self) -> None:
        for client in self.openClients():
            client.transport.isTaking = self.random.random() < 0.6
            client.transport.wake()

    def clientLeaves(self) -> None:
        clients = self.openClients()
        if clients:
            client = self.random.choice(clients)
            if self.random.random() < 0.5:
                client.disconnect()
            else:
                client.transport.peerCloses()

    def nodeLeaves(self) -> None:
        links = self.openLinks()
        if links:
            self.random.choice(links).transport.peerCloses()

    def decides(self) -> None:
        self.quota.decision = self.random.choice((ADMITTED, ADMITTED, Decision(False, 0.5, "too much")))
        self.quota.delaySeconds = self.random.choice((0.0, 0.0, 0.3))
        self.quota.failing = frozenset(self.random.choice(((), (), ("decide",), ("record",))))

    def timePasses(self) -> None:
        self.clock.advance(self.random.choice((0.01, 0.5, 3.0, 10.0)))

    def reaches(self) -> None:
        """What happens when a node is connected to."""
        for address in (addressOf(1), addressOf(2), *UPSTREAM):
            for kind, chance in ((self.refusing, 0.1), (self.silent, 0.3), (self.stuck, 0.2)):
                if self.random.random() < chance:
                    kind.add(address)
                else:
                    kind.discard(address)
        if self.pending:
            self.accept()
        if self.random.random() < 0.5:
            self.learn(2)

    def drains(self) -> None:
        clients = self.openClients()
        if clients and self.random.random() < 0.5:
            self.random.choice(clients).protocol.drain()

    def lies(self) -> None:
        """A node sends what was not asked for."""
        links = self.openLinks()
        if links and self.random.random() < 0.5:
            played = self.random.choice(links)
            self.coming[played] = self.coming.get(played, b"") + framed(struct.pack(">i", 1 << 20))

    def check(self) -> None:
        """What each client has received are the answers to its first requests."""
        for client in self.clients:
            received, offset, numbers = client.transport.received, 0, []
            while len(received) >= offset + 8:
                sizeBytes, number = struct.unpack_from(">ii", received, offset)
                numbers.append(number)
                offset += 4 + sizeBytes
            self.assertEqual(numbers, self.expected[client][: len(numbers)])
        self.assertGreaterEqual(min(node.unanswered for node in (self.gateway.bootstrap, *self.nodes)), 0)
        self.assertGreaterEqual(min(node.heldBytes for node in (self.gateway.bootstrap, *self.nodes)), 0)

    def settle(self) -> None:
        """Everybody does well from now on: who is connected still gets all answers."""
        self.quota.decision, self.quota.delaySeconds, self.quota.failing = ADMITTED, 0.0, frozenset()
        for kind in (self.refusing, self.silent, self.stuck):
            kind.clear()
        self.learn(2)
        for _ in range(200):
            while self.pending:
                self.accept()
            for client in self.openClients():
                client.transport.isTaking = True
                client.transport.wake()
                self.push(client)
            for played in self.openLinks():
                played.transport.isTaking = True
                played.transport.wake()
                played.arrived()
                while played.unanswered:
                    sent = played.unanswered.popleft()
                    if sent.apiKey != 0 or sent.apiVersion == 10:
                        self.coming[played] = self.coming.get(played, b"") + self.responseFor(played, sent)
                self.pull(played)
            self.clock.advance(0.1)
            self.check()
        for client in self.openClients():
            self.assertEqual(client.waiting(), len(self.expected[client]), repr(client.protocol))

    @given(seed=st.integers(0, 2**32), stepCount=st.integers(1, 150))
    @settings(max_examples=60, deadline=None)
    def test_anything(self, seed: int, stepCount: int) -> None:
        """See above."""
        self.stop()
        self.start()
        self.play(Random(seed), stepCount)
        self.stop()
