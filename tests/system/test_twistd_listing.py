"""Twisted's commands find us in the environment that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT

SOURCES = os.pathsep.join(str(ROOT / root) for root in ("src", "plugins", "."))

REACTORLESS = """
import sys
import admission.interfaces
from twisted.plugin import getPlugins
from admission.interfaces import IMemoryPoolFactory
print(*sorted(each.name for each in getPlugins(IMemoryPoolFactory)))
assert "twisted.internet.reactor" not in sys.modules, "listing installs the reactor"
assert not any(name.startswith("admission_plugins") for name in sys.modules), "listing imports implementations"
"""


class CheckoutTests(SynchronousTestCase):
    """A checkout works with nothing but C{PYTHONPATH}."""

    def output(self, program: str, *arguments: str) -> str:
        """
        Run C{program} far away from the checkout.

        @return: what it printed, both streams.
        """
        directory = Path(self.mktemp())
        directory.mkdir()
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": SOURCES, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_getPlugins(self) -> None:
        """C{getPlugins} finds the default pools, and imports neither the reactor nor an implementation for it."""
        self.assertEqual(self.output(REACTORLESS).split(), ["bounded", "fair", "unbounded"])
