"""Tests for L{admission.kafka.client.sasl}."""

from __future__ import annotations

import base64
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.clientconnection import ConnectionSettings, connectTo
from admission.kafka.client.errors import AuthenticationFailed
from admission.kafka.client.sasl import MECHANISMS, Credentials, ScramConversation
from admission.kafka.scram import HASHES, MIN_ITERATIONS, ScramExchange, ScramSecret
from tests.unit.kafka.client.clientfixture import ClientTestCase, FakeEndpoint


class CredentialsTests(SynchronousTestCase):
    """What a client is given."""

    def test_mechanism(self) -> None:
        """Only mechanisms that we speak are taken."""
        for mechanism in MECHANISMS:
            Credentials(mechanism, "user", "secret")
        self.assertRaises(ValueError, Credentials, "GSSAPI", "user", "secret")

    def test_password(self) -> None:
        """The password is not shown."""
        self.assertNotIn("secret", repr(Credentials("PLAIN", "user", "secret")))


class ScramTests(SynchronousTestCase):
    """The client's side of RFC 5802."""

    def test_example(self) -> None:
        """The example of RFC 7677."""
        conversation = ScramConversation(Credentials("SCRAM-SHA-256", "user", "pencil"), "rOprNGfwEbeRWgbNEkqO")
        self.assertEqual(conversation.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
        proof = conversation.reply(
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        )
        self.assertEqual(
            proof,
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        )
        self.assertIsNone(conversation.reply(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="))

    def test_awkwardName(self) -> None:
        """Commas and equal signs in a name are written otherwise."""
        conversation = ScramConversation(Credentials("SCRAM-SHA-512", "a=b,c", "secret"), "nonce")
        self.assertEqual(conversation.first(), b"n,,n=a=3Db=2Cc,r=nonce")

    def test_nonces(self) -> None:
        """No conversation is like another."""
        credentials = Credentials("SCRAM-SHA-256", "user", "secret")
        self.assertNotEqual(ScramConversation(credentials).first(), ScramConversation(credentials).first())

    def test_doubtfulChallenges(self) -> None:
        """
        A broker that answers something else, makes no sense, or asks for too little work or too much, is not replied
        to.
        """
        salt = "s=" + base64.b64encode(b"salt").decode()
        for challenge in (
            f"r=other,{salt},i=4096",
            f"r=nonce,{salt},i=4096",
            f"r=nonce1,{salt},i=4095",
            f"r=nonce1,{salt},i=100000000",
            f"r=nonce1,{salt},i=many",
            "r=nonce1,s=!,i=4096",
            "r=nonce1,i=4096",
            "what?",
            "",
        ):
            conversation = ScramConversation(Credentials("SCRAM-SHA-256", "user", "secret"), "nonce")
            self.assertRaises(AuthenticationFailed, conversation.reply, challenge.encode())

    def test_doubtfulBroker(self) -> None:
        """A broker that cannot prove that it knows the password is not believed."""
        for final in (b"v=" + base64.b64encode(bytes(32)), b"e=other-error", b"v=!", b"", b"\xff"):
            conversation = ScramConversation(Credentials("SCRAM-SHA-256", "user", "secret"), "nonce")
            conversation.reply(b"r=nonce1,s=" + base64.b64encode(b"salt") + b",i=4096")
            self.assertRaises(AuthenticationFailed, conversation.reply, final)


class AuthenticateTests(ClientTestCase):
    """Logging in to a broker."""

    def setUp(self) -> None:
        """The broker knows all mechanisms, and one user."""
        super().setUp()
        self.broker.answers["SaslHandshake"] = lambda request: {"mechanisms": list(MECHANISMS)}

    def scram(self, mechanism: str) -> None:
        """Have the broker take SCRAM from now on."""
        exchanges: list[ScramExchange] = []

        def answer(request: Any) -> dict[str, Any]:
            if not exchanges:
                exchanges.append(ScramExchange(mechanism, request.auth_bytes, "nonce"))
                secret = ScramSecret.ofPassword(mechanism, b"pencil", MIN_ITERATIONS, b"salt")
                return {"auth_bytes": exchanges[0].challenge(secret)}
            if not exchanges[0].isProof(request.auth_bytes):
                return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "wrong password"}
            return {"auth_bytes": exchanges[0].signature()}

        self.broker.answers["SaslAuthenticate"] = answer

    def login(self, mechanism: str, password: str = "pencil") -> Any:
        """
        Log in, and close if that works.

        @return: what became of it.
        """
        settings = ConnectionSettings(credentials=Credentials(mechanism, "user", password))
        connecting = connectTo(FakeEndpoint(self.broker), self.clock, settings)
        self.clock.advance(0)
        results: list[Any] = []
        connecting.addBoth(results.append)
        if not isinstance(getattr(results[0], "value", None), Exception):
            results[0].close()
        self.clock.advance(0)
        return results[0]

    def test_plain(self) -> None:
        """PLAIN says name and password, in one round."""
        self.broker.answers["SaslAuthenticate"] = lambda request: {"auth_bytes": b""}
        self.assertFalse(hasattr(self.login("PLAIN"), "value"))
        self.assertEqual([each.auth_bytes for each in self.broker.requests("SaslAuthenticate")], [b"\0user\0pencil"])
        self.assertEqual(self.broker.requests("SaslHandshake")[0].mechanism, "PLAIN")

    def test_scram(self) -> None:
        """SCRAM takes two rounds, and convinces both sides."""
        for mechanism in HASHES:
            self.scram(mechanism)
            self.broker.asked.clear()
            self.assertFalse(hasattr(self.login(mechanism), "value"))
            self.assertEqual(len(self.broker.requests("SaslAuthenticate")), 2)

    def test_wrongPassword(self) -> None:
        """What the broker says about a wrong password is passed on, and the connection closed."""
        self.scram("SCRAM-SHA-256")
        failure = self.login("SCRAM-SHA-256", "pen")
        self.assertIsInstance(failure.value, AuthenticationFailed)
        self.assertIn("refuses 'user': wrong password", str(failure.value))
        self.assertEqual(self.broker.openTransports, [])

    def test_unknownMechanism(self) -> None:
        """A broker that does not know the mechanism says which it knows."""
        self.broker.answers["SaslHandshake"] = lambda request: {
            "error_code": ErrorCode.unsupported_sasl_mechanism,
            "mechanisms": ["GSSAPI"],
        }
        failure = self.login("PLAIN")
        self.assertIsInstance(failure.value, AuthenticationFailed)
        self.assertIn("does not know PLAIN, only GSSAPI", str(failure.value))
