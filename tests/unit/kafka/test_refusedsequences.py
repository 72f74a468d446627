"""Tests for L{admission.kafka.refusedsequences}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.quotalimits import QuotaLimits
from admission.kafka.refusedsequences import MAX_BATCHES, MAX_BEHIND, RefusedSequences
from admission.kafka.wire.produce import ProducedPartition, ProduceRequest
from admission_plugins.producerids import ProducerIds
from tests.kit.brokerfixture import BrokerTestCase, Client, batchOf, produceFields

THROTTLED = ErrorCode.throttling_quota_exceeded
TOPIC = "events"


class RefusedProducerTests(BrokerTestCase):
    """A new producer that has several batches under way when the first is refused."""

    def setUp(self) -> None:
        """One new id in a second, and none left."""
        super().setUp()
        policy = ProducerIds(windowSeconds=1.0)
        policy.configure(QuotaEntity(user=DEFAULT), {"new_identity_rate": 1.0}, self.clock.seconds())
        self.takeControl(AdmissionControl([("producer-ids", policy)], 20.0))
        self.broker.limits = QuotaLimits(self.log, self.broker.control, self.broker.control.limits, self.clock.seconds)
        self.topic(TOPIC, 2)
        first = batchOf(b"x", producerId=1, producerEpoch=0, baseSequence=0)
        self.assertEqual(self.connect().produce(TOPIC, first, acks=1).error_code, ErrorCode.none)

    def results(
        self, client: Client, batches: Sequence[tuple[int, int, int]], epoch: int = 0, apart: bool = False
    ) -> list[tuple[ErrorCode, int]]:
        """
        Send batches, given as producer id, partition and sequence number, each in a request of its own, and let two
        seconds pass.

        @param apart: whether to await each response before the next request.
        @return: errors and offsets.
        """
        answers: list[Any] = []
        for producerId, partition, sequence in batches:
            batch = batchOf(b"%d" % sequence, producerId=producerId, producerEpoch=epoch, baseSequence=sequence)
            client.send("Produce", 9, **produceFields(TOPIC, batch, partition, acks=1))
            if apart:
                answers.append(client.receive())
        self.clock.advance(2.0)
        self.clock.advance(0)
        while client.waiting():
            answers.append(client.receive())
        return [
            (result.error_code, result.base_offset)
            for answer in answers
            for result in answer.responses[0].partition_responses
        ]

    def test_batchesBehind(self) -> None:
        """
        What was sent behind a refused batch is refused as well, though there is a token by then; sent again in their
        order, all are stored.
        """
        client = self.connect()
        sent = [(2, 0, 0), (2, 0, 1), (2, 0, 2)]
        self.assertEqual(self.results(client, sent), [(THROTTLED, -1)] * 3)
        self.assertEqual(self.results(client, sent), [(ErrorCode.none, offset) for offset in (1, 2, 3)])

    def test_reason(self) -> None:
        """The client is told what to do, and is not made to wait."""
        client = self.connect()
        self.results(client, [(2, 0, 0)])
        later = batchOf(b"x", producerId=2, producerEpoch=0, baseSequence=1)
        answer = client.ask("Produce", 9, **produceFields(TOPIC, later))
        self.assertEqual(answer.throttle_time.total_seconds(), 0.0)
        self.assertIn("comes before it was refused", answer.responses[0].partition_responses[0].error_message)

    def test_otherPartition(self) -> None:
        """In a partition where nothing is missing the producer goes on."""
        client = self.connect()
        self.assertEqual(
            self.results(client, [(2, 0, 0), (2, 1, 0), (2, 1, 1), (2, 0, 1)]),
            [(THROTTLED, -1), (ErrorCode.none, 0), (ErrorCode.none, 1), (THROTTLED, -1)],
        )

    def test_newEpoch(self) -> None:
        """A producer that gives the batch up and begins again, as librdkafka does, is let in."""
        client = self.connect()
        self.assertEqual(self.results(client, [(2, 0, 0)]), [(THROTTLED, -1)])
        self.assertEqual(self.results(client, [(2, 0, 0)], epoch=1), [(ErrorCode.none, 1)])

    def test_givenUp(self) -> None:
        """
        A producer that gives the batch up and goes on, as aiokafka does, is let in after as many requests as can have
        been under way.
        """
        client = self.connect()
        self.assertEqual(self.results(client, [(2, 0, 0)]), [(THROTTLED, -1)])
        after = self.results(client, [(2, 0, sequence) for sequence in range(1, 7)], apart=True)
        self.assertEqual([error for error, _ in after], [THROTTLED] * MAX_BEHIND + [ErrorCode.none] * 2)

    def test_otherConnection(self) -> None:
        """Other connections know nothing of it: there the order of requests says nothing."""
        self.assertEqual(self.results(self.connect(), [(2, 0, 0)]), [(THROTTLED, -1)])
        self.assertEqual(self.results(self.connect(), [(2, 0, 1)]), [(ErrorCode.none, 1)])


class RefusedSequencesTests(BrokerTestCase):
    """What L{RefusedSequences} remembers."""

    def request(self, producerId: int, sequence: int, partitions: Sequence[int]) -> ProduceRequest:
        """One batch for each partition."""
        records = memoryview(batchOf(b"x", producerId=producerId, producerEpoch=0, baseSequence=sequence))
        produced = [ProducedPartition(TOPIC, index, records) for index in partitions]
        return ProduceRequest(None, -1, 1000, produced, len(produced) + 1)

    def test_bound(self) -> None:
        """However many producers are refused, few batches are remembered; the last ones are."""
        sequences = RefusedSequences()
        for producerId in range(10 * MAX_BATCHES + 1):
            sequences.add(self.request(producerId, 0, [0]))
        self.assertLessEqual(len(sequences._sequences), MAX_BATCHES)
        self.assertTrue(sequences.blocks(self.request(10 * MAX_BATCHES, 1, [0])))

    def test_wrapped(self) -> None:
        """After 2^31 - 1 comes 0: what was sent behind the refused batch is refused there, too."""
        sequences = RefusedSequences()
        sequences.add(self.request(2, 2**31 - 3, [0]))
        self.assertEqual([sequences.blocks(self.request(2, each, [0])) for each in (0, 2)], [True, True])
        self.assertFalse(sequences.blocks(self.request(2, 2**31 - 3, [0])))
        self.assertFalse(sequences.blocks(self.request(2, 0, [0])))

    def test_refusedBecauseOfAnother(self) -> None:
        """A request that is blocked for one of its batches blocks what continues the others."""
        sequences = RefusedSequences()
        sequences.add(self.request(2, 0, [0]))
        mixed = self.request(2, 1, [0])
        mixed.partitions += self.request(2, 0, [1]).partitions
        self.assertTrue(sequences.blocks(mixed))
        self.assertTrue(sequences.blocks(self.request(2, 1, [1])))

    def test_noProducer(self) -> None:
        """Batches without a producer are in nobody's order, and neither is what is too short to be one."""
        sequences = RefusedSequences()
        short = self.request(2, 0, [0])
        short.partitions = [ProducedPartition(TOPIC, 0, memoryview(b"x")), ProducedPartition(TOPIC, 1, None)]
        for refused in (self.request(-1, -1, [0]), short):
            sequences.add(refused)
        self.assertEqual(sequences._sequences, {})
        self.assertFalse(sequences.blocks(self.request(-1, 5, [0])))
