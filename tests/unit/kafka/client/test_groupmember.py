"""
Tests for L{admission.kafka.client.groupmember}, L{admission.kafka.client.heartbeats} and
L{admission.kafka.client.coordinatorclient}: a member beside a coordinator that speaks real bytes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.kafka.client.assignors import decodeAssignment, encodeAssignment, encodeSubscription
from admission.kafka.client.coordinatorclient import Identity
from admission.kafka.client.errors import BrokerRefused
from admission.kafka.client.groupmember import STABLE
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.unit.kafka.client.clientfixture import ClientTestCase, errorAnswer


class MemberTestCase(ClientTestCase):
    """A topic with a record in it, and a way to join."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster.topic("events")
        self.cluster.produce("events", b"1")

    def answerOnce(self, name: str, *errorCodes: ErrorCode) -> None:
        """Answer the next requests with errors, and then as before."""
        usual, codes = self.broker.answers[name], list(errorCodes)
        self.broker.answers[name] = lambda request: errorAnswer(codes.pop(0))(request) if codes else usual(request)

    def working(self, **changes: Any) -> Any:
        """A consumer that has joined at the clock's zero, and whose application has records to work on since then."""
        consumer = self.subscribed(**changes)
        self.assertEqual(len(self.result(consumer.poll())), 1)
        return consumer

    def waiting(self, **changes: Any) -> Any:
        """A consumer that has joined at the clock's zero, and whose application waits for records."""
        consumer = self.subscribed(**changes)
        self.polling = consumer.poll()
        self.runFor(0)
        if self.polling.called:
            self.polling = consumer.poll()
            self.runFor(0)
        self.polling.addErrback(lambda failure: self.failures.append(failure.value))
        self.failures: list[Exception] = []
        return consumer


class TimeoutTests(MemberTestCase):
    """The three timeouts of KIP-62, to the number."""

    def test_whatIsSent(self) -> None:
        """The coordinator is told the session timeout, and the poll interval as the rebalance timeout."""
        self.working(sessionTimeoutSeconds=12.0, maxPollIntervalSeconds=240.0)
        for join in self.broker.requests("JoinGroup"):
            self.assertEqual(join.session_timeout.total_seconds(), 12)
            self.assertEqual(join.rebalance_timeout.total_seconds(), 240)
            self.assertEqual([each.name for each in join.protocols], ["range", "roundrobin"])

    def test_heartbeats(self) -> None:
        """Heartbeats go every 3 seconds whatever the application does, or waits for."""
        self.working()
        self.runFor(12)
        self.assertEqual(self.broker.times("Heartbeat"), [3, 6, 9, 12])
        (first, *_) = self.broker.requests("Heartbeat")
        self.assertEqual((first.generation_id, first.member_id), (1, "member-1"))

    def test_session(self) -> None:
        """
        After 10 seconds without an answer, and not earlier, the coordinator is not believed in any more but looked for;
        the member keeps its identity.
        """
        self.working()
        self.broker.answers["Heartbeat"] = lambda request: None
        self.runFor(9.99)
        self.assertEqual(self.broker.times("Heartbeat"), [3])
        self.assertEqual(self.broker.times("FindCoordinator"), [0])
        self.broker.answers["Heartbeat"] = lambda request: {}
        self.runFor(0.01)
        self.assertEqual(self.broker.times("FindCoordinator"), [0, 10])
        self.runFor(10)
        self.assertTrue(10.08 <= self.broker.times("Heartbeat")[1] <= 10.12)
        self.assertEqual(len(self.broker.times("FindCoordinator")), 2)
        self.assertEqual(len(self.broker.requests("JoinGroup")), 2)

    def test_process(self) -> None:
        """
        An application that does not poll for 300 seconds is taken out of the group then, and not earlier, and is
        heard of no more until it polls; then it joins as somebody new.
        """
        consumer = self.working()
        self.runFor(299.99)
        self.assertEqual(self.broker.times("LeaveGroup"), [])
        self.assertEqual(self.broker.times("Heartbeat"), list(range(3, 300, 3)))
        self.runFor(0.01)
        self.assertEqual(self.broker.times("LeaveGroup"), [300])
        (left,) = self.broker.requests("LeaveGroup")
        self.assertEqual([each.member_id for each in left.members], ["member-1"])
        self.runFor(100)
        self.assertEqual(self.broker.times("Heartbeat")[-1], 297)
        joins = len(self.broker.requests("JoinGroup"))
        self.assertEqual(joins, 2)
        self.poll(consumer, 1)
        self.assertEqual([each.member_id for each in self.broker.requests("JoinGroup")[joins:]], ["", "member-1"])

    def test_waitingIsNotWorking(self) -> None:
        """An application that waits for records is not silent, however long there are none."""
        self.waiting(fetchMaxWaitSeconds=20.0)
        self.runFor(1000)
        self.assertEqual(self.broker.times("LeaveGroup"), [])

    def test_join(self) -> None:
        """A JoinGroup is waited for until the slowest member has had its time, and five seconds."""
        for pollSeconds, requestSeconds, expected in [(300.0, 30.0, 305.0), (10.0, 30.0, 30.0)]:
            consumer = self.consumer(maxPollIntervalSeconds=pollSeconds, requestTimeoutSeconds=requestSeconds)
            usual = self.broker.answers["JoinGroup"]
            self.broker.answers["JoinGroup"] = lambda request: None
            consumer.subscribe(["events"])
            polling = self.after(0, consumer.poll())
            begin, joins = self.clock.seconds(), len(self.broker.requests("JoinGroup"))
            self.runFor(expected)
            self.assertEqual(len(self.broker.requests("JoinGroup")), joins)
            self.broker.answers["JoinGroup"] = usual
            self.runFor(1)
            again = self.broker.times("JoinGroup")[joins]
            self.assertTrue(begin + expected + 0.08 <= again <= begin + expected + 0.12)
            self.successResultOf(polling)
            self.result(consumer.close(), 1)

    def test_callbackCounts(self) -> None:
        """An application that takes too long over what is revoked is out of the group as well."""
        consumer = self.subscribed(onRevoked=lambda partitions: Deferred())
        self.assertEqual(len(self.poll(consumer, 1)), 1)
        self.answerOnce("Heartbeat", ErrorCode.rebalance_in_progress)
        self.runFor(4)
        polling = consumer.poll()
        polling.addErrback(lambda failure: None)
        self.runFor(299.9)
        self.assertEqual(self.broker.requests("LeaveGroup"), [])
        self.runFor(0.2)
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)

    def test_callbackOutlivesPoll(self) -> None:
        """A callback that ends after the poll that began it does not count as a poll."""
        finished: Deferred[None] = Deferred()
        consumer = self.subscribed(onAssigned=lambda partitions: finished)
        self.assertEqual(self.poll(consumer, 1), [])
        finished.callback(None)
        self.runFor(299.9)
        self.assertEqual(self.broker.requests("LeaveGroup"), [])
        self.runFor(0.2)
        self.assertEqual(self.broker.times("LeaveGroup"), [301])


class HeartbeatErrorTests(MemberTestCase):
    """What the answers to heartbeats mean."""

    def test_rebalance(self) -> None:
        """27: join again at the next poll, as the same member; until then heartbeats go on, and the session lives."""
        consumer = self.working()
        self.broker.answers["Heartbeat"] = errorAnswer(ErrorCode.rebalance_in_progress)
        self.runFor(30)
        self.assertEqual(len(self.broker.requests("Heartbeat")), 10)
        self.assertEqual(len(self.broker.requests("FindCoordinator")), 1)
        self.poll(consumer, 1)
        self.assertEqual(self.broker.requests("JoinGroup")[-1].member_id, "member-1")
        self.assertEqual(len(self.broker.requests("JoinGroup")), 3)

    def test_illegalGeneration(self) -> None:
        """22: the member joins again and stays who it was."""
        self.waiting()
        self.answerOnce("Heartbeat", ErrorCode.illegal_generation)
        self.runFor(4)
        self.assertEqual([each.member_id for each in self.broker.requests("JoinGroup")], ["", "member-1", "member-1"])

    def test_unknownMember(self) -> None:
        """25: the member joins again as somebody new."""
        self.waiting()
        self.answerOnce("Heartbeat", ErrorCode.unknown_member_id)
        self.runFor(4)
        self.assertEqual(
            [each.member_id for each in self.broker.requests("JoinGroup")], ["", "member-1", "", "member-1"]
        )

    def test_moved(self) -> None:
        """15 and 16: another broker coordinates the group; the member is who it was, and joins nothing."""
        for errorCode in (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator):
            self.waiting()
            found, joined = len(self.broker.requests("FindCoordinator")), len(self.broker.requests("JoinGroup"))
            self.answerOnce("Heartbeat", errorCode)
            self.runFor(10)
            self.assertEqual(len(self.broker.requests("FindCoordinator")), found + 1)
            self.assertEqual(len(self.broker.requests("JoinGroup")), joined)
            self.consumers[-1].close()
            self.runFor(1)

    def test_fenced(self) -> None:
        """82: another consumer has our name.  To take it back would start a war, so polls fail from now on."""
        consumer = self.waiting(groupInstanceId="reader-1")
        self.answerOnce("Heartbeat", ErrorCode.fenced_instance_id)
        self.runFor(4)
        self.assertIn("FENCED_INSTANCE_ID", str(self.failures[0]))
        self.assertIn("FENCED_INSTANCE_ID", str(self.failure(consumer.poll(), 1, BrokerRefused)))
        self.assertEqual(len(self.broker.requests("JoinGroup")), 1)

    def test_forbidden(self) -> None:
        """30: the group must not be read any more, and polls say so."""
        consumer = self.waiting()
        self.answerOnce("Heartbeat", ErrorCode.group_authorization_failed)
        self.runFor(4)
        self.assertIn("GROUP_AUTHORIZATION_FAILED", str(self.failures[0]))
        self.assertIn("GROUP_AUTHORIZATION_FAILED", str(self.failure(consumer.poll(), 1, BrokerRefused)))

    def test_loading(self) -> None:
        """14: the coordinator is not ready; the next heartbeat comes soon."""
        self.waiting()
        self.answerOnce("Heartbeat", ErrorCode.coordinator_load_in_progress)
        self.runFor(4)
        first, second = self.broker.times("Heartbeat")
        self.assertTrue(first + 0.08 <= second <= first + 0.12)

    def test_past(self) -> None:
        """An error in answer to a former identity says nothing about the present one."""
        consumer = self.working()
        for errorCode in (22, 25, 82):
            consumer._member.noteError(BrokerRefused(errorCode, "a heartbeat"), Identity(0, "member-1"))
        self.assertEqual((consumer._member.state, consumer._member.rejoinNeeded), (STABLE, False))

    def test_connectionLost(self) -> None:
        """A coordinator that closes the connection is looked for again, and the member goes on."""
        self.waiting()
        self.broker.dropConnections()
        self.runFor(10)
        self.assertEqual(len(self.broker.requests("FindCoordinator")), 2)
        self.assertEqual(len(self.broker.requests("JoinGroup")), 2)
        self.assertEqual(len(self.broker.requests("Heartbeat")), 3)


class JoinTests(MemberTestCase):
    """Joining, and joining again."""

    def memberIds(self) -> list[str]:
        """As whom it was tried."""
        return [each.member_id for each in self.broker.requests("JoinGroup")]

    def test_memberIdRequired(self) -> None:
        """79: the coordinator gives an id, and the member comes back with it at once."""
        self.working()
        self.assertEqual(self.memberIds(), ["", "member-1"])
        self.assertEqual(self.broker.times("JoinGroup"), [0, 0])

    def test_atOnce(self) -> None:
        """22, 25 and 27 while joining: again, and at once; 25 as somebody new."""
        for name in ("JoinGroup", "SyncGroup"):
            for errorCode, memberIds in [
                (ErrorCode.rebalance_in_progress, ["member-1"]),
                (ErrorCode.illegal_generation, ["member-1"]),
                (ErrorCode.unknown_member_id, ["", "member-1"]),
            ]:
                consumer = self.working()
                self.answerOnce("Heartbeat", ErrorCode.rebalance_in_progress)
                self.runFor(3)
                self.answerOnce(name, errorCode)
                self.broker.asked.clear()
                consumer.poll(1).addErrback(lambda failure: None)
                self.runFor(0)
                self.assertEqual(self.memberIds(), ["member-1", *memberIds], (name, errorCode))
                self.result(consumer.close(), 1)

    def test_later(self) -> None:
        """
        14, 15 and 16 while joining: again after a pause, which grows; 15 and 16 after looking for
        the coordinator.
        """
        for errorCode, finds in [
            (ErrorCode.coordinator_load_in_progress, 1),
            (ErrorCode.coordinator_not_available, 4),
            (ErrorCode.not_coordinator, 4),
        ]:
            self.broker.asked.clear()
            consumer = self.consumer()
            self.answerOnce("JoinGroup", errorCode, errorCode, errorCode)
            consumer.subscribe(["events"])
            self.assertEqual(len(self.poll(consumer, 2)), 1)
            times = self.broker.times("JoinGroup")
            for (earlier, later), expected in zip(pairwise(times), (0.1, 0.2, 0.4), strict=False):
                self.assertTrue(0.8 * expected <= later - earlier <= 1.2 * expected)
            self.assertEqual(len(self.broker.times("FindCoordinator")), finds)
            self.result(consumer.close(), 1)

    def test_endlessly(self) -> None:
        """A coordinator that always says the same is not asked without end at one moment."""
        self.broker.answers["JoinGroup"] = errorAnswer(ErrorCode.unknown_member_id)
        self.poll(self.subscribed(), 10)
        self.assertLess(len(self.memberIds()), 25)

    def test_refused(self) -> None:
        """23, 26, 81 and 82: it would be no use to try again; the poll says why."""
        for errorCode in (
            ErrorCode.inconsistent_group_protocol,
            ErrorCode.invalid_session_timeout,
            ErrorCode.group_max_size_reached,
            ErrorCode.fenced_instance_id,
        ):
            consumer = self.consumer()
            self.answerOnce("JoinGroup", errorCode)
            consumer.subscribe(["events"])
            self.assertEqual(self.failure(consumer.poll(), 1, BrokerRefused).errorCode, errorCode)

    def test_completing(self) -> None:
        """The interval and the session count from when the group is joined, though its assignment is still to come."""
        given: Deferred[Any] = Deferred()
        usual = self.broker.answers["SyncGroup"]
        self.broker.answers["SyncGroup"] = lambda request: given
        polling = self.after(2.5, self.subscribed().poll())
        given.callback(usual(self.broker.requests("SyncGroup")[0]))
        self.runFor(3)
        self.assertEqual(self.broker.times("Heartbeat"), [3])
        self.successResultOf(polling)

    def test_stuckCompleting(self) -> None:
        """An assignment that does not come within the session timeout is given up, and asked for again."""
        self.broker.answers["SyncGroup"] = lambda request: None
        self.result(self.subscribed().poll(20), 20)
        self.assertEqual(self.broker.times("SyncGroup")[0], 0)
        self.assertTrue(10.08 <= self.broker.times("SyncGroup")[1] <= 10.12)
        self.assertEqual(self.memberIds(), ["", "member-1", "member-1"])

    def test_silentWhileLeading(self) -> None:
        """
        An application that falls silent while its consumer decides for the group is taken out, and not joined again
        before it polls.
        """
        self.broker.answers["Metadata"] = lambda request: None
        consumer = self.subscribed(maxPollIntervalSeconds=5.0)
        self.assertEqual(self.result(consumer.poll(1), 100), [])
        self.assertEqual(self.broker.times("LeaveGroup"), [11])
        self.assertEqual(self.memberIds(), ["", "member-1"])
        self.assertEqual(self.broker.requests("SyncGroup"), [])

    def test_leads(self) -> None:
        """
        The leader decides for members that speak other versions of the protocol, and about topics
        it does not want.
        """
        self.cluster.topic("events", 3)
        self.cluster.topic("other", 1)
        mine = encodeSubscription(["events"])
        usual = self.broker.answers["JoinGroup"]

        def joinGroup(request: Any) -> Any:
            answer = dict(usual(request))
            if answer.get("members"):
                answer["members"] = [
                    {"member_id": "member-1", "metadata": mine},
                    {
                        "member_id": "member-2",
                        "metadata": encodeSubscription(
                            ["events", "other"], [TopicPartition("events", 0)], 7, version=3
                        ),
                    },
                ]
            return answer

        self.broker.answers["JoinGroup"] = joinGroup
        self.working()
        (sync,) = self.broker.requests("SyncGroup")
        assignments = {each.member_id: decodeAssignment(each.assignment) for each in sync.assignments}
        self.assertEqual(
            assignments,
            {
                "member-1": [TopicPartition("events", 0), TopicPartition("events", 1)],
                "member-2": [TopicPartition("events", 2), TopicPartition("other", 0)],
            },
        )

    def test_leadsForbidden(self) -> None:
        """A topic that only another member wants may be forbidden to the leader."""
        self.cluster.topicErrors["secret"] = ErrorCode.topic_authorization_failed
        usual = self.broker.answers["JoinGroup"]

        def joinGroup(request: Any) -> Any:
            answer = dict(usual(request))
            if answer.get("members"):
                answer["members"] = [
                    *answer["members"],
                    {"member_id": "m2", "metadata": encodeSubscription(["secret"])},
                ]
            return answer

        self.broker.answers["JoinGroup"] = joinGroup
        self.working()
        asked = {topic.name for each in self.broker.requests("Metadata") for topic in each.topics}
        self.assertEqual(asked, {"events", "secret"})

    def test_leadsNoMore(self) -> None:
        """When another member leads, the number of partitions is its business."""
        consumer = self.waiting(metadataMaxAgeSeconds=30.0)
        usual = self.broker.answers["JoinGroup"]
        self.broker.answers["JoinGroup"] = lambda request: {**usual(request), "leader": "another", "members": []}
        self.broker.answers["SyncGroup"] = lambda request: {
            "assignment": encodeAssignment([TopicPartition("events", 0)])
        }
        self.answerOnce("Heartbeat", ErrorCode.rebalance_in_progress)
        self.runFor(4)
        self.cluster.topic("events", 4)
        self.runFor(60)
        self.assertGreater(len(self.broker.requests("Metadata")), 2)
        self.assertFalse(consumer._member.rejoinNeeded)

    def test_follows(self) -> None:
        """A member that does not lead takes what it is given, in any version of the protocol, and decides nothing."""
        self.cluster.topic("events", 2)
        usual = self.broker.answers["JoinGroup"]
        self.broker.answers["JoinGroup"] = lambda request: {**usual(request), "leader": "another", "members": []}
        self.broker.answers["SyncGroup"] = lambda request: {
            "assignment": encodeAssignment([TopicPartition("events", 1)], version=2)
        }
        self.cluster.produce("events", b"of 1", partition=1)
        self.assertEqual(self.working().assignment, [TopicPartition("events", 1)])
        self.assertEqual(self.broker.requests("SyncGroup")[0].assignments, ())

    def test_nonsense(self) -> None:
        """A member or a leader that makes no sense is an error in words."""
        usual = self.broker.answers["JoinGroup"]
        self.broker.answers["JoinGroup"] = lambda request: {
            **usual(request),
            "members": [{"member_id": "member-1", "metadata": b"\0"}],
        }
        consumer = self.subscribed()
        polling = self.after(1, consumer.poll())
        self.assertIn("makes no sense", str(self.failureResultOf(polling, BrokerRefused).value))
        self.broker.answers["JoinGroup"] = usual
        self.broker.answers["SyncGroup"] = lambda request: {"assignment": b"\0\0\xff"}
        self.assertIn("the assignment of group", str(self.failure(consumer.poll(), 1, BrokerRefused)))


class LeaveTests(MemberTestCase):
    """Leaving, or not."""

    def test_static(self) -> None:
        """
        A static member never leaves: not when it closes, and not when its application is silent.  It comes back
        under its name.
        """
        consumer = self.working(groupInstanceId="reader-1")
        self.runFor(400)
        self.assertEqual(self.broker.requests("LeaveGroup"), [])
        self.assertEqual(self.broker.times("Heartbeat")[-1], 297)
        self.poll(consumer, 1)
        self.result(consumer.close(), 1)
        self.assertEqual(self.broker.requests("LeaveGroup"), [])
        joins = self.broker.requests("JoinGroup")
        self.assertEqual([(each.member_id, each.group_instance_id) for each in joins], [("", "reader-1")] * 2)

    def test_coordinatorUnknown(self) -> None:
        """
        While the coordinator is not known, nobody leaves; the application that was silent is taken out when it is
        known again.
        """
        self.working()
        self.runFor(290)
        self.broker.isDown = True
        self.broker.dropConnections()
        self.runFor(100)
        self.assertEqual(self.broker.requests("LeaveGroup"), [])
        self.broker.isDown = False
        self.runFor(2)
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)

    def test_bestEffort(self) -> None:
        """A LeaveGroup that fails is not sent again."""
        self.broker.answers["LeaveGroup"] = errorAnswer(ErrorCode.coordinator_not_available)
        self.working(maxPollIntervalSeconds=20.0)
        self.runFor(100)
        self.assertEqual(len(self.broker.requests("LeaveGroup")), 1)

    def test_backoff(self) -> None:
        """
        A coordinator that cannot be found is looked for again and again, after 0.1, 0.2, 0.4, 0.8 and then 1 second,
        give or take a fifth.
        """
        self.working()
        self.broker.answers["FindCoordinator"] = errorAnswer(
            ErrorCode.coordinator_not_available, coordinators=[{"error_code": ErrorCode.coordinator_not_available}]
        )
        self.broker.asked.clear()
        self.answerOnce("Heartbeat", ErrorCode.not_coordinator)
        self.runFor(20)
        times = self.broker.times("FindCoordinator")
        self.assertGreater(len(times), 10)
        for (earlier, later), expected in zip(pairwise(times), (0.1, 0.2, 0.4, 0.8, *[1.0] * 20), strict=False):
            self.assertTrue(0.8 * expected <= later - earlier <= 1.2 * expected, times)
