"""
Imitates a few hundred clients that ask for all topics, again and again, and do
not wait for the answers: each is served in turn, and each turn is long.
"""

from __future__ import annotations

import time
from selectors import EVENT_READ, DefaultSelector

from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestFrame, requestOf

TOPICS = sized(1000, 3000)
CONNECTIONS = sized(60, 300)
PIPELINED = sized(20, 50)
SECONDS = sized(1.5, 20.0)


class PipelinedMetadataTests(AttackTestCase):
    """Metadata of all topics, pipelined."""

    settings = ("max.connections.per.ip=400",)

    def test_pipelined(self) -> None:
        """Turns are fair by what they cost: who asks for little waits for no more than a turn."""
        clients = [self.connect() for _ in range(CONNECTIONS)]
        topics = [{"name": f"t{number:05d}", "num_partitions": 1, "replication_factor": 1} for number in range(TOPICS)]
        answer = clients[0].ask(requestOf("CreateTopics", 7, topics=topics, timeout=30_000))
        self.assertEqual({topic.error_code for topic in answer.topics}, {0})
        request = requestOf("Metadata", 12, topics=None)
        clients[0].ask(request)
        frames = requestFrame(request, 1) * PIPELINED
        with self.attack(f"{CONNECTIONS} x {PIPELINED} Metadata of {TOPICS} topics"):
            for client in clients:
                client.sendBytes(frames)
            end = time.monotonic() + SECONDS
            with DefaultSelector() as selector:
                for client in clients:
                    selector.register(client.socket, EVENT_READ)
                while time.monotonic() < end:
                    for key, _ in selector.select(SECONDS):
                        if not key.fileobj.recv(MIB):  # type: ignore[union-attr]
                            selector.unregister(key.fileobj)
            for client in clients:
                client.close()
        self.assertAffordable()
