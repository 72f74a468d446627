# -*- test-case-name: tests.offline.test_aggregate -*-
"""
How the memory pool fared in each minute.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from ..recording.events import COUNTER
from .minutes import BOOT, minuteOf, spreadOverMinutes

USED = "MemoryPoolUsed"
AVAILABLE = "MemoryPoolAvailable"

DEPLETED = "MemoryPoolDepletedMicroseconds"
"""The counter of the time during which requests were refused memory."""


def poolMinutes(requests: DataFrame, sensors: DataFrame) -> DataFrame:
    """
    One row for each minute and server: C{used_max} and C{available_min} in
    bytes, as sensors and requests found them; C{depleted_pct}, the percentage
    of the time during which there was no memory, and C{covered_s}, the time
    that this is known of; and C{muted_s}, the time that connections waited for
    memory, all together.

    The percentage comes from the growth of a counter, L{DEPLETED}: requests
    find the pool depleted more often than it is, and its moments would tell of
    the moments only.  It is null where nobody has sampled that counter.

    @param requests: clean ones, like C{sensors}.
    """
    fields = [*BOOT, "minute"]
    minute = minuteOf("ts")
    found = requests.select(*BOOT, minute, F.col("pool_used_bytes").alias("used"), "pool_available_bytes")
    levels = found.withColumnRenamed("pool_available_bytes", "available").unionByName(
        sensors.where(F.col("sensor").isin(USED, AVAILABLE)).select(
            *BOOT,
            minute,
            F.when(F.col("sensor") == USED, F.col("value").try_cast("bigint")).alias("used"),
            F.when(F.col("sensor") == AVAILABLE, F.col("value").try_cast("bigint")).alias("available"),
        )
    )
    extremes = levels.groupBy(*fields).agg(F.max("used").alias("used_max"), F.min("available").alias("available_min"))
    waits = spreadOverMinutes(requests, F.unix_micros("ts"), F.col("pool_wait_us"), BOOT)
    muted = waits.groupBy(*fields).agg((F.sum("part_us") / 1e6).alias("muted_s"))
    joined = extremes.join(depletedMinutes(sensors), fields, "full").join(muted, fields, "full")
    return joined.select(
        *fields,
        "used_max",
        "available_min",
        "depleted_pct",
        F.coalesce("covered_s", F.lit(0.0)).alias("covered_s"),
        F.coalesce("muted_s", F.lit(0.0)).alias("muted_s"),
    )


def depletedMinutes(sensors: DataFrame) -> DataFrame:
    """
    C{depleted_pct} and C{covered_s} of L{poolMinutes}.

    What the counter grew by between two samples is spread evenly over the time
    between them.  It starts anew with each boot; where it falls for any other
    reason, nothing is known of the time before.
    """
    before = Window.partitionBy(*BOOT).orderBy("mono_us", "seq")
    samples = sensors.where((F.col("sensor") == DEPLETED) & (F.col("kind") == COUNTER) & F.col("value").isNotNull())
    growth = samples.select(
        *BOOT,
        "ts",
        (F.col("mono_us") - F.lag("mono_us").over(before)).alias("_elapsed"),
        (F.col("value") - F.lag("value").over(before)).alias("grown_us"),
    ).where("grown_us >= 0")
    began = F.unix_micros("ts") - F.col("_elapsed")
    parts = spreadOverMinutes(growth, began, F.col("_elapsed"), [*BOOT, "grown_us"])
    depletedUs = F.sum(F.col("grown_us") * F.col("part_us") / F.col("length_us"))
    return parts.groupBy(*BOOT, "minute").agg(
        (100 * depletedUs / F.sum("part_us")).alias("depleted_pct"), (F.sum("part_us") / 1e6).alias("covered_s")
    )
