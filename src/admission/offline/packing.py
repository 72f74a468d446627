# -*- test-case-name: tests.spark.test_packing -*-
"""
What modules import, beside what Python and Spark bring, and an archive from which Spark's workers import it.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePath

from attrs import field, frozen

UNPACKED = "admission-packages"
"""The name of the unpacked archive on a worker."""

WORKER_PYTHON = f"./{UNPACKED}/bin/python"
"""A Python that imports what is in the archive first; the path is relative to where Spark runs it."""

LONGEST_IMPORT_SECONDS = 120.0

_BROUGHT = frozenset({"pyspark", "py4j"})
"""Distributions that workers have as a part of Spark."""

_IMPORTING = """
import json, sys
before = {*sys.modules}
for name in sys.argv[1:]:
    __import__(name)
files = {name: getattr(sys.modules[name], "__file__", None) for name in {*sys.modules} - before}
json.dump({name: file for name, file in files.items() if file}, sys.stdout)
"""

_LAUNCHER = """#!/bin/sh
packages=$(cd "$(dirname "$0")/../packages" && pwd)
export PYTHONPATH="$packages${{PYTHONPATH:+:$PYTHONPATH}}"
for python in {pythons}; do
    [ -x "$python" ] && exec "$python" "$@"
done
echo "none of these is here:" {pythons} >&2
exit 127
"""


@frozen
class Package:
    """
    Modules that are installed together.

    @ivar name: of the distribution; of the topmost module if it is imported from a checkout.
    @ivar version: of the distribution; empty in a checkout.
    @ivar roots: the topmost modules that were imported of it.
    @ivar files: by their paths below the directory to import from.
    """

    name: str
    version: str
    roots: Sequence[str]
    files: Mapping[str, Path] = field(repr=False)

    @property
    def isCompiled(self) -> bool:
        """
        Whether it can be imported on one platform only.
        """
        return any(_isCompiled(path) and not self.isOptional(path) for path in self.files)

    @property
    def requirement(self) -> str:
        """
        As pip takes it.
        """
        return f"{self.name}=={self.version}" if self.version else self.name

    def isOptional(self, path: str) -> bool:
        """
        Whether a file is of a module that mypyc has compiled, which is left beside its source.
        """
        stem = PurePath(path).name.partition(".")[0]
        isShared = stem.endswith("__mypyc")
        return _isCompiled(path) and (isShared or str(PurePath(path).with_name(f"{stem}.py")) in self.files)


def platformHere() -> str:
    """
    What has to be equal for a compiled module to be imported elsewhere.
    """
    return f"{sysconfig.get_platform()}, {sys.implementation.cache_tag}"


def findPackages(modules: Collection[str]) -> list[Package]:
    """
    Find what modules import, by importing them in a process of its own.

    @param modules: full names.
    @raise ImportError: if one of them cannot be imported.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORTING, *modules],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_IMPORT_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    if done.returncode:
        raise ImportError(done.stderr.strip().rpartition("\n")[2])
    found = {name: Path(file).resolve() for name, file in json.loads(done.stdout).items()}
    files = {
        name: path for name, path in found.items() if name.partition(".")[0] not in _BROUGHT and not _isStandard(path)
    }
    return [*_installed(files), *_inCheckouts(files)]


def writeArchive(place: Path, packages: Collection[Package], pythons: Collection[str], isCompiled: bool) -> None:
    """
    Write an archive for C{WORKER_PYTHON}.

    @param place: the path of the archive, a C{.tar.gz}.
    @param pythons: paths, of which the first that a worker has is run.
    @param isCompiled: whether workers can import what is compiled here.
    """
    with tarfile.open(place, "w:gz", compresslevel=1) as archive:
        for package in packages:
            for path, file in package.files.items():
                if isCompiled or not package.isOptional(path):
                    archive.add(file.resolve(), f"packages/{path}", recursive=False)
        launcher = _LAUNCHER.format(pythons=shlex.join(sorted(pythons))).encode()
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(launcher), 0o755
        archive.addfile(entry, io.BytesIO(launcher))


def _installed(files: dict[str, Path]) -> Iterator[Package]:
    """
    The distributions that modules are of.

    @param files: of modules, by name; those that are found are removed.
    """
    owners = metadata.packages_distributions()
    names = {owner for module in files for owner in owners.get(module.partition(".")[0], ())}
    for name in sorted(names - _BROUGHT, key=str.lower):
        distribution = metadata.distribution(name)
        if distribution.read_text("RECORD") is None:
            # Only what an installer has written lists what can be imported.
            continue
        installed = {str(each): Path(str(each.locate())) for each in distribution.files or () if _isShipped(each)}
        places = {path.resolve() for path in installed.values()}
        modules = [module for module, path in files.items() if path in places]
        if modules:
            yield Package(name, distribution.version, _roots(modules), installed)
        for module in modules:
            del files[module]


def _inCheckouts(files: Mapping[str, Path]) -> Iterator[Package]:
    """
    The packages and modules that no distribution has: each topmost one for itself.
    """
    for root in _roots(files):
        path, depth = files[root], root.count(".")
        isDirectory = path.stem == "__init__"
        above = path.parents[depth + isDirectory]
        found = sorted(path.parent.rglob("*")) if isDirectory else [path]
        shipped = {str(each.relative_to(above)): each for each in found if each.is_file()}
        yield Package(root, "", [root], {name: each for name, each in shipped.items() if _isShipped(PurePath(name))})


def _roots(modules: Collection[str]) -> list[str]:
    """
    The modules that are in no other of C{modules}.
    """
    return sorted(each for each in modules if not any(each.startswith(f"{other}.") for other in modules))


def _isStandard(path: Path) -> bool:
    """
    Whether a module is one of Python's own.
    """
    own = Path(sysconfig.get_path("stdlib")).resolve()
    return path.is_relative_to(own) and not {"site-packages", "dist-packages"} & {*path.parts}


def _isCompiled(path: str) -> bool:
    name = PurePath(path).name
    return name.endswith(".so") or ".so." in name


def _isShipped(path: PurePath) -> bool:
    """
    Whether a file may be imported, or is read by what is.
    """
    return not {"..", "__pycache__", "test", "tests"} & {*path.parts}
