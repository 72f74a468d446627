"""One Spark session for all tests of a process, since starting one takes seconds."""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from typing import TYPE_CHECKING

from admission.offline.sparksession import openSession
from tests.kit.checkout import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@cache
def sharedSession() -> SparkSession:
    """A session on two cores of this machine, small and quiet; it ends with the process."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    scratch = tempfile.TemporaryDirectory(prefix="admission-tests-spark-", ignore_cleanup_errors=True)
    atexit.register(scratch.cleanup)
    session = openSession(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Without the second compiler Java would reserve 48 MiB for code, which so many jobs fill.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
            # For a few rows, to compile each query takes longer than to run it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.default.parallelism": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": os.path.join(scratch.name, "warehouse"),
            "spark.local.dir": scratch.name,
            # Some policies are the tests' own.
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    atexit.register(session.stop)
    return session
