"""The examples do what they say."""

import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, TWISTD, freePort, sharedBroker

EXAMPLES = ROOT / "examples"


class ExampleTests(SynchronousTestCase):
    """Each example, run as its first lines say."""

    def test_produceAndConsume(self) -> None:
        """A real client gets back what it produced."""
        output = subprocess.run(
            [sys.executable, str(EXAMPLES / "produce_and_consume.py"), sharedBroker().address],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=ENVIRONMENT,
            check=True,
        ).stdout
        self.assertEqual(output.splitlines(), ["0 en hello", "1 fr bonjour", "2 fi hei"])

    def test_checksumServer(self) -> None:
        """A server on the framework answers a request that comes in pieces, and closes on one that is too large."""
        port = freePort()
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        example = directory / "checksum_server.py"
        example.write_text((EXAMPLES / "checksum_server.py").read_text().replace("tcp:9099", f"tcp:{port}"))
        server = subprocess.Popen(
            [*TWISTD, f"--python={example}"],
            cwd=directory,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "starting on" in line:
                    break
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
                body = bytes(range(256)) * 1000
                client.sendall(struct.pack(">i", len(body)) + body[:1000])
                client.sendall(body[1000:])
                self.assertEqual(client.recv(8, socket.MSG_WAITALL), struct.pack(">iI", 4, zlib.crc32(body)))
                client.sendall(struct.pack(">i", 2 << 20))
                self.assertEqual(client.recv(1), b"")
        finally:
            server.terminate()
            server.communicate(timeout=PATIENCE_SECONDS)
