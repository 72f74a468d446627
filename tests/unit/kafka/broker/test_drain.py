"""Tests for how a broker stops: what was read is answered, nothing more is read, and everything ends in time."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableDescriptor
from zope.interface import implementer

from admission.connection.pauses import Pause
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from tests.kit.brokerfixture import BrokerTestCase, Client, batchOf, fetchFields, framed, produceFields, requestOf
from tests.unit.kafka.broker.api.test_groupapi import GroupsApiTestCase
from tests.unit.kafka.broker.test_throttling import ThrottlingTestCase

FOR_EVER_MS = 1_000_000


class DrainTestCase(BrokerTestCase):
    """A broker that is told to stop."""

    def drain(self) -> Deferred[None]:
        """
        Do with connections and waiters what the service does when it stops, and let a few turns pass.

        @return: fires when the last connection is gone.
        """
        emptied = self.factory.closeAll()
        self.broker.drain()
        self.clock.pump([0.0] * 4)
        return emptied

    def assertAnswered(self, *clients: Client, count: int = 1) -> None:
        """Each of the clients has got C{count} responses, and has then been closed."""
        for client in clients:
            self.assertEqual((client.waiting(), client.isClosed), (count, True))


@implementer(IHalfCloseableDescriptor)
class HalfCloseableTransport(FakeTransport):
    """
    A transport as TCP is: it can say farewell and still listen.

    @ivar hasSaidFarewell: whether it was told to.
    """

    hasSaidFarewell = False

    def loseWriteConnection(self) -> None:
        self.hasSaidFarewell = True


class ReadTests(DrainTestCase):
    """What is still answered, and what is not even read."""

    properties = {"queued.max.requests": "1"}

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic()

    def park(self, client: Client, **others: int) -> None:
        """Have a fetch wait."""
        client.send("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=FOR_EVER_MS, minBytes=1 << 20, **others))
        self.assertEqual(client.waiting(), 0)

    def test_idle(self) -> None:
        """A client that has asked for nothing is closed at once, with TLS and without."""
        self.connect()
        secure = self.connect(FakeTLSTransport)
        assert isinstance(secure.transport, FakeTLSTransport)
        secure.transport.peerFinishesHandshake()
        self.clock.advance(0)
        self.assertIs(self.successResultOf(self.drain()), None)
        self.assertAnswered(*self.clients, count=0)

    def test_half(self) -> None:
        """A request that has not come to its end is given up, whether it waits for the rest or for memory."""
        fetching, starving = self.connect(), self.connect()
        fetching.sendBytes(framed(bytes(5000))[:100].replace(b"\x00\x00\x00\x00", b"\x00\x03\x00\x09", 1))
        self.assertGreater(self.frameBytes, 0)
        self.exhaustReserve()
        charge = self.pool.charge(self.pool.availableBytes + 5000, "a whim")
        starving.sendBytes(starving.frame(requestOf("ApiVersions", 0)))
        self.assertIn(Pause.MEMORY, starving.protocol.pauses.reasons)
        self.successResultOf(self.drain())
        self.assertEqual((self.frameBytes, self.gate.memory.waiting), (0, 0))
        charge.release()
        self.assertAnswered(fetching, starving, count=0)

    def test_parkedFetch(self) -> None:
        """A fetch that waits for more returns what it has found."""
        self.store(self.events.partitions[0], b"a")
        client, other = self.connect(), self.connect()
        self.park(client)
        other.send("Fetch", 12, **{**fetchFields(self.events, maxWaitMs=FOR_EVER_MS), "topics": []})
        self.successResultOf(self.drain())
        self.assertAnswered(client, other)
        (partition,) = client.receive().responses[0].partitions
        self.assertEqual((partition.error_code, len(partition.records)), (0, len(batchOf(b"a"))))
        self.assertEqual(self.purgatory.watched, 0)

    def test_nextRequest(self) -> None:
        """What was sent behind the request that is answered last is not done, though it is here already."""
        client = self.connect()
        self.park(client)
        client.send("Metadata", 4, topics=[{"name": "fresh"}], allow_auto_topic_creation=True)
        self.successResultOf(self.drain())
        self.assertAnswered(client)
        self.assertNotIn("fresh", self.log.topics)

    def test_turn(self) -> None:
        """
        A request that is whole and waits until fewer are worked on is answered, without waiting for
        anything else.
        """
        self.assertTrue(self.gate.turns.tryBegin(self))  # type: ignore[arg-type]
        client = self.connect()
        client.send("Fetch", 12, **fetchFields(self.events, 0, maxWaitMs=FOR_EVER_MS))
        self.assertIn(Pause.SERVER_FULL, client.protocol.pauses.reasons)
        emptied = self.drain()
        self.assertNoResult(emptied)
        self.assertIn(Pause.DRAINING, client.protocol.pauses.reasons)
        self.gate.turns.end()
        self.clock.pump([0.0] * 4)
        self.successResultOf(emptied)
        self.assertAnswered(client)

    def test_neverAnswered(self) -> None:
        """A request that is not answered within the grace period is given up."""
        self.assertTrue(self.gate.turns.tryBegin(self))  # type: ignore[arg-type]
        client = self.connect()
        client.send("ApiVersions", 0)
        emptied = self.drain()
        self.clock.advance(self.factory.limits.closeGraceSeconds)
        self.clock.advance(0)
        self.successResultOf(emptied)
        self.assertAnswered(client, count=0)
        self.gate.turns.end()

    def test_putOff(self) -> None:
        """A request that waits until the records before it are committed is answered behind them."""
        client = self.connect()
        produced = requestOf("Produce", 9, **produceFields("events", batchOf(b"1")))
        client.protocol.dataReceived(client.frame(produced) + client.frame(requestOf("ApiVersions", 0)))
        self.successResultOf(self.drain())
        self.assertAnswered(client, count=2)
        self.assertEqual(client.receive().responses[0].partition_responses[0].error_code, 0)
        self.assertEqual(self.gate.turns.runningRequests, 0)

    def test_unacknowledged(self) -> None:
        """Records that want no acknowledgement and wait for their turn are stored."""
        self.assertTrue(self.gate.turns.tryBegin(self))  # type: ignore[arg-type]
        client = self.connect()
        client.send("Produce", 9, answered=False, **produceFields("events", batchOf(b"1"), acks=0))
        emptied = self.drain()
        self.gate.turns.end()
        self.clock.pump([0.0] * 4)
        self.successResultOf(emptied)
        self.assertEqual(self.events.partitions[0].highWatermark, 1)
        self.assertAnswered(client, count=0)

    def test_failingConnection(self) -> None:
        """A connection that cannot be drained is cut off, and the others are drained."""
        failing, other = self.connect(), self.connect()
        self.park(other)
        self.patch(failing.protocol, "drain", lambda: 1 / 0)
        self.successResultOf(self.drain())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertTrue(failing.isClosed)
        self.assertAnswered(other)

    def test_unsent(self) -> None:
        """A response that was under way before is sent to its end, and its arrival waited for."""
        self.store(self.events.partitions[0], bytes(500_000))
        client = self.connect(HalfCloseableTransport)
        client.transport.isTaking = False
        client.send("Fetch", 12, **fetchFields(self.events, 0))
        emptied = self.drain()
        self.assertNoResult(emptied)
        client.transport.isTaking = True
        client.transport.wake()
        self.clock.pump([0.0] * 8)
        assert isinstance(client.transport, HalfCloseableTransport)
        self.assertEqual((client.waiting(), client.transport.hasSaidFarewell), (1, True))
        client.transport.peerCloses()
        self.clock.advance(0)
        self.successResultOf(emptied)


class SlowDiskTests(DrainTestCase):
    """Records that are to be on the disk before they are acknowledged."""

    def setUp(self) -> None:
        super().setUp()
        self.topic()
        self.clock.advance(2)
        self.isHolding = True
        self.addCleanup(self.finish)
        self.client = self.connect()
        self.client.send("Produce", 9, **{**produceFields("events", batchOf(b"1")), "timeout": 60_000})
        self.assertEqual((len(self.flushes), self.client.waiting()), (1, 0))

    def finish(self) -> None:
        """The disk has everything, and whatever else it is asked for."""
        self.finishFlushes()
        self.clock.pump([0.0] * 4)

    def test_acknowledged(self) -> None:
        """Records are acknowledged as soon as the disk has them."""
        emptied = self.drain()
        self.assertNoResult(emptied)
        self.assertFalse(self.client.isClosed)
        self.finish()
        self.successResultOf(emptied)
        self.assertAnswered(self.client)


class ThrottledTests(DrainTestCase, ThrottlingTestCase):
    """Clients over their quotas are throttled no longer."""

    def test_lateAnswers(self) -> None:
        """Answers that were to be late, because older clients would not stay away by themselves, leave at once."""
        events = self.topic()
        self.policy.delays |= {"Produce": 10.0, "Fetch": 10.0}
        self.policy.budgets["Fetch"] = 0
        producer, consumer, pipelining = self.connect(), self.connect(), self.connect()
        producer.send("Produce", 5, **produceFields("events", batchOf(b"a")))
        consumer.send("Fetch", 7, **fetchFields(events, 0))
        produced = requestOf("Produce", 5, **produceFields("events", batchOf(b"b")))
        pipelining.protocol.dataReceived(pipelining.frame(produced))
        self.assertEqual([client.waiting() for client in self.clients], [0, 0, 0])
        self.successResultOf(self.drain())
        self.assertAnswered(producer, consumer, pipelining)
        self.assertEqual(producer.receive().throttle_time.total_seconds(), 10.0)

    def test_paused(self) -> None:
        """A client that was answered and is throttled is closed at once."""
        self.topic()
        self.policy.delays["Produce"] = 10.0
        client = self.connect()
        client.ask("Produce", 9, **produceFields("events", batchOf(b"a")))
        self.successResultOf(self.drain())
        self.assertAnswered(client, count=0)


class GroupTests(DrainTestCase, GroupsApiTestCase):
    """Members of groups look for their coordinator again, and find everything as it was."""

    def test_joining(self) -> None:
        """A member that waits for others to join is told to look for its coordinator again, and keeps its id."""
        client = self.connect()
        memberId = self.joinWithId(client, 9)
        self.assertEqual(client.waiting(), 0)
        self.successResultOf(self.drain())
        self.assertAnswered(client)
        answer = client.receive()
        self.assertEqual((answer.error_code, answer.member_id), (ErrorCode.not_coordinator, memberId))

    def test_syncing(self) -> None:
        """A member that waits for its assignment is told the same."""
        clients = [self.connect(), self.connect()]
        for client in clients:
            self.joinWithId(client, 5)
        self.pass_(2.25)
        joined = [client.receive() for client in clients]
        (follower,) = (index for index, each in enumerate(joined) if each.member_id != each.leader)
        clients[follower].send("SyncGroup", 3, **self.member(joined[follower]), assignments=[])
        self.successResultOf(self.drain())
        self.assertAnswered(clients[follower])
        self.assertEqual(clients[follower].receive().error_code, ErrorCode.not_coordinator)

    def test_whoStillComes(self) -> None:
        """Requests that were read and not looked at yet are refused the same way, except that offsets are committed."""
        client, joined = self.stable()
        self.topic()
        self.broker.drain()
        member = self.member(joined)
        self.assertEqual(client.ask("Heartbeat", 4, **member).error_code, ErrorCode.not_coordinator)
        syncing = client.ask("SyncGroup", 3, **member, assignments=[])
        self.assertEqual(syncing.error_code, ErrorCode.not_coordinator)
        self.join(client, 9, joined.member_id)
        self.assertEqual(client.receive().error_code, ErrorCode.not_coordinator)
        leaving = client.ask("LeaveGroup", 3, group_id="readers", members=[{"member_id": joined.member_id}])
        self.assertEqual(leaving.error_code, ErrorCode.not_coordinator)
        topics = [{"name": "events", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
        committed = client.ask("OffsetCommit", 8, topics=topics, **member)
        self.assertEqual(committed.topics[0].partitions[0].error_code, ErrorCode.none)
        self.broker.groups.stop()

    def test_nobodyExpires(self) -> None:
        """However long the last connections take, nobody loses its place for being silent meanwhile."""
        _, joined = self.stable()
        self.drain()
        self.clock.advance(100.0)
        (group,) = self.broker.groups.all
        self.assertEqual(list(group.members), [joined.member_id])
