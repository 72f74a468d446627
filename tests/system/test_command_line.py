"""Tests for what C{twistd admission} says to its user."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, encodeBatch
from tests.kit.brokerprocess import (
    ENVIRONMENT,
    PATIENCE_SECONDS,
    TWIST,
    TWISTD,
    BrokerProcess,
    endpoint,
    freePort,
    until,
)
from tests.kit.rawclient import RawClient

_TRACEBACK = "Traceback (most recent call last)"


class TwistBroker(BrokerProcess):
    """The broker as C{twist admission} runs it."""

    command = TWIST


class CommandLineCases(SynchronousTestCase):
    """Commands that end by themselves."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="admission-command-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def run_(self, command: Sequence[str]) -> tuple[int, str]:
        """
        Run C{command}.

        @return: its exit status and all that it wrote.
        """
        result = subprocess.run(
            command,
            cwd=self.directory,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return result.returncode, result.stdout


class MistakeTests(CommandLineCases):
    """A mistake is answered with one sentence."""

    def test_sentences(self) -> None:
        """It is the last line, and the status is 1; where a port is taken the data directory is left alone."""
        data, file = self.directory / "data", self.directory / "file"
        file.touch()
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = endpoint(other.getsockname()[1])
            for arguments, sentence in (
                (
                    ["--listen", "bogus:1"],
                    "--listen bogus:1: Unknown endpoint type: 'bogus'; write an endpoint such as",
                ),
                (
                    ["--listen", endpoint(freePort()), "--status", taken, "--data", str(data)],
                    f"admission: cannot listen on {taken}: Address already in use (--status says where)",
                ),
                (
                    ["--listen", endpoint(freePort()), "--data", str(file / "below")],
                    "admission: the log cannot be opened: [Errno 20] Not a directory",
                ),
            ):
                status, output = self.run_([*TWISTD, "admission", *arguments])
                self.assertEqual(status, 1, output)
                self.assertNotIn(_TRACEBACK, output)
                self.assertIn(sentence, output.rstrip().rpartition("\n")[2])
        self.assertFalse(data.exists())

    def test_short(self) -> None:
        """C{twistd} says what is wrong and how to get help, in a few lines, not below all options."""
        for plugin in ("admission", "admission-gateway"):
            status, output = self.run_([*TWISTD, plugin, "--set", "num.partitons=4"])
            self.assertEqual(status, 1, output)
            lines = output.strip().splitlines()
            self.assertLessEqual(len(lines), 4, output)
            self.assertIn(f"For help: twistd {plugin} --help", output)
            status, output = self.run_([*TWISTD, plugin, "--help"])
            self.assertGreater(len(output.splitlines()), 30)


class DaemonTests(CommandLineCases):
    """C{twistd} without C{-n}."""

    def test_daemon(self) -> None:
        """
        The command ends when the daemon serves; a second one on the same data ends as well, with a failure that the log
        explains, which is C{twistd.log} in their directory.
        """
        port = freePort()
        status, output = self.daemon("first", port)
        self.assertEqual(status, 0, output)
        log = self.directory / "twistd.log"
        self.assertIn("[BrokerService#info] serving", log.read_text())
        pid = int((self.directory / "first.pid").read_text())
        try:
            with RawClient(port) as raw:
                raw.createTopic("topic")
                self.assertEqual(raw.produce("topic", encodeBatch([Record(value=b"value")])), (0, 0))
            status, output = self.daemon("second", freePort())
            self.assertEqual(status, 1)
            self.assertIn("Please look at log file", output)
            self.assertNotIn(_TRACEBACK, output)
            reason = f"admission: the log cannot be opened: data is in use by process {pid}"
            # The command ends before its daemon does.
            until(lambda: reason in log.read_text())
            self.assertNotIn(_TRACEBACK, log.read_text())
            self.assertFalse((self.directory / "second.pid").exists())
        finally:
            os.kill(pid, signal.SIGKILL)

    def daemon(self, name: str, port: int) -> tuple[int, str]:
        """
        Start one, with a process file called C{name}.

        @return: the exit status of the command, and what it wrote.
        """
        listening = ["--listen", endpoint(port), "--data", "data"]
        return self.run_([*TWISTD[:-2], f"--pidfile={name}.pid", "admission", *listening])


class TwistTests(SynchronousTestCase):
    """The other way to start a service of Twisted's."""

    def test_twist(self) -> None:
        """C{twist admission} serves and ends as C{twistd admission} does, with settings from a file."""
        config = Path(self.mktemp())
        config.write_text("# a comment\nnum.partitions = 7\nlog.retention.hours = 1\n")
        broker = TwistBroker("--config", str(config.absolute())).startedFor(self)
        with closing(RawClient(broker.port)) as raw:
            raw.createTopic("topic")
            self.assertEqual([len(topic.partitions) for topic in raw.allTopics()], [7])
        self.assertEqual(broker.stop(), -signal.SIGTERM)
        self.assertEqual(broker.complaints(), [])
