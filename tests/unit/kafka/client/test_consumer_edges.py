"""
Tests for L{admission.kafka.client.consumer} in situations that are rare in practice: applications that change their
mind, and brokers that give nonsense.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import ClientTestCase

EVENTS = TopicPartition("events", 0)
WRONG_HOST = "broker..internal"
"""No name that IDNA can encode."""


class EdgeTests(ClientTestCase):
    """One consumer, two topics."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")
        self.cluster.topic("other")

    def endpointsAskedFor(self) -> list[str]:
        """The hosts for which endpoints are made from now on; C{WRONG_HOST} has none."""
        make, hosts = self.cluster.endpointFor, list[str]()

        def endpointFor(host: str, port: int) -> Any:
            hosts.append(host)
            self.assertLess(hosts.count(WRONG_HOST), 100, "it spins")
            host.encode("idna")
            return make(host, port)

        self.cluster.endpointFor = endpointFor
        return hosts

    def failed(self, polling: Deferred[Any]) -> bool:
        """Whether a poll that is over has failed."""
        polling.addErrback(lambda failure: failure)
        result: Any = []
        polling.addBoth(result.append)
        return isinstance(result[0], Failure)

    def test_hostThatIsNoName(self) -> None:
        """A broker under a name that cannot be encoded is tried with backoff, like one that cannot be reached."""
        hosts = self.endpointsAskedFor()
        good = self.cluster.metadata
        wrong = [{"node_id": 1, "host": WRONG_HOST, "port": 9092}]
        self.broker.answers["Metadata"] = lambda request: {**good(request), "brokers": wrong}
        consumer = self.assigned(EVENTS, groupId=None)
        consumer.poll(1000).addErrback(lambda failure: None)
        self.runFor(1)
        self.assertIn(WRONG_HOST, hosts)

    def test_coordinatorThatIsNoName(self) -> None:
        """So is a coordinator that a heartbeat looks for."""
        hosts = self.endpointsAskedFor()
        consumer = self.subscribed()
        consumer.poll(1)
        self.runFor(1)
        consumer.poll().addErrback(lambda failure: None)
        good = self.cluster.findCoordinator

        def moved(request: Any) -> Any:
            fields = {**good(request), "host": WRONG_HOST}
            return {**fields, "coordinators": [fields]}

        self.broker.answers["FindCoordinator"] = moved
        self.broker.dropConnections()
        self.runFor(5)
        self.assertIn(WRONG_HOST, hosts)
        self.broker.answers["FindCoordinator"] = good

    def test_resumingHidesNoError(self) -> None:
        """An application that resumes partitions before each poll learns of an error that stays."""
        consumer = self.consumer(groupId=None)
        refused = {"partition_index": 0, "error_code": ErrorCode.topic_authorization_failed, "records": b""}
        self.broker.answers["Fetch"] = lambda request: {"responses": [{"topic": "events", "partitions": [refused]}]}
        consumer.assign([EVENTS])
        failures = 0
        for _ in range(10):
            consumer.resume([EVENTS])
            polling = self.after(0.05, consumer.poll(0.05))
            failures += self.failed(polling)
            self.runFor(2.0)
        self.assertGreaterEqual(failures, 9)

    def test_resumingHidesNoMissingOffset(self) -> None:
        """So it is with an offset that is missing."""
        consumer = self.assigned(EVENTS, autoOffsetReset="none")
        failures = 0
        for _ in range(10):
            consumer.resume([EVENTS])
            polling = self.after(0.05, consumer.poll(0))
            failures += self.failed(polling)
            self.runFor(0.2)
        self.assertGreaterEqual(failures, 8)

    def test_flowControlAsksForNoMetadata(self) -> None:
        """Pausing and resuming does not ask for metadata, not even while a topic is missing."""
        consumer = self.assigned(TopicPartition("missing", 0), EVENTS, groupId=None)
        before = len(self.broker.requests("Metadata"))
        for _ in range(200):
            consumer.pause([EVENTS])
            consumer.resume([EVENTS])
            consumer.poll(0.01)
            self.runFor(0.01)
        self.assertLess(len(self.broker.requests("Metadata")) - before, 20)

    def test_thereAndBack(self) -> None:
        """
        A subscription that changes while the member joins, and back before it has joined, is what
        it reads in the end.
        """
        consumer = self.consumer()
        waiting: list[tuple[Deferred[Any], Any]] = []

        def join(request: Any) -> Deferred[Any]:
            waiting.append((Deferred(), request))
            return waiting[-1][0]

        def answer() -> None:
            deferred, request = waiting.pop(0)
            deferred.callback(self.cluster.joinGroup(request))

        self.broker.answers["JoinGroup"] = join
        consumer.subscribe(["events"])
        polling = self.after(0, consumer.poll(100))
        consumer.subscribe(["other"])
        answer()
        self.runFor(0)
        consumer.subscribe(["events"])
        self.broker.answers["JoinGroup"] = self.cluster.joinGroup
        answer()
        self.runFor(5)
        self.cluster.produce("events", b"mine")
        self.runFor(50)
        self.assertEqual([record.value for record in self.successResultOf(polling)], [b"mine"])
        self.assertIn(EVENTS, consumer.assignment)

    def test_rebalanceHoldsNoRevokedRecords(self) -> None:
        """While a rebalance waits for others, records of revoked partitions are not kept."""
        self.cluster.produce("events", *[b"x" * 1000] * 100)
        consumer = self.subscribed(maxPollRecords=1)
        consumer.poll(1)
        self.runFor(1)
        self.assertGreater(consumer._fetcher.bufferedBytes, 0)
        never: Deferred[Any] = Deferred()
        self.broker.answers["JoinGroup"] = lambda request: never
        consumer.subscribe(["events", "other"])
        polling = self.after(1, consumer.poll(100))
        self.assertEqual((consumer.assignment, consumer._fetcher.bufferedBytes), ([], 0))
        polling.addErrback(lambda failure: None)
        self.broker.answers["JoinGroup"] = self.cluster.joinGroup
        self.broker.dropConnections()

    def test_callbackThatIsCancelled(self) -> None:
        """A callback that ends with asyncio's cancellation, as of a future that is cancelled, ends no poll."""
        self.cluster.produce("events", b"1")
        consumer = self.consumer()

        def onAssigned(partitions: Any) -> None:
            raise asyncio.CancelledError

        consumer.subscribe(["events"], onAssigned=onAssigned)
        self.assertEqual([record.value for record in self.result(consumer.poll(), 20)], [b"1"])

    def test_closingOutlivesCancelledCallback(self) -> None:
        """Closing goes on when the application has cancelled what its callback returned."""
        consumer = self.consumer()

        def onRevoked(partitions: Any) -> Deferred[None]:
            working: Deferred[None] = Deferred()
            working.addErrback(lambda failure: failure)
            working.cancel()
            return working

        consumer.subscribe(["events"], onRevoked=onRevoked)
        consumer.poll(1)
        self.runFor(1)
        self.result(consumer.close(), 60)
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)
        self.assertEqual(len(self.broker.openTransports), 0)

    def test_closedByRevokedCallback(self) -> None:
        """A consumer that is closed from within C{onRevoked} does not join again."""
        consumer = self.consumer()

        def onRevoked(partitions: Any) -> None:
            consumer.close()

        consumer.subscribe(["events"], onRevoked=onRevoked)
        consumer.poll(1)
        self.runFor(1)
        consumer.subscribe(["events", "other"], onRevoked=onRevoked)
        polling = consumer.poll(5)
        polling.addErrback(lambda failure: None)
        self.runFor(100)
        names = [each.name for each in self.broker.asked if each.name in ("JoinGroup", "LeaveGroup")]
        self.assertEqual(names[-1], "LeaveGroup", names)
