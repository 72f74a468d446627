"""A running server is told by SIGHUP that its file of properties or its certificates have changed."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import ssl
import subprocess
import termios
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerfixture import requestFrame, requestOf
from tests.kit.brokerprocess import (
    ENVIRONMENT,
    PATIENCE_SECONDS,
    TWISTD,
    BrokerProcess,
    ServerProcess,
    endpoint,
    freePort,
    until,
)
from tests.kit.certificates import Certificates, makeCertificates
from tests.kit.gatewayprocess import NODES, GatewayProcess
from tests.kit.recordingproxy import readFrame


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


class CertificateTests(SynchronousTestCase):
    """Real processes whose certificates are replaced."""

    def setUp(self) -> None:
        self.directory = Path(os.path.abspath(self.mktemp()))
        self.directory.mkdir()
        self.files = self.renew()

    def renew(self) -> Certificates:
        """Make others, of another authority, in the same files."""
        return makeCertificates(self.directory)

    def description(self, prefix: str, port: int) -> str:
        """An endpoint with TLS."""
        files = f"privateKey={self.files.serverKey}:certKey={self.files.serverCertificate}"
        return f"{prefix}:{port}:interface=127.0.0.1:{files}" + (
            f":caKey={self.files.authority}:required=no" if prefix == "mtls" else ""
        )

    def connect(self, port: int) -> ssl.SSLSocket:
        """A client that trusts the authority that has signed the certificate in the file."""
        context = ssl.create_default_context(cafile=str(self.files.authority))
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        client = context.wrap_socket(plain, server_hostname="localhost")
        self.addCleanup(client.close)
        return client

    def reload(self, server: ServerProcess, words: str) -> None:
        """Send SIGHUP, and wait until the log says what came of it."""
        begin = server.mark()
        server.process.send_signal(signal.SIGHUP)
        server.waitForLog(words, begin)

    def test_broker(self) -> None:
        """New connections get the new certificate, and those that are there go on; bad files change nothing."""
        ports = {prefix: freePort() for prefix in ("ssl", "mtls")}
        listening = [part for each in ports.items() for part in ("--listen", self.description(*each))]
        broker = BrokerProcess(*listening).startedFor(self)
        clients = [self.connect(port) for port in ports.values()]
        before = [client.getpeercert(True) for client in clients]

        self.renew()
        self.reload(broker, "new connections to 3 ports get the certificates that are in the files now")
        for port, old, certificate in zip(ports.values(), clients, before, strict=True):
            self.assertNotEqual(self.connect(port).getpeercert(True), certificate)
            old.sendall(requestFrame(requestOf("ApiVersions", 0), 1))
            self.assertIsNotNone(readFrame(old.makefile("rb")))

        key = self.files.serverKey.read_bytes()
        for content, words in (
            (self.files.clientKey.read_bytes(), "Certificate public and private keys do not match"),
            (b"", "OpenSSL cannot read the key"),
        ):
            self.files.serverKey.write_bytes(content)
            self.reload(broker, rf"certificates stay as they are: ssl:{ports['ssl']}:.*: {words}")
            self.connect(ports["mtls"])
        self.files.serverKey.write_bytes(key)

    def test_gateway(self) -> None:
        """So it is at all ports of a gateway."""
        port = freePort(count=NODES + 1)
        gateway = GatewayProcess("127.0.0.1:1", "--listen", self.description("ssl", port)).startedFor(self)
        gateway.waitForLog("serving the cluster")
        before = self.connect(port + NODES).getpeercert(True)
        self.renew()
        self.reload(gateway, f"new connections to {NODES + 1} ports get the certificates that are in the files now")
        after = {self.connect(each).getpeercert(True) for each in (port, port + NODES)}
        self.assertEqual(len(after - {before}), 1)
