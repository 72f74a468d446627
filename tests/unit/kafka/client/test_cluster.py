"""
Tests for L{admission.kafka.client.cluster} and L{admission.kafka.client.metadata}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.client.backoff import Backoff
from admission.kafka.client.cluster import FETCHES, GROUP, Cluster
from admission.kafka.client.connecting import ConnectionSettings
from admission.kafka.client.errors import ConsumerClosed, Disconnected
from admission.kafka.client.metadata import Metadata
from tests.kit.clientfixture import HOST, ClientTestCase


class ClusterTestCase(ClientTestCase):
    """
    A client of two brokers that knows the first one.
    """

    brokerCount = 2

    def setUp(self) -> None:
        """
        Make the client and a topic.
        """
        super().setUp()
        self.cluster.topic("events", 2)
        self.second = self.cluster.brokers[2]
        self.client = self.makeClient((HOST, self.broker.port))

    def makeClient(self, *places: tuple[str, int]) -> Cluster:
        """
        A client that knows C{places}; it is closed when the test ends.
        """
        client = Cluster(self.cluster.endpointFor, self.clock, ConnectionSettings(), places, Random(3))
        self.addCleanup(self._close, client)
        return client

    def _close(self, client: Cluster) -> None:
        closed = client.close()
        self.runFor(2)
        self.successResultOf(closed)

    def result(self, deferred: Deferred[Any]) -> Any:
        """
        What C{deferred} fires with in this turn.
        """
        self.clock.advance(0)
        return self.successResultOf(deferred)


class ClusterTests(ClusterTestCase):
    """
    What is known of the cluster, and who is asked.
    """

    def test_refresh(self) -> None:
        """
        Brokers, topics and leaders are known after a refresh; errors are by topic.
        """
        self.cluster.topicErrors["secret"] = ErrorCode.topic_authorization_failed
        self.result(self.client.refresh(["events", "secret"]))
        self.assertEqual(self.client.brokers, {1: (HOST, self.broker.port), 2: (HOST, self.second.port)})
        self.assertEqual(self.client.partitionCounts(["events", "secret"]), {"events": 2})
        self.assertEqual(self.client.errors, {"secret": ErrorCode.topic_authorization_failed})
        self.assertEqual(self.client.leaderOf("events", 0), 1)
        self.assertEqual((self.client.leaderOf("events", 7), self.client.leaderOf("other", 0)), (None, None))

    def test_noLeader(self) -> None:
        """
        A partition without a leader, or with one that is not there, has none.
        """
        for leaderId in (-1, 9):
            self.cluster.leaders = dict.fromkeys(self.cluster.logs, leaderId)
            self.result(self.client.refresh(["events"]))
            self.assertIsNone(self.client.leaderOf("events", 0))

    def test_oneConnection(self) -> None:
        """
        However many want a connection for a purpose, there is one; another purpose has another.
        """
        self.result(self.client.refresh([]))
        wanted = [self.client.connection(2, FETCHES) for _ in range(3)]
        one, *others = [self.result(each) for each in wanted]
        self.assertTrue(all(each is one for each in others))
        self.assertIsNot(self.result(self.client.connection(2, GROUP)), one)
        self.assertEqual(len(self.second.openTransports), 2)

    def test_reconnects(self) -> None:
        """
        A connection that was lost is made again.
        """
        self.result(self.client.refresh([]))
        self.broker.dropConnections()
        self.clock.advance(0)
        self.assertEqual(self.broker.openTransports, [])
        self.second.isDown = True
        self.result(self.client.refresh(["events"]))
        self.assertEqual(len(self.broker.openTransports), 1)

    def test_others(self) -> None:
        """
        When one broker is gone, the next is asked; when all are, the last one says why.
        """
        self.result(self.client.refresh([]))
        self.broker.isDown = True
        self.broker.dropConnections()
        self.clock.advance(0)
        self.result(self.client.refresh(["events"]))
        self.assertEqual(len(self.second.requests("Metadata")), 1)
        self.second.isDown = True
        self.second.dropConnections()
        self.clock.advance(0)
        refreshing = self.client.refresh(["events"])
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)

    def test_bootstrap(self) -> None:
        """
        Any of the servers that are given will do.
        """
        client = self.makeClient((HOST, 1), (HOST, 2), (HOST, self.second.port))
        self.result(client.refresh(["events"]))
        self.assertEqual(client.partitionCounts(["events"]), {"events": 2})

    def test_nobody(self) -> None:
        """
        A broker that knows no brokers is not believed.
        """
        self.broker.answers["Metadata"] = lambda request: {"brokers": [], "topics": []}
        refreshing = self.client.refresh([])
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)

    def test_closed(self) -> None:
        """
        A client that is closed connects to nobody, and whoever waited is told.
        """
        self.result(self.client.refresh([]))
        self.broker.isMute = True
        waiting = self.client.connection(1, GROUP)
        closed = self.client.close()
        self.failureResultOf(waiting, ConsumerClosed)
        self.failureResultOf(self.client.connection(1, GROUP), ConsumerClosed)
        self.runFor(2)
        self.successResultOf(closed)

    def test_throttle(self) -> None:
        """
        What any broker asks for is counted.
        """
        self.broker.answers["Metadata"] = lambda request: {**self.cluster.metadata(request), "throttle_time_ms": 2000}
        self.result(self.client.refresh([]))
        self.assertEqual(self.client.throttle.largestSeconds(self.clock.seconds()), 2)


class MetadataTests(ClusterTestCase):
    """
    Refreshing now and then, and when there is a reason.
    """

    def setUp(self) -> None:
        """
        Refresh every 100 seconds.
        """
        super().setUp()
        self.wanted = {"events"}
        self.refreshed: list[float] = []
        self.metadata = Metadata(self.client, self.clock, Backoff(0.1, 1.0, Random(0)), 100, lambda: self.wanted)
        self.metadata.onRefreshed = lambda: self.refreshed.append(self.clock.seconds())
        self.addCleanup(self.metadata.close)

    def test_nowAndThen(self) -> None:
        """
        The age is bounded from the first refresh on.
        """
        self.runFor(500)
        self.assertEqual(self.refreshed, [])
        self.result(self.metadata.refresh())
        self.runFor(250)
        self.assertEqual(self.refreshed, [500, 600, 700])

    def test_soon(self) -> None:
        """
        Many reasons make one refresh, after a pause; an urgent one does without.
        """
        for _ in range(5):
            self.metadata.refreshSoon()
        self.runFor(1)
        (first,) = self.refreshed
        self.assertTrue(0.08 <= first <= 0.12)
        self.metadata.refreshSoon()
        self.metadata.refreshSoon(isUrgent=True)
        self.runFor(1)
        self.assertEqual(self.refreshed[1:], [1])

    def test_againAndAgain(self) -> None:
        """
        A reason that does not go away is looked at with pauses that grow to a second.
        """
        self.metadata.onRefreshed = lambda: (self.refreshed.append(self.clock.seconds()), self.metadata.refreshSoon())
        self.metadata.refreshSoon(isUrgent=True)
        self.runFor(10)
        self.assertTrue(11 <= len(self.refreshed) <= 15, self.refreshed)

    def test_failing(self) -> None:
        """
        While no broker answers it is tried again, with pauses; whoever asked is told of the failure.
        """
        self.broker.isDown = True
        refreshing = self.metadata.refresh()
        self.clock.advance(0)
        self.failureResultOf(refreshing, Disconnected)
        self.runFor(10)
        self.broker.isDown = False
        self.runFor(2)
        self.assertEqual(len(self.refreshed), 1)

    def test_whileOnItsWay(self) -> None:
        """
        Whoever asks while a refresh is on its way gets one that knows of what is wanted now.
        """
        first = self.metadata.refresh()
        self.wanted = {"events", "more"}
        second = self.metadata.refresh()
        self.metadata.refreshSoon()
        self.result(first)
        self.result(second)
        asked = [sorted(topic.name for topic in each.topics) for each in self.broker.requests("Metadata")]
        self.assertEqual(asked[:2], [["events"], ["events", "more"]])
