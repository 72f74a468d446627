"""
Tests for L{admission.kafka.gateway.relaysession} and L{admission.kafka.gateway.gateway}.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from admission.connection.pauses import UNANSWERED, Pause
from admission.interfaces import ADMITTED, FRAMES, Decision
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.gateway.relaysession import COLLECTED_BYTES, LARGEST_COLLECTED_BYTES, MAX_UNANSWERED
from admission.kafka.kafkarequest import Address
from admission.kafka.quotalimits import QuotaLimits
from admission.kafka.server import ANONYMOUS
from tests.kit.brokerfixture import (
    batchOf,
    framed,
    produceFields,
    requestFrame,
)
from tests.kit.gatewayfixture import (
    API_KEYS,
    BASE_PORT,
    POOL_BYTES,
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
    """
    The fields of a Produce request with one batch of about C{sizeBytes}.
    """
    return produceFields("events", batchOf(b"v" * sizeBytes, **header), acks=acks)


PRODUCED = {"responses": [{"name": "events", "partition_responses": [{"index": 0}]}]}


class RelayTestCase(GatewayTestCase):
    """
    A gateway whose clients talk to node 1, which is known.

    @ivar client: one client of node 1.
    """

    def setUp(self) -> None:
        """
        Have a client connect.
        """
        super().setUp()
        self.learn(1)
        self.client = self.connect(1)

    @property
    def node(self) -> Any:
        """
        What the gateway counts for node 1.
        """
        return self.nodes.of(1)

    def linked(self, client: GatewayClient | None = None) -> PlayedNode:
        """
        Have a client's link be made by a Heartbeat that is answered.
        """
        client = self.client if client is None else client
        client.send("Heartbeat", 4)
        self.played.answer()
        client.receive()
        return self.played


class PassingTests(RelayTestCase):
    """
    Requests go up and responses come down.
    """

    def test_bytes(self) -> None:
        """
        A request reaches the node byte for byte, and the response its client.
        """
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
        """
        All requests of a client go by one link, those of another by another, to the node of their port.
        """
        self.learn(2)
        self.linked()
        self.linked()
        self.assertEqual(self.attempts, [addressOf(1)])
        self.linked(self.connect(2))
        self.linked(self.connect())
        self.linked(self.connect(1))
        self.assertEqual(self.attempts, [addressOf(1), addressOf(2), UPSTREAM[0], addressOf(1)])
        self.assertEqual([node.linkCount for node in self.nodes], [2, 1])

    def test_pipelined(self) -> None:
        """
        Requests are passed on before those ahead of them are answered, and until they are the node owes answers.
        """
        for _ in range(3):
            self.client.send("Heartbeat", 3)
        self.assertEqual(len(self.played.arrived()), 3)
        self.assertEqual(self.node.unanswered, 3)
        for left in (2, 1, 0):
            self.played.answer(throttle_time_ms=left)
            self.assertEqual(self.node.unanswered, left)
            self.assertEqual(self.client.receive().throttle_time.total_seconds() * 1000, left)

    def test_chunks(self) -> None:
        """
        Neither requests nor responses have to come in one piece.
        """
        node = self.linked()
        for byte in self.client.frame(requestOf("Heartbeat", 4)):
            self.client.sendBytes(bytes((byte,)))
        (sent,) = node.arrived()
        for byte in node.responseTo(sent, {}):
            self.assertEqual(self.client.waiting(), 0)
            node.send(bytes((byte,)))
        self.client.receive()

    def test_memory(self) -> None:
        """
        A request holds memory until the node has taken it, and no longer.
        """
        node = self.linked()
        node.take(False)
        self.client.send("Produce", 9, **producing(sizeBytes=200_000))
        self.assertGreater(self.pool.usedBytesByPurpose[FRAMES], 200_000)
        self.assertGreater(self.node.heldBytes, 200_000)
        node.take(True)
        self.assertEqual((self.pool.usedBytesByPurpose[FRAMES], self.node.heldBytes), (0, 0))
        self.assertEqual(self.node.unanswered, 1)

    def test_mostUnanswered(self) -> None:
        """
        So many requests are passed on that are not answered, and then the client is not read until one is.
        """
        node = self.linked()
        for _ in range(MAX_UNANSWERED + 1):
            self.client.send("Heartbeat", 4)
        self.assertIn(UNANSWERED, self.client.protocol.pauses.reasons)
        self.assertEqual(len(node.arrived()), MAX_UNANSWERED)
        node.answer()
        self.assertEqual(len(node.arrived()), 1)


class NotLimitedTests(RelayTestCase):
    """
    A gateway without limits.
    """

    isLimited = False

    def test_notAsked(self) -> None:
        """
        Its policies are not asked.
        """
        self.quota.failing = frozenset(("decide", "record"))
        self.linked()
        self.client.send("Produce", 9, **producing())
        self.played.answer(**PRODUCED)
        self.client.receive()


class AddressTests(RelayTestCase):
    """
    Clients are told the gateway's addresses in place of the nodes'.
    """

    def test_metadata(self) -> None:
        """
        Metadata names the gateway's ports, in all versions, and the nodes are learnt from it.
        """
        for apiVersion in (0, 1, 5, 8, 9, 12, 13):
            self.client.send("Metadata", apiVersion)
            self.played.answer(brokers=BROKERS)
            answer = self.client.receive()
            self.assertEqual(
                [(broker.node_id, broker.host, broker.port) for broker in answer.brokers],
                [(1, REACHED_HOST, BASE_PORT + 2), (2, REACHED_HOST, BASE_PORT + 3)],
            )
        self.assertEqual(self.nodes.addresses, {1: Address("k1.example", 9092), 2: Address("k2.example", 9093)})

    def test_coordinator(self) -> None:
        """
        So does FindCoordinator, with one coordinator or several; where there is none, there is none.
        """
        self.client.send("FindCoordinator", 2)
        self.played.answer(**BROKERS[1])
        answer = self.client.receive()
        self.assertEqual((answer.host, answer.port), (REACHED_HOST, BASE_PORT + 3))
        self.client.send("FindCoordinator", 4)
        self.played.answer(coordinators=[*BROKERS, {"node_id": -1, "host": "", "port": -1}])
        found = [(each.host, each.port) for each in self.client.receive().coordinators]
        self.assertEqual(found, [(REACHED_HOST, BASE_PORT + 2), (REACHED_HOST, BASE_PORT + 3), ("", -1)])

    def test_fetchAndProduce(self) -> None:
        """
        So do the hints where a partition has moved in answers to Produce and Fetch.
        """
        for name, apiVersion, fields in (("Produce", 10, producing()), ("Fetch", 16, {})):
            self.client.send(name, apiVersion, **fields)
            self.played.answer(node_endpoints=BROKERS)
            answer = self.client.receive()
            self.assertEqual(
                [(each.host, each.port) for each in answer.node_endpoints],
                [(REACHED_HOST, BASE_PORT + 2), (REACHED_HOST, BASE_PORT + 3)],
            )

    def test_noPort(self) -> None:
        """
        A node without a port here is told as port 0, and logged.
        """
        self.client.send("Metadata", 9)
        self.played.answer(brokers=[{"node_id": 99, "host": "k99.example", "port": 9092}])
        self.assertEqual(self.client.receive().brokers[0].port, 0)
        self.assertIn("node 99 of the cluster has no port here", self.messages())

    def test_malformed(self) -> None:
        """
        A response that cannot be read closes both ends.
        """
        self.client.send("Metadata", 9)
        (sent,) = self.played.arrived()
        self.played.send(framed(struct.pack(">i", sent.correlationId) + bytes(3)))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(self.played.isClosed)
        self.assertIn("ends before its fields do", self.client.closeReason)


class AdvertisedTests(RelayTestCase):
    """
    With C{--advertise} clients are told other addresses.
    """

    advertised = Address("kafka.example", 19092)

    def test_metadata(self) -> None:
        """
        The advertised host, and ports counted from the advertised one.
        """
        self.client.send("Metadata", 9)
        self.played.answer(brokers=BROKERS)
        self.assertEqual(
            [(broker.host, broker.port) for broker in self.client.receive().brokers],
            [("kafka.example", 19094), ("kafka.example", 19095)],
        )


class OrderTests(RelayTestCase):
    """
    Responses come in the order of requests.
    """

    def test_ownWaits(self) -> None:
        """
        A refusal waits for the answers to requests before it, and those behind it for it.
        """
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, **producing())
        self.assertEqual(len(self.played.arrived()), 1)
        self.assertEqual(self.client.waiting(), 0)
        self.assertEqual(self.node.unanswered, 2)
        self.played.answer()
        self.assertEqual(self.client.waiting(), 2)
        self.client.receive()
        result = self.client.receive().responses[0].partition_responses[0]
        self.assertEqual(result.error_code, ErrorCode.throttling_quota_exceeded)
        self.assertEqual(self.node.unanswered, 0)

    def test_ownBetween(self) -> None:
        """
        A refusal that is the first leaves at once, although the node has to answer others.
        """
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
        """
        A response with another number than that of the first request closes both ends.
        """
        self.client.send("Heartbeat", 4)
        (sent,) = self.played.arrived()
        self.played.send(responseFrame(sent.apiKey, 4, sent.correlationId + 1, {}))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(self.played.isClosed)
        self.assertEqual(self.client.waiting(), 0)
        self.assertIn("which is not the next", self.client.closeReason)
        self.assertIn("which is not the next", self.node.lastError)

    def test_unasked(self) -> None:
        """
        So does a response that nobody has asked for.
        """
        node = self.linked()
        node.send(responseFrame(API_KEYS["Heartbeat"], 4, 1, {}))
        self.assertTrue(self.client.isClosed)
        self.assertTrue(node.isClosed)

    def test_responseToRefused(self) -> None:
        """
        A node cannot answer what was answered here.
        """
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, **producing())
        (sent,) = self.played.arrived()
        answers = self.played.responseTo(sent, {}) + responseFrame(0, 9, sent.correlationId + 1, PRODUCED)
        self.played.send(answers)
        self.client.receive()
        self.assertEqual(
            self.client.receive().responses[0].partition_responses[0].error_code, ErrorCode.throttling_quota_exceeded
        )
        self.assertTrue(self.client.isClosed)

    def test_tooShort(self) -> None:
        """
        A response that is shorter than its own number closes both ends.
        """
        self.client.send("Heartbeat", 4)
        self.played.send(struct.pack(">ii", 3, 1))
        self.assertTrue(self.client.isClosed)
        self.assertIn("a response of 3 bytes", self.client.closeReason)


class ProduceTests(RelayTestCase):
    """
    What quotas do to Produce.
    """

    def test_withoutAcks(self) -> None:
        """
        A request without acknowledgement makes no entry, and what comes behind it stays in step.
        """
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
        """
        A refused request is answered with error 89, the reason and the delay, and the node never sees it.
        """
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
        """
        A refused request without acknowledgement closes the connection, behind what the node still answers.
        """
        self.client.send("Heartbeat", 4)
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, answered=False, **producing(acks=0))
        self.assertFalse(self.client.isClosed)
        self.assertEqual(self.node.heldBytes, 0)
        self.played.answer()
        self.client.receive()
        self.assertTrue(self.client.isClosed)
        self.assertIn("it wants no response: scripted: too much", self.client.closeReason)

    def test_behindRefused(self) -> None:
        """
        Batches that come behind a refused one of the same producer are refused, until that one has been sent again.
        """
        node = self.linked()
        first = {"producerId": 7, "producerEpoch": 0, "baseSequence": 0}
        self.quota.decision = Decision(False, 0.0, "too much")
        self.client.send("Produce", 9, **producing(**first))
        self.quota.decision = ADMITTED
        self.client.send("Produce", 9, **producing(**{**first, "baseSequence": 1}))
        results = [self.client.receive().responses[0].partition_responses[0] for _ in range(2)]
        self.assertEqual([each.error_code for each in results], [ErrorCode.throttling_quota_exceeded] * 2)
        self.assertIn("a batch that comes before it was refused", results[1].error_message)
        self.assertEqual(node.arrived(), [])
        for sequence in range(2):
            self.client.send("Produce", 9, **producing(**{**first, "baseSequence": sequence}))
        self.assertEqual(len(node.arrived()), 2)

    def test_delay(self) -> None:
        """
        A delay is told in the response, less the time that the node took, and the client is not read meanwhile.
        """
        self.quota.delaySeconds = 3.0
        self.client.send("Produce", 9, **producing())
        self.assertIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)
        self.clock.advance(1.0)
        self.played.answer(**PRODUCED, throttle_time_ms=500)
        self.assertEqual(self.client.receive().throttle_time.total_seconds(), 2.0)
        self.clock.advance(2.0)
        self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)

    def test_charged(self) -> None:
        """
        Each request is charged once.
        """
        self.client.send("Produce", 9, **producing())
        self.played.answer(**PRODUCED)
        self.assertEqual([request.kind for request, _ in self.quota.recorded if request.kind == "Produce"], ["Produce"])

    def test_malformed(self) -> None:
        """
        A request whose batches cannot be read is rejected, and its memory is free again.
        """
        data = requestFrame(requestOf("Produce", 9, **producing()), 1)
        self.client.sendBytes(framed(data[4:-40]))
        self.assertTrue(self.client.isClosed)
        self.assertEqual((self.links, self.node.heldBytes), ([], 0))


class ApiTests(RelayTestCase):
    """
    What is done to single APIs.
    """

    def test_initProducerId(self) -> None:
        """
        InitProducerId may be refused.
        """
        node = self.linked()
        self.quota.decision = REFUSED
        answer = self.client.ask("InitProducerId", 4)
        self.assertEqual((answer.error_code, answer.producer_id), (ErrorCode.throttling_quota_exceeded, -1))
        self.assertEqual(answer.throttle_time.total_seconds(), 2.0)
        self.assertEqual(node.arrived(), [])

    def test_neverRefused(self) -> None:
        """
        Nothing else is refused: it is passed on, and some of it is delayed instead.
        """
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
        """
        Of the node's delay and ours, clients are told the longer; and they are not read during ours.
        """
        self.quota.delaySeconds = 1.0
        for theirsMs, expected in ((400, 1.0), (4000, 4.0)):
            self.client.send("ListGroups", 3)
            self.played.answer(throttle_time_ms=theirsMs)
            self.assertEqual(self.client.receive().throttle_time.total_seconds(), expected)
            self.assertIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)
            self.clock.advance(1.0)
            self.assertNotIn(Pause.THROTTLED, self.client.protocol.pauses.reasons)

    def test_sessionTimeout(self) -> None:
        """
        The members of a group are delayed for no longer than a third of their session timeout.
        """
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
        """
        Where the coordinator sets the session timeout, it is taken for the default.
        """
        self.quota.delaySeconds = 100.0
        self.client.send("ConsumerGroupHeartbeat", 0)
        self.played.answer()
        self.assertEqual(self.client.receive().throttle_time.total_seconds(), 15.0)

    def test_refusedMember(self) -> None:
        """
        A refusal that becomes a delay is no longer than that either.
        """
        self.client.send("JoinGroup", 5, session_timeout=3000, rebalance_timeout=60_000)
        self.played.answer()
        self.client.receive()
        self.quota.decision = Decision(False, 50.0, "too much")
        self.client.send("Heartbeat", 4)
        self.played.answer()
        self.assertEqual(self.client.receive().throttle_time.total_seconds(), 1.0)

    def test_apiVersions(self) -> None:
        """
        Clients are told of no API and version that the gateway does not understand.
        """
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
        ApiVersions in a version that is too new is answered here with error 35 and the versions that are understood.
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
        """
        A node that does not know the version of ApiVersions itself says so in version 0, and that is passed on.
        """
        self.client.send("ApiVersions", 4)
        (sent,) = self.played.arrived()
        ranges = [{"api_key": API_KEYS["ApiVersions"], "min_version": 0, "max_version": 2}]
        values = {"error_code": 35, "api_keys": ranges}
        self.played.send(responseFrame(sent.apiKey, 0, sent.correlationId, values))
        received = bytes(self.client.transport.received)
        self.assertEqual(struct.unpack_from(">iihihhh", received)[1:], (1, 35, 1, API_KEYS["ApiVersions"], 0, 2))

    def test_unknown(self) -> None:
        """
        An API or a version that is not known is rejected with a sentence, and the node never sees it.
        """
        for apiKey, apiVersion, words in (
            (4, 0, "it sent a request with API key 4, which is not served"),
            (0, 13, "it sent Produce in version 13, which the gateway does not know"),
            (17, 0, "it sent SaslHandshake in version 0, which the gateway does not know"),
        ):
            client = self.connect(1)
            client.sendBytes(framed(struct.pack(">hhih", apiKey, apiVersion, 1, -1) + bytes(20)))
            self.assertTrue(client.isClosed)
            self.assertIn(words, client.closeReason)
        self.assertEqual(self.attempts, [])


def fetched(sizeBytes: int, **others: Any) -> dict[str, Any]:
    """
    The fields of an answer to Fetch with so many bytes of records.
    """
    partition = {"partition_index": 0, "records": b"r" * sizeBytes, "high_watermark": 1}
    return {"responses": [{"partitions": [partition]}], **others}


class LargeTests(RelayTestCase):
    """
    Large responses are passed on as they come.
    """

    def feed(self, node: PlayedNode, data: bytes, random: Random) -> None:
        """
        Have the gateway receive C{data} in random pieces.
        """
        while data:
            size = random.choice((1, 2, 3, 5, 8, 13, 100, 1000, 20_000, 60_000))
            node.send(data[:size])
            data = data[size:]

    def test_fetch(self) -> None:
        """
        Of a large Fetch only the throttle time and the addresses are changed, which are erased.
        """
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
        """
        Its pieces leave before it has come whole, and it is not charged for.
        """
        self.client.send("Fetch", 12)
        (sent,) = self.played.arrived()
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

    def test_ownBehind(self) -> None:
        """
        A refusal does not come into the middle of a response.
        """
        self.client.send("Fetch", 12)
        (sent,) = self.played.arrived()
        response = self.played.responseTo(sent, fetched(100_000))
        self.played.send(response[:50_000])
        self.quota.decision = REFUSED
        self.client.send("Produce", 9, **producing())
        self.assertEqual(len(self.client.transport.received), 50_000)
        self.played.send(response[50_000:])
        self.client.receive()
        self.client.receive()

    def test_metadata(self) -> None:
        """
        A large Metadata has the gateway's addresses, and the length that it has with these.
        """
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

    def test_metadataWithoutEnd(self) -> None:
        """
        A large Metadata that ends within its nodes closes both ends: it cannot be answered.
        """
        self.client.send("Metadata", 9)
        (sent,) = self.played.arrived()
        brokers = [{"node_id": 1, "host": "h" * 30_000, "port": 9092}] * 8
        body = self.played.responseTo(sent, {"brokers": brokers})[4:-60_000]
        self.assertGreater(len(body), COLLECTED_BYTES)
        self.played.send(framed(body))
        self.assertTrue(self.client.isClosed)
        self.assertEqual(len(self.client.transport.received), 0)

    def test_collected(self) -> None:
        """
        What has to be understood whole is collected up to a size, and charged for meanwhile.
        """
        self.client.send("DescribeCluster", 0)
        (sent,) = self.played.arrived()
        brokers = [{"broker_id": 1, "host": "h" * 500, "port": 9092}] * 200
        response = self.played.responseTo(sent, {"brokers": brokers})
        available = self.pool.availableBytes
        self.played.send(response[:-1])
        self.assertLess(self.pool.availableBytes, available - 90_000)
        self.assertEqual(len(self.client.transport.received), 0)
        self.played.send(response[-1:])
        self.assertEqual({broker.host for broker in self.client.receive().brokers}, {REACHED_HOST})

    def test_tooLarge(self) -> None:
        """
        Beyond that both ends are closed.
        """
        self.client.send("DescribeCluster", 0)
        (sent,) = self.played.arrived()
        self.played.send(struct.pack(">ii", LARGEST_COLLECTED_BYTES + 5, sent.correlationId))
        self.assertTrue(self.client.isClosed)
        self.assertIn("the gateway can collect", self.client.closeReason)

    def test_others(self) -> None:
        """
        Other large responses are passed on as they are.
        """
        self.client.send("DescribeConfigs", 4)
        (sent,) = self.played.arrived()
        configs = [{"name": "n" * 100, "value": "v" * 100}] * 1000
        response = self.played.responseTo(sent, {"results": [{"configs": configs}]})
        self.feed(self.played, response, Random(1))
        self.assertEqual(bytes(self.client.transport.received), response)
        self.client.receive()
