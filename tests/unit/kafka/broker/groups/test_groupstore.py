"""Tests for L{admission.kafka.broker.groups.groupstore}, through the coordinator."""

from __future__ import annotations

import json
import struct

from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred

from admission.kafka.broker.groups.groupstate import GroupTotals, Offset, State
from admission.kafka.broker.groups.groupstore import GroupStore
from admission.kafka.broker.groups.member import GroupRefusal
from admission.kafka.storage.itable import LogFailed
from tests.kit.subscriptions import subscription
from tests.unit.kafka.broker.groups.groupsfixture import OffsetsTestCase


class StoreTests(OffsetsTestCase):
    """What L{GroupStore} writes it can read."""

    def test_offsets(self) -> None:
        """Offsets come back with all that belongs to them."""
        for metadata in ("größer", "\0", ""):
            self.consumer(holder="someone").commit(self.second, 2**62, metadata)
            self.rig.kill()
            offset = self.rig.group().offsets[self.second]
            self.assertEqual(offset, Offset(2**62, -1, metadata, self.rig.wallSeconds(), "someone"))

    def test_subscriptions(self) -> None:
        """What members read is known after a restart, too."""
        self.rig.wait()
        self.stable(self.consumer(protocols=(("range", subscription("events")),)))
        self.assertFalse(self.rig.group().isRead("events"))
        self.rig.kill()
        self.assertTrue(self.rig.group().isRead("events"))

    def test_beyondTheEnd(self) -> None:
        """
        An offset that a loss of power has left without its records becomes the end of the partition, also for later
        starts; otherwise a client may commit whatever it likes.
        """
        self.first.highWatermark = 5
        self.simple(self.first, 7)
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.first: 7})
        self.rig.log.endedUncleanly = True
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.first: 5})
        self.rig.wait()
        self.first.highWatermark = 9
        self.rig.kill()
        self.assertEqual(self.offsets(), {self.first: 5})

    def test_orphans(self) -> None:
        """Offsets without a group, or of a topic that is gone, are removed."""
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
        """A new group never has the number of one that there is."""
        for name in ("a", "b"):
            self.simple(self.first, 1, groupId=name)
        self.rig.kill()
        self.simple(self.first, 1, groupId="c")
        numbers = {group.number for group in self.rig.groups.all}
        self.assertEqual(len(numbers), 3)

    def test_otherVersion(self) -> None:
        """What a later version has written is not touched."""
        self.simple(self.first, 1)
        for name in ("groups", "offsets"):
            table = self.rig.log.tables[name]
            ((key, value),) = table.current.items()
            table.current[key] = bytes((value[0] + 1,)) + value[1:]
            store = GroupStore(self.rig.log)  # type: ignore[arg-type]
            failure = self.assertRaises(LogFailed, store.load, GroupTotals())
            self.assertIn(f"format {value[0] + 1}", str(failure))
            table.current[key] = value

    def test_damaged(self) -> None:
        """A damaged record is refused with what is wrong with it."""
        self.stable(self.consumer())
        self.assertEqual(self.simple(self.first, 1, groupId="others"), ErrorCode.none)
        groups, offsets = self.rig.log.tables["groups"], self.rig.log.tables["offsets"]
        key = min(groups.current)
        fields = json.loads(groups.current[key][1:])
        member = fields["members"][0]
        changes: tuple[tuple[dict[str, object], str], ...] = (
            ({"generation": None}, "None"),
            ({"wallSeconds": "soon"}, "soon"),
            ({"members": [{**member, "assignment": "?"}]}, "base64"),
            ({"members": [{**member, "protocols": [["range"]]}]}, "unpack"),
            ({"members": [{**member, "sessionSeconds": []}]}, "list"),
        )
        leaderless = {name: value for name, value in fields.items() if name != "leader"}
        damages = [
            *((b"{", "Expecting"), (b"\xff", "start byte"), (b"[]", "indices")),
            (json.dumps(leaderless).encode("ascii"), "'leader'"),
            *((json.dumps({**fields, **change}).encode("ascii"), reason) for change, reason in changes),
        ]
        store = GroupStore(self.rig.log)  # type: ignore[arg-type]
        for record, reason in (b"", "index"), *((b"\x01" + damaged, reason) for damaged, reason in damages):
            groups.current[key] = record
            failure = self.assertRaises(LogFailed, store.load, GroupTotals())
            self.assertIn(f"the record {key.hex()} of a group is damaged", str(failure))
            self.assertIn(reason, str(failure))
        del groups.current[key]
        ((key, value),) = offsets.current.items()
        offsets.current[key] = value[:5]
        failure = self.assertRaises(LogFailed, store.load, GroupTotals())
        self.assertIn(f"the record {key.hex()} of an offset is damaged", str(failure))

    def test_formatOne(self) -> None:
        """What the first version with groups has stored is read for ever."""
        stored = (
            b'\x01{"id":"readers","wallSeconds":1000000003.0,"generation":7,"protocolType":"consumer",'
            b'"protocolName":"range","leader":"a-1","isAssigned":true,"members":[{"id":"a-1","instance":"a",'
            b'"client":"reader","host":"127.0.0.1","sessionSeconds":10.0,"rebalanceSeconds":60.0,'
            b'"protocols":[["range","YWxs"]],"assignment":"bWluZQ=="}]}'
        )
        self.rig.log.tables["groups"].put(bytes(7) + b"\x05", stored)
        offset = struct.pack(">Bqid", 1, 42, -1, 1000000004.0) + "größer".encode()
        self.rig.log.tables["offsets"].put(struct.pack(">QQ", 5, self.first.number), offset)
        self.rig.wait()
        self.rig.kill()
        group = self.rig.group()
        (member,) = group.members.values()
        self.assertEqual((group.state, group.generation, group.leaderId), (State.STABLE, 7, "a-1"))
        self.assertEqual((group.protocolType, group.protocolName, group.number), ("consumer", "range", 5))
        self.assertEqual((member.instanceId, member.clientId, member.host), ("a", "reader", "127.0.0.1"))
        self.assertEqual((member.sessionSeconds, member.rebalanceSeconds, member.isNew), (10.0, 60.0, False))
        self.assertEqual((member.protocols, member.assignment), ((("range", b"all"),), b"mine"))
        self.assertEqual(group.offsets, {self.first: Offset(42, -1, "größer", 1000000004.0)})

    def test_writingFails(self) -> None:
        """A client that waits is answered if nothing can be written at all."""
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
