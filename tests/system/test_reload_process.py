"""A running broker is told by SIGHUP that its file of properties has changed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, TWISTD, BrokerProcess, endpoint, freePort, until


class ReloadTests(SynchronousTestCase):
    """A real process, and a real client."""

    def setUp(self) -> None:
        self.path = Path(os.path.abspath(self.mktemp()))
        self.path.write_text("message.max.bytes=2MiB\n")

    def produce(self, broker: BrokerProcess, sizeBytes: int) -> str | None:
        """
        Send a message.

        @return: why it was refused, if it was.
        """
        errors: list[str] = []
        producer = Producer({"bootstrap.servers": broker.address, "message.max.bytes": 10_000_000})
        producer.produce("events", bytes(sizeBytes), on_delivery=lambda error, _: error and errors.append(error.name()))
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        return errors[0] if errors else None

    def test_reload(self) -> None:
        """What a client may send is what the file says, and a mistake in the file changes nothing."""
        broker = BrokerProcess("--config", str(self.path)).startedFor(self)
        self.assertIsNone(self.produce(broker, 1_500_000))
        for text, words, refusal in (
            ("message.max.bytes=1MiB", "message.max.bytes was 2097152 and is 1048576", "MSG_SIZE_TOO_LARGE"),
            ("message.max.bytes=much", "nothing is reloaded: .*:1: message.max.bytes", "MSG_SIZE_TOO_LARGE"),
            ("message.max.bytes=2MiB", "message.max.bytes was 1048576 and is 2097152", None),
        ):
            begin = broker.mark()
            self.path.write_text(text + "\n")
            broker.process.send_signal(signal.SIGHUP)
            broker.waitForLog(words, begin)
            self.assertEqual(self.produce(broker, 1_500_000), refusal)
        self.assertEqual(broker.complaints(), [])

    def test_terminal(self) -> None:
        """A broker in the foreground stops in order when its terminal is closed."""
        ours, theirs = os.openpty()
        log = Path(os.path.abspath(self.mktemp()))
        with closing(os.fdopen(theirs, "rb", buffering=0)):
            process = subprocess.Popen(
                [
                    *TWISTD,
                    "--logfile",
                    str(log),
                    "admission",
                    "--listen",
                    endpoint(freePort()),
                    "--data",
                    self.mktemp(),
                ],
                env=ENVIRONMENT,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        self.addCleanup(process.kill)
        try:
            until(lambda: log.exists() and "serving" in log.read_text())
        finally:
            os.close(ours)
        self.assertEqual(process.wait(PATIENCE_SECONDS), 0)
        self.assertIn("stopped: the log at", log.read_text())
