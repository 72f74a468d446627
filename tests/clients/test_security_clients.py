"""Real clients log in to a broker with a password file and certificates, or fail to."""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import aiokafka.errors
import kafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from attrs import frozen
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition as ConfluentPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.scram import MIN_ITERATIONS
from admission.kafka.security.passwordfile import Users, changeUsers
from admission.kafka.wire.batches import Record, encodeBatch
from tests.kit.brokerfixture import API_KEYS, requestOf
from tests.kit.brokerprocess import (
    PATIENCE_SECONDS,
    BrokerProcess,
    certificates,
    endpoint,
    freePort,
    strangersAuthority,
    until,
)
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
        delay = f"connection.failed.authentication.delay.ms={DELAY_SECONDS * 1000:.0f}"
        superUsers = f"super.users=User:{SUPER_USER};User:{SUPER_CERTIFICATE}"
        super().__init__(
            *("--listen", certified, "--auth", f"scram:{self.passwordPath}", "--set", delay, "--set", superUsers)
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

    @property
    def protocol(self) -> str:
        """What Kafka's clients call it."""
        if self.mechanism is None:
            return "SSL" if self.tls else "PLAINTEXT"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"


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


class ConfluentTests(SecurityTestCase):
    """confluent-kafka, which is librdkafka."""

    def configuration(self, door: Door, **settings: Any) -> dict[str, Any]:
        """The settings that producers and consumers share."""
        files = certificates()
        common: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{door.port}",
            "security.protocol": door.protocol,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
            **settings,
        }
        if door.mechanism is not None:
            common |= {"sasl.mechanism": door.mechanism, "sasl.username": door.name, "sasl.password": door.password}
        if door.tls:
            common |= {"ssl.ca.location": str(files.authority)}
        if door.certificate:
            common |= {
                "ssl.certificate.location": str(files.clientCertificate),
                "ssl.key.location": str(files.clientKey),
            }
        return common

    def test_logIn(self) -> None:
        """It produces and consumes, by every mechanism, with TLS and without, and with a certificate."""
        # Each consumer waits for half a second before it begins.
        with ThreadPoolExecutor() as threads:
            tried = [threads.submit(self.roundTrip, door, f"{self.topic}.{n}") for n, door in enumerate(self.doors())]
            for each in tried:
                self.assertEqual(each.result(PATIENCE_SECONDS), [b"value"])

    def roundTrip(self, door: Door, topic: str) -> list[bytes]:
        """
        Produce a record.

        @return: the values of those that are there then.
        """
        producer = Producer(self.configuration(door))
        producer.produce(topic, b"value", partition=0)
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        values: list[bytes] = []
        with closing(Consumer(self.configuration(door, **{"group.id": "none"}))) as consumer:
            consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
            until(lambda: values.extend(self.received(consumer)) or values)
        return values

    def received(self, consumer: Consumer) -> list[bytes]:
        """What has come."""
        messages = consumer.consume(100, 0.05)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        return [message.value() for message in messages]

    def changes(self, door: Door, topic: str) -> Iterator[tuple[int, Future[Any]]]:
        """
        Change topics, and C{topic} first, and a group that does not exist.

        @return: the error for who may not do it, and the outcome, of each.
        """
        admin = AdminClient(self.configuration(door))
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
        self.roundTrip(door, self.topic)
        told: list[str] = []
        for code, outcome in self.changes(door, self.topic):
            error = self.assertRaises(KafkaException, outcome.result, PATIENCE_SECONDS).args[0]
            self.assertEqual(error.code(), code)
            told.append(error.str())
        # This client asks to delete topics and groups in versions that have no room for a reason.
        for each in told[:3]:
            self.assertIn(f"add 'User:{NAME}' to super.users of the broker", each)
        self.assertIn(b"value", self.roundTrip(door, self.topic))

    def test_superUser(self) -> None:
        """A super user may do all that, whether it has that name from a login or from a certificate."""
        login = Door(self.broker.port, "SCRAM-SHA-256", name=SUPER_USER)
        for door in (login, Door(self.broker.certifiedPort, tls=True, certificate=True)):
            topic = f"{self.topic}.{door.port}"
            self.roundTrip(Door(self.broker.port, "SCRAM-SHA-256"), topic)
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
        producer = Producer(self.configuration(door, error_cb=lambda error: codes.add(error.code())))

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

    def test_noLogin(self) -> None:
        """A client that does not log in is closed, and the log says what it wanted."""
        self.errors(Door(self.broker.port), lambda: "before it had logged in" in self.log())
        self.assertRegex(self.log(), r"it sent \w+ before it had logged in")


class KafkaPythonTests(SecurityTestCase):
    """kafka-python."""

    def configuration(self, door: Door) -> dict[str, Any]:
        """The settings that producers and consumers share."""
        files = certificates()
        common: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{door.port}",
            "security_protocol": door.protocol,
            "reconnect_backoff_ms": 10,
            "reconnect_backoff_max_ms": 50,
        }
        if door.mechanism is not None:
            common |= {
                "sasl_mechanism": door.mechanism,
                "sasl_plain_username": door.name,
                "sasl_plain_password": door.password,
            }
        if door.tls:
            common |= {"ssl_cafile": str(files.authority)}
        if door.certificate:
            common |= {"ssl_certfile": str(files.clientCertificate), "ssl_keyfile": str(files.clientKey)}
        return common

    def test_logIn(self) -> None:
        """It produces and consumes, by every mechanism, with TLS and without, and with a certificate."""
        for number, door in enumerate(self.doors()):
            with closing(KafkaProducer(**self.configuration(door))) as producer:
                producer.send(self.topic, b"%d" % number, partition=0).get(PATIENCE_SECONDS)
            with closing(KafkaConsumer(**self.configuration(door), auto_offset_reset="earliest")) as consumer:
                consumer.assign([TopicPartition(self.topic, 0)])
                values = [next(consumer).value for _ in range(number + 1)]
            self.assertEqual(values, [b"%d" % each for each in range(number + 1)])

    def test_wrongPassword(self) -> None:
        """With a wrong password it fails, once it has tried for long enough."""
        door = Door(self.broker.port, "SCRAM-SHA-256", password="wrong")
        with self.lateAnswers():
            self.assertRaises(
                kafka.errors.KafkaError, KafkaProducer, **self.configuration(door), bootstrap_timeout_ms=2500
            )

    def test_superUsers(self) -> None:
        """A client that is no super user is refused to delete a topic, and a super user may."""
        ordinary = Door(self.broker.port, "SCRAM-SHA-256")
        with closing(KafkaProducer(**self.configuration(ordinary))) as producer:
            producer.send(self.topic, b"value").get(PATIENCE_SECONDS)
        with closing(KafkaAdminClient(**self.configuration(ordinary))) as admin:
            refused = self.assertRaises(kafka.errors.TopicAuthorizationFailedError, admin.delete_topics, [self.topic])
            self.assertIn("super.users", str(refused))
        superUser = Door(self.broker.port, "SCRAM-SHA-256", name=SUPER_USER)
        with closing(KafkaAdminClient(**self.configuration(superUser))) as admin:
            admin.delete_topics([self.topic])
            self.assertNotIn(self.topic, admin.list_topics())


class AiokafkaTests(SecurityTestCase):
    """aiokafka."""

    def configuration(self, door: Door) -> dict[str, Any]:
        """The settings that producers and consumers share."""
        files = certificates()
        common: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{door.port}",
            "security_protocol": door.protocol,
            "retry_backoff_ms": 10,
        }
        if door.mechanism is not None:
            common |= {
                "sasl_mechanism": door.mechanism,
                "sasl_plain_username": door.name,
                "sasl_plain_password": door.password,
            }
        if door.tls:
            context = ssl.create_default_context(cafile=str(files.authority))
            if door.certificate:
                context.load_cert_chain(files.clientCertificate, files.clientKey)
            common |= {"ssl_context": context}
        return common

    def test_logIn(self) -> None:
        """It produces and consumes, by every mechanism, with TLS and without, and with a certificate."""

        async def roundTrip(number: int, door: Door) -> list[bytes]:
            async with AIOKafkaProducer(**self.configuration(door)) as producer:
                await producer.send_and_wait(self.topic, b"%d" % number, partition=0)
            consumer = AIOKafkaConsumer(**self.configuration(door), auto_offset_reset="earliest")
            consumer.assign([aiokafka.TopicPartition(self.topic, 0)])
            async with consumer:
                return [(await consumer.getone()).value for _ in range(number + 1)]

        for number, door in enumerate(self.doors()):
            values = asyncio.run(asyncio.wait_for(roundTrip(number, door), PATIENCE_SECONDS))
            self.assertEqual(values, [b"%d" % each for each in range(number + 1)])

    def test_wrongPassword(self) -> None:
        """With a wrong password it fails."""

        async def start(door: Door) -> None:
            producer = AIOKafkaProducer(**self.configuration(door))
            try:
                await producer.start()
            finally:
                await producer.stop()

        for mechanism in MECHANISMS:
            self.mark = self.broker.mark()
            door = Door(self.broker.port, mechanism, password="wrong")
            with self.lateAnswers():
                self.assertRaises(aiokafka.errors.KafkaError, asyncio.run, start(door))


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
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": NAME,
            "sasl_plain_password": PASSWORD,
        }
        for address, more in ((broker.address, {}), (f"127.0.0.1:{port}", login)):
            with closing(KafkaProducer(bootstrap_servers=address, **more)) as producer:
                self.assertEqual(producer.send("greetings", b"hello", partition=0).get(PATIENCE_SECONDS).partition, 0)
        stranger = RawClient(port)
        self.addCleanup(stranger.close)
        stranger.send(requestOf("Metadata", 9, topics=None))
        self.assertTrue(stranger.isClosedByPeer())
        broker.waitForLog("it sent Metadata before it had logged in")


class RawTests(SecurityTestCase):
    """Who speaks the protocol without a library's manners."""

    def connect(self, port: int | None = None, tls: ssl.SSLContext | None = None) -> RawClient:
        """A connection, closed when the test ends."""
        client = RawClient(self.broker.port if port is None else port, tls)
        self.addCleanup(client.close)
        return client

    def logIn(self, client: RawClient, name: str, password: str) -> ErrorCode:
        """
        Log in by PLAIN.

        @return: the outcome.
        """
        self.assertEqual(client.ask(requestOf("SaslHandshake", 1, mechanism="PLAIN")).error_code, ErrorCode.none)
        message = f"\0{name}\0{password}".encode()
        code: ErrorCode = client.ask(requestOf("SaslAuthenticate", 2, auth_bytes=message)).error_code
        return code

    def test_records(self) -> None:
        """Records of a stranger are refused, and were not stored."""
        stranger = self.connect()
        batch = encodeBatch([Record(value=b"evil")])
        data = [{"name": self.topic, "partition_data": [{"index": 0, "records": batch}]}]
        stranger.send(requestOf("Produce", 9, acks=1, timeout=1000, topic_data=data))
        self.assertTrue(stranger.isClosedByPeer())
        self.broker.waitForLog("it sent Produce before it had logged in", self.mark)
        friend = self.connect()
        self.assertEqual(self.logIn(friend, NAME, PASSWORD), ErrorCode.none)
        friend.createTopic(self.topic)
        self.assertEqual(friend.endOffset(self.topic), 0)

    def test_largeFrame(self) -> None:
        """A frame of 100 MiB is refused when its length has come."""
        client = self.connect()
        client.sendBytes(struct.pack(">i", 100 << 20))
        self.assertTrue(client.isClosedByPeer())
        self.broker.waitForLog("104857600 bytes was announced before a login", self.mark)

    def test_changedPassword(self) -> None:
        """A running broker takes a new password, and no more the old one; who has logged in stays so."""
        self.broker.setPassword("bob", "first")
        before = self.connect()
        self.assertEqual(self.logIn(before, "bob", "first"), ErrorCode.none)
        self.broker.setPassword("bob", "second")
        self.assertEqual(self.logIn(self.connect(), "bob", "first"), ErrorCode.sasl_authentication_failed)
        self.assertEqual(self.logIn(self.connect(), "bob", "second"), ErrorCode.none)
        before.allTopics()

    def test_certificateOfStrangers(self) -> None:
        """A certificate that another authority has signed is none."""
        strangers = Path(strangersAuthority()).parent
        context = tlsContext()
        context.load_cert_chain(strangers / "client.pem", strangers / "client-key.pem")
        try:
            client = self.connect(self.broker.certifiedPort, context)
            client.send(requestOf("ApiVersions", 0))
            self.assertTrue(client.isClosedByPeer())
        except (ssl.SSLError, ConnectionError):
            # With TLS 1.3 the client may or may not find out by itself.
            pass
        self.broker.waitForLog("TLS failed: .*verify", self.mark)

    def test_warning(self) -> None:
        """The log warns of passwords without TLS, once in its life."""
        for _ in range(3):
            self.assertEqual(self.logIn(self.connect(), NAME, PASSWORD), ErrorCode.none)
        self.broker.waitForLog("logs in by PLAIN without TLS")
        self.assertEqual(self.broker.log().count("logs in by PLAIN without TLS"), 1)
        self.assertNotIn(PASSWORD, self.broker.log())

    def test_everythingElseIsServed(self) -> None:
        """The table of what is served includes what a login takes."""
        answer = self.connect().ask(requestOf("ApiVersions", 3))
        versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self.assertEqual(versions[API_KEYS["SaslHandshake"]], (1, 1))
        self.assertEqual(versions[API_KEYS["SaslAuthenticate"]], (0, 2))
