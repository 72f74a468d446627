"""Tests for L{admission.kafka.serving.session}."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st
from kio.schema.errors import ErrorCode
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from admission.gate.slowbodies import BODY_GRACE_SECONDS
from admission.interfaces import RESPONSES
from admission.kafka.broker import brokerbackend
from admission.kafka.broker.api import metadataapi
from admission.kafka.broker.broker import MAX_LARGE_ANSWERS
from admission.kafka.broker.log.interface import UnknownTopic
from admission.kafka.serving.session import describeLength
from admission.testing.faketransport import FakeTLSTransport
from tests.kit.brokerfixture import (
    API_KEYS,
    LARGEST_BYTES,
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
from tests.kit.workedclock import WorkedClock


def header(apiKey: int, apiVersion: int) -> bytes:
    """The first bytes of a request without a client id."""
    return struct.pack(">hhih", apiKey, apiVersion, 1, -1)


class DescribeLengthTests(SynchronousTestCase):
    """L{describeLength} recognises other protocols by what they begin with."""

    def test_words(self) -> None:
        """The first four bytes of other protocols are named, and numbers are not."""
        for prefix, word in (
            (b"\x16\x03\x01\x00", "a TLS handshake"),
            (b"\x16\x03\x03\x02", "a TLS handshake"),
            (b"GET ", "an HTTP request"),
            (b"POST", "an HTTP request"),
            (b"SSH-", "SSH"),
        ):
            self.assertIn(word, describeLength(int.from_bytes(prefix, "big")))
        self.assertEqual(describeLength(2**31 - 1), "")


class FrameTests(BrokerTestCase):
    """Frames that will not be read are refused before there is memory for them."""

    properties = {"socket.request.max.bytes": "2MiB"}

    def assertNoMemoryUsed(self) -> None:
        """Not a byte has ever been taken for a frame."""
        self.assertEqual(self.pool.peakFrameBytes, 0)

    def test_largest(self) -> None:
        """A Produce request of exactly that size is read."""
        topic = self.topic("events", 1, {"max.message.bytes": str(4 << 20)})
        client = self.connect()
        missingBytes = (2 << 20) - len(client.frame(self._produce(0))) + 4
        client._expected.clear()
        # The lengths of records and batch are varints, which grow with what they count.
        for valueBytes in range(missingBytes - 12, missingBytes + 1):
            frame = client.frame(self._produce(valueBytes))
            if len(frame) == 4 + (2 << 20):
                break
            client._expected.clear()
        client.sendBytes(frame)
        self.assertEqual(client.receive().responses[0].partition_responses[0].error_code, 0)
        self.assertEqual(topic.partitions[0].highWatermark, 1)

    def _produce(self, valueBytes: int) -> Any:
        return requestOf("Produce", 9, **produceFields("events", batchOf(bytes(valueBytes))))

    def test_otherProtocols(self) -> None:
        """A client of another protocol is told apart from one that sends large requests."""
        for data, words in (
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake on a port that has no TLS"),
            (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"),
        ):
            client = self.connect()
            client.sendBytes(data)
            self.assertRefused(client, words)
        self.assertNoMemoryUsed()


class BadRequestTests(BrokerTestCase):
    """A request that cannot be served closes its connection, the log says why, and its memory is there for the next."""

    def assertCloses(self, frame: bytes, *words: str) -> None:
        """A client that sends C{frame} is refused in these words."""
        client = self.connect()
        client.sendBytes(frame)
        self.assertRefused(client, *words)
        client.disconnect()
        self.assertPoolWhole()

    def test_oldProduce(self) -> None:
        """
        Produce 0 to 2, advertised and not served, is refused in an answer that those clients understand, so that they
        do not send it again until their time is up.  A client that wants no answer is hung up on.
        """
        partition = struct.pack(">ii3s", 7, 3, b"abc")
        topics = struct.pack(">ih6si", 1, 6, b"events", 1) + partition
        for apiVersion, behind in ((0, b""), (1, bytes(4)), (2, struct.pack(">qi", -1, 0))):
            body = header(0, apiVersion) + struct.pack(">hi", 1, 1000) + topics
            client = self.connect()
            client.sendBytes(framed(body))
            answer = struct.pack(">ih6siihq", 1, 6, b"events", 1, 7, ErrorCode.unsupported_version, -1) + behind
            self.assertEqual(bytes(client.transport.received)[8:], answer)
            client.transport.received.clear()
            self.assertRefused(client, f"Produce in version {apiVersion}, which is not served")
            client.disconnect()
            unanswered = header(0, apiVersion) + struct.pack(">hi", 0, 1000) + topics
            self.assertCloses(framed(unanswered), f"Produce in version {apiVersion}, which is not served")

    def test_responsesBeforeIt(self) -> None:
        """What was asked before the bad request is answered; what comes behind it is not."""
        client = self.connect()
        good = client.frame(requestOf("ApiVersions", 4))
        client.sendBytes(good + framed(b"") + requestFrame(requestOf("ApiVersions", 4), 3))
        self.assertEqual(client.receive().error_code, 0)
        self.assertRefused(client, "ends within its header")

    def test_failingApi(self) -> None:
        """A failure of the broker is logged and closes the connection."""
        self.log.topic = None  # type: ignore[method-assign, assignment]
        client = self.connect()
        client.send("Metadata", 1, topics=[{"name": "x"}])
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertRefused(client, "its request could not be answered")

    def test_namesInLog(self) -> None:
        """What a client has chosen stays on one line of the log, and short."""
        client = self.connect()
        client.send("Produce", 9, answered=False, **produceFields("a\nb" + "x" * 30_000, batchOf(b"1"), acks=0))
        self.assertTrue(client.isClosed)
        (event,) = [event for event in self.logged if event["log_level"] is LogLevel.warn]
        self.assertNotIn("\n", event["reason"])
        self.assertLess(len(event["reason"]), 2000)


class MemoryTests(BrokerTestCase):
    """Memory goes back as soon as it is not needed."""

    def test_announced(self) -> None:
        """Requests that are announced and do not come hold up neither small ones, nor, for long, large ones."""
        liars = [self.connect() for _ in range(POOL_BYTES // LARGEST_BYTES)]
        for liar in liars:
            liar.sendBytes(struct.pack(">i", LARGEST_BYTES) + header(API_KEYS["Produce"], 9))
        self.topic("events")
        small, large = self.connect(), self.connect()
        self.assertEqual(small.ask("Metadata", 12, topics=None).topics[0].name, "events")
        large.send("Produce", 9, **produceFields("events", batchOf(bytes(POOL_BYTES // 16))))
        self.assertEqual(large.waiting(), 0)
        self.clock.advance(BODY_GRACE_SECONDS)
        self.clock.advance(0)
        self.assertEqual(large.receive().responses[0].partition_responses[0].error_code, 0)
        (closed,) = (liar for liar in liars if liar.isClosed)
        for liar in liars:
            liar.disconnect()
        self.assertRefused(closed, "have not come", "others wait")

    def test_produceBeforeCommit(self) -> None:
        """A Produce request gives its memory and its turn back before the commit."""
        self.topic("events")
        client = self.connect()
        client.deliver("Produce", 9, **produceFields("events", batchOf(bytes(50_000))))
        self.assertGreater(self.pool.peakFrameBytes, 50_000)
        self.assertEqual((self.frameBytes, self.gate.turns.runningRequests), (0, 0))
        self.assertEqual(client.transport.unsent, b"")
        self.clock.advance(0)
        self.assertEqual(client.waiting(), 1)

    def test_slabReused(self) -> None:
        """The next request of the same size is read into the same memory, so nobody keeps a slice of it."""
        self.topic("events")
        client = self.connect()
        idle = set()
        for _ in range(3):
            client.produce("events", batchOf(bytes(100_000)))
            idle.add((self.pool.idleBytes, *(id(slab) for free in self.pool._buffers._free.values() for slab in free)))
        self.assertEqual(len(idle), 1, idle)
        self.assertGreater(self.pool.idleBytes, 100_000)

    def test_slabReusedAfterRefusal(self) -> None:
        """It is also after batches that were refused, requests that cannot be read, and those of other kinds."""
        name = "x" * 10_000
        topics = [{"name": name, "replication_factor": 5}]
        whole = requestFrame(requestOf("Produce", 9, **produceFields(name, bytes(9000))), 1)
        self.connect().sendBytes(whole)
        idleBytes = self.pool.idleBytes
        self.assertGreater(idleBytes, len(whole) - 4)
        self.connect().sendBytes(framed(whole[4:-1]))
        self.connect().sendBytes(framed(requestFrame(requestOf("CreateTopics", 4, topics=topics), 1)[4:-1] * 2))
        self.connect().ask("CreateTopics", 4, topics=topics)
        self.assertEqual([len(free) for free in self.pool._buffers._free.values()], [1, 1])

    def test_otherRequests(self) -> None:
        """Any other request has given its memory back when the broker begins to work on it."""
        seen: list[int] = []

        def topic(name: str) -> Any:
            seen.append(self.frameBytes)
            raise UnknownTopic(name)

        self.log.topic = topic  # type: ignore[method-assign]
        client = self.connect()
        client.ask("Metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=False)
        client.ask("ListOffsets", 4, topics=[{"name": "x", "partitions": [{}]}])
        client.ask("Fetch", 4, topics=[{"topic": "x", "partitions": [{}]}])
        client.ask("DeleteTopics", 4, topic_names=["x"])
        self.assertEqual(seen, [0, 0, 0, 0])


class DisconnectTests(BrokerTestCase):
    """Whatever a client leaves behind, the pool is whole after it has left."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events")
        self.client = self.connect()

    def assertNothingLeft(self) -> None:
        """The client leaves, and nothing of it is left."""
        self.client.disconnect()
        self.assertEqual((self.gate.memory.waiting, self.gate.turns.runningRequests), (0, 0))
        self.assertEqual(self.purgatory.watched, 0)
        self.assertPoolWhole()

    def test_goneBehindRequests(self) -> None:
        """It has hung up behind requests that are still to be served; nobody waits on behalf of it."""
        self.client.send("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=500))
        self.client.send("Produce", 9, answered=False, **produceFields("events", batchOf(b"1"), acks=0))
        self.client.protocol.hasPeerGone = True
        self.client.protocol.peerGone()
        self.assertEqual(self.purgatory.watched, 0)
        self.client.send("Fetch", 12, **fetchFields(self.events, 1, maxWaitMs=500))
        self.assertEqual(self.purgatory.watched, 0)
        self.assertEqual(self.events.partitions[0].highWatermark, 1)
        self.assertNothingLeft()

    def test_committing(self) -> None:
        """Its records waited for their commit; they are stored all the same."""
        self.client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.assertNothingLeft()
        self.assertEqual(self.events.partitions[0].highWatermark, 1)

    def test_duringAnswer(self) -> None:
        """It was cut off while the fetch of another was answered."""
        other = self.connect()
        for client in (other, self.client):
            client.send("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=500))
        respond = other.protocol.respond

        def respondAndCutOff(*args: Any) -> None:
            self.client.protocol.cutOff("the test says so")
            respond(*args)

        other.protocol.respond = respondAndCutOff  # type: ignore[method-assign, assignment]
        self.store(self.events.partitions[0], b"1")
        self.assertEqual((other.waiting(), self.client.waiting()), (1, 0))
        other.disconnect()
        self.assertNothingLeft()


class ClosingTests(BrokerTestCase):
    """A connection that is closed by the broker."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events")

    def test_acknowledgesFirst(self) -> None:
        """A client that waits for a commit hears of it before the connection closes, and is not read any more."""
        for transportType in (None, FakeTLSTransport):
            client = self._connected(transportType)
            client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
            client.protocol.closeGracefully()
            client.deliver("Metadata", 4, answered=False, topics=[{"name": "fresh"}])
            self.assertFalse(client.isClosed)
            self.clock.advance(0)
            self.assertEqual(client.receive().responses[0].partition_responses[0].error_code, 0)
            self.assertEqual((client.isClosed, client.waiting()), (True, 0))
        self.assertNotIn("fresh", self.log.topics)

    def _connected(self, transportType: type[FakeTLSTransport] | None) -> Client:
        if transportType is None:
            return self.connect()
        client = self.connect(transportType)
        assert isinstance(client.transport, FakeTLSTransport)
        client.transport.peerFinishesHandshake()
        self.clock.advance(0)
        return client

    def test_pipelinedCommits(self) -> None:
        """So does who has sent the next records by then, which are stored in the same commit."""
        client = self.connect()
        frames = [
            client.frame(requestOf("Produce", 9, **produceFields("events", batchOf(value)))) for value in (b"1", b"2")
        ]
        client.protocol.dataReceived(b"".join(frames))
        client.protocol.closeGracefully()
        self.clock.advance(0)
        offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in frames]
        self.assertEqual(offsets, [0, 1])
        self.assertEqual((client.isClosed, client.waiting()), (True, 0))
        self.assertEqual(self.events.partitions[0].highWatermark, 2)

    def test_putOffAndClosed(self) -> None:
        """So does one that was put off when the broker closes the connection, and its turn is over."""
        client = self.connect()
        produced = requestOf("Produce", 9, **produceFields("events", batchOf(b"1")))
        client.protocol.dataReceived(client.frame(produced) + client.frame(requestOf("ApiVersions", 0)))
        client.protocol.closeGracefully()
        self.clock.advance(0)
        self.assertEqual((client.isClosed, client.waiting()), (True, 1))
        client.disconnect()
        self.assertPoolWhole()
        self.assertEqual(self.gate.turns.runningRequests, 0)

    def test_secondCommit(self) -> None:
        """A client whose second request waits for its commit hears of that one as well."""
        client = self.connect()
        frames = [
            client.frame(requestOf("Produce", 9, **produceFields("events", batchOf(value)))) for value in (b"1", b"2")
        ]
        client.protocol.dataReceived(b"".join(frames))
        self.log.whenCommitted(lambda error: client.protocol.closeGracefully())
        self.clock.advance(0)
        self.assertEqual(client.waiting(), 2)
        self.assertTrue(client.isClosed)

    def test_parked(self) -> None:
        """A fetch that waits is given up: nothing is lost with it."""
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=10_000))
        client.protocol.closeGracefully()
        self.clock.advance(0)
        self.assertEqual((client.isClosed, client.waiting()), (True, 0))


class SoupTests(BrokerTestCase):
    """Several clients at once, in any order of events."""

    def test_anyOrder(self) -> None:
        """Each client is answered in the order of its requests, and nothing is held for those who left."""
        steps = st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from(["produce", "fetch", "wait", "metadata", "bad", "half", "leave", "stall", "pass"]),
            ),
            min_size=5,
            max_size=40,
        )

        @settings(max_examples=150, deadline=None, database=None, derandomize=True)
        @given(steps, st.randoms(use_true_random=False))
        def check(steps: list[tuple[int, str]], random: Random) -> None:
            if "events" not in self.log.topics:
                self.topic("events", 2)
            self.broken: set[Client] = set()
            try:
                self._runSteps(steps, random)
            finally:
                for client in self.clients:
                    client.disconnect()
                self.clients.clear()
            self.assertPoolWhole()
            if random.random() < 0.2:
                self.log.deleteTopic("events")

        check()

    def _runSteps(self, steps: list[tuple[int, str]], random: Random) -> None:
        clients = [self.connect() for _ in range(3)]
        for index, step in steps:
            if clients[index].isClosed:
                clients[index] = self.connect()
            self._take(step, clients[index], random)
            if random.random() < 0.5:
                self.clock.advance(0)
        for client in self.clients:
            client.transport.isTaking = True
            client.transport.wake()
        # Enough for every fetch that is still behind another.
        for _ in steps:
            self.clock.advance(0.5)
        for client in self.clients:
            # Raises for a response out of order.
            while client.waiting():
                client.receive()
            self.assertEqual(client.transport.received, b"")
            if not (client.isClosed or client in self.broken):
                self.assertEqual(client.expecting(), 0)

    def _take(self, step: str, client: Client, random: Random) -> None:
        topic = self.log.topic("events")
        partition = random.randrange(2)
        if step == "produce":
            acks = random.choice((0, 1, -1))
            request = requestOf("Produce", 9, **produceFields("events", batchOf(b"1"), partition, acks))
            client.transport.peerSends(client.frame(request, acks != 0))
        elif step == "fetch":
            client.transport.peerSends(client.frame(requestOf("Fetch", 12, **fetchFields(topic, 0, 0))))
        elif step == "wait":
            ends = [each.highWatermark for each in topic.partitions]
            fields = fetchFields(topic, *ends, maxWaitMs=random.choice((10, 500)))
            client.transport.peerSends(client.frame(requestOf("Fetch", 17, **fields)))
        elif step == "metadata":
            client.transport.peerSends(client.frame(requestOf("Metadata", 12, topics=[{"name": "events"}])))
        elif step == "bad":
            client.transport.peerSends(framed(header(3, 1)))
        elif step == "half":
            client.transport.peerSends(client.frame(requestOf("ApiVersions", 4))[:-3])
            self.broken.add(client)
        elif step == "leave":
            client.disconnect()
        elif step == "stall":
            client.transport.isTaking = not client.transport.isTaking
            client.transport.wake()
        else:
            self.clock.advance(random.choice((0.01, 0.5)))


class TurnTests(BrokerTestCase):
    """C{queued.max.requests} bounds what is worked on, and parked work is not."""

    properties = {"queued.max.requests": "1"}

    def test_parkedFetches(self) -> None:
        """A fetch that waits leaves its turn to others."""
        topic = self.topic("events")
        first, second = self.connect(), self.connect()
        first.send("Fetch", 12, **fetchFields(topic, 0, maxWaitMs=500))
        self.assertEqual(second.ask("ApiVersions", 4).error_code, 0)


class LongWorkTests(BrokerTestCase):
    """What takes long is done in slices, and what is large waits for memory."""

    properties = {"max.topics": "5000"}

    def setUp(self) -> None:
        super().setUp()
        self.patch(self.broker.timeSlices, "_creditSeconds", -1e9)
        for number in range(1000):
            self.topic(f"{number:0200}")
        self.clock.advance(0)

    def ask(self, client: Client) -> None:
        """Ask for all topics without letting a turn pass."""
        client.deliver("Metadata", 12, topics=None)

    def test_slices(self) -> None:
        """A request that is worked on in slices has no turn; those behind it are answered after it."""
        client, other = self.connect(), self.connect()
        self.ask(client)
        client.deliver("ApiVersions", 4)
        self.assertEqual((client.waiting(), self.gate.turns.runningRequests, self.frameBytes), (0, 0, 0))
        self.assertEqual(other.ask("ApiVersions", 4).error_code, 0)
        self.assertEqual(len(client.receive().topics), 1000)
        self.assertEqual(client.receive().error_code, 0)

    def test_decoding(self) -> None:
        """A request that is not small is decoded in a slice; it holds its frame until then, and no turn."""
        client, gone, closed, bad = (self.connect() for _ in range(4))
        names = [{"name": f"{number:0200}"} for number in range(10)]
        for each in (client, gone, closed):
            each.deliver("Metadata", 9, topics=names)
        damaged = bytearray(bad.frame(requestOf("Metadata", 9, topics=names)))
        damaged[20] = 0xFF
        bad.protocol.dataReceived(bytes(damaged))
        self.assertEqual(self.gate.turns.runningRequests, 0)
        heldBytes = self.frameBytes
        gone.disconnect()
        self.assertLess(self.frameBytes, heldBytes)
        closed.protocol.closeGracefully()
        self.clock.advance(0)
        self.assertEqual(self.frameBytes, 0)
        self.assertEqual(len(client.receive().topics), 10)
        self.assertRefused(bad, "a request that cannot be read")

    def test_changes(self) -> None:
        """Changes are made in slices, too, and answered when the disk has them."""
        client = self.connect()
        topics = [{"name": f"new-{number}", "num_partitions": 1, "replication_factor": 1} for number in range(50)]
        self.isHolding = True
        client.deliver("CreateTopics", 7, topics=topics)
        self.assertNotIn("new-0", self.log.topics)
        self.clock.advance(0)
        self.assertIn("new-49", self.log.topics)
        self.assertEqual(client.waiting(), 0)
        while self.flushes:
            self.finishFlush()
        self.isHolding = False
        self.assertEqual({topic.error_code for topic in client.receive().topics}, {0})

    def test_hangUp(self) -> None:
        """If the client hangs up, the work ends."""
        client = self.connect()
        self.ask(client)
        described: list[str] = []
        self.patch(metadataapi, "_described", lambda broker, topic: described.append(topic.name))
        client.disconnect()
        self.assertEqual((client.waiting(), described), (0, []))

    def test_tooLarge(self) -> None:
        """If the answer takes more memory than one answer may, the connection is closed, and the log says why."""
        self.patch(self.broker, "largestResponseBytes", 100_000)
        client = self.connect()
        client.send("Metadata", 12, topics=None)
        self.assertRefused(client, "Metadata", "more than 100000 bytes", "fetch.max.bytes")
        self.assertEqual(self.broker.largeAnswers.free, MAX_LARGE_ANSWERS)

    def test_atATime(self) -> None:
        """Only some large answers are made at a time; the others have no more than a little meanwhile."""
        taken = [self.broker.largeAnswers.take("others") for _ in range(MAX_LARGE_ANSWERS)]
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            self.ask(client)
        self.clock.advance(0)
        self.assertEqual([client.waiting() for client in clients], [0, 0, 0])
        clients[1].disconnect()
        for _ in taken:
            self.broker.largeAnswers.give()
        self.clock.advance(0)
        self.assertEqual([client.waiting() for client in clients], [1, 0, 1])

    def test_memory(self) -> None:
        """While there is no memory and other answers have not left, a large one waits."""
        held = self.pool.charge(POOL_BYTES, RESPONSES)
        client, gone = self.connect(), self.connect()
        self.ask(client)
        self.ask(gone)
        self.clock.advance(0)
        self.assertEqual(client.waiting(), 0)
        gone.disconnect()
        held.release()
        self.clock.advance(0)
        self.assertEqual(len(client.receive().topics), 1000)

    def test_hangUpAtAnyTime(self) -> None:
        """Whenever the client hangs up while its request is worked on, everything is given back."""
        self.patch(self.broker.timeSlices, "_clock", WorkedClock(self.clock, 0.001))
        self.patch(brokerbackend, "LARGE_ANSWER_BYTES", 500)
        names = [{"topic_id": None, "name": f"{number:0200}"} for number in range(10)]

        def hangUp(client: Client, turns: int) -> None:
            if turns:
                self.clock.callLater(0, hangUp, client, turns - 1)
            else:
                client.disconnect()

        interrupted = 0
        for turns in range(100):
            client = self.connect()
            client.deliver("Metadata", 12, topics=names)
            hangUp(client, turns)
            self.clock.advance(0)
            interrupted += not client.transport.received
        self.assertIn(interrupted, range(10, 90))
        self.assertEqual(self.broker.largeAnswers.free, MAX_LARGE_ANSWERS)
        self.assertEqual(self.pool.usedBytesByPurpose[RESPONSES], 0)

    def test_memoryOfEachOther(self) -> None:
        """Requests that together have all memory, and want more for their answers, do not wait for each other."""
        self.patch(self.broker.timeSlices, "_clock", WorkedClock(self.clock, 0.0001))
        clients = [self.connect() for _ in range(8)]
        names = [{"topic_id": None, "name": f"{number:08}"} for number in range(5000)]
        for client in clients:
            client.deliver("Metadata", 12, topics=names, allow_auto_topic_creation=False)
        pressures: list[bool] = []
        self.gate.pressure.subscribe(pressures.append)
        self.clock.advance(0)
        self.assertEqual([client.waiting() for client in clients], [1] * len(clients))
        self.assertEqual(pressures, [True, False])


class LargestRequestTests(BrokerTestCase):
    """No request is larger than what the pool hands out."""

    def test_poolLimits(self) -> None:
        """The pool's largest allocation goes before a larger C{socket.request.max.bytes}."""
        self.assertLess(LARGEST_BYTES, POOL_BYTES)
        client = self.connect()
        client.sendBytes(struct.pack(">i", LARGEST_BYTES + 1))
        self.assertRefused(client, f"{LARGEST_BYTES} are allowed")
