"""Tests for L{admission.kafka.serving.memoryuse}."""

from __future__ import annotations

from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.memoryuse import MemoryProfile, parseProfile


class ParseProfileTests(SynchronousTestCase):
    """C{--profile-memory}."""

    def test_forms(self) -> None:
        """There is an interval, and a directory unless the usual one will do."""
        self.assertEqual(parseProfile("30s"), MemoryProfile(30.0, Path("memory")))
        self.assertEqual(parseProfile("5m:/var/tmp/a:b"), MemoryProfile(300.0, Path("/var/tmp/a:b")))

    def test_mistakes(self) -> None:
        """A mistake is refused in a sentence that names the option and what would do."""
        for text, words in (
            ("often", "30s:memory"),
            ("", "30s:memory"),
            ("500ms", "1s or more"),
            ("30s:", "directory"),
        ):
            error = self.assertRaises(UsageError, parseProfile, text)
            self.assertIn("--profile-memory", str(error))
            self.assertIn(words, str(error))
