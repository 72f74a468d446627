"""
Imitates a loss of power, or a kill, at any moment, on a simulated disk that keeps no more of what was not flushed than
it must: images that no real machine can be made to give in such numbers.  The unit tests live through the first of
these histories.
"""

from __future__ import annotations

import gc
import os
import time

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.attack import sized
from tests.kit.powerhistory import PowerHistory

FIRST_SEED = 10_000
"""Those before are those of C{tests.unit.kafka.broker.log.test_power}."""

HISTORIES = sized(500, 10_000)


class PowerLossTests(SynchronousTestCase):
    """The log keeps its promises."""

    def test_histories(self) -> None:
        """The log opens, has what it has confirmed, in order and once, and has invented nothing."""
        root = self.mktemp()
        os.makedirs(root)
        begun = time.monotonic()
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            PowerHistory(seed, root).run()
        # The logs die in the middle of everything.
        gc.collect()
        self.flushLoggedErrors()
        print(f"\n{HISTORIES} losses of power: none has broken a promise, in {time.monotonic() - begun:.0f} s")
