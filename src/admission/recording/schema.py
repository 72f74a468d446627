# -*- test-case-name: tests.unit.recording.test_events -*-
"""
The schema of recordings: the only definition of tables and their columns.

Names are those of Parquet and Spark and carry their units.  Every integer is read as 64 bits wide, whatever its width
in a record.  Columns are only ever added: none is renamed, narrowed, given another meaning or removed, so that
recordings of different years can be read together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import evolve, frozen

VERSION = 4
"""Of the whole schema; increased by one in each release that adds columns."""

OVERFLOW = "<overflow>"
"""The text in place of another when a segment has no room for more texts."""


class ColumnType(Enum):
    """
    The type of a column, which also determines its form in a record.
    """

    INTEGER = "integer"
    """An integer."""

    IDENTITY = "identity"
    """An integer; -1 is recorded where there is none, and read as null."""

    SECONDS = "seconds"
    """Recorded as float seconds, read as whole microseconds; null if it is not a number."""

    TIMESTAMP = "timestamp"
    """Wall time in microseconds, computed from C{mono_us} when it is read."""

    NUMBER = "number"
    """A float; null if it is not a number."""

    FLAG = "flag"
    """Yes, no, or null, which is recorded as -1."""

    TEXT = "text"
    """Text chosen on the server's side, recorded as a code."""

    FOREIGN_TEXT = "foreign text"
    """Text that clients may choose or be quoted in: also a code, with room of its own so that it displaces no other."""

    TEXTS = "texts"
    """A list of texts."""

    INTEGERS = "integers"
    """A list of integers."""

    DURATIONS = "durations"
    """A list of durations: float seconds, read as whole microseconds."""

    @property
    def isText(self) -> bool:
        """
        Whether records contain a code for it.
        """
        return self in (ColumnType.TEXT, ColumnType.FOREIGN_TEXT)

    @property
    def isList(self) -> bool:
        return self in (ColumnType.TEXTS, ColumnType.INTEGERS, ColumnType.DURATIONS)


@frozen
class Column:
    """
    One column of a table.

    @ivar name: its name.
    @ivar type: its type.
    @ivar attribute: the attribute of the event that it is recorded from; empty if it is constant in a segment, or
        computed when it is read.
    @ivar code: its form in a record, in the letters of L{struct}.
    @ivar capacity: how many values of a list a record has room for.
    """

    name: str
    type: ColumnType
    attribute: str = ""
    code: str = ""
    capacity: int = 1


@frozen
class Table:
    """
    One kind of record.

    @ivar name: its name, also of its directory.
    @ivar number: marks its records; from 1 to 254.
    @ivar columns: in order.
    """

    name: str
    number: int
    columns: Sequence[Column]

    @property
    def recorded(self) -> Sequence[Column]:
        """
        The columns in records.
        """
        return [column for column in self.columns if column.attribute]

    def extended(self, columns: Mapping[str, Sequence[Column]]) -> Table:
        """
        This table with more columns.

        @param columns: the columns to add, by the name of the column before them.
        @raise ValueError: if there is no such column, or a name would occur twice, ignoring case as Spark does.
        """
        missing = sorted(set(columns).difference(column.name for column in self.columns))
        if missing:
            raise ValueError(f"{self.name} has no column {', '.join(missing)} to add others behind")
        all = [each for column in self.columns for each in (column, *columns.get(column.name, ()))]
        names = [column.name.lower() for column in all]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.name} would have {', '.join(twice)} twice")
        return evolve(self, columns=tuple(all))


def integer(name: str, attribute: str, code: str = "q") -> Column:
    return Column(name, ColumnType.INTEGER, attribute, code)


def _seconds(name: str, attribute: str) -> Column:
    return Column(name, ColumnType.SECONDS, attribute, "d")


def _shortSeconds(name: str, attribute: str) -> Column:
    """
    In half as many bytes: whole microseconds remain what they are up to 16 seconds.
    """
    return Column(name, ColumnType.SECONDS, attribute, "f")


def _text(name: str, attribute: str) -> Column:
    return Column(name, ColumnType.TEXT, attribute, "H")


def foreign(name: str, attribute: str) -> Column:
    """
    A column of text that clients may choose.
    """
    return Column(name, ColumnType.FOREIGN_TEXT, attribute, "H")


def _common(momentAttribute: str) -> Sequence[Column]:
    return (
        Column("v", ColumnType.INTEGER),
        Column("broker_id", ColumnType.TEXT),
        Column("boot_id", ColumnType.TEXT),
        integer("seq", "seq"),
        Column("ts", ColumnType.TIMESTAMP),
        _seconds("mono_us", momentAttribute),
    )


REQUESTS = Table(
    "requests",
    1,
    (
        *_common("arrivedSeconds"),
        Column("gate_seed", ColumnType.IDENTITY),
        integer("conn_id", "connectionId"),
        _text("listener", "listener"),
        foreign("peer", "peer"),
        _text("principal", "principal"),
        foreign("client_id", "clientId"),
        _text("kind", "kind"),
        integer("request_bytes", "requestBytes"),
        integer("response_bytes", "responseBytes"),
        # Columns keep their names; the first recorded identities were producers.
        Column("producer_id", ColumnType.IDENTITY, "firstIdentity", "q"),
        integer("producer_id_count", "identityCount", "H"),
        Column("producer_ids", ColumnType.INTEGERS, "identities", "q", 4),
        integer("inflight", "inFlight", "H"),
        _text("decision", "decision"),
        foreign("reason", "reason"),
        _text("policy", "policy"),
        Column("policy_names", ColumnType.TEXTS),
        Column("policy_delays_us", ColumnType.DURATIONS, "policyDelaysSeconds", "d", 6),
        _seconds("decided_mono_us", "decidedSeconds"),
        Column("is_counted", ColumnType.FLAG, "isCounted", "b"),
        integer("throttle_ms", "throttleTimeMs", "i"),
        _shortSeconds("pool_wait_us", "poolWaitSeconds"),
        _shortSeconds("queue_us", "queueSeconds"),
        _seconds("service_us", "serviceSeconds"),
        _seconds("purgatory_wait_us", "purgatoryWaitSeconds"),
        _seconds("pool_hold_us", "poolHoldSeconds"),
        _seconds("sent_mono_us", "sentSeconds"),
        integer("pool_used_bytes", "poolUsedBytes"),
        integer("pool_available_bytes", "poolAvailableBytes"),
        Column("bloom_seen", ColumnType.FLAG, "isKnown", "b"),
        Column("policy_descriptions", ColumnType.TEXTS),
        Column("quota_windows", ColumnType.IDENTITY),
        Column("quota_window_us", ColumnType.SECONDS),
        Column("throttle_max_us", ColumnType.SECONDS),
        Column("pool_description", ColumnType.TEXT),
        _text("refusal", "refusal"),
        Column("traits", ColumnType.IDENTITY, "traits", "b"),
        _shortSeconds("lag_us", "lagSeconds"),
        _shortSeconds("begun_us", "begunSeconds"),
        Column("limit_share", ColumnType.NUMBER),
    ),
)
"""
One record for each request; see L{admission.recording.events.RequestEvent}.
Drivers of a protocol add columns of their own, see L{Table.extended}.
"""

CONNECTIONS = Table(
    "connections",
    2,
    (
        *_common("atSeconds"),
        integer("conn_id", "connectionId"),
        _text("state", "state"),
        _text("listener", "listener"),
        foreign("peer", "peer"),
        _text("principal", "principal"),
        foreign("reason", "reason"),
        integer("requests", "requestCount"),
        _seconds("open_us", "openSeconds"),
    ),
)
"""Connections opened and closed; see L{admission.recording.events.ConnectionEvent}."""

LIMITS = Table(
    "limits",
    3,
    (
        *_common("atSeconds"),
        _text("user", "user"),
        _text("client_id", "clientId"),
        _text("ip", "ip"),
        _text("limit_name", "limitName"),
        Column("value", ColumnType.NUMBER, "value", "d"),
        _text("changed_by", "changedBy"),
    ),
)
"""Limits set and removed; see L{admission.recording.events.LimitEvent}."""

SENSORS = Table(
    "sensors",
    4,
    (
        *_common("atSeconds"),
        _text("sensor", "sensor"),
        foreign("entity", "entity"),
        _text("kind", "kind"),
        Column("value", ColumnType.NUMBER, "value", "d"),
    ),
)
"""Values of sensors; see L{admission.recording.events.SensorSample}."""
