"""
A rogue that sends as many producer ids as it can, and a user beside it who has a few:
L{admission_plugins.producerids}.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.producers import REMEMBERED_BATCHES
from benchmarks.rogueload import ProduceTemplate
from tests.kit.brokerfixture import API_KEYS, batchOf
from tests.kit.limitingbroker import LimitingBroker
from tests.kit.rawclient import RawClient, produceRequest

ROGUE, STEADY = "rogue", "steady"
ROGUE_TOPIC, STEADY_TOPIC = "flooded", "steady"
PARTITIONS = 1000
IDS = 100_000

STEADY_LIMIT = 5
PRODUCERS = range(STEADY_LIMIT)

REMEMBERED = 1000

FILTERS_BYTES = 64 << 10


class RogueTests(SynchronousTestCase):
    """A hundred thousand ids."""

    def setUp(self) -> None:
        """Have a broker with little memory for producers, and a steady user who has used up its limit."""
        self.broker = LimitingBroker(
            f"rate={STEADY_LIMIT}:window=4s:maxBytes={FILTERS_BYTES}",
            [ROGUE, STEADY],
            *("--set", f"max.producer.ids={REMEMBERED}"),
            *("--set", f"num.partitions={PARTITIONS}"),
            *("--set", f"super.users=User:{STEADY}"),
        )
        self.addCleanup(self.broker.remove)
        self.broker.start()
        self.steady = self.connect(STEADY)
        for topic in (ROGUE_TOPIC, STEADY_TOPIC):
            self.steady.createTopic(topic)
        self.sequence = 0
        # From then on it takes no more memory.
        for _ in range(REMEMBERED_BATCHES):
            for producerId in PRODUCERS:
                self.sendSteadily(producerId)

    def connect(self, user: str) -> RawClient:
        """A connection, closed when the test ends."""
        client = self.broker.raw(user)
        self.addCleanup(client.close)
        return client

    def sendSteadily(self, producerId: int) -> None:
        """A producer of the steady user goes on; it is neither refused nor throttled."""
        batch = batchOf(b"steady", producerId=producerId, producerEpoch=0, baseSequence=self.sequence)
        answer = self.steady.ask(produceRequest(STEADY_TOPIC, batch, partition=producerId))
        [result] = answer.responses[0].partition_responses
        self.assertEqual((result.error_code, result.base_offset), (ErrorCode.none, self.sequence))
        self.assertEqual(answer.throttle_time.total_seconds(), 0.0)
        if producerId == PRODUCERS[-1]:
            self.sequence += 1

    def test_manyInOneRequest(self) -> None:
        """
        Ids that come many in a request, each time by a new connection that does not wait, are refused all together,
        and nothing is remembered of them.
        """
        template = ProduceTemplate(ROGUE_TOPIC, PARTITIONS, acks=1)
        before, _ = self.broker.heldBytes()
        for firstId in range(1_000_000, 1_000_000 + IDS, PARTITIONS):
            with self.broker.raw(ROGUE) as rogue:
                rogue.sendBytes(template.withIds(firstId))
                self.sendSteadily(firstId // PARTITIONS % STEADY_LIMIT)
                [topic] = rogue.receive(API_KEYS["Produce"], 9).responses
            errors = [each.error_code for each in topic.partition_responses]
            self.assertEqual(errors, [ErrorCode.throttling_quota_exceeded] * PARTITIONS)
        self.assertEqual(self.broker.heldBytes()[0], before)
        filters = self.broker.ask("sensors")["families"]["producer-ids.filter-bytes"]["values"]
        self.assertEqual([user for user, _ in filters], [STEADY])
        self.assertEqual(self.steady.endOffset(ROGUE_TOPIC, partition=PARTITIONS - 1), 0)
        self.assertEqual(self.broker.complaints(), [])
