"""Tests for L{admission.kafka.client.consumer}."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed

from admission.kafka.client.errors import BrokerRefused, ConsumerClosed, NoOffset
from admission.kafka.client.subscriptionstate import TopicPartition
from admission.metrics.registry import SensorRegistry
from tests.unit.kafka.client.clientfixture import GROUP, ClientTestCase, errorAnswer

EVENTS = TopicPartition("events", 0)


class PollTests(ClientTestCase):
    """A poll gives records."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")

    def test_subscribed(self) -> None:
        """A member of a group reads what it is assigned, from the beginning if that is asked for."""
        self.cluster.produce("events", b"1", b"2")
        consumer = self.subscribed()
        first, second = self.result(consumer.poll())
        self.assertEqual((first.topic, first.partition, first.offset, first.value), ("events", 0, 0, b"1"))
        self.assertEqual((second.offset, second.timestampMs, second.key, second.headers), (1, 1000, None, ()))
        self.assertEqual(consumer.assignment, [EVENTS])
        self.assertEqual(consumer.position(EVENTS), 2)

    def test_everyAge(self) -> None:
        """The oldest versions of all APIs will do, and whatever is between."""
        newest = dict(self.broker.versions)
        for step in (0, 1, 2, 4, 7, 12):
            for name, (oldest, latest) in newest.items():
                self.broker.versions[name] = (oldest, min(oldest + step, latest))
            self.cluster.produce("events", b"%d" % step)
            consumer = self.subscribed()
            self.assertIn(b"%d" % step, self.poll(consumer), f"{step} versions above the oldest")
            self.result(consumer.commit())
            self.result(consumer.close())

    def test_maxPollRecords(self) -> None:
        """A poll gives at most C{max.poll.records}; the rest is there already."""
        self.cluster.produce("events", *[b"%d" % number for number in range(7)])
        consumer = self.assigned(EVENTS, maxPollRecords=3)
        polled = [self.poll(consumer, 1) for _ in range(3)]
        self.assertEqual(polled, [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]])

    def test_firesLater(self) -> None:
        """Even if there are records, a poll fires in a turn of its own, so that the reactor gets to other things."""
        self.cluster.produce("events", b"1", b"2")
        consumer = self.assigned(EVENTS, maxPollRecords=1)
        self.poll(consumer)
        polling = consumer.poll()
        self.assertNoResult(polling)
        self.clock.advance(0)
        self.assertEqual(len(self.successResultOf(polling)), 1)

    def test_timeout(self) -> None:
        """With nothing to give a poll fires empty when its time is over."""
        polling = self.after(2.4, self.assigned(EVENTS).poll(2.5))
        self.assertNoResult(polling)
        self.runFor(0.1)
        self.assertEqual(self.successResultOf(polling), [])

    def test_waits(self) -> None:
        """Without a time a poll waits for records, however long."""
        polling = self.after(1000, self.assigned(EVENTS, fetchMaxWaitSeconds=20.0).poll())
        self.assertNoResult(polling)
        self.cluster.produce("events", b"late")
        self.runFor(20)
        self.assertEqual(self.successResultOf(polling)[0].value, b"late")

    def test_one(self) -> None:
        """Only one poll may wait, and only for something."""
        consumer = self.consumer()
        self.assertRaises(RuntimeError, consumer.poll)
        consumer.assign([EVENTS])
        polling = consumer.poll()
        self.assertRaises(RuntimeError, consumer.poll)
        polling.cancel()
        self.failureResultOf(polling)
        self.cluster.produce("events", b"1")
        self.assertEqual(self.poll(consumer), [b"1"])

    def test_groupIsNeeded(self) -> None:
        """Subscribing and committing take a group; so does nothing else."""
        self.cluster.produce("events", b"1")
        consumer = self.consumer(groupId=None)
        self.assertRaises(ValueError, consumer.subscribe, ["events"])
        self.assertRaises(ValueError, consumer.commit)
        consumer.assign([EVENTS])
        self.assertEqual(self.poll(consumer), [b"1"])
        self.assertEqual(self.broker.requests("FindCoordinator"), [])

    def test_subscribeOrAssign(self) -> None:
        """Partitions are assigned by the group or by hand."""
        subscribed, assigned = self.consumer(), self.consumer()
        self.assertRaises(ValueError, subscribed.subscribe, [])
        subscribed.subscribe("events")
        self.assertEqual(subscribed.subscription, {"events"})
        self.assertRaises(ValueError, subscribed.assign, [EVENTS])
        assigned.assign([EVENTS])
        self.assertRaises(ValueError, assigned.subscribe, ["events"])

    def test_pauseAndSeek(self) -> None:
        """What is paused is not given, even if it was fetched; seeking goes elsewhere."""
        self.cluster.produce("events", b"0", b"1", b"2")
        consumer = self.assigned(EVENTS, maxPollRecords=1)
        self.assertEqual(self.poll(consumer), [b"0"])
        consumer.pause([EVENTS])
        self.assertEqual(self.poll(consumer), [])
        consumer.resume([EVENTS])
        self.assertEqual(self.poll(consumer), [b"1"])
        consumer.seek(EVENTS, 0)
        self.assertEqual(consumer.position(EVENTS), 0)
        self.assertEqual(self.poll(consumer), [b"0"])
        self.assertRaises(ValueError, consumer.seek, EVENTS, -1)
        self.assertRaises(KeyError, consumer.seek, TopicPartition("events", 7), 0)

    def test_sensors(self) -> None:
        """What the brokers say of throttling can be seen, and so can what is held."""
        self.cluster.produce("events", b"1", b"2")
        self.cluster.throttleMs = 1500
        consumer = self.consumer(maxPollRecords=1)
        registry = SensorRegistry(self.clock.seconds)
        consumer.addSensors(registry)
        consumer.assign([EVENTS])
        self.poll(consumer, 0)
        self.assertEqual(registry["ConsumerThrottleMaxSeconds"], 1.5)
        self.assertGreater(registry["ConsumerThrottleAvgSeconds"], 0)
        self.assertEqual(registry["ConsumerAssignedPartitions"], 1)
        self.assertGreater(registry["ConsumerHeldBytes"], 0)
        self.assertEqual(consumer.throttleTimes.largestSeconds(self.clock.seconds()), 1.5)


class ErrorTests(ClientTestCase):
    """A poll fails for what trying again does not cure."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")

    def test_noOffset(self) -> None:
        """With C{auto.offset.reset=none} there is nowhere to begin, until somebody seeks."""
        self.cluster.produce("events", b"1")
        consumer = self.assigned(EVENTS, autoOffsetReset="none")
        for _ in range(2):
            self.assertIn("events-0", str(self.failure(consumer.poll(), 5, NoOffset)))
        consumer.seek(EVENTS, 0)
        self.assertEqual(self.poll(consumer), [b"1"])

    def test_latest(self) -> None:
        """With C{auto.offset.reset=latest} only what comes from now on is read."""
        self.cluster.produce("events", b"old")
        consumer = self.assigned(EVENTS, autoOffsetReset="latest")
        self.assertEqual(self.poll(consumer), [])
        self.cluster.produce("events", b"new")
        self.assertEqual(self.poll(consumer), [b"new"])

    def test_forbiddenTopic(self) -> None:
        """A topic that may not be read is an error in words."""
        self.cluster.topicErrors["events"] = ErrorCode.topic_authorization_failed
        error = self.failure(self.subscribed().poll(), 5, BrokerRefused)
        self.assertEqual(str(error), "looking for topic 'events' was answered TOPIC_AUTHORIZATION_FAILED (29)")

    def test_missingTopic(self) -> None:
        """A topic that is not there yet is waited for, and handed out once it is."""
        consumer = self.consumer()
        consumer.subscribe(["later"])
        self.assertEqual(self.poll(consumer, 10), [])
        self.assertLess(len(self.broker.requests("Metadata")), 30)
        self.cluster.topic("later")
        self.cluster.produce("later", b"1")
        self.assertEqual(self.poll(consumer), [b"1"])

    def test_noBrokers(self) -> None:
        """While no broker is there, a poll waits."""
        self.broker.isDown = True
        self.cluster.produce("events", b"1")
        polling = self.after(100, self.subscribed().poll())
        self.assertNoResult(polling)
        self.broker.isDown = False
        self.runFor(2)
        self.assertEqual(len(self.successResultOf(polling)), 1)

    def test_callback(self) -> None:
        """What a callback raises the poll tells of; the partitions are assigned all the same."""

        def onAssigned(partitions: Any) -> None:
            raise ZeroDivisionError("oops")

        self.cluster.produce("events", b"1")
        consumer = self.subscribed(onAssigned=onAssigned)
        self.failure(consumer.poll(), 5, ZeroDivisionError)
        self.assertEqual(self.poll(consumer), [b"1"])


class RebalanceTests(ClientTestCase):
    """Partitions change hands."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events", 2)
        self.cluster.topic("more")
        self.told: list[Any] = []

    def subscribe(self, *topics: str, **changes: Any) -> Any:
        """A consumer that has joined."""
        consumer = self.consumer(**changes)
        consumer.subscribe(
            topics,
            lambda partitions: self.told.append(("revoked", partitions)),
            lambda partitions: self.told.append(("assigned", partitions)),
        )
        self.poll(consumer, 1)
        return consumer

    def rebalance(self) -> None:
        """The coordinator asks for one."""
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.rebalance_in_progress)
        self.runFor(3)
        self.broker.answers["Heartbeat"] = lambda request: {}

    def test_order(self) -> None:
        """Revoked before joining again, assigned afterwards, and only during a poll."""
        both = [EVENTS, TopicPartition("events", 1)]
        consumer = self.subscribe("events")
        self.assertEqual(self.told, [("assigned", both)])
        self.rebalance()
        self.assertEqual(len(self.told), 1)
        joins = len(self.broker.requests("JoinGroup"))
        self.poll(consumer, 1)
        self.assertEqual(self.told[1:], [("revoked", both), ("assigned", both)])
        self.assertEqual(len(self.broker.requests("JoinGroup")), joins + 1)

    def test_waitsForRevoked(self) -> None:
        """Nothing is joined before the application has finished with what it loses."""
        finished: Deferred[None] = Deferred()
        consumer = self.subscribed(onRevoked=lambda partitions: finished)
        self.poll(consumer, 1)
        self.rebalance()
        joins = len(self.broker.requests("JoinGroup"))
        polling = self.after(9, consumer.poll(20))
        self.assertEqual(len(self.broker.requests("JoinGroup")), joins)
        self.assertGreaterEqual(len(self.broker.requests("Heartbeat")), 4)
        finished.callback(None)
        self.runFor(1)
        self.assertEqual(len(self.broker.requests("JoinGroup")), joins + 1)
        self.runFor(20)
        self.assertEqual(self.successResultOf(polling), [])

    def test_waitsForAssigned(self) -> None:
        """Nothing is read before the application has finished with what it gets, so that it can seek."""
        self.cluster.produce("events", b"1", b"2")
        finished: Deferred[None] = Deferred()
        consumer = self.consumer(autoOffsetReset="none")
        consumer.subscribe(["events"], onAssigned=lambda partitions: finished)
        polling = self.after(9, consumer.poll(20))
        self.assertEqual(self.broker.requests("OffsetFetch") + self.broker.requests("Fetch"), [])
        for partition in consumer.assignment:
            consumer.seek(partition, 1 if partition == EVENTS else 0)
        finished.callback(None)
        self.runFor(1)
        self.assertEqual([record.value for record in self.successResultOf(polling)], [b"2"])

    def test_commitsWhenRevoked(self) -> None:
        """Automatic commits cover what was polled when partitions are revoked, and so do an application's own."""
        self.cluster.produce("events", b"1", b"2")
        for isAutomatic in (True, False):
            self.cluster.committed.clear()
            consumer = self.consumer(autoCommit=isAutomatic)
            consumer.subscribe(
                ["events"],
                lambda _, isAutomatic=isAutomatic, consumer=consumer: (
                    succeed(None) if isAutomatic else consumer.commit()
                ),
            )
            self.assertEqual(self.poll(consumer, 1), [b"1", b"2"])
            self.assertEqual(self.cluster.committed, {})
            self.rebalance()
            self.poll(consumer, 1)
            self.assertEqual(self.cluster.committed[EVENTS], 2)
            self.result(consumer.close(), 1)

    def test_newSubscription(self) -> None:
        """Another subscription is joined at the next poll."""
        consumer = self.subscribe("events")
        consumer.subscribe(["more"])
        self.poll(consumer, 1)
        self.assertEqual(consumer.assignment, [TopicPartition("more", 0)])

    def test_newPartitions(self) -> None:
        """The leader has partitions handed out anew when there are more of them."""
        consumer = self.subscribe("events", metadataMaxAgeSeconds=30.0)
        self.cluster.topic("events", 4)
        self.poll(consumer, 31)
        self.assertEqual(len(consumer.assignment), 4)

    def test_lost(self) -> None:
        """
        When the group has given us up, nothing is committed, and the application still hears that its partitions are
        gone.
        """
        self.cluster.produce("events", b"1")
        consumer = self.subscribe("events", autoCommit=True)
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.unknown_member_id)
        self.runFor(3)
        self.broker.answers["Heartbeat"] = lambda request: {}
        self.poll(consumer, 1)
        self.assertEqual([what for what, _ in self.told], ["assigned", "revoked", "assigned"])
        self.assertEqual(self.cluster.committed, {})


class CloseTests(ClientTestCase):
    """A consumer leaves nothing behind; the fixture looks for timers and connections."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")
        self.cluster.produce("events", b"1")

    def test_commitsAndLeaves(self) -> None:
        """What was polled is committed, the application told, the group left, in this order."""
        told: list[Any] = []
        consumer = self.consumer(autoCommit=True)
        consumer.subscribe(["events"], onRevoked=lambda _: told.append(dict(self.cluster.committed)))
        self.poll(consumer, 1)
        self.result(consumer.close())
        self.assertEqual(told, [{EVENTS: 1}])
        (left,) = self.broker.requests("LeaveGroup")
        self.assertEqual(left.members[0].member_id, "member-1")

    def test_withoutCommit(self) -> None:
        """If asked to, closing commits nothing."""
        consumer = self.subscribed(autoCommit=True)
        self.poll(consumer, 1)
        self.result(consumer.close(commit=False), 1)
        self.assertEqual(self.cluster.committed, {})
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)

    def test_assigned(self) -> None:
        """Partitions assigned by hand are committed as well, by nobody in particular: such a consumer is no member."""
        consumer = self.assigned(EVENTS, autoCommit=True)
        self.poll(consumer, 60)
        self.assertEqual(self.broker.requests("JoinGroup") + self.broker.requests("Heartbeat"), [])
        self.result(consumer.close(), 1)
        (commit,) = self.broker.requests("OffsetCommit")
        self.assertEqual((commit.generation_id_or_member_epoch, commit.member_id), (-1, ""))
        self.assertEqual(consumer.assignment, [])
        self.assertEqual(self.cluster.committed, {EVENTS: 1})

    def test_poll(self) -> None:
        """A poll that waits fails, and so does every later one; closing twice is closing once."""
        consumer = self.subscribed()
        polling = consumer.poll()
        first, second = consumer.close(), consumer.close()
        self.failureResultOf(polling, ConsumerClosed)
        self.runFor(1)
        self.successResultOf(first)
        self.successResultOf(second)
        self.failureResultOf(consumer.poll(), ConsumerClosed)

    def test_whileJoining(self) -> None:
        """
        A member that waits for the others leaves on a connection of its own: the coordinator would not read it on
        this one.
        """
        self.broker.answers["JoinGroup"] = lambda request: (
            None if request.member_id else self.cluster.joinGroup(request)
        )
        consumer = self.subscribed()
        polling = self.after(1, consumer.poll())
        closed = consumer.close()
        self.failureResultOf(polling, ConsumerClosed)
        self.runFor(1)
        self.successResultOf(closed)
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)

    def test_whileRevoking(self) -> None:
        """
        An application that is told of revoked partitions when the consumer closes is not told
        again, nor waited for.
        """
        told: list[Any] = []

        def onRevoked(partitions: Any) -> Deferred[None]:
            told.append(partitions)
            return Deferred()

        consumer = self.subscribed(onRevoked=onRevoked)
        self.poll(consumer, 1)
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.rebalance_in_progress)
        self.runFor(3)
        polling = self.after(1, consumer.poll())
        closed = consumer.close()
        self.failureResultOf(polling, ConsumerClosed)
        self.runFor(1)
        self.successResultOf(closed)
        self.assertEqual(told, [[EVENTS]])

    def test_unreachable(self) -> None:
        """Brokers that do not answer do not keep a consumer from closing."""
        consumer = self.subscribed(autoCommit=True)
        self.poll(consumer, 1)
        self.broker.isMute = True
        self.result(consumer.close(), 100)

    def test_beforeAnything(self) -> None:
        """A consumer that was never used can be closed."""
        for subscribe in (False, True):
            consumer = self.consumer(groupId=GROUP)
            if subscribe:
                consumer.subscribe(["events"])
            self.successResultOf(consumer.close())
