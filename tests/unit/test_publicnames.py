"""Tests for L{admission.lazynames} and the packages that publish names by it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.lazynames import publishedBy
from tests.kit.checkout import ROOT

PACKAGES = (
    "admission",
    "admission.kafka",
    "admission.metrics",
    "admission.kafka.testing",
    "admission.offline",
    "admission.profiling",
    "admission.quotas",
    "admission.recording",
    "admission.status",
    "admission.testing",
    "admission.web",
    "admission_plugins",
)
MODULES = ("admission.clock", "admission.garbage", "admission.interfaces", "admission.operations", "admission.units")
"""The modules that publish all that they define."""

_IMPORTS = re.compile(
    r"^[ >]*from ((?:admission|admission_plugins|pyspark_admission)(?:\.\w+)*) import (\([^)]*\)|[^\n(]+)$", re.M
)

HEAVY = ("twisted.internet", "kio", "pyarrow", "pyspark", "OpenSSL", "rbloom", "pympler", "numpy")


def programText(path: Path) -> str:
    """A page or a program as it is; of a notebook what it has in its cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def announced(package: str) -> Iterator[str]:
    """The names that a package tells type checkers of."""
    path = import_module(package).__file__
    assert path is not None
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    assert alias.asname == alias.name
                    yield f"{statement.module}.{alias.name}"


def assertDoor(test: SynchronousTestCase, package: str) -> None:
    """A package publishes the names that it tells type checkers of, each from where it says."""
    door = import_module(package)
    found = []
    for full in announced(package):
        module, _, name = full.rpartition(".")
        found.append(name)
        test.assertIs(getattr(door, name), getattr(import_module(f"{package}.{module}"), name), full)
    test.assertEqual(sorted(found), door.__all__)
    test.assertEqual(dir(door), door.__all__)


class DocumentsTests(SynchronousTestCase):
    """The manual and the examples show what users may rely on."""

    def test_publicOnly(self) -> None:
        """They import public names only, and the function that is the command."""
        found = [
            f"{path.relative_to(ROOT)}: from {module} import {name}"
            for pattern in ("README.md", "docs/*.md", "examples/**/*.py", "examples/**/*.ipynb")
            for path in sorted(ROOT.glob(pattern))
            for module, names in _IMPORTS.findall(programText(path))
            for name in names.strip("()").replace("\n", " ").split(",")
            if name.strip()
            and (module, name.split()[0]) != ("admission.cli", "main")
            and (module not in (*PACKAGES, *MODULES) or name.split()[0] not in publishedBy(module))
        ]
        self.assertEqual(found, [], "\n" + "\n".join(found))


class PublicNamesTests(SynchronousTestCase):
    """The front door and the side doors."""

    def test_everyName(self) -> None:
        """Each can be imported, and is what type checkers take it for; L{tests.offline} has the offline part."""
        for package in PACKAGES:
            if package != "admission.offline":
                assertDoor(self, package)

    def test_missing(self) -> None:
        """A name that is not there is refused as that of any module."""
        with self.assertRaisesRegex(AttributeError, "module 'admission' has no attribute 'Kafka'"):
            _ = import_module("admission").Kafka
        with self.assertRaisesRegex(ImportError, "cannot import name 'Kafka' from 'admission'"):
            exec("from admission import Kafka")

    def test_elsewhere(self) -> None:
        """A name that another door publishes is refused with the place where it is."""
        for name, module in (("LimitTable", "quotas"), ("Outcome", "interfaces"), ("parseBytes", "units")):
            with self.assertRaisesRegex(ImportError, f"write `from admission.{module} import {name}`"):
                exec(f"from admission import {name}")

    def test_light(self) -> None:
        """Importing the packages imports none of their modules."""
        program = (
            f"import sys, {', '.join(PACKAGES)}\n"
            f"print([name for name in sys.modules if name.startswith({HEAVY!r})])\n"
            "print(sorted(name for name in sys.modules if name.startswith('admission')))"
        )
        printed = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
        self.assertEqual(printed[0], "[]")
        self.assertEqual(
            printed[1], repr(sorted([*PACKAGES, "admission._version", "admission.extras", "admission.lazynames"]))
        )
