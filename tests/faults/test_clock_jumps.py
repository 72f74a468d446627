"""
Imitates a machine whose clock is set, forward and back, by hours and by days: by hand, or by NTP on a machine that has
come up with a wrong one.  The broker's process sees another time of day, as if it was the machine's.
"""

from __future__ import annotations

import time
from typing import Any

from tests.kit.attack import sized
from tests.kit.brokerfixture import batchOf, requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, FaultyBroker, copiesIn, milliseconds, recent
from tests.kit.rawclient import RawClient, fetchRequest, joinGroup, produceRequest

HOUR, DAY = 3600.0, 86_400.0
JUMPS = sized((-HOUR, 2 * DAY, -10 * DAY, 30 * DAY), (-HOUR, 2 * DAY, -10 * DAY, 30 * DAY, HOUR, -DAY) * 5)
"""In seconds.  The last but one and the ones before it go beyond what keeps records, offsets and producers."""

WAIT_MS = 500
SESSION_MS = sized(2000, 6000)
TOLERANCE_SECONDS = sized(10.0, 1.0)
"""The short form must pass on every machine; what the clock does is counted in hours."""

SWEEPS_SECONDS = sized(0.5, 1.0)
MARGIN_SECONDS = 1.0
GROUP, IDLE_GROUP = "group", "idle"


class ClockJumpTests(FaultTestCase):
    """The time of day is another."""

    brokerType = FaultyBroker
    settings = (
        *("group.initial.rebalance.delay.ms=0", "offsets.retention.check.interval.ms=200"),
        *("log.retention.check.interval.ms=200", "log.segment.bytes=64KiB"),
        f"group.min.session.timeout.ms={SESSION_MS}",
        # Or a broker whose clock was set back refuses what clients with right clocks send, and says so, as Kafka does.
        f"log.message.timestamp.after.max.ms={100 * DAY * 1000:.0f}",
    )
    broker: FaultyBroker

    def test_jumps(self) -> None:
        """
        Nobody waits for longer or shorter than he asked to, members stay and silent ones leave in their time; records,
        offsets and producers are not older by that; nothing acknowledged is lost, and nothing of an idempotent producer
        is stored twice.
        """
        raw = self.connect()
        raw.createTopic("raw")
        raw.ask(produceRequest("raw", recent(b"kept"), acks=1))
        self.commit(raw)
        memberId, generation = joinGroup(raw, GROUP, SESSION_MS)
        producerId = raw.producerId()
        # Old producers have to be remembered: a repeated batch is told by it.
        repeated = batchOf(
            b"once", timestampMs=int(time.time() * 1000), producerId=producerId, producerEpoch=0, baseSequence=0
        )
        self.assertEqual(raw.produce("raw", repeated), (0, 1))
        good = EagerProducer(self.broker.address, "good", {"enable.idempotence": True, "acks": -1})
        waited: list[float] = []
        answered: list[float] = []
        beats: list[int] = []

        def beat() -> None:
            request = requestOf("Heartbeat", 4, group_id=GROUP, generation_id=generation, member_id=memberId)
            with RawClient(self.broker.port) as client:
                beats.append(int(client.ask(request).error_code))
            time.sleep(0.2)

        with Busy(lambda: good.send(5)), Busy(beat):
            for jumpSeconds in JUMPS:
                waiting = self.connect()
                begun = time.monotonic()
                waiting.send(fetchRequest("raw", 2, waitMs=WAIT_MS))
                self.broker.setClock(jumpSeconds)
                acknowledged = len(good.acknowledged)
                while len(good.acknowledged) < acknowledged + 50:
                    self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS)
                    time.sleep(0.001)
                answered.append(time.monotonic() - begun)
                waiting.receive(1, 12)
                waited.append(time.monotonic() - begun)
                waiting.close()
                # Some sweeps.
                time.sleep(SWEEPS_SECONDS)
                self.assertEqual(raw.produce("raw", repeated), (0, 1))
        silent = time.monotonic()
        while raw.ask(requestOf("DescribeGroups", 5, groups=[GROUP])).groups[0].members:
            self.assertLess(time.monotonic() - silent, PATIENCE_SECONDS)
            time.sleep(0.05)
        sessionSeconds = time.monotonic() - silent
        self.assertEqual((good.flush(), good.errors), (0, []))
        stored = copiesIn(self.broker.port, "good")
        twice = sum(len(each) > 1 for each in stored.values())
        jumps = ", ".join(f"{each / HOUR:+.0f}" for each in JUMPS[:6])
        self.tell(
            f"{len(JUMPS)} jumps of the clock, by {jumps} hours",
            f"a Fetch of {WAIT_MS} ms waited {milliseconds(waited)}; 50 records with acks=all took "
            f"{milliseconds(answered)}; {len(beats)} heartbeats, {len(beats) - beats.count(0)} refused; a silent "
            f"member with {SESSION_MS} ms left after {1000 * sessionSeconds:.0f}; of {good.sentCount} records "
            f"{good.sentCount - len(stored)} lost, {twice} twice",
        )
        self.assertEqual((len(stored), twice), (good.sentCount, 0))
        self.assertEqual(list(copiesIn(self.broker.port, "raw")), [b"kept", b"once"])
        self.assertEqual(self.committed(raw), 1)
        self.assertEqual(set(beats), {0})
        self.assertLess(max(waited), WAIT_MS / 1000 + TOLERANCE_SECONDS)
        self.assertGreater(min(waited), WAIT_MS / 1000 * 0.9)
        self.assertLess(sessionSeconds, SESSION_MS / 1000 + TOLERANCE_SECONDS)
        self.assertIn("the machine's clock was set forward by", self.broker.log())
        self.assertNoComplaints()

    def test_quiet(self) -> None:
        """
        What waits alone, so that nothing else sets a timer, ends in its time when the clock is set
        back by an hour.
        """
        raw = self.connect()
        raw.createTopic("raw")
        joinGroup(raw, GROUP, SESSION_MS)
        silent = begun = time.monotonic()
        raw.send(fetchRequest("raw", 0, waitMs=WAIT_MS))
        self.broker.setClock(-HOUR)
        raw.receive(1, 12)
        fetchSeconds = time.monotonic() - begun
        time.sleep(max(SESSION_MS / 1000 + MARGIN_SECONDS - (time.monotonic() - silent), 0))
        members = raw.ask(requestOf("DescribeGroups", 5, groups=[GROUP])).groups[0].members
        self.tell(
            "a quiet broker whose clock is set back by an hour",
            f"a Fetch of {WAIT_MS} ms waited {1000 * fetchSeconds:.0f}; a silent member with {SESSION_MS} ms has "
            f"{'stayed' if members else 'left'}",
        )
        self.assertLess(fetchSeconds, WAIT_MS / 1000 + TOLERANCE_SECONDS)
        self.assertEqual(len(members), 0)
        self.assertNoComplaints()

    def commit(self, raw: RawClient) -> None:
        """Commit an offset of a group that has no members."""
        partitions: Any = [{"partition_index": 0, "committed_offset": 1}]
        topics = [{"name": "raw", "partitions": partitions}]
        request = requestOf("OffsetCommit", 7, group_id=IDLE_GROUP, generation_id_or_member_epoch=-1, topics=topics)
        self.assertEqual(raw.ask(request).topics[0].partitions[0].error_code, 0)

    def committed(self, raw: RawClient) -> int:
        """That offset."""
        topics = [{"name": "raw", "partition_indexes": [0]}]
        answer = raw.ask(requestOf("OffsetFetch", 7, group_id=IDLE_GROUP, topics=topics))
        return int(answer.topics[0].partitions[0].committed_offset)
