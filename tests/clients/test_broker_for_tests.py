"""The broker that L{admission.kafka.testing} offers to the tests of others, with a client as they have one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka import KafkaProducer
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.testing import BrokerProcess, ServerFailed, brokerprocess
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, until

MAKING = """
import sys, time
from admission.kafka.testing import BrokerProcess
broker = BrokerProcess()
broker.start()
print(broker.process.pid, broker._directory, flush=True)
time.sleep(600)
"""

FIXTURE_TESTS = """
addresses = []

def test_first(kafka_broker):
    addresses.append(kafka_broker.address)

def test_second(kafka_broker):
    assert addresses == [kafka_broker.address]
    assert kafka_broker.sensors()["Connections"] == 0
"""


@cache
def sharedBroker() -> BrokerProcess:
    """A running one for all tests that leave it as it was."""
    broker = BrokerProcess()
    broker.start()
    return broker


class OverloadTests(SynchronousTestCase):
    """What a client notices of a broker under load."""

    def setUp(self) -> None:
        self.broker = sharedBroker()
        self.topic = self.id()

    def producer(self) -> Any:
        """A producer whose client id is that of no other test, and that has sent a record already."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, client_id=self.topic)
        self.addCleanup(producer.close)
        producer.send(self.topic, b"first").get(PATIENCE_SECONDS)
        return producer

    def throttleMs(self, producer: Any) -> float:
        """The longest delay that a producer was told of."""
        delay: float = producer.metrics()["producer-metrics"]["throttle-time-max"]
        return delay

    def test_throttled(self) -> None:
        """A client that takes more than its limit allows in a second is told to wait, and no other client is."""
        producer = self.producer()
        with self.broker.throttled("payments", producer_byte_rate=10_000):
            producer.send(self.topic, bytes(15_000)).get(PATIENCE_SECONDS)
        self.assertEqual(self.throttleMs(producer), 0)
        with self.broker.throttled(self.topic, producer_byte_rate=10_000):
            producer.send(self.topic, bytes(15_000)).get(PATIENCE_SECONDS)
        # 500, less what the bucket has gained until the answer is made.
        self.assertGreater(self.throttleMs(producer), 0)

    def test_nested(self) -> None:
        """Once a block within another one is over, the limit of the outer one holds again."""
        producer = self.producer()
        with self.broker.throttled(self.topic, producer_byte_rate=10_000):
            with self.broker.throttled(self.topic, producer_byte_rate=1e9):
                producer.send(self.topic, bytes(15_000)).get(PATIENCE_SECONDS)
            self.assertEqual(self.throttleMs(producer), 0)
            producer.send(self.topic, bytes(15_000)).get(PATIENCE_SECONDS)
        self.assertGreater(self.throttleMs(producer), 0)

    def test_lifted(self) -> None:
        """Once the block is over, the limit is."""
        with self.broker.throttled(producer_byte_rate=10_000):
            pass
        producer = self.producer()
        producer.send(self.topic, bytes(15_000)).get(PATIENCE_SECONDS)
        self.assertEqual(self.throttleMs(producer), 0)

    def test_noSuchLimit(self) -> None:
        """A limit that no policy knows, or none at all, is a mistake of the test."""
        for limits, words in (({"records_a_day": 1.0}, "records_a_day"), ({}, "say which limits")):
            with self.assertRaisesRegex(ValueError, words), self.broker.throttled("reports", **limits):
                self.fail("it was accepted")
        anything: Any = "10k"
        with (
            self.assertRaisesRegex(TypeError, "producer_byte_rate='10k'"),
            self.broker.throttled(producer_byte_rate=anything),
        ):
            self.fail("it was accepted")

    def test_fullPool(self) -> None:
        """While the pool is full, a request waits however small it is, and then it is served."""
        producer = self.producer()
        with self.broker.fullPool():
            sent = producer.send(self.topic, b"second")
            until(lambda: self.broker.sensors()["ConnectionsWaitingForMemory"])
            self.assertFalse(sent.is_done)
        self.assertEqual(sent.get(PATIENCE_SECONDS).offset, 1)

    def test_down(self) -> None:
        """A broker that was killed comes back at its port with its records, and clients go on."""
        producer = self.producer()
        pid = self.broker.process.pid
        with self.broker.down():
            self.assertFalse(self.broker.isRunning())
            with self.assertRaisesRegex(ServerFailed, "^the broker is down: start it first$"):
                self.broker.sensors()
            sent = producer.send(self.topic, b"second")
        self.assertNotEqual(self.broker.process.pid, pid)
        self.assertEqual(sent.get(PATIENCE_SECONDS).offset, 1)


class ProcessTests(SynchronousTestCase):
    """How such a broker begins and ends."""

    def test_mistake(self) -> None:
        """A broker that cannot start says why, in its log that is raised, and leaves nothing."""
        for option, words in (
            ("--set=no.such.setting=1", "no.such.setting"),
            (f"--export=spark:{__file__}", "--export says where to"),
        ):
            broker = BrokerProcess(option)
            with self.assertRaisesRegex(ServerFailed, f"broker has ended with status 1:\n.*{words}") as raised:
                broker.__enter__()
            self.assertNotIn("Traceback", str(raised.exception))
            self.assertFalse(os.path.exists(broker._directory))

    def test_ports(self) -> None:
        """Where another port may be any, it is a free one, and the same after a restart."""
        with BrokerProcess("--listen", "tcp:0", "--listen=tcp:0:interface=127.0.0.1") as broker:
            self.assertEqual((len(set(broker.addresses)), broker.addresses[0]), (3, broker.address))
            with broker.down():
                pass
            for each in broker.addresses:
                producer = KafkaProducer(bootstrap_servers=each)
                producer.send("ports", b"record").get(PATIENCE_SECONDS)
                producer.close()

    def test_missingFile(self) -> None:
        """It is said where it was looked for."""
        with self.assertRaisesRegex(ServerFailed, f"'nokey.pem' from {os.getcwd()}; write an endpoint"):
            BrokerProcess("--listen", "ssl:0:privateKey=nokey.pem:certKey=cert.pem").__enter__()

    def test_unbounded(self) -> None:
        """A pool without a bound cannot be full, and what is asked after that is answered."""
        with BrokerProcess("--pool", "unbounded") as broker:
            with self.assertRaisesRegex(ValueError, "no bound"), broker.fullPool():
                self.fail("it was full")
            self.assertEqual(broker.sensors()["Connections"], 0)

    def test_stopped(self) -> None:
        """It can be stopped in good order and started again; it is started once at a time."""
        with BrokerProcess() as broker:
            self.assertRaises(RuntimeError, broker.start)
            broker.stop()
            self.assertIn("stopped: the log", broker.log())
            directory = broker._directory
            self.assertTrue(os.path.exists(directory))
            broker.start()
            self.assertEqual(broker.sensors()["Connections"], 0)
        self.assertFalse(os.path.exists(directory))

    def test_missingExtra(self) -> None:
        """Without the extra it says in a sentence what to install, and makes nothing."""
        with patch.dict(brokerprocess.EXTRAS, kafka=("not_there",)):
            error = self.assertRaises(ImportError, BrokerProcess)
        self.assertEqual(str(error), "a broker needs not_there: pip install 'admission[kafka]'")

    def test_killed(self) -> None:
        """When the process that has made it is killed, the broker ends, and its data are removed."""
        maker = subprocess.Popen([sys.executable, "-c", MAKING], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        with maker, maker.stdout:  # type: ignore[union-attr]
            pid, directory = maker.stdout.readline().split()  # type: ignore[union-attr]
            os.kill(int(pid), 0)
            maker.send_signal(signal.SIGKILL)
        until(lambda: not isAlive(int(pid)))
        self.assertFalse(os.path.exists(directory))


def isAlive(pid: int) -> bool:
    """Whether a process lives; one that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class FixtureTests(SynchronousTestCase):
    """The plugin for pytest."""

    def test_shared(self) -> None:
        """Tests that ask for C{kafka_broker} have one for all of them."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        directory.joinpath("conftest.py").write_text('pytest_plugins = ["admission.kafka.testing.pytestplugin"]\n')
        directory.joinpath("test_fixture.py").write_text(FIXTURE_TESTS)
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_fixture.py"],
            cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        self.assertIn("2 passed", result.stdout, result.stdout + result.stderr)
