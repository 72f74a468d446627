"""Tests for L{admission.kafka.client.fetcher}."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.client.errors import BrokerRefused, NoOffset, RecordsRefused
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import Answer, ClientTestCase, errorAnswer

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
VALUE = b"x" * 1000


class FetchTestCase(ClientTestCase):
    """Two partitions, each led by a broker of its own."""

    brokerCount = 2

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("a", 2)
        self.cluster.leaders[A1] = 2
        self.second = self.cluster.brokers[2]

    def assign(self, *places: TopicPartition, **changes: Any) -> Any:
        """A consumer without a group that reads C{places}."""
        return self.assigned(*places, groupId=None, **changes)


class FetchTests(FetchTestCase):
    """What is asked of brokers, and when."""

    def test_fields(self) -> None:
        """What is asked for is what the settings say, from where the application is."""
        self.cluster.produce("a", b"0", b"1")
        consumer = self.assign(
            A0, fetchMinBytes=7, fetchMaxWaitSeconds=0.25, fetchMaxBytes=5000, maxPartitionFetchBytes=3000
        )
        self.poll(consumer, 0.1)
        request = self.broker.requests("Fetch")[-1]
        self.assertEqual(
            (request.replica_id, request.min_bytes, request.max_wait.total_seconds(), request.max_bytes),
            (-1, 7, 0.25, 5000),
        )
        ((partition,),) = [topic.partitions for topic in request.topics]
        self.assertEqual((partition.fetch_offset, partition.partition_max_bytes), (2, 3000))
        self.assertEqual((request.session_id, request.session_epoch, request.isolation_level), (0, -1, 0))

    def test_everyLeader(self) -> None:
        """Each partition is fetched from the broker that leads it, one request at a time."""
        self.cluster.produce("a", b"0")
        self.cluster.produce("a", b"1", partition=1)
        consumer = self.assign(A0, A1)
        self.assertEqual(sorted(self.poll(consumer, 1) + self.poll(consumer, 0.1)), [b"0", b"1"])
        self.runFor(10)
        for broker in (self.broker, self.second):
            times = broker.times("Fetch")
            self.assertLess(len(times), 26)
            self.assertTrue(all(len(each.topics[0].partitions) == 1 for each in broker.requests("Fetch")))

    def test_prefetches(self) -> None:
        """While the application works, the next records are fetched, once."""
        self.cluster.produce("a", b"0")
        consumer = self.assign(A0)
        self.poll(consumer, 0.1)
        self.cluster.produce("a", b"1")
        self.runFor(60)
        fetches = len(self.broker.requests("Fetch"))
        polling = consumer.poll()
        self.clock.advance(0)
        self.assertEqual([record.value for record in self.successResultOf(polling)], [b"1"])
        self.assertLess(fetches, 5)

    def test_bounded(self) -> None:
        """What is fetched and not polled stays within the bound, or waits for its turn; in the end all is read."""
        for _ in range(8):
            self.cluster.produce("a", VALUE)
            self.cluster.produce("a", VALUE, partition=1)
        peak = 0
        consumer = self.assign(A0, A1, maxPollRecords=1, prefetchMaxBytes=20_000, fetchMaxBytes=10_000)
        self.runFor(1)
        values = 0
        for _ in range(16):
            values += len(self.result(consumer.poll(), 0.2))
            peak = max(peak, consumer._fetcher.bufferedBytes)
        self.assertEqual(values, 16)
        self.assertTrue(0 < peak <= 20_000)
        self.assertEqual(consumer._fetcher.bufferedBytes, 0)
        self.assertTrue(all(each.max_bytes <= 10_000 for each in self.broker.requests("Fetch")))

    def test_smallRoom(self) -> None:
        """However small the bound, there is always a request on its way when nothing is held."""
        for _ in range(3):
            self.cluster.produce("a", VALUE)
        consumer = self.assign(A0, maxPollRecords=1, prefetchMaxBytes=10)
        for _ in range(3):
            self.assertEqual(self.poll(consumer, 1), [VALUE])
        self.assertTrue(all(each.max_bytes == 10 for each in self.broker.requests("Fetch")))

    def test_throttled(self) -> None:
        """A broker that asks for silence gets it."""
        self.cluster.throttleMs = 10_000
        self.cluster.produce("a", b"0")
        self.assertEqual(self.poll(self.assign(A0), 1), [b"0"])
        self.runFor(8.9)
        self.assertEqual(len(self.broker.requests("Fetch")), 1)
        self.runFor(0.2)
        self.assertEqual(len(self.broker.requests("Fetch")), 2)

    def test_pausedIsNotFetched(self) -> None:
        """What is paused is not asked for, and takes no room from others."""
        self.cluster.produce("a", b"0")
        self.cluster.produce("a", b"1", partition=1)
        consumer = self.assign(A0, A1)
        consumer.pause([A1])
        self.assertEqual(self.poll(consumer, 1), [b"0"])
        self.assertEqual(self.second.requests("Fetch"), [])
        consumer.resume([A1])
        self.assertEqual(self.poll(consumer, 1), [b"1"])

    def test_soughtMeanwhile(self) -> None:
        """What was on its way when the application went elsewhere is dropped."""
        self.cluster.produce("a", b"0")
        consumer = self.assign(A0)
        self.assertEqual(self.poll(consumer, 0.1), [b"0"])
        self.cluster.produce("a", b"1")
        consumer.seek(A0, 0)
        self.assertEqual(self.poll(consumer, 1), [b"0", b"1"])

    def test_revokedIsDropped(self) -> None:
        """
        What was fetched of a partition that is not assigned any more is not returned, and takes no room; when it is
        assigned again, it begins anew.
        """
        self.cluster.produce("a", b"0")
        self.cluster.produce("a", b"1", partition=1)
        consumer = self.assign(A0)
        self.runFor(1)
        self.assertGreater(consumer._fetcher.bufferedBytes, 0)
        consumer.assign([])
        self.clock.advance(0)
        self.assertEqual(consumer._fetcher.bufferedBytes, 0)
        consumer.assign([A1])
        self.assertEqual(self.poll(consumer, 1), [b"1"])
        consumer.assign([A0])
        self.assertEqual(self.poll(consumer, 1), [b"0"])

    def test_revokedMeanwhile(self) -> None:
        """What was on its way when a partition was revoked and assigned again is dropped."""
        self.cluster.produce("a", b"0")
        late: Deferred[Any] = Deferred()
        self.broker.answers["Fetch"] = lambda request: late
        consumer = self.assign(A0)
        self.runFor(1)
        consumer.assign([])
        consumer.assign([A0])
        consumer.seek(A0, 0)
        self.broker.answers["Fetch"] = self.cluster.fetch
        late.callback(self.cluster.fetch(self.broker.requests("Fetch")[0]))
        self.assertEqual(self.poll(consumer, 1) + self.poll(consumer, 1), [b"0"])

    def test_turns(self) -> None:
        """A partition that has got records is asked for after the others."""
        self.cluster.leaders[A1] = 1
        self.cluster.produce("a", b"0")
        self.poll(self.assign(A0, A1), 1)
        first, last = self.broker.requests("Fetch")[0], self.broker.requests("Fetch")[-1]
        self.assertEqual([each.partition for each in first.topics[0].partitions], [0, 1])
        self.assertEqual([each.partition for each in last.topics[0].partitions], [1, 0])


def refusal(errorCode: ErrorCode) -> Answer:
    """An answer with an error for the first partition."""
    refused = {"partition_index": 0, "error_code": errorCode, "records": b""}
    return lambda request: {"responses": [{"topic": "a", "partitions": [refused]}]}


class FetchErrorTests(FetchTestCase):
    """What can be wrong with a fetch."""

    def answerOnce(self, answer: Any) -> None:
        """Answer the next Fetch otherwise."""

        def once(request: Any) -> Any:
            self.broker.answers["Fetch"] = self.cluster.fetch
            return answer(request)

        self.broker.answers["Fetch"] = once

    def refuse(self, errorCode: ErrorCode) -> None:
        """Have the next Fetch answered with an error for its partition."""
        self.answerOnce(refusal(errorCode))

    def test_leaderMoves(self) -> None:
        """A partition that has moved is fetched from where it is now."""
        for errorCode in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
            consumer = self.assign(A0, autoOffsetReset="latest")
            self.assertEqual(self.poll(consumer, 1), [])
            self.cluster.leaders[A0] = 2
            self.cluster.produce("a", b"moved")
            self.broker.answers["Fetch"] = refusal(errorCode)
            self.assertIn(b"moved", self.poll(consumer, 2))
            self.result(consumer.close(), 1)
            self.broker.answers["Fetch"] = self.cluster.fetch
            self.cluster.leaders[A0] = 1

    def test_brokerDies(self) -> None:
        """When a broker dies, others know who leads its partitions now."""
        consumer = self.assign(A0, A1)
        self.poll(consumer, 1)
        self.broker.isDown = True
        self.broker.dropConnections()
        self.cluster.leaders[A0] = 2
        self.cluster.produce("a", b"moved")
        self.assertEqual(self.poll(consumer, 5), [b"moved"])

    def test_backsOff(self) -> None:
        """A partition that cannot be fetched is not asked for without end."""
        for errorCode in (ErrorCode.unknown_server_error, ErrorCode.not_leader_or_follower):
            self.broker.answers["Fetch"] = refusal(errorCode)
            self.broker.asked.clear()
            consumer = self.assign(A0)
            self.poll(consumer, 10)
            self.assertLess(len(self.broker.requests("Fetch")), 16)
            self.assertLess(len(self.broker.requests("Metadata")), 25)
            self.result(consumer.close(), 1)
        self.broker.answers["Fetch"] = self.cluster.fetch

    def test_outOfRange(self) -> None:
        """A position that the log does not have is replaced by where C{auto.offset.reset} says."""
        self.cluster.produce("a", b"0", b"1")
        consumer = self.assign(A0)
        consumer.seek(A0, 500)
        self.assertEqual(self.poll(consumer, 2), [b"0", b"1"])
        strict = self.assign(A0, autoOffsetReset="none")
        strict.seek(A0, 500)
        self.failure(strict.poll(), 2, NoOffset)

    def test_fatal(self) -> None:
        """What trying again does not cure fails the poll, once for each time."""
        self.cluster.produce("a", b"0")
        self.refuse(ErrorCode.topic_authorization_failed)
        consumer = self.assign(A0)
        error = self.failure(consumer.poll(), 1, BrokerRefused)
        self.assertEqual(str(error), "fetching a-0 from offset 0 was answered TOPIC_AUTHORIZATION_FAILED (29)")
        self.assertEqual(self.poll(consumer, 1), [b"0"])

    def test_reassigned(self) -> None:
        """An error that nobody has polled yet does not concern another assignment."""
        self.refuse(ErrorCode.topic_authorization_failed)
        self.cluster.produce("a", b"1", partition=1)
        consumer = self.assign(A0)
        self.runFor(0.05)
        consumer.assign([A1])
        self.assertEqual(self.poll(consumer, 1), [b"1"])

    def test_wholeRequest(self) -> None:
        """An error of the request holds for all its partitions."""
        self.answerOnce(
            lambda request: {
                "error_code": ErrorCode.topic_authorization_failed,
                "responses": [{"topic": "a", "partitions": [{"partition_index": 0, "records": b""}]}],
            }
        )
        self.failure(self.assign(A0).poll(), 1, BrokerRefused)

    def test_unreadable(self) -> None:
        """What cannot be read is told after what is in front of it, until the application goes past it."""
        self.cluster.produce("a", b"0")
        self.cluster.append("a", bytes(16) + b"\x01" + bytes(60), 1)
        self.cluster.produce("a", b"2")
        self.cluster.logs[A0][1] = (1).to_bytes(8, "big") + self.cluster.logs[A0][1][8:]
        consumer = self.assign(A0)
        self.assertEqual(self.poll(consumer, 1), [b"0"])
        for _ in range(2):
            self.assertEqual(self.failure(consumer.poll(), 1, RecordsRefused).offset, 1)
        consumer.seek(A0, 2)
        self.assertEqual(self.poll(consumer, 1), [b"2"])

    def test_nonsense(self) -> None:
        """An answer about a partition that was not asked for is passed over."""
        self.cluster.produce("a", b"0")
        self.answerOnce(
            lambda request: {"responses": [{"topic": "z", "partitions": [{"partition_index": 9, "records": b"zz"}]}]}
        )
        self.assertEqual(self.poll(self.assign(A0), 1), [b"0"])

    def test_positionsAreTriedAgain(self) -> None:
        """Where to begin is asked until somebody knows, with pauses."""
        self.cluster.produce("a", b"0")
        usual = self.broker.answers["ListOffsets"]
        self.broker.answers["ListOffsets"] = lambda request: {
            "topics": [
                {"name": "a", "partitions": [{"partition_index": 0, "error_code": ErrorCode.not_leader_or_follower}]}
            ]
        }
        consumer = self.assign(A0)
        self.assertEqual(self.poll(consumer, 5), [])
        self.assertLess(len(self.broker.requests("ListOffsets")), 12)
        self.broker.answers["ListOffsets"] = usual
        self.assertEqual(self.poll(consumer, 2), [b"0"])

    def test_forbiddenOffsets(self) -> None:
        """Offsets of the group that must not be read fail the poll."""
        self.broker.answers["OffsetFetch"] = errorAnswer(
            ErrorCode.group_authorization_failed, groups=[{"error_code": ErrorCode.group_authorization_failed}]
        )
        self.failure(self.assigned(A0).poll(), 1, BrokerRefused)
