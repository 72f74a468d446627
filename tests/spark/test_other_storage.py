"""Recordings in other storage, on a real S3 server of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS
from tests.kit.recordings import writeRecording
from tests.kit.s3server import copyTo, s3Server
from tests.spark.test_pyspark_admission import someEvents


class OtherStorageTests(SynchronousTestCase):
    """Recordings named by a URL."""

    def setUp(self) -> None:
        if find_spec("moto") is None:
            raise SkipTest("it needs an S3 server: pip install 'moto[server]'")

    def test_same(self) -> None:
        """A copy in other storage is read as the recording is, in each way, and results may go there."""
        directory, out = Path(self.mktemp()).absolute(), Path(self.mktemp()).absolute()
        recordSynthetic(
            str(directory / "a whole"),
            SyntheticServer(
                Population(clients=4, connections=2, seconds=20.0, requests=400),
                ["client-bytes:produce=16KiB"],
                "bounded:8MiB",
            ),
        )
        writeRecording(directory / "a part", someEvents(3))
        writeRecording(directory / "a part", someEvents(2), isSealed=False)
        with s3Server() as settings:
            copyTo(directory, "recordings", settings)
            arguments = [str(directory), "s3a://recordings", str(out)]
            process = subprocess.run(
                [*DYING_WITH_US, sys.executable, "-m", "tests.spark.otherstorage", *arguments],
                env={**ENVIRONMENT, **settings},
                capture_output=True,
                text=True,
                timeout=10 * PATIENCE_SECONDS,
            )
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        found = json.loads(process.stdout.splitlines()[-1])
        for table in ("requests", "connections", "limits", "sensors"):
            rows, differing = found[table]
            self.assertGreater(rows, 1, table)
            self.assertEqual([differing, found[f"{table} of Recording"]], [0, 0], table)
        self.assertEqual([found["stream"], found["problems"]], [[3, 0], 0])
        self.assertGreater(found["results"][0], 20)
        self.assertEqual([found["results"][1], found["stored"]], [[], []])
