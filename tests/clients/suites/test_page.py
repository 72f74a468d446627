"""Tests for L{tests.clients.suites.results}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.suites.results import PAGE, page


class PageTests(SynchronousTestCase):
    """The page tells what the suites have found."""

    def test_current(self) -> None:
        """It is what C{make what-works} would write."""
        self.assertEqual(PAGE.read_text("utf-8"), "".join(page()))
