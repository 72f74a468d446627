"""Tests for L{admission.kafka.broker.groups.groupstate}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.groups.groupstate import Group, GroupLimits, GroupTotals, Offset, State
from admission.kafka.broker.groups.member import Participant
from admission.kafka.broker.groups.subscriptions import NO_TOPICS, Subscription
from admission.kafka.broker.log.interface import Partition
from admission.kafka.storage.holdings import Holdings
from tests.unit.kafka.broker.groups.groupsfixture import memberNamed, requestToJoin


class GroupTests(SynchronousTestCase):
    """L{Group} keeps its members and what they agree on."""

    def setUp(self) -> None:
        self.totals = GroupTotals()
        self.group = Group("readers", 1, self.totals, 0.0)

    def test_transitions(self) -> None:
        """States follow each other as they should and not otherwise."""
        allowed = {
            ("Empty", "PreparingRebalance"),
            ("Stable", "PreparingRebalance"),
            ("CompletingRebalance", "PreparingRebalance"),
            ("PreparingRebalance", "CompletingRebalance"),
            ("PreparingRebalance", "Empty"),
            ("CompletingRebalance", "Stable"),
            *((state.value, "Dead") for state in State if state is not State.DEAD),
        }
        for before in State:
            for after in State:
                self.group.state = before
                if (before.value, after.value) in allowed:
                    self.group.transitionTo(after)
                    self.assertIs(self.group.state, after)
                else:
                    self.assertRaises(RuntimeError, self.group.transitionTo, after)
                    self.assertIs(self.group.state, before)

    def test_votes(self) -> None:
        """The protocol is the one that most members prefer among those that all of them speak."""
        self.group.add(memberNamed("a", "special", "range", "sticky"))
        self.group.add(memberNamed("b", "sticky", "range"))
        self.assertIn(self.group.selectProtocol(), ("range", "sticky"))
        self.group.add(memberNamed("c", "sticky", "range"))
        self.assertEqual(self.group.selectProtocol(), "sticky")
        self.group.add(memberNamed("d", "range"))
        self.assertEqual(self.group.selectProtocol(), "range")

    def test_supports(self) -> None:
        """A client that shares no protocol with all members cannot be one; members that go take their wishes along."""
        special = memberNamed("a", "special", "range")
        self.group.protocolType = "consumer"
        self.group.add(special)
        self.group.add(memberNamed("b", "range"))
        self.assertTrue(self.group.supports("consumer", (("range", b""),)))
        self.assertFalse(self.group.supports("consumer", (("special", b""),)))
        self.assertFalse(self.group.supports("connect", (("range", b""),)))
        self.group.remove(self.group.members["b"])
        self.assertTrue(self.group.supports("consumer", (("special", b""),)))
        self.group.update(special, requestToJoin(protocols=(("range", b""),)))
        self.assertFalse(self.group.supports("consumer", (("special", b""),)))
        self.assertEqual(dict(self.group._supporters), {"range": 1})

    def test_protocolTwice(self) -> None:
        """A protocol that a member names twice counts once."""
        member = memberNamed("a", "range", "range")
        self.group.add(member)
        self.assertEqual(self.group.selectProtocol(), "range")
        self.group.remove(member)
        self.assertEqual(dict(self.group._supporters), {})

    def test_leader(self) -> None:
        """The first member leads, and the next when it is gone; those that have joined come before the others."""
        a, b, c = (memberNamed(each) for each in "abc")
        for member in (a, b, c):
            self.group.add(member)
        self.assertEqual(self.group.leaderId, "a")
        self.group.remove(a)
        self.assertEqual(self.group.leaderId, "b")
        self.assertFalse(self.group.electJoinedLeader())
        self.group.joined.add("c")
        self.assertTrue(self.group.electJoinedLeader())
        self.assertEqual(self.group.leaderId, "c")

    def test_rename(self) -> None:
        """A static member with another id leads if it led, and owes what it owed."""
        member = memberNamed("a", instanceId="static")
        self.group.add(member)
        self.group.add(memberNamed("b"))
        self.group.unsynced.add("a")
        self.group.joined.add("a")
        self.group.rename(member, "longer")
        self.assertEqual(list(self.group.members), ["longer", "b"])
        self.assertEqual((self.group.leaderId, self.group.instances), ("longer", {"static": "longer"}))
        self.assertEqual((self.group.unsynced, self.group.joined), ({"longer"}, set()))
        self.group.remove(member)
        self.group.remove(self.group.members["b"])
        self.assertEqual(self.group.sizeBytes, Group("readers", 1, GroupTotals(), 0.0).sizeBytes)

    def test_size(self) -> None:
        """Whatever is added counts, and counts no more when it is gone; the totals are the sums of all groups."""
        other = Group("others", 2, self.totals, 0.0)
        empty = self.group.sizeBytes
        member, pending = memberNamed("a"), Participant(memberId="p", sessionSeconds=10.0)
        self.group.add(member)
        self.group.addPending(pending)
        full = self.group.sizeBytes
        self.group.update(member, requestToJoin(protocols=(("range", bytes(1001)),)))
        self.assertEqual(self.group.sizeBytes, full + 1000 * 7 // 3)
        self.group.assign({"a": bytes(500)})
        self.assertEqual(self.group.sizeBytes, full + 1000 * 7 // 3 + 500 * 7 // 3)
        partition = Partition("events", 0, 1)
        for metadata in ("x", "longer"):
            self.group.setOffset(partition, Offset(1, -1, metadata, 0.0))
        self.assertGreater(self.group.sizeBytes, full + 1506 * 7 // 3)
        self.assertEqual(self.totals.memoryBytes.total, self.group.sizeBytes + other.sizeBytes)
        self.assertEqual((self.totals.pending.total, self.totals.groups.total), (1, 2))
        self.group.setOffset(partition, None)
        self.group.setOffset(partition, None)
        self.group.remove(member)
        self.group.removePending(pending)
        self.assertEqual(self.group.sizeBytes, empty)
        self.group.addPending(pending)
        self.group.leaveTotals()
        totals = [self.totals.memoryBytes.total, self.totals.pending.total, self.totals.groups.total]
        self.assertEqual(totals, [other.sizeBytes, 0, 1])

    def test_readTheSame(self) -> None:
        """Members that read the same topics share their names, which the first of them pays for while any is there."""
        empty = self.group.sizeBytes
        members = [memberNamed(each, holder=each) for each in ("192.0.2.1", "192.0.2.2")]
        for member in members:
            member.subscription = Subscription(frozenset(("events", "others")), 5000)
            self.group.add(member)
        self.assertIs(members[0].subscription, members[1].subscription)
        self.assertEqual(self.group.sizeBytes, empty + sum(member.sizeBytes for member in members) + 5000)
        self.assertEqual((self.group.isRead("events"), self.group.isRead("more")), (True, False))
        self.group.remove(members[0])
        heldBytes = dict(self.totals.memoryBytes)
        self.assertEqual(heldBytes, {"": empty, "192.0.2.1": 5000, "192.0.2.2": members[1].sizeBytes})
        self.group.update(members[1], requestToJoin(holder="192.0.2.2", subscription=NO_TOPICS))
        self.assertEqual(dict(self.totals.memoryBytes), {"": empty, "192.0.2.2": members[1].sizeBytes})
        self.assertFalse(self.group.isRead("events"))

    def test_otherAddress(self) -> None:
        """A member that is back from another address and with another client id counts there."""
        empty, member = self.group.sizeBytes, memberNamed("a", instanceId="static", holder="192.0.2.1")
        self.group.add(member)
        self.group.update(member, requestToJoin(holder="192.0.2.2", clientId="renamed"))
        self.assertEqual(dict(self.totals.memoryBytes), {"": empty, "192.0.2.2": member.sizeBytes})
        self.group.remove(member)
        self.assertEqual(dict(self.totals.memoryBytes), {"": empty})


class LimitsTests(SynchronousTestCase):
    """L{GroupLimits.allow} lets groups grow to their limits."""

    def test_allow(self) -> None:
        """Groups grow up to the limit of each and of all; one that needs no more than before is always let."""
        limits, allBytes = GroupLimits(maxGroupBytes=100, maxBytes=150), Holdings()
        for groupBytes, heldBytes, growthBytes, expected in (
            (90, 90, 10, True),
            (90, 90, 11, False),
            (10, 140, 6, False),
            (1000, 1000, 0, True),
            (1000, 1000, -5, True),
        ):
            allBytes.add("others", heldBytes - allBytes.total)
            self.assertIs(limits.allow(groupBytes, allBytes, "a", growthBytes), expected)
