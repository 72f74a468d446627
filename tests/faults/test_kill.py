"""
Imitates a machine that kills the broker again and again (kill -9, the kernel short of memory), at any moment and under
load: idempotent producers with C{acks=all}, others with C{acks=1}, and a consumer of a group that commits.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

from tests.kit.attack import sized
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, copiesIn, milliseconds, sameProducer
from tests.kit.rawclient import joinGroup

ROUNDS = sized(4, 50)
ONCE, ORDINARY = "once", "ordinary"
GROUP, MEMBERS = "readers", "members"


class Reader:
    """
    A consumer that commits, and knows what was confirmed.

    @ivar confirmed: the last offset whose commit was confirmed.
    @ivar tried: the last one whose commit was asked for.
    @ivar received: what it was given, by offset.
    @ivar changed: offsets at which it was given something else than before.
    """

    def __init__(self, address: str) -> None:
        self.confirmed = self.tried = 0
        self.received: dict[int, bytes] = {}
        self.changed: list[int] = []
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([ONCE])

    def read(self) -> None:
        """Receive some, and commit."""
        offset = self.tried
        for message in self._consumer.consume(100, 0.05):
            if message.error() is None:
                offset = message.offset() + 1
                if self.received.setdefault(message.offset(), message.value()) != message.value():
                    self.changed.append(message.offset())
        if offset <= self.tried:
            return
        self.tried = offset
        try:
            self._consumer.commit(offsets=[TopicPartition(ONCE, 0, offset)], asynchronous=False)
        except KafkaException:
            return
        self.confirmed = offset

    def close(self) -> None:
        self._consumer.close()


class KillTests(FaultTestCase):
    """C{kill -9} in rounds."""

    settings = ("group.initial.rebalance.delay.ms=0",)

    def test_orders(self) -> None:
        """
        Whatever was acknowledged stays where it was said to be; what idempotent producers send is there once, in order;
        offsets whose commit was confirmed stand; generations of groups do not go back, and no producer id is given
        twice.
        """
        random = Random(17)
        once = EagerProducer(self.broker.address, ONCE, {"enable.idempotence": True, "acks": -1})
        ordinary = EagerProducer(self.broker.address, ORDINARY, {"acks": 1})
        reader = Reader(self.broker.address)
        servedSeconds: list[float] = []
        acknowledgedSeconds: list[float] = []
        generations = [self.generation()]
        producerIds: list[int] = []

        def produce() -> None:
            for each in (once, ordinary):
                each.send(20)

        with Busy(produce), Busy(reader.read):
            for _ in range(ROUNDS):
                before, asked = reader.confirmed, time.monotonic()
                while reader.confirmed == before:
                    self.assertLess(time.monotonic() - asked, PATIENCE_SECONDS)
                    time.sleep(0.01)
                time.sleep(random.uniform(0.0, sized(0.3, 2.0)))
                self.broker.kill()
                confirmed, begun = reader.confirmed, time.monotonic()
                acknowledged = len(once.acknowledged)
                self.broker.start()
                servedSeconds.append(time.monotonic() - begun)
                with self.connect() as raw:
                    committed = self.committed(raw)
                    producerIds.append(raw.producerId())
                self.assertTrue(confirmed <= committed <= reader.tried, (confirmed, committed, reader.tried))
                generations.append(self.generation())
                while len(once.acknowledged) == acknowledged:
                    time.sleep(0.001)
                acknowledgedSeconds.append(time.monotonic() - begun)
        self.assertEqual([(each.flush(), each.errors) for each in (once, ordinary)], [(0, []), (0, [])])
        reader.close()
        stored = {each: copiesIn(self.broker.port, each.topic) for each in (once, ordinary)}
        lost = {
            each.topic: sum(
                offset not in [copy.offset for copy in stored[each].get(value, ())]
                for offset, value in each.acknowledged.items()
            )
            for each in stored
        }
        places = [copy.offset for number in range(once.sentCount) for copy in stored[once].get(b"%d" % number, ())]
        self.tell(
            f"{ROUNDS} rounds of kill -9",
            f"{len(once.acknowledged)} acknowledged with acks=all, {len(ordinary.acknowledged)} with acks=1, "
            f"lost {lost}; "
            f"{sum(len(each) > 1 for each in stored[once].values())} of the idempotent producer stand twice; "
            f"{len(reader.received)} records read, the last confirmed commit {reader.confirmed}; generations to "
            f"{generations[-1]}; serves after {milliseconds(servedSeconds)}, acknowledges after "
            f"{milliseconds(acknowledgedSeconds)}",
        )
        self.assertEqual(lost, {ONCE: 0, ORDINARY: 0})
        self.assertEqual(places, list(range(once.sentCount)))
        self.assertEqual(sameProducer(stored[once].values()), 0)
        self.assertEqual(reader.changed, [])
        self.assertEqual(generations, sorted(set(generations)))
        producerIds += {copy.producerId for copies in stored[once].values() for copy in copies}
        self.assertEqual(len(set(producerIds)), len(producerIds))
        self.assertGreater(reader.confirmed, 0)
        self.assertNoComplaints()

    def committed(self, raw: Any) -> int:
        """The offset of the reader that the broker knows of."""
        wanted = [{"name": ONCE, "partition_indexes": [0]}]
        answer = raw.ask(requestOf("OffsetFetch", 7, group_id=GROUP, topics=wanted))
        return max(int(answer.topics[0].partitions[0].committed_offset), 0)

    def generation(self) -> int:
        """The generation of a group that we join, and leave again."""
        with self.connect() as raw:
            memberId, generation = joinGroup(raw, MEMBERS)
            left = raw.ask(requestOf("LeaveGroup", 3, group_id=MEMBERS, members=[{"member_id": memberId}]))
            self.assertEqual(left.error_code, ErrorCode.none)
        return generation
