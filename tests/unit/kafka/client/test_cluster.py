"""Tests for L{admission.kafka.client.cluster}."""

from __future__ import annotations

from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.clientconnection import ConnectionSettings
from admission.kafka.client.cluster import FETCHES, GROUP, Cluster, SharedCall, ThrottleTimes
from admission.kafka.client.errors import Backoff, ConsumerClosed, Disconnected
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import HOST, ClientTestCase

EVENTS = TopicPartition("events", 0)


class ClusterTestCase(ClientTestCase):
    """A client of two brokers that knows the first one, and refreshes every 100 seconds."""

    brokerCount = 2

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events", 2)
        self.second = self.cluster.brokers[2]
        self.wanted = {"events"}
        self.refreshed: list[float] = []
        self.onRefreshed: Any = lambda: None
        self.client = self.makeClient((HOST, self.broker.port))

    def makeClient(self, *places: tuple[str, int]) -> Cluster:
        """A client that knows C{places}; it is closed when the test ends."""
        client = Cluster(
            self.cluster.endpointFor,
            self.clock,
            ConnectionSettings(),
            places,
            Backoff(0.1, 1.0, Random(3)),
            topics=lambda: self.wanted,
            onRefreshed=self.noteRefreshed,
            maxAgeSeconds=100,
        )
        self.addCleanup(self._close, client)
        return client

    def noteRefreshed(self) -> None:
        """Note when, and do what a test wants done."""
        self.refreshed.append(self.clock.seconds())
        self.onRefreshed()

    def _close(self, client: Cluster) -> None:
        self.result(client.close(), 2)


class ClusterTests(ClusterTestCase):
    """What is known of the cluster, and who is asked."""

    def test_refresh(self) -> None:
        """Brokers, topics and leaders are known after a refresh; errors are by topic."""
        self.cluster.topicErrors["secret"] = ErrorCode.topic_authorization_failed
        self.wanted = {"events", "secret"}
        self.result(self.client.refresh())
        self.assertEqual(self.client.brokers, {1: (HOST, self.broker.port), 2: (HOST, self.second.port)})
        self.assertEqual(self.client.partitionCounts(["events", "secret"]), {"events": 2})
        self.assertEqual(self.client.errors, {"secret": ErrorCode.topic_authorization_failed})
        self.assertEqual(self.client.leaderOf(EVENTS), 1)
        for place in (TopicPartition("events", 7), TopicPartition("other", 0)):
            self.assertIsNone(self.client.leaderOf(place))

    def test_noLeader(self) -> None:
        """A partition without a leader, or with one that is not there, has none."""
        for leaderId in (-1, 9):
            self.cluster.leaders = dict.fromkeys(self.cluster.logs, leaderId)
            self.result(self.client.refresh())
            self.assertIsNone(self.client.leaderOf(EVENTS))

    def test_oneConnection(self) -> None:
        """However many want a connection for a purpose, there is one; another purpose has another."""
        self.result(self.client.refresh())
        wanted = [self.client.connection(2, FETCHES) for _ in range(3)]
        one, *others = [self.result(each) for each in wanted]
        self.assertTrue(all(each is one for each in others))
        self.assertIsNot(self.result(self.client.connection(2, GROUP)), one)
        self.assertEqual(len(self.second.openTransports), 2)

    def test_reconnects(self) -> None:
        """A connection that was lost is made again."""
        self.result(self.client.refresh())
        self.broker.dropConnections()
        self.clock.advance(0)
        self.assertEqual(self.broker.openTransports, [])
        self.second.isDown = True
        self.result(self.client.refresh())
        self.assertEqual(len(self.broker.openTransports), 1)

    def test_others(self) -> None:
        """When one broker is gone, the next is asked; when all are, the last one says why."""
        self.result(self.client.refresh())
        self.broker.isDown = True
        self.broker.dropConnections()
        self.clock.advance(0)
        self.result(self.client.refresh())
        self.assertEqual(len(self.second.requests("Metadata")), 1)
        self.second.isDown = True
        self.second.dropConnections()
        self.clock.advance(0)
        refreshing = self.client.refresh()
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)

    def test_bootstrap(self) -> None:
        """Any of the servers that are given will do."""
        client = self.makeClient((HOST, 1), (HOST, 2), (HOST, self.second.port))
        self.result(client.refresh())
        self.assertEqual(client.partitionCounts(["events"]), {"events": 2})

    def test_nobody(self) -> None:
        """A broker that knows no brokers is not believed."""
        self.broker.answers["Metadata"] = lambda request: {"brokers": [], "topics": []}
        refreshing = self.client.refresh()
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)

    def test_closed(self) -> None:
        """A client that is closed connects to nobody, and those that waited are told."""
        self.result(self.client.refresh())
        self.broker.isMute = True
        waiting = self.client.connection(1, GROUP)
        closed = self.client.close()
        self.failureResultOf(waiting, ConsumerClosed)
        self.failureResultOf(self.client.connection(1, GROUP), ConsumerClosed)
        self.runFor(2)
        self.successResultOf(closed)

    def test_throttle(self) -> None:
        """What any broker asks for is counted."""
        self.broker.answers["Metadata"] = lambda request: {**self.cluster.metadata(request), "throttle_time_ms": 2000}
        self.result(self.client.refresh())
        self.assertEqual(self.client.throttle.largestSeconds(self.clock.seconds()), 2)


class RefreshTests(ClusterTestCase):
    """Refreshing now and then, and when there is a reason."""

    def test_nowAndThen(self) -> None:
        """The age is bounded from the first refresh on."""
        self.runFor(500)
        self.assertEqual(self.refreshed, [])
        self.result(self.client.refresh())
        self.runFor(250)
        self.assertEqual(self.refreshed, [500, 600, 700])

    def test_soon(self) -> None:
        """Many reasons make one refresh, after a pause; an urgent one does without."""
        for _ in range(5):
            self.client.refreshSoon()
        self.runFor(1)
        (first,) = self.refreshed
        self.assertTrue(0.08 <= first <= 0.12)
        self.client.refreshSoon()
        self.client.refreshSoon(isUrgent=True)
        self.runFor(1)
        self.assertEqual(self.refreshed[1:], [1])

    def test_againAndAgain(self) -> None:
        """A reason that does not go away is looked at with pauses that grow to a second."""
        self.onRefreshed = self.client.refreshSoon
        self.client.refreshSoon(isUrgent=True)
        self.runFor(10)
        self.assertTrue(11 <= len(self.refreshed) <= 15, self.refreshed)

    def test_failing(self) -> None:
        """While no broker answers it is tried again, with pauses; those that asked are told of the failure."""
        self.broker.isDown = True
        refreshing = self.client.refresh()
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)
        self.runFor(10)
        self.broker.isDown = False
        self.runFor(2)
        self.assertEqual(len(self.refreshed), 1)

    def test_whileOnItsWay(self) -> None:
        """A caller that asks while a refresh is on its way gets one that knows of what is wanted now."""
        first = self.client.refresh()
        self.wanted = {"events", "more"}
        second = self.client.refresh()
        self.client.refreshSoon()
        self.result(first)
        self.result(second)
        asked = [sorted(topic.name for topic in each.topics) for each in self.broker.requests("Metadata")]
        self.assertEqual(asked[:2], [["events"], ["events", "more"]])

    def test_retriableErrors(self) -> None:
        """As long as a topic has an error that may pass, its metadata are out of date."""
        self.cluster.topicErrors["events"] = ErrorCode.leader_not_available
        self.result(self.client.refresh())
        self.runFor(1)
        self.assertGreater(len(self.refreshed), 2)
        del self.cluster.topicErrors["events"]
        self.runFor(2)
        count = len(self.refreshed)
        self.runFor(50)
        self.assertEqual(len(self.refreshed), count)


class ListOffsetsTests(ClusterTestCase):
    """Where logs begin and end."""

    def test_ends(self) -> None:
        """The leader of each partition is asked."""
        other = TopicPartition("events", 1)
        self.cluster.leaders[other] = 2
        self.cluster.produce("events", b"0", b"1")
        self.result(self.client.refresh())
        listing = self.client.listOffsets([EVENTS, other], isEarliest=False)
        self.assertEqual(self.result(listing), {EVENTS: 2, other: 0})
        self.assertEqual(self.result(self.client.listOffsets([EVENTS], isEarliest=True)), {EVENTS: 0})
        self.assertEqual([len(each.requests("ListOffsets")) for each in (self.broker, self.second)], [2, 1])

    def test_unknown(self) -> None:
        """A partition that nobody leads, or of which the leader does not speak, is an error that may pass."""
        self.failureResultOf(self.client.listOffsets([EVENTS], isEarliest=True), Disconnected)
        self.result(self.client.refresh())
        self.broker.answers["ListOffsets"] = lambda request: {"topics": []}
        listing = self.client.listOffsets([EVENTS], isEarliest=True)
        self.clock.advance(0)
        self.failureResultOf(listing, Disconnected)


class SharedCallTests(SynchronousTestCase):
    """However many wait, there is one call."""

    def test_shared(self) -> None:
        """The result goes to all that wait still; a later one begins a new call."""
        calls: list[Deferred[str]] = []

        def call() -> Deferred[str]:
            calls.append(Deferred())
            return calls[-1]

        shared = SharedCall(call)
        first, second, third = (shared.wait() for _ in range(3))
        second.cancel()
        self.failureResultOf(second)
        # Waiting can end while others are told.
        first.addCallback(lambda result: (result, third.cancel()))
        calls[0].callback("result")
        self.assertEqual(self.successResultOf(first), ("result", None))
        self.failureResultOf(third)
        self.assertFalse(shared.isRunning)
        self.assertNoResult(shared.wait())
        self.assertEqual(len(calls), 2)


class ThrottleTimesTests(SynchronousTestCase):
    """The average and the largest of what was asked for lately."""

    def test_averageAndLargest(self) -> None:
        """All responses count, for the average those without a throttle time too."""
        times = ThrottleTimes()
        self.assertEqual((times.averageSeconds(0), times.largestSeconds(0)), (0, 0))
        for seconds in (0.0, 3.0, 1.5, 0.0):
            times.record(seconds, 100)
        self.assertEqual((times.averageSeconds(100), times.largestSeconds(100)), (1.125, 3))

    def test_forgets(self) -> None:
        """After a minute, and not before half of one, what was long ago counts no more."""
        times = ThrottleTimes()
        times.record(3.0, 100)
        times.record(1.0, 131)
        self.assertEqual((times.averageSeconds(131), times.largestSeconds(131)), (2, 3))
        self.assertEqual((times.averageSeconds(162), times.largestSeconds(162)), (1, 1))
        self.assertEqual((times.averageSeconds(300), times.largestSeconds(300)), (0, 0))
