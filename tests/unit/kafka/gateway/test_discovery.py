"""Tests for L{admission.kafka.gateway.discovery}."""

from __future__ import annotations

import struct
from typing import Any

from admission.kafka.client.clientconnection import ConnectionSettings
from admission.kafka.gateway.discovery import LARGEST_ANSWER_BYTES, LOGGED_SECONDS, MAX_NODES
from admission.kafka.serving.kafkarequest import Address
from tests.unit.kafka.gateway.gatewayfixture import API_KEYS, UPSTREAM, GatewayTestCase, PlayedNode, addressOf

REFRESH_SECONDS = 5.0
BROKERS = [{"node_id": each, "host": addressOf(each).host, "port": addressOf(each).port} for each in (1, 2)]
RANGES: list[dict[str, Any]] = [
    {"api_key": API_KEYS["ApiVersions"], "min_version": 0, "max_version": 3},
    {"api_key": API_KEYS["Metadata"], "min_version": 0, "max_version": 9},
]


PATIENT = ConnectionSettings(requestTimeoutSeconds=10.0, connectTimeoutSeconds=10.0)


class DiscoveryTests(GatewayTestCase):
    """L{Discovery} asks the cluster which nodes it has."""

    def setUp(self) -> None:
        super().setUp()
        self.discovery = self.makeDiscovery(PATIENT)
        self.addCleanup(self.stopDiscovery)

    def stopDiscovery(self) -> None:
        """It stops, and closes its connection."""
        self.discovery.stop()
        self.clock.advance(0)

    def begin(self) -> None:
        """Start it."""
        self.discovery.start()
        self.clock.advance(0)

    def answer(self, played: PlayedNode, isNew: bool = True, **values: Any) -> None:
        """
        Answer one question.

        @param isNew: whether the connection is, so that it is asked for its versions first.
        """
        if isNew:
            played.answer(api_keys=RANGES)
        played.answer(**(values or {"brokers": BROKERS}))

    def test_learns(self) -> None:
        """It asks at once, and the nodes in the answer are known."""
        self.begin()
        self.assertEqual(self.attempts, [UPSTREAM[0]])
        self.assertEqual((self.discovery.reachedSeconds, self.nodes.addresses), (None, {}))
        self.clock.advance(1.0)
        self.answer(self.played)
        self.assertEqual(self.nodes.addresses, {1: addressOf(1), 2: addressOf(2)})
        self.assertEqual((self.discovery.reachedSeconds, self.discovery.lastError), (1.0, None))

    def test_again(self) -> None:
        """It asks again and again on the same connection, and learns when a node moves."""
        self.begin()
        self.answer(self.played)
        self.clock.advance(REFRESH_SECONDS)
        self.answer(self.played, isNew=False, brokers=[{"node_id": 1, "host": "new.example", "port": 1}])
        self.assertEqual(self.nodes.addresses[1], Address("new.example", 1))
        self.assertEqual(self.attempts, [UPSTREAM[0]])

    def test_slow(self) -> None:
        """It does not ask again before it was answered."""
        self.begin()
        self.clock.advance(REFRESH_SECONDS)
        self.assertEqual(len(self.links), 1)
        self.assertEqual(len(self.played.arrived()), 1)
        self.answer(self.played)
        self.assertEqual(len(self.nodes.addresses), 2)

    def test_nextServer(self) -> None:
        """If one server does not answer, the next is asked the next time; and those nodes that are known after them."""
        self.refusing.update(UPSTREAM)
        self.learn(3)
        self.begin()
        self.assertIn("b1.example:9092", self.discovery.lastError or "")
        for _ in range(2):
            self.clock.advance(REFRESH_SECONDS)
        self.assertEqual(self.attempts, [*UPSTREAM, addressOf(3)])
        self.answer(self.played)
        self.assertIsNone(self.discovery.lastError)

    def test_connectionLost(self) -> None:
        """When the connection is lost, also while an answer is awaited, it makes another one."""
        self.begin()
        self.answer(self.played)
        self.clock.advance(REFRESH_SECONDS)
        self.played.close()
        self.assertIsNotNone(self.discovery.lastError)
        self.clock.advance(REFRESH_SECONDS)
        self.assertEqual(len(self.links), 2)
        self.answer(self.played)
        self.played.close()
        self.clock.advance(REFRESH_SECONDS)
        self.assertEqual(len(self.links), 3)

    def test_silent(self) -> None:
        """A server that takes the connection and does not answer is given up after a while."""
        self.begin()
        first = self.played
        self.clock.pump([REFRESH_SECONDS] * 4)
        self.assertTrue(first.isClosed)
        self.assertEqual(self.attempts[:2], list(UPSTREAM))

    def test_large(self) -> None:
        """An answer that no cluster gives is refused, before memory is taken for it: it is charged to nobody."""
        self.begin()
        self.answer(self.played, brokers=[{"node_id": 1, "host": "a", "port": 9092}] * (MAX_NODES + 1))
        self.assertIn(f"and {MAX_NODES} elements allowed", self.discovery.lastError or "")
        self.clock.advance(REFRESH_SECONDS)
        self.played.answer(api_keys=RANGES)
        self.played.send(struct.pack(">i", LARGEST_ANSWER_BYTES + 1))
        self.assertIn(f"not from 4 to {LARGEST_ANSWER_BYTES}", self.discovery.lastError or "")
        self.assertEqual(self.nodes.addresses, {})

    def test_logged(self) -> None:
        """It is not logged more than once in a minute that nobody answers."""
        self.refusing.update(UPSTREAM)
        self.begin()
        words = "the cluster does not say which nodes it has"
        turns = int(LOGGED_SECONDS / REFRESH_SECONDS)
        self.clock.pump([REFRESH_SECONDS] * (turns - 1))
        self.assertEqual(self.messages().count(words), 1)
        self.clock.pump([REFRESH_SECONDS])
        self.assertEqual(self.messages().count(words), 2)

    def test_stop(self) -> None:
        """It can be stopped whatever it is doing, and twice, and says nothing about that."""
        for doing in ("nothing", "connecting", "negotiating", "asking", "answered"):
            self.discovery = self.makeDiscovery(PATIENT)
            if doing == "connecting":
                self.silent.add(UPSTREAM[0])
            if doing != "nothing":
                self.begin()
            self.silent.clear()
            if doing == "asking":
                self.played.answer(api_keys=RANGES)
            if doing == "answered":
                self.answer(self.played)
            for _ in range(2):
                self.stopDiscovery()
            self.clock.advance(2 * REFRESH_SECONDS)
            self.assertTrue(all(played.isClosed for played in self.links), doing)
            self.assertIsNone(self.discovery.lastError, doing)
