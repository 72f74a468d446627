"""Tests for L{admission.kafka.security.superusers}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.security.superusers import SuperUsers


class SuperUsersTests(SynchronousTestCase):
    """L{SuperUsers} is the one rule of who may change things for others."""

    def setUp(self) -> None:
        """One is by name, one by certificate."""
        self.users = SuperUsers({"root", "CN=admin,O=Acme"}, isEnforced=True)

    def test_superUser(self) -> None:
        """Super users may change everything."""
        for name in self.users.names:
            self.assertIs(self.users.refusal(name), None)
            self.assertIs(self.users.refusal(name, owner="alice"), None)

    def test_others(self) -> None:
        """
        Everybody else is told the setting and the remedy; nothing is a super user by half a name or
        in other letters.
        """
        for name in ("alice", "", "ROOT", "root ", "User:root", "CN=admin", "ANONYMOUS"):
            self.assertEqual(
                self.users.refusal(name),
                f"only super users may do this, and {name!r} is none; log in as one of them, or add "
                f"'User:{name}' to super.users of the broker",
            )

    def test_own(self) -> None:
        """What is one's own may be changed by oneself, and by no other but a super user."""
        self.assertIs(self.users.refusal("alice", owner="alice"), None)
        self.assertIsNot(self.users.refusal("alice", owner="bob"), None)

    def test_withoutNames(self) -> None:
        """Where clients have no names, everybody may do everything."""
        self.assertIs(SuperUsers((), isEnforced=False).refusal("ANONYMOUS"), None)

    def test_nobody(self) -> None:
        """Where clients have names and nobody is a super user, nobody may change anything."""
        self.assertIsNot(SuperUsers((), isEnforced=True).refusal("root"), None)

    def test_longName(self) -> None:
        """The sentence is short however long the name is."""
        refusal = self.users.refusal("x" * 32767)
        assert refusal is not None
        self.assertLess(len(refusal), 600)
