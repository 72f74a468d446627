# -*- test-case-name: tests.spark.test_aggregate -*-
"""
Aggregates by minute: each client's requests, how evenly clients shared, the lengths of delays, and the memory pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, functions as F

from ..interfaces import CONNECTION
from ..metrics.histogram import SECONDS_BOUNDS
from ..recording.events import COUNTER, EXPIRE, REJECT, THROTTLE
from .simulate.decisions import LOGIN_KINDS, NOBODY

BOUNDS_MS: Sequence[int] = (0, *(round(bound * 1000) for bound in SECONDS_BOUNDS if bound >= 0.001))
"""
The upper bounds of the buckets, inclusive, in milliseconds: the bounds of the server's own histograms from 1 ms to 500
s, and zero for no delay.
"""


def bucketMs(delayUs: Column) -> Column:
    """
    The upper bound, in milliseconds, of the bucket of a delay in microseconds; null above all buckets.
    """
    bucket = F.when(delayUs <= 0, F.lit(0))
    for bound in BOUNDS_MS[1:]:
        bucket = bucket.when(delayUs <= bound * 1000, F.lit(bound))
    return bucket.cast("bigint")


def countsByBucket(delayMs: Column) -> Column:
    """
    An aggregate: the number of delays, in milliseconds, in each bucket, and last of delays above all buckets.
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
    The upper bound of the bucket of the delay at C{share}, or the largest delay if that is less: no less than that
    delay itself.

    @param counts: the column that L{countsByBucket} made; counts may have been added up since.
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
    How often each policy, shadow policies included, asked for delays of each length: C{broker_id}, C{boot_id},
    C{minute}, C{policy}, C{bucket_ms} (see L{bucketMs}), C{n}, and C{refused}, how many of these it refused: their
    delay is how long the client should wait before it asks again.  Bucket 0 counts requests without a delay.

    @param requests: clean ones, batch or stream; connections that the policies were asked about count, too.
    """
    # Policies are charged for a request unless one of them has refused it.
    refuser = F.when(F.col("is_counted").isNull(), F.col("policy")).alias("_refuser")
    asked = requests.select(*RUN, "ts", refuser, F.expr("inline(arrays_zip(policy_names, policy_delays_us))"))
    # Only the first few delays are recorded, and none if no policy was asked.
    delays = asked.where("policy_delays_us IS NOT NULL").withColumn("bucket_ms", bucketMs(F.col("policy_delays_us")))
    counted = delays.groupBy(*RUN, aMinute(), F.col("policy_names").alias("policy"), "bucket_ms")
    numbers = F.count(F.lit(1)).alias("n"), F.count_if(F.expr("_refuser = policy_names")).alias("refused")
    return counted.agg(*numbers).select(*RUN, minuteOfGroup(), "policy", "bucket_ms", "n", "refused")


def throttleHistogram(minutes: DataFrame) -> DataFrame:
    """
    The histogram of the whole recording: C{policy}, C{bucket_ms}, C{n} and C{refused}.

    @param minutes: the result of L{throttleMinutes}, or a union of several.
    """
    return minutes.groupBy("policy", "bucket_ms").agg(*(F.sum(name).alias(name) for name in ("n", "refused")))


RUN = ("broker_id", "boot_id")
"""The identity of one run of one server: clocks, counters and filters begin anew with each."""

MINUTE_US = 60_000_000

_WINDOW = "_minute"


def aMinute() -> Column:
    """
    The grouping by minute; see L{minuteOfGroup}.  Streams need it, since they can forget no other group.
    """
    return F.window("ts", "1 minute").alias(_WINDOW)


def minuteOfGroup() -> Column:
    """
    The column C{minute} of rows grouped by L{aMinute}: when the minute began.
    """
    return F.col(f"{_WINDOW}.start").alias("minute")


def minuteOf(name: str) -> Column:
    """
    The column C{minute} of a time: when its minute began, whatever the session's time zone is, unlike truncating.

    @param name: the column of the time.
    """
    return F.expr(f"timestamp_micros(unix_micros({name}) DIV {MINUTE_US} * {MINUTE_US})").alias("minute")


def minuteStart(number: str) -> Column:
    """
    When a minute began.

    @param number: the column that numbers it, from 1970 on.
    """
    return F.timestamp_micros(F.col(number) * F.lit(MINUTE_US))


def spreadOverMinutes(frame: DataFrame, beginUs: Column, lengthUs: Column, kept: Sequence[str]) -> DataFrame:
    """
    Cut time spans into their parts within each minute.

    @param beginUs: when each began, in microseconds since 1970.
    @param lengthUs: its length; spans of length zero are dropped.
    @param kept: the columns to keep.
    @return: these, and C{minute}, C{part_us} (the part in that minute) and C{length_us}.
    """
    times = frame.select(*kept, beginUs.alias("_begin"), lengthUs.alias("length_us")).where("length_us > 0")
    last = f"(_begin + length_us - 1) DIV {MINUTE_US}"
    parts = times.withColumn("_number", F.expr(f"explode(sequence(_begin DIV {MINUTE_US}, {last}))"))
    part = f"least(_begin + length_us, (_number + 1) * {MINUTE_US}) - greatest(_begin, _number * {MINUTE_US})"
    return parts.select(*kept, minuteStart("_number").alias("minute"), F.expr(part).alias("part_us"), "length_us")


CLIENT = ("principal", "client_id")
"""The identity of a client."""

MAX_CLIENTS = 10

_IS_NOBODYS = f"(principal = '{NOBODY}' AND kind IN {LOGIN_KINDS})"
"""The requests before a login, which are no client's."""

_COUNTED = {"throttled": THROTTLE, "rejected": REJECT, "expired": EXPIRE}


def clientMinutes(requests: DataFrame, isExact: bool = True) -> DataFrame:
    """
    One row for each client and minute in which a request of it arrived; requests before a login are no client's.

    C{requests} counts all of them, C{throttled}, C{rejected} and C{expired} the requests with that decision.
    C{bytes_in} and C{bytes_out} are the bytes charged to the policies, so that a Produce has no response.  The
    percentiles of C{throttle_ms} are over all requests, including requests that were not throttled.  C{throttle_s} is
    the sum of the throttle times sent to the client, C{muted_s} of its waits for memory.

    @param requests: clean ones, batch or stream.
    @param isExact: whether percentiles are exact and interpolated, or taken from a histogram (see L{quantileMs}), which
        a stream needs: otherwise it would keep every delay until its minute is over.
    """
    delayMs = F.col("throttle_ms")
    spread = F.expr("percentile(throttle_ms, array(0.5, 0.99))") if isExact else countsByBucket(delayMs)
    answered = requests.where(F.col("kind") != CONNECTION).where(f"NOT {_IS_NOBODYS}")
    minutes = answered.groupBy(*RUN, aMinute(), *CLIENT).agg(
        F.count(F.lit(1)).alias("requests"),
        F.sum("request_bytes").alias("bytes_in"),
        F.sum(F.coalesce("response_bytes", F.lit(0))).alias("bytes_out"),
        *(F.count_if(F.col("decision") == decision).alias(name) for name, decision in _COUNTED.items()),
        spread.alias("_spread"),
        F.max(delayMs).alias("throttle_ms_max"),
        (F.sum(delayMs) / 1000).alias("throttle_s"),
        F.count_if(F.col("pool_wait_us") > 0).alias("pool_waits"),
        F.max(F.coalesce("pool_wait_us", F.lit(0))).alias("pool_wait_max_us"),
        (F.sum(F.coalesce("pool_wait_us", F.lit(0))) / 1e6).alias("muted_s"),
    )
    if isExact:
        middle, high = F.element_at("_spread", 1), F.element_at("_spread", 2)
    else:
        middle, high = (quantileMs("_spread", "throttle_ms_max", share) for share in (0.5, 0.99))
    return minutes.select(
        *RUN,
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
        "pool_waits",
        "pool_wait_max_us",
        "muted_s",
    )


def topClients(minutes: DataFrame, most: int = MAX_CLIENTS) -> DataFrame:
    """
    The clients with the most bytes, requests and throttle time, over all servers: C{measure} (C{"bytes"}, C{"requests"}
    or C{"throttle_s"}), C{rank} from 1, C{principal}, C{client_id}, C{value} and C{share} (of the total). Clients with
    a value of zero are left out; equal ones are ranked by name.

    @param minutes: the result of L{clientMinutes}.
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


# Each request has rows for the minutes in which it arrived and ended, and for the minutes that it waited throughout.
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
    Each client's demand and service in each minute: C{demanded_bytes} and C{admitted_bytes}, in and out, of the
    requests that arrived; C{served} and C{unserved}, the requests that ended; C{waited}, the requests that waited for
    memory or for their turn during that whole minute.

    C{is_starved}: none was served, although one was refused, expired or waited for the whole minute.  Parked requests
    do not count as waiting.

    @param requests: clean ones.
    """
    asked = (
        requests.where(F.col("kind") != CONNECTION)
        .where(f"NOT {_IS_NOBODYS}")
        .selectExpr(
            *RUN,
            *CLIENT,
            "unix_micros(ts) AS arrived_us",
            "unix_micros(ts) + coalesce(sent_mono_us - mono_us, 0) AS ended_us",
            "unix_micros(ts) + coalesce(pool_wait_us, 0) + coalesce(queue_us, 0) AS begun_us",
            "request_bytes + coalesce(response_bytes, 0) AS bytes",
            f"decision NOT IN ('{REJECT}', '{EXPIRE}') AS is_served",
        )
    )
    waits = asked.selectExpr(
        "*",
        f"(arrived_us + {MINUTE_US - 1}) DIV {MINUTE_US} AS first_minute",
        f"begun_us DIV {MINUTE_US} AS end_minute",
    )
    summed = ("demanded_bytes", "admitted_bytes", "served", "unserved", "waited")
    told = waits.select(*RUN, *CLIENT, F.expr(_TOLD))
    demand = told.groupBy(*RUN, "number", *CLIENT).agg(*(F.sum(name).alias(name) for name in summed))
    isStarved = (F.col("served") == 0) & (F.col("unserved") + F.col("waited") > 0)
    return demand.select(*RUN, minuteStart("number").alias("minute"), *CLIENT, *summed, isStarved.alias("is_starved"))


def fairnessMinutes(requests: DataFrame) -> DataFrame:
    """
    The fairness of each minute: C{clients} with any demand, C{demanded_bytes}, C{admitted_bytes}, Jain's index of the
    clients' admitted shares of their demand (C{jain_share}) and of their admitted bytes (C{jain_bytes}), C{starved}
    clients (see L{clientDemand}), and the waits for memory of requests that arrived: C{pool_waits} (how many waited),
    C{pool_wait_p999_us}, C{pool_wait_max_us}.

    Jain's index is 1 if all clients get the same, and 1/n if one of n gets everything; null if no client gets anything.
    A throttled client demands less while it waits: the requests that it did not send are not in its demand, only in its
    throttle time.

    @param requests: clean ones.
    """
    demand = clientDemand(requests)
    wanted = F.col("demanded_bytes") > 0
    share = F.when(wanted, F.col("admitted_bytes") / F.col("demanded_bytes"))
    fairness = demand.groupBy(*RUN, "minute").agg(
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
        .groupBy(*RUN, minuteOf("ts"))
        .agg(
            F.count_if(F.col("_waited") > 0).alias("pool_waits"),
            F.expr("percentile(_waited, 0.999)").alias("pool_wait_p999_us"),
            F.max("_waited").alias("pool_wait_max_us"),
        )
    )
    return fairness.join(waits.hint("merge"), [*RUN, "minute"], "left")


def starvedMinutes(requests: DataFrame) -> DataFrame:
    """
    The clients with a demand that were not served at all, by minute: the columns of L{clientDemand} without
    C{is_starved}.

    @param requests: clean ones.
    """
    return clientDemand(requests).where("is_starved").drop("is_starved")


def jain(value: Column) -> Column:
    """
    An aggregate: Jain's index of fairness, the squared sum divided by the number times the sum of the squares.  Nulls
    are ignored.
    """
    return F.try_divide(F.sum(value) * F.sum(value), F.count(value) * F.sum(value * value))


USED = "MemoryPoolUsed"
AVAILABLE = "MemoryPoolAvailable"

DEPLETED = "MemoryPoolDepletedMicroseconds"
"""The counter of the time during which requests were refused memory."""


def poolMinutes(requests: DataFrame, sensors: DataFrame) -> DataFrame:
    """
    One row for each minute and server: C{used_max} and C{available_min} in bytes, from sensors and requests;
    C{depleted_pct}, the percentage of the time with no memory available, and C{covered_s}, the time for which that is
    known; and C{muted_s}, the total time that connections waited for memory.

    The percentage comes from the growth of a counter, L{DEPLETED}: the moments at which requests arrive find the pool
    depleted more often than it is.  It is null where that counter was not sampled.

    @param requests: clean ones, like C{sensors}.
    """
    fields = [*RUN, "minute"]
    minute = minuteOf("ts")
    found = requests.select(*RUN, minute, F.col("pool_used_bytes").alias("used"), "pool_available_bytes")
    levels = found.withColumnRenamed("pool_available_bytes", "available").unionByName(
        sensors.where(F.col("sensor").isin(USED, AVAILABLE)).select(
            *RUN,
            minute,
            F.when(F.col("sensor") == USED, F.col("value").try_cast("bigint")).alias("used"),
            F.when(F.col("sensor") == AVAILABLE, F.col("value").try_cast("bigint")).alias("available"),
        )
    )
    extremes = levels.groupBy(*fields).agg(F.max("used").alias("used_max"), F.min("available").alias("available_min"))
    waits = spreadOverMinutes(requests, F.unix_micros("ts"), F.col("pool_wait_us"), RUN)
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


def poolTimes(requests: DataFrame, sensors: DataFrame, stepUs: int) -> DataFrame:
    """
    One row for each step of time and server: C{begin}, and C{used_max} in bytes, from sensors and requests.

    @param requests: clean ones, like C{sensors}.
    @param stepUs: the length of a step, in microseconds.
    """
    begin = F.expr(f"timestamp_micros(unix_micros(ts) DIV {stepUs} * {stepUs})").alias("begin")
    samples = sensors.where(F.col("sensor") == USED).select(
        *RUN, begin, F.col("value").try_cast("bigint").alias("used")
    )
    levels = requests.select(*RUN, begin, F.col("pool_used_bytes").alias("used")).unionByName(samples)
    return levels.groupBy(*RUN, "begin").agg(F.max("used").alias("used_max"))


def depletedMinutes(sensors: DataFrame) -> DataFrame:
    """
    C{depleted_pct} and C{covered_s} of L{poolMinutes}.

    The counter's growth between two samples is spread evenly over the time between them.  It restarts with each run;
    where it falls otherwise, the time before is unknown.
    """
    before = Window.partitionBy(*RUN).orderBy("mono_us", "seq")
    samples = sensors.where((F.col("sensor") == DEPLETED) & (F.col("kind") == COUNTER) & F.col("value").isNotNull())
    growth = samples.select(
        *RUN,
        "ts",
        (F.col("mono_us") - F.lag("mono_us").over(before)).alias("_elapsed"),
        (F.col("value") - F.lag("value").over(before)).alias("grown_us"),
    ).where("grown_us >= 0")
    began = F.unix_micros("ts") - F.col("_elapsed")
    parts = spreadOverMinutes(growth, began, F.col("_elapsed"), [*RUN, "grown_us"])
    depletedUs = F.sum(F.col("grown_us") * F.col("part_us") / F.col("length_us"))
    return parts.groupBy(*RUN, "minute").agg(
        (100 * depletedUs / F.sum("part_us")).alias("depleted_pct"), (F.sum("part_us") / 1e6).alias("covered_s")
    )
