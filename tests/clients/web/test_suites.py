"""The tests that Twisted, Klein and treq bring find the same with every port protected."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.clients.web.suites import SUITES, differences, installed, run
from tests.kit.longform import longForm


@longForm
class SuitesTests(SynchronousTestCase):
    """Each of them."""

    def test_same(self) -> None:
        """Nothing else becomes of any test, and there were ports."""
        with installed() as packages:
            for suite in SUITES:
                plain, protected = run(suite, False, packages), run(suite, True, packages)
                self.assertEqual((protected.tests, differences(plain, protected)), (plain.tests, []), suite)
                if suite == "twisted.web.test":
                    self.assertGreater(protected.ports.get("site", 0), 50)
