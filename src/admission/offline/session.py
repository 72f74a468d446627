# -*- test-case-name: tests.offline.test_session -*-
"""
The Spark session of the offline jobs.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .failures import SparkMissing
from .java import javaEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyspark", "pandas", "pyarrow")

_NEEDED_BY_CLIENTS = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""What Spark Connect wants besides."""

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


def openSession(appName: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """
    The session that there is, or a new one.  Where it runs is Spark's own
    setting: C{SPARK_REMOTE}, C{spark.master} as spark-submit or a
    C{spark-defaults.conf} say it, else all cores of this machine.

    If a Java process has to be started for it, what that needs is set in the
    environment of this one: a Java, the Python for its workers, and a
    configuration that keeps it from logging what is no error.  What is set
    there already stays.

    @param appName: what a cluster's page calls it.
    @param settings: Spark properties that go before everything else.
    @raise SparkMissing: without the packages.
    @raise JavaMissing: without a Java, where one is needed.
    """
    chosen = {"spark.sql.session.timeZone": "UTC", **(settings or {})}
    remote = chosen.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    checkPackages(remote is not None)
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None and not (remote or "").startswith("sc:"):
        scratch = tempfile.TemporaryDirectory(prefix="admission-spark-", ignore_cleanup_errors=True)
        atexit.register(scratch.cleanup)
        os.environ.update(launchEnvironment(os.environ, Path(scratch.name)))
    builder = SparkSession.builder.appName(appName)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def checkPackages(isRemote: bool) -> None:
    """
    Whether the packages that are needed are installed.

    @param isRemote: whether Spark is spoken to by Spark Connect.
    @raise SparkMissing: if one is not.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SparkMissing(f"this needs {', '.join(missing)}: pip install 'admission[spark]'")
    if isRemote and not all(map(_isInstalled, _NEEDED_BY_CLIENTS)):
        raise SparkMissing("SPARK_REMOTE needs Spark's client: pip install 'pyspark[connect]'")


def launchEnvironment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """
    What to set in the environment before Spark's Java process is started from
    here.

    @param environment: the process's; what it says goes before.
    @param directory: where files may be put, for as long as Spark runs.
    @raise JavaMissing: if there is no Java.
    """
    changes: dict[str, str] = {}
    if "PYSPARK_PYTHON" not in environment:
        # Workers would take the first python3 of the PATH, which knows none of our packages.
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
    Whether somebody has put one where the package looks for it.
    """
    import pyspark

    return Path(pyspark.__file__).with_name("conf").exists()


def _isInstalled(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        # The package that it would be in is not there either.
        return False
