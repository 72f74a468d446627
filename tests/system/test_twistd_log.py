"""What C{twistd admission} writes to its log, and where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, TWISTD, BrokerProcess, endpoint, freePort, until
from tests.kit.gatewayprocess import NODES, GatewayProcess
from tests.kit.rawclient import RawClient


class TwistdLogTests(SynchronousTestCase):
    """A real process with a log."""

    def test_json(self) -> None:
        """Each line is an object, and one for a client's nonsense has its address and the reason."""
        broker = BrokerProcess("--log-format", "json").startedFor(self)
        with RawClient(broker.port) as client:
            client.sendBytes(b"\xff" * 8)
            self.assertTrue(client.isClosedByPeer())
        line = broker.waitForLog("closing the connection")
        self.assertEqual(json.loads(line)["fields"]["reason"], "a frame of -1 bytes was announced")
        broker.stop()
        for line in broker.log().splitlines():
            self.assertEqual(set(json.loads(line)), {"time", "level", "source", "message", "fields"}, line)

    def test_ports(self) -> None:
        """All ports of a gateway are in the one line of its start, and a start that finds one of them taken in none."""
        gateway = GatewayProcess("127.0.0.1:1").startedFor(self)
        last = gateway.port + NODES
        line = gateway.waitForLog("listening on")
        self.assertIn(f"] serving the cluster of 127.0.0.1:1, nodes 0 to {NODES - 1} behind the first port, ", line)
        self.assertIn(f", listening on 127.0.0.1:{gateway.port} to {last}, ", line)
        listen = f"tcp:{last}:interface=127.0.0.1"
        other = subprocess.run(
            # With one node, whose port is reserved as well: others may have what comes behind.
            [
                *(*TWISTD, "admission-gateway", "--upstream=127.0.0.1:1", "--node-ids=0-0", "--listen", listen),
                *("--data", self.mktemp()),
            ],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        *started, sentence = (other.stdout + other.stderr).splitlines()
        self.assertTrue(
            sentence.endswith(f"admission: cannot listen on {listen}: Address already in use (--listen says where)")
        )
        gateway.stop()
        for text in "\n".join(started), gateway.log():
            self.assertNotRegex(text, r"starting on|Port \d+ Closed")

    def test_file(self) -> None:
        """C{--logfile} of C{twistd} names the file, and SIGUSR1 begins a new one."""
        path = Path(os.path.abspath(self.mktemp()))
        port = freePort()
        process = subprocess.Popen(
            [*TWISTD, "--logfile", str(path), "admission", "--listen", endpoint(port), "--data", self.mktemp()],
            env=ENVIRONMENT,
        )
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.terminate)
        until(lambda: path.exists() and "[BrokerService#info] serving" in path.read_text())
        process.send_signal(signal.SIGUSR1)
        older = Path(f"{path}.1")
        until(older.exists)
        self.assertIn("serving", older.read_text())
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        self.assertIn("[BrokerService#info] stopped", path.read_text())
