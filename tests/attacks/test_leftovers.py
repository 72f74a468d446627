"""
Imitates who does the same again and again, so that what is left behind adds
up: large requests on the same connections, and connections for a moment.
"""

from __future__ import annotations

from tests.kit.attack import AttackTestCase, largest, sized
from tests.kit.brokerfixture import requestFrame, requestOf
from tests.kit.costlyrequests import UNKNOWN
from tests.kit.rawclient import tlsContext

TIMES = sized(2, 40)
ROUNDS = sized(10, 200)
AT_ONCE = 40


class LeftoverTests(AttackTestCase):
    """What is left of what is over."""

    def test_requests(self) -> None:
        """A request that was answered leaves nothing to Python's collector."""
        names = [f"u{number:08d}" for number in range(100_000)]
        frames = {api: requestFrame(largest(requestFor, names)[1], 1) for api, requestFor in UNKNOWN.items()}
        clients = [self.connect() for _ in range(2)]
        self.exchange(clients, UNKNOWN["Metadata"](names[:1]))
        with self.attack(f"{TIMES} times 2 requests of each of {len(frames)} APIs about what does not exist"):
            for api, frame in frames.items():
                for _ in range(TIMES):
                    for client in clients:
                        client.sendBytes(frame)
                    for client in clients:
                        self.require(bool(client.receiveFrame()), f"{api} has no answer")
        for client in clients:
            client.close()
        self.assertAffordable()

    def test_connections(self) -> None:
        """What connections that are gone leave to it is looked for in time."""
        context = tlsContext()
        frame = requestFrame(
            requestOf("ApiVersions", 3, client_software_name="leftovers", client_software_version="1"), 1
        )
        with self.attack(f"{ROUNDS} times {AT_ONCE} connections to the TLS port ask once"):
            for _ in range(ROUNDS):
                clients = [self.connect(self.broker.tlsPort, tls=context) for _ in range(AT_ONCE)]
                for client in clients:
                    client.sendBytes(frame)
                for client in clients:
                    client.receiveFrame()
                    client.close()
        self.assertAffordable()
