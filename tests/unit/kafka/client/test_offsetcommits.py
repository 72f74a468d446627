"""Tests for L{admission.kafka.client.offsetcommits}."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.client.errors import BrokerRefused, ClientError, CommitFailed
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import ClientTestCase, errorAnswer

EVENTS = TopicPartition("events", 0)


def refusal(errorCode: ErrorCode) -> Any:
    """An answer to OffsetCommit."""
    partitions = [{"partition_index": 0, "error_code": errorCode}]
    return lambda request: {"topics": [{"name": "events", "partitions": partitions}]}


class CommitTestCase(ClientTestCase):
    """A topic with two records."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")
        self.cluster.produce("events", b"1", b"2")

    def member(self, **changes: Any) -> Any:
        """A consumer that has polled both records at the clock's zero, as a member of the group."""
        consumer = self.subscribed(fetchMaxWaitSeconds=20.0, **changes)
        self.assertEqual(len(self.result(consumer.poll())), 2)
        return consumer


class CommitTests(CommitTestCase):
    """Commits that are asked for."""

    def test_polled(self) -> None:
        """What was polled is committed, as the member that polled it."""
        consumer = self.member()
        self.result(consumer.commit())
        self.assertEqual(self.cluster.committed, {EVENTS: 2})
        (request,) = self.broker.requests("OffsetCommit")
        self.assertEqual((request.generation_id_or_member_epoch, request.member_id), (1, "member-1"))

    def test_given(self) -> None:
        """So is what the application says, and it can be asked for."""
        consumer = self.member()
        self.result(consumer.commit({("events", 0): 1}))
        self.assertEqual(self.result(consumer.committed([EVENTS, ("events", 7)])), {EVENTS: 1})

    def test_nothing(self) -> None:
        """Nothing is committed at once, and nothing is known of nothing."""
        consumer = self.member()
        self.successResultOf(consumer.commit({}))
        self.assertEqual(self.successResultOf(consumer.committed([])), {})
        self.assertEqual(self.broker.requests("OffsetCommit"), [])

    def test_resumes(self) -> None:
        """Reading goes on where the group has committed."""
        self.cluster.committed[EVENTS] = 1
        self.assertEqual(self.poll(self.subscribed(), 1), [b"2"])

    def test_retries(self) -> None:
        """14, 15, 16 and others that pass are tried again, with pauses that grow."""
        for errorCode, finds in [
            (ErrorCode.coordinator_load_in_progress, 0),
            (ErrorCode.not_coordinator, 3),
            (ErrorCode.coordinator_not_available, 3),
            (ErrorCode.unknown_topic_or_partition, 0),
        ]:
            consumer = self.member()
            self.broker.asked.clear()
            answers = [refusal(errorCode)] * 3
            self.broker.answers["OffsetCommit"] = lambda request, answers=answers: (
                answers.pop()(request) if answers else self.cluster.offsetCommit(request)
            )
            self.result(consumer.commit(), 2)
            times = self.broker.times("OffsetCommit")
            for (earlier, later), expected in zip(pairwise(times), (0.1, 0.2, 0.4), strict=True):
                self.assertTrue(0.8 * expected <= later - earlier <= 1.2 * expected)
            self.assertEqual(len(self.broker.requests("FindCoordinator")), finds)
            self.result(consumer.close(), 1)
            self.cluster.committed.clear()

    def test_givesUp(self) -> None:
        """After C{default.api.timeout.ms} trying again ends with the last error."""
        consumer = self.member(defaultApiTimeoutSeconds=20.0)
        self.broker.answers["OffsetCommit"] = refusal(ErrorCode.coordinator_load_in_progress)
        committing = self.after(18, consumer.commit())
        self.assertNoResult(committing)
        self.assertIn("committing events-0", str(self.failure(committing, 2, BrokerRefused)))

    def test_fatal(self) -> None:
        """What trying again does not cure is told at once."""
        consumer = self.member()
        self.broker.answers["OffsetCommit"] = refusal(ErrorCode.group_authorization_failed)
        self.failure(consumer.commit(), 0, BrokerRefused)

    def test_notOurs(self) -> None:
        """22, 25, 27 and 82: the partitions may be another's; the member joins again."""
        for errorCode in (
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
            ErrorCode.rebalance_in_progress,
            ErrorCode.fenced_instance_id,
        ):
            consumer = self.member()
            self.broker.answers["OffsetCommit"] = refusal(errorCode)
            self.assertIn(errorCode.name.upper(), str(self.failure(consumer.commit(), 0, CommitFailed)))
            self.assertTrue(consumer._member.rejoinNeeded)
            self.result(consumer.close(), 1)

    def test_outOfTheGroup(self) -> None:
        """A consumer that is out of the group commits nothing, and does not ask."""
        consumer = self.member(maxPollIntervalSeconds=20.0)
        self.runFor(21)
        self.assertIn("no member of the group", str(self.failure(consumer.commit(), 0, CommitFailed)))
        self.assertEqual(self.broker.requests("OffsetCommit"), [])

    def test_whileRebalancing(self) -> None:
        """While the others are waited for, nothing can be committed; and of our own there is nothing any more."""
        consumer = self.member()
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.rebalance_in_progress)
        self.runFor(3)
        self.broker.answers["JoinGroup"] = lambda request: None
        self.result(consumer.poll(1), 1)
        self.assertIn("being rebalanced", str(self.failure(consumer.commit({EVENTS: 1}), 0, CommitFailed)))
        self.successResultOf(consumer.commit())

    def test_disconnected(self) -> None:
        """A coordinator that goes away is found again, and told."""
        consumer = self.member()
        self.broker.answers["OffsetCommit"] = lambda request: None
        committing = self.after(0, consumer.commit())
        self.broker.answers["OffsetCommit"] = self.cluster.offsetCommit
        self.broker.dropConnections()
        self.runFor(1)
        self.successResultOf(committing)
        self.assertEqual(self.cluster.committed, {EVENTS: 2})

    def test_committedErrors(self) -> None:
        """Asking what was committed is tried again as well, or fails in words."""
        consumer = self.member()
        moved = {"error_code": ErrorCode.not_coordinator}
        answers = [{**moved, "groups": [moved]}]
        self.broker.answers["OffsetFetch"] = lambda request: (
            answers.pop() if answers else self.cluster.offsetFetch(request)
        )
        committed = self.after(1, consumer.committed([EVENTS]))
        self.assertEqual(self.successResultOf(committed), {})
        self.broker.answers["OffsetFetch"] = lambda request: {
            "groups": [
                {
                    "topics": [
                        {"name": "events", "partitions": [{"partition_index": 0, "error_code": 29, "metadata": ""}]}
                    ]
                }
            ]
        }
        self.assertIn("the offset of events-0", str(self.failure(consumer.committed([EVENTS]), 1, BrokerRefused)))


class AutoCommitTests(CommitTestCase):
    """Commits that are not asked for."""

    def test_interval(self) -> None:
        """Every 5 seconds what was polled before is committed, if the application waits for more."""
        consumer = self.member(autoCommit=True)
        polling = self.after(4.9, consumer.poll())
        self.assertEqual(self.cluster.committed, {})
        self.runFor(0.1)
        self.assertEqual(self.cluster.committed, {EVENTS: 2})
        self.assertNoResult(polling)
        polling.cancel()
        self.failureResultOf(polling)

    def test_whatIsPolledIsNotDone(self) -> None:
        """While the application works on records, they are not committed; they are when it asks for more."""
        consumer = self.member(autoCommit=True)
        self.runFor(60)
        self.assertEqual(self.cluster.committed, {})
        polling = self.after(0, consumer.poll(1))
        self.assertEqual(self.cluster.committed, {EVENTS: 2})
        self.runFor(1)
        self.successResultOf(polling)

    def test_onlyWhatChanged(self) -> None:
        """What is committed already is not committed again."""
        consumer = self.member(autoCommit=True)
        self.poll(consumer, 60)
        self.assertEqual(len(self.broker.requests("OffsetCommit")), 1)
        self.cluster.produce("events", b"3")
        self.poll(consumer, 25)
        self.poll(consumer, 6)
        self.assertEqual(self.cluster.committed, {EVENTS: 3})
        self.assertEqual(len(self.broker.requests("OffsetCommit")), 2)

    def test_revoked(self) -> None:
        """Of partitions that were revoked meanwhile, what is committed may have changed."""
        consumer = self.member(autoCommit=True)
        self.poll(consumer, 6)
        self.assertEqual(self.cluster.committed, {EVENTS: 2})
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.rebalance_in_progress)
        self.runFor(3)
        self.broker.answers["Heartbeat"] = lambda request: {}
        self.cluster.committed[EVENTS] = 1
        # The broker answers the last Fetch first.
        self.assertEqual(self.poll(consumer, 25), [b"2"])
        self.poll(consumer, 6)
        self.assertEqual(self.cluster.committed, {EVENTS: 2})

    def test_failure(self) -> None:
        """A commit that fails is logged and does not fail the poll; another follows."""
        consumer = self.member(autoCommit=True)
        self.broker.answers["OffsetCommit"] = refusal(ErrorCode.group_authorization_failed)
        self.poll(consumer, 6)
        self.assertTrue(any("could not be committed" in str(event.get("log_format")) for event in self.logged))
        self.broker.answers["OffsetCommit"] = self.cluster.offsetCommit
        self.poll(consumer, 6)
        self.assertEqual(self.cluster.committed, {EVENTS: 2})

    def test_oneAtATime(self) -> None:
        """As long as a commit is on its way, no other begins; closing waits for it."""
        consumer = self.member(autoCommit=True, sessionTimeoutSeconds=60.0)
        later: Deferred[Any] = Deferred()
        self.broker.answers["OffsetCommit"] = lambda request: later
        polling = consumer.poll()
        polling.addErrback(lambda failure: failure.trap(ClientError) and None)
        self.runFor(12)
        self.assertEqual(len(self.broker.requests("OffsetCommit")), 1)
        closed = self.after(1, consumer.close())
        self.assertNoResult(closed)
        later.callback(self.cluster.offsetCommit(self.broker.requests("OffsetCommit")[0]))
        self.runFor(1)
        self.successResultOf(closed)
        self.assertEqual(len(self.broker.requests("OffsetCommit")), 1)

    def test_unsubscribed(self) -> None:
        """Without a group nothing is committed."""
        consumer = self.assigned(EVENTS, autoCommit=True, groupId=None)
        self.poll(consumer, 1)
        self.poll(consumer, 6)
        self.assertEqual(self.broker.requests("OffsetCommit"), [])
