"""C{admission doctor} with real ports and programs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from admission.commands.doctorcommand import whyNotListening
from admission.commands.doctorinstallation import checkJava, checkWorkers
from admission.commands.doctormachine import Level
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, freePort
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


class ListeningTests(TestCase):
    """L{whyNotListening} tries."""

    def test_free(self) -> Any:
        """A free port can be listened on, and is free again a moment later."""
        port = freePort()
        self.assertIs(whyNotListening(f"tcp:{port}:interface=127.0.0.1"), None)

        def again(_: None) -> None:
            with closing(socket.socket()) as taking:
                taking.bind(("127.0.0.1", port))

        return deferLater(reactor, 0.01, lambda: None).addCallback(again)

    def test_reasons(self) -> None:
        """What keeps it from that is told in words."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for description, words in (
                (f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1", "in use"),
                ("ssl:0:privateKey=nowhere.pem", "nowhere.pem"),
                ("carrier-pigeon:5", "carrier-pigeon"),
                ("tcp", ""),
            ):
                reason = whyNotListening(description)
                assert reason is not None, description
                self.assertIn(words, reason)


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
