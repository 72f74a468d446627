# -*- test-case-name: tests.offline.test_audit -*-
"""
Which limit held for whom, and when.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from ..interfaces import CONNECTION, DEFAULT
from .minutes import BOOT

SUBJECT = (*BOOT, "is_connection", "principal", "client_id", "peer")
"""
Whom limits are looked up for: a client by its names, or the address of a
connection that is opened.  The names that do not matter are empty.
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
    """
    The columns of L{SUBJECT}, of clean requests.
    """
    isConnection = F.col("kind") == CONNECTION
    nobody = F.lit("")
    return [
        *(F.col(name) for name in BOOT),
        isConnection.alias("is_connection"),
        F.when(isConnection, nobody).otherwise(F.col("principal")).alias("principal"),
        F.when(isConnection, nobody).otherwise(F.col("client_id")).alias("client_id"),
        F.when(isConnection, F.col("peer")).otherwise(nobody).alias("peer"),
    ]


def limitSpans(limits: DataFrame) -> DataFrame:
    """
    From when to when limits were set, whomever for: the columns of the limits
    table, C{since_us} and C{until_us} (null: to the end) on the server's
    monotonic clock.

    @param limits: clean ones.
    """
    changes = Window.partitionBy(*BOOT, *_ENTITY, "limit_name").orderBy("mono_us", "seq")
    spans = limits.select(
        *BOOT,
        *_ENTITY,
        "limit_name",
        "value",
        F.col("mono_us").alias("since_us"),
        F.lead("mono_us").over(changes).alias("until_us"),
    )
    return spans.where("value IS NOT NULL AND (until_us IS NULL OR until_us > since_us)")


def limitsInForce(requests: DataFrame, limits: DataFrame) -> DataFrame:
    """
    For each client that has sent something, the limits that held for it in the
    course of time: L{SUBJECT}, C{limit_name}, C{since_us}, C{until_us},
    C{value}, and who shares the meter: C{meter_user}, C{meter_client_id} and
    C{meter_ip}, null for what does not matter.

    It is the rule of L{admission.quotas.limits.LimitTable} and
    L{admission.quotas.metering.Meters}, for tables that change.

    @param requests: clean ones, like C{limits}.
    """
    wanted = requests.select(*subjectColumns()).distinct().select(*SUBJECT, F.expr(_entities()))
    spans = limitSpans(limits).withColumnsRenamed({name: f"l_{name}" for name in (*BOOT, *_ENTITY)})
    isOf = F.lit(True)
    for name in BOOT:
        isOf &= wanted[name] == spans[f"l_{name}"]
    for name in _ENTITY:
        isOf &= wanted[f"e_{name}"].eqNullSafe(spans[f"l_{name}"])
    found = wanted.join(spans, isOf).select(
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
    # Between two moments at which anything changes for a client, the most specific of its limits holds.
    client = (*SUBJECT, "limit_name")
    moments = found.select(*client, F.explode(F.array("since_us", "until_us")).alias("from_us")).where(
        "from_us IS NOT NULL"
    )
    following = F.lead("from_us").over(Window.partitionBy(*client).orderBy("from_us"))
    steps = moments.distinct().withColumn("to_us", following)
    held = steps.join(found, list(client)).where("since_us <= from_us AND (until_us IS NULL OR until_us > from_us)")
    chosen = ("value", "meter_user", "meter_client_id", "meter_ip")
    best = held.groupBy(*client, "from_us", "to_us").agg(F.min_by(F.struct(*chosen), "rank").alias("_best"))
    return best.select(
        *client,
        F.col("from_us").alias("since_us"),
        F.col("to_us").alias("until_us"),
        *(F.col(f"_best.{name}").alias(name) for name in chosen),
    )
