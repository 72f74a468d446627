"""C{admission topics} and C{admission groups}, against a broker in a process of its own and a real consumer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, BrokerProcess

RECORDS = 10
PARTITIONS = 2


@cache
def busyBroker() -> BrokerProcess:
    """A broker with a topic of which a group has read a part."""
    broker = BrokerProcess()
    broker.start()
    servers = {"bootstrap.servers": broker.address}
    topic = NewTopic("events", PARTITIONS, config={"retention.ms": "3600000"})
    admin = AdminClient(servers)
    for future in admin.create_topics([topic, NewTopic("empty", 1)]).values():
        future.result(PATIENCE_SECONDS)
    producer = Producer(servers)
    for number in range(RECORDS):
        producer.produce("events", b"x" * 100, partition=number % PARTITIONS)
    producer.flush(PATIENCE_SECONDS)
    consumer = Consumer(
        {**servers, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["events"])
    message = None
    while message is None or message.error():
        message = consumer.poll(PATIENCE_SECONDS)
    consumer.commit(message, asynchronous=False)
    consumer.close()
    return broker


class LogCommandTestCase(SynchronousTestCase):
    """A test that runs C{admission}, told by its environment where the broker is."""

    def run_(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """The exit status, what is written and what is complained about."""
        done = subprocess.run(
            [sys.executable, "-m", "admission", *words],
            env={**ENVIRONMENT, "ADMISSION_BROKER": busyBroker().address, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return done.returncode, done.stdout, done.stderr

    def succeed(self, *words: str) -> str:
        status, output, complaint = self.run_(*words)
        self.assertEqual((status, complaint), (0, ""))
        return output

    def fails(self, *words: str, **environment: str) -> str:
        """What is complained about, in one line."""
        status, output, complaint = self.run_(*words, **environment)
        self.assertEqual((status > 0, output, complaint.count("\n")), (True, "", 1), complaint)
        return complaint


class TopicsTests(LogCommandTestCase):
    """C{admission topics}."""

    def test_list(self) -> None:
        """All topics are listed, for people and for programs."""
        lines = [line.split() for line in self.succeed("topics", "list").splitlines()]
        self.assertEqual([line[:2] for line in lines], [["Topic", "Partitions"], ["empty", "1"], ["events", "2"]])
        empty, events = json.loads(self.succeed("topics", "list", "--json"))["topics"]
        self.assertEqual((empty["topic"], empty["partitionCount"], empty["sizeBytes"]), ("empty", 1, 0))
        self.assertGreater(events["sizeBytes"], RECORDS * 100)

    def test_notTold(self) -> None:
        """Where the broker does not tell a user how large topics are, a line below the table says why."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        (directory / "users").write_text("alice:sesame\nroot:secret")
        (directory / "password").write_text("sesame")
        broker = BrokerProcess("--auth", f"file:{directory / 'users'}", "--set", "super.users=User:root")
        self.addCleanup(broker.remove)
        broker.start()
        login = ("--login", "alice", "--sasl-mechanism", "PLAIN", "--password-file", str(directory / "password"))
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        admin = AdminClient(
            {"bootstrap.servers": broker.address, **security, "sasl.username": "root", "sasl.password": "secret"}
        )
        admin.create_topics([NewTopic("events", 1)])["events"].result(PATIENCE_SECONDS)
        why = "The size ? is not known: the broker does not tell this user: CLUSTER_AUTHORIZATION_FAILED; log in as"
        for words in (("topics", "list"), ("topics", "describe", "events")):
            status, output, complaint = self.run_(*words, *login, ADMISSION_BROKER=broker.address)
            self.assertEqual((status, complaint), (0, ""))
            self.assertIn(f"\n\n{why}", output)

    def test_describe(self) -> None:
        """One topic is described with its settings and partitions."""
        head, _, _, *rows = self.succeed("topics", "describe", "events").splitlines()
        self.assertRegex(head, r"^topic events, id [0-9a-f-]{36}; settings: retention.ms=3600000$")
        self.assertEqual([row.split()[:5] for row in rows], [["0", "1", "0", "5", "5"], ["1", "1", "0", "5", "5"]])
        described = json.loads(self.succeed("topics", "describe", "events", "--json"))
        self.assertEqual(described["configs"], {"retention.ms": "3600000"})
        self.assertEqual([each["endOffset"] for each in described["partitions"]], [5, 5])

    def test_mistakes(self) -> None:
        """What is not there, or not said, is told in a sentence."""
        self.assertIn("there is no topic 'nothing'", self.fails("topics", "describe", "nothing"))
        self.assertIn("cannot connect to 127.0.0.1:1", self.fails("topics", "list", ADMISSION_BROKER="127.0.0.1:1"))


class GroupsTests(LogCommandTestCase):
    """C{admission groups}."""

    def test_list(self) -> None:
        """Groups are listed with their lag, in the partitions for which they have committed."""
        title, *groups = [line.split() for line in self.succeed("groups", "list").splitlines()]
        self.assertEqual(title, ["Group", "State", "Members", "Lag"])
        self.assertIn(["billing", "Empty", "0", "4"], groups)

    def test_lag(self) -> None:
        """The lag is told by partition and in all."""
        told = json.loads(self.succeed("groups", "lag", "billing", "--json"))
        (partition,) = told["partitions"]
        self.assertEqual((partition["committedOffset"], partition["endOffset"], partition["lagRecords"]), (1, 5, 4))
        self.assertEqual(told["lagRecords"], 4)
        self.assertIn("lag in all: 4 records", self.succeed("groups", "lag", "billing"))

    def test_describe(self) -> None:
        """Members are told with what they are assigned."""
        broker = busyBroker()
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reading", "client.id": "reader"})
        self.addCleanup(consumer.close)
        consumer.subscribe(["events"])
        while not consumer.assignment():
            consumer.poll(0.1)
        output = self.succeed("groups", "describe", "reading")
        self.assertIn("group reading: Stable, range, 1 member\n", output)
        self.assertRegex(output, r"reader +127.0.0.1 +reader-[0-9a-f-]+ +events-0 events-1\n")
        self.assertIn("group reading has committed no offset", output)

    def test_mistakes(self) -> None:
        """A group that is not there is told in a sentence."""
        for command in ("describe", "lag"):
            complaint = self.fails("groups", command, "nobody" + os.urandom(2).hex())
            self.assertIn("admission groups list shows which there are", complaint)
