"""
Tests for L{admission.kafka.broker.groups.offsets} and L{admission.kafka.broker.groups.groupstore}.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred

from admission.kafka.broker.groups.groupstate import Offset, State
from admission.kafka.broker.groups.groupstore import GroupStore
from admission.kafka.broker.groups.limits import Tally
from admission.kafka.broker.groups.member import GroupRefusal, Speaker
from admission.kafka.broker.log.interface import LogFailed, Partition
from tests.kit.groupsfixture import GroupsTestCase

WEEK_SECONDS = 7 * 86400.0


class OffsetsTestCase(GroupsTestCase):
    """
    A test with a topic of two partitions.
    """

    def setUp(self) -> None:
        """
        Make it.
        """
        super().setUp()
        self.first, self.second = self.rig.log.createTopic("events", 2).partitions

    def simple(self, partition: Partition, offset: int, groupId: str = "readers", metadata: str = "") -> ErrorCode:
        """
        Commit as somebody who is no member.
        """
        return self.consumer(groupId=groupId).commit(partition, offset, metadata)

    def offsets(self, groupId: str = "readers") -> dict[Partition, int]:
        """
        What is committed.
        """
        return {partition: offset.offset for partition, offset in self.rig.group(groupId).offsets.items()}


class CommitTests(OffsetsTestCase):
    """
    Who may commit offsets, and when.
    """

    def test_simple(self) -> None:
        """
        Somebody who is no member may commit to a group that is not there, or empty, but to no other.
        """
        self.assertEqual(self.simple(self.first, 5), ErrorCode.none)
        self.assertEqual(self.simple(self.first, 6), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 6})
        self.stable(self.consumer())
        self.assertEqual(self.simple(self.first, 7), ErrorCode.unknown_member_id)
        self.assertEqual(self.offsets(), {self.first: 6})

    def test_unknownGroup(self) -> None:
        """
        A generation of a group that is not there is no generation.
        """
        stranger = Speaker(groupId="readers", generation=1, memberId="stranger")
        self.assertEqual(self.rig.outcome(self.rig.groups.commit, stranger, {}), ErrorCode.illegal_generation)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_stable(self) -> None:
        """
        A member commits, and was heard of.
        """
        first = self.consumer()
        self.stable(first)
        for offset in range(3):
            self.rig.wait(8.0)
            self.assertEqual(first.commit(self.first, offset), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 2})

    def test_preparing(self) -> None:
        """
        So it does while members join: what it has done is done.
        """
        first, second = self.consumer(rebalanceSeconds=60.0), self.consumer()
        self.stable(first)
        second.join()
        for _ in range(3):
            self.rig.wait(8.0)
            self.assertEqual(first.commit(self.first, 5), ErrorCode.none)
        self.assertEqual(len(self.rig.group().members), 2)

    def test_completing(self) -> None:
        """
        Between joining and having an assignment there is nothing to commit.
        """
        first = self.consumer()
        self.joined(first)
        self.assertEqual(first.commit(self.first, 5), ErrorCode.rebalance_in_progress)

    def test_strangers(self) -> None:
        """
        Other members, generations and instances may not.
        """
        first = self.consumer(instanceId="a")
        self.stable(first)
        for memberId, generation, instanceId, refusal in (
            ("stranger", 1, None, ErrorCode.unknown_member_id),
            (first.memberId, 2, None, ErrorCode.illegal_generation),
            (first.memberId, -1, None, ErrorCode.illegal_generation),
            ("stranger", 1, "a", ErrorCode.fenced_instance_id),
            (first.memberId, 1, "b", ErrorCode.unknown_member_id),
        ):
            speaker = Speaker(groupId="readers", generation=generation, memberId=memberId, instanceId=instanceId)
            self.assertEqual(self.rig.outcome(self.rig.groups.commit, speaker, {}), refusal)

    def test_readWhenCommitted(self) -> None:
        """
        An offset can be read when it would survive, and its client is told then, if it still waits.
        """
        offset = Offset(5, -1, "", 0.0)
        nobody = Speaker(groupId="readers", generation=-1, memberId="")
        waiting, gone = (self.rig.groups.commit(nobody, {each: offset}) for each in (self.first, self.second))
        self.assertEqual(self.offsets(), {})
        self.assertNoResult(waiting)
        gone.addErrback(lambda _: None)
        gone.cancel()
        self.rig.wait()
        self.successResultOf(waiting)
        self.assertEqual(self.offsets(), {self.first: 5, self.second: 5})

    def test_failing(self) -> None:
        """
        An offset that could not be stored is not there, and the one before is; the client may try again.
        """
        self.simple(self.first, 5)
        self.rig.log.error = LogFailed("full")
        self.assertEqual(self.simple(self.first, 6), ErrorCode.not_coordinator)
        self.assertEqual(self.offsets(), {self.first: 5})
        self.rig.log.error = None
        self.assertEqual(self.simple(self.first, 7), ErrorCode.none)
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.first: 7})

    def test_failingFirst(self) -> None:
        """
        A group whose first offset could not be stored is stored with the next one.
        """
        self.rig.log.error = LogFailed("full")
        self.assertEqual(self.simple(self.first, 6), ErrorCode.not_coordinator)
        self.rig.log.error = None
        self.simple(self.first, 7)
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.first: 7})

    def test_deletedMeanwhile(self) -> None:
        """
        Offsets of a topic that is deleted before they are committed are not kept, nor those of a group.
        """
        nobody = Speaker(groupId="readers", generation=-1, memberId="")
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
        """
        A group that is to have its first offset is not removed because it has none yet.
        """
        nobody = Speaker(groupId="readers", generation=-1, memberId="")
        committing = self.rig.groups.commit(nobody, {self.first: Offset(5, -1, "", 0.0)})
        self.assertEqual(self.consumer(protocols=(("range", bytes(1 << 25)),)).join(), ErrorCode.group_max_size_reached)
        self.rig.wait()
        self.successResultOf(committing)
        self.assertEqual(self.offsets(), {self.first: 5})


class RoomTests(OffsetsTestCase):
    """
    Offsets count.
    """

    def buildRig(self, **limits: Any) -> Any:
        """
        Allow little.
        """
        return super().buildRig(maxGroupBytes=4000, maxGroups=1, **limits)

    def test_bytes(self) -> None:
        """
        What would be too much is refused, and what takes the place of something as large is not.
        """
        self.assertEqual(self.simple(self.first, 1, metadata="x" * 1500), ErrorCode.none)
        self.assertEqual(self.simple(self.second, 1, metadata="x" * 1500), ErrorCode.invalid_commit_offset_size)
        self.assertEqual(self.simple(self.first, 2, metadata="x" * 1500), ErrorCode.none)
        self.assertEqual(self.offsets(), {self.first: 2})

    def test_groups(self) -> None:
        """
        A group that there is no room for does not come into being by a commit either.
        """
        self.simple(self.first, 1)
        self.assertEqual(self.simple(self.first, 1, groupId="others"), ErrorCode.policy_violation)


class RetentionTests(OffsetsTestCase):
    """
    Offsets are kept as long as they are of use.
    """

    def retained(self, seconds: float) -> None:
        """
        Let much time pass at once.
        """
        self.rig.clock.advance(seconds)
        self.rig.wait(600.0)

    def test_empty(self) -> None:
        """
        Those of a group that was empty for a week go with it, from the log as well; a day earlier they do not.
        """
        first = self.consumer()
        self.stable(first)
        first.commit(self.first, 5)
        first.leave()
        self.retained(WEEK_SECONDS - 86400.0)
        self.assertEqual(self.offsets(), {self.first: 5})
        self.retained(86400.0)
        self.assertIsNone(self.rig.groups.get("readers"))
        self.assertEqual(self.rig.log.tables["groups"].committed, {})
        self.assertEqual(self.rig.log.tables["offsets"].committed, {})

    def test_simple(self) -> None:
        """
        A group without members is in use as long as somebody commits.
        """
        self.simple(self.first, 5)
        for offset in range(3):
            self.retained(5 * 86400.0)
            self.simple(self.second, offset)
        self.assertEqual(self.offsets(), {self.first: 5, self.second: 2})

    def test_acrossRestart(self) -> None:
        """
        A restart does not make it younger.
        """
        self.simple(self.first, 5)
        self.rig.clock.advance(4 * 86400.0)
        self.rig.kill()
        self.retained(3 * 86400.0)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_pending(self) -> None:
        """
        A group that somebody is about to join is in use.
        """
        self.simple(self.first, 5)
        self.rig.clock.advance(WEEK_SECONDS - 1000.0)
        self.consumer(mustKnowItsId=True, sessionSeconds=1800.0).join()
        self.rig.wait(1700.0)
        self.assertEqual(self.offsets(), {self.first: 5})
        self.rig.wait(700.0)
        self.assertIsNone(self.rig.groups.get("readers"))

    def test_members(self) -> None:
        """
        A group with members keeps its offsets for ever.
        """
        first = self.consumer(sessionSeconds=1800.0)
        self.stable(first)
        first.commit(self.first, 5)
        for _ in range(10 * 48):
            self.rig.clock.advance(1799.0)
            first.heartbeat()
        self.assertEqual(self.offsets(), {self.first: 5})

    def test_deletedTopic(self) -> None:
        """
        The offsets of a topic that is gone go too, and another topic of its name has none.
        """
        self.simple(self.first, 5)
        self.rig.log.deleteTopic("events")
        third = self.rig.log.createTopic("events").partitions[0]
        self.assertNotIn(third, self.offsets())
        self.simple(third, 7)
        self.rig.wait(600.0)
        self.assertEqual(self.offsets(), {third: 7})
        self.assertEqual(len(self.rig.log.tables["offsets"].committed), 1)


class StoreTests(OffsetsTestCase):
    """
    What L{GroupStore} writes it can read.
    """

    def test_offsets(self) -> None:
        """
        Offsets come back with all that belongs to them.
        """
        self.simple(self.second, 2**62, metadata="größer")
        self.rig.kill()
        offset = self.rig.group().offsets[self.second]
        self.assertEqual(offset, Offset(2**62, -1, "größer", self.rig.wallSeconds()))

    def test_orphans(self) -> None:
        """
        Offsets without a group, or of a topic that is gone, are removed.
        """
        self.simple(self.first, 1)
        self.simple(self.first, 1, groupId="gone")
        self.rig.log.createTopic("short")
        self.simple(self.rig.log.topics["short"].partitions[0], 1)
        self.rig.log.deleteTopic("short")
        groups, offsets = self.rig.log.tables["groups"], self.rig.log.tables["offsets"]
        groups.delete(max(groups.committed))
        self.rig.wait()
        self.assertEqual(len(offsets.committed), 3)
        self.rig.kill()
        self.assertEqual(len(offsets.committed), 1)
        self.assertEqual(self.offsets(), {self.first: 1})

    def test_numbers(self) -> None:
        """
        A new group never has the number of one that there is.
        """
        for name in ("a", "b"):
            self.simple(self.first, 1, groupId=name)
        self.rig.kill()
        self.simple(self.first, 1, groupId="c")
        numbers = {group.number for group in self.rig.groups.all}
        self.assertEqual(len(numbers), 3)

    def test_otherVersion(self) -> None:
        """
        What a later version has written is not touched.
        """
        self.simple(self.first, 1)
        for name in ("groups", "offsets"):
            table = self.rig.log.tables[name]
            ((key, value),) = table.current.items()
            table.current[key] = b"\x02" + value[1:]
            store = GroupStore(self.rig.log)  # type: ignore[arg-type]
            failure = self.assertRaises(LogFailed, store.load, Tally())
            self.assertIn("format 2", str(failure))
            table.current[key] = value

    def test_writingFails(self) -> None:
        """
        Whoever waits is told if nothing can be written at all.
        """
        self.simple(self.first, 1)

        def fail(*_: bytes) -> None:
            raise LogFailed("full")

        table = self.rig.log.tables["offsets"]
        self.patch(table, "put", fail)
        self.patch(table, "delete", fail)
        self.assertEqual(self.simple(self.first, 2), ErrorCode.not_coordinator)
        for deleting in (
            self.rig.groups.deleteOffsets(self.rig.group(), [self.first]),
            maybeDeferred(self.rig.groups.delete, "readers"),
        ):
            self.assertEqual(self.failureResultOf(deleting, GroupRefusal).value.errorCode, ErrorCode.not_coordinator)


class DeleteTests(OffsetsTestCase):
    """
    Offsets can be deleted.
    """

    def test_some(self) -> None:
        """
        Those that are named go, once that would survive.
        """
        self.simple(self.first, 1)
        self.simple(self.second, 2)
        deleting = self.rig.groups.deleteOffsets(self.rig.group(), [self.first])
        self.assertNoResult(deleting)
        self.rig.wait()
        self.successResultOf(deleting)
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.second: 2})

    def test_order(self) -> None:
        """
        What is committed and deleted in one turn ends as the last of them says.
        """
        nobody = Speaker(groupId="readers", generation=-1, memberId="")
        self.simple(self.first, 1)
        group = self.rig.group()
        self.rig.groups.commit(nobody, {self.first: Offset(2, -1, "", 0.0)})
        self.rig.groups.deleteOffsets(group, [self.first, self.second])
        self.rig.groups.commit(nobody, {self.second: Offset(3, -1, "", 0.0)})
        self.rig.wait()
        self.assertEqual(self.offsets(), {self.second: 3})
        self.rig.kill()
        self.assertEqual((self.offsets(), self.rig.group().state), ({self.second: 3}, State.EMPTY))
