"""Tests for L{admission.kafka.broker.groups.rebalancer}, through the coordinator."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from admission.kafka.broker.groups.groupstate import State
from admission.kafka.broker.groups.member import JoinResult, SyncResult
from admission.kafka.broker.groups.rebalancer import Answers
from admission.kafka.storage.itable import LogFailed
from tests.unit.kafka.broker.groups.groupsfixture import Consumer, GroupsTestCase


class GenerationTests(GroupsTestCase):
    """A group gets from one generation to the next."""

    def test_first(self) -> None:
        """
        The members of an empty group join together; the first one leads and is told of all, and all get what it
        assigns to them.
        """
        first, second = self.joined(self.consumer(), self.consumer())
        assert first.joined is not None and second.joined is not None
        self.assertEqual((first.generation, second.generation), (1, 1))
        self.assertEqual(first.joined.leaderId, first.memberId)
        self.assertEqual(second.joined.leaderId, first.memberId)
        self.assertEqual([each.memberId for each in first.joined.members], [first.memberId, second.memberId])
        self.assertEqual([each.metadata for each in first.joined.members], [b"all", b"all"])
        self.assertEqual(second.joined.members, ())
        self.assertEqual((first.joined.protocolType, first.joined.protocolName), ("consumer", "range"))
        second.sync()
        self.rig.wait()
        self.assertIsNone(second.assignment)
        first.sync()
        self.rig.wait()
        self.assertEqual(second.answers[-1], SyncResult("consumer", "range", second.memberId.encode()))
        self.assertEqual(first.assignment, first.memberId.encode())
        self.assertIs(self.rig.group().state, State.STABLE)

    def test_missingAssignment(self) -> None:
        """A member that the leader forgets gets an empty assignment, and one that it invents is ignored."""
        first, second = self.joined(self.consumer(), self.consumer())
        first.sync({first.memberId: b"x", "nobody": b"y"})
        second.sync()
        self.rig.wait()
        self.assertEqual((first.assignment, second.assignment), (b"x", b""))

    def test_anotherMember(self) -> None:
        """A member that joins a stable group makes all the others join again; they hear of it by their heartbeats."""
        first, second = self.consumer(), self.consumer()
        self.stable(first)
        second.join()
        self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)
        self.assertEqual(second.answers, [])
        first.join()
        self.rig.wait()
        self.assertEqual((first.generation, second.generation), (2, 2))
        self.assertTrue(first.leads)
        self.assertEqual(first.heartbeat(), ErrorCode.none)

    def test_stableFollower(self) -> None:
        """A follower that joins a stable group again as it was is told the generation that there is."""
        _, second = self.stable(self.consumer(), self.consumer())
        second.join()
        self.assertEqual((second.generation, self.rig.group().state), (1, State.STABLE))

    def test_stableLeader(self) -> None:
        """A leader that joins a stable group again wants to assign anew."""
        first, second = self.stable(self.consumer(), self.consumer())
        first.join()
        self.assertIs(self.rig.group().state, State.PREPARING)
        second.join()
        self.rig.wait()
        self.assertEqual((first.generation, second.generation), (2, 2))

    def test_changedFollower(self) -> None:
        """A follower that joins again with other metadata makes the group rebalance."""
        _, second = self.stable(self.consumer(), self.consumer())
        second.join(protocols=(("range", b"less"),))
        self.assertIs(self.rig.group().state, State.PREPARING)

    def test_completing(self) -> None:
        """
        While assignments are awaited, a member that joins again as it was is told the same generation, and one that has
        changed makes the group rebalance, for which the requests that wait are refused.
        """
        first, second = self.joined(self.consumer(), self.consumer())
        first.join()
        assert first.joined is not None
        self.assertEqual((first.generation, len(first.joined.members)), (1, 2))
        second.sync()
        first.join(protocols=(("range", b"more"),))
        self.assertEqual(second.answers[-1], ErrorCode.rebalance_in_progress)
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.assertIsNotNone(first.waiting)
        second.join()
        self.rig.wait()
        self.assertEqual((first.generation, second.generation), (2, 2))

    def test_empty(self) -> None:
        """When the last member has left, the group is empty, in a generation of its own."""
        (first,) = self.stable(self.consumer())
        self.assertEqual(first.leave(), ErrorCode.none)
        group = self.rig.group()
        self.assertEqual((group.state, group.generation, group.protocolType), (State.EMPTY, 2, "consumer"))
        self.assertEqual(first.join(), ErrorCode.unknown_member_id)

    def test_namesInLog(self) -> None:
        """What a client has chosen stays on one line of the log, and short."""
        first = self.consumer(groupId="a\nb" + "x" * 30_000, clientId="c\x1b[31m" + "y" * 30_000)
        with capturedLogs() as logged:
            self.joined(first)
            first.sync()
            self.rig.wait()
            first.leave()
        lines = [formatEvent(event) for event in logged if event["log_namespace"].startswith("admission.")]
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertTrue(line.isprintable(), line[:100])
            self.assertLess(len(line), 1000)

    def test_answeredWhenCommitted(self) -> None:
        """Neither a generation nor an assignment is told before it would survive."""
        first = self.consumer()
        first.join()
        self.rig.log.commitSeconds = 1.0
        self.rig.wait(3.01)
        self.assertIs(self.rig.group().state, State.COMPLETING)
        self.assertEqual((first.answers, self.rig.log.commitCount), ([], 0))
        self.rig.wait(1.0)
        self.assertEqual((first.generation, self.rig.log.commitCount), (1, 1))
        first.sync()
        self.rig.wait(0.9)
        self.assertIsNone(first.assignment)
        self.assertIs(self.rig.group().state, State.COMPLETING)
        self.rig.wait(0.1)
        self.assertIsNotNone(first.assignment)
        self.assertIs(self.rig.group().state, State.STABLE)

    def test_said(self) -> None:
        """The log tells of rebalances and why."""
        with capturedLogs() as captured:
            first, second = self.consumer(), self.consumer()
            self.stable(first)
            second.join()
            self.rig.wait(61)
        said = [formatEvent(event) for event in captured]
        self.assertIn(f"group 'readers' rebalances after generation 0: {first.memberId!r} is new", said)
        self.assertIn(f"group 'readers' is stable: 1 in generation 1, led by {first.memberId!r}", said)


class InitialDelayTests(GroupsTestCase):
    """The first members of an empty group wait for more."""

    def joinedAfter(self, *arrivalSeconds: float, **joining: Any) -> float:
        """
        Have consumers join at some times.

        @return: when the first one was answered, to a quarter of a second.
        """
        consumers = []
        began = self.rig.clock.seconds()
        for seconds in arrivalSeconds:
            self.rig.wait(seconds - (self.rig.clock.seconds() - began))
            consumers.append(self.consumer(**joining))
            consumers[-1].join()
        while consumers[0].joined is None:
            self.rig.wait(0.25)
            self.assertLess(self.rig.clock.seconds() - began, 400)
        self.assertEqual([each.generation for each in consumers], [consumers[0].generation] * len(consumers))
        return self.rig.clock.seconds() - began

    def test_delay(self) -> None:
        """
        One member waits for three seconds, and after each wait in which another joins three more; all of them together
        no longer than the first member's rebalance timeout, which does not shorten the first.
        """
        for number, (arrivals, rebalanceSeconds, expected) in enumerate(
            (
                ((0.0,), 60.0, 3.0),
                ((0.0, 1.0, 2.0), 60.0, 6.0),
                ((0.0, 1.0, 4.0), 60.0, 9.0),
                ((0.0, 1.0, 4.0, 6.5), 7.0, 7.0),
                ((0.0, 1.0), 2.0, 3.0),
            )
        ):
            joined = self.joinedAfter(*arrivals, groupId=str(number), rebalanceSeconds=rebalanceSeconds)
            self.assertEqual(joined, expected, number)

    def test_usedBefore(self) -> None:
        """A group that was in use before waits exactly once, however many members join."""
        (first,) = self.stable(self.consumer())
        first.leave()
        self.assertEqual(self.joinedAfter(0.0, 1.0, 2.0), 3.0)

    def test_notEarlier(self) -> None:
        """That all members have joined does not end it, nor that all have left."""
        first = self.consumer()
        first.join()
        first_id = next(iter(self.rig.group().members))
        self.rig.groups.leave("readers", [(first_id, None)])
        self.assertEqual(first.answers, [ErrorCode.unknown_member_id])
        self.rig.wait(2.5)
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.rig.wait(0.5)
        self.assertIs(self.rig.group().state, State.EMPTY)


class SlowMemberTests(GroupsTestCase):
    """Members that are alive and slow are waited for; those that are gone are not."""

    def test_rebalanceTimeout(self) -> None:
        """
        A member that sends heartbeats and does not join keeps its place until the rebalance
        timeout, and loses it then.
        """
        first, second = self.consumer(rebalanceSeconds=60.0), self.consumer()
        self.stable(first)
        second.join()
        for _ in range(11):
            self.rig.wait(5.0)
            self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)
        self.rig.wait(4.9)
        self.assertIsNone(second.joined)
        self.rig.wait(0.2)
        self.assertEqual((second.generation, second.leads), (2, True))
        self.assertEqual(first.heartbeat(), ErrorCode.unknown_member_id)

    def test_largestTimeout(self) -> None:
        """
        The rebalance timeout is the largest of the members' when it starts; one who comes later
        does not prolong it.
        """
        first, second, third = (self.consumer(rebalanceSeconds=each) for each in (20.0, 40.0, 300.0))
        self.stable(first, second)
        first.join()
        third.join()
        for _ in range(8):
            self.assertEqual(second.heartbeat(), ErrorCode.rebalance_in_progress)
            self.rig.wait(5.0)
        self.rig.wait(0.1)
        self.assertEqual((first.generation, third.generation, len(self.rig.group().members)), (2, 2, 2))

    def test_crashWhileOthersJoin(self) -> None:
        """
        A member that is silent for its session timeout is not waited for any longer, even in the
        middle of a rebalance.
        """
        first, second, third = (self.consumer(sessionSeconds=10.0, rebalanceSeconds=300.0) for _ in range(3))
        self.stable(first, second)
        self.rig.wait(5.0)
        second.heartbeat()
        third.join()
        first.join()
        self.rig.wait(9.9)
        self.assertIsNone(third.joined)
        self.rig.wait(0.2)
        self.assertEqual((first.generation, third.generation), (2, 2))

    def test_crashInStable(self) -> None:
        """In a stable group its end makes the others rebalance."""
        first, second = self.stable(self.consumer(), self.consumer())
        self.rig.wait(6.0)
        first.heartbeat()
        self.rig.wait(4.1)
        self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)
        self.assertEqual(second.heartbeat(), ErrorCode.unknown_member_id)

    def test_syncTimeout(self) -> None:
        """
        A member that does not ask for its assignment within the rebalance timeout is removed, though it sends
        heartbeats, and the others rebalance.
        """
        first, second = self.joined(self.consumer(rebalanceSeconds=20.0), self.consumer(rebalanceSeconds=20.0))
        second.sync()
        for _ in range(4):
            self.assertEqual(first.heartbeat(), ErrorCode.none)
            self.rig.wait(5.0)
        self.assertEqual(second.answers[-1], ErrorCode.rebalance_in_progress)
        self.assertEqual(first.heartbeat(), ErrorCode.unknown_member_id)
        second.join()
        self.rig.wait()
        self.assertEqual((second.generation, second.leads), (2, True))

    def test_syncTimeoutInStable(self) -> None:
        """That holds for those, too, who do not ask when the others have got theirs."""
        first, second = self.joined(self.consumer(rebalanceSeconds=20.0), self.consumer(rebalanceSeconds=20.0))
        first.sync()
        self.rig.wait()
        self.assertIs(self.rig.group().state, State.STABLE)
        for _ in range(4):
            first.heartbeat()
            self.assertEqual(second.heartbeat(), ErrorCode.none)
            self.rig.wait(5.0)
        self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)
        self.assertEqual(second.heartbeat(), ErrorCode.unknown_member_id)

    def test_lateSync(self) -> None:
        """
        A member that asks when the group is stable gets its assignment at once, and no member is
        removed afterwards.
        """
        first, second = self.joined(self.consumer(rebalanceSeconds=20.0), self.consumer(rebalanceSeconds=20.0))
        first.sync()
        self.rig.wait()
        second.sync()
        self.assertEqual(second.assignment, second.memberId.encode())
        for _ in range(6):
            self.assertEqual((first.heartbeat(), second.heartbeat()), (ErrorCode.none, ErrorCode.none))
            self.rig.wait(5.0)


class SessionTests(GroupsTestCase):
    """What keeps a session alive, and what does not."""

    def test_joinWaits(self) -> None:
        """A member that waits for the answer to a join sends no heartbeats and does not expire, unless it is new."""
        first, second = self.stable(self.consumer(rebalanceSeconds=60.0), self.consumer(rebalanceSeconds=60.0))
        first.join()
        for _ in range(10):
            self.rig.wait(5.0)
            second.heartbeat()
        self.assertEqual(len(self.rig.group().members), 2)
        second.join()
        self.rig.wait()
        # Answered, it has its session to go on.
        self.rig.wait(9.9)
        self.assertEqual(len(self.rig.group().members), 2)
        self.rig.wait(0.15)
        self.assertEqual(len(self.rig.group().members), 0)

    def test_stoodStill(self) -> None:
        """
        When the broker has stood still for longer than a session it first reads what has come meanwhile: a client that
        has sent a heartbeat is a member, and one that has not is gone a moment later, once.
        """
        first, _ = self.stable(self.consumer(), self.consumer())
        self.rig.clock.advance(15.0)
        self.assertEqual(first.heartbeat(), ErrorCode.none)
        self.assertEqual(len(self.rig.group().members), 2)
        self.rig.wait(0.6)
        self.assertEqual(list(self.rig.group().members), [first.memberId])

    def test_newJoinWaits(self) -> None:
        """A new member is answered after five minutes, and removed; its client may ask again."""
        first, second = self.consumer(rebalanceSeconds=1000.0), self.consumer()
        self.stable(first)
        second.join()
        for _ in range(60):
            self.assertEqual(second.answers, [])
            first.heartbeat()
            self.rig.wait(5.0)
        self.rig.wait(0.1)
        self.assertEqual(second.answers, [ErrorCode.unknown_member_id])
        self.assertEqual(list(self.rig.group().members), [first.memberId])

    def test_syncWaits(self) -> None:
        """A member that waits for its assignment does not expire, and has a whole session when it gets it."""
        first, second = self.joined(self.consumer(sessionSeconds=30.0), self.consumer())
        second.sync()
        self.rig.wait(20.0)
        first.sync()
        self.rig.wait()
        self.assertIsNotNone(second.assignment)
        self.rig.wait(9.8)
        self.assertEqual(second.heartbeat(), ErrorCode.none)

    def test_hungUpJoin(self) -> None:
        """
        A member that hangs up while its join waits keeps its place for a session from then on, and is part of the
        generation.
        """
        first, second = self.stable(self.consumer(rebalanceSeconds=60.0), self.consumer(rebalanceSeconds=60.0))
        first.join()
        for _ in range(4):
            self.rig.wait(5.0)
            second.heartbeat()
        first.hangUp()
        second.join()
        self.rig.wait()
        self.assertEqual((second.generation, len(self.rig.group().members)), (2, 2))
        self.rig.wait(10.1)
        self.assertEqual(len(self.rig.group().members), 0)

    def test_hungUpAndGone(self) -> None:
        """If the others take longer than that, it is gone."""
        first, second = self.consumer(), self.consumer()
        self.stable(first)
        second.join()
        self.goneAfterHangUp(first, second)

    def test_hungUpSync(self) -> None:
        """A member that hangs up while it waits for its assignment expires like anybody else."""
        first, second = self.joined(self.consumer(), self.consumer())
        second.sync()
        self.goneAfterHangUp(first, second)

    def goneAfterHangUp(self, first: Consumer, second: Consumer) -> None:
        """A member that hangs up keeps its place for a session from then on, and is gone after it."""
        self.rig.wait(5.0)
        first.heartbeat()
        second.hangUp()
        self.rig.wait(9.9)
        self.assertEqual(len(self.rig.group().members), 2)
        first.heartbeat()
        self.rig.wait(0.2)
        self.assertEqual(list(self.rig.group().members), [first.memberId])

    def test_repeatedJoin(self) -> None:
        """A request that takes the place of one that waits answers that one."""
        first, second = self.stable(self.consumer(), self.consumer())
        first.join()
        again = self.consumer(memberId=first.memberId)
        again.join()
        self.assertEqual(first.answers[-1], ErrorCode.rebalance_in_progress)
        second.join()
        self.rig.wait()
        self.assertEqual(again.generation, 2)

    def test_syncInStable(self) -> None:
        """A member that asks again for the assignment that it has does not expire."""
        (first,) = self.stable(self.consumer())
        for _ in range(3):
            self.rig.wait(8.0)
            self.assertIsNone(first.sync())

    def test_hungUpLate(self) -> None:
        """
        A client that hangs up when its answer is on its way does not take with it what the member
        asked for since.
        """
        first = self.consumer()
        first.join()
        self.rig.log.commitSeconds = 1.0
        self.rig.wait(3.01)
        again = self.consumer(memberId=next(iter(self.rig.group().members)))
        again.join()
        self.assertEqual((first.answers, again.answers), ([], []))
        again.joined = self.rig.group().joinResult(self.rig.group().members[again.memberId])
        again.sync()
        first.hangUp()
        self.rig.wait(2.1)
        self.assertEqual(again.assignment, again.memberId.encode())


class FailingLogTests(GroupsTestCase):
    """What cannot be stored does not happen, and is tried again."""

    def test_generation(self) -> None:
        """Members of a generation that could not be stored are sent away and join again."""
        first = self.consumer()
        first.join()
        self.rig.log.error = LogFailed("full")
        self.rig.wait(3.01)
        self.assertEqual(first.answers, [ErrorCode.not_coordinator])
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.rig.log.error = None
        first.join(memberId=next(iter(self.rig.group().members)))
        self.rig.wait()
        self.assertEqual(first.generation, 2)

    def test_assignment(self) -> None:
        """So are the members that wait for assignments that could not be stored."""
        first, second = self.joined(self.consumer(), self.consumer())
        second.sync()
        first.sync()
        self.rig.log.error = LogFailed("full")
        self.rig.wait()
        for consumer in (first, second):
            self.assertEqual(consumer.answers[-1], ErrorCode.not_coordinator)
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.rig.log.error = None

    def test_writing(self) -> None:
        """It is the same if writing itself fails."""
        first = self.consumer()
        first.join()
        self.rig.wait(2.9)

        def put(key: bytes, value: bytes) -> None:
            raise LogFailed("full")

        self.patch(self.rig.log.tables["groups"], "put", put)
        self.rig.wait(0.2)
        self.assertEqual(first.answers, [ErrorCode.not_coordinator])
        self.assertIs(self.rig.group().state, State.PREPARING)


class AnswersTests(GroupsTestCase):
    """L{Answers} leave at the end."""

    def test_order(self) -> None:
        """No answer is sent within a block, and what answers bring about is answered after them."""
        answers = Answers()
        told: list[str] = []
        joined = JoinResult(memberId="", generation=1, protocolType=None, protocolName=None, leaderId="")
        first: Deferred[Any] = Deferred()
        second: Deferred[Any] = Deferred()

        def again(_: Any) -> None:
            with answers:
                answers.add(second, joined)
            told.append("first")

        first.addCallback(again)
        second.addCallback(lambda _: told.append("second"))
        with answers:
            with answers:
                answers.add(first, joined)
            self.assertEqual(told, [])
        self.assertEqual(told, ["first", "second"])

    def test_deepChain(self) -> None:
        """Answers that bring about answers do not pile up on the stack."""
        answers = Answers()
        joined = JoinResult(memberId="", generation=1, protocolType=None, protocolName=None, leaderId="")
        count = 0

        def again(_: Any) -> None:
            nonlocal count
            count += 1
            if count < 5000:
                answer()

        def answer() -> None:
            waiting: Deferred[Any] = Deferred()
            waiting.addCallback(again)
            with answers:
                answers.add(waiting, joined)

        answer()
        self.assertEqual(count, 5000)

    def test_manyConsumers(self) -> None:
        """A member that asks for its assignment from within the answer to its join gets it."""

        class Eager(Consumer):
            def _joined(self, joined: JoinResult) -> None:
                super()._joined(joined)
                self.sync()

        consumers = [Eager(self.rig) for _ in range(50)]
        for consumer in consumers:
            consumer.join()
        self.rig.wait(6.01)
        self.assertEqual([each.assignment for each in consumers], [each.memberId.encode() for each in consumers])
