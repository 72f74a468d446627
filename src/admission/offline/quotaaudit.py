# -*- test-case-name: tests.offline.test_audit -*-
"""
What clients took, held against the limits that were in force.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from pyspark.sql import DataFrame, functions as F

from ..interfaces import CONNECTION, RECEIVED, SENT
from .limitsinforce import SUBJECT, limitsInForce, subjectColumns
from .minutes import BOOT

SPAN_SECONDS = 10


@frozen
class Measure:
    """
    What a limit counts, in Spark's SQL.

    @ivar applies: of which requests.
    @ivar amount: how much, in the limit's unit times a second.
    """

    applies: str
    amount: str


MEASURES: Mapping[str, Measure] = {
    "producer_byte_rate": Measure(f"kind IN ('Produce', '{RECEIVED}')", "request_bytes"),
    "consumer_byte_rate": Measure(f"kind IN ('Fetch', '{SENT}')", "response_bytes"),
    "request_percentage": Measure(f"kind <> '{CONNECTION}'", "service_us / 1e4"),
    "connection_creation_rate": Measure(f"kind = '{CONNECTION}'", "1"),
}
"""
The limits that are rates, as the default policies count them.  That of new
producer ids is for an hour, and L{admission.offline.bloomaudit} is about it.
"""

METER = ("limit_name", "user", "client_id", "ip")
"""Who shares a limit, as the sensors name them; null for what does not matter."""


def quotaSpans(requests: DataFrame, limits: DataFrame, spanSeconds: int = SPAN_SECONDS) -> DataFrame:
    """
    One row for each meter and span of time in which something was counted on
    it: C{broker_id}, C{boot_id}, L{METER}, C{span_start}, C{requests},
    C{amount}, C{rate} (each second), C{limit} (the highest that was in force),
    C{is_steady} (it was the same for all of these requests), C{utilization}
    (the rate by the limit), C{throttled} requests and C{throttle_max_s}.

    C{overshoot} is what the utilization is above 1.
    C{overshoot_after_throttle} is that once the delays have had their effect:
    the same amount over the time until the last of those who were throttled
    here might go on.  A quota holds if that stays small; a policy that allows
    bursts has the former in any case.

    @param requests: clean ones, like C{limits}.  Those that were not counted do
        not count here either.
    @param spanSeconds: how long spans are; the first began with 1970.
    """
    amounts = ", ".join(
        f"struct('{name}' AS limit_name, CASE WHEN {measure.applies} THEN double({measure.amount}) END AS amount)"
        for name, measure in MEASURES.items()
    )
    # A connection that is opened is throttled without being told.
    heldMs = f"if(kind = '{CONNECTION}', coalesce(array_max(policy_delays_us), 0) / 1e3, throttle_ms)"
    counted = requests.where("is_counted").select(
        *subjectColumns(),
        "decided_mono_us",
        F.expr("unix_micros(ts) + decided_mono_us - mono_us").alias("_at_us"),
        F.expr(heldMs).alias("_held_ms"),
        F.expr(f"inline(array({amounts}))"),
    )
    uses = counted.where("amount > 0")
    inForce = limitsInForce(requests, limits)
    limited = uses.join(inForce, [*SUBJECT, "limit_name"]).where(
        "since_us <= decided_mono_us AND (until_us IS NULL OR until_us > decided_mono_us)"
    )
    spanUs = spanSeconds * 1_000_000
    spans = limited.groupBy(
        *BOOT,
        "limit_name",
        F.col("meter_user").alias("user"),
        F.col("meter_client_id").alias("client_id"),
        F.col("meter_ip").alias("ip"),
        F.expr(f"_at_us DIV {spanUs} * {spanUs}").alias("_start_us"),
    ).agg(
        F.count("*").alias("requests"),
        F.sum("amount").alias("amount"),
        F.max("value").alias("limit"),
        (F.min("value") == F.max("value")).alias("is_steady"),
        F.count_if(F.col("_held_ms") > 0).alias("throttled"),
        (F.max("_held_ms") / 1e3).alias("throttle_max_s"),
        F.max(F.when(F.col("_held_ms") > 0, F.col("_at_us") + F.col("_held_ms") * 1e3)).alias("_held_until_us"),
    )
    heldOverUs = F.greatest(F.coalesce(F.col("_held_until_us") - F.col("_start_us") - spanUs, F.lit(0.0)), F.lit(0.0))
    rate = F.col("amount") / spanSeconds
    calmed = F.col("amount") * 1e6 / (heldOverUs + spanUs)
    return spans.select(
        *BOOT,
        *METER,
        F.timestamp_micros("_start_us").alias("span_start"),
        "requests",
        "amount",
        rate.alias("rate"),
        "limit",
        "is_steady",
        (rate / F.col("limit")).alias("utilization"),
        "throttled",
        "throttle_max_s",
        F.greatest(rate / F.col("limit") - 1, F.lit(0.0)).alias("overshoot"),
        F.greatest(calmed / F.col("limit") - 1, F.lit(0.0)).alias("overshoot_after_throttle"),
    )


def quotaSummary(spans: DataFrame) -> DataFrame:
    """
    For each meter and limit, over the spans in which the limit did not change:
    C{spans}, C{throttled_spans}, the percentiles C{utilization_p50} and
    C{utilization_p99}, C{utilization_max}, and C{overshoot_after_throttle_p99}
    and C{overshoot_after_throttle_max}, over the spans with throttling, null if
    there are none.

    @param spans: what L{quotaSpans} returned.
    """
    after = F.when(F.col("throttled") > 0, F.col("overshoot_after_throttle"))
    return (
        spans.where("is_steady")
        .groupBy(*BOOT, *METER, "limit")
        .agg(
            F.count("*").alias("spans"),
            F.count_if(F.col("throttled") > 0).alias("throttled_spans"),
            F.percentile("utilization", 0.5).alias("utilization_p50"),
            F.percentile("utilization", 0.99).alias("utilization_p99"),
            F.max("utilization").alias("utilization_max"),
            F.percentile(after, 0.99).alias("overshoot_after_throttle_p99"),
            F.max(after).alias("overshoot_after_throttle_max"),
        )
    )
