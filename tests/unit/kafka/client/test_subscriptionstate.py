"""Tests for L{admission.kafka.client.subscriptionstate}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.subscriptionstate import SubscriptionState, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class SubscriptionStateTests(SynchronousTestCase):
    """Topics, partitions and positions."""

    def setUp(self) -> None:
        self.changes = 0
        self.state = SubscriptionState(self.changed)

    def changed(self) -> None:
        self.changes += 1

    def test_assign(self) -> None:
        """Partitions that stay keep their state; one that comes back begins anew."""
        self.state.assign([A1, ("a", 0)])
        kept, gone = self.state.partition(A0), self.state.partition(A1)
        self.state.seek(A0, 7)
        self.state.assign([B0, A0])
        self.assertEqual(self.state.assignment, [A0, B0])
        self.assertIs(self.state.partition(("a", 0)), kept)
        self.assertEqual(self.state.offsets, {A0: 7})
        self.state.assign([A1])
        self.assertEqual([self.state.holds(each) for each in (kept, gone)], [False, False])
        self.assertTrue(self.state.holds(self.state.partition(A1)))

    def test_topics(self) -> None:
        """The topics of a subscription matter before any of their partitions is assigned."""
        self.state.subscribe(frozenset("b"))
        self.state.assign([A0])
        self.assertEqual(self.state.ownTopics, {"a", "b"})

    def test_changed(self) -> None:
        """Each change is told once, and none that fails."""
        self.state.subscribe(frozenset("a"))
        self.state.assign([A0])
        self.state.pause([A0])
        self.state.pause([A0], isPaused=False)
        self.state.seek(A0, 0)
        self.assertEqual(self.changes, 5)
        self.assertRaises(KeyError, self.state.pause, [A0, B0])
        self.assertRaises(KeyError, self.state.seek, B0, 0)
        self.assertRaises(ValueError, self.state.seek, A0, -1)
        self.assertFalse(self.state.partition(A0).isPaused)
        self.assertEqual(self.changes, 5)

    def test_moveToEnd(self) -> None:
        """What was fetched is fetched again after all others."""
        self.state.assign([A0, A1, B0])
        self.state.moveToEnd(self.state.partition(A0))
        self.assertEqual(list(self.state.partitions), [A1, B0, A0])
