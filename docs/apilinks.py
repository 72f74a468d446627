"""
Where other projects document the names to which our docstrings refer: inventories for pydoctor.  Addresses follow from
the names, so that nothing is fetched and the site is built without a network.

    python docs/apilinks.py DIRECTORY

writes them there, and prints the options that have pydoctor read them.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from zope.interface.interface import InterfaceClass

ROOTS = ("src/admission", "plugins")
OURS = ("admission", "admission_plugins", "pyspark_admission")
SITES = {
    "python": "https://docs.python.org/3/library",
    "twisted": "https://docs.twisted.org/en/stable/api",
    "pyspark": "https://spark.apache.org/docs/latest/api/python/reference",
    "OpenSSL": "https://www.pyopenssl.org/en/latest/api",
}

_LINK = re.compile(r"\bL\{(?:[^}<]*<)?([A-Za-z_][\w.]*)>?\}")


def foreignNames() -> Iterator[str]:
    """The full names of what docstrings refer to and others define."""
    for root in ROOTS:
        for path in Path(root).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            imported = {
                alias.asname or alias.name: f"{node.module}.{alias.name}"
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.ImportFrom) and not node.level
                for alias in node.names
            }
            for target in _LINK.findall(text):
                first, dot, rest = target.partition(".")
                yield imported.get(first, first) + dot + rest


def isKnown(name: str) -> bool:
    """Whether it is one of Python's own or of a package that L{SITES} has."""
    first = name.partition(".")[0]
    return first not in OURS and (hasattr(builtins, first) or first in SITES or first in sys.stdlib_module_names)


def placeOf(name: str) -> tuple[str, str]:
    """
    Where a name is documented.

    @return: the key of its site, and the place there.
    @raise ImportError: if there is no such name.
    """
    first = name.partition(".")[0]
    if hasattr(builtins, first):
        value = getattr(builtins, first)
        isException = isinstance(value, type) and issubclass(value, BaseException)
        page = "exceptions" if isException else "functions" if callable(value) else "constants"
        return "python", f"{page}.html#{name}"
    if first == "pyspark":
        # It need not be installed.
        return first, f"pyspark.sql/api/{name}.html"
    module, members = _resolved(name)
    if first == "twisted":
        # A page for each module and class, on which functions and methods are.
        if members and not _isClass(members[-1]):
            owner, _, member = name.rpartition(".")
            return first, f"{owner}.html#{member}"
        return first, f"{name}.html"
    if first == "OpenSSL":
        return first, f"ssl.html#{name}"
    return "python", f"{module}.html" + (f"#{name}" if members else "")


def _resolved(name: str) -> tuple[str, list[Any]]:
    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: Any = import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        members = []
        for word in words[count:]:
            # An attribute of an interface is an item of it.
            found = found[word] if isinstance(found, InterfaceClass) else getattr(found, word)
            members.append(found)
        return ".".join(words[:count]), members
    raise ImportError(f"a docstring refers to {name}, which is not there")


def _isClass(value: Any) -> bool:
    return inspect.isclass(value) or isinstance(value, InterfaceClass)


def main(directory: Path) -> None:
    """
    Write an inventory for each site: NAME.inv, in version 2 of Sphinx's format.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = defaultdict(list)
    for name in sorted({name for name in foreignNames() if isKnown(name)}):
        site, place = placeOf(name)
        lines[site].append(f"{name} py:obj 1 {place} -\n")
    for site, address in SITES.items():
        head = f"# Sphinx inventory version 2\n# Project: {site}\n# Version: \n# compressed by zlib\n"
        body = zlib.compress("".join(lines[site]).encode())
        path = directory / f"{site}.inv"
        path.write_bytes(head.encode() + body)
        print(f"--intersphinx-file={path}::{address}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
