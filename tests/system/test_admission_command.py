"""Tests for the command C{admission} and the status port, against a broker in a process of its own."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, encodeBatch
from tests.kit.brokerprocess import (
    ENVIRONMENT,
    PATIENCE_SECONDS,
    BrokerProcess,
    ObservedBroker,
    certificates,
    freePort,
    strangersAuthority,
)
from tests.kit.rawclient import RawClient

_TRACEBACK = "Traceback (most recent call last)"
_PROCESSES = 3


@cache
def observedBroker() -> ObservedBroker:
    """A broker for all tests here, with a limit that it was started with."""
    broker = ObservedBroker("--quota", "client-bytes:produce=1k", "--quota", "client-bytes:fetch=1k:shadow=yes")
    broker.start()
    return broker


class AdmissionCommandTestCase(SynchronousTestCase):
    """
    A test that runs C{admission}.

    @cvar environment: what its environment has besides.
    """

    environment: Mapping[str, str] = {}

    def setUp(self) -> None:
        self.broker = observedBroker()
        self.mark = self.broker.mark()

    def tearDown(self) -> None:
        """The broker has nothing to complain about."""
        self.assertEqual(self.broker.complaints(self.mark), [])

    def run_(self, line: str, typed: str = "") -> tuple[int, str, str]:
        """
        Run C{admission}.

        @param typed: its standard input.
        @return: its exit status, what it wrote and what it complained about.
        """
        result = subprocess.run(
            [sys.executable, "-m", "admission", *shlex.split(line)],
            # Warm already: kio imports hypothesis where that is installed, which takes seconds in a new directory.
            cwd=Path(self.broker.dataPath).parent,
            env={**ENVIRONMENT, **self.environment},
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return result.returncode, result.stdout, result.stderr

    def succeed(self, line: str, typed: str = "") -> str:
        """Run C{admission}, which does what it was told and does not comment on it."""
        status, output, complaint = self.run_(line, typed)
        self.assertEqual((status, complaint), (0, ""), line)
        return output

    def assertFails(self, lines: Sequence[tuple[str, str]]) -> None:
        """Each command line fails with status 1 and one sentence, in which these words are."""
        with ThreadPoolExecutor(_PROCESSES) as threads:
            results = list(threads.map(lambda each: self.run_(each[0]), lines))
        for (line, words), (status, output, complaint) in zip(lines, results, strict=True):
            self.assertEqual((status, output), (1, ""), f"{line}: {complaint}")
            self.assertNotIn(_TRACEBACK, complaint)
            self.assertEqual(complaint.count("\n"), 1, complaint)
            self.assertIn(words, complaint, line)


class EncodingTests(AdmissionCommandTestCase):
    """A terminal that cannot show the name of one client shows all that is known of others."""

    environment = {"PYTHONIOENCODING": "latin-1:strict"}

    def test_commands(self) -> None:
        """Its name is escaped, in output and in complaints."""
        quotas, status = f"--broker {self.broker.address}", f"--status {self.broker.status}"
        self.succeed(f"quotas set {quotas} --client-id '10 \u20ac' consumer_byte_rate=1M")
        for line in (f"quotas describe {quotas}", f"explain --client-id '10 \u20ac' {status}"):
            self.assertIn("10 \\u20ac", self.succeed(line))
        self.succeed(f"quotas remove {quotas} --client-id '10 \u20ac'")
        self.assertFails([(f"quotas set {quotas} --client-id c \u20ac=1", "\\u20ac")])


class QuotasTests(AdmissionCommandTestCase):
    """C{admission quotas} sees and changes limits of a broker that runs."""

    def quotas(self, line: str) -> str:
        command, _, rest = line.partition(" ")
        return self.succeed(f"quotas {command} --broker {self.broker.address} {rest}")

    def test_setAndRemove(self) -> None:
        """
        A limit that is set is in force at once and can be seen; once removed it is gone.  A dry run
        changes nothing.
        """
        client = "--user alice --client-id reports"
        self.assertIn("nothing was changed", self.quotas(f"set --dry-run {client} consumer_byte_rate=64KiB"))
        output = self.quotas(f"set {client} producer_byte_rate=4M")
        self.assertEqual(output.splitlines()[1:], [f"{client}  producer_byte_rate=4M"])
        self.quotas(f"set {client} consumer_byte_rate=64KiB")
        self.assertEqual(
            json.loads(self.quotas("describe --client-id reports --json")),
            {
                "quotas": [
                    {
                        "user": "alice",
                        "clientId": "reports",
                        "ip": None,
                        "limits": {"consumer_byte_rate": 65536.0, "producer_byte_rate": 4e6},
                    }
                ]
            },
        )
        output = self.quotas(f"remove {client} producer_byte_rate")
        self.assertEqual(output.splitlines()[1:], [f"{client}  consumer_byte_rate=64KiB"])
        self.assertEqual(self.quotas(f"remove {client}"), f"no limits are set for {client}\n")

    def test_tls(self) -> None:
        """The broker can be asked over TLS, if its certificate is trusted."""
        files = certificates()
        self.assertIn("--client-id-default", self.succeed(self.tls(f"--tls {files.authority}")))

    def tls(self, options: str) -> str:
        """A command line that speaks to the broker's TLS port."""
        return f"quotas describe --broker localhost:{self.broker.tlsPort} {options}"

    def test_fails(self) -> None:
        """What cannot be is told in a sentence with what would help."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.assertFails(
                [
                    (f"quotas describe --broker 127.0.0.1:{freePort()}", "is a broker running there?"),
                    (
                        f"quotas describe --timeout 1s --broker 127.0.0.1:{silent.getsockname()[1]}",
                        "was not ready within 1 seconds; is that a broker?",
                    ),
                    (f"quotas set --broker {self.broker.address} --user a colour=1", "the broker refuses: "),
                    (self.tls(""), "if it wants TLS, give --tls"),
                    (self.tls(f"--tls {strangersAuthority()}"), "failed: certificate verify failed; --tls needs"),
                ]
            )


class ExplainTests(AdmissionCommandTestCase):
    """C{admission explain} and the status port tell how clients stand."""

    def test_throttled(self) -> None:
        """
        A client that has sent more than it may is told to be throttled, by which policy and until when, also when it
        has left.
        """
        with RawClient(self.broker.port) as raw:
            raw.createTopic("explained")
            raw.produce("explained", encodeBatch([Record(value=b"x" * 200_000)]))
        output = self.succeed(f"explain --client-id test --status {self.broker.status}")
        verdict, _, _, *rows = output.splitlines()
        self.assertRegex(
            verdict,
            r"^client id 'test' of user 'ANONYMOUS' is throttled by client-bytes \(producer_byte_rate\), for "
            r"[0-9a-z. ]+, until [0-9-]+ [0-9:]+$",
        )
        self.assertIn("producer_byte_rate=1k  --client-id-default", rows[0])
        self.assertIn("(shadow)", rows[1])
        until = time.monotonic() + PATIENCE_SECONDS
        over = "clients over a quota now or in the last ten seconds: 1"
        while over not in (seen := self.succeed(f"top --once --status {self.broker.status}")):
            # What the page says is kept for a second.
            self.assertLess(time.monotonic(), until, seen)
        self.assertRegex(seen, r"test .*producer_byte_rate")
        self.assertIn(
            "'nobody' of user 'ANONYMOUS' is not known",
            self.succeed(f"explain -c nobody --status {self.broker.status}"),
        )
        document = json.loads(self.succeed(f"explain -c modest --status {self.broker.status} --json"))
        self.assertEqual({each["delaySeconds"] for each in document["limits"]}, {0.0})

    def test_fails(self) -> None:
        """Where there is no status port the command says how to have one."""
        self.assertFails(
            [
                (
                    f"explain -c a --status http://127.0.0.1:{freePort()}",
                    "does not answer (Connection refused): start a broker or gateway with --status",
                ),
                (f"explain -c a --status http://{self.broker.address}", "does not answer ("),
                (f"explain -c a --status {self.broker.status}/explain", "answers 404: there is no such page"),
                (f"explain --ip nowhere --status {self.broker.status}", "answers 400: 'nowhere' is not an address"),
            ]
        )


class LoginTests(AdmissionCommandTestCase):
    """C{admission} logs in where it must."""

    def test_login(self) -> None:
        """
        A super user that C{admission users} has added can change limits, with the right password;
        nobody else can.
        """
        directory = Path(self.broker.dataPath).parent
        users, right, wrong = (directory / name for name in ("users", "right", "wrong"))
        right.write_text("open sesame\n")
        wrong.write_text("sesame\n")
        for user in ("alice", "bob"):
            self.succeed(f"users set --password-stdin --iterations 4096 {users} {user}", "open sesame\n")
        broker = BrokerProcess("--auth", f"scram:{users}", "--set", "super.users=User:alice").startedFor(self)
        place = f"quotas set --broker {broker.address}"
        self.succeed(f"{place} --login alice --password-file {right} --user bob producer_byte_rate=1M")
        broker.waitForLog("alice at 127.0.0.1 changed producer_byte_rate of user 'bob'")
        self.assertFails(
            [
                (
                    f"{place} --login alice --password-file {wrong} --user bob producer_byte_rate=2M",
                    "check --login, the password and --sasl-mechanism",
                ),
                *(
                    (
                        f"{place.replace('set', change)} --login bob --password-file {right} --user bob {limit}",
                        "the broker refuses: only super users may do this, and 'bob' is none; log in as one of them, "
                        "or add 'User:bob' to super.users of the broker",
                    )
                    for change, limit in (("set", "producer_byte_rate=2M"), ("remove", "producer_byte_rate"))
                ),
                (f"{place} --user bob producer_byte_rate=2M", "if it wants to know who you are, give --login"),
            ]
        )
        described = self.succeed(f"quotas describe --broker {broker.address} --login bob --password-file {right}")
        self.assertIn("producer_byte_rate=1M", described)
        self.assertEqual(broker.complaints(), [])


class DataTests(AdmissionCommandTestCase):
    """C{admission data} looks after what a broker has."""

    def test_backup(self) -> None:
        """A broker that runs is backed up and goes on, and another goes on with what is restored."""
        broker = BrokerProcess().startedFor(self)
        directory = Path(broker.dataPath).parent
        backup, restored = directory / "backup", directory / "restored"
        batch = encodeBatch([Record(value=b"kept")])
        with RawClient(broker.port) as client:
            client.createTopic("events")
            client.produce("events", batch)
            written = self.succeed(f"data backup {broker.dataPath} {backup}")
            self.assertIn("1 topic, 1 partition, 1 record and", written)
            client.produce("events", batch)
        self.assertFails(
            [(f"data check {broker.dataPath}", f"is in use by process {broker.process.pid}: stop the broker first")]
        )
        self.succeed(f"data restore {backup} {restored}")
        self.assertIn("events-0", self.succeed(f"data check {restored}"))
        broker.stop()
        self.assertRegex(self.succeed(f"data check {broker.dataPath}"), "events-0 .* 0 to 1\n")
        self.assertEqual(broker.complaints(), [])
