"""
Imitates who calls itself by another name of 32 KB each time: whatever is kept
for each client is kept under that name.
"""

from __future__ import annotations

from urllib.request import urlopen

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerprocess import PATIENCE_SECONDS, freePort
from tests.kit.costlyrequests import metadataAs

NAMES = sized(3000, 10_000)
NAME_BYTES = 32_000
PIPELINED = 20
STATUS_PORT = freePort()
SENSORS_BYTES = 4 * MIB


class LongClientIdsTests(AttackTestCase):
    """Client ids of 32 KB, where each client id has a limit."""

    options = (
        *("--quota", "client-bytes:produce=1G:fetch=1G"),
        *("--quota", "request-time:percent=1000"),
        *("--status", f"tcp:{STATUS_PORT}:interface=127.0.0.1"),
    )

    def test_manyNames(self) -> None:
        """What is kept of names is bounded and charged, and so is what the sensors tell of them."""
        client = self.connect()
        with self.attack(f"{NAMES} client ids of {NAME_BYTES} bytes"):
            for begin in range(0, NAMES, PIPELINED):
                client.sendBytes(b"".join(_metadata(number) for number in range(begin, begin + PIPELINED)))
                for _ in range(PIPELINED):
                    client.receiveFrame()
            with urlopen(f"http://127.0.0.1:{STATUS_PORT}/sensors", timeout=PATIENCE_SECONDS) as response:
                sensorsBytes = len(response.read())
        print(f"the sensors take {sensorsBytes / MIB:.1f} MiB")
        self.require(sensorsBytes <= SENSORS_BYTES, f"the sensors take {sensorsBytes} bytes")
        client.close()
        self.assertAffordable()


def _metadata(number: int) -> bytes:
    return metadataAs(f"{number:08d}".encode().ljust(NAME_BYTES, b"x"))
