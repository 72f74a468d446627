"""Tests for L{admission.kafka.broker.api.onceflushed}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.refusals import reasonOf, repeated


class ReasonTests(SynchronousTestCase):
    """What the APIs share in saying no."""

    def test_reasonOf(self) -> None:
        """A reason is told as it is, unless it is too long."""
        self.assertEqual(reasonOf(ValueError("no room")), "no room")
        self.assertEqual(reasonOf(ValueError("x" * 40_000)), "x" * 1000 + "...")

    def test_repeated(self) -> None:
        """What occurs twice is found, once."""
        self.assertEqual(repeated(iter("abcab")), {"a", "b"})
