"""
Tests for L{admission.kafka.broker.groups.joining}.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from admission.kafka.broker.groups.groupstate import State
from admission.kafka.broker.log.interface import LogFailed
from tests.kit.groupsfixture import Consumer, GroupsTestCase


class CheckTests(GroupsTestCase):
    """
    What no group would take.
    """

    def test_sessionBounds(self) -> None:
        """
        A session timeout of six seconds and one of half an hour will do; less and more will not.
        """
        for seconds, refusal in (
            (5.999, ErrorCode.invalid_session_timeout),
            (6.0, None),
            (1800.0, None),
            (1800.001, ErrorCode.invalid_session_timeout),
            (-1.0, ErrorCode.invalid_session_timeout),
        ):
            self.assertEqual(self.consumer(sessionSeconds=seconds).join(), refusal, seconds)

    def test_noProtocols(self) -> None:
        """
        Members must speak something, of some type; a group does not come into being without.
        """
        self.assertEqual(self.consumer(protocols=()).join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(self.consumer(protocolType="").join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(list(self.rig.groups.all), [])

    def test_noCommonProtocol(self) -> None:
        """
        A member must share a protocol with all the others, and the type.
        """
        first = self.consumer(protocols=(("range", b""), ("sticky", b"")))
        self.stable(first)
        second = self.consumer(protocols=(("sticky", b""),))
        self.assertIsNone(second.join())
        for others in ({"protocols": (("range", b""),)}, {"protocolType": "connect"}):
            self.assertEqual(self.consumer(**others).join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(second.join(protocols=(("robin", b""),)), ErrorCode.inconsistent_group_protocol)

    def test_otherTypeOnceEmpty(self) -> None:
        """
        An empty group takes up whatever its next member speaks.
        """
        first = self.consumer()
        self.stable(first)
        first.leave()
        other = self.consumer(protocolType="connect", protocols=(("default", b""),))
        self.stable(other)
        group = self.rig.group()
        self.assertEqual((group.protocolType, group.protocolName), ("connect", "default"))


class PendingTests(GroupsTestCase):
    """
    New members have to come back with the id that they are given (KIP-394).
    """

    def newcomer(self) -> Consumer:
        """
        Somebody who has been told its id.
        """
        consumer = self.consumer(mustKnowItsId=True, clientId="reader")
        self.assertEqual(consumer.join(), ErrorCode.member_id_required)
        return consumer

    def test_id(self) -> None:
        """
        The id begins with the client's, and the client joins with it.
        """
        consumer = self.newcomer()
        self.assertRegex(consumer.memberId, r"^reader-[0-9a-f-]{36}$")
        memberId = consumer.memberId
        self.assertEqual(self.rig.group().state, State.EMPTY)
        self.joined(consumer)
        self.assertEqual(consumer.memberId, memberId)
        self.assertEqual(self.rig.group().pending, {})

    def test_withoutId(self) -> None:
        """
        Older clients and static members are taken at once.
        """
        self.assertIsNone(self.consumer().join())
        self.assertIsNone(self.consumer(mustKnowItsId=True, instanceId="a").join())

    def test_expires(self) -> None:
        """
        An id that is not used within the session timeout is forgotten, and so is a group that nobody else is in.
        """
        consumer = self.newcomer()
        self.rig.wait(9.9)
        self.assertEqual(list(self.rig.group().pending), [consumer.memberId])
        self.rig.wait(0.2)
        self.assertIsNone(self.rig.groups.get("readers"))
        self.assertEqual(consumer.join(), ErrorCode.unknown_member_id)
        self.assertEqual(self.rig.groups.sizeBytes, 0)

    def test_expiresInUsedGroup(self) -> None:
        """
        A group that was in use stays, or its generations would begin anew under those who were in it.
        """
        first = self.consumer()
        self.stable(first)
        first.leave()
        self.newcomer()
        self.rig.wait(10.1)
        self.assertEqual(self.rig.group().generation, 2)

    def test_blocksRebalance(self) -> None:
        """
        A rebalance waits for somebody who was told its id, but that does not start one.
        """
        first = self.consumer()
        self.stable(first)
        second = self.newcomer()
        self.assertEqual(first.heartbeat(), ErrorCode.none)
        first.join()
        self.rig.wait(5.0)
        self.assertIsNotNone(first.waiting)
        second.join()
        self.rig.wait()
        self.assertEqual((first.generation, second.generation), (2, 2))

    def test_expiryUnblocks(self) -> None:
        """
        If it does not come, the rebalance goes on without it.
        """
        first = self.consumer()
        self.stable(first)
        self.newcomer()
        first.join()
        self.rig.wait(9.9)
        self.assertIsNotNone(first.waiting)
        self.rig.wait(0.2)
        self.assertEqual(first.generation, 2)

    def test_leaves(self) -> None:
        """
        It may also say that it does not come.
        """
        first = self.consumer()
        self.stable(first)
        second = self.newcomer()
        first.join()
        self.assertEqual(second.leave(), ErrorCode.none)
        self.rig.wait()
        self.assertEqual(first.generation, 2)

    def test_static(self) -> None:
        """
        An id that was given to a dynamic member does not become a static one's.
        """
        consumer = self.newcomer()
        self.assertEqual(consumer.join(instanceId="a"), ErrorCode.unknown_member_id)

    def test_tooMany(self) -> None:
        """
        Only so many clients are waited for in all; the others may ask again.
        """
        self.rig = self.buildRig(maxPending=2)
        for groupId in ("a", "b"):
            self.assertEqual(self.consumer(groupId=groupId, mustKnowItsId=True).join(), ErrorCode.member_id_required)
        third = self.consumer(groupId="c", mustKnowItsId=True)
        self.assertEqual(third.join(), ErrorCode.coordinator_not_available)
        self.assertIsNone(self.rig.groups.get("c"))
        self.rig.wait(10.1)
        self.assertEqual(third.join(), ErrorCode.member_id_required)


class SizeTests(GroupsTestCase):
    """
    A group has no more members than it may.
    """

    def setUp(self) -> None:
        """
        Allow two.
        """
        super().setUp()
        self.rig = self.buildRig(maxMembers=2)

    def test_stable(self) -> None:
        """
        A third member is turned away, and those who are in it may join again.
        """
        first, second = self.consumer(), self.consumer()
        self.stable(first, second)
        self.assertEqual(self.consumer().join(), ErrorCode.group_max_size_reached)
        self.assertEqual(self.rig.group().state, State.STABLE)
        self.assertIsNone(first.join())
        self.assertIsNone(second.join())
        self.rig.wait()
        self.assertEqual(second.generation, 2)

    def test_preparing(self) -> None:
        """
        While members join, those who do so first find room.
        """
        first, second = self.consumer(), self.consumer()
        self.stable(first, second)
        first.join()
        third = self.consumer()
        self.assertIsNone(third.join())
        self.assertEqual(second.join(), ErrorCode.group_max_size_reached)
        self.rig.wait()
        self.assertEqual((first.generation, third.generation), (2, 2))
        self.assertEqual(list(self.rig.group().members), [first.memberId, third.memberId])

    def test_waiting(self) -> None:
        """
        Who waits already may ask again.
        """
        first, second = self.consumer(), self.consumer()
        first.join()
        second.join()
        again = self.consumer(memberId=next(iter(self.rig.group().members)))
        self.assertIsNone(again.join())

    def test_pending(self) -> None:
        """
        Those who were told their id have a place (KAFKA-9885).
        """
        first, second, third = (self.consumer(mustKnowItsId=True) for _ in range(3))
        self.assertEqual(first.join(), ErrorCode.member_id_required)
        self.assertEqual(second.join(), ErrorCode.member_id_required)
        self.assertEqual(third.join(), ErrorCode.group_max_size_reached)
        self.joined(first, second)

    def test_static(self) -> None:
        """
        A static member that comes back to a full group has its place.
        """
        first, second = self.consumer(), self.consumer(instanceId="a")
        self.stable(first, second)
        self.assertIsNone(self.consumer(instanceId="a").join())
        self.assertEqual(self.consumer(instanceId="b").join(), ErrorCode.group_max_size_reached)


class StaticTests(GroupsTestCase):
    """
    Static members are known by a name that outlives their processes (KIP-345).
    """

    def test_stable(self) -> None:
        """
        One that comes back to a stable group gets another id and its assignment, and nobody else notices.
        """
        first, second = self.consumer(), self.consumer(instanceId="a")
        self.stable(first, second)
        again = self.consumer(instanceId="a", clientId="new", sessionSeconds=20.0, rebalanceSeconds=99.0)
        self.assertIsNone(again.join())
        self.rig.wait()
        self.assertRegex(again.memberId, "^a-")
        self.assertNotEqual(again.memberId, second.memberId)
        self.assertEqual((again.generation, first.heartbeat()), (1, ErrorCode.none))
        self.assertIsNone(again.sync())
        self.assertEqual(again.assignment, second.memberId.encode())
        member = self.rig.group().members[again.memberId]
        self.assertEqual((member.sessionSeconds, member.rebalanceSeconds, member.clientId), (20.0, 99.0, "new"))

    def test_fenced(self) -> None:
        """
        Whoever uses the former id is told that it is fenced off, whatever it asks for.
        """
        first = self.consumer(instanceId="a")
        self.stable(first)
        self.consumer(instanceId="a").join()
        self.rig.wait()
        self.assertEqual(first.heartbeat(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.sync(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.leave(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.join(), ErrorCode.fenced_instance_id)

    def test_fencedWhileWaiting(self) -> None:
        """
        One whose request waits is told so at once.
        """
        for isSyncing in (False, True):
            groupId = f"readers-{isSyncing}"
            leader, first = self.consumer(groupId=groupId), self.consumer(groupId=groupId, instanceId="a")
            self.joined(leader, first)
            if isSyncing:
                first.sync()
            else:
                self.consumer(groupId=groupId).join()
                first.join()
            self.consumer(groupId=groupId, instanceId="a").join()
            self.assertEqual(first.answers[-1], ErrorCode.fenced_instance_id)

    def test_completing(self) -> None:
        """
        Coming back while assignments are awaited makes the group rebalance: they are for the former id.
        """
        leader, first = self.consumer(), self.consumer(instanceId="a")
        self.joined(leader, first)
        leader.sync()
        self.consumer(instanceId="a").join()
        self.rig.wait()
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.assertEqual(leader.answers[-1], ErrorCode.rebalance_in_progress)

    def test_preparing(self) -> None:
        """
        Coming back while members join is joining.
        """
        leader, first = self.consumer(), self.consumer(instanceId="a")
        self.stable(leader, first)
        leader.join()
        again = self.consumer(instanceId="a")
        again.join()
        self.rig.wait()
        self.assertEqual((leader.generation, again.generation), (2, 2))

    def test_new(self) -> None:
        """
        One that comes back before its first generation has begun has the time of a new member.
        """
        leader = self.consumer()
        self.stable(leader)
        self.consumer(instanceId="a").join()
        again = self.consumer(instanceId="a")
        again.join()
        for _ in range(4):
            self.rig.wait(5.0)
            leader.heartbeat()
        leader.join()
        self.rig.wait()
        self.assertEqual(again.generation, 2)

    def test_otherProtocol(self) -> None:
        """
        If the group's protocol would be another with it, the group rebalances.
        """
        first = self.consumer(instanceId="a", protocols=(("range", b""), ("sticky", b"")))
        self.stable(first)
        again = self.consumer(instanceId="a", protocols=(("sticky", b""), ("range", b"")))
        again.join()
        self.rig.wait()
        assert again.joined is not None
        self.assertEqual((again.generation, again.joined.protocolName), (2, "sticky"))

    def test_leader(self) -> None:
        """
        A leader that comes back to a stable group is told that its former id leads, so that it does not assign in vain;
        newer ones are told that they lead without having to.
        """
        first = self.consumer(instanceId="a")
        self.stable(first)
        again = self.consumer(instanceId="a")
        again.join()
        self.rig.wait()
        assert again.joined is not None
        self.assertEqual((again.joined.leaderId, again.joined.members), (first.memberId, ()))
        newer = self.consumer(instanceId="a", maySkipAssignment=True)
        newer.join()
        self.rig.wait()
        assert newer.joined is not None
        self.assertEqual((newer.joined.leaderId, newer.joined.skipsAssignment), (newer.memberId, True))
        self.assertEqual([each.memberId for each in newer.joined.members], [newer.memberId])

    def test_keepsItsPlace(self) -> None:
        """
        One that does not join in time stays in the group until its session expires; no generation begins without
        anybody who has joined.
        """
        leader = self.consumer(rebalanceSeconds=20.0)
        first = self.consumer(instanceId="a", sessionSeconds=100.0, rebalanceSeconds=20.0)
        self.stable(leader, first)
        leader.join()
        self.rig.wait(20.1)
        self.assertEqual((leader.generation, len(self.rig.group().members)), (2, 2))
        leader.sync()
        self.rig.wait()
        leader.leave()
        self.rig.wait(60.0)
        group = self.rig.group()
        self.assertEqual((group.state, group.generation, list(group.members)), (State.PREPARING, 2, [first.memberId]))
        first.join()
        self.rig.wait(0.1)
        self.assertEqual((first.generation, first.leads), (3, True))

    def test_noTimeToRejoin(self) -> None:
        """
        One that allows no time for joining does not make the coordinator spin.
        """
        leader = self.consumer(rebalanceSeconds=0.001)
        first = self.consumer(instanceId="a", rebalanceSeconds=0.001)
        leader.join()
        first.join()
        self.rig.wait(3.0)
        leader.leave()
        expirations = self.rig.purgatory.expirations
        self.rig.wait(5.0)
        self.assertLess(self.rig.purgatory.expirations - expirations, 10)

    def test_removedByName(self) -> None:
        """
        An administrator removes one by its name; names that nobody has are not known.
        """
        first = self.consumer(instanceId="a")
        self.stable(first)
        outcome = self.rig.groups.leave("readers", [("", "b"), ("", "a"), ("", None)])
        self.assertEqual(outcome, [ErrorCode.unknown_member_id, ErrorCode.none, ErrorCode.unknown_member_id])
        self.assertEqual(self.rig.group().state, State.EMPTY)

    def test_unknown(self) -> None:
        """
        A name that nobody has is no member's.
        """
        first = self.consumer()
        self.stable(first)
        first.request = self.consumer(instanceId="b", memberId=first.memberId).request
        self.assertEqual(first.heartbeat(), ErrorCode.unknown_member_id)

    def test_failingLog(self) -> None:
        """
        One that takes a place which could not be stored is sent away and may come again.
        """
        first = self.consumer(instanceId="a")
        self.stable(first)
        again = self.consumer(instanceId="a")
        self.rig.log.error = LogFailed("full")
        again.join()
        self.rig.wait()
        self.assertEqual(again.answers, [ErrorCode.not_coordinator])
        self.rig.log.error = None
        again.join()
        self.rig.wait()
        self.assertEqual(again.generation, 1)
