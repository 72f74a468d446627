"""
Changes the core in small ways, one at a time, and counts the changes that each module's own tests do not notice.

    python -m tests.mutants --count 300

With the same sources, count and seed the changes are the same, so that two versions of the tests can be compared.  It
works in copies of the checkout, one for each processor.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final

from attrs import frozen

from tests.kit.checkout import ROOT

TESTED_BY: Final[Mapping[str, Sequence[str]]] = {
    "src/admission/control.py": ("tests/unit/test_control.py",),
    **{
        f"src/admission/gate/{name}.py": ("tests/unit/test_gate.py",)
        for name in (
            "answerroom",
            "aside",
            "gate",
            "ledger",
            "memoryqueue",
            "pressure",
            "reserve",
            "slowbodies",
            "stalledreaders",
            "turns",
        )
    },
    "src/admission/request.py": ("tests/unit/test_request.py",),
    "src/admission/connection/protocol.py": (
        "tests/unit/connection/test_protocol.py",
        "tests/unit/connection/test_protocol_states.py",
        "tests/unit/connection/test_admitted.py",
        "tests/contracts/test_servercontract.py",
    ),
    "src/admission/quotas/metering.py": ("tests/unit/quotas/test_metering.py",),
    "plugins/admission_plugins/bounded.py": ("tests/contracts/test_bounded.py",),
    "plugins/admission_plugins/purgatory.py": (
        "tests/contracts/test_purgatory.py",
        "tests/contracts/test_purgatory_states.py",
    ),
    "plugins/admission_plugins/wheel.py": ("tests/contracts/test_wheel.py", "tests/contracts/test_wheel_states.py"),
}

_COPIED = ("src", "plugins", "twisted", "tests", "setup.cfg", "pyproject.toml", "ARCHITECTURE.md")

_PATIENCE: Final = 20.0
"""How many times longer than without a change the tests may take, before a mutant counts as one that never ends."""

_OTHERS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@frozen
class Mutant:
    """
    One change.

    @ivar path: of the module, from the checkout.
    @ivar line: where.
    @ivar change: what was and what is there now.
    @ivar source: the whole module with it.
    """

    path: str
    line: int
    change: str
    source: str


def _changes(node: ast.AST) -> Iterator[Callable[[ast.AST], None]]:
    """The ways to change a node in place."""
    match node:
        case (
            ast.Compare(ops=[operator]) | ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator)
        ):
            other = _OTHERS.get(type(operator))
            if other is not None:

                def exchange(target: ast.AST, other: type[ast.AST] = other) -> None:
                    if isinstance(target, ast.Compare):
                        target.ops = [other()]  # type: ignore[list-item]
                    else:
                        target.op = other()  # type: ignore[attr-defined]

                yield exchange
        case ast.Constant(value=bool()):
            yield lambda target: setattr(target, "value", not target.value)  # type: ignore[attr-defined]
        case ast.Constant(value=int() | float()):
            yield lambda target: setattr(target, "value", target.value + 1)  # type: ignore[attr-defined]
        case ast.If() | ast.While() | ast.IfExp():
            yield lambda target: setattr(target, "test", ast.UnaryOp(ast.Not(), target.test))  # type: ignore[attr-defined]
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield lambda target: setattr(target, "dropped", True)


class _Dropper(ast.NodeTransformer):
    """Leaves out statements that are marked."""

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if hasattr(node, "dropped") else self.generic_visit(node)


def _placesOf(path: str) -> list[tuple[str, int, int]]:
    """All changes that there are of a module: the number of the node, and which of the ways to change it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [
        (path, number, way)
        for number, node in enumerate(ast.walk(tree))
        if hasattr(node, "lineno")
        for way, _ in enumerate(_changes(node))
    ]


def _mutant(path: str, number: int, way: int) -> Mutant:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    node = next(islice(ast.walk(tree), number, None))
    was = ast.unparse(node).splitlines()[0]
    list(_changes(node))[way](node)
    now = "pass" if hasattr(node, "dropped") else ast.unparse(node).splitlines()[0]
    source = ast.unparse(ast.fix_missing_locations(_Dropper().visit(tree)))
    return Mutant(path, node.lineno, f"{was} -> {now}", source)  # type: ignore[attr-defined]


def chosen(paths: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """C{count} of all mutants, of each module about as many as its share of the changes that there are."""
    places = [place for path in paths for place in _placesOf(path)]
    return [_mutant(*place) for place in Random(seed).sample(places, min(count, len(places)))]


def passes(copy: Path, tests: Sequence[str], seconds: float | None = None) -> bool:
    """Whether tests pass in a copy of the checkout, in time."""
    paths = os.pathsep.join(str(copy / root) for root in ("src", "plugins", ""))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    try:
        return not subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return False


def main(arguments: Sequence[str]) -> int:
    """
    Try mutants and print those that live.

    @return: the exit status: 1 if the tests fail without any change.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Count changes that tests do not notice."
    )
    parser.add_argument("--count", type=int, default=300, help="how many changes to try (300)")
    parser.add_argument("--seed", type=int, default=1, help="decides which (1)")
    parser.add_argument(
        "--of",
        metavar="MODULE=TESTS",
        action="append",
        help="change this module instead of the core, and run these tests, with commas between them",
    )
    options = parser.parse_args(arguments)
    testedBy = TESTED_BY
    if options.of:
        testedBy = {path: tests.split(",") for path, _, tests in (each.partition("=") for each in options.of)}
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="admission-mutants-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            copy = Path(directory, str(number))
            for name in _COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, copy / name)
            copies.put(copy)
        seconds = {}
        first = copies.get()
        for path, tests in testedBy.items():
            begun = time.monotonic()
            if not passes(first, tests):
                print(f"{' '.join(tests)} fail without any change", file=sys.stderr)
                return 1
            seconds[path] = (time.monotonic() - begun) * _PATIENCE
        copies.put(first)

        def lives(mutant: Mutant) -> bool:
            copy = copies.get()
            file = copy / mutant.path
            original = file.read_text(encoding="utf-8")
            try:
                file.write_text(mutant.source, encoding="utf-8")
                return passes(copy, testedBy[mutant.path], seconds[mutant.path])
            finally:
                file.write_text(original, encoding="utf-8")
                copies.put(copy)

        mutants = chosen(testedBy, options.count, options.seed)
        with ThreadPoolExecutor(workers) as threads:
            results = list(zip(mutants, threads.map(lives, mutants), strict=True))
    for path in testedBy:
        of = [alive for mutant, alive in results if mutant.path == path]
        print(f"{path}: {sum(of)} of {len(of)} live")
        for mutant, alive in results:
            if alive and mutant.path == path:
                print(f"    line {mutant.line}: {mutant.change}")
    print(f"{sum(alive for _, alive in results)} of {len(results)} live")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
