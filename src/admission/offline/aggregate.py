# -*- test-case-name: tests.offline.test_aggregate -*-
"""
What each client did in each minute, and who did most.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from ..interfaces import CONNECTION
from ..recording.events import EXPIRE, REJECT, THROTTLE
from .minutes import BOOT, aMinute, minuteOfGroup
from .throttling import countsByBucket, quantileMs

CLIENT = ("principal", "client_id")
"""Who a client is."""

MAX_CLIENTS = 10

_COUNTED = {"throttled": THROTTLE, "rejected": REJECT, "expired": EXPIRE}


def clientMinutes(requests: DataFrame, isExact: bool = True) -> DataFrame:
    """
    One row for each client and minute in which a request of it arrived.

    C{requests} counts all of them, C{throttled}, C{rejected} and C{expired}
    those of which that was the decision.  C{bytes_in} and C{bytes_out} are what
    the policies were told, so that a Produce has no response.  The percentiles
    of C{throttle_ms} are over all requests, those that were not throttled
    included.  C{throttle_s} is the sum of the delays that the client was told,
    C{muted_s} that of the times it waited for memory.

    @param requests: clean ones, batch or stream.
    @param isExact: whether percentiles are exact and interpolated, or taken
        from a histogram (see L{quantileMs}), which a stream has to: it would
        keep every delay until its minute is over.
    """
    delayMs = F.col("throttle_ms")
    spread = F.expr("percentile(throttle_ms, array(0.5, 0.99))") if isExact else countsByBucket(delayMs)
    answered = requests.where(F.col("kind") != CONNECTION)
    minutes = answered.groupBy(*BOOT, aMinute(), *CLIENT).agg(
        F.count(F.lit(1)).alias("requests"),
        F.sum("request_bytes").alias("bytes_in"),
        F.sum(F.coalesce("response_bytes", F.lit(0))).alias("bytes_out"),
        *(F.count_if(F.col("decision") == decision).alias(name) for name, decision in _COUNTED.items()),
        spread.alias("_spread"),
        F.max(delayMs).alias("throttle_ms_max"),
        (F.sum(delayMs) / 1000).alias("throttle_s"),
        F.max(F.coalesce("pool_wait_us", F.lit(0))).alias("pool_wait_max_us"),
        (F.sum(F.coalesce("pool_wait_us", F.lit(0))) / 1e6).alias("muted_s"),
    )
    if isExact:
        middle, high = F.element_at("_spread", 1), F.element_at("_spread", 2)
    else:
        middle, high = (quantileMs("_spread", "throttle_ms_max", share) for share in (0.5, 0.99))
    return minutes.select(
        *BOOT,
        minuteOfGroup(),
        *CLIENT,
        "requests",
        "bytes_in",
        "bytes_out",
        *_COUNTED,
        middle.alias("throttle_ms_p50"),
        high.alias("throttle_ms_p99"),
        "throttle_ms_max",
        "throttle_s",
        "pool_wait_max_us",
        "muted_s",
    )


def topClients(minutes: DataFrame, most: int = MAX_CLIENTS) -> DataFrame:
    """
    The clients with the most bytes, requests and throttle time, over all
    servers: C{measure} (C{"bytes"}, C{"requests"} or C{"throttle_s"}), C{rank}
    from 1, C{principal}, C{client_id}, C{value} and C{share} (of everybody's).
    Who has nothing of a measure is not there; of equals the first by name is
    the first.

    @param minutes: what L{clientMinutes} returned.
    @param most: how many clients for each measure.
    """
    totals = minutes.groupBy(*CLIENT).agg(
        F.sum(F.col("bytes_in") + F.col("bytes_out")).cast("double").alias("bytes"),
        F.sum("requests").cast("double").alias("requests"),
        F.sum("throttle_s").alias("throttle_s"),
    )
    measured = totals.unpivot(list(CLIENT), ["bytes", "requests", "throttle_s"], "measure", "value").where("value > 0")
    all_ = Window.partitionBy("measure")
    ranked = measured.select(
        "measure",
        F.row_number().over(all_.orderBy(F.desc("value"), *CLIENT)).cast("bigint").alias("rank"),
        *CLIENT,
        "value",
        (F.col("value") / F.sum("value").over(all_)).alias("share"),
    )
    return ranked.where(F.col("rank") <= most)
