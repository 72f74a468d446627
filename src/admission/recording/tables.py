# -*- test-case-name: tests.unit.recording.test_tables -*-
"""
The recorded tables: the columns of every server, and the columns that installed drivers of a protocol add.

A driver with further columns makes a subclass of L{RequestEvent <admission.recording.events.RequestEvent>} and names
its columns in the entry-point group C{admission.recorded_columns}: a mapping of columns as L{Table.extended
<admission.recording.schema.Table.extended>} takes it.  Ours are known without, since Spark's workers may have this
code from a zip, which has no entry points.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attrs import evolve

from . import schema
from .recordlayout import Layout
from .schema import CONNECTIONS, LIMITS, SENSORS, Table

ENTRY_POINT_GROUP = "admission.recorded_columns"

OURS = (
    EntryPoint("kafka", "admission.kafka.serving.recordedcolumns:KAFKA_COLUMNS", ENTRY_POINT_GROUP),
    EntryPoint("web", "admission.web.webcolumns:WEB_COLUMNS", ENTRY_POINT_GROUP),
)

_FIRST_OTHER_NUMBER = 101


def extendedBy(table: Table, entries: Iterable[EntryPoint]) -> tuple[Table, Sequence[Table]]:
    """
    C{table} with the columns of drivers.  Columns that cannot be imported, or that do not fit into a record, are left
    out, with a warning; of two columns of one name, the later one.

    @return: the table as it is read, with the columns of all; and as each driver records it, with its own columns and
        under a number of its own, since a record has not room for all.  The first has the table's number.
    """
    read, recorded = table, [table]
    for entry in entries:
        try:
            columns = entry.load()
            number = table.number if len(recorded) == 1 else _FIRST_OTHER_NUMBER + len(recorded)
            own = evolve(table.extended(columns), number=number)
            Layout.of(own)
            read = read.extended(columns)
        except Exception as error:
            # A warning, not a log message: Spark's workers import this module without Twisted.
            warnings.warn(f"the columns that {entry.name} ({entry.value}) records are left out: {error}", stacklevel=2)
        else:
            recorded.append(own)
    return read, recorded[1:] or recorded


REQUESTS, RECORDED_REQUESTS = extendedBy(
    schema.REQUESTS, (*OURS, *sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name))
)
"""
One record for each request of any server; columns that its driver lacks are null, or -1.  And the same as each driver
records it.
"""

TABLES: Sequence[Table] = (REQUESTS, CONNECTIONS, LIMITS, SENSORS)

RECORDED_TABLES: Sequence[Table] = (*RECORDED_REQUESTS, CONNECTIONS, LIMITS, SENSORS)
"""What a segment may have; several with one name are one table."""


def recordedTable(eventType: type[Any]) -> Table:
    """
    As what requests of a class of events are recorded: the table with most columns all of which it has.
    """
    common = {column.attribute for column in schema.REQUESTS.recorded}

    def own(table: Table) -> Iterable[str]:
        return [column.attribute for column in table.recorded if column.attribute not in common]

    fitting = [table for table in RECORDED_REQUESTS if all(hasattr(eventType, each) for each in own(table))]
    return max(fitting, key=lambda table: len(table.columns), default=RECORDED_REQUESTS[0])
