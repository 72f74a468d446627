# -*- test-case-name: tests.test_offline_session -*-
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

from .java import javaEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyspark", "pandas", "pyarrow")

_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SparkMissing(Exception):
    """
    The packages for Spark are not installed, in words for the operator.
    """


def openSession(appName: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """
    The session that there is, or a new one.  Where it runs is Spark's own
    setting: C{SPARK_REMOTE}, C{spark.master} as spark-submit or a
    C{spark-defaults.conf} say it, else all cores of this machine.

    @param appName: what a cluster's page calls it.
    @param settings: Spark properties that go before everything else.
    @raise SparkMissing: without the packages.
    @raise JavaMissing: without a Java, where one is needed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SparkMissing(f"this needs {', '.join(missing)}: pip install 'admission[spark]'")
    from pyspark.sql import SparkSession

    isRemote = "SPARK_REMOTE" in os.environ
    if not isRemote and SparkSession.getActiveSession() is None:
        _prepareLaunch()
    # Workers would take the first python3 of the PATH, which knows none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(appName)
    chosen = {"spark.sql.session.timeZone": "UTC", **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _prepareLaunch() -> None:
    """
    What the Java process that is about to start needs.
    """
    scratch = tempfile.TemporaryDirectory(prefix="admission-spark-")
    atexit.register(scratch.cleanup)
    os.environ.update(javaEnvironment(os.environ, Path(scratch.name)))
    if "SPARK_CONF_DIR" not in os.environ and "SPARK_HOME" not in os.environ:
        configuration = Path(scratch.name, "conf")
        configuration.mkdir()
        configuration.joinpath("log4j2.properties").write_text(_LOGGING, "utf-8")
        os.environ["SPARK_CONF_DIR"] = str(configuration)
