"""Tests for L{admission.kafka.gateway.observedlogin}."""

from __future__ import annotations

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.gateway.observedlogin import MECHANISMS, LoginRefused, ObservedLogin
from admission.kafka.wire.primitives import MalformedResponse

ACCEPTED = b"\0\0rest"
REFUSED = b"\0\x3arest"
SCRAM = "SCRAM-SHA-256"


class ObservedLoginTests(SynchronousTestCase):
    """L{ObservedLogin} knows the user that a node has confirmed."""

    def setUp(self) -> None:
        self.login = ObservedLogin(False)

    def plain(self, username: str, response: bytes = ACCEPTED) -> bool:
        """Log in by PLAIN."""
        self.login.begin("PLAIN")
        self.login.claim(b"\0" + username.encode() + b"\0secret")
        return self.login.answered(response)

    def assertRefused(self, message: bytes, *words: str) -> None:
        """A message is refused in words that do not contain it."""
        error = str(self.assertRaises(LoginRefused, self.login.claim, message))
        for word in words:
            self.assertIn(word, error)
        self.assertNotIn("secret", error)

    def test_plain(self) -> None:
        """One answer confirms PLAIN."""
        self.login.begin("PLAIN")
        self.login.claim(b"\0alice\0secret")
        self.assertIsNone(self.login.principal)
        self.assertTrue(self.login.answered(ACCEPTED))
        self.assertEqual(self.login.principal, "alice")

    def test_wrong(self) -> None:
        """A refusal confirms nobody, and another try may be made."""
        self.assertFalse(self.plain("alice", REFUSED))
        self.assertIsNone(self.login.principal)
        self.assertTrue(self.plain("bob"))
        self.assertEqual(self.login.principal, "bob")

    def test_scram(self) -> None:
        """Two answers confirm SCRAM, and names are as they were before they were escaped."""
        for mechanism in MECHANISMS[1:]:
            login = ObservedLogin(False)
            login.begin(mechanism)
            login.claim(b"n,,n=a=3Db=2C,r=nonce")
            self.assertFalse(login.answered(ACCEPTED))
            self.assertIsNone(login.principal)
            login.claim(b"c=biws,r=nonce,p=proof")
            self.assertTrue(login.answered(ACCEPTED))
            self.assertEqual(login.principal, "a=b,")

    def test_scramWrong(self) -> None:
        """A refusal of either message confirms nobody."""
        for answers in ((REFUSED,), (ACCEPTED, REFUSED)):
            self.login.begin(SCRAM)
            for answer in answers:
                self.login.claim(b"n,,n=alice,r=nonce")
                self.assertFalse(self.login.answered(answer))
            self.assertIsNone(self.login.principal)

    def test_token(self) -> None:
        """A delegation token does not say whose it is."""
        self.login.begin(SCRAM)
        self.assertRefused(b"n,,n=secret,r=nonce,tokenauth=true", "delegation token")

    def test_nonsense(self) -> None:
        """What names nobody is refused."""
        for mechanism, message in (
            ("PLAIN", b"secret"),
            ("PLAIN", b"\0\xff\0secret"),
            (SCRAM, b"secret"),
            (SCRAM, b"\xff"),
        ):
            self.login.begin(mechanism)
            self.assertRefused(message, f"its login by {mechanism} cannot be understood")

    @given(mechanism=st.sampled_from(MECHANISMS), message=st.binary(max_size=60))
    def test_anything(self, mechanism: str, message: bytes) -> None:
        """Any message names a user or is refused."""
        login = ObservedLogin(False)
        login.begin(mechanism)
        try:
            login.claim(message)
        except LoginRefused:
            self.assertFalse(login.answered(ACCEPTED))
            self.assertIsNone(login.principal)

    def test_hidden(self) -> None:
        """Other mechanisms are refused, or else clients that use them stay unknown."""
        error = self.assertRaises(LoginRefused, self.login.begin, "GSSAPI")
        self.assertIn("'GSSAPI', which does not show the gateway who it is", str(error))
        login = ObservedLogin(True)
        login.begin("GSSAPI")
        for _ in range(3):
            login.claim(b"\0alice\0secret")
            self.assertFalse(login.answered(ACCEPTED))
        self.assertIsNone(login.principal)

    def test_withoutMechanism(self) -> None:
        """A message without a mechanism confirms nobody."""
        self.login.claim(b"\0alice\0secret")
        self.assertFalse(self.login.answered(ACCEPTED))
        self.assertIsNone(self.login.principal)

    def test_again(self) -> None:
        """The same user may log in again, nobody else; and a failed try leaves who it was."""
        self.plain("alice")
        self.assertTrue(self.plain("alice"))
        self.assertFalse(self.plain("alice", REFUSED))
        self.assertEqual(self.login.principal, "alice")
        self.login.begin("PLAIN")
        self.assertRefused(b"\0bob\0secret", "it has logged in again as somebody else")
        self.login.begin(SCRAM)
        self.assertRefused(b"n,,n=bob,r=nonce", "somebody else")

    def test_begunAnew(self) -> None:
        """A client that chooses a mechanism again has claimed nothing yet."""
        self.login.begin(SCRAM)
        self.login.claim(b"n,,n=alice,r=nonce")
        self.login.answered(ACCEPTED)
        self.login.begin("PLAIN")
        self.assertFalse(self.login.answered(ACCEPTED))
        self.assertIsNone(self.login.principal)

    def test_shortAnswer(self) -> None:
        """An answer without an error code cannot be read."""
        self.login.begin("PLAIN")
        self.login.claim(b"\0alice\0secret")
        self.assertRaises(MalformedResponse, self.login.answered, b"\0")
