# -*- test-case-name: tests.unit.test_publicnames -*-
"""
Names of a package that are imported from its modules when they are first used,
so that importing the package costs next to nothing (PEP 562).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from .extras import explaining


def lazyNames(package: str, *doors: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """
    What a package's C{__init__} assigns to C{__all__}, C{__getattr__} and
    C{__dir__}: the names that it imports for type checkers, under
    C{TYPE_CHECKING}.  They are read from its source, so that each is listed once.

    @param package: C{__name__} of the package.
    @param doors: modules of the package that publish names, too: an import of one of theirs from the package is refused
        with the place where it is.
    @raise ImportError: if it is installed without its source.
    """
    moduleOf = sourcesOf(package)

    def getAttribute(name: str) -> Any:
        if name not in moduleOf:
            for door in (f"{package}.{each}" for each in doors if not name.startswith("_")):
                if name in publishedBy(door):
                    # Of an AttributeError, `from package import name` would not tell the message.
                    raise ImportError(f"{name} is not in {package}: write `from {door} import {name}`")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explaining(f"{package}.{name}", ImportError):
            module = import_module(moduleOf[name])
        return getattr(module, name)

    published = sorted(moduleOf)
    return published, getAttribute, lambda: published


def sourcesOf(package: str) -> dict[str, str]:
    """
    The names that a package imports for type checkers, each with the full name of the module that defines it.

    @param package: the full name of a package that has been imported.
    @raise ImportError: if it is installed without its source.
    """
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(f"{package} is installed without its source, which says what it publishes")
    return {
        alias.name: f"{package}.{statement.module}"
        for condition in ast.parse(source).body
        if isinstance(condition, ast.If)
        for statement in condition.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def publishedBy(door: str) -> list[str]:
    """
    The names that a module publishes: C{__all__}, or all that it defines without an underscore before it.

    @param door: its full name.
    """
    module = import_module(door)
    if hasattr(module, "__all__"):
        return [*module.__all__]
    return sorted(
        name
        for name, value in vars(module).items()
        # Constants do not know where they are from.
        if not name.startswith("_") and not isinstance(value, ModuleType) and _isFrom(door, value)
    )


def _isFrom(module: str, value: Any) -> bool:
    return getattr(value, "__module__", module) in (module, None)
