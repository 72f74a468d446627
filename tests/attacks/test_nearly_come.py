"""Imitates who sends all of a request but its last byte, and comes again as soon as it is cut off."""

from __future__ import annotations

import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.costlyrequests import announcing
from tests.kit.rawclient import RawClient

SECONDS = sized(4.0, 30.0)
_LOOKED_EVERY_SECONDS = 0.05


class NearlyComeTests(AttackTestCase):
    """Bodies that hold the whole pool and are not worked on."""

    poolBytes = 64 * MIB
    largestBytes = 31 * MIB

    def hold(self, count: int, bodyBytes: int, addresses: int = 1) -> None:
        """
        Have C{count} such bodies all the time.

        @param addresses: from how many addresses they come.
        """
        frame = memoryview(announcing(bodyBytes)[:4] + bytes(bodyBytes - 1))
        connections: list[tuple[RawClient, int] | None] = [None] * count
        with self.attack(f"{count} bodies of {bodyBytes // MIB} MiB lack a byte, from {addresses} addresses"):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                isIdle = True
                for number in range(count):
                    connection = connections[number]
                    if connection is None:
                        client = self.connect(host=f"127.0.0.{3 + number % addresses}")
                        client.sendBytes(announcing(bodyBytes))
                        client.socket.setblocking(False)
                        connection = client, len(announcing(bodyBytes))
                    client, sentBytes = connection
                    try:
                        while sentBytes < len(frame):
                            sentBytes += client.socket.send(frame[sentBytes : sentBytes + MIB])
                            isIdle = False
                        if not client.socket.recv(1):
                            raise ConnectionError("the broker has closed it")
                    except BlockingIOError:
                        connections[number] = client, sentBytes
                    except OSError:
                        client.close()
                        connections[number] = None
                if isIdle:
                    time.sleep(_LOOKED_EVERY_SECONDS)
            for left in connections:
                if left is not None:
                    left[0].close()

    def test_many(self) -> None:
        """They keep nobody waiting, however they share the pool."""
        self.hold(70, MIB)
        self.hold(70, MIB, addresses=30)
        self.assertAffordable()

    def test_few(self) -> None:
        """A few large ones keep nobody waiting either."""
        self.hold(3, 31 * MIB)
        self.assertAffordable()
