"""
Tests for L{admission.kafka.broker.api.groupapi}, L{admission.kafka.broker.api.groupadminapi} and
L{admission.kafka.broker.api.offsetapi}: groups as clients see them.
"""

from __future__ import annotations

import errno
from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.wire.versions import BY_KEY
from tests.kit.brokerfixture import API_KEYS, BrokerTestCase, Client, codes
from tests.kit.logfixture import storageError
from tests.kit.subscriptions import subscription

PROTOCOLS = [{"name": "range", "metadata": b"all"}]


class GroupsApiTestCase(BrokerTestCase):
    """A test with a broker and clients that join groups."""

    properties = {"group.initial.rebalance.delay.ms": "1s"}

    def join(self, client: Client, apiVersion: int, memberId: str = "", **others: Any) -> None:
        """Send a JoinGroup request."""
        fields: dict[str, Any] = {
            "group_id": "readers",
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "member_id": memberId,
            "protocol_type": "consumer",
            "protocols": PROTOCOLS,
        }
        client.send("JoinGroup", apiVersion, **{**fields, **others})

    def joinWithId(self, client: Client, apiVersion: int, **others: Any) -> str:
        """
        Send the JoinGroup requests that it takes.

        @return: the member id, if it is told before the group is.
        """
        self.join(client, apiVersion, **others)
        if apiVersion < 4 or "group_instance_id" in others:
            return ""
        told = client.receive()
        self.assertEqual(told.error_code, ErrorCode.member_id_required)
        self.join(client, apiVersion, told.member_id, **others)
        return str(told.member_id)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)
        self.clock.advance(0)

    def stable(self, apiVersion: int = 9, **others: Any) -> tuple[Client, Any]:
        """A client that is the one member of a stable group, and its answer."""
        client = self.connect()
        self.joinWithId(client, apiVersion, **others)
        self.pass_(1.25)
        joined = client.receive()
        self.assertEqual(joined.error_code, ErrorCode.none)
        client.send(
            "SyncGroup",
            3,
            group_id=others.get("group_id", "readers"),
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=others.get("group_instance_id"),
            assignments=[{"member_id": joined.member_id, "assignment": b"yours"}],
        )
        self.assertEqual(client.receive().assignment, b"yours")
        return client, joined

    def member(self, joined: Any, **others: Any) -> dict[str, Any]:
        """The fields by which a member is known."""
        return {
            "group_id": "readers",
            "generation_id": joined.generation_id,
            "generation_id_or_member_epoch": joined.generation_id,
            "member_id": joined.member_id,
            **others,
        }


class MemberTests(GroupsApiTestCase):
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

    def test_everyVersion(self) -> None:
        """Every version of the four APIs takes a member through its life."""
        for apiVersion in range(10):
            client = self.connect()
            groupId = f"group-{apiVersion}"
            memberId = self.joinWithId(client, apiVersion, group_id=groupId)
            self.pass_(1.25)
            joined = client.receive()
            self.assertEqual((joined.error_code, joined.generation_id), (ErrorCode.none, 1))
            self.assertIn(memberId, joined.member_id)
            self.assertTrue(joined.member_id.startswith("test-"))
            self.assertEqual((joined.protocol_name, joined.leader), ("range", joined.member_id))
            self.assertEqual([(each.member_id, each.metadata) for each in joined.members], [(joined.member_id, b"all")])
            fields = self.member(joined, group_id=groupId)

            def versionOf(name: str, apiVersion: int = apiVersion) -> int:
                return min(apiVersion, BY_KEY[API_KEYS[name]].maxVersion)

            assignments = [{"member_id": joined.member_id, "assignment": b"yours"}]
            synced = client.ask("SyncGroup", versionOf("SyncGroup"), assignments=assignments, **fields)
            self.assertEqual((synced.error_code, synced.assignment), (ErrorCode.none, b"yours"))
            self.assertEqual(client.ask("Heartbeat", versionOf("Heartbeat"), **fields).error_code, ErrorCode.none)
            left = client.ask("LeaveGroup", versionOf("LeaveGroup"), members=[fields], **fields)
            self.assertEqual(left.error_code, ErrorCode.none)
            for each in getattr(left, "members", ()):
                self.assertEqual((each.member_id, each.error_code), (joined.member_id, ErrorCode.none))
            gone = client.ask("Heartbeat", versionOf("Heartbeat"), **fields)
            self.assertEqual(gone.error_code, ErrorCode.unknown_member_id)

    def test_oldAndNew(self) -> None:
        """A member of the first version and one of the last are in one group; both lead in their turn."""
        old, new = self.connect(), self.connect()
        self.join(old, 0)
        newId = self.joinWithId(new, 9)
        self.pass_(2.25)
        ofOld, ofNew = old.receive(), new.receive()
        self.assertEqual((ofOld.generation_id, ofNew.generation_id), (1, 1))
        self.assertEqual((ofOld.leader, ofNew.leader), (ofOld.member_id, ofOld.member_id))
        self.assertEqual([each.member_id for each in ofOld.members], [ofOld.member_id, newId])
        self.assertEqual((ofNew.members, ofNew.protocol_type, ofNew.skip_assignment), ((), "consumer", False))
        new.send("SyncGroup", 5, protocol_type="consumer", protocol_name="range", **self.member(ofNew))
        assignments = [{"member_id": newId, "assignment": b"new"}, {"member_id": ofOld.member_id, "assignment": b"old"}]
        self.assertEqual(old.ask("SyncGroup", 0, assignments=assignments, **self.member(ofOld)).assignment, b"old")
        synced = new.receive()
        self.assertEqual((synced.assignment, synced.protocol_type, synced.protocol_name), (b"new", "consumer", "range"))
        old.ask("LeaveGroup", 0, **self.member(ofOld))
        self.join(new, 9, newId)
        self.assertEqual([each.member_id for each in new.receive().members], [newId])

    def test_timeouts(self) -> None:
        """Version 0 has one timeout for silence and for joining; later ones have two, and none at all is the first."""
        for apiVersion, rebalanceMs, expectedSeconds in (
            (0, 60_000, 10.0),
            (3, 60_000, 60.0),
            (3, 0, 10.0),
            (3, -1, 10.0),
        ):
            self.join(self.connect(), apiVersion, rebalance_timeout=rebalanceMs)
            group = self.broker.groups.get("readers")
            assert group is not None
            member = list(group.members.values())[-1]
            self.assertEqual((member.sessionSeconds, member.rebalanceSeconds), (10.0, expectedSeconds))

    def test_refusals(self) -> None:
        """Refusals are told in every version."""
        client = self.connect()
        for apiVersion in range(10):
            self.join(client, apiVersion, session_timeout=1)
            refused = client.receive()
            self.assertEqual((refused.error_code, refused.generation_id), (ErrorCode.invalid_session_timeout, -1))
            self.assertEqual((refused.member_id, refused.leader), ("", ""))
            self.assertEqual(refused.protocol_name, None if apiVersion >= 7 else "")
        for apiVersion in range(6):
            synced = client.ask("SyncGroup", apiVersion, group_id="none", member_id="x", generation_id=1)
            self.assertEqual((synced.error_code, synced.assignment), (ErrorCode.unknown_member_id, b""))
            left = client.ask("LeaveGroup", apiVersion, group_id="none", member_id="x", members=[{"member_id": "x"}])
            if apiVersion < 3:
                self.assertEqual(left.error_code, ErrorCode.unknown_member_id)
            else:
                self.assertEqual((left.error_code, codes(left.members)), (0, [ErrorCode.unknown_member_id]))
            left = client.ask("LeaveGroup", apiVersion, group_id="", member_id="x", members=[{"member_id": "x"}])
            self.assertEqual(left.error_code, ErrorCode.invalid_group_id)

    def test_leaveOnce(self) -> None:
        """A member that a request names twice is removed and answered once."""
        client, joined = self.stable()
        named = {"member_id": joined.member_id, "group_instance_id": None}
        left = client.ask("LeaveGroup", 5, group_id="readers", members=[named, named])
        self.assertEqual(codes(left.members), [ErrorCode.none])

    def test_static(self) -> None:
        """A static member that comes back leads without assigning, and its former self is fenced."""
        client, joined = self.stable(group_instance_id="a")
        again = self.connect()
        self.join(again, 9, group_instance_id="a")
        ofAgain = again.receive()
        self.assertEqual((ofAgain.error_code, ofAgain.generation_id, ofAgain.skip_assignment), (0, 1, True))
        self.assertEqual([each.group_instance_id for each in ofAgain.members], ["a"])
        fenced = client.ask("Heartbeat", 3, **self.member(joined, group_instance_id="a"))
        self.assertEqual(fenced.error_code, ErrorCode.fenced_instance_id)

    def test_connectionsNotKept(self) -> None:
        """A client that was told its id and hung up is waited for, but its connection is not kept."""
        client = self.connect()
        self.join(client, 4, session_timeout=1_800_000)
        self.assertEqual(client.receive().error_code, ErrorCode.member_id_required)
        group = self.broker.groups.get("readers")
        assert group is not None
        (participant,) = group.pending.values()
        self.assertIs(participant.connection, client.protocol)
        client.disconnect()
        self.assertIn(participant, group.pending.values())
        self.assertIsNone(participant.connection)

    def test_throttled(self) -> None:
        """A client that is not read from, being over a quota, does not lose its place because of that."""
        client, joined = self.stable()
        client.protocol.throttle(20.0)
        self.pass_(20.0)
        self.assertEqual(client.ask("Heartbeat", 4, **self.member(joined)).error_code, ErrorCode.none)
        self.pass_(10.25)
        self.assertEqual(client.ask("Heartbeat", 4, **self.member(joined)).error_code, ErrorCode.unknown_member_id)


class OffsetTests(GroupsApiTestCase):
    """OffsetCommit, OffsetFetch and OffsetDelete."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.client = self.connect()

    def commit(self, apiVersion: int, *partitions: dict[str, Any], topicName: str = "events", **others: Any) -> Any:
        """
        Commit offsets of one topic.

        @return: the error codes.
        """
        fields = {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": "", **others}
        topics = [{"name": topicName, "partitions": partitions}]
        answer = self.client.ask("OffsetCommit", apiVersion, topics=topics, **fields)
        self.assertEqual([topic.name for topic in answer.topics], [topicName])
        return codes(answer.topics[0].partitions)

    def fetched(self, apiVersion: int, topics: Any, groupId: str = "readers") -> Any:
        """The topics of an OffsetFetch response about one group."""
        group = {"group_id": groupId, "topics": topics}
        answer = self.client.ask("OffsetFetch", apiVersion, groups=[group], **group)
        if apiVersion >= 8:
            (answer,) = answer.groups
            self.assertEqual(answer.group_id, groupId)
        self.assertEqual(getattr(answer, "error_code", 0), 0)
        return answer.topics

    def test_everyVersion(self) -> None:
        """What one version commits all versions fetch."""
        for apiVersion in range(2, 10):
            offset = 100 + apiVersion
            partition = {"partition_index": 1, "committed_offset": offset, "committed_metadata": "more"}
            self.assertEqual(self.commit(apiVersion, partition), [ErrorCode.none])
            for fetchVersion in range(1, 10):
                wanted = [{"name": "events", "partition_indexes": [1]}]
                ((found,),) = [topic.partitions for topic in self.fetched(fetchVersion, wanted)]
                self.assertEqual((found.partition_index, found.committed_offset, found.metadata), (1, offset, "more"))
                self.assertEqual(found.error_code, ErrorCode.none)

    def test_epoch(self) -> None:
        """The leader epoch that a client gives is kept; metadata that is null is empty."""
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": 3,
            "committed_metadata": None,
        }
        self.commit(9, partition)
        ((found,),) = [topic.partitions for topic in self.fetched(9, None)]
        self.assertEqual((found.committed_leader_epoch, found.metadata), (3, ""))

    def test_missing(self) -> None:
        """What was never committed has no offset, which is no error, whether it is there or not."""
        self.commit(8, {"partition_index": 0, "committed_offset": 1})
        wanted = [{"name": "events", "partition_indexes": [1, 9, -1]}, {"name": "none", "partition_indexes": [0]}]
        for groupId in ("readers", "nobody"):
            events, none = self.fetched(7, wanted, groupId)
            for each in (*events.partitions, *none.partitions):
                self.assertEqual((each.committed_offset, each.metadata, each.error_code), (-1, "", ErrorCode.none))

    def test_all(self) -> None:
        """A client that asks for no topics in particular gets all."""
        self.topic("others")
        self.commit(8, {"partition_index": 0, "committed_offset": 1}, {"partition_index": 1, "committed_offset": 2})
        self.commit(8, {"partition_index": 0, "committed_offset": 3}, topicName="others")
        for apiVersion in (2, 7, 9):
            found = {
                (topic.name, each.partition_index): each.committed_offset
                for topic in self.fetched(apiVersion, None)
                for each in topic.partitions
            }
            self.assertEqual(found, {("events", 0): 1, ("events", 1): 2, ("others", 0): 3})
        self.log.deleteTopic("others")
        self.assertEqual([topic.name for topic in self.fetched(9, None)], ["events"])
        self.assertEqual(self.fetched(9, None, "nobody"), ())

    def test_several(self) -> None:
        """Offsets of several groups come in one answer, each group, topic and partition once."""
        self.commit(8, {"partition_index": 0, "committed_offset": 1})
        topics = [{"name": "events", "partition_indexes": [0, 0]}, {"name": "events", "partition_indexes": [0, 1]}]
        groups = [{"group_id": each, "topics": topics} for each in ("readers", "readers", "nobody")]
        answer = self.client.ask("OffsetFetch", 9, groups=groups)
        self.assertEqual([group.group_id for group in answer.groups], ["readers", "nobody"])
        for group in answer.groups:
            ((first, second),) = [topic.partitions for topic in group.topics]
            self.assertEqual((first.partition_index, second.partition_index), (0, 1))

    def test_refusedAlone(self) -> None:
        """A partition that is not there and metadata that are too long are refused for themselves."""
        partitions = [
            {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4096},
            {"partition_index": 1, "committed_offset": 1, "committed_metadata": "ö" * 2049},
            {"partition_index": 2, "committed_offset": 1},
        ]
        self.assertEqual(
            self.commit(8, *partitions),
            [ErrorCode.none, ErrorCode.offset_metadata_too_large, ErrorCode.unknown_topic_or_partition],
        )
        unknown = self.commit(8, {"partition_index": 0, "committed_offset": 1}, topicName="none")
        self.assertEqual(unknown, [ErrorCode.unknown_topic_or_partition])

    def test_refusedAltogether(self) -> None:
        """What the group refuses is told for each partition; what is refused for itself keeps its own error."""
        _, joined = self.stable()
        partitions = [{"partition_index": index, "committed_offset": 1} for index in (0, 5)]
        stale = self.member(joined, generation_id_or_member_epoch=9)
        self.assertEqual(
            self.commit(8, *partitions, **stale), [ErrorCode.illegal_generation, ErrorCode.unknown_topic_or_partition]
        )

    def delete(self, *partitionIndexes: int, groupId: str = "readers", topicName: str = "events") -> Any:
        """Send an OffsetDelete request."""
        topics = [{"name": topicName, "partitions": [{"partition_index": each} for each in partitionIndexes]}]
        return self.client.ask("OffsetDelete", 0, group_id=groupId, topics=topics)

    def test_delete(self) -> None:
        """Offsets of an empty group are deleted; those that are not there need not be."""
        self.commit(8, {"partition_index": 0, "committed_offset": 1}, {"partition_index": 1, "committed_offset": 2})
        answer = self.delete(0, 2)
        self.assertEqual(answer.error_code, ErrorCode.none)
        self.assertEqual(codes(answer.topics[0].partitions), [ErrorCode.none, ErrorCode.unknown_topic_or_partition])
        ((left,),) = [topic.partitions for topic in self.fetched(9, None)]
        self.assertEqual(left.partition_index, 1)
        self.assertEqual(self.delete(0, groupId="nobody").error_code, ErrorCode.group_id_not_found)

    def test_deleteSubscribed(self) -> None:
        """Offsets of a topic that a consumer reads are not deleted; those of a topic that none reads are."""
        others = self.topic("others")
        self.commit(8, {"partition_index": 0, "committed_offset": 1})
        self.commit(8, {"partition_index": 0, "committed_offset": 1}, topicName="others")
        self.stable(protocols=[{"name": "range", "metadata": subscription("events")}])
        self.assertEqual(codes(self.delete(0).topics[0].partitions), [ErrorCode.group_subscribed_to_topic])
        self.assertEqual(codes(self.delete(0, topicName="others").topics[0].partitions), [ErrorCode.none])
        group = self.broker.groups.get("readers")
        assert group is not None
        self.assertEqual(list(group.offsets), [self.events.partitions[0]])
        self.assertNotIn(others.partitions[0], group.offsets)

    def test_deleteUndecoded(self) -> None:
        """What consumers read is found out when they join, however much it is, and not when offsets are deleted."""
        self.commit(8, {"partition_index": 0, "committed_offset": 1})
        before = self.broker.groups.sizeBytes
        metadata = subscription("events", *map(str, range(10_000)))
        self.stable(protocols=[{"name": "range", "metadata": metadata}])
        self.assertGreater(self.broker.groups.sizeBytes, before + len(metadata) + 10_000 * 50)
        group = self.broker.groups.get("readers")
        assert group is not None
        (member,) = group.members.values()
        member.protocols = (("range", b"cannot be understood"),)
        self.assertEqual(codes(self.delete(0).topics[0].partitions), [ErrorCode.group_subscribed_to_topic])

    def test_deleteUnreadable(self) -> None:
        """A member whose subscription makes no sense reads nothing; members of other types may read anything."""
        self.commit(8, {"partition_index": 0, "committed_offset": 1})
        for groupId, protocolType, metadata, errorCode in (
            ("a", "consumer", b"", ErrorCode.none),
            ("b", "consumer", b"\x00\x01\x7f\xff\xff\xff", ErrorCode.none),
            ("c", "consumer", b"\x00\x01\x00\x00\x00\x01\x00\x01\xff", ErrorCode.none),
            ("d", "connect", subscription("events"), ErrorCode.non_empty_group),
        ):
            self.stable(group_id=groupId, protocol_type=protocolType, protocols=[{"name": "x", "metadata": metadata}])
            self.assertEqual(self.delete(0, groupId=groupId).error_code, errorCode, groupId)


class AdminTests(GroupsApiTestCase):
    """DescribeGroups, ListGroups and DeleteGroups."""

    def test_describe(self) -> None:
        """A stable group is described with its members and what they have."""
        client, joined = self.stable(group_instance_id="a")
        for apiVersion in range(7):
            (group,) = client.ask("DescribeGroups", apiVersion, groups=["readers", "readers"]).groups
            self.assertEqual((group.error_code, group.group_id, group.group_state), (0, "readers", "Stable"))
            self.assertEqual((group.protocol_type, group.protocol_data), ("consumer", "range"))
            (member,) = group.members
            self.assertEqual((member.member_id, member.client_id), (joined.member_id, "test"))
            self.assertEqual(member.client_host, "/192.0.2.1")
            self.assertEqual((member.member_metadata, member.member_assignment), (b"all", b"yours"))
            self.assertEqual(getattr(member, "group_instance_id", "a"), "a")

    def test_describeRebalancing(self) -> None:
        """While members join, nothing is said of what they say and have."""
        client, _ = self.stable()
        self.joinWithId(self.connect(), 9)
        (group,) = client.ask("DescribeGroups", 5, groups=["readers"]).groups
        self.assertEqual((group.group_state, group.protocol_data), ("PreparingRebalance", ""))
        self.assertEqual([each.member_metadata + each.member_assignment for each in group.members], [b"", b""])

    def test_describeMissing(self) -> None:
        """A group that is not there is dead; newer versions say so as an error."""
        for apiVersion in range(7):
            (group,) = self.connect().ask("DescribeGroups", apiVersion, groups=["none"]).groups
            self.assertEqual((group.group_id, group.group_state, group.members), ("none", "Dead", ()))
            expected = ErrorCode.group_id_not_found if apiVersion >= 6 else ErrorCode.none
            self.assertEqual(group.error_code, expected)

    def test_list(self) -> None:
        """All groups are listed, or those in the states and of the types that are wanted."""
        client, _ = self.stable()
        self.topic("events")
        topics = [{"name": "events", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        client.ask("OffsetCommit", 8, group_id="plain", generation_id_or_member_epoch=-1, member_id="", topics=topics)

        def listed(apiVersion: int, **others: Any) -> list[tuple[str, str]]:
            groups = client.ask("ListGroups", apiVersion, **others).groups
            return sorted((group.group_id, group.protocol_type) for group in groups)

        for apiVersion in range(6):
            self.assertEqual(listed(apiVersion), [("plain", ""), ("readers", "consumer")])
        self.assertEqual(listed(4, states_filter=["stable", "Dead"]), [("readers", "consumer")])
        self.assertEqual(listed(5, types_filter=["Classic"], states_filter=["Empty"]), [("plain", "")])
        self.assertEqual(listed(5, types_filter=["consumer"]), [])
        (group, _) = client.ask("ListGroups", 5).groups
        self.assertEqual((group.group_state, group.group_type), ("Stable", "classic"))

    def test_delete(self) -> None:
        """Groups without members are deleted, each for itself."""
        client, joined = self.stable()
        for apiVersion in range(3):
            answer = client.ask("DeleteGroups", apiVersion, groups_names=["readers", "none", "readers"])
            told = [(result.group_id, result.error_code) for result in answer.results]
            self.assertEqual(told, [("readers", ErrorCode.non_empty_group), ("none", ErrorCode.group_id_not_found)])
        client.ask("LeaveGroup", 0, **self.member(joined))
        self.assertEqual(codes(client.ask("DeleteGroups", 2, groups_names=["readers"]).results), [ErrorCode.none])
        self.assertEqual(list(self.broker.groups.all), [])

    def test_deleteFails(self) -> None:
        """A group that cannot be deleted from the log is not said to be."""
        client, joined = self.stable()
        client.ask("LeaveGroup", 0, **self.member(joined))
        self.failCommits(storageError(errno.ENOSPC))
        results = client.ask("DeleteGroups", 2, groups_names=["readers"]).results
        self.assertEqual(codes(results), [ErrorCode.not_coordinator])
        self.failCommits(None)
