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
from typing import Any

from .extras import explaining


def lazyNames(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """
    What a package's C{__init__} assigns to C{__all__}, C{__getattr__} and
    C{__dir__}: the names that it imports for type checkers, under
    C{TYPE_CHECKING}.  They are read from its source, so that each is listed once.

    @param package: C{__name__} of the package.
    @raise ImportError: if it is installed without its source.
    """
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(f"{package} is installed without its source, which says what it publishes")
    moduleOf = {
        alias.name: statement.module
        for condition in ast.parse(source).body
        if isinstance(condition, ast.If)
        for statement in condition.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def getAttribute(name: str) -> Any:
        if name not in moduleOf:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explaining(f"{package}.{name}", ImportError):
            module = import_module(f"{package}.{moduleOf[name]}")
        return getattr(module, name)

    published = sorted(moduleOf)
    return published, getAttribute, lambda: published
