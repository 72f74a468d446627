"""C{twistd web}, which needs nothing but Twisted, as the other servers of L{tests.clients.servers.table} are tried."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.servers.__main__ import run

_SILENT = "60 silent readers of 16 MiB"


class TwistdWebTests(SynchronousTestCase):
    """Its own command line, with a prefix before the description of its port."""

    def test_promises(self) -> None:
        """Its users see the same, and of readers that are silent it keeps no more than is promised."""
        plainSeen, _, _ = run("twistd web", False, ())
        seen, _, (figures,) = run("twistd web", True, [_SILENT])
        self.assertEqual(seen, plainSeen)
        self.assertNotIn("memory", figures.broken())
        self.assertFalse(figures.failures)
