# -*- test-case-name: tests.offline.test_audit -*-
"""
The ledger's account of the server's memory, compared with the memory of the process.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from .aggregate import RUN

LEDGER = "LedgerBytes"
"""The gauges of allocated memory, one for each purpose."""

RESIDENT = "ProcessResidentBytes"
"""The gauge of the process's physical memory."""


def ledgerAudit(sensors: DataFrame) -> DataFrame:
    """
    One row for each time at which both were sampled: C{rss_bytes}, C{ledger_bytes}, C{base_bytes} (the memory of the
    process beyond the ledger at the first sample: code, libraries and so on), C{unexplained_bytes} (its memory beyond
    both), C{growth_bytes} (of the resident memory since the first sample) and C{unexplained_share} (of that growth;
    null while there is none).

    Memory that was freed to the allocator stays resident, so that the unexplained memory may stay where it is after a
    peak; it must not grow.

    @param sensors: clean ones.
    """
    sampled = sensors.where(F.col("sensor").isin(LEDGER, RESIDENT)).groupBy(*RUN, "mono_us")
    moments = sampled.agg(
        F.min("ts").alias("ts"),
        F.max(F.when(F.col("sensor") == RESIDENT, F.col("value"))).try_cast("bigint").alias("rss_bytes"),
        F.sum(F.when(F.col("sensor") == LEDGER, F.col("value"))).try_cast("bigint").alias("ledger_bytes"),
    ).where("rss_bytes IS NOT NULL AND ledger_bytes IS NOT NULL")
    sinceBoot = Window.partitionBy(*RUN).orderBy("mono_us")
    based = moments.select(
        *RUN,
        "ts",
        "rss_bytes",
        "ledger_bytes",
        F.first(F.col("rss_bytes") - F.col("ledger_bytes")).over(sinceBoot).alias("base_bytes"),
        (F.col("rss_bytes") - F.first("rss_bytes").over(sinceBoot)).alias("growth_bytes"),
    )
    unexplained = F.col("rss_bytes") - F.col("base_bytes") - F.col("ledger_bytes")
    explained = based.withColumn("unexplained_bytes", unexplained)
    share = F.when(F.col("growth_bytes") > 0, F.col("unexplained_bytes") / F.col("growth_bytes"))
    return explained.select(
        *RUN,
        "ts",
        "rss_bytes",
        "ledger_bytes",
        "base_bytes",
        "unexplained_bytes",
        "growth_bytes",
        share.alias("unexplained_share"),
    )


def ledgerSummary(samples: DataFrame) -> DataFrame:
    """
    For each run of a server: C{samples}, C{base_bytes}, C{unexplained_max_bytes}, and at the peak of the process
    C{peak_rss_bytes}, C{peak_ledger_bytes}, C{peak_unexplained_bytes} and C{peak_unexplained_share}.

    @param samples: the result of L{ledgerAudit}.
    """
    atPeak = ("rss_bytes", "ledger_bytes", "unexplained_bytes", "unexplained_share")
    # Of equal peaks the first: the maximum of negated times.
    order = F.struct("rss_bytes", -F.unix_micros("ts"))
    summed = samples.groupBy(*RUN).agg(
        F.count("*").alias("samples"),
        F.max("base_bytes").alias("base_bytes"),
        F.max("unexplained_bytes").alias("unexplained_max_bytes"),
        F.max_by(F.struct(*atPeak), order).alias("_peak"),
    )
    peaks = (F.col(f"_peak.{name}").alias(f"peak_{name}") for name in atPeak)
    return summed.select(*RUN, "samples", "base_bytes", "unexplained_max_bytes", *peaks)
