# -*- test-case-name: tests.spark.test_audit -*-
"""
Which limits were in force for each client, and how clients' usage compares with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from pyspark.sql import Column, DataFrame, Window, functions as F

from ..interfaces import CONNECTION, DEFAULT, RECEIVED_TRAITS, SENT_TRAITS
from .aggregate import RUN

SUBJECT = (*RUN, "is_connection", "principal", "client_id", "peer")
"""
The subject of a limit: a client by its names, or the address of a new connection.  Names that do not matter are empty.
"""

_ENTITY = ("user", "client_id", "ip")

_NOBODY = "string(NULL)"

# As admission.quotas.limits.LimitTable resolves them, the first that is set.
_CLIENT_ORDER = (
    ("principal", "client_id"),
    ("principal", f"'{DEFAULT}'"),
    ("principal", _NOBODY),
    (f"'{DEFAULT}'", "client_id"),
    (f"'{DEFAULT}'", f"'{DEFAULT}'"),
    (f"'{DEFAULT}'", _NOBODY),
    (_NOBODY, "client_id"),
    (_NOBODY, f"'{DEFAULT}'"),
)


def _entities() -> str:
    clients = ", ".join(
        f"struct({rank} AS rank, {user} AS e_user, {clientId} AS e_client_id, {_NOBODY} AS e_ip)"
        for rank, (user, clientId) in enumerate(_CLIENT_ORDER)
    )
    addresses = ", ".join(
        f"struct({rank} AS rank, {_NOBODY} AS e_user, {_NOBODY} AS e_client_id, {ip} AS e_ip)"
        for rank, ip in enumerate(("peer", f"'{DEFAULT}'"))
    )
    return f"inline(if(is_connection, array({addresses}), array({clients})))"


def subjectColumns() -> list[Column]:
    isConnection = F.col("kind") == CONNECTION
    nobody = F.lit("")
    return [
        *(F.col(name) for name in RUN),
        isConnection.alias("is_connection"),
        F.when(isConnection, nobody).otherwise(F.col("principal")).alias("principal"),
        F.when(isConnection, nobody).otherwise(F.col("client_id")).alias("client_id"),
        F.when(isConnection, F.col("peer")).otherwise(nobody).alias("peer"),
    ]


def limitSpans(limits: DataFrame) -> DataFrame:
    """
    The time spans of limits, whatever their entity: the columns of the limits table, C{since_us} and C{until_us} (null:
    to the end) on the server's monotonic clock.

    @param limits: clean ones.
    """
    changes = Window.partitionBy(*RUN, *_ENTITY, "limit_name").orderBy("mono_us", "seq")
    spans = limits.select(
        *RUN,
        *_ENTITY,
        "limit_name",
        "value",
        F.col("mono_us").alias("since_us"),
        F.lead("mono_us").over(changes).alias("until_us"),
    )
    return spans.where("value IS NOT NULL AND (until_us IS NULL OR until_us > since_us)")


def limitsInForce(requests: DataFrame, limits: DataFrame) -> DataFrame:
    """
    For each client with any request, its limits over time: L{SUBJECT}, C{limit_name}, C{since_us}, C{until_us},
    C{value}, and the meter's entity: C{meter_user}, C{meter_client_id} and C{meter_ip}, null for what does not matter.

    This is the rule of L{admission.quotas.limits.LimitTable} and L{admission.quotas.metering.Meters}, for tables that
    change.

    @param requests: clean ones, like C{limits}.
    """
    wanted = requests.select(*subjectColumns()).distinct().select(*SUBJECT, F.expr(_entities()))
    spans = limitSpans(limits).withColumnsRenamed({name: f"l_{name}" for name in (*RUN, *_ENTITY)})
    isOf = F.lit(True)
    for name in RUN:
        isOf &= wanted[name] == spans[f"l_{name}"]
    for name in _ENTITY:
        isOf &= wanted[f"e_{name}"].eqNullSafe(spans[f"l_{name}"])
    # Every client may have limits of its own: hints keep Spark from broadcasting what it takes for few rows.
    found = wanted.join(spans.hint("merge"), isOf).select(
        *SUBJECT,
        "limit_name",
        "rank",
        "since_us",
        "until_us",
        "value",
        F.when(F.col("e_user").isNotNull(), F.col("principal")).alias("meter_user"),
        F.when(F.col("e_client_id").isNotNull(), F.col("client_id")).alias("meter_client_id"),
        F.when(F.col("e_ip").isNotNull(), F.col("peer")).alias("meter_ip"),
    )
    # Between two moments at which anything changes for a client, the most specific of its limits is in force.
    client = (*SUBJECT, "limit_name")
    moments = found.select(*client, F.explode(F.array("since_us", "until_us")).alias("from_us")).where(
        "from_us IS NOT NULL"
    )
    following = F.lead("from_us").over(Window.partitionBy(*client).orderBy("from_us"))
    steps = moments.distinct().withColumn("to_us", following)
    held = steps.join(found.hint("merge"), list(client)).where(
        "since_us <= from_us AND (until_us IS NULL OR until_us > from_us)"
    )
    chosen = ("value", "meter_user", "meter_client_id", "meter_ip")
    best = held.groupBy(*client, "from_us", "to_us").agg(F.min_by(F.struct(*chosen), "rank").alias("_best"))
    return best.select(
        *client,
        F.col("from_us").alias("since_us"),
        F.col("to_us").alias("until_us"),
        *(F.col(f"_best.{name}").alias(name) for name in chosen),
    )


_IN_FORCE = ("since_us", "until_us", "value", "meter_user", "meter_client_id", "meter_ip")

SPAN_SECONDS = 10


@frozen
class Measure:
    """
    What a limit counts, in Spark's SQL.

    @ivar applies: the condition for counted requests.
    @ivar amount: the amount, in the limit's unit times a second.
    """

    applies: str
    amount: str


_RECEIVED, _SENT = RECEIVED_TRAITS.code, SENT_TRAITS.code

_RECEIVED_BYTES = Measure(f"traits & {_RECEIVED} > 0", "request_bytes")
_SENT_BYTES = Measure(f"traits & {_SENT} > 0", "response_bytes")

MEASURES: Mapping[str, Measure] = {
    "received_byte_rate": _RECEIVED_BYTES,
    "sent_byte_rate": _SENT_BYTES,
    "producer_byte_rate": _RECEIVED_BYTES,
    "consumer_byte_rate": _SENT_BYTES,
    "request_percentage": Measure(f"kind <> '{CONNECTION}'", "service_us / 1e4"),
    "connection_creation_rate": Measure(f"kind = '{CONNECTION}'", "1"),
}
"""
The limits that are rates, as the default policies count them, by each name that a server may have recorded.  The rate
of new identities is per hour, and audited by L{admission.offline.bloomaudit}.
"""

METER = ("limit_name", "user", "client_id", "ip")
"""The meter that shares a limit, as the sensors name it; null for what does not matter."""


def quotaSpans(requests: DataFrame, limits: DataFrame, spanSeconds: int = SPAN_SECONDS) -> DataFrame:
    """
    One row for each meter and span of time with any usage: C{broker_id}, C{boot_id}, L{METER}, C{span_start},
    C{requests}, C{amount}, C{rate} (per second), C{limit} (the highest that was in force), C{is_steady} (it was the
    same for all of these requests), C{utilization} (the rate divided by the limit), C{throttled} requests and
    C{throttle_max_s}.

    C{overshoot} is the excess of the utilization over 1. C{overshoot_after_throttle} takes the delays into account: the
    same amount over the time until the last client that was throttled here is released. A quota holds if the latter
    stays small; a policy that allows bursts always has the former.

    @param requests: clean ones, like C{limits}. Requests that were not charged do not count.
    @param spanSeconds: the length of a span; the first began with 1970.
    """
    # A row for each limit that a request counts for: of those that were set only, since some have two names.
    ever = {row["limit_name"] for row in limits.select("limit_name").distinct().collect()}
    names = MEASURES.keys() & ever or {*MEASURES}
    amounts = ", ".join(
        f"struct('{name}' AS limit_name, CASE WHEN {measure.applies} THEN double({measure.amount}) END AS amount)"
        for name, measure in MEASURES.items()
        if name in names
    )
    # A new connection is throttled without being told.
    heldMs = f"if(kind = '{CONNECTION}', coalesce(array_max(policy_delays_us), 0) / 1e3, throttle_ms)"
    counted = requests.where("is_counted").select(
        *subjectColumns(),
        "decided_mono_us",
        F.expr("unix_micros(ts) + decided_mono_us - mono_us").alias("_at_us"),
        F.expr(heldMs).alias("_held_ms"),
        F.expr(f"inline(array({amounts}))"),
    )
    # Spark sorts by a number in a fraction of the time that it takes for names which begin alike; that two clients of a
    # million have the same happens in one of thirty million recordings.
    number = F.xxhash64(*SUBJECT, "limit_name").alias("_number")
    uses = counted.where("amount > 0").select("*", number)
    inForce = limitsInForce(requests, limits).select(number, *_IN_FORCE)
    limited = uses.join(inForce.hint("merge"), "_number").where(
        "since_us <= decided_mono_us AND (until_us IS NULL OR until_us > decided_mono_us)"
    )
    spanUs = spanSeconds * 1_000_000
    spans = limited.groupBy(
        *RUN,
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
        *RUN,
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

    @param spans: the result of L{quotaSpans}.
    """
    after = F.when(F.col("throttled") > 0, F.col("overshoot_after_throttle"))
    return (
        spans.where("is_steady")
        .groupBy(*RUN, *METER, "limit")
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
