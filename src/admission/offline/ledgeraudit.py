# -*- test-case-name: tests.spark.test_audit -*-
"""
The ledger's account of the server's memory, compared with the memory of the process.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from .aggregate import RUN

LEDGER = "LedgerBytes"
"""The gauges of allocated memory, one for each purpose."""

PRIVATE = "ProcessPrivateBytes"
"""The gauge of the process's memory without mapped files."""

MODULES = "ProcessImportedModules"
"""The gauge of the number of modules that Python has imported."""


def ledgerAudit(sensors: DataFrame) -> DataFrame:
    """
    One row for each time at which both were sampled: C{private_bytes} (the memory of the process without mapped files),
    C{ledger_bytes}, C{base_bytes} (its memory beyond the ledger at the first sample: code, libraries and so on),
    C{imports_bytes} (how much it has grown while Python imported modules, which happens once for each),
    C{unexplained_bytes} (its memory beyond these and beyond the largest ledger so far, since freed memory may stay with
    the allocator), C{growth_bytes} (since the first sample) and C{unexplained_share} (of that growth; null while there
    is none).

    @param sensors: clean ones.
    """
    sampled = sensors.where(F.col("sensor").isin(LEDGER, PRIVATE, MODULES)).groupBy(*RUN, "mono_us")
    moments = sampled.agg(
        F.min("ts").alias("ts"),
        F.max(F.when(F.col("sensor") == PRIVATE, F.col("value"))).try_cast("bigint").alias("private_bytes"),
        F.sum(F.when(F.col("sensor") == LEDGER, F.col("value"))).try_cast("bigint").alias("ledger_bytes"),
        F.max(F.when(F.col("sensor") == MODULES, F.col("value"))).alias("_modules"),
    ).where("private_bytes IS NOT NULL AND ledger_bytes IS NOT NULL")
    sinceBoot = Window.partitionBy(*RUN).orderBy("mono_us")
    beyond = F.col("private_bytes") - F.max("ledger_bytes").over(sinceBoot)
    grown = moments.withColumn("_beyond", beyond).select(
        "*",
        F.first("_beyond").over(sinceBoot).alias("base_bytes"),
        (F.col("private_bytes") - F.first("private_bytes").over(sinceBoot)).alias("growth_bytes"),
        F.when(
            F.col("_modules") > F.lag("_modules").over(sinceBoot),
            F.greatest(F.col("_beyond") - F.lag("_beyond").over(sinceBoot), F.lit(0)),
        ).alias("_imported"),
    )
    imports = F.coalesce(F.sum("_imported").over(sinceBoot), F.lit(0))
    explained = grown.withColumn("imports_bytes", imports).withColumn(
        "unexplained_bytes", F.col("_beyond") - F.col("base_bytes") - F.col("imports_bytes")
    )
    share = F.when(F.col("growth_bytes") > 0, F.col("unexplained_bytes") / F.col("growth_bytes"))
    return explained.select(
        *RUN,
        "ts",
        "private_bytes",
        "ledger_bytes",
        "base_bytes",
        "imports_bytes",
        "unexplained_bytes",
        "growth_bytes",
        share.alias("unexplained_share"),
    )


def ledgerSummary(samples: DataFrame) -> DataFrame:
    """
    For each run of a server: C{samples}, C{base_bytes}, C{imports_bytes}, C{unexplained_max_bytes}, C{leaked_bytes}
    (how much more of its memory is unexplained at most in the second half of its time than in the first: a leak goes on
    growing, and a cache does not), and at the peak of the process C{peak_private_bytes}, C{peak_ledger_bytes},
    C{peak_unexplained_bytes} and C{peak_unexplained_share}.

    @param samples: the result of L{ledgerAudit}.
    """
    atPeak = ("private_bytes", "ledger_bytes", "unexplained_bytes", "unexplained_share")
    # Of equal peaks the first: the maximum of negated times.
    order = F.struct("private_bytes", -F.unix_micros("ts"))
    moment, ofRun = F.unix_micros("ts"), Window.partitionBy(*RUN)
    isLate = moment * 2 > F.min(moment).over(ofRun) + F.max(moment).over(ofRun)
    summed = (
        samples.withColumn("_isLate", isLate)
        .groupBy(*RUN)
        .agg(
            F.count("*").alias("samples"),
            F.max("base_bytes").alias("base_bytes"),
            F.max("imports_bytes").alias("imports_bytes"),
            F.max("unexplained_bytes").alias("unexplained_max_bytes"),
            F.max(F.when(~F.col("_isLate"), F.col("unexplained_bytes"))).alias("_early"),
            F.max(F.when(F.col("_isLate"), F.col("unexplained_bytes"))).alias("_late"),
            F.max_by(F.struct(*atPeak), order).alias("_peak"),
        )
    )
    leaked = F.greatest(F.coalesce(F.col("_late") - F.col("_early"), F.lit(0)), F.lit(0))
    peaks = (F.col(f"_peak.{name}").alias(f"peak_{name}") for name in atPeak)
    return summed.select(
        *RUN, "samples", "base_bytes", "imports_bytes", "unexplained_max_bytes", leaked.alias("leaked_bytes"), *peaks
    )
