# -*- test-case-name: tests.offline.test_aggregate -*-
"""
Whether everybody gets a share, and who gets nothing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from ..interfaces import CONNECTION
from ..recording.events import EXPIRE, REJECT
from .aggregate import CLIENT
from .minutes import BOOT, MINUTE_US, minuteOf, minuteStart

# Each request is told of in the minute it came, in the one it ended, and in those it spent waiting from the first to
# the last moment.
_TOLD = f"""
inline(concat(
  array(
    struct(arrived_us DIV {MINUTE_US} AS number, bytes AS demanded_bytes, if(is_served, bytes, 0L) AS admitted_bytes,
           0 AS served, 0 AS unserved, 0 AS waited),
    struct(ended_us DIV {MINUTE_US} AS number, 0L AS demanded_bytes, 0L AS admitted_bytes,
           int(is_served) AS served, int(NOT is_served) AS unserved, 0 AS waited)),
  if(first_minute < end_minute,
     transform(sequence(first_minute, end_minute - 1),
               each -> struct(each AS number, 0L AS demanded_bytes, 0L AS admitted_bytes,
                              0 AS served, 0 AS unserved, 1 AS waited)),
     array())))
"""


def clientDemand(requests: DataFrame) -> DataFrame:
    """
    What each client wanted and got in each minute: C{demanded_bytes} and
    C{admitted_bytes}, in and out, of the requests that arrived; C{served} and
    C{unserved}, the requests that ended; C{waited}, the requests that spent the
    whole of that minute waiting for memory or for their turn.

    C{is_starved} says that none was served, although one was refused, was
    given up or waited for all of it.  Requests that were parked until there was
    something to answer do not count as waiting.

    @param requests: clean ones.
    """
    asked = requests.where(F.col("kind") != CONNECTION).selectExpr(
        *BOOT,
        *CLIENT,
        "unix_micros(ts) AS arrived_us",
        "unix_micros(ts) + coalesce(sent_mono_us - mono_us, 0) AS ended_us",
        "unix_micros(ts) + coalesce(pool_wait_us, 0) + coalesce(queue_us, 0) AS begun_us",
        "request_bytes + coalesce(response_bytes, 0) AS bytes",
        f"decision NOT IN ('{REJECT}', '{EXPIRE}') AS is_served",
    )
    waits = asked.selectExpr(
        "*",
        f"(arrived_us + {MINUTE_US - 1}) DIV {MINUTE_US} AS first_minute",
        f"begun_us DIV {MINUTE_US} AS end_minute",
    )
    summed = ("demanded_bytes", "admitted_bytes", "served", "unserved", "waited")
    told = waits.select(*BOOT, *CLIENT, F.expr(_TOLD))
    demand = told.groupBy(*BOOT, "number", *CLIENT).agg(*(F.sum(name).alias(name) for name in summed))
    isStarved = (F.col("served") == 0) & (F.col("unserved") + F.col("waited") > 0)
    return demand.select(*BOOT, minuteStart("number").alias("minute"), *CLIENT, *summed, isStarved.alias("is_starved"))


def fairnessMinutes(requests: DataFrame) -> DataFrame:
    """
    How fairly each minute went: C{clients} that wanted something,
    C{demanded_bytes}, C{admitted_bytes}, Jain's index of the clients' admitted
    shares of their demand (C{jain_share}) and of their admitted bytes
    (C{jain_bytes}), C{starved} clients (see L{clientDemand}), and how long
    requests that came waited for memory: C{pool_wait_p999_us},
    C{pool_wait_max_us}.

    Jain's index is 1 if all get the same, and one by the number of clients if
    one gets it all; null if nobody gets anything.  A client that is throttled
    wants less while it waits: what it did not send is nobody's demand, and its
    throttle time says so instead.

    @param requests: clean ones.
    """
    demand = clientDemand(requests)
    wanted = F.col("demanded_bytes") > 0
    share = F.when(wanted, F.col("admitted_bytes") / F.col("demanded_bytes"))
    fairness = demand.groupBy(*BOOT, "minute").agg(
        F.count("*").alias("clients"),
        F.sum("demanded_bytes").alias("demanded_bytes"),
        F.sum("admitted_bytes").alias("admitted_bytes"),
        jain(share).alias("jain_share"),
        jain(F.when(wanted, F.col("admitted_bytes").cast("double"))).alias("jain_bytes"),
        F.count_if("is_starved").alias("starved"),
    )
    waits = (
        requests.where(F.col("kind") != CONNECTION)
        .withColumn("_waited", F.coalesce("pool_wait_us", F.lit(0)))
        .groupBy(*BOOT, minuteOf("ts"))
        .agg(
            F.expr("percentile(_waited, 0.999)").alias("pool_wait_p999_us"), F.max("_waited").alias("pool_wait_max_us")
        )
    )
    return fairness.join(waits, [*BOOT, "minute"], "left")


def starvedMinutes(requests: DataFrame) -> DataFrame:
    """
    The clients that wanted something and were not served at all, by minute:
    the columns of L{clientDemand} but for its verdict.

    @param requests: clean ones.
    """
    return clientDemand(requests).where("is_starved").drop("is_starved")


def jain(value: Column) -> Column:
    """
    An aggregate: Jain's index of fairness, the square of the sum by the number
    and the sum of the squares.  Nulls do not count.
    """
    return F.try_divide(F.sum(value) * F.sum(value), F.count(value) * F.sum(value * value))
