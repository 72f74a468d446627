"""The soak runs, and finds what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.soak import lineThrough, lowest
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.checkout import ROOT
from tests.kit.longform import longForm

PATIENCE_SECONDS = 600


class LineTests(SynchronousTestCase):
    """What rises, beneath what is held for a moment."""

    def rise(self, perPoint: float) -> tuple[float, float]:
        """
        The rise that is found of what grows by C{perPoint}, comes with noise ten times as large, and is hidden by
        what an attack holds in half of the points; and twice its standard error.
        """
        random = Random(17)
        points = [
            (float(number), 100 + perPoint * number + random.uniform(0, 1) + random.choice([0, 50]))
            for number in range(100)
        ]
        line = lineThrough(lowest(points))
        return line.rise, 2 * line.errorOfRise

    def test_flat(self) -> None:
        """What is held during attacks is no rise."""
        rise, give = self.rise(0.0)
        self.assertLess(abs(rise), max(1.0, give))

    def test_rises(self) -> None:
        """What never comes back is one, as large as it is."""
        rise, give = self.rise(0.1)
        self.assertLess(abs(rise - 10.0), 2.0)
        self.assertGreater(rise, give)


@longForm
class SoakTests(SynchronousTestCase):
    """The soak as a person starts it, for a minute."""

    def test_minute(self) -> None:
        """
        Connections cost what the manual says, nothing is lost, nothing is stored twice, and nothing is left when all
        have gone.
        """
        command = [sys.executable, "-m", "benchmarks.soak"]
        result = subprocess.run(
            [*command, "--minutes", "1", "--idle", "200", "--paused", "50", "--json"],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        kinds = {row["kind"]: row["count"] for row in found["connections"]}
        self.assertEqual(
            kinds,
            {
                "idle, TCP": 160,
                "idle, TLS": 40,
                "throttled, TCP": 50,
                "Fetch waits, TCP": 50,
                "paused for memory, TCP": 50,
            },
        )
        self.assertEqual({row["verdict"] for row in found["second half"]}, {"too short"})
        counts = {row["what"]: row["count"] for row in found["clients"]}
        self.assertGreater(counts["records acknowledged"], 1000)
        self.assertGreater(counts["clients killed"], 0)
        self.assertGreater(counts["attacks"], 2)
