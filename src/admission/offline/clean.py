# -*- test-case-name: tests.spark.test_aggregate -*-
"""
The first step of every job: columns get the types of the schema, missing names become empty, and invalid rows are left
out and counted.

Invalid rows result from a crash in the middle of a write, from a faulty disk, or from a server that is not ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen
from pyspark.sql import Column, DataFrame, Observation, functions as F

from pyspark_admission.columns import columnsOf

from ..interfaces import Refusal, Traits
from ..recording.events import ADMIT, CLOSED, COUNTER, EXPIRE, GAUGE, MUTE, OPENED, REJECT, THROTTLE
from ..recording.schema import CONNECTIONS, LIMITS, SENSORS, Table
from ..recording.tables import REQUESTS
from .kinds import CODE_OF_KIND

KEYS: Mapping[str, Sequence[str]] = {
    REQUESTS.name: ("listener", "peer", "principal", "client_id", "kind"),
    CONNECTIONS.name: ("listener", "peer", "principal"),
    LIMITS.name: (),
    SENSORS.name: ("entity",),
}
"""The columns, by table, in which null and the empty string both mean that there is no name."""

_BROKEN = "_broken_rule"

_LAST_CODE = Traits(waitsForOthers=True, isConnection=True).code


@frozen
class Rule:
    """
    What makes a row invalid.

    @ivar name: the name under which it is counted.
    @ivar broken: the condition for an invalid row, in Spark's SQL; null counts as false.
    @ivar words: what is wrong with such a row.
    """

    name: str
    broken: str
    words: str


def _oneOf(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_COMMON = (
    Rule("origin", "broker_id IS NULL OR boot_id IS NULL", "nobody knows which server recorded it"),
    Rule("moment", "ts IS NULL OR mono_us IS NULL", "it happened at no time"),
    Rule("place", "seq IS NULL OR seq < 1", "it has no place in the order of events"),
)

RULES: Mapping[str, Sequence[Rule]] = {
    REQUESTS.name: (
        *_COMMON,
        Rule(
            "decision",
            f"decision IS NULL OR decision NOT IN ({_oneOf((ADMIT, THROTTLE, REJECT, MUTE, EXPIRE))})",
            "nobody knows what became of it",
        ),
        Rule("size", "request_bytes IS NULL OR request_bytes < 0 OR response_bytes < 0", "it has less than no bytes"),
        Rule("throttle", "throttle_ms IS NULL OR throttle_ms < 0", "the client was told a delay that is none"),
        Rule("delays", "exists(policy_delays_us, each -> each < 0)", "a policy asked for less than no delay"),
        Rule(
            "waits",
            "least(pool_wait_us, queue_us, service_us, purgatory_wait_us, pool_hold_us) < 0",
            "it took less than no time",
        ),
        Rule("decided", "decided_mono_us < mono_us", "it was decided on before it came"),
        Rule("sent", "sent_mono_us < mono_us", "it was answered before it came"),
        Rule("counted", "is_counted AND decided_mono_us IS NULL", "it was counted by policies that were never asked"),
        Rule(
            "refusal",
            f"refusal NOT IN ({_oneOf(each.value for each in Refusal)})",
            "nobody knows how it could have been refused",
        ),
        Rule("traits", f"traits NOT BETWEEN 0 AND {_LAST_CODE}", "nobody knows what its kind means"),
        Rule("identities", "size(producer_ids) > producer_id_count", "it carries more producers than it counts"),
    ),
    CONNECTIONS.name: (
        *_COMMON,
        Rule(
            "state",
            f"state IS NULL OR state NOT IN ({_oneOf((OPENED, CLOSED))})",
            "the connection was neither opened nor closed",
        ),
        Rule("requests", "requests < 0", "less than no requests came on it"),
        Rule("waits", "open_us < 0", "it was open for less than no time"),
    ),
    LIMITS.name: (
        *_COMMON,
        Rule("name", "limit_name IS NULL", "nobody knows which limit it is"),
        Rule(
            "entity",
            "'' IN (user, client_id, ip) OR coalesce(user, client_id, ip) IS NULL"
            " OR (ip IS NOT NULL AND coalesce(user, client_id) IS NOT NULL)",
            "it is for nobody, or for an address and somebody else",
        ),
        Rule("value", "value <= 0 OR value = double('Infinity')", "it is no limit"),
    ),
    SENSORS.name: (
        *_COMMON,
        Rule("sensor", "sensor IS NULL", "nobody knows what was measured"),
        Rule(
            "kind",
            f"kind IS NULL OR kind NOT IN ({_oneOf((GAUGE, COUNTER))})",
            "nobody knows whether it counts or measures",
        ),
        Rule("counter", f"kind = '{COUNTER}' AND value < 0", "it has counted to less than zero"),
    ),
}
"""By table; a row that breaks several counts for the first."""


def clean(frame: DataFrame, table: Table, observation: Observation | str | None = None) -> DataFrame:
    """
    The valid rows, batch or stream.

    Values that cannot be cast to a column's type are null, like missing columns; columns that the schema does not know
    stay as they are.

    @param frame: the rows of C{table}, as read.
    @param observation: counts C{rows} and the violations of each rule on the way, without another pass: an
        L{Observation}, or a name for a stream's progress.
    """
    judged = _judged(frame, table)
    if observation is not None:
        judged = judged.observe(observation, F.count(F.lit(1)).alias("rows"), *_counts(table))
    return judged.where(F.col(_BROKEN).isNull()).drop(_BROKEN)


def brokenRows(frame: DataFrame, table: Table) -> DataFrame:
    """
    How many rows L{clean} leaves out, and why: C{table}, C{rule}, C{n}, C{rows} (the number of all rows) and C{words},
    with a row for every rule.
    """
    counted = _judged(frame, table).agg(F.count(F.lit(1)).alias("rows"), *_counts(table))
    entries = ", ".join(
        f"struct('{rule.name}' AS rule, `{rule.name}` AS n, rows AS rows, '{rule.words}' AS words)"
        for rule in RULES[table.name]
    )
    told = counted.select(F.lit(table.name).alias("table"), F.expr(f"inline(array({entries}))"))
    return told.select("table", "rule", "n", "rows", "words")


def _judged(frame: DataFrame, table: Table) -> DataFrame:
    """
    The rows in the schema's types, and the rule that each breaks.
    """
    present, keys = set(frame.columns), KEYS[table.name]
    columns: list[Column] = []
    for column in columnsOf(table):
        value = f"`{column.name}`" if column.name in present else "NULL"
        cast = f"try_cast({value} AS {column.dataType.simpleString()})"
        if column.name == "traits" and "kind" in present:
            cast = f"coalesce({cast}, {CODE_OF_KIND})"
        columns.append(F.expr(f"coalesce({cast}, '')" if column.name in keys else cast).alias(column.name))
    known = {column.name for column in table.columns}
    others = [F.col(f"`{name}`") for name in frame.columns if name not in known]
    cases = " ".join(f"WHEN {rule.broken} THEN '{rule.name}'" for rule in RULES[table.name])
    return frame.select(*columns, *others).withColumn(_BROKEN, F.expr(f"CASE {cases} END"))


def _counts(table: Table) -> list[Column]:
    return [F.count_if(F.col(_BROKEN) == rule.name).alias(rule.name) for rule in RULES[table.name]]
