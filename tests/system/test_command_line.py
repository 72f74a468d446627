"""Tests for what C{twistd admission} says to its user."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.options import Options
from admission.kafka.wire.batches import Record, encodeBatch
from tests.kit.brokerprocess import (
    ENVIRONMENT,
    PATIENCE_SECONDS,
    TWIST,
    TWISTD,
    BrokerProcess,
    endpoint,
    freePort,
    sharedBroker,
    until,
)
from tests.kit.rawclient import RawClient

_TRACEBACK = "Traceback (most recent call last)"
_PROCESSES = 3


class TwistBroker(BrokerProcess):
    """The broker as C{twist admission} runs it."""

    command = TWIST


class CommandLineCases(SynchronousTestCase):
    """Commands that end by themselves."""

    def setUp(self) -> None:
        """A directory to run in."""
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

    def admission(self, *arguments: str) -> tuple[int, str]:
        """Run C{twistd admission}."""
        return self.run_([*TWISTD, "admission", *arguments])

    def assertSentences(self, mistakes: Sequence[tuple[Sequence[str], str]]) -> None:
        """
        Each of C{mistakes}, arguments of C{twistd admission}, ends it with
        status 1, and with the sentence that goes with it as the last line.
        """
        with ThreadPoolExecutor(_PROCESSES) as threads:
            results = list(threads.map(lambda mistake: self.admission(*mistake[0]), mistakes))
        for (arguments, sentence), (status, output) in zip(mistakes, results, strict=True):
            self.assertEqual(status, 1, f"{arguments}: {output}")
            self.assertNotIn(_TRACEBACK, output)
            self.assertIn(sentence, output.rstrip().rpartition("\n")[2], f"{arguments}: {output}")


class MistakeTests(CommandLineCases):
    """A mistake is answered with one sentence."""

    def test_listeners(self) -> None:
        """An endpoint that cannot be, or nobody could be told of."""
        self.assertSentences(
            [
                (
                    ["--listen", "bogus:1"],
                    "--listen bogus:1: Unknown endpoint type: 'bogus'; write an endpoint such as",
                ),
                (["--advertise", "broker"], "--advertise broker: write HOST:PORT, as in broker.example:9092"),
                (
                    ["--advertise", "a:1", "--advertise", "b:2"],
                    "--advertise is given 2 times and --listen 1 times; give one --advertise for each --listen",
                ),
            ]
        )

    def test_properties(self) -> None:
        """Properties that are unknown, make no sense or contradict each other."""
        config = self.directory / "broker.properties"
        config.write_text("num.partitions=4\nnum.partitons=5\n")
        self.assertSentences(
            [
                (["--set", "num.partitons=4"], "unknown property 'num.partitons'; the nearest is num.partitions"),
                (["--config", str(config)], f"{config}:2: unknown property 'num.partitons'"),
                (
                    ["--set", "num.partitions=1", "--set", "num.partitions=2"],
                    "num.partitions is '1' at --set num.partitions=1 but '2' at --set num.partitions=2; keep one",
                ),
            ]
        )

    def test_pools(self) -> None:
        """Pools that are unknown, too small or contradict the properties."""
        self.assertSentences(
            [
                (["--pool", "lake:1MiB"], "no memory pool is called 'lake'; installed: bounded, fair, unbounded"),
                (["--pool", "bounded:much"], "--pool: 'bounded:much': 'much'"),
                (
                    ["--set", "queued.max.request.bytes=1MiB", "--set", "socket.request.max.bytes=2MiB"],
                    "queued.max.request.bytes (1MiB, --set queued.max.request.bytes=1MiB) must not be less than"
                    " socket.request.max.bytes (2MiB",
                ),
                (
                    ["--pool", "bounded:1MiB", "--set", "socket.request.max.bytes=2MiB"],
                    "--pool bounded:1MiB allows requests of 1MiB and socket.request.max.bytes 2MiB",
                ),
                (
                    ["--pool", "bounded:256MiB", "--set", "queued.max.request.bytes=128MiB"],
                    "--pool bounded:256MiB means 256MiB and queued.max.request.bytes means 128MiB",
                ),
            ]
        )

    def test_options(self) -> None:
        """Options that do not exist."""
        self.assertSentences(
            [
                (["--listne", "tcp:1"], "option --listne not recognized"),
            ]
        )

    def test_portInUse(self) -> None:
        """
        Where somebody listens the broker does not start, be it the second
        port, and leaves the data directory alone.
        """
        data = self.directory / "data"
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = endpoint(other.getsockname()[1])
            self.assertSentences(
                [
                    (
                        ["--listen", endpoint(freePort()), "--listen", taken, "--data", str(data)],
                        f"admission: cannot listen on {taken}: Couldn't listen on",
                    )
                ]
            )
        self.assertFalse(data.exists())

    def test_data(self) -> None:
        """A data directory that is another broker's, or no directory, is refused."""
        broker = sharedBroker()
        file = self.directory / "file"
        file.touch()
        self.assertSentences(
            [
                (
                    ["--listen", endpoint(freePort()), "--data", broker.dataPath],
                    f"admission: the log cannot be opened: {broker.dataPath} is in use by process {broker.process.pid}",
                ),
                (
                    ["--listen", endpoint(freePort()), "--data", str(file)],
                    "admission: the log cannot be opened: [Errno 17]",
                ),
                (
                    ["--listen", endpoint(freePort()), "--data", str(file / "below")],
                    "admission: the log cannot be opened: [Errno 20] Not a directory",
                ),
            ]
        )
        with RawClient(broker.port) as raw:
            raw.createTopic("still-served")

    def test_short(self) -> None:
        """C{twistd} says what is wrong and how to get help, in a few lines, not below all options."""
        for plugin in ("admission", "admission-gateway"):
            for arguments in (["--set", "num.partitons=4"], ["--nonsense"], ["--pool", "nonsense"]):
                status, output = self.run_([*TWISTD, plugin, *arguments])
                self.assertEqual(status, 1, output)
                lines = output.strip().splitlines()
                self.assertLessEqual(len(lines), 4, output)
                self.assertIn(f"For help: twistd {plugin} --help", output)
            status, output = self.run_([*TWISTD, plugin, "--help"])
            self.assertGreater(len(output.splitlines()), 30)

    def test_twist(self) -> None:
        """C{twist} says the same, with the exit status that it has for mistakes of usage."""
        file = self.directory / "file"
        file.touch()
        for arguments, expected, sentence in (
            (["--set", "num.partitons=4"], 64, "unknown property 'num.partitons'; the nearest is num.partitions"),
            (
                ["--listen", endpoint(freePort()), "--data", str(file)],
                1,
                "admission: the log cannot be opened: [Errno 17]",
            ),
        ):
            status, output = self.run_([*TWIST, "admission", *arguments])
            self.assertEqual(status, expected, output)
            self.assertIn(sentence, output)
            self.assertNotIn(_TRACEBACK, output)


class HelpTests(CommandLineCases):
    """The command explains itself."""

    def test_help(self) -> None:
        """C{--help} tells every option, and shows examples that work."""
        status, output = self.admission("--help")
        self.assertEqual(status, 0, output)
        for option in ("listen", "advertise", "data", "config", "set", "auth", "status", "pool", "purgatory", "quota"):
            self.assertRegex(output, rf"--{option}[= ]")
        examples = [line.strip() for line in output.splitlines() if line.strip().startswith("twistd -n admission ")]
        self.assertEqual(len(examples), 6)
        for example in examples:
            # The others name files that are not there.
            if not any(word in example for word in ("ssl:", "--config")):
                Options().parseOptions(example.split()[3:])

    def test_helpPool(self) -> None:
        """C{--help-pool} lists the pools, how they are written and who provides them."""
        status, output = self.admission("--help-pool")
        self.assertEqual(status, 0, output)
        self.assertRegex(
            output, r"\n  bounded +bounded:SIZE\[:strict=yes\|no\]\[:max=SIZE\] +twisted.plugins.admission_policies\n"
        )
        self.assertRegex(output, r"\n  unbounded +unbounded +twisted.plugins.admission_policies\n")

    def test_helpPoolType(self) -> None:
        """C{--help-pool-type} explains one of them."""
        status, output = self.admission("--help-pool-type", "bounded")
        self.assertEqual(status, 0, output)
        self.assertIn("Usage: --pool bounded:SIZE[:strict=yes|no][:max=SIZE]\n", output)
        self.assertIn("large requests may starve", output)


class DaemonTests(CommandLineCases):
    """C{twistd} without C{-n}."""

    def test_daemon(self) -> None:
        """
        The command ends when the daemon serves; a second one on the same data
        ends as well, with a failure that its log explains.
        """
        port = freePort()
        status, output = self.daemon("first", port)
        self.assertEqual(status, 0, output)
        pid = int((self.directory / "first.pid").read_text())
        try:
            with RawClient(port) as raw:
                raw.createTopic("topic")
                self.assertEqual(raw.produce("topic", encodeBatch([Record(value=b"value")])), (0, 0))
            status, output = self.daemon("second", freePort())
            self.assertEqual(status, 1)
            self.assertIn("Please look at log file", output)
            self.assertNotIn(_TRACEBACK, output)
            log = self.directory / "second.log"
            reason = f"admission: the log cannot be opened: data is in use by process {pid}"
            # The command ends before its daemon does.
            pause = threading.Event()
            until(lambda: pause.wait(0.02) or reason in log.read_text())
            self.assertNotIn(_TRACEBACK, log.read_text())
            self.assertFalse((self.directory / "second.pid").exists())
        finally:
            os.kill(pid, signal.SIGKILL)

    def daemon(self, name: str, port: int) -> tuple[int, str]:
        """
        Start one, with its files called C{name}.

        @return: the exit status of the command, and what it wrote.
        """
        files = [f"--pidfile={name}.pid", f"--logfile={name}.log"]
        return self.run_([*TWISTD[:-2], *files, "admission", "--listen", endpoint(port), "--data", "data"])


class TwistTests(SynchronousTestCase):
    """The other way to start a service of Twisted's."""

    def test_twist(self) -> None:
        """C{twist admission} serves and ends as C{twistd admission} does, with settings from a file."""
        config = Path(self.mktemp())
        config.write_text("# a comment\nnum.partitions = 7\nlog.retention.hours = 1\n")
        broker = TwistBroker("--config", str(config.absolute()))
        self.addCleanup(broker.remove)
        broker.start()
        with closing(RawClient(broker.port)) as raw:
            raw.createTopic("topic")
            self.assertEqual([len(topic.partitions) for topic in raw.allTopics()], [7])
        self.assertEqual(broker.stop(), -signal.SIGTERM)
        self.assertEqual(broker.complaints(), [])
