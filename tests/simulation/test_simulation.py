"""The whole server keeps its promises in simulations, and simulations notice when it does not."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT
from tests.kit.longform import longForm
from tests.kit.simulateddisk import PowerLost

from .__main__ import seedsToFind
from .seededbugs import BUGS
from .simulation import Simulation

FEW_SEEDS = 5
"""As a test; C{make simulate} has as many as one likes."""

MAX_SEEDS = 30
"""In how many simulations a bug that shows soon must be found; the first that does changes with the simulation."""

LONG_MAX_SEEDS = 200
"""And the others."""


class SimulationTests(SynchronousTestCase):
    """Whatever happens to it and its clients, a broker keeps what it has promised."""

    def test_few(self) -> None:
        """So it is for the first seeds."""
        for seed in range(FEW_SEEDS):
            Simulation(seed).run()
        # Noted in the middle of a request; anything else would have been a violation.
        self.flushLoggedErrors(PowerLost)

    def test_again(self) -> None:
        """A seed decides everything: in another process, with other hashes, the same happens."""
        outcomes = []
        for hashSeed in ("1", "2"):
            command = [sys.executable, "-m", "tests.simulation", "--seed", "2"]
            environment = {**os.environ, "PYTHONHASHSEED": hashSeed}
            outcomes.append(subprocess.check_output(command, cwd=ROOT, env=environment, text=True))
        self.assertIn("batches acknowledged", outcomes[0])
        self.assertEqual(outcomes[0], outcomes[1])


class SeededBugTests(SynchronousTestCase):
    """What is made wrong on purpose is found."""

    def test_first(self) -> None:
        """Some bugs show at once."""
        for name in ("a flush that has failed counts as one", "sequence numbers are not looked at"):
            self.assertIsNotNone(seedsToFind(BUGS[name], MAX_SEEDS), name)
        self.flushLoggedErrors()

    @longForm
    def test_all(self) -> None:
        """All do before long."""
        missed = [name for name, bug in BUGS.items() if seedsToFind(bug, LONG_MAX_SEEDS) is None]
        self.flushLoggedErrors()
        self.assertEqual(missed, [])
