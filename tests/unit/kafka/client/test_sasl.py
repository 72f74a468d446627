"""Tests for L{admission.kafka.client.sasl}."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.clientconnection import ConnectionSettings, connectTo
from admission.kafka.client.errors import AuthenticationFailed
from admission.kafka.client.sasl import MECHANISMS, Credentials, ScramConversation
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


class ScramBroker:
    """The server's side, for one user."""

    def __init__(self, hashName: str, password: str) -> None:
        self._hashName = hashName
        self._salted = hashlib.pbkdf2_hmac(hashName, password.encode(), b"salt", 4096)
        self._exchanged: list[str] = []

    def answer(self, request: Any) -> dict[str, Any]:
        """What to say to what the client says."""
        said = request.auth_bytes.decode()
        if not self._exchanged:
            bare = said.removeprefix("n,,")
            nonce = bare.partition("r=")[2]
            challenge = f"r={nonce}more,s={base64.b64encode(b'salt').decode()},i=4096"
            self._exchanged = [bare, challenge]
            return {"auth_bytes": challenge.encode()}
        final, _, proof = said.partition(",p=")
        exchanged = ",".join([*self._exchanged, final]).encode()
        clientKey = hmac.digest(self._salted, b"Client Key", self._hashName)
        signature = hmac.digest(hashlib.new(self._hashName, clientKey).digest(), exchanged, self._hashName)
        if bytes(a ^ b for a, b in zip(clientKey, signature, strict=True)) != base64.b64decode(proof):
            return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "wrong password"}
        serverKey = hmac.digest(self._salted, b"Server Key", self._hashName)
        return {"auth_bytes": b"v=" + base64.b64encode(hmac.digest(serverKey, exchanged, self._hashName))}


class AuthenticateTests(ClientTestCase):
    """Logging in to a broker."""

    def setUp(self) -> None:
        """The broker knows all mechanisms, and one user."""
        super().setUp()
        self.broker.answers["SaslHandshake"] = lambda request: {"mechanisms": list(MECHANISMS)}

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
        for mechanism, hashName in [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")]:
            self.broker.answers["SaslAuthenticate"] = ScramBroker(hashName, "pencil").answer
            self.broker.asked.clear()
            self.assertFalse(hasattr(self.login(mechanism), "value"))
            self.assertEqual(len(self.broker.requests("SaslAuthenticate")), 2)

    def test_wrongPassword(self) -> None:
        """What the broker says about a wrong password is passed on, and the connection closed."""
        self.broker.answers["SaslAuthenticate"] = ScramBroker("sha256", "pencil").answer
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
