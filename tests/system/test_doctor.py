"""C{admission doctor} with real ports and programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase, TestCase

from admission.commands.kafka.doctorcommand import brokerOptions, checksFor, examine, gatewayOptions, whyNotListening
from admission.commands.kafka.doctorinstallation import checkJava, checkWorkers
from admission.commands.kafka.doctormachine import Level, listeningPorts
from admission.commands.kafka.doctorservers import ServerAnswer, checkCluster
from admission.kafka.client.errors import AuthenticationFailed, Disconnected
from admission.kafka.serving.serveroptions import Listener, endpointOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, BrokerProcess, endpoint, freePort
from tests.kit.commandcases import FindingTestCase


class ProgramTests(FindingTestCase):
    """Programs that Spark needs."""

    def test_java(self) -> None:
        """Spark needs a Java that runs and is not too old; without Spark nobody does."""
        self.assertFinds(checkJava(False, {}), Level.ABSENT)
        home = Path(self.mktemp())
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        for version, level in (("17.0.2", Level.OK), ("1.8.0_372", Level.WARN)):
            java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
            java.chmod(0o755)
            self.patch(sys.modules["admission.offline.sparksession"], "find_spec", lambda name: None)
            self.assertFinds(checkJava(True, {"JAVA_HOME": str(home)}), level)
        self.assertFinds(checkJava(True, {"JAVA_HOME": "/nowhere"}), Level.WARN, "/nowhere", "jre")

    def test_workers(self) -> None:
        """Spark's workers need a Python with the data source: the one of a variable, or else the first of the path."""
        self.assertFinds(checkWorkers(False, {}), Level.ABSENT)
        self.assertFinds(
            checkWorkers(True, {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable}), Level.OK, sys.executable
        )
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        other = directory / "python3"
        other.write_text("#!/bin/sh\necho ModuleNotFoundError >&2\nexit 1\n")
        other.chmod(0o755)
        bare = {"PATH": str(directory)}
        self.assertFinds(checkWorkers(True, bare), Level.ABSENT, f"export PYSPARK_PYTHON={sys.executable}")
        for wrong in (str(other), "/nowhere/python3"):
            self.assertFinds(checkWorkers(True, {**bare, "PYSPARK_PYTHON": wrong}), Level.WARN, wrong, "export")


class ClusterTests(FindingTestCase):
    """What servers of a gateway's cluster say."""

    def test_nodes(self) -> None:
        """Each node has to have a port at the gateway."""
        self.assertFinds(checkCluster(ServerAnswer(True, [1, 2]), 0, 15, False), Level.OK, "1, 2")
        many = checkCluster(ServerAnswer(True, [*range(30)]), 0, 15, False)
        self.assertFinds(many, Level.FAIL, "16, 17, 18, 19, 20, 21, 22, 23, 24, 25 and 4 more", "--node-ids is 0-15")

    def test_silent(self) -> None:
        """One that does not answer matters less where another does; one that does may want to know who asks."""
        silent = ServerAnswer(False, error=Disconnected("k1:9092 cannot be reached"))
        self.assertFinds(checkCluster(silent, 0, 15, False), Level.FAIL, "k1:9092", "--upstream")
        self.assertFinds(checkCluster(silent, 0, 15, True), Level.WARN, "k1:9092", "--upstream")
        closed = ServerAnswer(True, error=Disconnected("k1:9092 has closed the connection"))
        self.assertFinds(checkCluster(closed, 0, 15, True), Level.WARN, "closed", "--upstream-login")
        refused = ServerAnswer(False, error=AuthenticationFailed("k1:9092 refuses 'me'"))
        self.assertFinds(checkCluster(refused, 0, 15, True), Level.FAIL, "refuses", "--upstream-login")


class ListeningTests(TestCase):
    """L{whyNotListening} tries."""

    def listeners(self, *descriptions: str) -> list[Listener]:
        return [Listener(each, endpointOf("listen", each), None) for each in descriptions]

    def test_free(self) -> Any:
        """A free port can be listened on, and is free again a moment later."""
        port = freePort()
        self.assertEqual(whyNotListening(self.listeners(endpoint(port))), [None])

        def again(_: None) -> None:
            with closing(socket.socket()) as taking:
                taking.bind(("127.0.0.1", port))

        return deferLater(reactor, 0.01, lambda: None).addCallback(again)

    def test_taken(self) -> None:
        """A port that somebody has is told, also where that is another endpoint of the same server."""
        free = endpoint(freePort())
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = endpoint(taken.getsockname()[1])
            reasons = whyNotListening(self.listeners(busy, free, free))
        self.assertEqual([each is not None and "in use" in each for each in reasons], [True, False, True])

    def test_holder(self) -> None:
        """Ports of a process are known, so that a server that runs is not in its own way."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.assertIn(taken.getsockname()[1], listeningPorts(str(os.getpid())))
        self.assertEqual(listeningPorts("unknown"), set())


class ServerTests(SynchronousTestCase):
    """What the options and the file of properties name is built, by the server's own code."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()

    def failures(self, options: Any, *arguments: str) -> dict[str, str]:
        """
        Have the server's parts examined.

        @return: what is found of each that fails, by name; that of a mistake in the options has none.
        """
        try:
            # The reactor closes a port only when it runs, so that each needs one of its own.
            listen = endpoint(freePort(count=3))
            options.parseOptions(["--listen", listen, "--data", str(self.directory / "data"), *arguments])
        except UsageError as error:
            return {"": str(error)}
        checks = [each for each in checksFor(options) if each[0].startswith(("server", "export", "port", "memory pr"))]
        return {name: each.what for name, each in examine(checks) if each.level is Level.FAIL}

    def configured(self, *lines: str) -> str:
        path = self.directory / "broker.properties"
        path.write_text("\n".join(lines))
        return str(path)

    def test_mistakes(self) -> None:
        """A file with which the broker does not start is not called well, and nothing is left behind."""
        file = self.directory / "file"
        file.touch()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = endpoint(taken.getsockname()[1])
            for line, check, words in (
                ("pool=nonsense", "", "nonsense"),
                ("order=nonsense", "", "nonsense"),
                ("purgatory=nonsense", "", "nonsense"),
                ("quota=client-bytes:produce=lots", "", "lots"),
                ("quota.producer.default=0", "", "quota.producer.default"),
                ("auth=file:/nowhere/passwords", "", "/nowhere/passwords"),
                ("auth=scram:/nowhere/passwords", "", "/nowhere/passwords"),
                ("auth=1=scram:users", "", "--auth"),
                ("listeners=carrier-pigeon:5", "", "keep one"),
                ("status=carrier-pigeon:5", "", "carrier-pigeon"),
                ("status=ssl:0:privateKey=/nowhere.pem:certKey=/nowhere.pem", "", "/nowhere.pem"),
                ("log.format=xml", "", "xml"),
                ("export=nonsense:here", "", "nonsense"),
                (f"export=spark:{file}/recording", f"export spark:{file}/recording", "Not a directory"),
                (f"status={busy}", f"port {busy}", "in use"),
            ):
                found = self.failures(brokerOptions(), "--config", self.configured(line))
                self.assertEqual(list(found), [check], line)
                self.assertIn(words, found[check])
        self.assertEqual(sorted(each.name for each in self.directory.iterdir()), ["broker.properties", "file"])

    def test_right(self) -> None:
        """One with which it does is, and nothing is left behind."""
        lines = ("export=spark:" + str(self.directory / "a" / "recording"), f"status={endpoint(freePort())}")
        config = self.configured(*lines, "log.format=json", "pool=fair:64M", "quota=client-bytes:produce=1M")
        self.assertEqual(self.failures(brokerOptions(), "--config", config), {})
        self.assertEqual([each.name for each in self.directory.iterdir()], ["broker.properties"])

    def test_profile(self) -> None:
        """Reports of memory need a directory."""
        found = self.failures(brokerOptions(), "--profile-memory", f"1m:{self.configured()}")
        self.assertIn("is a file", found["memory profile"])

    def test_gateway(self) -> None:
        """A gateway is built as well: its certificates, its login, and a port for each node."""
        found = self.failures(gatewayOptions(), "--upstream", "127.0.0.1:1", "--node-ids", "0-1")
        self.assertEqual(found, {})
        for arguments, words in (
            (("--upstream", "tls:localhost:1:certificate=/nowhere.pem"), "/nowhere.pem"),
            (("--upstream", "localhost:1", "--upstream-login", "PLAIN:me:/nowhere"), "/nowhere"),
            (("--upstream", "localhost:1", "--config", self.configured("purgatory=wheel")), "purgatory"),
        ):
            found = self.failures(gatewayOptions(), *arguments)
            self.assertEqual(list(found), [""])
            self.assertIn(words, found[""])

    def test_running(self) -> None:
        """While the broker runs its ports are in use by itself, and its recording stays as it is."""
        recording = self.directory / "recording"
        export = ("--export", f"spark:{recording}")
        broker = BrokerProcess(*export).startedFor(self)
        options: Any = brokerOptions()
        options.parseOptions(["--listen", endpoint(broker.port), "--data", broker.dataPath, *export])
        found = dict(examine(checksFor(options)))
        port = found[f"port {endpoint(broker.port)}"]
        self.assertEqual((port.level, found[f"export {export[1]}"].level), (Level.OK, Level.OK), port)
        self.assertIn(f"process {broker.process.pid}", port.what)
        # Only the broker's own segments are there, of which it makes another when it likes.
        self.assertEqual(len({each.name.partition("-")[0] for each in recording.rglob("*.segment*")}), 1)


class CommandTests(SynchronousTestCase):
    """The command as an operator runs it."""

    def test_machine(self) -> None:
        """
        This machine is examined from end to end: what works is not called broken, what is wrong
        decides the status.
        """
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1"
            free = f"tcp:{freePort()}:interface=127.0.0.1"
            command = [sys.executable, "-m", "admission", "doctor", "--json", "--listen", busy, "--listen", free]
            result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        found = {each["check"]: each for each in json.loads(result.stdout)}
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn(f"port {busy}", result.stderr)
        self.assertNotIn(f"port {free}", result.stderr)
        for check in ("Python", "packages", "reactor", "plug-in names", "plug-ins", "policies", f"port {free}"):
            self.assertEqual(found[check]["level"], "ok", found[check])
        self.assertEqual([each for each in found.values() if "could not be checked" in each["what"]], [])

    def test_cluster(self) -> None:
        """The doctor of a gateway asks each server of the cluster, with the gateway's login."""
        users = Path(self.mktemp()).absolute()
        users.write_text("gateway:sesame")
        password = Path(self.mktemp()).absolute()
        password.write_text("sesame")
        broker = BrokerProcess("--auth", f"file:{users}")
        self.addCleanup(broker.remove)
        broker.start()
        gone = f"127.0.0.1:{freePort()}"
        command = [sys.executable, "-m", "admission", "doctor-gateway", "--json", "--upstream"]
        command += [f"{broker.address},{gone}", "--listen", endpoint(freePort(count=3)), "--node-ids", "0-1"]
        for login, level, words in (
            (["--upstream-login", f"PLAIN:gateway:{password}"], "ok", "the nodes of the cluster are 1"),
            ([], "warn", "does not say which nodes there are"),
        ):
            result = subprocess.run(
                [*command, *login], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
            )
            found = {each["check"]: each for each in json.loads(result.stdout)}
            answered = found[f"cluster {broker.address}"]
            self.assertEqual(answered["level"], level, answered)
            self.assertIn(words, answered["what"])
            self.assertEqual(found[f"cluster {gone}"]["level"], "warn")
