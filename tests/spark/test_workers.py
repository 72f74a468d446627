"""L{admission.offline.workers}, with workers that have nothing but what the manual lists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from socket import gethostname

import pyspark
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from twisted.trial.unittest import SynchronousTestCase

from admission.offline import workers
from admission.offline.failures import WorkersLack
from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from admission.offline.workers import WORKER_MODULES, checkWorkers, hasLocalWorkers
from tests.kit.brokerprocess import ENVIRONMENT, freePort
from tests.kit.checkout import ROOT
from tests.kit.longform import longForm
from tests.kit.sparksession import sharedSession

PATIENCE_SECONDS = 60.0

_SPARK = Path(pyspark.__file__).parent
_PYTHON = """#!/bin/sh
# A Python that has what was installed for it; less of it for a worker that is started with LACKING.
export PYTHONPATH="$PYTHONPATH:{installed}${{LACKING:+-lacking}}"
exec {python} -s -S "$@"
"""


def nameOf(requirement: str) -> str:
    """The name of a distribution, as all spell it alike."""
    return canonicalize_name(Requirement(requirement).name)


def withDependencies(requirements: list[str]) -> set[str]:
    """What pip installs for requirements, as far as it is installed here."""
    names: set[str] = set()
    wanted = [*requirements]
    while wanted:
        name = nameOf(wanted.pop())
        if name not in names:
            names.add(name)
            further = metadata.requires(name) or ()
            wanted += [each for each in further if ";" not in each]
    return names


def install(requirements: list[str], directory: Path) -> None:
    """Have what pip would install for requirements, and nothing else, in a directory."""
    directory.mkdir()
    for name in withDependencies(requirements):
        for top in {file.parts[0] for file in metadata.files(name) or ()} - {"..", "__pycache__"}:
            place = directory / top
            if not place.exists():
                place.symlink_to(Path(sysconfig.get_path("purelib"), top))


class CheckTests(SynchronousTestCase):
    """L{checkWorkers}, with workers on this machine."""

    def test_there(self) -> None:
        """Workers that have everything are not complained of, and those of a session on this machine need no check."""
        session = sharedSession()
        checkWorkers(session)
        self.assertTrue(hasLocalWorkers(session))

    def test_lacking(self) -> None:
        """The sentence names the Python, the host and the module, once however many workers lack it."""
        self.patch(workers, "WORKER_MODULES", ("admission", "not_there.at_all"))
        told = str(self.assertRaises(WorkersLack, checkWorkers, sharedSession()))
        lack = f"{sys.executable} on {gethostname()} lacks the module not_there"
        self.assertTrue(told.startswith(f"Spark's workers cannot do this: {lack}; install it there"), told)
        self.assertNotIn("\n", told)


class WorkersTests(SynchronousTestCase):
    """Workers with exactly the dependencies that the manual lists."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()
        self.package = self.root / "admission.zip"
        packed = subprocess.run(
            [sys.executable, ROOT / "examples" / "spark_package.py", self.package],
            check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        words = shlex.split(packed.stdout)
        self.assertEqual(words[:2], ["pip", "install"])
        self.requirements = words[2:]
        install(self.requirements, self.root / "installed")
        install(
            [each for each in self.requirements if nameOf(each) != "mypy-extensions"], self.root / "installed-lacking"
        )
        self.python = self.root / "python"
        self.python.write_text(
            _PYTHON.format(installed=self.root / "installed", python=shlex.quote(str(Path(sys.executable).resolve())))
        )
        self.python.chmod(0o755)

    def test_listed(self) -> None:
        """The manual lists what is installed for workers."""
        manual = " ".join(ROOT.joinpath("docs", "evaluate-offline.md").read_text("utf-8").split())
        listed = re.search(r"its dependencies must be \(([^)]+)\)", manual)
        assert listed is not None
        names = [nameOf(each.strip("`")) for each in listed[1].split(", ")]
        self.assertEqual(sorted(names), sorted(map(nameOf, self.requirements)))

    def test_imports(self) -> None:
        """With these, and the package, workers import all that they need; without one of them they do not."""
        paths = os.pathsep.join(map(str, [self.package, *_SPARK.glob("python/lib/*.zip")]))
        command = [self.python, "-c", f"import {', '.join(WORKER_MODULES)}"]
        environment = {"PYTHONPATH": paths, "PATH": os.environ["PATH"]}
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, env=environment)
        lacking = subprocess.run(
            command, timeout=PATIENCE_SECONDS, env={**environment, "LACKING": "1"}, stderr=subprocess.PIPE, text=True
        )
        self.assertIn("No module named 'mypy_extensions'", lacking.stderr)

    @longForm
    def test_cluster(self) -> None:
        """A cluster without admission evaluates with the package."""
        recording = self.root / "recording"
        recordSynthetic(
            str(recording), SyntheticServer(Population(clients=4, seconds=20.0), ["client-bytes:produce=64KiB"])
        )
        port = freePort(count=2)
        address = f"spark://127.0.0.1:{port}"
        self.serve("master.Master", "--port", str(port))
        self.serve("worker.Worker", "--cores", "1", "--memory", "1g", address)
        job = ["replay", str(recording), "--out", str(self.root / "out"), "--candidate", "client-bytes:produce=32KiB"]
        package = ["--py-files", str(self.package)]
        done = self.submit(address, *package, str(ROOT / "examples" / "spark_job.py"), *job)
        self.assertIn("agrees with the recording", done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """Of Spark's programs, without our packages, which the driver has and would pass on."""
        configuration = self.root / "conf"
        configuration.mkdir(exist_ok=True)
        return {
            **{name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"},
            "SPARK_CONF_DIR": str(configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.root / "work"),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(self.python),
        }

    def serve(self, name: str, *arguments: str) -> None:
        """Start a daemon of Spark on loopback."""
        command = [_SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        with open(self.root / "daemons.log", "a") as log:
            daemon = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments], env=self.environment(), stdout=log, stderr=log
            )
        self.addCleanup(daemon.wait, PATIENCE_SECONDS)
        self.addCleanup(daemon.terminate)

    def submit(self, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a job on the cluster."""
        settings = ["--conf", "spark.ui.enabled=false", "--executor-memory", "600m"]
        return subprocess.run(
            [_SPARK / "bin" / "spark-submit", "--master", address, *settings, *arguments],
            env=self.environment(), capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS,
        )  # fmt: skip
