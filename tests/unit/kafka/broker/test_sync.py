"""Tests for C{acks=all}: records that are to survive the loss of power are acknowledged when the disk has them."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from admission.connection.driver import FAILED
from admission.connection.pauses import Pause
from admission.interfaces import PARKED
from admission.kafka.broker import produceresponses
from admission.kafka.serving.session import KafkaSession
from admission.kafka.wire.produce import encodeProduceResponse
from admission.request import ServerRequest
from tests.kit.brokerfixture import BrokerTestCase, Client, batchOf, produceFields, requestOf

ALL = -1
LEADER = 1


class SyncTests(BrokerTestCase):
    """A broker whose disk is as slow as a test wants it."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events")
        self.client = self.connect()
        self.clock.advance(2)
        self.isHolding = True
        self.addCleanup(self.finishFlushes)

    def produceBytes(self, client: Client, value: bytes, acks: int) -> bytes:
        """A Produce request."""
        return client.frame(requestOf("Produce", 9, **produceFields("events", batchOf(value), acks=acks)))

    def send(self, client: Client, *frames: bytes) -> None:
        """Send requests at once, and let what they append be committed."""
        client.protocol.dataReceived(b"".join(frames))
        self.clock.advance(0)

    def result(self, client: Client) -> tuple[int, int]:
        """The error and the offset that the next response tells of."""
        partition = client.receive().responses[0].partition_responses[0]
        return partition.error_code, partition.base_offset

    def test_waitsForTheDisk(self) -> None:
        """
        C{acks=1} is answered when the records are committed, C{acks=all} when the disk has them, which is asked at
        once.
        """
        self.send(self.client, self.produceBytes(self.client, b"1", LEADER))
        self.assertEqual((self.result(self.client), self.flushes), ((0, 0), []))
        self.send(self.client, self.produceBytes(self.client, b"2", ALL))
        self.assertEqual((self.client.waiting(), len(self.flushes), self.purgatory.watched), (0, 1, 1))
        self.assertEqual(self.events.partitions[0].highWatermark, 2)
        self.finishFlush()
        self.assertEqual((self.result(self.client), self.purgatory.watched), ((0, 1), 0))

    def test_cached(self) -> None:
        """With C{write.caching} C{acks=all} does not wait for the disk; one topic without it is enough to wait."""
        self.topic("cached", configs={"write.caching": "true"})
        self.assertEqual(len(self.flushes), 0)
        cached = produceFields("cached", batchOf(b"1"), acks=ALL)
        self.client.send("Produce", 9, **cached)
        self.assertEqual((self.result(self.client), self.flushes), ((0, 0), []))
        both = produceFields("events", batchOf(b"2"), acks=ALL)
        both["topic_data"] = [*both["topic_data"], *cached["topic_data"]]
        self.client.send("Produce", 9, **both)
        self.assertEqual((self.client.waiting(), len(self.flushes) > 0), (0, True))
        while self.flushes:
            self.finishFlush()
        self.assertEqual([each.partition_responses[0].error_code for each in self.client.receive().responses], [0, 0])

    def test_fullPurgatory(self) -> None:
        """
        A purgatory may have no place for the wait, or end it early: then the requests are answered as those are that
        the disk has not confirmed in time, and the next one is as well.
        """
        watch = self.purgatory.tryCompleteElseWatch

        def force(operation: Any, keys: Any) -> bool:
            return bool(operation.tryComplete() or operation.forceComplete())

        self.patch(self.purgatory, "tryCompleteElseWatch", force)
        for value in (b"1", b"2"):
            self.send(self.client, *[self.produceBytes(self.client, value, ALL) for _ in range(3)])
            self.assertEqual([self.result(self.client)[0] for _ in range(3)], [ErrorCode.request_timed_out] * 3)
        watched: list[Any] = []

        def remember(operation: Any, keys: Any) -> bool:
            watched.append(operation)
            return bool(watch(operation, keys))

        self.patch(self.purgatory, "tryCompleteElseWatch", remember)
        self.send(self.client, *[self.produceBytes(self.client, b"3", ALL) for _ in range(2)])
        self.assertEqual(self.client.waiting(), 0)
        self.assertTrue(watched[-1].forceComplete())
        self.clock.advance(0)
        self.assertEqual([self.result(self.client)[0] for _ in range(2)], [ErrorCode.request_timed_out] * 2)
        while self.flushes:
            self.finishFlush()
        self.assertEqual(self.gate.pool.usedBytesByPurpose.get(PARKED, 0), 0)
        self.send(self.client, self.produceBytes(self.client, b"4", ALL))
        self.finishFlush()
        self.assertEqual(self.result(self.client), (0, 8))

    def test_fullPurgatoryOfOthers(self) -> None:
        """So it is for other requests that wait for the disk."""

        def force(operation: Any, keys: Any) -> bool:
            return bool(operation.tryComplete() or operation.forceComplete())

        self.patch(self.purgatory, "tryCompleteElseWatch", force)
        topic = {"name": "more", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        self.client.send("CreateTopics", 5, topics=[topic], timeout=1000, validate_only=False)
        self.clock.advance(0)
        self.assertEqual(self.client.receive().topics[0].error_code, ErrorCode.request_timed_out)

    def test_failure(self) -> None:
        """
        When a flush fails, those who wait are told, and so is everybody who comes later, with
        C{write.caching} or not.
        """
        self.topic("cached", configs={"write.caching": "true"})
        others = [self.connect() for _ in range(2)]
        for client in others:
            self.send(client, self.produceBytes(client, b"1", ALL))
        self.disk.flushError = OSError(errno.EIO, "input/output error")
        while self.flushes:
            self.finishFlush()
        self.assertEqual([self.result(client)[0] for client in others], [ErrorCode.kafka_storage_error] * 2)
        self.disk.flushError = None
        for topicName, acks in (("cached", ALL), ("events", LEADER), ("events", ALL)):
            self.client.send("Produce", 9, **produceFields(topicName, batchOf(b"2"), acks=acks))
            self.assertEqual(self.result(self.client)[0], ErrorCode.kafka_storage_error)
        self.logged.clear()

    def test_leastPatient(self) -> None:
        """
        The wait ends when the least patient request of a connection has waited long enough; its answer still keeps its
        place.
        """
        patient = produceFields("events", batchOf(b"1"), acks=ALL) | {"timeout": 60_000}
        impatient = produceFields("events", batchOf(b"2"), acks=ALL) | {"timeout": 1_000}
        for fields in (patient, impatient):
            self.client.send("Produce", 9, **fields)
        self.assertEqual(self.purgatory.watched, 1)
        self.clock.advance(1.1)
        self.assertEqual((self.client.waiting(), self.purgatory.watched), (0, 1))
        self.finishFlush()
        self.assertEqual(self.result(self.client), (0, 0))
        self.assertEqual(self.result(self.client)[0], ErrorCode.request_timed_out)

    def test_oneSyncForAll(self) -> None:
        """
        A request that was committed before the disk is asked is served by the same synchronisation, and one that comes
        later by the next one.
        """
        others = [self.connect() for _ in range(3)]
        for client in others[:2]:
            client.protocol.dataReceived(self.produceBytes(client, b"1", ALL))
        self.clock.advance(0)
        self.assertEqual(len(self.flushes), 1)
        self.send(others[2], self.produceBytes(others[2], b"2", ALL))
        self.finishFlush()
        self.assertEqual([client.waiting() for client in others], [1, 1, 0])
        self.assertEqual(len(self.flushes), 1)
        self.finishFlush()
        self.assertEqual([client.waiting() for client in others], [1, 1, 1])

    def test_order(self) -> None:
        """
        Responses leave in the order of the requests: what needs no disk, and what is no Produce, waits for those
        before it.
        """
        self.send(
            self.client,
            self.produceBytes(self.client, b"1", ALL),
            self.produceBytes(self.client, b"2", LEADER),
            self.client.frame(requestOf("ApiVersions", 0)),
        )
        self.assertEqual(self.client.waiting(), 0)
        self.finishFlush()
        self.assertEqual([self.result(self.client) for _ in range(2)], [(0, 0), (0, 1)])
        self.assertEqual(self.client.receive().error_code, 0)

    def test_timeout(self) -> None:
        """
        When the disk takes longer than the client wants to wait, it hears of that, and the records are there all the
        same.
        """
        self.send(self.client, self.produceBytes(self.client, b"1", ALL))
        self.clock.advance(0.99)
        self.assertEqual(self.client.waiting(), 0)
        self.clock.advance(0.02)
        self.assertEqual(self.result(self.client), (ErrorCode.request_timed_out, -1))
        self.finishFlush()
        self.assertEqual((self.client.waiting(), self.events.partitions[0].highWatermark), (0, 1))

    def test_brokenAnswer(self) -> None:
        """
        When an answer cannot be made, those before it are sent, those behind it
        would be taken for it, so the connection ends, and nothing is left.
        """

        def encode(version: int, results: Any, throttleTimeMs: int) -> bytes:
            if results[0].baseOffset == 1:
                raise ZeroDivisionError
            return encodeProduceResponse(version, results, throttleTimeMs)

        self.patch(produceresponses, "encodeProduceResponse", encode)
        over: list[ServerRequest] = []
        observer: Any = SimpleNamespace(requestOver=over.append, connectionClosed=lambda *_: None)
        self.factory.observers = [observer]
        self.send(self.client, *(self.produceBytes(self.client, value, LEADER) for value in (b"0", b"1", b"2")))
        self.assertEqual(self.result(self.client), (0, 0))
        self.assertEqual(self.client.waiting(), 0)
        self.assertTrue(self.client.transport.isLost)
        self.assertEqual([request.expireReason for request in over], [None, FAILED, FAILED])
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))

    def test_failingPurgatory(self) -> None:
        """
        Where the purgatory cannot keep a request that waits for the disk, or cannot be told that it need not wait, the
        connection is closed: its client would wait in vain.  Nothing stays charged.
        """
        for method in ("tryCompleteElseWatch", "checkAndComplete"):
            client = self.connect()
            working = getattr(self.purgatory, method)

            def fail(*_: object) -> None:
                raise ZeroDivisionError

            if method == "tryCompleteElseWatch":
                self.patch(self.purgatory, method, fail)
            self.send(client, self.produceBytes(client, b"1", ALL))
            self.patch(self.purgatory, method, fail)
            while self.flushes:
                self.finishFlush()
            self.patch(self.purgatory, method, working)
            self.clock.advance(self.factory.limits.closeGraceSeconds)
            self.clock.advance(0)
            self.assertEqual((client.isClosed, self.purgatory.watched), (True, 0))
            self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))
            self.assertFalse(self.pool.usedBytesByPurpose.get(PARKED))
        self.logged.clear()

    def test_nothingAppended(self) -> None:
        """A producer that has appended nothing need not wait for the disk."""
        result = self.client.produce("events", batchOf(b"1")[:-1])
        self.assertEqual((result.error_code, self.flushes), (ErrorCode.corrupt_message, []))

    def test_disconnect(self) -> None:
        """A client that leaves takes its operation along, and a request that was put off gives its memory back."""
        self.send(
            self.client, self.produceBytes(self.client, b"1", ALL), self.client.frame(requestOf("ApiVersions", 0))
        )
        self.assertGreater(self.pool.usedBytesByPurpose["frames"], 0)
        self.client.disconnect()
        self.assertEqual(self.purgatory.watched, 0)
        self.assertPoolWhole()

    def test_maxUnanswered(self) -> None:
        """A client that sends on and on while the disk is slow is not read any more, until it is answered."""
        frames = [self.produceBytes(self.client, b"%d" % number, ALL) for number in range(KafkaSession.maxInFlight + 5)]
        self.send(self.client, *frames)
        self.assertEqual(self.events.partitions[0].highWatermark, KafkaSession.maxInFlight)
        self.assertEqual(self.client.protocol.pauses.reasons.keys() - {Pause.BUSY}, {Pause.UNANSWERED})
        self.finishFlush()
        self.assertEqual(self.events.partitions[0].highWatermark, KafkaSession.maxInFlight + 5)
        self.finishFlush()
        offsets = [self.result(self.client)[1] for _ in frames]
        self.assertEqual(offsets, list(range(len(frames))))
        self.assertEqual(self.client.protocol.pauses.reasons, {})
