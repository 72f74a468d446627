"""A gateway of several processes: what its clients notice of them, and what they do not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.gateway.sharedlimits import (
    AFTER_SECONDS,
    CLIENT,
    INTERVAL_SECONDS,
    LEADER,
    RATE,
    RECORD_BYTES,
    TOPIC,
    UNSENT,
    Senders,
    beyond,
    idempotent,
    measured,
    prepare,
    quotas,
    sent,
)
from tests.kit.brokerfixture import requestFrame, requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, endpoint, freePort, until
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.identitygate import assertAsRecorded, gate, readRecordings
from tests.kit.kafkacluster import KafkaCluster
from tests.kit.longform import isLongForm
from tests.kit.rawclient import fetchRequest
from tests.kit.recordingproxy import readFrame

PROCESSES = 2
IDS = 6
ENDED = -signal.SIGTERM
"""C{twistd} ends by the signal that it was told to end by."""

REQUEST = requestFrame(requestOf("ApiVersions", 0), 1)


class SeveralProcesses(GatewayProcess):
    """A gateway of several processes, with a status port."""

    def __init__(self, upstream: str, *options: str, processes: int = PROCESSES) -> None:
        self._statusPort = freePort()
        super().__init__(upstream, "--processes", str(processes), "--status", endpoint(self._statusPort), *options)

    def ask(self, page: str) -> Any:
        """What a page has in JSON, also one that says that something is wrong."""
        return json.loads(self.read(page))

    def read(self, page: str) -> str:
        """A page."""
        try:
            with urlopen(f"http://127.0.0.1:{self._statusPort}/{page}", timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()

    def isWell(self) -> bool:
        """Whether it says so."""
        with contextlib.suppress(ValueError, OSError):
            return bool(self.ask("healthz").get("status") == "ok")
        # It has no pages yet, or its port is not open.
        return False

    @property
    def reasons(self) -> list[str]:
        """Why it is not well."""
        found: list[str] = self.ask("healthz").get("reasons", [])
        return found

    @property
    def pids(self) -> list[int]:
        """The processes that serve."""
        return [each["pid"] for each in self.ask("status.json")["processes"] if each["pid"] is not None]

    def end(self, number: int, how: signal.Signals) -> None:
        """End one of the processes, and wait until another serves in its place."""
        pid = self.pids[number]
        os.kill(pid, how)
        try:
            until(lambda: pid not in self.pids and len(self.pids) == PROCESSES and not self.reasons)
        except AssertionError as error:
            raise AssertionError(
                f"{self.pids}, of which {pid} was ended: {self.reasons}\n{self.log()[-8000:]}"
            ) from error

    def _waitUntilServing(self, begin: int) -> None:
        super()._waitUntilServing(begin)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.isWell():
            if time.monotonic() > deadline or not self.isRunning():
                raise AssertionError(f"it does not serve: {self.log(begin)}")
            time.sleep(0.1)


class ProcessesTestCase(SynchronousTestCase):
    """A cluster, before which each test has a gateway of its own."""

    cluster: KafkaCluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = KafkaCluster()
        cls.cluster.start()
        prepare(cls.cluster)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.cluster.remove()

    def gateway(self, *options: str, **settings: Any) -> SeveralProcesses:
        """One that runs, and says nothing that it should not."""
        gateway = SeveralProcesses(self.cluster.bootstrap, *options, **settings)
        self.addCleanup(lambda: self.assertEqual(gateway.complaints(), []))
        return gateway.startedFor(self)


class LimitTests(ProcessesTestCase):
    """One limit holds for all processes together."""

    def measure(self, *gateways: SeveralProcesses, connections: int, seconds: int) -> list[float]:
        """What a client gets each second that has some connections to each gateway."""
        senders = [Senders(each.address, connections) for each in gateways]
        try:
            return measured(senders, seconds)
        finally:
            for each in senders:
                each.stop()

    def assertLimited(self, seconds: list[float], servers: int, connections: int) -> None:
        """
        Check that a client has had all of its limit, and no more.

        A busy machine lets through less; it does not let through more.
        """
        rest = seconds[AFTER_SECONDS:]
        self.assertGreater(sum(rest) / len(rest), 0.8, seconds)
        inProgress = connections * UNSENT * RECORD_BYTES / RATE
        self.assertLess(beyond(seconds), 1.0 + (servers - 1) * 2 * INTERVAL_SECONDS + inProgress, seconds)

    def test_limit(self) -> None:
        """A client has all of its limit, with one connection or with many."""
        gateway = self.gateway("--quota", f"client-bytes:received={RATE}")
        for connections in (1, 2, 4, 8) if isLongForm() else (1, 3):
            self.assertLimited(self.measure(gateway, connections=connections, seconds=10), PROCESSES, connections)
        sharing = gateway.ask("status.json")["sharing"]
        self.assertEqual((sharing["servers"], sharing["isLive"], sharing["fraction"]), (PROCESSES, True, 1.0))

    def test_machines(self) -> None:
        """Two gateways of two processes each have one limit through a topic."""
        options = "--quota", f"client-bytes:received={RATE}", "--shared-limits", "topic", "--gateways", "2"
        first, second = (self.gateway(*options) for _ in range(2))
        until(lambda: all(each.ask("status.json")["sharing"]["servers"] == 4 for each in (first, second)))
        self.assertLimited(self.measure(first, second, connections=2, seconds=12), 2 * PROCESSES, 4)

    def test_setAtRunTime(self) -> None:
        """
        A limit that is set at one process holds at all, at one that begins later, and after a restart with any number
        of them.
        """
        gateway = self.gateway("--set", "super.users=User:ANONYMOUS")

        def shows(words: str) -> bool:
            # Each command may come to another process.
            return all(words in quotas("describe", gateway) for _ in range(4))

        quotas("set", gateway, "--client-id", "bob", "producer_byte_rate=123456")
        until(lambda: shows("producer_byte_rate=123456"))
        gateway.end(0, signal.SIGKILL)
        self.assertTrue(shows("123456"))
        explained = gateway.ask("explain?clientId=bob")["limits"]
        self.assertIn(123456.0, [each["limit"] for each in explained])
        self.assertEqual(gateway.stop(), ENDED)
        gateway.start()
        self.assertTrue(shows("123456"))
        quotas("remove", gateway, "--client-id", "bob", "producer_byte_rate")
        until(lambda: not any("123456" in quotas("describe", gateway) for _ in range(4)))

    def test_producers(self) -> None:
        """Producers that one process has let in are known to all, also after a restart, and one too many is refused."""
        gateway = self.gateway("--quota", f"producer-ids:rate={IDS}:window=1h")
        producers = [idempotent(gateway) for _ in range(IDS)]
        self.assertEqual(sent(*producers), [True] * IDS)
        for _ in range(PROCESSES):
            self.assertEqual(sent(idempotent(gateway, seconds=2.0)), [False])
        for number in range(PROCESSES):
            gateway.end(number, signal.SIGKILL)
        self.assertEqual(sent(*producers), [True] * IDS)
        gateway.stop()
        gateway.start()
        self.assertEqual(sent(*producers), [True] * IDS)

    def test_producersWithoutLimit(self) -> None:
        """Producers are known to all also where nobody has a limit yet; the first one makes none of them new."""
        gateway = self.gateway("--set", "super.users=User:ANONYMOUS")
        producers = [idempotent(gateway) for _ in range(IDS)]
        self.assertEqual(sent(*producers), [True] * IDS)
        quotas("set", gateway, "--user-default", "producer_ids_rate=1")
        until(lambda: all("producer_ids_rate" in quotas("describe", gateway) for _ in range(4)))
        self.assertEqual(sent(*producers), [True] * IDS)

    def test_recording(self) -> None:
        """What processes record replays exactly, with what they have told each other and limits that were changed."""
        directory = tempfile.mkdtemp(prefix="admission-recording-")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        gateway = self.gateway(
            *("--set", "super.users=User:ANONYMOUS", "--quota", f"client-bytes:received={RATE}"),
            *("--quota", f"producer-ids:rate={IDS}:window=1h", "--export", f"spark:{directory}"),
        )
        senders = Senders(gateway.address, 4)
        try:
            for limit in (f"producer_byte_rate={RATE * 3 // 10}", f"producer_byte_rate={2 * RATE}"):
                time.sleep(2)
                quotas("set", gateway, "--client-id", CLIENT, limit)
            time.sleep(2)
        finally:
            senders.stop()
        sent(*(idempotent(gateway, seconds=2.0) for _ in range(IDS + 2)))
        gateway.stop()
        recordings = readRecordings(directory)
        self.assertEqual({row["broker_id"] for each in recordings for row in each.rows}, {"1-1", "1-2"})
        for recording in recordings:
            assertAsRecorded(self, gate(recording))


class RestartTests(ProcessesTestCase):
    """Processes end and begin again, and the gateway goes on."""

    def test_killed(self) -> None:
        """
        A process that is killed begins again, with a sentence and a growing delay; its clients go to the others, and
        no record is lost or twice.
        """
        topic = "processes.killed"
        self.cluster.createTopic(topic)
        gateway = self.gateway()
        acknowledged: list[bytes] = []
        isOver = threading.Event()

        def produce(seed: int) -> None:
            producer = idempotent(gateway, seconds=60.0, **{"linger.ms": 5})
            number = 0

            def delivered(error: object, message: Any) -> None:
                if error is None:
                    acknowledged.append(message.value())

            while not isOver.is_set():
                producer.produce(topic, b"%d.%d" % (seed, number), on_delivery=delivered)
                number += 1
                producer.poll(0.005)
            producer.flush(PATIENCE_SECONDS)

        threads = [threading.Thread(target=produce, args=(seed,), daemon=True) for seed in range(3)]
        for thread in threads:
            thread.start()
        begin = gateway.mark()
        for number in (0, 1, 0):
            time.sleep(0.5)
            gateway.end(number, signal.SIGKILL)
        isOver.set()
        for thread in threads:
            thread.join(2 * PATIENCE_SECONDS)
        gateway.waitForLog(r"process 1 was ended by SIGKILL; it begins again in 500ms|in 0\.5s", begin)
        gateway.waitForLog(r"process 1 was ended by SIGKILL; it begins again in 1s", begin)
        stored = Counter(self.cluster.values(topic))
        self.assertGreater(len(acknowledged), 0)
        self.assertEqual([value for value in acknowledged if stored[value] != 1], [])
        self.assertEqual([value for value, count in stored.items() if count > 1], [])
        restarts = [each["restarts"] for each in gateway.ask("status.json")["processes"]]
        self.assertEqual(restarts, [2, 1])
        self.assertIn('admission_process_restarts_total{process="1"} 2.0', gateway.read("metrics"))

    def test_rollingRestart(self) -> None:
        """
        Processes that are told to end, one after the other, are replaced, and of connections that come meanwhile none
        is refused or reset before it is answered.
        """
        gateway = self.gateway()
        failures: list[str] = []
        counts = [0, 0]
        isOver = threading.Event()

        def connect(number: int) -> None:
            while not isOver.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_SECONDS) as connection:
                        connection.sendall(REQUEST)
                        if readFrame(connection.makefile("rb")) is None:
                            failures.append("closed")
                except OSError as error:
                    failures.append(repr(error))
                counts[number] += 1

        threads = [threading.Thread(target=connect, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(3 if isLongForm() else 1):
            for number in range(PROCESSES):
                gateway.end(number, signal.SIGTERM)
        isOver.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        self.assertGreater(min(counts), 50)
        # One that a process has accepted and not yet read when it is told to end is closed: Kafka's clients connect
        # again.  What waits in the kernel's queue is not.
        self.assertLess(len(failures), 0.02 * sum(counts), f"{failures} of {sum(counts)}")
        self.assertFalse(any("refused" in each.lower() for each in failures), failures)
        gateway.waitForLog("process 1 has ended as it was told to, and begins again")

    def test_frozen(self) -> None:
        """A process that is frozen is named, the pages answer without it, and the others serve."""
        gateway = self.gateway("--quota", f"client-bytes:received={RATE}")
        pid = gateway.pids[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: any("process 2" in each for each in gateway.reasons))
            self.assertIn('process="1"', gateway.read("metrics"))
            with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_SECONDS) as connection:
                connection.sendall(REQUEST)
                self.assertIsNotNone(readFrame(connection.makefile("rb")))
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not gateway.reasons)


class EndTests(ProcessesTestCase):
    """The gateway ends as a whole."""

    def assertGone(self, gateway: SeveralProcesses, pids: list[int]) -> None:
        """Check that nothing of it is left, so that it can begin again at the same ports."""
        until(lambda: not any(map(isRunning, pids)))
        gateway.start()
        self.assertEqual(gateway.stop(), ENDED)

    def test_stop(self) -> None:
        """SIGTERM ends all processes after their last responses."""
        gateway = self.gateway()
        pids = gateway.pids
        self.assertEqual(gateway.stop(), ENDED)
        self.assertFalse(any(map(isRunning, pids)))
        gateway.waitForLog("stopped: all processes have ended")
        self.assertGone(gateway, pids)

    def test_hurried(self) -> None:
        """A second SIGTERM cuts off clients that keep it waiting."""
        gateway = self.gateway("--set", "close.grace.timeout=5m")
        pids = gateway.pids
        # A node has it, which waits for a record that never comes.
        awaited = requestFrame(fetchRequest(TOPIC, 0, waitMs=600_000), 1)
        host, _, port = gateway.nodeAddress(LEADER).partition(":")
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
            connection.sendall(awaited)
            until(lambda: sum(each["unanswered"] for each in gateway.ask("status.json")["nodes"]) == 1)
            gateway.process.send_signal(signal.SIGTERM)
            gateway.waitForLog("process [12] has|process [12]: stopped")
            self.assertRaises(subprocess.TimeoutExpired, gateway.process.wait, 1.0)
            gateway.process.send_signal(signal.SIGTERM)
            gateway.waitForLog("GatewayProcesses.* asked to stop again")
            self.assertEqual(gateway.process.wait(PATIENCE_SECONDS), ENDED)
        self.assertFalse(any(map(isRunning, pids)))

    def test_parentKilled(self) -> None:
        """Without the parent, which keeps what is kept, the others end, and leave the ports free."""
        gateway = self.gateway()
        pids = gateway.pids
        gateway.kill()
        self.assertGone(gateway, pids)

    def test_mistakes(self) -> None:
        """What cannot be is refused in one sentence, before anything begins."""
        taken = freePort(count=20)
        with socket.create_server(("127.0.0.1", taken + 2)):
            for options, words in (
                (["--share", "1/2"], "--share and --processes"),
                (["--processes", "0"], "--processes 0: write how many"),
                (["--pool", "bounded:6KiB"], "in 2 processes"),
                (["--listen", endpoint(taken)], f"cannot listen on tcp:{taken + 2}"),
            ):
                command = [*GatewayProcess.command, "admission-gateway", "--processes", "2"]
                done = subprocess.run(
                    [*command, "--upstream", self.cluster.bootstrap, "--data", self.mktemp(), *options],
                    check=False,
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE_SECONDS,
                )
                said = done.stdout + done.stderr
                self.assertNotEqual(done.returncode, 0, options)
                self.assertIn(words, said)
                self.assertNotIn("Traceback", said)

    def test_cannotStart(self) -> None:
        """What only a process finds out ends the gateway, with the sentence."""
        notDirectory = os.path.abspath(self.mktemp())
        with open(notDirectory, "w"):
            pass
        gateway = SeveralProcesses(self.cluster.bootstrap, "--export", f"spark:{notDirectory}")
        self.addCleanup(gateway.remove)
        self.assertRaises((AssertionError, OSError), gateway.start)
        gateway.waitForLog("process [12] cannot start: admission: cannot record to")
        until(lambda: not gateway.isRunning())
        self.assertEqual(gateway.process.returncode, 1)
        self.assertNotIn("Traceback", gateway.log())


def isRunning(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
