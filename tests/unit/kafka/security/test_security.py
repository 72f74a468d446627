"""Tests for L{admission.kafka.security} and L{admission.kafka.security.saslapi}, without sockets."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from kio.schema.errors import ErrorCode
from OpenSSL.crypto import FILETYPE_PEM, X509, load_certificate
from twisted.cred.checkers import AllowAnonymousAccess, ICredentialsChecker, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.portal import IRealm
from twisted.cred.strcred import ICheckerFactory
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted.logger import LogLevel, formatEvent
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from admission.kafka.broker.brokeroptions import Options
from admission.kafka.client.sasl import Credentials, ScramConversation
from admission.kafka.scram import HASHES, MIN_ITERATIONS, ScramExchange
from admission.kafka.security.checkers import PASSWORDS_AT_ONCE, SUPPORTED, ScramChecker, SeveralCheckers, makePortal
from admission.kafka.security.credentials import (
    IPrincipal,
    IScramCredentials,
    PlainCredentials,
    Principal,
    PrincipalRealm,
    ScramCredentials,
)
from admission.kafka.security.login import MAX_REQUESTS_BEFORE_LOGIN, Logins
from admission.kafka.security.mutualtls import subjectName
from admission.kafka.security.passwordfile import PasswordFile, Users, formatUsers
from admission.kafka.serving.server import ANONYMOUS
from admission.kafka.serving.servercertificate import TLSEndpoint
from admission.kafka.wire.versions import API_VERSIONS
from admission.testing.faketransport import FakeTLSTransport
from tests.kit.brokerfixture import API_KEYS, BrokerTestCase, Client, batchOf, requestOf
from tests.kit.certificates import Authority
from tests.kit.logfixture import Threads
from tests.system.test_twistd_listing import SOURCES

PASSWORD = "open sesame"
DELAY_SECONDS = 0.1

WRONG = "Authentication failed: the name or the password is wrong"


def passwordFile(case: SynchronousTestCase, *names: str) -> str:
    """The path of a file in which all users have the same password."""
    users = Users()
    for name in names:
        users.setPassword(name, PASSWORD, MIN_ITERATIONS)
    path = Path(case.mktemp())
    path.write_text(formatUsers(users), encoding="utf-8")
    return str(path)


def plain(name: str, password: str, authorizationId: str = "") -> bytes:
    """The message of SASL PLAIN."""
    return f"{authorizationId}\0{name}\0{password}".encode()


def scramOfAlice() -> ScramConversation:
    return ScramConversation(Credentials("SCRAM-SHA-256", "alice", PASSWORD))


class SubjectNameTests(SynchronousTestCase):
    """L{subjectName} writes subjects as C{X500Principal.getName} of Java does, which Kafka's principals are."""

    def test_order(self) -> None:
        """What a certificate has last comes first."""
        attributes = [
            (NameOID.COUNTRY_NAME, "DE"),
            (NameOID.ORGANIZATION_NAME, "Acme"),
            (NameOID.COMMON_NAME, "client"),
        ]
        subject = x509.Name([x509.NameAttribute(*each) for each in attributes])
        self.assertEqual(subjectName(subject), "CN=client,O=Acme,C=DE")
        self.assertEqual(subjectName(x509.Name([])), "")

    def test_java(self) -> None:
        """
        Special characters are escaped, and types that RFC 2253 does not name
        are numbers with their DER, as Java 17 had it.
        """
        attributes = [
            (NameOID.COMMON_NAME, "#h"),
            (NameOID.SERIAL_NUMBER, "5"),
            (NameOID.DOMAIN_COMPONENT, "dc"),
            (NameOID.STREET_ADDRESS, "T"),
            (NameOID.LOCALITY_NAME, "L"),
            (NameOID.STATE_OR_PROVINCE_NAME, "S"),
            (NameOID.COUNTRY_NAME, "DE"),
            (NameOID.USER_ID, "u"),
            (NameOID.EMAIL_ADDRESS, "me@x.org"),
            (NameOID.COMMON_NAME, "a=b#c, d"),
        ]
        self.assertEqual(
            subjectName(x509.Name([x509.NameAttribute(*each) for each in attributes])),
            r"CN=a\=b\#c\, d,1.2.840.113549.1.9.1=#16086d6540782e6f7267,UID=u,C=DE,ST=S,L=L,STREET=T,DC=dc,"
            r"2.5.4.5=#130135,CN=\#h",
        )

    def test_joined(self) -> None:
        """A component of several parts is joined by plus signs, and outer spaces are escaped."""
        organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'ü"\\<>;+z')
        joined = x509.RelativeDistinguishedName(
            [x509.NameAttribute(NameOID.COMMON_NAME, "x"), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "  y ")]
        )
        subject = x509.Name([x509.RelativeDistinguishedName([organization]), joined])
        self.assertEqual(subjectName(subject), r"CN=x+OU=\ \ y\ ,O=ü\"\\\<\>\;\+z")

    def test_long(self) -> None:
        """Values whose DER has a length of several bytes come whole."""
        subject = x509.Name([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "x" * 300)])
        self.assertEqual(subjectName(subject), "1.2.840.113549.1.9.1=#1682012c" + "78" * 300)


class CredentialsTests(SynchronousTestCase):
    """What clients present, in the terms of cred."""

    def test_plain(self) -> None:
        """A PLAIN message is read, with or without an authorization id."""
        for message in (plain("zoë", "a b"), plain("zoë", "a b", "zoë")):
            credentials = PlainCredentials.ofMessage(message)
            self.assertEqual((credentials.username, credentials.password), ("zoë".encode(), b"a b"))
        verifyObject(IUsernamePassword, credentials)
        self.assertTrue(credentials.checkPassword(b"a b"))
        self.assertFalse(credentials.checkPassword(b"a c"))
        self.assertNotIn("a b", repr(credentials))

    def test_malformed(self) -> None:
        """What is none is refused, and so is acting as somebody else."""
        for message in (b"", b"alice", b"alice\0x", b"\0\0x", b"\0alice\0", b"\0a\0b\0c", b"\0\xff\0x", b"\0a\0\xff"):
            self.assertRaises(ValueError, PlainCredentials.ofMessage, message)
        self.assertRaisesRegex(ValueError, "act as another", PlainCredentials.ofMessage, plain("alice", "x", "root"))

    def test_interfaces(self) -> None:
        """Everything provides what it says."""
        exchange = ScramExchange("SCRAM-SHA-256", b"n,,n=alice,r=x", "nonce")
        verifyObject(IScramCredentials, ScramCredentials(exchange, lambda challenge: None))
        verifyObject(IPrincipal, Principal("alice"))
        verifyObject(IRealm, PrincipalRealm())
        verifyObject(ICredentialsChecker, ScramChecker(PasswordFile(passwordFile(self, "alice"))))
        verifyObject(ICredentialsChecker, SeveralCheckers([], []))

    def test_realm(self) -> None:
        """The avatar is the name, whether the checker has it as bytes or as text, and nothing else is to be had."""
        realm = PrincipalRealm()
        for avatarId in ("zoë", "zoë".encode()):
            interface, avatar, logOut = realm.requestAvatar(avatarId, None, IPrincipal)
            self.assertEqual((interface, avatar), (IPrincipal, Principal("zoë")))
            logOut()
        self.assertRaises(NotImplementedError, realm.requestAvatar, b"alice", None, ICredentialsChecker)


class ScramCheckerTests(SynchronousTestCase):
    """L{ScramChecker} checks passwords in threads, a few at a time."""

    def setUp(self) -> None:
        """Alice is the user."""
        self.threads = Threads()
        self.checker = ScramChecker(PasswordFile(passwordFile(self, "alice")), self.threads.deferToThread)

    def ask(self, name: str = "alice", password: str = PASSWORD) -> Deferred[Any]:
        """Present a password."""
        return self.checker.requestAvatarId(PlainCredentials(name.encode(), password.encode()))

    def test_password(self) -> None:
        """The right password of a user is let in; a wrong one takes as long as that of nobody."""
        asked = [self.ask(), self.ask(password="wrong"), self.ask("mallory")]
        for _ in asked:
            self.threads.run()
        self.assertEqual(self.successResultOf(asked[0]), b"alice")
        for each in asked[1:]:
            self.failureResultOf(each, UnauthorizedLogin)

    def test_threads(self) -> None:
        """No more threads work at a time than may."""
        asked = [self.ask() for _ in range(PASSWORDS_AT_ONCE + 2)]
        self.assertEqual(len(self.threads.waiting), PASSWORDS_AT_ONCE)
        self.threads.run()
        self.assertEqual(len(self.threads.waiting), PASSWORDS_AT_ONCE)
        for _ in asked[1:]:
            self.threads.run()
        self.assertEqual([self.successResultOf(each) for each in asked], [b"alice"] * len(asked))

    def test_cancelWaiting(self) -> None:
        """A password that nobody waits for any more is not looked at."""
        asked = [self.ask() for _ in range(PASSWORDS_AT_ONCE + 1)]
        asked[-1].cancel()
        self.failureResultOf(asked[-1], CancelledError)
        for _ in range(PASSWORDS_AT_ONCE):
            self.threads.run()
        self.assertEqual(self.threads.waiting, [])

    def test_cancelWorking(self) -> None:
        """A thread that works for nobody still counts as one that works."""
        asked = [self.ask() for _ in range(PASSWORDS_AT_ONCE + 1)]
        asked[0].cancel()
        self.failureResultOf(asked[0], CancelledError)
        self.assertEqual(len(self.threads.waiting), PASSWORDS_AT_ONCE)
        for _ in asked:
            self.threads.run()
        self.assertEqual(self.successResultOf(asked[-1]), b"alice")


class PortalTests(SynchronousTestCase):
    """L{makePortal} puts checkers together."""

    def setUp(self) -> None:
        """Two databases."""
        self.first = InMemoryUsernamePasswordDatabaseDontUse(alice=b"1", bob=b"1")
        self.second = InMemoryUsernamePasswordDatabaseDontUse(bob=b"2", carol=b"2")

    def name(self, username: bytes, password: bytes) -> str | None:
        """The name of the user who logs in with that, if anybody does."""
        portal = makePortal([self.first, self.second])
        asked = portal.login(PlainCredentials(username, password), None, IPrincipal)
        asked.addErrback(lambda failure: failure.trap(UnauthorizedLogin) and (None, None, None))
        _, principal, _ = self.successResultOf(asked)
        return None if principal is None else principal.name

    def test_several(self) -> None:
        """A user is let in if one of the checkers lets it in."""
        self.assertEqual(self.name(b"alice", b"1"), "alice")
        self.assertEqual(self.name(b"bob", b"1"), "bob")
        self.assertEqual(self.name(b"bob", b"2"), "bob")
        self.assertEqual(self.name(b"carol", b"2"), "carol")
        self.assertIsNone(self.name(b"alice", b"2"))
        self.assertIsNone(self.name(b"mallory", b"1"))

    def test_broken(self) -> None:
        """A checker that fails is not passed over."""

        def fail(credentials: Any) -> None:
            raise ZeroDivisionError()

        self.first.requestAvatarId = fail
        portal = makePortal([self.first, self.second])
        self.failureResultOf(portal.login(PlainCredentials(b"carol", b"2"), None, IPrincipal), ZeroDivisionError)

    def test_interfaces(self) -> None:
        """Only what clients can present is registered."""
        self.assertEqual(makePortal([self.first]).listCredentialsInterfaces(), [IUsernamePassword])
        self.assertEqual(makePortal([AllowAnonymousAccess()]).listCredentialsInterfaces(), [])

    def test_oneFile(self) -> None:
        """There is one file of SCRAM secrets, beside other checkers of passwords."""
        files = [ScramChecker(PasswordFile(passwordFile(self, "alice"))) for _ in range(2)]
        self.assertEqual(set(makePortal([files[0], self.first]).listCredentialsInterfaces()), set(SUPPORTED))
        self.assertRaisesRegex(ValueError, "one file of SCRAM secrets", makePortal, files)


class LoginTestCase(BrokerTestCase):
    """A broker whose users are alice and bob."""

    def setUp(self) -> None:
        """Passwords are hashed at once."""
        super().setUp()
        self.checker: Any = ScramChecker(PasswordFile(passwordFile(self, "alice", "bob")), maybeDeferred)
        self.require(self.checker)

    def require(self, *checkers: Any) -> None:
        """Have connections made from now on log in by C{checkers}."""
        self.broker.logins = Logins(
            makePortal(checkers) if checkers else None,
            self.clock,
            self.broker.settings.connectionFailedAuthenticationDelaySeconds,
            self.broker.settings.saslServerMaxReceiveSize,
        )

    def begin(self, client: Client, mechanism: str) -> None:
        """Choose a mechanism."""
        answer = client.ask("SaslHandshake", 1, mechanism=mechanism)
        self.assertEqual((answer.error_code, mechanism in answer.mechanisms), (ErrorCode.none, True))

    def send(self, client: Client, message: bytes | None, apiVersion: int = 2) -> None:
        """Send the next message of a login."""
        client.send("SaslAuthenticate", apiVersion, auth_bytes=message)

    def logIn(self, client: Client, name: str = "alice", password: str = PASSWORD, apiVersion: int = 2) -> None:
        """Log in by PLAIN, however it ends."""
        self.begin(client, "PLAIN")
        self.send(client, plain(name, password), apiVersion)

    def logInByScram(self, client: Client, mechanism: str, name: str = "alice", password: str = PASSWORD) -> Any:
        """
        Log in by SCRAM.

        @return: the client's side of it; our last answer is still to be received.
        """
        scram = ScramConversation(Credentials(mechanism, name, password))
        self.begin(client, mechanism)
        answer = client.ask("SaslAuthenticate", 2, auth_bytes=scram.first())
        self.assertEqual(answer.error_code, ErrorCode.none)
        self.challenge = answer.auth_bytes
        self.send(client, scram.reply(self.challenge))
        return scram

    def assertServed(self, client: Client, principal: str) -> None:
        """C{client} may do everything, under that name."""
        if "events" not in self.log.topics:
            self.topic("events")
        self.assertEqual(client.produce("events", batchOf(b"value")).error_code, ErrorCode.none)
        holder = client.protocol.host if principal == ANONYMOUS else principal
        self.assertEqual((client.protocol.principal, client.protocol.holder), (principal, holder))

    def assertFailsLate(self, client: Client, errorCode: ErrorCode = ErrorCode.sasl_authentication_failed) -> Any:
        """
        The request that C{client} has sent is refused, not at once, and then
        the connection is closed.

        @return: the answer.
        """
        self.clock.advance(DELAY_SECONDS * 0.9)
        self.assertEqual((client.waiting(), client.isClosed), (0, False))
        self.clock.pump([DELAY_SECONDS * 0.1 + 0.002, 0, 0])
        answer = client.receive()
        self.assertEqual(answer.error_code, errorCode)
        self.assertTrue(client.isClosed)
        self.assertEqual((client.protocol.principal, client.protocol.holder), (ANONYMOUS, client.protocol.host))
        return answer

    def warnings(self) -> list[str]:
        """What the log warns of."""
        return [str(formatEvent(event)) for event in self.logged if event["log_level"] is LogLevel.warn]


class LoginTests(LoginTestCase):
    """A client that logs in is served under its name."""

    def test_plain(self) -> None:
        """By PLAIN, in all versions; the login lasts as long as the connection."""
        for apiVersion in (0, 1, 2):
            client = self.connect()
            self.logIn(client, apiVersion=apiVersion)
            answer = client.receive()
            self.assertEqual((answer.error_code, answer.auth_bytes), (ErrorCode.none, b""))
            if apiVersion:
                self.assertEqual(answer.session_lifetime.total_seconds(), 0)
            self.assertServed(client, "alice")

    def test_scram(self) -> None:
        """By SCRAM; our signature convinces the client."""
        for mechanism in HASHES:
            client = self.connect()
            scram = self.logInByScram(client, mechanism, "bob")
            answer = client.receive()
            self.assertEqual(answer.error_code, ErrorCode.none)
            self.assertIsNone(scram.reply(answer.auth_bytes))
            self.assertServed(client, "bob")

    def test_pipelined(self) -> None:
        """A client that does not wait for its answers logs in as well."""
        client = self.connect()
        client.sendBytes(
            client.frame(requestOf("ApiVersions", 3))
            + client.frame(requestOf("SaslHandshake", 1, mechanism="PLAIN"))
            + client.frame(requestOf("SaslAuthenticate", 2, auth_bytes=plain("alice", PASSWORD)))
            + client.frame(requestOf("ListOffsets", 6, topics=()))
        )
        for _ in range(4):
            client.receive()
        self.assertServed(client, "alice")

    def test_passwordInThread(self) -> None:
        """
        While a thread looks at the password, the turn is somebody else's, and
        what the client sends meanwhile is read afterwards.
        """
        threads = Threads()
        self.require(ScramChecker(self.checker.file, threads.deferToThread))
        client, other = self.connect(), self.connect()
        self.logIn(client)
        client.send("ListOffsets", 6, topics=())
        self.assertEqual(self.gate.turns.runningRequests, 0)
        other.ask("ApiVersions", 3)
        threads.run()
        self.clock.advance(0)
        self.assertEqual(client.receive().error_code, ErrorCode.none)
        client.receive()
        self.assertServed(client, "alice")

    def test_otherCheckers(self) -> None:
        """Any checker of passwords will do, and SCRAM is then not offered."""
        self.require(InMemoryUsernamePasswordDatabaseDontUse(carol=b"secret"))
        client = self.connect()
        self.logIn(client, "carol", "secret")
        self.assertEqual(client.receive().error_code, ErrorCode.none)
        self.assertServed(client, "carol")
        self.assertEqual(self.broker.logins.mechanisms, ["PLAIN"])

    def test_again(self) -> None:
        """After a login there is no other: both requests are refused at once, and the client stays who it was."""
        client = self.connect()
        self.logIn(client)
        client.receive()
        answer = client.ask("SaslHandshake", 1, mechanism="PLAIN")
        self.assertEqual(answer.error_code, ErrorCode.illegal_sasl_state)
        answer = client.ask("SaslAuthenticate", 2, auth_bytes=plain("bob", PASSWORD))
        self.assertEqual(answer.error_code, ErrorCode.illegal_sasl_state)
        self.assertServed(client, "alice")

    def test_nobodyNeedsTo(self) -> None:
        """Without checkers everybody is served, and there is nothing to log in to."""
        self.require()
        client = self.connect()
        answer = client.ask("SaslHandshake", 1, mechanism="PLAIN")
        self.assertEqual((answer.error_code, answer.mechanisms), (ErrorCode.illegal_sasl_state, ()))
        self.assertServed(client, ANONYMOUS)

    def test_plainWithoutTLS(self) -> None:
        """Passwords that anybody can read are warned of, once; those in TLS and SCRAM are not."""
        encrypted = self.connect(FakeTLSTransport)
        encrypted.transport.peerFinishesHandshake()
        self.logIn(encrypted)
        encrypted.receive()
        self.logInByScram(self.connect(), "SCRAM-SHA-256")
        self.assertEqual(self.warnings(), [])
        for _ in range(3):
            self.logIn(self.connect())
        (warning,) = self.warnings()
        self.assertIn("192.0.2.1:50000 logs in by PLAIN without TLS", warning)


class FailedLoginTests(LoginTestCase):
    """A login that fails is answered late, and the connection is closed."""

    def test_password(self) -> None:
        """A wrong password and an unknown name are told apart neither by the answer nor by anything before it."""
        challenges = set()
        for name, password in (("alice", "wrong"), ("mallory", PASSWORD)):
            client = self.connect()
            self.logIn(client, name, password)
            self.assertEqual(self.assertFailsLate(client).error_message, WRONG)
            for mechanism in HASHES:
                client = self.connect()
                self.logInByScram(client, mechanism, name, password)
                challenges.add((mechanism, len(self.challenge)))
                self.assertEqual(self.assertFailsLate(client).error_message, WRONG)
        self.assertEqual(len(challenges), len(HASHES))

    def test_log(self) -> None:
        """The log has the name, shortened if need be, and no password."""
        client = self.connect()
        self.logIn(client, "alice\n" + "x" * 1000, "my secret")
        self.assertFailsLate(client)
        everything = " | ".join(map(str, map(formatEvent, self.logged)))
        self.assertIn(r"its login as 'alice\nxxxx", everything)
        self.assertIn("by PLAIN failed", everything)
        self.assertLess(len(everything), 600)
        self.assertNotIn("my secret", everything)

    def test_nothingElseIsRead(self) -> None:
        """What a client sends behind its failed login is never looked at."""
        client = self.connect()
        self.begin(client, "PLAIN")
        login = client.frame(requestOf("SaslAuthenticate", 2, auth_bytes=plain("alice", "wrong")))
        client.sendBytes(login + struct.pack(">ihhih", 10, API_KEYS["Metadata"], 9, 1, -1))
        self.assertFailsLate(client)
        self.assertEqual([each for each in self.warnings() if "Metadata" in each], [])

    def test_turn(self) -> None:
        """While the answer is late, everybody else is served, and the login holds no memory for its frame."""
        client = self.connect()
        self.logIn(client, password="wrong")
        self.assertEqual((self.gate.turns.runningRequests, self.frameBytes), (0, 0))
        other = self.connect()
        self.logIn(other)
        other.receive()
        self.assertServed(other, "alice")
        self.assertFailsLate(client)

    def test_mechanism(self) -> None:
        """An unknown mechanism is refused with the list of those that there are."""
        client = self.connect()
        client.send("SaslHandshake", 1, mechanism="GSSAPI")
        answer = self.assertFailsLate(client, ErrorCode.unsupported_sasl_mechanism)
        self.assertEqual(answer.mechanisms, ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"))
        self.assertIn("'GSSAPI', which is not offered", self.warnings()[-1])

    def test_order(self) -> None:
        """SaslAuthenticate follows SaslHandshake, of which there is one."""
        client = self.connect()
        self.send(client, plain("alice", PASSWORD))
        self.assertFailsLate(client, ErrorCode.illegal_sasl_state)
        client = self.connect()
        self.begin(client, "PLAIN")
        client.send("SaslHandshake", 1, mechanism="PLAIN")
        self.assertFailsLate(client, ErrorCode.illegal_sasl_state)

    def test_malformed(self) -> None:
        """Messages that make no sense fail in words, without any word of users."""
        for mechanism, message, words in (
            ("PLAIN", b"alice", "a PLAIN message is"),
            ("PLAIN", plain("alice", PASSWORD, "bob"), "act as another"),
            ("SCRAM-SHA-256", b"alice", "the first SCRAM message is malformed"),
            ("SCRAM-SHA-512", b"p=tls-exporter,,n=alice,r=x", "channel binding"),
        ):
            client = self.connect()
            self.begin(client, mechanism)
            self.send(client, message)
            self.assertIn(words, self.assertFailsLate(client).error_message)

    def test_brokenChecker(self) -> None:
        """A checker that fails is a failed login to the client, and a traceback in the log."""

        def fail(credentials: Any) -> None:
            raise ZeroDivisionError("secret matters")

        self.checker.requestAvatarId = fail
        client = self.connect()
        self.logIn(client)
        self.assertEqual(self.assertFailsLate(client).error_message, WRONG)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_slowChecker(self) -> None:
        """A checker may take its time to challenge, and may fail when it has."""

        @implementer(ICredentialsChecker)
        class SlowChecker:
            credentialInterfaces = (IScramCredentials,)

            def requestAvatarId(self, credentials: Any) -> Any:
                self.credentials, self.verdict = credentials, Deferred()
                return self.verdict

        checker = SlowChecker()
        self.require(checker)
        client = self.connect()
        scram = scramOfAlice()
        self.begin(client, "SCRAM-SHA-256")
        self.send(client, scram.first())
        self.assertEqual(client.waiting(), 0)
        checker.credentials.checkSecret(self.checker.file.secretOf("alice", "SCRAM-SHA-256"))
        self.clock.advance(0)
        proof = scram.reply(client.receive().auth_bytes)
        checker.verdict.errback(UnauthorizedLogin())
        self.send(client, proof)
        self.assertFailsLate(client)

    def test_leaves(self) -> None:
        """A client that leaves before it is answered leaves nothing behind, not even work for a thread."""
        threads = Threads()
        self.require(ScramChecker(self.checker.file, threads.deferToThread))
        clients = [self.connect() for _ in range(PASSWORDS_AT_ONCE + 2)]
        for client in clients:
            self.logIn(client)
        for client in clients[1:]:
            client.disconnect()
        threads.run()
        self.clock.advance(0)
        self.assertEqual(clients[0].receive().error_code, ErrorCode.none)
        self.assertLess(len(threads.waiting), PASSWORDS_AT_ONCE)
        self.require(self.checker)
        for client in (self.connect(), self.connect()):
            self.logIn(client, password="wrong")
            client.disconnect()
        between = self.connect()
        self.begin(between, "SCRAM-SHA-256")
        self.send(between, scramOfAlice().first())
        between.disconnect()

    def test_hangsUp(self) -> None:
        """The login of a client that has hung up is given up, and what it sent behind it gets nowhere."""
        client = self.connect()
        self.logIn(client, password="wrong")
        client.protocol.hasPeerGone = True
        client.protocol.peerGone()
        for _ in range(2):
            self.send(client, plain("alice", PASSWORD))
        client.send("Metadata", 9, topics=None)
        self.assertTrue(client.isClosed)
        self.assertEqual(client.protocol.principal, ANONYMOUS)

    def test_shutdown(self) -> None:
        """A broker that ends does not wait for late answers."""
        client = self.connect()
        self.logIn(client, password="wrong")
        closing = self.factory.closeAll()
        self.clock.advance(0)
        self.successResultOf(closing)
        self.assertTrue(client.isClosed)


class BeforeLoginTests(LoginTestCase):
    """Before a login there is little that a client can do."""

    def test_apis(self) -> None:
        """
        Only the three requests that a login takes are read; any other closes
        the connection before there is memory for it.
        """
        client = self.connect()
        client.ask("ApiVersions", 3)
        self.begin(client, "PLAIN")
        peakBytes = self.pool.peakFrameBytes
        for name in sorted(set(API_KEYS) - {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}):
            client = self.connect()
            client.sendBytes(struct.pack(">ih", 4000, API_KEYS[name]))
            self.assertRefused(client, f"it sent {name} before it had logged in")
            # The log has room for a few refusals of one address.
            self.factory._sweep()
        self.assertEqual(self.pool.peakFrameBytes, peakBytes)

    def test_timeout(self) -> None:
        """A client that does not finish its login within the timeout is refused; one that has logged in is served."""
        silent, undecided, known = self.connect(), self.connect(), self.connect()
        self.begin(undecided, "PLAIN")
        self.logIn(known)
        known.receive()
        self.clock.advance(29.9)
        self.assertEqual((silent.isClosed, undecided.isClosed), (False, False))
        self.clock.advance(0.2)
        for client in (silent, undecided):
            self.assertRefused(client, "it has not logged in within login.timeout")
        self.assertServed(known, "alice")

    def test_unknownApi(self) -> None:
        """What is never served is not served before a login."""
        client = self.connect()
        client.sendBytes(struct.pack(">ih", 100, 9999))
        self.assertRefused(client, "it sent API key 9999 before it had logged in")

    def test_size(self) -> None:
        """A large frame is refused when its length is there, and nothing else."""
        for sizeBytes in (100 << 20, 1 << 20, 4097):
            client = self.connect()
            client.sendBytes(struct.pack(">i", sizeBytes))
            self.assertTrue(client.isClosed, sizeBytes)
        self.assertIn("4096 are allowed (sasl.server.max.receive.size)", self.warnings()[-1])
        self.assertEqual(self.pool.peakFrameBytes, 0)

    def test_requests(self) -> None:
        """A client that only asks what there is, again and again, is sent away."""
        client = self.connect()
        for _ in range(MAX_REQUESTS_BEFORE_LOGIN):
            client.ask("ApiVersions", 3)
        client.send("ApiVersions", 3)
        self.assertRefused(client, f"it has sent {MAX_REQUESTS_BEFORE_LOGIN} requests and not logged in")

    def test_afterwards(self) -> None:
        """After a login there may be any number, and larger ones."""
        client = self.connect()
        self.logIn(client)
        client.receive()
        self.assertEqual(client.produce(self.topic().name, batchOf(bytes(100_000))).error_code, ErrorCode.none)
        for _ in range(2 * MAX_REQUESTS_BEFORE_LOGIN):
            client.ask("ApiVersions", 3)

    def test_pieces(self) -> None:
        """A frame that comes in pieces counts once."""
        client = self.connect()
        for _ in range(MAX_REQUESTS_BEFORE_LOGIN):
            frame = client.frame(requestOf("ApiVersions", 3))
            for byte in frame:
                client.sendBytes(bytes([byte]))
            client.receive()
        self.assertFalse(client.isClosed)

    def test_versions(self) -> None:
        """
        SaslHandshake of version 0, after which there would be no headers, is
        not served; ApiVersions of a version to come is answered as ever.
        """
        client = self.connect()
        client.sendBytes(struct.pack(">ihhihh", 12, API_KEYS["SaslHandshake"], 0, 1, -1, 0))
        self.assertRefused(client, "SaslHandshake in version 0, which is not served")
        client = self.connect()
        client.sendBytes(struct.pack(">ihhihb", 11, API_VERSIONS, 99, 1, -1, 0))
        self.assertEqual((client.waiting(), client.isClosed), (1, False))


class CertifiedTransport(FakeTLSTransport):
    """A TLS transport whose peer has a certificate."""

    certificate: X509 | None = load_certificate(FILETYPE_PEM, Authority().client("client, of ours").certificate)

    def getPeerCertificate(self) -> X509 | None:  # type: ignore[override]
        """The peer's certificate, which is there when the handshake is over."""
        return self.certificate if self.isHandshakeDone else None


class CertificateTests(LoginTestCase):
    """A verified certificate is a login."""

    def connectWithTLS(self, transportType: type[FakeTLSTransport] = CertifiedTransport) -> Client:
        """A client that has finished its handshake."""
        client = self.connect(transportType)
        client.transport.peerFinishesHandshake()
        return client

    def test_certificate(self) -> None:
        """A client with a certificate is its subject, whether others need to log in or not."""
        for checkers in ((self.checker,), ()):
            self.require(*checkers)
            self.assertServed(self.connectWithTLS(), r"CN=client\, of ours")

    def test_both(self) -> None:
        """
        A client with a certificate that logs in as well is who it logged in
        as, and one whose login fails is closed.
        """
        client = self.connectWithTLS()
        self.logIn(client)
        client.receive()
        self.assertServed(client, "alice")
        client = self.connectWithTLS()
        self.logIn(client, password="wrong")
        self.clock.pump([DELAY_SECONDS + 0.002, 0, 0])
        self.assertEqual(client.receive().error_code, ErrorCode.sasl_authentication_failed)
        self.assertTrue(client.isClosed)

    def test_largeMessage(self) -> None:
        """A message is no larger for a client with a certificate."""
        client = self.connectWithTLS()
        self.begin(client, "PLAIN")
        self.send(client, plain("alice", "x" * 5000))
        self.clock.pump([DELAY_SECONDS + 0.002, 0, 0])
        self.assertIn("larger than 4096 bytes", client.receive().error_message)


class AuthOptionTests(SynchronousTestCase):
    """C{--auth}, C{--help-auth} and the endpoint C{mtls:}."""

    def parse(self, *arguments: str) -> Options:
        """Parse a command line."""
        options = Options()
        options.parseOptions(["--set", "queued.max.request.bytes=1GiB", *arguments])
        return options

    def checkers(self, *arguments: str) -> Sequence[Any]:
        """The checkers of logins at the port that is there unless others are chosen."""
        checkers: Sequence[Any] = self.parse(*arguments)["listeners"][0].checkers
        return checkers

    def mistake(self, *arguments: str) -> str:
        """How a command line is refused."""
        message = str(self.assertRaises(UsageError, self.parse, *arguments))
        self.assertNotIn("\n", message)
        return message

    def test_checkers(self) -> None:
        """Our checker and those of Twisted's that check passwords are found."""
        path = passwordFile(self, "alice")
        ours, theirs = self.checkers("--auth", f"scram:{path}", "--auth", "memory:carol:secret")
        self.assertIsInstance(ours, ScramChecker)
        self.assertEqual(ours.file.path, path)
        asked = theirs.requestAvatarId(PlainCredentials(b"carol", b"secret"))
        self.assertEqual(self.successResultOf(asked), b"carol")
        (unix,) = self.checkers("--auth", "unix")
        verifyObject(ICredentialsChecker, unix)

    def test_mistakes(self) -> None:
        """What cannot be used is refused in words, without what may be a password."""
        path = passwordFile(self, "alice")
        self.assertIn("'sasl'; installed: file, memory, scram, unix", self.mistake("--auth", "sasl:x"))
        self.assertIn("--auth anonymous: it checks what clients", self.mistake("--auth", "anonymous"))
        self.assertIn("--auth scram: name a password file", self.mistake("--auth", "scram"))
        for authType in ("scram", "file"):
            self.assertIn("cannot be read: No such file", self.mistake("--auth", f"{authType}:/no/file"))
            self.assertIn("cannot be read: it is not a regular file", self.mistake("--auth", f"{authType}:/dev/zero"))
        self.assertIn("--auth memory: name a user", self.mistake("--auth", "memory"))
        self.assertIn(
            "--auth scram: one file of SCRAM secrets",
            self.mistake("--auth", f"scram:{path}", "--auth", f"9092=scram:{passwordFile(self, 'bob')}"),
        )
        self.assertNotIn("secret", self.mistake("--auth", "memory:secret"))

    def help(self, *arguments: str) -> str:
        """What is printed before the command ends."""
        stdout = io.StringIO()
        self.patch(sys, "stdout", stdout)
        self.assertRaises(SystemExit, self.parse, *arguments)
        return stdout.getvalue()

    def test_help(self) -> None:
        """What can be used is listed and explained."""
        listed = self.help("--help-auth")
        self.assertRegex(listed, r"\n  scram +\tPASSWORDFILE\n")
        self.assertNotIn("anonymous", listed)
        self.assertIn("admission users set PASSWORDFILE NAME", self.help("--help-auth-type", "scram"))

    def certificates(self) -> tuple[str, str]:
        """The paths of a key and of a certificate that is its own authority."""
        authority = Authority()
        server = authority.server()
        paths = [Path(self.mktemp()) for _ in range(2)]
        for path, content in zip(paths, (server.key, server.certificate + authority.certificate), strict=True):
            path.write_bytes(content)
        return str(paths[0]), str(paths[1])

    def test_endpoint(self) -> None:
        """C{mtls:} listens with TLS, and takes the options that C{ssl:} has."""
        key, certificate = self.certificates()
        description = f"mtls:0:privateKey={key}:certKey={certificate}:caKey={certificate}"
        for more in ("", ":interface=127.0.0.1:backlog=5:required=no"):
            (listener,) = self.parse("--listen", description + more)["listeners"]
            self.assertIsInstance(listener.endpoint, TLSEndpoint)

    def test_badEndpoint(self) -> None:
        """What is missing, unknown or makes no sense is said."""
        key, certificate = self.certificates()
        good = f"mtls:1:privateKey={key}:certKey={certificate}:caKey={certificate}"
        for description, words in (
            ("mtls:1", "privateKey and certKey and caKey must name a file"),
            (f"mtls:1:privateKey={key}:certKey={certificate}", "caKey must name a file"),
            ("mtls", "missing a required argument: 'port'; expected mtls:PORT:privateKey=FILE"),
            (good + ":colour=red", "unexpected keyword argument 'colour'; expected mtls:PORT"),
            (good + ":required=maybe", "required is 'maybe', and it can be yes or no"),
            (good.replace(f"caKey={certificate}", f"caKey={key}"), "has no certificate in PEM"),
            (good.replace(f"privateKey={key}", "privateKey=/no/key"), "/no/key"),
            (good.replace(f"privateKey={key}", "privateKey=/dev/zero"), "it is not a regular file: '/dev/zero'"),
            (good.replace(f"caKey={certificate}", "caKey=/dev/zero"), "it is not a regular file: '/dev/zero'"),
            (good.replace("mtls:1", "mtls:kafka"), "kafka"),
        ):
            self.assertIn(words, self.mistake("--listen", description))

    def test_dropins(self) -> None:
        """Twisted finds both, each once."""
        self.assertEqual([each.authType for each in getPlugins(ICheckerFactory)].count("scram"), 1)
        (mtls,) = [each for each in getPlugins(IStreamServerEndpointStringParser) if each.prefix == "mtls"]
        verifyObject(IStreamServerEndpointStringParser, mtls)

    def test_light(self) -> None:
        """Finding them costs other commands neither the reactor nor our libraries."""
        program = (
            "import sys; from twisted.plugins import admission_auth; "
            "print({'twisted.internet.reactor', 'kio', 'OpenSSL', 'cryptography'} & set(sys.modules))"
        )
        printed = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": SOURCES}, capture_output=True, timeout=60
        )
        self.assertEqual((printed.stdout, printed.stderr), (b"set()\n", b""))
