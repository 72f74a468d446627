"""Our consumer and our broker, each a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks
from twisted.internet.ssl import Certificate, optionsForClientTLS
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from admission.clock import MonotonicClock
from admission.kafka.client.clientconnection import ConnectionSettings, connect
from admission.kafka.client.consumer import Consumer, makeConsumer
from admission.kafka.client.consumersettings import consumerSettings
from admission.kafka.client.errors import AuthenticationFailed
from admission.kafka.client.sasl import MECHANISMS, Credentials
from admission.kafka.client.subscriptionstate import TopicPartition
from tests.kit.brokerfixture import batchOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, BrokerProcess, certificates, sharedBroker
from tests.kit.rawclient import RawClient

PARTITIONS = 4
BROKER = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "group.min.session.timeout.ms=100",
    "--set", f"num.partitions={PARTITIONS}",
)  # fmt: skip


class BrokerTestCase(TestCase):
    """A broker whose groups do not wait for more members, and a topic of one test's own."""

    timeout = PATIENCE_SECONDS

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor = reactor
        self.broker = sharedBroker(*BROKER)
        self.topic = f"topic-{self.id().rpartition('.')[2]}"
        self.places = {TopicPartition(self.topic, index) for index in range(PARTITIONS)}
        with closing(RawClient(self.broker.port)) as client:
            client.createTopic(self.topic)

    def produce(self, *values: bytes) -> None:
        """Produce each value to every partition."""
        with closing(RawClient(self.broker.port)) as client:
            for partition in range(PARTITIONS):
                errorCode, _ = client.produce(self.topic, batchOf(*values), partition=partition)
                self.assertEqual(errorCode, 0)

    def consumer(self, **properties: str) -> Consumer:
        """A consumer, which is closed when the test ends."""
        settings = {
            "bootstrap.servers": self.broker.address,
            "group.id": self.topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "100",
            "retry.backoff.ms": "20",
        }
        consumer = makeConsumer(
            self.reactor,
            consumerSettings(settings | {name.replace("_", "."): text for name, text in properties.items()}),
        )
        self.addCleanup(consumer.close)
        return consumer

    def until(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Wait for what must come."""

        def look(_: object = None) -> Any:
            return None if condition() else deferLater(self.reactor, 0.02).addCallback(look)

        waiting: Deferred[None] = deferLater(self.reactor, 0).addCallback(look)
        return waiting


class LoginTests(BrokerTestCase):
    """Our client logs in to our broker, inside TLS."""

    @inlineCallbacks
    def test_everyMechanism(self) -> Generator[Deferred[Any], Any, None]:
        """By every mechanism, with the right password only."""
        users = Path(self.mktemp()).absolute()
        subprocess.run(
            [sys.executable, "-m", "admission", "users", "set", "--password-stdin", str(users), "alice"],
            input="open sesame\n",
            text=True,
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        broker = BrokerProcess("--auth", f"scram:{users}").startedFor(self)
        authority = Certificate.loadPEM(Path(certificates().authority).read_bytes())

        def login(mechanism: str, password: str) -> Deferred[Any]:
            settings = ConnectionSettings(
                tls=lambda host: optionsForClientTLS(host, trustRoot=authority),
                credentials=Credentials(mechanism, "alice", password),
            )
            return connect(self.reactor, MonotonicClock(self.reactor), "localhost", broker.tlsPort, settings)

        for mechanism in MECHANISMS:
            connection = yield login(mechanism, "open sesame")
            metadata = yield connection.request("Metadata", {"topics": []})
            self.assertEqual(len(metadata.brokers), 1)
            yield connection.close()
        ((isSuccess, result),) = yield DeferredList([login("SCRAM-SHA-256", "guess")], consumeErrors=True)
        self.assertFalse(isSuccess)
        assert isinstance(result, Failure)
        self.assertTrue(result.check(AuthenticationFailed), result)


class ExampleTests(BrokerTestCase):
    """The example does what it says."""

    def test_consumeGroup(self) -> None:
        """It prints what is in the topic, and leaves the group."""
        self.produce(b"hello")
        output = subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples" / "consume_group.py"),
                self.broker.address,
                self.topic,
                str(PARTITIONS),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=ENVIRONMENT,
            check=True,
        ).stdout
        first, *records, last = output.splitlines()
        places = " ".join(map(str, sorted(self.places)))
        self.assertEqual((first, last), (f"assigned {places}", f"revoked {places}"))
        self.assertEqual(sorted(records), [f"{index}-0  hello" for index in range(PARTITIONS)])
