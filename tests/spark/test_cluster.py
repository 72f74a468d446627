"""The commands on a cluster whose workers have Spark and Python and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.kit.checkout import ROOT
from tests.kit.longform import longForm
from tests.kit.s3server import copyTo, s3Server
from tests.kit.sparkcluster import SPARK, SparkCluster

_POLICY = """
from admission_plugins.clientquotas import buildClientBytes

def halfBytes(context, *, produce):
    return buildClientBytes(context, produce=f"{int(produce) // 2}")
"""

_DROPIN = """
from admission.interfaces import IQuotaPolicyFactory
from admission.plugins import PolicyFactory

halfBytes = PolicyFactory(
    IQuotaPolicyFactory,
    name="half-bytes",
    format="half-bytes:produce=RATE",
    help="Half of it.",
    implementation="acme_quotas.half.halfBytes",
)
"""


def resultsIn(directory: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each result, but for what tells where the recording was."""
    for path in sorted(directory.iterdir()):
        if path.name == "evaluation.json":
            facts = json.loads(path.read_text())
            yield path.name, json.dumps({**facts, "recording": None}).encode()
        elif path.suffix in (".csv", ".parquet"):
            yield path.name, path.read_bytes()


class ClusterTests(SynchronousTestCase):
    """A standalone master and two workers."""

    def setUp(self) -> None:
        if find_spec("moto") is None:
            raise SkipTest("it needs an S3 server: pip install 'moto[server]'")
        self.root = Path(self.mktemp()).absolute()
        recording = self.root / "recording"
        population = Population(clients=4, connections=2, seconds=20.0, requests=400)
        recordSynthetic(str(recording), SyntheticServer(population, ["client-bytes:produce=16KiB"], "bounded:8MiB"))
        servers = ExitStack()
        settings = servers.enter_context(s3Server())
        self.addCleanup(servers.close)
        copyTo(recording, "recordings", settings)
        self.cluster = SparkCluster(self.root / "cluster", settings, self.addCleanup)
        self.cluster.start()
        self.install("acme_quotas/__init__.py", "")
        self.install("acme_quotas/half.py", _POLICY)
        self.install("twisted/plugins/acme_dropin.py", _DROPIN)
        self.local, self.stored = f"file://{recording}", "s3a://recordings"

    def install(self, path: str, source: str) -> None:
        """Put a module of a third party where the command finds it, and workers do not."""
        place = self.root / "installed" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(source))

    def evaluate(self, way: str, place: str) -> dict[str, bytes]:
        """
        Evaluate a recording.

        @return: the results.
        """
        out = self.root / f"{way}-{place.partition(':')[0]}"
        tried = ["--candidate", "client-bytes:produce=8KiB", "--candidate", "half-bytes:produce=32768"]
        environment = self.cluster.environment
        paths = [str(self.root / "installed"), environment["PYTHONPATH"]]
        done = subprocess.run(
            [*self.command(way), place, "--out", str(out), *tried, "--pool", "bounded:1MiB"],
            env={
                **environment,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_SECONDS,
        )
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-4000:])
        self.assertIn("agrees with the recording", done.stdout)
        return dict(resultsIn(out))

    def command(self, way: str) -> list[str]:
        """
        The beginning of a command line, up to where Spark runs.

        @param way: in which it is told that.
        """
        if way == "spark-submit":
            submit = str(SPARK / "bin" / "spark-submit")
            return [submit, "--master", self.cluster.address, str(ROOT / "examples" / "spark_job.py"), "evaluate"]
        addresses = {"local": "local[2]", "master": self.cluster.address, "remote": self.cluster.connectAddress}
        option = "remote" if way == "remote" else "master"
        return [sys.executable, "-m", "admission", "evaluate", f"--{option}", addresses[way]]

    def assertSame(self, *pairs: tuple[str, str]) -> None:
        """
        Results are the same bytes as on this machine.

        @param pairs: ways, and places of the recording.
        """
        here = self.evaluate("local", self.local)
        self.assertGreater(len(here), 20)
        for way, place in pairs:
            if way == "remote":
                self.cluster.startConnect()
            there = self.evaluate(way, place)
            differing = [name for name in here.keys() | there.keys() if here.get(name) != there.get(name)]
            self.assertEqual(differing, [], (way, place))

    def test_everywhere(self) -> None:
        """
        Results are the same however Spark's workers are started, and wherever the recording is.  Workers are sent
        admission, what it imports, and policies of others.
        """
        self.assertSame(("master", self.local), ("remote", self.stored))

    @longForm
    def test_otherPairs(self) -> None:
        """So it is in the other combinations, and under spark-submit."""
        self.assertSame(("master", self.stored), ("spark-submit", self.local), ("remote", self.local))
