"""
Imitates who announces requests as large as all the memory and sends no more
than the announcement, or just as much of them as keeps the broker waiting.
"""

from __future__ import annotations

import time

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.costlyrequests import announcing
from tests.kit.rawclient import RawClient

SECONDS = sized(1.0, 20.0)
COUNTS = (1, 50, 990)
"""One, some, and as many as one address may have connections."""

TRICKLE_SECONDS = 0.5
TRICKLE_SHARE = 1 / 16 / 30 * TRICKLE_SECONDS
"""A sixteenth of the request within C{request.receive.timeout}, which is enough of it not to be given up."""


class LiarsTests(AttackTestCase):
    """Announcements, beside a client with small requests."""

    poolBytes = sized(32, 64) * MIB
    largestBytes = poolBytes

    def lie(self, count: int, announcedBytes: int, trickleBytes: int = 0) -> None:
        """
        Announce requests on C{count} connections, and hang up in the end.

        @param announcedBytes: the size of each.
        @param trickleBytes: how much of its request each sends every L{TRICKLE_SECONDS}.
        """
        clients = [self.connect() for _ in range(count)]
        announcement = announcing(announcedBytes)
        name = (
            f"{count} requests of {self.largestBytes // MIB} MiB are announced, {trickleBytes} bytes come now and then"
        )
        with self.attack(f"{name}; the good client sends {self.recordBytes}"):
            for client in clients:
                client.sendBytes(announcement)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(TRICKLE_SECONDS)
                if trickleBytes:
                    clients = [client for client in clients if _takes(client, bytes(trickleBytes))]
            for client in clients:
                client.close()

    def test_announced(self) -> None:
        """Clients that send nothing delay nobody, however many there are."""
        for count in COUNTS:
            self.lie(count, self.largestBytes)
        self.assertAffordable()

    def test_shares(self) -> None:
        """Neither do those who together announce more than there is."""
        self.lie(COUNTS[1], self.largestBytes // 8)
        self.assertAffordable()

    def test_trickle(self) -> None:
        """Neither do those who send a little now and then."""
        self.lie(COUNTS[1], self.largestBytes, int(self.largestBytes * TRICKLE_SHARE))
        self.assertAffordable()


class LiarsBesideLargeRequestsTests(LiarsTests):
    """The same beside a client with requests of a megabyte."""

    recordBytes = 1_000_000
    paceSeconds = 0.05


def _takes(client: RawClient, data: bytes) -> bool:
    """Whether the broker still takes what a client sends, as much as fits."""
    client.socket.setblocking(False)
    try:
        client.socket.send(data)
    except BlockingIOError:
        pass
    except OSError:
        client.close()
        return False
    return True
