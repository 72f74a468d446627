"""
Imitates a disk that answers no more for some seconds: a controller that resets, a network disk that has lost its
network.  What is written goes to the page cache; no flush ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from tests.kit.attack import sized
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, FaultyBroker, copiesIn, milliseconds, recent
from tests.kit.rawclient import RawClient, fetchRequest, joinGroup, produceRequest

HANGS_SECONDS = sized(0.0, 60.0)
"""For how long it hangs, and until C{/healthz} tells."""

PATIENT_MS = 1000
ALL, LEADER = -1, 1
TOPIC, GROUP = "good", "group"


class HangingDiskTests(FaultTestCase):
    """No flush ends."""

    brokerType = FaultyBroker
    settings = ("group.initial.rebalance.delay.ms=0",)
    broker: FaultyBroker

    def test_hangs(self) -> None:
        """
        C{acks=1}, fetches, heartbeats and commits of offsets are answered as ever; what has to wait for the disk is
        told so after the time that it asked for; C{/healthz} tells; and all goes on when the disk does, with nothing
        lost.
        """
        raw = self.connect()
        raw.createTopic(TOPIC)
        raw.createTopic("once")
        memberId, generation = joinGroup(raw, GROUP)
        once = EagerProducer(
            self.broker.address, "once", {"enable.idempotence": True, "acks": -1, "request.timeout.ms": PATIENT_MS}
        )
        took: dict[str, list[float]] = {}

        def timed(name: str, ask: Callable[[], Any]) -> Any:
            begun = time.monotonic()
            answer = ask()
            took.setdefault(name, []).append(time.monotonic() - begun)
            return answer

        def produce(acks: int) -> int:
            answer = raw.ask(produceRequest(TOPIC, recent(b"record"), acks=acks, timeoutMs=PATIENT_MS))
            return int(answer.responses[0].partition_responses[0].error_code)

        def heartbeat() -> int:
            beat = requestOf("Heartbeat", 4, group_id=GROUP, generation_id=generation, member_id=memberId)
            return int(raw.ask(beat).error_code)

        def commit() -> int:
            partitions = [{"partition_index": 0, "committed_offset": 1}]
            answer = raw.ask(
                requestOf(
                    "OffsetCommit",
                    7,
                    group_id=GROUP,
                    generation_id_or_member_epoch=generation,
                    member_id=memberId,
                    topics=[{"name": TOPIC, "partitions": partitions}],
                )
            )
            return int(answer.topics[0].partitions[0].error_code)

        def create(name: str) -> tuple[int, str | None]:
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
            with RawClient(self.broker.port) as other:
                (created,) = other.ask(requestOf("CreateTopics", 7, topics=topics, timeout=PATIENT_MS)).topics
            return int(created.error_code), created.error_message

        self.assertEqual((produce(ALL), produce(LEADER), heartbeat(), commit()), (0, 0, 0, 0))
        with Busy(lambda: once.send(10)):
            while len(once.acknowledged) < 100:
                time.sleep(0.01)
            self.broker.hang()
            hungAt = time.monotonic()
            time.sleep(0.2)
            acknowledged = len(once.acknowledged)
            unhealthySeconds = None
            rounds = 0
            created = timed("CreateTopics", lambda: create("created"))
            while time.monotonic() - hungAt < HANGS_SECONDS or unhealthySeconds is None:
                self.assertLess(time.monotonic() - hungAt, PATIENCE_SECONDS + HANGS_SECONDS)
                rounds += 1
                self.assertEqual(timed("acks=1", lambda: produce(LEADER)), 0)
                self.assertEqual(timed("acks=all", lambda: produce(ALL)), ErrorCode.request_timed_out)
                self.assertEqual(timed("Heartbeat", heartbeat), 0)
                self.assertEqual(timed("OffsetCommit", commit), 0)
                fetched = timed("Fetch", lambda: raw.ask(fetchRequest(TOPIC, 0))).responses[0].partitions[0]
                self.assertEqual((fetched.error_code, fetched.high_watermark), (0, 2 + 2 * rounds))
                if unhealthySeconds is None and self.health():
                    unhealthySeconds = time.monotonic() - hungAt
            self.assertEqual(len(once.acknowledged), acknowledged)
            (reason,) = self.health()
            self.broker.release()
            released = time.monotonic()
            while len(once.acknowledged) == acknowledged:
                time.sleep(0.001)
            goesOnSeconds = time.monotonic() - released
            self.assertEqual((produce(ALL), create("later")), (0, (0, None)))
            self.assertEqual((self.health(), len(raw.allTopics())), ([], 4))
        self.assertEqual((once.flush(), once.errors), (0, []))
        stored = copiesIn(self.broker.port, "once")
        twice = sum(len(each) > 1 for each in stored.values())
        self.tell(
            f"a disk that hangs for {released - hungAt:.0f} s",
            "; ".join(f"{name} {milliseconds(seconds)}" for name, seconds in took.items())
            + f" (asked to wait {PATIENT_MS}); /healthz tells after {unhealthySeconds:.0f} s; acks=all goes on"
            f" {1000 * goesOnSeconds:.0f} ms after the disk; of {once.sentCount} records of the idempotent producer"
            f" {twice} stand twice",
        )
        self.assertEqual(created[0], ErrorCode.request_timed_out)
        self.assertIn("not confirmed", str(created[1]))
        self.assertIn("a flush to the disk has not ended", reason)
        self.assertEqual((len(stored), twice), (once.sentCount, 0))
        for name in ("acks=1", "Fetch", "Heartbeat", "OffsetCommit"):
            self.assertLess(max(took[name]), PATIENT_MS / 1000)
        self.assertNoComplaints()

    def test_killed(self) -> None:
        """
        A broker that is killed while its disk hangs has all that was written: what was confirmed with C{acks=1}, and
        what was not confirmed with C{acks=all}.
        """
        raw = self.connect()
        raw.createTopic(TOPIC)
        self.broker.hang()
        for acks, expected in ((LEADER, ErrorCode.none), (ALL, ErrorCode.request_timed_out)):
            answer = raw.ask(produceRequest(TOPIC, recent(b"%d" % acks), acks=acks, timeoutMs=100))
            self.assertEqual(answer.responses[0].partition_responses[0].error_code, expected)
        self.broker.kill()
        self.broker.start()
        self.assertEqual(set(copiesIn(self.broker.port, TOPIC)), {b"1", b"-1"})
        self.assertNoComplaints()

    def test_crowd(self) -> None:
        """However many wait for the disk, none waits longer than it asked to, and all memory comes back."""
        count = sized(200, 900)
        with self.connect() as raw:
            raw.createTopic(TOPIC)
        self.broker.hang()
        clients = [self.connect() for _ in range(count)]
        begun = time.monotonic()
        for client in clients:
            client.send(produceRequest(TOPIC, recent(b"record"), acks=ALL, timeoutMs=PATIENT_MS))
        errors = {client.receive(0, 9).responses[0].partition_responses[0].error_code for client in clients}
        seconds = time.monotonic() - begun
        self.broker.release()
        for client in clients:
            client.close()
        self.broker.waitUntilWhole()
        self.tell(f"{count} that wait for a disk that hangs", f"all answered after {1000 * seconds:.0f} ms")
        self.assertEqual(errors, {ErrorCode.request_timed_out})
        self.assertGreater(PATIENCE_SECONDS, seconds)
        self.assertNoComplaints()
