# -*- test-case-name: tests.offline.test_aggregate -*-
"""
How delays are spread, in ranges that are always the same, so that counts of
different minutes, servers and jobs can be added.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions as F

from ..metrics.histogram import SECONDS_BOUNDS
from .minutes import BOOT, aMinute, minuteOfGroup

BOUNDS_MS: Sequence[int] = (0, *(round(bound * 1000) for bound in SECONDS_BOUNDS if bound >= 0.001))
"""
The upper bounds of the ranges, each included, in milliseconds: those of the
server's own histograms from 1 ms to 500 s, and zero for no delay at all.
"""


def bucketMs(delayUs: Column) -> Column:
    """
    The upper bound of the range of a delay in microseconds, in milliseconds;
    null above all of them.
    """
    bucket = F.when(delayUs <= 0, F.lit(0))
    for bound in BOUNDS_MS[1:]:
        bucket = bucket.when(delayUs <= bound * 1000, F.lit(bound))
    return bucket.cast("bigint")


def countsByBucket(delayMs: Column) -> Column:
    """
    An aggregate: how many delays, in milliseconds, there are in each range, and
    last those above all.
    """
    lows = (None, *BOUNDS_MS)
    highs = (*BOUNDS_MS, None)
    conditions: list[Column] = []
    for low, high in zip(lows, highs, strict=True):
        isIn = F.lit(True) if low is None else delayMs > low
        conditions.append(isIn if high is None else isIn & (delayMs <= high))
    return F.array(*(F.count_if(condition) for condition in conditions))


def quantileMs(counts: str, largest: str, share: float) -> Column:
    """
    The upper bound of the range that the delay at C{share} fell into, or the
    largest delay if that is less: no less than that delay itself.

    @param counts: the column that L{countsByBucket} made; they may have been
        added up since.
    @param largest: the column of the largest delay.
    @param share: from 0 to 1; 0.99 for the 99th percentile.
    """
    total = f"aggregate({counts}, 0L, (sum, n) -> sum + n)"
    upTo = f"aggregate(slice({counts}, 1, place), 0L, (sum, n) -> sum + n)"
    reached = f"transform(sequence(1, size({counts})), place -> {upTo} >= greatest(ceil({share} * {total}), 1))"
    bounds = ", ".join(f"{bound}L" for bound in BOUNDS_MS)
    bound = f"try_element_at(array({bounds}), int(array_position({reached}, true)))"
    return F.expr(f"double(least({bound}, {largest}))")


def throttleMinutes(requests: DataFrame) -> DataFrame:
    """
    How often each policy asked for delays of which length, shadow policies
    included: C{broker_id}, C{boot_id}, C{minute}, C{policy}, C{bucket_ms} (see
    L{bucketMs}) and C{n}.  A range of 0 counts whom the policy let pass.

    @param requests: clean ones, batch or stream; connections that were put to
        the policies count, too.
    """
    asked = requests.select(*BOOT, "ts", F.expr("inline(arrays_zip(policy_names, policy_delays_us))"))
    # Only the first few delays are recorded, and none if nobody was asked.
    delays = asked.where("policy_delays_us IS NOT NULL").withColumn("bucket_ms", bucketMs(F.col("policy_delays_us")))
    counted = delays.groupBy(*BOOT, aMinute(), F.col("policy_names").alias("policy"), "bucket_ms")
    return counted.agg(F.count(F.lit(1)).alias("n")).select(*BOOT, minuteOfGroup(), "policy", "bucket_ms", "n")


def throttleHistogram(minutes: DataFrame) -> DataFrame:
    """
    The same for the whole recording: C{policy}, C{bucket_ms} and C{n}.

    @param minutes: what L{throttleMinutes} returned, or several of them.
    """
    return minutes.groupBy("policy", "bucket_ms").agg(F.sum("n").alias("n"))
