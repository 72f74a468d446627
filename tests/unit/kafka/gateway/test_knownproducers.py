"""Tests for L{admission.kafka.gateway.knownproducers}."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.gateway import knownproducers
from admission.kafka.gateway.knownproducers import SAVED_SECONDS, KnownProducers


class KnownProducersTests(SynchronousTestCase):
    """L{KnownProducers} are there again after a restart."""

    def setUp(self) -> None:
        """Nobody is known."""
        self.path = self.mktemp()
        self.clock = Clock()
        self.known = self.start()

    def start(self) -> KnownProducers:
        """Begin with what is on the disk."""
        known = KnownProducers(self.path, self.clock, maybeDeferred)
        known.start()
        return known

    def test_restart(self) -> None:
        """What was noted is there after a restart, the most recent of a user last."""
        self.known.note("alice", [7, 8])
        self.known.note("b\u00f6b", [7])
        self.known.note("alice", [7])
        self.successResultOf(self.known.stop())
        self.assertEqual(list(self.start()), [("alice", 8), ("alice", 7), ("b\u00f6b", 7)])

    def test_saved(self) -> None:
        """Changes are written now and then, and nothing is if there are none."""
        self.known.note("alice", [7])
        self.clock.advance(SAVED_SECONDS)
        self.assertEqual(list(self.start()), [("alice", 7)])
        os.remove(self.path)
        self.known.note("alice", [7])
        self.clock.advance(SAVED_SECONDS)
        self.assertFalse(os.path.exists(self.path))

    def test_bound(self) -> None:
        """No more than so many are remembered, and their memory is counted."""
        with patch.object(knownproducers, "MAX_PRODUCERS", 3):
            self.known.note("alice", range(5))
            self.known.note("alice", [2, 9])
        self.assertEqual([producerId for _, producerId in self.known], [4, 2, 9])
        self.assertEqual(len(self.known), 3)
        self.assertGreater(self.known.sizeBytes, 0)

    def test_greedy(self) -> None:
        """A user that has more than the mean has others' producers forgotten no more, after a restart either."""
        with patch.object(knownproducers, "MAX_PRODUCERS", 4):
            self.known.note("alice", [1])
            self.known.note("greedy", range(10))
            self.assertEqual(set(self.known), {("alice", 1), ("greedy", 7), ("greedy", 8), ("greedy", 9)})
            self.successResultOf(self.known.stop())
            again = KnownProducers(self.path, Clock(), maybeDeferred)
            again.note("greedy", range(20, 30))
            self.assertIn(("alice", 1), set(again))

    def test_damaged(self) -> None:
        """A file that is cut off or changed anywhere is reported, and begun anew."""
        self.known.note("alice", [7])
        self.successResultOf(self.known.stop())
        whole = Path(self.path).read_bytes()
        changed = [whole[:size] for size in range(len(whole))]
        changed += [whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :] for at in range(len(whole))]
        for content in changed:
            Path(self.path).write_bytes(content)
            with capturedLogs() as logged:
                self.assertEqual(list(self.start()), [])
            self.assertEqual(len(logged), 1)

    def test_cannotBeSaved(self) -> None:
        """If the disk does not take them, the log says so, and they are tried again."""
        os.mkdir(self.path)
        self.known.note("alice", [7])
        with capturedLogs() as logged:
            self.successResultOf(self.known.save())
        self.assertIn("cannot be saved", logged[0]["log_format"])
        os.rmdir(self.path)
        self.successResultOf(self.known.save())
        self.assertEqual(list(self.start()), [("alice", 7)])
