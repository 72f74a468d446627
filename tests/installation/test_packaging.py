"""
Every way to install us is one in which Twisted finds the plug-ins.

Real packages are built and installed, each into a virtual environment of its
own, which sees the dependencies of the environment that runs the tests.  The
build fetches setuptools, as C{pip install} would.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT
from tests.kit.longform import longForm

_NOT_OURS = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "dropin.cache"
)
_NOT_OURS_AT_THE_TOP = shutil.ignore_patterns("_trial_temp*", "build", "dist", "data")

_LISTING = """
import json, sys, admission
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from admission.interfaces import IMemoryPoolFactory
from admission.plugins import listFactories
json.dump({
    "admission": admission.__file__,
    "services": [each.tapname for each in getPlugins(IServiceMaker)],
    "pools": [each.name for each in getPlugins(IMemoryPoolFactory)],
    "built": [each.factory.resolve().__module__ for each in listFactories(IMemoryPoolFactory)],
}, sys.stdout)
"""


def run(command: Sequence[str | Path], directory: Path) -> str:
    """
    Run C{command} outside the checkout's influence.

    @return: what it wrote to its standard output.
    @raise AssertionError: if it failed, with all that it wrote.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        command, cwd=directory, env={**environment, "COLUMNS": "200"}, capture_output=True, text=True, timeout=300
    )
    if result.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


class Environment:
    """A fresh virtual environment that sees the dependencies, and us only when we are installed."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=False)
        self.directory = directory
        self.python = directory / "bin" / "python"
        [packages] = directory.glob("lib/python*/site-packages")
        # Directories named in a .pth file have their own .pth files ignored, so no editable install comes along.
        dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        packages.joinpath("dependencies.pth").write_text("\n".join(sorted(dependencies)))

    def install(self, *arguments: str | Path) -> None:
        """Have pip install something, without its dependencies."""
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--no-deps", *arguments], self.directory)

    def program(self, source: str, *arguments: str) -> str:
        """Run a program in the environment."""
        return run([self.python, "-c", source, *arguments], self.directory)


@frozen
class Built:
    """What was built of a copy of the checkout."""

    scratch: Path
    source: Path
    sdist: Path
    wheel: Path


@cache
def build() -> Built:
    """
    Build the source distribution, and the wheel from it, once in a run; the
    test runners have no fixtures in common that would do.
    """
    scratch = Path(tempfile.mkdtemp(prefix="admission-packaging-")).resolve()
    atexit.register(shutil.rmtree, scratch)
    source = copyCheckout(scratch / "source")
    distributions = scratch / "dist"
    run([sys.executable, "-m", "build", "--outdir", distributions, source], scratch)
    [sdist], [wheel] = distributions.glob("*.tar.gz"), distributions.glob("*.whl")
    return Built(scratch, source, sdist, wheel)


def copyCheckout(target: Path) -> Path:
    """Copy the checkout, so that building leaves nothing in it."""

    def ignore(directory: str, names: list[str]) -> set[str]:
        top = _NOT_OURS_AT_THE_TOP(directory, names) if Path(directory) == ROOT else set()
        return top | _NOT_OURS(directory, names)

    return Path(shutil.copytree(ROOT, target, symlinks=True, ignore=ignore))


class InstallationTests(SynchronousTestCase):
    """Whichever way we are installed, the plug-ins are found."""

    def setUp(self) -> None:
        self.built = build()
        self.source = self.built.source

    def assertFound(self, environment: Environment, home: Path) -> None:
        """Check that all ways to ask list the plug-ins, of the copy below C{home}."""
        listing = json.loads(environment.program(_LISTING))
        self.assertTrue(Path(listing["admission"]).is_relative_to(home), listing)
        self.assertEqual(listing["services"].count("admission"), 1)
        self.assertEqual(sorted(listing["pools"]), ["bounded", "fair", "unbounded"])
        self.assertEqual(listing["built"], ["admission_plugins.bounded"] * 3)
        twistd = environment.program("from twisted.scripts.twistd import run; run()", "--help")
        twist = run([environment.python, "-m", "twisted", "--help"], environment.directory)
        for output in (twistd, twist):
            self.assertRegex(output, r"\badmission +A Kafka-compatible broker")

    def test_wheel(self) -> None:
        """A wheel, made from the source distribution, has them."""
        environment = Environment(self.built.scratch / "wheel")
        environment.install("--no-index", self.built.wheel)
        self.assertFound(environment, environment.directory)

    @longForm
    def test_editable(self) -> None:
        """
        C{pip install -e .} has them, and puts nothing else on the path; a drop-in that appears in the checkout is
        found, and one that disappears does no harm.
        """
        source = copyCheckout(self.built.scratch / "editable-source")
        environment = Environment(self.built.scratch / "editable")
        environment.install("--editable", source)
        self.assertFound(environment, source)
        paths = environment.program("import sys; print(*sys.path, sep='\\n')").splitlines()
        self.assertNotIn(str(source), paths, "the tests would be everybody's")

        policies = source / "twisted" / "plugins" / "admission_policies.py"
        more = policies.with_name("admission_more.py")
        more.write_text(policies.read_text().replace("bounded", "limited"))
        pools = json.loads(environment.program(_LISTING.replace(".resolve()", "")))["pools"]
        self.assertEqual(sorted({*pools}), ["bounded", "fair", "limited", "unbounded", "unlimited"])
        more.unlink()
        self.assertFound(environment, source)

    def test_wheelContents(self) -> None:
        """
        The wheel has our modules, their assets, the drop-ins and the typing markers, and
        nothing that would make C{twisted} a package of ours.
        """
        with zipfile.ZipFile(self.built.wheel) as archive:
            names = set(archive.namelist())
        expected = {
            str(path.relative_to(root))
            for root in (self.source / "src", self.source / "plugins")
            for pattern in ("*.py", "py.typed", "assets/*")
            for path in root.rglob(pattern)
        }
        expected |= {str(path.relative_to(self.source)) for path in self.source.glob("twisted/plugins/*.py")}
        information = {name for name in names if ".dist-info/" in name}
        self.assertEqual(names - information, expected)
        self.assertTrue(any(name.endswith("/LICENSE") for name in information))

    def test_sdistContents(self) -> None:
        """The source distribution has what a packager needs to test it."""
        with tarfile.open(self.built.sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        wanted = {"LICENSE", "Makefile", "README.md", "CONTRIBUTING.md", "setup.cfg", "setup.py", "pyproject.toml"}
        wanted |= {
            "tests/installation/test_packaging.py",
            "docs/configuration.md",
            "twisted/plugins/admission_broker.py",
        }
        self.assertEqual(wanted - names, set())
        self.assertEqual([name for name in names if name.endswith((".pyc", "dropin.cache"))], [])


class LayoutTests(SynchronousTestCase):
    """The checkout is laid out as packaging needs it."""

    def test_twistedIsNoPackage(self) -> None:
        """C{twisted} and C{twisted/plugins} have no C{__init__.py}, which would hide Twisted itself."""
        self.assertEqual(list((ROOT / "twisted").rglob("__init__.py")), [])
