"""Tests for L{admission.kafka.broker.groups.groupcoordinator}."""

from __future__ import annotations

from itertools import count
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs, formatEvent

from admission.kafka.broker.groups.groupstate import Offset, State
from admission.kafka.broker.groups.member import GroupRefusal, MemberRequest
from admission.kafka.broker.log.interface import Partition
from admission.kafka.storage.itable import LogFailed
from tests.unit.kafka.broker.groups.groupsfixture import Consumer, GroupsTestCase, OffsetsTestCase

WEEK_SECONDS = 7 * 86400.0


class CheckTests(GroupsTestCase):
    """What no group would take."""

    def test_sessionBounds(self) -> None:
        """A session timeout of six seconds and one of half an hour will do; less and more will not."""
        for seconds, refusal in (
            (5.999, ErrorCode.invalid_session_timeout),
            (6.0, None),
            (1800.0, None),
            (1800.001, ErrorCode.invalid_session_timeout),
            (-1.0, ErrorCode.invalid_session_timeout),
        ):
            self.assertEqual(self.consumer(sessionSeconds=seconds).join(), refusal, seconds)

    def test_noProtocols(self) -> None:
        """Members must speak something, of some type; a group does not come into being without."""
        self.assertEqual(self.consumer(protocols=()).join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(self.consumer(protocolType="").join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(list(self.rig.groups.all), [])

    def test_noCommonProtocol(self) -> None:
        """A member must share a protocol with all the others, and the type."""
        self.stable(self.consumer(protocols=(("range", b""), ("sticky", b""))))
        second = self.consumer(protocols=(("sticky", b""),))
        self.assertIsNone(second.join())
        for others in ({"protocols": (("range", b""),)}, {"protocolType": "connect"}):
            self.assertEqual(self.consumer(**others).join(), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(second.join(protocols=(("robin", b""),)), ErrorCode.inconsistent_group_protocol)

    def test_otherTypeOnceEmpty(self) -> None:
        """An empty group takes up whatever its next member speaks."""
        (first,) = self.stable(self.consumer())
        first.leave()
        self.stable(self.consumer(protocolType="connect", protocols=(("default", b""),)))
        group = self.rig.group()
        self.assertEqual((group.protocolType, group.protocolName), ("connect", "default"))


class PendingTests(GroupsTestCase):
    """New members have to come back with the id that they are given (KIP-394)."""

    def newcomer(self) -> Consumer:
        """A client that was told its id."""
        consumer = self.consumer(mustKnowItsId=True, clientId="reader")
        self.assertEqual(consumer.join(), ErrorCode.member_id_required)
        return consumer

    def test_id(self) -> None:
        """The id begins with the client's, and the client joins with it."""
        consumer = self.newcomer()
        self.assertRegex(consumer.memberId, r"^reader-[0-9a-f-]{36}$")
        memberId = consumer.memberId
        self.assertEqual(self.rig.group().state, State.EMPTY)
        self.joined(consumer)
        self.assertEqual(consumer.memberId, memberId)
        self.assertEqual(self.rig.group().pending, {})

    def test_withoutId(self) -> None:
        """Older clients and static members are taken at once."""
        self.assertIsNone(self.consumer().join())
        self.assertIsNone(self.consumer(mustKnowItsId=True, instanceId="a").join())

    def test_expires(self) -> None:
        """
        An id that is not used within the session timeout is forgotten, and so is a group that has
        no other members.
        """
        consumer = self.newcomer()
        self.rig.wait(9.9)
        self.assertEqual(list(self.rig.group().pending), [consumer.memberId])
        self.rig.wait(0.2)
        self.assertIsNone(self.rig.groups.get("readers"))
        self.assertEqual(consumer.join(), ErrorCode.unknown_member_id)
        self.assertEqual(self.rig.groups.sizeBytes, 0)

    def test_expiresInUsedGroup(self) -> None:
        """A group that was in use stays, or its generations would begin anew under its former members."""
        (first,) = self.stable(self.consumer())
        first.leave()
        self.newcomer()
        self.rig.wait(10.1)
        self.assertEqual(self.rig.group().generation, 2)

    def test_blocksRebalance(self) -> None:
        """A rebalance waits for a client that was told its id, but that does not start one."""
        (first,) = self.stable(self.consumer())
        second = self.newcomer()
        self.assertEqual(first.heartbeat(), ErrorCode.none)
        first.join()
        self.rig.wait(5.0)
        self.assertIsNotNone(first.waiting)
        second.join()
        self.rig.wait()
        self.assertEqual((first.generation, second.generation), (2, 2))

    def test_expiryUnblocks(self) -> None:
        """If it does not come, the rebalance goes on without it."""
        (first,) = self.stable(self.consumer())
        self.newcomer()
        first.join()
        self.rig.wait(9.9)
        self.assertIsNotNone(first.waiting)
        self.rig.wait(0.2)
        self.assertEqual(first.generation, 2)

    def test_leaves(self) -> None:
        """It may also say that it does not come."""
        (first,) = self.stable(self.consumer())
        second = self.newcomer()
        first.join()
        self.assertEqual(second.leave(), ErrorCode.none)
        self.rig.wait()
        self.assertEqual(first.generation, 2)

    def test_static(self) -> None:
        """An id that was given to a dynamic member does not become a static one's."""
        self.assertEqual(self.newcomer().join(instanceId="a"), ErrorCode.unknown_member_id)

    def test_tooMany(self) -> None:
        """Only so many clients are waited for in all; the others may ask again."""
        self.rig = self.buildRig(maxPending=2)
        for name in ("a", "b"):
            consumer = self.consumer(groupId=name, holder=name, mustKnowItsId=True)
            self.assertEqual(consumer.join(), ErrorCode.member_id_required)
        third = self.consumer(groupId="c", holder="c", mustKnowItsId=True)
        self.assertEqual(third.join(), ErrorCode.coordinator_not_available)
        self.assertIsNone(self.rig.groups.get("c"))
        self.rig.wait(10.1)
        self.assertEqual(third.join(), ErrorCode.member_id_required)


class SizeTests(GroupsTestCase):
    """A group has no more members than it may."""

    def setUp(self) -> None:
        """Allow two."""
        super().setUp()
        self.rig = self.buildRig(maxMembers=2)

    def test_stable(self) -> None:
        """A third member is refused, and the two members may join again."""
        first, second = self.stable(self.consumer(), self.consumer())
        self.assertEqual(self.consumer().join(), ErrorCode.group_max_size_reached)
        self.assertEqual(self.rig.group().state, State.STABLE)
        self.assertIsNone(first.join())
        self.assertIsNone(second.join())
        self.rig.wait()
        self.assertEqual(second.generation, 2)

    def test_preparing(self) -> None:
        """While members join, the first ones find room."""
        first, second = self.stable(self.consumer(), self.consumer())
        first.join()
        third = self.consumer()
        self.assertIsNone(third.join())
        self.assertEqual(second.join(), ErrorCode.group_max_size_reached)
        self.rig.wait()
        self.assertEqual((first.generation, third.generation), (2, 2))
        self.assertEqual(list(self.rig.group().members), [first.memberId, third.memberId])

    def test_waiting(self) -> None:
        """A member that waits already may ask again."""
        first, second = self.consumer(), self.consumer()
        first.join()
        second.join()
        again = self.consumer(memberId=next(iter(self.rig.group().members)))
        self.assertIsNone(again.join())

    def test_pending(self) -> None:
        """Clients that were only told their id have no place: those that come back with it first have."""
        first, second, third = consumers = [self.consumer(mustKnowItsId=True) for _ in range(3)]
        for consumer in consumers:
            self.assertEqual(consumer.join(), ErrorCode.member_id_required)
        self.joined(first, third)
        self.assertEqual(second.join(), ErrorCode.group_max_size_reached)

    def test_static(self) -> None:
        """A static member that comes back to a full group has its place."""
        self.stable(self.consumer(), self.consumer(instanceId="a"))
        self.assertIsNone(self.consumer(instanceId="a").join())
        self.assertEqual(self.consumer(instanceId="b").join(), ErrorCode.group_max_size_reached)


class StaticTests(GroupsTestCase):
    """Static members are known by a name that outlives their processes (KIP-345)."""

    def test_stable(self) -> None:
        """One that comes back to a stable group gets another id and its assignment, and no other member notices."""
        first, second = self.stable(self.consumer(), self.consumer(instanceId="a"))
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
        """A process that uses the former id is fenced, whatever it asks for."""
        (first,) = self.stable(self.consumer(instanceId="a"))
        self.consumer(instanceId="a").join()
        self.rig.wait()
        self.assertEqual(first.heartbeat(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.sync(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.leave(), ErrorCode.fenced_instance_id)
        self.assertEqual(first.join(), ErrorCode.fenced_instance_id)

    def test_fencedWhileWaiting(self) -> None:
        """One whose request waits is told so at once."""
        for isSyncing in (False, True):
            groupId = f"readers-{isSyncing}"
            _, first = self.joined(self.consumer(groupId=groupId), self.consumer(groupId=groupId, instanceId="a"))
            if isSyncing:
                first.sync()
            else:
                self.consumer(groupId=groupId).join()
                first.join()
            self.consumer(groupId=groupId, instanceId="a").join()
            self.assertEqual(first.answers[-1], ErrorCode.fenced_instance_id)

    def test_completing(self) -> None:
        """Coming back while assignments are awaited makes the group rebalance: they are for the former id."""
        leader, _ = self.joined(self.consumer(), self.consumer(instanceId="a"))
        leader.sync()
        self.consumer(instanceId="a").join()
        self.rig.wait()
        self.assertIs(self.rig.group().state, State.PREPARING)
        self.assertEqual(leader.answers[-1], ErrorCode.rebalance_in_progress)

    def test_preparing(self) -> None:
        """Coming back while members join is joining."""
        leader, _ = self.stable(self.consumer(), self.consumer(instanceId="a"))
        leader.join()
        again = self.consumer(instanceId="a")
        again.join()
        self.rig.wait()
        self.assertEqual((leader.generation, again.generation), (2, 2))

    def test_new(self) -> None:
        """One that comes back before its first generation has begun has the time of a new member."""
        (leader,) = self.stable(self.consumer())
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
        """If the group's protocol would be another with it, the group rebalances."""
        self.stable(self.consumer(instanceId="a", protocols=(("range", b""), ("sticky", b""))))
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
        (first,) = self.stable(self.consumer(instanceId="a"))
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
        """One that allows no time for joining does not make the coordinator spin."""
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
        """An administrator removes one by its name; unknown names are refused."""
        self.stable(self.consumer(instanceId="a"))
        outcome = self.rig.groups.leave("readers", [("", "b"), ("", "a"), ("", None)])
        self.assertEqual(outcome, [ErrorCode.unknown_member_id, ErrorCode.none, ErrorCode.unknown_member_id])
        self.assertEqual(self.rig.group().state, State.EMPTY)

    def test_unknown(self) -> None:
        """An unknown name is no member's."""
        (first,) = self.stable(self.consumer())
        first.request = self.consumer(instanceId="b", memberId=first.memberId).request
        self.assertEqual(first.heartbeat(), ErrorCode.unknown_member_id)

    def test_failingLog(self) -> None:
        """One that takes a place which could not be stored is sent away and may come again."""
        self.stable(self.consumer(instanceId="a"))
        again = self.consumer(instanceId="a")
        self.rig.log.error = LogFailed("full")
        again.join()
        self.rig.wait()
        self.assertEqual(again.answers, [ErrorCode.not_coordinator])
        self.rig.log.error = None
        again.join()
        self.rig.wait()
        self.assertEqual(again.generation, 1)


class RefusalTests(GroupsTestCase):
    """What is refused, and how."""

    def test_unknownGroup(self) -> None:
        """A group that does not exist has no members."""
        stranger = self.consumer(memberId="stranger")
        self.assertEqual(stranger.heartbeat(), ErrorCode.unknown_member_id)
        self.assertEqual(stranger.sync(), ErrorCode.unknown_member_id)
        stranger.memberId = "stranger"
        self.assertEqual(stranger.leave(), ErrorCode.unknown_member_id)
        self.assertEqual(stranger.join(), ErrorCode.unknown_member_id)
        self.assertEqual(list(self.rig.groups.all), [])

    def test_namelessGroup(self) -> None:
        """A group must have a name."""
        stranger = self.consumer(groupId="")
        self.assertEqual(stranger.heartbeat(), ErrorCode.invalid_group_id)
        self.assertEqual(stranger.sync(), ErrorCode.invalid_group_id)
        self.assertEqual(self.rig.outcome(stranger.leave), ErrorCode.invalid_group_id)
        self.assertEqual(stranger.join(), ErrorCode.invalid_group_id)

    def test_generation(self) -> None:
        """Members speak for their generation only."""
        (first,) = self.stable(self.consumer())
        assert first.joined is not None
        first.join()
        self.rig.wait()
        self.assertEqual(first.generation, 2)
        stale = self.consumer(memberId=first.memberId)
        self.assertEqual(stale.heartbeat(), ErrorCode.illegal_generation)
        self.assertEqual(stale.sync(), ErrorCode.illegal_generation)

    def test_protocolOfSync(self) -> None:
        """A member that says in a sync what the protocol is must know."""
        (first,) = self.stable(self.consumer())
        self.assertEqual(first.sync(protocolType="connect"), ErrorCode.inconsistent_group_protocol)
        self.assertEqual(first.sync(protocolName="sticky"), ErrorCode.inconsistent_group_protocol)
        self.assertIsNone(first.sync(protocolType="consumer", protocolName="range"))

    def test_syncWhilePreparing(self) -> None:
        """There are no assignments while members join."""
        first, second = self.consumer(), self.consumer()
        self.stable(first)
        second.join()
        self.assertEqual(first.sync(), ErrorCode.rebalance_in_progress)

    def test_leaveWhileWaiting(self) -> None:
        """A member that is removed while it waits is told so."""
        first, _ = self.stable(self.consumer(), self.consumer())
        first.join()
        self.rig.groups.leave("readers", [(first.memberId, None)])
        self.assertEqual(first.answers[-1], ErrorCode.unknown_member_id)

    def test_delete(self) -> None:
        """Only an empty group can be deleted, and it leaves nothing behind."""
        first = self.consumer()
        self.assertEqual(self.rig.outcome(self.rig.groups.delete, "readers"), ErrorCode.group_id_not_found)
        self.stable(first)
        self.assertEqual(self.rig.outcome(self.rig.groups.delete, "readers"), ErrorCode.non_empty_group)
        first.leave()
        deleting = self.rig.groups.delete("readers")
        self.assertNoResult(deleting)
        self.rig.wait()
        self.successResultOf(deleting)
        self.assertEqual(list(self.rig.groups.all), [])
        self.assertEqual(self.rig.groups.sizeBytes, 0)
        self.assertEqual(self.rig.log.tables["groups"].committed, {})


class LimitsTests(GroupsTestCase):
    """Groups do not take more than they may."""

    def buildRig(self, **limits: Any) -> Any:
        """Allow little."""
        return super().buildRig(**{"maxGroups": 2, "maxGroupBytes": 20_000, "maxBytes": 40_000, **limits})

    def test_groups(self) -> None:
        """There are only so many groups, of which one holder has no more than it leaves; the log says so at times."""
        refused = ErrorCode.policy_violation
        with capturedLogs() as captured:
            for name, holder, refusal in (("a", "x", None), ("b", "x", refused), ("c", "y", None), ("d", "z", refused)):
                self.assertEqual(self.consumer(groupId=name, holder=holder).join(), refusal)
            self.rig.wait(60.0)
            self.assertEqual(self.simple(holder="z"), refused)
        said = [formatEvent(event) for event in captured]
        self.assertEqual(
            [each for each in said if each and "max.groups" in each],
            [
                f"{holder!r} is refused more of max.groups: it has {held} of 2, others have {others}, and nobody may"
                " have more than is left"
                for holder, held, others in (("x", 1, 0), ("z", 0, 2))
            ],
        )

    def simple(self, holder: str) -> ErrorCode:
        """Commit for C{holder} to a new group."""
        partition = self.rig.log.createTopic(holder).partitions[0]
        return self.consumer(groupId=f"of {holder}", holder=holder).commit(partition, 1)

    def test_bytesOfOne(self) -> None:
        """A group's members may only take so much memory, and a refused client leaves nothing behind."""
        self.rig = self.buildRig(maxGroups=4)
        first = self.consumer(protocols=(("range", bytes(4000)),))
        self.assertIsNone(first.join())
        before = self.rig.groups.sizeBytes
        self.assertEqual(self.consumer(protocols=(("range", bytes(4000)),)).join(), ErrorCode.group_max_size_reached)
        self.assertEqual(self.rig.groups.sizeBytes, before)
        self.assertEqual(
            self.consumer(groupId="b", protocols=(("range", bytes(20_000)),)).join(), ErrorCode.group_max_size_reached
        )
        self.assertEqual([group.groupId for group in self.rig.groups.all], ["readers"])

    def test_bytesOfHolder(self) -> None:
        """The members of one holder take no more of that than they leave, until they go."""
        self.rig = self.buildRig(maxGroups=4)
        large, small = ((("range", bytes(size)),) for size in (6000, 1500))
        (first,) = self.joined(self.consumer(protocols=large, holder="a"))
        for _ in range(2):
            refused = self.consumer(groupId="b", protocols=small, holder="a").join()
            self.assertEqual(refused, ErrorCode.group_max_size_reached)
            # The same after a restart.
            self.rig.wait()
            self.rig.kill()
        self.assertIsNone(self.consumer(groupId="b", protocols=small, holder="b").join())
        first.leave()
        self.rig.wait()
        self.assertIsNone(self.consumer(protocols=small, holder="a").join())

    def test_assignments(self) -> None:
        """Assignments count."""
        (first,) = self.joined(self.consumer())
        before = self.rig.groups.sizeBytes
        self.assertEqual(first.sync({first.memberId: bytes(10_000)}), ErrorCode.group_max_size_reached)
        self.assertIsNone(first.sync({first.memberId: bytes(1000), "stranger": bytes(10_000)}))
        self.rig.wait()
        self.assertEqual(self.rig.groups.sizeBytes, before + 2333)

    def test_memberThatGrows(self) -> None:
        """A member that comes back with more than there is room for loses its place."""
        first, second = self.stable(self.consumer(), self.consumer())
        self.assertEqual(first.join(protocols=(("range", bytes(10_000)),)), ErrorCode.group_max_size_reached)
        self.assertEqual(list(self.rig.group().members), [second.memberId])


class RestartTests(GroupsTestCase):
    """Groups survive C{kill -9}."""

    def test_stable(self) -> None:
        """Members, generation, protocol, leader and assignments are as they were, without a rebalance."""
        first, second = self.consumer(), self.consumer(instanceId="static", clientId="reader", host="192.0.2.9")
        self.stable(first, second)
        self.rig.kill()
        self.assertEqual((first.heartbeat(), second.heartbeat()), (ErrorCode.none, ErrorCode.none))
        group = self.rig.group()
        self.assertEqual((group.generation, group.leaderId), (1, first.memberId))
        self.assertEqual((group.protocolType, group.protocolName), ("consumer", "range"))
        member = group.members[second.memberId]
        self.assertEqual((member.instanceId, member.clientId, member.host), ("static", "reader", "192.0.2.9"))
        self.assertEqual((member.sessionSeconds, member.rebalanceSeconds), (10.0, 60.0))
        first.assignment = None
        self.assertIsNone(first.sync())
        self.assertEqual(first.assignment, first.memberId.encode())

    def test_freshSessions(self) -> None:
        """Members have their whole session to be heard of again."""
        (first,) = self.stable(self.consumer())
        self.rig.wait(9.0)
        self.rig.kill()
        self.rig.wait(9.9)
        self.assertEqual(first.heartbeat(), ErrorCode.none)
        self.rig.wait(10.1)
        self.assertEqual(first.heartbeat(), ErrorCode.unknown_member_id)

    def test_unassigned(self) -> None:
        """A generation that never got its assignments is followed by another at once."""
        (first,) = self.joined(self.consumer())
        self.assertEqual(first.generation, 1)
        self.rig.kill()
        self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)
        first.join()
        self.rig.wait()
        self.assertEqual(first.generation, 2)

    def test_uncommittedAssignment(self) -> None:
        """So is one whose assignments were lost; no member was told of them."""
        (first,) = self.joined(self.consumer())
        first.sync()
        self.rig.kill()
        self.assertIsNone(first.assignment)
        self.assertEqual(first.heartbeat(), ErrorCode.rebalance_in_progress)

    def test_empty(self) -> None:
        """An empty group goes on counting generations."""
        (first,) = self.stable(self.consumer())
        first.leave()
        self.rig.wait()
        self.rig.kill()
        group = self.rig.group()
        self.assertEqual((group.state, group.generation), (State.EMPTY, 2))
        first.memberId = ""
        self.stable(first)
        self.assertEqual(first.generation, 3)


class CommitTests(OffsetsTestCase):
    """The clients that may commit offsets, and when."""

    def test_simple(self) -> None:
        """A client that is no member may commit to a group that is new or empty, but to no other."""
        self.assertEqual(self.simple(self.first, 5), ErrorCode.none)
        self.assertEqual(self.simple(self.first, 6), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 6})
        self.stable(self.consumer())
        self.assertEqual(self.simple(self.first, 7), ErrorCode.unknown_member_id)
        self.assertEqual(self.offsets(), {self.first: 6})

    def test_unknownGroup(self) -> None:
        """A generation of a group that is not there is no generation."""
        stranger = MemberRequest(groupId="readers", generation=1, memberId="stranger")
        self.assertEqual(self.rig.outcome(self.rig.groups.commit, stranger, {}), ErrorCode.illegal_generation)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_stable(self) -> None:
        """A member commits, and was heard of."""
        (first,) = self.stable(self.consumer())
        for offset in range(3):
            self.rig.wait(8.0)
            self.assertEqual(first.commit(self.first, offset), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 2})

    def test_preparing(self) -> None:
        """So it does while members join: what it has done is done."""
        first, second = self.consumer(rebalanceSeconds=60.0), self.consumer()
        self.stable(first)
        second.join()
        for _ in range(3):
            self.rig.wait(8.0)
            self.assertEqual(first.commit(self.first, 5), ErrorCode.none)
        self.assertEqual(len(self.rig.group().members), 2)

    def test_completing(self) -> None:
        """Between joining and having an assignment there is nothing to commit."""
        (first,) = self.joined(self.consumer())
        self.assertEqual(first.commit(self.first, 5), ErrorCode.rebalance_in_progress)

    def test_strangers(self) -> None:
        """Other members, generations and instances may not."""
        (first,) = self.stable(self.consumer(instanceId="a"))
        for memberId, generation, instanceId, refusal in (
            ("stranger", 1, None, ErrorCode.unknown_member_id),
            (first.memberId, 2, None, ErrorCode.illegal_generation),
            (first.memberId, -1, None, ErrorCode.illegal_generation),
            ("stranger", 1, "a", ErrorCode.fenced_instance_id),
            (first.memberId, 1, "b", ErrorCode.unknown_member_id),
        ):
            speaker = MemberRequest(groupId="readers", generation=generation, memberId=memberId, instanceId=instanceId)
            self.assertEqual(self.rig.outcome(self.rig.groups.commit, speaker, {}), refusal)

    def test_readWhenCommitted(self) -> None:
        """An offset can be read when it would survive, and its client is told then, if it still waits."""
        offset = Offset(5, -1, "", 0.0)
        nobody = MemberRequest(groupId="readers", generation=-1, memberId="")
        waiting, gone = (self.rig.groups.commit(nobody, {each: offset}) for each in (self.first, self.second))
        self.assertEqual(self.offsets(), {})
        self.assertNoResult(waiting)
        gone.addErrback(lambda _: None)
        gone.cancel()
        self.rig.wait()
        self.successResultOf(waiting)
        self.assertEqual(self.offsets(), {self.first: 5, self.second: 5})

    def test_failing(self) -> None:
        """An offset, a group's first as well, that could not be stored is not there; the client may try again."""
        before: dict[Partition, int] = {}
        for stored in (7, 8):
            self.rig.log.error = LogFailed("full")
            self.assertEqual(self.simple(self.first, 6), ErrorCode.not_coordinator)
            self.assertEqual(self.offsets(), before)
            self.rig.log.error = None
            self.assertEqual(self.simple(self.first, stored), ErrorCode.none)
            self.rig.kill()
            before = {self.first: stored}
            self.assertEqual(self.offsets(), before)

    def test_deletedMeanwhile(self) -> None:
        """Offsets of a topic that is deleted before they are committed are not kept, nor those of a group."""
        nobody = MemberRequest(groupId="readers", generation=-1, memberId="")
        committing = self.rig.groups.commit(nobody, {self.first: Offset(5, -1, "", 0.0)})
        self.rig.log.deleteTopic("events")
        self.rig.wait()
        self.successResultOf(committing)
        self.assertEqual(self.offsets(), {})
        self.rig.groups.commit(nobody, {self.rig.log.createTopic("others").partitions[0]: Offset(5, -1, "", 0.0)})
        self.rig.groups.delete("readers")
        self.rig.wait()
        self.assertEqual(self.rig.groups.sizeBytes, 0)
        self.rig.kill()
        self.assertEqual(self.rig.log.tables["offsets"].current, {})

    def test_notRemovedMeanwhile(self) -> None:
        """A group that is to have its first offset is not removed because it has none yet."""
        nobody = MemberRequest(groupId="readers", generation=-1, memberId="")
        committing = self.rig.groups.commit(nobody, {self.first: Offset(5, -1, "", 0.0)})
        self.assertEqual(self.consumer(protocols=(("range", bytes(1 << 25)),)).join(), ErrorCode.group_max_size_reached)
        self.rig.wait()
        self.successResultOf(committing)
        self.assertEqual(self.offsets(), {self.first: 5})


class RoomTests(OffsetsTestCase):
    """Offsets count."""

    def buildRig(self, **limits: Any) -> Any:
        """Allow little."""
        return super().buildRig(**{"maxGroupBytes": 6000, "maxBytes": 20_000, "maxGroups": 1, **limits})

    def test_bytes(self) -> None:
        """What would be too much is refused, and what takes the place of something as large is not."""
        self.assertEqual(self.simple(self.first, 1, metadata="x" * 1500), ErrorCode.none)
        self.assertEqual(self.simple(self.second, 1, metadata="x" * 1500), ErrorCode.invalid_commit_offset_size)
        self.assertEqual(self.simple(self.first, 2, metadata="x" * 1500), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 2})

    def test_together(self) -> None:
        """What is about to be committed counts, and no more if it is refused."""
        before = self.rig.groups.sizeBytes
        self.rig.log.error = LogFailed("full")
        waiting = [self.starting(partition, "x" * 1500) for partition in (self.first, self.second)]
        self.rig.wait()
        self.assertEqual(
            [self.failureResultOf(each, GroupRefusal).value.errorCode for each in waiting],
            [ErrorCode.not_coordinator, ErrorCode.invalid_commit_offset_size],
        )
        self.assertEqual(self.rig.group().offsets, {})
        self.assertLess(self.rig.groups.sizeBytes, before + 3000)

    def starting(self, partition: Partition, metadata: str) -> Any:
        """Begin to commit as a client that is no member."""
        request = MemberRequest(groupId="readers", generation=-1, memberId="")
        return maybeDeferred(self.rig.groups.commit, request, {partition: Offset(1, -1, metadata, 0.0)})

    def test_holders(self) -> None:
        """
        What somebody has committed without being a member leaves room to others, after a restart, too, when nobody is
        there that could be asked whose it is.
        """
        self.rig = self.buildRig(maxGroups=100)
        self.first, self.second = self.rig.log.createTopic("events", 2).partitions

        def committed(holder: str, groupId: str, metadata: str = "") -> bool:
            return self.consumer(groupId=groupId, holder=holder).commit(self.first, 1, metadata) is ErrorCode.none

        taken = sum(committed("stranger", f"group {number}", "x" * 400) for number in range(20))
        self.assertIn(taken, range(2, 5))
        self.rig.kill()
        self.assertFalse(committed("stranger", "another", "x" * 400))
        self.assertTrue(committed("honest", "mine", "x" * 400))

    def test_groups(self) -> None:
        """A group that there is no room for does not come into being by a commit either."""
        self.simple(self.first, 1)
        self.assertEqual(self.simple(self.first, 1, groupId="others"), ErrorCode.policy_violation)


class RetentionTests(OffsetsTestCase):
    """Offsets are kept as long as they are of use."""

    ticks = count()

    def retained(self, seconds: float) -> None:
        """Let much time pass at once."""
        self.rig.clock.advance(seconds)
        self.rig.wait(600.0)

    def test_empty(self) -> None:
        """Offsets of a group that was empty for a week go with it, from the log as well; a day earlier they stay."""
        (first,) = self.stable(self.consumer())
        first.commit(self.first, 5)
        first.leave()
        self.retained(WEEK_SECONDS - 86400.0)
        self.assertEqual(self.offsets(), {self.first: 5})
        self.retained(86400.0)
        self.assertIsNone(self.rig.groups.get("readers"))
        self.assertEqual(self.rig.log.tables["groups"].committed, {})
        self.assertEqual(self.rig.log.tables["offsets"].committed, {})

    def test_inSlices(self) -> None:
        """However many groups and offsets are to be removed, others are served meanwhile."""
        for number in range(5):
            self.simple(self.first, 1, groupId=f"group {number}")
            self.simple(self.second, 1, groupId=f"group {number}")
        slices = []
        callLater, seconds = self.rig.clock.callLater, self.rig.clock.seconds

        def noted(delaySeconds: float, function: Any, *arguments: Any) -> Any:
            if not delaySeconds and len(self.rig.groups.all):
                slices.append(sum(len(group.offsets) for group in self.rig.groups.all))
            return callLater(delaySeconds, function, *arguments)

        self.patch(self.rig.clock, "callLater", noted)
        # Every look at the clock takes longer than a slice.
        self.patch(self.rig.clock, "seconds", lambda: seconds() + next(self.ticks) / 100)
        self.rig.clock.advance(WEEK_SECONDS)
        self.assertEqual(len(self.rig.groups.all), 0)
        self.assertEqual(list(dict.fromkeys(slices)), list(range(10, -1, -1)))

    def test_simple(self) -> None:
        """A group without members is in use as long as a client commits."""
        self.simple(self.first, 5)
        for offset in range(3):
            self.retained(5 * 86400.0)
            self.simple(self.second, offset)
        self.assertEqual(self.offsets(), {self.first: 5, self.second: 2})

    def test_acrossRestart(self) -> None:
        """A restart does not make it younger."""
        self.simple(self.first, 5)
        self.rig.clock.advance(4 * 86400.0)
        self.rig.kill()
        self.retained(3 * 86400.0)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_pending(self) -> None:
        """A group that a client is about to join is in use."""
        self.simple(self.first, 5)
        self.rig.clock.advance(WEEK_SECONDS - 1000.0)
        self.consumer(mustKnowItsId=True, sessionSeconds=1800.0).join()
        self.rig.wait(1700.0)
        self.assertEqual(self.offsets(), {self.first: 5})
        self.rig.wait(700.0)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_members(self) -> None:
        """A group with members keeps its offsets for ever."""
        (first,) = self.stable(self.consumer(sessionSeconds=1800.0))
        first.commit(self.first, 5)
        for _ in range(10 * 48):
            self.rig.clock.advance(1799.0)
            first.heartbeat()
        self.assertEqual(self.offsets(), {self.first: 5})

    def test_deletedTopic(self) -> None:
        """The offsets of a topic that is gone go too, and another topic of its name has none."""
        self.simple(self.first, 5)
        self.rig.log.deleteTopic("events")
        third = self.rig.log.createTopic("events").partitions[0]
        self.assertNotIn(third, self.offsets())
        self.simple(third, 7)
        self.rig.wait(600.0)
        self.assertEqual(self.offsets(), {third: 7})
        self.assertEqual(len(self.rig.log.tables["offsets"].committed), 1)


class DeleteTests(OffsetsTestCase):
    """Offsets can be deleted."""

    def test_some(self) -> None:
        """The offsets that are named go, and the answer waits until their removal would survive."""
        self.simple(self.first, 1)
        self.simple(self.second, 2)
        deleting = self.rig.groups.deleteOffsets(self.rig.group(), [self.first])
        self.assertNoResult(deleting)
        self.rig.wait()
        self.successResultOf(deleting)
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.second: 2})

    def test_order(self) -> None:
        """What is committed and deleted in one turn ends as the last of them says."""
        nobody = MemberRequest(groupId="readers", generation=-1, memberId="")
        self.simple(self.first, 1)
        group = self.rig.group()
        self.rig.groups.commit(nobody, {self.first: Offset(2, -1, "", 0.0)})
        self.rig.groups.deleteOffsets(group, [self.first, self.second])
        self.rig.groups.commit(nobody, {self.second: Offset(3, -1, "", 0.0)})
        self.rig.wait()
        self.assertEqual(self.offsets(), {self.second: 3})
        self.rig.kill()
        self.assertEqual((self.offsets(), self.rig.group().state), ({self.second: 3}, State.EMPTY))
