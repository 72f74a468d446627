"""L{admission.connection.debts}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.connection.debts import MAX_DEBTS, Debts


class DebtsTests(SynchronousTestCase):
    """What is remembered of clients that were told to wait."""

    def setUp(self) -> None:
        self.debts = Debts()

    def test_heldBack(self) -> None:
        """Only what is to hold new connections back does, and a later delay that is not does not end that."""
        self.debts.owes("alice", "app", "192.0.2.1", 10.0, isHeldBack=True)
        self.debts.owes("alice", "app", "192.0.2.2", 20.0, "client-bytes")
        self.assertEqual(self.debts.heldSeconds("alice", "app", 4.0), 6.0)
        self.assertLessEqual(self.debts.heldSeconds("alice", "other", 4.0), 0.0)
        ((name, debt),) = self.debts.items()
        self.assertEqual((name, debt.untilSeconds, debt.ip), (("alice", "app"), 20.0, "192.0.2.2"))
        self.assertEqual(debt.policy, "client-bytes")
        self.debts.owes("bob", "app", "192.0.2.1", 10.0)
        self.assertLessEqual(self.debts.heldSeconds("bob", "app", 4.0), 0.0)

    def test_longest(self) -> None:
        """Of two delays the one that ends later holds, with the policy that asked for it."""
        self.debts.owes("alice", "app", "192.0.2.1", 20.0, "client-bytes", isHeldBack=True)
        self.debts.owes("alice", "app", "192.0.2.2", 10.0, "requests", isHeldBack=True)
        ((_, debt),) = self.debts.items()
        self.assertEqual((debt.untilSeconds, debt.heldUntilSeconds, debt.policy), (20.0, 20.0, "client-bytes"))

    def test_bounded(self) -> None:
        """Of many clients, those are remembered that were told so last."""
        self.debts.owes("first", "app", "192.0.2.1", 10.0)
        for number in range(MAX_DEBTS - 1):
            self.debts.owes(f"user-{number}", "app", "192.0.2.1", 10.0)
        self.debts.owes("first", "app", "192.0.2.1", 20.0)
        self.debts.owes("last", "app", "192.0.2.1", 10.0)
        users = [user for (user, _), _ in self.debts.items()]
        self.assertEqual((len(users), users[0], users[-2:]), (MAX_DEBTS, "user-1", ["first", "last"]))

    def test_refusals(self) -> None:
        """Refusals are counted together while they follow each other soon, and remembered of the last clients."""
        for now, policy in ((1.0, "requests"), (10.0, "requests"), (19.0, "concurrency")):
            self.debts.refused("alice", "app", "192.0.2.1", now, policy)
        refusals = self.debts.refusals["alice", "app"]
        self.assertEqual((refusals.count, refusals.lastSeconds, refusals.policy), (3, 19.0, "concurrency"))
        self.debts.refused("alice", "app", "192.0.2.1", 29.0, "requests")
        self.assertEqual(self.debts.refusals["alice", "app"].count, 1)
        self.debts.refused("first", "app", "192.0.2.1", 30.0, "requests")
        for number in range(MAX_DEBTS - 1):
            self.debts.refused(f"user-{number}", "app", "192.0.2.1", 30.0, "requests")
        self.assertEqual(len(self.debts.refusals), MAX_DEBTS)
        self.assertEqual(next(iter(self.debts.refusals)), ("first", "app"))

    def test_forgiven(self) -> None:
        """When other limits hold, nobody owes anything."""
        self.debts.owes("alice", "app", "192.0.2.1", 10.0, isHeldBack=True)
        self.debts.limitsChanged(1.0)
        self.assertLessEqual(self.debts.heldSeconds("alice", "app", 4.0), 0.0)
        self.assertEqual(len(self.debts.items()), 0)
