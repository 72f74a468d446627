"""Real clients log in to a broker with a password file and certificates, or fail to."""

from __future__ import annotations

import atexit
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from attrs import frozen
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.scram import MIN_ITERATIONS
from admission.kafka.security.passwordfile import Users, changeUsers
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import (
    PATIENCE_SECONDS,
    BrokerProcess,
    certificates,
    endpoint,
    freePort,
    strangersAuthority,
    until,
)
from tests.kit.libraries import LIBRARIES, Message, Settings, confluentArguments, consumeAll, produceAll
from tests.kit.rawclient import RawClient, tlsContext

NAME, PASSWORD = "alice", "open, sesame="
SUPER_USER = "root"
SUPER_CERTIFICATE = "CN=client"
DELAY_SECONDS = 0.4
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_numbers = count()


class SecuredBroker(BrokerProcess):
    """
    A broker that wants its clients to log in, with a third port for
    certificates.

    @ivar passwordPath: its password file.
    """

    def __init__(self) -> None:
        self.certifiedPort = freePort()
        descriptor, self.passwordPath = tempfile.mkstemp(prefix="admission-users-")
        os.close(descriptor)
        os.unlink(self.passwordPath)
        atexit.register(lambda: Path(self.passwordPath).unlink(missing_ok=True))
        for name in (NAME, SUPER_USER):
            self.setPassword(name, PASSWORD)
        files = certificates()
        certified = (
            f"mtls:{self.certifiedPort}:interface=127.0.0.1:privateKey={files.serverKey}"
            f":certKey={files.serverCertificate}:caKey={files.authority}"
        )
        super().__init__(
            *("--listen", certified, "--auth", f"scram:{self.passwordPath}"),
            f"--set=connection.failed.authentication.delay.ms={DELAY_SECONDS * 1000:.0f}",
            f"--set=super.users=User:{SUPER_USER};User:{SUPER_CERTIFICATE}",
            "--set=group.initial.rebalance.delay.ms=0",
        )

    def setPassword(self, name: str, password: str) -> None:
        """As C{admission users set} does."""

        def change(users: Users) -> None:
            users.setPassword(name, password, MIN_ITERATIONS)

        changeUsers(self.passwordPath, change, mayCreate=True)


@cache
def securedBroker() -> SecuredBroker:
    """A running one, for all tests."""
    broker = SecuredBroker()
    broker.start()
    return broker


@frozen
class Door:
    """
    A way into the broker.

    @ivar mechanism: of SASL; L{None} for none.
    @ivar tls: whether to use TLS.
    @ivar certificate: whether to show a certificate.
    @ivar password: what to log in with.
    @ivar name: whom to log in as.
    """

    port: int
    mechanism: str | None = None
    tls: bool = False
    certificate: bool = False
    password: str = PASSWORD
    name: str = NAME

    def settings(self, library: str = "confluent", **properties: Any) -> Settings:
        """For a client that goes through it."""
        files = certificates()
        named = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10, **properties}
        if self.mechanism is not None:
            named |= {
                "security.protocol": "SASL_SSL" if self.tls else "SASL_PLAINTEXT",
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.name,
                "sasl.password": self.password,
            }
        return Settings(
            library,
            f"127.0.0.1:{self.port}",
            named,
            authority=str(files.authority) if self.tls else "",
            certificate=str(files.clientCertificate) if self.certificate else "",
            certificateKey=str(files.clientKey) if self.certificate else "",
        )

    def arguments(self, **others: Any) -> dict[str, Any]:
        """The same for librdkafka."""
        return confluentArguments(self.settings(log_level=0)) | others


class SecurityTestCase(SynchronousTestCase):
    """A test with the secured broker."""

    def setUp(self) -> None:
        """A topic of its own for each test."""
        self.broker = securedBroker()
        self.topic = f"security.{next(_numbers)}"
        self.mark = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(self.mark), []))

    def doors(self) -> Iterator[Door]:
        """Every way in."""
        for mechanism in MECHANISMS:
            yield Door(self.broker.port, mechanism)
            yield Door(self.broker.tlsPort, mechanism, tls=True)
        yield Door(self.broker.certifiedPort, tls=True, certificate=True)

    def failedLogins(self) -> int:
        """How many logins have failed in this test."""
        return self.broker.log(self.mark).count(f"its login as '{NAME}' by ")

    @contextmanager
    def lateAnswers(self) -> Iterator[None]:
        """
        Clients fail to log in, one after the other, and each time it took them
        the delay: late answers keep them from trying in a loop.
        """
        begin = time.monotonic()
        yield
        elapsedSeconds = time.monotonic() - begin
        # The log may come later than the answer.
        self.broker.waitForLog(f"its login as '{NAME}' by ", self.mark)
        self.assertGreaterEqual(elapsedSeconds, self.failedLogins() * DELAY_SECONDS)


def roundTrip(settings: Settings, topic: str) -> list[bytes | None]:
    """
    Produce a record.

    @return: the values of those that are there then.
    """
    produceAll(settings, topic, [Message(b"value", partition=0)])
    return [message.value for message in consumeAll(settings, topic, 1)]


class LibrariesTests(SecurityTestCase):
    """All of them."""

    def test_logIn(self) -> None:
        """They produce and consume, by every mechanism, with TLS and without, and with a certificate."""
        with ThreadPoolExecutor(4) as threads:
            tried = [
                threads.submit(roundTrip, door.settings(library), f"{self.topic}.{library}.{number}")
                for library in LIBRARIES
                for number, door in enumerate(self.doors())
            ]
            for each in tried:
                self.assertEqual(each.result(PATIENCE_SECONDS), [b"value"])


class ConfluentTests(SecurityTestCase):
    """confluent-kafka, which is librdkafka."""

    def changes(self, door: Door, topic: str) -> Iterator[tuple[int, Future[Any]]]:
        """
        Change topics, and C{topic} first, and a group that does not exist.

        @return: the error for a user who may not do it, and the outcome, of each.
        """
        admin = AdminClient(door.arguments())
        entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        # One after another: asked for at once, the client may have the topic deleted first.
        for ask in (
            partial(admin.incremental_alter_configs, [resource]),
            partial(admin.create_partitions, [NewPartitions(topic, 3)]),
            partial(admin.create_topics, [NewTopic(f"{topic}.fresh", 1, 1)]),
            partial(admin.delete_topics, [topic]),
        ):
            yield KafkaError.TOPIC_AUTHORIZATION_FAILED, *ask().values()
        yield KafkaError.GROUP_AUTHORIZATION_FAILED, *admin.delete_consumer_groups([f"{topic}.group"]).values()

    def test_ordinaryUser(self) -> None:
        """
        A client that is no super user produces to a new topic, and is refused to change or delete it, to create
        another by itself, or to delete a group.
        """
        door = Door(self.broker.port, "SCRAM-SHA-256")
        roundTrip(door.settings(), self.topic)
        told: list[str] = []
        for code, outcome in self.changes(door, self.topic):
            error = self.assertRaises(KafkaException, outcome.result, PATIENCE_SECONDS).args[0]
            self.assertEqual(error.code(), code)
            told.append(error.str())
        # This client asks to delete topics and groups in versions that have no room for a reason.
        for each in told[:3]:
            self.assertIn(f"add 'User:{NAME}' to super.users of the broker", each)
        self.assertIn(b"value", roundTrip(door.settings(), self.topic))

    def test_superUser(self) -> None:
        """A super user may do all that, whether it has that name from a login or from a certificate."""
        login = Door(self.broker.port, "SCRAM-SHA-256", name=SUPER_USER)
        for door in (login, Door(self.broker.certifiedPort, tls=True, certificate=True)):
            topic = f"{self.topic}.{door.port}"
            roundTrip(Door(self.broker.port, "SCRAM-SHA-256").settings(), topic)
            for code, outcome in self.changes(door, topic):
                error = outcome.exception(PATIENCE_SECONDS)
                if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    assert error is not None
                    self.assertEqual(error.args[0].code(), KafkaError.GROUP_ID_NOT_FOUND)
                else:
                    self.assertIs(error, None)

    def errors(self, door: Door, isEnough: Callable[[], bool]) -> set[int]:
        """
        Let a producer try to connect until C{isEnough}.

        @return: the codes of its errors.
        """
        codes: set[int] = set()
        producer = Producer(door.arguments(error_cb=lambda error: codes.add(error.code())))

        def poll() -> bool:
            producer.poll(0.02)
            return isEnough() and bool(codes)

        until(poll)
        return codes

    def test_wrongPassword(self) -> None:
        """With a wrong password it is told so, and reconnects no faster than it is answered."""
        for mechanism in MECHANISMS:
            self.mark = self.broker.mark()
            with self.lateAnswers():
                errors = self.errors(
                    Door(self.broker.port, mechanism, password="wrong"), lambda: self.failedLogins() >= 2
                )
            self.assertIn(KafkaError._AUTHENTICATION, errors)

    def test_noCertificate(self) -> None:
        """Without a certificate it gets no further than the handshake."""
        door = Door(self.broker.certifiedPort, tls=True)
        errors = self.errors(door, lambda: "TLS failed: peer did not return a certificate" in self.log())
        self.assertTrue(errors & {KafkaError._SSL, KafkaError._TRANSPORT}, errors)

    def log(self) -> str:
        """What the broker has said during the test."""
        return self.broker.log(self.mark)


class ListenerTests(SynchronousTestCase):
    """A broker with a port for which clients log in, beside ports for which they need not."""

    def test_byPort(self) -> None:
        """The same broker serves a client without a login at one port, and at the other only after a login there."""
        users, port = self.mktemp(), freePort()

        def change(users: Users) -> None:
            users.setPassword(NAME, PASSWORD, MIN_ITERATIONS)

        changeUsers(users, change, mayCreate=True)
        broker = BrokerProcess("--listen", endpoint(port), "--auth", f"{port}=scram:{os.path.abspath(users)}")
        self.addCleanup(broker.remove)
        broker.start()
        broker.waitForLog(f"clients of tcp:{broker.port}:.* need no login, and are ANONYMOUS")
        for door in (Door(broker.port), Door(port, "SCRAM-SHA-256")):
            produceAll(door.settings(), "greetings", [Message(b"hello", partition=0)])
        stranger = RawClient(port)
        self.addCleanup(stranger.close)
        stranger.send(requestOf("Metadata", 9, topics=None))
        self.assertTrue(stranger.isClosedByPeer())
        broker.waitForLog("it sent Metadata before it had logged in")


class RawTests(SecurityTestCase):
    """Clients that speak the protocol without a library's manners."""

    def test_certificateOfStrangers(self) -> None:
        """A certificate that another authority has signed is none."""
        strangers = Path(strangersAuthority()).parent
        context = tlsContext()
        context.load_cert_chain(strangers / "client.pem", strangers / "client-key.pem")
        try:
            with RawClient(self.broker.certifiedPort, context) as client:
                client.send(requestOf("ApiVersions", 0))
                self.assertTrue(client.isClosedByPeer())
        except (ssl.SSLError, ConnectionError):
            # With TLS 1.3 the client may or may not find out by itself.
            pass
        self.broker.waitForLog("TLS failed: .*verify", self.mark)

    def test_changedPassword(self) -> None:
        """A running broker takes a new password, and no more the old one; a client that has logged in stays so."""
        self.broker.setPassword("bob", "first")
        with RawClient(self.broker.port) as before:
            self.assertEqual(before.logIn("bob", "first"), ErrorCode.none)
            self.broker.setPassword("bob", "second")
            for password, code in (("first", ErrorCode.sasl_authentication_failed), ("second", ErrorCode.none)):
                with RawClient(self.broker.port) as client:
                    self.assertEqual(client.logIn("bob", password), code)
            before.allTopics()
