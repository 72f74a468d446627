"""Tests for L{admission.kafka.client.consumerservice}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from admission.kafka.client.consumer import Consumer
from admission.kafka.client.consumerservice import ConsumerService
from admission.kafka.client.recordsets import ConsumerRecord
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import ClientTestCase

EVENTS = TopicPartition("events", 0)


class ConsumerServiceTests(ClientTestCase):
    """A service hands over records, one poll at a time."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")
        self.handled: list[list[bytes | None]] = []
        self.told: list[Any] = []
        self.finished: Deferred[None] | None = None
        self.failures: list[Any] = []
        self.service = ConsumerService(
            self.makeConsumer,
            ["events"],
            self.handle,
            onAssigned=lambda partitions: self.told.append(("assigned", partitions)),
            onRevoked=lambda partitions: self.told.append(("revoked", partitions)),
            onFailure=self.failures.append,
        )

    def makeConsumer(self) -> Consumer:
        """A consumer that commits by itself."""
        return self.consumer(autoCommit=True)

    def handle(self, records: Sequence[ConsumerRecord]) -> Deferred[None] | None:
        """The application."""
        self.handled.append([record.value for record in records])
        return self.finished

    def stop(self) -> None:
        """Stop the service."""
        self.result(self.service.stopService())

    def begun(self) -> Deferred[None]:
        """Start the service, whose application is busy with a record until what is returned fires."""
        self.finished = Deferred()
        self.cluster.produce("events", b"1")
        self.started()
        return self.finished

    def started(self) -> None:
        """Start the service."""
        self.service.startService()
        self.runFor(1)

    def test_handsOver(self) -> None:
        """Records are handed over as they come."""
        self.cluster.produce("events", b"1", b"2")
        self.started()
        self.cluster.produce("events", b"3")
        self.runFor(1)
        self.assertEqual(self.handled, [[b"1", b"2"], [b"3"]])
        self.stop()
        self.assertEqual(self.told, [("assigned", [EVENTS]), ("revoked", [EVENTS])])
        self.assertEqual(self.cluster.committed, {EVENTS: 3})
        self.assertEqual(self.broker.openTransports, [])

    def test_oneAtATime(self) -> None:
        """The next records wait until the application has finished, while heartbeats go on."""
        finished = self.begun()
        self.cluster.produce("events", b"2")
        self.runFor(30)
        self.assertEqual(self.handled, [[b"1"]])
        self.assertGreaterEqual(len(self.broker.requests("Heartbeat")), 10)
        self.finished = None
        finished.callback(None)
        self.runFor(1)
        self.assertEqual(self.handled, [[b"1"], [b"2"]])
        self.stop()

    def test_finishesFirst(self) -> None:
        """Stopping waits for the application, and commits what it has finished."""
        finished = self.begun()
        stopped = self.service.stopService()
        self.runFor(20)
        self.assertNoResult(stopped)
        self.assertEqual(self.cluster.committed, {})
        finished.callback(None)
        self.runFor(1)
        self.successResultOf(stopped)
        self.assertEqual(self.cluster.committed, {EVENTS: 1})

    def test_failure(self) -> None:
        """
        When the application fails, also while the service stops, what it was given is not committed, and the service is
        out of the group.
        """
        for times, stopping in enumerate((False, True), 1):
            finished = self.begun()
            stopped = self.service.stopService() if stopping else None
            finished.errback(ZeroDivisionError())
            self.runFor(10)
            self.assertEqual([failure.type for failure in self.failures], [ZeroDivisionError] * times)
            self.assertEqual(self.cluster.committed, {})
            self.assertEqual(len(self.broker.requests("LeaveGroup")), times)
            self.assertEqual(self.broker.openTransports, [])
            self.result(stopped or self.service.stopService())

    def test_failureIsLogged(self) -> None:
        """If nobody is to be told, the log is."""
        service = ConsumerService(self.makeConsumer, ["events"], lambda records: 1 / 0)
        self.cluster.produce("events", b"1")
        service.startService()
        self.runFor(1)
        (event,) = [event for event in self.logged if "log_failure" in event]
        self.assertEqual(event["log_failure"].type, ZeroDivisionError)
        self.assertIn("consuming {topics} has ended", event["log_format"])
        self.logged.clear()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_again(self) -> None:
        """A service that was stopped can be started again, and goes on where it was."""
        self.cluster.produce("events", b"1")
        self.started()
        self.stop()
        self.cluster.produce("events", b"2")
        self.started()
        self.assertEqual(self.handled, [[b"1"], [b"2"]])
        self.stop()

    def test_neverStarted(self) -> None:
        """Stopping what never ran is no work."""
        self.successResultOf(self.service.stopService())
