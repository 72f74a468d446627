"""L{admission.offline.workers}, with workers that have nothing but what the manual lists."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
from functools import cache
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


def makePython(requirements: list[str], directory: Path) -> Path:
    """A Python in an environment that has what pip would install for requirements, and nothing else."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for name in withDependencies(requirements):
        for top in {file.parts[0] for file in metadata.files(name) or ()} - {"..", "__pycache__"}:
            place = packages / top
            if not place.exists():
                place.symlink_to(Path(sysconfig.get_path("purelib"), top))
    return directory / "bin" / "python"


@cache
def prepared() -> tuple[Path, list[str], Path, Path]:
    """
    What workers need, once for all tests.

    @return: the package; what is to be installed besides; a Python with all of it, and one that lacks a part.
    """
    scratch = tempfile.TemporaryDirectory(prefix="admission-workers-")
    atexit.register(scratch.cleanup)
    root = Path(scratch.name)
    package = root / "admission.zip"
    packed = subprocess.run(
        [sys.executable, ROOT / "examples" / "spark_package.py", package],
        check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    pip, install, *requirements = shlex.split(packed.stdout)
    assert (pip, install) == ("pip", "install"), packed.stdout
    fewer = [each for each in requirements if nameOf(each) != "mypy-extensions"]
    return package, requirements, makePython(requirements, root / "listed"), makePython(fewer, root / "lacking")


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
        self.package, self.requirements, self.python, self.lackingPython = prepared()

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
        command = ["-c", f"import {', '.join(WORKER_MODULES)}"]
        environment = {"PYTHONPATH": paths, "PATH": os.environ["PATH"]}
        subprocess.run([self.python, *command], check=True, timeout=PATIENCE_SECONDS, env=environment)
        lacking = subprocess.run(
            [self.lackingPython, *command], timeout=PATIENCE_SECONDS, env=environment, stderr=subprocess.PIPE, text=True
        )
        self.assertIn("No module named 'mypy_extensions'", lacking.stderr)

    def test_oneLacks(self) -> None:
        """The one worker of two that lacks a module is named with its Python, and nothing is begun."""
        self.serve(self.python, self.lackingPython)
        done = self.submit("python", "--py-files", str(self.package))
        self.assertLacks(done, f"{self.lackingPython} on {gethostname()} lacks the module mypy_extensions")

    @longForm
    def test_cluster(self) -> None:
        """With the package workers do all that there is to do; without it they lack admission."""
        self.serve(self.python, self.python)
        done = self.submit(str(self.python))
        self.assertLacks(done, f"{self.python} on {gethostname()} lacks the module admission")
        done = self.submit(str(self.python), "--py-files", str(self.package))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("agrees with the recording", done.stdout, done.stderr)

    def assertLacks(self, done: subprocess.CompletedProcess[str], lack: str) -> None:
        """A sentence says what is lacking, and no job ran but the one that has found that."""
        (told,) = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("admission: ")]
        self.assertTrue(told.startswith(f"admission: Spark's workers cannot do this: {lack}; install it there"), told)
        self.assertEqual(done.returncode, 1)
        (job,) = re.findall(r"Got (?:map stage )?job \d+ \((.+?):\d+\)", done.stderr)
        self.assertTrue(job.endswith("admission/offline/workers.py"), job)

    def environment(self) -> dict[str, str]:
        """Of Spark's programs."""
        configuration = self.root / "conf"
        configuration.mkdir(exist_ok=True)
        return {
            **ENVIRONMENT,
            "SPARK_CONF_DIR": str(configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.root / "work"),
            # Five Javas start here; what their second compiler would gain is less than it costs.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def serve(self, *pythons: Path) -> None:
        """Start a cluster on loopback, with a worker for each Python, which is the first of its C{PATH}."""
        port = freePort(count=2)
        self.address = f"spark://127.0.0.1:{port}"
        self.start("master.Master", os.environ["PATH"], "--port", str(port))
        for python in pythons:
            path = os.pathsep.join((str(python.parent), os.environ["PATH"]))
            self.start("worker.Worker", path, "--cores", "1", "--memory", "1g", self.address)

    def start(self, name: str, path: str, *arguments: str) -> None:
        """Start a daemon of Spark."""
        environment = {**self.environment(), "PATH": path}
        # The workers of a worker see what it sees, and our packages are not where it runs.
        del environment["PYTHONPATH"]
        command = [_SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        with open(self.root / "daemons.log", "a") as log:
            daemon = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments], env=environment, stdout=log, stderr=log
            )
        self.addCleanup(daemon.wait, PATIENCE_SECONDS)
        self.addCleanup(daemon.terminate)

    def submit(self, python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Evaluate a recording on the two workers of the cluster, which run a Python."""
        recording = self.root / "recording"
        if not recording.exists():
            population = Population(clients=4, seconds=20.0)
            recordSynthetic(str(recording), SyntheticServer(population, ["client-bytes:produce=64KiB"]))
        settings = {
            "spark.ui.enabled": "false",
            "spark.executor.memory": "600m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # Nothing is begun before both are there.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_SECONDS:.0f}s",
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        job = ["evaluate", str(recording), "--out", str(self.root / "out"), "--candidate", "client-bytes:produce=32KiB"]
        return subprocess.run(
            [_SPARK / "bin" / "spark-submit", "--master", self.address, *options, *arguments,
             ROOT / "examples" / "spark_job.py", *job],
            env={**self.environment(), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": python},
            capture_output=True, text=True, timeout=10 * PATIENCE_SECONDS,
        )  # fmt: skip
