# -*- test-case-name: tests.spark.test_workers -*-
"""
What Spark's workers import: it is sent to them, and what cannot be sent is told before a job begins.
"""

from __future__ import annotations

import atexit
import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from attrs import field, frozen
from twisted.python.reflect import namedAny

from ..interfaces import IMemoryPoolFactory, IPolicyFactory, IQuotaPolicyFactory
from ..plugins import implementationOf, listFactories
from ..recording.places import modulesFor
from .failures import WorkersLack
from .packing import UNPACKED, WORKER_PYTHON, Package, findPackages, platformHere, writeArchive
from .sparksession import WORKERS_PYTHON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_MODULES = ("admission.offline.simulate.tally", "pyspark_admission.segmentreading", "pyspark_admission.stream")
"""With the policies they import the rest of what workers need."""


_ABSENT = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_VERSION = re.compile(r"Python in worker has different version: ([0-9.]*[0-9])")


@frozen(order=True)
class Worker:
    """
    What there is where a worker runs.

    @ivar python: the path of its Python.
    @ivar host: its name.
    @ivar platform: of L{platformHere}.
    @ivar lacking: for each name that was asked for, the module that it lacks.
    """

    python: str
    host: str
    platform: str
    lacking: Mapping[str, str] = field(eq=False)

    @property
    def words(self) -> str:
        """
        What it lacks, as part of a sentence.
        """
        modules = ", ".join(sorted({*self.lacking.values()}))
        return f"{self.python} on {self.host} lacks {modules}"


def hasLocalWorkers(session: SparkSession) -> bool:
    """
    Whether workers are started by this process, and so are as it is.
    """
    isRemote = type(session).__module__.startswith("pyspark.sql.connect")
    return not isRemote and (session.conf.get("spark.master") or "").startswith("local")


def prepareWorkers(session: SparkSession, tell: Callable[[str], None], recording: str = "") -> None:
    """
    Send the workers of a session, once, what they are to import: what is written in Python, so that they run the code
    that this process runs, and those compiled packages that one of them lacks.  Workers on this machine that this
    process starts have all of it.

    @param tell: takes a line of progress.
    @param recording: where the recording is that they are to read.
    @raise WorkersLack: if compiled packages are lacking which cannot be imported there, or a module still is.
    """
    if hasLocalWorkers(session):
        return
    modules = [*WORKER_MODULES, *modulesFor(recording), *_policyModules()]
    if session.conf.get(WORKERS_PYTHON, None) != WORKER_PYTHON:
        tell("looking what Spark's workers have")
        _send(session, findPackages(modules), tell)
    checkWorkers(session, modules)


def checkWorkers(session: SparkSession, modules: Collection[str] = WORKER_MODULES) -> None:
    """
    Have every worker that there is import modules.

    @raise WorkersLack: if one cannot.
    """
    lacking = [worker for worker in _ask(session, {"": modules}) if worker.lacking]
    if lacking:
        raise WorkersLack(
            f"Spark's workers cannot do this: {'; '.join(worker.words for worker in lacking)}; install it there, or "
            "name another Python with PYSPARK_PYTHON"
        )


def _send(session: SparkSession, packages: Collection[Package], tell: Callable[[str], None]) -> None:
    """
    @param packages: what workers need; compiled ones that all of them have are not sent.
    """
    compiled = {each.name: each for each in packages if each.isCompiled}
    workers = _ask(session, {name: each.roots for name, each in compiled.items()})
    lacking = {name for worker in workers for name in worker.lacking}
    isAlike = {worker.platform for worker in workers} == {platformHere()}
    if lacking and not isAlike:
        told = "; ".join(f"{worker.words} ({worker.platform})" for worker in workers if worker.lacking)
        needed = shlex.join(compiled[name].requirement for name in sorted(lacking))
        raise WorkersLack(
            f"Spark's workers cannot do this: {told}; compiled packages of this machine ({platformHere()}) cannot be "
            f"sent there: pip install {needed}"
        )
    sent = [each for each in packages if not each.isCompiled or each.name in lacking]
    tell(f"sending Spark's workers {', '.join(each.name for each in sent)}")
    # Workers fetch it when they begin, which they may do at any time.
    scratch = TemporaryDirectory(prefix="admission-packages-", ignore_cleanup_errors=True)
    atexit.register(scratch.cleanup)
    archive = Path(scratch.name) / f"{UNPACKED}.tar.gz"
    writeArchive(archive, sent, {worker.python for worker in workers}, isAlike)
    session.addArtifacts(f"{archive}#{UNPACKED}", archive=True)
    session.conf.set(WORKERS_PYTHON, WORKER_PYTHON)


def _ask(session: SparkSession, wanted: Mapping[str, Collection[str]]) -> list[Worker]:
    """
    Ask every worker that there is for modules.

    @param wanted: modules by any name.
    @raise WorkersLack: if one has no Python of this version.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    names = {name: list(modules) for name, modules in wanted.items()}

    # A function within another is sent as a whole: what lacks our packages could not look it up.
    def looking(row: int) -> str:
        import json
        import socket
        import sys
        import sysconfig
        from importlib import import_module

        lacking = {}
        for name, modules in names.items():
            for module in modules:
                try:
                    import_module(module)
                except ImportError as error:
                    isNamed = isinstance(error, ModuleNotFoundError) and error.name
                    lacking[name] = f"the module {error.name}" if isNamed else f"{module} ({error})"
                    break
        platform = f"{sysconfig.get_platform()}, {sys.implementation.cache_tag}"
        return json.dumps([sys.executable, socket.gethostname(), platform, lacking])

    # Without Arrow, which may be what is missing; a partition for each core reaches all workers at once.
    asked = F.udf(looking, "string", useArrow=False)
    try:
        rows = session.range(1 << 10).select(asked("id").alias("found")).distinct().collect()
    except (PySparkException, Py4JError) as error:
        absent, other = _ABSENT.search(str(error)), _OTHER_VERSION.search(str(error))
        if absent is None and other is None:
            raise
        has = f"run Python {other[1]}" if other else f"have no {absent[1]}" if absent else ""
        raise WorkersLack(
            f"Spark's workers {has}, and need Python {sys.version_info.major}.{sys.version_info.minor} as this command "
            "does: install it there, or name one with PYSPARK_PYTHON, which a server of Spark Connect has to have been "
            "started with"
        ) from error
    return sorted(Worker(*json.loads(row["found"])) for row in rows)


def _policyModules() -> Sequence[str]:
    """
    The modules of all policies that are installed here and can be imported.
    """
    kinds: list[type[IPolicyFactory]] = [IQuotaPolicyFactory, IMemoryPoolFactory]
    modules = set()
    for factory in (each.factory for kind in kinds for each in listFactories(kind)):
        try:
            name = implementationOf(factory)
            namedAny(name)  # type: ignore[no-untyped-call]
        except Exception:
            # Anybody who asks for it is told why.
            continue
        modules.add(name.rpartition(".")[0])
    return sorted(modules)
