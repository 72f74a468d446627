"""
Who may import whom, read from the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT

EVERYONE = {"interfaces", "plaintext", "units", "_version", "lazynames"}
FOUNDATION = {"clock", "plugins", "operations", "metrics"}

ALLOWED = {
    "interfaces": set[str](),
    "plaintext": set[str](),
    "units": set[str](),
    "_version": set[str](),
    "lazynames": set[str](),
    "clock": EVERYONE,
    "memorylimit": EVERYONE,
    "plugins": EVERYONE,
    "operations": EVERYONE,
    "metrics": EVERYONE,
    "quotas": EVERYONE | {"metrics"},
    "control": EVERYONE | {"metrics", "quotas", "request"},
    "gate": EVERYONE | FOUNDATION,
    "request": EVERYONE,
    "recording": EVERYONE | {"metrics", "request"},
    "connection": EVERYONE | FOUNDATION | {"control", "gate", "request", "memorylimit"},
    "profiling": EVERYONE | FOUNDATION | {"control"},
    "testing": EVERYONE | FOUNDATION | {"control", "gate", "recording"},
    "status": EVERYONE | {"profiling", "control", "gate", "connection", "metrics"},
    "kafka": EVERYONE
    | FOUNDATION
    | {
        "control",
        "gate",
        "request",
        "connection",
        "quotas",
        "recording",
        "profiling",
        "status",
        "memorylimit",
    },
    "offline": EVERYONE | {"control", "gate", "request", "recording", "plugins", "metrics"},
    "cli": EVERYONE | {"commands"},
    "commands": EVERYONE | {"clock", "kafka", "memorylimit", "offline", "plugins", "profiling"},
    "admission_plugins": EVERYONE | {"operations", "quotas", "metrics", "recording"},
    "pyspark_admission": EVERYONE | {"plugins", "quotas", "metrics", "recording"},
    "drop-ins": EVERYONE | {"plugins"},
}
"""For each part of the project the other parts that it may import."""

ARGUED = {
    ("offline", "kafka"): "synthetic servers record what the broker does",
    ("offline", "pyspark_admission"): "what Spark is told of tables is said there once",
    ("offline", "status"): "sizes are written as the page does",
    ("status", "kafka"): "the sections of the page are the broker's",
    ("drop-ins", "kafka"): "cred and endpoints want providers of their interfaces, which are light classes there",
}
"""Arrows added since the table was drawn, and why."""

CLOCKS = {
    "time": {
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
    },
    "datetime": {"now", "utcnow", "today"},
}

SPARK = {"offline", "pyspark_admission", "admission_plugins.spark"}


@frozen
class Import:
    """
    One name that a module imports.

    @ivar name: the absolute name, C{a.b} for both C{import a.b} and C{from a import b}.
    @ivar line: where.
    @ivar atImport: whether it happens when the module itself is imported.
    """

    name: str
    line: int
    atImport: bool


def importsOf(tree: ast.Module, module: str, isPackage: bool = False) -> Iterator[Import]:
    """
    Find all imports of a module, relative ones resolved, those for type
    checkers included.
    """
    package = module.split(".") if isPackage else module.split(".")[:-1]

    def visit(node: ast.AST, atImport: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, atImport)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                origin = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    yield Import(f"{origin}.{alias.name}", child.lineno, atImport)
            inFunction = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, atImport and not inFunction)

    return visit(tree, True)


def partOf(name: str) -> str | None:
    """
    The part of the project that an imported name belongs to, if any.
    """
    words = name.split(".")
    if words[0] == "admission":
        return words[1] if len(words) > 1 and not words[1].startswith("__") else None
    return words[0] if words[0] in ALLOWED else None


def complaints(source: str, module: str, isPackage: bool = False) -> Iterator[tuple[int, str]]:
    """
    Check one module: the lines that break a rule, and which.
    """
    tree = ast.parse(source)
    part = "drop-ins" if module.startswith("twisted.plugins.") else partOf(module)
    for each in importsOf(tree, module, isPackage):
        other = partOf(each.name)
        if other == "admission_plugins" and part != other:
            yield (
                each.line,
                "default policies are found by name, so that they have no private door; import none of them",
            )
        elif part and other not in (None, part) and other not in ALLOWED[part] and (part, other) not in ARGUED:
            allowed = sorted(ALLOWED[part] | {target for origin, target in ARGUED if origin == part})
            yield each.line, f"{part} may not import {other}, only {', '.join(allowed) or 'nothing of ours'}"
        if each.atImport and (each.name + ".").startswith("twisted.internet.reactor."):
            yield each.line, "importing the reactor installs it; have it handed in, or import it inside a function"
        if each.name.split(".")[0] == "pyspark" and part not in SPARK and module not in SPARK:
            yield each.line, "pyspark is an extra and heavy; only admission.offline and the Spark data source use it"
    if module != "admission.clock":
        yield from clockReads(tree)


def clockReads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """
    Find where a module reads a clock by itself.
    """
    remedy = "have a clock handed in; only admission.clock reads one"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and not node.level:
            for alias in node.names:
                if alias.name in CLOCKS["time"]:
                    yield node.lineno, f"time.{alias.name}: {remedy}"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if node.attr in CLOCKS.get("datetime" if owner == "date" else owner, ()):
                yield node.lineno, f"{owner}.{node.attr}: {remedy}"


def modules() -> Iterator[tuple[Path, str, bool]]:
    """
    Every module of ours that users get: its file, its name, whether it is a package.
    """
    for root, pattern in [("src", "**/*.py"), ("plugins", "**/*.py"), (".", "twisted/plugins/*.py")]:
        for path in sorted((ROOT / root).glob(pattern)):
            words = list(path.relative_to(ROOT / root).with_suffix("").parts)
            isPackage = words[-1] == "__init__"
            yield path, ".".join(words[:-1] if isPackage else words), isPackage


class ImportRulesTests(SynchronousTestCase):
    """
    Our modules keep to the rules.
    """

    def test_rules(self) -> None:
        """
        No module breaks one.
        """
        broken = [
            f"{path.relative_to(ROOT)}:{line}: {complaint}"
            for path, module, isPackage in modules()
            for line, complaint in complaints(path.read_text(encoding="utf-8"), module, isPackage)
        ]
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_everyPartHasARule(self) -> None:
        """
        A new part of the project gets a row in the table.
        """
        parts = {partOf(module) for path, module, isPackage in modules() if not module.startswith("twisted.")}
        self.assertEqual(parts - set(ALLOWED) - {None}, set())


class OneRuleTests(SynchronousTestCase):
    """
    What admits requests is written once, and recording only observes.
    """

    def test_policiesAreAskedByControl(self) -> None:
        """
        Nobody but L{admission.control} puts a request to a policy; base classes and policies may call their own.
        """
        asking = {
            module
            for path, module, _ in modules()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
            and (node.attr == "decide" or (node.attr == "record" and ast.unparse(node.value) in ("policy", "member")))
            and ast.unparse(node.value) != "lane"
        }
        self.assertEqual(
            {module for module in asking if not module.startswith("admission.testing.")}, {"admission.control"}
        )

    def test_nobodyAsksWhetherItIsRecorded(self) -> None:
        """
        Code that serves does not look whether somebody records.
        """
        serving = (
            "admission.gate",
            "admission.control",
            "admission.connection.",
            "admission.kafka.broker.",
        )
        for path, module, _ in modules():
            if not module.startswith(serving):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
                    compared = ast.unparse(node.left).rpartition(".")[2]
                    self.assertNotIn(compared, ("recorded", "recorder", "recording"), f"{module}:{node.lineno}")


class RulesTests(SynchronousTestCase):
    """
    The rules notice what they forbid.
    """

    def check(self, source: str, module: str) -> list[str]:
        """
        What is wrong with C{source} as C{module}.
        """
        return [complaint for line, complaint in complaints(dedent(source), module)]

    def test_layers(self) -> None:
        """
        An import against the table is found, however it is written.
        """
        for source in [
            "import admission.kafka.service",
            "from admission.kafka.broker import service",
            "from admission import kafka",
            "from . import kafka",
            "from .kafka.service import makeService",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .kafka import service",
            "def f():\n    from .kafka import service",
        ]:
            [complaint] = self.check(source, "admission.gate")
            self.assertTrue(complaint.startswith("gate may not import kafka, only "), complaint)

    def test_relativeLevels(self) -> None:
        """
        Dots are counted from the package of the module.
        """
        self.assertEqual(self.check("from ..gate import Gate", "admission.kafka.session"), [])
        self.assertEqual(self.check("from ...connection import codec", "admission.kafka.broker.fetch"), [])
        self.assertEqual(self.check("from .gate import Gate", "admission.kafka.session"), [])
        self.assertEqual(len(self.check("from ....kafka import options", "admission.metrics.codec.fast")), 1)

    def test_allowed(self) -> None:
        """
        What the table or the list of arguments allows passes, and so do other people's modules.
        """
        for source, module in [
            ("from ..gate import Gate", "admission.connection.factory"),
            ("from admission.units import parseBytes", "admission_plugins.bounded"),
            ("from .wheel import Wheel", "admission_plugins.purgatory"),
            ("from admission import __version__", "admission.kafka.service"),
            ("import twisted.internet.task, attrs", "admission.gate"),
        ]:
            self.assertEqual(self.check(source, module), [])

    def test_defaultPolicies(self) -> None:
        """
        Nothing imports a default policy.
        """
        self.assertIn("found by name", self.check("import admission_plugins.bounded", "admission.kafka.service")[0])
        self.assertIn("found by name", self.check("import admission_plugins.bounded", "twisted.plugins.ours")[0])

    def test_reactor(self) -> None:
        """
        The reactor is not imported with a module, but may be inside a function.
        """
        for source in ["from twisted.internet import reactor", "class A:\n    import twisted.internet.reactor"]:
            self.assertIn("have it handed in", self.check(source, "admission.gate")[0])
        self.assertEqual(self.check("def f():\n    from twisted.internet import reactor", "admission.gate"), [])
        self.assertEqual(self.check("from twisted.internet import reactors", "admission.gate"), [])

    def test_clocks(self) -> None:
        """
        Clocks are read in one module only.
        """
        for source in [
            "import time\ntime.monotonic()",
            "from time import perf_counter",
            "import datetime\ndatetime.datetime.now()",
            "from datetime import date\ndate.today()",
        ]:
            self.assertIn("have a clock handed in", self.check(source, "admission_plugins.wheel")[0])
        self.assertEqual(self.check("import time\ntime.monotonic()", "admission.clock"), [])
        self.assertEqual(self.check("import time\ntime.sleep(1)\nself.time(2)", "admission.gate"), [])

    def test_pyspark(self) -> None:
        """
        Spark stays with those who need it.
        """
        self.assertIn("pyspark is an extra", self.check("import pyspark.sql", "admission.cli")[0])
        self.assertEqual(self.check("from pyspark.sql import SparkSession", "admission.offline.ingest"), [])
        self.assertEqual(self.check("from pyspark.sql import datasource", "admission_plugins.spark"), [])
