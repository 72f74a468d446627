"""Tests for L{tests.clients.suites.results}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.suites.results import BROKER, GATEWAY, text


class PageTests(SynchronousTestCase):
    """The pages tell what the suites have found."""

    def test_current(self) -> None:
        """They are what C{make what-works} would write."""
        for page in (BROKER, GATEWAY):
            self.assertEqual(page.path.read_text("utf-8"), "".join(text(page)))
