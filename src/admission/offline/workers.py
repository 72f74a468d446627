# -*- test-case-name: tests.spark.test_workers -*-
"""
What Spark's workers import: which module and which Python lack it is found out before a job begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .failures import WorkersLack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_MODULES = (
    "admission.offline.simulate.tally",
    "admission_plugins.bounded",
    "admission_plugins.clientquotas",
    "admission_plugins.concurrency",
    "admission_plugins.orders",
    "admission_plugins.producerids",
    "admission_plugins.requestrate",
    "admission_plugins.shed",
    "pyspark_admission.segmentreading",
    "pyspark_admission.stream",
)
"""They import the rest of what workers need."""


def hasLocalWorkers(session: SparkSession) -> bool:
    """
    Whether workers are started by this process, and so are as it is.
    """
    isRemote = type(session).__module__.startswith("pyspark.sql.connect")
    return not isRemote and (session.conf.get("spark.master") or "").startswith("local")


def checkWorkers(session: SparkSession) -> None:
    """
    Have every worker that there is import L{WORKER_MODULES}.

    @raise WorkersLack: if one cannot.
    """
    from pyspark.sql import functions as F

    modules = WORKER_MODULES

    # A function within another is sent as a whole: what lacks our packages could not look it up.
    def lacking(row: int) -> str | None:
        import socket
        import sys
        from importlib import import_module

        for module in modules:
            try:
                import_module(module)
            except ImportError as error:
                name = error.name if isinstance(error, ModuleNotFoundError) else module
                return f"{sys.executable} on {socket.gethostname()} lacks the module {name}"
        return None

    # Without Arrow, which may be what is missing; a partition for each core reaches all workers at once.
    found = F.udf(lacking, "string", useArrow=False)
    rows = session.range(1 << 10).select(found("id").alias("lack")).collect()
    lacks = "; ".join(sorted({row["lack"] for row in rows if row["lack"] is not None}))
    if lacks:
        raise WorkersLack(
            f"Spark's workers cannot do this: {lacks}; install it there, or name another Python with PYSPARK_PYTHON"
            " (admission itself may come with --py-files, but not through Spark Connect)"
        )
