"""
Tests for L{admission.kafka.broker.groups.groupstore}, through the coordinator.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from twisted.internet.defer import maybeDeferred

from admission.kafka.broker.groups.groupstate import GroupTotals, Offset
from admission.kafka.broker.groups.groupstore import GroupStore
from admission.kafka.broker.groups.member import GroupRefusal
from admission.kafka.broker.log.interface import LogFailed
from tests.kit.groupsfixture import OffsetsTestCase


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
            failure = self.assertRaises(LogFailed, store.load, GroupTotals())
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
