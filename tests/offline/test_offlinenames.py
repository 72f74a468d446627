"""The names that L{admission.offline} publishes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.test_publicnames import assertDoor


class OfflineNamesTests(SynchronousTestCase):
    """The door of the offline part, of which the modules need its packages."""

    def test_everyName(self) -> None:
        """Each can be imported, and is what type checkers take it for."""
        assertDoor(self, "admission.offline")
