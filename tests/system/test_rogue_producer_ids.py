"""
A rogue that sends as many producer ids as it can, and a user beside it who has a few:
L{admission_plugins.producerids}.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.producers import REMEMBERED_BATCHES
from benchmarks.rogueload import ProduceTemplate
from tests.kit.brokerfixture import API_KEYS, batchOf, requestOf
from tests.kit.limitingbroker import LimitingBroker
from tests.kit.longform import longForm
from tests.kit.rawclient import RawClient, produceRequest

ROGUE, STEADY = "rogue", "steady"
ROGUE_TOPIC, STEADY_TOPIC = "flooded", "steady"
PARTITIONS = 1000
IDS = 100_000

ROGUE_LIMIT = 10_000
"""So many new ids in four seconds that most of the time some are let in: else it would have to wait for days."""

STEADY_LIMIT = 5
PRODUCERS = range(STEADY_LIMIT)
CONNECTIONS = 16
REQUESTS_EACH = 400
"""How many the rogue has under way on each connection."""

REMEMBERED = 1000
MAX_STATE_BYTES = 350
"""What it may take to remember one producer of a user with a short name."""

FILTERS_BYTES = 64 << 10

# Behind the correlation id and tags; of topics and partitions, how many; the topic's name; the partition's number.
_ERROR_AT = 4 + 1 + 1 + (1 + len(ROGUE_TOPIC)) + 1 + 4


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

    def allow(self, user: str, limit: float) -> None:
        """Give a user a limit of its own."""
        operation = {"key": "producer_ids_rate", "value": limit, "remove": False}
        entry = {"entity": [{"entity_type": "user", "entity_name": user}], "ops": [operation]}
        answer = self.steady.ask(requestOf("AlterClientQuotas", 1, entries=[entry], validate_only=False))
        self.assertEqual([each.error_code for each in answer.entries], [ErrorCode.none])

    def sendSteadily(self, producerId: int) -> None:
        """A producer of the steady user goes on; it is neither refused nor throttled."""
        batch = batchOf(b"steady", producerId=producerId, producerEpoch=0, baseSequence=self.sequence)
        answer = self.steady.ask(produceRequest(STEADY_TOPIC, batch, partition=producerId))
        [result] = answer.responses[0].partition_responses
        self.assertEqual((result.error_code, result.base_offset), (ErrorCode.none, self.sequence))
        self.assertEqual(answer.throttle_time.total_seconds(), 0.0)
        if producerId == PRODUCERS[-1]:
            self.sequence += 1

    @longForm
    def test_frames(self) -> None:
        """
        However many ids come, each in a request of its own, what is remembered of producers and of their ids stays
        under its caps, and a user whose producers are known is never refused nor throttled.
        """
        self.allow(ROGUE, ROGUE_LIMIT)
        template = ProduceTemplate(ROGUE_TOPIC, 1, acks=1)
        errors: Counter[ErrorCode] = Counter()
        held = []
        with ExitStack() as stack:
            rogues = [stack.enter_context(self.broker.raw(ROGUE)) for _ in range(CONNECTIONS)]
            sent = 0
            while sent < IDS:
                for rogue in rogues:
                    ids = range(1_000_000 + sent, 1_000_000 + sent + REQUESTS_EACH)
                    rogue.sendBytes(b"".join(map(template.withIds, ids)))
                    sent += REQUESTS_EACH
                for producerId in PRODUCERS:
                    self.sendSteadily(producerId)
                for rogue in rogues:
                    for _ in range(REQUESTS_EACH):
                        errors[errorIn(rogue.receiveFrame())] += 1
                held.append(self.broker.heldBytes())
        self.assertEqual(sum(errors.values()), sent)
        self.assertEqual(set(errors), {ErrorCode.none, ErrorCode.throttling_quota_exceeded})
        self.assertGreaterEqual(errors[ErrorCode.none], ROGUE_LIMIT)
        states, filters = zip(*held, strict=True)
        self.assertLessEqual(max(states), REMEMBERED * MAX_STATE_BYTES)
        self.assertLessEqual(max(filters), FILTERS_BYTES)
        # Both are full, or it would have been no trial.
        self.assertGreater(min(max(states) / REMEMBERED / MAX_STATE_BYTES, max(filters) / FILTERS_BYTES), 0.5)
        self.assertEqual(self.broker.complaints(), [])

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


def errorIn(frame: bytes) -> ErrorCode:
    """The error of the only partition in a response to Produce."""
    return ErrorCode(int.from_bytes(frame[_ERROR_AT : _ERROR_AT + 2], "big"))
