"""
Imitates a client over its quota that does not wait: it hangs up and comes back,
and has its first request served each time.
"""

from __future__ import annotations

import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import batchOf
from tests.kit.rawclient import produceRequest

LIMIT_BYTES_PER_SECOND = MIB
BURST_SECONDS = 10
"""The windows that a rate is averaged over allow what was not used in them."""

REQUEST_BYTES = 1_000_000
SECONDS = sized(2.0, 30.0)
PACE_SECONDS = 0.05
"""Twenty times the limit; faster, it would be a flood of requests, which is another attack."""


class EvadedDebtTests(AttackTestCase):
    """A limit on what is produced, and a client that reconnects after each request."""

    options = ("--quota", f"client-bytes:produce={LIMIT_BYTES_PER_SECOND}")

    def evade(self, acks: int) -> None:
        """
        Produce as much as can be, each time on a connection of its own; the
        limit holds, but for what the windows allow at first, and one request.
        """
        with self.connect() as client:
            client.createTopic("evaded")
        request = produceRequest("evaded", batchOf(bytes(REQUEST_BYTES)), acks=acks)
        with self.attack(f"Produce with acks={acks}, reconnecting"):
            begun = time.monotonic()
            while time.monotonic() < begun + SECONDS:
                time.sleep(PACE_SECONDS)
                with self.connect() as client:
                    client.socket.settimeout(1.0)
                    try:
                        client.send(request)
                        if acks:
                            client.receiveFrame()
                    except (TimeoutError, ConnectionError):
                        # It has to wait for its debt.
                        pass
            elapsedSeconds = time.monotonic() - begun
        with self.connect() as client:
            storedBytes = client.endOffset("evaded") * REQUEST_BYTES
        allowedBytes = LIMIT_BYTES_PER_SECOND * (BURST_SECONDS + elapsedSeconds) + 2 * REQUEST_BYTES
        passed = f"{storedBytes / MIB:.0f} MiB pass in {elapsedSeconds:.0f} s, and {allowedBytes / MIB:.0f} are allowed"
        print(passed)
        self.require(storedBytes <= allowedBytes, passed)
        self.assertAffordable()

    def test_acknowledged(self) -> None:
        """A producer that waits for the answer before it hangs up keeps its debt."""
        self.evade(-1)

    def test_unacknowledged(self) -> None:
        """A producer that waits for nothing keeps its debt as well."""
        self.evade(0)
