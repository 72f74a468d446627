"""Recorded rows by hand, for the jobs that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from admission.offline.kinds import traitsOfKind
from admission.recording.schema import Table
from pyspark_admission.columns import columnsOf
from tests.kit.sparksession import sharedSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGIN = datetime(2023, 11, 14, 22, 13, tzinfo=UTC)
"""When the clock of the servers in these rows was at zero: a minute begins."""

SECOND_US = 1_000_000

_COMMON: Mapping[str, Any] = {"v": 1, "broker_id": "0", "boot_id": "boot", "mono_us": 0}

_REQUEST: Mapping[str, Any] = {
    **_COMMON,
    "conn_id": 1,
    "peer": "::1",
    "principal": "alice",
    "client_id": "app",
    "kind": "Produce",
    "request_bytes": 0,
    "response_bytes": 0,
    "decision": "admit",
    "throttle_ms": 0,
}

Row = dict[str, Any]


def at(minutes: float) -> datetime:
    """So many minutes after L{BEGIN}."""
    return BEGIN + timedelta(minutes=minutes)


def requestRow(seconds: float = 0.0, **values: Any) -> Row:
    """A request of alice's that arrived C{seconds} after L{BEGIN}."""
    row = {**_REQUEST, **_moment(seconds), **values}
    return {"traits": traitsOfKind(row["kind"]).code, **row}


def sensorRow(seconds: float, sensor: str, value: float | None, kind: str = "gauge", **values: Any) -> Row:
    """What a sensor said C{seconds} after L{BEGIN}."""
    return {**_COMMON, **_moment(seconds), "sensor": sensor, "kind": kind, "value": value, **values}


def limitRow(seconds: float, limitName: str, value: float | None, **values: Any) -> Row:
    """A limit that was set, or with L{None} removed, C{seconds} after L{BEGIN}."""
    return {**_COMMON, **_moment(seconds), "limit_name": limitName, "value": value, **values}


def frameOf(table: Table, rows: Iterable[Row]) -> DataFrame:
    """A DataFrame of rows; those without a number are numbered from 1."""
    columns = columnsOf(table)
    numbered = ({"seq": place, **row} for place, row in enumerate(rows, 1))
    return sharedSession().createDataFrame([tuple(map(row.get, columns.names)) for row in numbered], columns)


def rowsOf(frame: DataFrame) -> list[Row]:
    """What is in a DataFrame, ordered by its columns from the left, times in UTC and fractions rounded."""
    found = [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]
    return sorted(found, key=lambda row: [(value is not None, value) for value in row.values()])


def _moment(seconds: float) -> Row:
    return {"mono_us": round(seconds * SECOND_US), "ts": BEGIN + timedelta(seconds=seconds)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        # Spark's timestamps are in the zone of this machine.
        return value.astimezone(UTC)
    return round(value, 9) if isinstance(value, float) else value
