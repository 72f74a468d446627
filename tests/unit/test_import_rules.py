"""The import rules, read from the source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.checkout import ROOT

ALL_ABOVE = "all of the above but "


def tableIn(text: str) -> dict[str, set[str]]:
    """
    For each part of the project the other parts that it may import, as the
    table in ARCHITECTURE.md says it.

    @raise ValueError: if a part may import one that stands below it.
    """
    table: dict[str, set[str]] = {}
    for row in re.findall(r"^\| `([\w.-]+)` \|[^|]*\|([^|]*)\|$", text, re.MULTILINE):
        part, cell = row
        named = set(re.findall(r"`([\w.-]+)`", cell))
        allowed = set(table) - named if cell.strip().startswith(ALL_ABOVE) else named
        if allowed - set(table):
            raise ValueError(f"{part} may not import what stands below it: {', '.join(sorted(allowed - set(table)))}")
        table[part] = allowed
    return table


ALLOWED = tableIn((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
}

SPARK = {"offline", "pyspark_admission"}


CONVENTIONAL = {"__init__.py", "__main__.py"}

KNOW_KAFKA = ("admission.kafka", "admission.commands.kafka", "twisted.plugins.")

_KAFKAS = re.compile(
    r"kafka|^(api_?(key|version)s?|correlation_?id|producer_?epoch|group_?id|broker_?epoch)$", re.IGNORECASE
)

_PROTOCOLS = re.compile(r"produced?(?!r)|fetch|broker|topic", re.IGNORECASE)
"""Words of protocols, but for Twisted's producers."""

NEUTRAL = tuple(
    f"admission.{part}"
    for part in (
        *("admission", "connection", "control", "gate", "interfaces", "metrics", "operations", "plugins"),
        *("profiling", "quotas", "recording", "request", "status", "testing", "units"),
    )
)
"""The framework's own parts."""


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
    """Find all imports of a module, relative ones resolved, those for type checkers included."""
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
    """The part of the project that an imported name belongs to, if any."""
    words = name.split(".")
    if words[0] == "admission":
        inner = ".".join(words[1:3])
        if inner in ALLOWED:
            return inner
        return words[1] if len(words) > 1 and not words[1].startswith("__") else None
    return words[0] if words[0] in ALLOWED else None


def complaints(tree: ast.Module, module: str, isPackage: bool = False) -> Iterator[tuple[int, str]]:
    """Check one module: the lines that break a rule, and which."""
    part = "drop-ins" if module.startswith("twisted.plugins.") else partOf(module)
    for each in importsOf(tree, module, isPackage):
        other = partOf(each.name)
        if other == "admission_plugins" and part != other:
            yield (
                each.line,
                "default policies are found by name, so that they have no private door; import none of them",
            )
        elif part and other not in (None, part) and other not in ALLOWED[part]:
            allowed = sorted(ALLOWED[part])
            yield each.line, f"{part} may not import {other}, only {', '.join(allowed) or 'nothing of ours'}"
        if each.atImport and (each.name + ".").startswith("twisted.internet.reactor."):
            yield each.line, "importing the reactor installs it; have it handed in, or import it inside a function"
        if each.name.split(".")[0] == "pyspark" and part not in SPARK and module not in SPARK:
            yield each.line, "pyspark is an extra and heavy; only admission.offline and the Spark data source use it"
    if module != "admission.clock":
        yield from clockReads(tree)


def clockReads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find where a module reads a clock by itself."""
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


def importGraph() -> Mapping[str, set[str]]:
    """
    Which of our modules each of them imports.  Packages that only publish
    names are left out: importing one imports none of its modules.
    """
    known = {module: (path, isPackage) for path, module, isPackage in modules()}
    graph: dict[str, set[str]] = {}
    for module, (path, isPackage) in known.items():
        if isPackage:
            continue
        graph[module] = set()
        for each in importsOf(parsed(path), module):
            name = each.name if each.name in known else each.name.rpartition(".")[0]
            if name in known and not known[name][1]:
                graph[module].add(name)
    return graph


def circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """The sets of modules that import each other, directly or not."""

    def reachable(begin: str) -> set[str]:
        found: set[str] = set()
        ahead = list(graph[begin])
        while ahead:
            module = ahead.pop()
            if module not in found:
                found.add(module)
                ahead += graph[module]
        return found

    reached = {module: reachable(module) for module in graph}
    seen: set[str] = set()
    for module in sorted(graph):
        if module in reached[module] and module not in seen:
            circle = sorted(other for other in reached[module] if module in reached[other])
            seen.update(circle)
            yield circle


def namesIn(tree: ast.Module, words: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The names with certain words that code defines, uses or imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.arg | ast.keyword):
            names = [node.arg or ""]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = ".".join([getattr(node, "module", None) or "", *(alias.name for alias in node.names)]).split(".")
            names = ["kafka"] if {"kafka", "kio"} & set(names) else names
        for name in names:
            if words.search(name):
                yield getattr(node, "lineno", 0), name


@cache
def parsed(path: Path) -> ast.Module:
    """A module's source, which several rules are about."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> Iterator[tuple[Path, str, bool]]:
    """Every module of ours that users get: its file, its name, whether it is a package."""
    for root, pattern in [("src", "**/*.py"), ("plugins", "**/*.py"), (".", "twisted/plugins/*.py")]:
        for path in sorted((ROOT / root).glob(pattern)):
            words = list(path.relative_to(ROOT / root).with_suffix("").parts)
            isPackage = words[-1] == "__init__"
            yield path, ".".join(words[:-1] if isPackage else words), isPackage


class ImportRulesTests(SynchronousTestCase):
    """Our modules keep to the rules."""

    def test_rules(self) -> None:
        """No module breaks one."""
        broken = [
            f"{path.relative_to(ROOT)}:{line}: {complaint}"
            for path, module, isPackage in modules()
            for line, complaint in complaints(parsed(path), module, isPackage)
        ]
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_everyPartHasARule(self) -> None:
        """A new part of the project gets a row in the table."""
        parts = {partOf(module) for path, module, isPackage in modules() if not module.startswith("twisted.")}
        self.assertEqual(parts - set(ALLOWED) - {None}, set())


class CirclesTests(SynchronousTestCase):
    """Modules import each other in a line."""

    def test_none(self) -> None:
        """No module imports itself by way of others, for type checkers or inside functions included."""
        self.assertEqual(list(circles(importGraph())), [])


class FileNamesTests(SynchronousTestCase):
    """A reader finds the file from the thing's name."""

    def test_once(self) -> None:
        """A file name occurs once, but for those that mean the same wherever they are."""
        counts = Counter(path.name for path, module, _ in modules() if not module.startswith("twisted."))
        self.assertEqual(sorted(name for name, count in counts.items() if count > 1 and name not in CONVENTIONAL), [])


class KafkaTests(SynchronousTestCase):
    """Only L{admission.kafka} knows Kafka."""

    def test_names(self) -> None:
        """
        Outside of it, of its commands and of the drop-ins no code has a name of Kafka's protocol, and nothing imports
        its schemas.
        """
        found = [
            f"{path.relative_to(ROOT)}:{line}: {name}"
            for path, module, _ in modules()
            if not module.startswith(KNOW_KAFKA)
            for line, name in namesIn(parsed(path), _KAFKAS)
        ]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_words(self) -> None:
        """No identifier of the framework's own parts speaks of a protocol."""
        found = [
            f"{path.relative_to(ROOT)}:{line}: {name}"
            for path, module, _ in modules()
            if module.startswith(NEUTRAL)
            for line, name in namesIn(parsed(path), _PROTOCOLS)
        ]
        self.assertEqual(found, [], "\n" + "\n".join(found))


class OneRuleTests(SynchronousTestCase):
    """What admits requests is written once, and recording only observes."""

    def test_policiesAreAskedByControl(self) -> None:
        """Nobody but L{admission.control} puts a request to a policy; base classes and policies may call their own."""
        asking = {
            module
            for path, module, _ in modules()
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Attribute)
            and (node.attr == "decide" or (node.attr == "record" and ast.unparse(node.value) in ("policy", "member")))
            and ast.unparse(node.value) != "lane"
        }
        self.assertEqual(
            {module for module in asking if not module.startswith("admission.testing.")}, {"admission.control"}
        )

    def test_nobodyAsksWhetherItIsRecorded(self) -> None:
        """Code that serves does not look whether somebody records."""
        serving = ("admission.gate", "admission.control", "admission.connection.", "admission.kafka.broker.")
        for path, module, _ in modules():
            if not module.startswith(serving):
                continue
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
                    compared = ast.unparse(node.left).rpartition(".")[2]
                    self.assertNotIn(compared, ("recorded", "recorder", "recording"), f"{module}:{node.lineno}")

    def test_namedTests(self) -> None:
        """Where a module's first line says what tests it, there are such tests."""
        absent = [
            f"{module}: {name}"
            for path, module, _ in modules()
            for names in re.findall(r"^# -\*- test-case-name: (\S+) ", path.read_text(encoding="utf-8"), re.MULTILINE)
            for name in names.split(",")
            if not ((ROOT / name.replace(".", "/")).is_dir() or (ROOT / f"{name.replace('.', '/')}.py").is_file())
        ]
        self.assertEqual(absent, [])


class RulesTests(SynchronousTestCase):
    """The rules notice what they forbid."""

    def test_noticed(self) -> None:
        """It is found however it is written."""
        for source, module, words in (
            ("import admission.kafka.broker.service", "admission.gate", "gate may not import kafka.broker, only "),
            ("from .kafka.service import makeService", "admission.gate", "gate may not import kafka, only "),
            ("def f():\n    from . import kafka", "admission.gate", "gate may not import kafka, only "),
            ("from ....kafka import options", "admission.metrics.codec.fast", "metrics may not import kafka, only "),
            ("import admission_plugins.bounded", "twisted.plugins.ours", "found by name"),
            ("class A:\n    import twisted.internet.reactor", "admission.gate", "have it handed in"),
            ("import time\ntime.monotonic()", "admission_plugins.wheel", "have a clock handed in"),
            ("from time import perf_counter", "admission.gate", "have a clock handed in"),
            ("from datetime import date\ndate.today()", "admission.gate", "have a clock handed in"),
            ("import pyspark.sql", "admission.cli", "pyspark is an extra"),
        ):
            [(_, complaint)] = complaints(ast.parse(source), module)
            self.assertIn(words, complaint)
