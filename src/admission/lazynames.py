# -*- test-case-name: tests.unit.test_publicnames -*-
"""
Names of a package that are imported from its modules when they are first used,
so that importing the package costs next to nothing (PEP 562).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from .extras import explaining


def lazyNames(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """
    What a package's C{__init__} assigns to C{__all__}, C{__getattr__} and
    C{__dir__}.  For type checkers it imports the same names under
    C{TYPE_CHECKING}.

    @param package: C{__name__} of the package.
    @param names: the names, by the module of the package that they are in.
    """
    moduleOf = {name: module for module, inModule in names.items() for name in inModule}

    def getAttribute(name: str) -> Any:
        if name not in moduleOf:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explaining(f"{package}.{name}", ImportError):
            module = import_module(f"{package}.{moduleOf[name]}")
        return getattr(module, name)

    published = sorted(moduleOf)
    return published, getAttribute, lambda: published
