"""
Imitates who asks a server of one's own for much, reads nothing, and is followed
by others that do the same: whoever is cut off must free its memory before its
place.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.attacks.wrappedserver import SMALL
from tests.kit.attack import ALLOWANCE_BYTES, MIB, sized
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.goodclient import HOST

POOL_BYTES = 32 * MIB
ANSWER_BYTES = 24 * MIB
CLIENTS = sized(20, 60)
ROUNDS = sized(1, 3)
_SAMPLED_EVERY_SECONDS = 0.005


class WrappedPlacesTests(SynchronousTestCase):
    """A wrapped server, whose clients ask for more than there is."""

    def setUp(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.wrappedserver", str(POOL_BYTES), str(ANSWER_BYTES)],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.process.communicate)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def connect(self, host: str) -> socket.socket:
        """A client from an address, closed when the test ends at the latest."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS, (host, 0))
        self.addCleanup(client.close)
        return client

    def anonymousBytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))

    def test_unread(self) -> None:
        """
        However many there are, the server has no more in memory than it may, and a client that asks for little is
        answered.
        """
        before = peak = self.anonymousBytes()
        isOver = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not isOver.wait(_SAMPLED_EVERY_SECONDS):
                peak = max(peak, self.anonymousBytes())

        sampling = threading.Thread(target=sample)
        sampling.start()
        self.addCleanup(sampling.join)
        self.addCleanup(isOver.set)
        latencies = []
        for _ in range(ROUNDS):
            greedy = [self.connect("127.0.0.3") for _ in range(CLIENTS)]
            for client in greedy:
                client.sendall(b"x")
                begun = time.monotonic()
                with self.connect(HOST) as good:
                    good.sendall(SMALL)
                    self.assertEqual(good.recv(1), SMALL)
                latencies.append(time.monotonic() - begun)
            for client in greedy:
                client.close()
        growthBytes = peak - before
        latencies.sort()
        print(
            f"\n{ROUNDS} times {CLIENTS} clients of a wrapped server ask for {ANSWER_BYTES // MIB} MiB and read "
            f"nothing: grew {growthBytes / MIB:.1f} MiB; good client p50 p99 max: "
            + " ".join(f"{1000 * latencies[int(share * (len(latencies) - 1))]:.1f}" for share in (0.5, 0.99, 1.0))
        )
        # An answer that was let through is there three times: as the protocol has made it, in the transport, and in
        # what the transport joins to send it.
        self.assertLess(growthBytes, POOL_BYTES + 2 * ANSWER_BYTES + ALLOWANCE_BYTES)
